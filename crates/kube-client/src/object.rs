//! The objects of a kind: their encoded form, and their stored part.
//!
//! Each object is decoded separately, so that an invalid one does not affect the others. Fields
//! that a form does not name are skipped while decoding, without recursion and without allocation:
//! managed fields, which are half of most objects, are never created, and deep nesting is no
//! attack.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use serde::de::{DeserializeOwned, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::borrowed_text::{BorrowedText, ELEMENTS_MAX};
use super::text::{Moment, Pairs};
use super::wire::{FieldValue, MalformedMessage, ProtobufMessage};

/// Namespace and name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NamespacedName {
    /// The namespace; empty for cluster-scoped kinds.
    pub namespace: Arc<str>,
    /// The name.
    pub name: Arc<str>,
}

impl fmt::Display for NamespacedName {
    /// Writes `namespace/name`, or `name`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.namespace.is_empty() {
            write!(f, "{}/", self.namespace)?;
        }
        f.write_str(&self.name)
    }
}

/// An invalid object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InvalidField {
    /// The object, if known.
    pub key: Option<NamespacedName>,
    /// The reason.
    pub reason: String,
}

/// Reads the objects of a kind: borrowed from the received bytes, as JSON or protobuf, and
/// immediately converted to the stored part. A list therefore costs its stored objects and one
/// complete object.
pub trait ObjectKind: Send + Sync {
    /// The encoded form of an object.
    type ObjectForm<'a>: Form<'a>;
    /// The stored part of an object.
    type Stored: Keyed + Send + 'static;
    /// The stored part of a list.
    type List: Gather<Self::Stored>;

    /// Whether its forms can be decoded from protobuf.
    const PROTOBUF: bool;

    /// Converts the form to the stored part.
    fn convert(&self, form: Self::ObjectForm<'_>) -> Self::Stored;
}

/// The objects of a list, while it arrives and when it is complete.
pub trait Gather<T>: Default + Send + 'static {
    /// Adds an object. The later of two with the same key applies.
    fn add(&mut self, object: T);

    /// Removes the object with this key, if present.
    fn forget(&mut self, key: &NamespacedName);

    /// Removes the objects with these keys, which were deleted while the list arrived. A single
    /// pass for lists in which finding an object needs a search of the whole list.
    fn forget_all(&mut self, gone: &BTreeSet<NamespacedName>) {
        gone.iter().for_each(|key| self.forget(key));
    }

    /// Returns a lower limit of the number of objects.
    fn len(&self) -> usize;

    /// Whether the list is empty.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The stored part of an object, with its key.
pub trait Keyed: Sized {
    /// Returns the key of the object.
    fn key(&self) -> NamespacedName;

    /// Returns the approximate memory use in bytes.
    fn weight(&self) -> usize {
        size_of::<Self>()
    }
}

/// Stores objects in order of arrival; the reader decides between two with the same key.
impl<T: Keyed + Send + 'static> Gather<T> for Vec<T> {
    fn add(&mut self, object: T) {
        self.push(object);
    }

    fn forget(&mut self, key: &NamespacedName) {
        self.retain(|object| object.key() != *key);
    }

    fn forget_all(&mut self, gone: &BTreeSet<NamespacedName>) {
        self.retain(|object| !gone.contains(&object.key()));
    }

    fn len(&self) -> usize {
        self.len()
    }
}

/// An object with the fields that its reader needs, borrowed from the received bytes. Fields that
/// may be missing, null or invalid in practice are optional or have defaults; an object that still
/// cannot be decoded is omitted.
pub trait Form<'a>: Deserialize<'a> {
    /// Decodes protobuf. By default, kinds have no protobuf form: CustomResourceDefinitions don't.
    ///
    /// # Errors
    /// Fails if the bytes are not of this form.
    fn from_protobuf(_bytes: &'a [u8]) -> Result<Self, MalformedMessage> {
        Err(MalformedMessage::NO_FORM)
    }

    /// Decodes the JSON at the beginning of `json` if it has exactly the format of API servers, and
    /// returns the remaining bytes. `None` if the format differs or is invalid: the object is then
    /// decoded with the general parser.
    fn from_plain_json(_json: &'a [u8]) -> Option<(Self, &'a [u8])> {
        None
    }

    /// Returns namespace, name and version of the object.
    fn identity(&self) -> Identity<'_>;
}

/// The key and the version of an object.
#[derive(Debug, Clone, Copy)]
pub struct Identity<'a> {
    /// The namespace; empty for cluster-scoped kinds.
    pub namespace: &'a str,
    /// The name.
    pub name: &'a str,
    /// The version; opaque.
    pub version: &'a str,
}

impl Identity<'_> {
    /// Namespace and name.
    pub(super) fn key(self) -> NamespacedName {
        NamespacedName { namespace: self.namespace.into(), name: self.name.into() }
    }

    /// Whether namespace and name are valid for the kinds read here: they become parts of host
    /// names, keys and logs.
    pub(super) fn makes_sense(self) -> bool {
        is_name(self.name) && (self.namespace.is_empty() || is_name(self.namespace))
    }
}

fn is_name(text: &str) -> bool {
    !text.is_empty()
        && text.len() <= 253
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._:".contains(&b))
}

/// The used part of an object's metadata.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Meta<'a> {
    /// The name.
    #[serde(borrow)]
    pub name: BorrowedText<'a>,
    /// The namespace; empty for cluster-scoped kinds.
    #[serde(borrow)]
    pub namespace: BorrowedText<'a>,
    /// The UID, unique over time.
    #[serde(borrow)]
    pub uid: BorrowedText<'a>,
    /// The version; opaque.
    #[serde(borrow)]
    pub resource_version: BorrowedText<'a>,
    /// The generation of the specification; 0 for kinds without.
    #[serde(deserialize_with = "null_as_default")]
    pub generation: i64,
    /// The creation time.
    #[serde(borrow)]
    pub creation_timestamp: Moment<'a>,
    /// The deletion time, if deletion was requested; otherwise 0.
    #[serde(borrow)]
    pub deletion_timestamp: Moment<'a>,
    /// Labels.
    #[serde(borrow)]
    pub labels: Pairs<'a>,
    /// The annotations that may be used: the mesh's (`*.istio.io/`) and Strait's own.
    #[serde(borrow, deserialize_with = "meaningful")]
    pub annotations: Pairs<'a>,
    /// The owner that controls the object.
    #[serde(borrow, rename = "ownerReferences", deserialize_with = "controller")]
    pub controller: OwnerReference<'a>,
}

/// An object that owns another.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct OwnerReference<'a> {
    /// Its kind; empty if there is no owner.
    #[serde(borrow)]
    pub kind: BorrowedText<'a>,
    /// Its name.
    #[serde(borrow)]
    pub name: BorrowedText<'a>,
    #[serde(deserialize_with = "null_as_default")]
    controller: bool,
}

impl Meta<'_> {
    /// Returns the key and the version of the object.
    pub fn identity(&self) -> Identity<'_> {
        Identity { namespace: &self.namespace, name: &self.name, version: &self.resource_version }
    }

    /// Whether the metadata is that of the bookmark that ends a streamed list.
    pub(super) fn ends_initial_events(&self) -> bool {
        self.annotations.get(INITIAL_EVENTS_END) == Some("true")
    }
}

impl<'a> ProtobufMessage<'a> for Meta<'a> {
    fn field(&mut self, number: u32, value: FieldValue<'a>) -> Result<(), MalformedMessage> {
        match number {
            1 => self.name = value.text()?,
            3 => self.namespace = value.text()?,
            5 => self.uid = value.text()?,
            6 => self.resource_version = value.text()?,
            7 => self.generation = value.number()?,
            8 => value.message(&mut self.creation_timestamp)?,
            9 => value.message(&mut self.deletion_timestamp)?,
            11 => self.labels.take(value)?,
            12 => self.annotations.add_where(value, is_used_annotation)?,
            13 => {
                let mut owner = OwnerReference::default();
                value.message(&mut owner)?;
                if owner.controller {
                    self.controller = owner;
                }
            }
            _ => {}
        }
        Ok(())
    }
}

impl<'a> ProtobufMessage<'a> for OwnerReference<'a> {
    fn field(&mut self, number: u32, value: FieldValue<'a>) -> Result<(), MalformedMessage> {
        match number {
            1 => self.kind = value.text()?,
            3 => self.name = value.text()?,
            6 => self.controller = value.flag()?,
            _ => {}
        }
        Ok(())
    }
}

/// Returns the controller among the owners; API servers accept only one.
fn controller<'de: 'a, 'a, D: Deserializer<'de>>(json: D) -> Result<OwnerReference<'a>, D::Error> {
    let owners: Option<Vec<OwnerReference<'a>>> = Deserialize::deserialize(json)?;
    let mut owners = owners.unwrap_or_default().into_iter();
    Ok(owners.rfind(|owner| owner.controller).unwrap_or_default())
}

fn meaningful<'de: 'a, 'a, D: Deserializer<'de>>(json: D) -> Result<Pairs<'a>, D::Error> {
    Pairs::deserialize_where(json, is_used_annotation)
}

/// The metadata of an object of any kind.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct OnlyMeta<'a> {
    #[serde(borrow, deserialize_with = "null_as_default")]
    pub(super) metadata: Meta<'a>,
}

impl<'a> ProtobufMessage<'a> for OnlyMeta<'a> {
    fn field(&mut self, number: u32, value: FieldValue<'a>) -> Result<(), MalformedMessage> {
        if number == 1 { value.message(&mut self.metadata) } else { Ok(()) }
    }
}

/// Decodes `null` like a missing field: Go encodes empty lists and maps as `null`.
///
/// # Errors
/// Fails if decoding the value fails.
pub fn null_as_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + Default,
{
    Option::deserialize(deserializer).map(Option::unwrap_or_default)
}

/// Decodes a list within an object; `null` is an empty one.
///
/// # Errors
/// Fails if decoding an element fails, or if there are more than 10,000 elements.
pub fn list<'de, D, T>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    struct List<T>(PhantomData<fn() -> T>);
    impl<'de, T: Deserialize<'de>> Visitor<'de> for List<T> {
        type Value = Vec<T>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a list")
        }

        fn visit_unit<E>(self) -> Result<Vec<T>, E> {
            Ok(Vec::new())
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<Vec<T>, A::Error> {
            let mut found = Vec::new();
            while let Some(element) = elements.next_element()? {
                if found.len() == ELEMENTS_MAX {
                    return Err(A::Error::custom("a list of more than 10,000 elements"));
                }
                found.push(element);
            }
            Ok(found)
        }
    }
    deserializer.deserialize_any(List(PhantomData))
}

/// Whether an annotation is stored. Annotations are free text of any size; only annotations of the
/// mesh, of Strait, and for the selection of an Ingress controller are stored.
fn is_used_annotation(annotation: &[u8]) -> bool {
    let domain = annotation.split(|byte| *byte == b'/').next().unwrap_or_default();
    let has_domain = domain.len() < annotation.len();
    has_domain && (domain.ends_with(b"istio.io") || domain == b"strait.dev")
        || KUBERNETES_ANNOTATIONS.iter().any(|one| annotation == one.as_bytes())
}

/// The Kubernetes annotations that are used. (Kubernetes, "Well-Known Labels, Annotations and
/// Taints".)
const KUBERNETES_ANNOTATIONS: [&str; 4] = [
    INITIAL_EVENTS_END,
    "multicluster.kubernetes.io/derived-service",
    "kubernetes.io/ingress.class",
    "ingressclass.kubernetes.io/is-default-class",
];

/// The annotation of the bookmark that ends a streamed list.
const INITIAL_EVENTS_END: &str = "k8s.io/initial-events-end";

/// The metadata of an [`OwnedObject`].
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ObjectMetadata {
    /// The name; never empty once decoded.
    #[serde(deserialize_with = "null_as_default")]
    pub name: Arc<str>,
    /// The namespace; empty for cluster-scoped kinds.
    #[serde(deserialize_with = "null_as_default")]
    pub namespace: Arc<str>,
    /// The UID, unique over time.
    #[serde(deserialize_with = "null_as_default")]
    pub uid: Arc<str>,
    /// The version; opaque.
    #[serde(deserialize_with = "null_as_default")]
    pub resource_version: String,
    /// The generation of the specification; 0 if it isn't counted.
    #[serde(deserialize_with = "null_as_default")]
    pub generation: i64,
    /// The creation time, RFC 3339; empty if unknown.
    #[serde(deserialize_with = "null_as_default")]
    pub creation_timestamp: String,
    /// Labels.
    #[serde(deserialize_with = "null_as_default")]
    pub labels: BTreeMap<Arc<str>, Arc<str>>,
    /// The annotations that may be used: the mesh's (`*.istio.io/`), Strait's own, and Ingress
    /// classes.
    #[serde(deserialize_with = "annotations")]
    pub annotations: BTreeMap<Arc<str>, Arc<str>>,
}

impl ObjectMetadata {
    /// Returns namespace and name.
    pub fn key(&self) -> NamespacedName {
        NamespacedName { namespace: Arc::clone(&self.namespace), name: Arc::clone(&self.name) }
    }
}

fn annotations<'de, D>(deserializer: D) -> Result<BTreeMap<Arc<str>, Arc<str>>, D::Error>
where
    D: Deserializer<'de>,
{
    struct AnnotationsVisitor;
    impl<'de> Visitor<'de> for AnnotationsVisitor {
        type Value = BTreeMap<Arc<str>, Arc<str>>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a map of annotations")
        }

        fn visit_unit<E>(self) -> Result<Self::Value, E> {
            Ok(BTreeMap::new())
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            let mut annotations = BTreeMap::new();
            while let Some(name) = map.next_key::<Cow<'de, str>>()? {
                if is_used_annotation(name.as_bytes()) {
                    if let Some(value) = map.next_value::<Option<Arc<str>>>()? {
                        annotations.insert(Arc::from(&*name), value);
                    }
                } else {
                    map.next_value::<IgnoredAny>()?;
                }
            }
            Ok(annotations)
        }
    }
    deserializer.deserialize_any(AnnotationsVisitor)
}

/// An object that is decoded into an owned value and stored unchanged: for kinds with few objects.
pub trait OwnedObject: DeserializeOwned + Send + 'static {
    /// Returns its metadata.
    fn metadata(&self) -> &ObjectMetadata;
}

impl<'a, T: OwnedObject> Form<'a> for T {
    fn from_protobuf(_: &'a [u8]) -> Result<Self, MalformedMessage> {
        Err(MalformedMessage("protobuf was not requested"))
    }

    fn identity(&self) -> Identity<'_> {
        let ObjectMetadata { namespace, name, resource_version, .. } = self.metadata();
        Identity { namespace, name, version: resource_version }
    }
}

/// The kind of an [`OwnedObject`].
pub(super) struct AsIs<T>(PhantomData<fn() -> T>);

impl<T> AsIs<T> {
    pub(super) fn new() -> Self {
        Self(PhantomData)
    }
}

impl<T: OwnedObject> ObjectKind for AsIs<T> {
    type ObjectForm<'a> = T;
    type Stored = T;
    type List = Vec<T>;

    const PROTOBUF: bool = false;

    fn convert(&self, form: T) -> T {
        form
    }
}

impl<T: OwnedObject> Keyed for T {
    fn key(&self) -> NamespacedName {
        self.metadata().key()
    }
}
