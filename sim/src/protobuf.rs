//! Conversion between the JSON and the protobuf form of Kubernetes objects.
//!
//! All conversions use the table of messages in `protobuf/messages.txt`. This module also adds the
//! envelope that Kubernetes puts around each body. JSON is the primary form: fields that the table does
//! not contain are omitted, as a real server omits unknown fields.

mod messages;
mod wire;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};

pub(crate) use messages::Message;
use messages::{Count, Field, Kind};
pub(crate) use wire::write_varint;
use wire::{Malformed, Payload, Reader, write_tag};

use crate::stencil::{Node, Stencil, block_in, pieces};

/// The first bytes of every body.
const MAGIC: &[u8] = b"k8s\0";

/// Encodes a value as `message` for a stencil. Its strings may contain marks.
pub(crate) fn nodes(message: &Message, value: &Value) -> Vec<Node> {
    let mut out = Vec::new();
    write_message(message, value, &mut out);
    out
}

/// Encodes a value as `message`.
pub(crate) fn encode(message: &Message, value: &Value) -> Vec<u8> {
    let mut out = Vec::new();
    Stencil::of(nodes(message, value)).fill(&[], &mut out);
    out
}

/// Appends the tag of a field with a message or text. The length and content must follow.
pub(crate) fn open_field(number: u32, out: &mut Vec<u8>) {
    write_tag(number, wire::LENGTH_DELIMITED, out);
}

/// Wraps `content` in the envelope: `k8s\0` and a `runtime.Unknown`.
pub(crate) fn envelope(api_version: &str, kind: &str, content: &[u8]) -> Vec<u8> {
    let mut out = envelope_head(api_version, kind, content.len());
    out.extend_from_slice(content);
    out.extend_from_slice(ENVELOPE_TAIL);
    out
}

/// Returns the part of the envelope before `length` bytes of content.
pub(crate) fn envelope_head(api_version: &str, kind: &str, length: usize) -> Vec<u8> {
    let mut type_meta = Vec::new();
    for (number, text) in [(1, api_version), (2, kind)] {
        open_field(number, &mut type_meta);
        write_sized(text.as_bytes(), &mut type_meta);
    }
    let mut out = Vec::with_capacity(type_meta.len() + 32);
    out.extend_from_slice(MAGIC);
    open_field(1, &mut out);
    write_sized(&type_meta, &mut out);
    open_field(2, &mut out);
    write_varint(length as u64, &mut out);
    out
}

/// The part of the envelope after the content: contentEncoding and contentType, both empty.
pub(crate) const ENVELOPE_TAIL: &[u8] = &[0x1a, 0, 0x22, 0];

/// Appends the length of `bytes`, and the bytes.
pub(crate) fn write_sized(bytes: &[u8], out: &mut Vec<u8>) {
    write_varint(bytes.len() as u64, out);
    out.extend_from_slice(bytes);
}

/// Returns the number of bytes that [`write_sized`] writes for `length` bytes.
pub(crate) fn sized_length(length: usize) -> usize {
    // Seven bits per byte, and at least one byte.
    length + (length | 1).ilog2() as usize / 7 + 1
}

/// Returns the object in an enveloped body, with its kind; `None` if the body is invalid or the table
/// lacks the kind.
pub(crate) fn open(body: &[u8]) -> Option<Value> {
    let (api_version, kind, content) = open_envelope(body).ok()?;
    let mut value = decode(Message::named(&api_version, &kind)?, &content).ok()?;
    value["apiVersion"] = json!(api_version);
    value["kind"] = json!(kind);
    Some(value)
}

fn open_envelope(body: &[u8]) -> Result<(String, String, Vec<u8>), Malformed> {
    let mut reader = Reader::new(body.strip_prefix(MAGIC).ok_or(Malformed)?);
    let (mut api_version, mut kind, mut content) = Default::default();
    while let Some((number, payload)) = reader.field()? {
        match number {
            1 => {
                let mut reader = Reader::new(payload.bytes()?);
                while let Some((number, payload)) = reader.field()? {
                    match number {
                        1 => api_version = payload.text()?.to_owned(),
                        2 => kind = payload.text()?.to_owned(),
                        _ => {}
                    }
                }
            }
            2 => content = payload.bytes()?.to_vec(),
            _ => {}
        }
    }
    Ok((api_version, kind, content))
}

fn write_message(message: &Message, value: &Value, out: &mut Vec<Node>) {
    for field in &message.fields {
        let found = match field.is_inline() {
            true => Some(value),
            false => value.get(field.name).filter(|value| !value.is_null()),
        };
        match (field.count, found) {
            (Count::Many, Some(Value::Array(items))) => {
                items.iter().for_each(|item| write_field(field.number, field.kind, item, out));
            }
            (Count::Many, Some(other)) => out.extend(block_in(other)),
            (Count::Map, Some(Value::Object(entries))) => {
                for (key, value) in entries {
                    let mut entry = Vec::new();
                    write_field(1, Kind::String, &json!(key), &mut entry);
                    write_field(2, field.kind, value, &mut entry);
                    open_node(field.number, out);
                    out.push(Node::Sized(entry));
                }
            }
            (Count::One, Some(value)) => write_field(field.number, field.kind, value, out),
            (Count::One, None) if field.always => {
                write_field(field.number, field.kind, &Value::Null, out);
            }
            _ => {}
        }
    }
}

fn open_node(number: u32, out: &mut Vec<Node>) {
    let mut tag = Vec::new();
    open_field(number, &mut tag);
    out.push(Node::Text(tag));
}

fn write_field(number: u32, kind: Kind, value: &Value, out: &mut Vec<Node>) {
    if let Kind::Int | Kind::Bool = kind {
        let value = match value {
            Value::Bool(value) => u64::from(*value),
            // Negative 32-bit numbers take ten bytes, too.
            value => value.as_i64().unwrap_or_default().cast_unsigned(),
        };
        let mut text = Vec::new();
        write_tag(number, wire::VARINT, &mut text);
        write_varint(value, &mut text);
        out.push(Node::Text(text));
        return;
    }
    open_node(number, out);
    let text = value.as_str().unwrap_or_default();
    let mut inner = Vec::new();
    match kind {
        Kind::String => inner = pieces(text),
        Kind::Bytes => inner.push(Node::Text(STANDARD.decode(text).unwrap_or_default())),
        Kind::Quantity => {
            let text = if value.is_number() { value.to_string() } else { text.to_owned() };
            write_field(1, Kind::String, &json!(text), &mut inner);
        }
        Kind::FieldsV1 => write_field(1, Kind::String, &json!(value.to_string()), &mut inner),
        Kind::Time | Kind::MicroTime => {
            if let Ok(time) = text.parse::<jiff::Timestamp>() {
                // Times without microseconds have whole seconds.
                let nanos = if kind == Kind::Time { 0 } else { time.subsec_nanosecond() };
                write_field(1, Kind::Int, &json!(time.as_second()), &mut inner);
                write_field(2, Kind::Int, &json!(nanos), &mut inner);
            }
        }
        Kind::IntOrString => {
            write_field(1, Kind::Int, &json!(i64::from(value.is_string())), &mut inner);
            write_field(2, Kind::Int, value, &mut inner);
            write_field(3, Kind::String, value, &mut inner);
        }
        Kind::Message(index) => write_message(Message::at(index), value, &mut inner),
        Kind::Int | Kind::Bool => {}
    }
    out.push(Node::Sized(inner));
}

/// Decodes `bytes` as `message`, to a JSON object.
pub(crate) fn decode(message: &Message, bytes: &[u8]) -> Result<Value, Malformed> {
    let mut object = Map::new();
    let mut reader = Reader::new(bytes);
    while let Some((number, payload)) = reader.field()? {
        let Some(field) = message.fields.iter().find(|field| field.number == number) else {
            continue;
        };
        read_field(field, &payload, &mut object)?;
    }
    Ok(Value::Object(object))
}

fn read_field(
    field: &Field,
    payload: &Payload<'_>,
    object: &mut Map<String, Value>,
) -> Result<(), Malformed> {
    match field.count {
        Count::Map => {
            let (mut key, mut value) = (String::new(), Value::Null);
            let mut reader = Reader::new(payload.bytes()?);
            while let Some((number, payload)) = reader.field()? {
                match number {
                    1 => payload.text()?.clone_into(&mut key),
                    _ => value = read_value(field.kind, &payload)?,
                }
            }
            object.entry(field.name).or_insert_with(|| json!({}))[key] = value;
        }
        Count::Many => {
            let value = read_value(field.kind, payload)?;
            let items = object.entry(field.name).or_insert_with(|| json!([]));
            if let Some(items) = items.as_array_mut() {
                items.push(value);
            }
        }
        Count::One => {
            let value = read_value(field.kind, payload)?;
            match value {
                Value::Object(inner) if field.is_inline() => object.extend(inner),
                // Written only because the field is always present.
                value if field.always && is_zero(&value) => {}
                value => {
                    object.insert(field.name.to_owned(), value);
                }
            }
        }
    }
    Ok(())
}

fn read_value(kind: Kind, payload: &Payload<'_>) -> Result<Value, Malformed> {
    Ok(match kind {
        Kind::Int => json!(payload.number()?.cast_signed()),
        Kind::Bool => json!(payload.number()? != 0),
        Kind::String => json!(payload.text()?),
        Kind::Bytes => json!(STANDARD.encode(payload.bytes()?)),
        Kind::Quantity => read_wrapped(payload)?,
        Kind::FieldsV1 => {
            let text = read_wrapped(payload)?;
            serde_json::from_str(text.as_str().unwrap_or_default()).map_err(|_| Malformed)?
        }
        Kind::Time | Kind::MicroTime => {
            let [seconds, nanos] = read_numbers(payload.bytes()?)?;
            let time = i32::try_from(nanos).map_err(|_| Malformed)?;
            let time = jiff::Timestamp::new(seconds, time).map_err(|_| Malformed)?;
            match kind {
                _ if payload.bytes()?.is_empty() => Value::Null,
                Kind::Time => json!(time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()),
                _ => json!(time.strftime("%Y-%m-%dT%H:%M:%S%.6fZ").to_string()),
            }
        }
        Kind::IntOrString => {
            let bytes = payload.bytes()?;
            let [kind, number] = read_numbers(bytes)?;
            let mut reader = Reader::new(bytes);
            let mut text = String::new();
            while let Some((field, payload)) = reader.field()? {
                if field == 3 {
                    payload.text()?.clone_into(&mut text);
                }
            }
            if kind == 0 { json!(number) } else { json!(text) }
        }
        Kind::Message(index) => decode(Message::at(index), payload.bytes()?)?,
    })
}

/// Reads the text in field 1 of a message that has no other field.
fn read_wrapped(payload: &Payload<'_>) -> Result<Value, Malformed> {
    let mut reader = Reader::new(payload.bytes()?);
    match reader.field()? {
        Some((1, text)) => Ok(json!(text.text()?)),
        _ => Ok(json!("")),
    }
}

/// Reads fields 1 and 2 of a message as numbers.
fn read_numbers(bytes: &[u8]) -> Result<[i64; 2], Malformed> {
    let mut numbers = [0; 2];
    let mut reader = Reader::new(bytes);
    while let Some((field, payload)) = reader.field()? {
        match field {
            1 => numbers[0] = payload.number()?.cast_signed(),
            2 => numbers[1] = payload.number()?.cast_signed(),
            _ => {}
        }
    }
    Ok(numbers)
}

fn is_zero(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(value) => !value,
        Value::Number(number) => number.as_i64() == Some(0),
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
    }
}

#[cfg(test)]
mod tests;
