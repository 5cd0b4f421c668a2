//! Errors that prevent the start of the server.

use std::io;
use std::path::PathBuf;

use crate::admin::TokenError;
use crate::config::{ListenAddress, PrometheusError};
use strait_model::{ClusterId, ClusterIdError};
use strait_sources::policy_watch::PolicyError;
use strait_sources::store::own_cluster::OwnClusterError;

/// Reason why the server could not start. After the start, only a signal ends it.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// A port can't be bound.
    #[error("can't listen on {address} ({flag}): {source}")]
    Bind {
        /// The address.
        address: ListenAddress,
        /// The flag with this address.
        flag: &'static str,
        /// The error of the system.
        source: io::Error,
    },
    /// `--cluster-id` is unusable.
    #[error("--cluster-id {id:?}: {source}")]
    ClusterId {
        /// The value.
        id: String,
        /// The reason.
        source: ClusterIdError,
    },
    /// `--config-dir` is no directory.
    #[error("--config-dir {}: {source}; create it, it may be empty", path.display())]
    ConfigDir {
        /// The path.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The config cluster can't be reached by its kubeconfig.
    #[error(transparent)]
    ConfigCluster(#[from] OwnClusterError),
    /// The configured state directory can't be used.
    #[error("--state-dir {}: {source}", path.display())]
    StateDir {
        /// The path.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// Another process uses the state directory.
    #[error("state directory {} is in use by {holder}", path.display())]
    StateInUse {
        /// The path.
        path: PathBuf,
        /// The process that uses it.
        holder: String,
    },
    /// A value of `--ca-member-dir` is invalid.
    #[error("--ca-member-dir {member}=…: {fact}")]
    MemberAuthority {
        /// The member.
        member: ClusterId,
        /// The reason.
        fact: &'static str,
    },
    /// Certificates or keys can't be used.
    #[error(transparent)]
    Identity(#[from] strait_identity::IdentityError),
    /// The policy can't be used.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// The file of `--jwks-roots` can't be used.
    #[error(
        "--jwks-roots {}: {source}; set a file of PEM certificates, or omit the flag",
        path.display()
    )]
    JwksRoots {
        /// The path.
        path: PathBuf,
        /// The error of the system, or the reason why the content is invalid.
        source: io::Error,
    },
    /// The flags about Prometheus can't be used.
    #[error(transparent)]
    Prometheus(#[from] PrometheusError),
    /// The admin token can't be read or created.
    #[error(transparent)]
    Token(#[from] TokenError),
}
