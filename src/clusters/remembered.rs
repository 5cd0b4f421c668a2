//! What is remembered of a member from before this process started.

use std::sync::Arc;
use std::time::SystemTime;

use super::plan::{Cluster, Hold};
use crate::model::{Mode, NetworkId};
use crate::registry::Contents;
use crate::registry::kube::Status;
use crate::store::ObjectName;

/// A member as it was last known. It counts until the member's API server has told all anew.
#[derive(Debug, Clone, Default)]
pub struct Remembered {
    /// The Secret that held it, as `namespace/name`; none for the config cluster.
    pub secret: Option<Arc<str>>,
    /// The network that the Secret fixed.
    pub network: Option<NetworkId>,
    /// What an operator had asked for it.
    pub mode: Mode,
    /// The UID of its `kube-system`.
    pub uid: Option<String>,
    /// When its API server had last answered.
    pub last_contact: Option<SystemTime>,
    /// Services held.
    pub services: usize,
    /// Endpoints held.
    pub endpoints: usize,
    /// What an operator should know of how it is remembered.
    pub remark: Option<String>,
    /// What it held.
    pub contents: Contents,
}

impl Remembered {
    /// The member as it was held, for as long as nobody knows whether it still is.
    pub(super) fn presumed(&self) -> Option<Cluster> {
        let (network, mode) = (self.network.clone(), self.mode);
        Some(Cluster { secret: self.holder()?, network, mode, uid: None, hold: Hold::Presumed })
    }

    /// Whether `secret` is the one that held it.
    pub(super) fn is_of(&self, secret: &ObjectName) -> bool {
        self.holder().as_ref() == Some(secret)
    }

    fn holder(&self) -> Option<ObjectName> {
        let (namespace, name) = self.secret.as_deref()?.split_once('/')?;
        Some(ObjectName { namespace: namespace.into(), name: name.into() })
    }

    /// What is shown of it until anything newer is known.
    pub(super) fn status(&self) -> Status {
        Status {
            last_contact: self.last_contact,
            services: self.services,
            endpoints: self.endpoints,
            ..Status::starting()
        }
    }
}
