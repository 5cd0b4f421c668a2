//! Evidence that all parts of the mesh have a root of the CA: namespaces of members by their
//! ConfigMaps, proxies by acknowledgements of their agents or the age of their certificates, other
//! replicas by their reports.
//!
//! Unknown parts are reported as missing but do not block the rotation; only the operator can judge
//! them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use crate::admin::Readiness;
use strait_ads::connections::Connections;
use strait_identity::{RootFingerprint, RootLack, RootRecord, RootWitness};
use strait_model::RootBundle;
use strait_sources::clusters::status::{ClusterState, ClusterStatus};

/// Time after a start in which proxies may still reconnect. Agents wait for up to half of it
/// between attempts.
const RETURN: Duration = Duration::from_secs(60);
/// Time after which clients have reported a new root.
const SETTLE: Duration = Duration::from_secs(10);
/// Maximum number of names listed per kind.
const LISTED: usize = 3;

/// Witness that is set after the start, because the mesh itself needs the certificates in question.
#[derive(Debug, Default)]
pub(super) struct LateWitness(pub(super) OnceLock<MeshWitness>);

impl RootWitness for LateWitness {
    fn lacks(&self, bundle: &RootBundle, record: &RootRecord, now: SystemTime) -> Vec<RootLack> {
        match self.0.get() {
            Some(witness) => witness.lacks(bundle, record, now),
            None => vec![lack("this control plane", "it is starting")],
        }
    }
}

/// Witness that observes the mesh.
#[derive(Debug)]
pub(super) struct MeshWitness {
    pub(super) started: SystemTime,
    pub(super) readiness: watch::Receiver<Readiness>,
    pub(super) statuses: watch::Receiver<Arc<Vec<ClusterStatus>>>,
    pub(super) streams: Arc<Connections>,
    pub(super) replicas: Arc<ReplicaReports>,
}

/// Report of one replica.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ReplicaReport {
    /// Time of the report, in seconds since the epoch.
    pub(super) at: u64,
    /// Roots that the replica sends to its proxies; `None` from versions that report only while a
    /// root waits.
    #[serde(default)]
    pub(super) given: Option<BTreeSet<RootFingerprint>>,
    /// Proxies that lack a root, as text.
    pub(super) lacks: BTreeMap<RootFingerprint, String>,
}

/// Last reports of the other replicas.
#[derive(Debug, Default)]
pub(super) struct ReplicaReports(Mutex<BTreeMap<String, ReplicaReport>>);

impl ReplicaReports {
    /// Replaces the reports.
    pub(super) fn set(&self, reports: BTreeMap<String, ReplicaReport>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = reports;
    }

    fn lacks(&self, root: &RootFingerprint) -> Vec<RootLack> {
        let reports = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let of = |(name, report): (&String, &ReplicaReport)| {
            let part = format!("replica {name}");
            let gives = |given: &BTreeSet<RootFingerprint>| given.contains(root);
            match report.lacks.get(root) {
                Some(lacks) => Some(seen(&part, lacks)),
                None if report.given.as_ref().is_none_or(gives) => None,
                // The replica may read its files later than this one, or may just have received the
                // root.
                None => {
                    Some(seen(&part, "it has not reported yet that it sends it to its proxies"))
                }
            }
        };
        reports.iter().filter_map(of).collect()
    }
}

impl MeshWitness {
    /// Returns the parts that lack a root, except for reports of other replicas.
    pub(super) fn own_lacks(
        &self,
        bundle: &RootBundle,
        record: &RootRecord,
        now: SystemTime,
    ) -> Vec<RootLack> {
        let mut lacks = Vec::new();
        let age = |since: SystemTime| now.duration_since(since).unwrap_or_default();
        if !self.readiness.borrow().ready {
            lacks.push(lack("this control plane", "it is not ready yet"));
        } else if age(self.started) < RETURN {
            let fact =
                "it started less than a minute ago, and proxies may not have reconnected yet";
            lacks.push(lack("this control plane", fact));
        }
        if age(record.since()) < SETTLE {
            lacks.push(lack("all proxies", "they received it less than 10 s ago"));
        }
        lacks.extend(self.statuses.borrow().iter().filter_map(of_cluster));
        lacks.extend(self.of_proxies(bundle, record, now));
        lacks
    }

    fn of_proxies(
        &self,
        bundle: &RootBundle,
        record: &RootRecord,
        now: SystemTime,
    ) -> Vec<RootLack> {
        let (mut silent, mut waiting, mut plain) = (Vec::new(), Vec::new(), Vec::new());
        for stream in self.streams.list() {
            let proxy = stream.proxy();
            let lacking = match stream.has_roots(bundle) {
                Some(true) => continue,
                Some(false) => &mut silent,
                // An agent receives the roots together with its certificate from this CA.
                None if proxy.has_istio_agent() || proxy.sds.is_some() => {
                    let is_younger = |issued| issued > record.since();
                    let has_it = stream.certificate_issued().is_some_and(is_younger);
                    if has_it || record.older_end() <= now {
                        continue;
                    }
                    &mut waiting
                }
                None => &mut plain,
            };
            lacking.push(proxy.workload.to_string());
        }
        let by_next = format!(
            "they receive it with their next certificate; all older certificates expire by {}",
            strait_base::time::rfc3339(record.older_end())
        );
        [
            (silent, true, "agents", "they received it and have not acknowledged it"),
            (waiting, false, "agents that don't request roots", &*by_next),
            (plain, false, "Envoys with a separate trust bundle", "only you know its content"),
        ]
        .into_iter()
        .filter(|(of, ..)| !of.is_empty())
        .map(|(mut of, is_seen, part, fact)| {
            of.sort();
            of.dedup();
            let count = of.len();
            let mut listed: Vec<_> = of.into_iter().take(LISTED).collect();
            if count > LISTED {
                listed.push("…".to_owned());
            }
            RootLack { is_seen, ..lack(&format!("{count} {part} ({})", listed.join(", ")), fact) }
        })
        .collect()
    }
}

impl RootWitness for MeshWitness {
    fn lacks(&self, bundle: &RootBundle, record: &RootRecord, now: SystemTime) -> Vec<RootLack> {
        let mut lacks = self.own_lacks(bundle, record, now);
        if let Some(root) = record.fingerprint() {
            lacks.extend(self.replicas.lacks(&root));
        }
        lacks
    }
}

/// Returns whether a cluster lacks a root, from the ConfigMaps read back from its namespaces.
fn of_cluster(status: &ClusterStatus) -> Option<RootLack> {
    use ClusterState::{Conflict, IdentityChanged, Rejected};
    // These clusters contribute nothing to the mesh.
    if matches!(status.state, Conflict | IdentityChanged | Rejected) {
        return None;
    }
    let part = format!("cluster {}", status.id);
    let Some(roots) = &status.roots else {
        return Some(lack(&part, "the roots in its namespaces are not known yet"));
    };
    if let Some(denied) = &roots.denied {
        let fact = format!("reading or writing roots there is not permitted: {denied}");
        return Some(lack(&part, &fact));
    }
    let (missing, of) = (roots.namespaces - roots.current.min(roots.namespaces), roots.namespaces);
    if missing == 0 {
        return None;
    }
    let fact = match roots.foreign {
        0 => format!("{missing} of its {of} namespaces lack it"),
        foreign if foreign >= missing => {
            format!(
                "{foreign} of its {of} namespaces have another writer's roots: check which roots its pods trust"
            )
        }
        foreign => format!(
            "{} of its {of} namespaces lack it, and {foreign} have another writer's roots",
            missing - foreign
        ),
    };
    Some(RootLack { is_seen: roots.foreign < missing, ..lack(&part, &fact) })
}

/// Creates an entry that only the operator can judge.
fn lack(part: &str, fact: &str) -> RootLack {
    RootLack { part: part.to_owned(), fact: fact.to_owned(), is_seen: false }
}

/// Creates an entry for an observed lack.
fn seen(part: &str, fact: &str) -> RootLack {
    RootLack { is_seen: true, ..lack(part, fact) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use strait_sources::registry::kube::RootsStatus;

    #[test]
    fn replica_that_does_not_report_a_root_holds_it_back() {
        let mut all =
            RootFingerprint::parse_all(&format!("{}\n{}", "a".repeat(64), "b".repeat(64)));
        let new = all.pop_last().expect("two");
        let report = |given: Option<BTreeSet<_>>, lacks: Option<&str>| ReplicaReport {
            at: 0,
            given,
            lacks: lacks.map(|text| (new.clone(), text.to_owned())).into_iter().collect(),
        };
        let both: BTreeSet<_> = all.iter().chain([&new]).cloned().collect();
        for (report, expected) in [
            (report(Some(all.clone()), None), Some("not reported yet that it sends it")),
            (report(Some(both.clone()), Some("1 agents (web.shop): no answer")), Some("1 agents")),
            (report(Some(both), None), None),
            // Older versions report only while a root waits, and do not list the roots that they
            // send.
            (report(None, None), None),
            (report(None, Some("1 agents (web.shop): no answer")), Some("1 agents")),
        ] {
            let replicas = ReplicaReports::default();
            replicas.set([("other".to_owned(), report.clone())].into());
            let found = replicas.lacks(&new);
            assert!(found.iter().all(|lack| lack.is_seen), "{found:?}");
            let first = found.first().map(ToString::to_string);
            let holds = match expected {
                Some(part) => first.as_ref().is_some_and(|first| first.contains(part)),
                None => first.is_none(),
            };
            assert!(holds, "{report:?}: {first:?}");
        }
    }

    #[test]
    fn cluster_has_a_root_once_every_namespace_confirms_it() {
        let fact = |roots: Option<RootsStatus>| {
            let status = ClusterStatus { roots, ..ClusterStatus::live("east") };
            of_cluster(&status).map(|lack| (lack.to_string(), lack.is_seen))
        };
        let of = |namespaces, current, foreign| {
            fact(Some(RootsStatus { namespaces, current, foreign, ..RootsStatus::default() }))
        };
        assert_eq!(of(3, 3, 0), None);
        let missing = "cluster east: 2 of its 3 namespaces lack it".to_owned();
        assert_eq!(of(3, 1, 0), Some((missing, true)));
        let reports = |found: Option<(String, bool)>, part: &str, is_seen: bool| {
            found.is_some_and(|(fact, seen)| fact.contains(part) && seen == is_seen)
        };
        assert!(reports(of(3, 2, 1), "another writer's", false));
        assert!(reports(of(3, 1, 1), "1 of its 3 namespaces lack", true));
        assert!(reports(fact(None), "not known yet", false));
        let denied = RootsStatus { denied: Some("403".to_owned()), ..RootsStatus::default() };
        assert!(reports(fact(Some(denied)), ": 403", false));
        let mut status = ClusterStatus::live("east");
        status.state = ClusterState::Rejected;
        assert_eq!(of_cluster(&status), None, "the cluster is not in the mesh");
    }
}
