//! Telemetry: which logs proxies write of requests and connections, and which traces. (Istio, "Telemetry";
//! docs/reference/traffic.md, "Telemetry".)

mod cel;
mod entry;
mod spans;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::Deserialize;
use serde_json::Value;

pub use self::entry::CallEnd;
use self::entry::{RawMatch, RawProvider};
use self::spans::{RawTracing, TracingRule};
pub use self::spans::{SpanTag, SpanTagValue, TracingChoice};
use super::changes::TrafficChanges;
use super::object::{self, ObjectMeta, RawWorkloadSelector, Reason};
use super::scoped::{Scoped, ScopedInForce, ScopedObjects};
use super::selection::{self, RuleSelector, Selection};
use strait_base::codes;
use strait_model::Namespace;
use strait_model::mesh_config::{AccessLog, MeshConfig};

/// What one object says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Telemetry {
    /// Which object it is.
    pub meta: ObjectMeta,
    /// The proxies of its namespace that it holds for, where these are not all.
    pub selector: Option<RuleSelector>,
    /// What it says of logs, in the order of the object.
    logging: Vec<LoggingRule>,
    /// What it says of traces, in the same order.
    tracing: Vec<TracingRule>,
}

/// What is said of logs by some names.
#[derive(Debug, Clone, PartialEq, Eq)]
struct LoggingRule {
    /// At which end of a call; `None` for both.
    end: Option<CallEnd>,
    /// Names of logs; none for those that are meant anyway.
    providers: Vec<Arc<str>>,
    disabled: bool,
    /// Which requests are written: an expression of CEL. Those before it count where there is none.
    filter: Option<Arc<str>>,
}

/// A log that is written.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct WrittenLog {
    /// Where, and what.
    pub log: Arc<AccessLog>,
    /// Which requests, if not all: an expression of CEL that Envoys can read.
    pub filter: Option<Arc<str>>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct RawTelemetry {
    selector: Option<RawWorkloadSelector>,
    target_ref: Option<Value>,
    target_refs: Vec<Value>,
    access_logging: Vec<RawLogging>,
    tracing: Vec<RawTracing>,
    metrics: Vec<Value>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct RawLogging {
    r#match: RawMatch,
    providers: Vec<RawProvider>,
    disabled: bool,
    filter: Option<RawLogFilter>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct RawLogFilter {
    expression: String,
}

impl Telemetry {
    /// Reads an object, with what its owner should know.
    ///
    /// # Errors
    /// Why it is refused whole.
    pub fn read(meta: ObjectMeta, object: &Value) -> Result<(Self, Vec<Reason>), Reason> {
        let (raw, mut reasons) = object::body::<RawTelemetry>(object)?;
        if !raw.metrics.is_empty() {
            let text = "proxies keep the metrics that they have";
            reasons.push(Reason::lost(&codes::TRAFFIC_UNSUPPORTED, "spec.metrics", text));
        }
        if raw.target_ref.is_some() || !raw.target_refs.is_empty() {
            // For all would be for others than its owner meant.
            let text = "name workloads by spec.selector: a target is not followed";
            return Err(Reason::lost(&codes::TRAFFIC_UNSUPPORTED, "spec.targetRefs", text));
        }
        let mut logging = Vec::new();
        for (at, raw) in raw.access_logging.into_iter().enumerate() {
            let expression = raw.filter.map(|filter| filter.expression);
            let expression = expression.filter(|text| !text.trim().is_empty());
            if let Some(Err(fact)) = expression.as_deref().map(cel::check) {
                // Nothing is better than a log of everything, or of nothing at all listeners.
                let path = format!("spec.accessLogging[{at}].filter.expression");
                let text = format!("{fact}; the entry is left out");
                reasons.push(Reason::lost(&codes::TRAFFIC_VALUE, path, text));
                continue;
            }
            if let Some(name) = expression.as_deref().and_then(cel::unknown_attribute) {
                let path = format!("spec.accessLogging[{at}].filter.expression");
                let text = format!(
                    "{name} is not an attribute of Envoy: requests for which the expression needs its value are not logged"
                );
                reasons.push(Reason::lost(&codes::TRAFFIC_UNSUPPORTED, path, text));
            }
            logging.push(LoggingRule {
                end: raw.r#match.mode.end(),
                providers: raw.providers.into_iter().map(|one| one.name).collect(),
                disabled: raw.disabled,
                filter: expression.map(Into::into),
            });
        }
        let tracing = raw.tracing.into_iter().enumerate();
        let tracing = tracing
            .map(|(at, raw)| raw.read(&format!("spec.tracing[{at}]"), &mut reasons))
            .collect();
        let selector = raw.selector.and_then(|raw| selection::selector(&raw.match_labels));
        Ok((Self { meta, selector, logging, tracing }, reasons))
    }

    /// The logs that it names, with the path of each.
    pub fn providers(&self) -> impl Iterator<Item = (String, &Arc<str>)> {
        let path = |at, place| format!("spec.accessLogging[{at}].providers[{place}].name");
        self.logging.iter().enumerate().flat_map(move |(at, rule)| {
            let names = rule.providers.iter().enumerate();
            names.map(move |(place, name)| (path(at, place), name))
        })
    }

    /// The providers of traces that it names, with the path of each.
    pub fn tracing_providers(&self) -> impl Iterator<Item = (String, &Arc<str>)> {
        let named = self.tracing.iter().enumerate();
        named.filter_map(|(at, rule)| {
            Some((format!("spec.tracing[{at}].providers[0].name"), rule.provider.as_ref()?))
        })
    }
}

impl Scoped for Telemetry {
    fn meta(&self) -> &ObjectMeta {
        &self.meta
    }

    fn selector(&self) -> Option<&RuleSelector> {
        self.selector.as_ref()
    }
}

/// All of them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Telemetries {
    objects: ScopedObjects<Telemetry>,
}

impl Telemetries {
    /// Whether it matters that a proxy is in this namespace.
    pub fn concerns(&self, namespace: &Namespace) -> bool {
        !self.objects.of(namespace).is_empty()
    }

    /// Whether proxies of a namespace write the same as by those of before.
    pub fn same_in(&self, before: &Self, namespace: &Namespace) -> bool {
        self.objects.same_in(&before.objects, namespace)
    }

    /// Why one holds for nobody.
    pub fn loss(&self, meta: &ObjectMeta) -> Option<Reason> {
        let (first, whom) = self.objects.before(meta)?;
        let text = format!("Telemetry {first} is older and holds for {whom}: this one for none");
        Some(Reason::lost(&codes::TELEMETRY_SHADOWED, "spec", text))
    }

    /// Those that hold for a proxy, each level over the one before: the root namespace's, its own namespace's, and that
    /// which selects it.
    pub fn of_proxy(&self, namespace: &Namespace, selection: &Selection) -> Vec<&Arc<Telemetry>> {
        let selected =
            self.objects.of(namespace).iter().find(|one| {
                one.selector.as_ref().is_some_and(|selector| selection.contains(selector))
            });
        let mut levels: Vec<_> =
            [self.objects.of_root(), self.objects.default_of(namespace), selected]
                .into_iter()
                .flatten()
                .collect();
        levels.dedup_by(|a, b| Arc::ptr_eq(a, b));
        levels
    }

    /// The logs that a proxy writes at an end of calls, by name: those of the mesh, as far as nearer levels don't say
    /// otherwise. A name that no log has counts for nothing.
    pub fn logs(
        &self,
        mesh: &MeshConfig,
        (namespace, selection): (&Namespace, &Selection),
        end: CallEnd,
    ) -> Vec<WrittenLog> {
        let levels = self.of_proxy(namespace, selection);
        let holds = |rule: &&LoggingRule| rule.end.is_none_or(|of| of == end);
        let named = levels.iter().rev().map(|level| -> BTreeSet<&Arc<str>> {
            level.logging.iter().filter(holds).flat_map(|rule| &rule.providers).collect()
        });
        let meant = named.into_iter().find(|names| !names.is_empty());
        let meant = meant.unwrap_or_else(|| mesh.default_logs.iter().collect());
        let by_default = mesh.default_logs.iter().filter(|name| meant.contains(name));
        // Whether each is written, and which requests.
        let mut given: BTreeMap<&Arc<str>, (bool, Option<&Arc<str>>)> =
            by_default.map(|name| (name, (true, None))).collect();
        let mut names = &mesh.default_logs;
        for rule in levels.iter().flat_map(|level| &level.logging) {
            if !rule.providers.is_empty() {
                names = &rule.providers;
            }
            if !holds(&rule) {
                continue;
            }
            for name in names.iter().filter(|name| meant.contains(name)) {
                let before = given.get(name).and_then(|(_, filter)| *filter);
                given.insert(name, (!rule.disabled, rule.filter.as_ref().or(before)));
            }
        }
        let written = given.into_iter().filter(|(_, (is_written, _))| *is_written);
        let written = written.filter_map(|(name, (_, filter))| {
            Some(WrittenLog { log: Arc::clone(mesh.log_named(name)?), filter: filter.cloned() })
        });
        written.collect()
    }

    /// What a proxy does of traces at an end of calls; `None` for nothing.
    pub fn tracing(
        &self,
        mesh: &MeshConfig,
        (namespace, selection): (&Namespace, &Selection),
        end: CallEnd,
    ) -> Option<TracingChoice> {
        let levels = self.of_proxy(namespace, selection);
        let rules = levels.iter().flat_map(|level| &level.tracing);
        spans::choice(rules, mesh.default_tracing.as_ref(), end)
    }

    pub(super) fn insert(&mut self, telemetry: &Arc<Telemetry>, into: ScopedInForce<'_>) {
        self.objects.insert(telemetry, into, note);
    }

    pub(super) fn remove(&mut self, telemetry: &Telemetry, from: ScopedInForce<'_>) {
        self.objects.remove(telemetry, from, note);
    }
}

/// Who writes other logs than before is found out proxy by proxy, so that one for all is no other matter.
fn note(changes: &mut TrafficChanges, namespace: &Namespace, _: bool) {
    changes.logging.insert(namespace.clone());
}

pub use self::cel::{READABLE, UNREADABLE, as_deep_as_envoys_take, too_deep_for_envoys};

#[cfg(test)]
mod tests;
