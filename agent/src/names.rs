//! The mesh's names with their addresses, as received from the control plane. Each received table replaces the previous
//! one, which stays while the control plane is unreachable. The agent authenticates with the pod's token. If the token
//! is refused, it uses the pod's certificate, because nodes renew no tokens while their API server is unreachable.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use prost::Message as _;
use strait_proto::envoy::envoy::config::core::v3::Node;
use strait_proto::envoy::envoy::service::discovery::v3::aggregated_discovery_service_client::AggregatedDiscoveryServiceClient;
use strait_proto::envoy::envoy::service::discovery::v3::{DiscoveryRequest, DiscoveryResponse};
use strait_proto::envoy::google::protobuf::{ListValue, Struct, Value, value::Kind};
use strait_proto::istio::nds::NameTable;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep};
use tokio_stream::wrappers::ReceiverStream;
use tracing::{info, warn};

use crate::control_plane::ControlPlane;
use crate::credentials::Credentials;
use crate::problem::Problem;
use crate::renewal::Pause;
use crate::settings::RunArgs;

const NAME_TABLE: &str = "type.googleapis.com/istio.networking.nds.v1.NameTable";
/// The maximum size of a table, in bytes: about 500,000 names.
const TABLE_BYTES_MAX: usize = 64 << 20;
/// The capacity for requests: one subscription, and acknowledgements.
const REQUESTS: usize = 4;
/// A stream that lasted for this time resets the pause between attempts.
const BEGAN_WELL: Duration = Duration::from_secs(30);

/// Names with their addresses.
#[derive(Debug, Default)]
pub(crate) struct Names {
    /// Names in lower case, without a trailing dot.
    table: HashMap<Box<str>, Box<[IpAddr]>>,
    /// The suffixes of a service name in the pod's namespace, and of a service name with a namespace.
    suffixes: [String; 2],
}

impl Names {
    fn new(table: NameTable, namespace: &str, domain: &str) -> Self {
        let entries = table.table.into_iter().filter_map(|(name, info)| {
            let addresses: Box<[IpAddr]> =
                info.ips.iter().filter_map(|ip| ip.parse().ok()).collect();
            // A name without addresses is forwarded to other servers.
            (!addresses.is_empty()).then(|| (name.to_ascii_lowercase().into(), addresses))
        });
        let suffixes = [format!(".{namespace}.svc.{domain}"), format!(".svc.{domain}")];
        Self { table: entries.collect(), suffixes }
    }

    /// Returns the addresses of a name, ignoring case and a trailing dot: by the full name, by the short forms of
    /// Kubernetes, or by a wildcard.
    pub(crate) fn find(&self, name: &str) -> Option<&[IpAddr]> {
        let name = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
        let exact = |name: &str| self.table.get(name).map(|addresses| &**addresses);
        let [own, any] = &self.suffixes;
        exact(&name)
            .or_else(|| match name.matches('.').count() {
                0 => exact(&format!("{name}{own}")),
                1 => exact(&format!("{name}{any}")),
                2 => exact(&format!("{}{any}", name.strip_suffix(".svc")?)),
                _ => None,
            })
            .or_else(|| {
                let parents = name.match_indices('.').map(|(dot, _)| format!("*{}", &name[dot..]));
                parents.into_iter().find_map(|wildcard| exact(&wildcard))
            })
    }
}

/// Subscribes to the table while it is polled.
pub(crate) async fn follow(
    control_plane: ControlPlane,
    args: Arc<RunArgs>,
    held: watch::Receiver<Option<Credentials>>,
    names: watch::Sender<Arc<Names>>,
) -> std::convert::Infallible {
    let mut pause = Pause::default();
    loop {
        let mut began = Instant::now();
        let mut end = match stream(&control_plane, &args, None, &names).await {
            Ok(never) => match never {},
            Err(end) => end,
        };
        let held = held.borrow().clone();
        let held = held.filter(|held| held.validity.holds_at(SystemTime::now()));
        if let (true, Some(held)) = (end.is_token_refused, held) {
            info!("the token was not accepted; requesting the table of names with the certificate");
            began = Instant::now();
            end = match stream(&control_plane, &args, Some(&held), &names).await {
                Ok(never) => match never {},
                Err(end) => end,
            };
        }
        let problem = end.problem;
        if began.elapsed() > BEGAN_WELL {
            pause = Pause::default();
        }
        let wait = pause.lengthen(rand::random());
        warn!(code = problem.code, next = problem.next, again_in = ?wait, "{}", problem.fact);
        sleep(wait).await;
    }
}

/// The reason why a stream ended.
struct StreamEnd {
    problem: Problem,
    /// Whether another credential than the token may help.
    is_token_refused: bool,
}

impl From<Problem> for StreamEnd {
    fn from(problem: Problem) -> Self {
        Self { is_token_refused: problem.is_about_token(), problem }
    }
}

/// Subscribes to the table on one stream. Presents `held` as the client certificate, if it exists.
async fn stream(
    control_plane: &ControlPlane,
    args: &RunArgs,
    held: Option<&Credentials>,
    names: &watch::Sender<Arc<Names>>,
) -> Result<std::convert::Infallible, StreamEnd> {
    let ended = |fact: String| {
        let fact = format!("the control plane's table of names has ended: {fact}");
        let next = "nothing: known names stay, and the agent retries";
        StreamEnd::from(Problem::new("STR0962", fact, next))
    };
    let refused = |status: tonic::Status| StreamEnd {
        is_token_refused: status.code() == tonic::Code::Unauthenticated,
        ..ended(format!("{:?}: {}", status.code(), status.message()))
    };
    let channel = control_plane.connect_as(held).await?;
    let (requests, waiting) = mpsc::channel(REQUESTS);
    let first = DiscoveryRequest {
        node: Some(node(args)),
        type_url: NAME_TABLE.to_owned(),
        ..Default::default()
    };
    // The channel has room, and its receiver exists.
    let _ = requests.send(first).await;
    let waiting = ReceiverStream::new(waiting);
    let call = match held {
        None => control_plane.with_caller(waiting)?,
        Some(_) => control_plane.with_cluster(waiting)?,
    };
    let client = AggregatedDiscoveryServiceClient::new(channel);
    let mut client = client.max_decoding_message_size(TABLE_BYTES_MAX);
    let mut answers = client.stream_aggregated_resources(call).await.map_err(refused)?.into_inner();
    loop {
        let answer = answers.message().await.map_err(refused)?;
        let answer = answer.ok_or_else(|| ended("it was closed".to_owned()))?;
        let table = table(&answer).ok_or_else(|| ended("an answer can't be read".to_owned()))?;
        let known = Names::new(table, args.node().namespace, &args.domain);
        info!(names = known.table.len(), "received the table of names");
        names.send_replace(Arc::new(known));
        let acknowledged = DiscoveryRequest {
            type_url: NAME_TABLE.to_owned(),
            version_info: answer.version_info,
            response_nonce: answer.nonce,
            ..Default::default()
        };
        requests.send(acknowledged).await.map_err(|_| ended("it was closed".to_owned()))?;
    }
}

/// Returns the table in a response. A response without a resource gives an empty table.
fn table(answer: &DiscoveryResponse) -> Option<NameTable> {
    match answer.resources.first() {
        Some(resource) => NameTable::decode(&*resource.value).ok(),
        None => Some(NameTable::default()),
    }
}

fn node(args: &RunArgs) -> Node {
    let node = args.node();
    let metadata = match value(&node.metadata()).kind {
        Some(Kind::StructValue(fields)) => Some(fields),
        _ => None,
    };
    Node { id: node.id(), metadata, ..Default::default() }
}

fn value(json: &serde_json::Value) -> Value {
    use serde_json::Value as Json;
    let kind = match json {
        Json::Null => Kind::NullValue(0),
        Json::Bool(bool) => Kind::BoolValue(*bool),
        Json::Number(number) => Kind::NumberValue(number.as_f64().unwrap_or_default()),
        Json::String(text) => Kind::StringValue(text.clone()),
        Json::Array(all) => Kind::ListValue(ListValue { values: all.iter().map(value).collect() }),
        Json::Object(fields) => Kind::StructValue(Struct {
            fields: fields.iter().map(|(key, field)| (key.clone(), value(field))).collect(),
        }),
    };
    Value { kind: Some(kind) }
}

/// Returns the names of a test, for the namespace `shop`.
#[cfg(test)]
pub(crate) fn known(entries: &[(&str, &[&str])]) -> Names {
    use strait_proto::istio::nds::name_table::NameInfo;
    let info = |ips: &[&str]| NameInfo {
        ips: ips.iter().map(|&ip| ip.to_owned()).collect(),
        ..Default::default()
    };
    let table = entries.iter().map(|(name, ips)| ((*name).to_owned(), info(ips))).collect();
    Names::new(NameTable { table }, "shop", "cluster.local")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_by_full_name_short_name_and_wildcard() {
        let names = known(&[
            ("web.shop.svc.cluster.local", &["10.0.0.1"]),
            ("db.data.svc.cluster.local", &["10.0.0.2", "fd00::2"]),
            ("*.example.com", &["240.0.0.1"]),
            ("empty.shop.svc.cluster.local", &[]),
        ]);
        let found = |name: &str| names.find(name).map_or(0, <[IpAddr]>::len);
        assert_eq!(found("Web.Shop.svc.cluster.local."), 1);
        assert_eq!([found("web"), found("web.shop"), found("web.shop.svc")], [1, 1, 1]);
        assert_eq!([found("db"), found("db.data"), found("db.data.svc")], [0, 2, 2]);
        assert_eq!(
            [found("a.example.com"), found("a.b.example.com"), found("example.com")],
            [1, 1, 0]
        );
        assert_eq!([found("empty.shop.svc.cluster.local"), found("x.org"), found("")], [0, 0, 0]);
    }
}
