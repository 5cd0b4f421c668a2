//! What becomes of Sidecars.

use super::{ConfigView, Finding};
use crate::codes;
use crate::explain::standing::ObjectStanding;
use crate::traffic::sidecar::Sidecar;

impl ConfigView<'_> {
    /// A Sidecar is in force for those who follow it.
    pub(super) fn sidecar(&self, sidecar: &Sidecar) -> Finding {
        let sidecars = &self.context.traffic.sidecars;
        if let Some(reason) = sidecars.loss(&sidecar.meta) {
            let standing = Some(ObjectStanding::Shadowed);
            return Finding { reasons: vec![reason], standing, proxies: 0 };
        }
        if let Some(labels) = sidecar.selector.as_ref().filter(|_| self.services_known)
            && !self.is_carried(labels, &sidecar.meta.namespace)
        {
            let text = "no workload that is known carries these labels";
            return Finding::unused(&codes::SELECTOR_UNUSED, "spec.workloadSelector", text);
        }
        let proxies = self.clients.count(|namespace, selection| {
            let followed = sidecars.scope(namespace, selection).sidecar();
            followed.is_some_and(|followed| followed.meta == sidecar.meta)
        });
        Finding { proxies, ..Finding::default() }
    }
}
