//! The timeline on disk, so that it survives a restart.
//!
//! One file with one line per change, appended once its proxies have responded. When it contains
//! twice as many changes as are retained, it is rewritten. The timeline is informational, so a
//! damaged file has no further effect.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::{
    Delivery, DeliveryCounts, DeliveryRefusal, DeliverySteps, ENTRIES_MAX, ProxyAnswer, ProxySteps,
    Timeline, TimelineEntry,
};
use strait_base::codes;
use strait_base::durable::LineFile;
use strait_model::{Cause, Causes};

/// The first line of the file.
const HEAD: &str = "strait timeline 1";
/// The maximum size of the file in bytes: twice the retained changes, with all their recorded
/// steps.
const FILE_MAX: u64 = 24 << 20;
/// The maximum number of lines before the file is rewritten.
const LINES_MAX: usize = 2 * ENTRIES_MAX;
/// The minimum time between two writes.
const PACE: Duration = Duration::from_secs(1);
/// A change whose proxies have not all responded within this time is written without waiting
/// longer.
const ANSWERS_LIMIT: Duration = Duration::from_secs(10);

/// The file, which only this process writes.
#[derive(Debug)]
pub struct TimelineFile {
    lines: LineFile,
    /// The sequence number of the last change in it.
    last: u64,
}

/// A stored change.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct StoredChange {
    seq: u64,
    /// Nanoseconds since the Unix epoch.
    at: u64,
    causes: Vec<StoredCause>,
    more: usize,
    effect: String,
    version: u64,
    /// In nanoseconds, like `published`.
    waited: u64,
    published: u64,
    last_answer: Option<u64>,
    proxies: u32,
    acknowledged: u32,
    refused: u32,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    refused_by: Vec<String>,
    /// The error messages of `refused_by`, in the same order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    errors: Vec<String>,
    /// Steps of the proxies that received it first, followed by the last to respond.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    first: Vec<StoredSteps>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    last: Vec<StoredSteps>,
}

/// Node ID, cluster, microseconds until it was sent, microseconds until the response, and the
/// response.
#[derive(Serialize, Deserialize)]
struct StoredSteps(String, String, Option<u64>, Option<u64>, String);

#[derive(Serialize, Deserialize)]
struct StoredCause {
    cluster: String,
    kind: String,
    namespace: String,
    name: String,
}

impl TimelineFile {
    /// Opens the file and returns its changes, oldest first. Unreadable lines are logged and
    /// dropped.
    pub fn open(path: PathBuf) -> (Self, Vec<TimelineEntry>) {
        let (lines, read) = LineFile::open(path, HEAD, (LINES_MAX, FILE_MAX));
        if let Some(fact) = read.damage {
            let (path, code) = (lines.path().display(), &codes::STATE_DAMAGED);
            warn!(%path, %fact, %code, "timeline file is damaged; changes from before the restart are lost or incomplete");
        }
        let mut last = 0;
        let mut changes = Vec::new();
        for change in read.lines.iter().filter_map(|line| read_line(line)) {
            // Skip changes that are out of order.
            if change.seq > last {
                last = change.seq;
                changes.push(change);
            }
        }
        let surplus = changes.len().saturating_sub(ENTRIES_MAX);
        changes.drain(..surplus);
        (Self { lines, last }, changes)
    }

    /// Appends new changes; `retained` are all retained changes, including the new ones.
    ///
    /// # Errors
    /// Returns the error of the system call. The next call writes all retained changes.
    fn write(
        &mut self,
        new: &[Arc<TimelineEntry>],
        retained: &[Arc<TimelineEntry>],
    ) -> io::Result<()> {
        let lines = |changes: &[Arc<TimelineEntry>]| -> Vec<String> {
            changes.iter().map(|change| line(change)).collect()
        };
        self.lines.append(&lines(new), || lines(retained))?;
        self.last = new.last().map_or(self.last, |change| change.seq);
        Ok(())
    }
}

/// Writes each change once its proxies have responded, or after 10 s. When `drain` is cancelled,
/// writes the remaining changes immediately and returns.
pub async fn keep(timeline: Arc<Timeline>, mut file: TimelineFile, drain: CancellationToken) {
    let mut last = timeline.last();
    let mut failing = false;
    loop {
        last.borrow_and_update();
        let draining = drain.is_cancelled();
        let retained = timeline.since(0);
        let is_unsettled = |change: &&Arc<TimelineEntry>| !draining && !change.is_settled();
        let settled =
            retained.iter().position(|change| is_unsettled(&change)).unwrap_or(retained.len());
        let new = retained.partition_point(|change| change.seq <= file.last).min(settled);
        let waiting = settled < retained.len();
        if new < settled {
            let writing = tokio::task::spawn_blocking(move || {
                let written = file.write(&retained[new..settled], &retained[..settled]);
                (file, written)
            });
            let Ok((returned_file, written)) = writing.await else { return };
            file = returned_file;
            if let Err(error) = &written
                && !failing
            {
                let (path, code) = (file.lines.path().display(), &codes::UNWRITABLE);
                warn!(%path, %error, %code, "cannot write the timeline file; a restart will lose new changes");
            }
            failing = written.is_err();
        }
        if draining {
            return;
        }
        let pause = async {
            if !waiting && !failing {
                last.changed().await.ok()?;
            }
            sleep(PACE).await;
            Some(())
        };
        tokio::select! {
            next = pause => if next.is_none() { return },
            () = drain.cancelled() => {}
        }
    }
}

impl TimelineEntry {
    /// Returns whether all its proxies have responded, or their time is over.
    fn is_settled(&self) -> bool {
        self.delivery.counts().waiting() == 0 || self.delivery.received.elapsed() > ANSWERS_LIMIT
    }
}

/// Encodes a change as a line.
fn line(change: &TimelineEntry) -> String {
    let counts = change.delivery.counts();
    let steps = change.delivery.steps();
    let texts = |field_of: fn(&DeliveryRefusal) -> &str| {
        steps.refusals.iter().map(|refusal| field_of(refusal).to_owned()).collect::<Vec<_>>()
    };
    let causes = change.causes.named_causes().iter().map(|cause| StoredCause {
        cluster: cause.cluster.to_string(),
        kind: cause.kind.to_string(),
        namespace: cause.namespace.to_string(),
        name: cause.name.to_string(),
    });
    let stored = StoredChange {
        seq: change.seq,
        at: change.at.duration_since(UNIX_EPOCH).map_or(0, nanos),
        causes: causes.collect(),
        more: change.causes.more(),
        effect: change.effect.clone(),
        version: change.version,
        waited: nanos(change.waited),
        published: nanos(change.published_after),
        last_answer: counts.last_answer.map(nanos),
        proxies: counts.proxies,
        acknowledged: counts.acknowledged,
        refused: counts.refused,
        refused_by: texts(|refusal| &refusal.proxy),
        errors: texts(|refusal| &refusal.error),
        first: steps.first.iter().map(StoredSteps::of).collect(),
        last: steps.last.iter().map(StoredSteps::of).collect(),
    };
    serde_json::to_string(&stored).unwrap_or_default()
}

impl StoredSteps {
    fn of(steps: &ProxySteps) -> Self {
        let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let ProxySteps { proxy, cluster, sent, answered, answer } = steps;
        let (sent, answered) = (sent.map(micros), answered.map(micros));
        Self(proxy.to_string(), cluster.to_string(), sent, answered, answer.as_str().to_owned())
    }

    /// Converts the steps of a previous process, for which no further response will arrive.
    fn into_steps(self) -> ProxySteps {
        let Self(proxy, cluster, sent, answered, answer) = self;
        let answer = match ProxyAnswer::from_name(&answer) {
            ProxyAnswer::Waiting => ProxyAnswer::Unfollowed,
            answer => answer,
        };
        ProxySteps {
            proxy: proxy.into(),
            cluster: cluster.as_str().into(),
            sent: sent.map(Duration::from_micros),
            answered: answered.map(Duration::from_micros),
            answer,
        }
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Decodes the change in a line.
fn read_line(line: &str) -> Option<TimelineEntry> {
    let stored: StoredChange = serde_json::from_str(line).ok()?;
    let mut causes = Causes::default();
    for cause in stored.causes {
        causes.add(Cause {
            cluster: cause.cluster.as_str().into(),
            kind: cause.kind.into(),
            namespace: cause.namespace.into(),
            name: cause.name.into(),
        });
    }
    let counts = DeliveryCounts {
        proxies: stored.proxies,
        acknowledged: stored.acknowledged,
        refused: stored.refused,
        unfollowed: stored.proxies.saturating_sub(stored.acknowledged + stored.refused),
        last_answer: stored.last_answer.map(Duration::from_nanos),
    };
    let steps = |all: Vec<StoredSteps>| all.into_iter().map(StoredSteps::into_steps);
    let errors = stored.errors.into_iter().map(Some).chain(std::iter::repeat(None));
    let refusals = stored.refused_by.into_iter().zip(errors).map(|(proxy, error)| {
        DeliveryRefusal { proxy: proxy.into(), error: error.unwrap_or_default().into() }
    });
    let steps = DeliverySteps {
        first: steps(stored.first).collect(),
        last: steps(stored.last).collect(),
        refusals: refusals.collect(),
    };
    Some(TimelineEntry {
        seq: stored.seq,
        at: UNIX_EPOCH.checked_add(Duration::from_nanos(stored.at)).unwrap_or(UNIX_EPOCH),
        causes: causes.and_more(stored.more),
        effect: stored.effect,
        version: stored.version,
        waited: Duration::from_nanos(stored.waited),
        published_after: Duration::from_nanos(stored.published),
        restored: true,
        delivery: Arc::new(Delivery::past(Instant::now(), counts, steps)),
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use strait_model::testing::sidecar;

    fn enter(timeline: &Timeline, version: u64) -> Arc<TimelineEntry> {
        let cause = Cause::named("east".into(), "Pod", format!("web-{version}"));
        let delivery = Arc::new(Delivery::new(Instant::now()));
        timeline.enter(version, cause.into(), "web: 1 -> 2".into(), delivery, Instant::now())
    }

    fn reopened(path: &Path) -> (TimelineFile, Vec<TimelineEntry>) {
        TimelineFile::open(path.to_owned())
    }

    fn write(file: &mut TimelineFile, timeline: &Timeline) {
        let retained = timeline.since(0);
        let new = retained.partition_point(|change| change.seq <= file.last);
        file.write(&retained[new..], &retained).expect("written");
    }

    #[test]
    fn changes_survive_a_restart_and_are_numbered_consecutively() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("timeline");
        let (mut file, none) = reopened(&path);
        assert!(none.is_empty());
        let timeline = Timeline::default();
        let first = enter(&timeline, 7);
        let [mut followed, refused] = [(); 2].map(|()| first.delivery.receipt());
        let [willing, unwilling] = ["web-1.shop", "web-0.shop"].map(|name| sidecar(name, "east"));
        followed.sent(&willing, Instant::now());
        followed.acknowledge(&willing, Instant::now());
        refused.refuse(&unwilling, Instant::now(), "no such filter");
        write(&mut file, &timeline);
        enter(&timeline, 8);
        write(&mut file, &timeline);

        let (file, past) = reopened(&path);
        assert_eq!((past.len(), file.last), (2, 2));
        let restored = Timeline::restored(past);
        let before = timeline.since(0);
        for (one, was) in restored.since(0).iter().zip(&before) {
            assert!(one.restored && !was.restored);
            assert_eq!(
                (&one.causes, &one.effect, one.version),
                (&was.causes, &was.effect, was.version)
            );
            assert_eq!(one.delivery.counts(), was.delivery.counts());
            assert_eq!(one.delivery.steps(), was.delivery.steps());
            assert_eq!(one.at, was.at);
        }
        assert_eq!(restored.since(0)[0].delivery.refused_by(), [Arc::clone(&unwilling.id)]);
        let last = *restored.last().borrow();
        assert_eq!((last, enter(&restored, 1).seq), (2, 3));
    }

    #[test]
    fn line_without_steps_is_read() {
        let line = r#"{"seq":3,"at":1,"causes":[],"more":0,"effect":"x","version":9,"waited":1,"published":2,"lastAnswer":5000,"proxies":2,"acknowledged":1,"refused":1,"refusedBy":["a"]}"#;
        let change = read_line(line).expect("read");
        let steps = change.delivery.steps();
        assert_eq!((steps.proxies().count(), &*steps.refusals[0].error), (0, ""));
        assert_eq!(change.delivery.refused_by(), ["a".into()]);
        assert!(read_line(&super::line(&change)).is_some_and(|again| again.seq == 3));
    }

    #[test]
    fn file_contains_only_the_recent_changes() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("timeline");
        let (mut file, _) = reopened(&path);
        let timeline = Timeline::default();
        for version in 1..=(3 * LINES_MAX as u64) {
            enter(&timeline, version);
            if version % 64 == 0 {
                write(&mut file, &timeline);
            }
        }
        let (_, past) = reopened(&path);
        assert_eq!(past.len(), ENTRIES_MAX);
        assert_eq!(past.last().map(|it| it.seq), Some(3 * LINES_MAX as u64));
    }

    #[tokio::test]
    async fn changes_are_written_on_response_and_at_the_end_of_the_process() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("timeline");
        let (file, past) = reopened(&path);
        let timeline = Arc::new(Timeline::restored(past));
        let drain = CancellationToken::new();
        let proxy = sidecar("web-0.shop", "east");
        enter(&timeline, 1).delivery.receipt().acknowledge(&proxy, Instant::now());
        let keeping = keep(Arc::clone(&timeline), file, drain.clone());
        let written = async {
            while reopened(&path).1.is_empty() {
                sleep(Duration::from_millis(20)).await;
            }
        };
        let ends = async {
            tokio::time::timeout(Duration::from_secs(20), written).await.expect("it is written");
            // A change to which a proxy has not responded yet.
            let owed = enter(&timeline, 2).delivery.receipt();
            drain.cancel();
            owed
        };
        let ((), owed) = tokio::join!(keeping, ends);
        assert_eq!(reopened(&path).1.len(), 2);
        drop(owed);
    }
}
