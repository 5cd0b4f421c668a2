//! Computes when keys are fetched again. Pure.

use std::time::Duration;

/// Refresh interval if the server specifies none.
const REFRESH: Duration = Duration::from_secs(20 * 60);
/// Minimum and maximum of the interval that a server specifies.
const REFRESH_LIMITS: [Duration; 2] = [Duration::from_secs(60), Duration::from_secs(6 * 60 * 60)];
/// Pause after the first of several failures in a row. It doubles with each further failure.
const RETRY_FIRST: Duration = Duration::from_secs(1);
/// Maximum pause after a failure.
const RETRY_MOST: Duration = Duration::from_secs(60 * 60);

/// Returns the time from a success to the next fetch. `random` from 0 to 1 spreads the fetches.
pub(super) fn after_success(max_age: Option<Duration>, random: f64) -> Duration {
    let [least, most] = REFRESH_LIMITS;
    let wait = max_age.unwrap_or(REFRESH).clamp(least, most);
    // Never later than the server specified, within the limits.
    wait.mul_f64(0.9 + 0.1 * random).max(least)
}

/// Returns the pause after this number of failures in a row, at least 1.
pub(super) fn after_failure(failures: u32, random: f64) -> Duration {
    let doubled = 1_u32.checked_shl(failures.saturating_sub(1)).unwrap_or(u32::MAX);
    RETRY_FIRST.saturating_mul(doubled).min(RETRY_MOST).mul_f64(0.5 + 0.5 * random)
}

/// Returns how long a response is fresh: the `max-age` of `Cache-Control` (RFC 9111, 5.2.2.1); zero
/// if it must not be cached.
pub(super) fn max_age(cache_control: &str) -> Option<Duration> {
    let mut found = None;
    for directive in cache_control.split(',') {
        let (name, value) = directive.split_once('=').unwrap_or((directive, ""));
        match name.trim().to_ascii_lowercase().as_str() {
            "no-store" | "no-cache" => return Some(Duration::ZERO),
            "max-age" if found.is_none() => {
                let seconds = value.trim().trim_matches('"').parse().ok();
                found = seconds.map(Duration::from_secs);
            }
            _ => {}
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn seconds(count: u64) -> Duration {
        Duration::from_secs(count)
    }

    #[test]
    fn server_sets_the_interval_within_limits() {
        let cases = [
            (None, 1200),
            (Some(0), 60),
            (Some(300), 300),
            (Some(7 * 3600), 6 * 3600),
            (Some(u64::MAX), 6 * 3600),
        ];
        for (max_age, wait) in cases {
            let max_age = max_age.map(seconds);
            assert_eq!(after_success(max_age, 1.0), seconds(wait), "{max_age:?}");
            let soonest = after_success(max_age, 0.0);
            assert!(soonest >= seconds(60) && soonest <= seconds(wait), "{soonest:?}");
        }
    }

    #[test]
    fn pauses_grow_with_each_failure_up_to_an_hour() {
        let delays =
            [1, 2, 3, 4, 12, 13, 40].map(|failures| after_failure(failures, 1.0).as_secs());
        assert_eq!(delays, [1, 2, 4, 8, 2048, 3600, 3600]);
        assert_eq!(after_failure(3, 0.0), seconds(2));
        assert_eq!(after_failure(u32::MAX, 0.0), seconds(1800));
    }

    #[test]
    fn max_age_is_read_in_any_form() {
        let cases = [
            ("public, max-age=300, must-revalidate", Some(300)),
            ("Max-Age=\"60\"", Some(60)),
            ("max-age=600, no-store", Some(0)),
            ("no-cache", Some(0)),
            ("public", None),
            ("max-age=soon", None),
            ("max-age=-1", None),
            ("", None),
        ];
        for (text, expected) in cases {
            assert_eq!(max_age(text), expected.map(seconds), "{text:?}");
        }
    }
}
