//! Reads the certificate extensions that this control plane defines.

use rustls_pki_types::CertificateDer;
use x509_parser::der_parser::Oid;
use x509_parser::prelude::{FromDer as _, X509Certificate};

/// Returns the decoded value of the extension `oid`. Returns `None` if the certificate can't be
/// parsed, does not have the extension, or `decode` rejects its value.
pub(super) fn read<T>(
    certificate: &CertificateDer<'_>,
    oid: [u64; 3],
    decode: impl FnOnce(&[u8]) -> Option<T>,
) -> Option<T> {
    let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
    let has_oid = |found: &Oid<'_>| found.iter().is_some_and(|parts| parts.eq(oid));
    let found = parsed.extensions().iter().find(|extension| has_oid(&extension.oid))?;
    decode(found.value)
}
