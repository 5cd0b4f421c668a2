//! JSON that waits for what it is read with.

use serde::{Deserialize, Deserializer};
use serde_json::Value;

/// A part of what is read, as text until the rest is there: many are held at once, and a tree takes ten times as much. It is
/// read again in a moment, so it isn't packed as what is kept is.
pub(super) struct ValueText(Box<str>);

impl ValueText {
    /// What it says.
    pub(super) fn to_value(&self) -> Value {
        // It was written from a value, which was read within the same bounds.
        serde_json::from_str(&self.0).unwrap_or_default()
    }
}

impl<'de> Deserialize<'de> for ValueText {
    fn deserialize<D: Deserializer<'de>>(value: D) -> Result<Self, D::Error> {
        Value::deserialize(value).map(|value| Self(value.to_string().into()))
    }
}
