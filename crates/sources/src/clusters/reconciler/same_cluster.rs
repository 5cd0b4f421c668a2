//! Decides which of several members with one UID is the cluster, so that no endpoint exists twice. The
//! result depends on the Secrets, not on which API server answers first: all replicas agree.

use super::*;

impl Reconciler {
    /// Returns the member that is the cluster with this UID and takes precedence over `id`: its ID,
    /// its Secret, and why it takes precedence.
    pub(super) fn preceding_member(&self, id: &ClusterId, uid: &str) -> Option<String> {
        let same = self.members.iter().filter(|(_, member)| member.uid.as_deref() == Some(uid));
        let mut same = same.map(|(other, _)| other).filter(|other| *other != id);
        let winner = same.find(|other| self.precedes(other, id, uid))?;
        let secret_of = |id: &ClusterId| self.read.get(&self.running.clusters.get(id)?.secret);
        let why = secret_of(winner).zip(secret_of(id)).map(|((_, winner), (_, loser))| {
            format!(" of Secret {}, which is {}", winner.name, plan::precedence(winner, loser))
        });
        Some(format!("{winner}{}", why.unwrap_or_default()))
    }

    /// Removes the data of members that are the same cluster as a member that takes precedence and
    /// has delivered its data. Returns these members.
    pub(super) async fn withdraw_superseded(&mut self) -> Vec<ClusterId> {
        let mut superseded = Vec::new();
        for (id, winner) in self.superseded() {
            info!(cluster = %id, %winner, "cluster withdrawn: another member is the same cluster");
            self.withdraw(&id).await;
            superseded.push(id);
        }
        superseded
    }

    /// Returns the members to withdraw, each with the member that takes precedence. The pinned UID
    /// of a presumed member is unknown, so it neither yields nor takes precedence here.
    fn superseded(&self) -> Vec<(ClusterId, ClusterId)> {
        let mut by_uid: BTreeMap<&str, Vec<&ClusterId>> = BTreeMap::new();
        for (id, member) in &self.members {
            let is_presumed =
                self.running.clusters.get(id).is_some_and(|one| one.hold == Hold::Assumed);
            if let Some(uid) = member.uid.as_deref().filter(|_| !is_presumed)
                && member.holds_data()
            {
                by_uid.entry(uid).or_default().push(id);
            }
        }
        let mut superseded = Vec::new();
        for (uid, ids) in by_uid {
            for id in &ids {
                let mut others = ids.iter().filter(|other| *other != id);
                if let Some(winner) = others.find(|other| self.precedes(other, id, uid)) {
                    superseded.push(((*id).clone(), (*winner).clone()));
                }
            }
        }
        superseded
    }

    /// Whether `other` is the cluster with this UID instead of `id`. Clusters restored from one etcd
    /// snapshot share a UID: they are different clusters if both Secrets are pinned to it. The config
    /// cluster has no Secret and counts as pinned.
    fn precedes(&self, other: &ClusterId, id: &ClusterId, uid: &str) -> bool {
        let is_pinned = |id: &ClusterId| {
            let cluster = self.running.clusters.get(id);
            cluster.is_none_or(|cluster| cluster.uid.as_deref() == Some(uid))
        };
        !(is_pinned(other) && is_pinned(id)) && self.order(other) < self.order(id)
    }

    /// Returns the sort key of members that are one cluster: the config cluster first, then members
    /// whose Secrets are unread, then by the age of the Secret. Members without a Secret come last.
    fn order<'a>(&self, id: &'a ClusterId) -> (usize, usize, &'a ClusterId) {
        match self.running.clusters.get(id).map(|cluster| &cluster.hold) {
            None => (0, 0, id),
            Some(Hold::Assumed) => (1, 0, id),
            Some(Hold::BySecret(_)) => {
                (2, self.plan.ages.get(id).copied().unwrap_or(usize::MAX), id)
            }
            Some(Hold::Leaving { .. }) => (3, 0, id),
        }
    }
}
