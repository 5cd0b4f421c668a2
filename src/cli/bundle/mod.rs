//! `strait support-bundle`: collects responses of a control plane into one archive without secrets,
//! for support.
//!
//! It requests the same paths as all other commands and stores the responses. `strait ui --bundle
//! FILE` shows them in the usual page. The size is bounded, and the bundle lists everything that
//! was left out.

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
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use self::archive::{BundleContents, BundleFile, BundleServer, SupportBundle, write_new};
pub(crate) use self::offline::{ServedBundle, serve_bundle};
use self::redact::Redactor;
use super::client::{AdminClient, Connect};
use super::failure::{CommandFailure, CommandResult, Exit};
use super::output::{self, Cell, Column, OutputStyle, Sent, Show, TableLayout, items, text};
use super::{about, proxy};
use strait_admin_api::{ChangeEvent, Proxy, Service};

/// Paths that are requested without parameters. A path that the control plane's version lacks is
/// left out.
const PATHS: [&str; 20] = [
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
    "/debug/traffic",
];
/// Maximum number of services whose endpoints are collected.
const SERVICES_MAX: usize = 1000;
/// Maximum number of explanations.
const EXPLANATIONS_MAX: usize = 500;
/// Maximum number of proxies whose sent configuration is collected.
const DUMPS_MAX: usize = 20;
/// Maximum number of refused changes whose recipients are collected.
const CHANGES_MAX: usize = 20;
/// Maximum size of all responses, in bytes.
const BYTES_MAX: usize = 256 << 20;
/// Time limit for collecting explanations.
const EXPLAINING_MAX: Duration = Duration::from_secs(30);

#[derive(Debug, Args)]
pub(crate) struct BundleArgs {
    /// Name of the archive; the file must not exist [default: strait-support-TIME.tar.gz]
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Only list the contents, without writing the archive
    #[arg(long)]
    dry_run: bool,
    /// Include the configuration that this proxy was last sent; proxies that refused something are
    /// always included, others up to a total of 20
    #[arg(long, value_name = "PROXY")]
    proxy: Vec<String>,
    /// Include the explanation why this proxy has, or lacks, the endpoints of that service
    #[arg(long, num_args = 2, value_names = ["PROXY", "SERVICE[:PORT]"])]
    explain: Vec<String>,
    #[command(flatten)]
    connect: Connect,
    #[command(flatten)]
    show: Show,
}

const FILES: TableLayout<Value> = TableLayout {
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

/// Returns the path of the request with its query.
fn question(row: &Value) -> String {
    let query = row["query"].as_object().into_iter().flatten();
    let query: Vec<_> = query.map(|(name, value)| format!("{name}={}", text(value))).collect();
    let path = text(&row["path"]);
    if query.is_empty() { path } else { format!("{path}?{}", query.join("&")) }
}

/// Runs `strait support-bundle`: collects the files, lists them and writes the archive.
pub(crate) async fn run(args: &BundleArgs) -> CommandResult {
    let client = AdminClient::new(&args.connect).await?;
    let now = Timestamp::now();
    let stamp = now.strftime("%Y%m%dT%H%M%SZ");
    let folder = format!("strait-support-{stamp}");
    let path = args.file.clone().unwrap_or_else(|| format!("{folder}.tar.gz").into());
    if !args.dry_run && path.exists() {
        let text = format!("{} already exists", path.display());
        return Err(
            CommandFailure::usage(text).next("choose another file with --file, or remove this one")
        );
    }
    let mut collection = BundleCollection::new(&client);
    collection.collect(args).await?;
    let bundle = collection.end(client.server());
    let contents = json!(bundle.contents);
    let raw = format!("{contents:#}\n");
    let printed = match args.show.output.is_for_people() {
        true => FILES.render(&raw, &contents["files"], &args.show, &OutputStyle::of_stdout())?,
        false => FILES.render(&raw, &contents, &args.show, &OutputStyle::of_stdout())?,
    };
    output::print(&printed)?;
    for left_out in &bundle.contents.left_out {
        eprint_line!("left out: {left_out}");
    }
    if args.dry_run {
        return Ok(Exit::Fine);
    }
    let unwritten = |error: std::io::Error| {
        let text = format!("{} can't be written: {error}", path.display());
        CommandFailure::failed(text).next("choose a file in a writable directory with --file")
    };
    let packed = bundle.pack(&folder, u64::try_from(now.as_second()).unwrap_or(0));
    let packed = packed.map_err(unwritten)?;
    write_new(&path, &packed).map_err(unwritten)?;
    eprint_line!(
        "wrote {}: {} bytes. It contains names of clusters and services, addresses and identities. Review it before you share it: strait ui --bundle {0}",
        path.display(),
        packed.len()
    );
    Ok(Exit::Fine)
}

/// Reads the rows of a collected list; none if it was not collected.
fn rows<T: DeserializeOwned>(list: Option<Value>) -> Result<Vec<Sent<T>>, CommandFailure> {
    items(&list.unwrap_or_default()).iter().cloned().map(Sent::of).collect()
}

/// A bundle that is being collected.
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

    /// Collects all files.
    ///
    /// # Errors
    /// If the control plane is unreachable or denies access.
    async fn collect(&mut self, args: &BundleArgs) -> Result<(), CommandFailure> {
        // Checks access first, so that missing rights do not appear as many separate errors.
        self.client.get("/debug/push", &[]).await?;
        let mut answers = BTreeMap::new();
        for path in PATHS {
            let query: &[_] = if path == "/readyz" { &[("verbose", "")] } else { &[] };
            answers.insert(path, self.take(path, query, "").await?);
        }
        let changes = rows::<ChangeEvent>(answers.remove("/debug/events"))?;
        self.refused_changes(&changes).await?;
        let proxies = rows::<Proxy>(answers.remove("/debug/proxies"))?;
        let services = rows::<Service>(answers.remove("/debug/services"))?;
        for service in services.iter().take(SERVICES_MAX) {
            let hostname = &service.hostname;
            self.take("/debug/endpoints", &[("hostname", hostname)], hostname).await?;
        }
        self.left("endpoints of services", services.len(), SERVICES_MAX);
        self.dumps(&proxies, &args.proxy).await?;
        self.explanations(&proxies, &services, &args.explain).await
    }

    /// Collects, for the latest refused changes, which proxies were sent them and how these
    /// responded.
    async fn refused_changes(&mut self, all: &[Sent<ChangeEvent>]) -> Result<(), CommandFailure> {
        let refused = all.iter().rev().filter(|row| row.refused > 0);
        for row in refused.take(CHANGES_MAX) {
            let seq = row.seq.to_string();
            self.take("/debug/events", &[("seq", &seq)], &seq).await?;
        }
        Ok(())
    }

    /// Collects the configuration that proxies were sent: first the requested proxies, then proxies
    /// that refused something, then others up to the limit.
    async fn dumps(&mut self, all: &[Sent<Proxy>], pairs: &[String]) -> Result<(), CommandFailure> {
        let mut chosen: Vec<&Sent<Proxy>> = Vec::new();
        for name in pairs {
            let found = proxy::find(all, name)?;
            chosen.push(found.ok_or_else(|| no_proxy(name))?);
        }
        let refuses = |row: &&Sent<Proxy>| row.types.values().any(|one| one.nack.is_some());
        let room = DUMPS_MAX.saturating_sub(chosen.len());
        let (first, others): (Vec<_>, Vec<_>) = all.iter().partition(refuses);
        chosen.extend(first.into_iter().chain(others).take(room));
        let mut seen = BTreeSet::new();
        for row in chosen {
            if seen.insert(row.key.clone()) {
                let name = proxy::name(row);
                self.take("/debug/config_dump", &[("proxy", &row.key)], &name).await?;
            }
        }
        self.left("sent configuration of proxies", all.len(), seen.len());
        Ok(())
    }

    /// Collects explanations of endpoints: first the requested ones, then, for each service, the
    /// ones of one sidecar per cluster and network.
    async fn explanations(
        &mut self,
        proxies: &[Sent<Proxy>],
        services: &[Sent<Service>],
        pairs: &[String],
    ) -> Result<(), CommandFailure> {
        for pair in pairs.chunks_exact(2) {
            let (name, service) = (&pair[0], &pair[1]);
            let row = proxy::find(proxies, name)?.ok_or_else(|| no_proxy(name))?;
            let (hostname, port) = service.split_once(':').unwrap_or((service, ""));
            let host = |row: &&Sent<Service>| {
                row.hostname == hostname || row.hostname.starts_with(&format!("{hostname}."))
            };
            let full = services.iter().find(host).map(|row| row.hostname.clone());
            let full = full.ok_or_else(|| {
                let text = format!("service {hostname:?} is unknown");
                CommandFailure::failed(text).next("strait service list")
            })?;
            self.explain(row, &full, port).await?;
            if !port.is_empty() {
                self.explain(row, &full, "").await?;
            }
        }
        let mut places = BTreeSet::new();
        let chosen: Vec<&Sent<Proxy>> = proxies
            .iter()
            .filter(|row| row.kind != "router")
            .filter(|row| places.insert((row.cluster.clone(), row.network.clone())))
            .collect();
        let pairs = services.iter().flat_map(|service| {
            let ports = service.ports.iter().map(|port| port.port.to_string());
            let ports: Vec<String> = std::iter::once(String::new()).chain(ports).collect();
            let hostname = service.hostname.clone();
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
        row: &Proxy,
        hostname: &str,
        port: &str,
    ) -> Result<(), CommandFailure> {
        let mut query = vec![("proxy", row.key.as_str()), ("hostname", hostname)];
        if !port.is_empty() {
            query.push(("port", port));
        }
        let name = format!("{}-{hostname}", proxy::name(row));
        self.take("/debug/explain", &query, &name).await.map(drop)
    }

    /// Requests one path and stores the response without secrets. A response 404 is left out.
    ///
    /// # Errors
    /// If the control plane becomes unreachable.
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
            // This version lacks the path, or the object has just been deleted.
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
            // The page requests `/readyz` without a query, which gets the same response as
            // `?verbose`.
            query: if path == "/readyz" { BTreeMap::new() } else { query },
            status: status.as_u16(),
            kind: kind.into(),
            bytes: clean.len(),
            redacted,
        });
        self.bodies.insert(file, clean.into());
        Ok(value)
    }

    /// Records that only `taken` of `all` items are in the bundle.
    fn left(&mut self, what: &str, all: usize, taken: usize) {
        if all > taken {
            self.left_out.push(format!("{what}: {taken} of {all} are included"));
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

/// Returns the version from the metric `strait_build_info`.
fn running_version(metrics: &str) -> Option<String> {
    let line = metrics.lines().find_map(|line| line.strip_prefix("strait_build_info{"))?;
    let version = line.split_once("version=\"")?.1;
    Some(version.split('"').next()?.to_owned())
}

/// Returns the name of a file, from its path and an untrusted name.
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
    fn file_names_cannot_leave_the_folder() {
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
    fn running_version_is_read_from_the_metric() {
        let text = "# HELP x\nstrait_build_info{version=\"0.9.1\"} 1\n";
        assert_eq!(running_version(text).as_deref(), Some("0.9.1"));
        assert_eq!(running_version("strait_other 1\n"), None);
    }
}
