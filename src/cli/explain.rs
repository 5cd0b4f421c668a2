//! `strait explain`: why a proxy has, or lacks, the endpoints of a service.
//!
//! The command only renders the server's explanation.

use std::collections::BTreeSet;

use clap::{Args, Subcommand};

use super::explain_import::{self, ExplainImportArgs};
use super::explain_policy::{self, ExplainPolicyArgs};
use super::explain_route::{self, ExplainRouteArgs};
use super::failure::{CommandFailure, CommandResult, Exit};
use super::list::{Follow, LastShown, QueryArgs, watch_pause};
use super::output::{self, Cell, Format, OutputStyle, Show, clean, text};
use super::proxy;
use strait_admin_api::{
    ExplainedCluster, ExplainedEndpoint, ExplainedStep, Explanation, Proxy, Verdict,
};
use strait_base::codes;

/// Codes of gateways that exist but cannot be used.
const BEHIND_GATEWAYS: [&str; 2] = [codes::GATEWAY_DEAD.id, codes::GATEWAY_UNSERVED.id];

/// `strait explain`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct ExplainArgs {
    #[command(subcommand)]
    other: Option<OtherQuestion>,
    /// Proxy: NAME.NAMESPACE[@CLUSTER], a unique prefix of it, deploy/NAME.NAMESPACE, a
    /// node ID, or a key from 'proxy list -o json'
    #[arg(required = true)]
    proxy: Option<String>,
    /// Service: NAME.NAMESPACE or the full host name, with the service's port
    #[arg(value_name = "SERVICE[:PORT]", required = true)]
    service: Option<String>,
    /// Show every decision about the endpoint with this address
    #[arg(long, value_name = "A")]
    address: Option<String>,
    #[command(flatten)]
    follow: Follow,
    #[command(flatten)]
    common: QueryArgs,
}

/// Other explanations.
#[derive(Debug, Subcommand)]
enum OtherQuestion {
    /// Explain whether a cluster has the ServiceImport of a service, and why not
    Import(ExplainImportArgs),
    /// Explain which callers a workload accepts, and which policy decides
    Policy(ExplainPolicyArgs),
    /// Explain how a request is routed through a proxy's configuration: the rule that decides, and
    /// the rules that don't
    Route(ExplainRouteArgs),
}

/// Runs `strait explain`: once, until the result is healthy, or repeatedly.
pub(crate) async fn run(args: &ExplainArgs) -> CommandResult {
    match &args.other {
        Some(OtherQuestion::Import(args)) => return explain_import::run(args).await,
        Some(OtherQuestion::Policy(args)) => return explain_policy::run(args).await,
        Some(OtherQuestion::Route(args)) => return explain_route::run(args).await,
        None => {}
    }
    let service = args.service.as_deref().unwrap_or_default();
    let (hostname, port) = match service.split_once(':') {
        None => (service, None),
        Some((hostname, port)) if port.parse::<u16>().is_ok_and(|port| port > 0) => {
            (hostname, Some(port))
        }
        Some((_, port)) => {
            return Err(CommandFailure::usage(format!("{port:?} is not a port from 1 to 65535")));
        }
    };
    let deadline = args.follow.wait.deadline();
    let mut shown = LastShown::default();
    loop {
        let explained = args.explained(hostname, port).await;
        // The proxy and the service may not exist yet.
        let is_to_come = match &explained {
            Ok((verdict, _)) => *verdict != Exit::Fine,
            Err(failure) => matches!(failure.exit, Exit::Failed | Exit::Unhealthy),
        };
        if is_to_come && deadline.pause().await {
            continue;
        }
        let (verdict, printed) = explained?;
        shown.text(&printed)?;
        if !args.follow.watch {
            return Ok(verdict);
        }
        watch_pause().await;
    }
}

impl ExplainArgs {
    /// Requests the explanation. Returns whether the result is healthy, and the printed text.
    async fn explained(
        &self,
        hostname: &str,
        port: Option<&str>,
    ) -> Result<(Exit, String), CommandFailure> {
        let proxy = self.proxy.as_deref().unwrap_or_default();
        let proxy = proxy::one(&self.common, proxy).await?;
        let key = &proxy.key;
        let address = self.address.as_deref();
        let mut query = vec![("proxy", key.as_str()), ("hostname", hostname)];
        query.extend(port.map(|port| ("port", port)));
        query.extend(address.map(|address| ("address", address)));
        let answer = self.common.request("/debug/explain", &query).await;
        let answer =
            answer.map_err(|failure| failure.or_next("strait proxy list, strait service list"))?;
        let explanation: Explanation = answer.read()?;
        let verdict = verdict(&explanation, address);
        let printed = match self.common.show.output {
            Format::Json => answer.raw,
            Format::Yaml => output::yaml(&answer.value),
            _ => {
                render(&explanation, &proxy, address, &self.common.show, &OutputStyle::of_stdout())
            }
        };
        Ok((verdict, printed))
    }
}

/// Returns the exit code. Unhealthy means that a ready endpoint is withheld or withdrawn, that the
/// proxy rejects responses, or that there is no endpoint to send requests to. If one address was requested, only that endpoint is
/// considered.
pub(super) fn verdict(answer: &Explanation, address: Option<&str>) -> Exit {
    let endpoints = answer.endpoints.as_slice();
    let withheld = |endpoint: &&ExplainedEndpoint| endpoint.verdict == Verdict::Withheld;
    let ready = |endpoint: &&ExplainedEndpoint| {
        failed_step(endpoint).is_none_or(|step| step.step != "ready")
    };
    let troubled = match address {
        Some(_) => endpoints.iter().any(|endpoint| withheld(&endpoint)),
        None => endpoints.iter().filter(withheld).any(|endpoint| ready(&endpoint)),
    };
    let sent = endpoints.iter().any(|endpoint| !withheld(&endpoint));
    // A gateway that does not respond is still sent if its network has no other one. Endpoints of an
    // unreachable cluster are ready, as far as is known, but withdrawn.
    let is_trouble = |row: &ExplainedCluster| {
        let code = row.code.as_deref().unwrap_or_default();
        [codes::GATEWAY_DEAD.id, codes::CLUSTER_DARK.id].contains(&code)
    };
    let rejects = answer.notes.iter().any(|note| note.starts_with(codes::NACK.id));
    let troubled = troubled || rejects || answer.clusters.iter().any(is_trouble);
    // If the proxy finds endpoints itself, there may be none to show.
    let finds = address.is_none() && endpoints.is_empty() && answer.found.is_some();
    if troubled || !(sent || finds) { Exit::Unhealthy } else { Exit::Fine }
}

fn failed_step(endpoint: &ExplainedEndpoint) -> Option<&ExplainedStep> {
    endpoint.steps.iter().find(|step| !step.ok)
}

/// Renders an explanation. `of` is the proxy's row of `/debug/proxies`.
pub(super) fn render(
    answer: &Explanation,
    of: &Proxy,
    address: Option<&str>,
    show: &Show,
    look: &OutputStyle,
) -> String {
    let endpoints = answer.endpoints.as_slice();
    if show.output == Format::Name {
        return endpoints
            .iter()
            .map(|one| format!("endpoint/{}:{}\n", text(&one.address), text(&one.port)))
            .collect();
    }
    let (hostname, port) = (text(&answer.hostname), answer.port);
    let mut out = format!("{hostname}:{port} as seen by {}\n\n", proxy::display_name(of));
    let clusters = &answer.clusters;
    let found = answer.found.as_deref();
    if let Some(found) = found {
        out += &format!("Not sent by the control plane: {}\n", clean(found));
        let direct = endpoints.iter().filter(|one| one.verdict == Verdict::Direct);
        let direct: Vec<_> = direct.map(socket).collect();
        if !direct.is_empty() {
            out += &format!("Endpoints: {}\n", direct.join(", "));
        }
        if !clusters.is_empty() {
            out.push('\n');
        }
    }
    if clusters.is_empty() && found.is_none() {
        out += "No cluster has an endpoint for this port.\n";
    } else if !clusters.is_empty() {
        let headers: &[&str] =
            if show.no_headers { &[] } else { &["CLUSTER", "NETWORK", "READY", "SENT", "WHY"] };
        let rows = clusters.iter().map(|row| cluster(row, found.is_some())).collect();
        out += &output::table(headers, rows, look);
    }
    if address.is_some() || show.output == Format::Wide {
        for endpoint in endpoints {
            out += &ladder(endpoint, look);
        }
    }
    if let (Some(address), []) = (address, endpoints) {
        out += &format!("\nNo cluster has an endpoint {} for this port.\n", clean(address));
    }
    let preferences: BTreeSet<&str> =
        clusters.iter().filter_map(|row| row.preference.as_deref()).collect();
    out.extend(preferences.iter().map(|one| format!("\nPreference {}\n", clean(one))));
    for note in &answer.notes {
        out += &format!("\nNote: {}\n", text(note));
    }
    let first = clusters.iter().filter_map(|row| row.code.as_deref());
    let also = clusters.iter().flat_map(|row| &row.also_withheld).map(|also| also.code.as_str());
    let codes: BTreeSet<&str> = first.chain(also).collect();
    if clusters.iter().any(|row| row.ready > 0) && clusters.iter().all(|row| row.sent == 0) {
        out += "\nThe service is unreachable for this proxy.\n";
    }
    if codes.iter().any(|code| BEHIND_GATEWAYS.contains(code)) {
        out += "next: strait check --traffic\n";
    }
    if !codes.is_empty() {
        out.push('\n');
        out.extend(codes.iter().map(|code| format!("help: strait help {}\n", clean(code))));
    }
    out
}

/// Returns `address:port`. A Unix socket on the proxy's own host has no port.
fn socket(endpoint: &ExplainedEndpoint) -> String {
    let (address, port) = (text(&endpoint.address), endpoint.port);
    match address.starts_with(['/', '@']) {
        true => format!("unix://{address}"),
        false if address.contains(':') => format!("[{address}]:{port}"),
        false => format!("{address}:{port}"),
    }
}

fn cluster(row: &ExplainedCluster, by_itself: bool) -> Vec<Cell> {
    let ExplainedCluster { ready, total, sent, .. } = *row;
    let via = match row.via.as_deref() {
        None => "0".to_owned(),
        Some("direct") => format!("{sent} direct"),
        Some(via) => format!("{sent} via {}", clean(via)),
    };
    let why = match (&row.reason, row.via.as_deref()) {
        (Some(reason), _) => {
            let also = row.also_withheld.iter();
            let also = also.map(|one| format!("{} {}", text(&one.reason), text(&one.code)));
            let first = format!("{} {}", clean(reason), text(&row.code));
            std::iter::once(first).chain(also).collect::<Vec<_>>().join("; ")
        }
        (None, Some("direct")) if by_itself => "resolved by the proxy itself".into(),
        (None, Some("direct")) => "same network".into(),
        (None, Some(_)) => "through the gateway of its network".into(),
        (None, None) => "<none>".into(),
    };
    let why = match row.priority {
        Some(priority) => format!("{why}; priority {priority}"),
        None => why,
    };
    let ready_of = format!("{ready}/{total}");
    vec![
        text(&row.cluster).into(),
        text(&row.network).into(),
        if ready == total { ready_of.into() } else { Cell::doubtful(ready_of) },
        if sent < ready { Cell::bad(via) } else { Cell::good(via) },
        why.trim_end_matches(" <none>").into(),
    ]
}

/// Renders the decisions about one endpoint, up to the first negative one.
fn ladder(endpoint: &ExplainedEndpoint, look: &OutputStyle) -> String {
    let [address, cluster, network] =
        [&endpoint.address, &endpoint.cluster, &endpoint.network].map(text);
    let (port, verdict) = (endpoint.port, text(endpoint.verdict.as_str()));
    let verdict = match endpoint.via.as_slice() {
        [] => verdict,
        via => format!("{verdict} {}", via.iter().map(text).collect::<Vec<_>>().join(", ")),
    };
    let steps = endpoint
        .steps
        .iter()
        .map(|step| {
            let sign = look.sign(step.ok);
            vec!["".into(), sign, text(&step.step).into(), text(&step.detail).into()]
        })
        .collect();
    format!("\n{address}:{port} in {cluster} (network {network}): {verdict}\n")
        + &output::table(&[], steps, look)
}
