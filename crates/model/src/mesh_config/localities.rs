//! Locality load balancing: as a DestinationRule sets it, and the mesh-wide default. (Istio,
//! `LocalityLoadBalancerSetting`, in "Destination Rule" and in `MeshConfig.localityLbSetting`.)

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Value, json};

/// The settings of locality load balancing.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct LocalitySetting {
    /// Whether it is enabled.
    pub enabled: bool,
    /// Weights by locality of the client; the first item that matches applies.
    pub distribute: Vec<Distribute>,
    /// Pairs of a region and its failover region.
    pub failover: Vec<(String, String)>,
    /// Labels in order of priority: endpoints with the client's value have priority.
    pub failover_priority: Vec<PlaceLabel>,
}

/// A label of a location. A value replaces the client's own.
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

/// The weights of localities for clients in one locality.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Distribute {
    /// The client's `region/zone/subzone`, with `*` for the rest.
    pub from: String,
    /// Percentages by locality in the same form; their sum is 100.
    pub to: BTreeMap<String, u32>,
}

impl LocalitySetting {
    /// Returns the settings in Istio's terms.
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

/// The settings as they are written.
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

/// A part without effect: its location and the reason, as text.
#[derive(Debug, PartialEq, Eq)]
pub enum LocalityFault {
    /// The part is not supported.
    Unsupported(String, String),
    /// The part is invalid.
    Value(String, String),
    /// Another part overrides it.
    Replaced(String, String),
}

impl WrittenLocalities {
    /// Returns the settings, and the parts without effect.
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
                        "{text}: only labels for network, region, zone and subzone are compared; this one is \
                         ignored"
                    );
                    faults.push(LocalityFault::Unsupported(format!("failoverPriority[{at}]"), text));
                    continue;
                }
            });
        }
        for (at, raw) in self.distribute.into_iter().enumerate() {
            let sum: u64 = raw.to.values().map(|share| u64::from(*share)).sum();
            if sum != 100 || raw.from.is_empty() {
                let text = format!("the sum of its weights is {sum}, not 100; it is ignored");
                faults.push(LocalityFault::Value(format!("distribute[{at}].to"), text));
            } else {
                setting.distribute.push(Distribute { from: raw.from, to: raw.to });
            }
        }
        if !setting.distribute.is_empty() && !self.failover.is_empty() {
            let text = "distribute is also set and takes precedence".to_owned();
            faults.push(LocalityFault::Replaced("failover".to_owned(), text));
        } else {
            for (at, raw) in self.failover.into_iter().enumerate() {
                if raw.from == raw.to {
                    let text =
                        format!("it fails over from {:?} to itself; it is ignored", raw.from);
                    faults.push(LocalityFault::Value(format!("failover[{at}].to"), text));
                } else {
                    setting.failover.push((raw.from, raw.to));
                }
            }
        }
        (setting, faults)
    }
}
