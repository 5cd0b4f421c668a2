//! Tests of fetches from servers on loopback, with and without TLS, that rotate keys, hang,
//! redirect and send invalid data.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use serde_json::json;
use tokio::net::TcpListener;
use tokio::sync::watch;

use super::fetcher::{FetcherInputs, run};
use super::guard::DialRules;
use super::{KeyClient, KeyFetchError};
use strait_base::source_status::SourceStatusTable;
use strait_model::fetched_keys::{FetchedKeys, KeyPlace, WantedKeys};

const LIMIT: Duration = Duration::from_secs(10);
const WAIT_LIMIT: Duration = Duration::from_secs(20);

/// Returns a key set with one key of this name, the example of RFC 7517, A.1.
fn set(kid: &str) -> String {
    json!({ "keys": [{ "kty": "EC", "crv": "P-256", "kid": kid, "x": "MKBCTNIcKUSDii11ySs3526iDZ8AiTo7Tu6KPAqv7D4",
        "y": "4Etl6SRW2YiLUrN5vfvVHuhp7x8PxltmWWlbbM4IFyM" }] })
    .to_string()
}

type Answer = Arc<dyn Fn(&str, u16) -> Response<Full<Bytes>> + Send + Sync>;

fn ok(text: impl Into<Bytes>) -> Response<Full<Bytes>> {
    Response::new(Full::new(text.into()))
}

fn redirect(to: &str) -> Response<Full<Bytes>> {
    let answer = Response::builder().status(302).header("location", to);
    answer.body(Full::default()).expect("an answer")
}

/// Starts a server, with TLS if there is an acceptor. `answer` maps the path and the port to a
/// response. It never responds to `/hangs`.
#[expect(clippy::disallowed_methods, reason = "a test's own server, which ends with the test")]
async fn serve(tls: Option<tokio_rustls::TlsAcceptor>, answer: Answer) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("bound").port();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (tls, answer) = (tls.clone(), Arc::clone(&answer));
            let service =
                hyper::service::service_fn(move |request: Request<hyper::body::Incoming>| {
                    let answer = Arc::clone(&answer);
                    async move {
                        if request.uri().path() == "/hangs" {
                            std::future::pending::<()>().await;
                        }
                        Ok::<_, Infallible>(answer(request.uri().path(), port))
                    }
                });
            tokio::spawn(async move {
                let http = hyper::server::conn::http1::Builder::new();
                match tls {
                    None => drop(
                        http.serve_connection(hyper_util::rt::TokioIo::new(stream), service).await,
                    ),
                    Some(tls) => {
                        let Ok(stream) = tls.accept(stream).await else { return };
                        let io = hyper_util::rt::TokioIo::new(stream);
                        let _ = http.serve_connection(io, service).await;
                    }
                }
            });
        }
    });
    port
}

fn client(loopback: bool) -> KeyClient {
    KeyClient { rules: DialRules { loopback, denied: Vec::new() }, roots: None }
}

fn uri(text: String) -> KeyPlace {
    KeyPlace::Uri(text.into())
}

fn answers() -> Answer {
    Arc::new(|path, port| match path {
        "/keys" => {
            let mut answer = ok(set("1"));
            let fresh = "public, max-age=120".parse().expect("a value");
            answer.headers_mut().insert("cache-control", fresh);
            answer
        }
        "/moved" => redirect("/keys"),
        "/moved-far" => redirect(&format!("http://127.0.0.1:{port}/keys")),
        "/other-loopback" => redirect(&format!("http://127.0.0.2:{port}/keys")),
        "/led/.well-known/openid-configuration" => {
            let issuer = format!("http://127.0.0.1:{port}/led");
            ok(json!({ "issuer": issuer, "jwks_uri": format!("http://127.0.0.2:{port}/keys") })
                .to_string())
        }
        "/other-scheme" => redirect(&format!("https://127.0.0.1:{port}/keys")),
        "/metadata" => redirect("http://169.254.169.254/latest/meta-data"),
        "/round" => redirect("/round"),
        "/garbage" => ok("<html>no keys</html>"),
        "/none" => ok(r#"{"keys":[]}"#),
        "/private" => ok(json!({ "keys": [{ "kty": "oct", "k": "c2VjcmV0" }] }).to_string()),
        "/zeros" => ok(json!({ "keys": vec![0; 400_000] }).to_string()),
        "/strange" => redirect(&format!("ftp://{}", "a".repeat(100_000))),
        "/long/.well-known/openid-configuration" => {
            ok(json!({ "issuer": vec![0; 400_000] }).to_string())
        }
        "/far/.well-known/openid-configuration" => {
            let issuer = format!("http://127.0.0.1:{port}/far");
            ok(json!({ "issuer": issuer, "jwks_uri": "ftp://a".repeat(100_000) }).to_string())
        }
        "/huge" => ok(vec![b' '; 2 * 1024 * 1024]),
        "/.well-known/openid-configuration" => {
            let issuer = format!("http://127.0.0.1:{port}");
            ok(json!({ "issuer": issuer, "jwks_uri": format!("{issuer}/keys") }).to_string())
        }
        "/tenant/.well-known/openid-configuration" => {
            ok(json!({ "issuer": "https://another", "jwks_uri": "https://another/keys" })
                .to_string())
        }
        _ => Response::builder().status(404).body(Full::default()).expect("an answer"),
    })
}

#[tokio::test]
async fn only_valid_keys_from_allowed_addresses_are_fetched() {
    let port = serve(None, answers()).await;
    let base = format!("http://127.0.0.1:{port}");
    let own = client(true);
    for path in ["/keys", "/moved", "/moved-far"] {
        let found = own.fetch(&uri(format!("{base}{path}")), LIMIT).await.expect(path);
        assert_eq!(&*found.keys, set("1"), "{path}");
        assert_eq!(found.max_age, Some(Duration::from_secs(120)), "{path}");
    }
    let found = own.fetch(&KeyPlace::Issuer(base.clone().into()), LIMIT).await.expect("discovered");
    assert_eq!(&*found.keys, set("1"));
    let cases = [
        ("/other-scheme", "leads from one scheme to another"),
        (
            "/metadata",
            "169.254.169.254 is 169.254.169.254, a link-local address, which is never dialled",
        ),
        ("/other-loopback", "127.0.0.2 is 127.0.0.2, a loopback address, which is never dialled"),
        ("/round", "more than 3 redirects"),
        ("/garbage", "is not JSON"),
        ("/none", "it is empty"),
        ("/private", "private key"),
        ("/huge", "more than 1048576 bytes"),
        ("/nothing", "404"),
    ];
    for (path, part) in cases {
        let error = own.fetch(&uri(format!("{base}{path}")), LIMIT).await.expect_err(path);
        assert!(error.to_string().contains(part), "{path}: {error}");
        assert!(!error.to_string().contains("c2VjcmV0"), "{error}");
    }
    let limit = Duration::from_millis(300);
    let error = own.fetch(&uri(format!("{base}/hangs")), limit).await.expect_err("it hangs");
    assert!(matches!(error, KeyFetchError::TimedOut(_)), "{error}");
    let other = KeyPlace::Issuer(format!("{base}/tenant").into());
    let error = own.fetch(&other, LIMIT).await.expect_err("a different issuer");
    assert!(error.to_string().contains("https://another"), "{error}");
    // The response of a server does not count as named by the policy.
    let redirected = KeyPlace::Issuer(format!("{base}/led").into());
    let error = own.fetch(&redirected, LIMIT).await.expect_err("another loopback address");
    assert!(matches!(error, KeyFetchError::Refused { .. }), "{error}");
    // If loopback is not allowed, it is not dialled under any name.
    for host in ["127.0.0.1", "[::1]", "[::ffff:127.0.0.1]", "localhost"] {
        let place = uri(format!("http://{host}:{port}/keys"));
        let error = client(false).fetch(&place, LIMIT).await.expect_err(host);
        assert!(matches!(error, KeyFetchError::Refused { .. }), "{host}: {error}");
    }
    let place = uri(format!("http://localhost:{port}/keys"));
    let error = own.fetch(&place, LIMIT).await.expect_err("a host name that resolves to loopback");
    assert!(matches!(error, KeyFetchError::Refused { .. }), "{error}");
    let denied = vec!["127.0.0.0/8".parse().expect("a range")];
    let denying = KeyClient { rules: DialRules { loopback: true, denied }, roots: None };
    let error = denying.fetch(&uri(format!("{base}/keys")), LIMIT).await.expect_err("denied");
    assert!(error.to_string().contains("--jwks-deny"), "{error}");
}

#[tokio::test]
async fn server_certificate_must_be_trusted() {
    let key = rcgen::KeyPair::generate().expect("a key");
    let params = rcgen::CertificateParams::new(vec!["127.0.0.1".to_owned()]).expect("a name");
    let certificate = params.self_signed(&key).expect("a certificate");
    let private = rustls_pki_types::PrivatePkcs8KeyDer::from(key.serialize_der()).into();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], private)
        .expect("a certificate");
    let tls = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    let port = serve(Some(tls), answers()).await;
    let place = uri(format!("https://127.0.0.1:{port}/keys"));
    let folder = tempfile::tempdir().expect("a folder");
    let roots = folder.path().join("roots.pem");
    std::fs::write(&roots, certificate.pem()).expect("written");
    let trusting = KeyClient { roots: Some(roots), ..client(true) };
    let found = trusting.fetch(&place, LIMIT).await.expect("known");
    assert_eq!(&*found.keys, set("1"));
    let error = client(true).fetch(&place, LIMIT).await.expect_err("from an untrusted CA");
    assert!(
        matches!(error, KeyFetchError::Reach { .. } | KeyFetchError::NoRoots { .. }),
        "{error}"
    );
    let down = uri(format!("https://127.0.0.1:{port}/other-scheme"));
    // The redirect leads to https, the same scheme here, and to the same host.
    trusting.fetch(&down, LIMIT).await.expect("the same scheme");
}

/// The reason of a failed fetch appears in the log, in a status, and in each rule that names the
/// location.
#[tokio::test]
async fn errors_repeat_little_of_a_response() {
    let port = serve(None, answers()).await;
    let base = format!("http://127.0.0.1:{port}");
    let places = [
        (uri(format!("{base}/zeros")), "lists 400000 keys"),
        (uri(format!("{base}/strange")), "a redirect to"),
        (KeyPlace::Issuer(format!("{base}/long").into()), "is about issuer [0,0,"),
        (KeyPlace::Issuer(format!("{base}/far").into()), "is not a URI"),
    ];
    for (place, part) in places {
        let error = client(true).fetch(&place, LIMIT).await.expect_err(part);
        let text = super::fetcher::in_full(&error);
        assert!(text.contains(part) && text.len() <= 400, "{} bytes: {text}", text.len());
    }
}

/// Waits until the fetcher publishes matching keys.
async fn published(
    receiver: &mut watch::Receiver<(Arc<FetchedKeys>, bool)>,
    is: impl Fn(&FetchedKeys) -> bool,
) -> Arc<FetchedKeys> {
    let wait = receiver.wait_for(|(fetched, tried)| *tried && is(fetched));
    let found = tokio::time::timeout(WAIT_LIMIT, wait).await.expect("in time").expect("it runs");
    Arc::clone(&found.0)
}

#[tokio::test]
#[expect(clippy::disallowed_methods, reason = "a test's own task, which it ends")]
async fn fetcher_follows_rotations_and_keeps_valid_keys_across_a_restart() {
    static REQUESTS: AtomicUsize = AtomicUsize::new(0);
    // Down at first, then one key, then invalid data.
    let port = serve(
        None,
        Arc::new(|_, _| match REQUESTS.fetch_add(1, Ordering::Relaxed) {
            0 => Response::builder().status(500).body(Full::default()).expect("an answer"),
            1 => ok(set("1")),
            _ => ok("nonsense"),
        }),
    )
    .await;
    let place = uri(format!("http://127.0.0.1:{port}/keys"));
    let namespaces = ["shop".into()].into();
    let wanted = WantedKeys { timeout: LIMIT, namespaces };
    let wanted: BTreeMap<_, _> = [(place.clone(), wanted)].into();
    let folder = tempfile::tempdir().expect("a folder");
    let (_wanted, wanted_receiver) = watch::channel(Arc::new(wanted));
    let statuses = SourceStatusTable::new(Duration::ZERO);
    let (sender, mut receiver) = watch::channel(Default::default());
    let inputs = FetcherInputs {
        wanted: wanted_receiver,
        requests: Arc::default(),
        client: Arc::new(client(true)),
        file: Some(folder.path().join("jwks.json")),
        statuses: statuses.clone(),
        fetched: sender,
    };
    let first = tokio::spawn(run(inputs.clone()));
    let state = published(&mut receiver, |all| all[&place].trouble.is_some()).await;
    assert_eq!(state[&place].keys, None);
    let line = |statuses: &SourceStatusTable| {
        let lines = statuses.lines();
        let facts = lines.borrow().values().next().cloned();
        facts.expect("a line")
    };
    assert_eq!(line(&statuses).trouble.expect("it fails").code.id, "STR0833");
    // One second later, it responds.
    let state = published(&mut receiver, |all| all[&place].keys.is_some()).await;
    assert_eq!(state[&place].keys.as_deref(), Some(&*set("1")));
    let facts = line(&statuses);
    assert!(facts.trouble.is_none() && facts.last_contact.is_some() && facts.objects == 1);
    let written = async {
        while !folder.path().join("jwks.json").exists() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(WAIT_LIMIT, written).await.expect("it is stored");
    first.abort();
    // The next process receives invalid data, and uses the stored keys.
    let (sender, mut receiver) = watch::channel(Default::default());
    let second = tokio::spawn(run(FetcherInputs { fetched: sender, ..inputs.clone() }));
    let state = published(&mut receiver, |all| all[&place].trouble.is_some()).await;
    assert_eq!(state[&place].keys.as_deref(), Some(&*set("1")));
    second.abort();
    // If an operator denies that address in the meantime, the next process neither dials it nor
    // uses keys from it.
    let (sender, mut receiver) = watch::channel(Default::default());
    let denied = vec!["127.0.0.0/8".parse().expect("a range")];
    let client = KeyClient { rules: DialRules { loopback: true, denied }, roots: None };
    let inputs = FetcherInputs { fetched: sender, client: Arc::new(client), ..inputs };
    let third = tokio::spawn(run(inputs));
    let state = published(&mut receiver, |all| all[&place].trouble.is_some()).await;
    assert_eq!(state[&place].keys, None);
    third.abort();
}
