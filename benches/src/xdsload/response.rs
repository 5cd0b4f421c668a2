//! A reader of responses that processes bytes as they arrive.
//!
//! A resource that is complete in the received bytes is processed in place; only a resource that
//! continues in the next piece is copied. So a proxy stores at most one resource, regardless of the
//! length of a response.

use crate::wire::{Fields, Form, Kind, Resource, Value};

/// The length of the prefix of a message: flag and length (gRPC over HTTP/2).
const PREFIX: usize = 5;

/// The fields of a response except its resources.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Response {
    pub(crate) kind: Kind,
    pub(crate) nonce: Vec<u8>,
    /// The version of all resources (SotW), or the system version (Delta).
    pub(crate) version: Vec<u8>,
    /// Names of removed resources (Delta).
    pub(crate) removed: Vec<Vec<u8>>,
    /// The length of the response.
    pub(crate) bytes: u64,
}

impl Response {
    /// The empty response.
    pub(crate) const NONE: Self = Self {
        kind: Kind::Other,
        nonce: Vec::new(),
        version: Vec::new(),
        removed: Vec::new(),
        bytes: 0,
    };
}

/// An event in a piece of a stream.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Event<'a> {
    /// A resource of the current response.
    Resource(Kind, Resource<'a>),
    /// The response is complete.
    End(Response),
}

/// A reader of one stream.
#[derive(Debug)]
pub(crate) struct Reader {
    form: Form,
    /// The remaining bytes of the response, once its prefix has been read.
    missing: Option<usize>,
    /// An incomplete prefix or field.
    partial: Vec<u8>,
    response: Response,
}

impl Reader {
    pub(crate) fn new(form: Form) -> Self {
        Self { form, missing: None, partial: Vec::new(), response: Response::NONE }
    }

    /// Processes received bytes.
    ///
    /// # Errors
    /// The bytes are not a response. The reader cannot continue after that.
    pub(crate) fn take(
        &mut self,
        mut bytes: &[u8],
        mut each: impl FnMut(Event<'_>),
    ) -> Result<(), String> {
        loop {
            let Some(missing) = &mut self.missing else {
                let taken = bytes.len().min(PREFIX - self.partial.len());
                self.partial.extend_from_slice(&bytes[..taken]);
                bytes = &bytes[taken..];
                let Some(&[compressed, ref length @ ..]) = self.partial.first_chunk::<PREFIX>()
                else {
                    return Ok(());
                };
                if compressed != 0 {
                    return Err("a compressed response, which was not requested".to_owned());
                }
                let length = u32::from_be_bytes(*length);
                self.response.bytes = length.into();
                self.missing = Some(length as usize);
                self.partial.clear();
                continue;
            };
            let (now, later) = bytes.split_at(bytes.len().min(*missing));
            *missing -= now.len();
            let whole = *missing == 0;
            bytes = later;
            self.fields(now, &mut each)?;
            if !whole {
                return Ok(());
            }
            if !self.partial.is_empty() {
                return Err(no_response());
            }
            self.missing = None;
            each(Event::End(std::mem::replace(&mut self.response, Response::NONE)));
        }
    }

    /// Processes a part of a response: its top-level fields, one by one.
    fn fields(&mut self, mut bytes: &[u8], each: &mut impl FnMut(Event<'_>)) -> Result<(), String> {
        while !self.partial.is_empty() && !bytes.is_empty() {
            // Reads one byte at a time until the length of the field is known.
            let whole = Fields(&self.partial).length().map_err(|()| no_response())?;
            let missing = whole.map_or(1, |whole| whole - self.partial.len());
            let taken = bytes.len().min(missing);
            self.partial.extend_from_slice(&bytes[..taken]);
            bytes = &bytes[taken..];
            if whole.is_some() && taken == missing {
                let mut field = std::mem::take(&mut self.partial);
                self.field(&field, each)?;
                field.clear();
                self.partial = field;
            }
        }
        while let Some(whole) = Fields(bytes).length().map_err(|()| no_response())? {
            let Some((field, rest)) = bytes.split_at_checked(whole) else { break };
            self.field(field, each)?;
            bytes = rest;
        }
        self.partial.extend_from_slice(bytes);
        Ok(())
    }

    /// Processes a complete field.
    fn field(&mut self, field: &[u8], each: &mut impl FnMut(Event<'_>)) -> Result<(), String> {
        let response = &mut self.response;
        match Fields(field).next().ok_or_else(no_response)? {
            (1, Value::Bytes(version)) => response.version = version.to_vec(),
            (2, Value::Bytes(resource)) => {
                let read = match self.form {
                    Form::Delta => Resource::delta(resource),
                    Form::Sotw => Resource::sotw(resource),
                };
                if let Some((kind, resource)) = read {
                    each(Event::Resource(kind, resource));
                }
            }
            (4, Value::Bytes(url)) => response.kind = Kind::of(url),
            (5, Value::Bytes(nonce)) => response.nonce = nonce.to_vec(),
            (6, Value::Bytes(name)) if self.form == Form::Delta => {
                response.removed.push(name.to_vec());
            }
            _ => {}
        }
        Ok(())
    }
}

fn no_response() -> String {
    "the server sent an invalid ADS response".to_owned()
}

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::*;
    use strait_proto::envoy::envoy::service::discovery::v3 as ads;
    use strait_proto::envoy::google::protobuf::Any;

    fn framed(message: &impl Message) -> Vec<u8> {
        let message = message.encode_to_vec();
        let length = u32::try_from(message.len()).expect("short").to_be_bytes();
        [&[0], &length[..], &message].concat()
    }

    /// Reads two responses in pieces of each size and returns the events, which must not depend on
    /// the size.
    fn read(form: Form, bytes: &[u8]) -> Vec<String> {
        let by_size = (1..=bytes.len()).map(|size| {
            let (mut reader, mut events) = (Reader::new(form), Vec::new());
            for piece in bytes.chunks(size) {
                reader.take(piece, |event| events.push(format!("{event:?}"))).expect("responses");
            }
            events
        });
        let all: std::collections::BTreeSet<_> = by_size.collect();
        assert_eq!(all.len(), 1, "{all:?}");
        all.into_iter().next().unwrap_or_default()
    }

    fn resource<'a>(kind: Kind, name: &'a [u8], version: &'a [u8], body: &'a [u8]) -> String {
        format!("{:?}", Event::Resource(kind, Resource { name, version, body }))
    }

    #[test]
    fn delta_events_are_independent_of_the_piece_size() {
        let url = |kind: Kind| kind.url().to_owned();
        let of = |name: &str, body: &[u8]| ads::Resource {
            name: name.into(),
            version: "1".into(),
            resource: Some(Any { type_url: url(Kind::Eds), value: body.to_vec() }),
            ..Default::default()
        };
        let long = [7; 300];
        let first = ads::DeltaDiscoveryResponse {
            system_version_info: "s".into(),
            resources: vec![of("a", &long), of("b", b"")],
            type_url: url(Kind::Eds),
            nonce: "n".into(),
            removed_resources: vec!["c".into(), "d".into()],
            ..Default::default()
        };
        let bytes = [framed(&first), framed(&ads::DeltaDiscoveryResponse::default())].concat();
        let whole = Response {
            kind: Kind::Eds,
            nonce: b"n".to_vec(),
            version: b"s".to_vec(),
            removed: vec![b"c".to_vec(), b"d".to_vec()],
            bytes: first.encoded_len() as u64,
        };
        let expected = [
            resource(Kind::Eds, b"a", b"1", &long),
            resource(Kind::Eds, b"b", b"1", b""),
            format!("{:?}", Event::End(whole)),
            format!("{:?}", Event::End(Response::NONE)),
        ];
        assert_eq!(read(Form::Delta, &bytes), expected);
    }

    #[test]
    fn sotw_resource_name_is_read_from_the_body() {
        let cluster = strait_proto::envoy::envoy::config::cluster::v3::Cluster {
            name: "a".into(),
            ..Default::default()
        };
        let value = cluster.encode_to_vec();
        let response = ads::DiscoveryResponse {
            version_info: "7".into(),
            resources: vec![Any { type_url: Kind::Cds.url().into(), value: value.clone() }],
            type_url: Kind::Cds.url().into(),
            nonce: "n".into(),
            ..Default::default()
        };
        let whole = Response {
            kind: Kind::Cds,
            nonce: b"n".to_vec(),
            version: b"7".to_vec(),
            removed: Vec::new(),
            bytes: response.encoded_len() as u64,
        };
        let expected = [resource(Kind::Cds, b"a", b"", &value), format!("{:?}", Event::End(whole))];
        assert_eq!(read(Form::Sotw, &framed(&response)), expected);
    }

    #[test]
    fn invalid_responses_are_errors() {
        let error = |bytes: &[u8]| {
            bytes.chunks(1).try_fold(Reader::new(Form::Delta), |mut reader, piece| {
                reader.take(piece, |_| {}).map(|()| reader)
            })
        };
        assert!(error(b"\x01\0\0\0\0").is_err_and(|error| error.contains("compressed")));
        // A field longer than the message, a key of an unknown wire type, a number without an end.
        for broken in [
            &b"\0\0\0\0\x02\x12\x09"[..],
            b"\0\0\0\0\x01\x07",
            &[0, 0, 0, 0, 11, 8, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255],
        ] {
            assert!(
                error(broken).is_err_and(|error| error.contains("invalid ADS response")),
                "{broken:?}"
            );
        }
    }
}
