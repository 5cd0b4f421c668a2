//! The kinds of the mesh's objects, one row each: their location and how they are read. A new kind
//! needs only a new row: it is then read from API servers, directories and MCP servers, and
//! remembered across restarts.

use std::cmp::Ordering;
use std::sync::{Arc, LazyLock};

use serde_json::Value;

use super::spec::{self, UnreadableSpec};
use strait_model::{
    GATEWAY_API, INGRESS_API, ISTIO_NETWORKING, ISTIO_NETWORKING_VERSIONS, ISTIO_SECURITY,
    ISTIO_SECURITY_VERSIONS, ISTIO_TELEMETRY, ISTIO_TELEMETRY_VERSIONS, ObjectJson, ObjectKey,
};

/// Converts the body of an object to the form in manifests.
pub(super) type ReadSpec = fn(&[u8]) -> Result<Value, UnreadableSpec>;

/// A kind of objects that are stored unchanged. Other modules interpret them.
#[derive(Debug, Clone, Copy)]
pub(super) struct StoreKind {
    /// The API group.
    pub(super) group: &'static str,
    /// The versions that servers may support, preferred first. Objects have equal content in all
    /// versions.
    pub(super) versions: &'static [&'static str],
    /// The kind in plural, as in paths.
    pub(super) plural: &'static str,
    /// The kind.
    pub(super) kind: &'static str,
    /// Whether its objects are in namespaces.
    pub(super) namespaced: bool,
    /// Converts the protobuf body of an object to the form in manifests; `None` if the kind is not
    /// requested from MCP servers.
    pub(super) spec: Option<ReadSpec>,
}

/// All kinds. API servers may lack any of them.
pub(super) const ALL: &[StoreKind] = &[
    StoreKind {
        group: ISTIO_NETWORKING,
        versions: ISTIO_NETWORKING_VERSIONS,
        plural: "serviceentries",
        kind: "ServiceEntry",
        namespaced: true,
        spec: Some(spec::service_entry),
    },
    StoreKind {
        group: ISTIO_NETWORKING,
        versions: ISTIO_NETWORKING_VERSIONS,
        plural: "workloadentries",
        kind: "WorkloadEntry",
        namespaced: true,
        spec: Some(spec::workload_entry),
    },
    StoreKind {
        group: ISTIO_NETWORKING,
        versions: ISTIO_NETWORKING_VERSIONS,
        plural: "destinationrules",
        kind: "DestinationRule",
        namespaced: true,
        spec: Some(|body| spec::described("istio.networking.v1alpha3.DestinationRule", body)),
    },
    StoreKind {
        group: ISTIO_NETWORKING,
        // The only version that exists.
        versions: &["v1alpha3"],
        plural: "envoyfilters",
        kind: "EnvoyFilter",
        namespaced: true,
        spec: Some(|body| spec::described("istio.networking.v1alpha3.EnvoyFilter", body)),
    },
    StoreKind {
        group: ISTIO_NETWORKING,
        // The only version that exists.
        versions: &["v1beta1"],
        plural: "proxyconfigs",
        kind: "ProxyConfig",
        namespaced: true,
        spec: Some(|body| spec::described("istio.networking.v1beta1.ProxyConfig", body)),
    },
    StoreKind {
        group: ISTIO_NETWORKING,
        versions: ISTIO_NETWORKING_VERSIONS,
        plural: "gateways",
        kind: "Gateway",
        namespaced: true,
        spec: Some(|body| spec::described("istio.networking.v1alpha3.Gateway", body)),
    },
    StoreKind {
        group: ISTIO_NETWORKING,
        versions: ISTIO_NETWORKING_VERSIONS,
        plural: "sidecars",
        kind: "Sidecar",
        namespaced: true,
        spec: Some(|body| spec::described("istio.networking.v1alpha3.Sidecar", body)),
    },
    StoreKind {
        group: ISTIO_NETWORKING,
        versions: ISTIO_NETWORKING_VERSIONS,
        plural: "virtualservices",
        kind: "VirtualService",
        namespaced: true,
        spec: Some(|body| spec::described("istio.networking.v1alpha3.VirtualService", body)),
    },
    access("AuthorizationPolicy", "authorizationpolicies", spec::authorization_policy),
    access("PeerAuthentication", "peerauthentications", spec::peer_authentication),
    access("RequestAuthentication", "requestauthentications", |body| {
        spec::described("istio.security.v1beta1.RequestAuthentication", body)
    }),
    StoreKind {
        group: ISTIO_TELEMETRY,
        versions: ISTIO_TELEMETRY_VERSIONS,
        plural: "telemetries",
        kind: "Telemetry",
        namespaced: true,
        spec: Some(|body| spec::described("istio.telemetry.v1alpha1.Telemetry", body)),
    },
    StoreKind {
        group: GATEWAY_API,
        versions: &["v1", "v1beta1"],
        plural: "httproutes",
        kind: "HTTPRoute",
        namespaced: true,
        spec: None,
    },
    StoreKind {
        group: GATEWAY_API,
        versions: &["v1"],
        plural: "grpcroutes",
        kind: "GRPCRoute",
        namespaced: true,
        spec: None,
    },
    StoreKind {
        group: GATEWAY_API,
        versions: &["v1", "v1alpha3", "v1alpha2"],
        plural: "tlsroutes",
        kind: "TLSRoute",
        namespaced: true,
        spec: None,
    },
    StoreKind {
        group: GATEWAY_API,
        versions: &["v1", "v1alpha2"],
        plural: "tcproutes",
        kind: "TCPRoute",
        namespaced: true,
        spec: None,
    },
    StoreKind {
        group: GATEWAY_API,
        versions: &["v1", "v1beta1"],
        plural: "referencegrants",
        kind: "ReferenceGrant",
        namespaced: true,
        spec: None,
    },
    StoreKind {
        group: INGRESS_API,
        versions: &["v1"],
        plural: "ingresses",
        kind: "Ingress",
        namespaced: true,
        spec: None,
    },
    StoreKind {
        group: INGRESS_API,
        versions: &["v1"],
        plural: "ingressclasses",
        kind: "IngressClass",
        namespaced: false,
        spec: None,
    },
];

/// The group and the kind of each entry of [`ALL`], which all keys of such objects share.
static NAMES: LazyLock<Vec<[Arc<str>; 2]>> =
    LazyLock::new(|| ALL.iter().map(|one| [one.group.into(), one.kind.into()]).collect());

/// Returns a group and a kind as shared strings, for use in keys.
pub(super) fn names(group: &str, kind: &str) -> [Arc<str>; 2] {
    let name = NAMES.iter().find(|[one, other]| (&**one, &**other) == (group, kind));
    name.cloned().unwrap_or_else(|| [group.into(), kind.into()])
}

/// Returns the kinds that are requested from MCP servers.
pub(super) fn mcp_kinds() -> impl Iterator<Item = &'static StoreKind> {
    ALL.iter().filter(|one| one.spec.is_some())
}

/// Returns the kinds that may apply to the proxies of the member that contains them, if the
/// operator enables that. Excludes access policies, settings of the whole mesh, objects that
/// webhooks read, and objects whose status must be written.
pub(super) fn member_kinds() -> impl Iterator<Item = &'static StoreKind> {
    let is_excluded = |one: &&StoreKind| {
        let kinds = ["ServiceEntry", "WorkloadEntry", "ProxyConfig"];
        one.restricts() || one.group == INGRESS_API || kinds.contains(&one.kind)
    };
    ALL.iter().filter(move |one| !is_excluded(one))
}

/// Creates a kind of access policies.
const fn access(kind: &'static str, plural: &'static str, spec: ReadSpec) -> StoreKind {
    StoreKind {
        group: ISTIO_SECURITY,
        versions: ISTIO_SECURITY_VERSIONS,
        plural,
        kind,
        namespaced: true,
        spec: Some(spec),
    }
}

impl StoreKind {
    /// Whether its objects restrict access: a server that refuses to list them must not be treated
    /// as one without any.
    pub(super) fn restricts(&self) -> bool {
        self.group == ISTIO_SECURITY
    }

    /// Returns the row of an object.
    pub(super) fn find(key: &ObjectKey) -> Option<&'static Self> {
        ALL.iter().find(|one| one.holds(key))
    }

    /// Returns the API paths of an object, one for each version.
    pub(super) fn paths(&self, key: &ObjectKey) -> Vec<String> {
        let Self { group, plural, .. } = self;
        let ObjectKey { namespace, name, .. } = key;
        let within =
            if self.namespaced { format!("namespaces/{namespace}/") } else { String::new() };
        let path = |version| format!("/apis/{group}/{version}/{within}{plural}/{name}");
        self.versions.iter().map(path).collect()
    }

    /// Whether an object is of this kind.
    pub(super) fn holds(&self, key: &ObjectKey) -> bool {
        (self.group, self.kind) == (&*key.group, &*key.kind)
    }

    /// Returns the key of an object of this kind.
    pub(super) fn key(&self, namespace: &str, name: &str) -> ObjectKey {
        let [group, kind] = names(self.group, self.kind);
        ObjectKey {
            kind,
            group,
            namespace: if self.namespaced { namespace.into() } else { "".into() },
            name: name.into(),
        }
    }

    /// Sets the kind and version of an object, the same version for all stored objects.
    pub(super) fn stamp(&self, object: &mut Value) {
        let version = self.versions.first().copied().unwrap_or_default();
        object["apiVersion"] = format!("{}/{version}", self.group).into();
        object["kind"] = self.kind.into();
    }
}

/// The effect of an access policy on callers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PolicyEffect {
    /// Without it, rejected callers would be accepted.
    Restricts,
    /// The policy accepts callers, or only audits.
    Other,
}

impl PolicyEffect {
    /// Returns the effect; `None` if the object is not an access policy.
    pub(super) fn from_object(key: &ObjectKey, object: &ObjectJson) -> Option<Self> {
        if &*key.group != ISTIO_SECURITY {
            return None;
        }
        let restricts = match &*key.kind {
            "PeerAuthentication" => true,
            "AuthorizationPolicy" => {
                let object = object.to_value();
                match object.pointer("/spec/action").and_then(Value::as_str) {
                    // A policy without rules rejects all callers.
                    None | Some("ALLOW") => object.pointer("/spec/rules/0").is_none(),
                    Some("AUDIT") => false,
                    Some(_) => true,
                }
            }
            _ => false,
        };
        Some(if restricts { Self::Restricts } else { Self::Other })
    }

    pub(super) fn restricts(&self) -> bool {
        *self == Self::Restricts
    }
}

impl PartialEq for StoreKind {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for StoreKind {}

impl PartialOrd for StoreKind {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for StoreKind {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.group, self.kind).cmp(&(other.group, other.kind))
    }
}
