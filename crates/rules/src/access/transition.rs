//! Mode transitions between plaintext and mTLS: servers also accept the previous mode until their
//! clients have the new configuration.
//!
//! Each change of policies that may start or stop mTLS for a workload is one transition, which ends
//! after one minute, regardless of other changes. A server accepts the modes from before each
//! transition in progress. The last transition of a workload's own mode ends its overlap, and
//! transitions of other workloads do not prolong it. During the first seconds, clients keep their
//! previous mode if servers accept only that mode, because the servers must be ready first.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::peer::{PeerAuthentication, PeerMode, PeerModes};
use super::policies::{AccessPolicies, ModeMove, differing, disables};
use super::subject::AccessSubject;
use super::time_point::TimePoint;
use strait_model::Namespace;

/// Duration for which servers accept the previous mode. By then, clients have the new configuration
/// or are gone.
pub const TRANSITION: Duration = Duration::from_secs(60);

/// Duration for which clients keep the previous mode, so that servers are ready first.
pub const SERVERS_FIRST: Duration = Duration::from_secs(5);

/// Changes within this time after the beginning of a transition belong to it, which limits their
/// number.
const ONE_MOVE: Duration = Duration::from_secs(1);

impl ModeMove {
    /// Returns the modes before the transition.
    pub(super) fn modes_before(&self, subject: AccessSubject<'_>) -> PeerModes {
        self.before.modes(subject)
    }

    /// Returns the time of the next step: clients switch, or the transition ends.
    fn next_step(&self) -> Instant {
        if self.servers_are_ready { self.ends.instant } else { self.begun + SERVERS_FIRST }
    }

    /// Returns the policies before and after the transition.
    pub(super) fn sides(&self) -> [&AccessPolicies; 2] {
        [&self.before, &self.after]
    }

    /// Returns the namespaces of the workloads in transition. The root namespace represents all
    /// namespaces.
    pub(super) fn namespaces(&self) -> BTreeSet<Namespace> {
        let [before, after] = self.sides();
        let mut moved: BTreeSet<_> = before.peers_apart(after).collect();
        if before.root != after.root {
            moved.extend([before.root.clone(), after.root.clone()]);
        }
        moved
    }
}

impl AccessPolicies {
    /// Iterates over the transitions that exactly one version contains.
    pub(super) fn moves_apart<'a>(
        &'a self,
        before: &'a Self,
    ) -> impl Iterator<Item = &'a Arc<ModeMove>> {
        let only = |all: &'a [Arc<ModeMove>], other: &'a [Arc<ModeMove>]| {
            all.iter().filter(move |one| !other.iter().any(|candidate| Arc::ptr_eq(candidate, one)))
        };
        only(&self.moves, &before.moves).chain(only(&before.moves, &self.moves))
    }

    /// Returns the transitions in progress at a time; `None` if they did not change.
    pub(super) fn moves_at(&self, now: Instant) -> Option<Vec<Arc<ModeMove>>> {
        if self.next_step().is_none_or(|next| next > now) {
            return None;
        }
        let active = self.moves.iter().filter(|one| one.ends.instant > now);
        let then = |transition: &Arc<ModeMove>| match transition.next_step() > now {
            true => Arc::clone(transition),
            false => Arc::new(ModeMove { servers_are_ready: true, ..ModeMove::clone(transition) }),
        };
        Some(active.map(then).collect())
    }

    /// Returns the time of the next step of any transition.
    pub(super) fn next_step(&self) -> Option<Instant> {
        self.moves.iter().map(|one| one.next_step()).min()
    }

    /// Returns whether clients use plaintext for a port of a workload, even if the port may accept
    /// mTLS or soon will.
    pub fn receives_plaintext(&self, subject: AccessSubject<'_>, port: u16) -> bool {
        let now = self.modes(subject).of_port(port).mode;
        let pending = self.moves.iter().find(|one| !one.servers_are_ready);
        let before = pending.map(|one| one.modes_before(subject).of_port(port).mode);
        // A server that accepts both is ready for either.
        before.filter(|mode| *mode != PeerMode::Permissive).unwrap_or(now) == PeerMode::Disable
    }

    /// Returns whether a port of a workload accepts mTLS now, whatever its clients use.
    pub fn accepts_mtls(&self, subject: AccessSubject<'_>, port: u16) -> bool {
        self.served_modes(subject).of_port(port).mode != PeerMode::Disable
    }

    /// Returns whether clients use plaintext for any workload because a policy sets DISABLE, or did
    /// until recently.
    pub fn uses_plaintext_anywhere(&self) -> bool {
        let pending = self.moves.iter().filter(|one| !one.servers_are_ready);
        self.disables_anywhere()
            || pending.map(|one| &one.before).any(|one| one.disables_anywhere())
    }

    /// Returns the transitions in progress after the policies have changed to `next`.
    pub(super) fn moves_on(&self, next: &Self, now: TimePoint) -> Vec<Arc<ModeMove>> {
        let mut moves = self.moves.clone();
        if !self.may_move(next) {
            return moves;
        }
        let alone = |policies: &Self| {
            let (moves, reports) = Default::default();
            Arc::new(Self { moves, reports, ..policies.clone() })
        };
        let after = alone(next);
        let is_part = |last: &&Arc<ModeMove>| now.instant < last.begun + ONE_MOVE;
        let joined = moves
            .last()
            .filter(is_part)
            .map(|last| Arc::new(ModeMove { after: Arc::clone(&after), ..ModeMove::clone(last) }));
        let begun = joined.is_none().then(|| {
            let (before, ends) = (alone(self), now.after(TRANSITION));
            Arc::new(ModeMove { before, after, begun: now.instant, servers_are_ready: false, ends })
        });
        if joined.is_some() {
            moves.pop();
        }
        moves.extend(joined.or(begun));
        moves
    }

    /// Returns whether the change may start or stop mTLS for any workload.
    fn may_move(&self, next: &Self) -> bool {
        if self.root != next.root {
            return self.disables_anywhere() || next.disables_anywhere();
        }
        let disables_in = |namespace: &Namespace| {
            [self, next].iter().any(|one| one.peers_in(namespace).iter().any(|one| disables(one)))
        };
        // The mode of the mesh applies if the namespace sets none.
        let by_mesh = disables_in(&self.root);
        self.peers_apart(next).any(|namespace| by_mesh || disables_in(&namespace))
    }

    pub(super) fn peers_in(&self, namespace: &Namespace) -> &[Arc<PeerAuthentication>] {
        self.namespaces.get(namespace).map_or(&[], |policies| &policies.peers)
    }

    /// Iterates over the namespaces whose PeerAuthentications differ.
    fn peers_apart<'a>(&'a self, next: &'a Self) -> impl Iterator<Item = Namespace> + use<'a> {
        let differ =
            move |namespace: &Namespace| self.peers_in(namespace) != next.peers_in(namespace);
        differing(&self.namespaces, &next.namespaces).filter(differ)
    }
}
