//! Why the server could not start.

use std::io;
use std::path::PathBuf;

use crate::admin::TokenError;
use crate::config::ListenAddress;
use strait_model::{ClusterId, ClusterIdError};
use strait_sources::policy_watch::PolicyError;
use strait_sources::store::own_cluster::OwnClusterError;

/// Why the server could not start. Afterwards nothing ends it but a signal.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// A port can't be bound.
    #[error("can't listen on {address} ({flag}): {source}")]
    Bind {
        /// The address.
        address: ListenAddress,
        /// The flag that names it.
        flag: &'static str,
        /// What the system says.
        source: io::Error,
    },
    /// `--cluster-id` is unusable.
    #[error("--cluster-id {id:?}: {source}")]
    ClusterId {
        /// The value.
        id: String,
        /// What is wrong with it.
        source: ClusterIdError,
    },
    /// `--config-dir` is no directory.
    #[error("--config-dir {}: {source}; create it, an empty one is fine", path.display())]
    ConfigDir {
        /// The path.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// The config cluster can't be reached by its kubeconfig.
    #[error(transparent)]
    ConfigCluster(#[from] OwnClusterError),
    /// The state directory that was asked for can't be used.
    #[error("--state-dir {}: {source}", path.display())]
    StateDir {
        /// The path.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// Another process uses the state directory.
    #[error("state directory {}: {holder} uses it", path.display())]
    StateInUse {
        /// The path.
        path: PathBuf,
        /// Who.
        holder: String,
    },
    /// CAs of members that can't be.
    #[error("--ca-member-dir {member}=…: {fact}")]
    MemberAuthority {
        /// Whose.
        member: ClusterId,
        /// What is wrong.
        fact: &'static str,
    },
    /// Certificates or keys can't be used.
    #[error(transparent)]
    Identity(#[from] strait_identity::IdentityError),
    /// The policy can't be used.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// The roots by which issuers of tokens are known can't be used.
    #[error(
        "--jwks-roots {}: {source}; name a file of certificates in PEM, or leave the flag away",
        path.display()
    )]
    JwksRoots {
        /// The path.
        path: PathBuf,
        /// What the system says, or what is wrong with it.
        source: io::Error,
    },
    /// There is no admin token.
    #[error(transparent)]
    Token(#[from] TokenError),
}
