//! Remaining lifetime of a root. Pure.
//!
//! Replacing a root takes weeks (docs/how-to/rotate-certificates.md), so its expiry is reported long in
//! advance.

use std::time::{Duration, SystemTime};

use x509_parser::prelude::{FromDer as _, X509Certificate};

use super::peer::validity;
use super::pem;

const DAY: Duration = Duration::from_secs(24 * 3600);

/// Subject and validity of a root.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RootLife {
    /// Subject of the root, for example `O=Strait, CN=…`.
    pub subject: String,
    /// Start of the validity.
    pub begins: SystemTime,
    /// End of the validity.
    pub ends: SystemTime,
}

/// Stage of a root's approaching expiry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum RootStage {
    /// Far from expiry.
    Fine,
    /// Less than a fifth of the lifetime is left.
    Fifth,
    /// Less than 30 days are left.
    Month,
    /// Less than 7 days are left.
    Week,
    /// The root has expired.
    Ended,
}

/// Returns the period of validity of the first certificate in a text in PEM.
pub fn certificate_lifetime(text: &[u8]) -> Option<(SystemTime, SystemTime)> {
    let certificates = pem::certificates(text, "a chain").ok()?;
    validity(certificates.first()?)
}

/// Returns whether the issuer of a certificate should have renewed it: less than 7 days are left, or
/// less than a fifth of the lifetime if that is shorter.
pub(super) fn ends_soon((begins, ends): (SystemTime, SystemTime), now: SystemTime) -> bool {
    let remaining = ends.duration_since(now).unwrap_or_default();
    let life = ends.duration_since(begins).unwrap_or_default();
    remaining < (DAY * 7).min(life / 5)
}

impl RootLife {
    /// Reads a certificate in DER. Returns `None` if it can't be parsed.
    pub(super) fn read(der: &[u8]) -> Option<Self> {
        let (begins, ends) = validity(&der.into())?;
        let (_, parsed) = X509Certificate::from_der(der).ok()?;
        Some(Self { subject: parsed.subject().to_string(), begins, ends })
    }

    /// Returns the stage at `now`. The stages in days apply only to roots that live more than twice
    /// as long.
    pub fn stage(&self, now: SystemTime) -> RootStage {
        let Ok(remaining) = self.ends.duration_since(now) else { return RootStage::Ended };
        let life = self.ends.duration_since(self.begins).unwrap_or_default();
        let within = |days: u32| remaining < DAY * days && life > DAY * days * 2;
        if within(7) {
            RootStage::Week
        } else if within(30) {
            RootStage::Month
        } else if remaining < life / 5 {
            RootStage::Fifth
        } else {
            RootStage::Fine
        }
    }
}

impl RootStage {
    /// Returns the name in `/debug/push`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Fine => "fine",
            Self::Fifth => "fifth",
            Self::Month => "month",
            Self::Week => "week",
            Self::Ended => "ended",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expiry_of_a_root_has_stages() {
        let begins = SystemTime::UNIX_EPOCH;
        let root =
            |life: u32| RootLife { subject: String::new(), begins, ends: begins + DAY * life };
        let stages = |life: u32, remaining: [u32; 4]| {
            remaining.map(|days| root(life).stage(begins + DAY * (life - days)))
        };
        use RootStage::{Fifth, Fine, Month, Week};
        assert_eq!(stages(3650, [731, 729, 29, 6]), [Fine, Fifth, Month, Week]);
        // A root with a lifetime of a month must not be reported during all of it.
        assert_eq!(stages(30, [30, 7, 5, 1]), [Fine, Fine, Week, Week]);
        assert_eq!(stages(10, [10, 3, 1, 1]), [Fine, Fine, Fifth, Fifth]);
        assert_eq!(root(10).stage(begins + DAY * 11), RootStage::Ended);
    }

    #[test]
    fn certificate_ends_soon_in_its_last_week_or_fifth() {
        let begins = SystemTime::UNIX_EPOCH;
        let ends_soon =
            |life: u32, age: u32| ends_soon((begins, begins + DAY * life), begins + DAY * age);
        assert!(!ends_soon(365, 357) && ends_soon(365, 359));
        assert!(!ends_soon(10, 8) && ends_soon(10, 9), "cert-manager renews at two thirds");
        assert!(ends_soon(10, 11), "it has expired");
    }
}
