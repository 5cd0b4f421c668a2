//! `strait scope`: computes the Sidecar object that the calls of a namespace need.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, BufReader};
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use serde_json::json;

use super::access_log::{LogCoverage, LoggedCall};
use super::client::AdminClient;
use super::failure::{CommandFailure, CommandResult, Exit};
use super::list::QueryArgs;
use super::output::{self, Format, clean, text};
use strait_admin_api::{ProxyTotals, ScopePreview};
use strait_base::names::list_first;
use strait_xds::names::hostname_of;

/// Maximum number of different names of each kind. Further names are not names of services.
const NAMES_MAX: usize = 20_000;
/// Maximum number of listed names that match no service.
const UNKNOWN_MAX: usize = 20;

/// Compute the Sidecar object that the proxies of a namespace need.
#[derive(Debug, Subcommand)]
pub(crate) enum ScopeCommand {
    /// Write a Sidecar object for the calls in access logs, and show how much it would save
    ///
    /// The Sidecar is written to standard output, for 'kubectl apply -f -' or 'strait diff -f -'.
    /// The savings, and points to check first, are written to standard error. Logs are the only
    /// source, because sidecars subscribe to everything, whether they call it or not.
    Suggest(SuggestArgs),
}

/// Namespace and logs for the suggestion.
#[derive(Debug, Args)]
pub(crate) struct SuggestArgs {
    /// Namespace of the proxies
    namespace: String,
    /// Access logs of its proxies, in Istio's default format as text or JSON, or Envoy's; '-' for
    /// standard input. Without this flag, the command prints the Telemetry that enables access logs
    #[arg(long, value_name = "FILE", num_args = 1..)]
    from_log: Vec<PathBuf>,
    #[command(flatten)]
    common: QueryArgs,
}

/// Calls of proxies in the logs.
#[derive(Debug, Default, PartialEq, Eq)]
struct SeenCalls {
    /// Number of outbound calls.
    outbound: u64,
    /// Number of inbound calls.
    inbound: u64,
    hosts: BTreeSet<String>,
    names: BTreeSet<String>,
    passed: BTreeSet<String>,
}

impl SeenCalls {
    fn take(&mut self, call: LoggedCall) {
        let cluster = call.upstream_cluster.as_deref().unwrap_or_default();
        if cluster.starts_with("inbound|") || cluster.starts_with("Inbound") {
            self.inbound += 1;
            return;
        }
        let name = call.authority.as_deref().map(without_port).map(str::to_ascii_lowercase);
        self.outbound += 1;
        let put = |names: &mut BTreeSet<String>, name: String| {
            if names.len() < NAMES_MAX && !name.is_empty() {
                names.insert(name);
            }
        };
        if let Some(host) = hostname_of(cluster) {
            put(&mut self.hosts, host.to_string());
            put(&mut self.names, name.unwrap_or_default());
            return;
        }
        let name = name.or(call.server_name).or(call.upstream_host).or(call.downstream_local);
        put(&mut self.passed, name.unwrap_or_default());
    }
}

/// Returns a name without its port.
fn without_port(name: &str) -> &str {
    match name.rsplit_once(':') {
        Some((host, port)) if port.parse::<u16>().is_ok() && !host.ends_with(':') => host,
        _ => name,
    }
}

/// Runs `strait scope`.
pub(crate) async fn run(ScopeCommand::Suggest(args): &ScopeCommand) -> CommandResult {
    if args.from_log.is_empty() {
        let text = "--from-log names no access logs";
        return Err(CommandFailure::usage(text).next(log_advice(&args.namespace)));
    }
    let (mut seen, mut coverage) = (SeenCalls::default(), LogCoverage::default());
    for path in &args.from_log {
        let wrong = |error: io::Error| {
            let text = format!("--from-log {} can't be read: {error}", path.display());
            CommandFailure::usage(text)
        };
        let take = |call| seen.take(call);
        if path == Path::new("-") {
            coverage.read(io::stdin().lock(), take).map_err(wrong)?;
        } else {
            let file = File::open(path).map_err(wrong)?;
            coverage.read(BufReader::new(file), take).map_err(wrong)?;
        }
    }
    if seen.outbound == 0 {
        let text = format!(
            "the logs contain no outbound call (inbound calls: {}, unreadable lines: {})",
            seen.inbound, coverage.unread
        );
        return Err(CommandFailure::failed(text).next(log_advice(&args.namespace)));
    }
    let question = json!({
        "namespace": args.namespace,
        "hosts": seen.hosts, "names": seen.names, "passed": seen.passed,
    });
    let client = AdminClient::new(&args.common.connect).await?;
    let answer = client.post("/debug/scope", &[], &question).await?;
    let preview: ScopePreview = answer.read()?;
    let object = &preview.object;
    output::print(&match args.common.show.output {
        Format::Json => answer.raw,
        Format::Yaml => output::yaml(&answer.value),
        Format::Name => format!("sidecar/{}\n", text(&object["metadata"]["name"])),
        Format::Table | Format::Wide => {
            format!("# {}\n{}", clean(&from_what(&seen, &coverage)), output::yaml(object))
        }
    })?;
    for note in notes(&preview, &args.namespace, &coverage) {
        eprint_line!("{}", clean(&note));
    }
    Ok(Exit::Fine)
}

/// Returns instructions to get access logs of a namespace's proxies: the Telemetry that enables
/// them, and the command that reads them.
fn log_advice(namespace: &str) -> String {
    let namespace = clean(namespace);
    let telemetry = json!({
        "apiVersion": "telemetry.istio.io/v1", "kind": "Telemetry",
        "metadata": { "name": "access-logs", "namespace": namespace },
        "spec": { "accessLogging": [{ "providers": [{ "name": "envoy" }] }] },
    });
    format!(
        "if the proxies write no access logs, apply this Telemetry (or set accessLogFile: /dev/stdout in the mesh config):\n\
         {}pass logs of the namespace's proxies with --from-log:\n\
         kubectl logs -n {namespace} -l … -c strait-proxy --prefix --tail=-1 > {namespace}.log",
        output::yaml(&telemetry)
    )
}

/// Returns the comment that describes the source of the Sidecar.
fn from_what(seen: &SeenCalls, coverage: &LogCoverage) -> String {
    let span = match coverage.span {
        Some((from, to)) => format!(" between {from:.0} and {to:.0}"),
        None => String::new(),
    };
    format!("strait scope suggest: services that {} needed{span}", counted(seen.outbound, "call"))
}

/// Returns the savings, and points to check before the Sidecar is applied.
fn notes(answer: &ScopePreview, namespace: &str, coverage: &LogCoverage) -> Vec<String> {
    let mut notes = vec![saved(&answer.proxies, namespace)];
    notes.push(match coverage.span {
        Some((from, to)) => {
            let span = to.duration_since(from);
            format!("the logs cover {span:#}: services that are called less often are not included")
        }
        None => {
            "the logs contain no times: services that are called less often may not be included"
                .to_owned()
        }
    });
    let unknown = &answer.unknown;
    if !unknown.is_empty() {
        notes.push(format!(
            "called, but not defined in the mesh: {}; reachable only while outboundTrafficPolicy is ALLOW_ANY",
            list_first(unknown.iter().map(text), UNKNOWN_MAX)
        ));
    }
    let others: Vec<String> = answer.others.iter().map(text).collect();
    if !others.is_empty() {
        notes.push(format!(
            "other Sidecars in {namespace} may apply instead: {}",
            others.join(", ")
        ));
    }
    if answer.replaces {
        notes.push(
            "a Sidecar of that name exists: its fields other than egress are kept".to_owned(),
        );
    }
    if let unread @ 1.. = coverage.unread {
        let lines = counted(unread, "line");
        notes.push(format!("ignored {lines} of the logs in an unknown format"));
    }
    notes
}

/// Returns the average savings per proxy.
fn saved(groups: &[ProxyTotals], namespace: &str) -> String {
    let sum = |number: fn(&ProxyTotals) -> usize| -> usize {
        groups.iter().map(|group| number(group) * group.proxies.len()).sum()
    };
    let count = sum(|_| 1);
    if count == 0 {
        return format!("no proxy of {namespace} is connected, so the savings are unknown");
    }
    let each = |number| sum(number) / count;
    let (bytes, then) = (sum(|group| group.bytes.before), sum(|group| group.bytes.after));
    let share = match 100 * then / bytes.max(1) {
        share @ 0..=100 => format!("{} % fewer bytes", 100 - share),
        _ => "no fewer bytes".to_owned(),
    };
    let proxies = match count {
        1 => format!("the proxy of {namespace}"),
        count => format!("each of {count} proxies of {namespace}"),
    };
    format!(
        "{proxies} has {} resources ({}) and would have {} ({}): {share}",
        each(|group| group.resources.before),
        size(each(|group| group.bytes.before)),
        each(|group| group.resources.after),
        size(each(|group| group.bytes.after)),
    )
}

fn counted(count: u64, what: &str) -> String {
    if count == 1 { format!("1 {what}") } else { format!("{count} {what}s") }
}

fn size(bytes: usize) -> String {
    match bytes {
        0..10_000 => format!("{bytes} B"),
        10_000..10_000_000 => format!("{} kB", bytes / 1_000),
        _ => format!("{} MB", bytes / 1_000_000),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::cli::output::tests::typed;

    fn call(cluster: &str, authority: &str) -> LoggedCall {
        let said = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        LoggedCall {
            upstream_cluster: said(cluster),
            authority: said(authority),
            upstream_host: Some("10.0.0.1:443".to_owned()),
            ..LoggedCall::default()
        }
    }

    #[test]
    fn outbound_and_inbound_calls_are_distinguished() {
        let mut seen = SeenCalls::default();
        for (cluster, authority) in [
            ("outbound|80|v1|web.shop.svc.cluster.local", "Web:80"),
            ("inbound|8080||", "me.shop"),
            ("InboundPassthroughCluster", "me.shop"),
            ("PassthroughCluster", "api.example"),
            ("BlackHoleCluster", ""),
            ("", "web.other:9080"),
            ("outbound|443||db.shop.svc.cluster.local", ""),
            ("remote|9092|west|queue.shop.svc.cluster.local", ""),
            ("outbound|443||db.shop.svc.cluster.local", "[2001:db8::1]:443"),
        ] {
            seen.take(call(cluster, authority));
        }
        let set = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let expected = SeenCalls {
            outbound: 7,
            inbound: 2,
            hosts: set(&[
                "web.shop.svc.cluster.local",
                "db.shop.svc.cluster.local",
                "queue.shop.svc.cluster.local",
            ]),
            names: set(&["web", "[2001:db8::1]"]),
            passed: set(&["api.example", "10.0.0.1:443", "web.other"]),
        };
        assert_eq!(seen, expected);
    }

    #[test]
    fn advice_without_access_logs_contains_a_telemetry_that_can_be_applied() {
        let advice = log_advice("shop");
        let (_, yaml) = advice.split_once(":\n").expect("a line before it");
        let (yaml, _) = yaml.split_once("pass logs").expect("a line after it");
        let found: Value = serde_saphyr::from_str(yaml).expect("YAML");
        assert_eq!(found["kind"], "Telemetry");
        assert_eq!(found["metadata"]["namespace"], "shop");
        assert_eq!(found["spec"]["accessLogging"][0]["providers"][0]["name"], "envoy");
    }

    #[test]
    fn notes_contain_the_savings_and_points_to_check() {
        let group = |count: usize, before: u64, after: u64| {
            json!({
                "proxies": vec![json!({}); count],
                "resources": { "before": before / 100, "after": after / 100 },
                "bytes": { "before": before, "after": after },
            })
        };
        let answer = json!({
            "proxies": [group(3, 1_000_000, 50_000), group(1, 2_000_000, 50_000)],
            "unknown": ["api.example"], "others": ["for-web"], "replaces": true,
        });
        let time = |text: &str| text.parse().expect("a time");
        let span = Some((time("2026-11-25T00:00:00Z"), time("2026-11-25T12:30:00Z")));
        let coverage = LogCoverage { calls: 9, unread: 2, span };
        let expected = [
            "each of 4 proxies of shop has 12500 resources (1250 kB) and would have 500 (50 kB): 96 % fewer bytes",
            "the logs cover 12h 30m: services that are called less often are not included",
            "called, but not defined in the mesh: api.example; reachable only while outboundTrafficPolicy is ALLOW_ANY",
            "other Sidecars in shop may apply instead: for-web",
            "a Sidecar of that name exists: its fields other than egress are kept",
            "ignored 2 lines of the logs in an unknown format",
        ];
        assert_eq!(notes(&typed(answer), "shop", &coverage), expected);
        let none = notes(&ScopePreview::default(), "shop", &LogCoverage::default());
        assert_eq!(none[0], "no proxy of shop is connected, so the savings are unknown");
    }
}
