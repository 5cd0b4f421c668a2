//! Why the config cluster can't be reached.

use std::path::PathBuf;

/// Why the config cluster can't be reached.
#[derive(Debug, thiserror::Error)]
pub enum OwnClusterError {
    /// Neither in a pod, nor is there a kubeconfig.
    #[error(
        "no config cluster: this is not a pod, and there is no kubeconfig at {}; pass --kubeconfig FILE, or --config-dir DIR to do without a cluster", .0.display()
    )]
    Nowhere(PathBuf),
    /// The file that was named is not there.
    #[error("--kubeconfig {}: there is no such file", .0.display())]
    Missing(PathBuf),
    /// The context is not there, or not clear.
    #[error("{0}")]
    Context(String),
    /// The kubeconfig can't be used.
    #[error("kubeconfig {}: {reason}", path.display())]
    Kubeconfig {
        /// The file, or the list of them.
        path: PathBuf,
        /// The fact.
        reason: String,
    },
    /// There is no credential for the context.
    #[error(
        "no credential for context {context:?}: {reason}; check it: kubectl --context {context} auth whoami"
    )]
    Credential {
        /// The context.
        context: String,
        /// The fact.
        reason: String,
    },
    /// The pod's account can't be read.
    #[error("the pod's service account can't be read: {0}")]
    Account(String),
}
