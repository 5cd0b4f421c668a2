//! From plain text to mTLS and back: what servers go on taking until their clients have learnt to speak otherwise.
//!
//! Every change of policies by which that may differ for some workload is one move, which ends a minute later, whatever else
//! is changed meanwhile. A server takes what it took before each of the moves that have not ended, so that the last of
//! its own ends its transition, and nobody else's prolongs it. Clients speak as before for the first seconds
//! where servers did not take otherwise: these have to be ready for it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::peer::{PeerAuthentication, PeerMode, PeerModes};
use super::policies::{AccessPolicies, ModeMove, differing, disables};
use super::subject::AccessSubject;
use super::time_point::TimePoint;
use strait_model::Namespace;

/// How long servers take what clients sent before: until then clients have been told, or are as good as gone.
pub const TRANSITION: Duration = Duration::from_secs(60);

/// How long clients go on as before, until servers are ready for what they are to send.
pub const SERVERS_FIRST: Duration = Duration::from_secs(5);

/// Changes that come so soon after a move are part of it, so that there are few of them at a time.
const ONE_MOVE: Duration = Duration::from_secs(1);

impl ModeMove {
    /// What servers took before it.
    pub(super) fn modes_before(&self, subject: AccessSubject<'_>) -> PeerModes {
        self.before.modes(subject)
    }

    /// When something comes of it that nobody has done.
    fn next_step(&self) -> Instant {
        if self.is_told { self.ends.instant } else { self.begun + SERVERS_FIRST }
    }

    /// What it went from, and to.
    pub(super) fn sides(&self) -> [&AccessPolicies; 2] {
        [&self.before, &self.after]
    }

    /// The namespaces whose workloads it moves; the root namespace stands for all.
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
    /// The moves that are under way in one of two versions, and not in the other.
    pub(super) fn moves_apart<'a>(
        &'a self,
        before: &'a Self,
    ) -> impl Iterator<Item = &'a Arc<ModeMove>> {
        let only = |all: &'a [Arc<ModeMove>], other: &'a [Arc<ModeMove>]| {
            all.iter().filter(move |one| !other.iter().any(|held| Arc::ptr_eq(held, one)))
        };
        only(&self.moves, &before.moves).chain(only(&before.moves, &self.moves))
    }

    /// The moves that are under way at a time; `None` where these are the same.
    pub(super) fn moves_at(&self, now: Instant) -> Option<Vec<Arc<ModeMove>>> {
        if self.next_step().is_none_or(|next| next > now) {
            return None;
        }
        let under_way = self.moves.iter().filter(|one| one.ends.instant > now);
        let then = |one: &Arc<ModeMove>| match one.next_step() > now {
            true => Arc::clone(one),
            false => Arc::new(ModeMove { is_told: true, ..ModeMove::clone(one) }),
        };
        Some(under_way.map(then).collect())
    }

    /// When the moves that are under way are others.
    pub(super) fn next_step(&self) -> Option<Instant> {
        self.moves.iter().map(|one| one.next_step()).min()
    }

    /// Whether clients speak to a port of a workload in plain text, though it may take mTLS, or is about to.
    pub fn are_spoken_to_plainly(&self, subject: AccessSubject<'_>, port: u16) -> bool {
        let now = self.modes(subject).of_port(port).mode;
        let untold = self.moves.iter().find(|one| !one.is_told);
        let before = untold.map(|one| one.modes_before(subject).of_port(port).mode);
        // What takes both is ready for anything.
        before.filter(|mode| *mode != PeerMode::Permissive).unwrap_or(now) == PeerMode::Disable
    }

    /// Whether a port of a workload takes mTLS now, whatever clients send it.
    pub fn take_mtls(&self, subject: AccessSubject<'_>, port: u16) -> bool {
        self.served_modes(subject).of_port(port).mode != PeerMode::Disable
    }

    /// Whether clients speak in plain text to any workload since a policy says, or said, so.
    pub fn speaks_plainly_anywhere(&self) -> bool {
        let untold = self.moves.iter().filter(|one| !one.is_told);
        self.disables_anywhere() || untold.map(|one| &one.before).any(|one| one.disables_anywhere())
    }

    /// What is under way once the policies have changed from these to `next`.
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
            Arc::new(ModeMove { before, after, begun: now.instant, is_told: false, ends })
        });
        if joined.is_some() {
            moves.pop();
        }
        moves.extend(joined.or(begun));
        moves
    }

    /// Whether it may differ for any workload whether it takes mTLS.
    fn may_move(&self, next: &Self) -> bool {
        if self.root != next.root {
            return self.disables_anywhere() || next.disables_anywhere();
        }
        let disables_in = |namespace: &Namespace| {
            [self, next].iter().any(|one| one.peers_in(namespace).iter().any(|one| disables(one)))
        };
        // What one namespace doesn't say, that of the mesh does.
        let by_mesh = disables_in(&self.root);
        self.peers_apart(next).any(|namespace| by_mesh || disables_in(&namespace))
    }

    pub(super) fn peers_in(&self, namespace: &Namespace) -> &[Arc<PeerAuthentication>] {
        self.namespaces.get(namespace).map_or(&[], |held| &held.peers)
    }

    /// The namespaces whose PeerAuthentications differ.
    fn peers_apart<'a>(&'a self, next: &'a Self) -> impl Iterator<Item = Namespace> + use<'a> {
        let differ =
            move |namespace: &Namespace| self.peers_in(namespace) != next.peers_in(namespace);
        differing(&self.namespaces, &next.namespaces).filter(differ)
    }
}
