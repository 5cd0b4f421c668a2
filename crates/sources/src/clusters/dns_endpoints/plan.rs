//! Decides which `DNSEndpoint` objects are written and deleted. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use serde_json::{Map, Value, json};

use crate::registry::kube::{MANAGED_BY, SET, US, short_hash};
use strait_model::{ClusterId, DnsHosts, DnsMode, DnsTarget};

const GROUP: &str = "externaldns.k8s.io";
const VERSION: &str = "v1alpha1";
/// The annotation with the host and the addresses of each cluster. A cluster that is unknown after
/// a restart keeps its addresses.
const TARGETS: &str = "strait.dev/dns-targets";
/// The lifetime of records in seconds.
const TTL: u32 = 60;

/// The settings of the records.
#[derive(Debug, Clone)]
pub struct DnsSettings {
    /// The namespace of the objects, in the config cluster.
    pub namespace: String,
    /// The name of the cluster set, which Strait's objects have as a label.
    pub clusterset: String,
    /// The form of the records.
    pub mode: DnsMode,
    /// The name of the provider's property for weights.
    pub provider_key: String,
}

impl DnsSettings {
    /// Returns the path of the objects.
    pub(super) fn path(&self) -> String {
        format!("/apis/{GROUP}/{VERSION}/namespaces/{}/dnsendpoints", self.namespace)
    }
}

/// A change of one object.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum DnsWrite {
    /// Creates or changes it by server-side apply.
    Apply {
        /// The object's name.
        name: String,
        /// The host of the records.
        host: String,
        /// The object.
        body: Value,
    },
    /// Deletes exactly this version of it.
    Delete {
        /// The object's name.
        name: String,
        /// The host of the records.
        host: String,
        /// The object's UID.
        uid: String,
        /// The object's resource version.
        version: String,
    },
}

impl DnsWrite {
    /// Returns the name of the object.
    pub(super) fn name(&self) -> &str {
        match self {
            Self::Apply { name, .. } | Self::Delete { name, .. } => name,
        }
    }
}

/// The existing objects of the namespace, by name.
#[derive(Debug, Default)]
pub(super) struct PresentRecords(BTreeMap<String, PresentRecord>);

/// An existing object.
#[derive(Debug)]
enum PresentRecord {
    /// It lacks Strait's labels, and stays unchanged.
    Foreign,
    /// It is Strait's.
    Own {
        host: String,
        targets: BTreeMap<ClusterId, DnsTarget>,
        uid: String,
        version: String,
        /// The part that Strait applies.
        spec: Value,
        annotation: String,
    },
}

impl PresentRecords {
    /// Reads the response to a list.
    pub(super) fn read(list: &Value, clusterset: &str) -> Self {
        let items = list["items"].as_array().into_iter().flatten();
        let records = items.filter_map(|object| {
            let metadata = &object["metadata"];
            let name = metadata["name"].as_str()?.to_owned();
            let labels = &metadata["labels"];
            if labels[MANAGED_BY] != US || labels[SET] != clusterset {
                return Some((name, PresentRecord::Foreign));
            }
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            let annotation = text(&metadata["annotations"][TARGETS]);
            let (host, targets) = parse_targets(&annotation);
            let (uid, version) = (text(&metadata["uid"]), text(&metadata["resourceVersion"]));
            let spec = object["spec"].clone();
            Some((name, PresentRecord::Own { host, targets, uid, version, spec, annotation }))
        });
        Self(records.collect())
    }
}

/// Returns the writes that turn the present objects into the wanted ones.
///
/// - An object is deleted only if its host is not configured any more.
/// - If no router of a host is ready, its records stay.
/// - The addresses of a cluster that has not been read since the start stay.
pub(super) fn plan(
    wanted: &DnsHosts,
    present: &PresentRecords,
    settings: &DnsSettings,
) -> Vec<DnsWrite> {
    let mut writes = Vec::new();
    let mut names = BTreeSet::new();
    for (host, targets) in &wanted.hosts {
        let name = object_name(host);
        let existing = present.0.get(&name);
        names.insert(name.clone());
        let mut targets = targets.clone();
        match existing {
            Some(PresentRecord::Foreign) => continue,
            Some(PresentRecord::Own { targets: before, .. }) => {
                let kept = before.iter().filter(|(id, _)| wanted.unknown.contains(*id));
                for (id, target) in kept {
                    targets.entry(id.clone()).or_insert_with(|| target.clone());
                }
            }
            None => {}
        }
        let spec = json!({ "endpoints": endpoints(host, &targets, settings) });
        if spec["endpoints"] == json!([]) {
            continue;
        }
        let text = targets_text(host, &targets, settings.mode);
        if let Some(PresentRecord::Own { spec: before, annotation, .. }) = existing
            && *before == spec
            && *annotation == text
        {
            continue;
        }
        let body = json!({
            "apiVersion": format!("{GROUP}/{VERSION}"), "kind": "DNSEndpoint",
            "metadata": {
                "name": name, "namespace": settings.namespace,
                "labels": { MANAGED_BY: US, SET: settings.clusterset },
                "annotations": { TARGETS: text },
            },
            "spec": spec,
        });
        writes.push(DnsWrite::Apply { name, host: host.to_string(), body });
    }
    for (name, record) in &present.0 {
        if let PresentRecord::Own { host, uid, version, .. } = record
            && !names.contains(name)
        {
            let (host, uid, version) = (host.clone(), uid.clone(), version.clone());
            writes.push(DnsWrite::Delete { name: name.clone(), host, uid, version });
        }
    }
    writes
}

/// Returns the name of the object for a host.
fn object_name(host: &str) -> String {
    format!("strait-{}", short_hash(host))
}

/// Returns the records of a host.
fn endpoints(
    host: &str,
    targets: &BTreeMap<ClusterId, DnsTarget>,
    settings: &DnsSettings,
) -> Vec<Value> {
    match settings.mode {
        DnsMode::Simple => {
            let all = targets.values().flat_map(|target| &target.addresses).collect();
            record_sets(host, &all)
        }
        DnsMode::Weighted => {
            let sets = targets.iter().flat_map(|(cluster, target)| {
                let mut sets = record_sets(host, &target.addresses.iter().collect());
                for set in &mut sets {
                    set["setIdentifier"] = json!(cluster);
                    set["providerSpecific"] = json!([{
                        "name": settings.provider_key, "value": target.ready.to_string(),
                    }]);
                }
                sets
            });
            sets.collect()
        }
    }
}

/// Returns the record sets for addresses: A and AAAA, or CNAME if the only address is a name. Next
/// to other addresses a name is left out, because a CNAME excludes other records.
fn record_sets(host: &str, addresses: &BTreeSet<&Arc<str>>) -> Vec<Value> {
    let of_family = |is_v4: bool| -> Vec<&Arc<str>> {
        let is_in =
            |text: &&&Arc<str>| text.parse::<IpAddr>().is_ok_and(|ip| ip.is_ipv4() == is_v4);
        addresses.iter().filter(is_in).copied().collect()
    };
    let (v4, v6) = (of_family(true), of_family(false));
    let mut sets = vec![("A", v4), ("AAAA", v6)];
    let names = addresses.iter().filter(|text| text.parse::<IpAddr>().is_err());
    let names: Vec<_> = names.copied().collect();
    if names.len() == 1 && addresses.len() == 1 {
        sets.push(("CNAME", names));
    }
    sets.retain(|(_, targets)| !targets.is_empty());
    let set = |(kind, targets): (&str, Vec<&Arc<str>>)| json!({ "dnsName": host, "recordType": kind, "recordTTL": TTL, "targets": targets });
    sets.into_iter().map(set).collect()
}

/// Returns the text of the annotation. In the simple form, weights have no effect on the records,
/// so that the text does not contain them.
fn targets_text(host: &str, targets: &BTreeMap<ClusterId, DnsTarget>, mode: DnsMode) -> String {
    let clusters: Map<String, Value> = targets
        .iter()
        .map(|(id, target)| {
            let value = match mode {
                DnsMode::Simple => json!({ "addresses": target.addresses }),
                DnsMode::Weighted => {
                    json!({ "addresses": target.addresses, "ready": target.ready })
                }
            };
            (id.to_string(), value)
        })
        .collect();
    json!({ "host": host, "clusters": clusters }).to_string()
}

/// Parses the text of the annotation; an unreadable one is empty.
fn parse_targets(text: &str) -> (String, BTreeMap<ClusterId, DnsTarget>) {
    let value: Value = serde_json::from_str(text).unwrap_or_default();
    let clusters = value["clusters"].as_object().into_iter().flatten();
    let targets = clusters.map(|(id, target)| {
        let addresses = target["addresses"].as_array().into_iter().flatten();
        let addresses = addresses.filter_map(Value::as_str).map(Arc::from).collect();
        let ready = target["ready"].as_u64().and_then(|ready| usize::try_from(ready).ok());
        (ClusterId::from(id.as_str()), DnsTarget { addresses, ready: ready.unwrap_or(1) })
    });
    (value["host"].as_str().unwrap_or_default().to_owned(), targets.collect())
}
