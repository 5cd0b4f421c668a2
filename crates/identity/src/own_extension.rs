//! Reads the certificate extensions that this control plane defines.

use rustls_pki_types::CertificateDer;
use x509_parser::der_parser::Oid;
use x509_parser::prelude::{FromDer as _, X509Certificate};

use super::SpiffeIdError;

/// Returns the decoded value of the extension `oid`, or `None` if the certificate does not have the extension.
///
/// # Errors
/// If the certificate can't be parsed, has the extension twice, or `decode` rejects its value. A certificate is not used
/// without an extension that it has: it would have more rights than its issuer intended.
pub(super) fn read<T>(
    certificate: &CertificateDer<'_>,
    oid: [u64; 3],
    decode: impl FnOnce(&[u8]) -> Option<T>,
) -> Result<Option<T>, SpiffeIdError> {
    let (_, parsed) =
        X509Certificate::from_der(certificate).map_err(|_| SpiffeIdError::Malformed)?;
    let has_oid = |found: &Oid<'_>| found.iter().is_some_and(|parts| parts.eq(oid));
    let mut found = parsed.extensions().iter().filter(|extension| has_oid(&extension.oid));
    match (found.next(), found.next()) {
        (None, _) => Ok(None),
        (Some(extension), None) => {
            decode(extension.value).map(Some).ok_or(SpiffeIdError::Extension)
        }
        (Some(_), Some(_)) => Err(SpiffeIdError::Extension),
    }
}
