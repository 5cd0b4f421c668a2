//! Certificates of the rig: a CA in the format of `--ca-dir`, workload certificates with SPIFFE
//! IDs, and the serving certificates of API servers. They are created for each run.

use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose, SanType,
};

/// The trust domain of the rig.
pub(crate) const TRUST_DOMAIN: &str = "cluster.local";

/// A certificate authority, also written to a folder in the format of `strait serve --ca-dir`.
pub(crate) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: String,
    folder: PathBuf,
}

/// The files of a certificate.
#[derive(Clone, Debug)]
pub(crate) struct Files {
    pub(crate) certificate: PathBuf,
    pub(crate) key: PathBuf,
    pub(crate) root: PathBuf,
}

impl Authority {
    pub(crate) fn create(folder: &Path, name: &str) -> Self {
        let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap().pem();
        std::fs::create_dir_all(folder).unwrap();
        write(folder, "ca-key.pem", &key.serialize_pem());
        for file in ["ca-cert.pem", "cert-chain.pem", "root-cert.pem"] {
            write(folder, file, &certificate);
        }
        Self { issuer: Issuer::new(params, key), certificate, folder: folder.to_owned() }
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns the root certificate in PEM.
    pub(crate) fn pem(&self) -> &str {
        &self.certificate
    }

    /// Returns a workload's certificate, in a folder below the CA's. The files are created once and
    /// not written again, because an Envoy may be reading them.
    pub(crate) fn workload(&self, namespace: &str, service_account: &str) -> Files {
        let names = vec![identity(TRUST_DOMAIN, namespace, service_account)];
        self.issue(&format!("{namespace}.{service_account}"), names)
    }

    /// Returns the certificate of a workload in any trust domain.
    pub(crate) fn workload_in_domain(
        &self,
        domain: &str,
        namespace: &str,
        service_account: &str,
    ) -> Files {
        let names = vec![identity(domain, namespace, service_account)];
        self.issue(&format!("{domain}.{namespace}.{service_account}"), names)
    }

    /// Returns a server's certificate for addresses and DNS names.
    pub(crate) fn server(&self, name: &str, names: &[&str]) -> Files {
        let san = |name: &&str| match name.parse() {
            Ok(address) => SanType::IpAddress(address),
            Err(_) => SanType::DnsName((*name).try_into().unwrap()),
        };
        self.issue(name, names.iter().map(san).collect())
    }

    fn issue(&self, label: &str, names: Vec<SanType>) -> Files {
        let folder = self.folder.join(label);
        let [certificate, key, root] =
            ["cert-chain.pem", "key.pem", "root-cert.pem"].map(|name| folder.join(name));
        let files = Files { certificate, key, root };
        if !folder.exists() {
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(&files.root, &self.certificate).unwrap();
            self.sign(&files, label, names);
        }
        files
    }

    /// Replaces a workload's certificate and key, one file after the other.
    pub(crate) fn renew(&self, namespace: &str, service_account: &str) {
        let files = self.workload(namespace, service_account);
        let label = format!("{namespace}.{service_account}");
        self.sign(&files, &label, vec![identity(TRUST_DOMAIN, namespace, service_account)]);
    }

    fn sign(&self, files: &Files, label: &str, names: Vec<SanType>) {
        let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
        params.distinguished_name.push(DnType::CommonName, label);
        params.subject_alt_names = names;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap().pem();
        let texts = [(&files.certificate, certificate), (&files.key, key.serialize_pem())];
        for (path, text) in texts {
            let new = path.with_extension("new");
            std::fs::write(&new, text).unwrap();
            std::fs::rename(new, path).unwrap();
        }
    }
}

fn identity(domain: &str, namespace: &str, service_account: &str) -> SanType {
    let name = format!("spiffe://{domain}/ns/{namespace}/sa/{service_account}");
    SanType::URI(name.as_str().try_into().unwrap())
}

/// Writes a signing key and its public key, for the service account tokens of an API server.
/// Returns both paths.
pub(crate) fn signing_key(folder: &Path) -> (PathBuf, PathBuf) {
    let key = KeyPair::generate().unwrap();
    (write(folder, "sa.key", &key.serialize_pem()), write(folder, "sa.pub", &key.public_key_pem()))
}

fn write(folder: &Path, name: &str, text: &str) -> PathBuf {
    let path = folder.join(name);
    std::fs::write(&path, text).unwrap();
    path
}
