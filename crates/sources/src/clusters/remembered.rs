//! What is remembered of a member from before this process started.

use std::sync::Arc;
use std::time::SystemTime;

use super::plan::{Hold, PlannedCluster};
use crate::registry::kube::{LastContact, ObjectCounts, RunStatus};
use crate::store::ObjectName;
use strait_model::registry::Contents;
use strait_model::{Mode, NetworkId};

/// A member as it was last known. It counts until the member's API server has been read in full again.
#[derive(Debug, Clone, Default)]
pub struct RememberedMember {
    /// The Secret that held it, as `namespace/name`; none for the config cluster.
    pub secret: Option<Arc<str>>,
    /// The network that the Secret fixed.
    pub network: Option<NetworkId>,
    /// When the Secret was made that held it first, in seconds since the Unix epoch.
    pub created: Option<i64>,
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

impl RememberedMember {
    /// The member as it was held, for as long as nobody knows whether it still is.
    pub(super) fn assumed(&self) -> Option<PlannedCluster> {
        let (network, mode) = (self.network.clone(), self.mode);
        let (uid, trust_domain, hold) = (None, self.trust_domain(), Hold::Assumed);
        let (secret, created) = (self.holder()?, self.created);
        Some(PlannedCluster { secret, network, mode, uid, trust_domain, created, hold })
    }

    /// The trust domain in which it was read: that of any of its pods.
    pub(super) fn trust_domain(&self) -> Option<Arc<str>> {
        let (_, pod) = self.contents.workloads.as_ref()?.iter().next()?;
        let (domain, _) = pod.profile.identity.strip_prefix("spiffe://")?.split_once('/')?;
        Some(domain.into())
    }

    /// Whether `secret` is the one that held it.
    pub(super) fn is_of(&self, secret: &ObjectName) -> bool {
        self.holder().as_ref() == Some(secret)
    }

    /// The Secret that held it; none for the config cluster.
    pub fn holder(&self) -> Option<ObjectName> {
        let (namespace, name) = self.secret.as_deref()?.split_once('/')?;
        Some(ObjectName { namespace: namespace.into(), name: name.into() })
    }

    /// What is shown of it until anything newer is known.
    pub(super) fn status(&self) -> RunStatus {
        RunStatus {
            last_contact: LastContact::at(self.last_contact),
            services: self.services,
            endpoints: self.endpoints,
            held: ObjectCounts::at_least(&self.contents),
            ..RunStatus::starting()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use strait_model::Workloads;
    use strait_model::testing::workload;

    #[test]
    fn a_member_is_presumed_in_the_trust_domain_in_which_it_was_read() {
        let in_domain = |domain: Option<&str>| {
            let workloads = domain.map(|domain| {
                let (key, mut pod) = workload("web.ns", "10.0.0.1", &[]);
                let identity = format!("spiffe://{domain}/ns/ns/sa/app");
                Arc::make_mut(&mut pod.profile).identity = identity.into();
                let mut workloads = Workloads::default();
                workloads.insert(&"ns".into(), &key.name, pod);
                workloads
            });
            let contents = Contents { workloads, ..Contents::default() };
            let secret = Some("strait-system/a".into());
            let remembered = RememberedMember { secret, contents, ..RememberedMember::default() };
            remembered.assumed().expect("it had a Secret").trust_domain
        };
        assert_eq!(in_domain(Some("west.example")).as_deref(), Some("west.example"));
        assert_eq!(in_domain(None), None);
    }
}
