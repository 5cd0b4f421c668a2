//! Answers that open pages share: what is asked for again within a second is worked out once.
//!
//! A hundred pages ask for the same few answers every ten seconds, and every two seconds while very much changes. A page asks again
//! one and a half seconds after the last change (`page/api.js`), so that what it shows in the end is never an answer of before.
//! Holders of a token are answered anew each time.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes, HttpBody as _, to_bytes};
use axum::http::{StatusCode, response};
use axum::response::{IntoResponse as _, Response};

/// How old an answer may be: less than what a page waits until a change has settled.
const LIFE: Duration = Duration::from_secs(1);
/// The largest answer that is kept.
const ANSWER_BYTES_MAX: usize = 4 << 20;
/// How much is kept in all.
const BYTES_MAX: usize = 16 << 20;

/// What pages have been answered lately.
#[derive(Debug, Default)]
pub struct SharedAnswers(Mutex<AnswerTable>);

#[derive(Debug, Default)]
struct AnswerTable {
    kept: HashMap<String, KeptAnswer>,
    bytes: usize,
}

#[derive(Debug)]
struct KeptAnswer {
    at: Instant,
    head: response::Parts,
    body: Bytes,
}

impl SharedAnswers {
    pub(super) fn find(&self, path: &str, now: Instant) -> Option<Response> {
        let table = self.table(now);
        table.kept.get(path).map(KeptAnswer::response)
    }

    /// Keeps an answer that was asked for at that time, where it is one to keep; it is the same to whoever asked.
    pub(super) async fn keep(&self, path: String, at: Instant, answer: Response) -> Response {
        let size = answer.body().size_hint().exact();
        let may_be_kept = size.is_some_and(|size| size <= ANSWER_BYTES_MAX as u64);
        if answer.status() != StatusCode::OK || !may_be_kept {
            return answer;
        }
        let (head, body) = answer.into_parts();
        let Ok(body) = to_bytes(body, ANSWER_BYTES_MAX).await else {
            return StatusCode::INTERNAL_SERVER_ERROR.into_response();
        };
        let kept = KeptAnswer { at, head, body };
        let answer = kept.response();
        self.put(path, kept);
        answer
    }

    fn put(&self, path: String, answer: KeptAnswer) {
        let mut table = self.table(answer.at);
        let bytes = path.len() + answer.body.len();
        if table.bytes + bytes > BYTES_MAX || table.kept.contains_key(&path) {
            return;
        }
        table.bytes += bytes;
        table.kept.insert(path, answer);
    }

    /// With those alone that still hold. A panic while the lock was held can't leave it half-changed, so poison is ignored.
    fn table(&self, now: Instant) -> MutexGuard<'_, AnswerTable> {
        let mut table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        table.kept.retain(|_, kept| now.saturating_duration_since(kept.at) < LIFE);
        table.bytes = table.kept.iter().map(|(path, kept)| path.len() + kept.body.len()).sum();
        table
    }
}

impl KeptAnswer {
    fn response(&self) -> Response {
        Response::from_parts(self.head.clone(), Body::from(self.body.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(at: Instant, bytes: usize) -> KeptAnswer {
        let (head, ()) = Response::new(()).into_parts();
        KeptAnswer { at, head, body: vec![b'x'; bytes].into() }
    }

    #[test]
    fn an_answer_holds_for_a_second() {
        let (shared, now) = (SharedAnswers::default(), Instant::now());
        let holds = |path: &str, at: Instant| shared.find(path, at).is_some();
        shared.put("/debug/a".into(), answer(now, 10));
        assert!(holds("/debug/a", now) && !holds("/debug/b", now));
        assert!(holds("/debug/a", now + LIFE / 2));
        assert!(!holds("/debug/a", now + LIFE));
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let (shared, now) = (SharedAnswers::default(), Instant::now());
        for number in 0..10 {
            shared.put(format!("/debug/{number}"), answer(now, ANSWER_BYTES_MAX));
        }
        assert!(shared.table(now).bytes <= BYTES_MAX);
        assert!(shared.table(now).kept.len() >= 3);
        assert_eq!(shared.table(now + LIFE).bytes, 0);
    }
}
