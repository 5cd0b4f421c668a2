//! `strait policy`: reads a policy file like the control plane, and shows the policy's effect.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use serde::Serialize;
use serde_json::{Value, json};

use super::failure::{CommandFailure, CommandResult, Exit};
use super::list::QueryArgs;
use super::network::gateway_sources;
use super::output::{self, Column, Format, OutputStyle, Sent, TableLayout, text};
use super::simulate;
use strait_admin_api::{
    self as api, Cluster, Network, ObjectName, ObjectState, ObjectStatus, PolicyDelivery,
    PolicyReach, Service, ServiceEndpoint, ServiceSharing, SharingStatements,
};
use strait_base::codes;
use strait_model::policy::{DefaultVisibility, ForeignHostsMode, Policy, PolicyRefusal};
use strait_model::{ClusterId, NetworkId, SERVICE_SETTINGS_RULE, SharingFacts};
use strait_rules::access::PolicyKind;

/// Check and test policies.
#[derive(Debug, Subcommand)]
pub(crate) enum PolicyCommand {
    /// Check whether a policy file is valid, and list the clusters and preferences that it names
    Check {
        /// Policy file, as for 'strait serve --policy'
        file: PathBuf,
    },
    /// Show the claims that a policy file would refuse: one claim of a cluster, or all claims in the
    /// running mesh, and the services that would become local or shared
    Test(TestArgs),
    /// Show the state of an access policy, and the proxies that have not acknowledged it yet
    Status(PolicyStatusArgs),
    /// Show which logged requests would be denied or allowed by access policies before they are
    /// applied
    Simulate(Box<simulate::SimulateArgs>),
}

#[derive(Debug, Args)]
pub(crate) struct PolicyStatusArgs {
    /// NAMESPACE/NAME, or NAME in any namespace
    name: String,
    #[command(flatten)]
    common: QueryArgs,
}

#[derive(Debug, Args)]
pub(crate) struct TestArgs {
    /// Policy file, as for 'strait serve --policy'
    file: PathBuf,
    /// Cluster whose claims are tested [default: test everything in the running mesh]
    #[arg(long, value_name = "ID")]
    cluster: Option<String>,
    /// Test whether the cluster may export this host name
    #[arg(long, value_name = "HOST", requires = "cluster")]
    host: Option<String>,
    /// Test whether the cluster may claim this network
    #[arg(long, value_name = "NET", requires = "cluster")]
    network: Option<String>,
    /// Test whether the cluster may name this trust domain in its own mesh ConfigMap
    #[arg(long, value_name = "TD", requires = "cluster")]
    trust_domain: Option<String>,
    /// Test whether the cluster may use this address
    #[arg(long, value_name = "A", requires = "cluster")]
    address: Option<IpAddr>,
    #[command(flatten)]
    common: QueryArgs,
}

/// Table of refusals.
const REFUSALS: TableLayout<Value> = TableLayout {
    kind: "refusal",
    name: |row| format!("{}/{}", text(&row["cluster"]), text(&row["what"])),
    columns: &[
        Column::new("CLUSTER", |row, _| text(&row["cluster"]).into()),
        Column::new("WHAT", |row, _| text(&row["what"]).into()),
        Column::new("CODE", |row, _| text(&row["code"]).into()),
        Column::new("RULE", |row, _| text(&row["rule"]).into()),
        Column::new("WHY", |row, _| text(&row["fact"]).into()),
    ],
};

/// Runs `strait policy`. Exit code 2 means that something is refused.
pub(crate) async fn run(command: &PolicyCommand) -> CommandResult {
    match command {
        PolicyCommand::Check { file } => {
            let policy = read(file)?;
            let mut out = format!("{} is valid.\n", file.display());
            for (cluster, place) in policy.clusters_named() {
                out += &format!("  cluster {cluster} is named in {place}\n");
            }
            for preference in policy.preferences() {
                out += &format!("  preference {preference}\n");
            }
            output::print(&out)?;
            Ok(Exit::Fine)
        }
        PolicyCommand::Test(args) => test(args).await,
        PolicyCommand::Status(args) => status(args).await,
        PolicyCommand::Simulate(args) => simulate::run(args).await,
    }
}

fn read(file: &Path) -> Result<Policy, CommandFailure> {
    let text = std::fs::read_to_string(file)
        .map_err(|error| CommandFailure::usage(format!("{}: {error}", file.display())))?;
    Policy::parse(&text).map_err(|invalid| {
        CommandFailure::coded(&codes::POLICY, format!("{}: {invalid}", file.display()))
    })
}

async fn test(args: &TestArgs) -> CommandResult {
    let policy = read(&args.file)?;
    if let Some(cluster) = &args.cluster {
        known(&policy, cluster, args).await?;
        return show_refusals(claims(&policy, &ClusterId::from(cluster.as_str()), args)?, args);
    }
    let mut changes = Vec::new();
    let refusals = {
        let services: Vec<Service> = args.common.request("/debug/services", &[]).await?.read()?;
        let mut found = Vec::new();
        for service in &services {
            changes.extend(sharing_changes(&policy, service));
            let query = [("hostname", service.hostname.as_str())];
            let endpoints = args.common.request("/debug/endpoints", &query).await?;
            found.extend(refused(&policy, service, &endpoints.read::<Vec<_>>()?));
        }
        if policy.traffic().default_visibility == DefaultVisibility::Namespace {
            let now: api::Policy = args.common.request("/debug/policy", &[]).await?.read()?;
            found.extend(now.visible_by_default.iter().map(narrowed));
        }
        if policy.traffic().foreign_hosts == ForeignHostsMode::Deny {
            let states: Vec<ObjectStatus> =
                args.common.request("/debug/config", &[]).await?.read()?;
            found.extend(states.iter().filter_map(denied));
        }
        if policy.gateway_namespaces().is_some() {
            let networks = args.common.request("/debug/networks", &[]).await?;
            found.extend(refused_gateways(&policy, &networks.read::<Vec<_>>()?));
        }
        found
    };
    let show = &args.common.show;
    match show.output {
        Format::Json | Format::Yaml => {
            let exit = if refusals.is_empty() { Exit::Fine } else { Exit::Unhealthy };
            let answer = json!({ "refusals": refusals, "changes": changes });
            output::print(&match show.output {
                Format::Json => format!("{answer:#}\n"),
                _ => output::yaml(&answer),
            })?;
            Ok(exit)
        }
        _ => {
            let exit = show_refusals(refusals, args)?;
            if show.output.is_for_people() && show.output != Format::Name {
                output::print(&render_changes(&changes))?;
            }
            Ok(exit)
        }
    }
}

/// A cluster in which a service would become local or shared.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct SharingChange {
    hostname: String,
    cluster: String,
    from: String,
    to: &'static str,
}

/// Returns the clusters in which a service would become local or shared.
fn sharing_changes(policy: &Policy, service: &Service) -> Vec<SharingChange> {
    let (host, namespace) = (service.hostname.as_str(), service.namespace.as_str());
    let change = |row: &ServiceSharing| {
        let cluster = ClusterId::from(row.cluster.as_str());
        let SharingStatements { export, label, namespace_label, istio_label, scope } =
            row.statements;
        let facts = SharingFacts { export, label, namespace_label, istio_label, scope };
        let is_local = row.rule == SERVICE_SETTINGS_RULE
            || policy.may_export(&cluster, host, namespace).is_err()
            || policy.sharing().decide(&cluster, facts).is_local;
        let to = if is_local { "local" } else { "shared" };
        (row.state != to).then(|| SharingChange {
            hostname: host.to_owned(),
            cluster: row.cluster.clone(),
            from: row.state.clone(),
            to,
        })
    };
    service.sharing.iter().filter_map(change).collect()
}

/// Returns a line for each service that would become local or shared in a cluster.
fn render_changes(changes: &[SharingChange]) -> String {
    let line = |change: &SharingChange| {
        let SharingChange { hostname, cluster, from, to } = change;
        format!("{hostname}  {cluster}  {from} -> {to}\n")
    };
    changes.iter().map(line).collect()
}

/// Prints refusals. Exit code 2 means that there are some.
fn show_refusals(refusals: Vec<Value>, args: &TestArgs) -> CommandResult {
    let exit = if refusals.is_empty() { Exit::Fine } else { Exit::Unhealthy };
    let answer = Value::Array(refusals);
    let raw = format!("{answer:#}\n");
    let show = &args.common.show;
    if show.output.is_for_people() && exit == Exit::Fine && show.output != Format::Name {
        output::print("Nothing is refused.\n")?;
    } else {
        output::print(&REFUSALS.render(&raw, &answer, show, &OutputStyle::of_stdout())?)?;
    }
    Ok(exit)
}

/// Rejects a cluster that is neither in the policy nor in the mesh, because a result for it would
/// be meaningless.
async fn known(policy: &Policy, cluster: &str, args: &TestArgs) -> Result<(), CommandFailure> {
    if policy.clusters_named().iter().any(|(named, _)| named.as_str() == cluster) {
        return Ok(());
    }
    let unnamed = format!("the policy does not name cluster {}", output::clean(cluster));
    let next = "check the ID: strait cluster list. To test a cluster before it joins, name it in the policy first";
    let members = args.common.request("/debug/clusters", &[]).await;
    match members.and_then(|members| members.read::<Vec<Cluster>>()) {
        Ok(members) if members.iter().any(|row| row.id == cluster) => Ok(()),
        Ok(_) => {
            Err(CommandFailure::failed(format!("{unnamed}, and it is not a member")).next(next))
        }
        Err(failure) => Err(CommandFailure::new(
            failure.exit,
            format!("{unnamed}, and can't check whether it is a member: {}", failure.message()),
        )
        .next(next)),
    }
}

/// Returns a row for an object that would apply to its own namespace only.
fn narrowed(object: &ObjectName) -> Value {
    let [kind, namespace, name] = [&object.kind, &object.namespace, &object.name].map(text);
    json!({
        "cluster": "", "what": format!("{kind} {namespace}/{name}"), "code": codes::DEFAULT_VISIBILITY.id,
        "rule": "traffic.defaultVisibility",
        "fact": format!("has no exportTo: it would apply to proxies of {namespace} only"),
    })
}

/// Returns a row for a VirtualService that would no longer apply to services of other namespaces.
fn denied(state: &ObjectStatus) -> Option<Value> {
    let reason = state.reasons.iter().find(|one| one.code == codes::FOREIGN_HOST.id)?;
    let [kind, namespace, name] = [&state.kind, &state.namespace, &state.name].map(text);
    (kind == "VirtualService").then(|| {
        json!({
            "cluster": state.cluster.as_deref().unwrap_or_default(),
            "what": format!("{kind} {namespace}/{name}"), "code": codes::FOREIGN_HOST.id,
            "rule": "traffic.foreignHosts", "fact": text(&reason.text),
        })
    })
}

/// Returns a row for each network gateway in a namespace that the policy does not list.
fn refused_gateways(policy: &Policy, networks: &[Network]) -> Vec<Value> {
    let mut found = BTreeMap::new();
    for network in networks {
        for (cluster, source) in gateway_sources(network) {
            let source = text(source);
            let object = ["service ", "gateway "].iter().find_map(|kind| source.strip_prefix(kind));
            let Some((namespace, _)) = object.and_then(|object| object.split_once('/')) else {
                continue;
            };
            if let Err(refused) = policy.may_be_gateway(namespace) {
                let row = line(cluster, source.clone(), &codes::FOREIGN_GATEWAY, &refused);
                found.insert((cluster.to_owned(), source), row);
            }
        }
    }
    found.into_values().collect()
}

fn line(cluster: &str, what: String, code: &codes::Code, refused: &PolicyRefusal) -> Value {
    let PolicyRefusal { rule, fact } = refused;
    json!({ "cluster": cluster, "what": what, "code": code.id, "rule": rule, "fact": fact })
}

/// Returns the refused claims of the command line.
fn claims(
    policy: &Policy,
    cluster: &ClusterId,
    args: &TestArgs,
) -> Result<Vec<Value>, CommandFailure> {
    let mut found = Vec::new();
    let id = cluster.as_str();
    if let Some(host) = &args.host {
        let namespace = host.split('.').nth(1).unwrap_or_default();
        if let Err(refused) = policy.may_export(cluster, host, namespace) {
            found.push(line(id, host.clone(), &codes::EXPORT_REFUSED, &refused));
        }
    }
    if let Some(network) = &args.network
        && let Err(refused) = policy.may_claim(cluster, &NetworkId::from(network.as_str()))
    {
        found.push(line(id, format!("network {network}"), &codes::NETWORK_REFUSED, &refused));
    }
    if let Some(domain) = &args.trust_domain
        && let Some(Err(refused)) = policy.may_name(cluster, domain)
    {
        let what = format!("trust domain {domain}");
        found.push(line(id, what, &codes::TRUST_DOMAIN_REFUSED, &refused));
    }
    if let Some(address) = args.address
        && let Err(refused) = policy.may_use(cluster, address)
    {
        found.push(line(id, address.to_string(), &codes::ADDRESS_REFUSED, &refused));
    }
    let claims = [&args.host, &args.network, &args.trust_domain];
    if claims.iter().all(|one| one.is_none()) && args.address.is_none() {
        return Err(CommandFailure::usage("--cluster requires a claim to test")
            .next("add --host, --network, --trust-domain or --address"));
    }
    Ok(found)
}

/// Returns the refused endpoints of a service, from the rows of the admin API.
fn refused(policy: &Policy, service: &Service, endpoints: &[ServiceEndpoint]) -> Vec<Value> {
    let (host, namespace) = (service.hostname.as_str(), service.namespace.as_str());
    let mut found: Vec<Value> = Vec::new();
    for endpoint in endpoints.iter().filter(|one| one.provider == "Kubernetes") {
        let ServiceEndpoint { address, cluster: id, network, .. } = endpoint;
        let cluster = ClusterId::from(id.as_str());
        let socket = format!("{host} {address}");
        let may_use = |address| policy.may_use(&cluster, address);
        let lines = [
            (policy.may_export(&cluster, host, namespace).err())
                .map(|one| line(id, host.to_owned(), &codes::EXPORT_REFUSED, &one)),
            (policy.may_claim(&cluster, &NetworkId::from(network.as_str())).err())
                .map(|one| line(id, socket.clone(), &codes::NETWORK_REFUSED, &one)),
            (address.parse().ok().and_then(|address| may_use(address).err()))
                .map(|one| line(id, socket, &codes::ADDRESS_REFUSED, &one)),
        ];
        for line in lines.into_iter().flatten() {
            if !found.contains(&line) {
                found.push(line);
            }
        }
    }
    found
}

/// Shows the state of an access policy. Exit code 2 means that it is not fully active on all
/// proxies.
async fn status(args: &PolicyStatusArgs) -> CommandResult {
    let (namespace, name) = match args.name.split_once('/') {
        Some((namespace, name)) => (Some(namespace), name),
        None => (None, args.name.as_str()),
    };
    let mut query = vec![("name", name)];
    query.extend(namespace.map(|namespace| ("namespace", namespace)));
    let states = args.common.request("/debug/config", &query).await?;
    let reach = args.common.request("/debug/config/reach", &query).await?;
    let mut states: Vec<Sent<ObjectStatus>> = states.rows()?;
    states.retain(|state| is_access_policy(state));
    if states.is_empty() {
        return Err(CommandFailure::failed(format!("access policy {} does not exist", args.name)));
    }
    let reach: Vec<Sent<PolicyReach>> = reach.rows()?;
    let all: Vec<PolicyStatus> =
        states.into_iter().map(|state| PolicyStatus::of(state, &reach)).collect();
    match args.common.show.output {
        Format::Json | Format::Yaml => {
            let all: Value = all.iter().map(|one| one.value.clone()).collect();
            let yaml = args.common.show.output == Format::Yaml;
            output::print(&if yaml { output::yaml(&all) } else { format!("{all:#}\n") })?;
        }
        _ => output::print(&all.iter().map(render_status).collect::<String>())?,
    }
    Ok(if all.iter().all(PolicyStatus::is_fine) { Exit::Fine } else { Exit::Unhealthy })
}

/// The state of an access policy, and the proxies to which it applies.
struct PolicyStatus {
    /// Both as one object, as scripts receive them.
    value: Value,
    state: ObjectStatus,
    reach: PolicyReach,
}

impl PolicyStatus {
    fn of(state: Sent<ObjectStatus>, reach: &[Sent<PolicyReach>]) -> Self {
        let mut value = state.value.clone();
        let state = state.into_typed();
        let is_it = |row: &&Sent<PolicyReach>| {
            (&row.kind, &row.namespace, &row.name) == (&state.kind, &state.namespace, &state.name)
        };
        let found = reach.iter().find(is_it);
        if let Some(found) = found {
            // State and acknowledgements from the same moment.
            for field in ["proxies", "acknowledged", "connected", "transition", "told", "rows"] {
                value[field] = found.value.get(field).cloned().unwrap_or_default();
            }
        }
        let unknown = || PolicyReach { proxies: state.proxies, ..PolicyReach::default() };
        let reach = found.map_or_else(unknown, |found| PolicyReach::clone(found));
        Self { value, state, reach }
    }

    fn is_fine(&self) -> bool {
        let Self { state, reach, .. } = self;
        matches!(state.state, ObjectState::InForce | ObjectState::Unused)
            && reach.acknowledged == reach.proxies
            && reach.transition.is_none()
            && reach.told.iter().flatten().all(|delivery| delivery.waiting == 0)
    }
}

/// Returns whether an object is an access policy. Objects of other kinds may have the same name.
fn is_access_policy(state: &ObjectStatus) -> bool {
    let kinds = [PolicyKind::Authorization, PolicyKind::Peer, PolicyKind::Request];
    kinds.iter().any(|kind| state.kind == kind.as_str())
}

fn render_status(PolicyStatus { state, reach, .. }: &PolicyStatus) -> String {
    let [kind, namespace, name] = [&state.kind, &state.namespace, &state.name].map(text);
    let mut out = format!(
        "{kind} {namespace}/{name}: {}, acknowledged by {} of {} proxies ({} are connected)\n",
        text(state.state.as_str()),
        reach.acknowledged,
        reach.proxies,
        reach.connected,
    );
    if let Some(transition) = &reach.transition {
        out += &format!(
            "  in transition: workloads of {} proxies accept plain text in addition to mTLS until {}\n",
            transition.proxies,
            text(&transition.until)
        );
    }
    for delivery in reach.told.iter().flatten().filter(|delivery| delivery.proxies != 0) {
        let PolicyDelivery { at, proxies, acknowledged, refused, waiting, .. } = delivery;
        out += &format!(
            "  sent at {}: {proxies} proxies, servers and clients; {acknowledged} acknowledged all of it",
            text(at),
        );
        if *refused != 0 {
            out += &format!(", {refused} refused some of it");
        }
        if *waiting != 0 {
            out += &format!(", {waiting} pending (still with the previous configuration)");
        }
        out.push('\n');
    }
    for reason in &state.reasons {
        let [code, path, fact] = [&reason.code, &reason.path, &reason.text].map(text);
        out += &format!("  {code} {path}: {fact}\n");
    }
    for row in reach.rows.iter().filter(|row| !row.acknowledged) {
        let refused = match &row.nack {
            None => "not acknowledged yet".to_owned(),
            Some(nack) => format!("refused: {}", text(&nack.error)),
        };
        out += &format!("  {} in {}: {refused}\n", text(&row.proxy), text(&row.cluster));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::output::tests::{sent, typed};

    #[test]
    fn services_that_would_become_local_or_shared_are_listed() {
        let policy = |rules: &str| {
            Policy::parse(&format!("apiVersion: strait.dev/v1\nkind: Policy\n{rules}"))
                .expect(rules)
        };
        let row = |cluster: &str, state: &str, rule: &str, statements: Value| json!({ "cluster": cluster, "state": state, "rule": rule, "statements": statements });
        let service: Service = typed(json!({
            "hostname": "web.shop.svc.cluster.local", "namespace": "shop",
            "sharing": [
                row("east", "shared", "no rule", json!({ "scope": false })),
                row("west", "shared", "no rule", json!({ "scope": true })),
                row("north", "shared", "Service label strait.dev/share", json!({ "label": true, "scope": false })),
                row("south", "local", SERVICE_SETTINGS_RULE, json!({ "scope": true })),
                row("far", "local", "policy owners[0]", json!({})),
            ],
        }));
        let changed = |rules: &str| render_changes(&sharing_changes(&policy(rules), &service));
        let of = |cluster: &str, change: &str| {
            format!("web.shop.svc.cluster.local  {cluster}  {change}\n")
        };
        let kept = "owners: [{namespaces: [shop], clusters: [east, west, north, south]}]\n";
        assert_eq!(changed(kept), "");
        let honoured = format!("{kept}sharing: {{istioGlobal: honour}}");
        assert_eq!(changed(&honoured), of("east", "shared -> local"));
        let local = format!("{kept}sharing: {{default: local}}");
        let both = of("east", "shared -> local") + &of("west", "shared -> local");
        assert_eq!(changed(&local), both);
        assert_eq!(changed(""), of("far", "local -> shared"));
        let changes = sharing_changes(&policy(&honoured), &service);
        let expected = json!([{
            "hostname": "web.shop.svc.cluster.local", "cluster": "east", "from": "shared", "to": "local",
        }]);
        assert_eq!(json!(changes), expected);
    }

    #[test]
    fn objects_that_would_apply_to_one_namespace_only_are_listed() {
        let row = narrowed(&typed(
            json!({ "kind": "DestinationRule", "namespace": "shop", "name": "a" }),
        ));
        assert_eq!(
            (&row["what"], &row["code"]),
            (&json!("DestinationRule shop/a"), &json!("STR1111"))
        );
        assert_eq!(row["rule"], "traffic.defaultVisibility");
        assert!(text(&row["fact"]).contains("proxies of shop only"), "{row}");
    }

    #[test]
    fn objects_and_gateways_that_a_policy_would_restrict_are_listed() {
        let state = |kind: &str, code: &str| {
            let reasons = json!([{ "code": code, "text": "a fact" }]);
            typed(json!({ "kind": kind, "namespace": "evil", "name": "a", "reasons": reasons }))
        };
        let row = denied(&state("VirtualService", "STR1112")).expect("it would be restricted");
        assert_eq!(
            (&row["what"], &row["fact"]),
            (&json!("VirtualService evil/a"), &json!("a fact"))
        );
        assert_eq!(denied(&state("VirtualService", "STR1004")), None);
        assert_eq!(denied(&state("ServiceEntry", "STR1112")), None, "entries are not restricted");
        let text = "apiVersion: strait.dev/v1\nkind: Policy\ngatewayNamespaces: [edge]\n";
        let policy = Policy::parse(text).expect("a policy");
        let gateway = |source: &str| json!({ "source": source, "cluster": "east" });
        let networks = json!([{
            "gateways": [gateway("service evil/gw"), gateway("service evil/gw"), gateway("service edge/gw")],
            "pending": [gateway("meshNetworks address")],
        }]);
        let found = refused_gateways(&policy, &typed::<Vec<_>>(networks));
        let refused: Vec<_> = found.iter().map(|row| (&row["what"], &row["rule"])).collect();
        assert_eq!(refused, [(&json!("service evil/gw"), &json!("gatewayNamespaces"))]);
    }

    #[test]
    fn status_shows_access_policies_only() {
        let of = |kind: &str| {
            sent(json!({ "kind": kind, "namespace": "shop", "name": "web", "state": "refused" }))
        };
        for kind in ["AuthorizationPolicy", "PeerAuthentication", "RequestAuthentication"] {
            assert!(is_access_policy(&of(kind)), "{kind}");
        }
        for kind in ["VirtualService", "DestinationRule", "Sidecar", "Telemetry"] {
            assert!(!is_access_policy(&of(kind)), "{kind}");
        }
        let shown = render_status(&PolicyStatus::of(of("AuthorizationPolicy"), &[]));
        let expected = "AuthorizationPolicy shop/web: refused, acknowledged by 0 of 0 proxies (0 are connected)\n";
        assert_eq!(shown, expected);
    }

    #[test]
    fn refusals_of_a_mesh_are_listed_once() {
        let policy = Policy::parse(
            "apiVersion: strait.dev/v1
kind: Policy
owners: [{namespaces: [pay], clusters: [west]}]
clusters: {east: {networks: [n1], addresses: [10.1.0.0/16]}}",
        );
        let policy = policy.expect("a sound policy");
        let service = json!({ "hostname": "bank.pay.svc.cluster.local", "namespace": "pay" });
        let endpoint = |cluster: &str, address: &str, network: &str| json!({ "cluster": cluster, "address": address, "network": network, "provider": "Kubernetes" });
        let endpoints = json!([
            endpoint("east", "10.1.0.1", "n1"),
            endpoint("east", "10.2.0.1", "n2"),
            endpoint("west", "10.2.0.1", "n2"),
        ]);
        let found = refused(&policy, &typed(service), &typed::<Vec<_>>(endpoints));
        let lines: Vec<_> = found
            .iter()
            .map(|row| format!("{} {}", text(&row["code"]), text(&row["rule"])))
            .collect();
        assert_eq!(
            lines,
            [
                "STR0602 owners[0]",
                "STR0604 clusters.east.networks",
                "STR0603 clusters.east.addresses"
            ]
        );
    }
}
