//! The flags of `strait serve` that name what it reads.

use std::path::PathBuf;

use clap::Args;

use strait_sources::registry::consul;

/// Where the control plane reads its configuration from.
#[derive(Debug, Clone, Args)]
pub struct SourceFlags {
    /// Kubeconfig of the config cluster [default: in-cluster, otherwise as for kubectl]
    #[arg(long, env = "STRAIT_KUBECONFIG", value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,

    /// Context of the config cluster in --kubeconfig [default: its current context]
    #[arg(long, env = "STRAIT_CONTEXT", value_name = "NAME")]
    pub context: Option<String>,

    /// Directory of manifests to read instead of a config cluster; reloaded on change
    #[arg(long, env = "STRAIT_CONFIG_DIR", value_name = "DIR", conflicts_with_all = ["kubeconfig", "context"])]
    pub config_dir: Option<PathBuf>,

    /// Mesh config in Istio's schema [default: ConfigMap strait or istio, key mesh]
    #[arg(long, env = "STRAIT_MESH_CONFIG", value_name = "FILE")]
    pub mesh_config: Option<PathBuf>,

    /// Mesh networks in Istio's schema [default: ConfigMap strait or istio, key meshNetworks]
    #[arg(long, env = "STRAIT_MESH_NETWORKS", value_name = "FILE")]
    pub mesh_networks: Option<PathBuf>,

    /// Policy file: what clusters may export and which are preferred (docs/reference/policy-file.md); reloaded on change
    #[arg(long, env = "STRAIT_POLICY", value_name = "FILE")]
    pub policy: Option<PathBuf>,

    /// Member sources: namespaces whose Secrets may define members, and identities
    /// (docs/reference/member-sources.md); reloaded on change
    #[arg(long, env = "STRAIT_MEMBERS", value_name = "FILE")]
    pub members: Option<PathBuf>,

    /// Access providers of ClusterProfiles in the form of the Cluster Inventory API (JSON); providers in
    /// --members take precedence; reloaded on change
    #[arg(
        long,
        env = "STRAIT_CLUSTERPROFILE_PROVIDER_FILE",
        value_name = "FILE",
        requires = "members"
    )]
    pub clusterprofile_provider_file: Option<PathBuf>,

    /// URL of a Consul whose services join the mesh: `http[s]://HOST[:PORT][?dc=NAME&token-file=FILE&ca-file=FILE&name=NAME]`; repeatable
    #[arg(long, env = "STRAIT_CONSUL_ADDRESS", value_name = "URL", value_delimiter = ',')]
    pub consul_address: Vec<consul::ConsulAddress>,
}
