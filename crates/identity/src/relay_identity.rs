//! Identity of a relay: `spiffe://TRUST-DOMAIN/strait/relay/CLUSTER` with a generation.
//!
//! The form differs from the SPIFFE ID of a workload, so neither ADS nor the certificate service
//! accepts the certificate of a relay. The generation is a non-critical extension with an INTEGER.
//! An operator raises it to replace all certificates of a relay.

use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use rcgen::{CertificateParams, CustomExtension, ExtendedKeyUsagePurpose, SanType};
use rustls_pki_types::CertificateDer;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer as _, X509Certificate};

use super::error::{IdentityError, signing};
use super::peer::validity;
use super::{SpiffeIdError, der_integer, own_extension};
use strait_model::{ClusterId, is_trust_domain};

/// Object identifier of the generation, chosen like that of [`super::proof_time`], with at most 28
/// bits for the same reason.
const GENERATION_OID: [u64; 3] = [2, 25, 0x0b1c_5e0f];

/// A relay with a verified certificate.
#[derive(Clone)]
pub struct RelayIdentity {
    trust_domain: Arc<str>,
    cluster: ClusterId,
    generation: u64,
    not_after: SystemTime,
    chain: Arc<[CertificateDer<'static>]>,
}

impl RelayIdentity {
    /// Reads the identity from a verified chain, leaf first.
    ///
    /// # Errors
    /// If the leaf is a CA, does not have exactly one name of this form, or has no generation.
    pub(super) fn from_chain(chain: &[CertificateDer<'_>]) -> Result<Self, IdentityError> {
        let leaf = chain.first().ok_or(IdentityError::NoPeerCertificate)?;
        let (trust_domain, cluster) = relay_name(leaf)?.ok_or(SpiffeIdError::Form)?;
        let generation = own_extension::read(leaf, GENERATION_OID, der_integer::decode)?;
        let generation = generation.ok_or(SpiffeIdError::Malformed)?;
        Ok(Self {
            trust_domain,
            cluster,
            generation,
            not_after: validity(leaf).ok_or(SpiffeIdError::Malformed)?.1,
            chain: chain.iter().map(|certificate| certificate.clone().into_owned()).collect(),
        })
    }

    /// Returns the trust domain of the mesh that issued the certificate.
    pub fn trust_domain(&self) -> &str {
        &self.trust_domain
    }

    /// Returns the member whose API server the relay may speak for.
    pub fn cluster(&self) -> &ClusterId {
        &self.cluster
    }

    /// Returns the generation of the certificate.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Returns the expiry of the certificate; a connection must not outlive it.
    pub fn not_after(&self) -> SystemTime {
        self.not_after
    }

    /// Returns the presented chain, leaf first, to be verified again when the roots change.
    pub fn chain(&self) -> &[CertificateDer<'static>] {
        &self.chain
    }
}

impl fmt::Debug for RelayIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { trust_domain, cluster, generation, .. } = self;
        write!(f, "spiffe://{trust_domain}/strait/relay/{cluster} generation {generation}")
    }
}

/// Returns whether a certificate is the certificate of a relay.
pub(super) fn is_relay(certificate: &CertificateDer<'_>) -> bool {
    matches!(relay_name(certificate), Ok(Some(_)))
}

/// Returns the trust domain and the cluster in the certificate of a relay; `None` for any other
/// certificate.
///
/// # Errors
/// If the certificate can't be parsed.
pub(super) fn relay_name(
    certificate: &CertificateDer<'_>,
) -> Result<Option<(Arc<str>, ClusterId)>, SpiffeIdError> {
    let (_, parsed) =
        X509Certificate::from_der(certificate).map_err(|_| SpiffeIdError::Malformed)?;
    if parsed.is_ca() {
        return Ok(None);
    }
    let names = parsed
        .subject_alternative_name()
        .map_err(|_| SpiffeIdError::Malformed)?
        .map_or(&[][..], |names| &names.value.general_names);
    // Exactly one name of any kind.
    let [GeneralName::URI(uri)] = names else { return Ok(None) };
    let Some(path) = uri.strip_prefix("spiffe://") else { return Ok(None) };
    let parts: Vec<_> = path.split('/').collect();
    let [trust_domain, "strait", "relay", cluster] = parts[..] else { return Ok(None) };
    let cluster = ClusterId::parse(cluster).ok().filter(|_| is_trust_domain(trust_domain));
    Ok(cluster.map(|cluster| (trust_domain.into(), cluster)))
}

/// Returns the settings of the certificate of a relay.
pub(super) fn params(
    trust_domain: &str,
    cluster: &ClusterId,
    generation: u64,
) -> Result<CertificateParams, IdentityError> {
    let name = format!("spiffe://{trust_domain}/strait/relay/{cluster}");
    let mut params = CertificateParams::default();
    params.subject_alt_names = vec![SanType::URI(name.try_into().map_err(signing)?)];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    let content = der_integer::encode(generation);
    params.custom_extensions = vec![CustomExtension::from_oid_content(&GENERATION_OID, content)];
    Ok(params)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rcgen::{KeyPair, PublicKeyData as _};

    use super::*;
    use crate::testing::Ca;
    use crate::{SpiffeId, TrustRoots};

    /// Returns a certificate request in PEM.
    fn request() -> String {
        let key = KeyPair::generate().expect("ring makes it");
        assert!(!key.der_bytes().is_empty());
        let params = CertificateParams::new(["another".to_owned()]).expect("a name");
        params.serialize_request(&key).expect("key signs").pem().expect("PEM")
    }

    #[test]
    fn relay_certificate_names_the_member_and_the_generation() {
        let (ca, now) = (Ca::new(), SystemTime::now());
        let day = Duration::from_secs(24 * 3600);
        let east = "east".into();
        let chain = ca.authority.sign_relay(&request(), "td.example", &east, 7, day, now);
        let chain = chain.expect("it signs");
        let relay = ca.roots().authenticate_relay(chain.certificates(), now).expect("trusted");
        assert_eq!((relay.trust_domain(), relay.generation()), ("td.example", 7));
        assert_eq!(relay.cluster(), &east);
        assert!(relay.not_after() <= now + day);
    }

    #[test]
    fn relays_and_workloads_cannot_use_certificates_of_each_other() {
        let (ca, now) = (Ca::new(), SystemTime::now());
        let hour = Duration::from_secs(3600);
        let relay = ca.authority.sign_relay(&request(), "cluster.local", &"e".into(), 1, hour, now);
        let relay = relay.expect("it signs");
        assert!(SpiffeId::from_certificate(&relay.certificates()[0]).is_err());
        assert!(ca.roots().authenticate(relay.certificates(), now).is_err());
        assert!(ca.roots().authenticate_relay(&ca.workload("web").0, now).is_err());
    }

    #[test]
    fn ca_of_relays_signs_for_relays_only_and_no_other_ca_does() {
        let (mesh, relays, now) = (Ca::new(), Ca::new(), SystemTime::now());
        let hour = Duration::from_secs(3600);
        let roots = TrustRoots::clone(mesh.roots()).with_relays(relays.roots());
        let sign = |ca: &Ca| {
            let signed =
                ca.authority.sign_relay(&request(), "cluster.local", &"e".into(), 1, hour, now);
            signed.expect("it signs").certificates().to_vec()
        };
        let relay = sign(&relays);
        assert_eq!(roots.authenticate_relay(&relay, now).expect("a relay").cluster(), &"e".into());
        assert!(roots.authenticate(&relay, now).is_err(), "a relay is no workload");
        assert!(roots.authenticate_relay(&sign(&mesh), now).is_err());
        assert!(roots.authenticate(&mesh.workload("web").0, now).is_ok());
        assert!(roots.authenticate(&relays.workload("web").0, now).is_err());
        assert_eq!(roots.to_pem(), mesh.roots().to_pem(), "no workload trusts the CA of relays");
    }

    #[test]
    fn certificate_of_another_form_is_no_relay() {
        let (ca, now) = (Ca::new(), SystemTime::now());
        let read_generation = |names: &[&str], generation: Option<&[u8]>| {
            let (chain, _) = ca.invalid(names, |params| {
                let extension = generation
                    .map(|value| CustomExtension::from_oid_content(&GENERATION_OID, value.into()));
                params.custom_extensions.extend(extension);
            });
            ca.roots().authenticate_relay(&chain, now).map(|relay| relay.generation())
        };
        let name = "spiffe://td/strait/relay/east";
        assert_eq!(read_generation(&[name], Some(&[2, 1, 3])).expect("a relay"), 3);
        for (names, generation) in [
            (&[name][..], None),
            (&[name], Some(&[2, 1, 0x80][..])),
            (&[name, "spiffe://td/ns/a/sa/b"], Some(&[2, 1, 3])),
            (&["spiffe://td/strait/relay/East"], Some(&[2, 1, 3])),
            (&["spiffe://td/strait/relay/"], Some(&[2, 1, 3])),
            (&["spiffe://td/strait/relay/a/b"], Some(&[2, 1, 3])),
            (&["spiffe://TD/strait/relay/east"], Some(&[2, 1, 3])),
            (&["https://td/strait/relay/east"], Some(&[2, 1, 3])),
        ] {
            assert!(read_generation(names, generation).is_err(), "{names:?} {generation:?}");
        }
    }
}
