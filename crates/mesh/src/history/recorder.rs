//! The task that compares each version with the previous one and records the differences.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use imbl::ordmap::DiffItem;
use tokio::sync::watch;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use super::difference::MeshSummary;
use super::{BYTES_MAX, History, HistoryRecord, MeshDifference, RECORDS_MAX, RecordGap};
use crate::push::PushContext;
use strait_base::codes;
use strait_base::durable::LineFile;
use strait_model::{Hostname, ObjectKey};

/// The first line of the file with the records.
const HEAD: &str = "strait history 1";
/// The first line of the file with the state at the end of the process.
const END_HEAD: &str = "strait history end 1";
/// The minimum time between two records.
const PACE: Duration = Duration::from_secs(1);
/// After a comparison, the task pauses for this multiple of the time that the comparison took.
const REST: u32 = 30;
/// The maximum number of endpoints for which the state is written at the end. Writing more would
/// delay shutdown.
const END_ENDPOINTS_MAX: usize = 500_000;
/// The maximum size of the file with the final state, in bytes.
const END_BYTES_MAX: u64 = 256 << 20;

/// The files `history` and `history-end` in the state directory, which survive a restart.
#[derive(Debug)]
struct HistoryFiles {
    records: LineFile,
    end: PathBuf,
}

/// The recorder task.
#[derive(Debug)]
pub struct HistoryRecorder {
    history: Arc<History>,
    files: Option<HistoryFiles>,
    failing: bool,
}

impl HistoryRecorder {
    /// Creates a recorder. With a state directory, it continues with the records of the previous
    /// process. Unreadable records are logged and dropped.
    pub fn open(state_dir: Option<&Path>) -> (Self, Arc<History>) {
        let Some(state_dir) = state_dir else {
            let history = Arc::<History>::default();
            return (Self { history: Arc::clone(&history), files: None, failing: false }, history);
        };
        let room = (2 * RECORDS_MAX, 2 * BYTES_MAX as u64);
        let (records, read) = LineFile::open(state_dir.join("history"), HEAD, room);
        if let Some(fact) = read.damage {
            let (path, code) = (records.path().display(), &codes::STATE_DAMAGED);
            warn!(%path, %fact, %code, "history file is damaged; records from before the restart are lost or incomplete");
        }
        let past = read.lines.iter().filter_map(|line| serde_json::from_str(line).ok()).collect();
        let end = state_dir.join("history-end");
        let history = Arc::new(History::restored(past));
        let files = Some(HistoryFiles { records, end });
        (Self { history: Arc::clone(&history), files, failing: false }, history)
    }

    /// Records changes until the channel of versions closes or `drain` is cancelled. On `drain`,
    /// records the current version immediately and returns.
    pub async fn run(
        mut self,
        mut context: watch::Receiver<Option<Arc<PushContext>>>,
        drain: CancellationToken,
    ) {
        let mut last: Option<Arc<PushContext>> = None;
        loop {
            let draining = drain.is_cancelled();
            let now = context.borrow_and_update().clone();
            let mut duration = Duration::ZERO;
            if let Some(now) = now {
                let before = last.replace(Arc::clone(&now));
                let comparing = tokio::task::spawn_blocking(move || {
                    let begun = Instant::now();
                    self.compare(before.as_deref(), &now);
                    if draining {
                        self.write_end(&now);
                    }
                    (self, begun.elapsed())
                });
                let Ok((recorder, elapsed)) = comparing.await else { return };
                self = recorder;
                duration = elapsed;
            }
            if draining {
                return;
            }
            let next = async {
                context.changed().await.ok()?;
                sleep(PACE.max(duration * REST)).await;
                Some(())
            };
            tokio::select! {
                next = next => if next.is_none() { return },
                () = drain.cancelled() => {}
            }
        }
    }

    /// Records the difference between a version and the previous one, if any.
    fn compare(&mut self, before: Option<&PushContext>, now: &PushContext) {
        let record = |difference, gap| HistoryRecord {
            version: now.version,
            at: to_the_millisecond(SystemTime::now()),
            gap,
            difference,
            restored: false,
        };
        let record = match before {
            Some(before) => {
                if before.version == now.version {
                    return;
                }
                let (hosts, objects) = (changed_hosts(before, now), changed_objects(before, now));
                let [was, is] = [before, now]
                    .map(|context| MeshSummary::of(context, hosts.iter(), objects.iter()));
                let difference = MeshDifference::between(&was, &is);
                if difference.is_empty() {
                    return self.history.note_compared(now.version);
                }
                record(difference, None)
            }
            // The first version is compared with the state at the end of the previous process.
            None => match self.files.as_ref().and_then(|files| take_end(&files.end)) {
                Some(was) => record(MeshDifference::between(&was, &MeshSummary::whole(now)), None),
                None => record(MeshDifference::default(), Some(RecordGap::Start)),
            },
        };
        let record = self.history.push(record);
        let Some(files) = &mut self.files else { return };
        let all_lines = || self.history.records().iter().map(|record| record.line()).collect();
        let written = files.records.append(&[record.line()], all_lines);
        if let Err(error) = &written
            && !self.failing
        {
            let (path, code) = (files.records.path().display(), &codes::UNWRITABLE);
            warn!(%path, %error, %code, "cannot write the history file; a restart will lose new records");
        }
        self.failing = written.is_err();
    }

    /// Writes the final state, so that the next process can compute the difference.
    fn write_end(&self, now: &PushContext) {
        let Some(files) = &self.files else { return };
        let summary = MeshSummary::whole(now);
        if summary.endpoints() > END_ENDPOINTS_MAX {
            debug!(
                endpoints = summary.endpoints(),
                "too many endpoints; not writing the final state of the mesh"
            );
            return;
        }
        let text = serde_json::to_string(&summary).unwrap_or_default();
        let (mut file, _) = LineFile::open(files.end.clone(), END_HEAD, (1, END_BYTES_MAX));
        if let Err(error) = file.append(&[], || vec![text]) {
            let path = files.end.display();
            debug!(%path, %error, "cannot write the final state of the mesh");
            let _ = std::fs::remove_file(&files.end);
        }
    }
}

/// Truncates a time to milliseconds, the precision in which times are displayed and requested.
fn to_the_millisecond(time: SystemTime) -> SystemTime {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    UNIX_EPOCH + Duration::from_millis(u64::try_from(since.as_millis()).unwrap_or(0))
}

/// Reads and deletes the final state of the previous process; returns `None` if it is unknown.
fn take_end(path: &Path) -> Option<MeshSummary> {
    let (_, read) = LineFile::open(path.to_owned(), END_HEAD, (1, END_BYTES_MAX));
    // Delete it now, because this process will change the mesh.
    let _ = std::fs::remove_file(path);
    let line = read.lines.first().filter(|_| read.damage.is_none())?;
    serde_json::from_str(line).ok()
}

/// Returns the services that two versions do not share.
fn changed_hosts(before: &PushContext, now: &PushContext) -> Vec<Hostname> {
    let sides = before.services.diff(&now.services);
    let hosts = sides.filter_map(|side| match side {
        DiffItem::Add(host, _) | DiffItem::Remove(host, _) => Some(host.clone()),
        DiffItem::Update { old: (host, old), new: (_, new) } => {
            (!Arc::ptr_eq(old, new)).then(|| host.clone())
        }
    });
    hosts.collect()
}

/// Returns the objects of the configuration that two versions do not share.
fn changed_objects(before: &PushContext, now: &PushContext) -> Vec<ObjectKey> {
    let (was, is) = (&*before.configuration, &*now.configuration);
    let pairs = [(&was.traffic, &is.traffic), (&was.access, &is.access)];
    let differing = pairs.into_iter().flat_map(|(was, is)| is.differences(was));
    differing.map(|one| one.key.clone()).collect()
}
