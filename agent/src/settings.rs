//! Settings of `strait-agent run`, from flags and the environment that injection sets.

use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use clap::builder::FalseyValueParser;
use strait_bootstrap::{Discovery, ProxyNode, Stats, is_host};

use crate::problem::Problem;

/// Arguments of `strait-agent run`.
#[derive(Debug, Clone, Args)]
pub(crate) struct RunArgs {
    /// Addresses of the control plane for ADS and certificates, comma-separated; the first reachable one is
    /// used
    #[arg(
        long,
        env = "STRAIT_DISCOVERY",
        value_name = "HOST:PORT",
        value_delimiter = ',',
        required = true
    )]
    pub(crate) discovery: Vec<Discovery>,
    /// ID of the cluster that the pod runs in
    #[arg(long, env = "STRAIT_CLUSTER_ID", value_name = "ID")]
    pub(crate) cluster: String,
    /// Network of the pod [default: derived by the control plane]
    #[arg(long, env = "STRAIT_NETWORK", value_name = "NET")]
    network: Option<String>,
    /// sidecar: proxy of one workload; router: gateway
    #[arg(long = "type", env = "STRAIT_PROXY_TYPE", value_name = "TYPE", value_parser = ["sidecar", "router"], default_value = "sidecar")]
    kind: String,
    /// Name of the pod
    #[arg(long, env = "POD_NAME", value_name = "N")]
    name: String,
    /// Namespace of the pod
    #[arg(long, env = "POD_NAMESPACE", value_name = "NS")]
    namespace: String,
    /// Service account of the pod
    #[arg(long, env = "SERVICE_ACCOUNT", value_name = "SA", default_value = "default")]
    service_account: String,
    /// Addresses of the pod, comma-separated; the first one is part of the node ID
    #[arg(long, env = "POD_IP", value_name = "IP", value_delimiter = ',', required = true)]
    pub(crate) ip: Vec<IpAddr>,
    /// Name of the pod's node
    #[arg(long, env = "NODE_NAME", value_name = "NODE")]
    node: Option<String>,
    /// Label of the pod; repeatable. For pods that the control plane knows, it uses their labels instead
    #[arg(long = "label", value_name = "K=V", value_parser = label)]
    labels: Vec<(String, String)>,
    /// DNS domain of services
    #[arg(long, env = "STRAIT_DOMAIN", value_name = "D", default_value = "cluster.local")]
    pub(crate) domain: String,
    /// Requests virtual hosts one by one (VHDS), so that a change sends only the changed ones; needs Envoy
    /// 1.40 or newer
    #[arg(long, env = "STRAIT_VHDS")]
    vhds: bool,
    /// Reports service metrics such as istio_requests_total; needs Envoy 1.37 or newer
    #[arg(long, env = "STRAIT_SERVICE_METRICS", value_parser = FalseyValueParser::new())]
    service_metrics: bool,
    /// Prefix of statistics that Envoy keeps in addition to the default ones; repeatable
    #[arg(long, value_name = "TEXT")]
    stats_inclusion_prefix: Vec<String>,
    /// Suffix of statistics that Envoy keeps in addition to the default ones; repeatable
    #[arg(long, value_name = "TEXT")]
    stats_inclusion_suffix: Vec<String>,
    /// Regular expression (RE2) that matches the entire name of statistics that Envoy keeps in addition to the default
    /// ones; repeatable
    #[arg(long, value_name = "RE")]
    stats_inclusion_regexp: Vec<String>,
    /// File with the service account token, read for each call
    #[arg(long, value_name = "F", default_value = "/var/run/secrets/tokens/istio-token")]
    pub(crate) token_file: PathBuf,
    /// File with the root certificates of the control plane in PEM, read for each call
    #[arg(long, value_name = "F", default_value = "/var/run/secrets/istio/root-cert.pem")]
    pub(crate) roots_file: PathBuf,
    /// Folder for certificate, key, roots, SDS files and bootstrap, on a volume in memory
    #[arg(long, value_name = "DIR", default_value = "/var/run/strait")]
    pub(crate) dir: PathBuf,
    /// Allows a --dir that is not in memory
    #[arg(long)]
    pub(crate) allow_key_on_disk: bool,
    /// How long a stopped proxy continues to serve, without new inbound connections
    #[arg(long, env = "STRAIT_DRAIN", value_name = "D", value_parser = duration, default_value = "5s")]
    pub(crate) drain: Duration,
    /// Waits after --drain until no connection is left
    #[arg(long, env = "STRAIT_DRAIN_UNTIL_IDLE")]
    pub(crate) drain_until_idle: bool,
    /// Address of Envoy's admin interface
    #[arg(long, value_name = "A", default_value = "127.0.0.1:15000")]
    pub(crate) admin_address: SocketAddr,
    /// Address for health, probes, and the metrics of Envoy and the application [default: port 15020 of all
    /// addresses]
    #[arg(long, value_name = "A")]
    agent_address: Option<SocketAddr>,
    /// Address for health only, for the kubelet [default: port 15021 of all addresses]
    #[arg(long, value_name = "A")]
    health_address: Option<SocketAddr>,
    /// Address for Envoy's metrics [default: port 15090 of all addresses]
    #[arg(long, value_name = "A")]
    metrics_address: Option<SocketAddr>,
    /// Answers DNS queries for the mesh's names on port 15053, and forwards all others
    #[arg(long, env = "STRAIT_DNS")]
    pub(crate) dns: bool,
    /// Addresses for DNS queries [default: port 15053 of the loopback]
    #[arg(long, value_name = "A", value_delimiter = ',')]
    dns_address: Vec<SocketAddr>,
    /// Runs no Envoy; only renews the certificate in --dir for another program of the pod
    #[arg(long, conflicts_with = "envoy")]
    pub(crate) no_envoy: bool,
    /// Envoy and its arguments; the agent sets --config-path
    #[arg(last = true, value_name = "ENVOY", required_unless_present = "no_envoy")]
    pub(crate) envoy: Vec<OsString>,
}

impl RunArgs {
    /// Checks the values that depend on each other or on a format.
    ///
    /// # Errors
    /// The flag, its value, and valid values.
    pub(crate) fn check(&self) -> Result<(), Problem> {
        let names = [
            ("--name (POD_NAME)", &self.name),
            ("--namespace (POD_NAMESPACE)", &self.namespace),
            ("--service-account (SERVICE_ACCOUNT)", &self.service_account),
            ("--domain (STRAIT_DOMAIN)", &self.domain),
        ];
        for (flag, text) in names {
            if !is_host(text) {
                let fact = format!("{flag} {text:?} is no name");
                return Err(usage(fact, "use only letters, digits, '-' and '.'"));
            }
        }
        if self.namespace.contains('.') {
            let fact = format!("--namespace (POD_NAMESPACE) {:?} contains a dot", self.namespace);
            return Err(usage(fact, "use only the name of the namespace"));
        }
        if self.cluster.is_empty() {
            let fact = "--cluster (STRAIT_CLUSTER_ID) is empty";
            return Err(usage(fact, "use an ID from: strait cluster list"));
        }
        let is_config = |argument: &OsString| {
            let text = argument.to_string_lossy();
            text == "-c" || text.starts_with("--config-path") || text.starts_with("--config-yaml")
        };
        if let Some(argument) = self.envoy.iter().find(|argument| is_config(argument)) {
            let fact = format!("Envoy's argument {} is set by the agent", argument.display());
            return Err(usage(fact, "remove it: the bootstrap is generated from the other flags"));
        }
        Ok(())
    }

    /// Returns the identity of the proxy for the control plane.
    pub(crate) fn node(&self) -> ProxyNode<'_> {
        ProxyNode {
            kind: &self.kind,
            name: &self.name,
            namespace: &self.namespace,
            service_account: &self.service_account,
            cluster: &self.cluster,
            network: self.network.as_deref().filter(|network| !network.is_empty()),
            addresses: &self.ip,
            node_name: self.node.as_deref().filter(|node| !node.is_empty()),
            labels: &self.labels,
            domain: &self.domain,
            vhds: self.vhds,
        }
    }

    /// Returns the statistics of Envoy.
    pub(crate) fn stats(&self) -> Stats<'_> {
        Stats {
            prefixes: &self.stats_inclusion_prefix,
            suffixes: &self.stats_inclusion_suffix,
            regexps: &self.stats_inclusion_regexp,
            service_metrics: self.service_metrics,
        }
    }

    /// Returns the environment variables that service metrics read the labels of this workload from. Injection sets
    /// most of them. Envoy prints `-` for a missing variable.
    pub(crate) fn metrics_environment(&self) -> Vec<(&'static str, String)> {
        if !self.service_metrics {
            return Vec::new();
        }
        let known = [
            ("STRAIT_METRICS_NAMESPACE", &self.namespace),
            ("STRAIT_METRICS_CLUSTER", &self.cluster),
        ];
        let named = [
            "STRAIT_METRICS_WORKLOAD",
            "STRAIT_METRICS_SERVICE",
            "STRAIT_METRICS_REVISION",
            "STRAIT_METRICS_APP",
            "STRAIT_METRICS_VERSION",
        ];
        let is_missing = |name: &&str| std::env::var_os(name).is_none_or(|value| value.is_empty());
        let unknown = named.into_iter().filter(is_missing).map(|name| (name, "unknown".to_owned()));
        known.into_iter().map(|(name, value)| (name, value.clone())).chain(unknown).collect()
    }

    pub(crate) fn agent_address(&self) -> SocketAddr {
        self.agent_address.unwrap_or_else(|| self.all_addresses(15020))
    }

    pub(crate) fn health_address(&self) -> SocketAddr {
        self.health_address.unwrap_or_else(|| self.all_addresses(15021))
    }

    pub(crate) fn metrics_address(&self) -> SocketAddr {
        self.metrics_address.unwrap_or_else(|| self.all_addresses(15090))
    }

    /// Returns the addresses for redirected DNS queries: the loopback of each family that the pod has.
    pub(crate) fn dns_addresses(&self) -> Vec<SocketAddr> {
        if !self.dns_address.is_empty() {
            return self.dns_address.clone();
        }
        let has_ipv6 = self.ip.iter().any(IpAddr::is_ipv6);
        let v6 = has_ipv6.then_some(SocketAddr::new(Ipv6Addr::LOCALHOST.into(), 15053));
        [SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 15053)].into_iter().chain(v6).collect()
    }

    /// Returns the wildcard address. If the pod has IPv6, it is the IPv6 one, which accepts IPv4 too.
    fn all_addresses(&self, port: u16) -> SocketAddr {
        let has_ipv6 = self.ip.iter().any(IpAddr::is_ipv6);
        let all: IpAddr = if has_ipv6 { [0u16; 8].into() } else { [0u8; 4].into() };
        SocketAddr::new(all, port)
    }
}

fn usage(fact: impl Into<String>, next: &'static str) -> Problem {
    Problem::new("STR0950", fact, next)
}

fn label(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("expected KEY=VALUE".to_owned()),
    }
}

/// Parses numbers with `ms`, `s`, `m` or `h`, such as `5s` or `1m30s`.
fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || "expected a number with ms, s, m or h, such as 5s".to_owned();
    let (mut rest, mut millis) = (text, 0_u64);
    while !rest.is_empty() || text.is_empty() {
        let unit = rest.find(|c: char| !c.is_ascii_digit()).ok_or_else(wrong)?;
        let (number, after) = rest.split_at(unit);
        let end = after.find(|c: char| c.is_ascii_digit()).unwrap_or(after.len());
        let (unit, after) = after.split_at(end);
        let number: u64 = number.parse().map_err(|_| wrong())?;
        let of_unit = match unit {
            "ms" => 1,
            "s" => 1000,
            "m" => 60_000,
            "h" => 3_600_000,
            _ => return Err(wrong()),
        };
        let part = number.checked_mul(of_unit).ok_or_else(wrong)?;
        millis = millis.checked_add(part).ok_or_else(wrong)?;
        rest = after;
    }
    Ok(Duration::from_millis(millis))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        run: RunArgs,
    }

    fn line(more: &[&str]) -> RunArgs {
        let given = [
            "x",
            "--discovery",
            "strait.strait-system.svc:15012,[fd00::1]:15012",
            "--cluster",
            "east",
        ];
        let who = ["--name", "web-0", "--namespace", "shop", "--ip", "10.0.0.1,fd00::2"];
        Line::try_parse_from(given.iter().chain(&who).chain(more)).expect("it parses").run
    }

    #[test]
    fn command_line_defines_node_and_control_planes() {
        let args = line(&["--", "envoy", "-l", "info"]);
        args.check().expect("nothing is wrong");
        assert_eq!(args.node().id(), "sidecar~10.0.0.1~web-0.shop~shop.svc.cluster.local");
        assert_eq!(args.discovery[1], Discovery { host: "fd00::1".into(), port: 15012 });
        assert_eq!(args.health_address().to_string(), "[::]:15021");
        assert_eq!(args.drain, Duration::from_secs(5));
    }

    #[test]
    fn invalid_names_and_reserved_arguments_are_refused() {
        let problem = line(&["--", "envoy", "-c", "mine.yaml"]).check().expect_err("refused");
        assert_eq!((problem.code, problem.fact.contains("-c")), ("STR0950", true));
        let dotted = line(&["--domain", "a_b", "--", "envoy"]).check().expect_err("refused");
        assert!(dotted.fact.contains("--domain"), "{dotted}");
    }

    #[test]
    fn labels_of_service_metrics_that_injection_did_not_set_are_unknown() {
        let environment = |flags: &[&str]| line(flags).metrics_environment();
        assert_eq!(environment(&["--", "envoy"]), []);
        let found = environment(&["--service-metrics", "--", "envoy"]);
        let found: Vec<_> = found.iter().map(|(name, value)| (*name, &**value)).collect();
        let expected = [
            ("STRAIT_METRICS_NAMESPACE", "shop"),
            ("STRAIT_METRICS_CLUSTER", "east"),
            ("STRAIT_METRICS_WORKLOAD", "unknown"),
            ("STRAIT_METRICS_SERVICE", "unknown"),
            ("STRAIT_METRICS_REVISION", "unknown"),
            ("STRAIT_METRICS_APP", "unknown"),
            ("STRAIT_METRICS_VERSION", "unknown"),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn durations_need_a_unit() {
        assert_eq!(duration("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(duration("1m30s"), Ok(Duration::from_secs(90)));
        assert!(
            duration("").is_err()
                && duration("5").is_err()
                && duration("s").is_err()
                && duration("1d").is_err()
        );
    }
}
