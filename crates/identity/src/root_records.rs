//! Records about each root of the CA: the time since which workloads receive it, and the expiry of
//! the last certificate that chains to it.
//!
//! A root may be removed once no such certificate is valid any more, which only the issuer knows.
//! Records survive restarts and are shared by replicas. Of two values the later one wins, so that
//! merging twice changes nothing. Times are whole seconds since the epoch. This module does not
//! know where records are stored.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustls_pki_types::CertificateDer;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use super::tls::are_equivalent;
use super::{RootLife, TrustRoots, pem};

/// Expiry times are rounded up to the next full hour, in seconds, so that not every certificate
/// changes the records.
const ROUNDED: u64 = 3600;

/// The SHA-256 of a certificate, as printed by `openssl x509 -fingerprint -sha256` but in lower
/// case without colons.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct RootFingerprint(String);

impl RootFingerprint {
    /// Returns the fingerprint of a certificate in DER.
    pub fn from_der(der: &[u8]) -> Self {
        Self(strait_base::hex::sha256(der))
    }

    /// Returns all fingerprints in a text, in any common notation. Other lines, and text after a
    /// `#`, are ignored.
    pub fn parse_all(text: &str) -> BTreeSet<Self> {
        let fingerprint = |line: &str| {
            let line = line.split('#').next().unwrap_or_default();
            // openssl prints "sha256 Fingerprint=" first.
            let line = line.rsplit('=').next().unwrap_or_default();
            let digits: String = line.chars().filter(|c| *c != ':' && !c.is_whitespace()).collect();
            let is_fingerprint =
                digits.len() == 64 && digits.bytes().all(|b| b.is_ascii_hexdigit());
            is_fingerprint.then(|| Self(digits.to_ascii_lowercase()))
        };
        text.lines().filter_map(fingerprint).collect()
    }
}

impl fmt::Display for RootFingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Record about a root.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RootRecord {
    /// The root certificate.
    pub pem: String,
    /// Time since which workloads receive it.
    pub since: u64,
    /// Expiry of all certificates issued before that time. Holders of later certificates received
    /// the root together with them.
    pub older_end: u64,
    /// Expiry of the last certificate that chains to it; `None` if it has signed nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_ends: Option<u64>,
    /// Whether that time is an upper bound, because no records existed when the root signed.
    #[serde(default)]
    pub assumed: bool,
}

impl RootRecord {
    /// Returns the time since which workloads receive it.
    pub fn since(&self) -> SystemTime {
        moment(self.since)
    }

    /// Returns the expiry of all certificates issued before that time.
    pub fn older_end(&self) -> SystemTime {
        moment(self.older_end)
    }

    /// Returns the expiry of the last certificate that chains to the root.
    pub fn last_ends(&self) -> Option<SystemTime> {
        self.last_ends.map(moment)
    }

    /// Returns the fingerprint of the root, or `None` if the root can't be parsed.
    pub fn fingerprint(&self) -> Option<RootFingerprint> {
        self.certificate().map(|certificate| RootFingerprint::from_der(&certificate))
    }

    /// Returns the certificate of the root.
    pub(super) fn certificate(&self) -> Option<CertificateDer<'static>> {
        pem::certificates(self.pem.as_bytes(), "a record").ok()?.into_iter().next()
    }

    fn merge(&mut self, other: &Self) {
        self.since = self.since.max(other.since);
        self.older_end = self.older_end.max(other.older_end);
        if other.last_ends > self.last_ends {
            (self.last_ends, self.assumed) = (other.last_ends, other.assumed);
        }
    }
}

/// Records of all roots.
pub type RootRecords = BTreeMap<RootFingerprint, RootRecord>;

/// Returns records for roots that workloads have according to a text in PEM, without knowledge of
/// the certificates that chain to them.
pub fn assumed_records(pem: &str) -> RootRecords {
    let certificates = pem::certificates(pem.as_bytes(), "roots").unwrap_or_default();
    let record = |certificate: CertificateDer<'static>| {
        let ends = RootLife::read(&certificate)?.ends;
        let record = RootRecord {
            pem: pem::encode(&certificate),
            since: 0,
            older_end: seconds(ends),
            last_ends: Some(seconds(ends)),
            assumed: true,
        };
        Some((RootFingerprint::from_der(&certificate), record))
    };
    certificates.into_iter().filter_map(record).collect()
}

/// Workloads have no root of the CA.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RootConflict {
    /// The roots of the CA.
    pub new: BTreeSet<RootFingerprint>,
    /// The roots to which valid certificates chain.
    pub active: BTreeSet<RootFingerprint>,
}

impl RootConflict {
    /// Compares the roots of a CA, in DER, with records. A recorded root is active while a
    /// certificate that chains to it may be valid. Roots with the same name and key are equal.
    pub(super) fn find(roots: &[&Vec<u8>], records: &RootRecords, now: SystemTime) -> Option<Self> {
        let is_active = |record: &RootRecord| {
            let life = record.certificate().and_then(|certificate| RootLife::read(&certificate));
            record.last_ends().is_some_and(|ends| ends > now)
                && life.is_some_and(|life| life.ends > now)
        };
        let active = records.iter().filter(|(_, record)| is_active(record));
        let active: BTreeSet<_> = active.map(|(fingerprint, _)| fingerprint.clone()).collect();
        let recorded: Vec<_> = records.values().filter_map(RootRecord::certificate).collect();
        let is_recorded = |der: &&Vec<u8>| {
            recorded.iter().any(|root| are_equivalent(&CertificateDer::from(der.as_slice()), root))
        };
        if active.is_empty() || roots.is_empty() || roots.iter().any(is_recorded) {
            return None;
        }
        Some(Self { new: roots.iter().map(|der| RootFingerprint::from_der(der)).collect(), active })
    }
}

/// The records of this process, with a channel for their changes.
#[derive(Debug)]
pub struct RootLedger {
    records: watch::Sender<RootRecords>,
    /// Maximum lifetime of a certificate issued before records existed; `None` if records exist, or
    /// if nothing can have been issued.
    unrecorded: Option<Duration>,
    /// Records of other replicas, until it is known whether they belong to the same CA.
    shared: Mutex<RootRecords>,
}

impl RootLedger {
    /// Creates a ledger from the records of this process and of other replicas. Without any,
    /// certificates with this `lifetime` may exist.
    pub fn new(remembered: RootRecords, shared: RootRecords, lifetime: Duration) -> Self {
        let (records, shared) = (watch::Sender::new(remembered), Mutex::new(shared));
        Self { records, unrecorded: Some(lifetime), shared }
    }

    /// Creates the ledger of a CA that has signed nothing yet.
    pub fn empty() -> Self {
        Self { records: watch::Sender::default(), unrecorded: None, shared: Mutex::default() }
    }

    /// Returns the current records.
    pub fn records(&self) -> RootRecords {
        self.records.borrow().clone()
    }

    /// Returns a receiver of the changing records.
    pub fn follow(&self) -> watch::Receiver<RootRecords> {
        self.records.subscribe()
    }

    /// Merges the records of other replicas if they contain any of these roots. Otherwise they
    /// belong to another CA.
    pub(super) fn adopt_shared(&self, roots: &TrustRoots) {
        let shared =
            std::mem::take(&mut *self.shared.lock().unwrap_or_else(PoisonError::into_inner));
        if roots.certificates().any(|der| shared.contains_key(&RootFingerprint::from_der(der))) {
            self.merge(&shared);
        }
    }

    /// Returns whether the records of others belong to the same CA: they have a root in common, or
    /// are empty.
    pub fn has_same_ca(&self, others: &RootRecords) -> bool {
        let records = self.records.borrow();
        others.is_empty() || others.keys().any(|root| records.contains_key(root))
    }

    /// Merges the records of another replica.
    pub fn merge(&self, others: &RootRecords) {
        self.change(|records| {
            for (fingerprint, other) in others {
                match records.get_mut(fingerprint) {
                    Some(record) => record.merge(other),
                    None => drop(records.insert(fingerprint.clone(), other.clone())),
                }
            }
        });
    }

    /// Records the roots that workloads receive now. `before` are the roots that they received
    /// until now, if known.
    pub(super) fn given(&self, now: &TrustRoots, before: Option<&TrustRoots>, at: SystemTime) {
        let at_seconds = seconds(at);
        self.change(|records| {
            let unrecorded = self.unrecorded.filter(|_| before.is_none() && records.is_empty());
            let older_end = records.values().filter_map(|record| record.last_ends).max();
            let assumed = unrecorded.map(|lifetime| rounded(at + lifetime));
            for der in now.certificates() {
                let certificate = CertificateDer::from(der.as_slice());
                let was_distributed = match before {
                    Some(before) => before.contains(&certificate),
                    None => true,
                };
                let new = || RootRecord {
                    pem: pem::encode(&certificate),
                    since: at_seconds,
                    older_end: assumed.or(older_end).unwrap_or(at_seconds),
                    last_ends: assumed,
                    assumed: assumed.is_some(),
                };
                let record = records.entry(RootFingerprint::from_der(der)).or_insert_with(new);
                // The root was removed in the meantime.
                if !was_distributed && record.since < at_seconds {
                    record.since = at_seconds;
                    record.older_end = record.older_end.max(older_end.unwrap_or(at_seconds));
                }
            }
        });
    }

    /// Records that these roots sign from `at` on. Only a root that never signed can be removed
    /// without waiting.
    pub(super) fn signs(&self, roots: &[RootFingerprint], at: SystemTime) {
        self.change(|records| {
            for root in roots {
                if let Some(record) = records.get_mut(root) {
                    record.last_ends.get_or_insert(seconds(at));
                }
            }
        });
    }

    /// Records a certificate that chains to `roots` and expires at `ends`.
    pub(super) fn issued(&self, roots: &[RootFingerprint], ends: SystemTime) {
        let ends = rounded(ends);
        self.change(|records| {
            for root in roots {
                if let Some(record) = records.get_mut(root)
                    && record.last_ends < Some(ends)
                {
                    (record.last_ends, record.assumed) = (Some(ends), false);
                }
            }
        });
    }

    /// Returns the roots that workloads need at `now` although `given` lacks them: valid
    /// certificates chain to them, and `given` has no root with the same name and key.
    pub(super) fn needed(&self, given: &TrustRoots, now: SystemTime) -> Vec<NeededRoot> {
        let records = self.records.borrow();
        let needed = records.iter().filter_map(|(fingerprint, record)| {
            let until = record.last_ends().filter(|until| *until > now)?;
            let certificate = record.certificate()?;
            if given.contains_equivalent(&certificate) {
                return None;
            }
            let life = RootLife::read(&certificate).filter(|life| life.ends > now)?;
            let (fingerprint, subject) = (fingerprint.clone(), life.subject);
            Some(NeededRoot { fingerprint, subject, certificate, until, assumed: record.assumed })
        });
        needed.collect()
    }

    fn change(&self, change: impl FnOnce(&mut RootRecords)) {
        self.records.send_if_modified(|records| {
            let before = records.clone();
            change(records);
            *records != before
        });
    }
}

/// A root that must not be removed yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct NeededRoot {
    /// Its fingerprint.
    pub(super) fingerprint: RootFingerprint,
    /// Its subject.
    pub(super) subject: String,
    pub(super) certificate: CertificateDer<'static>,
    /// Expiry of the last certificate that chains to it.
    pub(super) until: SystemTime,
    /// See [`RootRecord::assumed`].
    pub(super) assumed: bool,
}

fn seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

fn rounded(time: SystemTime) -> u64 {
    seconds(time).saturating_add(1).next_multiple_of(ROUNDED)
}

fn moment(seconds: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(seconds)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Ca;

    const DAY: Duration = Duration::from_secs(24 * 3600);

    fn fingerprint(ca: &Ca) -> RootFingerprint {
        let root = ca.roots().certificates().next().expect("one root").clone();
        RootFingerprint::from_der(&root)
    }

    #[test]
    fn fingerprints_are_parsed_in_common_notations() {
        let plain = "0a".repeat(32);
        let colons = plain
            .to_uppercase()
            .as_bytes()
            .chunks(2)
            .map(|two| String::from_utf8_lossy(two).into_owned())
            .collect::<Vec<_>>()
            .join(":");
        let text = format!(
            "# of May\nsha256 Fingerprint={colons}  # the old one\nnonsense\n{}\n",
            &plain[1..]
        );
        let found: Vec<String> =
            RootFingerprint::parse_all(&text).iter().map(ToString::to_string).collect();
        assert_eq!(found, [plain]);
    }

    #[test]
    fn root_is_needed_until_its_last_certificate_has_expired() {
        let (old, new, now) = (Ca::new(), Ca::new(), SystemTime::now());
        let ledger = RootLedger::empty();
        ledger.given(old.roots(), None, now);
        ledger.given(new.roots(), Some(old.roots()), now);
        assert!(ledger.needed(new.roots(), now).is_empty(), "it has signed nothing");
        ledger.issued(&[fingerprint(&old)], now + 3 * DAY);
        ledger.issued(&[fingerprint(&old)], now + DAY);
        let needed = ledger.needed(new.roots(), now + 2 * DAY);
        assert_eq!(
            needed.iter().map(|one| &one.fingerprint).collect::<Vec<_>>(),
            [&fingerprint(&old)]
        );
        assert!(needed[0].until >= now + 3 * DAY, "the later expiry applies");
        assert!(ledger.needed(old.roots(), now).is_empty(), "it is there");
        assert!(ledger.needed(new.roots(), now + 4 * DAY).is_empty(), "its time has come");
    }

    #[test]
    fn without_records_the_maximum_lifetime_is_assumed() {
        let (old, new, now) = (Ca::new(), Ca::new(), SystemTime::now());
        let ledger = RootLedger::new(RootRecords::new(), RootRecords::new(), 90 * DAY);
        ledger.given(old.roots(), None, now);
        let needed = ledger.needed(new.roots(), now + 89 * DAY);
        assert!(needed.len() == 1 && needed[0].assumed, "{needed:?}");
        // A root that is added later signs nothing before it is recorded.
        ledger.given(new.roots(), Some(old.roots()), now + DAY);
        assert_eq!(ledger.records()[&fingerprint(&new)].last_ends, None);
        // A process with records assumes nothing.
        let later = RootLedger::new(ledger.records(), RootRecords::new(), 90 * DAY);
        later.given(old.roots(), None, now + 2 * DAY);
        assert_eq!(later.records(), ledger.records());
    }

    #[test]
    fn roots_conflict_if_valid_certificates_exist_and_no_root_is_known() {
        let (old, new, now) = (Ca::new(), Ca::new(), SystemTime::now());
        let both = TrustRoots::from_pem(
            format!("{}{}", old.roots().to_pem(), new.roots().to_pem()).as_bytes(),
            "both",
            now,
        );
        let both = both.expect("two roots");
        let find = |roots: &TrustRoots, records: &RootRecords, at: SystemTime| {
            RootConflict::find(&roots.certificates().collect::<Vec<_>>(), records, at)
        };
        let ledger = RootLedger::empty();
        assert_eq!(find(new.roots(), &ledger.records(), now), None, "nothing is recorded");
        ledger.given(old.roots(), None, now);
        assert_eq!(find(new.roots(), &ledger.records(), now), None, "it has signed nothing");
        ledger.issued(&[fingerprint(&old)], now + DAY);
        let conflict =
            RootConflict { new: [fingerprint(&new)].into(), active: [fingerprint(&old)].into() };
        assert_eq!(find(new.roots(), &ledger.records(), now), Some(conflict.clone()));
        assert_eq!(find(&both, &ledger.records(), now), None, "they overlap");
        assert_eq!(find(old.roots(), &ledger.records(), now), None);
        assert_eq!(find(new.roots(), &ledger.records(), now + 2 * DAY), None, "none is valid");
        ledger.given(&both, Some(old.roots()), now);
        assert_eq!(find(new.roots(), &ledger.records(), now), None, "workloads received it");
        let written = assumed_records(&old.roots().to_pem());
        assert_eq!(find(new.roots(), &written, now), Some(conflict));
        assert!(assumed_records("nonsense").is_empty());
    }

    #[test]
    fn shared_records_apply_if_they_belong_to_the_same_ca() {
        let (old, new, other, now) = (Ca::new(), Ca::new(), Ca::new(), SystemTime::now());
        let theirs = RootLedger::empty();
        theirs.given(old.roots(), None, now);
        theirs.given(new.roots(), Some(old.roots()), now);
        theirs.issued(&[fingerprint(&old)], now + DAY);
        let ours = |roots: &TrustRoots| {
            let ledger = RootLedger::new(RootRecords::new(), theirs.records(), 90 * DAY);
            ledger.adopt_shared(roots);
            ledger.needed(roots, now).len()
        };
        assert_eq!(ours(new.roots()), 1, "a replica whose files have the new root alone");
        assert_eq!(ours(other.roots()), 0, "another mesh that shares the namespace");
    }

    #[test]
    fn records_of_replicas_merge_in_any_order() {
        let (a, now) = (Ca::new(), SystemTime::now());
        let with = |days: u32| {
            let ledger = RootLedger::empty();
            ledger.given(a.roots(), None, now);
            ledger.issued(&[fingerprint(&a)], now + days * DAY);
            ledger
        };
        let (first, second) = (with(1), with(5));
        first.merge(&second.records());
        second.merge(&first.records());
        assert_eq!(first.records(), second.records());
        assert_eq!(first.records(), with(5).records());
        let json = serde_json::to_string(&first.records()).expect("JSON");
        let read: RootRecords = serde_json::from_str(&json).expect("read again");
        assert_eq!(read, first.records());
    }
}
