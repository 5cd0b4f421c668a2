//! Certificates and keys in PEM, read like Go's clients do.
//!
//! Go determines the type of a private key from its content instead of the PEM block's label, and
//! it ignores unreadable blocks in a CA bundle. Kubeconfigs that work with kubectl must work here.

use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

use strait_base::pem::{self, blocks, label};

/// The object identifier of the curve P-521, DER.
const P521: [u8; 7] = [0x06, 0x05, 0x2b, 0x81, 0x04, 0x00, 0x23];

/// The certificates of a CA bundle.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct CaBundle {
    /// The certificates that can be trust anchors, in the order of the bundle.
    pub certificates: Vec<CertificateDer<'static>>,
    /// Number of blocks with the label of a certificate that are unreadable.
    pub unreadable: usize,
}

impl CaBundle {
    /// Reads a bundle block by block, so that an unreadable block does not affect others.
    pub fn read(text: &[u8]) -> Self {
        let mut bundle = Self::default();
        for block in blocks(text).filter(|block| label(block) == Some(b"CERTIFICATE")) {
            let certificate = CertificateDer::from_pem_slice(block).ok();
            let is_anchor =
                |der: &CertificateDer<'_>| webpki::anchor_from_trusted_cert(der).is_ok();
            match certificate.filter(is_anchor) {
                Some(certificate) => bundle.certificates.push(certificate),
                None => bundle.unreadable += 1,
            }
        }
        bundle
    }
}

/// Reads the first private key in a text. The label of the PEM block does not matter.
///
/// # Errors
/// Fails if there is no such block, or its content is not a private key.
pub fn private_key(text: &[u8]) -> Result<PrivateKeyDer<'static>, &'static str> {
    let der = pem::private_key(text)?;
    if der.windows(P521.len()).any(|window| window == P521) {
        return Err("holds a P-521 key, which is not supported; P-256, P-384, RSA and Ed25519 are");
    }
    let key = PrivateKeyDer::try_from(der.as_slice());
    key.map(|key| key.clone_key()).map_err(|_| "holds a private key that can't be read")
}

#[cfg(test)]
mod tests {
    use super::*;
    use strait_base::pem::encode_key;

    fn block(label: &str, der: &[u8]) -> String {
        pem::encode(label, der)
    }

    #[test]
    fn private_keys_are_read_whatever_their_label() {
        // A generated P-256 key.
        let pkcs8 = rcgen::KeyPair::generate().expect("a key").serialize_der();
        for label in ["PRIVATE KEY", "RSA PRIVATE KEY", "EC PRIVATE KEY"] {
            let pem = format!("{}{}", block("EC PARAMETERS", b"x"), block(label, &pkcs8));
            let key = private_key(pem.as_bytes()).expect(label);
            assert!(matches!(key, PrivateKeyDer::Pkcs8(_)), "{label}");
            assert_eq!(encode_key(&key), block("PRIVATE KEY", &pkcs8));
        }
        // The first DER bytes of an RSA key (PKCS#1) and of an EC key (SEC1).
        for (der, expected) in [
            (&[0x30, 0x06, 0x02, 0x01, 0x00, 0x02, 0x01, 0x05][..], "RSA PRIVATE KEY"),
            (&[0x30, 0x06, 0x02, 0x01, 0x01, 0x04, 0x01, 0x05][..], "EC PRIVATE KEY"),
        ] {
            for label in ["PRIVATE KEY", "RSA PRIVATE KEY", "EC PRIVATE KEY"] {
                let key = private_key(block(label, der).as_bytes()).expect(label);
                assert_eq!(encode_key(&key), block(expected, der), "{label}");
            }
        }
    }

    #[test]
    fn keys_that_cannot_be_used_are_named() {
        for (pem, fact) in [
            (String::new(), "no private key"),
            (block("PRIVATE KEY", b"nonsense"), "can't be read"),
            (block("ENCRYPTED PRIVATE KEY", b"x"), "encrypted"),
            (
                block("RSA PRIVATE KEY", b"x").replace("\n", "\nProc-Type: 4,ENCRYPTED\n"),
                "encrypted",
            ),
            (block("EC PRIVATE KEY", &[&[0x30, 9][..], &P521].concat()), "P-521"),
            ("-----BEGIN PRIVATE KEY-----\n!\n-----END PRIVATE KEY-----".to_owned(), "base64"),
        ] {
            let error = private_key(pem.as_bytes()).expect_err(fact);
            assert!(error.contains(fact), "{error}");
        }
    }

    #[test]
    fn unreadable_block_of_a_bundle_loses_no_certificate() {
        let made = || rcgen::generate_simple_self_signed(["ca".to_owned()]).expect("a certificate");
        let (first, second) = (made().cert, made().cert);
        let garbled = "-----BEGIN CERTIFICATE-----\n!!\n-----END CERTIFICATE-----\n";
        let open = "-----BEGIN CERTIFICATE-----\nAAAA\n";
        let other = block("X509 CRL", b"x");
        let unclosed = block("CERTIFICATE", b"hello");
        let text = format!("# a\n{}{garbled}{other}{open}{}{unclosed}", first.pem(), second.pem());
        let bundle = CaBundle::read(text.as_bytes());
        assert_eq!(bundle.certificates, [first.der().clone(), second.der().clone()]);
        assert_eq!(bundle.unreadable, 3);
        assert_eq!(CaBundle::read(b"nothing"), CaBundle::default());
    }
}
