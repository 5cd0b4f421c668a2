//! Telemetry: access logs, traces and metrics of proxies (Istio, "Telemetry"; docs/reference/traffic.md,
//! "Telemetry").

mod cel;
mod entry;
mod metrics;
mod spans;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::Deserialize;
use serde_json::Value;

pub use self::entry::CallEnd;
use self::entry::{RawMatch, RawProvider};
pub use self::metrics::{LabelChange, Metric, MetricsChoice};
use self::metrics::{MetricsRule, RawMetrics};
use self::spans::{RawTracing, TracingRule};
pub use self::spans::{SpanTag, SpanTagValue, TracingChoice};
use super::changes::TrafficChanges;
use super::object::{self, ObjectMeta, RawWorkloadSelector, Reason};
use super::scoped::{Scoped, ScopedInForce, ScopedObjects};
use super::selection::{self, RuleSelector, Selection};
use strait_base::codes;
use strait_model::Namespace;
use strait_model::mesh_config::{AccessLog, MeshConfig};

/// A parsed Telemetry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Telemetry {
    /// Name, namespace and age of the object.
    pub meta: ObjectMeta,
    /// Selector of the proxies in its namespace; `None` for all proxies.
    pub selector: Option<RuleSelector>,
    /// Rules for access logs, in the order of the object.
    logging: Vec<LoggingRule>,
    /// Rules for traces, in the order of the object.
    tracing: Vec<TracingRule>,
    /// Rules for metrics, in the order of the object.
    metrics: Vec<MetricsRule>,
}

/// A rule for access logs.
#[derive(Debug, Clone, PartialEq, Eq)]
struct LoggingRule {
    /// End of the call; `None` for both ends.
    end: Option<CallEnd>,
    /// Names of log providers. Empty to use the providers of the previous rule, or the defaults.
    providers: Vec<Arc<str>>,
    disabled: bool,
    /// CEL expression that selects requests. If it is absent, the previous one applies.
    filter: Option<Arc<str>>,
}

/// An access log that a proxy writes.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct WrittenLog {
    /// Target and format of the log.
    pub log: Arc<AccessLog>,
    /// CEL expression that selects requests, which Envoy can parse; `None` for all requests.
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
    metrics: Vec<RawMetrics>,
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
    /// Parses an object. Also returns the reasons to report to its owner.
    ///
    /// # Errors
    /// The reason why the whole object is refused.
    pub fn read(meta: ObjectMeta, object: &Value) -> Result<(Self, Vec<Reason>), Reason> {
        let (raw, mut reasons) = object::body::<RawTelemetry>(object)?;
        if raw.target_ref.is_some() || !raw.target_refs.is_empty() {
            // Without the target, the object would apply to more proxies than intended.
            let text = "targets are not supported: select workloads with spec.selector";
            let field = if raw.target_ref.is_some() { "spec.targetRef" } else { "spec.targetRefs" };
            return Err(Reason::lost(&codes::TRAFFIC_UNSUPPORTED, field, text));
        }
        let mut logging = Vec::new();
        for (at, raw) in raw.access_logging.into_iter().enumerate() {
            let expression = raw.filter.map(|filter| filter.expression);
            let expression = expression.filter(|text| !text.trim().is_empty());
            if let Some(Err(fact)) = expression.as_deref().map(cel::check) {
                // Without this entry, less is logged. A log of everything, or a rejected listener,
                // would be worse.
                let path = format!("spec.accessLogging[{at}].filter.expression");
                let text = format!("{fact}; the entry is left out");
                reasons.push(Reason::lost(&codes::TRAFFIC_VALUE, path, text));
                continue;
            }
            for name in expression.as_deref().map(cel::unknown_attributes).unwrap_or_default() {
                let path = format!("spec.accessLogging[{at}].filter.expression");
                let text = format!(
                    "{name} is not an attribute of Envoy: requests are not logged if the expression needs its value"
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
        let metrics = raw.metrics.into_iter().enumerate();
        let metrics = metrics
            .flat_map(|(at, raw)| raw.read(&format!("spec.metrics[{at}]"), &mut reasons))
            .collect();
        let selector = raw.selector.and_then(|raw| selection::selector(&raw.match_labels));
        Ok((Self { meta, selector, logging, tracing, metrics }, reasons))
    }

    /// Iterates over the log providers in the object, each with its path.
    pub fn providers(&self) -> impl Iterator<Item = (String, &Arc<str>)> {
        let path = |at, place| format!("spec.accessLogging[{at}].providers[{place}].name");
        self.logging.iter().enumerate().flat_map(move |(at, rule)| {
            let names = rule.providers.iter().enumerate();
            names.map(move |(place, name)| (path(at, place), name))
        })
    }

    /// Iterates over the tracing providers in the object, each with its path.
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

/// All active Telemetries.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Telemetries {
    objects: ScopedObjects<Telemetry>,
}

impl Telemetries {
    /// Returns whether any Telemetry is in this namespace.
    pub fn concerns(&self, namespace: &Namespace) -> bool {
        !self.objects.in_namespace(namespace).is_empty()
    }

    /// Returns whether the proxies of a namespace have the same Telemetries as in an earlier
    /// version.
    pub fn same_in(&self, before: &Self, namespace: &Namespace) -> bool {
        self.objects.same_in(&before.objects, namespace)
    }

    /// Returns the reason why a Telemetry applies to no proxy, if any.
    pub fn loss(&self, meta: &ObjectMeta) -> Option<Reason> {
        let (first, proxies) = self.objects.before(meta)?;
        let text = format!(
            "Telemetry {first} is older and applies to {proxies}: this one applies to \
                            no proxy"
        );
        Some(Reason::lost(&codes::TELEMETRY_SHADOWED, "spec", text))
    }

    /// Returns the objects that apply to a proxy. Each level overrides the previous one: the root
    /// namespace, the proxy's namespace, and a selector that matches the proxy.
    pub fn for_proxy(&self, namespace: &Namespace, selection: &Selection) -> Vec<&Arc<Telemetry>> {
        let selected = self.objects.in_namespace(namespace).iter().find(|telemetry| {
            telemetry.selector.as_ref().is_some_and(|selector| selection.contains(selector))
        });
        let mut levels: Vec<_> =
            [self.objects.root_default(), self.objects.namespace_default(namespace), selected]
                .into_iter()
                .flatten()
                .collect();
        levels.dedup_by(|a, b| Arc::ptr_eq(a, b));
        levels
    }

    /// Returns the access logs of a proxy for one end of calls, by name: the mesh defaults,
    /// overridden by more specific levels. Unknown provider names are ignored.
    pub fn logs(
        &self,
        mesh: &MeshConfig,
        (namespace, selection): (&Namespace, &Selection),
        end: CallEnd,
    ) -> Vec<WrittenLog> {
        let levels = self.for_proxy(namespace, selection);
        let holds = |rule: &&LoggingRule| rule.end.is_none_or(|rule_end| rule_end == end);
        let named = levels.iter().rev().map(|level| -> BTreeSet<&Arc<str>> {
            level.logging.iter().filter(holds).flat_map(|rule| &rule.providers).collect()
        });
        let providers = named.into_iter().find(|names| !names.is_empty());
        let providers = providers.unwrap_or_else(|| mesh.default_logs.iter().collect());
        let by_default = mesh.default_logs.iter().filter(|name| providers.contains(name));
        // Whether each is written, and which requests.
        let mut given: BTreeMap<&Arc<str>, (bool, Option<&Arc<str>>)> =
            by_default.map(|name| (name, (true, None))).collect();
        let mut names = &mesh.default_logs;
        for rule in levels.iter().flat_map(|level| &level.logging) {
            // An entry for the other end of calls does not change the logs of the entries after it.
            if !holds(&rule) {
                continue;
            }
            if !rule.providers.is_empty() {
                names = &rule.providers;
            }
            for name in names.iter().filter(|name| providers.contains(name)) {
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

    /// Returns the tracing settings of a proxy for one end of calls; `None` if it sends no spans.
    pub fn tracing(
        &self,
        mesh: &MeshConfig,
        (namespace, selection): (&Namespace, &Selection),
        end: CallEnd,
    ) -> Option<TracingChoice> {
        let levels = self.for_proxy(namespace, selection);
        let rules = levels.iter().flat_map(|level| &level.tracing);
        spans::choice(rules, mesh.default_tracing.as_ref(), end)
    }

    /// Returns the changes to the service metrics of a proxy for one end of calls.
    pub fn metrics(
        &self,
        (namespace, selection): (&Namespace, &Selection),
        end: CallEnd,
    ) -> MetricsChoice {
        let levels = self.for_proxy(namespace, selection);
        MetricsChoice::combine(levels.iter().flat_map(|level| &level.metrics), end)
    }

    pub(super) fn insert(&mut self, telemetry: &Arc<Telemetry>, into: ScopedInForce<'_>) {
        self.objects.insert(telemetry, into, note);
    }

    pub(super) fn remove(&mut self, telemetry: &Telemetry, from: ScopedInForce<'_>) {
        self.objects.remove(telemetry, from, note);
    }
}

/// Records the namespace. The affected proxies are computed one by one, also for objects that apply
/// to all.
fn note(changes: &mut TrafficChanges, namespace: &Namespace, _: bool) {
    changes.logging.insert(namespace.clone());
}

pub use self::cel::{READABLE, UNREADABLE, as_deep_as_envoys_take, too_deep_for_envoys};

#[cfg(test)]
mod tests;
