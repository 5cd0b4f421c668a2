//! Pods of the mesh, for the verification of tokens.

use std::sync::Arc;

use tokio::sync::watch;

use strait_identity::SpiffeId;
use strait_identity::token::TokenPod;
use strait_mesh::push::PushContext;
use strait_model::ClusterId;
use strait_sources::clusters::callers::{MemberCallers, RunningPods};

/// Pods in the current version of the mesh, also of unreachable clusters.
#[derive(Debug)]
pub(super) struct KnownPods(pub(super) watch::Receiver<Option<Arc<PushContext>>>);

impl RunningPods for KnownPods {
    fn has_pod(&self, cluster: &ClusterId, id: &SpiffeId, pod: &TokenPod) -> bool {
        let Some(mesh) = self.0.borrow().clone() else { return false };
        let pods = mesh.workloads.get(cluster);
        let found = pods.and_then(|pods| pods.get(id.namespace().as_str(), &pod.name));
        found.is_some_and(|found| {
            found.has_uid(&pod.uid) == Some(true) && *found.service_account == *id.service_account()
        })
    }

    fn root_namespace(&self) -> Option<String> {
        self.0.borrow().as_ref().map(|mesh| mesh.mesh.root_namespace.clone())
    }

    fn has_account(&self, cluster: &ClusterId, id: &SpiffeId) -> bool {
        let Some(mesh) = self.0.borrow().clone() else { return false };
        let (namespace, account) = (id.namespace(), id.service_account());
        let mut pods = mesh.workloads.get(cluster).into_iter();
        if pods.any(|pods| {
            let mut pods = pods.of_namespace(namespace.as_str());
            pods.any(|(_, pod)| *pod.service_account == *account)
        }) {
            return true;
        }
        let machines = mesh.vms.get(cluster).into_iter().flat_map(|machines| machines.iter());
        let mut machines = machines.chain(mesh.entries.vms().iter());
        machines.any(|(name, vm)| name.namespace == *namespace && vm.account() == Some(account))
    }
}

/// Removes cached callers of pods that the current version of the mesh no longer contains.
pub(super) async fn follow_pods(
    mut context: watch::Receiver<Option<Arc<PushContext>>>,
    callers: Arc<MemberCallers>,
) {
    while context.changed().await.is_ok() {
        callers.forget_gone_pods();
    }
}
