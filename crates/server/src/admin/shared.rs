//! Responses that open pages share: computed once, compressed once, and not sent again to a page
//! that has them.
//!
//! After each announcement of a change, up to a hundred pages request the same few responses at the
//! same moment. The first request computes the response and the others wait for it. A response from
//! before an announcement is never used after it. Acknowledgements and similar data cause no
//! announcement; a page requests it again once a change has settled (`page/api.js`). A response
//! from the settling time is valid until then, a later one for longer. Holders of a token always
//! get a new response.

use std::collections::HashMap;
use std::io::Write as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes, HttpBody as _, to_bytes};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header, response};
use axum::response::{IntoResponse as _, Response};
use flate2::Compression;
use flate2::write::GzEncoder;
use tokio::sync::OnceCell;
use xxhash_rust::xxh3::xxh3_128;

use super::announcements::REST;

/// Time after an announcement in which proxies may still be following. Responses from this time are
/// valid no longer than this; pages request them again a little later.
const SETTLES: Duration = REST;
/// Maximum age of a response from after the settling time.
pub(super) const LIFE: Duration = Duration::from_secs(10);
/// Maximum size of a stored response: about 15,000 proxies.
const ANSWER_BYTES_MAX: usize = 16 << 20;
/// Maximum size of all stored responses.
const BYTES_MAX: usize = 32 << 20;
/// Maximum number of stored responses.
const ANSWERS_MAX: usize = 256;
/// Minimum size of compressed responses.
const PACKED_FROM: usize = 1 << 10;

/// Recent responses to pages.
#[derive(Debug, Default)]
pub struct SharedAnswers(Mutex<HashMap<String, Arc<SharedAnswer>>>);

/// A response that is being computed or has been.
#[derive(Debug)]
struct SharedAnswer {
    at: Instant,
    kept: OnceCell<KeptAnswer>,
}

/// A stored response.
#[derive(Debug)]
pub(super) struct KeptAnswer {
    head: response::Parts,
    body: Bytes,
    tag: String,
    /// The compressed body, once a client has requested it.
    packed: OnceCell<Bytes>,
}

impl SharedAnswers {
    /// Returns the response to `path`: a valid stored one, otherwise the result of `make`.
    /// `announced` is the time of the last announcement.
    pub(super) async fn answer(
        &self,
        path: String,
        (announced, now): (Instant, Instant),
        headers: &HeaderMap,
        make: impl AsyncFnOnce() -> Response,
    ) -> Response {
        let shared = self.place(path, announced, now);
        let made = shared.kept.get_or_try_init(async || KeptAnswer::of(make().await).await).await;
        match made {
            Ok(kept) => kept.to(headers).await,
            Err(answer) => answer,
        }
    }

    /// Returns the entry of `path`, with or without a response.
    fn place(&self, path: String, announced: Instant, now: Instant) -> Arc<SharedAnswer> {
        let mut table = self.table();
        table.retain(|_, one| one.holds(announced, now));
        let place = || Arc::new(SharedAnswer { at: now, kept: OnceCell::new() });
        let bytes: usize = table.iter().map(|(path, one)| path.len() + one.bytes()).sum();
        // Without room, the response is not shared.
        if !table.contains_key(&path) && (bytes > BYTES_MAX || table.len() >= ANSWERS_MAX) {
            return place();
        }
        Arc::clone(table.entry(path).or_insert_with(place))
    }

    /// Drops expired responses.
    pub(super) fn purge(&self, announced: Instant, now: Instant) {
        self.table().retain(|_, one| one.holds(announced, now));
    }

    /// A panic can't leave the table inconsistent, so poisoning is ignored.
    fn table(&self) -> MutexGuard<'_, HashMap<String, Arc<SharedAnswer>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SharedAnswer {
    fn holds(&self, announced: Instant, now: Instant) -> bool {
        let settled = self.at.saturating_duration_since(announced) >= SETTLES;
        let life = if settled { LIFE } else { SETTLES };
        self.at >= announced && now.saturating_duration_since(self.at) < life
    }

    fn bytes(&self) -> usize {
        let packed = |kept: &KeptAnswer| kept.packed.get().map_or(0, Bytes::len);
        self.kept.get().map_or(0, |kept| kept.body.len() + packed(kept))
    }
}

impl KeptAnswer {
    /// Stores a response, or returns it if it can't be stored.
    async fn of(answer: Response) -> Result<Self, Response> {
        let size = answer.body().size_hint().exact();
        if size.is_none_or(|size| size > ANSWER_BYTES_MAX as u64) {
            return Err(answer);
        }
        let (head, body) = answer.into_parts();
        let Ok(body) = to_bytes(body, ANSWER_BYTES_MAX).await else {
            return Err(StatusCode::INTERNAL_SERVER_ERROR.into_response());
        };
        let tag = format!("{:032x}", xxh3_128(&body));
        Ok(Self { head, body, tag, packed: OnceCell::new() })
    }

    /// Returns the response in the form that these request headers accept.
    async fn to(&self, headers: &HeaderMap) -> Response {
        if self.head.status != StatusCode::OK {
            return Response::from_parts(self.head.clone(), Body::from(self.body.clone()));
        }
        let packed = match self.body.len() >= PACKED_FROM && takes_gzip(headers) {
            true => self.packed.get_or_init(|| packed(self.body.clone())).await.clone(),
            false => Bytes::new(),
        };
        let is_packed = !packed.is_empty();
        // A strong tag identifies these exact bytes (RFC 9110, 8.8.3.3).
        let tag = format!("\"{}{}\"", self.tag, if is_packed { "-gzip" } else { "" });
        let known = is_known(headers, &tag);
        let mut answer = Response::from_parts(
            self.head.clone(),
            if known {
                Body::empty()
            } else if is_packed {
                Body::from(packed)
            } else {
                Body::from(self.body.clone())
            },
        );
        let mut put = |name: HeaderName, value: &str| {
            let value = HeaderValue::from_str(value).expect("digits and letters");
            answer.headers_mut().insert(name, value);
        };
        put(header::ETAG, &tag);
        put(header::VARY, "accept-encoding");
        if is_packed && !known {
            put(header::CONTENT_ENCODING, "gzip");
        }
        if known {
            *answer.status_mut() = StatusCode::NOT_MODIFIED;
            // It would be the length of the body that is not sent.
            answer.headers_mut().remove(header::CONTENT_LENGTH);
        }
        answer
    }
}

/// Returns whether the client has the response with this tag (RFC 9110, 13.1.2).
pub(super) fn is_known(headers: &HeaderMap, tag: &str) -> bool {
    let known = headers.get_all(header::IF_NONE_MATCH).iter().filter_map(|it| it.to_str().ok());
    known.flat_map(|tags| tags.split(',')).any(|known| known.trim() == tag)
}

fn takes_gzip(headers: &HeaderMap) -> bool {
    let accepted = headers.get_all(header::ACCEPT_ENCODING).iter();
    let mut codings = accepted.filter_map(|it| it.to_str().ok()).flat_map(|it| it.split(','));
    codings.any(|coding| {
        let mut parts = coding.split(';').map(str::trim);
        let is_gzip = parts.next() == Some("gzip");
        let mut weights = parts.filter_map(|part| part.strip_prefix("q=")?.parse::<f32>().ok());
        is_gzip && weights.all(|weight| weight > 0.0)
    })
}

/// Compresses a body on a thread that may block. Returns no bytes if this fails.
async fn packed(body: Bytes) -> Bytes {
    let pack = move || {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(&body).ok()?;
        encoder.finish().ok()
    };
    tokio::task::spawn_blocking(pack).await.ok().flatten().unwrap_or_default().into()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// Counts how often a response was computed.
    #[derive(Default)]
    struct Maker(AtomicUsize);

    impl Maker {
        async fn make(&self, size: usize) -> Response {
            let number = self.0.fetch_add(1, Ordering::Relaxed);
            tokio::task::yield_now().await;
            format!("{number}{}", "x".repeat(size)).into_response()
        }

        fn made(&self) -> usize {
            self.0.load(Ordering::Relaxed)
        }
    }

    fn headers(pairs: &[(HeaderName, &str)]) -> HeaderMap {
        let value = |text: &str| HeaderValue::from_str(text).expect("a value");
        pairs.iter().map(|(name, text)| (name.clone(), value(text))).collect()
    }

    async fn bytes(answer: Response) -> Bytes {
        to_bytes(answer.into_body(), usize::MAX).await.expect("a body")
    }

    #[tokio::test]
    async fn simultaneous_requests_share_one_response() {
        let (shared, maker, now) = (SharedAnswers::default(), Maker::default(), Instant::now());
        let get = |path: &str| {
            let path = path.to_owned();
            let (shared, maker) = (&shared, &maker);
            async move {
                let none = HeaderMap::new();
                bytes(shared.answer(path, (now, now), &none, async || maker.make(9).await).await)
                    .await
            }
        };
        let answers = futures::future::join_all((0..100).map(|_| get("/debug/a"))).await;
        assert_eq!(maker.made(), 1);
        assert!(answers.iter().all(|answer| *answer == answers[0]));
        assert_ne!(get("/debug/b").await, answers[0]);
    }

    #[test]
    fn response_is_valid_until_an_announcement_or_its_expiry() {
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        let answer = |at| SharedAnswer { at, kept: OnceCell::new() };
        let soon = answer(after(1));
        assert!(soon.holds(start, after(2)) && !soon.holds(start, after(1) + SETTLES));
        assert!(!soon.holds(after(2), after(2)), "something has changed since");
        let settled = answer(after(60));
        assert!(settled.holds(start, after(69)) && !settled.holds(start, after(60) + LIFE));
    }

    #[tokio::test]
    async fn known_response_is_not_sent_again_and_gzip_is_used_if_accepted() {
        let (shared, maker, now) = (SharedAnswers::default(), Maker::default(), Instant::now());
        let get = async |sent: &[(HeaderName, &str)]| {
            let make = async || maker.make(PACKED_FROM).await;
            shared.answer("/debug/a".into(), (now, now), &headers(sent), make).await
        };
        let tag =
            |answer: &Response| answer.headers()[header::ETAG].to_str().expect("a tag").to_owned();
        let plain = get(&[]).await;
        let plain_tag = tag(&plain);
        assert_eq!(plain.headers().get(header::CONTENT_ENCODING), None);
        let packed = get(&[(header::ACCEPT_ENCODING, "br, gzip;q=0.8")]).await;
        let packed_tag = tag(&packed);
        assert_eq!(packed.headers()[header::CONTENT_ENCODING], "gzip");
        assert_ne!(plain_tag, packed_tag, "other bytes");
        let (plain, packed) = (bytes(plain).await, bytes(packed).await);
        assert!(packed.len() < plain.len() / 4);
        let mut unpacked = Vec::new();
        std::io::Read::read_to_end(&mut flate2::read::GzDecoder::new(&*packed), &mut unpacked)
            .expect("packed");
        assert_eq!(unpacked, plain);
        let refused = get(&[(header::ACCEPT_ENCODING, "gzip;q=0")]).await;
        assert_eq!(tag(&refused), plain_tag);
        for (tag, accepted) in [(&plain_tag, ""), (&packed_tag, "gzip")] {
            let sent = [(header::IF_NONE_MATCH, &**tag), (header::ACCEPT_ENCODING, accepted)];
            let known = get(&sent).await;
            assert_eq!(known.status(), StatusCode::NOT_MODIFIED);
            assert!(bytes(known).await.is_empty());
        }
        assert_eq!(maker.made(), 1);
    }

    #[tokio::test]
    async fn stored_responses_are_bounded_and_expire() {
        let (shared, maker, now) = (SharedAnswers::default(), Maker::default(), Instant::now());
        let none = HeaderMap::new();
        for number in 0..4 {
            let make = async || maker.make(ANSWER_BYTES_MAX - 1).await;
            shared.answer(format!("/debug/{number}"), (now, now), &none, make).await;
        }
        let kept: usize = shared.table().values().map(|one| one.bytes()).sum();
        assert!(kept <= BYTES_MAX + ANSWER_BYTES_MAX, "{kept}");
        let make = async || maker.make(ANSWER_BYTES_MAX + 1).await;
        let large = shared.answer("/debug/large".into(), (now, now), &none, make).await;
        assert!(bytes(large).await.len() > ANSWER_BYTES_MAX, "answered but not stored");
        shared.purge(now, now + LIFE);
        assert!(shared.table().is_empty());
    }
}
