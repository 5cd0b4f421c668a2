//! The kinds of objects that are read from a cluster, and their conversion to stored objects.

use std::collections::BTreeSet;
use std::marker::PhantomData;
use std::sync::Arc;

use super::scope::Scope;
use super::weight::{self, MemoryWeight};
use strait_kube_client::{Form, Gather, Keyed, NamespacedName, WatchEvent};
use strait_model::{GATEWAY_API, ISTIO_NETWORKING, MCS_API, Namespace, WorkloadKey};

/// The kinds in an index.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum IndexedKind {
    Services,
    EndpointSlices,
    Pods,
    Nodes,
    Namespaces,
    /// Of the Gateway API.
    Gateways,
    /// Of the multi-cluster services API.
    ServiceExports,
    /// Of the multi-cluster services API.
    ServiceImports,
    /// Istio's kind for machines outside Kubernetes.
    WorkloadEntries,
}

impl IndexedKind {
    /// All kinds.
    pub(super) const ALL: [Self; 9] = [
        Self::Services,
        Self::EndpointSlices,
        Self::Pods,
        Self::Nodes,
        Self::Namespaces,
        Self::Gateways,
        Self::ServiceExports,
        Self::ServiceImports,
        Self::WorkloadEntries,
    ];

    /// The kind in plural, as in paths.
    pub(super) const fn plural(self) -> &'static str {
        match self {
            Self::Services => "services",
            Self::EndpointSlices => "endpointslices",
            Self::Pods => "pods",
            Self::Nodes => "nodes",
            Self::Namespaces => "namespaces",
            Self::Gateways => "gateways",
            Self::ServiceExports => "serviceexports",
            Self::ServiceImports => "serviceimports",
            Self::WorkloadEntries => "workloadentries",
        }
    }

    /// The API group; empty for the core group.
    pub(super) const fn group(self) -> &'static str {
        match self {
            Self::Services | Self::Pods | Self::Nodes | Self::Namespaces => "",
            Self::EndpointSlices => "discovery.k8s.io",
            Self::Gateways => GATEWAY_API,
            Self::ServiceExports | Self::ServiceImports => MCS_API,
            Self::WorkloadEntries => ISTIO_NETWORKING,
        }
    }

    /// The kind as in manifests.
    pub(super) const fn manifest_kind(self) -> &'static str {
        match self {
            Self::Services => "Service",
            Self::EndpointSlices => "EndpointSlice",
            Self::Pods => "Pod",
            Self::Nodes => "Node",
            Self::Namespaces => "Namespace",
            Self::Gateways => "Gateway",
            Self::ServiceExports => "ServiceExport",
            Self::ServiceImports => "ServiceImport",
            Self::WorkloadEntries => "WorkloadEntry",
        }
    }

    /// Whether objects of the kind belong to namespaces.
    pub(super) const fn is_namespaced(self) -> bool {
        !matches!(self, Self::Nodes | Self::Namespaces)
    }

    /// Whether a cluster may lack the kind without an error.
    pub(super) const fn may_be_absent(self) -> bool {
        matches!(
            self,
            Self::Gateways | Self::ServiceExports | Self::ServiceImports | Self::WorkloadEntries
        )
    }

    /// Returns the consequences if the kind may not be read; `None` if it is required.
    pub(super) const fn optional(self) -> Option<&'static str> {
        match self {
            Self::Pods => Some("no identities, no labels, no traffic across networks"),
            Self::Nodes => Some("only the zones of slices as localities, no NodePort gateways"),
            Self::Gateways => Some("no network gateways of the Gateway API"),
            Self::ServiceExports => Some("no services for other clusters"),
            Self::ServiceImports => Some("no addresses for services of other clusters"),
            Self::WorkloadEntries => Some("no machines"),
            Self::Services | Self::EndpointSlices | Self::Namespaces => None,
        }
    }
}

/// The namespace that a reader reads, by its position in the list; `None` for the whole cluster.
pub(super) type ReadPart = Option<u8>;

/// The result of reading one object.
#[derive(Debug, Clone)]
pub(super) struct IndexedObject<T> {
    /// The key of the object.
    pub(super) key: NamespacedName,
    /// The stored part; `None` if the object has no effect.
    pub(super) value: Option<T>,
    /// Why parts of the object are invalid.
    pub(super) invalid: Option<Box<str>>,
}

impl<T: MemoryWeight> Keyed for IndexedObject<T> {
    fn key(&self) -> NamespacedName {
        self.key.clone()
    }

    fn weight(&self) -> usize {
        let invalid = self.invalid.as_ref().map_or(0, |invalid| invalid.len());
        weight::key(&self.key) + invalid + self.value.as_ref().map_or(0, MemoryWeight::weight)
    }
}

/// A stored object of one kind.
pub(super) trait ReadKind: MemoryWeight + Sized + Send + 'static {
    /// Its decoded form.
    type Form<'a>: Form<'a>;
    /// Its list.
    type List: ObjectList<Self>;

    /// Whether it can be decoded from protobuf. Kinds of CustomResourceDefinitions cannot.
    const PROTOBUF: bool = true;

    /// Converts the decoded form to the stored object.
    fn convert(form: Self::Form<'_>, scope: &Scope) -> IndexedObject<Self>;
}

/// A list of objects that are stored as `T`.
pub(super) trait ObjectList<T>: Gather<IndexedObject<T>> {
    /// Returns the number of objects with an effect.
    fn count(&self) -> usize;
}

impl<T: MemoryWeight + Send + 'static> ObjectList<T> for Vec<IndexedObject<T>> {
    fn count(&self) -> usize {
        self.iter().filter(|one| one.value.is_some()).count()
    }
}

/// An event about objects that are stored as `T`.
pub(super) type IndexEvent<T> = WatchEvent<IndexedObject<T>, <T as ReadKind>::List>;

/// Reads objects that are stored as `T`.
pub(super) struct ReadAs<'a, T>(&'a Scope, PhantomData<fn() -> T>);

impl<'a, T> ReadAs<'a, T> {
    pub(super) fn with(scope: &'a Scope) -> Self {
        Self(scope, PhantomData)
    }
}

impl<T: ReadKind> strait_kube_client::ObjectKind for ReadAs<'_, T> {
    type ObjectForm<'a> = T::Form<'a>;
    type Stored = IndexedObject<T>;
    type List = T::List;

    const PROTOBUF: bool = T::PROTOBUF;

    fn convert(&self, form: Self::ObjectForm<'_>) -> IndexedObject<T> {
        T::convert(form, self.0)
    }
}

/// Returns the `keys` that are not on the list.
pub(super) fn missing<'a, T>(
    keys: impl Iterator<Item = &'a NamespacedName>,
    list: &[IndexedObject<T>],
) -> Vec<NamespacedName> {
    let mut keys = keys.peekable();
    if keys.peek().is_none() {
        return Vec::new();
    }
    let present = names(list);
    keys.filter(|key| !present.contains(&(&*key.namespace, &*key.name))).cloned().collect()
}

/// Returns namespace and name of all listed objects.
pub(super) fn names<T>(list: &[IndexedObject<T>]) -> BTreeSet<(&str, &str)> {
    list.iter().map(|one| (&*one.key.namespace, &*one.key.name)).collect()
}

/// Returns the name under which an object is stored.
pub(super) fn workload_key(key: &NamespacedName) -> WorkloadKey {
    WorkloadKey::new(Namespace::new(Arc::clone(&key.namespace)), Arc::clone(&key.name))
}

/// Returns the name of the object that is stored under a key, the reverse of [`workload_key`].
pub(super) fn namespaced_name(key: &WorkloadKey) -> NamespacedName {
    NamespacedName { namespace: key.namespace.as_str().into(), name: Arc::clone(&key.name) }
}
