//! Decides which cluster a member may be, by the UID of the namespace `kube-system`. Pure.

use std::sync::Arc;

use super::kubeconfig::KubeconfigRefusal;
use strait_base::codes;
use strait_kube_client::Access;
use strait_model::ClusterId;

/// The owner of the data that is served under a cluster's ID.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ClusterIdHolder {
    /// The UID of the namespace `kube-system`, if known.
    pub uid: Option<String>,
    /// The UID of the Secret or ClusterProfile that led to this cluster, if known.
    pub found_by: Option<Arc<str>>,
    /// Whether the Secret or ClusterProfile is a new one, which may lead to another cluster.
    pub may_change: bool,
    /// The UID of the cluster that this one has replaced because its Secret or ClusterProfile is new.
    pub followed: Option<String>,
}

/// The facts that decide which cluster a member may be.
pub(super) struct ExpectedCluster<'a> {
    /// The member.
    pub(super) id: &'a ClusterId,
    /// The kind of the object that defines the member.
    pub(super) kind: &'static str,
    /// The UID that the operator pins.
    pub(super) pinned: Option<&'a str>,
    /// Whether the policy accepts another cluster from a new object.
    pub(super) follows_source: bool,
    /// The UID of the object that defines the member, if known.
    pub(super) object: Option<Arc<str>>,
    /// The access that the object defines.
    pub(super) access: Option<&'a Access>,
}

impl ExpectedCluster<'_> {
    /// Whether the object is a different one than `found_by`, which led to the present cluster.
    fn is_new_object(&self, found_by: Option<&Arc<str>>) -> bool {
        found_by.is_some() && self.object.is_some() && found_by != self.object.as_ref()
    }

    /// Whether the object may lead to another cluster than the one to which `found_by` led.
    pub(super) fn may_change(&self, found_by: Option<&Arc<str>>) -> bool {
        self.pinned.is_none() && self.follows_source && self.is_new_object(found_by)
    }

    /// Returns why a cluster with the UID `is` is not accepted. `was` is the UID of the present
    /// cluster, to which the object `found_by` led.
    pub(super) fn refusal(
        &self,
        was: Option<&str>,
        found_by: Option<&Arc<str>>,
        is: &str,
    ) -> Option<KubeconfigRefusal> {
        let expected = self.pinned.or(was)?;
        if expected == is || self.may_change(found_by) {
            return None;
        }
        let (id, kind) = (self.id, self.kind);
        let fact = match self.pinned {
            Some(pinned) => format!(
                "the cluster's UID is {is}, and the {kind}'s annotation strait.dev/cluster-uid names {pinned}"
            ),
            None => {
                let other_step = if self.follows_source {
                    format!(
                        "; clusters.{id}.identity of the policy file accepts it only from a {kind} that was deleted and created again"
                    )
                } else if self.is_new_object(found_by) {
                    format!(
                        ", or set clusters.{id}.identity: follow-source in the policy file: the {kind} was created again"
                    )
                } else {
                    String::new()
                };
                format!(
                    "the cluster's UID was {expected} and is {is}; to accept it annotate the {kind} with strait.dev/cluster-uid={is}{other_step}"
                )
            }
        };
        Some(KubeconfigRefusal::new(&codes::IDENTITY_CHANGED, "", fact))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn next_step_names_the_kind_of_the_object() {
        for kind in ["Secret", "ClusterProfile"] {
            let id = ClusterId::from("east");
            let (follows_source, object, access) = (false, Some("new".into()), None);
            let expected =
                ExpectedCluster { id: &id, kind, pinned: None, follows_source, object, access };
            let refusal = expected.refusal(Some("x"), Some(&"old".into()), "y").expect("refused");
            let step = format!("annotate the {kind} with strait.dev/cluster-uid=y, or set ");
            let cause = format!("the {kind} was created again");
            assert!(refusal.fact.contains(&step) && refusal.fact.ends_with(&cause), "{refusal}");
        }
    }
}
