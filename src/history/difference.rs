//! What two states of the mesh have otherwise: in words and sets, so that differences of differences can be told as one.
//!
//! Pure. What matters to people is in it: services and their endpoints by cluster, gateways, settings. Not who is private to a
//! namespace, nor what proxies are made of it.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::aggregate::MergedService;
use crate::model::{EndpointRef, Health, Hostname, NetworkId};
use crate::push::PushContext;

/// A state of the mesh, or a part of one.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct MeshSummary {
    services: BTreeMap<String, ServiceSummary>,
    /// The gateways of each network.
    networks: BTreeMap<String, BTreeSet<String>>,
    settings: BTreeMap<String, Value>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
struct ServiceSummary {
    definition: Value,
    /// By cluster.
    endpoints: BTreeMap<String, BTreeSet<String>>,
}

/// What a later state has otherwise than an earlier one.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct MeshDifference {
    /// By host name.
    pub services: BTreeMap<String, ServiceDifference>,
    /// Gateways, by network.
    pub networks: BTreeMap<String, SetDifference>,
    /// By field of the mesh config, and `cluster ID` for members.
    pub settings: BTreeMap<String, ValueDifference>,
}

/// What is otherwise of one service.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ServiceDifference {
    /// Its ports, addresses, clusters and so on, where these differ.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub definition: Option<ValueDifference>,
    /// By cluster.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub endpoints: BTreeMap<String, SetDifference>,
}

/// What has come and what has gone. What changed has done both.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct SetDifference {
    /// What only the later one has.
    pub added: BTreeSet<String>,
    /// What only the earlier one has.
    pub removed: BTreeSet<String>,
}

/// A value before and after; null where there is none.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ValueDifference {
    /// Before.
    pub before: Value,
    /// After.
    pub after: Value,
}

impl MeshSummary {
    /// All of a version.
    pub(super) fn whole(context: &PushContext) -> Self {
        Self::of(context, context.services.keys())
    }

    /// A version as far as these services go, and all that is not of services.
    pub(super) fn of<'a>(context: &PushContext, hosts: impl Iterator<Item = &'a Hostname>) -> Self {
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
        for (id, known) in &context.clusters.clusters {
            settings
                .insert(format!("cluster {id}"), json!(format!("{:?}", known.mode).to_lowercase()));
        }
        Self { services: services.collect(), networks, settings }
    }

    /// How many endpoints it holds.
    pub(super) fn endpoints(&self) -> usize {
        let sets = self.services.values().flat_map(|service| service.endpoints.values());
        sets.map(BTreeSet::len).sum()
    }
}

impl ServiceSummary {
    fn of(service: &MergedService) -> Self {
        let port = |port: &crate::model::Port| {
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
            let of_cluster = endpoints.entry(shard.cluster.to_string()).or_default();
            of_cluster.insert(words(&endpoint, network));
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

/// An endpoint as people see it: what of it differs is another one.
fn words(endpoint: &EndpointRef<'_>, network: &NetworkId) -> String {
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
    /// What `after` has otherwise than `before`.
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
        for field in keys(&before.settings, &after.settings) {
            let value = |of: &MeshSummary| of.settings.get(field).cloned().unwrap_or_default();
            let changed = ValueDifference::between(&value(before), &value(after));
            difference.settings.extend(changed.map(|it| (field.clone(), it)));
        }
        difference
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.services.is_empty() && self.networks.is_empty() && self.settings.is_empty()
    }

    /// The same with what a still later state has otherwise: what came and went again is none.
    pub(super) fn then(&mut self, later: &Self) {
        for (host, service) in &later.services {
            let mine = self.services.entry(host.clone()).or_default();
            if let Some(definition) = &service.definition {
                let first = mine.definition.take();
                let before = first.map_or_else(|| definition.before.clone(), |it| it.before);
                mine.definition = ValueDifference::between(&before, &definition.after);
            }
            then(&mut mine.endpoints, &service.endpoints);
            if mine.is_empty() {
                self.services.remove(host);
            }
        }
        then(&mut self.networks, &later.networks);
        for (field, value) in &later.settings {
            let first = self.settings.remove(field);
            let before = first.map_or_else(|| value.before.clone(), |it| it.before);
            let changed = ValueDifference::between(&before, &value.after);
            self.settings.extend(changed.map(|it| (field.clone(), it)));
        }
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

fn sets(
    before: &BTreeMap<String, BTreeSet<String>>,
    after: &BTreeMap<String, BTreeSet<String>>,
) -> BTreeMap<String, SetDifference> {
    let none = BTreeSet::new();
    let mut differences = BTreeMap::new();
    for key in keys(before, after) {
        let (was, is) = (before.get(key).unwrap_or(&none), after.get(key).unwrap_or(&none));
        let (added, removed): (BTreeSet<String>, BTreeSet<String>) =
            (is.difference(was).cloned().collect(), was.difference(is).cloned().collect());
        if !added.is_empty() || !removed.is_empty() {
            differences.insert(key.clone(), SetDifference { added, removed });
        }
    }
    differences
}

fn then(mine: &mut BTreeMap<String, SetDifference>, later: &BTreeMap<String, SetDifference>) {
    for (key, set) in later {
        let all = mine.entry(key.clone()).or_default();
        for one in &set.removed {
            if !all.added.remove(one) {
                all.removed.insert(one.clone());
            }
        }
        for one in &set.added {
            if !all.removed.remove(one) {
                all.added.insert(one.clone());
            }
        }
        if all.added.is_empty() && all.removed.is_empty() {
            mine.remove(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn summary(services: &[(&str, u8, &[&str])], gateways: &[&str]) -> MeshSummary {
        let services = services.iter().map(|(host, port, endpoints)| {
            let endpoints = endpoints.iter().map(|one| (*one).to_owned()).collect();
            let endpoints = BTreeMap::from([("east".to_owned(), endpoints)]);
            ((*host).to_owned(), ServiceSummary { definition: json!({ "port": port }), endpoints })
        });
        let gateways: BTreeSet<String> = gateways.iter().map(|one| (*one).to_owned()).collect();
        let settings = BTreeMap::from([("gateways".to_owned(), json!(gateways))]);
        let networks = BTreeMap::from([("n1".to_owned(), gateways)]);
        MeshSummary { services: services.collect(), networks, settings }
    }

    #[test]
    fn differences_one_after_the_other_are_the_difference_of_the_ends() {
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
                all.then(&MeshDifference::between(&states[to - 1], &states[to]));
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
}
