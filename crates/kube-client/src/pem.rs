//! Certificates and keys in PEM, as Go's clients read them.
//!
//! Go judges a private key by its content and not by the label of its block, and it ignores unreadable blocks
//! in a bundle of CAs. Kubeconfigs that work with kubectl must work here.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

/// The object identifier of the curve P-521, DER.
const P521: [u8; 7] = [0x06, 0x05, 0x2b, 0x81, 0x04, 0x00, 0x23];

/// The certificates of a CA bundle.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct CaBundle {
    /// The certificates that can be trust anchors, in the order of the bundle.
    pub certificates: Vec<CertificateDer<'static>>,
    /// How many blocks are labelled as certificates and can't be read.
    pub unreadable: usize,
}

impl CaBundle {
    /// Reads a bundle block by block, so that an unreadable block loses no other.
    pub fn read(pem: &[u8]) -> Self {
        let mut bundle = Self::default();
        for block in blocks(pem).filter(|block| label(block) == Some(b"CERTIFICATE")) {
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

/// Reads the first private key in a text. The label of its block does not matter.
///
/// # Errors
/// There is no such block, or its content is no private key.
pub fn private_key(pem: &[u8]) -> Result<PrivateKeyDer<'static>, &'static str> {
    let is_key = |block: &&[u8]| label(block).is_some_and(|label| label.ends_with(b"PRIVATE KEY"));
    let block = blocks(pem).find(is_key).ok_or("holds no private key in PEM")?;
    if label(block) == Some(b"ENCRYPTED PRIVATE KEY") || contains(block, b"ENCRYPTED") {
        return Err("holds an encrypted private key");
    }
    let body: Vec<u8> = (block.split(|byte| *byte == b'\n').skip(1))
        .take_while(|line| !line.starts_with(b"-----"))
        .flatten()
        .copied()
        .filter(|byte| !byte.is_ascii_whitespace())
        .collect();
    let der = BASE64.decode(body).map_err(|_| "holds a private key that is not base64")?;
    if contains(&der, &P521) {
        return Err("holds a P-521 key, which is not supported; P-256, P-384, RSA and Ed25519 are");
    }
    let key = PrivateKeyDer::try_from(der.as_slice());
    key.map(|key| key.clone_key()).map_err(|_| "holds a private key that can't be read")
}

/// A private key in PEM under the label that fits its content.
pub(super) fn encode_key(key: &PrivateKeyDer<'_>) -> String {
    let label = match key {
        PrivateKeyDer::Pkcs1(_) => "RSA PRIVATE KEY",
        PrivateKeyDer::Sec1(_) => "EC PRIVATE KEY",
        _ => "PRIVATE KEY",
    };
    let body = BASE64.encode(key.secret_der());
    format!("-----BEGIN {label}-----\n{body}\n-----END {label}-----\n")
}

/// The parts of a text that each begin with a block.
fn blocks(pem: &[u8]) -> impl Iterator<Item = &[u8]> {
    const BEGIN: &[u8] = b"-----BEGIN ";
    let find = |text: &[u8]| text.windows(BEGIN.len()).position(|window| window == BEGIN);
    let mut rest = find(pem).and_then(|at| pem.get(at..));
    std::iter::from_fn(move || {
        let text = rest?;
        let next = text.get(1..).and_then(find).map(|at| at + 1);
        rest = next.and_then(|at| text.get(at..));
        text.get(..next.unwrap_or(text.len()))
    })
}

/// The label of a block.
fn label(block: &[u8]) -> Option<&[u8]> {
    let text = block.strip_prefix(b"-----BEGIN ")?;
    let end = text.windows(5).position(|window| window == b"-----")?;
    text.get(..end)
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|window| window == part)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(label: &str, der: &[u8]) -> String {
        format!("-----BEGIN {label}-----\n{}\n-----END {label}-----\n", BASE64.encode(der))
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
        // The beginnings of an RSA key (PKCS#1) and of an EC key (SEC1) by their DER.
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
        let (one, two) = (made().cert, made().cert);
        let garbled = "-----BEGIN CERTIFICATE-----\n!!\n-----END CERTIFICATE-----\n";
        let open = "-----BEGIN CERTIFICATE-----\nAAAA\n";
        let other = block("X509 CRL", b"x");
        let none = block("CERTIFICATE", b"hello");
        let text = format!("# a\n{}{garbled}{other}{open}{}{none}", one.pem(), two.pem());
        let bundle = CaBundle::read(text.as_bytes());
        assert_eq!(bundle.certificates, [one.der().clone(), two.der().clone()]);
        assert_eq!(bundle.unreadable, 3);
        assert_eq!(CaBundle::read(b"nothing"), CaBundle::default());
    }
}
