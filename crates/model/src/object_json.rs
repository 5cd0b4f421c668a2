//! Stored objects in compressed form.
//!
//! A tree of `serde_json` takes about 14 KB for an access policy with three rules, most of it for
//! map nodes with one entry. Its text takes about 1 KB, and less when compressed. The content of an
//! object is parsed once into a dedicated form, so the object itself is only read when it changes
//! or when it is requested.

use std::fmt;
use std::sync::Arc;

use serde_json::Value;

use super::packed_text::{length, pack, unpack, unpack_into};

/// The length in bytes up to which a text is assumed to have few values.
const SHORT_TEXT: usize = 64 << 10;

/// An object as JSON with sorted keys and without blanks, compressed. Equal content gives equal
/// bytes. Clones share them.
#[derive(Clone)]
pub struct ObjectJson(Arc<[u8]>);

impl ObjectJson {
    /// Parses the object on each call.
    pub fn to_value(&self) -> Value {
        // It was written from a value that was parsed within the same limits.
        serde_json::from_slice(&unpack(&self.0)).unwrap_or_default()
    }

    /// Returns the JSON text.
    pub(super) fn text(&self) -> String {
        String::from_utf8(unpack(&self.0)).unwrap_or_default()
    }

    /// Returns the number of values in the text, including lists and maps, without parsing it; 0
    /// for short texts.
    pub fn values(&self) -> usize {
        if self.text_len() <= SHORT_TEXT { 0 } else { values(&unpack(&self.0)) }
    }

    /// Returns the length of the text in bytes.
    pub fn text_len(&self) -> usize {
        length(&self.0)
    }

    /// Appends the text to `out`, so that thousands of objects can be written without an allocation
    /// for each.
    pub fn write_text(&self, out: &mut Vec<u8>) {
        unpack_into(&self.0, out);
    }

    /// Returns the number of stored bytes.
    pub fn bytes(&self) -> usize {
        self.0.len()
    }

    /// Returns the address in memory, which only clones share. For tests.
    pub fn place(&self) -> *const u8 {
        self.0.as_ptr()
    }
}

/// Counts the values in a JSON text without blanks: one per list, map and comma.
fn values(text: &[u8]) -> usize {
    let (mut values, mut is_quoted, mut is_escaped) = (1, false, false);
    for byte in text {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = true,
            b'"' => is_quoted = !is_quoted,
            b',' | b'[' | b'{' if !is_quoted => values += 1,
            _ => {}
        }
    }
    values
}

impl PartialEq for ObjectJson {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.0 == other.0
    }
}

impl Eq for ObjectJson {}

impl fmt::Debug for ObjectJson {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text())
    }
}

impl From<&Value> for ObjectJson {
    fn from(object: &Value) -> Self {
        Self(pack(&object.to_string()).into())
    }
}

impl From<Value> for ObjectJson {
    fn from(object: Value) -> Self {
        Self::from(&object)
    }
}

impl From<Arc<Value>> for ObjectJson {
    fn from(object: Arc<Value>) -> Self {
        Self::from(&*object)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn values_are_counted_without_parsing() {
        for (text, count) in [("1", 1), ("[1,2]", 3), (r#"{"a,[":"\\\",{","b":["x"]}"#, 4)] {
            assert_eq!(values(text.as_bytes()), count, "{text}");
        }
        let object = ObjectJson::from(json!({ "a": vec![0; SHORT_TEXT] }));
        assert_eq!(object.values(), SHORT_TEXT + 2);
        assert_eq!(ObjectJson::from(json!({ "a": [1] })).values(), 0);
    }

    #[test]
    fn equal_content_is_equal_and_round_trips() {
        let object = json!({ "b": [1, -2, 0.5, 1e300], "a": { "é\n": null, "c": "\u{1F600}" } });
        let stored = ObjectJson::from(&object);
        assert_eq!(stored.to_value(), object);
        let other = ObjectJson::from(stored.to_value());
        assert!(stored == other && stored.place() != other.place());
        let shared = stored.clone();
        assert_eq!((stored.place(), &stored), (shared.place(), &shared));
        assert_ne!(stored, ObjectJson::from(json!({})));
        assert_eq!(stored.text(), object.to_string());
    }
}
