//! `/debug/events`: the last changes, as a list or as a continuous stream.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::http::{HeaderMap, StatusCode, header};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures::Stream;
use futures::stream::unfold;
use serde::Deserialize;
use tokio::sync::watch;
use tokio::time::sleep;

use super::failure::{AdminFailure, pretty};
use strait_admin_api as api;
use strait_base::time::rfc3339;
use strait_mesh::timeline::{ProxySteps, Timeline, TimelineEntry};
use strait_model::Cause;

/// Time after which a change is reported even if not all of its proxies have answered.
const ANSWERS_LIMIT: Duration = Duration::from_secs(10);
/// Interval of the checks whether proxies have answered.
const LOOK: Duration = Duration::from_millis(200);
/// Maximum interval between messages, so that intermediaries keep the connection open.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// Query of `/debug/events`.
#[derive(Debug, Deserialize)]
pub(super) struct EventsQuery {
    since: Option<u64>,
    seq: Option<u64>,
}

/// Returns the change with number `seq` and the steps of its proxies, or the changes after number
/// `since`, oldest first. As server-sent events, each change is sent as `change` when it is
/// published, and as `answered` once its proxies have answered, or after 10 s. A client that
/// reconnects continues after its `Last-Event-ID`.
pub(super) fn answer(
    timeline: &Arc<Timeline>,
    query: &EventsQuery,
    headers: &HeaderMap,
) -> Result<Response, AdminFailure> {
    if let Some(seq) = query.seq {
        let entry = timeline.entry(seq).ok_or_else(|| {
            let oldest = timeline.since(0).first().map_or(0, |entry| entry.seq);
            let last = *timeline.last().borrow();
            let text = match seq > last {
                true => format!("there is no change {seq} yet; the last one is {last}"),
                false => format!(
                    "change {seq} is no longer stored; the oldest stored change is {oldest}"
                ),
            };
            AdminFailure(StatusCode::NOT_FOUND, text)
        })?;
        return Ok(pretty(StatusCode::OK, &whole(&entry)).into_response());
    }
    if asks_for_stream(headers) {
        let last = headers.get("last-event-id").and_then(|value| value.to_str().ok());
        let since = last.and_then(|id| id.parse().ok()).or(query.since).unwrap_or(0);
        let keep_alive = KeepAlive::new().interval(KEEP_ALIVE);
        let followed = follow(Arc::clone(timeline), since);
        return Ok(Sse::new(followed).keep_alive(keep_alive).into_response());
    }
    let entries = timeline.since(query.since.unwrap_or(0));
    let entries: Vec<_> = entries.iter().map(|entry| view(entry)).collect();
    Ok(pretty(StatusCode::OK, &entries).into_response())
}

/// Returns whether the client requests server-sent events.
pub(super) fn asks_for_stream(headers: &HeaderMap) -> bool {
    let accept = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok());
    accept.is_some_and(|accept| accept.contains("text/event-stream"))
}

/// State of a client that follows the changes.
struct Follower {
    timeline: Arc<Timeline>,
    last: watch::Receiver<u64>,
    seq: u64,
    /// Events to send.
    due: VecDeque<(&'static str, Arc<TimelineEntry>)>,
    /// Changes that not all proxies have answered, with the time when each was sent.
    unanswered: VecDeque<(Instant, Arc<TimelineEntry>)>,
}

fn follow(timeline: Arc<Timeline>, since: u64) -> impl Stream<Item = Result<Event, Infallible>> {
    let last = timeline.last();
    let (due, unanswered) = (VecDeque::new(), VecDeque::new());
    let follower = Follower { timeline, last, seq: since, due, unanswered };
    unfold(follower, |mut follower| async move {
        let (name, entry) = follower.next().await?;
        let event = Event::default().event(name).id(entry.seq.to_string());
        let data = serde_json::to_string(&view(&entry)).unwrap_or_default();
        Some((Ok(event.data(data)), follower))
    })
}

impl Follower {
    /// Returns the next event, or `None` when no more can occur.
    async fn next(&mut self) -> Option<(&'static str, Arc<TimelineEntry>)> {
        loop {
            if let Some(next) = self.due.pop_front() {
                return Some(next);
            }
            self.last.borrow_and_update();
            for entry in self.timeline.since(self.seq) {
                self.seq = entry.seq;
                self.unanswered.push_back((Instant::now(), Arc::clone(&entry)));
                self.due.push_back(("change", entry));
            }
            let Self { due, unanswered, .. } = self;
            unanswered.retain(|(since, entry)| {
                let is_waiting =
                    entry.delivery.counts().waiting() > 0 && since.elapsed() < ANSWERS_LIMIT;
                if !is_waiting {
                    due.push_back(("answered", Arc::clone(entry)));
                }
                is_waiting
            });
            if self.due.is_empty() {
                tokio::select! {
                    changed = self.last.changed() => changed.ok()?,
                    () = sleep(LOOK), if !self.unanswered.is_empty() => {}
                }
            }
        }
    }
}

/// Returns a change without the steps of the proxies.
fn view(entry: &TimelineEntry) -> api::ChangeEvent {
    let named = entry.causes.named_causes();
    let (cause, others) = match named.split_first() {
        Some((first, others)) => (Some(first), others),
        None => (None, named),
    };
    let delivery = entry.delivery.counts();
    let took = delivery.last_answer.unwrap_or(entry.published_after);
    api::ChangeEvent {
        seq: entry.seq,
        at: rfc3339(entry.at),
        cause: cause.map(cause_view),
        other_causes: others.iter().map(cause_view).collect(),
        more_causes: entry.causes.more(),
        effect: entry.effect.clone(),
        version: entry.version,
        proxies: delivery.proxies,
        acknowledged: delivery.acknowledged,
        refused: delivery.refused,
        refused_by: entry.delivery.refused_by().iter().map(ToString::to_string).collect(),
        waiting: delivery.waiting(),
        waited_ms: milliseconds(entry.waited),
        published_ms: milliseconds(entry.published_after),
        ms: milliseconds(took),
        restored: entry.restored,
        ..api::ChangeEvent::default()
    }
}

/// Returns a change with the stored steps of the proxies.
fn whole(entry: &TimelineEntry) -> api::ChangeEvent {
    let steps = entry.delivery.steps();
    let refusals = steps.refusals.iter().map(|one| api::ProxyRefusal {
        proxy: one.proxy.to_string(),
        error: one.error.to_string(),
    });
    api::ChangeEvent {
        refusals: Some(refusals.collect()),
        steps: Some(steps.proxies().map(steps_view).collect()),
        ..view(entry)
    }
}

fn steps_view(steps: &ProxySteps) -> api::ProxyDelivery {
    let ProxySteps { proxy, cluster, sent, answered, answer } = steps;
    api::ProxyDelivery {
        proxy: proxy.to_string(),
        cluster: cluster.to_string(),
        sent_ms: sent.map(milliseconds),
        answered_ms: answered.map(milliseconds),
        answer: answer.as_str().into(),
    }
}

fn cause_view(cause: &Cause) -> api::ChangeCause {
    let Cause { cluster, kind, namespace, name } = cause;
    api::ChangeCause {
        cluster: cluster.to_string(),
        kind: kind.to_string(),
        namespace: namespace.to_string(),
        name: name.to_string(),
    }
}

/// Converts to milliseconds, rounded to a thousandth.
fn milliseconds(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 1e6).round() / 1e3
}

#[cfg(test)]
mod tests {
    use futures::StreamExt;

    use super::*;
    use strait_mesh::timeline::Delivery;
    use strait_model::Causes;
    use strait_model::testing::sidecar;

    #[tokio::test]
    async fn follower_receives_each_change_and_its_completion() {
        let timeline = Arc::<Timeline>::default();
        let enter = |version: u64| {
            let delivery = Arc::new(Delivery::new(Instant::now()));
            let receipt = delivery.receipt();
            let cause = Cause::named("east".into(), "Pod", "web");
            let words = format!("change {version}");
            timeline.enter(version, Causes::from(cause), words, delivery, Instant::now());
            receipt
        };
        let proxy = sidecar("web.shop", "east");
        enter(1).acknowledge(&proxy, Instant::now());
        let second = enter(2);
        let mut stream = Box::pin(follow(Arc::clone(&timeline), 1));
        let mut events = Vec::new();
        let mut next = async || {
            let event = stream.next().await.expect("it goes on").expect("no error");
            events.push(format!("{event:?}"));
            events.len()
        };
        assert_eq!(next().await, 1);
        second.refuse(&proxy, Instant::now(), "no");
        assert_eq!(next().await, 2);
        enter(3).acknowledge(&proxy, Instant::now());
        assert_eq!(next().await, 3);
        let order = ["change", "answered", "change"].iter().zip(["2", "2", "3"]);
        for (events, (name, id)) in events.iter().zip(order) {
            assert!(events.contains(&format!("event: {name}\\nid: {id}\\n")), "{events}");
        }
        assert!(events[1].contains("\\\"refused\\\":1"), "{}", events[1]);
        assert!(events[1].contains("~web.shop~"), "{}", events[1]);
    }
}
