//! JSON text that is parsed later, with the settings for it.

use serde::{Deserialize, Deserializer};
use serde_json::Value;

/// A part of a document as text until the rest is parsed: many exist at once, and a tree takes ten
/// times as much memory. It is parsed again soon, so it isn't packed like stored objects.
pub(super) struct ValueText(Box<str>);

impl ValueText {
    /// Parses the text.
    pub(super) fn to_value(&self) -> Value {
        // It was written from a value that was parsed within the same limits.
        serde_json::from_str(&self.0).unwrap_or_default()
    }
}

impl<'de> Deserialize<'de> for ValueText {
    fn deserialize<D: Deserializer<'de>>(value: D) -> Result<Self, D::Error> {
        Value::deserialize(value).map(|value| Self(value.to_string().into()))
    }
}
