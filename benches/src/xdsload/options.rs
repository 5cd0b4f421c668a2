//! The command line.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;

use crate::wire::Form;

/// Simulates many proxies with mTLS streams against any ADS server, each with its own certificate.
/// Prints one JSON object at the end, and a line on stderr when all are in sync.
#[derive(Debug, Clone, Parser)]
#[command(name = "xdsload", version)]
pub(crate) struct Options {
    /// The ADS server. With several, each proxy connects to the first, and after a lost connection
    /// to the next
    #[arg(long, value_name = "HOST:PORT,...", value_delimiter = ',', required = true, value_parser = authority)]
    pub(crate) server: Vec<String>,
    /// Number of proxies
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) proxies: u32,
    /// Variant of the protocol
    #[arg(long, value_enum, default_value_t = Form::Delta)]
    pub(crate) protocol: Form,
    /// Subscribed assignments: all, a fraction such as 0.05 (different for each proxy, with each
    /// name chosen by equally many), or zipf:FRACTION (this fraction on average, some names by most
    /// proxies, most names by few)
    #[arg(long, value_name = "all|FRACTION|zipf:FRACTION", default_value = "all", value_parser = subscription)]
    pub(crate) subscribe: Subscription,
    /// CA that issues the certificates: ca-cert.pem, ca-key.pem, cert-chain.pem, root-cert.pem
    #[arg(long, value_name = "DIR")]
    pub(crate) ca_dir: PathBuf,
    /// Tokens of the proxies' pods, one per line in the order of the proxies, instead of
    /// certificates; then only the roots are read from --ca-dir
    #[arg(long, value_name = "FILE")]
    pub(crate) tokens: Option<PathBuf>,
    /// Clusters of the proxies, in turn
    #[arg(long, value_name = "c1,...", value_delimiter = ',', default_value = "c1", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub(crate) clusters: Vec<String>,
    /// Networks of the proxies, in turn; if none is given, the server derives them
    #[arg(long, value_name = "n1,...", value_delimiter = ',', value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub(crate) networks: Vec<String>,
    /// Namespace of the proxies
    #[arg(long, value_name = "NS", default_value = "default")]
    pub(crate) namespace: String,
    /// Number of namespaces over which the proxies are spread: NS, NS-2, ..., NS-N. A namespace
    /// receives a proxy in each cluster before the next namespace does
    #[arg(long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) namespaces: u32,
    /// Service account of the proxies
    #[arg(long, value_name = "SA", default_value = "xdsload")]
    pub(crate) service_account: String,
    /// Number of service accounts over which the proxies are spread: SA, SA-2, ..., SA-N
    #[arg(long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) service_accounts: u32,
    #[arg(long, value_name = "TD", default_value = "cluster.local")]
    /// Trust domain of the certificates
    pub(crate) trust_domain: String,
    /// Type in the node id: sidecar or router
    #[arg(long, value_name = "TYPE", default_value = "sidecar", value_parser = ["sidecar", "router"])]
    pub(crate) node_type: String,
    /// Name that the server's certificate must have; default: the host of --server
    #[arg(long, value_name = "NAME")]
    pub(crate) server_name: Option<String>,
    /// Once all are in sync, end all streams at once and reconnect
    #[arg(long)]
    pub(crate) reconnect: bool,
    /// Reconnect without reporting versions, as SotW always does: only Delta reports them
    #[arg(long, requires = "reconnect")]
    pub(crate) without_versions: bool,
    /// Fraction of proxies that read at most 64 KiB a second
    #[arg(long, value_name = "F", default_value = "0", value_parser = share)]
    pub(crate) slow: f64,
    /// Fraction of proxies that reject every response
    #[arg(long, value_name = "F", default_value = "0", value_parser = share)]
    pub(crate) nack: f64,
    /// Subscribe to listeners as well
    #[arg(long)]
    pub(crate) listeners: bool,
    /// Subscribe to listeners, and to the route configurations that they name: a proxy is in sync
    /// once it has them
    #[arg(long, conflicts_with = "names")]
    pub(crate) routes: bool,
    /// Subscribe to single virtual hosts of routes, and request them in the node: a proxy is in
    /// sync once it has some of each route
    #[arg(long, requires = "routes")]
    pub(crate) vhds: bool,
    /// Subscribe to the table from which an agent answers its workload's DNS queries (NDS), and
    /// request it in the node
    #[arg(long)]
    pub(crate) name_table: bool,
    /// Subscribe to no upstream clusters, but to the assignments named in this file, one per line
    #[arg(long, value_name = "FILE")]
    pub(crate) names: Option<PathBuf>,
    /// A proxy is in sync only once it has this number of upstream clusters with assignments
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) expect_sync: usize,
    /// Stay connected for this time after all are in sync (SIGTERM ends it sooner; each SIGUSR1
    /// begins another window with separate counters)
    #[arg(long, value_name = "SECONDS", default_value = "0", value_parser = seconds)]
    pub(crate) duration: Duration,
    /// Time limit for the sync
    #[arg(long, value_name = "SECONDS", default_value = "120", value_parser = seconds)]
    pub(crate) timeout: Duration,
    /// Maximum delay before a retry after a failure
    #[arg(long, value_name = "SECONDS", default_value = "5", value_parser = seconds)]
    pub(crate) longest_pause: Duration,
    /// Control port of the strait-sim whose changes are measured
    #[arg(long, value_name = "http://HOST:PORT", value_parser = control)]
    pub(crate) stamps: Option<SocketAddr>,
    /// Threads that share the proxies
    #[arg(long, value_name = "T", default_value = "1", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) threads: u32,
    /// Maximum number of connections that are being established at once, per thread
    #[arg(long, value_name = "N", default_value = "256", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) connecting: u32,
}

impl Options {
    /// Returns the namespace of proxy `proxy`.
    pub(crate) fn namespace_of(&self, proxy: u32) -> String {
        self.namespace_at(self.before_in_its_cluster(proxy) % self.namespaces)
    }

    /// Returns the service account of a proxy.
    pub(crate) fn service_account_of(&self, proxy: u32) -> String {
        let Self { service_account, service_accounts, .. } = self;
        match proxy % service_accounts {
            0 => service_account.clone(),
            place => format!("{service_account}-{}", place + 1),
        }
    }

    /// Returns the round of a proxy: the number of earlier proxies in its pair of cluster and
    /// namespace.
    pub(crate) fn round_of(&self, proxy: u32) -> u32 {
        self.before_in_its_cluster(proxy) / self.namespaces
    }

    /// Returns the number of earlier proxies in its cluster.
    fn before_in_its_cluster(&self, proxy: u32) -> u32 {
        proxy / u32::try_from(self.clusters.len()).unwrap_or(u32::MAX).max(1)
    }

    fn namespace_at(&self, place: u32) -> String {
        let Self { namespace, .. } = self;
        if place == 0 { namespace.clone() } else { format!("{namespace}-{}", place + 1) }
    }
}

/// The assignments to which a proxy subscribes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Subscription {
    /// All assignments.
    All,
    /// This fraction, distributed evenly.
    Fraction(f64),
    /// The fraction of proxies that subscribe to a name is this number times the name's position (0
    /// to 1) to the power of -[`SKEW`], at most 1.
    Zipf(f64),
}

/// The exponent: a tenth of the names receives about half of all subscriptions.
const SKEW: f64 = 0.9;
/// The minimum position: names below it have as many subscribers as the name at it, so that the
/// cost of one name does not depend on chance.
const FIRST: f64 = 0.001;

impl Subscription {
    /// Returns the Zipf distribution in which a proxy subscribes to this fraction of all names on
    /// average.
    fn zipf(share: f64) -> Self {
        // Constant up to a position, where all proxies subscribe or the minimum position applies;
        // decreasing from there on.
        let mean = |last: f64| {
            let place = last.powf(1.0 / SKEW).max(FIRST);
            let first = (last * place.powf(-SKEW)).min(1.0);
            place * first + last / (1.0 - SKEW) * (1.0 - place.powf(1.0 - SKEW))
        };
        let (mut low, mut high) = (0.0, 1.0);
        for _ in 0..f64::MANTISSA_DIGITS {
            let middle = f64::midpoint(low, high);
            *(if mean(middle) < share { &mut low } else { &mut high }) = middle;
        }
        Self::Zipf(high)
    }

    /// Returns whether proxy `proxy` subscribes to `name`. The result is always the same, and each
    /// name has the same number of subscribers (except with Zipf).
    pub(crate) fn wants(self, proxy: u32, name: &[u8]) -> bool {
        self.wants_at(proxy, unit(name, 0), name)
    }

    /// Computes [`Self::wants`] for a known `place`, the name's [`unit()`] without salt.
    pub(crate) fn wants_at(self, proxy: u32, place: f64, name: &[u8]) -> bool {
        /// Multiples of the golden ratio are distributed evenly over [0, 1), for any number of
        /// proxies.
        const SPREAD: f64 = 0.618_033_988_749_894_9;
        match self {
            Self::All => true,
            Self::Fraction(share) => {
                let start = (f64::from(proxy) * SPREAD).fract();
                (place - start).rem_euclid(1.0) < share
            }
            Self::Zipf(last) => {
                unit(name, u64::from(proxy) + 1) < last * place.max(FIRST).powf(-SKEW)
            }
        }
    }
}

/// Returns a number in [0, 1) that is always equal for equal input (FNV-1a, then a mix).
pub(crate) fn unit(name: &[u8], salt: u64) -> f64 {
    let start = 0xcbf2_9ce4_8422_2325 ^ salt.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut hash = name
        .iter()
        .fold(start, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3));
    hash ^= hash >> 33;
    hash = hash.wrapping_mul(0xff51_afd7_ed55_8ccd);
    hash ^= hash >> 33;
    // An f64 represents 53 bits exactly.
    (hash >> 11) as f64 / (1_u64 << 53) as f64
}

fn subscription(text: &str) -> Result<Subscription, String> {
    match (text, text.strip_prefix("zipf:")) {
        ("all", _) => Ok(Subscription::All),
        (_, Some(fraction)) => share(fraction).map(Subscription::zipf),
        _ => share(text).map(Subscription::Fraction),
    }
}

fn share(text: &str) -> Result<f64, String> {
    let share: f64 = text.parse().map_err(|_| "not a number")?;
    (0.0..=1.0).contains(&share).then_some(share).ok_or_else(|| "must be from 0 to 1".to_owned())
}

fn authority(text: &str) -> Result<String, String> {
    let (host, port) = text.rsplit_once(':').ok_or("not HOST:PORT")?;
    port.parse::<u16>().map_err(|_| "not HOST:PORT: the port must be a number up to 65535")?;
    let is_host = !host.is_empty() && !host.contains('/');
    is_host.then(|| text.to_owned()).ok_or_else(|| "not HOST:PORT".to_owned())
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.trim_end_matches('s').parse().map_err(|_| "not a number of seconds")?;
    Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string())
}

fn control(text: &str) -> Result<SocketAddr, String> {
    let address = text.strip_prefix("http://").unwrap_or(text).trim_end_matches('/');
    address.parse().map_err(|_| "not http://ADDRESS:PORT".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names() -> Vec<String> {
        (0..1000).map(|n| format!("outbound|80||s{n}.ns.svc.cluster.local")).collect()
    }

    #[test]
    fn fraction_applies_to_names_and_to_proxies() {
        let subscribe = Subscription::Fraction(0.05);
        let names = names();
        let by_proxy = (0..1000).map(|proxy| {
            names.iter().filter(|name| subscribe.wants(proxy, name.as_bytes())).count()
        });
        let total: usize = by_proxy.sum();
        assert!((48_000..52_000).contains(&total), "{total}");
        for name in names {
            let proxies =
                (0..1000).filter(|proxy| subscribe.wants(*proxy, name.as_bytes())).count();
            assert!((47..=53).contains(&proxies), "{name}: {proxies}");
        }
    }

    #[test]
    fn zipf_gives_some_names_many_subscribers() {
        for share in [0.01, 0.05, 0.1, 0.5, 0.9, 1.0] {
            let subscribe = Subscription::zipf(share);
            let wanted = |name: &String| {
                (0..500).filter(|proxy| subscribe.wants(*proxy, name.as_bytes())).count()
            };
            let mut by_name: Vec<_> = names().iter().map(wanted).collect();
            by_name.sort_unstable();
            let total: usize = by_name.iter().sum();
            let found = total as f64 / 500_000.0;
            assert!((0.8 * share..=1.2 * share).contains(&found), "{found}, not {share}");
            let favourites: usize = by_name.iter().rev().take(100).sum();
            assert!(share >= 0.1 || favourites * 2 > total, "{favourites} of {total}");
        }
    }

    #[test]
    fn proxies_fill_all_pairs_of_cluster_and_namespace() {
        let arguments = ["xdsload", "--server", "a:1", "--ca-dir", "ca", "--proxies", "6"];
        let more = ["--clusters", "c1,c2", "--namespaces", "3"];
        let options = Options::try_parse_from([&arguments[..], &more].concat()).expect("valid");
        let namespaces: Vec<_> = (0..7).map(|proxy| options.namespace_of(proxy)).collect();
        let first = "default";
        let expected = [first, first, "default-2", "default-2", "default-3", "default-3", first];
        assert_eq!(namespaces, expected);
        assert_eq!([0, 5, 6, 11, 12].map(|proxy| options.round_of(proxy)), [0, 0, 1, 1, 2]);
    }

    #[test]
    fn proxies_are_spread_over_the_service_accounts() {
        let arguments = ["xdsload", "--server", "a:1", "--ca-dir", "ca", "--proxies", "4"];
        let more = ["--service-account", "app", "--service-accounts", "3"];
        let options = Options::try_parse_from([&arguments[..], &more].concat()).expect("valid");
        let accounts: Vec<_> = (0..4).map(|proxy| options.service_account_of(proxy)).collect();
        assert_eq!(accounts, ["app", "app-2", "app-3", "app"]);
    }

    #[test]
    fn server_is_a_host_and_a_port() {
        for text in ["127.0.0.1:15010", "[::1]:1", "strait.example:443"] {
            assert_eq!(authority(text).as_deref(), Ok(text));
        }
        for text in ["127.0.0.1", "127.0.0.1:99999", ":443", "http://a:80", "a:http", ""] {
            assert!(authority(text).is_err(), "{text}");
        }
    }

    #[test]
    fn subscriptions_are_parsed() {
        assert_eq!(subscription("all"), Ok(Subscription::All));
        assert_eq!(subscription("0.05"), Ok(Subscription::Fraction(0.05)));
        assert_eq!(subscription("zipf:0.1"), Ok(Subscription::zipf(0.1)));
        assert!(subscription("2").is_err() && subscription("zipf:2").is_err());
        assert!(subscription("zipf:").is_err() && subscription("some").is_err());
    }
}
