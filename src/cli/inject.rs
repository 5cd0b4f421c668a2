//! `strait proxy inject`: adds sidecars to the pods of a file, like the webhook.
//!
//! It contacts no server. It serves to inspect the result of injection, and for clusters without
//! the webhook.

use std::io::Read as _;

use clap::Args;
use serde_json::Value;

use super::failure::{CommandFailure, CommandResult, Exit};
use super::output;
use strait_base::codes;
use strait_bootstrap::Discovery;
use strait_injection::workload::{InjectedWorkload, inject_manifest};
use strait_injection::{InjectSettings, Injection, PodDefaults, Redirection, default_image};
use strait_model::ClusterId;

/// Maximum size of the input, in bytes.
const TEXT_BYTES_MAX: u64 = 16 << 20;

/// `strait proxy inject`.
#[derive(Debug, Args)]
pub(crate) struct InjectArgs {
    /// File with manifests, YAML or JSON; '-' reads standard input
    #[arg(long = "filename", short = 'f', value_name = "FILE|-")]
    file: String,
    /// Namespace of objects that name none
    #[arg(long, short, value_name = "NS", default_value = "default")]
    namespace: String,
    /// ID of the cluster in which the pods will run
    #[arg(long, value_name = "ID")]
    cluster: String,
    /// Network of the cluster [default: derived by the control plane]
    #[arg(long, value_name = "NET")]
    network: Option<String>,
    /// Address of the control plane for proxies; separate several with commas: Envoy
    /// uses the first that responds
    #[arg(long, value_name = "HOST:PORT", value_delimiter = ',', default_value = "strait.strait-system.svc:15012", value_parser = address)]
    discovery: Vec<String>,
    /// DNS domain of services
    #[arg(long, value_name = "D", default_value = "cluster.local")]
    domain: String,
    /// Image with strait-agent and envoy
    #[arg(long, value_name = "IMAGE", default_value_t = default_image())]
    image: String,
    /// Image with strait-agent and iptables or nft [default: --image]
    #[arg(long, value_name = "IMAGE")]
    redirect_image: Option<String>,
    /// Leave redirection to Istio's CNI plugin
    #[arg(long)]
    istio_cni: bool,
    /// Inject sidecars as ordinary containers, for Kubernetes before 1.29
    #[arg(long)]
    ordinary_sidecars: bool,
    /// Let the agent answer the pods' DNS queries, so that names of other clusters resolve
    #[arg(long)]
    dns: bool,
    /// Let the proxies report service metrics such as istio_requests_total
    #[arg(long)]
    service_metrics: bool,
    /// Honor Istio's labels: sidecar.istio.io/inject, istio.io/rev
    #[arg(long)]
    istio_labels: bool,
}

fn address(text: &str) -> Result<String, String> {
    text.parse::<Discovery>().map(|_| text.to_owned()).map_err(|error| error.to_string())
}

/// Runs `strait proxy inject`. Prints nothing if any pod is refused, so that no part of a file is
/// applied.
pub(crate) fn run(args: &InjectArgs) -> CommandResult {
    ClusterId::parse(&args.cluster)
        .map_err(|error| CommandFailure::usage(format!("--cluster {:?}: {error}", args.cluster)))?;
    super::cluster::check_network(args.network.as_deref())?;
    let mut manifests = parse(&args.file, &read(&args.file)?)?;
    let settings = args.settings();
    let each = manifests.iter_mut();
    let found: Vec<_> =
        each.flat_map(|one| inject_manifest(one, &args.namespace, &settings)).collect();
    let mut refusals = Vec::new();
    for InjectedWorkload { kind, namespace, name, injection } in &found {
        let object = output::clean(&format!("{} {namespace}/{name}", kind.to_lowercase()));
        match injection {
            Injection::Injected { warnings, .. } => {
                for warning in warnings {
                    eprint_line!("! {object}: {warning}");
                }
            }
            Injection::Skipped(reason) => eprint_line!("{object} is unchanged: {reason}"),
            Injection::Refused(refusal) => refusals.push((object, refusal)),
        }
    }
    if let Some((_, first)) = refusals.first() {
        let facts = refusals.iter().map(|(object, refusal)| match refusal.code == first.code {
            true => format!("{object}: {}", refusal.fact),
            false => format!("{object} ({}): {}", refusal.code, refusal.fact),
        });
        let facts = output::clean(&facts.collect::<Vec<_>>().join("; "));
        return Err(CommandFailure::coded(first.code, facts));
    }
    if found.is_empty() {
        eprint_line!("! {}: no object in it creates pods; it is printed unchanged", args.file);
    }
    let texts: Vec<_> = manifests.iter().map(output::yaml).collect();
    output::print(&texts.join("---\n"))?;
    Ok(Exit::Fine)
}

impl InjectArgs {
    fn settings(&self) -> InjectSettings {
        InjectSettings {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            cluster: self.cluster.clone(),
            network: self.network.clone(),
            discovery: self.discovery.join(","),
            domain: self.domain.clone(),
            image: self.image.clone(),
            redirect_image: self.redirect_image.clone().unwrap_or_else(|| self.image.clone()),
            redirection: Redirection::for_cni(self.istio_cni),
            native_sidecars: !self.ordinary_sidecars,
            dns: self.dns,
            service_metrics: self.service_metrics,
            istio_labels: self.istio_labels,
            system_namespace: "strait-system".to_owned(),
            defaults: PodDefaults::default(),
        }
    }
}

fn read(file: &str) -> Result<String, CommandFailure> {
    let mut text = String::new();
    let read = match file {
        "-" => std::io::stdin().lock().take(TEXT_BYTES_MAX + 1).read_to_string(&mut text),
        file => std::fs::File::open(file)
            .and_then(|open| open.take(TEXT_BYTES_MAX + 1).read_to_string(&mut text)),
    };
    match read {
        Ok(bytes) if bytes as u64 > TEXT_BYTES_MAX => {
            let text = format!("{file} is longer than {} MiB", TEXT_BYTES_MAX >> 20);
            Err(CommandFailure::failed(text).next("split it into several files"))
        }
        Ok(_) => Ok(text),
        Err(error) => {
            let is_absent = error.kind() == std::io::ErrorKind::NotFound;
            let exit = if is_absent { Exit::Usage } else { Exit::Failed };
            let text = format!("{file} can't be read: {error}");
            Err(CommandFailure::new(exit, text).next("choose a file of manifests, or -"))
        }
    }
}

/// Parses the documents of a text. Empty documents, which templates produce, are skipped.
fn parse(file: &str, text: &str) -> Result<Vec<Value>, CommandFailure> {
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! { max_depth: 64 },
        with_snippet: false,
        strict_booleans: true,
    };
    let documents: Vec<Value> =
        serde_saphyr::from_multiple_with_options(text, options).map_err(|error| {
            let line = error.location().map(|at| format!(", line {}", at.line()));
            let line = line.unwrap_or_default();
            CommandFailure::coded(
                &codes::INJECT_MISSHAPEN,
                format!("{file}{line}: neither YAML nor JSON"),
            )
        })?;
    Ok(documents.into_iter().filter(|one| !one.is_null()).collect())
}
