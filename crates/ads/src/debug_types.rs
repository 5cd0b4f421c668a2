//! Requests of istioctl over ADS: the progress of proxies and the resources that they hold
//! (`istio.io/debug…`, `istio.io/connections`).
//!
//! Each request is answered once and creates no subscription. A client that sends only these
//! requests is not entered in the table of proxies. Clients in the system namespace see all
//! proxies, others see the proxies in their own namespace. The number of requests is limited, and
//! an invalid request is answered with an error. The requests do not change any state.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use prost::{Message, Name};
use serde_json::{Value, json};

use super::connections::{Connections, OpenStream};
use strait_identity::{ReplicaId, SpiffeId};
use strait_mesh::push::PushContext;
use strait_model::ClusterId;
use strait_proto::envoy::envoy::admin::v3 as admin;
use strait_proto::envoy::envoy::config::core::v3::Node;
use strait_proto::envoy::envoy::service::status::v3::client_config::GenericXdsConfig;
use strait_proto::envoy::envoy::service::status::v3::{ClientConfig, ConfigStatus};
use strait_proto::envoy::google::protobuf::{Any, Struct, Timestamp, Value as FieldValue, value};
use strait_xds::answers::Progress;
pub use strait_xds::held_version::HeldVersion;
use strait_xds::resource::ResourceType;
use strait_xds::unknown_types::SideResource;

/// The prefix of the types.
const DEBUG: &str = "istio.io/debug";
const SYNCZ: &str = "istio.io/debug/syncz";
const CONFIG_DUMP: &str = "istio.io/debug/config_dump";
/// The type for the nodes of connected proxies, used by `istioctl x version`.
const CONNECTIONS: &str = "istio.io/connections";
/// The pages at [`DEBUG`].
const PAGES: [&str; 5] =
    ["syncz", "connections", "clusterz", "config_dump?proxyID=NAME.NAMESPACE", "list"];
/// The maximum number of pages in one request.
const NAMES_MAX: usize = 16;

/// Returns whether a type belongs to istioctl's requests.
pub(super) fn is_debug(type_url: &str) -> bool {
    type_url.strip_prefix(DEBUG).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        || type_url == CONNECTIONS
}

/// Returns the identifier of the control plane, in the form that istioctl parses.
pub(super) fn control_plane(replica: &ReplicaId) -> String {
    let version = env!("CARGO_PKG_VERSION");
    let info = json!({ "version": version, "tag": version, "status": "Clean" });
    json!({ "Component": "strait", "ID": replica.as_str(), "Info": info }).to_string()
}

/// A member cluster as istioctl lists it (`istioctl remote-clusters`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemberSummary {
    /// The cluster ID.
    pub id: String,
    /// The Secret, `namespace/name`; empty for the config cluster.
    pub secret: String,
    /// `synced`, `syncing`, `timeout` or `closed`.
    pub status: &'static str,
}

/// A function that returns the current members.
pub type Members = Arc<dyn Fn() -> Vec<MemberSummary> + Send + Sync>;

/// The client of a debug request.
pub(super) struct Asker<'a> {
    /// The authenticated identity.
    pub(super) identity: &'a SpiffeId,
    /// The proven cluster, if any. An account with the same name in another cluster may have
    /// another owner.
    pub(super) cluster: Option<ClusterId>,
}

/// Returns the response to one request.
pub(super) fn answer(
    type_url: &str,
    names: &[&str],
    asker: &Asker<'_>,
    context: &PushContext,
    connections: &Connections,
    members: &Members,
) -> Vec<SideResource> {
    let streams = visible(asker, context, connections);
    match type_url {
        SYNCZ => streams.iter().map(|one| followed(one)).collect(),
        CONNECTIONS => streams.iter().map(|one| resource(&one.proxy().id, &node_of(one))).collect(),
        CONFIG_DUMP => match names.first() {
            Some(name) => match find(&streams, name) {
                Some(stream) => vec![resource(name, &dump(stream))],
                None => {
                    vec![failure(name, "no such proxy is connected, or the caller may not see it")]
                }
            },
            None => vec![failure("", "name the proxy: NAME.NAMESPACE")],
        },
        DEBUG => {
            let answers = names.iter().take(NAMES_MAX);
            // Only operators may see the members.
            let members = || if sees_all(asker.identity, context) { members() } else { Vec::new() };
            answers.map(|name| plain(name, &page(name, &streams, &members))).collect()
        }
        _ => vec![failure(type_url, "404 page not found: the pages are syncz and config_dump")],
    }
}

/// Returns the streams that `asker` may see, oldest first.
fn visible(asker: &Asker<'_>, context: &PushContext, all: &Connections) -> Vec<Arc<OpenStream>> {
    let sees_all = sees_all(asker.identity, context);
    let mut streams = all.list();
    streams.retain(|one| {
        let of = |id: &SpiffeId| (id.namespace().clone(), id.trust_domain().to_owned());
        let is_near = asker.cluster.as_ref().is_none_or(|own| one.proxy().cluster == *own);
        sees_all || (is_near && of(one.identity()) == of(asker.identity))
    });
    streams
}

/// Returns whether an identity is in the system namespace of the mesh.
fn sees_all(asker: &SpiffeId, context: &PushContext) -> bool {
    let mut same = context.mesh.same_trust_domains(&context.mesh.trust_domain);
    asker.namespace().as_str() == context.settings.system_namespace
        && same.any(|one| one == asker.trust_domain())
}

fn find<'a>(streams: &'a [Arc<OpenStream>], name: &str) -> Option<&'a OpenStream> {
    let named = streams.iter().filter(|one| one.is_named(name));
    named.max_by_key(|one| one.rank()).map(|one| &**one)
}

/// Returns the debug page at a path, such as `syncz` or `config_dump?proxyID=web.shop`.
fn page(
    path: &str,
    streams: &[Arc<OpenStream>],
    members: &dyn Fn() -> Vec<MemberSummary>,
) -> Value {
    let (page, query) =
        path.trim_start_matches('/').split_once('?').unwrap_or((path.trim_start_matches('/'), ""));
    match page.trim_start_matches("debug/") {
        "syncz" | "connections" => streams.iter().map(|one| json!(one.summary())).collect(),
        "clusterz" => {
            let member = |one: MemberSummary| json!({ "id": one.id, "secretName": one.secret, "syncStatus": one.status });
            members().into_iter().map(member).collect()
        }
        "config_dump" => {
            let mut parts = query.split('&').filter_map(|part| part.split_once('='));
            let named = parts.find(|(key, _)| *key == "proxyID").map(|(_, name)| name);
            match named.and_then(|name| find(streams, name)) {
                Some(stream) => stream.config_dump(|_, _| None),
                None => {
                    json!({ "error": "no such proxy is connected, or the caller may not see it" })
                }
            }
        }
        "list" => PAGES.into_iter().collect(),
        // istioctl recognizes this text and then requests the list.
        _ => {
            let fact = format!(
                "404 page not found: the pages are {}; the admin port has more",
                PAGES.join(", ")
            );
            json!({ "error": fact })
        }
    }
}

/// Returns the node of a proxy as istioctl expects it. A proxy without Istio's agent has Envoy's
/// version instead of Istio's.
fn node_of(stream: &OpenStream) -> Node {
    let proxy = stream.proxy();
    let text = |text: &str| FieldValue { kind: Some(value::Kind::StringValue(text.to_owned())) };
    let version = proxy.istio_version.as_deref().unwrap_or(&proxy.envoy_version);
    let metadata = BTreeMap::from([
        ("CLUSTER_ID", text(proxy.cluster.as_str())),
        ("NAMESPACE", text(proxy.namespace().as_str())),
        ("ISTIO_VERSION", text(version)),
        // istioctl ignores a node without this field, because it takes it for another debug client.
        ("PROXY_CONFIG", FieldValue { kind: Some(value::Kind::StructValue(Struct::default())) }),
    ]);
    let fields = metadata.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
    Node { id: proxy.id.to_string(), metadata: Some(Struct { fields }), ..Default::default() }
}

/// Returns the progress of one proxy.
fn followed(stream: &OpenStream) -> SideResource {
    let progress = stream.progress();
    // Virtual hosts are reported only for proxies that receive them individually.
    let is_for_all = |kind: &ResourceType| ResourceType::ALL.contains(kind);
    let types = ResourceType::SERVED.into_iter();
    let types = types.filter(|kind| is_for_all(kind) || progress.contains_key(kind));
    let config = ClientConfig {
        node: Some(node_of(stream)),
        generic_xds_configs: types.map(|kind| state(kind, progress.get(&kind))).collect(),
        ..Default::default()
    };
    resource(&stream.proxy().id, &config)
}

/// Returns the progress of a proxy for one type, as a status that Envoy defines.
fn state(kind: ResourceType, progress: Option<&Progress>) -> GenericXdsConfig {
    let nothing = Progress::default();
    let Progress { sent, acked, last_sent, nack, .. } = progress.unwrap_or(&nothing);
    let status = match (sent, nack) {
        (_, Some(_)) => ConfigStatus::Error,
        (None, _) => ConfigStatus::NotSent,
        (sent, _) if sent == acked => ConfigStatus::Synced,
        _ => ConfigStatus::Stale,
    };
    let failed =
        |error: &str| admin::UpdateFailureState { details: error.to_owned(), ..Default::default() };
    GenericXdsConfig {
        type_url: kind.url().to_owned(),
        version_info: sent.map(|sent| sent.to_string()).unwrap_or_default(),
        config_status: status.into(),
        last_updated: last_sent.map(timestamp),
        error_state: nack.as_ref().map(|nack| failed(&nack.error)),
        ..Default::default()
    }
}

/// Returns the resources that one proxy was last sent, in the form of Envoy's config dump.
fn dump(stream: &OpenStream) -> admin::ConfigDump {
    use admin::{
        clusters_config_dump, endpoints_config_dump, listeners_config_dump, routes_config_dump,
    };
    let held = stream.held();
    let of = |kind: ResourceType| {
        let held = held.get(&kind).into_iter().flatten();
        held.filter_map(move |(name, held)| match held {
            HeldVersion::Sent(sent) => {
                let body =
                    Any { type_url: kind.url().to_owned(), value: sent.body.to_bytes().into() };
                Some((name.to_string(), sent.version.to_string(), Some(body)))
            }
            // The proxy already had the resource when it connected, and was not sent it again.
            HeldVersion::Listed(_) => None,
        })
    };
    let clusters = admin::ClustersConfigDump {
        dynamic_active_clusters: of(ResourceType::Cluster)
            .map(|(_, version_info, cluster)| clusters_config_dump::DynamicCluster {
                version_info,
                cluster,
                ..Default::default()
            })
            .collect(),
        ..Default::default()
    };
    let endpoints = admin::EndpointsConfigDump {
        dynamic_endpoint_configs: of(ResourceType::Endpoint)
            .map(|(_, version_info, endpoint_config)| {
                endpoints_config_dump::DynamicEndpointConfig {
                    version_info,
                    endpoint_config,
                    ..Default::default()
                }
            })
            .collect(),
        ..Default::default()
    };
    let listeners = admin::ListenersConfigDump {
        dynamic_listeners: of(ResourceType::Listener)
            .map(|(name, version_info, listener)| listeners_config_dump::DynamicListener {
                name,
                active_state: Some(listeners_config_dump::DynamicListenerState {
                    version_info,
                    listener,
                    ..Default::default()
                }),
                ..Default::default()
            })
            .collect(),
        ..Default::default()
    };
    let routes = admin::RoutesConfigDump {
        dynamic_route_configs: of(ResourceType::Route)
            .map(|(_, version_info, route_config)| routes_config_dump::DynamicRouteConfig {
                version_info,
                route_config,
                ..Default::default()
            })
            .collect(),
        ..Default::default()
    };
    admin::ConfigDump {
        configs: vec![any(&clusters), any(&endpoints), any(&listeners), any(&routes)],
    }
}

fn any<M: Message + Name>(message: &M) -> Any {
    Any { type_url: M::type_url(), value: message.encode_to_vec() }
}

fn resource<M: Message + Name>(name: &str, message: &M) -> SideResource {
    SideResource { name: name.to_owned(), type_url: M::type_url(), body: message.encode_to_vec() }
}

fn plain(name: &str, page: &Value) -> SideResource {
    let body = page.to_string().into_bytes();
    SideResource { name: name.to_owned(), type_url: DEBUG.to_owned(), body }
}

fn failure(name: &str, fact: &str) -> SideResource {
    plain(name, &json!({ "error": fact }))
}

fn timestamp(time: SystemTime) -> Timestamp {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp {
        seconds: i64::try_from(since.as_secs()).unwrap_or(i64::MAX),
        nanos: i32::try_from(since.subsec_nanos()).unwrap_or_default(),
    }
}
