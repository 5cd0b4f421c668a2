//! Members that cannot be confirmed at present: their state from before the process started applies
//! until the Secrets can be read.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tracing::warn;

use super::Reconciler;
use crate::clusters::kubeconfig::KubeconfigRefusal;
use crate::clusters::plan::Hold;
use crate::clusters::secret::MemberSecret;
use crate::store::{ObjectName, WatchedSecret};
use strait_base::codes;
use strait_model::ClusterId;

impl Reconciler {
    /// Presumes that the Secrets of remembered members exist but are unusable, if something could
    /// not be read that may contain them. The last known state of these members applies.
    pub(super) fn presume_unread(&mut self, place: &str) {
        let assumed = self.running.clusters.iter();
        let assumed = assumed.filter(|(_, cluster)| cluster.hold == Hold::Assumed);
        let assumed = assumed.map(|(id, cluster)| (id.clone(), cluster.secret.clone()));
        let remembered = self.remembered.iter();
        let remembered =
            remembered.filter_map(|(id, member)| Some((id.clone(), member.assumed()?.secret)));
        let mut unread: BTreeMap<ObjectName, BTreeSet<ClusterId>> = BTreeMap::new();
        for (id, secret) in assumed.chain(remembered) {
            let is_in_other_secret =
                self.read.values().any(|(_, secret)| secret.clusters.contains_key(&id));
            if !is_in_other_secret && !self.read.contains_key(&secret) {
                unread.entry(secret).or_default().insert(id);
            }
        }
        for (name, ids) in unread {
            let fact = format!(
                "its Secret was not found, and may be in {place}, which cannot be read completely"
            );
            let refusal = KubeconfigRefusal::new(&codes::CONFIG_FILE, "", fact);
            let read = MemberSecret::unread(name.clone(), ids, &refusal);
            let nothing = WatchedSecret { name: name.clone(), ..WatchedSecret::default() };
            self.read.insert(name, (Arc::new(nothing), read));
        }
    }

    /// Presumes that the remembered members exist until the Secrets can be read.
    pub(super) fn presume(&mut self) {
        self.presume_after = None;
        self.assumed = true;
        warn!("cannot read the configuration yet; using the remembered members until then");
        for (id, remembered) in &self.remembered {
            if let Some(cluster) = remembered.assumed() {
                self.running.clusters.insert(id.clone(), cluster);
            }
        }
    }

    /// Restores members whose Secret became invalid while no process was running, with their last
    /// known state.
    pub(super) fn resume(&mut self) {
        for (id, remembered) in &self.remembered {
            let Some(cluster) = remembered.assumed() else { continue };
            let secret = self.read.get(&cluster.secret).map(|(_, secret)| secret);
            let became_invalid =
                secret.and_then(|secret| secret.clusters.get(id)).is_some_and(Result::is_err);
            if became_invalid && !self.members.contains_key(id) {
                self.running.clusters.entry(id.clone()).or_insert(cluster);
            }
        }
    }
}
