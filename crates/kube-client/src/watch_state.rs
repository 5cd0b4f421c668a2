//! The list-and-watch protocol as a state machine: the next request to an API server, and its time.
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
//! Does no I/O and reads no clock; [`super::watch`] carries out its decisions. The rules are the
//! same as in client-go's reflector, with two additions. A watch that ends at once is not restarted
//! at once. And because a watch after a restore of etcd may wait forever for a version that no
//! longer exists (kubernetes issue 107457), each failure is followed by a check whether the server
//! has reached the version, and fresh lists are requested at intervals whatever the watch reports.

use std::time::{Duration, Instant};

use super::ApiError;
use super::backoff::Backoff;

/// The interval of fresh lists, plus or minus a fifth.
const RELIST_PERIOD: Duration = Duration::from_secs(600);
/// The range of the requested duration of a watch. It is random, so that watches don't all end
/// together.
const WATCH_LIFETIME_MIN: Duration = Duration::from_secs(240);
const WATCH_LIFETIME_MAX: Duration = Duration::from_secs(300);
/// Pauses between failed requests.
const PAUSES: Backoff = Backoff::new(Duration::from_millis(800), Duration::from_secs(30));
/// Pauses after responses that an optional kind does not exist: thousands of servers may never have
/// it.
const ABSENCE_PAUSES: Backoff = Backoff::new(Duration::from_millis(800), Duration::from_secs(120));
/// Pauses after invalid responses: a proxy in front of the server may send them temporarily.
const NONSENSE_PAUSES: Backoff = Backoff::new(Duration::from_millis(800), Duration::from_secs(300));
/// Pauses after too large responses: the next one would probably be too large as well.
const EXCESS_PAUSES: Backoff = Backoff::new(Duration::from_secs(2), Duration::from_secs(600));
/// Minimum interval between the starts of watches that end without an error.
pub(super) const WATCH_SPACING: Duration = Duration::from_secs(1);
/// Number of watches in a row that end at once without an event before that is a failure. A server that
/// shuts down also ends watches.
const SHORT_WATCHES: u32 = 3;
/// Maximum `Retry-After` that is respected.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(60);

/// The next request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum NextRequest {
    /// A page of a list: the first, or the one after `token`.
    Page { token: Option<String> },
    /// A watch that begins with all objects (`sendInitialEvents`).
    InitialEvents,
    /// A check whether the server has reached `version`.
    Check { version: String },
    /// A watch of changes after `version`, for the duration `lifetime`.
    Watch { version: String, lifetime: Duration },
}

/// The progress of reading a kind, and its failures so far.
#[derive(Debug)]
pub(super) struct WatchState {
    position: Position,
    /// Whether a different server may have sent the version.
    doubted: bool,
    listing: ListMode,
    /// When the position is discarded for a fresh list.
    relist_at: Option<Instant>,
    /// After transient errors: lost connections, server errors.
    faults: Backoff,
    /// After versions that the server doesn't know. The server responds then, so an earlier outage
    /// is no reason to wait.
    forgotten: Backoff,
    /// After responses that only an operator's action changes: 401, 403, 404. They may be temporary
    /// too: a server that has just started denies all requests until it has read its authorization
    /// rules.
    refusals: Backoff,
    /// After responses that an optional kind does not exist.
    absences: Option<Backoff>,
    /// After invalid responses, which each cost little.
    nonsense: Backoff,
    /// After too large responses, which each cost up to the limit.
    excesses: Backoff,
    /// The number of watches in a row that ended at once without an event.
    short_watches: u32,
}

#[derive(Debug, PartialEq, Eq)]
enum Position {
    /// No version is known, or it is no longer trusted.
    Nowhere,
    /// In the middle of a list.
    Page { token: String },
    /// All changes up to this version are known.
    Version(String),
}

/// How all objects are requested. An API server rejects initial events if it is too old for them or
/// has them disabled; from then on, pages are requested.
#[derive(Debug, PartialEq, Eq)]
enum ListMode {
    InitialEvents,
    Pages,
}

impl WatchState {
    /// Creates a state that begins with a list.
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
            short_watches: 0,
        }
    }

    /// Creates a state for a kind that a server may lack.
    pub(super) fn new_optional() -> Self {
        Self { absences: Some(ABSENCE_PAUSES), ..Self::new() }
    }

    /// Returns the request to send now. `random` is in `0..1`.
    pub(super) fn next_request(&mut self, now: Instant, random: f64) -> NextRequest {
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
                // The API server counts whole seconds, and 0 means its own default.
                let lifetime = lifetime.min(until_relist).max(Duration::from_secs(1));
                NextRequest::Watch { version: version.clone(), lifetime }
            }
        }
    }

    /// Discards the position for a fresh list.
    pub(super) fn start_over(&mut self) {
        self.position = Position::Nowhere;
        self.relist_at = None;
    }

    /// Records that a page was received, with more after `token`.
    pub(super) fn page_read(&mut self, token: String) {
        self.position = Position::Page { token };
    }

    /// Records that all objects were received, by pages or as initial events, as of `version`.
    pub(super) fn listed(&mut self, version: String, now: Instant, random: f64) {
        self.position = Position::Version(version);
        self.doubted = false;
        self.relist_at = Some(now + RELIST_PERIOD.mul_f64(0.8 + 0.4 * random));
    }

    /// Records that the server has reached the version.
    pub(super) fn checked(&mut self) {
        self.doubted = false;
    }

    /// Records that the watch reported everything up to `version`. Versions are opaque: the last
    /// reported one applies, not the greatest.
    pub(super) fn advanced(&mut self, version: String) {
        if !version.is_empty() {
            self.position = Position::Version(version);
        }
    }

    /// Whether so many watches ended at once without an event that a new watch counts as a success
    /// only after a second or an event.
    pub(super) fn has_short_watches(&self) -> bool {
        self.short_watches >= SHORT_WATCHES
    }

    /// Records that the watch ended without an error after `lasted`; `has_events` is whether it
    /// reported anything. Returns the pause before the next request, or `None` if this is a failure:
    /// several watches in a row ended at once without an event.
    pub(super) fn watch_ended(
        &mut self,
        lasted: Duration,
        has_events: bool,
        random: f64,
    ) -> Option<Duration> {
        if has_events || lasted >= WATCH_SPACING {
            self.short_watches = 0;
            self.faults.record_duration(lasted);
            self.forgotten.record_duration(lasted);
            self.refusals.record_duration(lasted);
            if let Some(absences) = &mut self.absences {
                absences.record_duration(lasted);
            }
            self.nonsense.record_duration(lasted);
            self.excesses.record_duration(lasted);
            return Some(WATCH_SPACING.saturating_sub(lasted));
        }
        self.short_watches = self.short_watches.saturating_add(1);
        (!self.has_short_watches()).then(|| self.faults.pause(random))
    }

    /// Records that the request failed after `lasted`. Returns the pause before the next one.
    pub(super) fn failed(&mut self, error: &ApiError, lasted: Duration, random: f64) -> Duration {
        self.faults.record_duration(lasted);
        self.forgotten.record_duration(lasted);
        // A slow refusal is no reason to retry sooner. Any other request that lasted was accepted,
        // or reached no server.
        let refused = is_refusal(error);
        if !refused && lasted >= WATCH_SPACING {
            self.refusals = PAUSES;
        }
        self.doubted = true;
        if !matches!(self.position, Position::Version(_)) {
            // An incomplete list is useless: its continuation may have caused the failure.
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
            // The server may be a different one, or the kind may have been installed.
            (_, Some(absences)) => *absences = ABSENCE_PAUSES,
        }
        match error {
            ApiError::Gone(_) | ApiError::VersionAhead(_) => {
                self.position = Position::Nowhere;
                self.forgotten.pause(random)
            }
            ApiError::TooManyRequests { retry_after: Some(after) } => {
                // Later than requested rather than sooner, because other clients received the same
                // value. Limited first: a quarter more than the longest duration would panic.
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

/// Whether the request was understood, or the server was found, and the response is a refusal.
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

/// Whether an error may be caused by the request for initial events instead of the server's state.
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

    const NO_DELAY: Duration = Duration::ZERO;
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

        fn next_request(&mut self) -> NextRequest {
            self.state.next_request(self.now, 0.5)
        }

        /// Returns the version of the requested watch, on a server that has reached it.
        fn version(&mut self) -> Option<String> {
            let checked = match self.next_request() {
                NextRequest::Check { version } => {
                    self.state.checked();
                    Some(version)
                }
                _ => None,
            };
            match self.next_request() {
                NextRequest::Watch { version, .. } if checked.is_none_or(|it| it == version) => {
                    Some(version)
                }
                _ => None,
            }
        }

        fn failed(&mut self, error: ApiError) -> u128 {
            self.state.failed(&error, NO_DELAY, 0.5).as_millis()
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
    fn rejected_initial_events_are_replaced_by_pages_at_once() {
        let mut run = Run::new();
        assert_eq!(run.next_request(), NextRequest::InitialEvents);
        let refusal = ApiError::Rejected(ApiStatus { code: 422, message: "forbidden".into() });
        assert_eq!(run.failed(refusal), 0);
        assert_eq!(run.next_request(), NextRequest::Page { token: None });
        run.state.page_read("t".into());
        assert_eq!(run.next_request(), NextRequest::Page { token: Some("t".into()) });
        run.state.listed("5".into(), run.now, 0.5);
        assert_eq!(run.version().as_deref(), Some("5"));
        run.failed(gone());
        assert_eq!(run.next_request(), NextRequest::Page { token: None }, "pages from now on");
    }

    #[test]
    fn unreachable_server_keeps_its_initial_events() {
        let mut run = Run::new();
        run.failed(ApiError::Unreachable("connection refused".into()));
        assert_eq!(run.next_request(), NextRequest::InitialEvents);
    }

    #[test]
    fn expired_version_causes_one_fresh_list_after_a_pause() {
        let mut run = Run::watching("5");
        assert_eq!(run.failed(gone()), 800);
        assert_eq!(run.next_request(), NextRequest::InitialEvents);
        run.state.listed("9".into(), run.now, 0.5);
        assert_eq!(run.failed(gone()), 1600, "again at once: longer");
        run.state.listed("9".into(), run.now, 0.5);
        assert_eq!(run.state.failed(&gone(), LONG, 0.5).as_millis(), 800, "after a long while");
    }

    #[test]
    fn server_that_returns_without_the_version_is_listed_soon() {
        for answer in [gone(), ApiError::VersionAhead("Too large resource version".into())] {
            let mut run = Run::watching("5");
            for _ in 0..6 {
                run.failed(ApiError::Unreachable("connection refused".into()));
            }
            assert_eq!(run.next_request(), NextRequest::Check { version: "5".into() });
            assert_eq!(run.failed(answer), 800);
            assert_eq!(run.next_request(), NextRequest::InitialEvents);
        }
    }

    #[test]
    fn expired_page_restarts_the_list() {
        let mut run = Run::new();
        run.failed(ApiError::Rejected(ApiStatus { code: 400, message: String::new() }));
        run.state.page_read("t".into());
        assert!(run.failed(gone()) > 0);
        assert_eq!(run.next_request(), NextRequest::Page { token: None });
    }

    #[test]
    fn version_is_checked_after_a_failure() {
        let mut run = Run::watching("5");
        assert!(matches!(run.next_request(), NextRequest::Watch { .. }), "nothing was reported");
        run.failed(broken());
        assert_eq!(run.next_request(), NextRequest::Check { version: "5".into() });
        run.failed(ApiError::VersionAhead("Too large resource version".into()));
        assert_eq!(run.next_request(), NextRequest::InitialEvents);
        run.state.listed("3".into(), run.now, 0.5);
        assert!(matches!(run.next_request(), NextRequest::Watch { .. }));
    }

    #[test]
    fn version_ahead_of_the_server_is_discarded() {
        let mut run = Run::watching("5");
        run.failed(ApiError::VersionAhead("Too large resource version".into()));
        assert_eq!(run.next_request(), NextRequest::InitialEvents);
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
    fn refused_requests_are_retried_at_growing_intervals() {
        let mut run = Run::watching("5");
        let pauses: Vec<_> =
            (0..7).map(|_| run.failed(ApiError::Unauthorized("".into()))).collect();
        assert_eq!(pauses, [800, 1600, 3200, 6400, 12_800, 25_600, 30_000]);
        // A list is found to be too long only after much of it was read.
        let (mut run, long) = (Run::new(), Duration::from_secs(20));
        let mut refused = |error: &ApiError| run.state.failed(error, long, 0.5).as_secs_f64();
        let too_long = ApiError::OverBudget("too long".into());
        let pauses: Vec<_> = (0..11).map(|_| refused(&too_long)).collect();
        let minutes = [2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 600.0, 600.0];
        assert_eq!(pauses, minutes, "each response costs up to the limit");
        // A page from a proxy costs little, and may be temporary.
        let nonsense = ApiError::Misbehaving("a web page".into());
        let pauses: Vec<_> = (0..10).map(|_| refused(&nonsense)).collect();
        assert_eq!((pauses[0], pauses[6], pauses[9]), (0.8, 51.2, 300.0));
    }

    #[test]
    fn missing_optional_kind_is_requested_at_growing_intervals() {
        let absent =
            || ApiError::NotFound("the server could not find the requested resource".into());
        let requests_per_hour = |state: WatchState| {
            let (mut run, mut after, mut requests) = (Run { state, ..Run::new() }, NO_DELAY, 0);
            while after < Duration::from_secs(3600) {
                after += run.state.failed(&absent(), NO_DELAY, 0.5);
                requests += 1;
            }
            requests
        };
        assert_eq!(requests_per_hour(WatchState::new_optional()), 37);
        assert_eq!(requests_per_hour(WatchState::new()), 125, "the kind is required");
        let mut run = Run { state: WatchState::new_optional(), ..Run::new() };
        for _ in 0..20 {
            run.failed(absent());
        }
        run.failed(ApiError::Unreachable("connection refused".into()));
        assert_eq!(run.failed(absent()), 800, "the kind may have been installed during the outage");
    }

    #[test]
    fn starting_server_that_denies_requests_is_retried_soon() {
        let forbidden = || ApiError::Forbidden("services is forbidden".into());
        let mut run = Run::watching("5");
        for _ in 0..6 {
            run.failed(ApiError::Unreachable("connection refused".into()));
        }
        assert_eq!(run.failed(forbidden()), 800, "independent of the length of the outage");
        assert_eq!(run.failed(forbidden()), 1600);
        // Requests were accepted for a while.
        run.state.checked();
        run.state.failed(&broken(), Duration::from_secs(2), 0.5);
        assert_eq!(run.failed(forbidden()), 800, "at once after the next start");
        // Lists are allowed, watches are not.
        run.state.checked();
        assert_eq!(
            run.failed(forbidden()),
            1600,
            "a request that is refused at once is no success"
        );
    }

    #[test]
    fn retry_after_is_respected_up_to_a_minute() {
        let pauses_after = |seconds| {
            let retry_after = Some(Duration::from_secs(seconds));
            let error = ApiError::TooManyRequests { retry_after };
            let mut run = Run::watching("5");
            (0..=4u8).map(|i| run.state.failed(&error, LONG, f64::from(i) / 4.0)).collect()
        };
        let seven: Vec<Duration> = pauses_after(7);
        assert!(seven.iter().all(|pause| (7.0..=8.75).contains(&pause.as_secs_f64())), "{seven:?}");
        for seconds in [3600, u64::MAX] {
            let long: Vec<Duration> = pauses_after(seconds);
            assert!(long.iter().all(|pause| *pause == RETRY_AFTER_MAX), "{seconds}: {long:?}");
        }
    }

    #[test]
    fn ended_watches_resume_without_a_busy_loop() {
        let mut run = Run::watching("5");
        let second = Duration::from_secs(1);
        for _ in 0..100 {
            assert_eq!(
                run.state.watch_ended(second, false, 0.5),
                Some(NO_DELAY),
                "once per second is allowed"
            );
            assert_eq!(run.version().as_deref(), Some("5"));
        }
        let soon = Duration::from_millis(10);
        assert_eq!(
            run.state.watch_ended(soon, true, 0.5).map(|pause| pause.as_millis()),
            Some(990),
            "it reported something"
        );
        let mut total = NO_DELAY;
        for _ in 0..100 {
            let pause = run.state.watch_ended(NO_DELAY, false, 0.5);
            total += pause.unwrap_or_else(|| run.state.failed(&broken(), NO_DELAY, 0.5));
        }
        assert!(total > Duration::from_secs(2700), "{total:?}");
    }

    #[test]
    fn watches_that_end_at_once_without_an_event_are_a_failure() {
        let mut run = Run::watching("5");
        let soon = Duration::from_millis(10);
        let ended = |run: &mut Run| run.state.watch_ended(soon, false, 0.5).is_some();
        assert!(ended(&mut run) && ended(&mut run), "a server that shuts down does so too");
        assert!(!ended(&mut run) && run.state.has_short_watches());
        // Neither a check nor a fresh list is a sign that watches work.
        run.failed(broken());
        assert_eq!(run.version().as_deref(), Some("5"));
        run.state.listed("9".into(), run.now, 0.5);
        assert!(!ended(&mut run) && run.state.has_short_watches());
        for (lasted, has_events) in [(soon, true), (LONG, false)] {
            assert!(run.state.watch_ended(lasted, has_events, 0.5).is_some());
            assert!(!run.state.has_short_watches());
            assert!(ended(&mut run) && ended(&mut run) && !ended(&mut run));
        }
    }

    #[test]
    fn connection_reset_every_five_seconds_is_read_most_of_the_time() {
        let mut run = Run::watching("5");
        let five = Duration::from_secs(5);
        for _ in 0..100 {
            assert!(run.state.failed(&broken(), five, 1.0) <= Duration::from_secs(1));
        }
        assert_eq!(run.version().as_deref(), Some("5"));
    }

    #[test]
    fn fresh_list_is_requested_at_intervals_whatever_the_watch_reports() {
        for (random, seconds) in [(0.0, 480), (0.5, 600), (1.0, 720)] {
            let mut run = Run::new();
            run.state.listed("5".into(), run.now, random);
            run.now += Duration::from_secs(seconds - 10);
            let NextRequest::Watch { lifetime, .. } = run.next_request() else { panic!("not yet") };
            assert!(lifetime <= Duration::from_secs(10), "the watch ends in time: {lifetime:?}");
            run.now += Duration::from_secs(10);
            assert_eq!(run.next_request(), NextRequest::InitialEvents);
        }
    }

    #[test]
    fn watches_last_some_minutes_at_random() {
        let mut run = Run::watching("5");
        for (random, seconds) in [(0.0, 240), (1.0, 300)] {
            let NextRequest::Watch { lifetime, .. } = run.state.next_request(run.now, random)
            else {
                panic!("a watch")
            };
            assert_eq!(lifetime.as_secs(), seconds);
        }
    }
}
