//! DestinationRule: the policy that clients apply to a service (Istio, "Destination Rule";
//! docs/reference/traffic.md, "DestinationRule").

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use imbl::OrdMap;
use imbl::ordmap::DiffItem;
use serde::Deserialize;
use serde_json::Value;

use super::changes::TrafficChanges;
use super::hosts::HostPattern;
use super::kind::KindSettings;
use super::object::{self, ObjectMeta, RawWorkloadSelector, Reason};
use super::policy::{
    Algorithm, ClientTls, LoadBalancing, PolicyGroups, RawTrafficPolicy, ResolvedPolicy, RuleScope,
    TrafficPolicy, resolve,
};
use super::selection::{self, RuleSelector, Selection, Selectors};
use strait_base::codes;
use strait_model::{ExportTo, Labels, Namespace, SortedMap};

/// A rule, from one object or merged from several objects with the same host and clients.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DestinationRule {
    /// The objects of the rule, the oldest first. Never empty, all in one namespace.
    pub objects: Box<[ObjectMeta]>,
    /// The services that the rule applies to.
    pub host: HostPattern,
    /// The namespaces whose clients the rule may apply to.
    pub export_to: ExportTo,
    /// Selector of the clients that the rule applies to; `None` for all. A rule with a selector
    /// applies only to its own namespace.
    pub selector: Option<RuleSelector>,
    /// Traffic policy for the service.
    pub policy: Option<Arc<TrafficPolicy>>,
    /// Subsets of the service, by name.
    pub subsets: Arc<SortedMap<Arc<str>, Subset>>,
}

/// A subset of a service.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Subset {
    /// Labels that its endpoints have; empty for all endpoints.
    pub labels: Labels,
    /// Traffic policy that overrides that of the service.
    pub policy: Option<Arc<TrafficPolicy>>,
    /// Whether no object contains the subset any more: see [`super::retained_subsets`].
    pub is_retained: bool,
}

/// Maximum number of subsets of a rule. Each adds an upstream cluster for each port.
const SUBSETS_MAX: usize = 4096;
/// Maximum number of subsets of a rule for a wildcard. All matching services have all of them.
const SUBSETS_OF_MANY_MAX: usize = 256;

/// Label that Istio's control plane adds to every endpoint.
const NODE_LABEL: &str = "kubernetes.io/hostname";

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct RawDestinationRule {
    host: String,
    traffic_policy: Option<RawTrafficPolicy>,
    subsets: Vec<RawSubset>,
    export_to: Vec<String>,
    workload_selector: Option<RawWorkloadSelector>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct RawSubset {
    name: String,
    labels: BTreeMap<String, String>,
    traffic_policy: Option<RawTrafficPolicy>,
}

impl DestinationRule {
    /// Parses an object. Also returns the reasons to report to its owner.
    ///
    /// # Errors
    /// The reason why the whole object is refused.
    pub fn read(
        meta: ObjectMeta,
        object: &Value,
        settings: &KindSettings,
    ) -> Result<(Self, Vec<Reason>), Reason> {
        let (raw, mut reasons) = object::body::<RawDestinationRule>(object)?;
        let host = HostPattern::parse(&raw.host, meta.namespace.as_str(), &settings.domain);
        let host = host.map_err(|error| {
            let text = format!("{:?} {error}; the rule has no effect", raw.host);
            Reason::lost(&codes::TRAFFIC_HOST, "spec.host", text)
        })?;
        let selector = raw.workload_selector.map(|raw| raw.match_labels);
        let (selector, export_to) = read_clients(selector, &raw.export_to, &meta, settings);
        let scope = if selector.is_some() { RuleScope::Selected } else { RuleScope::AllWorkloads };
        object::note_export(&raw.export_to, &mut reasons);
        let policy = raw.traffic_policy.map(|raw| {
            Arc::new(TrafficPolicy::read(raw, "spec.trafficPolicy", scope, &mut reasons))
        });
        let most = if host.exact().is_some() { SUBSETS_MAX } else { SUBSETS_OF_MANY_MAX };
        let mut subsets = BTreeMap::<Arc<str>, Subset>::new();
        for (at, raw) in raw.subsets.into_iter().enumerate() {
            let path = format!("spec.subsets[{at}]");
            if let Err(fact) = is_subset_name(&raw.name) {
                let text = format!("{:?} {fact}; the subset is left out", raw.name);
                reasons.push(Reason::lost(&codes::TRAFFIC_SUBSET, format!("{path}.name"), text));
                continue;
            }
            if subsets.contains_key(&*raw.name) {
                let text = format!("{} is a duplicate; the first one applies", raw.name);
                reasons.push(Reason::lost(&codes::TRAFFIC_SUBSET, format!("{path}.name"), text));
                continue;
            }
            if subsets.len() == most {
                let text = format!("a rule may have at most {most} subsets: this one is left out");
                reasons.push(Reason::lost(&codes::TRAFFIC_SUBSET, path, text));
                continue;
            }
            let subset_policy = raw.traffic_policy.map(|raw| {
                let path = format!("{path}.trafficPolicy");
                Arc::new(TrafficPolicy::read(raw, &path, scope, &mut reasons))
            });
            let lost = balancing_lost(policy.as_deref(), subset_policy.as_deref());
            for what in lost {
                let path = format!("{path}.trafficPolicy.loadBalancer");
                let text = format!(
                    "replaces that of the rule completely: {what} does not apply to {}",
                    raw.name
                );
                reasons.push(Reason::warning(&codes::TRAFFIC_REPLACED, path, text));
            }
            for (port, what) in port_losses(policy.as_deref(), subset_policy.as_deref()) {
                let path = format!("{path}.trafficPolicy.portLevelSettings");
                let text = format!(
                    "replace all other settings of port {port}: {what} does not apply there to {}",
                    raw.name
                );
                reasons.push(Reason::warning(&codes::TRAFFIC_REPLACED, path, text));
            }
            if raw.labels.contains_key(NODE_LABEL) {
                let path = format!("{path}.labels");
                let text = format!(
                    "{NODE_LABEL} of nodes is not compared: {} contains only endpoints whose pods \
                     have this label",
                    raw.name
                );
                reasons.push(Reason::warning(&codes::TRAFFIC_UNSUPPORTED, path, text));
            }
            let labels = raw.labels.iter();
            let labels = labels.map(|(key, value)| (key.as_str().into(), value.as_str().into()));
            let subset =
                Subset { labels: labels.collect(), policy: subset_policy, is_retained: false };
            subsets.insert(raw.name.into(), subset);
        }
        let subsets = Arc::new(subsets.into_iter().collect());
        let rule = Self { objects: [meta].into(), host, export_to, selector, policy, subsets };
        Ok((rule, reasons))
    }

    /// Returns a replacement for an object that never matched its schema. If the object may have
    /// required TLS, the host becomes unreachable. Returns `None` if the object has no host or does
    /// not mention TLS.
    ///
    /// If the object were ignored instead, its clients would continue in plaintext.
    pub fn guard(meta: ObjectMeta, object: &Value, settings: &KindSettings) -> Option<Self> {
        let spec = object.get("spec")?;
        let has_tls = |policy: Option<&Value>| policy.is_some_and(has_tls_settings);
        let subsets = spec.get("subsets").and_then(Value::as_array).into_iter().flatten();
        let mut subset_policies = subsets.map(|subset| subset.get("trafficPolicy"));
        if !has_tls(spec.get("trafficPolicy")) && !subset_policies.any(has_tls) {
            return None;
        }
        let host = spec.get("host").and_then(Value::as_str)?;
        let host = HostPattern::parse(host, meta.namespace.as_str(), &settings.domain).ok()?;
        let tls = Some(Arc::new(ClientTls::Impossible));
        let groups = PolicyGroups { tls, ..PolicyGroups::default() };
        let policy = Some(Arc::new(TrafficPolicy { groups, ports: SortedMap::new() }));
        // The clients of the object, as far as they can be read.
        let given = spec.get("exportTo").and_then(Value::as_array).into_iter().flatten();
        let given: Vec<String> = given.filter_map(Value::as_str).map(str::to_owned).collect();
        let selector = spec.pointer("/workloadSelector/matchLabels");
        let selector = selector.and_then(|raw| BTreeMap::deserialize(raw).ok());
        let (selector, export_to) = read_clients(selector, &given, &meta, settings);
        let subsets = Arc::default();
        Some(Self { objects: [meta].into(), host, export_to, selector, policy, subsets })
    }

    /// Returns the policy for a port of the service, or of a subset. For an unknown subset, the
    /// policy of the service applies.
    pub fn resolved(&self, subset: &str, port: u16) -> ResolvedPolicy {
        let subset_policy = self.subsets.get(subset).and_then(|subset| subset.policy.as_deref());
        resolve(self.policy.as_deref(), subset_policy, port)
    }

    /// Returns whether the location of clients matters: see [`DestinationRules::place`].
    fn places(&self) -> bool {
        let subset_policies = self.subsets.values().map(|subset| &subset.policy);
        let mut policies = std::iter::once(&self.policy).chain(subset_policies).flatten();
        policies.any(|policy| policy.places())
    }

    /// Returns the oldest object of the rule.
    pub fn meta(&self) -> &ObjectMeta {
        self.objects.first().expect("a rule is from an object")
    }

    /// Returns the namespace of the rule.
    pub fn namespace(&self) -> &Namespace {
        &self.meta().namespace
    }

    /// Returns whether the rule applies to all clients of the host, in all namespaces. This is the
    /// case for public rules in the service's own namespace, and for public rules in the root
    /// namespace, which apply if no other namespace has a rule.
    fn is_general(&self, domain: &str, root_namespace: &Namespace) -> bool {
        let is_own_service = || {
            let suffix = format!(".{}.svc.{domain}", self.namespace());
            self.host.exact().is_some_and(|host| host.as_str().ends_with(&suffix))
        };
        self.selector.is_none()
            && self.export_to == ExportTo::Public
            && (self.namespace() == root_namespace || is_own_service())
    }

    /// Returns whether two rules of a host have the same namespace and the same clients.
    pub(super) fn has_same_clients(&self, other: &Self) -> bool {
        self.namespace() == other.namespace()
            && self.export_to == other.export_to
            && self.selector == other.selector
    }

    /// Adds the settings of a younger rule that this rule lacks.
    fn merge(&mut self, younger: &Self) {
        self.objects = self.objects.iter().chain(&younger.objects).cloned().collect();
        if self.policy.is_none() {
            self.policy.clone_from(&younger.policy);
        }
        for (name, subset) in younger.subsets.iter() {
            if !self.subsets.contains_key(name) {
                Arc::make_mut(&mut self.subsets).insert(Arc::clone(name), subset.clone());
            }
        }
    }
}

/// Returns the load balancing settings of a rule that a subset removes by setting others.
fn balancing_lost(
    rule: Option<&TrafficPolicy>,
    subset: Option<&TrafficPolicy>,
) -> Vec<&'static str> {
    let balancing = |policy: Option<&TrafficPolicy>| policy?.groups.load_balancer.clone();
    let (Some(rule), Some(subset)) = (balancing(rule), balancing(subset)) else {
        return Vec::new();
    };
    let hashes = |one: &LoadBalancing| matches!(one.algorithm, Algorithm::ConsistentHash(_));
    let lost = [
        ("its localityLbSetting", rule.locality.is_some() && subset.locality.is_none()),
        ("its consistentHash", hashes(&rule) && !hashes(&subset)),
        ("its warmup", rule.warmup.is_some() && subset.warmup.is_none()),
    ];
    lost.into_iter().filter(|(_, is_lost)| *is_lost).map(|(what, _)| what).collect()
}

/// Returns the settings of a rule and its subset that a port of the subset removes, as pairs of
/// port and setting.
fn port_losses(
    rule: Option<&TrafficPolicy>,
    subset: Option<&TrafficPolicy>,
) -> Vec<(u16, &'static str)> {
    let Some(subset) = subset else { return Vec::new() };
    let anywhere = TrafficPolicy { ports: SortedMap::new(), ..subset.clone() };
    let lost_at_port = |(port, own): (&u16, &PolicyGroups)| {
        let given = resolve(rule, Some(&anywhere), *port);
        let lost = [
            ("loadBalancer", given.load_balancer.is_some() && own.load_balancer.is_none()),
            ("connectionPool", given.connection_pool.is_some() && own.connection_pool.is_none()),
            (
                "outlierDetection",
                given.outlier_detection.is_some() && own.outlier_detection.is_none(),
            ),
            ("tls", given.tls.is_some() && own.tls.is_none()),
        ];
        let port = *port;
        lost.into_iter().filter(|(_, is_lost)| *is_lost).map(move |(what, _)| (port, what))
    };
    subset.ports.iter().flat_map(lost_at_port).collect()
}

/// Returns the clients of a rule. A rule with a selector applies only to its own namespace,
/// regardless of `exportTo`.
fn read_clients(
    selector: Option<BTreeMap<String, String>>,
    given: &[String],
    meta: &ObjectMeta,
    settings: &KindSettings,
) -> (Option<RuleSelector>, ExportTo) {
    let selector = selector.and_then(|raw| selection::selector(&raw));
    let export_to = match selector {
        Some(_) => ExportTo::Namespaces(vec![meta.namespace.clone()]),
        None => object::export_to(given, &settings.destination_rules_export_to, &meta.namespace),
    };
    (selector, export_to)
}

/// Returns whether a policy contains TLS settings other than for plaintext. Settings without a mode
/// are for plaintext.
fn has_tls_settings(policy: &Value) -> bool {
    let is_tls = |groups: &Value| match groups.get("tls") {
        None | Some(Value::Null) => false,
        Some(Value::Object(block)) => block.get("mode").is_some_and(|mode| mode != "DISABLE"),
        Some(_) => true,
    };
    let port_settings = policy.get("portLevelSettings").and_then(Value::as_array);
    is_tls(policy) || port_settings.is_some_and(|ports| ports.iter().any(is_tls))
}

/// Checks the name of a subset. It becomes part of names that are parsed again, so it must not
/// contain their separators (Kubernetes, "Label names"; the API says DNS label).
fn is_subset_name(name: &str) -> Result<(), &'static str> {
    let legal = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
    match name {
        "" => Err("is empty"),
        _ if name.len() > 253 => Err("is longer than 253 characters"),
        _ if !name.bytes().all(legal) => {
            Err("contains characters other than letters, digits, - . and _")
        }
        _ if name.contains("_.") => Err("contains _., which separates the parts of an SNI"),
        _ => Ok(()),
    }
}

/// The properties of a client that rules depend on.
#[derive(Debug, Clone, Copy)]
pub struct RuleClient<'a> {
    /// Namespace of the client.
    pub namespace: &'a Namespace,
    /// The selectors that match the client.
    pub selection: &'a Selection,
}

/// The rules of one host, sorted by namespace; in each namespace, rules with selectors come first,
/// then the oldest. Most hosts have one rule.
type HostRules = Arc<[Arc<DestinationRule>]>;

/// Returns the range of the rules of one host that are in a namespace.
fn namespace_range(rules: &[Arc<DestinationRule>], namespace: &Namespace) -> Range<usize> {
    let start = rules.partition_point(|rule| rule.namespace() < namespace);
    let end = rules.partition_point(|rule| rule.namespace() <= namespace);
    start..end
}

/// All active rules, by host.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DestinationRules {
    by_host: OrdMap<HostPattern, HostRules>,
    /// Number of rules that do not apply to all clients, by host and by namespace of their clients.
    special_hosts: OrdMap<HostPattern, usize>,
    special_namespaces: OrdMap<Namespace, usize>,
    /// Number of rules for which the location of the client matters, by host.
    placed_hosts: OrdMap<HostPattern, usize>,
    root_namespace: Namespace,
}

impl DestinationRules {
    /// Returns whether there are no rules.
    pub fn is_empty(&self) -> bool {
        self.by_host.is_empty()
    }

    /// Returns the rules that may apply to clients of a service.
    pub fn of(&self, host: &str) -> RulesForHost {
        if self.by_host.is_empty() {
            return RulesForHost::default();
        }
        let found = patterns(host).filter_map(|pattern| self.by_host.get(&pattern).cloned());
        RulesForHost { rules: found.collect(), root_namespace: self.root_namespace.clone() }
    }

    /// See [`super::Traffic::is_by_namespace`].
    pub fn is_by_namespace(&self, host: &str) -> bool {
        !self.special_hosts.is_empty()
            && patterns(host).any(|pattern| self.special_hosts.contains_key(&pattern))
    }

    /// Returns whether the order and weights of endpoints may depend on the location of the client.
    pub fn place(&self, host: &str) -> bool {
        !self.placed_hosts.is_empty()
            && patterns(host).any(|pattern| self.placed_hosts.contains_key(&pattern))
    }

    /// Iterates over the hosts of all rules.
    pub fn hosts(&self) -> impl Iterator<Item = HostPattern> {
        self.by_host.keys().cloned()
    }

    /// See [`super::Traffic::concerns`].
    pub fn concerns(&self, namespace: &Namespace) -> bool {
        self.special_namespaces.contains_key(namespace)
    }

    /// Returns the rules for exactly this host pattern.
    pub(super) fn for_pattern(&self, host: &HostPattern) -> &[Arc<DestinationRule>] {
        self.by_host.get(host).map_or(&[], |rules| rules)
    }

    /// Returns the rules of each host with changed rules: previous and current.
    pub(super) fn differing<'a>(
        &'a self,
        before: &'a Self,
    ) -> impl Iterator<Item = [&'a [Arc<DestinationRule>]; 2]> {
        before.by_host.diff(&self.by_host).map(|item| match item {
            DiffItem::Add(_, new) => [&[][..], &**new],
            DiffItem::Remove(_, old) => [&**old, &[]],
            DiffItem::Update { old: (_, old), new: (_, new) } => [&**old, &**new],
        })
    }

    /// Keeps a subset active that no object contains any more. It is added to the rule for the same
    /// clients; if none exists, the removed rule stays, after all others.
    pub(super) fn keep(&mut self, rule: &DestinationRule, subset: &Arc<str>, domain: &str) {
        let Some(retained) = rule.subsets.get(subset) else { return };
        let retained = Subset { is_retained: true, ..retained.clone() };
        let (host, namespace) = (&rule.host, rule.namespace());
        let all = self.for_pattern(host);
        let mut now = all[namespace_range(all, namespace)].to_vec();
        match now.iter_mut().find(|one| one.has_same_clients(rule)) {
            Some(existing) => {
                let subsets = &mut Arc::make_mut(existing).subsets;
                Arc::make_mut(subsets).insert(Arc::clone(subset), retained);
            }
            None => {
                let subsets = Arc::new([(Arc::clone(subset), retained)].into_iter().collect());
                let rule = DestinationRule { subsets, ..rule.clone() };
                let is_before =
                    |one: &Arc<DestinationRule>| one.selector.is_some() || rule.selector.is_none();
                now.insert(now.partition_point(is_before), Arc::new(rule));
            }
        }
        self.replace(host, namespace, &now, domain);
    }

    /// Replaces the active rules of a host and a namespace. Returns whether they differ.
    fn replace(
        &mut self,
        host: &HostPattern,
        namespace: &Namespace,
        rules: &[Arc<DestinationRule>],
        domain: &str,
    ) -> bool {
        let all = self.by_host.get(host).cloned().unwrap_or_default();
        let range = namespace_range(&all, namespace);
        let (ahead, behind) = (&all[..range.start], &all[range.end..]);
        let before = &all[range];
        if before == rules {
            return false;
        }
        let placed = |rules: &[Arc<DestinationRule>]| rules.iter().any(|rule| rule.places());
        for (rules_then, up) in [(before, false), (rules, true)] {
            if placed(rules_then) {
                count(&mut self.placed_hosts, host, up);
            }
            for rule in rules_then {
                if rule.is_general(domain, &self.root_namespace) {
                    continue;
                }
                count(&mut self.special_hosts, host, up);
                for namespace in special_namespaces(rule) {
                    count(&mut self.special_namespaces, &namespace, up);
                }
            }
        }
        let now: HostRules = ahead.iter().chain(rules).chain(behind).cloned().collect();
        if now.is_empty() {
            self.by_host.remove(host);
        } else {
            self.by_host.insert(host.clone(), now);
        }
        true
    }
}

/// Returns the patterns that match a host, the most specific first.
fn patterns(host: &str) -> impl Iterator<Item = HostPattern> {
    let exact = HostPattern::Exact(host.to_ascii_lowercase().into());
    let dots = host.match_indices('.').map(|(at, _)| at).filter(|at| *at != 0);
    let under =
        dots.filter_map(|at| Some(HostPattern::Under(host.get(at..)?.to_ascii_lowercase().into())));
    let under: Vec<_> = under.collect();
    std::iter::once(exact).chain(under).chain([HostPattern::all()])
}

/// The rules that may apply to clients of one service. Two values are equal if none of the rules
/// changed.
#[derive(Debug, Clone, Default)]
pub struct RulesForHost {
    /// Rules by host, the most specific host first.
    rules: Vec<HostRules>,
    root_namespace: Namespace,
}

impl PartialEq for RulesForHost {
    fn eq(&self, other: &Self) -> bool {
        let same = |(a, b): (&HostRules, &HostRules)| Arc::ptr_eq(a, b) || a == b;
        self.rules.len() == other.rules.len()
            && self.root_namespace == other.root_namespace
            && self.rules.iter().zip(&other.rules).all(same)
    }
}

impl Eq for RulesForHost {}

impl RulesForHost {
    /// Returns whether there are no rules.
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// Returns whether a rule sends connections to their original destination.
    pub fn pass_through(&self) -> bool {
        let all = self.rules.iter().flat_map(|rules| rules.iter());
        let passes =
            |policy: Option<&TrafficPolicy>| policy.is_some_and(TrafficPolicy::passes_through);
        all.into_iter().any(|rule| {
            let mut subsets = rule.subsets.values();
            passes(rule.policy.as_deref()) || subsets.any(|subset| passes(subset.policy.as_deref()))
        })
    }

    /// Iterates over the rules with a subset of this name.
    pub fn with_subset(&self, name: &str) -> impl Iterator<Item = &Arc<DestinationRule>> {
        let all = self.rules.iter().flat_map(|rules| rules.iter());
        all.filter(move |rule| rule.subsets.contains_key(name))
    }

    /// Returns the number of subsets of all rules.
    pub fn subset_count(&self) -> usize {
        self.rules.iter().flat_map(|rules| rules.iter()).map(|rule| rule.subsets.len()).sum()
    }

    /// Iterates over the namespaces of the rules, possibly with duplicates.
    pub fn namespaces(&self) -> impl Iterator<Item = &Namespace> {
        self.rules.iter().flat_map(|rules| rules.iter().map(|rule| rule.namespace()))
    }

    /// Returns whether these are the current rules of the host.
    pub fn are_current_for(&self, all: &DestinationRules, host: &str) -> bool {
        (self.is_empty() && all.by_host.is_empty()) || *self == all.of(host)
    }

    /// Returns the rule that applies to a client of a service in the namespace `owner`. The
    /// client's own namespace takes precedence over the service's namespace, and both over the root
    /// namespace. Within a namespace, the rule with the most specific host applies, if it is
    /// exported to the client and selects it. Rules of several namespaces are never combined.
    pub fn rule(&self, client: RuleClient<'_>, owner: &Namespace) -> Option<&Arc<DestinationRule>> {
        let root = &self.root_namespace;
        let own = || {
            let is_own = |rule: &DestinationRule| {
                // Public rules of the root namespace are the default for all clients, including
                // clients in the root namespace.
                client.namespace != root || rule.export_to != ExportTo::Public
            };
            self.first_in(client.namespace, |rule| is_own(rule) && applies_to(rule, client))
        };
        let others = |namespace: &Namespace| {
            self.first_in(namespace, |rule| rule.selector.is_none() && applies_to(rule, client))
        };
        own().or_else(|| others(owner)).or_else(|| others(root))
    }

    /// Returns the rule that gateways of other networks apply to the service: that of the service's
    /// own namespace, or else that of the root namespace.
    pub fn owners(&self, owner: &Namespace) -> Option<&Arc<DestinationRule>> {
        let public = |rule: &DestinationRule| rule.selector.is_none();
        self.first_in(owner, public).or_else(|| self.first_in(&self.root_namespace, public))
    }

    fn first_in(
        &self,
        namespace: &Namespace,
        holds: impl Fn(&DestinationRule) -> bool,
    ) -> Option<&Arc<DestinationRule>> {
        let in_namespace = self.rules.iter().map(|rules| &rules[namespace_range(rules, namespace)]);
        in_namespace.flatten().find(|rule| holds(rule))
    }
}

/// Returns whether a rule is exported to a client and selects it.
fn applies_to(rule: &DestinationRule, client: RuleClient<'_>) -> bool {
    rule.export_to.visible_to(client.namespace)
        && rule.selector.as_ref().is_none_or(|selector| client.selection.contains(selector))
}

/// The objects of the rules, which change one by one.
#[derive(Debug, Default)]
pub(super) struct DestinationRuleObjects {
    /// Objects of hosts for which several objects were merged into one rule, in the order of the
    /// active rules.
    joined: BTreeMap<HostPattern, HostRules>,
}

/// Returns the sort key of an object among the objects of a host.
fn rank(rule: &DestinationRule) -> (&Namespace, bool, &ObjectMeta) {
    (rule.namespace(), rule.selector.is_none(), rule.meta())
}

/// The active rules, while objects change them.
pub(super) struct RulesInForce<'a> {
    pub(super) rules: &'a mut DestinationRules,
    pub(super) selectors: &'a mut Selectors,
    pub(super) settings: &'a KindSettings,
    pub(super) changes: &'a mut TrafficChanges,
}

impl DestinationRuleObjects {
    pub(super) fn insert(&mut self, rule: Arc<DestinationRule>, into: RulesInForce<'_>) {
        if let Some(selector) = &rule.selector {
            into.changes.selectors |=
                into.selectors.add(Some(rule.namespace()), Arc::clone(selector));
        }
        self.put(&rule, Some(&rule), into);
    }

    pub(super) fn remove(&mut self, rule: &Arc<DestinationRule>, from: RulesInForce<'_>) {
        if let Some(selector) = &rule.selector {
            from.changes.selectors |= from.selectors.remove(Some(rule.namespace()), selector);
        }
        self.put(rule, None, from);
    }

    /// Replaces or removes the object with the same sort key. Merges all objects of the host and
    /// namespace again, and activates the result.
    fn put(
        &mut self,
        rule: &DestinationRule,
        now: Option<&Arc<DestinationRule>>,
        into: RulesInForce<'_>,
    ) {
        let RulesInForce { rules, settings, changes, .. } = into;
        let (host, namespace) = (&rule.host, rule.namespace());
        let all = self.joined.remove(host);
        let all = all.or_else(|| rules.by_host.get(host).cloned()).unwrap_or_default();
        let start = all.partition_point(|one| rank(one) < rank(rule));
        let end = all.partition_point(|one| rank(one) <= rank(rule));
        let objects: HostRules =
            all[..start].iter().chain(now).chain(&all[end..]).cloned().collect();
        let joined = joined(&objects[namespace_range(&objects, namespace)]);
        rules.root_namespace = settings.root_namespace.clone();
        if rules.replace(host, namespace, &joined, &settings.domain) {
            changes.hosts.insert(host.clone());
        }
        let active = rules.for_pattern(host);
        let is_own = |(one, object)| Arc::ptr_eq(one, object);
        if active.len() != objects.len() || !active.iter().zip(&*objects).all(is_own) {
            self.joined.insert(host.clone(), objects);
        }
    }
}

/// Merges the objects of one host and namespace.
fn joined(objects: &[Arc<DestinationRule>]) -> Vec<Arc<DestinationRule>> {
    let mut joined: Vec<Arc<DestinationRule>> = Vec::new();
    for rule in objects {
        match joined.iter_mut().find(|older| older.has_same_clients(rule)) {
            Some(older) => Arc::make_mut(older).merge(rule),
            None => joined.push(Arc::clone(rule)),
        }
    }
    joined
}

/// Returns the namespaces of the clients of a rule that does not apply to all clients, including
/// its own namespace.
fn special_namespaces(rule: &DestinationRule) -> BTreeSet<Namespace> {
    let named = match &rule.export_to {
        ExportTo::Public => [].as_slice(),
        ExportTo::Namespaces(named) => named,
    };
    named.iter().chain([rule.namespace()]).cloned().collect()
}

fn count<K: Ord + Clone>(counts: &mut OrdMap<K, usize>, key: &K, up: bool) {
    let now = counts.get(key).copied().unwrap_or_default();
    let now = if up { now + 1 } else { now.saturating_sub(1) };
    if now == 0 {
        counts.remove(key);
    } else {
        counts.insert(key.clone(), now);
    }
}
