//! The page and the admin API over stored responses: recorded earlier, and served without access to
//! a control plane.
//!
//! Files, sessions and rules are shared with the live page. Requests that were not stored are
//! answered with 404 and how to include them.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::time::SystemTime;

use axum::Router;
use axum::body::Body;
use axum::extract::{Query, Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use bytes::Bytes;
use futures::{StreamExt as _, stream};
use tokio::net::TcpListener;

use super::failure::{AdminFailure, AdminResult};
use super::{BrowserAccess, Token, page, with_token};

/// Header with the time of the stored responses, from which the page knows that it shows the past.
const STORED_HEADER: &str = "x-strait-bundle";

/// A stored response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredAnswer {
    /// The query parameters by name.
    pub query: BTreeMap<String, String>,
    /// The HTTP status.
    pub status: u16,
    /// The content type.
    pub kind: String,
    /// The body.
    pub body: Bytes,
}

/// The responses of one control plane at one time.
#[derive(Debug)]
pub struct StoredAnswers {
    /// Time of the responses.
    pub taken: SystemTime,
    /// Responses by path.
    pub by_path: BTreeMap<String, Vec<StoredAnswer>>,
    /// Other names of proxies, each with the name used in the stored requests.
    pub proxies: BTreeMap<String, String>,
}

impl StoredAnswers {
    /// Returns the response to a request. A service may be named by the first labels of the host
    /// name.
    fn find(&self, path: &str, query: &BTreeMap<String, String>) -> Option<&StoredAnswer> {
        let answers = self.by_path.get(path)?;
        let stored_value = |name: &str, value: &str| match name {
            "proxy" => self.proxies.get(value).map_or(value, String::as_str).to_owned(),
            _ => value.to_owned(),
        };
        let query: BTreeMap<&str, String> = query
            .iter()
            .filter(|(name, _)| !["since", "verbose"].contains(&name.as_str()))
            .map(|(name, value)| (name.as_str(), stored_value(name, value)))
            .collect();
        let fits = |name: &str, stored: &str| {
            query.get(name).is_some_and(|requested| {
                let rest = stored.strip_prefix(requested.as_str());
                rest.is_some_and(|rest| {
                    rest.is_empty() || (name == "hostname" && rest.starts_with('.'))
                })
            })
        };
        answers.iter().find(|answer| {
            answer.query.len() == query.len()
                && answer.query.iter().all(|(name, stored)| fits(name, stored))
        })
    }
}

/// State that the handlers share.
struct StoredSite {
    answers: StoredAnswers,
    token: Token,
    browsers: Arc<BrowserAccess>,
}

/// Serves stored responses until the future is dropped.
///
/// # Errors
/// If the listener fails.
pub async fn serve_stored(
    listener: TcpListener,
    answers: StoredAnswers,
    token: Token,
) -> io::Result<()> {
    let key = token.shared_key("browser sessions");
    let browsers = Arc::new(BrowserAccess::new(Vec::new(), Arc::new(move || key.clone())));
    let site = Arc::new(StoredSite { answers, token, browsers });
    axum::serve(listener, router(site)).await
}

fn router(site: Arc<StoredSite>) -> Router {
    let stored = Router::new()
        .route("/debug/{*rest}", get(answer))
        .route("/metrics", get(answer))
        .route("/livez", get(answer))
        .route("/readyz", get(answer))
        .route("/api/changes", get(changes))
        .route_layer(middleware::from_fn_with_state(Arc::clone(&site), authorize));
    let entry = Router::new()
        .route("/api/login-code", get(login_code))
        .route_layer(middleware::from_fn_with_state(Arc::clone(&site), holds_token));
    Router::new()
        .merge(stored)
        .merge(entry)
        .merge(page::router(Arc::clone(&site.browsers)))
        .layer(middleware::from_fn(page::guarded))
        .layer(middleware::from_fn_with_state(Arc::clone(&site), dated))
        .with_state(site)
}

async fn authorize(State(site): State<Arc<StoredSite>>, request: Request, next: Next) -> Response {
    match site.browsers.session(request.headers()).is_some() {
        true => next.run(request).await,
        false => with_token(&site.token, request, next).await,
    }
}

async fn holds_token(
    State(site): State<Arc<StoredSite>>,
    request: Request,
    next: Next,
) -> Response {
    with_token(&site.token, request, next).await
}

async fn login_code(State(site): State<Arc<StoredSite>>) -> AdminResult {
    site.browsers.code()
}

/// Adds the time of the stored responses, relative to which the page computes ages.
async fn dated(State(site): State<Arc<StoredSite>>, request: Request, next: Next) -> Response {
    let mut answer = next.run(request).await;
    let taken = strait_base::time::rfc3339(site.answers.taken);
    if let Ok(taken) = HeaderValue::from_str(&taken) {
        answer.headers_mut().insert(STORED_HEADER, taken);
    }
    answer
}

async fn answer(
    State(site): State<Arc<StoredSite>>,
    uri: Uri,
    Query(query): Query<BTreeMap<String, String>>,
) -> Response {
    let Some(stored) = site.answers.find(uri.path(), &query) else {
        return missing_answer(&uri).into_response();
    };
    let status = StatusCode::from_u16(stored.status).unwrap_or(StatusCode::OK);
    let mut headers = HeaderMap::new();
    if let Ok(kind) = HeaderValue::from_str(&stored.kind) {
        headers.insert(header::CONTENT_TYPE, kind);
    }
    (status, headers, stored.body.clone()).into_response()
}

fn missing_answer(uri: &Uri) -> AdminFailure {
    let next = match uri.path() {
        "/debug/explain" => "; strait support-bundle --explain PROXY SERVICE[:PORT] includes it",
        "/debug/config_dump" => "; strait support-bundle --proxy PROXY includes it",
        _ => "",
    };
    let text = format!("this bundle does not hold the response to {}{next}", uri.path());
    AdminFailure(StatusCode::NOT_FOUND, text)
}

/// Nothing changes any more: sends one event and then none.
async fn changes() -> Response {
    let first = Bytes::from_static(b"event: change\ndata: {\"version\":null}\n\n");
    let events = stream::iter([Ok::<_, Infallible>(first)]).chain(stream::pending());
    ([(header::CONTENT_TYPE, "text/event-stream")], Body::from_stream(events)).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stored_response_is_found_by_all_names_of_proxy_and_service() {
        let query = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
            pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
        };
        let answer = |pairs: &[(&str, &str)]| StoredAnswer {
            query: query(pairs),
            status: 200,
            kind: "application/json".into(),
            body: Bytes::from(format!("{pairs:?}")),
        };
        let explained = [("proxy", "7"), ("hostname", "db.shop.svc.cluster.local")];
        let of_port = [explained[0], explained[1], ("port", "80")];
        let answers = StoredAnswers {
            taken: SystemTime::UNIX_EPOCH,
            by_path: BTreeMap::from([
                ("/debug/explain".into(), vec![answer(&explained), answer(&of_port)]),
                ("/debug/events".into(), vec![answer(&[])]),
            ]),
            proxies: BTreeMap::from([("web.shop@east".into(), "7".into())]),
        };
        let found = |path: &str, pairs: &[(&str, &str)]| {
            answers.find(path, &query(pairs)).map(|answer| answer.query.len())
        };
        let host = ("hostname", "db.shop");
        for proxy in ["7", "web.shop@east"] {
            assert_eq!(found("/debug/explain", &[("proxy", proxy), host]), Some(2));
            let query = [("proxy", proxy), ("hostname", "db.shop.svc.cluster.local"), of_port[2]];
            assert_eq!(found("/debug/explain", &query), Some(3));
            assert_eq!(found("/debug/explain", &[("proxy", proxy), ("hostname", "db.sho")]), None);
        }
        assert_eq!(found("/debug/explain", &[("proxy", "8"), host]), None);
        assert_eq!(found("/debug/events", &[("since", "3")]), Some(0));
        assert_eq!(found("/debug/mesh", &[]), None);
    }
}
