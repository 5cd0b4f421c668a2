//! What an object of a kind is: how it looks on the wire, and what is kept of it.
//!
//! An object is decoded on its own, so that one which makes no sense costs only itself. What a form
//! does not name is skipped while decoding, without recursion and without being kept: managed
//! fields, which are half of most objects, are never materialised, and depth is no attack.

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
    /// The namespace; empty for kinds without.
    pub namespace: Arc<str>,
    /// The name.
    pub name: Arc<str>,
}

impl fmt::Display for NamespacedName {
    /// `namespace/name`, or `name`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.namespace.is_empty() {
            write!(f, "{}/", self.namespace)?;
        }
        f.write_str(&self.name)
    }
}

/// An object that makes no sense.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InvalidField {
    /// Which, where that much is known.
    pub key: Option<NamespacedName>,
    /// Why.
    pub reason: String,
}

/// How the objects of a kind are read: borrowed from the bytes received, as JSON or protobuf, and at
/// once made into what is kept. So a list costs what is kept of it, and one object in full.
pub trait ObjectKind: Send + Sync {
    /// An object on the wire.
    type ObjectForm<'a>: Form<'a>;
    /// What is kept of it.
    type Kept: Keyed + Send + 'static;
    /// What is kept of all of a list.
    type List: Gather<Self::Kept>;

    /// Whether its forms can be read from protobuf.
    const PROTOBUF: bool;

    /// Keeps what is needed.
    fn keep(&self, form: Self::ObjectForm<'_>) -> Self::Kept;
}

/// The objects of a list while it comes, and then all of them.
pub trait Gather<T>: Default + Send + 'static {
    /// Takes one more. Of two with one key the later counts.
    fn add(&mut self, object: T);

    /// Drops the one of that key, if it is there.
    fn forget(&mut self, key: &NamespacedName);

    /// Drops those of these keys that are there: they have gone while the list came. For lists in which
    /// one can't be found without looking at all of them, a single pass.
    fn forget_all(&mut self, gone: &BTreeSet<NamespacedName>) {
        gone.iter().for_each(|key| self.forget(key));
    }

    /// How many there are, at least.
    fn len(&self) -> usize;

    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// What is kept of an object and knows of which.
pub trait Keyed: Sized {
    /// Which object this was kept of.
    fn key(&self) -> NamespacedName;

    /// About how much memory it takes.
    fn weight(&self) -> usize {
        size_of::<Self>()
    }
}

/// One by one, as they came; who reads them sees to it which of two counts.
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

/// An object in as much detail as its reader needs, borrowed from the bytes it came in. Fields that
/// may be missing, null or odd in the wild are optional or defaulted; an object that can't be decoded
/// even so is left out.
pub trait Form<'a>: Deserialize<'a> {
    /// Decodes protobuf. Objects of an API that was installed have no such form, unless somebody says otherwise.
    ///
    /// # Errors
    /// It is not this form.
    fn of_protobuf(_bytes: &'a [u8]) -> Result<Self, MalformedMessage> {
        Err(MalformedMessage::NO_FORM)
    }

    /// Decodes the JSON at the beginning of `json` if it is written just as API servers write this form, and says
    /// what follows. `None` is no verdict: what is written in another way, or wrong, is then decoded in full.
    fn of_plain_json(_json: &'a [u8]) -> Option<(Self, &'a [u8])> {
        None
    }

    /// Which object it is: namespace, name, version.
    fn identity(&self) -> Identity<'_>;
}

/// Which object, and which state of it.
#[derive(Debug, Clone, Copy)]
pub struct Identity<'a> {
    /// The namespace; empty for kinds without.
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

    /// Whether namespace and name can be those of the kinds read here: they end up in host names,
    /// keys and logs.
    pub(super) fn makes_sense(self) -> bool {
        is_name(self.name) && (self.namespace.is_empty() || is_name(self.namespace))
    }
}

fn is_name(text: &str) -> bool {
    !text.is_empty()
        && text.len() <= 253
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._:".contains(&b))
}

/// What every object has, as far as anybody here needs it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Meta<'a> {
    /// The name.
    #[serde(borrow)]
    pub name: BorrowedText<'a>,
    /// The namespace; empty for kinds without.
    #[serde(borrow)]
    pub namespace: BorrowedText<'a>,
    /// Unique over time.
    #[serde(borrow)]
    pub uid: BorrowedText<'a>,
    /// The version; opaque.
    #[serde(borrow)]
    pub resource_version: BorrowedText<'a>,
    /// Which state of what is wished for; 0 for kinds that count none.
    #[serde(deserialize_with = "null_as_default")]
    pub generation: i64,
    /// When it was made.
    #[serde(borrow)]
    pub creation_timestamp: Moment<'a>,
    /// When it was to go, if it is to go; 0 else.
    #[serde(borrow)]
    pub deletion_timestamp: Moment<'a>,
    /// Labels.
    #[serde(borrow)]
    pub labels: Pairs<'a>,
    /// Those annotations that may mean something here: the mesh's (`*.istio.io/`) and our own.
    #[serde(borrow, deserialize_with = "meaningful")]
    pub annotations: Pairs<'a>,
    /// What made it and looks after it.
    #[serde(borrow, rename = "ownerReferences", deserialize_with = "controller")]
    pub controller: OwnerReference<'a>,
}

/// An object that owns another.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct OwnerReference<'a> {
    /// Its kind; empty where there is none.
    #[serde(borrow)]
    pub kind: BorrowedText<'a>,
    /// Its name.
    #[serde(borrow)]
    pub name: BorrowedText<'a>,
    #[serde(deserialize_with = "null_as_default")]
    controller: bool,
}

impl Meta<'_> {
    /// Which object, and which state of it.
    pub fn identity(&self) -> Identity<'_> {
        Identity { namespace: &self.namespace, name: &self.name, version: &self.resource_version }
    }

    /// Whether it is of the bookmark that ends a streamed list.
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
            12 => self.annotations.take_wanted(value, means_something)?,
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

/// The one of a list of owners that is the controller; API servers take no second one.
fn controller<'de: 'a, 'a, D: Deserializer<'de>>(json: D) -> Result<OwnerReference<'a>, D::Error> {
    let owners: Option<Vec<OwnerReference<'a>>> = Deserialize::deserialize(json)?;
    let mut owners = owners.unwrap_or_default().into_iter();
    Ok(owners.rfind(|owner| owner.controller).unwrap_or_default())
}

fn meaningful<'de: 'a, 'a, D: Deserializer<'de>>(json: D) -> Result<Pairs<'a>, D::Error> {
    Pairs::deserialize_wanted(json, means_something)
}

/// Only the metadata of an object, whatever it is.
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

/// Decodes `null` like a missing field: Go writes empty lists and maps as `null`.
///
/// # Errors
/// Those of the value itself.
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
/// Those of its elements, or there are more than 10,000.
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

/// Annotations are free text of any size; only those of the mesh and our own are kept, and those that say whose an Ingress is.
fn means_something(annotation: &[u8]) -> bool {
    let domain = annotation.split(|byte| *byte == b'/').next().unwrap_or_default();
    let of_a_domain = domain.len() < annotation.len();
    of_a_domain && (domain.ends_with(b"istio.io") || domain == b"strait.dev")
        || OF_KUBERNETES.iter().any(|one| annotation == one.as_bytes())
}

/// Those of Kubernetes' own that mean something. (Kubernetes, "Well-Known Labels, Annotations and Taints".)
const OF_KUBERNETES: [&str; 3] = [
    INITIAL_EVENTS_END,
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
    /// The namespace; empty for kinds without.
    #[serde(deserialize_with = "null_as_default")]
    pub namespace: Arc<str>,
    /// Unique over time.
    #[serde(deserialize_with = "null_as_default")]
    pub uid: Arc<str>,
    /// The version; opaque.
    #[serde(deserialize_with = "null_as_default")]
    pub resource_version: String,
    /// Counts the forms of what it shall be; 0 where that isn't counted.
    #[serde(deserialize_with = "null_as_default")]
    pub generation: i64,
    /// When it was made, RFC 3339; empty where unknown.
    #[serde(deserialize_with = "null_as_default")]
    pub creation_timestamp: String,
    /// Labels.
    #[serde(deserialize_with = "null_as_default")]
    pub labels: BTreeMap<Arc<str>, Arc<str>>,
    /// Those annotations that may mean something here: the mesh's (`*.istio.io/`), our own, and Ingress classes.
    #[serde(deserialize_with = "annotations")]
    pub annotations: BTreeMap<Arc<str>, Arc<str>>,
}

impl ObjectMetadata {
    /// Namespace and name.
    pub fn key(&self) -> NamespacedName {
        NamespacedName { namespace: Arc::clone(&self.namespace), name: Arc::clone(&self.name) }
    }
}

fn annotations<'de, D>(deserializer: D) -> Result<BTreeMap<Arc<str>, Arc<str>>, D::Error>
where
    D: Deserializer<'de>,
{
    struct Kept;
    impl<'de> Visitor<'de> for Kept {
        type Value = BTreeMap<Arc<str>, Arc<str>>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a map of annotations")
        }

        fn visit_unit<E>(self) -> Result<Self::Value, E> {
            Ok(BTreeMap::new())
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            let mut kept = BTreeMap::new();
            while let Some(name) = map.next_key::<Cow<'de, str>>()? {
                if means_something(name.as_bytes()) {
                    if let Some(value) = map.next_value::<Option<Arc<str>>>()? {
                        kept.insert(Arc::from(&*name), value);
                    }
                } else {
                    map.next_value::<IgnoredAny>()?;
                }
            }
            Ok(kept)
        }
    }
    deserializer.deserialize_any(Kept)
}

/// An object that is decoded into a value of its own and kept as it is: for kinds of which there are
/// few.
pub trait OwnedObject: DeserializeOwned + Send + 'static {
    /// Its metadata.
    fn metadata(&self) -> &ObjectMetadata;
}

impl<'a, T: OwnedObject> Form<'a> for T {
    fn of_protobuf(_: &'a [u8]) -> Result<Self, MalformedMessage> {
        Err(MalformedMessage("nobody asked for it"))
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
    type Kept = T;
    type List = Vec<T>;

    const PROTOBUF: bool = false;

    fn keep(&self, form: T) -> T {
        form
    }
}

impl<T: OwnedObject> Keyed for T {
    fn key(&self) -> NamespacedName {
        self.metadata().key()
    }
}
