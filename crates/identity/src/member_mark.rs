//! The cluster of a certificate: the member whose token proved the workload, or whose dedicated CA
//! signed the certificate.
//!
//! A certificate with this extension proves its cluster. It is refused for proxies of other
//! clusters, and can't be exchanged for a certificate of another cluster.
//!
//! It is a non-critical extension like that of [`super::proof_time`]. Its value is a UTF8String:
//! the member's ID.

use rcgen::CustomExtension;
use rustls_pki_types::CertificateDer;

use super::{SpiffeIdError, own_extension};
use strait_model::ClusterId;

/// Object identifier, chosen like that of [`super::proof_time`], with at most 28 bits for the same
/// reason.
const OID: [u64; 3] = [2, 25, 0x0b1c_5e0e];
/// The tag of a UTF8String (X.690, 8.23).
const TEXT: u8 = 0x0c;

/// Returns the extension for workloads of `member`.
pub(super) fn extension(member: &ClusterId) -> CustomExtension {
    // An ID has at most 63 characters, so its length fits one byte.
    let mut content = vec![TEXT, u8::try_from(member.as_str().len()).unwrap_or_default()];
    content.extend(member.as_str().bytes());
    CustomExtension::from_oid_content(&OID, content)
}

/// Returns the member in `certificate`, if it has this extension.
///
/// # Errors
/// If the certificate can't be parsed, or its extension is not the ID of a member.
pub(super) fn read(certificate: &CertificateDer<'_>) -> Result<Option<ClusterId>, SpiffeIdError> {
    own_extension::read(certificate, OID, |value| {
        let [TEXT, length, text @ ..] = value else { return None };
        let text = str::from_utf8(text).ok().filter(|text| text.len() == usize::from(*length))?;
        ClusterId::parse(text).ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Ca;

    #[test]
    fn member_round_trips_through_a_certificate() {
        let ca = Ca::new();
        let with = |extension: CustomExtension| {
            let (chain, _) = ca.invalid(&["spiffe://cluster.local/ns/shop/sa/web"], |params| {
                params.custom_extensions.push(extension);
            });
            read(&chain[0])
        };
        let longest = "a".repeat(ClusterId::LENGTH_MAX);
        for member in ["e", "eu-west.1", &*longest] {
            assert_eq!(with(extension(&member.into())), Ok(Some(member.into())));
        }
        assert_eq!(read(&ca.workload("web").0[0]), Ok(None), "of the mesh's CA");
        for content in [vec![], vec![TEXT], vec![TEXT, 2, b'a'], vec![TEXT, 1, 0xff], vec![2, 1, 7]]
        {
            let wrong = CustomExtension::from_oid_content(&OID, content.clone());
            assert!(with(wrong).is_err(), "{content:?}");
        }
    }
}
