//! Durations in flags and environment variables: whole numbers with units, largest unit first.
//!
//! Istio objects use Go's syntax (`1.5h`, `µs`), which has no days;
//! `strait_model::mesh_config::parse_duration` parses it.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// A duration on the command line: `24h`, `1h30m`, `30s`, `250ms`, `90d`, `0s`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct HumanDuration(pub Duration);

impl FromStr for HumanDuration {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        parse_duration(text).map(Self)
    }
}

impl fmt::Display for HumanDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = self.0.as_millis();
        if rest == 0 {
            return f.write_str("0s");
        }
        for (unit, milliseconds) in UNITS {
            let count = rest / u128::from(milliseconds);
            if count > 0 {
                write!(f, "{count}{unit}")?;
                rest %= u128::from(milliseconds);
            }
        }
        Ok(())
    }
}

/// Each unit in milliseconds, largest first.
const UNITS: [(&str, u64); 5] =
    [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];

/// Parses one or more whole numbers with units, largest unit first: `1h30m`.
///
/// # Errors
/// Returns a message for the user.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text:?} is not a duration (for example 30s, 90m, 1h30m or 24h)");
    let mut milliseconds: u64 = 0;
    let mut rest = text;
    let mut units = UNITS.iter();
    while !rest.is_empty() || text.is_empty() {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let (number, after) = rest.split_at(digits);
        let letters = after.bytes().take_while(u8::is_ascii_alphabetic).count();
        let (unit, after) = after.split_at(letters);
        // A single pass through the units requires descending order and each unit at most once.
        let (_, factor) = units.find(|(name, _)| *name == unit).ok_or_else(wrong)?;
        let number: u64 = number.parse().map_err(|_| wrong())?;
        milliseconds = number
            .checked_mul(*factor)
            .and_then(|part| milliseconds.checked_add(part))
            .ok_or_else(|| format!("{text:?} is too long"))?;
        rest = after;
    }
    Ok(Duration::from_millis(milliseconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_parsed_and_printed() {
        for (text, milliseconds, printed) in [
            ("24h", 86_400_000, "1d"),
            ("90m", 5_400_000, "1h30m"),
            ("30s", 30_000, "30s"),
            ("1h30m", 5_400_000, "1h30m"),
            ("1h1s", 3_601_000, "1h1s"),
            ("250ms", 250, "250ms"),
            ("90d", 7_776_000_000, "90d"),
            ("0s", 0, "0s"),
        ] {
            let read: HumanDuration = text.parse().expect(text);
            assert_eq!(read.0, Duration::from_millis(milliseconds), "{text}");
            assert_eq!(read.to_string(), printed);
        }
    }

    #[test]
    fn invalid_duration_is_refused() {
        for text in [
            "",
            "30",
            "s",
            "1 h",
            "-1s",
            "+1s",
            "1.5h",
            "1h1h",
            "1s1h",
            "1x",
            "1h 30m",
            "1H",
            "٣s",
            "999999999999999999999s",
            "18446744073709551615d",
        ] {
            assert!(parse_duration(text).is_err(), "{text:?} was taken");
        }
    }
}
