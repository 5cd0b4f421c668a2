use std::path::Path;

use clap::Parser;

use super::*;
use strait_identity::TrustRoots;

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    certs: CertsArgs,
}

/// Runs the words after `strait certs`. `{}` is replaced by `dir`.
fn strait_certs(dir: &Path, line: &str) -> Result<String, String> {
    let line = line.replace("{}", &dir.display().to_string());
    let words = std::iter::once("certs").chain(line.split(' '));
    let cli = Cli::try_parse_from(words).map_err(|error| error.to_string())?;
    let mut out = Vec::new();
    run(&cli.certs, &mut out).map_err(|error| format!("{} {error}", error.code()))?;
    Ok(String::from_utf8(out).expect("text"))
}

const ISSUE: &str = "issue --ca-dir {}/ca --namespace shop --service-account web";

#[test]
fn init_and_issue_write_the_files_of_a_ca_and_a_workload() {
    use std::os::unix::fs::PermissionsExt as _;

    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    let output = strait_certs(dir, "init {}/ca").expect("made");
    assert!(output.contains("next: strait serve --ca-dir"), "{output}");
    // Twice, since certificates are renewed in place.
    for _ in 0..2 {
        let output = strait_certs(dir, &format!("{ISSUE} --ttl 90m --out {{}}/web")).expect("made");
        assert!(output.contains("spiffe://cluster.local/ns/shop/sa/web"), "{output}");
    }
    let mut names: Vec<_> = std::fs::read_dir(dir.join("web"))
        .expect("there")
        .map(|entry| entry.expect("readable").file_name().into_string().expect("text"))
        .collect();
    names.sort();
    assert_eq!(names, ["cert-chain.pem", "key.pem", "root-cert.pem"]);
    let mode = dir.join("web/key.pem").metadata().expect("there").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let roots = std::fs::read(dir.join("web/root-cert.pem")).expect("there");
    TrustRoots::from_pem(&roots, "root-cert.pem", SystemTime::now()).expect("roots");
}

#[test]
fn init_under_creates_an_intermediate_below_the_root() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    strait_certs(dir, "init {}/ca").expect("made");
    let output = strait_certs(dir, "init {}/east --under {}/ca").expect("made");
    assert!(output.contains("--ca-member-dir MEMBER="), "{output}");
    let issue = ISSUE.replace("{}/ca", "{}/east");
    strait_certs(dir, &format!("{issue} --out {{}}/web")).expect("it signs");
    let chain = std::fs::read_to_string(dir.join("web/cert-chain.pem")).expect("there");
    assert_eq!(chain.matches("BEGIN CERTIFICATE").count(), 2, "the leaf and the intermediate");
    let error = strait_certs(dir, "init {}/more --under {}/east").expect_err("no CA may be below");
    assert!(error.starts_with("STR0705"), "{error}");
    let error = strait_certs(dir, "init {}/east --under {}/ca").expect_err("not empty");
    assert!(error.contains("never overwritten"), "{error}");
}

#[test]
fn files_of_a_ca_are_never_overwritten() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    strait_certs(dir, "init {}/ca").expect("made");
    let before = AuthorityPem::read(&dir.join("ca")).expect("there");
    let error = strait_certs(dir, "init {}/ca").expect_err("not empty");
    assert!(error.starts_with("STR0701") && error.contains("never overwritten"), "{error}");
    let error = strait_certs(dir, &format!("{ISSUE} --out {{}}/ca")).expect_err("a CA");
    assert!(error.contains("contains a CA"), "{error}");
    assert_eq!(AuthorityPem::read(&dir.join("ca")).expect("there"), before);
}

#[test]
fn invalid_values_are_rejected_with_the_reason() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    strait_certs(dir, "init {}/ca").expect("made");
    for (line, reason) in [
        ("--ttl 91d --out {}/w", "--ttl 91d is not between 1s and 90d"),
        ("--ttl 0s --out {}/w", "between 1s and 90d"),
        ("--ttl soon --out {}/w", "is not a duration"),
        ("--trust-domain A/b --out {}/w", "trust domain"),
        ("--out /proc/nowhere", "can't write"),
    ] {
        let error = strait_certs(dir, &format!("{ISSUE} {line}")).expect_err(line);
        assert!(error.contains(reason), "{error}");
    }
    let error = strait_certs(dir, "issue --ca-dir {} --namespace a --service-account b --out {}/w")
        .expect_err("no CA");
    assert!(error.contains("lacks ca-cert.pem, ca-key.pem"), "{error}");
}
