//! The problems that last, as `strait check` reports them, for the metric `strait_problems` and for
//! Kubernetes events.
//!
//! Contains the problems that no state of a member shows. Recomputed at an interval, from the state
//! that the responses of the admin API show. Findings that require access to other API servers
//! (categories secrets, trust, injection and access) exist in `strait check` only.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use super::proxy_view::withheld;
use super::sources::Sources;
use super::{
    clusters, connection_problems, descriptors, hold, imports, other_sources, root_lives, views,
};
use crate::judged_statuses::{JudgedLast, NextLook};
use crate::metrics::WithheldCounts;
use strait_admin_api::{HeldConfiguration, ObjectStatus, SourceKind};
use strait_ads::connections::ProxyStanding;
use strait_base::codes::{self, Code};
use strait_base::latest::publish_change;
use strait_explain::{
    ConfigQuery, ConfigView, describe_withheld, findings, is_problem, is_withheld_by_fault,
};
use strait_sources::clusters::events::LastingProblem;
use strait_sources::clusters::status::ClusterState;

/// Minimum interval of the computations.
const PACE: Duration = Duration::from_secs(5);
/// The pause after a computation lasts at least this multiple of its duration, so that problems take at
/// most 0.5 % of a core.
const SHARE: u32 = 200;

/// Publishes the problems until the process ends.
pub async fn follow(sources: Arc<Sources>, problems: watch::Sender<Arc<Vec<LastingProblem>>>) {
    let mut objects = ObjectProblems::default();
    loop {
        sleep(PACE).await;
        let began = Instant::now();
        let (inputs, mut known) = (Arc::clone(&sources), std::mem::take(&mut objects));
        // Runs aside, because many objects and endpoints take long.
        let computed = tokio::task::spawn_blocking(move || {
            known.update(&inputs);
            (all(&inputs, &known), known)
        });
        if let Ok((all, known)) = computed.await {
            objects = known;
            publish_change(&problems, Arc::new(all));
        }
        sleep(began.elapsed() * SHARE).await;
    }
}

/// Problems by category and code.
#[derive(Debug, Clone, Default)]
struct ProblemTable(BTreeMap<(&'static str, &'static str), LastingProblem>);

impl ProblemTable {
    fn add(&mut self, category: &'static str, code: &'static Code, object: &str, text: &str) {
        let new = || LastingProblem {
            category,
            code,
            count: 0,
            object: object.to_owned(),
            text: text.to_owned(),
        };
        self.0.entry((category, code.id)).or_insert_with(new).count += 1;
    }
}

/// The problems of the configuration objects, from the last computation.
#[derive(Debug, Default)]
struct ObjectProblems {
    last: Option<JudgedLast>,
    found: ProblemTable,
}

impl ObjectProblems {
    /// Computes the status of all objects if a relevant input has changed. Connected proxies do not
    /// affect it.
    fn update(&mut self, sources: &Sources) {
        // Before readiness, a missing Service may belong to a cluster that has not synced.
        if !sources.readiness.borrow().ready {
            return;
        }
        let Some(context) = sources.context.borrow().clone() else { return };
        let reports = Arc::clone(&sources.reports.borrow());
        let now = JudgedLast::of(&context, &reports, Instant::now());
        let next = self.last.as_ref().map_or(NextLook::Now, |last| last.next(&now, true));
        if next != NextLook::Now {
            return;
        }
        self.last = Some(now);
        self.found = ProblemTable::default();
        let context = reports.judged(&context);
        let states = ConfigView::new(&context, &reports, &[]).states(&ConfigQuery::default());
        for status in states.into_iter().map(ObjectStatus::from) {
            let object = format!("{}/{}/{}", status.kind, status.namespace, status.name);
            let mut counted = BTreeSet::new();
            for reason in &status.reasons {
                let code = codes::find(&reason.code);
                let code = code.filter(|code| is_problem(&status.state, code));
                if let Some(code) = code.filter(|code| counted.insert(code.id)) {
                    self.found.add("config", code, &object, &reason.text);
                }
            }
        }
    }
}

/// Returns all problems, in a stable order.
fn all(sources: &Sources, objects: &ObjectProblems) -> Vec<LastingProblem> {
    let mut found = objects.found.clone();
    let readiness = sources.readiness.borrow().clone();
    if !readiness.ready {
        let text = format!("waiting for {}", readiness.waiting_for.join(", "));
        found.add("mesh", &codes::MESH_INCOMPLETE, "mesh", &text);
    }
    of_members(sources, &mut found);
    let withheld = withheld(sources);
    of_rows(sources, &withheld, &mut found);
    for problem in sources.mesh_problems.borrow().iter() {
        let code = codes::find(problem.code).unwrap_or(&codes::MESH_CONFIG);
        found.add("mesh", code, "meshConfig", &problem.text);
    }
    if let Some(text) = &*sources.policy.problem.borrow() {
        found.add("policy", &codes::POLICY, "policy", text);
    }
    if let Some(text) = &*sources.members.problem.borrow() {
        found.add("policy", &codes::POLICY, "members", text);
    }
    for text in sources.source_problems.borrow().iter() {
        let code = codes::named(text).unwrap_or(&codes::SOURCE_UNREADABLE);
        found.add("policy", code, "members", text);
    }
    of_sources(sources, &withheld, &mut found);
    of_configuration(sources, &mut found);
    let streams = sources.connections.list();
    for stream in streams.iter().filter(|stream| !stream.is_of_agent()) {
        if let (ProxyStanding::Refuses, Some((kind, error))) =
            (stream.standing(), stream.refusals().into_iter().next())
        {
            let text = format!("refused {}: {error}", kind.to_uppercase());
            found.add("proxies", &codes::NACK, &format!("proxy/{}", stream.proxy().id), &text);
        }
    }
    for problem in connection_problems::current(sources) {
        found.add("proxies", problem.code, "proxies", &problem.text);
    }
    for problem in sources.comparison.problems() {
        let object = format!("replica/{}", problem.replica);
        found.add("process", problem.code, &object, &problem.text);
    }
    found.0.into_values().collect()
}

/// Adds the problems of members that their state does not show: refused kubeconfigs while the
/// previous one is in use, Secrets whose cluster ID is taken, namespaces that do not exist, and members
/// that drain because the operator file no longer selects them.
fn of_members(sources: &Sources, found: &mut ProblemTable) {
    let statuses = Arc::clone(&sources.clusters.borrow());
    for status in statuses.iter() {
        let reason = status.reason.as_deref().unwrap_or_default();
        let named = |usual| codes::named(reason).unwrap_or(usual);
        let code = match status.state {
            ClusterState::Conflict => named(&codes::ID_TAKEN),
            ClusterState::Draining if reason.contains(codes::MEMBER_DESELECTED.id) => {
                &codes::MEMBER_DESELECTED
            }
            _ if status.kubeconfig_refused => named(&codes::KUBECONFIG_UNREADABLE),
            _ if reason.contains(codes::NAMESPACE_MISSING.id) => &codes::NAMESPACE_MISSING,
            _ => continue,
        };
        found.add("clusters", code, &format!("cluster/{}", status.id), reason);
    }
}

/// Adds the findings about networks, members and this process that `strait check` computes from the
/// same rows, withheld endpoints, and addresses that two clusters have.
fn of_rows(sources: &Sources, withheld: &WithheldCounts, found: &mut ProblemTable) {
    let rows = clusters::rows(sources, withheld);
    // Before readiness, a missing gateway may belong to a cluster that has not synced.
    let context = sources.context.borrow().clone();
    let networks = context.filter(|_| sources.readiness.borrow().ready);
    let networks = networks.map(|context| views::networks(&context)).unwrap_or_default();
    let mut findings = findings::of_networks(&networks, &rows);
    for row in &rows {
        findings.extend(findings::of_member(row));
        findings.extend(findings::of_claims(row, &networks));
    }
    findings.extend(findings::of_process(&descriptors(&sources.descriptors), "process"));
    let identity = sources.metrics.identity.borrow().clone();
    findings.extend(root_lives(&identity).iter().filter_map(findings::of_root));
    findings.extend(findings::of_certificates(&views::certificates(&identity)));
    for finding in findings.iter().filter(|finding| finding.is_problem) {
        found.add(finding.category, finding.code, &finding.object, &finding.fact);
    }
    for row in &rows {
        let object = format!("cluster/{}", row.id);
        for (code, count) in &row.withheld_by {
            let code = codes::find(code).filter(|code| is_withheld_by_fault(code));
            if let Some(code) = code.filter(|code| *code != &codes::SAME_ADDRESS) {
                let text = describe_withheld(code, *count);
                found.add("networks", code, &object, &text);
            }
        }
        for finding in findings::of_same_addresses(row) {
            found.add(finding.category, finding.code, &finding.object, &finding.fact);
        }
    }
}

/// Adds the problems of a held configuration, of a rollout, and of imports that cannot be written.
fn of_configuration(sources: &Sources, found: &mut ProblemTable) {
    let state = sources.hold.borrow().clone();
    let held = hold::in_short(sources, &state);
    let describe = |held: &HeldConfiguration| {
        let HeldConfiguration { by, reason, since, .. } = held;
        format!("held since {since} by {by}: {reason}")
    };
    let lost = state.lost.as_deref();
    let hold = findings::of_hold(held.as_ref(), lost, &hold::replicas(sources), describe);
    let rollout = sources.rollout.borrow().lost.as_deref().map(findings::of_lost_rollout);
    let statuses = Arc::clone(&sources.clusters.borrow());
    let keys: BTreeSet<_> =
        statuses.iter().flat_map(|status| status.imports.imports.keys()).collect();
    let rows: Vec<_> = keys
        .into_iter()
        .map(|key| {
            let host = format!("{}.{}", key.name, key.namespace);
            (host, imports::imports(&statuses, key))
        })
        .collect();
    let imports = rows
        .iter()
        .flat_map(|(host, imports)| imports.iter().map(move |import| (host.as_str(), import)));
    let all = hold.into_iter().chain(rollout).chain(findings::of_imports(imports));
    for finding in all.filter(|finding| finding.is_problem) {
        found.add(finding.category, finding.code, &finding.object, &finding.fact);
    }
}

/// Adds the problems of sources other than members. The warnings of service entries are in the
/// status of these objects.
fn of_sources(sources: &Sources, withheld: &WithheldCounts, found: &mut ProblemTable) {
    let mut rows = other_sources::rows_with_withheld(sources, withheld);
    for row in rows.iter_mut().filter(|row| row.kind == SourceKind::Entries) {
        row.warnings.clear();
    }
    for finding in rows.iter().flat_map(findings::of_source).filter(|finding| finding.is_problem) {
        found.add(finding.category, finding.code, &finding.object, &finding.fact);
    }
}
