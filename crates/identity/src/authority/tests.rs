use super::*;
use crate::testing::{Ca, id};

fn now() -> SystemTime {
    SystemTime::now()
}

/// Returns the files of a CA below `parent`, as an operator would plug it in.
fn intermediate(parent: &Ca) -> AuthorityPem {
    let (chain, key) = parent.invalid(&[], |params| {
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        params.extended_key_usages.clear();
        params.distinguished_name.push(DnType::CommonName, "east");
    });
    let ca_cert = pem::encode_all(&chain);
    let key = KeyPair::try_from(key.secret_der()).expect("PKCS#8");
    let root_cert = parent.files.root_cert.clone();
    AuthorityPem {
        form: AuthorityForm::Istio,
        cert_chain: format!("{ca_cert}{root_cert}"),
        ca_cert,
        ca_key: key.serialize_pem(),
        root_cert,
    }
}

#[test]
fn chain_contains_intermediates_but_no_root() {
    let root = Ca::new();
    let plugged = Authority::new(&intermediate(&root), "dir", now()).expect("sound");
    let issued = plugged.issue_workload(&id("web"), LIFETIME_DEFAULT, now()).expect("it signs");
    assert_eq!(issued.chain.certificates().len(), 2);
    let peer = root.roots().authenticate(issued.chain.certificates(), now()).expect("verifies");
    assert_eq!(peer.id(), &id("web"));

    let own = root.authority.issue_workload(&id("web"), LIFETIME_DEFAULT, now()).expect("signs");
    assert_eq!(own.chain.certificates().len(), 1);
}

#[test]
fn validity_starts_before_now_and_never_exceeds_the_issuers() {
    let ca = Ca::new();
    let sign = |lifetime, now| ca.authority.issue_workload(&id("web"), lifetime, now);
    let issued = sign(LIFETIME_MAX, now()).expect("the longest allowed");
    let (not_before, not_after) = validity(&issued.chain.certificates()[0]).expect("parses");
    assert!(not_before < now() - BACKDATING + Duration::from_secs(60));
    assert!(not_after > now() + LIFETIME_MAX - Duration::from_secs(60));

    let day = Duration::from_secs(24 * 3600);
    let near_the_end = ca.authority.not_after() - day;
    let clipped = sign(LIFETIME_MAX, near_the_end).expect("it still signs");
    assert_eq!(clipped.chain.not_after(), ca.authority.not_after());

    for refused in [Duration::ZERO, LIFETIME_MAX + Duration::from_secs(1)] {
        assert!(matches!(sign(refused, now()), Err(IdentityError::Lifetime { .. })));
    }
}

#[test]
fn names_in_a_request_are_ignored() {
    let ca = Ca::new();
    let key = KeyPair::generate().expect("ring makes it");
    let mut wanted = CertificateParams::new(["istiod.istio-system.svc".to_owned()]).expect("valid");
    let admin = "spiffe://cluster.local/ns/kube-system/sa/admin".to_owned();
    wanted.subject_alt_names.push(SanType::URI(admin.try_into().expect("ASCII")));
    wanted.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let csr = wanted.serialize_request(&key).expect("it signs").pem().expect("PEM");

    let chain = ca
        .authority
        .sign_request(&csr, &id("web"), None, LIFETIME_DEFAULT, now(), now())
        .expect("signs");
    let leaf = &chain.certificates()[0];
    let (_, parsed) = X509Certificate::from_der(leaf).expect("parses");
    assert_eq!(SpiffeId::from_certificate(leaf), Ok(id("web")));
    assert_eq!(parsed.public_key().subject_public_key.data.as_ref(), key.public_key_raw());
    let names = parsed.subject_alternative_name().expect("parses").expect("has names");
    assert_eq!(names.value.general_names.len(), 1);
    assert!(names.critical && !parsed.is_ca());
}

#[test]
fn inconsistent_files_are_rejected() {
    let (a, b) = (Ca::new(), Ca::new());
    let with = |change: fn(&mut AuthorityPem, &AuthorityPem)| {
        let mut files = a.files.clone();
        change(&mut files, &b.files);
        Authority::new(&files, "dir", now()).map(|_| ())
    };
    assert!(matches!(
        with(|a, b| a.ca_key.clone_from(&b.ca_key)),
        Err(IdentityError::KeyMismatch { .. })
    ));
    assert!(matches!(
        with(|a, b| a.root_cert.clone_from(&b.root_cert)),
        Err(IdentityError::Unrooted { .. })
    ));
    assert!(matches!(with(|a, _| a.ca_key = "x".to_owned()), Err(IdentityError::Pem { .. })));
    assert!(matches!(with(|a, _| a.ca_cert = a.ca_key.clone()), Err(IdentityError::Pem { .. })));
    assert!(matches!(with(|a, _| a.root_cert.clear()), Err(IdentityError::Pem { .. })));
    let ended = a.authority.not_after() + Duration::from_secs(2);
    assert!(matches!(
        Authority::new(&a.files, "dir", ended),
        Err(IdentityError::NotValidNow { .. })
    ));
}

#[test]
fn leaf_can_not_act_as_ca() {
    let root = Ca::new();
    let issued =
        root.authority.issue_workload(&id("web"), LIFETIME_DEFAULT, now()).expect("it signs");
    let files = AuthorityPem {
        form: AuthorityForm::Istio,
        ca_cert: issued.chain.to_pem(),
        ca_key: issued.key_pem(),
        cert_chain: issued.chain.to_pem(),
        root_cert: root.files.root_cert,
    };
    assert!(matches!(Authority::new(&files, "dir", now()), Err(IdentityError::Unrooted { .. })));
}

/// Checks that a CA with its key in another form is accepted.
fn assert_key_is_accepted(form: &str, mut files: AuthorityPem, key: String) {
    files.ca_key = key;
    if let Err(error) = Authority::new(&files, form, now()) {
        panic!("{form}: {error}");
    }
}

#[test]
fn key_in_sec1_form_is_accepted() {
    let files = Ca::new().files;
    let key = KeyPair::from_pem(&files.ca_key).expect("PKCS#8");
    // PKCS#8 of a P-256 key adds 29 bytes before the SEC1 form.
    let sec1 = rustls_pki_types::PrivateSec1KeyDer::from(key.serialized_der()[29..].to_vec());
    let body = pem::encode(&CertificateDer::from(sec1.secret_sec1_der()));
    assert_key_is_accepted("SEC1", files, body.replace("CERTIFICATE", "EC PRIVATE KEY"));
}

#[test]
fn rsa_key_in_pkcs1_form_is_accepted() {
    let dir = tempfile::tempdir().expect("a folder");
    let openssl = |arguments: &str| {
        std::process::Command::new("openssl")
            .args(arguments.split(' '))
            .current_dir(dir.path())
            .output()
            .is_ok_and(|output| output.status.success())
    };
    // The repository contains no keys, and ring generates no RSA keys.
    if !openssl("genrsa -traditional -out key.pem 2048") {
        eprintln!("SKIPPED: no openssl here to make an RSA key");
        return;
    }
    assert!(openssl("req -x509 -new -key key.pem -subj /O=A/OU=B/CN=c -days 2 -out cert.pem"));
    let read = |name| std::fs::read_to_string(dir.path().join(name)).expect("made");
    let (key, cert) = (read("key.pem"), read("cert.pem"));
    assert!(key.starts_with("-----BEGIN RSA PRIVATE KEY"));
    let files = AuthorityPem {
        form: AuthorityForm::Istio,
        ca_cert: cert.clone(),
        ca_key: String::new(),
        cert_chain: cert.clone(),
        root_cert: cert,
    };
    assert_key_is_accepted("PKCS#1", files, key);
}

#[test]
fn directory_is_created_completely_and_never_overwritten() {
    use std::os::unix::fs::PermissionsExt as _;

    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("state/ca");
    let files = AuthorityPem::generate(now()).expect("a CA");
    files.write(&path).expect("written");
    assert_eq!(AuthorityPem::read(&path).expect("read"), files);
    let mode = |name: &str| path.join(name).metadata().expect("there").permissions().mode() & 0o777;
    assert_eq!(mode("ca-key.pem"), 0o600);
    assert_eq!(std::fs::read_dir(dir.path().join("state")).expect("there").count(), 1);

    let other = AuthorityPem::generate(now()).expect("a CA");
    assert!(matches!(other.write(&path), Err(IdentityError::NotEmpty { .. })));
    assert_eq!(AuthorityPem::read(&path).expect("read"), files);

    std::fs::remove_file(path.join("ca-key.pem")).expect("removed");
    std::fs::remove_file(path.join("root-cert.pem")).expect("removed");
    let error = AuthorityPem::read(&path).expect_err("partial");
    assert!(error.to_string().ends_with("lacks ca-key.pem, root-cert.pem"), "{error}");
}

#[test]
fn ca_in_the_form_of_a_tls_secret_is_accepted() {
    let root = Ca::new();
    let intermediate = intermediate(&root);
    let dir = tempfile::tempdir().expect("a folder");
    let put =
        |name: &str, text: &str| std::fs::write(dir.path().join(name), text).expect("written");
    let read = || AuthorityPem::read(dir.path());
    put("tls.crt", &intermediate.cert_chain);
    put("tls.key", &intermediate.ca_key);
    let error = read().expect_err("partial").to_string();
    assert!(error.ends_with("lacks ca.crt"), "{error}");
    put("ca.crt", &root.files.root_cert);
    let files = read().expect("whole");
    let authority = Authority::new(&files, "dir", now()).expect("sound");
    let leaf = authority.issue_workload(&id("web"), LIFETIME_DEFAULT, now()).expect("signs");
    assert_eq!(leaf.chain.certificates().len(), 2, "the intermediate follows, the root doesn't");
    put("tls.key", &AuthorityPem::generate(now()).expect("a CA").ca_key);
    let error = Authority::new(&read().expect("whole"), "dir", now()).expect_err("no pair");
    assert!(error.to_string().contains("dir/tls.key"), "{error}");
    // Files with Istio's names take precedence, and are incomplete here.
    put("ca-cert.pem", &intermediate.ca_cert);
    let error = read().expect_err("partial").to_string();
    assert!(error.ends_with("lacks ca-key.pem, cert-chain.pem, root-cert.pem"), "{error}");
}

#[tokio::test]
async fn built_in_ca_is_created_once() {
    let dir = tempfile::tempdir().expect("a folder");
    let store = DirectoryStore(dir.path().join("ca"));
    let first = load_or_create(&store, now()).await.expect("made");
    assert_eq!(load_or_create(&store, now()).await.expect("kept"), first);

    // Simulates a replica that was faster between the read and the write.
    struct Late(DirectoryStore, std::sync::atomic::AtomicBool);
    impl AuthorityStore for Late {
        async fn load(&self) -> Result<Option<AuthorityPem>, IdentityError> {
            match self.1.swap(true, std::sync::atomic::Ordering::Relaxed) {
                false => Ok(None),
                true => self.0.load().await,
            }
        }
        async fn create(&self, new: &AuthorityPem) -> Result<bool, IdentityError> {
            self.0.create(new).await
        }
    }
    let late = Late(store.clone(), false.into());
    assert_eq!(load_or_create(&late, now()).await.expect("theirs"), first);

    std::fs::remove_file(dir.path().join("ca/ca-cert.pem")).expect("removed");
    assert!(load_or_create(&store, now()).await.is_err(), "a damaged CA is never replaced");
}

#[test]
fn debug_output_contains_no_key() {
    let ca = Ca::new();
    let issued = ca.authority.issue_workload(&id("web"), LIFETIME_DEFAULT, now()).expect("signs");
    let printed = format!("{:?} {:?} {issued:?}", ca.files, ca.authority);
    assert!(!printed.contains("PRIVATE"));
    let secret: String = ca.files.ca_key.lines().skip(1).take(1).collect();
    assert!(!printed.contains(&secret));
}
