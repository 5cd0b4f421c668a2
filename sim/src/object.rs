//! One version of one object, as the store keeps it and as answers show it.
//!
//! An object that somebody wrote is kept as its JSON. An object of a generated world is a sketch,
//! which is written out each time somebody looks: half a million pods fit in little memory. Where time
//! is dearer, it is kept encoded as well.

use std::borrow::Cow;
use std::fmt::Debug;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use serde_json::{Value, json};

use crate::protobuf::{self, Message};
use crate::store::text;

/// Where an object lives; cluster-wide objects have an empty namespace.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Name {
    /// The namespace, or nothing.
    pub namespace: Box<str>,
    /// The name within it.
    pub name: Box<str>,
}

impl Name {
    /// A name in a namespace; `""` for cluster-wide kinds.
    pub fn new(namespace: &str, name: &str) -> Name {
        Name { namespace: namespace.into(), name: name.into() }
    }
}

/// An object that is written out when somebody looks, the same way each time.
pub(crate) trait Sketch: Debug + Send + Sync {
    /// Appends the JSON without `kind` and `apiVersion`, under this resource version.
    fn write_json(&self, version: u64, out: &mut Vec<u8>);
    /// Appends the same as protobuf, without an envelope.
    fn write_protobuf(&self, version: u64, out: &mut Vec<u8>);
    /// The little of the object that selectors ask about.
    fn selectable(&self) -> Value;
    /// The same for all objects like this one, with a [`crate::stencil::mark`] in each text in which
    /// they differ.
    fn shared(&self) -> &Value;
}

/// One version of one object.
#[derive(Debug)]
pub struct Object {
    /// Where it lives.
    pub name: Name,
    /// The resource version at which it was written.
    pub version: u64,
    body: Body,
    /// As protobuf without an envelope, if it is to be kept.
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

    /// The JSON object without `kind` and `apiVersion`, as it stands in a list.
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

    /// The object as protobuf, without an envelope.
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

    /// Keeps it encoded from here on.
    pub(crate) fn keep_protobuf(&self, message: &Message) {
        self.encoded.get_or_init(|| self.protobuf(message).into_owned().into());
    }

    /// The object as a value, without `kind` and `apiVersion`.
    pub fn value(&self) -> Value {
        serde_json::from_slice(&self.body()).expect("the store wrote it")
    }

    /// What selectors ask about: the object, or at least that much of it.
    pub(crate) fn selectable(&self) -> Value {
        match &self.body {
            Body::Written(_) => self.value(),
            Body::Sketched(sketch) => sketch.selectable(),
        }
    }

    /// What [`Object::selectable`] is for all objects like this one, where there are such.
    pub(crate) fn shared(&self) -> Option<&Value> {
        match &self.body {
            Body::Written(_) => None,
            Body::Sketched(sketch) => Some(sketch.shared()),
        }
    }

    /// The same state under another version, as a deletion is reported.
    pub(crate) fn at_version(&self, version: u64) -> Object {
        match &self.body {
            Body::Written(_) => Object::new(version, self.value()),
            Body::Sketched(sketch) => Object::sketched(version, self.name.clone(), sketch.clone()),
        }
    }
}
