//! Differences between two states of the mesh, as text and sets, so that consecutive differences
//! can be combined.
//!
//! Pure. A state contains services and their endpoints by cluster,
//! gateways, settings, and the objects of the configuration with a digest of each. It does not
//! contain which namespaces a service is exported to, or generated configuration of proxies.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use xxhash_rust::xxh3::xxh3_64;

use crate::aggregate::MergedService;
use crate::push::PushContext;
use strait_model::{ConfigurationSnapshot, EndpointRef, Health, Hostname, NetworkId, ObjectKey};

/// Names of the texts of a configuration that are listed next to its objects.
const TEXTS: [&str; 2] = ["MeshConfig", "MeshNetworks"];

/// The state of the mesh, or of a part of it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct MeshSummary {
    services: BTreeMap<String, ServiceSummary>,
    /// The gateways of each network.
    networks: BTreeMap<String, BTreeSet<String>>,
    settings: BTreeMap<String, Value>,
    /// The digest of each object of the configuration; `None` in files written before digests
    /// existed.
    #[serde(default)]
    objects: Option<BTreeMap<String, Value>>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
struct ServiceSummary {
    definition: Value,
    /// Endpoints by cluster.
    endpoints: BTreeMap<String, BTreeSet<String>>,
}

/// The difference between an earlier and a later state.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct MeshDifference {
    /// Services by hostname.
    pub services: BTreeMap<String, ServiceDifference>,
    /// Gateways by network.
    pub networks: BTreeMap<String, SetDifference>,
    /// Settings by field of the mesh config, and modes of members as `cluster ID`.
    pub settings: BTreeMap<String, ValueDifference>,
    /// Objects of the configuration by `KIND.GROUP NAMESPACE/NAME`, with the digests of their
    /// content: traffic rules, access policies, and the texts `MeshConfig` and `MeshNetworks`. The
    /// name of the configuration changes whenever they do.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub objects: BTreeMap<String, ValueDifference>,
}

/// The difference of one service.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ServiceDifference {
    /// Its ports, addresses, clusters and so on, if they differ.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub definition: Option<ValueDifference>,
    /// Endpoints by cluster.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub endpoints: BTreeMap<String, SetDifference>,
}

/// Added and removed items. A changed item is listed in both.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct SetDifference {
    /// Items that only the later state has.
    pub added: BTreeSet<String>,
    /// Items that only the earlier state has.
    pub removed: BTreeSet<String>,
}

/// A value before and after; null if it does not exist.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ValueDifference {
    /// The earlier value.
    pub before: Value,
    /// The later value.
    pub after: Value,
}

impl MeshSummary {
    /// Summarizes a whole version.
    pub(super) fn whole(context: &PushContext) -> Self {
        let ConfigurationSnapshot { traffic, access, .. } = &*context.configuration;
        let objects = traffic.iter().chain(access.iter()).map(|(key, _)| key);
        Self::of(context, context.services.keys(), objects)
    }

    /// Summarizes these services and objects of a version, and everything that is neither.
    pub(super) fn of<'a>(
        context: &PushContext,
        hosts: impl Iterator<Item = &'a Hostname>,
        objects: impl Iterator<Item = &'a ObjectKey>,
    ) -> Self {
        let services = hosts.filter_map(|host| {
            Some((host.to_string(), ServiceSummary::of(context.services.get(host)?)))
        });
        let mut networks: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for gateway in context.networks.iter() {
            let dead = if gateway.dead { ", does not answer" } else { "" };
            let cluster =
                gateway.cluster.as_ref().map(|it| format!(" in {it}")).unwrap_or_default();
            let (address, port) = (gateway.address, gateway.port);
            let text = format!("{} ({}{cluster}{dead})", socket(address, port), gateway.source);
            networks.entry(name(&gateway.network)).or_default().insert(text);
        }
        let mut settings: BTreeMap<String, Value> = match context.mesh.to_json() {
            Value::Object(fields) => fields.into_iter().collect(),
            _ => BTreeMap::new(),
        };
        for (id, cluster) in &context.clusters.clusters {
            settings.insert(
                format!("cluster {id}"),
                json!(format!("{:?}", cluster.mode).to_lowercase()),
            );
        }
        let objects = Some(digests(&context.configuration, objects));
        Self { services: services.collect(), networks, settings, objects }
    }

    /// Returns the number of endpoints in the summary.
    pub(super) fn endpoints(&self) -> usize {
        let sets = self.services.values().flat_map(|service| service.endpoints.values());
        sets.map(BTreeSet::len).sum()
    }
}

impl ServiceSummary {
    fn of(service: &MergedService) -> Self {
        let port = |port: &strait_model::Port| {
            format!("{} {}/{}", port.name, port.number, port.protocol.as_str())
        };
        let vips: BTreeMap<String, Vec<String>> = service
            .vips()
            .map(|(cluster, vips)| {
                (cluster.to_string(), vips.iter().map(ToString::to_string).collect())
            })
            .collect();
        let clusters: Vec<_> = service.by_cluster.keys().map(ToString::to_string).collect();
        let mut endpoints: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for (shard, endpoint, network) in service.endpoints() {
            let cluster_endpoints = endpoints.entry(shard.cluster.to_string()).or_default();
            cluster_endpoints.insert(description(&endpoint, network));
        }
        let definition = json!({
            "resolution": service.primary.resolution.as_str(),
            "ports": service.ports().map(port).collect::<Vec<_>>(),
            "clusterVIPs": vips,
            "clusters": clusters,
            "serviceAccounts": service.service_accounts,
        });
        Self { definition, endpoints }
    }
}

/// Returns the digests of these objects of a configuration and its texts. Missing ones are
/// skipped.
fn digests<'a>(
    configuration: &ConfigurationSnapshot,
    keys: impl Iterator<Item = &'a ObjectKey>,
) -> BTreeMap<String, Value> {
    let ConfigurationSnapshot { traffic, access, mesh, networks, .. } = configuration;
    let objects = keys.filter_map(|key| {
        let object = traffic.get(key).or_else(|| access.get(key))?;
        Some((object_name(key), digest(&object.counted_text())))
    });
    let texts = TEXTS.into_iter().zip([mesh, networks]);
    let texts = texts.filter_map(|(name, text)| Some((name.to_owned(), digest(text.as_ref()?))));
    objects.chain(texts).collect()
}

/// Returns a digest that is equal in every process, because digests are compared across restarts.
fn digest(text: &str) -> Value {
    format!("{:016x}", xxh3_64(text.as_bytes())).into()
}

/// Returns a name like `VirtualService.networking.istio.io shop/web`. It includes the group because
/// two groups have a kind Gateway.
fn object_name(key: &ObjectKey) -> String {
    let ObjectKey { kind, group, namespace, name } = key;
    format!("{kind}.{group} {namespace}/{name}")
}

/// Describes an endpoint for people. Endpoints with different descriptions count as different
/// endpoints.
fn description(endpoint: &EndpointRef<'_>, network: &NetworkId) -> String {
    let mut text = format!("{} in {}", socket(endpoint.address, endpoint.port), name(network));
    if endpoint.health != Health::Healthy {
        text += &format!(", {}", endpoint.health.as_str());
    }
    if endpoint.weight != 1 {
        text += &format!(", weight {}", endpoint.weight);
    }
    text
}

fn socket(address: std::net::IpAddr, port: u16) -> String {
    std::net::SocketAddr::new(address, port).to_string()
}

fn name(network: &NetworkId) -> String {
    if network.is_empty() { "<none>".to_owned() } else { network.to_string() }
}

impl MeshDifference {
    /// Returns the difference between `before` and `after`.
    pub(super) fn between(before: &MeshSummary, after: &MeshSummary) -> Self {
        let none = ServiceSummary::default();
        let mut difference = Self::default();
        for host in keys(&before.services, &after.services) {
            let was = before.services.get(host).unwrap_or(&none);
            let is = after.services.get(host).unwrap_or(&none);
            let service = ServiceDifference {
                definition: ValueDifference::between(&was.definition, &is.definition),
                endpoints: sets(&was.endpoints, &is.endpoints),
            };
            if !service.is_empty() {
                difference.services.insert(host.clone(), service);
            }
        }
        difference.networks = sets(&before.networks, &after.networks);
        difference.settings = values(&before.settings, &after.settings);
        if let (Some(was), Some(is)) = (&before.objects, &after.objects) {
            difference.objects = values(was, is);
        }
        difference
    }

    /// Returns whether nothing differs.
    pub fn is_empty(&self) -> bool {
        let Self { services, networks, settings, objects } = self;
        services.is_empty() && networks.is_empty() && settings.is_empty() && objects.is_empty()
    }

    /// Appends a later difference, so that `self` spans both. Changes that cancel out are removed.
    pub(super) fn append(&mut self, later: &Self) {
        for (host, service) in &later.services {
            let target = self.services.entry(host.clone()).or_default();
            if let Some(definition) = &service.definition {
                let first = target.definition.take();
                let before = first.map_or_else(|| definition.before.clone(), |it| it.before);
                target.definition = ValueDifference::between(&before, &definition.after);
            }
            append_sets(&mut target.endpoints, &service.endpoints);
            if target.is_empty() {
                self.services.remove(host);
            }
        }
        append_sets(&mut self.networks, &later.networks);
        append_values(&mut self.settings, &later.settings);
        append_values(&mut self.objects, &later.objects);
    }
}

impl ServiceDifference {
    fn is_empty(&self) -> bool {
        self.definition.is_none() && self.endpoints.is_empty()
    }
}

impl ValueDifference {
    fn between(before: &Value, after: &Value) -> Option<Self> {
        let differs = before != after;
        differs.then(|| Self { before: before.clone(), after: after.clone() })
    }
}

fn keys<'a, V>(
    one: &'a BTreeMap<String, V>,
    other: &'a BTreeMap<String, V>,
) -> BTreeSet<&'a String> {
    one.keys().chain(other.keys()).collect()
}

fn values(
    before: &BTreeMap<String, Value>,
    after: &BTreeMap<String, Value>,
) -> BTreeMap<String, ValueDifference> {
    let value = |side: &BTreeMap<String, Value>, key| side.get(key).cloned().unwrap_or_default();
    let changed = keys(before, after).into_iter().filter_map(|key| {
        let changed = ValueDifference::between(&value(before, key), &value(after, key))?;
        Some((key.clone(), changed))
    });
    changed.collect()
}

fn append_values(
    target: &mut BTreeMap<String, ValueDifference>,
    later: &BTreeMap<String, ValueDifference>,
) {
    for (key, value) in later {
        let first = target.remove(key);
        let before = first.map_or_else(|| value.before.clone(), |it| it.before);
        let changed = ValueDifference::between(&before, &value.after);
        target.extend(changed.map(|it| (key.clone(), it)));
    }
}

fn sets(
    before: &BTreeMap<String, BTreeSet<String>>,
    after: &BTreeMap<String, BTreeSet<String>>,
) -> BTreeMap<String, SetDifference> {
    let empty = BTreeSet::new();
    let mut differences = BTreeMap::new();
    for key in keys(before, after) {
        let (was, is) = (before.get(key).unwrap_or(&empty), after.get(key).unwrap_or(&empty));
        let (added, removed): (BTreeSet<String>, BTreeSet<String>) =
            (is.difference(was).cloned().collect(), was.difference(is).cloned().collect());
        if !added.is_empty() || !removed.is_empty() {
            differences.insert(key.clone(), SetDifference { added, removed });
        }
    }
    differences
}

fn append_sets(
    target: &mut BTreeMap<String, SetDifference>,
    later: &BTreeMap<String, SetDifference>,
) {
    for (key, set) in later {
        let difference = target.entry(key.clone()).or_default();
        for item in &set.removed {
            if !difference.added.remove(item) {
                difference.removed.insert(item.clone());
            }
        }
        for item in &set.added {
            if !difference.removed.remove(item) {
                difference.added.insert(item.clone());
            }
        }
        if difference.added.is_empty() && difference.removed.is_empty() {
            target.remove(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use strait_model::Collection;

    fn summary(services: &[(&str, u8, &[&str])], gateways: &[&str]) -> MeshSummary {
        let objects = services.iter().map(|(host, port, _)| ((*host).to_owned(), json!(port)));
        let objects = Some(objects.collect());
        let services = services.iter().map(|(host, port, endpoints)| {
            let endpoints = endpoints.iter().map(|one| (*one).to_owned()).collect();
            let endpoints = BTreeMap::from([("east".to_owned(), endpoints)]);
            ((*host).to_owned(), ServiceSummary { definition: json!({ "port": port }), endpoints })
        });
        let gateways: BTreeSet<String> = gateways.iter().map(|one| (*one).to_owned()).collect();
        let settings = BTreeMap::from([("gateways".to_owned(), json!(gateways))]);
        let networks = BTreeMap::from([("n1".to_owned(), gateways)]);
        MeshSummary { services: services.collect(), networks, settings, objects }
    }

    #[test]
    fn consecutive_differences_combine_to_the_difference_of_the_ends() {
        let states = [
            summary(&[("web", 1, &["a", "b"]), ("db", 1, &["x"])], &["g1"]),
            summary(&[("web", 2, &["a"]), ("db", 1, &["x"])], &["g1", "g2"]),
            summary(&[("web", 1, &["a", "c"]), ("cart", 1, &[])], &["g2"]),
            summary(&[], &[]),
            summary(&[("web", 1, &["a", "b"]), ("db", 1, &["x"])], &["g1"]),
            summary(&[("db", 3, &["y"])], &["g3"]),
        ];
        for from in 0..states.len() {
            let mut all = MeshDifference::default();
            for to in from + 1..states.len() {
                all.append(&MeshDifference::between(&states[to - 1], &states[to]));
                let direct = MeshDifference::between(&states[from], &states[to]);
                assert_eq!(all, direct, "from {from} to {to}");
            }
        }
        let there_and_back = MeshDifference::between(&states[0], &states[4]);
        assert!(there_and_back.is_empty());
        let json = json!(MeshDifference::between(&states[0], &states[1]));
        assert_eq!(
            json["services"],
            json!({ "web": {
                "definition": { "before": { "port": 1 }, "after": { "port": 2 } },
                "endpoints": { "east": { "added": [], "removed": ["b"] } },
            } })
        );
    }

    fn object(kind: &str, name: &str, spec: u32) -> Arc<Value> {
        Arc::new(json!({
            "apiVersion": "networking.istio.io/v1", "kind": kind, "spec": spec,
            "metadata": { "namespace": "shop", "name": name },
        }))
    }

    /// Returns the summary of a configuration: the digests of all its objects.
    fn configured(objects: &[Arc<Value>], mesh: Option<&str>) -> MeshSummary {
        let traffic: Collection = objects.iter().cloned().collect();
        let keys: Vec<ObjectKey> = traffic.iter().map(|(key, _)| key.clone()).collect();
        let mesh = mesh.map(Into::into);
        let snapshot = ConfigurationSnapshot::new(traffic, Collection::default(), mesh, None);
        MeshSummary { objects: Some(digests(&snapshot, keys.iter())), ..MeshSummary::default() }
    }

    #[test]
    fn spec_change_is_a_difference_and_status_change_is_not() {
        let (web, db) = (object("VirtualService", "web", 1), object("Gateway", "db", 1));
        let mut noted = Value::clone(&web);
        noted["status"] = json!({ "parents": [] });
        noted["metadata"]["labels"] = json!({ "team": "a" });
        let before = configured(&[web, db.clone()], None);
        let same = configured(&[Arc::new(noted), db], None);
        assert!(MeshDifference::between(&before, &same).is_empty());

        let web = object("VirtualService", "web", 2);
        let after = configured(&[web, object("Sidecar", "all", 1)], Some("{}"));
        let difference = MeshDifference::between(&before, &after);
        let ends = difference
            .objects
            .iter()
            .map(|(name, it)| (name.as_str(), !it.before.is_null(), !it.after.is_null()));
        let expected = [
            ("Gateway.networking.istio.io shop/db", true, false),
            ("MeshConfig", false, true),
            ("Sidecar.networking.istio.io shop/all", false, true),
            ("VirtualService.networking.istio.io shop/web", true, true),
        ];
        assert_eq!(ends.collect::<Vec<_>>(), expected);
        let mut back = difference;
        back.append(&MeshDifference::between(&after, &before));
        assert!(back.is_empty(), "{back:?}");
    }

    #[test]
    fn summary_without_digests_is_read_and_yields_no_object_differences() {
        let old = r#"{"services":{},"networks":{},"settings":{}}"#;
        let (was, record): (MeshSummary, MeshDifference) =
            (serde_json::from_str(old).expect("read"), serde_json::from_str(old).expect("read"));
        assert!(was.objects.is_none() && record.is_empty());
        let now = configured(&[object("VirtualService", "web", 1)], None);
        assert!(MeshDifference::between(&was, &now).is_empty());
        // A process of an earlier release can read a record without changed objects.
        assert_eq!(json!(record), serde_json::from_str::<Value>(old).expect("read"));
    }

    #[test]
    fn digests_are_equal_in_every_process() {
        // Computed with another implementation of the hash, from the text with sorted keys and
        // without blanks.
        let web = configured(&[object("VirtualService", "web", 1)], None);
        let expected = json!({ "VirtualService.networking.istio.io shop/web": "725a74a53e20f33c" });
        assert_eq!(json!(web.objects), expected);
    }
}
