//! `strait proxy bootstrap`: the configuration with which an unmodified Envoy starts.
//!
//! The bootstrap contains the proxy's identity, the control plane's address and the paths of the
//! proxy's certificate files. All other configuration comes from the control plane. The command
//! also writes two small files that refer to the certificate files, because Envoy detects renewed
//! certificates only through such files of secrets (SDS). Otherwise the result depends on the flags
//! only, and no server is contacted. `strait-bootstrap` defines the format.

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;

use clap::{Args, ValueEnum};
use serde_json::Value;

use super::failure::CommandFailure;
use super::output::{self, Format};
use strait_base::durable::{self, PUBLIC};
use strait_bootstrap::{
    Bootstrap, Discovery, LibraryBootstrap, PemFiles, ProxyNode, SecretSource, Stats, folder_of,
    is_host,
};
use strait_model::{ClusterId, ProxyType, SdsFiles};

/// `strait proxy bootstrap`.
#[derive(Debug, Args)]
pub(crate) struct BootstrapArgs {
    /// sidecar: proxy of one workload; router: a gateway
    #[arg(long = "type", value_name = "TYPE", value_parser = proxy_type)]
    kind: ProxyType,
    /// Name of the pod or workload
    #[arg(long, value_name = "N")]
    name: String,
    /// Namespace of the workload, as in its certificate
    #[arg(long, value_name = "NS")]
    namespace: String,
    /// Service account of the workload, as in its certificate
    #[arg(long, value_name = "SA")]
    service_account: String,
    /// ID of the cluster that runs the workload
    #[arg(long, value_name = "ID")]
    cluster: String,
    /// Network of the workload [default: derived by the control plane]
    #[arg(long, value_name = "NET")]
    network: Option<String>,
    /// IP address of the workload; repeatable, the first is part of the node ID
    #[arg(long = "ip", value_name = "IP", required = true, value_delimiter = ',')]
    ips: Vec<IpAddr>,
    /// Label of the pod; repeatable
    #[arg(long = "label", value_name = "K=V", value_parser = label)]
    labels: Vec<(String, String)>,
    /// Address of the control plane's ADS server; its certificate must contain HOST. Repeat the
    /// flag or separate several addresses with commas: Envoy uses the first that responds
    #[arg(long, value_name = "HOST:PORT", required = true, value_delimiter = ',')]
    discovery: Vec<Discovery>,
    /// File with the certificate chain, PEM
    #[arg(long, value_name = "F")]
    cert: PathBuf,
    /// File with the private key, PEM
    #[arg(long, value_name = "F")]
    key: PathBuf,
    /// File with the root certificates that the control plane and other workloads must chain to,
    /// PEM
    #[arg(long, value_name = "F")]
    root_ca: PathBuf,
    /// Print the bootstrap of the gRPC library instead of Envoy's: the file for GRPC_XDS_BOOTSTRAP,
    /// always JSON
    #[arg(long, conflicts_with_all = ["sds_dir", "protocol", "admin_address", "output", "vhds", "service_metrics", "stats_inclusion_prefix", "stats_inclusion_suffix", "stats_inclusion_regexp"])]
    grpc: bool,
    /// Directory for sds-cert.yaml and sds-roots.yaml, through which Envoy detects a renewed
    /// certificate [default: the directory of the certificate, if it is writable]
    #[arg(long, value_name = "DIR")]
    sds_dir: Option<PathBuf>,
    /// Write the bootstrap to this file instead of printing it
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Variant of the ADS protocol
    #[arg(long, value_enum, default_value_t)]
    protocol: Wire,
    /// Request virtual hosts one by one (VHDS), so that a change of one virtual host sends only
    /// that one; needs Envoy 1.40 or newer and Delta
    #[arg(long)]
    vhds: bool,
    /// Report service metrics such as istio_requests_total; needs Envoy 1.37 or newer
    #[arg(long)]
    service_metrics: bool,
    /// Prefix of statistics that Envoy keeps in addition to the default ones; repeatable
    #[arg(long, value_name = "TEXT")]
    stats_inclusion_prefix: Vec<String>,
    /// Suffix of statistics that Envoy keeps in addition to the default ones; repeatable
    #[arg(long, value_name = "TEXT")]
    stats_inclusion_suffix: Vec<String>,
    /// Regular expression (RE2) that matches the entire name of statistics that Envoy keeps in
    /// addition to the default ones; repeatable
    #[arg(long, value_name = "RE")]
    stats_inclusion_regexp: Vec<String>,
    /// Address of Envoy's own admin interface
    #[arg(long, value_name = "A", default_value = "127.0.0.1:15000")]
    admin_address: std::net::SocketAddr,
    /// DNS domain of services
    #[arg(long, value_name = "D", default_value = "cluster.local")]
    domain: String,
    /// Output format: yaml or json
    #[arg(long, short, value_enum, default_value = "yaml")]
    output: Format,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
enum Wire {
    /// Only changed resources
    #[default]
    Delta,
    /// State of the world: all resources of a type in each response
    Sotw,
}

fn proxy_type(text: &str) -> Result<ProxyType, String> {
    [ProxyType::Sidecar, ProxyType::Router]
        .into_iter()
        .find(|kind| kind.as_str() == text)
        .ok_or_else(|| "expected sidecar or router".to_owned())
}

fn label(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("expected KEY=VALUE".to_owned()),
    }
}

/// Writes the SDS files, then prints the bootstrap or writes it to `--file`.
///
/// # Errors
/// If a value cannot be part of a node ID or of a certificate's identity, or if a named directory
/// or file is not writable.
pub(crate) fn run(args: &BootstrapArgs) -> Result<(), CommandFailure> {
    let text = text(args)?;
    let Some(path) = &args.file else { return output::print(&text) };
    durable::replace(path, text.as_bytes(), PUBLIC).map_err(|error| {
        CommandFailure::usage(format!("--file: {} can't be written ({error})", path.display()))
    })
}

/// Writes the SDS files and returns the bootstrap as text.
///
/// # Errors
/// The errors of [`run`], except for `--file`, which this function does not use.
pub(crate) fn text(args: &BootstrapArgs) -> Result<String, CommandFailure> {
    if args.grpc {
        if !args.kind.serves_one_workload() {
            return Err(CommandFailure::usage("--grpc is for clients and servers: --type sidecar"));
        }
        // The library reads the certificate files itself, so no SDS files are needed.
        return Ok(format!("{:#}\n", bootstrap(args, None)?));
    }
    let files = sds_files(args);
    let text = render(args, files.as_ref().ok())?;
    let written = files.and_then(|files| write_secrets(args, &files));
    let Err(fact) = written else { return Ok(text) };
    if args.sds_dir.is_some() {
        return Err(CommandFailure::usage(format!("--sds-dir: {fact}")));
    }
    eprint_line!(
        "warning: {fact}; without SDS files, Envoy reads its certificate only at its start\n\
         next: set --sds-dir to a directory that Envoy can read"
    );
    render(args, None)
}

/// Returns the paths of the SDS files, or the reason why they are unusable.
fn sds_files(args: &BootstrapArgs) -> Result<SdsFiles, String> {
    let folder = args.sds_dir.as_deref().unwrap_or_else(|| folder_of(&args.cert));
    let path = |name: &str| {
        let path = std::path::absolute(folder.join(name)).map_err(|error| error.to_string())?;
        let text = path.to_str().filter(|text| SdsFiles::is_path(text));
        text.map(Arc::from).ok_or_else(|| format!("{} is not a usable path", path.display()))
    };
    Ok(SdsFiles { certificate: path("sds-cert.yaml")?, roots: path("sds-roots.yaml")? })
}

fn write_secrets(args: &BootstrapArgs, files: &SdsFiles) -> Result<(), String> {
    let [certificate, roots] =
        absolute(args).as_files().sds_files().map(|response| output::yaml(&response));
    let wanted = [(&files.certificate, &certificate), (&files.roots, &roots)];
    let wanted = wanted.map(|(path, text)| (PathBuf::from(&**path), text.as_bytes(), PUBLIC));
    let failed =
        |error: std::io::Error| format!("{} can't be written ({error})", files.certificate);
    durable::replace_all(&wanted).map_err(failed)
}

/// The named files as absolute paths, so that the directory in which Envoy starts does not matter.
struct AbsoluteFiles([PathBuf; 3]);

fn absolute(args: &BootstrapArgs) -> AbsoluteFiles {
    let absolute = |file: &PathBuf| std::path::absolute(file).unwrap_or_else(|_| file.clone());
    AbsoluteFiles([&args.cert, &args.key, &args.root_ca].map(absolute))
}

impl AbsoluteFiles {
    fn as_files(&self) -> PemFiles<'_> {
        let Self([chain, key, roots]) = self;
        PemFiles { chain, key, roots }
    }
}

/// Renders the bootstrap as text, with secrets from the SDS files or, without them, with static
/// secrets.
///
/// # Errors
/// If a value cannot be part of a node ID or of a certificate's identity.
pub(crate) fn render(
    args: &BootstrapArgs,
    sds: Option<&SdsFiles>,
) -> Result<String, CommandFailure> {
    let bootstrap = bootstrap(args, sds)?;
    match args.output {
        Format::Json => Ok(format!("{bootstrap:#}\n")),
        Format::Yaml => Ok(output::yaml(&bootstrap)),
        _ => Err(CommandFailure::usage(
            "a bootstrap has the output formats yaml and json: set -o yaml or -o json",
        )),
    }
}

fn bootstrap(args: &BootstrapArgs, sds: Option<&SdsFiles>) -> Result<Value, CommandFailure> {
    for (flag, text) in [
        ("--name", &args.name),
        ("--namespace", &args.namespace),
        ("--service-account", &args.service_account),
        ("--domain", &args.domain),
    ] {
        if !is_host(text) {
            return Err(CommandFailure::usage(format!(
                "{flag} {text:?} is not a name: letters, digits, '-' and '.' only"
            )));
        }
    }
    if args.vhds && args.protocol == Wire::Sotw {
        let fact = "--vhds requires the Delta protocol: remove --protocol sotw or --vhds";
        return Err(CommandFailure::usage(fact));
    }
    // The last dot of the node ID separates name and namespace.
    if args.namespace.contains('.') {
        return Err(CommandFailure::usage(format!(
            "--namespace {:?} contains a dot",
            args.namespace
        )));
    }
    ClusterId::parse(&args.cluster)
        .map_err(|error| CommandFailure::usage(format!("--cluster {:?}: {error}", args.cluster)))?;
    let files = absolute(args);
    let node = ProxyNode {
        kind: args.kind.as_str(),
        name: &args.name,
        namespace: &args.namespace,
        service_account: &args.service_account,
        cluster: &args.cluster,
        network: args.network.as_deref(),
        addresses: &args.ips,
        node_name: None,
        labels: &args.labels,
        domain: &args.domain,
        vhds: args.vhds,
    };
    if args.grpc {
        let discovery = &args.discovery;
        return Ok(LibraryBootstrap { node, discovery, files: files.as_files() }.to_json());
    }
    let bootstrap = Bootstrap {
        node,
        discovery: &args.discovery,
        delta: args.protocol == Wire::Delta,
        admin: args.admin_address,
        secrets: match sds {
            Some(SdsFiles { certificate, roots }) => SecretSource::Sds { certificate, roots },
            None => SecretSource::Static(files.as_files()),
        },
        stats: Stats {
            prefixes: &args.stats_inclusion_prefix,
            suffixes: &args.stats_inclusion_suffix,
            regexps: &args.stats_inclusion_regexp,
            service_metrics: args.service_metrics,
        },
    };
    Ok(bootstrap.to_json())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Flags that change the bootstrap of the gRPC library, or where it is written.
    const OF_LIBRARY: [&str; 15] = [
        "kind",
        "name",
        "namespace",
        "service_account",
        "cluster",
        "network",
        "ips",
        "labels",
        "discovery",
        "cert",
        "key",
        "root_ca",
        "grpc",
        "file",
        "domain",
    ];

    #[test]
    fn flags_that_have_no_effect_for_grpc_are_refused_with_it() {
        let command = BootstrapArgs::augment_args(clap::Command::new("bootstrap"));
        let grpc = command.get_arguments().find(|arg| arg.get_id() == "grpc").expect("it exists");
        let refused = command.get_arg_conflicts_with(grpc).into_iter();
        let refused: BTreeSet<&str> = refused.map(|arg| arg.get_id().as_str()).collect();
        let all = command.get_arguments().map(|arg| arg.get_id().as_str());
        let expected: BTreeSet<&str> = all.filter(|id| !OF_LIBRARY.contains(id)).collect();
        assert_eq!(refused, expected);
    }
}
