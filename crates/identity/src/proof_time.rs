//! The time when the holder of a certificate last proved its identity with a token. Certificates of
//! this control plane carry it from one renewal to the next, so that no replica must store it and
//! no other party can set it.
//!
//! It is a non-critical extension, which other programs ignore (RFC 5280, 4.2). Its value is an
//! INTEGER: seconds since the epoch.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rcgen::CustomExtension;
use rustls_pki_types::CertificateDer;

use super::{SpiffeIdError, der_integer, own_extension};

/// Maximum time for which certificates may be exchanged for others without a token.
pub(super) const CHAIN_MAX: Duration = Duration::from_secs(30 * 24 * 3600);
/// Object identifier below 2.25, where anyone may choose a number at random (ITU-T X.667). The
/// number has at most 28 bits, because Go's library rejects certificates with longer ones, and
/// Istio's agents are written in Go.
const OID: [u64; 3] = [2, 25, 0x0b1c_5e0d];

/// Returns the extension with this time.
pub(super) fn extension(proved: SystemTime) -> CustomExtension {
    let seconds = proved.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    CustomExtension::from_oid_content(&OID, der_integer::encode(seconds))
}

/// Returns the time in `certificate`, if it has this extension.
///
/// # Errors
/// If the certificate can't be parsed, or its extension is not a time.
pub(super) fn read(certificate: &CertificateDer<'_>) -> Result<Option<SystemTime>, SpiffeIdError> {
    own_extension::read(certificate, OID, |value| {
        UNIX_EPOCH.checked_add(Duration::from_secs(der_integer::decode(value)?))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Ca;

    #[test]
    fn object_identifier_fits_libraries_with_small_numbers() {
        assert!(OID.iter().all(|part| *part < 1 << 28), "{OID:?}");
    }

    #[test]
    fn proof_time_round_trips_through_a_certificate() {
        let ca = Ca::new();
        for seconds in [0, 127, 128, 0xffff, 1_764_230_400, u64::from(u32::MAX) + 9] {
            let proved = UNIX_EPOCH + Duration::from_secs(seconds);
            let (chain, _) = ca.invalid(&["spiffe://cluster.local/ns/shop/sa/web"], |params| {
                params.custom_extensions.push(extension(proved));
            });
            assert_eq!(read(&chain[0]), Ok(Some(proved)), "{seconds}");
        }
        assert_eq!(read(&ca.workload("web").0[0]), Ok(None), "issued by hand");
    }

    #[test]
    fn certificate_with_an_invalid_time_is_refused() {
        let ca = Ca::new();
        let negative = vec![0x02, 1, 0xff];
        let too_large = der_integer::encode(u64::MAX);
        let wrong_values = [vec![], vec![0x02], vec![0x02, 9, 1], vec![0x04, 1, 1], vec![0x02, 0]];
        let valid = der_integer::encode(1_764_230_400);
        let certificates = wrong_values.into_iter().chain([negative, too_large]);
        let certificates =
            certificates.map(|value| vec![value]).chain([vec![valid.clone(), valid]]);
        for values in certificates {
            let (chain, _) = ca.invalid(&["spiffe://cluster.local/ns/shop/sa/web"], |params| {
                let extension =
                    |value: &Vec<u8>| CustomExtension::from_oid_content(&OID, value.clone());
                params.custom_extensions.extend(values.iter().map(extension));
            });
            assert!(read(&chain[0]).is_err(), "{values:?}");
            let now = SystemTime::now();
            assert!(ca.roots().authenticate(&chain, now).is_err(), "{values:?}");
        }
    }
}
