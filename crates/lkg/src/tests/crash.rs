//! Crashes of the process or the machine during a write: reading returns the state from before or after the
//! write.

use std::collections::BTreeMap;

use super::super::delta::{Delta, deltas};
use super::super::writer::shards;
use super::*;
use strait_mesh::push::PushContext;
use strait_mesh::push::event_loop::{MeshEvent, MeshState};
use strait_mesh::testing::settings;
use strait_model::registry::{Contents, Epoch, RegistryUpdate, ShardChange, ShardKey};

const NAMES: [&str; 3] = ["cart.shop", "web.shop", "db.data"];
/// Enough for every kind of write, and for the oldest generations to be removed.
const WRITES: usize = 16;

/// A mesh of one cluster, and the workloads that the cluster reported.
struct World {
    dice: Dice,
    mesh: MeshState,
    context: Arc<PushContext>,
    workloads: Workloads,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut mesh = MeshState::new(settings());
        let change =
            ShardChange::Reset(Contents { network_label: Some(None), ..Contents::default() });
        mesh.apply(MeshEvent::Registry(update(change)));
        mesh.apply(MeshEvent::CompleteWithoutNames);
        let (context, _) = mesh.next_version().expect("the first one");
        Self { dice: dice(seed), mesh, context, workloads: Workloads::default() }
    }

    /// Applies a random change, which nearly always changes the cluster's report. Returns the differences.
    fn change(&mut self) -> Option<Delta> {
        let mut contents = Contents::default();
        let dice = &mut self.dice;
        for _ in 0..dice.upto(3) {
            let host = Hostname::from(dice.of(&NAMES));
            let before = self.context.services.get(&host).and_then(|one| one.reported().next());
            let mut record = match before.filter(|_| dice.flip()) {
                // Only its endpoints change.
                Some((_, record)) => record,
                None => {
                    let mut service = dice.service();
                    service.hostname = host.clone();
                    service.resolution = Resolution::ClientSide;
                    let (service, endpoints) = (Arc::new(service), Vec::new().into());
                    ServiceRecord { service, endpoints }
                }
            };
            let endpoints: Vec<_> = (0..dice.upto(3)).map(|_| dice.endpoint()).collect();
            record.endpoints = endpoints.into();
            contents.services.insert(host, (dice.upto(4) != 0).then_some(record));
        }
        if dice.upto(3) == 0 {
            let others = dice.workloads();
            for (key, pod) in others.iter().take(3) {
                self.workloads.insert(&key.namespace.clone().into(), &key.name(), pod.clone());
            }
            let gone = self.workloads.iter().next().map(|(key, _)| key.to_key());
            if let Some(gone) = gone.filter(|_| dice.flip()) {
                self.workloads.remove(gone.namespace.as_str(), &gone.name);
            }
            contents.workloads = Some(self.workloads.clone());
        }
        if dice.upto(4) == 0 {
            contents.facts = Some(dice.facts());
        }
        if dice.upto(8) == 0 {
            contents.network_label = Some(dice.maybe(|dice| dice.text().as_ref().into()));
        }
        self.mesh.apply(MeshEvent::Registry(update(ShardChange::Update(contents))));
        let (now, _) = self.mesh.next_version()?;
        let before = std::mem::replace(&mut self.context, now);
        deltas(&before, &self.context).remove(&ClusterId::from("east"))
    }

    fn shard(&self) -> ShardState {
        let wanted = [(&ClusterId::from("east"), None)];
        shards(&self.context, wanted.into_iter()).pop().expect("the one")
    }
}

fn update(change: ShardChange) -> RegistryUpdate {
    RegistryUpdate { shard: ShardKey::kubernetes("east".into()), epoch: Epoch(1), change }
}

type Disk = BTreeMap<String, Vec<u8>>;

fn disk(directory: &TempDir) -> Disk {
    let name = |path: &Path| path.file_name().expect("a name").to_string_lossy().into_owned();
    let read = |path: PathBuf| (name(&path), fs::read(&path).expect("readable"));
    files(directory).into_iter().map(read).collect()
}

fn with(disk: &Disk) -> TempDir {
    let directory = tempfile::tempdir().expect("a directory");
    fs::create_dir(directory.path().join("lkg")).expect("made");
    for (name, bytes) in disk {
        fs::write(directory.path().join("lkg").join(name), bytes).expect("written");
    }
    directory
}

/// Returns the possible contents of a disk after a crash during the write that turns `before` into `after`.
/// `at` returns the offsets, within the written bytes, at which the write may stop.
fn stops(before: &Disk, after: &Disk, at: &mut dyn FnMut(usize) -> Vec<usize>) -> Vec<Disk> {
    let mut stops = vec![before.clone(), after.clone()];
    let mut renamed = before.clone();
    for (name, bytes) in after.iter().filter(|(name, _)| before.get(*name) != after.get(*name)) {
        let held = before.get(name).map_or(0, Vec::len);
        let is_journal = name.ends_with(".journal");
        for end in at(bytes.len() - held).into_iter().map(|end| held + end) {
            let (begun, rest) = bytes.split_at(end);
            let name = if is_journal { name.clone() } else { ".cluster-east.new".to_owned() };
            let with = |bytes: Vec<u8>| {
                let mut stop = before.clone();
                stop.insert(name.clone(), bytes);
                stop
            };
            stops.push(with(begun.to_vec()));
            // The length of a file may reach the disk before its content.
            stops.push(with([begun, &vec![0; rest.len()]].concat()));
        }
        renamed.insert(name.clone(), bytes.clone());
    }
    // The oldest file is removed last, and then its journal.
    stops.push(renamed.clone());
    for gone in before.keys().filter(|name| !after.contains_key(*name)) {
        if gone.ends_with(".lkg") {
            renamed.remove(gone);
            stops.push(renamed.clone());
        }
    }
    stops
}

#[test]
fn crash_during_a_write_leaves_the_state_from_before_or_after() {
    let mut ways = BTreeMap::<&str, usize>::new();
    for seed in 0..10 {
        let mut world = World::new(seed);
        let directory = tempfile::tempdir().expect("a directory");
        let mut writing = store(&directory);
        writing.put(&world.shard()).expect("written");
        for step in 0..WRITES {
            let (was, held) = (world.shard(), disk(&directory));
            let Some(delta) = world.change() else { continue };
            let now = world.shard();
            // A complete file may be written at any time.
            let appended = match world.dice.upto(4) {
                0 => None,
                _ => writing.append::<ShardState>("east", &delta).expect("appended"),
            };
            if appended.is_none() {
                writing.put(&now).expect("written");
            }
            *ways.entry(if appended.is_some() { "appended" } else { "whole" }).or_default() += 1;
            let then = disk(&directory);
            let dice = &mut world.dice;
            let mut at = |length: usize| match seed {
                0 if step < 5 => (0..=length).collect(),
                _ => (0..3).map(|_| dice.upto(length + 1)).collect(),
            };
            for (number, stopped) in stops(&held, &then, &mut at).iter().enumerate() {
                let found = with(stopped);
                let mut reading = store(&found);
                let (read, refused) = reading.read::<ShardState>("east");
                let read = read.expect("something is known");
                let name = format!("seed {seed}, step {step}, stop {number}: {refused:?}");
                assert!(read == was || read == now, "{name}");
                if stopped == &then {
                    assert!(read == now && refused.is_none(), "{name}");
                }
                // Later writes succeed, whatever the crash left.
                if number % 7 == 0 {
                    reading.put(&now).expect("written");
                    assert_eq!(store(&found).read("east"), (Some(now.clone()), None), "{name}");
                }
            }
        }
    }
    assert!(ways["appended"] > 40 && ways["whole"] > 20, "{ways:?}");
}

/// A journal belongs to exactly one file. A journal that grows too long is replaced by a new file.
#[test]
fn journal_is_bounded_and_belongs_to_one_file() {
    let mut world = World::new(7);
    let directory = tempfile::tempdir().expect("a directory");
    let mut writing = store(&directory);
    writing.put(&world.shard()).expect("written");
    let (mut whole, mut longest) = (0, 0);
    for _ in 0..1500 {
        let Some(delta) = world.change() else { continue };
        if writing.append::<ShardState>("east", &delta).expect("appended").is_none() {
            writing.put(&world.shard()).expect("written");
            whole += 1;
        }
        let journals = disk(&directory).into_iter().filter(|(name, _)| name.ends_with(".journal"));
        longest = longest.max(journals.map(|(_, bytes)| bytes.len()).max().unwrap_or_default());
    }
    assert!(whole > 0, "{longest} bytes in a journal");
    assert!(longest <= 2 * 64 * 1024, "{longest} bytes in a journal");
    assert!(disk(&directory).len() <= 2 * GENERATIONS, "{:?}", disk(&directory).keys());
    assert_eq!(store(&directory).read("east"), (Some(world.shard()), None));

    // Next to another file, the journal is ignored.
    let mut mixed = disk(&directory);
    let journal = mixed.keys().rfind(|name| name.ends_with(".journal")).cloned().expect("one");
    let (other, _) = to_file(&shard("east", 3), &origin());
    mixed.insert(journal.replace(".journal", ".lkg"), other);
    let (read, refused) = store(&with(&mixed)).read::<ShardState>("east");
    assert_eq!(read, Some(shard("east", 3)));
    let refused = refused.expect("a reason").remark();
    assert!(refused.contains("the part before that is used"), "{refused}");
}

#[test]
fn journal_as_long_as_its_file_is_due_for_rewriting() {
    let mut world = World::new(8);
    let directory = tempfile::tempdir().expect("a directory");
    let mut writing = store(&directory);
    writing.put(&world.shard()).expect("written");
    let named = || ["west", "east"].into_iter();
    let mut appended = 0;
    while writing.longest_journal::<ShardState>(named()).is_none() {
        let Some(delta) = world.change() else { continue };
        let bytes = writing.append::<ShardState>("east", &delta).expect("appended");
        appended += bytes.expect("short enough while no writer was notified");
    }
    assert_eq!(writing.longest_journal::<ShardState>(named()), Some("east"));
    assert!(appended > 64 * 1024, "{appended} bytes");
    writing.put(&world.shard()).expect("written");
    assert_eq!(writing.longest_journal::<ShardState>(named()), None);
}

#[test]
fn oversized_file_is_refused_without_reading_it() {
    let directory = tempfile::tempdir().expect("a directory");
    store(&directory).put(&shard("east", 1)).expect("written");
    let newest = files(&directory).pop().expect("one");
    // Sparse files: the added bytes take no space on disk.
    let sparse = |path: &Path, bytes: u64| {
        let file = fs::OpenOptions::new().create(true).append(true).open(path).expect("opened");
        file.set_len(bytes).expect("longer");
    };
    let next = newest.with_file_name("cluster-east.000000000002.lkg");
    for (bytes, reason) in [(3_000_000_000, "none is written with more than"), (9_000_000, "not a")]
    {
        sparse(&next, 0);
        sparse(&next, bytes);
        let began = std::time::Instant::now();
        let (read, refused) = store(&directory).read::<ShardState>("east");
        assert_eq!(read, Some(shard("east", 1)));
        let refused = refused.expect("a reason").to_string();
        assert!(refused.contains(reason), "{refused}");
        assert!(began.elapsed().as_millis() < 1000, "{:?}", began.elapsed());
    }
    fs::remove_file(next).expect("removed");
    sparse(&newest.with_extension("journal"), 3_000_000_000);
    let (read, refused) = store(&directory).read::<ShardState>("east");
    assert_eq!(read, Some(shard("east", 1)));
    assert!(refused.expect("a reason").to_string().contains("none is written with more than"));
}
