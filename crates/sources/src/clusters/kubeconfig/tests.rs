//! Tests with the corpus in tests/corpus/kubeconfigs: files in `good/` must be read, files in
//! `bad/` refused with the code at the start of the file name. The tests generate keys and insert
//! them for `@KEY@`, so that no key is committed.

use std::path::PathBuf;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use super::*;

const TOKEN: &str = "eyJhbGciOiJSUzI1NiJ9.canary.c2lnbmF0dXJl";

/// The replacement of each placeholder.
static MATERIAL: LazyLock<Vec<(&'static str, String)>> = LazyLock::new(|| {
    let issue = || {
        let made =
            rcgen::generate_simple_self_signed(["reader".to_owned()]).expect("a certificate");
        (made.cert.pem(), made.signing_key.serialize_pem())
    };
    let (authority, _) = issue();
    let (certificate, key) = issue();
    let (_, other_key) = issue();
    let garbled = "-----BEGIN CERTIFICATE-----\naGVsbG8=\n-----END CERTIFICATE-----\n";
    let base64 = |text: &str| STANDARD.encode(text);
    let lines = |end: &str| {
        let text = base64(&authority);
        let lines: Vec<_> = text.as_bytes().chunks(60).map(String::from_utf8_lossy).collect();
        lines.join(end)
    };
    vec![
        ("@CA@", base64(&authority)),
        ("@BUNDLE@", base64(&format!("# Example CA\n{}", authority.repeat(40)))),
        ("@WRAPPED_CA@", lines("\\\n      ")),
        ("@FOLDED_CA@", lines("\n      ")),
        ("@CERT@", base64(&certificate)),
        ("@KEY@", base64(&key)),
        ("@OTHERKEY@", base64(&other_key)),
        ("@GARBLED@", base64(garbled)),
        ("@TOKEN@", TOKEN.to_owned()),
    ]
});

fn corpus(folder: &str) -> Vec<(String, Vec<u8>)> {
    let root = strait_base::testing::repository().join("tests/corpus/kubeconfigs").join(folder);
    let mut files: Vec<PathBuf> = std::fs::read_dir(root)
        .expect("the corpus exists")
        .map(|entry| entry.expect("a file").path())
        .collect();
    files.sort();
    let read = |path: PathBuf| {
        let mut bytes = std::fs::read(&path).expect("a readable file");
        if let Ok(mut text) = String::from_utf8(bytes.clone()) {
            for (placeholder, value) in MATERIAL.iter() {
                text = text.replace(placeholder, value);
            }
            bytes = text.into_bytes();
        }
        (path.file_name().expect("a name").to_string_lossy().into_owned(), bytes)
    };
    files.into_iter().map(read).collect()
}

/// Checks that a refusal takes at most 50 ms. A debug build that runs next to all other tests gets
/// ten times as long: this still shows that the time is bounded by the length of the input.
fn refuse_in_time(name: &str, bytes: &[u8]) -> KubeconfigRefusal {
    let limit = Duration::from_millis(if cfg!(debug_assertions) { 500 } else { 50 });
    let mut best = Duration::MAX;
    for _ in 0..3 {
        let start = on_cpu();
        let result = parse(bytes, None, Loopback::Refused);
        best = best.min(on_cpu() - start);
        let refusal = result.expect_err(name);
        if best <= limit {
            return refusal;
        }
    }
    panic!("{name} took {best:?}, more than {limit:?}");
}

/// Returns the CPU time of this thread, so that a busy machine has no influence; wall time if the
/// system doesn't report CPU time.
fn on_cpu() -> Duration {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    let schedstat = std::fs::read_to_string("/proc/thread-self/schedstat").ok();
    let nanos = schedstat.and_then(|text| text.split_whitespace().next()?.parse().ok());
    nanos.map_or_else(|| START.elapsed(), Duration::from_nanos)
}

#[test]
fn bad_kubeconfigs_are_refused_with_their_code() {
    let files = corpus("bad");
    assert!(files.len() > 250, "the corpus has shrunk to {}", files.len());
    let mut wrong = Vec::new();
    for (name, bytes) in files {
        let refusal = refuse_in_time(&name, &bytes);
        if !name.starts_with(refusal.code.id) {
            wrong.push(format!("{name}: {refusal}"));
        }
        let shown = format!("{refusal}{refusal:?}");
        assert!(!shown.contains("canary") && !shown.contains("/tmp/owned"), "{name}: {shown}");
        assert!(!shown.chars().any(char::is_control), "{name}: {shown:?}");
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn kubeconfigs_of_providers_are_read() {
    let mut wrong = Vec::new();
    for (name, bytes) in corpus("good") {
        let loopback =
            if name.starts_with("loopback") { Loopback::Allowed } else { Loopback::Refused };
        match parse(&bytes, None, loopback) {
            Ok(access) => {
                let again = write(&ClusterId::from("lab"), &access);
                assert_eq!(parse(again.as_bytes(), None, loopback), Ok(access), "{name}\n{again}");
            }
            Err(refusal) => wrong.push(format!("{name}: {refusal}")),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_supported_credential_is_read() {
    let credential = |name: &str| {
        let (_, bytes) = corpus("good").into_iter().find(|(n, _)| n == name).expect("in corpus");
        parse(&bytes, None, Loopback::Refused).expect("is read").credential
    };
    assert_eq!(credential("civo.yaml"), credential("civo.yaml"));
    assert!(matches!(credential("civo.yaml"), ApiCredential::Certificate { .. }));
    assert!(matches!(credential("aks-user.yaml"), ApiCredential::CertificateAndToken { .. }));
    assert!(matches!(credential("no-credential.yaml"), ApiCredential::None));
    assert!(matches!(
        credential("gke-certificate-and-password.yaml"),
        ApiCredential::Certificate { .. }
    ));
    assert_eq!(credential("digitalocean.yaml"), ApiCredential::Token(Redacted::new(TOKEN.into())));
    assert_eq!(
        credential("k3s-basic-auth.yaml"),
        ApiCredential::Basic {
            username: "admin".into(),
            password: Redacted::new("0123abcdefg".into())
        }
    );
}

#[test]
fn huge_kubeconfigs_are_refused_in_time() {
    let contexts: String =
        (0..10_000).map(|i| format!("- {{name: c{i}, context: {{cluster: a}}}}\n")).collect();
    let short: String = (0..5_000).map(|i| format!("- {{name: c{i}}}\n")).collect();
    let padded = |length: usize| {
        let head = "apiVersion: v1\nkind: Config\npreferences: {a: '";
        format!("{head}{}'}}\n", "x".repeat(length))
    };
    let cases: Vec<(&str, Vec<u8>)> = vec![
        ("10 MiB of letters", vec![b'a'; 10 << 20]),
        ("10 MiB of brackets", vec![b'['; 10 << 20]),
        ("10 MiB of valid YAML", padded(10 << 20).into_bytes()),
        ("10 MiB of zeros", vec![0; 10 << 20]),
        ("10 MiB of non-UTF-8", vec![0xff; 10 << 20]),
        ("one byte more than the limit", vec![b' '; BYTES_MAX + 1]),
        ("10,000 contexts", format!("contexts:\n{contexts}").into_bytes()),
        ("5,000 short contexts", format!("contexts:\n{short}").into_bytes()),
        ("10,000 empty users", format!("users: [{}]", "{},".repeat(10_000)).into_bytes()),
        ("65 clusters", format!("clusters: [{}]", "{},".repeat(65)).into_bytes()),
        ("many numbers", format!("preferences: [{}]", "1,".repeat(100_000)).into_bytes()),
        ("many keys", {
            let keys: String = (0..20_000).map(|i| format!("  k{i}:\n")).collect();
            format!("preferences:\n{keys}").into_bytes()
        }),
        ("dashes within the budget", b"- ".repeat(BYTES_MAX / 2)),
    ];
    for (name, bytes) in cases {
        let refusal = refuse_in_time(name, &bytes);
        assert_eq!(refusal.code, &codes::KUBECONFIG_TOO_LARGE, "{name}: {refusal}");
    }
    for (name, bytes) in [
        ("brackets", vec![b'['; BYTES_MAX]),
        ("braces", vec![b'{'; BYTES_MAX]),
        ("colons", b": ".repeat(BYTES_MAX / 2)),
        ("quotes", b"'".repeat(BYTES_MAX - 1)),
        ("stars", b"*a ".repeat(BYTES_MAX / 3)),
        ("question marks", b"? ".repeat(BYTES_MAX / 2)),
        ("document marks", b"---\n".repeat(BYTES_MAX / 4)),
        ("comments", b"#\n".repeat(BYTES_MAX / 2)),
        ("a long string", padded(BYTES_MAX - 100).into_bytes()),
        ("a long key", [b"a".repeat(BYTES_MAX - 10), b": b".to_vec()].concat()),
        ("escapes", [b"\"".to_vec(), b"\\n".repeat(BYTES_MAX / 2 - 5), b"\"".to_vec()].concat()),
    ] {
        refuse_in_time(name, &bytes);
    }
}

#[test]
fn a_context_can_be_chosen_by_name() {
    let text = "current-context: a
clusters: [{name: x, cluster: {server: 'https://x.example.org'}}, {name: y, cluster: {server: 'https://y.example.org'}}]
contexts: [{name: a, context: {cluster: x}}, {name: b, context: {cluster: y}}]";
    let host = |context| {
        let access = parse(text.as_bytes(), context, Loopback::Refused).expect("is read");
        access.server.host().map(str::to_owned)
    };
    assert_eq!(host(None).as_deref(), Some("x.example.org"));
    assert_eq!(host(Some("b")).as_deref(), Some("y.example.org"));
    let refusal =
        parse(text.as_bytes(), Some("c"), Loopback::Refused).expect_err("no such context");
    assert_eq!(refusal.code, &codes::CONTEXT_UNCLEAR);
}

#[test]
fn refusal_names_the_field_and_the_next_step() {
    let text = "users: [{name: a, user: {}}, {name: b, user: {exec: {command: touch}}}]";
    let refusal = parse(text.as_bytes(), None, Loopback::Refused).expect_err("exec is refused");
    assert_eq!(refusal.to_string(), "STR0203: users[1].user.exec runs a program");
    assert!(refusal.next().contains("strait cluster add"));
}

/// Creates a kubeconfig of a server with this CA bundle and client key.
fn with(bundle: &str, user: &str) -> String {
    let bundle = STANDARD.encode(bundle);
    format!(
        "current-context: a
clusters: [{{name: x, cluster: {{server: 'https://x.example.org', certificate-authority-data: {bundle}}}}}]
users: [{{name: u, user: {user}}}]
contexts: [{{name: a, context: {{cluster: x, user: u}}}}]"
    )
}

#[test]
fn ca_bundle_of_512_kib_with_an_unreadable_block_is_read() {
    let made = rcgen::generate_simple_self_signed(["ca".to_owned()]).expect("a certificate");
    let pem = made.cert.pem();
    let garbled = "-----BEGIN CERTIFICATE-----\n!!\n-----END CERTIFICATE-----\n";
    let bundle = format!("{garbled}{}", pem.repeat((512 << 10) / pem.len() + 1));
    let text = with(&bundle, "{token: abc}");
    let access = parse(text.as_bytes(), None, Loopback::Refused).expect("is read");
    assert_eq!(access.ca_pem.as_deref(), Some(bundle.as_bytes()));
    let refusal = parse(with(garbled, "{token: abc}").as_bytes(), None, Loopback::Refused)
        .expect_err("no certificate");
    assert_eq!(refusal.code, &codes::CREDENTIAL_UNUSABLE);
}

/// A certificate of X.509 version 1 (openssl x509 -req without -extfile).
const VERSION_1_PEM: &str = "-----BEGIN CERTIFICATE-----
MIIBHTCBxQIURKhVDszpeHuyqv97YmHBb396cb8wCgYIKoZIzj0EAwIwETEPMA0GA1UEAwwGcmVh
ZGVyMCAXDTI2MTEzMDE5MDM1NVoYDzIxMjYxMTA2MTkwMzU1WjARMQ8wDQYDVQQDDAZyZWFkZXIw
WTATBgcqhkjOPQIBBggqhkjOPQMBBwNCAATAGzyh0DudS5LJyL0lCfC4KnKG2Wmk5vQtIlEcdZSy
QrofpsUFBdBOiZVB3/GeUfBXJVqteDx7QqSSbLxvWnP4MAoGCCqGSM49BAMCA0cAMEQCIHGrq2QI
Bs5PeI0wr3jODR6xpZpvnP/62i9OMvDT2cZ7AiBwN5ME1Dr0E2F5Isu1Gd4ElFWd/cnJWsIBkUmT
cGRmOA==
-----END CERTIFICATE-----
";

#[test]
fn client_certificate_of_version_1_is_refused_with_its_cause() {
    let made = rcgen::generate_simple_self_signed(["reader".to_owned()]).expect("a certificate");
    let [certificate, key] =
        [VERSION_1_PEM, &made.signing_key.serialize_pem()].map(|pem| STANDARD.encode(pem));
    let user = format!("{{client-certificate-data: {certificate}, client-key-data: {key}}}");
    let refusal = parse(with(&made.cert.pem(), &user).as_bytes(), None, Loopback::Refused)
        .expect_err("version 1");
    let text = refusal.to_string();
    let start =
        "STR0214: users[0].user.client-certificate-data is an X.509 certificate of version 1, and";
    assert!(text.starts_with(start), "{text}");
}

#[test]
fn client_key_is_read_whatever_the_label_of_its_block() {
    let made = rcgen::generate_simple_self_signed(["reader".to_owned()]).expect("a certificate");
    let (certificate, key) = (made.cert.pem(), made.signing_key.serialize_pem());
    for label in ["PRIVATE KEY", "RSA PRIVATE KEY", "EC PRIVATE KEY"] {
        let key = key.replace("PRIVATE KEY", label);
        let [certificate, key] = [&certificate, &key].map(|pem| STANDARD.encode(pem));
        let user = format!("{{client-certificate-data: {certificate}, client-key-data: {key}}}");
        let text = with(&made.cert.pem(), &user);
        let access = parse(text.as_bytes(), None, Loopback::Refused).expect(label);
        strait_kube_client::ApiClient::new(&access).expect(label);
    }
}
