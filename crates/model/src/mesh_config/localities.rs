//! Which localities of a service come first: as a DestinationRule says it, and the mesh for all others. (Istio,
//! `LocalityLoadBalancerSetting`, in "Destination Rule" and in `MeshConfig.localityLbSetting`.)

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Value, json};

/// Which localities come first.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct LocalitySetting {
    /// Whether they matter at all.
    pub enabled: bool,
    /// Shares, by where a client is: the first that fits counts.
    pub distribute: Vec<Distribute>,
    /// Which region stands in for which.
    pub failover: Vec<(String, String)>,
    /// The labels by which endpoints that are like the client come first.
    pub failover_priority: Vec<PlaceLabel>,
}

/// A label that says where something is; with a value, that counts in the place of the client's own.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum PlaceLabel {
    /// `topology.istio.io/network`.
    Network,
    /// `topology.kubernetes.io/region`.
    Region(Option<Arc<str>>),
    /// `topology.kubernetes.io/zone`.
    Zone(Option<Arc<str>>),
    /// `topology.istio.io/subzone`.
    Subzone(Option<Arc<str>>),
}

/// For clients of a place, which share each place has.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Distribute {
    /// `region/zone/subzone`, with `*` for the rest.
    pub from: String,
    /// Percentages, by the same form; together 100.
    pub to: BTreeMap<String, u32>,
}

impl LocalitySetting {
    /// In Istio's terms.
    pub(super) fn to_json(&self) -> Value {
        let label = |label: &PlaceLabel| {
            let (key, value) = match label {
                PlaceLabel::Network => ("topology.istio.io/network", &None),
                PlaceLabel::Region(value) => ("topology.kubernetes.io/region", value),
                PlaceLabel::Zone(value) => ("topology.kubernetes.io/zone", value),
                PlaceLabel::Subzone(value) => ("topology.istio.io/subzone", value),
            };
            value.as_ref().map_or_else(|| key.to_owned(), |value| format!("{key}={value}"))
        };
        let shares = self.distribute.iter().map(|one| json!({"from": one.from, "to": one.to}));
        let failover = self.failover.iter().map(|(from, to)| json!({"from": from, "to": to}));
        json!({
            "distribute": shares.collect::<Vec<_>>(),
            "enabled": self.enabled,
            "failover": failover.collect::<Vec<_>>(),
            "failoverPriority": self.failover_priority.iter().map(label).collect::<Vec<_>>(),
        })
    }
}

/// The setting as it is written.
#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
pub struct WrittenLocalities {
    distribute: Vec<WrittenDistribute>,
    failover: Vec<WrittenFailover>,
    failover_priority: Vec<String>,
    enabled: Option<bool>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct WrittenDistribute {
    from: String,
    to: BTreeMap<String, u32>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct WrittenFailover {
    from: String,
    to: String,
}

/// A part that counts for nothing: why, where, and in words.
#[derive(Debug, PartialEq, Eq)]
pub enum LocalityFault {
    /// It isn't done here.
    Unsupported(String, String),
    /// It makes no sense.
    Value(String, String),
    /// Another part counts in its place.
    Replaced(String, String),
}

impl WrittenLocalities {
    /// What it comes to, and which parts count for nothing.
    pub fn read(self) -> (LocalitySetting, Vec<LocalityFault>) {
        let mut faults = Vec::new();
        let mut setting =
            LocalitySetting { enabled: self.enabled.unwrap_or(true), ..LocalitySetting::default() };
        for (at, text) in self.failover_priority.iter().enumerate() {
            let (key, value) = match text.split_once('=') {
                Some((key, value)) => (key, Some(value.into())),
                None => (&**text, None),
            };
            setting.failover_priority.push(match key {
                "topology.istio.io/network" if value.is_none() => PlaceLabel::Network,
                "topology.kubernetes.io/region" => PlaceLabel::Region(value),
                "topology.kubernetes.io/zone" => PlaceLabel::Zone(value),
                "topology.istio.io/subzone" => PlaceLabel::Subzone(value),
                _ => {
                    let text = format!(
                        "{text}: labels that say no network, region, zone or subzone are not compared; this one is \
                         left out"
                    );
                    faults.push(LocalityFault::Unsupported(format!("failoverPriority[{at}]"), text));
                    continue;
                }
            });
        }
        for (at, raw) in self.distribute.into_iter().enumerate() {
            let sum: u64 = raw.to.values().map(|share| u64::from(*share)).sum();
            if sum != 100 || raw.from.is_empty() {
                let text = format!("its shares are {sum} together, not 100; it is left out");
                faults.push(LocalityFault::Value(format!("distribute[{at}].to"), text));
            } else {
                setting.distribute.push(Distribute { from: raw.from, to: raw.to });
            }
        }
        if !setting.distribute.is_empty() && !self.failover.is_empty() {
            let text = "distribute is there as well, and counts".to_owned();
            faults.push(LocalityFault::Replaced("failover".to_owned(), text));
        } else {
            for (at, raw) in self.failover.into_iter().enumerate() {
                if raw.from == raw.to {
                    let text = format!("it leads from {:?} to itself; it is left out", raw.from);
                    faults.push(LocalityFault::Value(format!("failover[{at}].to"), text));
                } else {
                    setting.failover.push((raw.from, raw.to));
                }
            }
        }
        (setting, faults)
    }
}
