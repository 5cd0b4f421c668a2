//! The task that records: compares the version that is there with the one before, and writes what it finds.

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

/// The first line of the records' file.
const HEAD: &str = "strait history 1";
/// The first line of the file that says what the mesh was at the end.
const END_HEAD: &str = "strait history end 1";
/// The least time between two records.
const PACE: Duration = Duration::from_secs(1);
/// How many times what a comparison took must pass before the next.
const REST: u32 = 30;
/// What a mesh with more endpoints was at the end is not written: it would hold up the end.
const END_ENDPOINTS_MAX: usize = 500_000;
/// The most bytes of that file.
const END_BYTES_MAX: u64 = 256 << 20;

/// Where records are kept beyond the process: `history` and `history-end` of the state directory.
#[derive(Debug)]
struct HistoryFiles {
    records: LineFile,
    end: PathBuf,
}

/// What records.
#[derive(Debug)]
pub struct HistoryRecorder {
    history: Arc<History>,
    files: Option<HistoryFiles>,
    failing: bool,
}

impl HistoryRecorder {
    /// One that goes on where the process before it ended, where there is a state directory. What can't be read is logged,
    /// and as good as not there.
    pub fn open(state_dir: Option<&Path>) -> (Self, Arc<History>) {
        let Some(state_dir) = state_dir else {
            let history = Arc::<History>::default();
            return (Self { history: Arc::clone(&history), files: None, failing: false }, history);
        };
        let room = (2 * RECORDS_MAX, 2 * BYTES_MAX as u64);
        let (records, read) = LineFile::open(state_dir.join("history"), HEAD, room);
        if let Some(fact) = read.damage {
            let (path, code) = (records.path().display(), &codes::STATE_DAMAGED);
            warn!(%path, %fact, %code, "records from before the start are forgotten, or some of them");
        }
        let past = read.lines.iter().filter_map(|line| serde_json::from_str(line).ok()).collect();
        let end = state_dir.join("history-end");
        let history = Arc::new(History::restored(past));
        let files = Some(HistoryFiles { records, end });
        (Self { history: Arc::clone(&history), files, failing: false }, history)
    }

    /// Records until the versions end, or `drain` is cancelled: then what there is at once.
    pub async fn run(
        mut self,
        mut context: watch::Receiver<Option<Arc<PushContext>>>,
        drain: CancellationToken,
    ) {
        let mut last: Option<Arc<PushContext>> = None;
        loop {
            let draining = drain.is_cancelled();
            let now = context.borrow_and_update().clone();
            let mut took = Duration::ZERO;
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
                let Ok((again, spent)) = comparing.await else { return };
                self = again;
                took = spent;
            }
            if draining {
                return;
            }
            let next = async {
                context.changed().await.ok()?;
                sleep(PACE.max(took * REST)).await;
                Some(())
            };
            tokio::select! {
                next = next => if next.is_none() { return },
                () = drain.cancelled() => {}
            }
        }
    }

    /// Records what a version has otherwise than the one before, if anything.
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
                let [was, is] =
                    [before, now].map(|of| MeshSummary::of(of, hosts.iter(), objects.iter()));
                let difference = MeshDifference::between(&was, &is);
                if difference.is_empty() {
                    return self.history.saw(now.version);
                }
                record(difference, None)
            }
            // What there is from the start on is held against what there was at the end.
            None => match self.files.as_ref().and_then(|files| take_end(&files.end)) {
                Some(was) => record(MeshDifference::between(&was, &MeshSummary::whole(now)), None),
                None => record(MeshDifference::default(), Some(RecordGap::Start)),
            },
        };
        let record = self.history.push(record);
        let Some(files) = &mut self.files else { return };
        let kept = || self.history.records().iter().map(|record| record.line()).collect();
        let written = files.records.append(&[record.line()], kept);
        if let Err(error) = &written
            && !self.failing
        {
            let (path, code) = (files.records.path().display(), &codes::UNWRITABLE);
            warn!(%path, %error, %code, "the history can't be written; a restart will forget it");
        }
        self.failing = written.is_err();
    }

    /// Writes what the mesh is at the end, so that the next process can say what is otherwise.
    fn write_end(&self, now: &PushContext) {
        let Some(files) = &self.files else { return };
        let summary = MeshSummary::whole(now);
        if summary.endpoints() > END_ENDPOINTS_MAX {
            debug!(
                endpoints = summary.endpoints(),
                "too many endpoints to say what they were at the end"
            );
            return;
        }
        let text = serde_json::to_string(&summary).unwrap_or_default();
        let (mut file, _) = LineFile::open(files.end.clone(), END_HEAD, (1, END_BYTES_MAX));
        if let Err(error) = file.append(&[], || vec![text]) {
            let path = files.end.display();
            debug!(%path, %error, "what the mesh was at the end can't be written");
            let _ = std::fs::remove_file(&files.end);
        }
    }
}

/// Times are told to the millisecond, and asked for as they were told.
fn to_the_millisecond(time: SystemTime) -> SystemTime {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    UNIX_EPOCH + Duration::from_millis(u64::try_from(since.as_millis()).unwrap_or(0))
}

/// What the mesh was at the end of the process before, where that is known.
fn take_end(path: &Path) -> Option<MeshSummary> {
    let (_, read) = LineFile::open(path.to_owned(), END_HEAD, (1, END_BYTES_MAX));
    // From here on it is not the end any more.
    let _ = std::fs::remove_file(path);
    let line = read.lines.first().filter(|_| read.damage.is_none())?;
    serde_json::from_str(line).ok()
}

/// The services that two versions don't share.
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

/// The objects of the configuration that two versions don't share.
fn changed_objects(before: &PushContext, now: &PushContext) -> Vec<ObjectKey> {
    let (was, is) = (&*before.configuration, &*now.configuration);
    let pairs = [(&was.traffic, &is.traffic), (&was.access, &is.access)];
    let differing = pairs.into_iter().flat_map(|(was, is)| is.differences(was));
    differing.map(|one| one.key.clone()).collect()
}
