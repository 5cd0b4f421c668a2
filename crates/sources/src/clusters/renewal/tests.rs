//! Tests of token renewal in a Secret, with simulated API servers.

use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use tokio::time::Instant;

use super::*;
use strait_base::task::Supervisor;
use strait_sim::{Options, SimCluster, objects};

const LIMIT: Duration = Duration::from_secs(30);

fn access(sim: &SimCluster, token: String) -> Access {
    Access {
        server: sim.url().parse().expect("a URI"),
        ca_pem: Some(sim.certificate_authority().into()),
        tls_server_name: None,
        credential: ApiCredential::Token(Redacted::new(token)),
        loopback: Loopback::Allowed,
        proxy: None,
    }
}

/// Returns an unsigned token of a service account, with these claims instead of its own.
fn service_account_token(changes: Value) -> String {
    let now = Timestamp::now().as_second();
    let mut claims = json!({
        "sub": "system:serviceaccount:strait-reader:strait-reader", "iat": now, "exp": now + 3600,
        "kubernetes.io": {
            "namespace": "strait-reader", "serviceaccount": { "name": "strait-reader" },
        },
    });
    for (name, value) in changes.as_object().into_iter().flatten() {
        claims[name] = value.clone();
    }
    let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    format!("{}.{}.c2ln", part(&json!({ "alg": "RS256" })), part(&claims))
}

fn config_with(user: &str) -> String {
    format!(
        "clusters: [{{name: a, cluster: {{server: 'https://a.example'}}}}]\n\
         users: [{{name: a, user: {user}}}]\ncontexts: [{{name: a, context: {{cluster: a, user: a}}}}]\n"
    )
}

/// A Secret that requests renewal, with these labels, annotations and data keys.
fn requesting(
    labels: &[(&str, &str)],
    annotations: &[(&str, &str)],
    data: &[(&str, &str)],
) -> WatchedSecret {
    let owned = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    };
    let mut annotations = owned(annotations);
    annotations.insert(SELF_RENEW_ANNOTATION.to_owned(), "true".to_owned());
    WatchedSecret {
        name: ObjectName::new("strait-system", "a"),
        labels: owned(labels),
        annotations,
        data: owned(data)
            .into_iter()
            .map(|(key, text)| (key, Redacted::new(text.into_bytes())))
            .collect(),
        ..WatchedSecret::default()
    }
}

/// Returns whether the token of the only member is renewed, or why not.
fn effect_on(secret: &WatchedSecret, writes: bool) -> Result<(), String> {
    let read = MemberSecret::read(secret, Loopback::Refused);
    let (id, member) = read.clusters.iter().next().expect("a member");
    let member = member.as_ref().expect("a usable one");
    let effect = effect(secret, id, member, writes).expect("it is requested");
    let renewed = renewable(&[Arc::new(secret.clone())], Loopback::Refused);
    assert_eq!(effect.is_ok(), writes && !renewed.is_empty(), "the status and the task disagree");
    effect.map_err(|refusal| refusal.to_string())
}

#[test]
fn status_reports_whether_a_requested_renewal_happens() {
    let native = config_with(&format!("{{token: {}}}", service_account_token(json!({}))));
    let with = |user: &str| requesting(&[], &[], &[("east", &config_with(user))]);
    let token = |changes: Value| with(&format!("{{token: {}}}", service_account_token(changes)));
    let id = ("strait.dev/cluster-id", "east");
    let key = ("strait.dev/kubeconfig-key", "Config");
    for secret in [
        requesting(&[], &[], &[("east", &native)]),
        requesting(&[], &[id], &[("admin.conf", &native)]),
        requesting(&[], &[id, key], &[("Config", &native), ("other", "x")]),
    ] {
        assert_eq!(effect_on(&secret, true), Ok(()), "{:?}", secret.annotations);
        let refused = effect_on(&secret, false).expect_err("files are not written");
        assert!(refused.contains("STR0236") && refused.contains("--config-dir"), "{refused}");
    }

    let argo = json!({ "bearerToken": service_account_token(json!({})) }).to_string();
    let argo = requesting(
        &[("argocd.argoproj.io/secret-type", "cluster")],
        &[],
        &[("name", "east"), ("server", "https://a.example"), ("config", &argo)],
    );
    let cluster_api = WatchedSecret {
        secret_type: "cluster.x-k8s.io/secret".to_owned(),
        ..requesting(&[("cluster.x-k8s.io/cluster-name", "east")], &[], &[("value", &native)])
    };
    let in_source =
        WatchedSecret { source: Some("capi".into()), ..requesting(&[], &[], &[("east", &native)]) };
    let without_user = "clusters: [{name: a, cluster: {server: 'https://a.example'}}]\n\
                        contexts: [{name: a, context: {cluster: a}}]\n";
    let identity = requesting(&[], &[("strait.dev/identity", "hub")], &[("east", without_user)]);
    let relayed = requesting(&[], &[("strait.dev/relay", "true"), id], &[]);
    for (secret, why) in [
        (argo, "the tool that writes the Secret"),
        (cluster_api, "the tool that writes the Secret"),
        (in_source, "from source capi"),
        (identity, "the identity renews its token"),
        (relayed, "the relay has the credential"),
        (with("{username: a, password: b}"), "a password"),
        (with("{token: opaque}"), "does not belong to a service account"),
        (token(json!({ "exp": null })), "does not expire"),
    ] {
        let refused = effect_on(&secret, true).expect_err(why);
        assert!(refused.starts_with("STR0236: annotation strait.dev/self-renew"), "{refused}");
        assert!(refused.contains(why), "{refused}");
    }
}

#[test]
fn invalid_request_for_renewal_is_reported() {
    let native = config_with("{token: opaque}");
    let mut secret = requesting(&[], &[], &[("east", &native)]);
    for value in ["yes", "True"] {
        secret.annotations.insert(SELF_RENEW_ANNOTATION.to_owned(), value.to_owned());
        let refused = effect_on(&secret, true).expect_err("invalid");
        let expected = "STR0217: annotation strait.dev/self-renew is neither true nor false";
        assert_eq!(refused, expected, "{value}");
    }
}

/// A Secret's data key, and its annotations besides the request for renewal.
type AnnotatedKey<'a> = (&'a str, &'a [(&'a str, &'a str)]);

#[tokio::test]
async fn token_is_renewed_in_its_secret_after_half_its_lifetime() {
    renews(("east", &[])).await;
}

#[tokio::test]
async fn token_is_renewed_in_the_data_key_that_annotations_name() {
    renews((
        "Config",
        &[("strait.dev/kubeconfig-key", "Config"), ("strait.dev/cluster-id", "east")],
    ))
    .await;
}

async fn renews((key, annotations): AnnotatedKey<'_>) {
    let hub = SimCluster::start("hub", Options::default()).await.expect("a hub");
    let remote = SimCluster::start("east", Options::default()).await.expect("a remote");
    let account = json!({
        "apiVersion": "v1", "kind": "ServiceAccount",
        "metadata": { "name": "strait-reader", "namespace": "strait-reader" },
    });
    remote.store().apply(account).expect("applied");
    let admin = ApiClient::new(&access(&remote, remote.token())).expect("a client");
    let path = "/api/v1/namespaces/strait-reader/serviceaccounts/strait-reader/token";
    let request = json!({ "kind": "TokenRequest", "spec": { "expirationSeconds": 4 } });
    let made: Value = admin.create(path, &request).await.expect("a token");
    let first = made["status"]["token"].as_str().expect("a token").to_owned();
    let id = ClusterId::from("east");
    let kubeconfig = kubeconfig::write(&id, &access(&remote, first.clone()));
    hub.store().apply(objects::namespace("strait-system")).expect("applied");
    let object = |annotations: Value, kubeconfig: &str| {
        json!({
            "apiVersion": "v1", "kind": "Secret",
            "metadata": { "name": "east", "namespace": "strait-system", "annotations": annotations },
            "data": { key: BASE64.encode(kubeconfig) },
        })
    };
    let mut wanted = annotations.to_vec();
    wanted.push((SELF_RENEW_ANNOTATION, "true"));
    let in_json: BTreeMap<&str, &str> = wanted.iter().copied().collect();
    hub.store().apply(object(json!(in_json), &kubeconfig)).expect("applied");
    let secret = |annotations: &[(&str, &str)]| {
        let owned = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
        Arc::new(WatchedSecret {
            name: ObjectName::new("strait-system", "east"),
            labels: BTreeMap::new(),
            annotations: annotations.iter().map(owned).collect(),
            created: None,
            uid: None,
            secret_type: String::new(),
            source: None,
            profile: None,
            decision: None,
            data: [(key.to_owned(), Redacted::new(kubeconfig.clone().into_bytes()))].into(),
        })
    };
    assert!(renewable(&[secret(&[])], Loopback::Allowed).is_empty(), "protobuf was not requested");
    let secrets = vec![secret(&wanted)];
    let (_objects, objects) =
        watch::channel(Some(Arc::new(Objects { secrets, ..Objects::default() })));
    let (_access, config) = watch::channel(access(&hub, hub.token()));
    let (failures, failed) = watch::channel(Arc::default());
    let tasks = Supervisor::new();
    tasks.spawn(
        "token renewal",
        run(config, watch::channel(WriterRole::Writes).1, objects, Loopback::Allowed, failures),
    );
    let started = Instant::now();
    loop {
        let now = hub.store().get("Secret", "strait-system", "east").expect("it").value();
        let text = BASE64.decode(now["data"][key].as_str().expect("data")).expect("base64");
        if text != kubeconfig.as_bytes() {
            let read = kubeconfig::parse(&text, None, Loopback::Allowed).expect("a kubeconfig");
            let old = Lifetime::from_token(&first).expect("a lifetime");
            let new = Lifetime::from_access(&read).expect("a lifetime");
            assert!(new.expires > old.expires, "{new:?}");
            assert!(failed.borrow().is_empty(), "{failed:?}");
            break;
        }
        assert!(started.elapsed() < LIMIT, "not renewed");
        sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn failed_renewal_is_published_with_its_reason() {
    let hub = SimCluster::start("hub", Options::default()).await.expect("a hub");
    let remote = SimCluster::start("east", Options::default()).await.expect("a remote");
    let expired = service_account_token(json!({ "iat": 0, "exp": 10 }));
    let kubeconfig = kubeconfig::write(&"east".into(), &access(&remote, expired));
    let secrets = vec![Arc::new(requesting(&[], &[], &[("east", &kubeconfig)]))];
    let objects = Arc::new(Objects { secrets, ..Objects::default() });
    let (objects, objects_seen) = watch::channel(Some(objects));
    let (_access, config) = watch::channel(access(&hub, hub.token()));
    let (failures, mut failed) = watch::channel(Arc::new(RenewalFailures::new()));
    let tasks = Supervisor::new();
    let role = watch::channel(WriterRole::Writes).1;
    tasks.spawn("renewal", run(config, role, objects_seen, Loopback::Allowed, failures));
    let published = timeout(LIMIT, failed.wait_for(|failed| !failed.is_empty()));
    let published = published.await.expect("in time").expect("it runs").clone();
    let fact = &published[&(ObjectName::new("strait-system", "a"), ClusterId::from("east"))];
    assert!(fact.starts_with("requesting it: the credential is not accepted"), "{fact}");
    // The token that failed does not exist any more.
    objects.send_replace(Some(Arc::default()));
    let none = timeout(LIMIT, failed.wait_for(|failed| failed.is_empty())).await;
    none.expect("in time").expect("it runs");
}
