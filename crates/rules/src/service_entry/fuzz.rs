//! Fuzz target for service entries: see [`strait_base::testing::fuzz`].

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

use super::EntryIndex;
use strait_model::registry::{ServiceRecord, ShardChange};
use strait_model::{Collection, Hostname};

/// All services that an index has sent.
#[derive(Default)]
struct SentServices(BTreeMap<Hostname, ServiceRecord>);

impl SentServices {
    fn take(&mut self, change: Option<ShardChange>) {
        let contents = match change {
            None => return,
            Some(ShardChange::Removed) => return self.0.clear(),
            Some(ShardChange::Reset(contents)) => {
                self.0.clear();
                contents
            }
            Some(ShardChange::Update(contents)) => contents,
        };
        for (host, record) in contents.services {
            match record {
                Some(record) => _ = self.0.insert(host, record),
                None => _ = self.0.remove(&host),
            }
        }
    }
}

/// Reads one object or a list of objects. Checks that applying them again changes nothing, that
/// applying them one by one has the same result, and that no services are left after all objects
/// are removed.
pub(crate) fn service_entries(bytes: &[u8]) -> bool {
    let Ok(value) = serde_json::from_slice::<Value>(bytes) else { return false };
    let objects: Vec<Value> = match value {
        Value::Array(objects) => objects,
        object => vec![object],
    };
    let objects: Collection = objects.into_iter().map(Arc::new).collect();
    let (mut index, mut sent) = (EntryIndex::new("cluster.local"), SentServices::default());
    sent.take(index.apply(&objects));
    assert!(index.apply(&objects).is_none(), "applying the same objects again is a change");
    let (mut slow, mut slowly) = (EntryIndex::new("cluster.local"), SentServices::default());
    let mut some = Collection::default();
    for (key, object) in objects.iter() {
        some.insert(key.clone(), object.clone());
        slowly.take(slow.apply(&some));
    }
    assert_eq!(sent.0, slowly.0, "incremental application has another result");
    assert_eq!(index.problems(), slow.problems());
    let understood = !sent.0.is_empty();
    sent.take(index.apply(&Collection::default()));
    assert!(sent.0.is_empty() && index.problems().is_empty(), "{:?} is left", sent.0.keys());
    understood
}
