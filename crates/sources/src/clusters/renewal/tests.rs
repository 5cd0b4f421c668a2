//! Tests of token renewal in a Secret, with simulated API servers.

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
    }
}

#[tokio::test]
async fn token_is_renewed_in_its_secret_after_half_its_lifetime() {
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
            "data": { "east": BASE64.encode(kubeconfig) },
        })
    };
    let wanted = json!({ SELF_RENEW_ANNOTATION: "true" });
    hub.store().apply(object(wanted, &kubeconfig)).expect("applied");
    let secret = |annotations: &[(&str, &str)]| {
        let owned = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
        Arc::new(WatchedSecret {
            name: ObjectName::new("strait-system", "east"),
            labels: BTreeMap::new(),
            annotations: annotations.iter().map(owned).collect(),
            created: None,
            secret_type: String::new(),
            source: None,
            data: [("east".to_owned(), Redacted::new(kubeconfig.clone().into_bytes()))].into(),
        })
    };
    assert!(renewable(&[secret(&[])], Loopback::Allowed).is_empty(), "protobuf was not requested");
    let secrets = vec![secret(&[(SELF_RENEW_ANNOTATION, "true")])];
    let (_objects, objects) =
        watch::channel(Some(Arc::new(Objects { secrets, ..Objects::default() })));
    let (_access, config) = watch::channel(access(&hub, hub.token()));
    let tasks = Supervisor::new();
    tasks.spawn(
        "token renewal",
        run(config, watch::channel(WriterRole::Writes).1, objects, Loopback::Allowed),
    );
    let started = Instant::now();
    loop {
        let now = hub.store().get("Secret", "strait-system", "east").expect("it").value();
        let text = BASE64.decode(now["data"]["east"].as_str().expect("data")).expect("base64");
        if text != kubeconfig.as_bytes() {
            let read = kubeconfig::parse(&text, None, Loopback::Allowed).expect("a kubeconfig");
            let old = Lifetime::from_token(&first).expect("a lifetime");
            let new = Lifetime::from_access(&read).expect("a lifetime");
            assert!(new.expires > old.expires, "{new:?}");
            break;
        }
        assert!(started.elapsed() < LIMIT, "not renewed");
        sleep(Duration::from_millis(50)).await;
    }
}
