//! Requests of clients, parsed in place.
//!
//! A proxy that reconnects lists thousands of names and versions. A proxy that accepts a response
//! sends only its nonce. Therefore names borrow the received bytes, and only rare fields are
//! decoded into owned values. Parsing accepts and rejects the same messages as prost. This module
//! does not know the subscriptions.

use std::str::Utf8Error;

use prost::encoding::{
    DecodeContext, WireType, check_wire_type, decode_key, decode_varint, skip_field,
};
use prost::{DecodeError, Message};

use super::form::ProtocolForm;
use strait_proto::envoy::envoy::config::core::v3::Node;
use strait_proto::envoy::envoy::service::discovery::v3::ResourceLocator;
use strait_proto::envoy::google::rpc::Status;

/// A request of either protocol form.
#[derive(Debug, Default)]
pub struct AdsRequest<'a> {
    /// The node that sends the request. Many clients send it only in the first request.
    pub node: Option<Box<Node>>,
    /// The URL of the requested type.
    pub type_url: &'a str,
    /// Names that the client subscribes to from now on, in any order. In the SotW form, the
    /// complete list.
    pub names: Vec<&'a str>,
    /// Names that the client unsubscribes from (Delta only).
    pub dropped: Vec<&'a str>,
    /// Names and versions that the client already held when it connected, in any order. If a name
    /// is repeated, the last entry applies (Delta only).
    pub listed: Vec<(&'a str, &'a str)>,
    /// The nonce of the response that the request answers.
    pub nonce: &'a str,
    /// The reason for rejecting that response.
    pub error: Option<Box<Status>>,
}

/// The reason why bytes are not a valid request.
#[derive(Debug, thiserror::Error)]
pub enum UnreadableRequest {
    /// A field is not valid protobuf.
    #[error(transparent)]
    Field(#[from] DecodeError),
    /// A field is longer than the remaining bytes.
    #[error("a field is cut off")]
    CutOff,
    /// A text is not valid UTF-8.
    #[error(transparent)]
    Text(#[from] Utf8Error),
}

/// The fields of both protocol forms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RequestField {
    Node,
    TypeUrl,
    Names,
    Dropped,
    Listed,
    Nonce,
    Error,
    /// The version in a SotW request. It adds nothing to the nonce.
    Version,
    /// Resource locators, an alternative to names that no client sends.
    Locator,
}

impl RequestField {
    /// Returns the field with this number in `DeltaDiscoveryRequest` or `DiscoveryRequest`.
    fn of(form: ProtocolForm, number: u32) -> Option<Self> {
        Some(match (form, number) {
            (ProtocolForm::Delta, 1) | (ProtocolForm::Sotw, 2) => Self::Node,
            (ProtocolForm::Delta, 2) | (ProtocolForm::Sotw, 4) => Self::TypeUrl,
            (_, 3) => Self::Names,
            (ProtocolForm::Delta, 4) => Self::Dropped,
            (ProtocolForm::Delta, 5) => Self::Listed,
            (ProtocolForm::Delta, 6) | (ProtocolForm::Sotw, 5) => Self::Nonce,
            (ProtocolForm::Delta, 7) | (ProtocolForm::Sotw, 6) => Self::Error,
            (ProtocolForm::Delta, 8 | 9) | (ProtocolForm::Sotw, 7) => Self::Locator,
            (ProtocolForm::Sotw, 1) => Self::Version,
            _ => return None,
        })
    }
}

impl<'a> AdsRequest<'a> {
    /// Parses a request of a protocol form.
    ///
    /// # Errors
    /// The bytes are not a valid request.
    pub fn read(form: ProtocolForm, mut input: &'a [u8]) -> Result<Self, UnreadableRequest> {
        let mut request = Self::default();
        while !input.is_empty() {
            let (number, wire) = decode_key(&mut input)?;
            let Some(field) = RequestField::of(form, number) else {
                skip_field(wire, number, &mut input, DecodeContext::default())?;
                continue;
            };
            // For a map field, prost does not check the wire type.
            let wire = if field == RequestField::Listed { WireType::LengthDelimited } else { wire };
            let content = content(wire, &mut input)?;
            match field {
                // A message field that is repeated is merged from all its parts.
                RequestField::Node => request.node.get_or_insert_default().merge(content)?,
                RequestField::Error => request.error.get_or_insert_default().merge(content)?,
                RequestField::TypeUrl => request.type_url = str::from_utf8(content)?,
                RequestField::Names => request.names.push(str::from_utf8(content)?),
                RequestField::Dropped => request.dropped.push(str::from_utf8(content)?),
                RequestField::Listed => request.listed.push(entry(content)?),
                RequestField::Nonce => request.nonce = str::from_utf8(content)?,
                RequestField::Version => _ = str::from_utf8(content)?,
                RequestField::Locator => _ = ResourceLocator::decode(content)?,
            }
        }
        Ok(request)
    }
}

/// Parses an entry of a map from text to text.
fn entry(mut input: &[u8]) -> Result<(&str, &str), UnreadableRequest> {
    let (mut key, mut value) = ("", "");
    while !input.is_empty() {
        let (number, wire) = decode_key(&mut input)?;
        match number {
            1 => key = str::from_utf8(content(wire, &mut input)?)?,
            2 => value = str::from_utf8(content(wire, &mut input)?)?,
            _ => skip_field(wire, number, &mut input, DecodeContext::default())?,
        }
    }
    Ok((key, value))
}

/// Returns the content of a length-delimited field and advances the input.
fn content<'a>(wire: WireType, input: &mut &'a [u8]) -> Result<&'a [u8], UnreadableRequest> {
    check_wire_type(WireType::LengthDelimited, wire)?;
    let length = usize::try_from(decode_varint(input)?).map_err(|_| UnreadableRequest::CutOff)?;
    let (content, rest) = input.split_at_checked(length).ok_or(UnreadableRequest::CutOff)?;
    *input = rest;
    Ok(content)
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    use super::*;
    use strait_proto::envoy::envoy::service::discovery::v3::{
        DeltaDiscoveryRequest, DiscoveryRequest,
    };

    /// The fields for which both parsers must agree.
    #[derive(Debug, PartialEq)]
    struct Sent {
        node: Option<Node>,
        type_url: String,
        names: Vec<String>,
        dropped: Vec<String>,
        listed: HashMap<String, String>,
        nonce: String,
        error: Option<Status>,
    }

    fn by_prost(form: ProtocolForm, bytes: &[u8]) -> Option<Sent> {
        let of_delta = |request: DeltaDiscoveryRequest| Sent {
            node: request.node,
            type_url: request.type_url,
            names: request.resource_names_subscribe,
            dropped: request.resource_names_unsubscribe,
            listed: request.initial_resource_versions,
            nonce: request.response_nonce,
            error: request.error_detail,
        };
        let of_sotw = |request: DiscoveryRequest| Sent {
            node: request.node,
            type_url: request.type_url,
            names: request.resource_names,
            dropped: Vec::new(),
            listed: HashMap::new(),
            nonce: request.response_nonce,
            error: request.error_detail,
        };
        match form {
            ProtocolForm::Delta => DeltaDiscoveryRequest::decode(bytes).ok().map(of_delta),
            ProtocolForm::Sotw => DiscoveryRequest::decode(bytes).ok().map(of_sotw),
        }
    }

    fn in_place(form: ProtocolForm, bytes: &[u8]) -> Option<Sent> {
        let owned = |names: Vec<&str>| names.into_iter().map(str::to_owned).collect();
        let request = AdsRequest::read(form, bytes).ok()?;
        Some(Sent {
            node: request.node.map(|node| *node),
            type_url: request.type_url.to_owned(),
            names: owned(request.names),
            dropped: owned(request.dropped),
            listed: request
                .listed
                .into_iter()
                .map(|(name, version)| (name.to_owned(), version.to_owned()))
                .collect(),
            nonce: request.nonce.to_owned(),
            error: request.error.map(|error| *error),
        })
    }

    /// Generates some fields of either form, including nested messages. Some have a wrong wire
    /// type, are cut off, or are unknown.
    fn fields(random: &mut StdRng, depth: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        for _ in 0..random.random_range(0..6) {
            let number: u32 = random.random_range(0..13);
            let wire = if random.random_ratio(1, 40) { random.random_range(0..8) } else { 2 };
            bytes.extend(varint(u64::from(number << 3 | wire)));
            let content = match random.random_range(0..8) {
                0..3 if depth > 0 => fields(random, depth - 1),
                3 => Vec::new(),
                4 if random.random_ratio(1, 20) => vec![0xc3, 0x28],
                _ => [&b"a"[..], b"b", "ä".as_bytes(), b"*"][random.random_range(0..4)].to_vec(),
            };
            let mut length = content.len() as u64;
            if random.random_ratio(1, 100) {
                length =
                    [length + 1, length.saturating_sub(1), u64::MAX][random.random_range(0..3)];
            }
            bytes.extend(varint(length));
            bytes.extend(content);
        }
        bytes
    }

    fn varint(value: u64) -> Vec<u8> {
        let mut bytes = Vec::new();
        prost::encoding::encode_varint(value, &mut bytes);
        bytes
    }

    #[test]
    fn requests_are_accepted_and_rejected_as_by_prost() {
        let mut random = StdRng::seed_from_u64(7);
        let mut sound = 0;
        for round in 0..60_000 {
            let mut bytes = fields(&mut random, 3);
            if random.random_ratio(1, 10) && !bytes.is_empty() {
                let at = random.random_range(0..bytes.len());
                bytes[at] = random.random();
            }
            for form in [ProtocolForm::Delta, ProtocolForm::Sotw] {
                let expected = by_prost(form, &bytes);
                sound += usize::from(expected.is_some());
                assert_eq!(in_place(form, &bytes), expected, "{round}: {form:?} {bytes:?}");
            }
        }
        assert!((20_000..100_000).contains(&sound), "{sound} of 120,000 were sound");
    }

    #[test]
    fn last_duplicate_name_applies_and_missing_fields_are_empty() {
        // initial_resource_versions: a=1, a=2, no name, no version.
        let bytes = b"\x2a\x06\x0a\x01a\x12\x011\x2a\x06\x0a\x01a\x12\x012\x2a\x03\x12\x013\x2a\x03\x0a\x01b";
        let request = AdsRequest::read(ProtocolForm::Delta, bytes).expect("sound");
        assert_eq!(request.listed, [("a", "1"), ("a", "2"), ("", "3"), ("b", "")]);
        assert_eq!(in_place(ProtocolForm::Delta, bytes), by_prost(ProtocolForm::Delta, bytes));
    }
}
