//! The JSON form of protobuf messages, as Envoy prints them.
//!
//! Field names are spelled as in the .proto files (`typed_config`) and in Envoy's config dump. Reading also accepts
//! lowerCamelCase. Fields with default values are omitted, and a nested `Any` is shown as the message that it contains.
//! The conversion decodes bytes with descriptors. This is slow compared to the generated types, and meant for people
//! (config dumps) and golden files, never for pushes.

use std::sync::LazyLock;

use prost::Message as _;
use prost_reflect::{
    DescriptorPool, DynamicMessage, MapKey, MessageDescriptor, ReflectMessage as _,
    SerializeOptions, Value as Field,
};
use serde_json::Value;

use crate::envoy::google::protobuf::{self as wkt, Struct, value::Kind};

/// The reason why a message or a JSON value can't be converted.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The descriptor set does not contain the type. `proto/tests/generated.rs` lists its files.
    #[error("no descriptor for {type_url}")]
    UnknownType {
        /// The requested type, as given.
        type_url: String,
    },
    /// The bytes are not a message of this type.
    #[error("not a message of type {type_url}")]
    Malformed {
        /// The requested type, as given.
        type_url: String,
        /// The error of the decoder.
        source: prost::DecodeError,
    },
    /// The JSON does not fit the type, or a nested `Any` holds a type without a descriptor.
    #[error("no JSON form of {type_url}")]
    Json {
        /// The outer type.
        type_url: String,
        /// The error of the serializer or parser.
        source: serde_json::Error,
    },
}

/// Converts the message in `bytes` to JSON. In `type_url`, everything up to the last `/` is ignored.
///
/// # Errors
/// The type or that of a nested `Any` has no descriptor, or the bytes don't decode.
pub fn to_json(type_url: &str, bytes: &[u8]) -> Result<Value, Error> {
    let message = decoded(type_url, bytes)?;
    let options = SerializeOptions::new().use_proto_field_name(true);
    message
        .serialize_with_options(serde_json::value::Serializer, &options)
        .map_err(|source| Error::Json { type_url: type_url.to_owned(), source })
}

/// Converts the message in `bytes` to JSON as in a Kubernetes manifest: field names in lowerCamelCase, 64-bit integers
/// as numbers. An unknown field gets the key `fieldN`, where N is its number, so that validation can
/// report it.
///
/// # Errors
/// The type or that of a nested `Any` has no descriptor, or the bytes don't decode.
pub fn to_manifest(type_url: &str, bytes: &[u8]) -> Result<Value, Error> {
    let message = decoded(type_url, bytes)?;
    let options = SerializeOptions::new().stringify_64_bit_integers(false);
    let mut json = message
        .serialize_with_options(serde_json::value::Serializer, &options)
        .map_err(|source| Error::Json { type_url: type_url.to_owned(), source })?;
    note_unknown(&message, &mut json);
    Ok(json)
}

/// Adds the unknown fields of a message to its JSON form.
fn note_unknown(message: &DynamicMessage, json: &mut Value) {
    // Well-known types have special JSON forms.
    if message.descriptor().full_name().starts_with("google.protobuf.") {
        return;
    }
    let Some(object) = json.as_object_mut() else { return };
    for (field, value) in message.fields() {
        let Some(json) = object.get_mut(field.json_name()) else { continue };
        match value {
            Field::Message(inner) => note_unknown(inner, json),
            Field::List(all) => {
                let items = json.as_array_mut().into_iter().flatten();
                for (inner, json) in all.iter().zip(items) {
                    if let Field::Message(inner) = inner {
                        note_unknown(inner, json);
                    }
                }
            }
            Field::Map(all) => {
                for (key, inner) in all {
                    if let (MapKey::String(key), Field::Message(inner)) = (key, inner)
                        && let Some(json) = json.get_mut(key)
                    {
                        note_unknown(inner, json);
                    }
                }
            }
            _ => {}
        }
    }
    for unknown in message.unknown_fields() {
        object.insert(format!("field{}", unknown.number()), Value::Null);
    }
}

/// Converts JSON to the bytes of a message of type `type_url`. Unknown fields are an error.
///
/// # Errors
/// The type or that of a nested `Any` has no descriptor, or the JSON does not fit it.
pub fn from_json(type_url: &str, json: &Value) -> Result<Vec<u8>, Error> {
    DynamicMessage::deserialize(descriptor(type_url)?, json)
        .map(|message| message.encode_to_vec())
        .map_err(|source| Error::Json { type_url: type_url.to_owned(), source })
}

/// Returns whether the message type of this URL has a descriptor.
pub fn is_known(type_url: &str) -> bool {
    descriptor(type_url).is_ok()
}

/// Decodes `bytes` as a message of the given type.
pub(crate) fn decoded(type_url: &str, bytes: &[u8]) -> Result<DynamicMessage, Error> {
    DynamicMessage::decode(descriptor(type_url)?, bytes)
        .map_err(|source| Error::Malformed { type_url: type_url.to_owned(), source })
}

/// Returns all descriptors.
pub(crate) fn pool() -> &'static DescriptorPool {
    static POOL: LazyLock<DescriptorPool> = LazyLock::new(|| {
        DescriptorPool::decode(crate::DESCRIPTORS)
            .expect("generated descriptors, which a test reads")
    });
    &POOL
}

fn descriptor(type_url: &str) -> Result<MessageDescriptor, Error> {
    let name = type_url.rsplit_once('/').map_or(type_url, |(_, name)| name);
    pool()
        .get_message_by_name(name)
        .ok_or_else(|| Error::UnknownType { type_url: type_url.to_owned() })
}

/// Converts a JSON object to a `google.protobuf.Struct`. Any other JSON value gives a struct without fields.
pub fn to_struct(object: &Value) -> Struct {
    let fields = object.as_object().into_iter().flatten();
    Struct { fields: fields.map(|(key, value)| (key.clone(), to_value(value))).collect() }
}

fn to_value(value: &Value) -> wkt::Value {
    let kind = match value {
        Value::Null => Kind::NullValue(0),
        Value::Bool(value) => Kind::BoolValue(*value),
        Value::Number(number) => Kind::NumberValue(number.as_f64().unwrap_or(f64::NAN)),
        Value::String(text) => Kind::StringValue(text.clone()),
        Value::Array(values) => {
            Kind::ListValue(wkt::ListValue { values: values.iter().map(to_value).collect() })
        }
        Value::Object(_) => Kind::StructValue(to_struct(value)),
    };
    wkt::Value { kind: Some(kind) }
}

#[cfg(test)]
mod tests;
