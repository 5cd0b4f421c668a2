//! Token endpoints of clouds on one loopback port: the metadata server and the token service of Google,
//! Entra ID, and an endpoint for the exchange of tokens (RFC 8693).
//!
//! Each request is compared with the documented method, path, headers and fields. A request with a
//! difference gets status 400, and [`FakeCloud::violations`] names the difference.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE, DATE, LOCATION, RETRY_AFTER};
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body::Frame;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::task;
use crate::tokens::Tokens;

/// The tenant of Entra ID, its application, and the server application of AKS.
pub const TENANT: &str = "11111111-2222-3333-4444-555555555555";
/// The application of Entra ID.
pub const CLIENT: &str = "66666666-7777-8888-9999-000000000000";
const AKS: &str = "6dae42f8-4368-4678-94ff-3960e28e3630";
/// The provider of Google's workload identity pool.
pub const PROVIDER: &str =
    "//iam.googleapis.com/projects/1/locations/global/workloadIdentityPools/p/providers/q";
/// The service account of Google.
pub const ACCOUNT: &str = "reader@p.iam.gserviceaccount.com";
/// The token that all endpoints accept from the control plane. It is no secret.
pub const SUBJECT: &str = "canary-subject-token";
const CLOUD: &str = "https://www.googleapis.com/auth/cloud-platform";
const EMAIL: &str = "https://www.googleapis.com/auth/userinfo.email";

/// How the endpoints respond.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CloudMode {
    /// With a token of this lifetime in seconds.
    Issue(i64),
    /// With status 429, and a pause in seconds.
    TooManyRequests(u64),
    /// With `invalid_grant` and a description that repeats the token of the request.
    InvalidGrant,
    /// With status 503 and a page.
    Unavailable,
    /// With more than 64 KiB.
    Huge,
    /// Never.
    Silent,
    /// With the start of a body, and then nothing.
    Slow,
    /// With a redirect to this URL.
    Redirect(String),
    /// With a token that expired a minute ago by the clock of the endpoint.
    Expired,
    /// With a token for another audience.
    WrongAudience,
    /// With a text that is not JSON and contains a token.
    Garbage,
    /// With a token that contains a character that no header can contain.
    BrokenToken,
}

#[derive(Debug)]
struct CloudState {
    mode: CloudMode,
    /// How far the clock of the endpoints is ahead, in seconds.
    skew: i64,
    requests: Vec<String>,
    violations: Vec<String>,
    issued: Vec<String>,
}

/// Token endpoints on a loopback port. They end when this value is dropped.
#[derive(Debug)]
pub struct FakeCloud {
    url: String,
    state: Arc<Mutex<CloudState>>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for FakeCloud {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl FakeCloud {
    /// Starts the endpoints, which issue tokens for an hour.
    ///
    /// # Errors
    /// Fails if no port is free.
    pub async fn start() -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let url = format!("http://{}", listener.local_addr()?);
        let state = Arc::new(Mutex::new(CloudState {
            mode: CloudMode::Issue(3600),
            skew: 0,
            requests: Vec::new(),
            violations: Vec::new(),
            issued: Vec::new(),
        }));
        let (shared, tokens) = (Arc::clone(&state), Arc::new(Tokens::new(None)));
        let task = task::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (shared, tokens) = (Arc::clone(&shared), Arc::clone(&tokens));
                let respond = service_fn(move |request| {
                    let (shared, tokens) = (Arc::clone(&shared), Arc::clone(&tokens));
                    async move { Ok::<_, Infallible>(respond(&shared, &tokens, request).await) }
                });
                let serve = hyper::server::conn::http1::Builder::new()
                    .auto_date_header(false)
                    .serve_connection(TokioIo::new(stream), respond);
                task::spawn(async move { drop(serve.await) });
            }
        });
        Ok(Self { url, state, task })
    }

    /// Returns the URL without a path.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Changes how the endpoints respond.
    pub fn set_mode(&self, mode: CloudMode) {
        lock(&self.state).mode = mode;
    }

    /// Sets the clock of the endpoints ahead, or back if the number of seconds is negative.
    pub fn set_skew(&self, seconds: i64) {
        lock(&self.state).skew = seconds;
    }

    /// Returns the paths of all requests, in order.
    pub fn requests(&self) -> Vec<String> {
        lock(&self.state).requests.clone()
    }

    /// Returns the differences between requests and the documentation.
    pub fn violations(&self) -> Vec<String> {
        lock(&self.state).violations.clone()
    }

    /// Returns all issued tokens.
    pub fn issued(&self) -> Vec<String> {
        lock(&self.state).issued.clone()
    }
}

fn lock(state: &Mutex<CloudState>) -> MutexGuard<'_, CloudState> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A body that may never end.
#[derive(Debug)]
struct CloudBody {
    data: Option<Bytes>,
    is_endless: bool,
}

impl http_body::Body for CloudBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match self.data.take() {
            Some(data) => Poll::Ready(Some(Ok(Frame::data(data)))),
            None if self.is_endless => Poll::Pending,
            None => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.data.is_none() && !self.is_endless
    }
}

/// A request that equals the documentation, and the audience of its token.
enum Accepted {
    Google,
    /// A token of a service account, in another form.
    Account,
    For(String),
}

async fn respond(
    state: &Mutex<CloudState>,
    tokens: &Tokens,
    request: Request<Incoming>,
) -> Response<CloudBody> {
    let (head, body) = request.into_parts();
    let body = body.collect().await.map(http_body_util::Collected::to_bytes).unwrap_or_default();
    let body = String::from_utf8_lossy(&body).into_owned();
    let (path, query) = (head.uri.path().to_owned(), head.uri.query().unwrap_or_default());
    let checked = check(&head.method, &path, query, &head.headers, &body);
    let (mode, skew) = {
        let mut state = lock(state);
        state.requests.push(path.clone());
        if let Err(fact) = &checked {
            state.violations.push(format!("{} {path}: {fact}", head.method));
        }
        (state.mode.clone(), state.skew)
    };
    let now = SystemTime::now();
    let offset = Duration::from_secs(skew.unsigned_abs());
    let now = if skew < 0 { now - offset } else { now + offset };
    let now = Timestamp::try_from(now).unwrap_or(Timestamp::UNIX_EPOCH);
    let response = match checked {
        Err(fact) => json_response(
            StatusCode::BAD_REQUEST,
            &json!({ "error": "invalid_request", "error_description": fact }),
        ),
        Ok(accepted) => {
            let repeated = if body.contains(SUBJECT) { SUBJECT } else { "" };
            misbehave_or_issue(state, tokens, &mode, now, &accepted, repeated).await
        }
    };
    let (mut parts, body) = response.into_parts();
    let date = jiff::fmt::rfc2822::DateTimePrinter::new().timestamp_to_rfc9110_string(&now);
    if let Some(date) = date.ok().and_then(|date| date.try_into().ok()) {
        parts.headers.insert(DATE, date);
    }
    if path.starts_with("/computeMetadata/") {
        parts.headers.insert("metadata-flavor", http::HeaderValue::from_static("Google"));
    }
    Response::from_parts(parts, body)
}

fn json_response(status: StatusCode, body: &Value) -> Response<CloudBody> {
    text_response(status, body.to_string())
}

fn text_response(status: StatusCode, body: String) -> Response<CloudBody> {
    let data = Some(Bytes::from(body)).filter(|data| !data.is_empty());
    let mut response = Response::new(CloudBody { data, is_endless: false });
    *response.status_mut() = status;
    response
}

async fn misbehave_or_issue(
    state: &Mutex<CloudState>,
    tokens: &Tokens,
    mode: &CloudMode,
    now: Timestamp,
    accepted: &Accepted,
    repeated: &str,
) -> Response<CloudBody> {
    let mut lifetime = 3600;
    let mut audience = match accepted {
        Accepted::For(audience) => Some(audience.as_str()),
        Accepted::Google | Accepted::Account => None,
    };
    match mode {
        CloudMode::Issue(seconds) => lifetime = *seconds,
        CloudMode::TooManyRequests(pause) => {
            let body = json!({ "error": "slow_down" });
            let mut response = json_response(StatusCode::TOO_MANY_REQUESTS, &body);
            response.headers_mut().insert(RETRY_AFTER, (*pause).into());
            return response;
        }
        CloudMode::InvalidGrant => {
            let fact = format!("the assertion {repeated} is not within its valid time range");
            let body = json!({ "error": "invalid_grant", "error_description": fact });
            return json_response(StatusCode::BAD_REQUEST, &body);
        }
        CloudMode::Unavailable => {
            let page = "<html><body>busy</body></html>".to_owned();
            return text_response(StatusCode::SERVICE_UNAVAILABLE, page);
        }
        CloudMode::Huge => return text_response(StatusCode::OK, "a".repeat(1 << 20)),
        CloudMode::Silent => std::future::pending().await,
        CloudMode::Slow => {
            let start = Some(Bytes::from_static(b"{\"access_token\": \""));
            return Response::new(CloudBody { data: start, is_endless: true });
        }
        CloudMode::Redirect(url) => {
            let mut response = text_response(StatusCode::TEMPORARY_REDIRECT, String::new());
            if let Ok(url) = url.try_into() {
                response.headers_mut().insert(LOCATION, url);
            }
            return response;
        }
        CloudMode::Expired => lifetime = -60,
        CloudMode::WrongAudience => audience = Some("canary-audience"),
        CloudMode::Garbage => {
            return text_response(StatusCode::OK, "access_token=canary-garbage".to_owned());
        }
        CloudMode::BrokenToken => {
            let body = json!({ "access_token": "canary\u{0}broken", "expires_in": 60, "token_type": "Bearer" });
            return json_response(StatusCode::OK, &body);
        }
    }
    let expires = now.as_second().saturating_add(lifetime);
    let token = match audience {
        Some(audience) => {
            let claims = json!({ "aud": audience, "exp": expires, "iat": now.as_second() });
            tokens.issue("cloud".to_owned(), &claims, Duration::from_secs(86_400))
        }
        None => {
            let count = lock(state).issued.len();
            format!("ya29.canary-{count}")
        }
    };
    lock(state).issued.push(token.clone());
    let stated = if *mode == CloudMode::Expired { 3600 } else { lifetime };
    let body = match accepted {
        Accepted::Account => {
            let expires = Timestamp::from_second(expires).unwrap_or(now);
            json!({ "accessToken": token, "expireTime": expires.to_string() })
        }
        _ => json!({ "access_token": token, "expires_in": stated, "token_type": "Bearer" }),
    };
    json_response(StatusCode::OK, &body)
}

/// Compares a request with the documentation.
fn check(
    method: &Method,
    path: &str,
    query: &str,
    headers: &HeaderMap,
    body: &str,
) -> Result<Accepted, String> {
    let header = |name: http::HeaderName| {
        headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
    };
    let expect = |is_met: bool, fact: &str| if is_met { Ok(()) } else { Err(fact.to_owned()) };
    if headers.contains_key("accept-encoding") {
        return Err("accepts compression".to_owned());
    }
    if path == "/computeMetadata/v1/instance/service-accounts/default/token" {
        expect(method == Method::GET, "is not GET")?;
        let flavor = http::HeaderName::from_static("metadata-flavor");
        expect(header(flavor) == "Google", "has no Metadata-Flavor: Google")?;
        let query = fields(query)?;
        let scopes: Vec<_> =
            query.get("scopes").map(|s| s.split(',').collect()).unwrap_or_default();
        expect(scopes == [CLOUD, EMAIL], "has other scopes")?;
        return Ok(Accepted::Google);
    }
    expect(method == Method::POST, "is not POST")?;
    expect(query.is_empty(), "has a query")?;
    if path == format!("/v1/projects/-/serviceAccounts/{ACCOUNT}:generateAccessToken") {
        expect(header(CONTENT_TYPE) == "application/json", "is not JSON")?;
        expect(
            header(AUTHORIZATION).starts_with("Bearer ya29.canary-"),
            "has no token of the STS",
        )?;
        let body: Value = serde_json::from_str(body).map_err(|error| error.to_string())?;
        expect(
            body == json!({ "scope": [CLOUD, EMAIL], "lifetime": "3600s" }),
            "has another body",
        )?;
        return Ok(Accepted::Account);
    }
    expect(header(CONTENT_TYPE) == "application/x-www-form-urlencoded", "is not a form")?;
    expect(header(AUTHORIZATION).is_empty(), "has a header Authorization")?;
    let mut form = fields(body)?;
    let entra = format!("/{TENANT}/oauth2/v2.0/token");
    let (expected, accepted) = if path == entra {
        let assertion = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer";
        let scope = format!("{AKS}/.default");
        let expected = vec![
            ("client_assertion", SUBJECT.to_owned()),
            ("client_assertion_type", assertion.to_owned()),
            ("client_id", CLIENT.to_owned()),
            ("grant_type", "client_credentials".to_owned()),
            ("scope", scope),
        ];
        (expected, Accepted::For(AKS.to_owned()))
    } else if path == "/v1/token" || path == "/exchange" {
        let kind = |name: &str| format!("urn:ietf:params:oauth:{name}");
        let mut expected = vec![
            ("grant_type", kind("grant-type:token-exchange")),
            ("requested_token_type", kind("token-type:access_token")),
            ("subject_token", SUBJECT.to_owned()),
            ("subject_token_type", kind("token-type:jwt")),
        ];
        if path == "/exchange" {
            let audience = form.remove("audience").ok_or("names no audience")?;
            form.remove("scope");
            (expected, Accepted::For(audience))
        } else {
            expected.push(("audience", PROVIDER.to_owned()));
            expected.push(("scope", format!("{CLOUD} {EMAIL}")));
            (expected, Accepted::Google)
        }
    } else {
        return Err("no endpoint has this path".to_owned());
    };
    let expected: BTreeMap<_, _> =
        expected.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
    let differing = expected.iter().find(|(name, value)| form.get(*name) != Some(value));
    if let Some((name, _)) = differing {
        return Err(format!("field {name} differs"));
    }
    let unknown = form.keys().find(|name| !expected.contains_key(*name));
    unknown.map_or(Ok(accepted), |name| Err(format!("field {name} is unknown")))
}

/// Returns the fields of a form, each of which occurs once.
fn fields(text: &str) -> Result<BTreeMap<String, String>, String> {
    let mut fields = BTreeMap::new();
    for (name, value) in form_urlencoded::parse(text.as_bytes()) {
        if fields.insert(name.to_string(), value.into_owned()).is_some() {
            return Err(format!("field {name} occurs twice"));
        }
    }
    Ok(fields)
}
