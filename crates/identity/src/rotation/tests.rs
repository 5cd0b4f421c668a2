use std::fs;

use super::*;
use crate::testing::{Ca, Pair, client, handshake, id, no_names};
use crate::{RootLack, RootLedger, RootRecord, RootStep, RootWitness, authority};

const FAST: Duration = Duration::from_millis(5);

/// A control plane whose files are in a dedicated directory.
struct Running {
    dir: tempfile::TempDir,
    identity: watch::Receiver<Arc<ServerIdentity>>,
    _tasks: Supervisor,
}

impl Running {
    fn start(
        files: &[(&str, String)],
        settings: impl FnOnce(&Path) -> CertificateSettings,
    ) -> Self {
        let dir = tempfile::tempdir().expect("a folder");
        let tasks = Supervisor::new();
        for (name, text) in files {
            fs::write(dir.path().join(name), text).expect("written");
        }
        let identity = start(settings(dir.path()), FAST, &tasks).expect("a good first set");
        Self { dir, identity, _tasks: tasks }
    }

    fn with_authority(ca: &Ca) -> Self {
        Self::start(&authority_files(&ca.files), |dir| CertificateSettings {
            serving: Serving::Issued { names: default_names("strait-system") },
            client_ca: None,
            authority: Some(AuthorityFrom::Directory(dir.to_owned())),
            named: no_names(),
            clients: ClientCertificates::Required,
            evidence: RootEvidence::empty(),
            relay_authority: None,
            members: Default::default(),
        })
    }

    fn with_files(ca: &Ca) -> Self {
        let (certificate, key) = serving_files(ca);
        let files = [("tls.crt", certificate), ("tls.key", key), ("ca.crt", ca.roots().to_pem())];
        Self::start(&files, |dir| CertificateSettings {
            serving: Serving::Files { certificate: dir.join("tls.crt"), key: dir.join("tls.key") },
            client_ca: Some(dir.join("ca.crt")),
            authority: None,
            named: no_names(),
            clients: ClientCertificates::Required,
            evidence: RootEvidence::empty(),
            relay_authority: None,
            members: Default::default(),
        })
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.dir.path().join(name), text).expect("written");
    }

    fn write_authority(&self, files: &AuthorityPem) {
        for (name, text) in authority_files(files) {
            self.write(name, &text);
        }
    }

    fn now(&self) -> Arc<ServerIdentity> {
        Arc::clone(&self.identity.borrow())
    }

    async fn until(&mut self, wanted: impl Fn(&ServerIdentity) -> bool) -> Arc<ServerIdentity> {
        let found = self.identity.wait_for(|identity| wanted(identity));
        let found = tokio::time::timeout(Duration::from_secs(20), found).await;
        Arc::clone(&found.expect("it happens in time").expect("rotation runs"))
    }

    async fn handshake(&self, pair: &Pair, trust: &TrustRoots) -> Result<PeerIdentity, String> {
        let client = client((pair.0.clone(), pair.1.clone_key()), trust);
        handshake(&self.now().server_config, &client).await.map(|(peer, _)| peer)
    }
}

fn authority_files(files: &AuthorityPem) -> [(&'static str, String); 4] {
    let AuthorityPem { ca_cert, ca_key, cert_chain, root_cert, .. } = files.clone();
    [
        ("ca-cert.pem", ca_cert),
        ("ca-key.pem", ca_key),
        ("cert-chain.pem", cert_chain),
        ("root-cert.pem", root_cert),
    ]
}

fn serving_files(ca: &Ca) -> (String, String) {
    let names = ["localhost".to_owned()];
    let issued = ca.authority.issue_serving(&names, SystemTime::now()).expect("it signs");
    (issued.chain.to_pem(), issued.key_pem())
}

fn both(a: &Ca, b: &Ca) -> String {
    format!("{}{}", a.files.root_cert, b.files.root_cert)
}

fn roots(bundle: &str) -> TrustRoots {
    TrustRoots::from_pem(bundle.as_bytes(), "bundle", SystemTime::now()).expect("roots")
}

#[tokio::test]
async fn mismatched_key_changes_nothing_until_its_certificate_follows() {
    let ca = Ca::new();
    let mut running = Running::with_files(&ca);
    let before = running.now();
    let (certificate, key) = serving_files(&ca);

    running.write("tls.key", &key);
    let refused = running.until(|identity| identity.problem.is_some()).await;
    assert_eq!(refused.problem.as_ref().map(|problem| problem.code), Some("STR0703"));
    assert!(Arc::ptr_eq(&refused.server_config, &before.server_config));
    running.handshake(&ca.workload("web"), ca.roots()).await.expect("the old certificate serves");

    running.write("tls.crt", &certificate);
    let after = running.until(|identity| identity.problem.is_none()).await;
    assert!(!Arc::ptr_eq(&after.server_config, &before.server_config));
    assert_eq!(after.trust_generation, before.trust_generation, "the roots are the same");
    running.handshake(&ca.workload("web"), ca.roots()).await.expect("the new certificate serves");
}

#[tokio::test]
async fn invalid_file_keeps_the_old_set_and_reports_the_reason() {
    let ca = Ca::new();
    let mut running = Running::with_files(&ca);
    let good = running.now();
    let (certificate, _) = serving_files(&ca);
    let root = ca.roots().to_pem();
    for (name, bad, code) in [
        ("ca.crt", "", "STR0702"),
        ("ca.crt", &root[..root.len() / 2], "STR0702"),
        ("tls.crt", &certificate, "STR0703"),
        ("tls.key", "nonsense", "STR0702"),
    ] {
        let path = running.dir.path().join(name);
        let old = fs::read_to_string(&path).expect("there");
        running.write(name, bad);
        let shown = running.until(|identity| identity.problem.is_some()).await;
        assert_eq!(shown.problem.as_ref().map(|problem| problem.code), Some(code), "{name}");
        assert!(Arc::ptr_eq(&shown.server_config, &good.server_config));

        running.write(name, &old);
        running.until(|identity| identity.problem.is_none()).await;
    }
    fs::remove_file(running.dir.path().join("tls.crt")).expect("removed");
    let shown = running.until(|identity| identity.problem.is_some()).await;
    assert!(shown.problem.as_ref().is_some_and(|problem| problem.message.contains("tls.crt")));
    assert!(Arc::ptr_eq(&shown.trust, &good.trust));
}

#[tokio::test]
async fn roots_and_ca_rotate_without_a_refused_handshake() {
    let (old, new) = (Ca::new(), Ca::new());
    let mut running = Running::with_authority(&old);
    let (old_web, new_web) = (old.workload("web"), new.workload("web"));
    let bundle = roots(&both(&old, &new));

    let peer = running.handshake(&old_web, old.roots()).await.expect("before");

    running.write("root-cert.pem", &both(&old, &new));
    let identity = running.until(|identity| identity.trust.len() == 2).await;
    assert_eq!(identity.trust_generation, 1);
    for trust in [old.roots().as_ref(), &bundle] {
        running.handshake(&old_web, trust).await.expect("both roots, old CA");
    }

    let mut new_signer = new.files.clone();
    new_signer.root_cert = both(&old, &new);
    running.write_authority(&new_signer);
    let is_signed_by_new = |identity: &ServerIdentity| {
        identity.authority.as_ref().is_some_and(|authority| {
            let issued =
                authority.issue_workload(&id("x"), authority::LIFETIME_DEFAULT, SystemTime::now());
            issued.is_ok_and(|issued| {
                new.roots().authenticate(issued.chain.certificates(), SystemTime::now()).is_ok()
            })
        })
    };
    let identity = running.until(is_signed_by_new).await;
    assert_eq!(identity.trust_generation, 1);
    // A proxy without the new root still trusts the server.
    for (pair, trust) in
        [(&old_web, old.roots().as_ref()), (&old_web, &bundle), (&new_web, &bundle)]
    {
        running.handshake(pair, trust).await.expect("both roots, new CA");
    }
    assert!(identity.still_trusts(&peer, SystemTime::now()));

    running.write("root-cert.pem", &new.files.root_cert);
    let identity = running.until(|identity| identity.trust.len() == 1).await;
    assert_eq!(identity.trust_generation, 2);
    for trust in [&bundle, new.roots().as_ref()] {
        running.handshake(&new_web, trust).await.expect("new root only");
    }
    assert!(!identity.still_trusts(&peer, SystemTime::now()));
    running.handshake(&old_web, &bundle).await.expect_err("its root is gone");
}

#[tokio::test]
async fn swap_of_kubernetes_data_directory_is_detected() {
    let (old, new) = (Ca::new(), Ca::new());
    let dir = tempfile::tempdir().expect("a folder");
    let version = |name: &str, ca: &Ca| {
        let (certificate, key) = serving_files(ca);
        fs::create_dir(dir.path().join(name)).expect("made");
        for (file, text) in
            [("tls.crt", certificate), ("tls.key", key), ("ca.crt", both(&old, &new))]
        {
            fs::write(dir.path().join(name).join(file), text).expect("written");
        }
    };
    version("..1", &old);
    version("..2", &new);
    let link = |from: &str, to: &str| {
        std::os::unix::fs::symlink(from, dir.path().join(to)).expect("linked");
    };
    link("..1", "..data");
    for file in ["tls.crt", "tls.key", "ca.crt"] {
        link(&format!("..data/{file}"), file);
    }
    let tasks = Supervisor::new();
    let [certificate, key, ca] = ["tls.crt", "tls.key", "ca.crt"].map(|file| dir.path().join(file));
    let settings = CertificateSettings {
        serving: Serving::Files { certificate, key },
        client_ca: Some(ca),
        authority: None,
        named: no_names(),
        clients: ClientCertificates::Required,
        evidence: RootEvidence::empty(),
        relay_authority: None,
        members: Default::default(),
    };
    let mut identity = start(settings, FAST, &tasks).expect("a good first set");
    let first = Arc::clone(&identity.borrow());

    link("..2", "..data_tmp");
    fs::rename(dir.path().join("..data_tmp"), dir.path().join("..data")).expect("swapped");
    let swapped = identity.wait_for(|now| !Arc::ptr_eq(&now.server_config, &first.server_config));
    let swapped = tokio::time::timeout(Duration::from_secs(20), swapped).await;
    let swapped = Arc::clone(&swapped.expect("in time").expect("rotation runs"));
    assert_eq!((&swapped.problem, swapped.trust_generation), (&None, 0));
    let client = client(old.workload("web"), new.roots());
    handshake(&swapped.server_config, &client).await.expect("the new certificate serves");
}

/// Returns the pure part, to which the time is an argument.
fn state(ca: &Ca, now: SystemTime) -> (CertificateSettings, Rotation, ServerIdentity) {
    let settings = CertificateSettings {
        serving: Serving::Issued { names: vec!["localhost".to_owned()] },
        client_ca: None,
        authority: Some(AuthorityFrom::Stored(ca.files.clone())),
        named: no_names(),
        clients: ClientCertificates::Required,
        evidence: RootEvidence::empty(),
        relay_authority: None,
        members: Default::default(),
    };
    let files = CertificateFiles::read(&settings);
    let first = build(&settings, &files, None, now).expect("a sound CA");
    (settings, Rotation::new(files), first)
}

#[test]
fn serving_certificate_is_renewed_at_half_of_its_lifetime() {
    let hour = Duration::from_secs(3600);
    let start = SystemTime::now();
    let (settings, mut rotation, first) = state(&Ca::new(), start);
    let files = || CertificateFiles::read(&settings);
    assert!(rotation.apply(&settings, files(), &first, start + 11 * hour).is_none());
    let next = rotation.apply(&settings, files(), &first, start + 13 * hour).expect("renewed");
    assert!(next.serving_not_after > first.serving_not_after + 12 * hour);
    assert_eq!(next.trust_generation, first.trust_generation);
    assert!(rotation.apply(&settings, files(), &next, start + 14 * hour).is_none());
    // The clock is set back: the certificate is not valid yet.
    let back = rotation.apply(&settings, files(), &next, start).expect("renewed");
    assert!(back.serving_not_after < next.serving_not_after);
    assert_eq!(back.problem, None);
    assert!(rotation.apply(&settings, files(), &back, start + hour).is_none());
}

#[test]
fn ca_of_relays_needs_a_dedicated_root_and_the_last_valid_one_stays() {
    let now = SystemTime::now();
    let (mesh, relays) = (Ca::new(), Ca::new());
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("relays");
    let (mesh_only, mut rotation, first) = state(&mesh, now);
    assert!(Arc::ptr_eq(
        first.relay_authority().expect("the CA"),
        first.authority.as_ref().expect("it")
    ));
    let settings = CertificateSettings { relay_authority: Some(path.clone()), ..mesh_only };
    let built = |current| build(&settings, &CertificateFiles::read(&settings), current, now);
    assert!(built(None).map(drop).expect_err("no files").to_string().contains("relays"));
    let below = mesh.authority.issue_authority("relays", now).expect("it signs");
    below.write(&path).expect("written");
    let shared = built(None).map(drop).expect_err("it could sign for workloads");
    assert_eq!(shared.code(), "STR0353");
    assert!(shared.to_string().contains("--relay-ca-dir"), "{shared}");
    fs::remove_dir_all(&path).expect("removed");
    relays.files.write(&path).expect("written");
    let next = built(Some(&first)).expect("a separate root");
    assert_eq!(next.relay_authority().expect("it").roots(), relays.roots());
    assert_eq!(next.trust_generation, first.trust_generation + 1, "relays are checked again");
    assert_eq!(next.root_bundle(), first.root_bundle(), "workloads do not receive its root");
    assert_eq!(next.serving_roots(now), mesh.roots().to_pem());
    fs::write(path.join("ca-key.pem"), "no key").expect("written");
    let files = || CertificateFiles::read(&settings);
    assert!(rotation.apply(&settings, files(), &next, now).is_none(), "not yet settled");
    let kept = rotation.apply(&settings, files(), &next, now).expect("a problem");
    assert_eq!(kept.problem.expect("reported").code, "STR0702");
    assert_eq!(kept.for_relays.expect("the last valid one").roots(), relays.roots());
}

#[tokio::test]
async fn roots_of_the_serving_certificate_are_sent_to_relays_only_if_they_are_known() {
    let (ca, other, now) = (Ca::new(), Ca::new(), SystemTime::now());
    let mut running = Running::with_files(&ca);
    assert_eq!(running.now().serving_roots(now), ca.roots().to_pem());
    running.write("ca.crt", &other.files.root_cert);
    let changed = running.until(|now| now.trust_generation == 1).await;
    assert_eq!(changed.serving_roots(now), "");
}

#[test]
fn serving_certificate_is_renewed_despite_an_invalid_ca_directory() {
    let ca = Ca::new();
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("ca");
    ca.files.write(&path).expect("written");
    let settings = CertificateSettings {
        serving: Serving::Issued { names: vec!["localhost".to_owned()] },
        client_ca: None,
        authority: Some(AuthorityFrom::Directory(path.clone())),
        named: no_names(),
        clients: ClientCertificates::Required,
        evidence: RootEvidence::empty(),
        relay_authority: None,
        members: Default::default(),
    };
    let start = SystemTime::now();
    let files = CertificateFiles::read(&settings);
    let first = build(&settings, &files, None, start).expect("a sound CA");
    let mut rotation = Rotation::new(files);

    fs::remove_file(path.join("ca-key.pem")).expect("removed");
    let _ = rotation.apply(&settings, CertificateFiles::read(&settings), &first, start);
    let later = start + Duration::from_secs(13 * 3600);
    let next = rotation
        .apply(&settings, CertificateFiles::read(&settings), &first, later)
        .expect("renewed");
    assert!(next.serving_not_after > first.serving_not_after);
    assert_eq!(next.problem.as_ref().map(|problem| problem.code), Some("STR0705"));
}

#[test]
fn expired_serving_certificate_is_a_problem() {
    let ca = Ca::new();
    let running = tempfile::tempdir().expect("a folder");
    let [certificate, key, roots] = ["c", "k", "r"].map(|name| running.path().join(name));
    let (certificate_pem, key_pem) = serving_files(&ca);
    fs::write(&certificate, certificate_pem).expect("written");
    fs::write(&key, key_pem).expect("written");
    fs::write(&roots, ca.roots().to_pem()).expect("written");
    let settings = CertificateSettings {
        serving: Serving::Files { certificate, key },
        client_ca: Some(roots),
        authority: None,
        named: no_names(),
        clients: ClientCertificates::Required,
        evidence: RootEvidence::empty(),
        relay_authority: None,
        members: Default::default(),
    };
    let now = SystemTime::now();
    let files = CertificateFiles::read(&settings);
    let first = build(&settings, &files, None, now).expect("a good set");
    let mut rotation = Rotation::new(files.clone());
    assert!(rotation.apply(&settings, files.clone(), &first, now).is_none());
    let later = now + Duration::from_secs(25 * 3600);
    let ended = rotation.apply(&settings, files.clone(), &first, later).expect("a problem");
    assert_eq!(ended.problem.as_ref().map(|problem| problem.code), Some("STR0704"));
    assert!(rotation.apply(&settings, files, &ended, later).is_none(), "it is reported once");
}

#[test]
fn incompletely_written_files_are_skipped() {
    let ca = Ca::new();
    let now = SystemTime::now();
    let (settings, mut rotation, first) = state(&ca, now);
    let files = |name: &str| CertificateFiles {
        files: [(PathBuf::from(name), Ok(vec![]))].into(),
        ..CertificateFiles::default()
    };
    // Different at each read: never applied, and therefore not a problem.
    for name in ["a", "b", "c"] {
        assert!(rotation.apply(&settings, files(name), &first, now).is_none());
    }
    let settled = CertificateSettings {
        authority: Some(AuthorityFrom::Stored(ca.with_new_dates())),
        ..settings
    };
    let next = rotation.apply(&settled, files("c"), &first, now).expect("twice the same");
    assert_eq!(next.trust_generation, 1);
}

#[test]
fn followed_ca_is_never_replaced_by_an_invalid_one() {
    let (a, b, now) = (Ca::new(), Ca::new(), SystemTime::now());
    let followed = |content| {
        let (origin, approved) =
            ("Secret s/cacerts".to_owned(), RootFingerprint::parse_all(&fingerprint(&b)));
        Arc::new(FollowedAuthority { origin, content, approved })
    };
    let (change, receiver) = watch::channel(followed(Ok(a.files.clone())));
    let (mut settings, _, _) = state(&a, now);
    settings.authority = Some(AuthorityFrom::Followed(receiver));
    let files = CertificateFiles::read(&settings);
    let mut current = build(&settings, &files, None, now).expect("sound");
    let mut rotation = Rotation::new(files);
    let mut read = |current: &ServerIdentity| {
        rotation.apply(&settings, CertificateFiles::read(&settings), current, now)
    };
    change.send_replace(followed(Err("Secret s/cacerts lacks ca-key.pem".to_owned())));
    assert!(read(&current).is_none(), "seen once");
    current = read(&current).expect("a problem");
    let problem = current.problem.as_ref().expect("it is shown");
    assert!(problem.message.contains("lacks ca-key.pem"), "{}", problem.message);
    assert_eq!(*current.trust, *a.authority.roots().as_ref(), "the valid roots stay active");
    change.send_replace(followed(Ok(b.files.clone())));
    assert!(read(&current).is_none(), "seen once");
    current = read(&current).expect("the new one");
    assert_eq!(*current.trust, *b.authority.roots().as_ref());
    assert!(current.problem.is_none());
}

#[test]
fn invalid_first_set_is_an_error() {
    let missing = CertificateSettings {
        serving: Serving::Issued { names: vec![] },
        client_ca: None,
        authority: Some(AuthorityFrom::Directory("/nonexistent".into())),
        named: no_names(),
        clients: ClientCertificates::Required,
        evidence: RootEvidence::empty(),
        relay_authority: None,
        members: Default::default(),
    };
    let tasks = Supervisor::new();
    assert!(matches!(
        start(missing.clone(), FAST, &tasks),
        Err(IdentityError::PartialAuthority { .. })
    ));
    let without_authority = CertificateSettings { authority: None, ..missing };
    assert!(matches!(start(without_authority, FAST, &tasks), Err(IdentityError::NoAuthority)));
}

#[tokio::test]
async fn roots_of_the_mesh_config_apply_while_it_names_them() {
    let (mesh, west) = (Ca::new(), Ca::new());
    let (named, named_receiver) = watch::channel(Arc::default());
    let mut running = Running::start(&[], |_| CertificateSettings {
        serving: Serving::Issued { names: default_names("strait-system") },
        client_ca: None,
        authority: Some(AuthorityFrom::Stored(mesh.files.clone())),
        named: named_receiver,
        clients: ClientCertificates::Required,
        evidence: RootEvidence::empty(),
        relay_authority: None,
        members: Default::default(),
    });
    let client = || west.invalid(&["spiffe://west.example/ns/shop/sa/web"], |_| {});
    running.handshake(&client(), mesh.roots()).await.expect_err("its root is not trusted");
    let bundles = vec![(west.roots().to_pem(), vec!["west.example".to_owned()])];
    named.send_replace(Arc::new(NamedRoots { own: vec!["cluster.local".into()], bundles }));
    running.until(|now| now.trust_generation == 1).await;
    let peer = running.handshake(&client(), mesh.roots()).await.expect("it is west's");
    named.send_replace(Arc::default());
    let now = running.until(|now| now.trust_generation == 2).await;
    assert!(!now.still_trusts(&peer, SystemTime::now()), "its connections are closed");
}

/// Reports that a part of the mesh lacks each root, while the flag is set.
#[derive(Debug, Default)]
struct LackingWitness(std::sync::atomic::AtomicBool);

impl RootWitness for LackingWitness {
    fn lacks(&self, _: &RootBundle, _: &RootRecord, _: SystemTime) -> Vec<RootLack> {
        let lacks = self.0.load(std::sync::atomic::Ordering::Relaxed);
        let lack = RootLack {
            part: "cluster east".to_owned(),
            fact: "it is unreachable".to_owned(),
            is_seen: true,
        };
        lacks.then_some(lack).into_iter().collect()
    }
}

/// A CA that another tool manages, whose files are read three times after each change.
struct FollowedCa {
    change: watch::Sender<Arc<FollowedAuthority>>,
    settings: CertificateSettings,
    rotation: Rotation,
    current: ServerIdentity,
}

impl FollowedCa {
    fn start(files: &AuthorityPem, evidence: RootEvidence, now: SystemTime) -> Self {
        let (change, receiver) = watch::channel(Self::followed(files, ""));
        let (mut settings, ..) = state(&Ca::new(), now);
        (settings.authority, settings.evidence) =
            (Some(AuthorityFrom::Followed(receiver)), evidence);
        let files = CertificateFiles::read(&settings);
        let current = build(&settings, &files, None, now).expect("sound");
        remember(&settings, None, &current, now);
        Self { change, settings, rotation: Rotation::new(files), current }
    }

    fn followed(files: &AuthorityPem, approved: &str) -> Arc<FollowedAuthority> {
        let approved = RootFingerprint::parse_all(approved);
        let origin = "Secret s/cacerts".to_owned();
        Arc::new(FollowedAuthority { origin, content: Ok(files.clone()), approved })
    }

    fn change(&mut self, files: &AuthorityPem, approved: &str, now: SystemTime) {
        self.change.send_replace(Self::followed(files, approved));
        self.read(now);
    }

    fn read(&mut self, now: SystemTime) {
        for _ in 0..3 {
            let read = CertificateFiles::read(&self.settings);
            let next = self.rotation.apply(&self.settings, read, &self.current, now);
            self.current = next.unwrap_or_else(|| self.current.clone());
        }
    }

    fn code(&self) -> Option<&'static str> {
        self.current.problem.as_ref().map(|problem| problem.code)
    }

    /// Returns the fingerprint and the step of each root.
    fn steps(&self, now: SystemTime) -> Vec<(String, RootStep)> {
        let standings = self.current.root_standings(now).into_iter();
        standings.map(|root| (root.fingerprint.to_string(), root.step)).collect()
    }
}

fn fingerprint(ca: &Ca) -> String {
    ca.authority.leading()[0].to_string()
}

#[test]
fn missing_root_signs_nothing_until_an_operator_approves() {
    let (old, new, now) = (Ca::new(), Ca::new(), SystemTime::now());
    let witness = Arc::new(LackingWitness(true.into()));
    let ledger = Arc::new(RootLedger::empty());
    let evidence = RootEvidence { ledger, witness: Arc::<LackingWitness>::clone(&witness) };
    let mut ca = FollowedCa::start(&old.files, evidence.clone(), now);
    let signing = AuthorityPem { root_cert: both(&old, &new), ..new.files.clone() };
    // Signs in the same step in which the root is added, before any workload has it.
    ca.change(&signing, "", now);
    assert_eq!(ca.code(), Some("STR0550"));
    assert_eq!(ca.current.trust.len(), 1, "nothing changes");
    // Only the root is added.
    ca.change(&AuthorityPem { root_cert: both(&old, &new), ..old.files.clone() }, "", now);
    let steps = [(fingerprint(&old), RootStep::Signs), (fingerprint(&new), RootStep::Distribute)];
    assert_eq!((ca.code(), ca.steps(now)), (None, steps.to_vec()));
    ca.change(&signing, "", now);
    let message = ca.current.problem.as_ref().map(|problem| problem.message.clone());
    assert!(message.is_some_and(|text| text.contains("cluster east: it is unreachable")));
    assert_eq!(ca.steps(now), steps);
    // Tried again without a change of the files.
    witness.0.store(false, std::sync::atomic::Ordering::Relaxed);
    ca.read(now);
    let steps =
        |old_step| vec![(fingerprint(&new), RootStep::Signs), (fingerprint(&old), old_step)];
    assert_eq!((ca.code(), ca.steps(now)), (None, steps(RootStep::Withdraw)), "it issued nothing");
    // An approval works despite missing evidence.
    witness.0.store(true, std::sync::atomic::Ordering::Relaxed);
    let mut other = FollowedCa::start(&old.files, evidence, now);
    other.change(&signing, &fingerprint(&new), now);
    assert_eq!((other.code(), other.steps(now)[0].1), (None, RootStep::Signs));
}

#[test]
fn root_removed_too_early_stays_until_its_last_certificate_expires() {
    let (old, new, now) = (Ca::new(), Ca::new(), SystemTime::now());
    let (day, evidence) = (Duration::from_secs(24 * 3600), RootEvidence::empty());
    let two = AuthorityPem { root_cert: both(&old, &new), ..old.files.clone() };
    let mut ca = FollowedCa::start(&two, evidence.clone(), now);
    evidence.ledger.issued(old.authority.leading(), now + 3 * day);
    ca.change(&AuthorityPem { root_cert: both(&old, &new), ..new.files.clone() }, "", now);
    ca.change(&new.files, "", now);
    let is_retained = |ca: &FollowedCa, now| {
        let peer = old.workload("web");
        let steps = ca.steps(now);
        let retained = steps.contains(&(fingerprint(&old), RootStep::Kept));
        assert_eq!(retained, ca.current.trust.authenticate(&peer.0, SystemTime::now()).is_ok());
        assert_eq!(retained, ca.code() == Some("STR0551"));
        retained
    };
    assert!(is_retained(&ca, now));
    assert_eq!(
        ca.steps(now)[0],
        (fingerprint(&new), RootStep::Signs),
        "the rest of the files is active"
    );
    // A process that starts with these files has the records, like another replica.
    let json = serde_json::to_string(&evidence.ledger.records()).expect("JSON");
    let read = serde_json::from_str(&json).expect("read again");
    let ledger = Arc::new(RootLedger::new(read, Default::default(), 90 * day));
    let restarted = RootEvidence { ledger, witness: Arc::clone(&evidence.witness) };
    let mut again = FollowedCa::start(&new.files, restarted, now + day);
    again.read(now + day);
    assert!(is_retained(&again, now + day));
    again.read(now + 4 * day);
    assert!(!is_retained(&again, now + 4 * day), "it is removed automatically");
    // The key was stolen: an operator ends the wait immediately.
    ca.change(&new.files, &fingerprint(&old), now);
    assert!(!is_retained(&ca, now));
}

#[test]
fn ca_without_a_previous_root_applies_immediately_with_a_warning() {
    let (old, new, now) = (Ca::new(), Ca::new(), SystemTime::now());
    let witness = Arc::new(LackingWitness(true.into()));
    let evidence = RootEvidence { ledger: Arc::new(RootLedger::empty()), witness };
    let mut ca = FollowedCa::start(&old.files, evidence.clone(), now);
    evidence.ledger.issued(old.authority.leading(), now + Duration::from_secs(3600));
    let before = ca.current.clone();
    ca.change(&new.files, "", now);
    let steps = [(fingerprint(&new), RootStep::Signs), (fingerprint(&old), RootStep::Kept)];
    assert_eq!((ca.code(), ca.steps(now)), (Some("STR0551"), steps.to_vec()));
    assert!(replaces_all_roots(&before, &ca.current));
    ca.change(&AuthorityPem { root_cert: both(&old, &new), ..new.files.clone() }, "", now);
    assert!(!replaces_all_roots(&before, &ca.current));
}

#[test]
fn root_renewed_with_the_same_key_needs_no_steps() {
    let (old, now) = (Ca::new(), SystemTime::now());
    let witness = Arc::new(LackingWitness(true.into()));
    let evidence = RootEvidence { ledger: Arc::new(RootLedger::empty()), witness };
    let mut ca = FollowedCa::start(&old.files, evidence.clone(), now);
    evidence.ledger.issued(old.authority.leading(), now + Duration::from_secs(3600));
    let longer = old.with_new_dates();
    ca.change(&longer, "", now);
    assert_eq!(ca.code(), None);
    assert_eq!(ca.steps(now).len(), 1, "both roots verify the same certificates");
}
