//! The state of a member from before this process started.

use std::sync::Arc;
use std::time::SystemTime;

use super::plan::{Hold, PlannedCluster};
use crate::registry::kube::{LastContact, ObjectCounts, RunStatus};
use crate::store::ObjectName;
use strait_model::registry::Contents;
use strait_model::{Mode, NetworkId, ReadNamespaces};

/// The last known state of a member. It applies until the member's API server has been read
/// completely again.
#[derive(Debug, Clone, Default)]
pub struct RememberedMember {
    /// The Secret that held it, as `namespace/name`; `None` for the config cluster.
    pub secret: Option<Arc<str>>,
    /// The network that the Secret fixed.
    pub network: Option<NetworkId>,
    /// Creation time of the first Secret that held it, in seconds since the Unix epoch.
    pub created: Option<i64>,
    /// The mode that an operator had requested.
    pub mode: Mode,
    /// The UID of the cluster's namespace `kube-system`.
    pub uid: Option<String>,
    /// The UID of the object that led to that cluster, if known.
    pub found_by: Option<Arc<str>>,
    /// When its API server last responded.
    pub last_contact: Option<SystemTime>,
    /// Number of services.
    pub services: usize,
    /// Number of endpoints.
    pub endpoints: usize,
    /// A note for operators about the restored state.
    pub remark: Option<String>,
    /// The services, endpoints and workloads of the member.
    pub contents: Contents,
}

impl RememberedMember {
    /// Returns the previously planned member, for use until the Secrets have been read.
    pub(super) fn assumed(&self) -> Option<PlannedCluster> {
        let (network, mode) = (self.network.clone(), self.mode);
        let (uid, trust_domain, hold) = (None, self.trust_domain(), Hold::Assumed);
        let (secret, created) = (self.holder()?, self.created);
        // The Secret is read before anything is written into a cluster.
        let (set_name, namespaces) = (None, ReadNamespaces::default());
        Some(PlannedCluster {
            secret,
            network,
            mode,
            uid,
            trust_domain,
            set_name,
            namespaces,
            created,
            hold,
        })
    }

    /// Returns the trust domain that was used when it was read, taken from any pod.
    pub(super) fn trust_domain(&self) -> Option<Arc<str>> {
        let (_, pod) = self.contents.workloads.as_ref()?.iter().next()?;
        let (domain, _) = pod.profile.identity.strip_prefix("spiffe://")?.split_once('/')?;
        Some(domain.into())
    }

    /// Whether `secret` held the member.
    pub(super) fn belongs_to(&self, secret: &ObjectName) -> bool {
        self.holder().as_ref() == Some(secret)
    }

    /// The Secret that held it; `None` for the config cluster.
    pub fn holder(&self) -> Option<ObjectName> {
        let (namespace, name) = self.secret.as_deref()?.split_once('/')?;
        Some(ObjectName { namespace: namespace.into(), name: name.into() })
    }

    /// Returns the status to show until newer data is known.
    pub(super) fn status(&self) -> RunStatus {
        RunStatus {
            last_contact: LastContact::at(self.last_contact),
            services: self.services,
            endpoints: self.endpoints,
            object_counts: ObjectCounts::at_least(&self.contents),
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
    fn presumed_member_keeps_the_trust_domain_of_its_last_read() {
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
