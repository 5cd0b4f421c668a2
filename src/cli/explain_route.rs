//! `strait explain route`: how a request is routed through a proxy's configuration, and which rule
//! decides.
//!
//! The command only renders the server's explanation.

use clap::Args;

use super::failure::{CommandFailure, CommandResult, Exit};
use super::list::QueryArgs;
use super::output::{self, Format, text};
use super::proxy;
use strait_admin_api::{RouteDestination, RouteExplanation, RouteRule};

/// `strait explain route`.
#[derive(Debug, Args)]
pub(crate) struct ExplainRouteArgs {
    /// Proxy whose workload sends the request: NAME.NAMESPACE[@CLUSTER], a unique prefix of it,
    /// deploy/NAME.NAMESPACE, a node ID, or a key from 'proxy list -o json'
    proxy: String,
    /// Method of the request, for example GET
    method: String,
    /// URL of the request as the workload writes it, for example http://reviews.shop:9080/api
    url: String,
    /// A header of the request; repeatable
    #[arg(long = "header", value_name = "K=V")]
    headers: Vec<String>,
    /// Server name (SNI) of the TLS handshake [default: the URL's host]
    #[arg(long, value_name = "S")]
    sni: Option<String>,
    /// Explain an inbound request instead: the service account that calls the proxy's workload
    #[arg(long, value_name = "NS/SA")]
    from: Option<String>,
    /// The workload sends the request to the proxy at this port of its own host: a Sidecar listener
    /// of protocol HTTP_PROXY
    #[arg(long, value_name = "PORT", conflicts_with = "from")]
    http_proxy: Option<u16>,
    #[command(flatten)]
    common: QueryArgs,
}

/// Runs `strait explain route`. Exit code 2 means that the request reaches no endpoint, or gets a
/// status of 400 or more.
pub(crate) async fn run(args: &ExplainRouteArgs) -> CommandResult {
    let headers: Vec<String> =
        args.headers.iter().map(|one| header(one)).collect::<Result<_, _>>()?;
    let proxy = proxy::one(&args.common, &args.proxy).await?;
    let key = &proxy.key;
    let mut query = vec![("proxy", key.as_str()), ("method", &args.method), ("url", &args.url)];
    query.extend(headers.iter().map(|one| ("header", one.as_str())));
    query.extend(args.sni.iter().map(|sni| ("sni", sni.as_str())));
    query.extend(args.from.iter().map(|from| ("from", from.as_str())));
    let port = args.http_proxy.map(|port| port.to_string());
    query.extend(port.iter().map(|port| ("httpProxy", port.as_str())));
    let answer = args.common.request("/debug/explain/route", &query).await?;
    let explanation: RouteExplanation = answer.read()?;
    match args.common.show.output {
        Format::Json => output::print(&answer.raw)?,
        Format::Yaml => output::print(&output::yaml(&answer.value))?,
        _ => {
            let request = format!("{} {}", args.method, args.url);
            output::print(&render(&request, &explanation))?;
        }
    }
    Ok(if arrives(&explanation) { Exit::Fine } else { Exit::Unhealthy })
}

/// Converts a header to the server's form `NAME: VALUE`. `NAME=VALUE` is accepted too.
fn header(written: &str) -> Result<String, CommandFailure> {
    match written.split_once(['=', ':']) {
        Some((name, value)) if !name.is_empty() => Ok(format!("{}:{}", name.trim(), value.trim())),
        _ => Err(CommandFailure::usage(format!(
            "{:?} is not a header of the form NAME=VALUE",
            output::clean(written)
        ))),
    }
}

/// Returns whether the request reaches an endpoint or gets a successful response.
fn arrives(answer: &RouteExplanation) -> bool {
    let has_endpoints = |to: &RouteDestination| {
        to.known && to.endpoints != Some(0) && to.cluster != "BlackHoleCluster"
    };
    match answer.answer {
        Some(status) => status < 400,
        None => answer.destinations.iter().any(has_endpoints),
    }
}

/// Renders the explanation as text.
pub(super) fn render(request: &str, answer: &RouteExplanation) -> String {
    let mut out = format!("{} from {}\n", output::clean(request), text(&answer.proxy));
    let mut line = |name: &str, value: String| out += &format!("  {name:<13} {value}\n");
    for (name, value) in [
        ("listener", &answer.listener),
        ("chain", &answer.chain),
        ("routes", &answer.route),
        ("virtual host", &answer.virtual_host),
    ] {
        if value.is_some() {
            line(name, text(value));
        }
    }
    if let Some(deciding) = &answer.rule {
        line("rule", rule(deciding));
    }
    for to in &answer.destinations {
        let endpoints = match (to.known, to.endpoints) {
            (false, _) => "the proxy has no such cluster".to_owned(),
            (_, None) => "endpoints are resolved by the client".to_owned(),
            (_, Some(1)) => "1 endpoint".to_owned(),
            (_, Some(count)) => format!("{count} endpoints"),
        };
        let share = match answer.destinations.len() {
            1 => String::new(),
            _ => format!("weight {}, ", to.weight),
        };
        line("to", format!("{} ({share}{endpoints})", text(&to.cluster)));
    }
    if let Some(status) = answer.answer {
        line("answer", status.to_string());
    }
    if let Some(location) = &answer.location {
        line("location", text(location));
    }
    line("outcome", text(&answer.outcome));
    for note in &answer.notes {
        line("note", text(note));
    }
    if !answer.lost.is_empty() {
        out += "not decided by\n";
    }
    for one in &answer.lost {
        out += &format!("  {}: {}\n", rule(&one.rule), text(&one.reason));
    }
    out
}

/// Returns the object and the path of a rule.
fn rule(rule: &RouteRule) -> String {
    let [kind, namespace, name, path] =
        [&rule.kind, &rule.namespace, &rule.name, &rule.path].map(text);
    let via = rule.via.as_ref().map(|via| {
        let (namespace, name) = (text(&via.namespace), text(&via.name));
        format!(", delegated by {namespace}/{name} {}", text(&via.path))
    });
    let via = via.unwrap_or_default();
    let of_cluster = rule.cluster.as_ref().map(|cluster| format!(" of cluster {}", text(cluster)));
    let of_cluster = of_cluster.unwrap_or_default();
    format!("{kind} {namespace}/{name}{of_cluster} {path}{via}")
}
