//! Certificate requests. Only their key is used.
//!
//! All names and extensions in a request are ignored: the names in the certificate come from the
//! identity that the caller has proved. Istio's agent requests names that it may not choose.

use rcgen::SubjectPublicKeyInfo;
use rustls_pki_types::CertificateSigningRequestDer;
use rustls_pki_types::pem::PemObject as _;
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::prelude::FromDer as _;
use x509_parser::public_key::PublicKey;

use super::error::IdentityError;

/// Maximum size of a request in bytes; a request for an 8192 bit RSA key has 3 KiB.
pub const LENGTH_MAX: usize = 16 * 1024;

const UNSUPPORTED_KEY: &str = "its key is not RSA, P-256, P-384 or Ed25519";

/// Returns the key in a PKCS#10 request (PEM), whose signature proves the possession of the private
/// key.
///
/// # Errors
/// If the request can't be parsed, its signature is wrong, or the key is not RSA with 2048 to 8192
/// bits, P-256, P-384 or Ed25519.
pub fn public_key(pem: &str) -> Result<SubjectPublicKeyInfo, IdentityError> {
    if pem.len() > LENGTH_MAX {
        return Err(IdentityError::Request("it is longer than 16 KiB"));
    }
    let der = CertificateSigningRequestDer::from_pem_slice(pem.as_bytes())
        .map_err(|_| IdentityError::Request("it is not a certificate request in PEM form"))?;
    let (rest, request) = X509CertificationRequest::from_der(&der)
        .map_err(|_| IdentityError::Request("it is not a PKCS#10 request"))?;
    if !rest.is_empty() {
        return Err(IdentityError::Request("there is data after the request"));
    }
    let key = &request.certification_request_info.subject_pki;
    // Before the signature, which is verified for supported keys only.
    match key.parsed() {
        Ok(PublicKey::RSA(rsa)) if !(2048..=8192).contains(&rsa.key_size()) => {
            return Err(IdentityError::Request("an RSA key must have 2048 to 8192 bits"));
        }
        Ok(PublicKey::EC(point)) if ![256, 384].contains(&point.key_size()) => {
            return Err(IdentityError::Request(UNSUPPORTED_KEY));
        }
        _ => {}
    }
    request
        .verify_signature()
        .map_err(|_| IdentityError::Request("its signature does not match its key"))?;
    SubjectPublicKeyInfo::from_der(key.raw).map_err(|_| IdentityError::Request(UNSUPPORTED_KEY))
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair, PublicKeyData as _};

    use super::*;

    fn request(key: &KeyPair) -> Vec<u8> {
        let params = CertificateParams::new(["admin.example".to_owned()]).expect("valid name");
        params.serialize_request(key).expect("key signs").der().to_vec()
    }

    fn pem(der: &[u8]) -> String {
        use base64::Engine as _;
        let body = base64::engine::general_purpose::STANDARD.encode(der);
        format!("-----BEGIN CERTIFICATE REQUEST-----\n{body}\n-----END CERTIFICATE REQUEST-----\n")
    }

    #[test]
    fn key_of_a_valid_request_is_returned() {
        for algorithm in
            [&rcgen::PKCS_ECDSA_P256_SHA256, &rcgen::PKCS_ECDSA_P384_SHA384, &rcgen::PKCS_ED25519]
        {
            let key = KeyPair::generate_for(algorithm).expect("ring makes it");
            let read = public_key(&pem(&request(&key))).expect("valid request");
            assert_eq!(read.der_bytes(), key.public_key_raw());
        }
    }

    #[test]
    fn request_with_one_changed_bit_is_rejected() {
        let der = request(&KeyPair::generate().expect("ring makes it"));
        // The algorithm's name, ecdsa-with-SHA256, and the header of a bit string are between the
        // signed part and the signature. The parser tolerates changes there; the signature is
        // verified nevertheless.
        let name = [0x30, 0x0a, 0x06, 0x08, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x03, 0x02];
        let at = der.windows(name.len()).position(|window| window == name).expect("it is there");
        for position in (0..der.len()).filter(|position| !(at..at + 15).contains(position)) {
            let mut changed = der.clone();
            changed[position] ^= 1;
            assert!(public_key(&pem(&changed)).is_err(), "byte {position}");
        }
    }

    #[test]
    fn invalid_request_is_rejected() {
        let mut der = request(&KeyPair::generate().expect("ring makes it"));
        der.push(0);
        for text in ["", "x", &"x".repeat(LENGTH_MAX + 1), &pem(b"x"), &pem(&der)] {
            assert!(matches!(public_key(text), Err(IdentityError::Request(_))));
        }
    }
}
