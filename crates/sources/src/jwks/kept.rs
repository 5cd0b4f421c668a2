//! Storage of keys for restarts, in a file of the state directory. The keys are public, so the file
//! contains no secret.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use super::guard::{AddressFault, DialRules};
use strait_base::durable;
use strait_model::fetched_keys::KeyPlace;

/// Maximum size of the file in bytes. Written files are smaller: 512 locations of 2 KiB with keys
/// of 64 KiB take 34 MiB, and a quotation mark takes two bytes.
const FILE_MAX: u64 = 96 * 1024 * 1024;

/// The last valid keys of each location.
pub(super) type RememberedKeys = BTreeMap<KeyPlace, ValidKeys>;

/// Valid keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ValidKeys {
    /// A JSON Web Key Set.
    pub(super) keys: Arc<str>,
    /// When they were fetched.
    pub(super) at: SystemTime,
    /// The addresses that were dialled to fetch them, including redirects; empty if an older
    /// version stored them.
    pub(super) from: Arc<[IpAddr]>,
}

/// The reason why stored keys are not used.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum UnusableKeys {
    /// They came from an address that must not be dialled any more.
    #[error("they came from {0}, {1}")]
    From(IpAddr, AddressFault),
    /// Their source addresses are unknown, and some addresses are denied.
    #[error("their source address is unknown, and --jwks-deny names addresses")]
    FromUnknown,
}

impl ValidKeys {
    /// Checks whether they may still be used.
    pub(super) fn check(&self, rules: &DialRules) -> Result<(), UnusableKeys> {
        if self.from.is_empty() && !rules.denied.is_empty() {
            return Err(UnusableKeys::FromUnknown);
        }
        let fault = |from: &IpAddr| Some(UnusableKeys::From(*from, rules.denial(*from)?));
        self.from.iter().find_map(fault).map_or(Ok(()), Err)
    }
}

#[derive(Serialize, Deserialize)]
struct StoredKeys {
    issuer: bool,
    place: String,
    keys: String,
    /// Seconds since the Unix epoch.
    fetched: u64,
    #[serde(default)]
    from: Vec<IpAddr>,
}

/// Reads the file. Returns nothing if it does not exist.
///
/// # Errors
/// Fails if the file cannot be read or is invalid.
pub(super) fn read(file: &Path) -> io::Result<RememberedKeys> {
    let bytes = match durable::read_at_most(file, FILE_MAX) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(BTreeMap::new()),
        read => read?,
    };
    let stored: Vec<StoredKeys> = serde_json::from_slice(&bytes)?;
    let read = |one: StoredKeys| {
        let place: Arc<str> = one.place.into();
        let place = if one.issuer { KeyPlace::Issuer(place) } else { KeyPlace::Uri(place) };
        // The file is checked like a server's response.
        let keys = strait_base::verifying_keys::verifying_keys(&one.keys).ok()?;
        let at = UNIX_EPOCH.checked_add(Duration::from_secs(one.fetched))?;
        Some((place, ValidKeys { keys: keys.into(), at, from: one.from.into() }))
    };
    Ok(stored.into_iter().filter_map(read).collect())
}

/// Replaces the content of the file.
pub(super) fn write(file: &Path, keys: &RememberedKeys) -> io::Result<()> {
    let stored = keys.iter().map(|(place, ValidKeys { keys, at, from })| {
        let (KeyPlace::Uri(text) | KeyPlace::Issuer(text)) = place;
        StoredKeys {
            issuer: matches!(place, KeyPlace::Issuer(_)),
            place: text.to_string(),
            keys: keys.to_string(),
            fetched: at.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
            from: from.to_vec(),
        }
    });
    let bytes = serde_json::to_vec(&stored.collect::<Vec<_>>())?;
    durable::replace(file, &bytes, 0o600)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn valid_keys(from: &[&str]) -> ValidKeys {
        let from = from.iter().map(|address| address.parse().expect("an address")).collect();
        ValidKeys { keys: "{}".into(), at: UNIX_EPOCH, from }
    }

    #[test]
    fn keys_from_an_address_that_is_denied_now_are_not_used() {
        let rules = |denied: &[&str]| DialRules {
            loopback: false,
            denied: denied.iter().map(|range| range.parse().expect("a range")).collect(),
        };
        for (from, denied, is_used) in [
            (&["10.0.0.1"][..], &[][..], true),
            (&["10.0.0.1"], &["192.0.2.0/24"], true),
            (&["10.0.0.1"], &["10.0.0.0/8"], false),
            (&["::ffff:10.0.0.1"], &["10.0.0.0/8"], false),
            // A redirect led there.
            (&["192.0.2.1", "10.0.0.1"], &["10.0.0.0/8"], false),
            (&[], &[], true),
            (&[], &["10.0.0.0/8"], false),
            // Written literally in a policy, which is checked when it is dialled.
            (&["127.0.0.1"], &["10.0.0.0/8"], true),
        ] {
            assert_eq!(
                valid_keys(from).check(&rules(denied)).is_ok(),
                is_used,
                "{from:?} {denied:?}"
            );
        }
    }
}
