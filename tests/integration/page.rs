//! The server side of the page: authentication, response headers, and change notifications. A
//! browser tests the content (`tests/page`).

use std::collections::BTreeSet;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, COOKIE, ETAG, HOST, IF_NONE_MATCH, LOCATION, SET_COOKIE};
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use tokio::time::timeout;

use super::mesh::{Member, SOON, Server, Setup};

/// Sends a request as a browser does.
pub(crate) async fn send_request(
    server: &Server,
    method: Method,
    path: &str,
    headers: &[(http::HeaderName, &str)],
) -> Response<Incoming> {
    let mut request =
        Request::builder().method(method).uri(format!("http://{}{path}", server.bound.admin));
    for (name, value) in headers {
        request = request.header(name, *value);
    }
    let request = request.body(Empty::<Bytes>::new()).expect("a request");
    let http = Client::builder(TokioExecutor::new()).build_http();
    http.request(request).await.expect("an answer")
}

async fn status(server: &Server, path: &str, headers: &[(http::HeaderName, &str)]) -> StatusCode {
    send_request(server, Method::GET, path, headers).await.status()
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> &'a str {
    headers.get(name).unwrap_or_else(|| panic!("no {name}: {headers:?}")).to_str().expect("text")
}

/// Signs in and returns the cookie of the session.
pub(crate) async fn sign_in(server: &Server) -> String {
    let answer = server.admin.json("/api/login-code").await;
    let code = answer["code"].as_str().expect("a code");
    let entered = send_request(server, Method::GET, &format!("/login?code={code}"), &[]).await;
    assert_eq!(entered.status(), StatusCode::SEE_OTHER);
    assert_eq!(text(entered.headers(), LOCATION.as_str()), "/");
    let cookie = text(entered.headers(), SET_COOKIE.as_str());
    let again = send_request(server, Method::GET, &format!("/login?code={code}"), &[]).await;
    assert_eq!(again.headers().get(SET_COOKIE), None, "a code works once");
    cookie.split(';').next().expect("a cookie").to_owned()
}

/// The stream that notifies a page of changes.
pub(crate) struct ChangeEvents(Response<Incoming>);

impl ChangeEvents {
    pub(crate) async fn listen(server: &Server) -> Self {
        let cookie = sign_in(server).await;
        let stream = send_request(server, Method::GET, "/api/changes", &[(COOKIE, &cookie)]).await;
        assert_eq!(text(stream.headers(), CONTENT_TYPE.as_str()), "text/event-stream");
        Self(stream)
    }

    /// Returns the next event, if it arrives within this time.
    pub(crate) async fn next(&mut self, within: Duration) -> Option<String> {
        let frame = timeout(within, self.0.body_mut().frame()).await.ok()?;
        let data = frame.expect("a frame").expect("no error").into_data().expect("data");
        Some(String::from_utf8(data.to_vec()).expect("text"))
    }

    /// Waits until no event arrives for longer than the notification delay, for at most this number
    /// of events.
    pub(crate) async fn settle(&mut self, events_max: usize) {
        for _ in 0..events_max {
            if self.next(Duration::from_secs(4)).await.is_none() {
                return;
            }
        }
        panic!("more than {events_max} events");
    }
}

#[tokio::test]
async fn session_has_the_read_rights_of_the_token_and_creates_no_sessions() {
    let setup = Setup::new();
    let server = setup.start_ready().await;
    let cookie = sign_in(&server).await;
    for path in ["/debug/clusters", "/debug/networks", "/debug/push"] {
        assert_eq!(status(&server, path, &[]).await, StatusCode::UNAUTHORIZED, "{path}");
        assert_eq!(status(&server, path, &[(COOKIE, &cookie)]).await, StatusCode::OK, "{path}");
        let elsewhere = [(COOKIE, &*cookie), (HOST, "evil.example")];
        assert_eq!(status(&server, path, &elsewhere).await, StatusCode::UNAUTHORIZED, "{path}");
    }
    let code = status(&server, "/api/login-code", &[(COOKIE, &cookie)]).await;
    assert_eq!(code, StatusCode::UNAUTHORIZED);
    // A session is read-only: changes of the held configuration need the token.
    for path in ["/api/hold", "/api/release", "/api/rollout"] {
        for headers in [&[][..], &[(COOKIE, &*cookie)]] {
            let answer = send_request(&server, Method::POST, path, headers).await;
            assert_eq!(answer.status(), StatusCode::UNAUTHORIZED, "{path}");
        }
    }
    assert!(server.admin.json("/debug/hold").await["held"].is_null());
}

#[tokio::test]
async fn session_is_valid_at_every_replica_and_at_no_other_control_plane() {
    let (setup, other) = (Setup::new(), Setup::new());
    let first = setup.start_ready().await;
    let second = setup.start_as(setup.arguments_on(&setup.path("second"))).await;
    let stranger = other.start_ready().await;
    let cookie = sign_in(&first).await;
    let code = first.admin.json("/api/login-code").await["code"].as_str().map(str::to_owned);
    let path = format!("/login?code={}", code.expect("a code"));
    let entered = send_request(&second, Method::GET, &path, &[]).await;
    assert!(entered.headers().contains_key(SET_COOKIE), "the code of another replica");
    for (server, wanted) in
        [(&first, StatusCode::OK), (&second, StatusCode::OK), (&stranger, StatusCode::UNAUTHORIZED)]
    {
        assert_eq!(status(server, "/debug/push", &[(COOKIE, &cookie)]).await, wanted);
    }
}

#[tokio::test]
async fn expiry_of_certificates_is_shown() {
    let setup = Setup::new();
    let server = setup.start_ready().await;
    let answer = server.admin.json("/debug/certificates").await;
    let ends = |what: &str| {
        let text = answer[what]["expires"].as_str().unwrap_or_else(|| panic!("{answer}"));
        text.parse::<jiff::Timestamp>().expect("a time")
    };
    // An issued certificate expires before the certificate that signed it.
    assert!(jiff::Timestamp::now() < ends("serving") && ends("serving") <= ends("authority"));
    assert!(answer["problem"].is_null(), "{answer}");
}

#[tokio::test]
async fn page_is_served_only_for_host_names_of_this_server() {
    let setup = Setup::new().with(&["--admin-host", "strait.example.org"]);
    let server = setup.start_ready().await;
    let index = send_request(&server, Method::GET, "/", &[]).await;
    assert_eq!(index.status(), StatusCode::OK);
    let policy = text(index.headers(), "content-security-policy");
    assert!(policy.contains("default-src 'none'") && !policy.contains("unsafe"), "{policy}");
    assert_eq!(text(index.headers(), "x-content-type-options"), "nosniff");
    let tag = text(index.headers(), ETAG.as_str()).to_owned();
    let unchanged = send_request(&server, Method::GET, "/", &[(IF_NONE_MATCH, &tag)]).await;
    assert_eq!(unchanged.status(), StatusCode::NOT_MODIFIED);
    for (host, wanted) in [
        ("localhost:15014", StatusCode::OK),
        ("strait.example.org", StatusCode::OK),
        ("evil.example:15014", StatusCode::MISDIRECTED_REQUEST),
    ] {
        for path in ["/", "/page/main.js", "/login?code=x"] {
            let wanted = match path.starts_with("/login") && wanted == StatusCode::OK {
                true => StatusCode::SEE_OTHER,
                false => wanted,
            };
            assert_eq!(status(&server, path, &[(HOST, host)]).await, wanted, "{host}{path}");
        }
    }
    let post = send_request(&server, Method::POST, "/", &[]).await;
    assert_eq!(post.status(), StatusCode::METHOD_NOT_ALLOWED);
    for path in ["/page/../token", "/page/x.js", "/page/"] {
        assert_eq!(status(&server, path, &[]).await, StatusCode::NOT_FOUND, "{path}");
    }
}

#[tokio::test]
async fn page_is_notified_only_of_changes_of_the_mesh_or_a_cluster_state() {
    let east = Member::start("east", "n1", "198.18.0.1").await;
    let setup = Setup::new();
    let server = setup.start_ready().await;
    let mut events = ChangeEvents::listen(&server).await;
    let first = events.next(SOON).await.expect("the first event immediately");
    assert!(first.starts_with("event: change\ndata: {\"version\":"), "{first}");
    // A start may cause another notification; after that there is no other.
    events.settle(5).await;
    let idle = events.next(Duration::from_secs(4)).await;
    assert!(idle.is_none(), "nothing changed: {idle:?}");
    setup.join(&[&east]);
    let event = events.next(SOON).await.expect("an event in time");
    assert!(event.starts_with("event: change\n"), "{event}");
    // A hold creates no version of the mesh.
    events.settle(20).await;
    let pinned = server.strait(&["history", "pin", "--yes"]).await;
    assert_eq!(pinned.status.code(), Some(0));
    assert!(events.next(SOON).await.is_some(), "event for the hold");
}

#[tokio::test]
async fn responses_are_sent_once_to_each_page_and_again_after_a_change() {
    let east = Member::start("east", "n1", "198.18.0.1").await;
    let setup = Setup::new();
    let server = setup.start_ready().await;
    let cookie = sign_in(&server).await;
    let request_with = async |headers: &[(http::HeaderName, &str)]| {
        let headers = [&[(COOKIE, &*cookie)], headers].concat();
        send_request(&server, Method::GET, "/debug/networks", &headers).await
    };
    let first = request_with(&[]).await;
    let tag = text(first.headers(), ETAG.as_str()).to_owned();
    assert_eq!(text(first.headers(), "cache-control"), "no-store");
    let unchanged = request_with(&[(IF_NONE_MATCH, &tag)]).await;
    assert_eq!(
        (unchanged.status(), text(unchanged.headers(), ETAG.as_str())),
        (StatusCode::NOT_MODIFIED, &*tag)
    );
    assert!(unchanged.into_body().collect().await.expect("a body").to_bytes().is_empty());
    let mut events = ChangeEvents::listen(&server).await;
    assert!(events.next(SOON).await.is_some());
    setup.join(&[&east]);
    // A request after the notification does not return the previous state.
    super::mesh::wait_until(SOON, async || {
        events.next(SOON).await;
        let changed = request_with(&[(IF_NONE_MATCH, &tag)]).await;
        super::mesh::holds(changed.status() == StatusCode::OK, changed.status())
    })
    .await;
}

#[tokio::test]
async fn summary_counts_proxies_and_lists_rejections() {
    let east = Member::start("east", "n1", "198.18.0.1").await;
    let setup = Setup::new();
    setup.join(&[&east]);
    let server = setup.start_ready().await;
    let summary = async || server.admin.json("/debug/summary").await;
    let before = summary().await;
    assert_eq!(before["proxies"]["connected"], 0, "{before}");
    assert_eq!(before["objects"], serde_json::json!({ "faulty": 0, "first": [] }));
    assert!(
        before["certificates"]["problem"].is_null() && before["rollout"]["running"].is_null(),
        "{before}"
    );
    let object = serde_json::json!({
        "apiVersion": "security.istio.io/v1", "kind": "AuthorizationPolicy",
        "metadata": { "name": "web", "namespace": "shop" }, "spec": { "rules": 7 },
    });
    setup.put("web", &object);
    super::mesh::wait_until(SOON, async || {
        let faulty = summary().await["objects"].clone();
        let first = &faulty["first"][0];
        let is_named = [&first["kind"], &first["name"], &first["code"]]
            == ["AuthorizationPolicy", "web", "STR0820"];
        super::mesh::holds(faulty["faulty"] == 1 && is_named, faulty)
    })
    .await;
}

#[tokio::test]
async fn number_of_listening_pages_is_limited() {
    let setup = Setup::new();
    let server = setup.start_ready().await;
    let cookie = sign_in(&server).await;
    let mut open = Vec::new();
    let mut answers = BTreeSet::new();
    // As many as the file descriptors allow, and at most 128.
    while answers.len() < 2 && open.len() <= 128 {
        let stream = send_request(&server, Method::GET, "/api/changes", &[(COOKIE, &cookie)]).await;
        answers.insert(stream.status());
        open.push(stream);
    }
    assert_eq!(answers, [StatusCode::OK, StatusCode::SERVICE_UNAVAILABLE].into());
    assert!(open.len() > 4, "{}", open.len());
    drop(open);
    // A closed stream frees its place.
    super::mesh::wait_until(SOON, async || {
        let stream = send_request(&server, Method::GET, "/api/changes", &[(COOKIE, &cookie)]).await;
        super::mesh::holds(stream.status() == StatusCode::OK, stream.status())
    })
    .await;
}
