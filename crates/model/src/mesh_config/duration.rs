//! Durations in the syntax of Istio's configuration: `10s`, `1m30s`, `0.5s`, `250ms`, `0s`.

use std::time::Duration;

use serde::Deserialize;
use serde::de::{Deserializer, Error as _};

/// Units from the longest to the shortest, in nanoseconds.
const UNITS: [(&str, u64); 7] = [
    ("h", 3_600_000_000_000),
    ("m", 60_000_000_000),
    ("s", 1_000_000_000),
    ("ms", 1_000_000),
    ("us", 1_000),
    ("µs", 1_000),
    ("ns", 1),
];

/// The maximum duration. Envoy rejects a resource with a longer one, and Go supports no longer one.
const LONGEST: Duration = Duration::from_secs(2_562_047 * 3600);

/// Parses one or more `<number><unit>` in a row. (Go, `time.ParseDuration`, without signs.)
///
/// # Errors
/// Returns a sentence with the expected and the actual value.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("expected a duration such as 10s, found {text:?}");
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    if text.is_empty() {
        return Err(wrong());
    }
    let mut rest = text;
    let mut total = Duration::ZERO;
    while !rest.is_empty() {
        let number_end = rest.find(|c: char| c != '.' && !c.is_ascii_digit()).ok_or_else(wrong)?;
        let (number, after) = rest.split_at(number_end);
        let unit_end = after.find(|c: char| c == '.' || c.is_ascii_digit()).unwrap_or(after.len());
        let (unit, after) = after.split_at(unit_end);
        let &(_, nanos) = UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(wrong)?;
        total = total.checked_add(amount(number, nanos).ok_or_else(wrong)?).ok_or_else(wrong)?;
        rest = after;
    }
    if total > LONGEST {
        let hours = LONGEST.as_secs() / 3600;
        return Err(format!("expected a duration of at most {hours}h, found {text:?}"));
    }
    Ok(total)
}

/// Multiplies `number` by `nanos`, in integers so that `0.1s` is exactly 100 ms.
fn amount(number: &str, nanos: u64) -> Option<Duration> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() && fraction.is_empty() {
        return None;
    }
    let digits = |text: &str| if text.is_empty() { Some(0) } else { text.parse::<u64>().ok() };
    let mut total = digits(whole)?.checked_mul(nanos)?;
    let mut unit = nanos;
    // Digits below a nanosecond are ignored; anything other than a digit is an error.
    for digit in fraction.chars() {
        unit /= 10;
        total = total.checked_add(u64::from(digit.to_digit(10)?).checked_mul(unit)?)?;
    }
    Some(Duration::from_nanos(total))
}

/// The minimum for durations that Envoy rejects or treats as zero if they are shorter; outlier
/// detection would run continuously.
pub(super) const SHORTEST: Duration = Duration::from_millis(1);
/// The message for shorter durations.
pub const SHORTER: &str = "is less than 1 ms; 1 ms applies";

/// Rounds a time up to Envoy's resolution of one millisecond, because a shorter time other than
/// zero would become zero.
pub fn at_least_a_millisecond(time: Duration) -> Duration {
    if time.is_zero() { time } else { time.max(SHORTEST) }
}

/// A duration as an object writes it. An invalid one makes the whole object invalid.
#[derive(Debug, Clone, Copy, Default)]
pub struct WrittenDuration(pub Duration);

impl<'de> Deserialize<'de> for WrittenDuration {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        parse_duration(&text).map(Self).map_err(D::Error::custom)
    }
}

/// Formats a duration like protobuf's JSON: in seconds, with as many decimals as needed.
pub fn format_duration(duration: Duration) -> String {
    let nanos = duration.subsec_nanos();
    if nanos == 0 {
        return format!("{}s", duration.as_secs());
    }
    let decimals = format!("{nanos:09}");
    format!("{}.{}s", duration.as_secs(), decimals.trim_end_matches('0'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_numbers_with_units() {
        let cases = [
            ("0", 0),
            ("0s", 0),
            ("10s", 10_000),
            ("1m", 60_000),
            ("1m30s", 90_000),
            ("1.5h", 5_400_000),
            ("0.1s", 100),
            (".5s", 500),
            ("250ms", 250),
            ("2562047h", 2_562_047 * 3_600_000),
        ];
        for (text, millis) in cases {
            assert_eq!(parse_duration(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        for text in [
            "",
            "10",
            "s",
            "10x",
            "-1s",
            "1 s",
            "1..5s",
            ".s",
            "1sm",
            "2562047h1s",
            "99999999999999h",
        ] {
            assert!(parse_duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn durations_are_written_in_seconds() {
        for (millis, text) in [(0, "0s"), (10_000, "10s"), (1_500, "1.5s"), (50, "0.05s")] {
            assert_eq!(format_duration(Duration::from_millis(millis)), text);
        }
    }
}
