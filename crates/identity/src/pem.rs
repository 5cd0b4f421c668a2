//! Encoding and decoding of PEM. Reads no files; `origin` is only for messages.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};

use super::error::IdentityError;

/// Decodes all certificates in `text`, in order; at least one. Other blocks are ignored.
pub(super) fn certificates(
    text: &[u8],
    origin: &str,
) -> Result<Vec<CertificateDer<'static>>, IdentityError> {
    let missing =
        || IdentityError::Pem { origin: origin.to_owned(), wanted: "certificate in PEM form" };
    let found: Vec<_> =
        CertificateDer::pem_slice_iter(text).collect::<Result<_, _>>().map_err(|_| missing())?;
    if found.is_empty() { Err(missing()) } else { Ok(found) }
}

/// Checks all revocation lists in `text`. There must be at least one, and all must be complete.
pub(super) fn revocation_lists(text: &[u8], origin: &str) -> Result<(), IdentityError> {
    let wanted = "list of revoked certificates in PEM form (X509 CRL) under ca.crl";
    let missing = || IdentityError::Pem { origin: origin.to_owned(), wanted };
    let mut found = false;
    for list in CertificateRevocationListDer::pem_slice_iter(text) {
        let list = list.map_err(|_| missing())?;
        let (rest, _) = x509_parser::parse_x509_crl(&list).map_err(|_| missing())?;
        if !rest.is_empty() {
            return Err(missing());
        }
        found = true;
    }
    if found { Ok(()) } else { Err(missing()) }
}

/// Decodes the first private key in `text`, in PKCS#8, PKCS#1 or SEC1 form, regardless of the label
/// of its block.
pub(super) fn private_key(
    text: &[u8],
    origin: &str,
) -> Result<PrivateKeyDer<'static>, IdentityError> {
    let wanted = "private key in PEM form";
    let missing = || IdentityError::Pem { origin: origin.to_owned(), wanted };
    let der = strait_base::pem::private_key(text).map_err(|_| missing())?;
    let key = PrivateKeyDer::try_from(der.as_slice()).map_err(|_| missing())?;
    Ok(key.clone_key())
}

/// Returns the text of a private key for readers that rely on the label: unchanged if the label
/// fits the content.
pub(super) fn with_fitting_label(text: &[u8], key: &PrivateKeyDer<'_>) -> Vec<u8> {
    if PrivateKeyDer::from_pem_slice(text).is_ok_and(|strict| strict == *key) {
        return text.to_vec();
    }
    strait_base::pem::encode_key(key).into_bytes()
}

/// Encodes a certificate as a PEM block that ends with a newline.
pub(super) fn encode(certificate: &CertificateDer<'_>) -> String {
    let body = STANDARD.encode(certificate);
    let mut text = "-----BEGIN CERTIFICATE-----\n".to_owned();
    for line in body.as_bytes().chunks(64) {
        text.extend(line.iter().map(|&byte| char::from(byte)));
        text.push('\n');
    }
    text + "-----END CERTIFICATE-----\n"
}

/// Encodes certificates as consecutive PEM blocks.
pub(super) fn encode_all(certificates: &[CertificateDer<'_>]) -> String {
    certificates.iter().map(encode).collect()
}
