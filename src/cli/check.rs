//! `strait check`: lists every problem with its code and the next step, with a summary.
//!
//! It queries the control plane, the config cluster and the members that its Secrets refer to. The
//! findings depend only on these responses. [`problems`] is the one function that decides: `strait
//! status` shows the same findings.

mod config;
mod finding;
mod hub;
mod imports;
mod injection;
mod inputs;
mod junit;
mod matrix;
mod member_policies;
mod member_sources;
mod members;
mod objects;
mod probes;
mod process;
mod replicas;
mod roots;
mod row;
mod schedule;
mod sharing;
mod stray_secrets;
mod traffic;
mod visibility;

use clap::Args;
use serde_json::Value;

use self::finding::{note, problem};
pub(super) use self::inputs::CheckInputs;
use self::process::{of_process, of_replica, of_streams};
use super::client::AdminClient;
use super::cluster::{is_well, same_range};
use super::failure::{CommandFailure, CommandResult, Exit};
use super::list::{QueryArgs, WaitFor};
use super::output::{
    self, Cell, Column, Format, OutputStyle, Show, TableLayout, items, source_names, text,
};
use super::{hold, proxy, rollout};
use strait_admin_api::{
    Cluster, ClusterState, HeldConfiguration, HoldStatus, Mesh, Problem, Rollout, Source,
    SourceState,
};
use strait_base::codes::{self, Code};
use strait_explain::{describe_withheld, findings, is_withheld_by_fault};

/// `strait check`.
#[derive(Debug, Args)]
pub(crate) struct CheckArgs {
    /// Categories to check: clusters, sources, networks, services, mesh, policy, proxies, process,
    /// config, secrets, trust, injection, access; 'config' on its own shows the state of each
    /// object of the mesh's configuration
    #[arg(value_name = "CATEGORY")]
    categories: Vec<String>,
    /// Fail if the config cluster can't be read, which the checks of kubeconfigs without a member
    /// label, of root certificates and access policies in members, and of webhooks need; without
    /// this flag, these checks are then skipped
    #[arg(long)]
    secrets: bool,
    #[command(flatten)]
    config: config::ObjectCheckArgs,
    #[command(flatten)]
    traffic: traffic::TrafficArgs,
    #[command(flatten)]
    wait: WaitFor,
    #[command(flatten)]
    places: config::CheckPlaces,
    #[command(flatten)]
    common: QueryArgs,
}

const CATEGORIES: &[&str] = &[
    "clusters",
    "sources",
    "networks",
    "services",
    "mesh",
    "policy",
    "proxies",
    "process",
    objects::CATEGORY,
    "secrets",
    "trust",
    "injection",
    "access",
];
/// Categories that require requests to the config cluster.
const OF_SECRETS: &[&str] = &["secrets", "trust", "injection", "access"];

const PROBLEMS: TableLayout<Value> = TableLayout {
    kind: "problem",
    name: |row| format!("{}/{}", text(&row["code"]), text(&row["object"])),
    columns: &[
        Column::new("CODE", |row, _| text(&row["code"]).into()),
        Column::new("CATEGORY", |row, _| text(&row["category"]).into()),
        Column::new("OBJECT", |row, _| text(&row["object"]).into()),
        Column::new("PROBLEM", |row, _| match row["severity"].as_str() {
            Some("note") => Cell::doubtful(text(&row["fact"])),
            _ => Cell::bad(text(&row["fact"])),
        }),
        Column::wide("NEXT", |row, _| text(&row["next"]).into()),
    ],
};

/// Runs `strait check`. Exit code 2 means that there is a problem; notes alone do not count.
pub(crate) async fn run(args: &CheckArgs) -> CommandResult {
    let is_known = |one: &&String| CATEGORIES.contains(&one.as_str());
    if let Some(strange) = args.categories.iter().find(|one| !is_known(one)) {
        let known = CATEGORIES.join(", ");
        return Err(CommandFailure::usage(format!(
            "{strange:?} is not a category; the categories are {known}"
        )));
    }
    if args.categories.iter().any(|one| one == objects::CATEGORY) {
        let alone = args.categories.len() == 1 && !args.secrets && !args.traffic.traffic;
        if !alone {
            return Err(CommandFailure::usage("'config' must be checked alone"));
        }
        return config::run(&args.config, &args.places, &args.common).await;
    }
    args.config.refuse(args.traffic.traffic)?;
    let hub = args.places.hub();
    if args.traffic.traffic {
        return traffic::run(&args.traffic, &hub, args.config.junit.as_deref(), &args.common).await;
    }
    let client = AdminClient::new(&args.common.connect).await?;
    let is_required =
        args.secrets || args.categories.iter().any(|one| OF_SECRETS.contains(&&**one));
    let of_hub = is_required || args.categories.is_empty();
    let is_wanted = |category: &str| {
        args.categories.is_empty() || args.categories.iter().any(|one| one == category)
    };
    let deadline = args.wait.deadline();
    let (answers, found, unread) = loop {
        let answers = CheckInputs::of(&client).await?;
        let mut found = problems(&answers);
        let mut unread = None;
        if of_hub {
            match hub::findings(&hub, is_required, &answers.clusters).await {
                Ok(more) => found.extend(more),
                Err(failure) if is_required => return Err(failure),
                Err(failure) => unread = Some(failure.message().to_owned()),
            }
        }
        found.retain(|row| row["category"].as_str().is_some_and(is_wanted));
        if !found.iter().any(is_problem) || !deadline.pause().await {
            break (answers, found, unread);
        }
    };
    let exit = if found.iter().any(is_problem) { Exit::Unhealthy } else { Exit::Fine };
    let is_read = of_hub && unread.is_none();
    let looked_at = CATEGORIES.iter().filter(|one| is_read || !OF_SECRETS.contains(*one));
    let looked_at: Vec<&str> = looked_at.copied().filter(|one| is_wanted(one)).collect();
    let answer = Value::Array(found);
    output::print(&render(
        &answers,
        &answer,
        &looked_at,
        &args.common.show,
        &OutputStyle::of_stdout(),
    ))?;
    if let Some(fact) = unread {
        let all = OF_SECRETS.join(", ");
        eprint_line!("Not checked: {all}, because the config cluster can't be read: {fact}");
    }
    Ok(exit)
}

/// Renders the findings, and a summary of each category.
fn render(
    answers: &CheckInputs,
    found: &Value,
    looked_at: &[&str],
    show: &Show,
    look: &OutputStyle,
) -> String {
    match show.output {
        Format::Json => return format!("{found:#}\n"),
        Format::Yaml => return output::yaml(found),
        Format::Name => return PROBLEMS.shown(items(found), show, look),
        Format::Table | Format::Wide => {}
    }
    let mut out = match items(found) {
        [] => "No problem found.\n".to_owned(),
        _ => PROBLEMS.shown(items(found), show, look),
    };
    out.push('\n');
    let rows = looked_at.iter().map(|category| {
        let of = items(found).iter().filter(|row| row["category"] == *category);
        let (bad, notes): (Vec<_>, Vec<_>) = of.partition(|row| is_problem(row));
        let count = |count: usize, what: &str| match count {
            0 => None,
            1 => Some(format!("1 {what}")),
            more => Some(format!("{more} {what}s")),
        };
        let summary = [count(bad.len(), "problem"), count(notes.len(), "note")];
        let summary: Vec<_> =
            summary.into_iter().flatten().chain(looked(answers, category)).collect();
        vec![look.sign(bad.is_empty()), (*category).into(), summary.join("; ").into()]
    });
    out += &output::table(&[], rows.collect(), look);
    if show.output == Format::Table {
        let mut codes: Vec<_> = items(found).iter().map(|row| text(&row["code"])).collect();
        codes.sort();
        codes.dedup();
        out += if codes.is_empty() { "" } else { "\n" };
        out.extend(codes.iter().map(|code| format!("help: strait help {code}\n")));
    }
    out
}

/// Returns a summary of the checked items of a category.
fn looked(answers: &CheckInputs, category: &str) -> Option<String> {
    let count = |count: usize, one: &str| match count {
        1 => format!("1 {one}"),
        count => format!("{count} {one}s"),
    };
    match category {
        "clusters" => {
            let is_live = |row: &&Cluster| row.state == ClusterState::Live;
            let live = answers.clusters.iter().filter(is_live).count();
            Some(format!("{live} of {} live", count(answers.clusters.len(), "cluster")))
        }
        "sources" => {
            let is_live = |row: &&Source| row.state == SourceState::Live;
            let live = answers.sources.iter().filter(is_live).count();
            Some(format!("{live} of {} live", count(answers.sources.len(), "source")))
        }
        _ if answers.unready_reason.is_some()
            && ["networks", "services", "mesh", "config"].contains(&category) =>
        {
            Some("not known yet".to_owned())
        }
        "networks" => {
            let gateways = answers.networks.iter().flat_map(|row| &row.gateways);
            let all = gateways.clone().count();
            let dead = gateways.filter(|one| one.dead).count();
            let networks = count(answers.networks.len(), "network");
            Some(format!("{networks} with {} gateway addresses in use", all - dead))
        }
        "services" => Some(count(answers.services.len(), "service")),
        "mesh" => Some("the mesh config is active".to_owned())
            .filter(|_| answers.mesh.problems.is_empty()),
        "policy" => Some("the policy is active".to_owned())
            .filter(|_| answers.policy.problem.is_none())
            .filter(|_| answers.policy.members.problem.is_none()),
        "config" => Some(objects::looked(&answers.config, &answers.sources)),
        "proxies" => Some(format!("{} connected", count(answers.proxies.len(), "stream"))),
        "process" => {
            let held = &answers.push.descriptors;
            let (open, limit) = (held.open?, held.limit?);
            Some(format!("{open} of {limit} file descriptors are open"))
        }
        _ => None,
    }
}

/// Returns the finding about a held configuration.
fn held(hold: &HoldStatus) -> Option<Value> {
    let describe = |_: &HeldConfiguration| {
        let line = hold::line(hold, &OutputStyle::of_stdout()).unwrap_or_default();
        line.trim_end().to_owned()
    };
    let (held, lost) = (hold.held.as_ref(), hold.lost.as_deref());
    findings::of_hold(held, lost, &hold.replicas, describe).map(|one| finding::row(&one))
}

/// Returns the finding about a gradual rollout.
fn rollout_finding(state: &Rollout) -> Option<Value> {
    if let Some(fact) = &state.lost {
        return Some(finding::row(&findings::of_lost_rollout(fact)));
    }
    let fact = rollout::line(state, &OutputStyle::of_stdout())?;
    Some(note("mesh", &codes::ROLLOUT_RUNS, "configuration".into(), fact.trim_end()))
}

/// Returns whether a finding requires action; notes do not.
pub(super) fn is_problem(row: &Value) -> bool {
    row["severity"] != "note"
}

/// Returns all findings, in a stable order.
pub(super) fn problems(answers: &CheckInputs) -> Vec<Value> {
    let mut found = Vec::new();
    if let Some(unready_reason) = &answers.unready_reason {
        found.push(problem(
            "clusters",
            &codes::MESH_INCOMPLETE,
            "mesh".into(),
            unready_reason.clone(),
        ));
    }
    for row in answers.clusters.iter() {
        let object = format!("cluster/{}", text(&row.id));
        let reason = row.reason.as_deref().unwrap_or_default();
        let state = row.state.as_str();
        let is_coded = codes::named(reason).is_some();
        if state == "restored" && !is_coded {
            found.push(note("clusters", &codes::RESTORED, object.clone(), reason));
        } else if !is_well(row) {
            found.push(problem("clusters", code_of(state, reason), object.clone(), {
                if reason.is_empty() { state.to_owned() } else { format!("{state}: {reason}") }
            }));
        } else if row.kubeconfig_refused {
            found.push(problem("clusters", code_of(state, reason), object.clone(), reason));
        } else if reason.contains(codes::NAMESPACE_MISSING.id) {
            found.push(problem("clusters", &codes::NAMESPACE_MISSING, object.clone(), reason));
        } else if state == "live" && !reason.is_empty() || state == "draining" && is_coded {
            found.push(note("clusters", code_of(state, reason), object.clone(), reason));
        }
        found.extend(findings::of_member(row).iter().map(finding::row));
        found.extend(findings::of_claims(row, &answers.networks).iter().map(finding::row));
        found.extend(findings::of_same_addresses(row).iter().map(finding::row));
        // Both clusters report the overlap: one finding is enough.
        for same in row.same_ranges.iter().filter(|same| same.cluster < row.id) {
            found.push(note("networks", &codes::SAME_ADDRESS, object.clone(), same_range(same)));
        }
        for (code, count) in &row.withheld_by {
            let code = codes::find(code).unwrap_or(&codes::NO_GATEWAY);
            let fact = describe_withheld(code, *count);
            let line = if is_withheld_by_fault(code) { problem } else { note };
            found.push(line("networks", code, object.clone(), fact));
        }
    }
    let of_sources = answers.sources.iter().flat_map(findings::of_source);
    found.extend(of_sources.map(|one| finding::row(&one)));
    let of_networks = findings::of_networks(&answers.networks, &answers.clusters);
    found.extend(of_networks.iter().map(finding::row));
    for row in &answers.services {
        for conflict in &row.conflicts {
            let field = text(&conflict.field);
            let (winner, losers) =
                (source_names([&conflict.winner]), source_names(&conflict.losers));
            let each = if field == "ports" { "; all ports are served" } else { "" };
            let fact = format!("{field}: {losers} and {winner} differ; {winner} wins{each}");
            let object = format!("service/{}", text(&row.hostname));
            found.push(note("services", &codes::SERVICE_CONFLICT, object, fact));
        }
    }
    let imports = answers.services.iter();
    let imports = imports.flat_map(|row| row.imports.iter().map(|import| (&*row.hostname, import)));
    found.extend(findings::of_imports(imports).iter().map(finding::row));
    found.extend(imports::invalid_exports(&answers.clusters));
    found.extend(imports::leftover(&answers.clusters));
    found.extend(sharing::ignored_scopes(answers));
    found.extend(of_mesh(&answers.mesh));
    for field in &answers.mesh.fields_without_effect {
        let object = format!("meshConfig/{}", text(field));
        let fact = "this field has no effect";
        found.push(note("mesh", &codes::MESH_FIELD_UNUSED, object, fact));
    }
    for fault in &answers.mesh.default_providers_without_effect {
        let object = format!("meshConfig/{}", text(&fault.path));
        found.push(note("mesh", &codes::MESH_DEFAULT_PROVIDER, object, text(&fault.text)));
    }
    for row in &answers.mesh.unknown_registries {
        let fact = format!("{} names it, but it is not a member", text(&row.rule));
        let object = format!("cluster/{}", text(&row.cluster));
        found.push(note("networks", &codes::REGISTRY_UNKNOWN, object, fact));
    }
    found.extend(held(&answers.hold));
    found.extend(rollout_finding(&answers.rollout));
    if let Some(fact) = &answers.policy.problem {
        found.push(problem("policy", &codes::POLICY, "policy".into(), fact));
    }
    found.extend(member_sources::findings(&answers.policy.members));
    found.extend(member_sources::shared_identities(&answers.policy.members, &answers.clusters));
    for row in &answers.policy.unknown_clusters {
        let fact = format!("{} names it, but it is not a member", text(&row.rule));
        let object = format!("cluster/{}", text(&row.cluster));
        found.push(note("policy", &codes::POLICY_UNKNOWN_CLUSTER, object, fact));
    }
    found.extend(visibility::recommended(&answers.policy));
    found.extend(visibility::foreign_gateways(&answers.policy, &answers.networks));
    for row in answers.proxies.iter() {
        for (kind, entry) in &row.types {
            if let Some(nack) = &entry.nack {
                let fact = format!("refused {}: {}", kind.to_uppercase(), text(&nack.error));
                let object = format!("proxy/{}", proxy::name(row));
                found.push(problem("proxies", &codes::NACK, object, fact));
            }
        }
    }
    found.extend(objects::unpatched(&answers.proxies));
    found.extend(objects::of_objects(&answers.config, &answers.sources));
    found.extend(of_process(&answers.push, "process"));
    found.extend(of_streams(&answers.push, "proxies"));
    found.extend(answers.other_processes.iter().flat_map(|(name, push)| of_replica(name, push)));
    found.extend(
        answers.push.roots.iter().filter_map(findings::of_root).map(|one| finding::row(&one)),
    );
    found.extend(findings::of_certificates(&answers.certificates).iter().map(finding::row));
    found.extend(replicas::findings(&answers.replicas));
    found
}

/// Returns the problems of the mesh's settings.
fn of_mesh(mesh: &Mesh) -> Vec<Value> {
    let of = |row: &Problem| {
        let code = codes::find(&row.code).unwrap_or(&codes::MESH_CONFIG);
        problem("mesh", code, "meshConfig".into(), text(&row.text))
    };
    mesh.problems.iter().map(of).collect()
}

/// Returns the code at the beginning of a reason, or else the code of the state.
fn code_of(state: &str, reason: &str) -> &'static Code {
    codes::named(reason).unwrap_or(match state {
        // A new kubeconfig that has not synced yet.
        "timeout" | "live" => &codes::SYNC_TIMEOUT,
        "authFailed" => &codes::AUTH_FAILED,
        "tlsFailed" => &codes::TLS_FAILED,
        "conflict" => &codes::ID_TAKEN,
        "identityChanged" => &codes::IDENTITY_CHANGED,
        "misbehaving" => &codes::MISBEHAVING,
        "quarantined" => &codes::FLAPPING,
        "rejected" => &codes::KUBECONFIG_UNREADABLE,
        _ => &codes::UNREACHABLE,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::cli::output::tests::{LOOK, sent, typed};
    use strait_admin_api::{CertificateStatus, Replicas};

    #[test]
    fn each_kind_of_problem_is_found_with_its_code() {
        let answers = CheckInputs {
            replicas: Replicas::default(),
            clusters: sent(json!([
                { "id": "ok", "state": "live", "credential": { "endsSoon": false },
                  "sameAddresses": [{ "network": "", "cluster": "c", "addresses": 2, "first": "10.0.0.1", "holder": "ok" }] },
                { "id": "old", "state": "live", "credential": { "endsSoon": true, "expires": "2026-01-01T00:00:00Z" } },
                { "id": "a", "endpoints": 1, "state": "stale", "reason": "STR0301: refused; its last known state stays in use" },
                { "id": "b", "endpoints": 1, "state": "rejected", "reason": "STR0203: users[0].user.exec runs a program" },
                { "id": "c", "state": "live", "kubeconfigRefused": true, "reason": "the new kubeconfig is not used: STR0211: aliases",
                  "ignoredClaims": [{ "claim": "label", "network": "n9" }],
                  "sameAddresses": [{ "network": "", "cluster": "ok", "addresses": 2, "first": "10.0.0.1", "holder": "ok" }] },
                { "id": "d", "state": "quarantined", "reason": "STR0606: 9 of 10" },
                { "id": "e", "state": "timeout" },
                { "id": "empty", "state": "live", "endpoints": 0 },
                { "id": "f", "state": "live", "reason": "STR0309: pods: not permitted: x" },
                { "id": "g", "state": "live", "withheld": 3, "withheldBy": { "STR0404": 2, "STR0407": 1 } },
                { "id": "gw", "state": "live", "withheld": 2, "withheldBy": { "STR0402": 2 } },
                { "id": "q", "state": "live", "reason": "STR0309: nodes: no; STR0319: the cluster has no namespace a" },
                { "id": "h", "state": "draining", "reason": "drained by x: y; STR0301: refused" },
                { "id": "i", "state": "draining", "reason": "its Secret was deleted" },
                { "id": "i2", "state": "draining", "reason": "STR0243: source a of the --members file no longer selects Secret b/c" },
                { "id": "j", "state": "restored", "reason": "from disk; STR0304: 401" },
                { "id": "k", "state": "restored", "reason": "from disk, last contact 9 s ago" },
                { "id": "l", "state": "live", "roots": { "namespaces": 9, "current": 8, "foreign": 1, "foreignFirst": ["shop"], "beside": 1 } },
                { "id": "m", "state": "live", "roots": { "namespaces": 9, "current": 0, "foreign": 0, "beside": 0, "denied": "not permitted" } },
                { "id": "n", "state": "syncing" },
                { "id": "o", "state": "syncing", "reason": "STR0301: endpointslices: HTTP 500" },
            ])),
            sources: typed(json!([
                { "name": "consul", "kind": "consul", "state": "stale", "code": "STR0320", "reason": "500",
                  "warnings": ["web: no address"] },
                { "name": "entries", "kind": "entries", "state": "live", "warnings": ["shop/a: no hosts"] },
                { "name": "config directory", "kind": "directory", "state": "live",
                  "warnings": ["a.yaml: not YAML", "STR0222: shadowed"] },
                { "name": "config cluster", "kind": "cluster", "state": "restored", "code": "STR0301",
                  "reason": "refused", "warnings": ["secrets: STR0301: can't be read"] },
                { "name": "xds://a", "kind": "mcp", "state": "restored", "warnings": [] },
                { "name": "xds://b", "kind": "mcp", "state": "syncing", "warnings": [] },
                { "name": "xds://c", "kind": "mcp", "state": "syncing", "code": "STR0330", "reason": "refused",
                  "warnings": [] },
            ])),
            networks: sent(json!([
                { "network": "n1", "clusters": ["a"], "gateways": [{}, { "address": "::1", "port": 15443, "dead": true }] },
                { "network": "n2", "clusters": ["b"], "gateways": [] },
                { "network": "", "clusters": ["empty"], "gateways": [] },
                { "network": "n3", "clusters": ["b"], "gateways": [], "pending": [{ "source": "s", "reason": "r" }] },
                { "network": "n4", "clusters": ["b"], "gateways": [{}], "pending": [{ "source": "s", "code": "STR0432", "reason": "no ready pod" }] },
            ])),
            services: typed(json!([
                { "hostname": "web", "conflicts": [{ "field": "ports", "winner": "a", "losers": ["b"] }] },
            ])),
            certificates: CertificateStatus::default(),
            mesh: typed(json!({ "problems": [{ "code": "STR0410", "text": "line 3" }],
                          "fieldsWithoutEffect": ["h2UpgradePolicy"],
                          "unknownRegistries": [{ "cluster": "c22", "rule": "meshNetworks n2: fromRegistry" }],
                          "defaultProvidersWithoutEffect": [{ "path": "defaultProviders.tracing[0]", "text": "none" }] })),
            policy: typed(
                json!({ "members": { "problem": "sources[0].ids: is empty", "sources": ["source capi: 403"], "unused": ["proxies"] },
                            "problem": "line 3", "unknownClusters": [{ "cluster": "x", "rule": "owners[0]" }] }),
            ),
            config: typed(
                json!([{ "kind": "Gateway", "namespace": "n", "name": "g", "state": "refused", "reasons": [{ "code": "STR1001", "text": "no" }] }]),
            ),
            proxies: sent(
                json!([{ "id": "sidecar~1~p.ns~d", "version": "1.36.4", "missingPatches": ["CVE-2026-26308"],
                              "types": { "cds": { "nack": { "error": "no" } } } }]),
            ),
            push: typed(json!({ "descriptors": { "limit": 96, "open": 90 },
                          "connectionProblems": [{ "code": "STR0518", "text": "9 of 9" }] })),
            other_processes: vec![(
                "strait-b".to_owned(),
                typed(json!({ "connectionProblems": [{ "code": "STR0517", "text": "4 of 4" }] })),
            )],
            hold: sent(json!({ "held": { "configuration": "0123456789abcdef", "waiting": 1 } })),
            rollout: sent(json!({ "running": { "configuration": "0123456789abcdef" } })),
            unready_reason: None,
        };
        let found: Vec<_> = problems(&answers)
            .iter()
            .map(|row| {
                let sign = if row["severity"] == "note" { "~" } else { "" };
                format!("{sign}{} {}", text(&row["code"]), text(&row["object"]))
            })
            .collect();
        assert_eq!(
            found,
            [
                "STR0316 cluster/old",
                "STR0301 cluster/a",
                "STR0203 cluster/b",
                "STR0211 cluster/c",
                "STR0433 cluster/c",
                "STR0414 cluster/c",
                "STR0606 cluster/d",
                "STR0303 cluster/e",
                "~STR0309 cluster/f",
                "~STR0404 cluster/g",
                "~STR0407 cluster/g",
                "STR0402 cluster/gw",
                "STR0319 cluster/q",
                "~STR0301 cluster/h",
                "STR0243 cluster/i2",
                "STR0304 cluster/j",
                "~STR0302 cluster/k",
                "STR0720 cluster/l",
                "~STR0721 cluster/m",
                "STR0301 cluster/o",
                "STR0320 source/consul",
                "STR0323 source/consul",
                "STR0221 source/entries",
                "STR0219 source/config directory",
                "~STR0222 source/config directory",
                "STR0301 source/config cluster",
                "~STR0302 source/xds://a",
                "STR0330 source/xds://c",
                "STR0409 network/n1",
                "STR0401 network/n2",
                "STR0402 network/n3",
                "STR0432 network/n4",
                "~STR0430 service/web",
                "STR0410 meshConfig",
                "~STR0111 meshConfig/h2UpgradePolicy",
                "~STR0112 meshConfig/defaultProviders.tracing[0]",
                "~STR0436 cluster/c22",
                "~STR1070 configuration",
                "~STR1090 configuration",
                "STR0601 policy",
                "STR0601 members",
                "STR0231 members",
                "~STR0227 members",
                "~STR0607 cluster/x",
                "STR0507 proxy/p.ns",
                "~STR0845 envoy/1.36.4",
                "STR1001 Gateway/n/g",
                "STR0810 process",
                "STR0518 proxies",
                "STR0517 replica/strait-b",
            ]
        );
        let problem = &problems(&answers)[0];
        assert!(!problem["next"].as_str().expect("text").contains("ID"), "{problem}");
        let passed =
            render(&answers, &json!([]), &["clusters", "networks"], &Show::default(), &LOOK);
        assert_eq!(
            passed,
            "No problem found.\n\n\
             ✓   clusters   10 of 21 clusters live\n\
             ✓   networks   5 networks with 2 gateway addresses in use\n"
        );
        assert!(problems(&CheckInputs::default()).is_empty());
        let held = |more: Value| {
            let mut held = json!({ "limit": 96, "open": 20, "neededByMembers": 74 });
            held.as_object_mut()
                .expect("made so")
                .extend(more.as_object().cloned().unwrap_or_default());
            of_process(&typed(json!({ "descriptors": held })), "process").len()
        };
        assert_eq!(held(json!({})), 0);
        assert_eq!(held(json!({ "exhaustedSecondsAgo": 3601 })), 0);
        assert_eq!(held(json!({ "exhaustedSecondsAgo": 3 })), 1);
        assert_eq!(held(json!({ "neededByMembers": 164 })), 1);
        assert_eq!(held(json!({ "limit": null, "open": 9000 })), 0);
        let expiries = ["fine", "fifth", "month", "week", "ended"].map(|stage| {
            let root = json!({ "subject": "CN=a", "ends": "2027-01-01T00:00:00Z", "stage": stage });
            findings::of_root(&typed(root)).map(|one| text(&finding::row(&one)["severity"]))
        });
        assert_eq!(
            expiries.map(Option::unwrap_or_default),
            ["", "note", "problem", "problem", "problem"]
        );
        let unready_reason = CheckInputs {
            unready_reason: Some("waiting for west".into()),
            ..CheckInputs::default()
        };
        assert_eq!(problems(&unready_reason)[0]["code"], "STR0317");
        let single = sent(json!([{ "network": "", "clusters": ["a"], "gateways": [] }]));
        let flat = CheckInputs { networks: single, ..CheckInputs::default() };
        assert!(problems(&flat).is_empty(), "one network needs no gateway");
    }
}
