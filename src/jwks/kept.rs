//! Keys as they are kept over a restart, in a file of the state directory: public keys, so it holds no secret.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::access::KeyPlace;
use crate::durable;

/// The most bytes of the file. What is written stays within: 512 places of 2 KiB with keys of 64 KiB have 34 MiB, and a
/// quotation mark counts twice.
const FILE_MAX: u64 = 96 * 1024 * 1024;

/// The last keys of each place that made sense, and when they came.
pub(super) type RememberedKeys = BTreeMap<KeyPlace, (Arc<str>, SystemTime)>;

#[derive(Serialize, Deserialize)]
struct KeptKeys {
    issuer: bool,
    place: String,
    keys: String,
    /// Seconds since the Unix epoch.
    fetched: u64,
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
        let keys = crate::access::verifying_keys(&one.keys).ok()?;
        let at = UNIX_EPOCH.checked_add(Duration::from_secs(one.fetched))?;
        Some((place, (keys.into(), at)))
    };
    Ok(kept.into_iter().filter_map(read).collect())
}

/// Puts the keys in place of what is in the file.
pub(super) fn write(file: &Path, keys: &RememberedKeys) -> io::Result<()> {
    let kept = keys.iter().map(|(place, (keys, at))| {
        let (KeyPlace::Uri(text) | KeyPlace::Issuer(text)) = place;
        KeptKeys {
            issuer: matches!(place, KeyPlace::Issuer(_)),
            place: text.to_string(),
            keys: keys.to_string(),
            fetched: at.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
        }
    });
    let bytes = serde_json::to_vec(&kept.collect::<Vec<_>>())?;
    durable::replace(file, &bytes, 0o600)
}
