//! What to ask an API server next, and when: the list-and-watch protocol as a value.
//!
//! ```text
//!             ┌───────────── gone, version ahead, time for a fresh list ─────────────┐
//!             ▼                                                                      │
//!   ask for the initial events ──── refused ───► ask for the first page, the next…   │
//!             │ initial-events-end                        │ last page                │
//!             └─────────────────► watch from there ◄──────┘                          │
//!                                  │   ▲ ended: the same version again               │
//!                                  │   ▲ broken: the same, if the server knows it    │
//!                                  └───┴─────────────────────────────────────────────┘
//! ```
//!
//! Does no I/O and reads no clock; [`super::watch`] carries out what this decides. The rules are
//! those of client-go's reflector, plus: a watch that ends at once is not begun again at once; and, because
//! after a restore of etcd a watch may wait for ever for a version that has gone (kubernetes issue 107457), the
//! server is asked after each failure whether it knows our version, and a fresh list is taken now and then
//! whatever the watch says.

use std::time::{Duration, Instant};

use super::ApiError;
use super::backoff::Backoff;

/// A fresh list is taken this long after the last one, give or take a fifth.
const RELIST_PERIOD: Duration = Duration::from_secs(600);
/// A watch is asked to last between these, at random, so that watches don't all end together.
const WATCH_LIFETIME_MIN: Duration = Duration::from_secs(240);
const WATCH_LIFETIME_MAX: Duration = Duration::from_secs(300);
/// Between questions that fail.
const PAUSES: Backoff = Backoff::new(Duration::from_millis(800), Duration::from_secs(30));
/// After answers that there is no such kind, of one that needn't be there: thousands of servers may do without it for
/// ever.
const ABSENCE_PAUSES: Backoff = Backoff::new(Duration::from_millis(800), Duration::from_secs(120));
/// After answers that make no sense: what gives them may stand in front of the server, and go.
const NONSENSE_PAUSES: Backoff = Backoff::new(Duration::from_millis(800), Duration::from_secs(300));
/// After answers that were too much: the next one would be, too.
const EXCESS_PAUSES: Backoff = Backoff::new(Duration::from_secs(2), Duration::from_secs(600));
/// Watches that end without an error begin at least this far apart.
const WATCH_SPACING: Duration = Duration::from_secs(1);
/// The longest `Retry-After` that is obeyed.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(60);

/// What to ask next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum NextRequest {
    /// A page of a list: the first, or the one after `token`.
    Page { token: Option<String> },
    /// A watch that begins with all there is (`sendInitialEvents`).
    InitialEvents,
    /// Whether the server has come as far as `version`.
    Check { version: String },
    /// A watch of what changes after `version`, for `lifetime`.
    Watch { version: String, lifetime: Duration },
}

/// How far we are, and how it has gone so far.
#[derive(Debug)]
pub(super) struct WatchState {
    position: Position,
    /// The server may be another than the one that gave us our version.
    doubted: bool,
    listing: ListMode,
    /// When the position is given up for a fresh list.
    relist_at: Option<Instant>,
    /// After faults that pass: lost connections, server errors.
    faults: Backoff,
    /// After versions that the server doesn't know. It answers then: how long it was away before is no reason to wait.
    forgotten: Backoff,
    /// After answers that only somebody's hand changes: 401, 403, 404. They pass, too: a server that has
    /// just started permits nobody anything until it has read who may do what.
    refusals: Backoff,
    /// After answers that there is no such kind, where it needn't be there.
    absences: Option<Backoff>,
    /// After answers that make no sense, which each cost little.
    nonsense: Backoff,
    /// After answers that were too much, each of which costs what it may.
    excesses: Backoff,
}

#[derive(Debug, PartialEq, Eq)]
enum Position {
    /// Nothing is known, or no longer to be trusted.
    Nowhere,
    /// In the middle of a list.
    Page { token: String },
    /// All changes up to this version are known.
    Version(String),
}

/// How everything is asked for. The API server refuses initial events where it is too old for them
/// or has them switched off; then pages it is, for the rest of this course.
#[derive(Debug, PartialEq, Eq)]
enum ListMode {
    InitialEvents,
    Pages,
}

impl WatchState {
    /// A course that begins with a list.
    pub(super) fn new() -> Self {
        Self {
            position: Position::Nowhere,
            doubted: false,
            listing: ListMode::InitialEvents,
            relist_at: None,
            faults: PAUSES,
            forgotten: PAUSES,
            refusals: PAUSES,
            absences: None,
            nonsense: NONSENSE_PAUSES,
            excesses: EXCESS_PAUSES,
        }
    }

    /// The same, of a kind that a server needn't have.
    pub(super) fn of_optional() -> Self {
        Self { absences: Some(ABSENCE_PAUSES), ..Self::new() }
    }

    /// What to ask now. `random` is in `0..1`.
    pub(super) fn ask(&mut self, now: Instant, random: f64) -> NextRequest {
        if self.relist_at.is_some_and(|at| at <= now) {
            self.position = Position::Nowhere;
            self.relist_at = None;
        }
        match &self.position {
            Position::Nowhere if self.listing == ListMode::InitialEvents => {
                NextRequest::InitialEvents
            }
            Position::Nowhere => NextRequest::Page { token: None },
            Position::Page { token } => NextRequest::Page { token: Some(token.clone()) },
            Position::Version(version) if self.doubted => {
                NextRequest::Check { version: version.clone() }
            }
            Position::Version(version) => {
                let span = WATCH_LIFETIME_MAX - WATCH_LIFETIME_MIN;
                let lifetime = WATCH_LIFETIME_MIN + span.mul_f64(random);
                let until_relist =
                    self.relist_at.map_or(lifetime, |at| at.saturating_duration_since(now));
                // The API server counts whole seconds, and takes 0 for its own choice.
                let lifetime = lifetime.min(until_relist).max(Duration::from_secs(1));
                NextRequest::Watch { version: version.clone(), lifetime }
            }
        }
    }

    /// A fresh list is wanted, whatever is known.
    pub(super) fn start_over(&mut self) {
        self.position = Position::Nowhere;
        self.relist_at = None;
    }

    /// A page came, and there are more after `token`.
    pub(super) fn page_read(&mut self, token: String) {
        self.position = Position::Page { token };
    }

    /// Everything came, by pages or as initial events; it is of `version`.
    pub(super) fn listed(&mut self, version: String, now: Instant, random: f64) {
        self.position = Position::Version(version);
        self.doubted = false;
        self.relist_at = Some(now + RELIST_PERIOD.mul_f64(0.8 + 0.4 * random));
    }

    /// The server knows our version.
    pub(super) fn checked(&mut self) {
        self.doubted = false;
    }

    /// The watch reported everything up to `version`. Versions are opaque: the last one reported
    /// counts, not the greatest.
    pub(super) fn advanced(&mut self, version: String) {
        if !version.is_empty() {
            self.position = Position::Version(version);
        }
    }

    /// The watch ended as it should after `lasted`, and reported something or not. Returns the
    /// pause before the next request.
    pub(super) fn watch_ended(&mut self, lasted: Duration, told: bool, random: f64) -> Duration {
        if told || lasted >= WATCH_SPACING {
            self.faults.held(lasted);
            self.forgotten.held(lasted);
            self.refusals.held(lasted);
            if let Some(absences) = &mut self.absences {
                absences.held(lasted);
            }
            self.nonsense.held(lasted);
            self.excesses.held(lasted);
            return WATCH_SPACING.saturating_sub(lasted);
        }
        // An empty answer at once, perhaps again and again: a stale watch, or a broken proxy.
        self.faults.pause(random)
    }

    /// The question failed after `lasted`. Returns the pause before the next one.
    pub(super) fn failed(&mut self, error: &ApiError, lasted: Duration, random: f64) -> Duration {
        self.faults.held(lasted);
        self.forgotten.held(lasted);
        // That a refusal took long to come is no reason to ask again sooner. Anything else that lasted was
        // let in, or met nobody.
        let refused = is_refusal(error);
        if !refused && lasted >= WATCH_SPACING {
            self.refusals = PAUSES;
        }
        self.doubted = true;
        if !matches!(self.position, Position::Version(_)) {
            // Half a list is worth nothing: its continuation may have been what failed.
            let streamed = self.listing == ListMode::InitialEvents;
            self.position = Position::Nowhere;
            if streamed && blames_initial_events(error) {
                self.listing = ListMode::Pages;
                if matches!(error, ApiError::Rejected(_)) {
                    return Duration::ZERO;
                }
            }
        }
        match (error, &mut self.absences) {
            (ApiError::NotFound(_), Some(absences)) => return absences.pause(random),
            (ApiError::Forbidden(_) | ApiError::Unauthorized(_), _) | (_, None) => {}
            // The server may be another, or have been given what it lacked.
            (_, Some(absences)) => *absences = ABSENCE_PAUSES,
        }
        match error {
            ApiError::Gone(_) | ApiError::VersionAhead(_) => {
                self.position = Position::Nowhere;
                self.forgotten.pause(random)
            }
            ApiError::TooManyRequests { retry_after: Some(after) } => {
                // Later than asked rather than sooner: others were given the same. Bounded first: a
                // quarter more than the longest duration is a panic.
                let later = (*after).min(RETRY_AFTER_MAX).mul_f64(1.0 + random / 4.0);
                later.min(RETRY_AFTER_MAX).max(self.faults.pause(random))
            }
            ApiError::Misbehaving(_) => self.nonsense.pause(random),
            ApiError::OverBudget(_) => self.excesses.pause(random),
            _ if refused => self.refusals.pause(random),
            _ => self.faults.pause(random),
        }
    }
}

/// Whether the question was understood, or the server found, and the answer is no.
fn is_refusal(error: &ApiError) -> bool {
    match error {
        ApiError::Unauthorized(_)
        | ApiError::Forbidden(_)
        | ApiError::NotFound(_)
        | ApiError::Misbehaving(_)
        | ApiError::OverBudget(_)
        | ApiError::Tls(_) => true,
        ApiError::Gone(_)
        | ApiError::VersionAhead(_)
        | ApiError::TooManyRequests { .. }
        | ApiError::Unreachable(_)
        | ApiError::Silent { .. }
        | ApiError::Broken { .. }
        | ApiError::Rejected(_)
        | ApiError::Server(_) => false,
    }
}

/// Whether an error may come from asking for initial events rather than from the server's state.
fn blames_initial_events(error: &ApiError) -> bool {
    matches!(
        error,
        ApiError::Rejected(_)
            | ApiError::Server(_)
            | ApiError::Silent { .. }
            | ApiError::Broken { .. }
            | ApiError::Misbehaving(_)
            | ApiError::OverBudget(_)
    )
}

#[cfg(test)]
mod tests {
    use super::super::error::ApiStatus;
    use super::*;

    const AT_ONCE: Duration = Duration::ZERO;
    const LONG: Duration = Duration::from_secs(200);

    struct Run {
        state: WatchState,
        now: Instant,
    }

    impl Run {
        fn new() -> Self {
            Self { state: WatchState::new(), now: Instant::now() }
        }

        fn watching(version: &str) -> Self {
            let mut run = Self::new();
            run.state.listed(version.into(), run.now, 0.5);
            run
        }

        fn ask(&mut self) -> NextRequest {
            self.state.ask(self.now, 0.5)
        }

        /// Of the watch that is asked for, on a server that knows the version.
        fn version(&mut self) -> Option<String> {
            let checked = match self.ask() {
                NextRequest::Check { version } => {
                    self.state.checked();
                    Some(version)
                }
                _ => None,
            };
            match self.ask() {
                NextRequest::Watch { version, .. } if checked.is_none_or(|it| it == version) => {
                    Some(version)
                }
                _ => None,
            }
        }

        fn failed(&mut self, error: ApiError) -> u128 {
            self.state.failed(&error, AT_ONCE, 0.5).as_millis()
        }
    }

    fn gone() -> ApiError {
        ApiError::Gone("old".into())
    }

    fn server(code: u16) -> ApiError {
        ApiError::Server(ApiStatus { code, message: String::new() })
    }

    fn broken() -> ApiError {
        ApiError::Broken { request: String::new(), fact: "reset".into() }
    }

    #[test]
    fn refused_initial_events_become_pages_at_once() {
        let mut run = Run::new();
        assert_eq!(run.ask(), NextRequest::InitialEvents);
        let refusal = ApiError::Rejected(ApiStatus { code: 422, message: "forbidden".into() });
        assert_eq!(run.failed(refusal), 0);
        assert_eq!(run.ask(), NextRequest::Page { token: None });
        run.state.page_read("t".into());
        assert_eq!(run.ask(), NextRequest::Page { token: Some("t".into()) });
        run.state.listed("5".into(), run.now, 0.5);
        assert_eq!(run.version().as_deref(), Some("5"));
        run.failed(gone());
        assert_eq!(run.ask(), NextRequest::Page { token: None }, "pages for good");
    }

    #[test]
    fn a_server_that_is_away_keeps_its_initial_events() {
        let mut run = Run::new();
        run.failed(ApiError::Unreachable("connection refused".into()));
        assert_eq!(run.ask(), NextRequest::InitialEvents);
    }

    #[test]
    fn an_expired_version_means_one_fresh_list_after_a_pause() {
        let mut run = Run::watching("5");
        assert_eq!(run.failed(gone()), 800);
        assert_eq!(run.ask(), NextRequest::InitialEvents);
        run.state.listed("9".into(), run.now, 0.5);
        assert_eq!(run.failed(gone()), 1600, "again at once: longer");
        run.state.listed("9".into(), run.now, 0.5);
        assert_eq!(run.state.failed(&gone(), LONG, 0.5).as_millis(), 800, "after a long while");
    }

    #[test]
    fn a_server_that_was_away_and_forgot_our_version_is_listed_soon() {
        for answer in [gone(), ApiError::VersionAhead("Too large resource version".into())] {
            let mut run = Run::watching("5");
            for _ in 0..6 {
                run.failed(ApiError::Unreachable("connection refused".into()));
            }
            assert_eq!(run.ask(), NextRequest::Check { version: "5".into() });
            assert_eq!(run.failed(answer), 800);
            assert_eq!(run.ask(), NextRequest::InitialEvents);
        }
    }

    #[test]
    fn an_expired_page_begins_the_list_again() {
        let mut run = Run::new();
        run.failed(ApiError::Rejected(ApiStatus { code: 400, message: String::new() }));
        run.state.page_read("t".into());
        assert!(run.failed(gone()) > 0);
        assert_eq!(run.ask(), NextRequest::Page { token: None });
    }

    #[test]
    fn after_a_failure_the_server_is_asked_whether_it_knows_the_version() {
        let mut run = Run::watching("5");
        assert!(matches!(run.ask(), NextRequest::Watch { .. }), "nothing has happened");
        run.failed(broken());
        assert_eq!(run.ask(), NextRequest::Check { version: "5".into() });
        run.failed(ApiError::VersionAhead("Too large resource version".into()));
        assert_eq!(run.ask(), NextRequest::InitialEvents);
        run.state.listed("3".into(), run.now, 0.5);
        assert!(matches!(run.ask(), NextRequest::Watch { .. }));
    }

    #[test]
    fn a_version_ahead_of_the_server_is_given_up() {
        let mut run = Run::watching("5");
        run.failed(ApiError::VersionAhead("Too large resource version".into()));
        assert_eq!(run.ask(), NextRequest::InitialEvents);
    }

    #[test]
    fn other_faults_resume_from_the_last_version() {
        let faults = [
            broken(),
            server(500),
            server(503),
            ApiError::Unreachable(String::new()),
            ApiError::Unauthorized(String::new()),
            ApiError::Forbidden(String::new()),
            ApiError::Tls(String::new()),
            ApiError::Misbehaving(String::new()),
            ApiError::TooManyRequests { retry_after: None },
        ];
        for fault in faults {
            let mut run = Run::watching("5");
            run.state.advanced("7".into());
            run.state.advanced(String::new());
            assert!(run.failed(fault.clone()) > 0, "{fault:?}");
            assert_eq!(run.version().as_deref(), Some("7"), "{fault:?}");
        }
    }

    #[test]
    fn refusals_are_asked_again_ever_more_slowly() {
        let mut run = Run::watching("5");
        let pauses: Vec<_> =
            (0..7).map(|_| run.failed(ApiError::Unauthorized("".into()))).collect();
        assert_eq!(pauses, [800, 1600, 3200, 6400, 12_800, 25_600, 30_000]);
        // A list that is too long is found to be so after much of it was read.
        let (mut run, long) = (Run::new(), Duration::from_secs(20));
        let mut refused = |error: &ApiError| run.state.failed(error, long, 0.5).as_secs_f64();
        let too_long = ApiError::OverBudget("too long".into());
        let pauses: Vec<_> = (0..11).map(|_| refused(&too_long)).collect();
        let minutes = [2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 600.0, 600.0];
        assert_eq!(pauses, minutes, "each costs what it may");
        // A page of somebody in between costs little, and may go.
        let nonsense = ApiError::Misbehaving("a web page".into());
        let pauses: Vec<_> = (0..10).map(|_| refused(&nonsense)).collect();
        assert_eq!((pauses[0], pauses[6], pauses[9]), (0.8, 51.2, 300.0));
    }

    #[test]
    fn what_a_server_needs_not_have_is_asked_for_ever_more_rarely() {
        let absent =
            || ApiError::NotFound("the server could not find the requested resource".into());
        let asked_in_an_hour = |state: WatchState| {
            let (mut run, mut after, mut asked) = (Run { state, ..Run::new() }, AT_ONCE, 0);
            while after < Duration::from_secs(3600) {
                after += run.state.failed(&absent(), AT_ONCE, 0.5);
                asked += 1;
            }
            asked
        };
        assert_eq!(asked_in_an_hour(WatchState::of_optional()), 37);
        assert_eq!(asked_in_an_hour(WatchState::new()), 125, "without it nothing works");
        let mut run = Run { state: WatchState::of_optional(), ..Run::new() };
        for _ in 0..20 {
            run.failed(absent());
        }
        run.failed(ApiError::Unreachable("connection refused".into()));
        assert_eq!(
            run.failed(absent()),
            800,
            "it may have been installed while the server was away"
        );
    }

    #[test]
    fn a_server_that_starts_and_permits_nothing_yet_is_asked_again_soon() {
        let forbidden = || ApiError::Forbidden("services is forbidden".into());
        let mut run = Run::watching("5");
        for _ in 0..6 {
            run.failed(ApiError::Unreachable("connection refused".into()));
        }
        assert_eq!(run.failed(forbidden()), 800, "however long it was away");
        assert_eq!(run.failed(forbidden()), 1600);
        // It was let in, for a while.
        run.state.checked();
        run.state.failed(&broken(), Duration::from_secs(2), 0.5);
        assert_eq!(run.failed(forbidden()), 800, "as soon after the next start");
        // May list, and not watch.
        run.state.checked();
        assert_eq!(run.failed(forbidden()), 1600, "a question that is refused at once is no proof");
    }

    #[test]
    fn retry_after_is_obeyed_up_to_a_minute() {
        let of = |seconds| {
            let retry_after = Some(Duration::from_secs(seconds));
            let error = ApiError::TooManyRequests { retry_after };
            let mut run = Run::watching("5");
            (0..=4u8).map(|i| run.state.failed(&error, LONG, f64::from(i) / 4.0)).collect()
        };
        let seven: Vec<Duration> = of(7);
        assert!(seven.iter().all(|pause| (7.0..=8.75).contains(&pause.as_secs_f64())), "{seven:?}");
        for seconds in [3600, u64::MAX] {
            let long: Vec<Duration> = of(seconds);
            assert!(long.iter().all(|pause| *pause == RETRY_AFTER_MAX), "{seconds}: {long:?}");
        }
    }

    #[test]
    fn watches_that_end_resume_and_never_loop_hot() {
        let mut run = Run::watching("5");
        let second = Duration::from_secs(1);
        for _ in 0..100 {
            assert_eq!(run.state.watch_ended(second, false, 0.5), AT_ONCE, "each second is fine");
            assert_eq!(run.version().as_deref(), Some("5"));
        }
        let soon = Duration::from_millis(10);
        assert_eq!(run.state.watch_ended(soon, true, 0.5).as_millis(), 990, "it told something");
        let mut total = AT_ONCE;
        for _ in 0..100 {
            total += run.state.watch_ended(AT_ONCE, false, 0.5);
        }
        assert!(total > Duration::from_secs(2700), "{total:?}");
    }

    #[test]
    fn a_connection_reset_every_five_seconds_is_read_most_of_the_time() {
        let mut run = Run::watching("5");
        let five = Duration::from_secs(5);
        for _ in 0..100 {
            assert!(run.state.failed(&broken(), five, 1.0) <= Duration::from_secs(1));
        }
        assert_eq!(run.version().as_deref(), Some("5"));
    }

    #[test]
    fn a_fresh_list_is_taken_in_time_whatever_the_watch_says() {
        for (random, seconds) in [(0.0, 480), (0.5, 600), (1.0, 720)] {
            let mut run = Run::new();
            run.state.listed("5".into(), run.now, random);
            run.now += Duration::from_secs(seconds - 10);
            let NextRequest::Watch { lifetime, .. } = run.ask() else { panic!("not yet") };
            assert!(lifetime <= Duration::from_secs(10), "the watch ends in time: {lifetime:?}");
            run.now += Duration::from_secs(10);
            assert_eq!(run.ask(), NextRequest::InitialEvents);
        }
    }

    #[test]
    fn watches_last_some_minutes_at_random() {
        let mut run = Run::watching("5");
        for (random, seconds) in [(0.0, 240), (1.0, 300)] {
            let NextRequest::Watch { lifetime, .. } = run.state.ask(run.now, random) else {
                panic!("a watch")
            };
            assert_eq!(lifetime.as_secs(), seconds);
        }
    }
}
