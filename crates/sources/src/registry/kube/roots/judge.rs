//! What stands in a ConfigMap of roots, and whose it is. Pure: from its text to a verdict.

use std::collections::BTreeSet;
use std::time::SystemTime;

use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject as _;
use x509_parser::prelude::{FromDer as _, X509Certificate};
use xxhash_rust::xxh3::xxh3_64;

use strait_model::RootBundle;

/// The key of the ConfigMap under which the roots are.
pub(super) const KEY: &str = "root-cert.pem";
/// The annotation by which our own text is known again: a digest of it.
pub(super) const WRITTEN: &str = "strait.dev/written-roots";

/// The two ConfigMaps that a namespace may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum RootsMap {
    /// The one that agents and injected pods read.
    Usual,
    /// The one that stands beside it where another writer's roots are in the usual one.
    Beside,
}

impl RootsMap {
    /// The ConfigMap's name.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Usual => "istio-ca-root-cert",
            Self::Beside => "strait-ca-root-cert",
        }
    }
}

/// What stands in one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RootsHeld {
    /// All our roots; of others as well, it may be.
    Ours,
    /// Nothing that is of use to anybody, or what we wrote before: ours is to stand there.
    Lacking,
    /// Valid roots that another writer put there, among which ours are not.
    Foreign,
}

/// A digest of a text of ours.
pub(super) fn digest(pem: &str) -> String {
    format!("{:016x}", xxh3_64(pem.as_bytes()))
}

/// Judges the text of a ConfigMap; `written` is its annotation [`WRITTEN`].
pub(super) fn judge(
    map: RootsMap,
    text: Option<&str>,
    written: Option<&str>,
    bundle: &RootBundle,
    now: SystemTime,
) -> RootsHeld {
    let text = text.unwrap_or_default();
    if text == &*bundle.pem {
        return RootsHeld::Ours;
    }
    // What we wrote is replaced whatever is in it: a root that was withdrawn must go.
    if map == RootsMap::Beside || written.is_some_and(|written| written == digest(text)) {
        return RootsHeld::Lacking;
    }
    let found = valid(text, bundle, now);
    if found.is_superset(&bundle.certificates) {
        RootsHeld::Ours
    } else if found.is_subset(&bundle.certificates) {
        RootsHeld::Lacking
    } else {
        RootsHeld::Foreign
    }
}

/// The certificates of a text that somebody could still believe.
fn valid(text: &str, bundle: &RootBundle, now: SystemTime) -> BTreeSet<Vec<u8>> {
    let now = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
    let is_valid = |der: &CertificateDer<'_>| {
        bundle.certificates.contains(der.as_ref())
            || X509Certificate::from_der(der).is_ok_and(|(_, parsed)| {
                u64::try_from(parsed.validity().not_after.timestamp()).is_ok_and(|end| end > now)
            })
    };
    let found = CertificateDer::pem_slice_iter(text.as_bytes()).filter_map(Result::ok);
    found.filter(is_valid).map(|der| der.to_vec()).collect()
}
