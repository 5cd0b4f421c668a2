//! The command line.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;

use crate::wire::Form;

/// Many simulated proxies: mTLS streams against any ADS server, each with its own certificate. Prints one
/// JSON object when done; says on stderr when all are in sync.
#[derive(Debug, Clone, Parser)]
#[command(name = "xdsload", version)]
pub(crate) struct Options {
    /// The ADS server; of several each proxy goes to the first, and to the next when it loses one
    #[arg(long, value_name = "HOST:PORT,...", value_delimiter = ',', required = true, value_parser = authority)]
    pub(crate) server: Vec<String>,
    /// How many proxies
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) proxies: u32,
    /// The form of the protocol
    #[arg(long, value_enum, default_value_t = Form::Delta)]
    pub(crate) protocol: Form,
    /// Of which assignments: all, a fraction such as 0.05 (another one for each proxy, each name by equally
    /// many), or zipf:FRACTION (the same fraction on average, some names by most, most names by few)
    #[arg(long, value_name = "all|FRACTION|zipf:FRACTION", default_value = "all", value_parser = subscription)]
    pub(crate) subscribe: Subscription,
    /// CA that issues the certificates: ca-cert.pem, ca-key.pem, cert-chain.pem, root-cert.pem
    #[arg(long, value_name = "DIR")]
    pub(crate) ca_dir: PathBuf,
    /// Tokens of the proxies' pods, a line each in their order, in place of certificates; the roots alone are taken from --ca-dir
    #[arg(long, value_name = "FILE")]
    pub(crate) tokens: Option<PathBuf>,
    /// Clusters the proxies say they are in, in turn
    #[arg(long, value_name = "c1,...", value_delimiter = ',', default_value = "c1", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub(crate) clusters: Vec<String>,
    /// Networks they say they are in, in turn; none: the server works it out
    #[arg(long, value_name = "n1,...", value_delimiter = ',', value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub(crate) networks: Vec<String>,
    /// Namespace of the proxies
    #[arg(long, value_name = "NS", default_value = "default")]
    pub(crate) namespace: String,
    /// Spread the proxies over so many namespaces: NS, NS-2, ..., NS-N. As many as there are clusters, one in
    /// each, are in a namespace before the next ones are in another
    #[arg(long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) namespaces: u32,
    /// Service account of the proxies
    #[arg(long, value_name = "SA", default_value = "xdsload")]
    pub(crate) service_account: String,
    #[arg(long, value_name = "TD", default_value = "cluster.local")]
    /// Trust domain of the certificates
    pub(crate) trust_domain: String,
    /// Type in the node id: sidecar or router
    #[arg(long, value_name = "TYPE", default_value = "sidecar", value_parser = ["sidecar", "router"])]
    pub(crate) node_type: String,
    /// The name the server must prove; default: the host of --server
    #[arg(long, value_name = "NAME")]
    pub(crate) server_name: Option<String>,
    /// Once all are in sync, end all streams at once and come back
    #[arg(long)]
    pub(crate) reconnect: bool,
    /// Come back as if nothing were held, as SotW always does: only Delta says what is held
    #[arg(long, requires = "reconnect")]
    pub(crate) without_versions: bool,
    /// Share of proxies that take 64 KiB a second and no more
    #[arg(long, value_name = "F", default_value = "0", value_parser = share)]
    pub(crate) slow: f64,
    /// Share of proxies that reject everything they are given
    #[arg(long, value_name = "F", default_value = "0", value_parser = share)]
    pub(crate) nack: f64,
    /// Ask for listeners too
    #[arg(long)]
    pub(crate) listeners: bool,
    /// Ask for listeners, and for the route configurations that they name: a proxy is in sync once it has them
    #[arg(long, conflicts_with = "names")]
    pub(crate) routes: bool,
    /// Ask for the virtual hosts of routes one by one, and say so in the node: a proxy is in sync once it has some of each
    #[arg(long, requires = "routes")]
    pub(crate) vhds: bool,
    /// Ask for the table from which an agent answers its workload's DNS (NDS), and say so in the node
    #[arg(long)]
    pub(crate) name_table: bool,
    /// Ask for no upstream clusters, but for the assignments named in this file, one a line
    #[arg(long, value_name = "FILE")]
    pub(crate) names: Option<PathBuf>,
    /// A proxy is in sync no sooner than it knows so many upstream clusters with assignments
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) expect_sync: usize,
    /// Stay connected for so many seconds after all are in sync (SIGTERM ends it sooner; each SIGUSR1 begins
    /// another window, which is told apart)
    #[arg(long, value_name = "SECONDS", default_value = "0", value_parser = seconds)]
    pub(crate) duration: Duration,
    /// Give up waiting for sync after so many seconds
    #[arg(long, value_name = "SECONDS", default_value = "120", value_parser = seconds)]
    pub(crate) timeout: Duration,
    /// Wait no longer than this before another try after a failure
    #[arg(long, value_name = "SECONDS", default_value = "5", value_parser = seconds)]
    pub(crate) longest_pause: Duration,
    /// Control port of the strait-sim whose changes are looked for
    #[arg(long, value_name = "http://HOST:PORT", value_parser = control)]
    pub(crate) stamps: Option<SocketAddr>,
    /// Threads that share the proxies
    #[arg(long, value_name = "T", default_value = "1", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) threads: u32,
    /// Connections that may be in the making at once, in each thread
    #[arg(long, value_name = "N", default_value = "256", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) connecting: u32,
}

impl Options {
    /// The namespace of proxy number `proxy`.
    pub(crate) fn namespace_of(&self, proxy: u32) -> String {
        self.namespace_at(self.before_in_its_cluster(proxy) % self.namespaces)
    }

    /// How many pairs of a cluster and a namespace have been full before it: of each round there is one proxy in each.
    pub(crate) fn round_of(&self, proxy: u32) -> u32 {
        self.before_in_its_cluster(proxy) / self.namespaces
    }

    /// How many proxies are in its cluster before it.
    fn before_in_its_cluster(&self, proxy: u32) -> u32 {
        proxy / u32::try_from(self.clusters.len()).unwrap_or(u32::MAX).max(1)
    }

    /// All namespaces, each once.
    pub(crate) fn namespaces(&self) -> impl Iterator<Item = String> {
        (0..self.namespaces).map(|place| self.namespace_at(place))
    }

    fn namespace_at(&self, place: u32) -> String {
        let Self { namespace, .. } = self;
        if place == 0 { namespace.clone() } else { format!("{namespace}-{}", place + 1) }
    }
}

/// Which assignments a proxy asks for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Subscription {
    /// Every one.
    All,
    /// This share, spread evenly.
    Fraction(f64),
    /// A name by this share of all proxies, or by all, times its place from 0 to 1 to the power of -[`SKEW`].
    Zipf(f64),
}

/// The exponent: a tenth of the names gets about half of all subscriptions.
const SKEW: f64 = 0.9;
/// Names before this place are asked for as if they stood there: what one name takes must not depend on luck.
const FIRST: f64 = 0.001;

impl Subscription {
    /// Zipf, so that proxies ask for this share of all names on average.
    fn zipf(share: f64) -> Self {
        // Alike up to a place, by all proxies or by as many as there; by ever fewer from there on.
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

    /// Whether proxy number `proxy` asks for `name`: always the same answer, and each name is asked for by
    /// the same number of proxies (but for Zipf).
    pub(crate) fn wants(self, proxy: u32, name: &[u8]) -> bool {
        self.wants_at(proxy, unit(name, 0), name)
    }

    /// The same where `place`, the name's [`unit()`] without salt, is known.
    pub(crate) fn wants_at(self, proxy: u32, place: f64, name: &[u8]) -> bool {
        /// The golden ratio spreads numbers evenly over [0, 1), however many there are.
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

/// A number in [0, 1) that is always the same for the same input (FNV-1a, then a mix).
pub(crate) fn unit(name: &[u8], salt: u64) -> f64 {
    let start = 0xcbf2_9ce4_8422_2325 ^ salt.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut hash = name
        .iter()
        .fold(start, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3));
    hash ^= hash >> 33;
    hash = hash.wrapping_mul(0xff51_afd7_ed55_8ccd);
    hash ^= hash >> 33;
    // 53 bits are what an f64 holds exactly.
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
    fn a_fraction_is_of_names_and_of_proxies() {
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
    fn zipf_has_favourites() {
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
    fn so_many_clusters_times_namespaces_are_so_many_pairs() {
        let arguments = ["xdsload", "--server", "a:1", "--ca-dir", "ca", "--proxies", "6"];
        let more = ["--clusters", "c1,c2", "--namespaces", "3"];
        let options = Options::try_parse_from([&arguments[..], &more].concat()).expect("valid");
        let namespaces: Vec<_> = (0..7).map(|proxy| options.namespace_of(proxy)).collect();
        let first = "default";
        let expected = [first, first, "default-2", "default-2", "default-3", "default-3", first];
        assert_eq!(namespaces, expected);
        assert_eq!([0, 5, 6, 11, 12].map(|proxy| options.round_of(proxy)), [0, 0, 1, 1, 2]);
        assert!(options.namespaces().eq([first, "default-2", "default-3"]));
    }

    #[test]
    fn a_server_is_a_host_and_a_port() {
        for text in ["127.0.0.1:15010", "[::1]:1", "strait.example:443"] {
            assert_eq!(authority(text).as_deref(), Ok(text));
        }
        for text in ["127.0.0.1", "127.0.0.1:99999", ":443", "http://a:80", "a:http", ""] {
            assert!(authority(text).is_err(), "{text}");
        }
    }

    #[test]
    fn subscriptions_are_read() {
        assert_eq!(subscription("all"), Ok(Subscription::All));
        assert_eq!(subscription("0.05"), Ok(Subscription::Fraction(0.05)));
        assert_eq!(subscription("zipf:0.1"), Ok(Subscription::zipf(0.1)));
        assert!(subscription("2").is_err() && subscription("zipf:2").is_err());
        assert!(subscription("zipf:").is_err() && subscription("some").is_err());
    }
}
