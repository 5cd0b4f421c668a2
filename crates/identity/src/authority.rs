//! The CA: a key, its chain, and the roots that it chains to.
//!
//! It issues certificates for the control plane and for workloads. It never decides whether a
//! caller may have a certificate. A CA consists of a few PEM files in either of two forms, wherever
//! they are stored. A built-in CA is generated once and then handled like a plugged-in one.

use std::fmt;
use std::future::Future;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, PublicKeyData, SanType, SerialNumber, SubjectPublicKeyInfo,
};
use ring::hmac;
use rustls::SignatureScheme;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use x509_parser::prelude::{FromDer as _, X509Certificate};

pub use super::error::{BACKDATING, LIFETIME_MAX};
use super::error::{IdentityError, StoreTrouble, signing};
use super::peer::validity;
use super::root_life::ends_soon;
use super::{
    ReplicaId, RootFingerprint, SharedKey, SpiffeId, TrustRoots, csr, files, member_mark, pem,
    proof_time, relay_identity, tls,
};
use strait_model::ClusterId;

/// Lifetime of a certificate if the request names none.
pub const LIFETIME_DEFAULT: Duration = Duration::from_secs(24 * 3600);
/// Lifetime of an intermediate, unless its issuer expires earlier.
pub const INTERMEDIATE_LIFETIME: Duration = Duration::from_secs(365 * 24 * 3600);
/// Lifetime of the root of a built-in CA.
pub const ROOT_LIFETIME: Duration = Duration::from_secs(3650 * 24 * 3600);

/// Naming scheme of a CA's files.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum AuthorityForm {
    /// Names of Istio's Secret `cacerts`.
    #[default]
    Istio,
    /// Names of a Secret of type `kubernetes.io/tls`, for example from cert-manager.
    Tls,
}

impl AuthorityForm {
    /// Returns the names of certificate, key, chain and roots. In the second form, the chain's
    /// first certificate is the signing one.
    pub fn names(self) -> [&'static str; 4] {
        match self {
            Self::Istio => AuthorityPem::FILES,
            Self::Tls => ["tls.crt", "tls.key", "tls.crt", "ca.crt"],
        }
    }
}

/// The files of a CA. `Debug` omits the key.
#[derive(Clone, PartialEq, Eq)]
pub struct AuthorityPem {
    /// `ca-cert.pem`: the certificate that signs.
    pub ca_cert: String,
    /// `ca-key.pem`: its key; PKCS#8, PKCS#1 or SEC1.
    pub ca_key: String,
    /// `cert-chain.pem`: the chain from the signing certificate up; may include the root.
    pub cert_chain: String,
    /// `root-cert.pem`: all roots; old and new ones during a rotation.
    pub root_cert: String,
    /// Naming scheme of the source.
    pub form: AuthorityForm,
}

impl AuthorityPem {
    /// Names of the files, in the order of the fields.
    pub const FILES: [&str; 4] = ["ca-cert.pem", "ca-key.pem", "cert-chain.pem", "root-cert.pem"];

    /// Generates a root that signs itself: P-256, valid for ten years.
    pub fn generate(now: SystemTime) -> Result<Self, IdentityError> {
        let key = KeyPair::generate().map_err(signing)?;
        let mut params = CertificateParams::default();
        let mut name = DistinguishedName::new();
        // Path building would be ambiguous if two roots had one name and different keys.
        name.push(DnType::OrganizationName, "Strait");
        name.push(DnType::CommonName, format!("Strait root {:016x}", rand::random::<u64>()));
        params.distinguished_name = name;
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        params.not_before = (now - BACKDATING).into();
        params.not_after = (now + ROOT_LIFETIME).into();
        params.serial_number = Some(serial_number());
        let root = params.self_signed(&key).map_err(signing)?.pem();
        Ok(Self {
            ca_cert: root.clone(),
            ca_key: key.serialize_pem(),
            cert_chain: root.clone(),
            root_cert: root,
            form: AuthorityForm::Istio,
        })
    }

    /// Reads the files of `directory`, in either form.
    ///
    /// # Errors
    /// If a file can't be read, or if files are missing, all of which the error lists.
    pub fn read(directory: &Path) -> Result<Self, IdentityError> {
        Self::read_parts(directory, |name| files::read(&directory.join(name)))
    }

    /// Reads the parts of a CA named `origin` with `read`, in either form: the second one if no
    /// file of the first exists.
    ///
    /// # Errors
    /// The errors of [`Self::read`].
    pub fn read_parts(
        origin: &Path,
        read: impl Fn(&'static str) -> io::Result<Vec<u8>>,
    ) -> Result<Self, IdentityError> {
        let text = |name: &'static str| match read(name) {
            // PEM is ASCII; other content fails later as PEM, with the file name.
            Ok(contents) => Ok(Some(String::from_utf8_lossy(&contents).into_owned())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(IdentityError::Read { path: origin.join(name), source }),
        };
        let all = |form: AuthorityForm| -> Result<Vec<Option<String>>, IdentityError> {
            form.names().into_iter().map(text).collect()
        };
        let (mut form, mut texts) = (AuthorityForm::Istio, all(AuthorityForm::Istio)?);
        if texts.iter().all(Option::is_none) {
            let others = all(AuthorityForm::Tls)?;
            if others.iter().any(Option::is_some) {
                (form, texts) = (AuthorityForm::Tls, others);
            }
        }
        let names = form.names().into_iter().zip(&texts);
        let mut missing: Vec<_> =
            names.filter(|(_, text)| text.is_none()).map(|(name, _)| name).collect();
        // In the second form, one file contains two parts.
        missing.sort_unstable();
        missing.dedup();
        let whole: Option<Vec<String>> = texts.into_iter().collect();
        let whole = whole.and_then(|whole| <[String; 4]>::try_from(whole).ok());
        let Some([ca_cert, ca_key, cert_chain, root_cert]) = whole else {
            return Err(IdentityError::PartialAuthority { path: origin.to_owned(), missing });
        };
        Ok(Self { ca_cert, ca_key, cert_chain, root_cert, form })
    }

    /// Creates `directory`, which must be absent or empty, with the four files. Only the owner can
    /// read the key.
    pub fn write(&self, directory: &Path) -> Result<(), IdentityError> {
        let [ca_cert, ca_key, cert_chain, root_cert] = Self::FILES;
        files::create_folder(
            directory,
            &[
                (ca_cert, &self.ca_cert, files::PUBLIC),
                (ca_key, &self.ca_key, files::SECRET),
                (cert_chain, &self.cert_chain, files::PUBLIC),
                (root_cert, &self.root_cert, files::PUBLIC),
            ],
        )
    }
}

impl fmt::Debug for AuthorityPem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AuthorityPem").field("root_cert", &self.root_cert).finish_non_exhaustive()
    }
}

/// Storage of a built-in CA.
pub trait AuthorityStore {
    /// Returns the stored CA, if there is one.
    fn load(&self) -> impl Future<Output = Result<Option<AuthorityPem>, IdentityError>> + Send;

    /// Stores the first CA. Returns `false` without a change if another replica was faster.
    fn create(
        &self,
        new: &AuthorityPem,
    ) -> impl Future<Output = Result<bool, IdentityError>> + Send;
}

/// Returns the CA in `store`, and creates one if the store is empty. Replicas that start at the
/// same time end up with the same CA.
pub async fn load_or_create(
    store: &impl AuthorityStore,
    now: SystemTime,
) -> Result<AuthorityPem, IdentityError> {
    if let Some(existing) = store.load().await? {
        return Ok(existing);
    }
    let new = AuthorityPem::generate(now)?;
    if store.create(&new).await? {
        return Ok(new);
    }
    let gone = || IdentityError::Store {
        reason: "another replica created a CA, which was deleted again".to_owned(),
        trouble: StoreTrouble::Unusable,
    };
    store.load().await?.ok_or_else(gone)
}

/// Storage of a CA in a dedicated directory, for example `<state-dir>/ca`.
#[derive(Debug, Clone)]
pub struct DirectoryStore(pub PathBuf);

impl AuthorityStore for DirectoryStore {
    async fn load(&self) -> Result<Option<AuthorityPem>, IdentityError> {
        // An empty directory was created for the CA; a directory with parts of a CA is an error.
        match std::fs::read_dir(&self.0).map(|mut entries| entries.next().is_none()) {
            Ok(false) => AuthorityPem::read(&self.0).map(Some),
            Ok(true) => Ok(None),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(IdentityError::Read { path: self.0.clone(), source }),
        }
    }

    async fn create(&self, new: &AuthorityPem) -> Result<bool, IdentityError> {
        match new.write(&self.0) {
            Ok(()) => Ok(true),
            Err(IdentityError::NotEmpty { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// A CA that is ready to sign.
#[derive(Debug)]
pub struct Authority {
    issuer: Issuer<'static, SigningKey>,
    /// The certificate that signs.
    certificate: CertificateDer<'static>,
    /// Derived from the CA's key, so that all replicas with the CA have it and no other process.
    secret: hmac::Key,
    /// Certificates that follow a leaf: the signing certificate and the ones above it, without
    /// roots.
    intermediates: Vec<CertificateDer<'static>>,
    roots: Arc<TrustRoots>,
    /// The roots that issued certificates chain to.
    leading: Vec<RootFingerprint>,
    not_after: SystemTime,
    /// The only member whose workloads it signs for, if it is dedicated to one.
    member: Option<ClusterId>,
}

impl Authority {
    /// Checks the files, and that clients would trust certificates issued from them. `origin` names
    /// the directory in messages.
    pub fn new(files: &AuthorityPem, origin: &str, now: SystemTime) -> Result<Self, IdentityError> {
        let [.., root_file] = files.form.names();
        let root_file = format!("{origin}/{root_file}");
        let roots = TrustRoots::from_pem(files.root_cert.as_bytes(), &root_file, now)?;
        Self::below(files, origin, Arc::new(roots), now)
    }

    /// Creates a CA below `roots`, regardless of the roots in its own files.
    pub(super) fn below(
        files: &AuthorityPem,
        origin: &str,
        roots: Arc<TrustRoots>,
        now: SystemTime,
    ) -> Result<Self, IdentityError> {
        let [cert_file, key_file, chain_file, _] =
            files.form.names().map(|name| format!("{origin}/{name}"));
        let unreadable = |reason: &str| IdentityError::Certificate {
            origin: cert_file.clone(),
            number: 1,
            reason: reason.to_owned(),
        };

        let certificate = pem::certificates(files.ca_cert.as_bytes(), &cert_file)?.swap_remove(0);
        let (not_before, not_after) =
            validity(&certificate).ok_or_else(|| unreadable("it can't be parsed"))?;
        if now < not_before || not_after < now {
            return Err(IdentityError::NotValidNow { origin: cert_file, not_before, not_after });
        }
        let key = pem::private_key(files.ca_key.as_bytes(), &key_file)?;
        let secret = hmac::Key::new(hmac::HMAC_SHA256, key.secret_der());
        let key = SigningKey::new(key, &key_file)?;
        if !key.belongs_to(&certificate) {
            return Err(IdentityError::KeyMismatch { certificate: cert_file, key: key_file });
        }
        let issuer = Issuer::from_ca_cert_der(&certificate, key)
            .map_err(|error| unreadable(&error.to_string()))?;

        let mut intermediates = Vec::new();
        if !roots.contains(&certificate) {
            let chain = pem::certificates(files.cert_chain.as_bytes(), &chain_file)?;
            let above =
                chain.into_iter().filter(|next| *next != certificate && !roots.contains(next));
            intermediates.extend(above);
            intermediates.insert(0, certificate.clone());
        }

        let mut authority = Self {
            issuer,
            certificate,
            secret,
            intermediates,
            roots,
            leading: Vec::new(),
            not_after,
            member: None,
        };
        authority.leading = authority.prove(origin, now)?;
        Ok(authority)
    }

    /// Adds roots that workloads must trust.
    #[must_use]
    pub(super) fn with_roots(
        mut self,
        further: &[CertificateDer<'static>],
        now: SystemTime,
    ) -> Self {
        self.roots = Arc::new(TrustRoots::clone(&self.roots).with(further, now));
        self
    }

    /// Dedicates the CA to one member. Workload certificates then name that member.
    #[must_use]
    pub(super) fn for_member(mut self, member: ClusterId) -> Self {
        self.member = Some(member);
        self
    }

    /// Returns the roots that issued certificates chain to.
    pub fn leading(&self) -> &[RootFingerprint] {
        &self.leading
    }

    /// Returns whether issued certificates chain to this root.
    pub(super) fn chains_to(&self, root: &RootFingerprint) -> bool {
        self.leading.contains(root)
    }

    /// Returns whether every client that trusts certificates of `other` also trusts certificates of
    /// this CA: both chain to roots with the same name and key.
    pub(super) fn shares_root_with(&self, other: &Self) -> bool {
        let leading_roots = |authority: &Self| -> Vec<CertificateDer<'static>> {
            let all = authority.roots.certificates();
            let leading = all.filter(|der| authority.chains_to(&RootFingerprint::from_der(der)));
            leading.cloned().map(CertificateDer::from).collect()
        };
        let theirs = leading_roots(other);
        leading_roots(self)
            .iter()
            .any(|one| theirs.iter().any(|other| tls::are_equivalent(one, other)))
    }

    /// Returns the roots that clients of this CA must trust.
    pub fn roots(&self) -> &Arc<TrustRoots> {
        &self.roots
    }

    /// Returns the expiry of the signing certificate, and thus of all issued certificates.
    pub fn not_after(&self) -> SystemTime {
        self.not_after
    }

    /// Returns whether the signing certificate ends soon. A root has stages instead; see
    /// [`super::RootLife`].
    pub fn ends_soon(&self, now: SystemTime) -> bool {
        !self.roots.contains_equivalent(&self.certificate)
            && validity(&self.certificate).is_some_and(|valid| ends_soon(valid, now))
    }

    /// Issues a certificate for the control plane itself; `names` are DNS names and IP addresses.
    pub fn issue_serving(
        &self,
        names: &[String],
        now: SystemTime,
    ) -> Result<IssuedCertificate, IdentityError> {
        let mut params = CertificateParams::new(names).map_err(signing)?;
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        self.issue(params, LIFETIME_DEFAULT, now)
    }

    /// Issues a certificate with which a replica of the control plane authenticates to the others,
    /// with a new key.
    pub(super) fn issue_replica(
        &self,
        name: &ReplicaId,
        now: SystemTime,
    ) -> Result<IssuedCertificate, IdentityError> {
        let mut params = CertificateParams::default();
        params.subject_alt_names = vec![SanType::URI(name.uri().try_into().map_err(signing)?)];
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ClientAuth, ExtendedKeyUsagePurpose::ServerAuth];
        self.issue(params, LIFETIME_DEFAULT, now)
    }

    /// Returns the certificate that signs.
    pub(super) fn certificate(&self) -> &CertificateDer<'static> {
        &self.certificate
    }

    /// Derives a key for `purpose`. All replicas with this CA derive the same key.
    pub fn shared_key(&self, purpose: &str) -> SharedKey {
        SharedKey::derived(&self.secret, purpose)
    }

    /// Issues a certificate for a workload, with a new key.
    pub fn issue_workload(
        &self,
        id: &SpiffeId,
        lifetime: Duration,
        now: SystemTime,
    ) -> Result<IssuedCertificate, IdentityError> {
        self.issue(workload(id)?, lifetime, now)
    }

    /// Issues a certificate for the workload `id`, which the caller has proved to be, with the key
    /// of the request `csr_pem`. Names in the request are ignored. The certificate records
    /// `proved`, the time when a token last proved the identity, and `cluster`, the cluster of that
    /// token.
    pub fn sign_request(
        &self,
        csr_pem: &str,
        id: &SpiffeId,
        cluster: Option<&ClusterId>,
        lifetime: Duration,
        proved: SystemTime,
        now: SystemTime,
    ) -> Result<Chain, IdentityError> {
        let mut params = workload(id)?;
        params.custom_extensions.push(proof_time::extension(proved));
        let cluster = self.member.as_ref().or(cluster);
        params.custom_extensions.extend(cluster.map(member_mark::extension));
        self.sign(params, &csr::public_key(csr_pem)?, lifetime, now)
    }

    /// Issues a certificate for the relay of `cluster`, with the key of the request `csr_pem`. Names
    /// in the request are ignored.
    ///
    /// # Errors
    /// If the request is invalid, or the lifetime is out of range.
    pub fn sign_relay(
        &self,
        csr_pem: &str,
        trust_domain: &str,
        cluster: &ClusterId,
        generation: u64,
        lifetime: Duration,
        now: SystemTime,
    ) -> Result<Chain, IdentityError> {
        let params = relay_identity::params(trust_domain, cluster, generation)?;
        self.sign(params, &csr::public_key(csr_pem)?, lifetime, now)
    }

    /// Issues a CA below this one, which may sign for workloads but not for further CAs: P-256,
    /// valid for one year. `subject` becomes a part of the name.
    pub fn issue_authority(
        &self,
        subject: &str,
        now: SystemTime,
    ) -> Result<AuthorityPem, IdentityError> {
        let key = KeyPair::generate().map_err(signing)?;
        let mut params = CertificateParams::default();
        let mut name = DistinguishedName::new();
        name.push(DnType::OrganizationName, "Strait");
        name.push(
            DnType::CommonName,
            format!("Strait CA {subject} {:016x}", rand::random::<u64>()),
        );
        params.distinguished_name = name;
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        params.not_before = (now - BACKDATING).into();
        params.not_after = (now + INTERMEDIATE_LIFETIME).min(self.not_after).into();
        params.serial_number = Some(serial_number());
        params.use_authority_key_identifier_extension = true;
        let ca_cert = params.signed_by(&key, &self.issuer).map_err(signing)?.pem();
        Ok(AuthorityPem {
            cert_chain: format!("{ca_cert}{}", pem::encode_all(&self.intermediates)),
            ca_cert,
            ca_key: key.serialize_pem(),
            root_cert: self.roots.to_pem(),
            form: AuthorityForm::Istio,
        })
    }

    fn issue(
        &self,
        params: CertificateParams,
        lifetime: Duration,
        now: SystemTime,
    ) -> Result<IssuedCertificate, IdentityError> {
        let key = KeyPair::generate().map_err(signing)?;
        Ok(IssuedCertificate { chain: self.sign(params, &key, lifetime, now)?, key })
    }

    fn sign(
        &self,
        mut params: CertificateParams,
        key: &impl PublicKeyData,
        lifetime: Duration,
        now: SystemTime,
    ) -> Result<Chain, IdentityError> {
        if lifetime < Duration::from_secs(1) || lifetime > LIFETIME_MAX {
            return Err(IdentityError::Lifetime { requested: lifetime, most: LIFETIME_MAX });
        }
        // A certificate is useless after its issuer has expired, so it never claims to be valid
        // longer.
        let not_after = (now + lifetime).min(self.not_after);
        // An empty subject makes the list of names critical (RFC 5280, 4.2.1.6), so that no client
        // may ignore it.
        params.distinguished_name = DistinguishedName::new();
        params.is_ca = IsCa::ExplicitNoCa;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.not_before = (now - BACKDATING).into();
        params.not_after = not_after.into();
        params.serial_number = Some(serial_number());
        params.use_authority_key_identifier_extension = true;
        let leaf = params.signed_by(key, &self.issuer).map_err(signing)?;
        let mut certificates = vec![leaf.into()];
        certificates.extend_from_slice(&self.intermediates);
        Ok(Chain { certificates, not_after })
    }

    /// Issues a test certificate and verifies it, which detects all inconsistencies between the
    /// four files. Returns the roots that it chains to.
    fn prove(&self, origin: &str, now: SystemTime) -> Result<Vec<RootFingerprint>, IdentityError> {
        let unrooted = |error: IdentityError| IdentityError::Unrooted {
            origin: origin.to_owned(),
            reason: error.to_string(),
        };
        let probe =
            SpiffeId::new("probe.invalid", "probe", "probe").map_err(IdentityError::Identity)?;
        let issued = self.issue_workload(&probe, Duration::from_secs(60), now)?;
        self.roots.authenticate(&issued.chain.certificates, now).map_err(unrooted)?;
        let leading = self.roots.leading(&issued.chain.certificates, now).into_iter();
        Ok(leading.map(|der| RootFingerprint::from_der(der)).collect())
    }
}

/// A certificate with its chain up to a root, leaf first.
#[derive(Debug, Clone)]
pub struct Chain {
    certificates: Vec<CertificateDer<'static>>,
    not_after: SystemTime,
}

impl Chain {
    /// Returns the certificates, leaf first, without roots.
    pub fn certificates(&self) -> &[CertificateDer<'static>] {
        &self.certificates
    }

    /// Returns the expiry of the leaf.
    pub fn not_after(&self) -> SystemTime {
        self.not_after
    }

    /// Returns one PEM text, leaf first.
    pub fn to_pem(&self) -> String {
        pem::encode_all(&self.certificates)
    }

    /// Returns a PEM text for each certificate, leaf first.
    pub fn to_pems(&self) -> Vec<String> {
        self.certificates.iter().map(pem::encode).collect()
    }
}

/// A chain and its key. `Debug` omits the key.
#[derive(Debug)]
pub struct IssuedCertificate {
    /// The certificates.
    pub chain: Chain,
    key: KeyPair,
}

impl IssuedCertificate {
    /// Returns the key in PKCS#8 form, in PEM.
    pub fn key_pem(&self) -> String {
        self.key.serialize_pem()
    }

    /// Returns the key for TLS.
    pub fn key_der(&self) -> PrivateKeyDer<'static> {
        PrivateKeyDer::Pkcs8(self.key.serialize_der().into())
    }
}

/// Writes `cert-chain.pem`, `key.pem` and `root-cert.pem` to `directory`, replacing older ones:
/// either all of them or none. Only the owner can read the key.
pub fn write_workload(
    directory: &Path,
    issued: &IssuedCertificate,
    roots: &TrustRoots,
) -> Result<(), IdentityError> {
    std::fs::create_dir_all(directory)
        .map_err(|source| IdentityError::Write { path: directory.to_owned(), source })?;
    let (roots, key, chain) = (roots.to_pem(), issued.key_pem(), issued.chain.to_pem());
    let at = |name: &str| directory.join(name);
    // Roots first, because they are valid with the old certificate too.
    let wanted = [
        (at("root-cert.pem"), roots.as_bytes(), files::PUBLIC),
        (at("key.pem"), key.as_bytes(), files::SECRET),
        (at("cert-chain.pem"), chain.as_bytes(), files::PUBLIC),
    ];
    files::replace_all(directory, &wanted)
}

fn workload(id: &SpiffeId) -> Result<CertificateParams, IdentityError> {
    let mut params = CertificateParams::default();
    params.subject_alt_names = vec![SanType::URI(id.to_string().try_into().map_err(signing)?)];
    // A workload is both a server and a client.
    params.extended_key_usages =
        vec![ExtendedKeyUsagePurpose::ClientAuth, ExtendedKeyUsagePurpose::ServerAuth];
    Ok(params)
}

/// Returns 126 random bits after a fixed start, so that the number is positive, never zero, and
/// unique without a counter (RFC 5280, 4.1.2.2).
fn serial_number() -> SerialNumber {
    let mut bytes: [u8; 16] = rand::random();
    bytes[0] = (bytes[0] & 0x7f) | 0x40;
    SerialNumber::from_slice(&bytes)
}

/// The key of the CA. It is loaded with rustls, because rcgen itself only accepts PKCS#8, and most
/// plugged-in keys are PKCS#1 or SEC1.
struct SigningKey {
    key: Arc<dyn rustls::sign::SigningKey>,
    public: SubjectPublicKeyInfo,
    scheme: SignatureScheme,
}

impl SigningKey {
    fn new(key: PrivateKeyDer<'static>, origin: &str) -> Result<Self, IdentityError> {
        let unusable = || IdentityError::Key { origin: origin.to_owned() };
        let key = tls::provider().key_provider.load_private_key(key).map_err(|_| unusable())?;
        let public = key
            .public_key()
            .and_then(|public| SubjectPublicKeyInfo::from_der(&public).ok())
            .ok_or_else(unusable)?;
        // The scheme must match the algorithm that rcgen writes next to the signature.
        let scheme = [
            (&rcgen::PKCS_RSA_SHA256, SignatureScheme::RSA_PKCS1_SHA256),
            (&rcgen::PKCS_ECDSA_P256_SHA256, SignatureScheme::ECDSA_NISTP256_SHA256),
            (&rcgen::PKCS_ECDSA_P384_SHA384, SignatureScheme::ECDSA_NISTP384_SHA384),
            (&rcgen::PKCS_ED25519, SignatureScheme::ED25519),
        ]
        .into_iter()
        .find_map(|(algorithm, scheme)| (algorithm == public.algorithm()).then_some(scheme))
        .ok_or_else(unusable)?;
        Ok(Self { key, public, scheme })
    }

    fn belongs_to(&self, certificate: &CertificateDer<'_>) -> bool {
        X509Certificate::from_der(certificate).is_ok_and(|(_, parsed)| {
            self.public.subject_public_key_info() == parsed.public_key().raw
        })
    }
}

impl PublicKeyData for SigningKey {
    fn der_bytes(&self) -> &[u8] {
        self.public.der_bytes()
    }

    fn algorithm(&self) -> &'static rcgen::SignatureAlgorithm {
        self.public.algorithm()
    }
}

impl rcgen::SigningKey for SigningKey {
    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, rcgen::Error> {
        self.key
            .choose_scheme(&[self.scheme])
            .and_then(|signer| signer.sign(message).ok())
            .ok_or(rcgen::Error::RemoteKeyError)
    }
}

#[cfg(test)]
mod tests;
