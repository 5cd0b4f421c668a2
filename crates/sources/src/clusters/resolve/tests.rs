//! Tests of the limits of sources, and of the choice of a proxy.

use super::*;
use crate::store::ObjectName;
use strait_base::task::Supervisor;
use strait_kube_client::{Loopback, Redacted};

const KUBECONFIG: &str = "clusters: [{name: a, cluster: {server: 'https://a.example.org'}}]
users: [{name: a, user: {token: canary}}]
contexts: [{name: a, context: {cluster: a, user: a}}]";

fn file(rest: &str) -> MemberSources {
    let text = format!("apiVersion: strait.dev/v1\nkind: MemberSources\n{rest}");
    MemberSources::parse(&text).expect("a valid file")
}

/// Returns the refusal of cluster `east` in a Secret of the source `capi` under this file.
fn refusal(source: Option<&str>, rest: &str) -> Option<String> {
    let secret = WatchedSecret {
        name: ObjectName::new("capi", "east"),
        labels: [("tier".to_owned(), "prod".to_owned())].into(),
        source: source.map(Into::into),
        data: [("east".to_owned(), Redacted::new(KUBECONFIG.as_bytes().to_vec()))].into(),
        ..WatchedSecret::default()
    };
    let read = MemberSecret::read(&secret, Loopback::Refused);
    let book = TokenBook::new(None, &Supervisor::new());
    let resolved = resolve(&secret, &read, &file(rest), &ProviderSecrets::new(), &book);
    let member = resolved.clusters[&ClusterId::from("east")].as_ref();
    member.err().map(|refusal| {
        assert_eq!(refusal.code.id, "STR0224");
        refusal.fact.clone()
    })
}

#[tokio::test]
async fn secret_of_a_source_defines_only_what_the_current_file_permits() {
    assert_eq!(refusal(None, ""), None, "a Secret of the system namespace");
    let source = |name: &str, namespace: &str, selector: &str, ids: &str| {
        let secrets = format!("{{namespace: {namespace}, selector: {selector}}}");
        format!("sources: [{{name: {name}, secrets: {secrets}, ids: ['{ids}']}}]")
    };
    for (file, fact) in [
        (source("capi", "capi", "tier=prod", "*"), None),
        (source("capi", "capi", "tier=prod", "west"), Some("may define west, not east")),
        (String::new(), Some("the --members file no longer has source capi")),
        (source("other", "capi", "tier=prod", "*"), Some("no longer has source capi")),
        (source("capi", "other", "tier=prod", "*"), Some("no longer selects Secret capi/east")),
        (source("capi", "capi", "tier=test", "*"), Some("no longer selects Secret capi/east")),
        (
            "sources: [{name: capi, clusterProfiles: {namespace: capi}, ids: ['*']}]".to_owned(),
            Some("no longer selects Secret capi/east"),
        ),
    ] {
        let found = refusal(Some("capi"), &file);
        match fact {
            None => assert_eq!(found, None, "{file}"),
            Some(fact) => assert!(found.as_ref().is_some_and(|f| f.contains(fact)), "{found:?}"),
        }
    }
}

/// Returns the name of the proxy through which a kubeconfig is reached, or the refusal.
fn proxy_of(
    cluster: &str,
    annotations: &[(&str, &str)],
    rest: &str,
) -> Result<Option<String>, String> {
    let kubeconfig = KUBECONFIG.replace("server: 'https://a.example.org'", cluster);
    let owned = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
    let secret = WatchedSecret {
        name: ObjectName::new("strait-system", "east"),
        annotations: annotations.iter().map(owned).collect(),
        data: [("east".to_owned(), Redacted::new(kubeconfig.into_bytes()))].into(),
        ..WatchedSecret::default()
    };
    resolved_proxy(&secret, rest)
}

fn resolved_proxy(secret: &WatchedSecret, rest: &str) -> Result<Option<String>, String> {
    let read = MemberSecret::read(secret, Loopback::Refused);
    let book = TokenBook::new(None, &Supervisor::new());
    let resolved = resolve(secret, &read, &file(rest), &ProviderSecrets::new(), &book);
    match &resolved.clusters[&ClusterId::from("east")] {
        Ok(spec) => Ok(spec.access.proxy.as_ref().map(|proxy| proxy.name.to_string())),
        Err(refusal) => Err(refusal.to_string()),
    }
}

#[tokio::test]
async fn proxy_is_chosen_from_the_operator_file() {
    let proxies = "proxies:
- {name: one, url: 'http://one.test:3128', servers: ['*.one.test', 10.8.0.0/16]}
- {name: two, url: 'https://two.test:3129', servers: ['*.test', '*.internal']}
- {name: socks, url: 'socks5://socks.test:1080', servers: ['*.socks.org']}";
    let by = |name: &'static str| [("strait.dev/proxy", name)];
    let chosen = |cluster: &str| proxy_of(cluster, &[], proxies);
    let some = |name: &str| Ok(Some(name.to_owned()));
    // The first entry that lists the server.
    assert_eq!(chosen("server: 'https://api.one.test'"), some("one"));
    assert_eq!(chosen("server: 'https://10.8.1.1:6443'"), some("one"));
    assert_eq!(chosen("server: 'https://api.two.test'"), some("two"));
    assert_eq!(chosen("server: 'https://api.socks.org'"), some("socks"));
    assert_eq!(chosen("server: 'https://api.example.org'"), Ok(None));
    // The annotation, then the URL in the kubeconfig.
    let server = "server: 'https://api.one.test'";
    let with_url = |url: &str| format!("{server}, proxy-url: '{url}'");
    assert_eq!(proxy_of(server, &by("two"), proxies), some("two"));
    assert_eq!(chosen(&with_url("https://two.test:3129/")), some("two"));
    assert_eq!(proxy_of(&with_url("https://two.test:3129"), &by("one"), proxies), some("one"));

    let argo = |url: &str| {
        let text = |text: &str| Redacted::new(text.as_bytes().to_vec());
        let config = format!("{{\"bearerToken\": \"canary\", \"proxyUrl\": \"{url}\"}}");
        let server = "https://api.one.test";
        let data = [("name", "east"), ("server", server), ("config", config.as_str())];
        let secret = WatchedSecret {
            labels: [("argocd.argoproj.io/secret-type".into(), "cluster".into())].into(),
            data: data.map(|(key, value)| (key.to_owned(), text(value))).into(),
            ..WatchedSecret::default()
        };
        resolved_proxy(&secret, proxies)
    };
    assert_eq!(argo("http://one.test:3128"), some("one"));
    let outside = "server: 'https://api.example.org'";
    for (found, code, fact) in [
        (proxy_of(server, &by("three"), proxies), "STR0357", "three"),
        (proxy_of(outside, &by("one"), proxies), "STR0358", "proxies.one.servers"),
        (argo("http://evil.test:3128"), "STR0208", "config.proxyUrl"),
        (chosen(&format!("{outside}, proxy-url: 'http://one.test:3128'")), "STR0358", "one"),
        (chosen(&with_url("http://evil.test:3128")), "STR0208", "evil.test"),
        (chosen(&with_url("http://evil.test:3128")), "STR0208", "one.test, two.test, socks.test"),
        (chosen(&with_url("http://one.test:3129")), "STR0208", "one.test"),
        (proxy_of(&with_url("http://one.test:3128"), &[], ""), "STR0208", "has no proxies"),
        (chosen("server: 'https://metadata.google.internal'"), "STR0358", "never connected"),
        (chosen("server: 'https://Metadata.Google.Internal.'"), "STR0358", "never connected"),
        (chosen("server: 'https://169.254.169.254'"), "STR0218", "169.254"),
        (chosen("server: 'https://[64:ff9b::a9fe:a9fe]'"), "STR0218", "64:ff9b"),
        (chosen("server: 'https://0x7f.1'"), "STR0210", "nonstandard"),
        (chosen("server: 'https://localhost'"), "STR0209", "localhost"),
    ] {
        let refusal = found.expect_err(fact);
        assert!(refusal.starts_with(code) && refusal.contains(fact), "{code} {fact}: {refusal}");
    }
}

/// Returns the member `east` at a server with its own certificate authority and a TLS name, which
/// selects identity `i`.
fn with_identity(server: &str, identity: &str) -> Result<Box<MemberSpec>, String> {
    let ca = rcgen::KeyPair::generate().expect("a key");
    let ca = rcgen::CertificateParams::default().self_signed(&ca).expect("signed").pem();
    let ca = base64::Engine::encode(&base64::engine::general_purpose::STANDARD, ca);
    let cluster = format!(
        "{{server: '{server}', certificate-authority-data: {ca}, tls-server-name: evil.test}}"
    );
    let kubeconfig = format!(
        "clusters: [{{name: a, cluster: {cluster}}}]\ncontexts: [{{name: a, context: {{cluster: a}}}}]\ncurrent-context: a"
    );
    let secret = WatchedSecret {
        annotations: [("strait.dev/identity".to_owned(), "i".to_owned())].into(),
        data: [("east".to_owned(), Redacted::new(kubeconfig.into_bytes()))].into(),
        ..WatchedSecret::default()
    };
    let read = MemberSecret::read(&secret, Loopback::Refused);
    let book = TokenBook::new(None, &Supervisor::new());
    let file = file(&format!("identities: [{{name: i, {identity}}}]"));
    let resolved = resolve(&secret, &read, &file, &ProviderSecrets::new(), &book);
    let member = resolved.clusters[&ClusterId::from("east")].clone();
    member.map_err(|refusal| refusal.to_string())
}

#[tokio::test]
async fn token_of_a_cloud_is_sent_to_its_own_servers_only() {
    let azure = "azure: {tenant: t, clientId: c, tokenFile: /none}";
    let exchange = "servers: [a.test], exchange: {endpoint: 'https://e.test', tokenFile: /none}";
    for (identity, good, other) in [
        ("google: {}", "https://x.gke.goog", "https://gke.goog"),
        ("google: {}", "https://eu-connectgateway.googleapis.com/v1", "https://10.0.0.1"),
        (azure, "https://a.hcp.eu.azmk8s.io", "https://azmk8s.io.evil.test"),
        (exchange, "https://a.test", "https://b.a.test"),
    ] {
        let spec = with_identity(good, identity).expect(good);
        assert!(matches!(spec.access.credential, ApiCredential::Issued(_)), "{good}");
        let refusal = with_identity(other, identity).expect_err(other);
        assert!(refusal.starts_with("STR0226"), "{refusal}");
    }
}

#[tokio::test]
async fn object_cannot_choose_the_certificate_authority_of_a_server_of_google() {
    let roots = |server: &str, identity: &str| {
        let access = with_identity(server, identity).expect(server).access;
        (access.ca_pem.is_some(), access.tls_server_name.is_some())
    };
    let google = "servers: ['*.gke.goog', 10.0.0.1], google: {}";
    assert_eq!(roots("https://x.gke.goog", google), (false, false));
    assert_eq!(roots("https://X.GKE.goog.", google), (false, false));
    // The operator listed an address, whose certificate is the cluster's own.
    assert_eq!(roots("https://10.0.0.1", google), (true, true));
    let file = "servers: ['*.gke.goog'], tokenFile: /none";
    assert_eq!(roots("https://x.gke.goog", file), (true, true));
}

/// Returns a ClusterProfile of source `fleet` with these access providers.
fn profile(annotations: &[(&str, &str)], status: serde_json::Value) -> WatchedSecret {
    let spec = serde_json::json!({ "clusterManager": { "name": "ocm" } });
    let owned = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
    WatchedSecret {
        name: ObjectName::new("fleet", "east"),
        annotations: annotations.iter().map(owned).collect(),
        source: Some("fleet".into()),
        profile: Some(Arc::new(ClusterProfile::read(&spec, &status))),
        ..WatchedSecret::default()
    }
}

fn provider(name: &str, cluster: &str, config: &str) -> serde_json::Value {
    let cluster: serde_json::Value = serde_json::from_str(cluster).expect("JSON");
    let config: serde_json::Value = serde_json::from_str(config).expect("JSON");
    let mut provider = serde_json::json!({ "name": name, "cluster": cluster });
    provider["cluster"]["extensions"] = serde_json::json!([
        { "name": "client.authentication.k8s.io/exec", "extension": config },
        { "name": "clusterprofiles.multicluster.x-k8s.io/exec/additional-args", "extension": ["--evil"] },
        { "name": "other", "extension": {} },
    ]);
    provider
}

fn resolved_profile(
    object: &WatchedSecret,
    access: &str,
    secrets: &[(&str, &str, &str)],
) -> Result<Box<MemberSpec>, String> {
    let file = file(&format!(
        "sources: [{{name: fleet, clusterProfiles: {{namespace: fleet}}, ids: ['*']}}]\nidentities: [{{name: i, servers: ['*.test'], tokenFile: /none}}]\naccess: {access}"
    ));
    let secret = |(name, key, value): &(&str, &str, &str)| {
        let name = ObjectName::new("fleet", name);
        let data = [((*key).to_owned(), Redacted::new(value.as_bytes().to_vec()))].into();
        let secret = WatchedSecret { name: name.clone(), data, ..WatchedSecret::default() };
        (name, Arc::new(secret))
    };
    let secrets = secrets.iter().map(secret).collect();
    let read = MemberSecret::read(object, Loopback::Refused);
    let book = TokenBook::new(None, &Supervisor::new());
    let resolved = resolve(object, &read, &file, &secrets, &book);
    let member = resolved.clusters.values().next().expect("one member").clone();
    member.map_err(|refusal| refusal.to_string())
}

const SERVER: &str =
    r#"{"server": "https://proxy.test:9092/east", "tls-server-name": "east.test"}"#;
const BY_SECRET: &str =
    "[{provider: ocm, secretReader: {namespace: fleet, name: '{clusterName}-msa'}}]";

#[tokio::test]
async fn operator_file_selects_the_provider_and_the_credential_of_a_profile() {
    let status = serde_json::json!({ "accessProviders": [
        provider("ocm", SERVER, r#"{"clusterName": "c1"}"#),
        provider("google", SERVER, "null"),
        provider("kube", SERVER, r#"{"name": "k", "key": "config", "context": "a"}"#),
    ] });
    let object = profile(&[], status);
    let credential = |access: &str, secrets: &[(&str, &str, &str)]| {
        let spec = resolved_profile(&object, access, secrets)?;
        assert_eq!(spec.access.server, "https://proxy.test:9092/east");
        assert_eq!(spec.access.tls_server_name.as_deref(), Some("east.test"));
        Ok::<_, String>(spec.access.credential)
    };
    let token = |text: &str| ApiCredential::Token(Redacted::new(text.to_owned()));
    let secrets = [("c1-msa", "token", "canary-token\n"), ("k", "config", KUBECONFIG)];
    assert_eq!(credential(BY_SECRET, &secrets), Ok(token("canary-token")));
    let kube = "{provider: kube, kubeconfigSecretReader: {namespaces: [fleet]}}";
    assert_eq!(credential(&format!("[{kube}]"), &secrets), Ok(token("canary")));
    let identity = credential("[{provider: google, identity: i}]", &[]).expect("an identity");
    assert!(matches!(identity, ApiCredential::Issued(_)));
    let program = "[{provider: ocm, program: {command: /nowhere/x}, servers: ['*.test']}]";
    assert!(matches!(credential(program, &[]), Ok(ApiCredential::Issued(_))));
    // The order of the file decides, and a provider that fails is not replaced.
    let both = format!("[{kube}, {{provider: google, identity: i}}]");
    let refusal = credential(&both, &[]).expect_err("no Secret");
    assert!(
        refusal.starts_with("STR0238") && refusal.contains("fleet/k does not exist"),
        "{refusal}"
    );
    for (access, secrets, code, fact) in [
        ("[]", &[][..], "STR0237", "ocm, google, kube"),
        ("[{provider: other, identity: i}]", &[], "STR0237", "lists ocm"),
        (BY_SECRET, &[("c1-msa", "other", "canary")], "STR0238", "has no key"),
        (BY_SECRET, &[("c1-msa", "token", "canary canary")], "STR0238", "is not a token"),
        (
            "[{provider: kube, kubeconfigSecretReader: {namespaces: [a, b]}}]",
            &[],
            "STR0238",
            "no namespace",
        ),
        (
            &format!("[{kube}]"),
            &[("k", "config", "users: [{name: a, user: {exec: {command: canary}}}]")],
            "STR0238",
            "STR0203",
        ),
        (
            "[{provider: ocm, program: {command: /x}, servers: ['*.other.test']}]",
            &[],
            "STR0226",
            "add proxy.test to servers of access entry ocm",
        ),
    ] {
        let refusal = credential(access, secrets).expect_err(fact);
        assert!(refusal.starts_with(code) && refusal.contains(fact), "{code} {fact}: {refusal}");
        assert!(!refusal.contains("canary"), "{refusal}");
    }
}

#[tokio::test]
async fn profile_is_subject_to_the_rules_of_kubeconfigs() {
    let secrets = [("c1-msa", "token", "canary")];
    let of = |cluster: &str| {
        let status = serde_json::json!({ "accessProviders": [provider("ocm", cluster, r#"{"clusterName": "c1"}"#)] });
        resolved_profile(&profile(&[], status), BY_SECRET, &secrets)
    };
    assert!(of(r#"{"server": "https://a.test", "disable-compression": true, "insecure-skip-tls-verify": false}"#).is_ok());
    for (cluster, code) in [
        (r#"{"server": "https://a.test", "insecure-skip-tls-verify": true}"#, "STR0205"),
        (r#"{"server": "https://a.test", "certificate-authority": "/etc/ca"}"#, "STR0204"),
        (r#"{"server": "https://a.test", "proxy-url": "http://evil.test:1"}"#, "STR0208"),
        (r#"{"server": "https://127.0.0.1"}"#, "STR0209"),
        (r#"{"server": "https://169.254.169.254"}"#, "STR0218"),
        (r#"{"server": "http://a.test"}"#, "STR0210"),
        ("{}", "STR02"),
    ] {
        let refusal = of(cluster).expect_err(cluster);
        assert!(refusal.starts_with(code), "{cluster}: {refusal}");
    }
    let status = serde_json::json!({ "accessProviders": [{ "name": "ocm", "cluster": {
        "server": "https://a.test",
        "extensions": [{ "name": "client.authentication.k8s.io/exec2", "extension": {} }],
    } }] });
    let refusal =
        resolved_profile(&profile(&[], status), BY_SECRET, &secrets).expect_err("unknown");
    assert!(refusal.starts_with("STR0203"), "{refusal}");
}

#[tokio::test]
async fn id_of_a_profile_is_the_annotation_then_the_property_then_the_name() {
    let id = |annotations: &[(&str, &str)], status: serde_json::Value| {
        let read = MemberSecret::read(&profile(annotations, status), Loopback::Refused);
        read.clusters.keys().next().map(ToString::to_string)
    };
    let property = || serde_json::json!({ "properties": [{ "name": "cluster.clusterset.k8s.io", "value": "by-property" }] });
    let annotation = [("strait.dev/cluster-id", "by-annotation")];
    assert_eq!(id(&annotation, property()).as_deref(), Some("by-annotation"));
    assert_eq!(id(&[], property()).as_deref(), Some("by-property"));
    assert_eq!(id(&[], serde_json::Value::Null).as_deref(), Some("east"));
    // An identity is selected by the operator file, never by the profile.
    let status = serde_json::json!({ "accessProviders": [provider("ocm", SERVER, "null")] });
    let selecting = profile(&[("strait.dev/identity", "i")], status);
    let refusal = resolved_profile(&selecting, BY_SECRET, &[]).expect_err("refused");
    assert!(refusal.starts_with("STR0217"), "{refusal}");
}
