//! The reasons why the config cluster cannot be reached.

use std::path::PathBuf;

/// The reason why the config cluster cannot be reached.
#[derive(Debug, thiserror::Error)]
pub enum OwnClusterError {
    /// The process is not in a pod, and there is no kubeconfig.
    #[error(
        "no config cluster: this is not a pod, and there is no kubeconfig at {}; pass --kubeconfig FILE, or --config-dir DIR to do without a cluster", .0.display()
    )]
    Nowhere(PathBuf),
    /// The named file does not exist.
    #[error("--kubeconfig {}: there is no such file", .0.display())]
    Missing(PathBuf),
    /// The context does not exist or is ambiguous.
    #[error("{0}")]
    Context(String),
    /// The kubeconfig cannot be used.
    #[error("kubeconfig {}: {reason}", path.display())]
    Kubeconfig {
        /// The file, or the list of them.
        path: PathBuf,
        /// The reason.
        reason: String,
    },
    /// There is no credential for the context.
    #[error(
        "no credential for context {context:?}: {reason}; check it: kubectl --context {context} auth whoami"
    )]
    Credential {
        /// The context.
        context: String,
        /// The reason.
        reason: String,
    },
    /// The pod's account cannot be read.
    #[error("the pod's service account can't be read: {0}")]
    Account(String),
}
