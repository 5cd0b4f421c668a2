//! An object as it is stored, in few bytes.
//!
//! A tree of `serde_json` takes some 14 KB for an access policy of three rules, most of it nodes of maps with one entry; its
//! text takes one, and packed a part of that. What an object says is read once and kept in a form of its own, so that the object itself is looked at
//! when it changes and when somebody asks for it.

use std::fmt;
use std::sync::Arc;

use serde_json::Value;

use super::packed_text::{length, pack, unpack, unpack_into};

/// Texts up to this length have few values.
const SHORT_TEXT: usize = 64 << 10;

/// An object: its JSON with sorted keys and without blanks, packed. Equal content is equal bytes. A clone shares them.
#[derive(Clone)]
pub struct ObjectJson(Arc<[u8]>);

impl ObjectJson {
    /// What it says, read anew each time.
    pub fn to_value(&self) -> Value {
        // It was written from a value, which was read within the same bounds.
        serde_json::from_slice(&unpack(&self.0)).unwrap_or_default()
    }

    /// Its text.
    fn text(&self) -> String {
        String::from_utf8(unpack(&self.0)).unwrap_or_default()
    }

    /// How many values its text contains, each list and map among them, without reading them. 0 for short texts.
    pub fn values(&self) -> usize {
        if self.text_len() <= SHORT_TEXT { 0 } else { values(&unpack(&self.0)) }
    }

    /// How many bytes its text has.
    pub fn text_len(&self) -> usize {
        length(&self.0)
    }

    /// Writes its text behind what is there: of thousands at once, without memory for each.
    pub fn write_text(&self, out: &mut Vec<u8>) {
        unpack_into(&self.0, out);
    }

    /// How many bytes are kept of it.
    pub fn bytes(&self) -> usize {
        self.0.len()
    }

    /// Its address in memory, which only its clones share. For tests.
    pub fn place(&self) -> *const u8 {
        self.0.as_ptr()
    }
}

/// How many values a text of JSON contains. A text without blanks has one for each list, each map and each comma.
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
    fn values_are_counted_without_reading_them() {
        for (text, count) in [("1", 1), ("[1,2]", 3), (r#"{"a,[":"\\\",{","b":["x"]}"#, 4)] {
            assert_eq!(values(text.as_bytes()), count, "{text}");
        }
        let object = ObjectJson::from(json!({ "a": vec![0; SHORT_TEXT] }));
        assert_eq!(object.values(), SHORT_TEXT + 2);
        assert_eq!(ObjectJson::from(json!({ "a": [1] })).values(), 0);
    }

    #[test]
    fn equal_content_is_equal_and_comes_out_as_it_went_in() {
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
