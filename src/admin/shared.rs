//! Answers that open pages share: of what is asked for again within a second in which nothing changed, one is worked out.
//!
//! A hundred pages ask for the same few answers every ten seconds. Holders of a token are answered anew each time.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes, HttpBody as _, to_bytes};
use axum::http::{StatusCode, response};
use axum::response::{IntoResponse as _, Response};

use crate::clusters::status::ClusterStatus;
use crate::hold::HoldState;
use crate::rollout::RolloutState;

/// How old an answer may be. What makes no change that pages are told of, such as an acknowledgement, is late by this.
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
    of: Generation,
    kept: HashMap<String, KeptAnswer>,
    bytes: usize,
}

#[derive(Debug)]
struct KeptAnswer {
    at: Instant,
    head: response::Parts,
    body: Bytes,
}

/// All that pages are told the changes of. Weak: nothing is kept in memory for the sake of being compared.
#[derive(Debug, Default, Clone)]
pub(super) struct Generation {
    version: Option<u64>,
    clusters: Weak<Vec<ClusterStatus>>,
    hold: Weak<HoldState>,
    rollout: Weak<RolloutState>,
}

impl Generation {
    pub(super) fn new(
        version: Option<u64>,
        clusters: &Arc<Vec<ClusterStatus>>,
        hold: &Arc<HoldState>,
        rollout: &Arc<RolloutState>,
    ) -> Self {
        let (clusters, hold) = (Arc::downgrade(clusters), Arc::downgrade(hold));
        Self { version, clusters, hold, rollout: Arc::downgrade(rollout) }
    }

    fn is(&self, other: &Self) -> bool {
        self.version == other.version
            && Weak::ptr_eq(&self.clusters, &other.clusters)
            && Weak::ptr_eq(&self.hold, &other.hold)
            && Weak::ptr_eq(&self.rollout, &other.rollout)
    }
}

impl SharedAnswers {
    pub(super) fn find(&self, path: &str, of: &Generation, now: Instant) -> Option<Response> {
        let table = self.table(of, now);
        table.kept.get(path).map(KeptAnswer::response)
    }

    /// Keeps an answer that was asked for at that time, where it is one to keep; it is the same to whoever asked.
    pub(super) async fn keep(
        &self,
        path: String,
        of: &Generation,
        at: Instant,
        answer: Response,
    ) -> Response {
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
        self.put(path, of, kept);
        answer
    }

    fn put(&self, path: String, of: &Generation, answer: KeptAnswer) {
        let mut table = self.table(of, answer.at);
        let bytes = path.len() + answer.body.len();
        if table.bytes + bytes > BYTES_MAX || table.kept.contains_key(&path) {
            return;
        }
        table.bytes += bytes;
        table.kept.insert(path, answer);
    }

    /// With those alone that still hold. A panic while the lock was held can't leave it half-changed, so poison is ignored.
    fn table(&self, of: &Generation, now: Instant) -> MutexGuard<'_, AnswerTable> {
        let mut table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !table.of.is(of) {
            *table = AnswerTable { of: of.clone(), ..AnswerTable::default() };
        }
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
    fn an_answer_holds_for_a_second_in_which_nothing_changes() {
        let (shared, now) = (SharedAnswers::default(), Instant::now());
        let statuses = Arc::new(Vec::new());
        let of = Generation { clusters: Arc::downgrade(&statuses), ..Generation::default() };
        let holds = |path: &str, of: &Generation, at: Instant| shared.find(path, of, at).is_some();
        shared.put("/debug/a".into(), &of, answer(now, 10));
        assert!(holds("/debug/a", &of, now) && !holds("/debug/b", &of, now));
        assert!(holds("/debug/a", &of, now + LIFE / 2));
        assert!(!holds("/debug/a", &of, now + LIFE));
        shared.put("/debug/a".into(), &of, answer(now, 10));
        let later = Generation { version: Some(1), ..of.clone() };
        assert!(!holds("/debug/a", &later, now) && !holds("/debug/a", &of, now));
        shared.put("/debug/a".into(), &of, answer(now, 10));
        let again = Arc::new(Vec::<ClusterStatus>::new());
        let told = Generation { clusters: Arc::downgrade(&again), ..of };
        assert!(!holds("/debug/a", &told, now), "equal is not the same: it has been told again");
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let (shared, of, now) = (SharedAnswers::default(), Generation::default(), Instant::now());
        for number in 0..10 {
            shared.put(format!("/debug/{number}"), &of, answer(now, ANSWER_BYTES_MAX));
        }
        assert!(shared.table(&of, now).bytes <= BYTES_MAX);
        assert!(shared.table(&of, now).kept.len() >= 3);
        assert_eq!(shared.table(&of, now + LIFE).bytes, 0);
    }
}
