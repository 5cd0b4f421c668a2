//! The page: its files, who may open it in a browser, and how many may wait for changes.
//!
//! The files hold no data and need no session; data comes from the same paths as the CLI's. Everything is read by GET.
//! A browser is let in by a session ([`super::session`]) where it names this server itself: a name that somebody
//! else's DNS leads here is refused.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Path, Query, Request, State};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use serde::Deserialize;
use serde_json::json;
use tokio::sync::Semaphore;
use xxhash_rust::xxh3::xxh3_128;

use super::announcements::Announcements;
use super::failure::{AdminFailure, AdminResult, pretty};
use super::session::{BrowserSessions, CODE_LASTS};
use super::shared::is_known;
use strait_base::descriptors;

/// How many pages may wait for changes at once, where there are descriptors enough. One more is told to ask now and then instead.
/// Each is a connection, with some 20 kB of buffers, and a task that sleeps.
const SUBSCRIBERS_MAX: usize = 128;

/// Nothing but what this server serves, no script or style within the page, no text taken for markup, nobody's frame.
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
    "change.js": SCRIPT,
    "rollout.js": SCRIPT,
    "mend.js": SCRIPT,
    "trust.js": SCRIPT,
};

/// Who reads from browsers, and by which names they may call this server.
pub struct BrowserAccess {
    sessions: BrowserSessions,
    hosts: Vec<String>,
    subscribers: Arc<Semaphore>,
}

impl BrowserAccess {
    /// `hosts` are the DNS names by which browsers may reach the port, beside `localhost`.
    pub fn new(hosts: Vec<String>) -> Self {
        // Half of the connections that the port may have.
        let most = descriptors::share(16, 4, SUBSCRIBERS_MAX);
        let subscribers = Arc::new(Semaphore::new(most));
        Self { sessions: BrowserSessions::default(), hosts, subscribers }
    }

    /// A code by which a browser comes in: for `strait ui`, which has shown the token.
    pub(super) fn code(&self) -> AdminResult {
        let code = self.sessions.code(Instant::now()).ok_or_else(|| {
            AdminFailure(StatusCode::INTERNAL_SERVER_ERROR, "no randomness for a code".into())
        })?;
        Ok(pretty(StatusCode::OK, &json!({ "code": code, "expiresSeconds": CODE_LASTS.as_secs() })))
    }

    /// An event whenever something has changed that pages show, without what: whoever listens asks for what they show.
    pub(super) fn changes(&self, announcements: &Announcements) -> AdminResult {
        let place = Arc::clone(&self.subscribers).try_acquire_owned().map_err(|_| {
            let text = "enough pages wait for changes already; ask now and then instead";
            AdminFailure(StatusCode::SERVICE_UNAVAILABLE, text.into())
        })?;
        Ok(announcements.stream(place))
    }

    /// Whether a browser with a session asks, for a page of ours. Sites of others, and other ports of this host, can
    /// have a browser send its cookies as well; it says so.
    pub(super) fn allows(&self, headers: &HeaderMap) -> bool {
        let text = |name| headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok());
        let from = headers.get("sec-fetch-site").map(HeaderValue::as_bytes);
        let ours = from.is_none_or(|site| site == b"same-origin" || site == b"none");
        ours && is_of_own_page(headers)
            && self.is_named(headers)
            && text(header::COOKIE).is_some_and(|it| self.sessions.allows(it, Instant::now()))
    }

    /// Whether the browser calls this server by an address, or by a name that is its own. Any other name may be
    /// anybody's, who would thereby have our page for their own.
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

/// Whether a page of this server asks, as far as the browser says: those that know no `Sec-Fetch-Site` name the page's own
/// site in `Origin` wherever another could be meant. (RFC 6454, 7.)
fn is_of_own_page(headers: &HeaderMap) -> bool {
    let text = |name| headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok());
    let Some(origin) = headers.get(header::ORIGIN) else { return true };
    let origin = origin.to_str().ok().and_then(|origin| origin.split_once("://"));
    // Whoever stands before this server may speak TLS.
    let site = origin.filter(|(scheme, _)| matches!(*scheme, "http" | "https"));
    let host = text(header::HOST).unwrap_or_default();
    site.is_some_and(|(_, authority)| authority.eq_ignore_ascii_case(host))
}

/// What needs no credentials: the files, and the way in.
pub(super) fn router<S>(browsers: Arc<BrowserAccess>) -> Router<S> {
    Router::new()
        .route("/", get(index))
        .route("/page/{file}", get(file))
        .route("/login", get(login))
        .route_layer(middleware::from_fn_with_state(Arc::clone(&browsers), named))
        .with_state(browsers)
}

/// Headers that keep a browser from doing anything else with an answer than what it is for.
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
    // What is read by a session or a token stays in nobody's cache.
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
    let text = "the page is served by an IP address or as localhost; for a name of its own, start 'strait serve' with --admin-host NAME";
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
        let text = "no such file of the page; it starts at /";
        return AdminFailure(StatusCode::NOT_FOUND, text.into()).into_response();
    };
    let tag = format!("\"{:032x}\"", xxh3_128(file.bytes));
    let same = is_known(headers, &tag);
    // Asked for again each time, so that a page never runs with scripts of another version.
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

/// To the page in any case; with a session where the code opens one. The page says what to do without.
async fn login(
    State(browsers): State<Arc<BrowserAccess>>,
    Query(query): Query<LoginQuery>,
) -> Response {
    let mut answer = (StatusCode::SEE_OTHER, [(header::LOCATION, "/")]).into_response();
    let cookie = browsers.sessions.open(&query.code, Instant::now());
    if let Some(cookie) = cookie.and_then(|cookie| HeaderValue::from_str(&cookie).ok()) {
        answer.headers_mut().insert(header::SET_COOKIE, cookie);
    }
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_browser_names_this_server_by_an_address_or_by_a_name_of_its_own() {
        let browsers = BrowserAccess::new(vec!["strait.example.org".into()]);
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
    fn a_session_counts_for_pages_of_this_server_only() {
        let browsers = BrowserAccess::new(Vec::new());
        let now = Instant::now();
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
            browsers.allows(&headers)
        };
        assert!(asked("localhost", Some("same-origin")) && asked("localhost", None));
        assert!(!asked("evil.example", Some("same-origin")));
        assert!(!asked("localhost", Some("same-site")) && !asked("localhost", Some("cross-site")));
    }

    #[test]
    fn a_page_of_another_site_is_known_by_its_origin_as_well() {
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
    fn the_page_is_small_and_holds_all_that_it_names() {
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
