//! Encodes messages as resources, as fields of other messages, and durations.

use std::sync::Arc;
use std::time::Duration;

use prost::encoding::{WireType, bool, double, encode_key, encode_varint, int32, string};
use prost::{Message, Name};
use serde_json::{Map, Value};

use strait_proto::envoy::google::protobuf::{Any, Duration as ProtoDuration};
use strait_xds::resource::Resource;

/// Encodes a message as the resource `name`.
pub(super) fn encode(name: impl Into<Arc<str>>, message: &impl Message) -> Resource {
    Resource::new(name, message.encode_to_vec())
}

/// Wraps a message in an `Any` with its type URL.
pub(super) fn any<M: Message + Name>(message: &M) -> Any {
    Any {
        type_url: format!("type.googleapis.com/{}", M::full_name()),
        value: message.encode_to_vec(),
    }
}

pub(super) fn duration(duration: Duration) -> ProtoDuration {
    ProtoDuration {
        seconds: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        nanos: i32::try_from(duration.subsec_nanos()).unwrap_or_default(),
    }
}

pub(super) fn seconds(seconds: u64) -> ProtoDuration {
    duration(Duration::from_secs(seconds))
}

/// Encodes a JSON object as a `google.protobuf.Struct`, with fields sorted by name. The order of
/// map entries is not defined, but equal content must give equal bytes. (protobuf, "struct.proto".)
pub(crate) fn encode_struct(object: &Map<String, Value>) -> Vec<u8> {
    let mut fields: Vec<_> = object.iter().collect();
    fields.sort_unstable_by_key(|(name, _)| *name);
    let mut bytes = Vec::new();
    for (name, value) in fields {
        let mut entry = Vec::new();
        string::encode(1, name, &mut entry);
        nested(2, &encode_value(value), &mut entry);
        nested(1, &entry, &mut bytes);
    }
    bytes
}

/// Encodes a JSON value as a `google.protobuf.Value`.
fn encode_value(value: &Value) -> Vec<u8> {
    let mut bytes = Vec::new();
    match value {
        Value::Null => int32::encode(1, &0, &mut bytes),
        Value::Number(number) => {
            double::encode(2, &number.as_f64().unwrap_or(f64::NAN), &mut bytes);
        }
        Value::String(text) => string::encode(3, text, &mut bytes),
        Value::Bool(is) => bool::encode(4, is, &mut bytes),
        Value::Object(fields) => nested(5, &encode_struct(fields), &mut bytes),
        Value::Array(values) => {
            let mut list = Vec::new();
            values.iter().for_each(|one| nested(1, &encode_value(one), &mut list));
            nested(6, &list, &mut bytes);
        }
    }
    bytes
}

/// Writes an encoded message as a field.
pub(crate) fn nested(tag: u32, message: &[u8], out: &mut Vec<u8>) {
    encode_key(tag, WireType::LengthDelimited, out);
    encode_varint(message.len() as u64, out);
    out.extend_from_slice(message);
}

/// Writes a `Metadata` with one filter, which has these fields, as a field of another message.
/// (Envoy, "base.proto".)
pub(super) fn write_metadata(
    tag: u32,
    filter: &str,
    fields: &Map<String, Value>,
    out: &mut Vec<u8>,
) {
    let (mut entry, mut metadata) = (Vec::new(), Vec::new());
    string::encode(1, &filter.to_owned(), &mut entry);
    nested(2, &encode_struct(fields), &mut entry);
    nested(1, &entry, &mut metadata);
    nested(tag, &metadata, out);
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use strait_proto::envoy::google::protobuf::Struct;
    use strait_proto::json::to_struct;

    #[test]
    fn struct_encoding_matches_prost_and_sorts_fields() {
        let object = json!({
            "text": "%PROTOCOL%", "number": 1.5, "yes": true, "nothing": null, "empty": {},
            "list": ["a", {"b": [1, []]}], "nested": {"b": 1, "a": 2},
        });
        let bytes = encode_struct(object.as_object().expect("an object"));
        let read = Struct::decode(&bytes[..]).expect("a message");
        assert_eq!(read, to_struct(&object));
        let first = bytes.windows(5).position(|at| at == b"empty").expect("a field");
        assert!(bytes.windows(4).position(|at| at == b"text").expect("a field") > first);
    }
}
