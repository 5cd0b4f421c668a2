//! Keys as they are kept over a restart, in a file of the state directory: public keys, so it holds no secret.

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

/// The most bytes of the file. What is written stays within: 512 places of 2 KiB with keys of 64 KiB have 34 MiB, and a
/// quotation mark counts twice.
const FILE_MAX: u64 = 96 * 1024 * 1024;

/// The last keys of each place that made sense.
pub(super) type RememberedKeys = BTreeMap<KeyPlace, GoodKeys>;

/// Keys that made sense.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct GoodKeys {
    /// A JSON Web Key Set.
    pub(super) keys: Arc<str>,
    /// When they came.
    pub(super) at: SystemTime,
    /// The addresses that were dialled for them, redirects among them; none where an older version kept them.
    pub(super) from: Arc<[IpAddr]>,
}

/// Why keys that were kept are not used.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum UnusableKeys {
    /// They came from an address that may not be dialled any more.
    #[error("they came from {0}, {1}")]
    From(IpAddr, AddressFault),
    /// Nobody knows from where they came, and some addresses are denied.
    #[error("it was not kept from where they came, and --jwks-deny names addresses")]
    FromUnknown,
}

impl GoodKeys {
    /// Whether they may still be used.
    pub(super) fn check(&self, rules: &DialRules) -> Result<(), UnusableKeys> {
        if self.from.is_empty() && !rules.denied.is_empty() {
            return Err(UnusableKeys::FromUnknown);
        }
        let fault = |from: &IpAddr| Some(UnusableKeys::From(*from, rules.denial(*from)?));
        self.from.iter().find_map(fault).map_or(Ok(()), Err)
    }
}

#[derive(Serialize, Deserialize)]
struct KeptKeys {
    issuer: bool,
    place: String,
    keys: String,
    /// Seconds since the Unix epoch.
    fetched: u64,
    #[serde(default)]
    from: Vec<IpAddr>,
}

/// What is in the file; nothing where there is none.
///
/// # Errors
/// Why it can't be read, or makes no sense.
pub(super) fn read(file: &Path) -> io::Result<RememberedKeys> {
    let bytes = match durable::read_at_most(file, FILE_MAX) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(BTreeMap::new()),
        read => read?,
    };
    let kept: Vec<KeptKeys> = serde_json::from_slice(&bytes)?;
    let read = |one: KeptKeys| {
        let place: Arc<str> = one.place.into();
        let place = if one.issuer { KeyPlace::Issuer(place) } else { KeyPlace::Uri(place) };
        // A file is no more to be believed than a server.
        let keys = strait_base::verifying_keys::verifying_keys(&one.keys).ok()?;
        let at = UNIX_EPOCH.checked_add(Duration::from_secs(one.fetched))?;
        Some((place, GoodKeys { keys: keys.into(), at, from: one.from.into() }))
    };
    Ok(kept.into_iter().filter_map(read).collect())
}

/// Puts the keys in place of what is in the file.
pub(super) fn write(file: &Path, keys: &RememberedKeys) -> io::Result<()> {
    let kept = keys.iter().map(|(place, GoodKeys { keys, at, from })| {
        let (KeyPlace::Uri(text) | KeyPlace::Issuer(text)) = place;
        KeptKeys {
            issuer: matches!(place, KeyPlace::Issuer(_)),
            place: text.to_string(),
            keys: keys.to_string(),
            fetched: at.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
            from: from.to_vec(),
        }
    });
    let bytes = serde_json::to_vec(&kept.collect::<Vec<_>>())?;
    durable::replace(file, &bytes, 0o600)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good(from: &[&str]) -> GoodKeys {
        let from = from.iter().map(|address| address.parse().expect("an address")).collect();
        GoodKeys { keys: "{}".into(), at: UNIX_EPOCH, from }
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
            // Written as such in a policy, which is known when it is dialled.
            (&["127.0.0.1"], &["10.0.0.0/8"], true),
        ] {
            assert_eq!(good(from).check(&rules(denied)).is_ok(), is_used, "{from:?} {denied:?}");
        }
    }
}
