//! Decisions about logged requests under other policies, with the rules that proxies receive
//! (`strait_rules::access::enforced`).

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use serde::Serialize;
use serde_json::Value;

use super::log::{LogEntry, LogFault};
use strait_admin_api::{self as api, AccessSnapshot, SnapshotWorkload};
use strait_model::{Collection, Labels, Namespace, WorkloadKey};
use strait_rules::access::{
    AccessDecision, AccessIndex, AccessPolicies, AccessRequest, AccessSettings, AccessSubject,
    AccessVerdict, Atom, EnforcedRules, MatchedClause, PolicyErrors, PolicyName, ProviderReach,
    ReachableProviders, RuleMatcher, TrustBundle, WireForm, decide, enforced,
};

const NOT_INBOUND: LogFault =
    "is an outbound call; only the inbound line of the called workload is used";
const NO_WORKLOAD: LogFault = "has an address that belongs to no known workload";
const MANY_WORKLOADS: LogFault = "has an address that belongs to several known workloads";
const NO_CLIENT: LogFault = "lacks the caller (downstream_peer_uri_san), and not exactly one known workload has its address";

/// Maximum number of different changes. Callers choose paths, so their number is unbounded.
const KINDS_MAX: usize = 10_000;

/// Result of a simulation.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Simulation {
    /// Number of lines.
    pub(super) lines: usize,
    /// Number of lines that were decided under both sets of policies.
    pub(super) compared: usize,
    /// Number of compared lines whose decision is unknown, because rules depend on values that the
    /// log lacks.
    pub(super) undecided: usize,
    /// Number of requests for which a provider (CUSTOM) would be called that is not called under
    /// the old policies. The log does not contain its decision; it is assumed to allow.
    pub(super) newly_asked: usize,
    /// Number of requests for which a provider would no longer be called.
    pub(super) no_longer_asked: usize,
    /// Number of lines that were left out, by reason.
    pub(super) skipped: BTreeMap<LogFault, usize>,
    /// Changed requests, the most frequent first; at most 10,000 kinds.
    pub(super) changes: Vec<SimulatedChange>,
    /// Number of requests of further kinds, by the verdict under the new policies.
    pub(super) untold: BTreeMap<&'static str, usize>,
}

/// Requests with the same changed verdict.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct SimulatedChange {
    /// Verdict under the new policies.
    pub(super) verdict: &'static str,
    /// Rule that decides, or else the reason why no rule does.
    pub(super) by: String,
    /// Identity of the caller.
    pub(super) source: String,
    /// Name of the called workload, without the part that distinguishes its pods.
    pub(super) destination: String,
    /// Method and path without query; for a connection that is not HTTP, the port.
    pub(super) request: String,
    /// Number of requests.
    pub(super) count: usize,
}

impl Simulation {
    /// Returns the number of requests that would be denied and were allowed.
    pub(super) fn newly_denied(&self) -> usize {
        let deny = AccessVerdict::Deny.as_str();
        let denied = self.changes.iter().filter(|one| one.verdict == deny);
        let listed: usize = denied.map(|one| one.count).sum();
        listed + self.untold.get(deny).copied().unwrap_or_default()
    }
}

/// A comparison of the active policies with new policies.
pub(super) struct PolicyTrial<'a> {
    trust: TrustBundle,
    providers: ReachableProviders,
    /// The old and the new policies.
    policies: [Arc<AccessPolicies>; 2],
    /// Workloads by address.
    by_address: HashMap<IpAddr, Vec<&'a SnapshotWorkload>>,
    found: BTreeMap<SimulatedChange, usize>,
    outcome: Simulation,
}

/// Description of a part of a new policy that cannot be read or has no effect.
pub(super) type ObjectFault = String;

impl<'a> PolicyTrial<'a> {
    /// Creates a comparison between the policies of a snapshot and the same policies with `new`
    /// ones added or replaced by name.
    pub(super) fn new(
        snapshot: &'a AccessSnapshot,
        new: &[Arc<Value>],
    ) -> (Self, Vec<ObjectFault>) {
        let before: Collection = snapshot.objects.iter().cloned().map(Arc::new).collect();
        let given: Collection = new.iter().cloned().collect();
        let kept = before.iter().filter(|(key, _)| given.get(key).is_none());
        let after: Collection =
            kept.chain(given.iter()).map(|(key, object)| (key.clone(), object.clone())).collect();
        let settings = AccessSettings {
            root: snapshot.root_namespace.as_str().into(),
            errors: match snapshot.policy_errors {
                api::PolicyErrors::Strict => PolicyErrors::Strict,
                api::PolicyErrors::Narrow | api::PolicyErrors::Other(_) => PolicyErrors::Narrow,
            },
        };
        let mut index = AccessIndex::new(settings.clone());
        // The state after proxies have acknowledged the change, without transitions.
        let mut active =
            |objects: &Collection| index.apply(&settings, objects).map(|change| change.policies);
        let old = active(&before).unwrap_or_default();
        let new = active(&after).unwrap_or_else(|| Arc::clone(&old));
        let is_given = |name: &PolicyName| given.get(&name.key()).is_some();
        let faults = new.reports().filter(|(name, _)| is_given(name)).flat_map(|(name, report)| {
            report.faults.iter().map(move |fault| format!("{name}: {fault}"))
        });
        let faults = faults.collect();
        let mut by_address = HashMap::<IpAddr, Vec<&SnapshotWorkload>>::new();
        for workload in &snapshot.workloads {
            for address in workload.addresses.iter().filter_map(|text| text.parse().ok()) {
                by_address.entry(address).or_default().push(workload);
            }
        }
        let reach = |(name, is_only_http): (&String, &bool)| {
            let reach = match is_only_http {
                true => ProviderReach::Requests,
                false => ProviderReach::Everything,
            };
            (Arc::from(name.as_str()), reach)
        };
        let trial = Self {
            trust: TrustBundle::new(snapshot.trust_domains.iter().map(String::as_str)),
            providers: snapshot.providers.iter().map(reach).collect(),
            policies: [old, new],
            by_address,
            found: BTreeMap::new(),
            outcome: Simulation::default(),
        };
        (trial, faults)
    }

    /// Decides one line of a log.
    pub(super) fn take(&mut self, line: Result<LogEntry, LogFault>) {
        self.outcome.lines += 1;
        if let Err(fault) = line.and_then(|entry| self.compare(&entry)) {
            *self.outcome.skipped.entry(fault).or_default() += 1;
        }
    }

    /// Records lines that cannot be decided.
    pub(super) fn leave_out(&mut self, fault: LogFault, count: u64) {
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        if count > 0 {
            self.outcome.lines += count;
            *self.outcome.skipped.entry(fault).or_default() += count;
        }
    }

    /// Returns the result of all lines.
    pub(super) fn end(self) -> Simulation {
        let found = self.found.into_iter();
        let mut changes: Vec<_> =
            found.map(|(change, count)| SimulatedChange { count, ..change }).collect();
        changes.sort_by(|a, b| b.count.cmp(&a.count).then_with(|| a.cmp(b)));
        Simulation { changes, ..self.outcome }
    }

    fn compare(&mut self, entry: &LogEntry) -> Result<(), LogFault> {
        let is_outbound =
            entry.cluster.starts_with("outbound|") || entry.cluster == "PassthroughCluster";
        if is_outbound {
            return Err(NOT_INBOUND);
        }
        let workloads_at =
            |address: &IpAddr| self.by_address.get(address).map_or(&[][..], |all| &all[..]);
        let workload = match workloads_at(&entry.local.ip()) {
            [] => return Err(NO_WORKLOAD),
            [one] => *one,
            _ => return Err(MANY_WORKLOADS),
        };
        let identity = match (&entry.identity, workloads_at(&entry.remote)) {
            (Some(known), _) => known.clone(),
            (None, [client]) => Some(client.identity.clone()),
            (None, _) => return Err(NO_CLIENT),
        };
        let request = described(entry, identity.clone());
        let form = if entry.request.is_some() { WireForm::Http } else { WireForm::Tcp };
        let [before, after] = self
            .policies
            .each_ref()
            .map(|policies| self.decided(policies, workload, form, &request));
        self.outcome.compared += 1;
        let (Some(before), Some(after)) = (before, after) else {
            self.outcome.undecided += 1;
            return Ok(());
        };
        let asks_more = |one: &AccessDecision, other: &AccessDecision| {
            let is_queried = |provider: &Arc<str>| {
                other.queried_providers.iter().any(|(name, _)| name == provider)
            };
            one.verdict == AccessVerdict::Allow
                && !one.queried_providers.iter().all(|(name, _)| is_queried(name))
        };
        self.outcome.newly_asked += usize::from(asks_more(&after, &before));
        self.outcome.no_longer_asked += usize::from(asks_more(&before, &after));
        if before.verdict != after.verdict {
            let change = SimulatedChange {
                verdict: after.verdict.as_str(),
                by: after.rule.unwrap_or_else(|| after.reason.to_owned()),
                source: identity.unwrap_or_else(|| "plain text".to_owned()),
                destination: called(workload),
                request: match &entry.request {
                    Some(request) => format!("{} {}", request.method, without_query(&request.path)),
                    None => format!("port {}", entry.local.port()),
                },
                count: 0,
            };
            let has_room = self.found.len() < KINDS_MAX;
            match self.found.entry(change) {
                Entry::Occupied(mut known) => *known.get_mut() += 1,
                Entry::Vacant(new) if has_room => _ = new.insert(1),
                Entry::Vacant(new) => {
                    *self.outcome.untold.entry(new.key().verdict).or_default() += 1;
                }
            }
        }
        Ok(())
    }

    /// Decides a request. Returns `None` if the decision depends on values that the log lacks.
    fn decided(
        &self,
        policies: &AccessPolicies,
        workload: &SnapshotWorkload,
        form: WireForm,
        request: &AccessRequest,
    ) -> Option<AccessDecision> {
        let labels: Labels = workload
            .labels
            .iter()
            .map(|(key, value)| (Arc::from(key.as_str()), Arc::from(value.as_str())))
            .collect();
        let namespace = Namespace::from(workload.namespace.as_str());
        let subject = AccessSubject { namespace: &namespace, labels: &labels, is_known: true };
        let access = policies.of(subject);
        let mode = request.port.map_or(&access.modes.rest, |port| access.modes.of_port(port));
        if mode.mode == strait_rules::access::PeerMode::Strict && request.identity.is_none() {
            return Some(AccessDecision {
                verdict: AccessVerdict::Deny,
                rule: mode.by.as_ref().map(|by: &WorkloadKey| {
                    format!("PeerAuthentication {}/{}", by.namespace, by.name)
                }),
                reason: "STRICT accepts no plain text",
                queried_providers: Vec::new(),
            });
        }
        let rules = enforced(&access, form, &self.trust, &self.providers);
        // Once with all unknown values deciding against the client, and once in its favor.
        let [strictest, loosest] =
            [true, false].map(|strict| decide(&as_known(&rules, strict), request));
        let is_known = strictest.verdict == loosest.verdict
            && strictest.queried_providers == loosest.queried_providers;
        is_known.then_some(strictest)
    }
}

/// Returns the request of a line.
fn described(entry: &LogEntry, identity: Option<String>) -> AccessRequest {
    let header = |name: &str, value: &String| (name.to_owned(), value.clone());
    let request = entry.request.as_ref();
    let method = request.map(|request| header(":method", &request.method));
    let authority = request.and_then(|request| request.authority.as_ref());
    AccessRequest {
        identity,
        peer: Some(entry.remote),
        client: None,
        headers: method
            .into_iter()
            .chain(authority.map(|name| header(":authority", name)))
            .collect(),
        path: request.map(|request| without_query(&request.path).to_owned()),
        port: Some(entry.local.port()),
        destination: Some(entry.local.ip()),
        server_name: entry.server_name.clone(),
        noted: BTreeMap::new(),
    }
}

fn without_query(path: &str) -> &str {
    path.split(['?', '#']).next().unwrap_or_default()
}

/// Returns the name of a workload without the part that distinguishes its pods, if a label provides
/// it.
fn called(workload: &SnapshotWorkload) -> String {
    let app = ["app.kubernetes.io/name", "app"].iter().find_map(|key| workload.labels.get(*key));
    format!("{}/{}", workload.namespace, app.unwrap_or(&workload.name))
}

/// Returns the rules with all clauses about unknown values resolved: as strictly as possible, or as
/// permissively.
fn as_known(rules: &EnforcedRules, strict: bool) -> EnforcedRules {
    let mut rules = rules.clone();
    let custom = rules.custom.values_mut().map(|action| (action, strict));
    let sides = [(&mut rules.deny, strict), (&mut rules.allow, !strict)];
    for (action, matches) in custom.chain(sides) {
        let Some(enforced) = &mut action.enforced else { continue };
        let known = std::mem::take(enforced).into_iter().filter_map(|rule| known(rule, matches));
        *enforced = known.collect();
    }
    rules
}

/// Returns a rule without clauses about unknown values, or `None` if it must not match.
fn known(rule: RuleMatcher, matches: bool) -> Option<RuleMatcher> {
    let clauses = || rule.sources.iter().chain(&rule.operations).flatten();
    if !clauses().any(is_unsaid) {
        return Some(rule);
    }
    let mut rule = matches.then_some(rule)?;
    for clauses in rule.sources.iter_mut().chain(&mut rule.operations) {
        clauses.retain(|clause| !is_unsaid(clause));
    }
    Some(rule)
}

/// Returns whether a clause depends on a value that logs lack.
fn is_unsaid(clause: &MatchedClause) -> bool {
    clause.any.iter().flatten().any(|atom| match atom {
        Atom::Header(name, _) | Atom::HeaderNowhere(name, _) | Atom::HeaderPresent(name) => {
            !name.starts_with(':')
        }
        Atom::Metadata(..) | Atom::ClientAddress(_) => true,
        Atom::Identity(_)
        | Atom::PeerAddress(_)
        | Atom::Path(_)
        | Atom::PathTemplate(_)
        | Atom::Port(_)
        | Atom::DestinationAddress(_)
        | Atom::ServerName(_) => false,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn policy(name: &str, spec: Value) -> Arc<Value> {
        Arc::new(json!({
            "apiVersion": "security.istio.io/v1", "kind": "AuthorizationPolicy",
            "metadata": { "namespace": "shop", "name": name }, "spec": spec,
        }))
    }

    fn workload(name: &str, address: &str, account: &str) -> SnapshotWorkload {
        SnapshotWorkload {
            cluster: "east".to_owned(),
            namespace: "shop".to_owned(),
            name: name.to_owned(),
            labels: [("app".to_owned(), name.to_owned())].into(),
            identity: format!("spiffe://td/ns/shop/sa/{account}"),
            addresses: vec![address.to_owned()],
        }
    }

    fn snapshot(objects: Vec<Arc<Value>>) -> AccessSnapshot {
        AccessSnapshot {
            root_namespace: "root".to_owned(),
            trust_domains: vec!["td".to_owned()],
            providers: [("opa".to_owned(), true)].into(),
            objects: objects.into_iter().map(Arc::unwrap_or_clone).collect(),
            policy_errors: api::PolicyErrors::Narrow,
            workloads: vec![
                workload("web", "10.0.0.7", "web"),
                workload("front", "10.0.0.8", "front"),
                workload("one", "10.0.0.9", "x"),
                workload("other", "10.0.0.9", "x"),
            ],
        }
    }

    fn line(path: &str, remote: &str) -> String {
        format!(
            r#"{{"method":"GET","path":"{path}","authority":"web","upstream_cluster":"inbound|80||","downstream_local_address":"10.0.0.7:80","downstream_remote_address":"{remote}:5"}}"#
        )
    }

    fn simulated(old: Vec<Arc<Value>>, new: Vec<Arc<Value>>, lines: &[String]) -> Simulation {
        let snapshot = snapshot(old);
        let (mut trial, faults) = PolicyTrial::new(&snapshot, &new);
        assert_eq!(faults, Vec::<String>::new());
        lines.iter().for_each(|line| trial.take(super::super::log::read(line)));
        trial.end()
    }

    fn lines_of(simulation: &Simulation) -> Vec<String> {
        let change = |one: &SimulatedChange| {
            format!("{} {} {} {}: {}", one.count, one.verdict, one.source, one.request, one.by)
        };
        simulation.changes.iter().map(change).collect()
    }

    #[test]
    fn newly_denied_requests_are_grouped_by_rule_client_and_path() {
        let deny = policy(
            "deny",
            json!({ "action": "DENY", "rules": [{ "to": [{ "operation": { "paths": ["/admin*"] } }] }] }),
        );
        let lines = ["/admin?x=1", "/admin", "/other"].map(|path| line(path, "10.0.0.8"));
        let found = simulated(vec![], vec![deny.clone()], &lines);
        let front = "spiffe://td/ns/shop/sa/front";
        assert_eq!(
            lines_of(&found),
            [format!("2 deny {front} GET /admin: ns[shop]-policy[deny]-rule[0]")]
        );
        assert_eq!((found.lines, found.compared, found.newly_denied()), (3, 3, 2));
        // In the opposite direction, requests become allowed and none denied.
        let nothing = policy(
            "deny",
            json!({ "action": "DENY", "rules": [{ "to": [{ "operation": { "paths": ["/x"] } }] }] }),
        );
        let found = simulated(vec![deny], vec![nothing], &lines);
        assert_eq!((found.changes[0].verdict, found.newly_denied()), ("allow", 0));
    }

    #[test]
    fn unreadable_policies_follow_the_policy_errors_setting() {
        let broken = policy("deny", json!({ "action": "DENY", "rules": [{ "when": [{}] }] }));
        let denied = |policy_errors| {
            let snapshot = AccessSnapshot { policy_errors, ..snapshot(vec![]) };
            let (mut trial, faults) = PolicyTrial::new(&snapshot, std::slice::from_ref(&broken));
            assert!(!faults.is_empty());
            trial.take(super::super::log::read(&line("/", "10.0.0.8")));
            trial.end().newly_denied()
        };
        let modes = [api::PolicyErrors::Narrow, api::PolicyErrors::Strict];
        assert_eq!(modes.map(denied), [0, 1]);
    }

    #[test]
    fn allow_policy_denies_all_other_requests() {
        let allow = policy(
            "allow",
            json!({ "rules": [{ "from": [{ "source": { "serviceAccounts": ["other"] } }] }] }),
        );
        let found = simulated(vec![], vec![allow], &[line("/", "10.0.0.8")]);
        assert_eq!(found.newly_denied(), 1);
        assert!(found.changes[0].by.contains("none of their rules matches"));
    }

    #[test]
    fn requests_with_unknown_values_are_undecided() {
        let deny = policy(
            "deny",
            json!({ "action": "DENY", "rules": [{
            "to": [{ "operation": { "paths": ["/a"] } }],
            "when": [{ "key": "request.headers[x-role]", "values": ["guest"] }],
        }] }),
        );
        let lines = [
            line("/a", "10.0.0.8"),
            line("/b", "10.0.0.8"),
            line("/a", "10.0.0.9"),
            line("/a", "10.9.9.9"),
        ];
        let found = simulated(vec![], vec![deny], &lines);
        assert_eq!((found.compared, found.undecided, found.changes.len()), (2, 1, 0));
        assert_eq!(found.skipped, [(NO_CLIENT, 2)].into());
    }

    #[test]
    fn change_to_strict_denies_plain_text() {
        let peers = |mode: &str| {
            Arc::new(json!({
                "apiVersion": "security.istio.io/v1", "kind": "PeerAuthentication",
                "metadata": { "namespace": "shop", "name": "default" },
                "spec": { "mtls": { "mode": mode } },
            }))
        };
        let plain = line("/", "10.0.0.8").replace('{', r#"{"downstream_peer_uri_san":null,"#);
        let found = simulated(vec![peers("DISABLE")], vec![peers("STRICT")], &[plain]);
        let by = "PeerAuthentication shop/default";
        assert_eq!(lines_of(&found), [format!("1 deny plain text GET /: {by}")]);
    }

    #[test]
    fn requests_for_providers_are_counted() {
        let asks = |operation: Value| {
            policy(
                "ask",
                json!({ "action": "CUSTOM", "provider": { "name": "opa" }, "rules": [operation] }),
            )
        };
        let all = || asks(json!({ "to": [{ "operation": { "paths": ["*"] } }] }));
        let lines = ["/a", "/b"].map(|path| line(path, "10.0.0.8"));
        let found = simulated(vec![], vec![all()], &lines);
        assert_eq!((found.newly_asked, found.no_longer_asked, found.changes.len()), (2, 0, 0));
        let only = asks(json!({ "to": [{ "operation": { "paths": ["/a"] } }] }));
        let found = simulated(vec![all()], vec![only], &lines);
        assert_eq!((found.newly_asked, found.no_longer_asked), (0, 1));
        let by_header =
            asks(json!({ "when": [{ "key": "request.headers[x-a]", "values": ["b"] }] }));
        let found = simulated(vec![], vec![by_header], &lines);
        assert_eq!((found.newly_asked, found.undecided), (0, 2), "no log has the header");
    }

    #[test]
    fn lines_without_a_known_workload_are_counted() {
        let outbound = line("/", "10.0.0.8").replace("inbound|80||", "outbound|80||web");
        let lines =
            [outbound, line("/", "10.0.0.8").replace("10.0.0.7", "10.0.0.1"), "x".to_owned()];
        let found = simulated(vec![], vec![], &lines);
        assert_eq!(
            (found.compared, found.skipped.len(), found.skipped.values().sum::<usize>()),
            (0, 3, 3)
        );
    }
}
