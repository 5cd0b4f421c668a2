//! `strait support-bundle`: what a control plane answers, in one archive without secrets, for whoever is to help.
//!
//! Asks the paths that all other commands ask, and stores what comes: `strait ui --bundle FILE` shows it in the same page. What
//! is taken is bounded; what was left out is said.

mod archive;
mod offline;
mod redact;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use bytes::Bytes;
use clap::Args;
use http::StatusCode;
use jiff::Timestamp;
use serde_json::{Value, json};

use self::archive::{BundleContents, BundleFile, BundleServer, SupportBundle, write_new};
pub(crate) use self::offline::{ServedBundle, serve_bundle};
use self::redact::Redactor;
use super::client::{AdminClient, Connect};
use super::failure::{CommandFailure, CommandResult, Exit};
use super::output::{self, Cell, Column, OutputStyle, Show, TableLayout, items, text};
use super::{about, proxy};

/// What is asked as it is; what a version of ours doesn't have is left out.
const PATHS: [&str; 19] = [
    "/livez",
    "/readyz",
    "/metrics",
    "/debug/clusters",
    "/debug/services",
    "/debug/networks",
    "/debug/proxies",
    "/debug/summary",
    "/debug/sources",
    "/debug/certificates",
    "/debug/mesh",
    "/debug/policy",
    "/debug/codes",
    "/debug/config",
    "/debug/events",
    "/debug/history",
    "/debug/hold",
    "/debug/rollout",
    "/debug/push",
];
/// Of how many services the endpoints are taken.
const SERVICES_MAX: usize = 1000;
/// How many explanations are taken.
const EXPLANATIONS_MAX: usize = 500;
/// Of how many proxies what they were sent is taken.
const DUMPS_MAX: usize = 20;
/// Of how many changes that somebody refused it is taken who was sent them.
const CHANGES_MAX: usize = 20;
/// How many bytes of answers are taken.
const BYTES_MAX: usize = 256 << 20;
/// How long explanations are asked for.
const EXPLAINING_MAX: Duration = Duration::from_secs(30);

#[derive(Debug, Args)]
pub(crate) struct BundleArgs {
    /// The archive; it must not be there yet [default: strait-support-TIME.tar.gz]
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Only list what would be in it
    #[arg(long)]
    dry_run: bool,
    /// Take along what this proxy was last sent; those that refused something, and others up to 20, are anyway
    #[arg(long, value_name = "PROXY")]
    proxy: Vec<String>,
    /// Take along why this proxy has, or has not, the endpoints of that service
    #[arg(long, num_args = 2, value_names = ["PROXY", "SERVICE[:PORT]"])]
    explain: Vec<String>,
    #[command(flatten)]
    connect: Connect,
    #[command(flatten)]
    show: Show,
}

const FILES: TableLayout = TableLayout {
    kind: "file",
    name: |row| text(&row["file"]),
    columns: &[
        Column::new("FILE", |row, _| text(&row["file"]).into()),
        Column::new("BYTES", |row, _| text(&row["bytes"]).into()),
        Column::new("REDACTED", |row, _| match row["redacted"].as_u64() {
            Some(0) | None => "0".into(),
            Some(some) => Cell::doubtful(some.to_string()),
        }),
        Column::new("ANSWER TO", |row, _| question(row).into()),
        Column::wide("STATUS", |row, _| text(&row["status"]).into()),
    ],
};

/// What was asked, as a path with its query.
fn question(row: &Value) -> String {
    let query = row["query"].as_object().into_iter().flatten();
    let query: Vec<_> = query.map(|(name, value)| format!("{name}={}", text(value))).collect();
    let path = text(&row["path"]);
    if query.is_empty() { path } else { format!("{path}?{}", query.join("&")) }
}

/// Runs `strait support-bundle`: collects, lists, writes.
pub(crate) async fn run(args: &BundleArgs) -> CommandResult {
    let client = AdminClient::new(&args.connect)?;
    let now = Timestamp::now();
    let stamp = now.strftime("%Y%m%dT%H%M%SZ");
    let folder = format!("strait-support-{stamp}");
    let path = args.file.clone().unwrap_or_else(|| format!("{folder}.tar.gz").into());
    if !args.dry_run && path.exists() {
        let text = format!("{} is there already", path.display());
        return Err(CommandFailure::usage(text).next("name another by --file, or remove it"));
    }
    let mut collection = BundleCollection::new(&client);
    collection.collect(args).await?;
    let bundle = collection.end(client.server());
    let contents = json!(bundle.contents);
    let raw = format!("{contents:#}\n");
    let printed = match args.show.output.is_for_people() {
        true => FILES.render(&raw, &contents["files"], &args.show, &OutputStyle::of_stdout()),
        false => FILES.render(&raw, &contents, &args.show, &OutputStyle::of_stdout()),
    };
    output::print(&printed)?;
    for left_out in &bundle.contents.left_out {
        tell!("not in it: {left_out}");
    }
    if args.dry_run {
        return Ok(Exit::Fine);
    }
    let unwritten = |error: std::io::Error| {
        let text = format!("{} can't be written: {error}", path.display());
        CommandFailure::failed(text).next("name a file in a folder of yours by --file")
    };
    let packed = bundle.pack(&folder, u64::try_from(now.as_second()).unwrap_or(0));
    let packed = packed.map_err(unwritten)?;
    write_new(&path, &packed).map_err(unwritten)?;
    tell!(
        "{} is written: {} bytes. It names clusters, services, addresses and identities; look at it before you pass it on: strait ui --bundle {0}",
        path.display(),
        packed.len()
    );
    Ok(Exit::Fine)
}

/// A bundle in the making.
struct BundleCollection<'a> {
    client: &'a AdminClient,
    redactor: Redactor,
    files: Vec<BundleFile>,
    bodies: BTreeMap<String, Bytes>,
    bytes: usize,
    left_out: Vec<String>,
}

impl<'a> BundleCollection<'a> {
    fn new(client: &'a AdminClient) -> Self {
        Self {
            client,
            redactor: Redactor::new(client.token().map(str::to_owned)),
            files: Vec::new(),
            bodies: BTreeMap::new(),
            bytes: 0,
            left_out: Vec::new(),
        }
    }

    /// Asks for everything.
    ///
    /// # Errors
    /// When the control plane can't be reached, or doesn't let us in.
    async fn collect(&mut self, args: &BundleArgs) -> Result<(), CommandFailure> {
        // Whether we are let in: not found out from many answers that say no.
        self.client.get("/debug/push", &[]).await?;
        let mut answers = BTreeMap::new();
        for path in PATHS {
            let query: &[_] = if path == "/readyz" { &[("verbose", "")] } else { &[] };
            answers.insert(path, self.take(path, query, "").await?);
        }
        let changes = answers.remove("/debug/events").unwrap_or_default();
        self.refused_changes(items(&changes)).await?;
        let proxies = answers.remove("/debug/proxies").unwrap_or_default();
        let services = answers.remove("/debug/services").unwrap_or_default();
        let services: Vec<Value> = items(&services).to_vec();
        for service in services.iter().take(SERVICES_MAX) {
            let hostname = text(&service["hostname"]);
            self.take("/debug/endpoints", &[("hostname", &hostname)], &hostname).await?;
        }
        self.left("the endpoints of services", services.len(), SERVICES_MAX);
        self.dumps(items(&proxies), &args.proxy).await?;
        self.explanations(items(&proxies), &services, &args.explain).await
    }

    /// Who was sent the last changes that somebody refused, and what these said.
    async fn refused_changes(&mut self, all: &[Value]) -> Result<(), CommandFailure> {
        let refused = all.iter().rev().filter(|row| row["refused"].as_u64() > Some(0));
        for row in refused.take(CHANGES_MAX) {
            let seq = text(&row["seq"]);
            self.take("/debug/events", &[("seq", &seq)], &seq).await?;
        }
        Ok(())
    }

    /// What proxies were sent: those that were asked for, those that refused something, and others while there is room.
    async fn dumps(&mut self, all: &[Value], asked: &[String]) -> Result<(), CommandFailure> {
        let mut chosen: Vec<&Value> = Vec::new();
        for name in asked {
            let found = proxy::find(all, name)?;
            chosen.push(found.ok_or_else(|| no_proxy(name))?);
        }
        let refuses = |row: &&Value| {
            let mut types = row["types"].as_object().into_iter().flatten();
            types.any(|(_, one)| one.get("nack").is_some_and(|nack| !nack.is_null()))
        };
        let room = DUMPS_MAX.saturating_sub(chosen.len());
        let (first, others): (Vec<_>, Vec<_>) = all.iter().partition(refuses);
        chosen.extend(first.into_iter().chain(others).take(room));
        let mut seen = BTreeSet::new();
        for row in chosen {
            let key = proxy::key(row);
            if seen.insert(key.clone()) {
                let name = proxy::name(row);
                self.take("/debug/config_dump", &[("proxy", &key)], &name).await?;
            }
        }
        self.left("what proxies were sent", all.len(), seen.len());
        Ok(())
    }

    /// Why proxies have endpoints: what was asked for, then of one proxy in each cluster and network, for each
    /// service.
    async fn explanations(
        &mut self,
        proxies: &[Value],
        services: &[Value],
        asked: &[String],
    ) -> Result<(), CommandFailure> {
        for pair in asked.chunks_exact(2) {
            let (name, service) = (&pair[0], &pair[1]);
            let row = proxy::find(proxies, name)?.ok_or_else(|| no_proxy(name))?;
            let (hostname, port) = service.split_once(':').unwrap_or((service, ""));
            let host = |row: &&Value| {
                let full = text(&row["hostname"]);
                full == hostname || full.starts_with(&format!("{hostname}."))
            };
            let full = services.iter().find(host).map(|row| text(&row["hostname"]));
            let full = full.ok_or_else(|| {
                let text = format!("no service {hostname:?} is known");
                CommandFailure::failed(text).next("strait service list")
            })?;
            self.explain(row, &full, port).await?;
            if !port.is_empty() {
                self.explain(row, &full, "").await?;
            }
        }
        let mut places = BTreeSet::new();
        let chosen: Vec<&Value> = proxies
            .iter()
            .filter(|row| row["type"] != "router")
            .filter(|row| places.insert((text(&row["cluster"]), text(&row["network"]))))
            .collect();
        let pairs = services.iter().flat_map(|service| {
            let ports = items(&service["ports"]).iter().map(|port| text(&port["port"]));
            let ports: Vec<String> = std::iter::once(String::new()).chain(ports).collect();
            let hostname = text(&service["hostname"]);
            chosen.iter().flat_map(move |row| {
                let (hostname, ports) = (hostname.clone(), ports.clone());
                ports.into_iter().map(move |port| (*row, hostname.clone(), port))
            })
        });
        let pairs: Vec<_> = pairs.collect();
        let began = Instant::now();
        let mut done = 0;
        for (row, hostname, port) in pairs.iter().take(EXPLANATIONS_MAX) {
            if began.elapsed() > EXPLAINING_MAX {
                break;
            }
            self.explain(row, hostname, port).await?;
            done += 1;
        }
        self.left("explanations", pairs.len(), done);
        Ok(())
    }

    async fn explain(
        &mut self,
        row: &Value,
        hostname: &str,
        port: &str,
    ) -> Result<(), CommandFailure> {
        let key = proxy::key(row);
        let mut query = vec![("proxy", key.as_str()), ("hostname", hostname)];
        if !port.is_empty() {
            query.push(("port", port));
        }
        let name = format!("{}-{hostname}", proxy::name(row));
        self.take("/debug/explain", &query, &name).await.map(drop)
    }

    /// Asks for one answer and stores it, without secrets. What the control plane doesn't have is left out.
    ///
    /// # Errors
    /// When it can't be reached any more.
    async fn take(
        &mut self,
        path: &str,
        query: &[(&str, &str)],
        name: &str,
    ) -> Result<Value, CommandFailure> {
        let query: BTreeMap<String, String> =
            query.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let is_known = |file: &BundleFile| file.path == path && file.query == query;
        if self.files.iter().rev().take(EXPLANATIONS_MAX).any(is_known) {
            return Ok(Value::Null);
        }
        let pairs: Vec<_> = query.iter().map(|(name, value)| (&**name, &**value)).collect();
        let (status, raw) = self.client.fetch(path, &pairs).await?;
        if status == StatusCode::NOT_FOUND {
            // A version that has no such path; or what it was about has just gone.
            return Ok(Value::Null);
        }
        if self.bytes + raw.len() > BYTES_MAX {
            self.left_out
                .push(format!("{path}: the bundle would have more than {BYTES_MAX} bytes"));
            return Ok(Value::Null);
        }
        let (clean, redacted) = self.redactor.answer(&raw);
        let is_json = path.starts_with("/debug/");
        let value = serde_json::from_str(&clean).unwrap_or_default();
        let file = file_name(path, name, self.files.len(), is_json);
        self.bytes += clean.len();
        let kind = if is_json { "application/json" } else { "text/plain; charset=utf-8" };
        self.files.push(BundleFile {
            file: file.clone(),
            path: path.into(),
            // As `?verbose` and `?verbose=` are the same question, so is the one without.
            query: if path == "/readyz" { BTreeMap::new() } else { query },
            status: status.as_u16(),
            kind: kind.into(),
            bytes: clean.len(),
            redacted,
        });
        self.bodies.insert(file, clean.into());
        Ok(value)
    }

    /// Says that of so many only some were taken.
    fn left(&mut self, what: &str, all: usize, taken: usize) {
        if all > taken {
            self.left_out.push(format!("{what}: {taken} of {all} are in it"));
        }
    }

    fn end(mut self, server: &str) -> SupportBundle {
        let metrics = self.bodies.get("metrics.txt").map(|text| String::from_utf8_lossy(text));
        let version = metrics.and_then(|text| running_version(&text));
        let (server, _) = self.redactor.answer(server);
        let contents = BundleContents {
            api_version: "strait/v1".into(),
            kind: "SupportBundle".into(),
            taken: Timestamp::now().to_string(),
            strait: about::versions(),
            server: BundleServer { url: server, version },
            files: self.files,
            left_out: self.left_out,
        };
        SupportBundle { contents, files: self.bodies }
    }
}

fn no_proxy(name: &str) -> CommandFailure {
    CommandFailure::failed(format!("no proxy {name:?} is connected")).next("strait proxy list")
}

/// The version that the metric `strait_build_info` names.
fn running_version(metrics: &str) -> Option<String> {
    let line = metrics.lines().find_map(|line| line.strip_prefix("strait_build_info{"))?;
    let version = line.split_once("version=\"")?.1;
    Some(version.split('"').next()?.to_owned())
}

/// A file's name: of a path, and of a name that may be anybody's.
fn file_name(path: &str, name: &str, number: usize, is_json: bool) -> String {
    let kind = if is_json { "json" } else { "txt" };
    let path = path.trim_start_matches('/');
    if name.is_empty() {
        return format!("{path}.{kind}");
    }
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    let name: String = name.chars().take(80).map(|c| if plain(c) { c } else { '_' }).collect();
    format!("{path}/{number:04}-{name}.{kind}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_have_names_that_lead_nowhere_else() {
        assert_eq!(file_name("/metrics", "", 3, false), "metrics.txt");
        assert_eq!(
            file_name("/debug/endpoints", "db.shop.svc", 12, true),
            "debug/endpoints/0012-db.shop.svc.json"
        );
        assert_eq!(
            file_name("/debug/endpoints", "../../é/\u{202e}", 1, true),
            "debug/endpoints/0001-.._..____.json"
        );
    }

    #[test]
    fn the_running_version_is_the_servers() {
        let text = "# HELP x\nstrait_build_info{version=\"0.9.1\"} 1\n";
        assert_eq!(running_version(text).as_deref(), Some("0.9.1"));
        assert_eq!(running_version("strait_other 1\n"), None);
    }
}
