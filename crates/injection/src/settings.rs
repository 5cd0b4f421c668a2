//! Settings of injection, and the location of a pod.

use std::collections::BTreeMap;
use std::sync::Arc;

use strait_model::Labels;

/// The settings for all pods of one cluster.
#[derive(Debug, Clone)]
pub struct InjectSettings {
    /// Version of Strait, written to the annotation `strait.dev/injected`.
    pub version: String,
    /// ID of the cluster that the pods run in.
    pub cluster: String,
    /// Network of the cluster. If it is `None`, the control plane derives it.
    pub network: Option<String>,
    /// Addresses of the control plane for ADS and certificates: HOST:PORT, comma-separated, in order of
    /// preference.
    pub discovery: String,
    /// DNS domain of services.
    pub domain: String,
    /// Image with `envoy` and `strait-agent`.
    pub image: String,
    /// Image with `strait-agent` and iptables or nft, for the init container.
    pub redirect_image: String,
    /// The component that redirects the pod's traffic.
    pub redirection: Redirection,
    /// Whether sidecars are init containers that keep running (Kubernetes 1.29 and later). A pod can override it.
    pub native_sidecars: bool,
    /// Whether the agent answers the pod's DNS queries. A pod can override it.
    pub dns: bool,
    /// Whether proxies report service metrics such as `istio_requests_total`.
    pub service_metrics: bool,
    /// Whether Istio's labels request injection as Strait's do.
    pub istio_labels: bool,
    /// The control plane's namespace. Only pods that request injection are injected there.
    pub system_namespace: String,
    /// Defaults for pods without annotations.
    pub defaults: PodDefaults,
}

/// Defaults for the sidecar of a pod.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PodDefaults {
    /// The number of worker threads of the proxy; 0 for one per CPU.
    pub concurrency: Option<u16>,
    /// Environment variables in addition to the variables that locate the pod and the control
    /// plane.
    pub environment: BTreeMap<String, String>,
}

/// A function that returns the defaults for a pod, by its namespace and labels.
pub type FindPodDefaults = Arc<dyn Fn(&str, &Labels) -> PodDefaults + Send + Sync>;

/// Returns the name of the agent image of this version, which `deploy/images` builds, with Envoy added to it.
pub fn default_image() -> String {
    format!("strait-agent:{}", env!("CARGO_PKG_VERSION"))
}

/// The component that redirects a pod's traffic to its sidecar.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Redirection {
    /// An init container with the required capabilities.
    InitContainer,
    /// Istio's CNI plugin, which recognizes pods to redirect by a container named `istio-proxy`.
    IstioCni,
}

impl Redirection {
    /// Returns the component for a cluster with or without Istio's CNI plugin.
    pub fn for_cni(istio_cni: bool) -> Self {
        if istio_cni { Self::IstioCni } else { Self::InitContainer }
    }

    /// Returns the name of the sidecar container.
    pub(super) fn sidecar(self) -> &'static str {
        match self {
            Self::InitContainer => "strait-proxy",
            Self::IstioCni => "istio-proxy",
        }
    }
}

/// The location of a pod, which a template or a pod before its creation does not contain.
#[derive(Debug, Clone, Copy)]
pub struct PodPlace<'a> {
    /// Its namespace.
    pub namespace: &'a str,
    /// Name of the workload that creates the pod, if known.
    pub workload: Option<&'a str>,
}
