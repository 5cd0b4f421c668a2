//! Objects, lists and events as the bytes of an answer. The one place that knows the wire form, so a
//! second form belongs beside it.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::resource::Resource;
use crate::status::ApiError;
use crate::store::Object;

/// A kind as one served version shows it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct View {
    pub(crate) resource: &'static Resource,
    pub(crate) version: &'static str,
}

impl View {
    /// The object on its own.
    pub(crate) fn object(self, object: &Object) -> Vec<u8> {
        let mut out = Vec::with_capacity(object.body().len() + 64);
        self.write_object(&mut out, object);
        out.push(b'\n');
        out
    }

    fn write_object(self, out: &mut Vec<u8>, object: &Object) {
        let api_version = self.resource.api_version(self.version);
        let head = format!(r#"{{"kind":"{}","apiVersion":"{api_version}","#, self.resource.kind);
        out.extend_from_slice(head.as_bytes());
        // The body is a JSON object that is never empty: it has metadata.
        out.extend_from_slice(&object.body()[1..]);
    }

    /// A list. Its items carry no kind, as those of a real server.
    pub(crate) fn list(self, objects: &[Arc<Object>], metadata: &Value) -> Vec<u8> {
        let size: usize = objects.iter().map(|object| object.body().len() + 1).sum();
        let mut out = Vec::with_capacity(size + 256);
        let head = format!(
            r#"{{"kind":"{}List","apiVersion":"{}","metadata":{metadata},"items":["#,
            self.resource.kind,
            self.resource.api_version(self.version),
        );
        out.extend_from_slice(head.as_bytes());
        for (i, object) in objects.iter().enumerate() {
            if i > 0 {
                out.push(b',');
            }
            out.extend_from_slice(object.body());
        }
        out.extend_from_slice(b"]}\n");
        out
    }

    /// Appends one watch event: a line.
    pub(crate) fn write_event(self, out: &mut Vec<u8>, kind: &str, object: &Object) {
        out.extend_from_slice(format!(r#"{{"type":"{kind}","object":"#).as_bytes());
        self.write_object(out, object);
        out.extend_from_slice(b"}\n");
    }

    /// A bookmark; `initial_events_end` marks the end of a streaming list.
    pub(crate) fn bookmark(self, version: u64, initial_events_end: bool) -> Vec<u8> {
        let mut metadata = json!({"resourceVersion": version.to_string()});
        if initial_events_end {
            metadata["annotations"] = json!({"k8s.io/initial-events-end": "true"});
        }
        let object = json!({
            "kind": self.resource.kind,
            "apiVersion": self.resource.api_version(self.version),
            "metadata": metadata,
        });
        line("BOOKMARK", object)
    }
}

/// The ERROR event that ends a watch.
pub(crate) fn error_event(error: &ApiError) -> Vec<u8> {
    line("ERROR", error.to_status())
}

fn line(kind: &str, object: Value) -> Vec<u8> {
    let mut out = json!({"type": kind, "object": object}).to_string().into_bytes();
    out.push(b'\n');
    out
}
