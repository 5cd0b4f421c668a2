//! Quarantine of clusters whose connection fails repeatedly, and its duration. Pure.
//!
//! ```text
//!   member ── contact lost 5 times in 2 min ──► frozen ── 30 s, then longer up to 5 min ──► on trial
//!     ▲                                           ▲                                           │  │
//!     │                                           └──────────── contact lost ─────────────────┘  │
//!     └────────────────────────────── in contact for 2 min ──────────────────────────────────────┘
//! ```

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Part of the time after which a cluster is stale. If contact returns within this part, it does
/// not count as lost: a load balancer may reset connections all day, and all of them are reopened
/// within a second or two.
const RECONNECT_PART: u32 = 3;
/// Number of losses within [`WINDOW`] that starts a quarantine.
const LOSSES: usize = 5;
/// The period in which losses are counted.
const WINDOW: Duration = Duration::from_secs(120);
/// The first pause. Each subsequent pause is twice as long.
const PAUSE_MIN: Duration = Duration::from_secs(30);
/// The maximum pause.
const PAUSE_MAX: Duration = Duration::from_secs(300);
/// Time without a loss of contact after which the quarantine ends.
const PROBATION: Duration = Duration::from_secs(120);

/// Recent losses of contact, and the resulting quarantine.
#[derive(Debug, Default)]
pub(super) struct Flapping {
    contact: ContactChange,
    losses: VecDeque<Instant>,
    quarantine: Option<Quarantine>,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum ContactChange {
    /// No contact; the loss has been counted.
    #[default]
    None,
    InContact,
    /// No contact since then; not counted as a loss yet, because contact may return at once.
    Out(Instant),
}

#[derive(Debug, Clone, Copy)]
struct Quarantine {
    /// The cluster is frozen until then; afterwards it is on trial.
    until: Instant,
    pause: Duration,
    /// Start of the current contact.
    in_contact_since: Option<Instant>,
}

/// The stage of a quarantine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// No requests are sent to the cluster for this long.
    Frozen(Duration),
    /// Requests are sent again, and contact must not be lost.
    Trial,
}

impl Flapping {
    /// Records whether the cluster is in contact now. `stale_after` is the time without contact
    /// after which it is stale.
    pub(super) fn observe(&mut self, in_contact: bool, stale_after: Duration, now: Instant) {
        let lost = self.has_lost(in_contact, stale_after / RECONNECT_PART, now);
        if let Some(quarantine) = &mut self.quarantine {
            if quarantine.until > now {
                return;
            }
            if lost {
                let pause = (quarantine.pause * 2).min(PAUSE_MAX);
                *quarantine = Quarantine { until: now + pause, pause, in_contact_since: None };
            } else if in_contact {
                let since = *quarantine.in_contact_since.get_or_insert(now);
                if now.duration_since(since) >= PROBATION {
                    *self = Self { contact: self.contact, ..Self::default() };
                }
            }
            return;
        }
        if lost {
            self.losses.push_back(now);
        }
        while self.losses.front().is_some_and(|at| now.duration_since(*at) > WINDOW) {
            self.losses.pop_front();
        }
        if self.losses.len() >= LOSSES {
            let until = now + PAUSE_MIN;
            self.quarantine = Some(Quarantine { until, pause: PAUSE_MIN, in_contact_since: None });
            self.losses.clear();
        }
    }

    /// Returns whether contact counts as lost now. Returns true once per loss.
    fn has_lost(&mut self, in_contact: bool, reconnect: Duration, now: Instant) -> bool {
        let for_long = |since| now.duration_since(since) >= reconnect;
        let (contact, lost) = match (self.contact, in_contact) {
            (ContactChange::Out(since), _) if for_long(since) => (ContactChange::None, true),
            (ContactChange::InContact, false) => (ContactChange::Out(now), false),
            (contact, _) => (contact, false),
        };
        self.contact = if in_contact { ContactChange::InContact } else { contact };
        lost
    }

    /// Returns the stage of the quarantine, or `None` if the cluster is not in quarantine.
    pub(super) fn stage(&self, now: Instant) -> Option<Stage> {
        let quarantine = self.quarantine?;
        let remaining = quarantine.until.saturating_duration_since(now);
        Some(if remaining.is_zero() { Stage::Trial } else { Stage::Frozen(remaining) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STALE_AFTER: Duration = Duration::from_secs(9);

    struct Sequence(Flapping, Instant);

    impl Sequence {
        /// Reports contact for this many seconds, with one observation per second.
        fn then(&mut self, in_contact: bool, seconds: u64) -> Option<Stage> {
            self.0.observe(in_contact, STALE_AFTER, self.1);
            for _ in 0..seconds {
                self.1 += Duration::from_secs(1);
                self.0.observe(in_contact, STALE_AFTER, self.1);
            }
            self.0.stage(self.1)
        }

        fn flap(&mut self, times: u32, seconds: u64) -> Option<Stage> {
            let mut stage = None;
            for _ in 0..times {
                self.then(true, seconds);
                stage = self.then(false, seconds);
            }
            stage
        }
    }

    fn seconds(count: u64) -> Option<Stage> {
        Some(Stage::Frozen(Duration::from_secs(count)))
    }

    #[test]
    fn fifth_loss_within_two_minutes_freezes_and_slower_losses_never_do() {
        let mut sequence = Sequence(Flapping::default(), Instant::now());
        assert_eq!(sequence.flap(4, 10), None);
        assert_eq!(sequence.flap(1, 3), seconds(30));
        let mut slow = Sequence(Flapping::default(), Instant::now());
        assert_eq!(slow.flap(50, 16), None, "four losses in any two minutes");
        let mut dark = Sequence(Flapping::default(), Instant::now());
        dark.then(true, 1);
        assert_eq!(dark.then(false, 1000), None, "a permanent loss is counted once");
    }

    #[test]
    fn contact_that_returns_at_once_is_not_lost() {
        let mut sequence = Sequence(Flapping::default(), Instant::now());
        assert_eq!(sequence.flap(100, 2), None);
        sequence.flap(5, 3);
        sequence.then(false, 30);
        assert_eq!(sequence.flap(29, 2), Some(Stage::Trial), "nor does it end a trial");
        assert_eq!(sequence.then(true, 5), None, "although it counts as contact");
    }

    #[test]
    fn pauses_grow_up_to_five_minutes_and_two_minutes_of_contact_end_quarantine() {
        let mut sequence = Sequence(Flapping::default(), Instant::now());
        sequence.flap(5, 3);
        for pause in [30, 60, 120, 240, 300, 300] {
            assert_eq!(sequence.then(false, pause - 1), seconds(1));
            assert_eq!(sequence.then(false, 1), Some(Stage::Trial));
            assert_eq!(sequence.then(true, 119), Some(Stage::Trial));
            let next = (pause * 2).min(300);
            assert_eq!(sequence.then(false, 3), seconds(next));
        }
        sequence.then(false, 300);
        assert_eq!(sequence.then(true, 120), None);
        assert_eq!(sequence.flap(4, 3), None, "all losses are forgotten");
    }
}
