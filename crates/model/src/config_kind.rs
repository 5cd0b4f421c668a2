//! The kinds of the mesh's configuration objects, one row each. Every module that handles several kinds
//! asks this table: the readers of stores, directories, MCP servers and members, the rights that the CLI
//! and the relay grant, and the writer of statuses. Tests compare the charts with it.

use std::sync::{Arc, LazyLock};

use serde_json::Value;

use super::{
    GATEWAY_API, INGRESS_API, ISTIO_NETWORKING, ISTIO_NETWORKING_VERSIONS, ISTIO_SECURITY,
    ISTIO_SECURITY_VERSIONS, ISTIO_TELEMETRY, ISTIO_TELEMETRY_VERSIONS, ObjectKey,
};

/// A kind of configuration objects: its location in the API, and the purpose of its objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ConfigKind {
    /// The API group.
    pub group: &'static str,
    /// The kind, unique within its group.
    pub kind: &'static str,
    /// The kind in plural, as in paths.
    pub plural: &'static str,
    /// The versions that API servers may have, preferred first. Objects have equal content in all
    /// versions.
    pub versions: &'static [&'static str],
    /// Whether its objects are in namespaces.
    pub namespaced: bool,
    /// The part of the mesh that its objects configure.
    pub role: ConfigRole,
    /// Whether an object can apply to the proxies of the member that contains it, if the operator
    /// enables that. False for access policies, settings of the whole mesh, objects that webhooks
    /// read, and objects whose status must be written.
    pub in_members: bool,
    /// Whether an object in the root namespace applies to the whole mesh.
    pub mesh_wide: bool,
    /// How Strait writes the effect of an object into its status.
    pub status: StatusField,
    /// The protobuf message of an object's spec. `None` if MCP servers are not asked for the kind.
    pub message: Option<&'static str>,
}

/// The part of the mesh that objects of a kind configure. One module of `strait-rules` reads each role.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ConfigRole {
    /// Services and endpoints outside of Kubernetes: `strait_rules::service_entry`.
    Entries,
    /// Routes, gateways and other settings of proxies: `strait_rules::traffic`.
    Traffic,
    /// Access: `strait_rules::access`. If a server refuses to list such objects, it must not be
    /// treated as a server without such objects.
    Access,
}

/// The field of an object's status that states its effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum StatusField {
    /// `status.conditions`, as Istio's kinds have them.
    Conditions,
    /// `status.parents` of the Gateway API's routes.
    Parents,
    /// `status.loadBalancer` of an Ingress.
    LoadBalancer,
    /// The kind has no status, or Strait writes none.
    Unwritten,
}

/// All kinds. API servers may lack any of them.
pub const CONFIG_KINDS: &[ConfigKind] = &[
    ConfigKind {
        role: ConfigRole::Entries,
        in_members: false,
        ..networking("ServiceEntry", "serviceentries", "istio.networking.v1alpha3.ServiceEntry")
    },
    ConfigKind {
        role: ConfigRole::Entries,
        in_members: false,
        ..networking("WorkloadEntry", "workloadentries", "istio.networking.v1alpha3.WorkloadEntry")
    },
    ConfigKind {
        mesh_wide: true,
        ..networking(
            "DestinationRule",
            "destinationrules",
            "istio.networking.v1alpha3.DestinationRule",
        )
    },
    ConfigKind {
        // The only version that exists.
        versions: &["v1alpha3"],
        mesh_wide: true,
        ..networking("EnvoyFilter", "envoyfilters", "istio.networking.v1alpha3.EnvoyFilter")
    },
    ConfigKind {
        // The only version that exists.
        versions: &["v1beta1"],
        in_members: false,
        mesh_wide: true,
        ..networking("ProxyConfig", "proxyconfigs", "istio.networking.v1beta1.ProxyConfig")
    },
    networking("Gateway", "gateways", "istio.networking.v1alpha3.Gateway"),
    ConfigKind {
        mesh_wide: true,
        ..networking("Sidecar", "sidecars", "istio.networking.v1alpha3.Sidecar")
    },
    networking("VirtualService", "virtualservices", "istio.networking.v1alpha3.VirtualService"),
    access(
        "AuthorizationPolicy",
        "authorizationpolicies",
        "istio.security.v1beta1.AuthorizationPolicy",
    ),
    access(
        "PeerAuthentication",
        "peerauthentications",
        "istio.security.v1beta1.PeerAuthentication",
    ),
    access(
        "RequestAuthentication",
        "requestauthentications",
        "istio.security.v1beta1.RequestAuthentication",
    ),
    ConfigKind {
        group: ISTIO_TELEMETRY,
        versions: ISTIO_TELEMETRY_VERSIONS,
        mesh_wide: true,
        ..networking("Telemetry", "telemetries", "istio.telemetry.v1alpha1.Telemetry")
    },
    route("HTTPRoute", "httproutes", &["v1", "v1beta1"]),
    route("GRPCRoute", "grpcroutes", &["v1"]),
    route("TLSRoute", "tlsroutes", &["v1", "v1alpha3", "v1alpha2"]),
    route("TCPRoute", "tcproutes", &["v1", "v1alpha2"]),
    ConfigKind {
        status: StatusField::Unwritten,
        ..route("ReferenceGrant", "referencegrants", &["v1", "v1beta1"])
    },
    ConfigKind {
        group: INGRESS_API,
        in_members: false,
        status: StatusField::LoadBalancer,
        ..route("Ingress", "ingresses", &["v1"])
    },
    ConfigKind {
        group: INGRESS_API,
        namespaced: false,
        in_members: false,
        status: StatusField::Unwritten,
        ..route("IngressClass", "ingressclasses", &["v1"])
    },
];

const fn networking(kind: &'static str, plural: &'static str, message: &'static str) -> ConfigKind {
    ConfigKind {
        group: ISTIO_NETWORKING,
        kind,
        plural,
        versions: ISTIO_NETWORKING_VERSIONS,
        namespaced: true,
        role: ConfigRole::Traffic,
        in_members: true,
        mesh_wide: false,
        status: StatusField::Conditions,
        message: Some(message),
    }
}

const fn access(kind: &'static str, plural: &'static str, message: &'static str) -> ConfigKind {
    ConfigKind {
        group: ISTIO_SECURITY,
        versions: ISTIO_SECURITY_VERSIONS,
        role: ConfigRole::Access,
        in_members: false,
        mesh_wide: true,
        ..networking(kind, plural, message)
    }
}

const fn route(
    kind: &'static str,
    plural: &'static str,
    versions: &'static [&'static str],
) -> ConfigKind {
    ConfigKind {
        group: GATEWAY_API,
        kind,
        plural,
        versions,
        namespaced: true,
        role: ConfigRole::Traffic,
        in_members: true,
        mesh_wide: false,
        status: StatusField::Parents,
        message: None,
    }
}

/// The group and the kind of each row of [`CONFIG_KINDS`], which all keys of such objects share.
static NAMES: LazyLock<Vec<[Arc<str>; 2]>> =
    LazyLock::new(|| CONFIG_KINDS.iter().map(|one| [one.group.into(), one.kind.into()]).collect());

impl ConfigRole {
    /// Returns the role of an object; `None` if Strait does not read objects of its kind.
    pub fn of(key: &ObjectKey) -> Option<Self> {
        Some(ConfigKind::find(key)?.role)
    }
}

impl StatusField {
    /// Returns the field in which the status of an object states its effect.
    pub fn of(key: &ObjectKey) -> Self {
        ConfigKind::find(key).map_or(Self::Unwritten, |kind| kind.status)
    }
}

impl ConfigKind {
    /// Returns the row of an object; `None` if Strait does not read objects of its kind.
    pub fn find(key: &ObjectKey) -> Option<&'static Self> {
        CONFIG_KINDS.iter().find(|one| one.contains(key))
    }

    /// Returns the kinds whose objects may apply to the proxies of the member that contains them.
    pub fn in_members() -> impl Iterator<Item = &'static Self> {
        CONFIG_KINDS.iter().filter(|one| one.in_members)
    }

    /// Returns the kinds that are requested from MCP servers.
    pub fn from_mcp() -> impl Iterator<Item = &'static Self> {
        CONFIG_KINDS.iter().filter(|one| one.message.is_some())
    }

    /// Returns a group and a kind as shared strings, for use in keys.
    pub fn shared_names(group: &str, kind: &str) -> [Arc<str>; 2] {
        let name = NAMES.iter().find(|[one, other]| (&**one, &**other) == (group, kind));
        name.cloned().unwrap_or_else(|| [group.into(), kind.into()])
    }

    /// Returns whether its objects restrict access.
    pub fn restricts(&self) -> bool {
        self.role == ConfigRole::Access
    }

    /// Returns whether an object is of this kind.
    pub fn contains(&self, key: &ObjectKey) -> bool {
        (self.group, self.kind) == (&*key.group, &*key.kind)
    }

    /// Returns the API paths of an object, one for each version.
    pub fn paths(&self, key: &ObjectKey) -> Vec<String> {
        let Self { group, plural, .. } = self;
        let ObjectKey { namespace, name, .. } = key;
        let within =
            if self.namespaced { format!("namespaces/{namespace}/") } else { String::new() };
        let path = |version| format!("/apis/{group}/{version}/{within}{plural}/{name}");
        self.versions.iter().map(path).collect()
    }

    /// Returns the key of an object of this kind. The namespace is ignored if the kind has none.
    pub fn key(&self, namespace: &str, name: &str) -> ObjectKey {
        let [group, kind] = Self::shared_names(self.group, self.kind);
        ObjectKey {
            kind,
            group,
            namespace: if self.namespaced { namespace.into() } else { "".into() },
            name: name.into(),
        }
    }

    /// Sets the kind and version of an object, the same version for all stored objects.
    pub fn stamp(&self, object: &mut Value) {
        let version = self.versions.first().copied().unwrap_or_default();
        object["apiVersion"] = format!("{}/{version}", self.group).into();
        object["kind"] = self.kind.into();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_has_one_row_with_a_version() {
        for (at, one) in CONFIG_KINDS.iter().enumerate() {
            let key = one.key("ns", "name");
            assert_eq!(CONFIG_KINDS.iter().position(|other| other.contains(&key)), Some(at));
            assert_eq!(one.paths(&key).len(), one.versions.len());
            assert!(!one.versions.is_empty(), "{one:?}");
            assert!(!(one.restricts() && one.in_members), "members' policies apply to nobody");
        }
    }

    #[test]
    fn path_contains_a_namespace_only_if_the_kind_has_them() {
        let paths = |kind: &str| {
            let row = CONFIG_KINDS.iter().find(|one| one.kind == kind).expect("a row");
            row.paths(&row.key("shop", "web"))
        };
        let telemetry = "telemetry.istio.io";
        assert_eq!(
            paths("Telemetry"),
            ["v1", "v1alpha1"]
                .map(|one| format!("/apis/{telemetry}/{one}/namespaces/shop/telemetries/web"))
        );
        assert_eq!(paths("IngressClass"), ["/apis/networking.k8s.io/v1/ingressclasses/web"]);
    }
}
