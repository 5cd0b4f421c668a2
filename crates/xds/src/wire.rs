//! Encoding of the parts of a response that both protocol forms share. The bytes of a resource are
//! not copied; all streams share them.

use prost::encoding::{WireType, encode_key, encode_varint, encoded_len_varint, key_len};

use super::resource::{Resource, ResourceType};
use strait_http2::Rope;

/// Field numbers of `google.protobuf.Any`.
mod any {
    pub(super) const TYPE_URL: u32 = 1;
    pub(super) const VALUE: u32 = 2;
}

/// Writes a text or bytes field. An empty value is omitted, as in proto3.
pub(super) fn put_bytes(tag: u32, value: &[u8], out: &mut Rope) {
    if !value.is_empty() {
        put_head(tag, value.len(), out);
        out.put_slice(value);
    }
}

/// The number of bytes that [`put_bytes`] writes.
pub(super) fn bytes_len(tag: u32, value: &[u8]) -> usize {
    if value.is_empty() { 0 } else { message_len(tag, value.len()) }
}

/// Writes the key and length of a field with `length` bytes of content.
pub(super) fn put_head(tag: u32, length: usize, out: &mut Rope) {
    out.write(|text| {
        encode_key(tag, WireType::LengthDelimited, text);
        encode_varint(length as u64, text);
    });
}

/// The total length of a field with `length` bytes of content.
pub(super) fn message_len(tag: u32, length: usize) -> usize {
    key_len(tag) + encoded_len_varint(length as u64) + length
}

/// Writes a resource as an `Any`.
pub(super) fn put_any(tag: u32, kind: ResourceType, resource: &Resource, out: &mut Rope) {
    put_head(tag, any_content_len(kind, resource), out);
    put_bytes(any::TYPE_URL, kind.url().as_bytes(), out);
    if !resource.body.is_empty() {
        put_head(any::VALUE, resource.body.len(), out);
        resource.body.put(out);
    }
}

/// The number of bytes that [`put_any`] writes.
pub(super) fn any_len(tag: u32, kind: ResourceType, resource: &Resource) -> usize {
    message_len(tag, any_content_len(kind, resource))
}

fn any_content_len(kind: ResourceType, resource: &Resource) -> usize {
    let body = resource.body.len();
    let value = if body == 0 { 0 } else { message_len(any::VALUE, body) };
    bytes_len(any::TYPE_URL, kind.url().as_bytes()) + value
}
