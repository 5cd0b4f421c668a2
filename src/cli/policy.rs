//! `strait policy`: reads a policy file like the control plane, and shows the policy's effect.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use serde::Deserialize;
use serde_json::{Value, json};

use super::failure::{CommandFailure, CommandResult, Exit};
use super::list::QueryArgs;
use super::output::{self, Column, Format, OutputStyle, TableLayout, items, text};
use super::simulate;
use strait_base::codes;
use strait_model::policy::{DefaultVisibility, ForeignHostsMode, Policy, PolicyRefusal};
use strait_model::{ClusterId, NetworkId, SharingFacts};
use strait_rules::access::PolicyKind;

/// Check and test policies.
#[derive(Debug, Subcommand)]
pub(crate) enum PolicyCommand {
    /// Check whether a policy file is valid, and list the clusters and preferences that it names
    Check {
        /// Policy file, as for 'strait serve --policy'
        file: PathBuf,
    },
    /// Show what a policy file would refuse: a claim of a cluster, or anything in the running mesh,
    /// and the services that would become local or shared
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
    ask: QueryArgs,
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
    ask: QueryArgs,
}

/// The rule of services that the mesh config makes cluster-local, which no policy changes.
const SERVICE_SETTINGS: &str = "mesh config serviceSettings";

/// Table of refusals.
const REFUSALS: TableLayout = TableLayout {
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
        let services = args.ask.ask("/debug/services", &[]).await?.value;
        let mut found = Vec::new();
        for service in items(&services) {
            changes.extend(sharing_changes(&policy, service));
            let Some(host) = service["hostname"].as_str() else { continue };
            let query = [("hostname", host)];
            let endpoints = args.ask.ask("/debug/endpoints", &query).await?.value;
            found.extend(refused(&policy, service, &endpoints));
        }
        if policy.traffic().default_visibility == DefaultVisibility::Namespace {
            let now = args.ask.ask("/debug/policy", &[]).await?.value;
            found.extend(items(&now["visibleByDefault"]).iter().map(narrowed));
        }
        if policy.traffic().foreign_hosts == ForeignHostsMode::Deny {
            let states = args.ask.ask("/debug/config", &[]).await?.value;
            found.extend(items(&states).iter().filter_map(denied));
        }
        if policy.gateway_namespaces().is_some() {
            let networks = args.ask.ask("/debug/networks", &[]).await?.value;
            found.extend(refused_gateways(&policy, &networks));
        }
        found
    };
    let show = &args.ask.show;
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

/// Returns the clusters in which a service would become local or shared.
fn sharing_changes(policy: &Policy, service: &Value) -> Vec<Value> {
    let [host, namespace] =
        ["hostname", "namespace"].map(|field| service[field].as_str().unwrap_or_default());
    let mut changes = Vec::new();
    for row in items(&service["sharing"]) {
        let cluster = ClusterId::from(row["cluster"].as_str().unwrap_or_default());
        let facts = SharingFacts::deserialize(&row["statements"]).unwrap_or_default();
        let is_local = row["rule"] == SERVICE_SETTINGS
            || policy.may_export(&cluster, host, namespace).is_err()
            || policy.sharing().decide(&cluster, facts).is_local;
        let to = if is_local { "local" } else { "shared" };
        if row["state"] != to {
            changes.push(json!({
                "hostname": host, "cluster": cluster, "from": row["state"], "to": to,
            }));
        }
    }
    changes
}

/// Returns a line for each service that would become local or shared in a cluster.
fn render_changes(changes: &[Value]) -> String {
    let line = |change: &Value| {
        let [host, cluster, from, to] =
            ["hostname", "cluster", "from", "to"].map(|field| text(&change[field]));
        format!("{host}  {cluster}  {from} -> {to}\n")
    };
    changes.iter().map(line).collect()
}

/// Prints refusals. Exit code 2 means that there are some.
fn show_refusals(refusals: Vec<Value>, args: &TestArgs) -> CommandResult {
    let exit = if refusals.is_empty() { Exit::Fine } else { Exit::Unhealthy };
    let answer = Value::Array(refusals);
    let raw = format!("{answer:#}\n");
    let show = &args.ask.show;
    if show.output.is_for_people() && exit == Exit::Fine && show.output != Format::Name {
        output::print("Nothing is refused.\n")?;
    } else {
        output::print(&REFUSALS.render(&raw, &answer, show, &OutputStyle::of_stdout()))?;
    }
    Ok(exit)
}

/// Rejects a cluster that is neither in the policy nor in the mesh, because a result for it would
/// be meaningless.
async fn known(policy: &Policy, cluster: &str, args: &TestArgs) -> Result<(), CommandFailure> {
    if policy.clusters_named().iter().any(|(named, _)| named.as_str() == cluster) {
        return Ok(());
    }
    let nobody = format!("the policy does not name cluster {}", output::clean(cluster));
    let next = "check the ID: strait cluster list. To test a cluster before it joins, name it in the policy first";
    match args.ask.ask("/debug/clusters", &[]).await {
        Ok(members) if items(&members.value).iter().any(|row| row["id"] == cluster) => Ok(()),
        Ok(_) => {
            Err(CommandFailure::failed(format!("{nobody}, and it is not a member")).next(next))
        }
        Err(failure) => Err(CommandFailure::new(
            failure.exit,
            format!("{nobody}, and can't check whether it is a member: {}", failure.message()),
        )
        .next(next)),
    }
}

/// Returns a row for an object that would apply to its own namespace only.
fn narrowed(object: &Value) -> Value {
    let [kind, namespace, name] = ["kind", "namespace", "name"].map(|part| text(&object[part]));
    json!({
        "cluster": "", "what": format!("{kind} {namespace}/{name}"), "code": codes::DEFAULT_VISIBILITY.id,
        "rule": "traffic.defaultVisibility",
        "fact": format!("has no exportTo: it would apply to proxies of {namespace} only"),
    })
}

/// Returns a row for a VirtualService that would no longer apply to services of other namespaces.
fn denied(state: &Value) -> Option<Value> {
    let mut reasons = items(&state["reasons"]).iter();
    let reason = reasons.find(|one| one["code"] == codes::FOREIGN_HOST.id)?;
    let [kind, namespace, name] = ["kind", "namespace", "name"].map(|part| text(&state[part]));
    (kind == "VirtualService").then(|| {
        json!({
            "cluster": state["cluster"].as_str().unwrap_or_default(),
            "what": format!("{kind} {namespace}/{name}"), "code": codes::FOREIGN_HOST.id,
            "rule": "traffic.foreignHosts", "fact": text(&reason["text"]),
        })
    })
}

/// Returns a row for each network gateway in a namespace that the policy does not list.
fn refused_gateways(policy: &Policy, networks: &Value) -> Vec<Value> {
    let mut found = BTreeMap::new();
    for network in items(networks) {
        for gateway in items(&network["gateways"]).iter().chain(items(&network["pending"])) {
            let source = text(&gateway["source"]);
            let object = ["service ", "gateway "].iter().find_map(|kind| source.strip_prefix(kind));
            let Some((namespace, _)) = object.and_then(|object| object.split_once('/')) else {
                continue;
            };
            if let Err(refused) = policy.may_be_gateway(namespace) {
                let cluster = gateway["cluster"].as_str().unwrap_or_default().to_owned();
                let row = line(&cluster, source.clone(), &codes::FOREIGN_GATEWAY, &refused);
                found.insert((cluster, source), row);
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
    let asked = [&args.host, &args.network, &args.trust_domain];
    if asked.iter().all(|one| one.is_none()) && args.address.is_none() {
        return Err(CommandFailure::usage("--cluster requires a claim to test")
            .next("add --host, --network, --trust-domain or --address"));
    }
    Ok(found)
}

/// Returns the refused endpoints of a service, from the rows of the admin API.
fn refused(policy: &Policy, service: &Value, endpoints: &Value) -> Vec<Value> {
    let host = service["hostname"].as_str().unwrap_or_default();
    let namespace = service["namespace"].as_str().unwrap_or_default();
    let mut found: Vec<Value> = Vec::new();
    for endpoint in items(endpoints).iter().filter(|one| one["provider"] == "Kubernetes") {
        let part = |name: &str| endpoint[name].as_str().unwrap_or_default();
        let cluster = ClusterId::from(part("cluster"));
        let socket = format!("{host} {}", part("address"));
        let lines =
            [
                policy.may_export(&cluster, host, namespace).err().map(|one| {
                    line(part("cluster"), host.to_owned(), &codes::EXPORT_REFUSED, &one)
                }),
                policy.may_claim(&cluster, &NetworkId::from(part("network"))).err().map(|one| {
                    line(part("cluster"), socket.clone(), &codes::NETWORK_REFUSED, &one)
                }),
                part("address")
                    .parse()
                    .ok()
                    .and_then(|address| policy.may_use(&cluster, address).err())
                    .map(|one| line(part("cluster"), socket, &codes::ADDRESS_REFUSED, &one)),
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
    let states = args.ask.ask("/debug/config", &query).await?;
    let reach = args.ask.ask("/debug/config/reach", &query).await?;
    let states = items(&states.value);
    let states: Vec<&Value> = states.iter().filter(|state| is_access_policy(state)).collect();
    if states.is_empty() {
        return Err(CommandFailure::failed(format!("access policy {} does not exist", args.name)));
    }
    let mut all = Vec::new();
    for state in states {
        let is_it =
            |row: &&Value| ["kind", "namespace", "name"].iter().all(|one| row[one] == state[one]);
        let mut both = state.clone();
        if let Some(found) = items(&reach.value).iter().find(is_it) {
            // State and acknowledgements from the same moment.
            for field in ["proxies", "acknowledged", "connected", "transition", "told", "rows"] {
                both[field] = found[field].clone();
            }
        }
        all.push(both);
    }
    let is_fine = |one: &Value| {
        (one["state"] == "inForce" || one["state"] == "unused")
            && one["acknowledged"] == one["proxies"]
            && one["transition"].is_null()
            && items(&one["told"]).iter().all(|told| told["waiting"] == 0)
    };
    let fine = all.iter().all(is_fine);
    match args.ask.show.output {
        Format::Json => output::print(&format!("{:#}\n", Value::from(all)))?,
        Format::Yaml => output::print(&output::yaml(&Value::from(all)))?,
        _ => output::print(&all.iter().map(render_status).collect::<String>())?,
    }
    Ok(if fine { Exit::Fine } else { Exit::Unhealthy })
}

/// Returns whether an object is an access policy. Objects of other kinds may have the same name.
fn is_access_policy(state: &Value) -> bool {
    let kinds = [PolicyKind::Authorization, PolicyKind::Peer, PolicyKind::Request];
    kinds.iter().any(|kind| state["kind"] == kind.as_str())
}

fn render_status(state: &Value) -> String {
    let name = ["kind", "namespace", "name"].map(|field| text(&state[field]));
    let count = |field: &str| state[field].as_u64().unwrap_or(0);
    let mut out = format!(
        "{} {}/{}: {}, acknowledged by {} of {} proxies ({} are connected)\n",
        name[0],
        name[1],
        name[2],
        text(&state["state"]),
        count("acknowledged"),
        count("proxies"),
        count("connected"),
    );
    if let Value::Object(transition) = &state["transition"] {
        out += &format!(
            "  in transition: workloads of {} proxies accept plain text in addition to mTLS until {}\n",
            transition["proxies"],
            text(&transition["until"])
        );
    }
    for told in items(&state["told"]).iter().filter(|told| told["proxies"] != 0) {
        let [proxies, acknowledged, refused, waiting] =
            ["proxies", "acknowledged", "refused", "waiting"].map(|field| &told[field]);
        out += &format!(
            "  sent at {}: {proxies} proxies, servers and clients; {acknowledged} acknowledged all of it",
            text(&told["at"]),
        );
        if *refused != 0 {
            out += &format!(", {refused} refused some of it");
        }
        if *waiting != 0 {
            out += &format!(", {waiting} pending (still with the previous configuration)");
        }
        out.push('\n');
    }
    for reason in items(&state["reasons"]) {
        let [code, path, fact] = ["code", "path", "text"].map(|field| text(&reason[field]));
        out += &format!("  {code} {path}: {fact}\n");
    }
    for row in items(&state["rows"]).iter().filter(|row| row["acknowledged"] == false) {
        let refused = match &row["nack"]["error"] {
            Value::Null => "not acknowledged yet".to_owned(),
            error => format!("refused: {}", text(error)),
        };
        out += &format!("  {} in {}: {refused}\n", text(&row["proxy"]), text(&row["cluster"]));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn services_that_would_become_local_or_shared_are_listed() {
        let policy = |rules: &str| {
            Policy::parse(&format!("apiVersion: strait.dev/v1\nkind: Policy\n{rules}"))
                .expect(rules)
        };
        let row = |cluster: &str, state: &str, rule: &str, statements: Value| json!({ "cluster": cluster, "state": state, "rule": rule, "statements": statements });
        let service = json!({
            "hostname": "web.shop.svc.cluster.local", "namespace": "shop",
            "sharing": [
                row("east", "shared", "no rule", json!({ "scope": false })),
                row("west", "shared", "no rule", json!({ "scope": true })),
                row("north", "shared", "Service label strait.dev/share", json!({ "label": true, "scope": false })),
                row("south", "local", SERVICE_SETTINGS, json!({ "scope": true })),
                row("far", "local", "policy owners[0]", json!({})),
            ],
        });
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
        assert_eq!(Value::Array(changes), expected);
    }

    #[test]
    fn objects_that_would_apply_to_one_namespace_only_are_listed() {
        let row = narrowed(&json!({ "kind": "DestinationRule", "namespace": "shop", "name": "a" }));
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
            json!({ "kind": kind, "namespace": "evil", "name": "a", "reasons": reasons })
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
        let found = refused_gateways(&policy, &networks);
        let refused: Vec<_> = found.iter().map(|row| (&row["what"], &row["rule"])).collect();
        assert_eq!(refused, [(&json!("service evil/gw"), &json!("gatewayNamespaces"))]);
    }

    #[test]
    fn status_shows_access_policies_only() {
        let of = |kind: &str| json!({ "kind": kind, "namespace": "shop", "name": "web", "state": "refused" });
        for kind in ["AuthorizationPolicy", "PeerAuthentication", "RequestAuthentication"] {
            assert!(is_access_policy(&of(kind)), "{kind}");
        }
        for kind in ["VirtualService", "DestinationRule", "Sidecar", "Telemetry"] {
            assert!(!is_access_policy(&of(kind)), "{kind}");
        }
        let shown = render_status(&of("AuthorizationPolicy"));
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
        let found = refused(&policy, &service, &endpoints);
        let told: Vec<_> = found
            .iter()
            .map(|row| format!("{} {}", text(&row["code"]), text(&row["rule"])))
            .collect();
        assert_eq!(
            told,
            [
                "STR0602 owners[0]",
                "STR0604 clusters.east.networks",
                "STR0603 clusters.east.addresses"
            ]
        );
    }
}
