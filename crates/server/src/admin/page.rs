//! The page: its files, access from browsers, and the number of pages that wait for changes.
//!
//! The files contain no data and need no session; data comes from the paths that the CLI uses.
//! Everything is read by GET. A browser is admitted by a session ([`super::session`]) if it
//! addresses this server by one of its own names. Other names are refused, because foreign DNS may
//! resolve them to this server.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::SystemTime;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Path, Query, Request, State};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use serde::Deserialize;
use tokio::sync::Semaphore;
use xxhash_rust::xxh3::xxh3_128;

use super::announcements::Announcements;
use super::failure::{AdminFailure, AdminResult, pretty};
pub use super::session::SessionKey;
use super::session::{BrowserSessions, CODE_LASTS, ValidSession};
use super::shared::is_known;
use strait_admin_api::LoginCode;
use strait_base::descriptors;

/// Maximum number of pages that wait for changes, if file descriptors suffice. Further pages must
/// poll. Each is a connection with about 20 kB of buffers, and a sleeping task.
const SUBSCRIBERS_MAX: usize = 128;

/// Allows only files of this server, no inline scripts or styles, no markup from text, and no
/// embedding in frames.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
     base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'";

/// A file of the page.
struct PageFile {
    name: &'static str,
    kind: &'static str,
    bytes: &'static [u8],
}

macro_rules! page_files {
    ($($name:literal: $kind:expr),* $(,)?) => {
        &[$(PageFile { name: $name, kind: $kind, bytes: include_bytes!(concat!("page/", $name)) }),*]
    };
}

const SCRIPT: &str = "text/javascript; charset=utf-8";
const INDEX: &str = "index.html";
const FILES: &[PageFile] = page_files! {
    "index.html": "text/html; charset=utf-8",
    "page.css": "text/css; charset=utf-8",
    "icon.svg": "image/svg+xml",
    "main.js": SCRIPT,
    "api.js": SCRIPT,
    "dom.js": SCRIPT,
    "format.js": SCRIPT,
    "states.js": SCRIPT,
    "history.js": SCRIPT,
    "table.js": SCRIPT,
    "map.js": SCRIPT,
    "clusters.js": SCRIPT,
    "services.js": SCRIPT,
    "proxies.js": SCRIPT,
    "explain.js": SCRIPT,
    "timeline.js": SCRIPT,
    "traffic.js": SCRIPT,
    "change.js": SCRIPT,
    "rollout.js": SCRIPT,
    "mend.js": SCRIPT,
    "trust.js": SCRIPT,
};

/// Sessions of browsers, and the host names by which they may address this server.
pub struct BrowserAccess {
    sessions: BrowserSessions,
    hosts: Vec<String>,
    subscribers: Arc<Semaphore>,
}

impl BrowserAccess {
    /// Creates the state. `hosts` are the DNS names by which browsers may reach the port, in
    /// addition to `localhost`. `key` signs sessions.
    pub fn new(hosts: Vec<String>, key: SessionKey) -> Self {
        // Half of the port's connections.
        let most = descriptors::share(16, 4, SUBSCRIBERS_MAX);
        let subscribers = Arc::new(Semaphore::new(most));
        Self { sessions: BrowserSessions::new(key), hosts, subscribers }
    }

    /// Creates a login code for a browser: for `strait ui`, which has presented the token.
    pub(super) fn code(&self) -> AdminResult {
        let code = self.sessions.code(SystemTime::now()).ok_or_else(|| {
            AdminFailure(
                StatusCode::INTERNAL_SERVER_ERROR,
                "the system provides no randomness for a code".into(),
            )
        })?;
        Ok(pretty(StatusCode::OK, &LoginCode { code, expires_seconds: CODE_LASTS.as_secs() }))
    }

    /// Streams an event whenever data that pages show has changed. Pages then request the data.
    pub(super) fn changes(&self, announcements: &Announcements) -> AdminResult {
        let place = Arc::clone(&self.subscribers).try_acquire_owned().map_err(|_| {
            let text = "too many pages wait for changes; poll instead";
            AdminFailure(StatusCode::SERVICE_UNAVAILABLE, text.into())
        })?;
        Ok(announcements.stream(place))
    }

    /// Returns the session of a request from a page of this server. Other sites and other ports of
    /// this host can make a browser send its cookies too; `Sec-Fetch-Site` reveals this.
    pub(super) fn session(&self, headers: &HeaderMap) -> Option<ValidSession> {
        let text = |name| headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok());
        let from = headers.get("sec-fetch-site").map(HeaderValue::as_bytes);
        let ours = from.is_none_or(|site| site == b"same-origin" || site == b"none");
        if !(ours && is_of_own_page(headers) && self.is_named(headers)) {
            return None;
        }
        self.sessions.find(text(header::COOKIE)?, SystemTime::now())
    }

    /// Returns whether the browser addresses this server by an IP address or by one of its own
    /// names. Any other name could belong to an attacker's site, which would thereby gain access to
    /// this page.
    fn is_named(&self, headers: &HeaderMap) -> bool {
        let host = headers.get(header::HOST).and_then(|value| value.to_str().ok());
        let Some(authority) = host.and_then(|host| host.parse::<Authority>().ok()) else {
            return false;
        };
        let name = authority.host().trim_start_matches('[').trim_end_matches(']');
        let is_own = |own: &str| own.eq_ignore_ascii_case(name);
        name.parse::<IpAddr>().is_ok()
            || is_own("localhost")
            || self.hosts.iter().any(|it| is_own(it))
    }
}

/// Returns whether the request is from a page of this server, as far as the browser reports it.
/// Browsers without `Sec-Fetch-Site` send the page's own site in `Origin` if another one is
/// possible (RFC 6454, 7).
fn is_of_own_page(headers: &HeaderMap) -> bool {
    let text = |name| headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok());
    let Some(origin) = headers.get(header::ORIGIN) else { return true };
    let origin = origin.to_str().ok().and_then(|origin| origin.split_once("://"));
    // A proxy in front of this server may terminate TLS.
    let site = origin.filter(|(scheme, _)| matches!(*scheme, "http" | "https"));
    let host = text(header::HOST).unwrap_or_default();
    site.is_some_and(|(_, authority)| authority.eq_ignore_ascii_case(host))
}

/// Routes that need no credentials: the files and the login.
pub(super) fn router<S>(browsers: Arc<BrowserAccess>) -> Router<S> {
    Router::new()
        .route("/", get(index))
        .route("/page/{file}", get(file))
        .route("/login", get(login))
        .route_layer(middleware::from_fn_with_state(Arc::clone(&browsers), named))
        .with_state(browsers)
}

/// Adds headers that keep browsers from using a response for other purposes.
pub(super) async fn guarded(request: Request, next: Next) -> Response {
    let mut answer = next.run(request).await;
    let headers = answer.headers_mut();
    for (name, value) in [
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::X_FRAME_OPTIONS, "DENY"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    headers.insert("cross-origin-resource-policy", HeaderValue::from_static("same-origin"));
    headers.insert("cross-origin-opener-policy", HeaderValue::from_static("same-origin"));
    // Responses to sessions and tokens must not be cached.
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    answer
}

async fn named(
    State(browsers): State<Arc<BrowserAccess>>,
    request: Request,
    next: Next,
) -> Response {
    if browsers.is_named(request.headers()) {
        return next.run(request).await;
    }
    let text = "the page is served for IP addresses and localhost only; to allow a name, start 'strait serve' with --admin-host NAME";
    AdminFailure(StatusCode::MISDIRECTED_REQUEST, text.into()).into_response()
}

async fn index(headers: HeaderMap) -> Response {
    serve(INDEX, &headers)
}

async fn file(Path(name): Path<String>, headers: HeaderMap) -> Response {
    serve(&name, &headers)
}

fn serve(name: &str, headers: &HeaderMap) -> Response {
    let Some(file) = FILES.iter().find(|file| file.name == name) else {
        let text = "the page has no such file; it starts at /";
        return AdminFailure(StatusCode::NOT_FOUND, text.into()).into_response();
    };
    let tag = format!("\"{:032x}\"", xxh3_128(file.bytes));
    let same = is_known(headers, &tag);
    // Revalidated each time, so that a page never runs scripts of another version.
    let head = [
        (header::ETAG, tag),
        (header::CACHE_CONTROL, "no-cache".to_owned()),
        (header::CONTENT_TYPE, file.kind.to_owned()),
    ];
    match same {
        true => (StatusCode::NOT_MODIFIED, head).into_response(),
        false => (head, Bytes::from_static(file.bytes)).into_response(),
    }
}

#[derive(Deserialize)]
struct LoginQuery {
    #[serde(default)]
    code: String,
}

/// Redirects to the page, with a session if the code is valid. Without one, the page tells what to
/// do.
async fn login(
    State(browsers): State<Arc<BrowserAccess>>,
    Query(query): Query<LoginQuery>,
) -> Response {
    let mut answer = (StatusCode::SEE_OTHER, [(header::LOCATION, "/")]).into_response();
    let cookie = browsers.sessions.open(&query.code, SystemTime::now());
    if let Some(cookie) = cookie.and_then(|cookie| HeaderValue::from_str(&cookie).ok()) {
        answer.headers_mut().insert(header::SET_COOKIE, cookie);
    }
    answer
}

#[cfg(test)]
mod tests {
    use super::*;
    use strait_identity::SharedKey;

    fn browsers(hosts: Vec<String>) -> BrowserAccess {
        BrowserAccess::new(hosts, Arc::new(|| SharedKey::derive(b"secret", "sessions")))
    }

    #[test]
    fn browser_must_use_an_address_or_an_own_name_of_the_server() {
        let browsers = browsers(vec!["strait.example.org".into()]);
        let named = |host: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::HOST, host.parse().expect("a header"));
            browsers.is_named(&headers)
        };
        for own in [
            "127.0.0.1:15014",
            "[::1]:15014",
            "10.0.0.7",
            "localhost:1",
            "LOCALHOST",
            "Strait.example.org:80",
        ] {
            assert!(named(own), "{own}");
        }
        for other in [
            "evil.example",
            "localhost.evil.example:15014",
            "127.0.0.1.nip.io",
            "",
            "a b",
            "example.org",
        ] {
            assert!(!named(other), "{other}");
        }
        assert!(!browsers.is_named(&HeaderMap::new()));
    }

    #[test]
    fn session_is_valid_for_pages_of_this_server_only() {
        let browsers = browsers(Vec::new());
        let now = SystemTime::now();
        let code = browsers.sessions.code(now).expect("a code");
        let cookie = browsers.sessions.open(&code, now).expect("a session");
        let asked = |host: &str, site: Option<&'static str>| {
            let mut headers = HeaderMap::new();
            headers.insert(header::HOST, host.parse().expect("a header"));
            headers.insert(
                header::COOKIE,
                cookie.split(';').next().expect("one").parse().expect("a header"),
            );
            if let Some(site) = site {
                headers.insert("sec-fetch-site", HeaderValue::from_static(site));
            }
            browsers.session(&headers).is_some()
        };
        assert!(asked("localhost", Some("same-origin")) && asked("localhost", None));
        assert!(!asked("evil.example", Some("same-origin")));
        assert!(!asked("localhost", Some("same-site")) && !asked("localhost", Some("cross-site")));
    }

    #[test]
    fn page_of_another_site_is_detected_by_its_origin() {
        let asked = |host: &str, origin: Option<&str>| {
            let mut headers = HeaderMap::new();
            headers.insert(header::HOST, host.parse().expect("a header"));
            if let Some(origin) = origin {
                headers.insert(header::ORIGIN, origin.parse().expect("a header"));
            }
            is_of_own_page(&headers)
        };
        for own in [None, Some("http://127.0.0.1:15014"), Some("https://127.0.0.1:15014")] {
            assert!(asked("127.0.0.1:15014", own), "{own:?}");
        }
        for other in [
            "http://evil.example",
            "http://127.0.0.1:8080",
            "http://127.0.0.1:15014.evil.example",
            "null",
            "",
            "file://127.0.0.1:15014",
        ] {
            assert!(!asked("127.0.0.1:15014", Some(other)), "{other}");
        }
    }

    #[test]
    fn page_is_small_and_contains_all_files_it_references() {
        let all: usize = FILES.iter().map(|file| file.bytes.len()).sum();
        assert!(all < 250_000, "{all} bytes");
        for file in FILES.iter().filter(|file| file.kind == SCRIPT || file.name == INDEX) {
            let text = std::str::from_utf8(file.bytes).expect("text");
            let imports = text.split("from \"./").skip(1).chain(text.split("\"/page/").skip(1));
            for name in imports.filter_map(|rest| rest.split('"').next()) {
                assert!(FILES.iter().any(|file| file.name == name), "{} wants {name}", file.name);
            }
            for unsafe_way in [
                "innerHTML",
                "outerHTML",
                "insertAdjacentHTML",
                "document.write",
                "eval(",
                "style=\"",
                "http://",
                "https://",
            ] {
                let allowed =
                    unsafe_way == "http://" && text.contains("http://www.w3.org/2000/svg");
                assert!(allowed || !text.contains(unsafe_way), "{}: {unsafe_way}", file.name);
            }
        }
    }
}
