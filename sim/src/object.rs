//! One version of an object, in the stored and transmitted form.
//!
//! An object that a client wrote is stored as JSON. An object of a generated world is a sketch,
//! which is encoded on each access, so half a million pods need little memory. With
//! `WorldOptions::encoded`, the protobuf encoding is stored too.

use std::borrow::Cow;
use std::fmt::Debug;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use serde_json::{Value, json};

use crate::protobuf::{self, Message};
use crate::store::text;

/// The namespace and name of an object. Cluster-wide objects have an empty namespace.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Name {
    /// The namespace, or empty.
    pub namespace: Box<str>,
    /// The name in the namespace.
    pub name: Box<str>,
}

impl Name {
    /// Returns a name in a namespace, which is `""` for cluster-wide kinds.
    pub fn new(namespace: &str, name: &str) -> Name {
        Name { namespace: namespace.into(), name: name.into() }
    }
}

/// An object that is encoded on each access, always to the same bytes.
pub(crate) trait Sketch: Debug + Send + Sync {
    /// Appends the JSON without `kind` and `apiVersion`, with this resource version.
    fn write_json(&self, version: u64, out: &mut Vec<u8>);
    /// Appends the protobuf encoding without an envelope.
    fn write_protobuf(&self, version: u64, out: &mut Vec<u8>);
    /// Returns the fields that selectors use.
    fn selectable(&self) -> Value;
    /// Returns the fields that all similar objects share, with a [`crate::stencil::mark`] in each
    /// text that differs between them.
    fn shared(&self) -> &Value;
}

/// One version of one object.
#[derive(Debug)]
pub struct Object {
    /// The namespace and name.
    pub name: Name,
    /// The resource version of this version.
    pub version: u64,
    body: Body,
    /// The protobuf encoding without an envelope, if it is stored.
    encoded: OnceLock<Bytes>,
}

#[derive(Debug, Clone)]
enum Body {
    Written(Bytes),
    Sketched(Arc<dyn Sketch>),
}

impl PartialEq for Object {
    fn eq(&self, other: &Object) -> bool {
        self.name == other.name && self.version == other.version && self.body() == other.body()
    }
}

impl Object {
    pub(crate) fn new(version: u64, mut value: Value) -> Object {
        value["metadata"]["resourceVersion"] = json!(version.to_string());
        if let Some(fields) = value.as_object_mut() {
            fields.remove("kind");
            fields.remove("apiVersion");
        }
        let name = Name::new(
            text(&value, "/metadata/namespace").unwrap_or_default(),
            text(&value, "/metadata/name").unwrap_or_default(),
        );
        let body = serde_json::to_vec(&value).expect("a JSON value encodes").into();
        Object::of(name, version, Body::Written(body))
    }

    pub(crate) fn sketched(version: u64, name: Name, sketch: Arc<dyn Sketch>) -> Object {
        Object::of(name, version, Body::Sketched(sketch))
    }

    fn of(name: Name, version: u64, body: Body) -> Object {
        Object { name, version, body, encoded: OnceLock::new() }
    }

    /// Returns the JSON object without `kind` and `apiVersion`, as in a list.
    pub fn body(&self) -> Cow<'_, [u8]> {
        match &self.body {
            Body::Written(json) => Cow::Borrowed(json),
            Body::Sketched(sketch) => {
                let mut out = Vec::new();
                sketch.write_json(self.version, &mut out);
                Cow::Owned(out)
            }
        }
    }

    /// Returns the object as protobuf, without an envelope.
    pub(crate) fn protobuf(&self, message: &Message) -> Cow<'_, [u8]> {
        if let Some(encoded) = self.encoded.get() {
            return Cow::Borrowed(encoded);
        }
        Cow::Owned(match &self.body {
            Body::Written(_) => protobuf::encode(message, &self.value()),
            Body::Sketched(sketch) => {
                let mut out = Vec::new();
                sketch.write_protobuf(self.version, &mut out);
                out
            }
        })
    }

    /// Stores the protobuf encoding from now on.
    pub(crate) fn keep_protobuf(&self, message: &Message) {
        self.encoded.get_or_init(|| self.protobuf(message).into_owned().into());
    }

    /// Returns the object as a value, without `kind` and `apiVersion`.
    pub fn value(&self) -> Value {
        serde_json::from_slice(&self.body()).expect("the store wrote it")
    }

    /// Returns the object, or at least the fields that selectors use.
    pub(crate) fn selectable(&self) -> Value {
        match &self.body {
            Body::Written(_) => self.value(),
            Body::Sketched(sketch) => sketch.selectable(),
        }
    }

    /// Returns [`Object::selectable`] of all similar objects; `None` for objects that a client wrote.
    pub(crate) fn shared(&self) -> Option<&Value> {
        match &self.body {
            Body::Written(_) => None,
            Body::Sketched(sketch) => Some(sketch.shared()),
        }
    }

    /// Returns the same state with another version, for the report of a deletion.
    pub(crate) fn at_version(&self, version: u64) -> Object {
        match &self.body {
            Body::Written(_) => Object::new(version, self.value()),
            Body::Sketched(sketch) => Object::sketched(version, self.name.clone(), sketch.clone()),
        }
    }
}
