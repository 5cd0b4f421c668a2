//! Encoding of objects, lists and events in JSON or protobuf. Only this module adds the data around an
//! object.

use std::borrow::Cow;
use std::sync::Arc;

use bytes::Bytes;
use serde_json::{Value, json};

use crate::object::Object;
use crate::protobuf::{self, Message};
use crate::resource::Resource;
use crate::status::ApiError;
use crate::store::{Drawn, Event};

/// The approximate size of the chunks of lists and initial events, in bytes.
pub(crate) const CHUNK_BYTES: usize = 256 * 1024;

/// A kind in the version, form and encoding for one client.
#[derive(Debug, Clone, Copy)]
pub(crate) struct View {
    pub(crate) resource: &'static Resource,
    pub(crate) version: &'static str,
    pub(crate) form: Form,
    pub(crate) wire: Wire,
}

/// The part of an object that is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    Full,
    /// As `PartialObjectMetadata`, for clients that only track which objects exist.
    Metadata,
}

/// The encoding of a response.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Wire {
    Json,
    /// Protobuf, with this message.
    Protobuf(&'static Message),
}

/// An object with its kind, in separate parts, so that the large part is not copied.
struct Whole<'a> {
    head: Vec<u8>,
    body: &'a [u8],
    tail: &'static [u8],
}

impl Whole<'_> {
    fn parts(&self) -> [&[u8]; 3] {
        [&self.head, self.body, self.tail]
    }
}

impl Wire {
    pub(crate) fn content_type(self) -> &'static str {
        match self {
            Wire::Json => "application/json",
            Wire::Protobuf(_) => "application/vnd.kubernetes.protobuf",
        }
    }

    /// Returns the content type of a watch.
    pub(crate) fn stream_type(self) -> &'static str {
        match self {
            Wire::Json => "application/json",
            Wire::Protobuf(_) => "application/vnd.kubernetes.protobuf;stream=watch",
        }
    }

    /// Encodes a `Status` as a complete response.
    pub(crate) fn status(self, status: &Value) -> Vec<u8> {
        match (self, Message::called("Status")) {
            (Wire::Protobuf(_), Some(message)) => {
                protobuf::envelope("v1", "Status", &protobuf::encode(message, status))
            }
            _ => status.to_string().into_bytes(),
        }
    }
}

impl View {
    fn kind(self) -> &'static str {
        match self.form {
            Form::Full => self.resource.kind,
            Form::Metadata => "PartialObjectMetadata",
        }
    }

    fn api_version(self) -> String {
        match self.form {
            Form::Full => self.resource.api_version(self.version),
            Form::Metadata => "meta.k8s.io/v1".to_owned(),
        }
    }

    /// Returns the object without its kind. In JSON, it is never empty, because every object has
    /// metadata.
    fn body(self, object: &Object) -> Cow<'_, [u8]> {
        let metadata = || json!({"metadata": object.value()["metadata"]});
        match (self.wire, self.form) {
            (Wire::Json, Form::Full) => object.body(),
            (Wire::Json, Form::Metadata) => Cow::Owned(metadata().to_string().into_bytes()),
            (Wire::Protobuf(message), Form::Full) => object.protobuf(message),
            (Wire::Protobuf(message), Form::Metadata) => {
                Cow::Owned(protobuf::encode(message, &metadata()))
            }
        }
    }

    /// Encodes an object as a complete response.
    pub(crate) fn object(self, object: &Object) -> Vec<u8> {
        let mut out = self.with_kind(&self.body(object)).parts().concat();
        if let Wire::Json = self.wire {
            out.push(b'\n');
        }
        out
    }

    fn with_kind(self, body: &[u8]) -> Whole<'_> {
        let (kind, api_version) = (self.kind(), self.api_version());
        match self.wire {
            Wire::Json => Whole {
                head: format!(r#"{{"kind":"{kind}","apiVersion":"{api_version}","#).into_bytes(),
                body: &body[1..],
                tail: b"",
            },
            Wire::Protobuf(_) => Whole {
                head: protobuf::envelope_head(&api_version, kind, body.len()),
                body,
                tail: protobuf::ENVELOPE_TAIL,
            },
        }
    }

    /// Encodes a list in chunks, because a complete list may need much memory. As on a real server, its
    /// items contain no kind.
    pub(crate) fn list(
        self,
        objects: Vec<Arc<Object>>,
        metadata: &Value,
    ) -> impl Iterator<Item = Bytes> + Send + use<> {
        let mut head = Some(self.list_head(&objects, metadata));
        let mut rest = Some(objects.into_iter().enumerate());
        std::iter::from_fn(move || {
            let mut out = head.take().unwrap_or_default();
            while out.len() < CHUNK_BYTES
                && let Some(objects) = &mut rest
            {
                match objects.next() {
                    Some((i, object)) => self.write_item(i, &self.body(&object), &mut out),
                    None => {
                        out.extend_from_slice(self.list_tail());
                        rest = None;
                    }
                }
            }
            (!out.is_empty()).then(|| out.into())
        })
    }

    fn list_head(self, objects: &[Arc<Object>], metadata: &Value) -> Vec<u8> {
        let (kind, api_version) = (format!("{}List", self.kind()), self.api_version());
        match (self.wire, Message::called("ListMeta")) {
            (Wire::Protobuf(_), Some(list_meta)) => {
                let mut meta = Vec::new();
                protobuf::open_field(1, &mut meta);
                protobuf::write_sized(&protobuf::encode(list_meta, metadata), &mut meta);
                // The length precedes the content, so objects without a stored encoding are encoded
                // twice.
                let lengths = objects
                    .iter()
                    .map(|object| 1 + protobuf::sized_length(self.body(object).len()));
                let length = meta.len() + lengths.sum::<usize>();
                let mut out = protobuf::envelope_head(&api_version, &kind, length);
                out.extend_from_slice(&meta);
                out
            }
            _ => format!(
                r#"{{"kind":"{kind}","apiVersion":"{api_version}","metadata":{metadata},"items":["#
            )
            .into_bytes(),
        }
    }

    fn write_item(self, index: usize, body: &[u8], out: &mut Vec<u8>) {
        match self.wire {
            Wire::Protobuf(_) => {
                protobuf::open_field(2, out);
                protobuf::write_sized(body, out);
            }
            Wire::Json => {
                if index > 0 {
                    out.push(b',');
                }
                out.extend_from_slice(body);
            }
        }
    }

    fn list_tail(self) -> &'static [u8] {
        match self.wire {
            Wire::Json => b"]}\n",
            Wire::Protobuf(_) => protobuf::ENVELOPE_TAIL,
        }
    }

    /// Appends one watch event.
    pub(crate) fn write_event(self, kind: &str, object: &Object, out: &mut Vec<u8>) {
        self.write_frame(kind, &self.with_kind(&self.body(object)).parts(), out);
    }

    /// Returns a watch event that is shared: most watchers of a change get the same bytes.
    pub(crate) fn shared_event(self, kind: &'static str, object: &Object, drawn: &Drawn) -> Bytes {
        let write = || {
            let mut out = Vec::new();
            self.write_event(kind, object, &mut out);
            Bytes::from(out)
        };
        let draw = || Event { kind, version: self.version, bytes: write() };
        let event = match (self.form, self.wire) {
            (Form::Metadata, _) => return write(),
            (Form::Full, Wire::Json) => drawn.json.get_or_init(draw),
            (Form::Full, Wire::Protobuf(_)) => drawn.protobuf.get_or_init(draw),
        };
        if (event.kind, event.version) == (kind, self.version) {
            event.bytes.clone()
        } else {
            write()
        }
    }

    /// Appends an event: a line of JSON, or a length and protobuf. The object is passed in parts and
    /// copied only once, because a large world sends gigabytes.
    fn write_frame(self, kind: &str, object: &[&[u8]], out: &mut Vec<u8>) {
        let append = |out: &mut Vec<u8>| object.iter().for_each(|part| out.extend_from_slice(part));
        match self.wire {
            Wire::Json => {
                out.extend_from_slice(format!(r#"{{"type":"{kind}","object":"#).as_bytes());
                append(out);
                out.extend_from_slice(b"}\n");
            }
            Wire::Protobuf(_) => {
                // RawExtension { 1: raw } within WatchEvent { 1: type, 2: object }; each tag is one byte.
                // The object has an envelope, the event has none.
                let object = object.iter().map(|part| part.len()).sum();
                let raw = 1 + protobuf::sized_length(object);
                let event =
                    1 + protobuf::sized_length(kind.len()) + 1 + protobuf::sized_length(raw);
                let event = u32::try_from(event).expect("objects are below 4 GB");
                out.extend_from_slice(&event.to_be_bytes());
                protobuf::open_field(1, out);
                protobuf::write_sized(kind.as_bytes(), out);
                for (number, length) in [(2, raw), (1, object)] {
                    protobuf::open_field(number, out);
                    protobuf::write_varint(length as u64, out);
                }
                append(out);
            }
        }
    }

    /// Encodes a bookmark. `initial_events_end` marks the end of a streaming list.
    pub(crate) fn bookmark(self, version: u64, initial_events_end: bool) -> Vec<u8> {
        let mut metadata = json!({"resourceVersion": version.to_string()});
        if initial_events_end {
            metadata["annotations"] = json!({"k8s.io/initial-events-end": "true"});
        }
        let object = json!({"metadata": metadata});
        let body = match self.wire {
            Wire::Json => object.to_string().into_bytes(),
            Wire::Protobuf(message) => protobuf::encode(message, &object),
        };
        let mut out = Vec::new();
        self.write_frame("BOOKMARK", &self.with_kind(&body).parts(), &mut out);
        out
    }

    /// Encodes the ERROR event that ends a watch.
    pub(crate) fn error_event(self, error: &ApiError) -> Vec<u8> {
        let mut out = Vec::new();
        self.write_frame("ERROR", &[&self.wire.status(&error.to_status())], &mut out);
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config_maps(wire: Wire) -> View {
        let resource = Resource::by_name("configmaps").expect("a row");
        View { resource, version: "v1", form: Form::Full, wire }
    }

    /// A list of one object, and a watch with this object and a bookmark, as kube-apiserver 1.36 sent
    /// them.
    #[test]
    fn responses_equal_those_of_a_real_server() {
        let message = Message::called("ConfigMap").expect("a row");
        let value: Value =
            serde_json::from_slice(include_bytes!("protobuf/real/configmap.json")).unwrap();
        let list: Value =
            serde_json::from_slice(include_bytes!("protobuf/real/list.json")).unwrap();
        let version = |value: &Value| {
            value["metadata"]["resourceVersion"]
                .as_str()
                .and_then(|v| v.parse::<u64>().ok())
                .unwrap()
        };
        let object = Arc::new(Object::new(version(&value), value));
        let cases: [(Wire, &[u8], &[u8]); 2] = [
            (
                Wire::Protobuf(message),
                include_bytes!("protobuf/real/list.protobuf"),
                include_bytes!("protobuf/real/watch.protobuf"),
            ),
            (
                Wire::Json,
                include_bytes!("protobuf/real/list.json"),
                include_bytes!("protobuf/real/watch.json"),
            ),
        ];
        for (wire, real_list, real_watch) in cases {
            let view = config_maps(wire);
            let chunks =
                view.list(vec![object.clone()], &list["metadata"]).collect::<Vec<_>>().concat();
            let drawn = Drawn::default();
            let mut watch = view.shared_event("ADDED", &object, &drawn).to_vec();
            let event = watch.len();
            watch.extend(view.bookmark(235, true));
            if let Wire::Json = wire {
                // The order of fields differs, and the real response contains some null fields.
                let same = |a: &[u8], b: &[u8]| {
                    let [a, b] = [a, b].map(|text| serde_json::from_slice::<Value>(text).unwrap());
                    assert_eq!(a, b);
                };
                same(&chunks, real_list);
                same(&watch[..event], real_watch.split(|b| *b == b'\n').next().unwrap());
            } else {
                assert_eq!(chunks, real_list);
                assert_eq!(watch, real_watch);
            }
        }
    }
}
