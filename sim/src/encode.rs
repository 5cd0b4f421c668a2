//! Objects, lists and events as the bytes of an answer. The one place that knows the wire form, so a
//! second form belongs beside it.

use std::borrow::Cow;
use std::sync::Arc;

use serde_json::{Value, json};

use crate::resource::Resource;
use crate::status::ApiError;
use crate::store::Object;

/// A kind as one client sees it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct View {
    pub(crate) resource: &'static Resource,
    pub(crate) version: &'static str,
    pub(crate) form: Form,
}

/// How much of an object is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    Full,
    /// As `PartialObjectMetadata`, for clients that keep an eye on what there is.
    Metadata,
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

    /// The object without its kind: what is shown of it, never empty, for it has metadata.
    fn body(self, object: &Object) -> Cow<'_, [u8]> {
        match self.form {
            Form::Full => Cow::Borrowed(object.body()),
            Form::Metadata => {
                let metadata = &object.value()["metadata"];
                Cow::Owned(json!({"metadata": metadata}).to_string().into_bytes())
            }
        }
    }

    /// The object on its own.
    pub(crate) fn object(self, object: &Object) -> Vec<u8> {
        let mut out = Vec::with_capacity(object.body().len() + 64);
        self.write_object(&mut out, object);
        out.push(b'\n');
        out
    }

    fn write_object(self, out: &mut Vec<u8>, object: &Object) {
        let head = format!(r#"{{"kind":"{}","apiVersion":"{}","#, self.kind(), self.api_version());
        out.extend_from_slice(head.as_bytes());
        out.extend_from_slice(&self.body(object)[1..]);
    }

    /// A list. Its items carry no kind, as those of a real server.
    pub(crate) fn list(self, objects: &[Arc<Object>], metadata: &Value) -> Vec<u8> {
        let size: usize = objects.iter().map(|object| object.body().len() + 1).sum();
        let mut out = Vec::with_capacity(size + 256);
        let head = format!(
            r#"{{"kind":"{}List","apiVersion":"{}","metadata":{metadata},"items":["#,
            self.kind(),
            self.api_version(),
        );
        out.extend_from_slice(head.as_bytes());
        for (i, object) in objects.iter().enumerate() {
            if i > 0 {
                out.push(b',');
            }
            out.extend_from_slice(&self.body(object));
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
            "kind": self.kind(),
            "apiVersion": self.api_version(),
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
