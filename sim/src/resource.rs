//! The table of supported kinds, with one row per kind. Discovery, routing and the store use this
//! table. A kind without a row does not exist.

/// A group of APIs. All except the core can be enabled at run time, as if custom resource definitions
/// were installed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Family {
    /// The APIs of every Kubernetes cluster.
    Core,
    /// `networking.istio.io` and the other groups of Istio.
    Istio,
    /// `gateway.networking.k8s.io`.
    GatewayApi,
    /// `multicluster.x-k8s.io`.
    MultiCluster,
    /// ClusterTrustBundles of `certificates.k8s.io`.
    TrustBundles,
    /// `externaldns.k8s.io`.
    ExternalDns,
}

/// A kind of object.
#[derive(Debug, PartialEq, Eq)]
pub struct Resource {
    /// API group; empty for the core group.
    pub group: &'static str,
    /// Served versions, the preferred one first. All contain the same objects.
    pub versions: &'static [&'static str],
    /// Name of the kind, for example `Pod`.
    pub kind: &'static str,
    /// Name in paths, for example `pods`.
    pub plural: &'static str,
    /// Short names that kubectl accepts, for example `po`.
    pub short: &'static [&'static str],
    /// Whether objects are in a namespace.
    pub namespaced: bool,
    /// Whether `status` is a subresource, which is written separately.
    pub has_status: bool,
    /// The family that contains the kind.
    pub family: Family,
}

impl Resource {
    /// Returns the row for a path's group and plural name.
    pub fn by_plural(group: &str, plural: &str) -> Option<&'static Resource> {
        RESOURCES.iter().find(|r| r.group == group && r.plural == plural)
    }

    /// Returns the row for an object's `apiVersion` and `kind`.
    pub fn by_kind(api_version: &str, kind: &str) -> Option<&'static Resource> {
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        RESOURCES
            .iter()
            .find(|r| r.group == group && r.kind == kind && r.versions.contains(&version))
    }

    /// Returns the first row with this kind, plural or short name, as in a kubectl command.
    pub fn by_name(name: &str) -> Option<&'static Resource> {
        RESOURCES.iter().find(|r| {
            r.plural == name || r.kind.eq_ignore_ascii_case(name) || r.short.contains(&name)
        })
    }

    /// Returns `plural.group`, or `plural` in the core group.
    pub(crate) fn qualified(&self) -> String {
        match self.group {
            "" => self.plural.to_owned(),
            group => format!("{}.{group}", self.plural),
        }
    }

    /// Returns `group/version`, or `version` in the core group.
    pub(crate) fn api_version(&self, version: &str) -> String {
        match self.group {
            "" => version.to_owned(),
            group => format!("{group}/{version}"),
        }
    }
}

const CORE: Resource = Resource {
    group: "",
    versions: &["v1"],
    kind: "",
    plural: "",
    short: &[],
    namespaced: true,
    has_status: false,
    family: Family::Core,
};

const fn core(
    kind: &'static str,
    plural: &'static str,
    short: &'static [&'static str],
) -> Resource {
    Resource { kind, plural, short, ..CORE }
}

const fn grouped(
    group: &'static str,
    versions: &'static [&'static str],
    kind: &'static str,
    plural: &'static str,
) -> Resource {
    Resource { group, versions, kind, plural, ..CORE }
}

impl Resource {
    const fn cluster_wide(mut self) -> Resource {
        self.namespaced = false;
        self
    }

    const fn with_status(mut self) -> Resource {
        self.has_status = true;
        self
    }

    const fn from(mut self, family: Family) -> Resource {
        self.family = family;
        self
    }

    const fn short(mut self, short: &'static [&'static str]) -> Resource {
        self.short = short;
        self
    }
}

const fn istio(kind: &'static str, plural: &'static str) -> Resource {
    grouped("networking.istio.io", &["v1", "v1beta1", "v1alpha3"], kind, plural)
        .with_status()
        .from(Family::Istio)
}

const fn istio_security(kind: &'static str, plural: &'static str) -> Resource {
    grouped("security.istio.io", &["v1", "v1beta1"], kind, plural).with_status().from(Family::Istio)
}

const fn gateway_api(
    versions: &'static [&'static str],
    kind: &'static str,
    plural: &'static str,
) -> Resource {
    grouped("gateway.networking.k8s.io", versions, kind, plural)
        .with_status()
        .from(Family::GatewayApi)
}

const RBAC: &str = "rbac.authorization.k8s.io";
const ADMISSION: &str = "admissionregistration.k8s.io";
const MULTICLUSTER: &str = "multicluster.x-k8s.io";
const CERTIFICATES: &str = "certificates.k8s.io";

/// All kinds, in the order of discovery.
pub static RESOURCES: &[Resource] = &[
    core("Namespace", "namespaces", &["ns"]).cluster_wide().with_status(),
    core("Node", "nodes", &["no"]).cluster_wide().with_status(),
    core("Pod", "pods", &["po"]).with_status(),
    core("Service", "services", &["svc"]).with_status(),
    core("Endpoints", "endpoints", &["ep"]),
    core("Secret", "secrets", &[]),
    core("ConfigMap", "configmaps", &["cm"]),
    core("ServiceAccount", "serviceaccounts", &["sa"]),
    core("Event", "events", &["ev"]),
    grouped("discovery.k8s.io", &["v1"], "EndpointSlice", "endpointslices"),
    grouped(RBAC, &["v1"], "ClusterRole", "clusterroles").cluster_wide(),
    grouped(RBAC, &["v1"], "ClusterRoleBinding", "clusterrolebindings").cluster_wide(),
    grouped(RBAC, &["v1"], "Role", "roles"),
    grouped(RBAC, &["v1"], "RoleBinding", "rolebindings"),
    grouped("coordination.k8s.io", &["v1"], "Lease", "leases"),
    grouped("apps", &["v1"], "Deployment", "deployments").short(&["deploy"]).with_status(),
    grouped("apps", &["v1"], "DaemonSet", "daemonsets").short(&["ds"]).with_status(),
    grouped("apps", &["v1"], "StatefulSet", "statefulsets").short(&["sts"]).with_status(),
    grouped("apps", &["v1"], "ReplicaSet", "replicasets").short(&["rs"]).with_status(),
    grouped("policy", &["v1"], "PodDisruptionBudget", "poddisruptionbudgets")
        .short(&["pdb"])
        .with_status(),
    grouped("autoscaling", &["v2"], "HorizontalPodAutoscaler", "horizontalpodautoscalers")
        .short(&["hpa"])
        .with_status(),
    grouped("networking.k8s.io", &["v1"], "Ingress", "ingresses").short(&["ing"]).with_status(),
    grouped("networking.k8s.io", &["v1"], "IngressClass", "ingressclasses").cluster_wide(),
    grouped(ADMISSION, &["v1"], "MutatingWebhookConfiguration", "mutatingwebhookconfigurations")
        .cluster_wide(),
    grouped(
        ADMISSION,
        &["v1"],
        "ValidatingWebhookConfiguration",
        "validatingwebhookconfigurations",
    )
    .cluster_wide(),
    grouped(
        "apiextensions.k8s.io",
        &["v1"],
        "CustomResourceDefinition",
        "customresourcedefinitions",
    )
    .short(&["crd"])
    .cluster_wide()
    .with_status(),
    istio("DestinationRule", "destinationrules").short(&["dr"]),
    istio("EnvoyFilter", "envoyfilters"),
    istio("Gateway", "gateways").short(&["gw"]),
    istio("ProxyConfig", "proxyconfigs"),
    istio("ServiceEntry", "serviceentries").short(&["se"]),
    istio("Sidecar", "sidecars"),
    istio("VirtualService", "virtualservices").short(&["vs"]),
    istio("WorkloadEntry", "workloadentries").short(&["we"]),
    istio("WorkloadGroup", "workloadgroups").short(&["wg"]),
    istio_security("AuthorizationPolicy", "authorizationpolicies").short(&["ap"]),
    istio_security("PeerAuthentication", "peerauthentications").short(&["pa"]),
    istio_security("RequestAuthentication", "requestauthentications").short(&["ra"]),
    grouped("telemetry.istio.io", &["v1", "v1alpha1"], "Telemetry", "telemetries")
        .with_status()
        .from(Family::Istio),
    grouped("extensions.istio.io", &["v1alpha1"], "WasmPlugin", "wasmplugins")
        .with_status()
        .from(Family::Istio),
    grouped("extensions.istio.io", &["v1alpha1"], "TrafficExtension", "trafficextensions")
        .with_status()
        .from(Family::Istio),
    gateway_api(&["v1", "v1beta1"], "GatewayClass", "gatewayclasses").cluster_wide(),
    gateway_api(&["v1", "v1beta1"], "Gateway", "gateways"),
    gateway_api(&["v1", "v1beta1"], "HTTPRoute", "httproutes"),
    gateway_api(&["v1"], "GRPCRoute", "grpcroutes"),
    gateway_api(&["v1"], "TLSRoute", "tlsroutes"),
    gateway_api(&["v1"], "TCPRoute", "tcproutes"),
    gateway_api(&["v1"], "UDPRoute", "udproutes"),
    gateway_api(&["v1"], "ListenerSet", "listenersets").short(&["lset"]),
    gateway_api(&["v1"], "BackendTLSPolicy", "backendtlspolicies").short(&["btlspolicy"]),
    gateway_api(&["v1", "v1beta1"], "ReferenceGrant", "referencegrants"),
    grouped(MULTICLUSTER, &["v1beta1", "v1alpha1"], "ServiceExport", "serviceexports")
        .with_status()
        .from(Family::MultiCluster),
    grouped(MULTICLUSTER, &["v1alpha1"], "ClusterProfile", "clusterprofiles")
        .with_status()
        .from(Family::MultiCluster),
    grouped(MULTICLUSTER, &["v1alpha1"], "PlacementDecision", "placementdecisions")
        .from(Family::MultiCluster),
    grouped(MULTICLUSTER, &["v1beta1", "v1alpha1"], "ServiceImport", "serviceimports")
        .with_status()
        .from(Family::MultiCluster),
    grouped(CERTIFICATES, &["v1", "v1beta1"], "ClusterTrustBundle", "clustertrustbundles")
        .cluster_wide()
        .from(Family::TrustBundles),
    grouped("externaldns.k8s.io", &["v1alpha1"], "DNSEndpoint", "dnsendpoints")
        .with_status()
        .from(Family::ExternalDns),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kind_is_found_by_kind_plural_and_short_name() {
        for (name, plural) in [("po", "pods"), ("Service", "services"), ("secret", "secrets")] {
            assert_eq!(Resource::by_name(name).map(|r| r.plural), Some(plural), "{name}");
        }
        let slices = Resource::by_kind("discovery.k8s.io/v1", "EndpointSlice").expect("a row");
        assert_eq!(slices.qualified(), "endpointslices.discovery.k8s.io");
        assert!(Resource::by_kind("discovery.k8s.io/v1beta1", "EndpointSlice").is_none());
    }

    #[test]
    fn paths_are_unique() {
        for (i, a) in RESOURCES.iter().enumerate() {
            let duplicate =
                RESOURCES[..i].iter().find(|b| a.group == b.group && a.plural == b.plural);
            assert!(duplicate.is_none(), "{}", a.qualified());
        }
    }
}
