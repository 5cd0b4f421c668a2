//! Evaluates a ConfigMap of roots: whose roots it contains. Pure.

use std::collections::BTreeSet;
use std::time::SystemTime;

use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject as _;
use x509_parser::prelude::{FromDer as _, X509Certificate};
use xxhash_rust::xxh3::xxh3_64;

use strait_model::RootBundle;

/// The data key of the roots.
pub(super) const KEY: &str = "root-cert.pem";
/// The annotation that identifies text written by Strait: a digest of it.
pub(super) const WRITTEN: &str = "strait.dev/written-roots";

/// The two ConfigMaps that a namespace may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum RootsMap {
    /// The ConfigMap that agents and injected pods read.
    Usual,
    /// The additional ConfigMap for namespaces whose usual one contains another writer's roots.
    Additional,
}

impl RootsMap {
    /// Returns the name of the ConfigMap.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Usual => "istio-ca-root-cert",
            Self::Additional => "strait-ca-root-cert",
        }
    }
}

/// The content of a ConfigMap of roots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RootsContent {
    /// All of Strait's roots, possibly with roots of others.
    Ours,
    /// Unusable content, or content written by Strait before: to be replaced.
    Lacking,
    /// Valid roots of another writer, without all of Strait's.
    Foreign,
}

/// Returns the digest of a text written by Strait.
pub(super) fn digest(pem: &str) -> String {
    format!("{:016x}", xxh3_64(pem.as_bytes()))
}

/// Evaluates the text of a ConfigMap; `written` is its annotation [`WRITTEN`].
pub(super) fn classify(
    map: RootsMap,
    text: Option<&str>,
    written: Option<&str>,
    bundle: &RootBundle,
    now: SystemTime,
) -> RootsContent {
    let text = text.unwrap_or_default();
    if text == &*bundle.pem {
        return RootsContent::Ours;
    }
    // Text written by Strait is replaced whatever its content: withdrawn roots must be removed.
    if map == RootsMap::Additional || written.is_some_and(|written| written == digest(text)) {
        return RootsContent::Lacking;
    }
    let found = valid(text, bundle, now);
    if found.is_superset(&bundle.certificates) {
        RootsContent::Ours
    } else if found.is_subset(&bundle.certificates) {
        RootsContent::Lacking
    } else {
        RootsContent::Foreign
    }
}

/// Returns the certificates in a text that are still valid.
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
