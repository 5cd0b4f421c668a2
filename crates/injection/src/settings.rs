//! What the operator says of injection, and where a pod is.

use std::collections::BTreeMap;
use std::sync::Arc;

use strait_model::Labels;

/// What holds for all pods of one cluster.
#[derive(Debug, Clone)]
pub struct InjectSettings {
    /// Version of Strait, which the annotation `strait.dev/injected` tells.
    pub version: String,
    /// ID of the cluster that the pods are in.
    pub cluster: String,
    /// Its network; without one the control plane derives it.
    pub network: Option<String>,
    /// Where the control plane serves ADS and certificates: HOST:PORT, several by commas, the first first.
    pub discovery: String,
    /// DNS domain of services.
    pub domain: String,
    /// Image with `envoy` and `strait-agent`.
    pub image: String,
    /// Image with `strait-agent` and iptables or nft, for the init container.
    pub redirect_image: String,
    /// Who redirects the pod's traffic.
    pub redirection: Redirection,
    /// Whether sidecars are init containers that go on (Kubernetes 1.29 and later), unless the pod says otherwise.
    pub native_sidecars: bool,
    /// Whether the agent answers the pod's questions for names, unless the pod says otherwise.
    pub dns: bool,
    /// Whether Istio's labels ask for injection as ours do.
    pub istio_labels: bool,
    /// The control plane's own namespace: only pods that ask for it are injected there.
    pub system_namespace: String,
    /// What holds for a pod that says nothing else.
    pub defaults: PodDefaults,
}

/// What holds for the sidecar of a pod where the pod says nothing else.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PodDefaults {
    /// How many threads its proxy has; 0 for one for each CPU.
    pub concurrency: Option<u16>,
    /// Variables of its environment, beside those that say where it is.
    pub environment: BTreeMap<String, String>,
}

/// What holds for a pod of that namespace with these labels.
pub type FindPodDefaults = Arc<dyn Fn(&str, &Labels) -> PodDefaults + Send + Sync>;

/// The image of the agent of this version: what `deploy/images` makes, with Envoy put into it.
pub fn default_image() -> String {
    format!("strait-agent:{}", env!("CARGO_PKG_VERSION"))
}

/// Who redirects a pod's traffic to its sidecar.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Redirection {
    /// An init container with the rights to do so.
    InitContainer,
    /// Istio's CNI plugin, which knows the pods it is to redirect by a container named `istio-proxy`.
    IstioCni,
}

impl Redirection {
    /// Who redirects where Istio's CNI plugin is or is not to.
    pub fn of_cni(istio_cni: bool) -> Self {
        if istio_cni { Self::IstioCni } else { Self::InitContainer }
    }

    /// The sidecar's name.
    pub(super) fn sidecar(self) -> &'static str {
        match self {
            Self::InitContainer => "strait-proxy",
            Self::IstioCni => "istio-proxy",
        }
    }
}

/// Where a pod is: what a pod that is still to be made, or a template of pods, doesn't say itself.
#[derive(Debug, Clone, Copy)]
pub struct PodPlace<'a> {
    /// Its namespace.
    pub namespace: &'a str,
    /// Name of the workload that makes it, where that is known.
    pub workload: Option<&'a str>,
}
