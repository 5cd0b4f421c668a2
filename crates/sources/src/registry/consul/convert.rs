//! Converts the instances of a name in Consul to a service of the mesh. Pure.
//!
//! | Consul | mesh |
//! |---|---|
//! | name | host `NAME.service.consul`, namespace `default` |
//! | tags `key\|value`, metadata | labels of an instance; a tag takes precedence over metadata with the same key |
//! | port | a port of the service, named `PROTOCOL-NUMBER`; label `service-port` sets another number |
//! | label `protocol` | protocol of the port; TCP by default |
//! | address of the instance, else of the node | endpoint address |
//! | checks: all passing, a warning, critical | healthy; healthy with the weight for warnings (0: unhealthy); unhealthy |
//! | locality of the instance, else of the node; labels; datacentre | region and zone |
//! | label `topology.istio.io/network`, or `network` | its network |
//! | label `security.istio.io/tlsMode` | whether it accepts mTLS |
//! | metadata `external` of the instance or node, or `external-node` | outside the mesh |
//! | tagged address `consul-virtual` | VIP |
//!
//! If a name has instances inside and outside the mesh, those outside are ignored.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use super::catalog::{Check, ConsulLocality, Instance};
use strait_base::address::special;
use strait_model::registry::ServiceRecord;
use strait_model::{
    ByName, Definition, Distribution, Endpoint, Endpoints, ExportTo, Health, Hostname, Labels,
    Locality, NETWORK_LABEL, NamedEndpoint, Namespace, NetworkId, PodState, Port, Protocol,
    Resolution, Service, SharingFacts, TLS_MODE_LABEL, TargetPort, TlsMode, WorkloadKey,
    given_labels, telemetry,
};

/// The namespace that all services of Consul are in.
const NAMESPACE: &str = "default";
/// Maximum weight, far more than load balancing needs.
const WEIGHT_MAX: i64 = 65_535;

/// A service, and the reasons why some instances are not used.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Converted {
    /// `None` if no instance is usable for a service.
    pub(super) record: Option<ServiceRecord>,
    pub(super) invalid: Vec<String>,
}

/// Returns the host of a name; `None` if the name is not valid in a host.
pub(super) fn hostname(name: &str) -> Option<Hostname> {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    let label = |part: &str| (1..=63).contains(&part.len()) && part.chars().all(plain);
    let fits = name.len() <= 200 && name.split('.').all(label);
    fits.then(|| format!("{}.service.consul", name.to_ascii_lowercase()).into())
}

/// A usable instance, converted to the mesh's types.
struct ConsulInstance<'a> {
    instance: &'a Instance,
    labels: Arc<Labels>,
    address: &'a Arc<str>,
    ip: Option<IpAddr>,
    number: u16,
    target: u16,
    external: bool,
}

/// Converts the instances of one name in `datacentre`.
pub(super) fn service(name: &Arc<str>, datacentre: &str, instances: &[Instance]) -> Converted {
    let mut invalid = Vec::new();
    let Some(hostname) = hostname(name) else {
        invalid.push(format!("{name:?} is not a valid DNS name"));
        return Converted { record: None, invalid };
    };
    let mut members = Vec::new();
    // Consul's own proxies and gateways are not destinations: they use Consul's mTLS.
    for instance in instances.iter().filter(|one| one.service.kind.is_empty()) {
        match member(instance) {
            Ok(Some(member)) => members.push(member),
            Ok(None) => {}
            Err(fact) => invalid.push(format!("instance {:?}: {fact}", instance.service.id)),
        }
    }
    members.sort_by(|a, b| key(a.instance).cmp(&key(b.instance)));
    select_one_kind(&mut members, &mut invalid);
    let Some(first) = members.first() else { return Converted { record: None, invalid } };
    let mesh_external = first.external;
    let ports = ports(&members, &mut invalid);
    let by_name = members.iter().any(|member| member.ip.is_none());
    let named = |member: &&ConsulInstance<'_>| ports.contains_key(&member.number);
    let (resolution, endpoints) = if by_name {
        let ready = members.iter().filter(named).filter(|one| health(one).0 == Health::Healthy);
        let endpoints = ready.map(|member| named_endpoint(member, &ports, datacentre)).collect();
        (Resolution::ByName(ByName { just_then: false, endpoints }), Endpoints::default())
    } else {
        let endpoints = members.iter().filter(named);
        let endpoints =
            endpoints.filter_map(|member| endpoint(name, member, &ports, datacentre)).collect();
        (Resolution::ClientSide, endpoints)
    };
    let definition = Definition {
        hostname,
        name: Arc::clone(name),
        namespace: Namespace::from(NAMESPACE),
        ports: ports.into_values().collect(),
        resolution,
        ranges: Vec::new(),
        // A Consul service is never the gateway of a network, whatever its tags.
        labels: Labels::new(),
        selector: Labels::new(),
        service_accounts: Vec::new(),
        export_to: ExportTo::Public,
        node_local: false,
        prefers: Distribution::Any,
        sharing: SharingFacts::default(),
        named_pods: Default::default(),
        affinity_seconds: None,
        mesh_external,
    };
    let vips = virtual_address(&members).into_iter().collect();
    let service = Service { vips, ..Service::from(definition) };
    Converted { record: Some(ServiceRecord { service: Arc::new(service), endpoints }), invalid }
}

fn key(instance: &Instance) -> (&str, &str) {
    (&instance.node.name, &instance.service.id)
}

/// Converts an instance. Returns `None` for an instance that listens on no port, which is valid.
fn member(instance: &Instance) -> Result<Option<ConsulInstance<'_>>, String> {
    let service = &instance.service;
    if service.port == 0 {
        return Ok(None);
    }
    let target = port_number(service.port).ok_or_else(|| format!("port {}", service.port))?;
    let labels = Arc::new(labels(instance));
    let number = match labels.get("service-port") {
        None => target,
        Some(text) => text
            .parse()
            .ok()
            .and_then(port_number)
            .ok_or_else(|| format!("service-port {text:?} is not a port"))?,
    };
    let given = |text: &&Arc<str>| !text.is_empty();
    let address = Some(&service.address).filter(given).unwrap_or(&instance.node.address);
    let ip: Option<IpAddr> = address.parse().ok();
    if ip.is_some_and(is_no_hosts) {
        return Err(format!("{address} is not a valid instance address"));
    }
    if ip.is_none() && !is_name(address) {
        return Err(format!("{address:?} is neither an IP address nor a DNS name"));
    }
    let is_set =
        |value: Option<&Arc<str>>| value.is_some_and(|text| !matches!(&**text, "" | "false" | "0"));
    let external = is_set(labels.get("external"))
        || is_set(instance.node.meta.get("external"))
        || is_set(instance.node.meta.get("external-node"));
    Ok(Some(ConsulInstance { instance, labels, address, ip, number, target, external }))
}

fn port_number(number: i64) -> Option<u16> {
    u16::try_from(number).ok().filter(|number| *number != 0)
}

fn is_name(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    let fits = |part: &str| (1..=63).contains(&part.len()) && part.chars().all(plain);
    text.len() <= 253 && text.trim_end_matches('.').split('.').all(fits)
}

fn labels(instance: &Instance) -> Labels {
    let own = |(key, value): (&Arc<str>, &Arc<str>)| (Arc::clone(key), Arc::clone(value));
    let tags = instance.service.tags.iter().filter_map(|tag| tag.split_once('|'));
    let tags = tags.map(|(key, value)| (key.trim().into(), value.trim().into()));
    // The last of two labels with the same key wins.
    instance.service.meta.iter().map(own).chain(tags).collect()
}

/// Keeps the instances inside the mesh if there are any, else those outside. Of those inside, keeps
/// the ones with an IP address if there are any.
fn select_one_kind(members: &mut Vec<ConsulInstance<'_>>, invalid: &mut Vec<String>) {
    if members.iter().any(|member| !member.external) {
        leave_out(
            members,
            invalid,
            |member| member.external,
            "is outside the mesh, while others are inside",
        );
        if members.iter().any(|member| member.ip.is_some()) {
            let fact = "has a host name as address, while others have IP addresses";
            leave_out(members, invalid, |member| member.ip.is_none(), fact);
        }
    }
}

fn leave_out(
    members: &mut Vec<ConsulInstance<'_>>,
    invalid: &mut Vec<String>,
    out: impl Fn(&ConsulInstance<'_>) -> bool,
    fact: &str,
) {
    for member in members.iter().filter(|member| out(member)) {
        invalid.push(format!("instance {:?} {fact}: it is ignored", member.instance.service.id));
    }
    members.retain(|member| !out(member));
}

/// Returns the ports by number. The first instance that declares a protocol defines it for all
/// instances with the port number; without one, it is TCP.
fn ports(members: &[ConsulInstance<'_>], invalid: &mut Vec<String>) -> BTreeMap<u16, Port> {
    let mut ports: BTreeMap<u16, Port> = BTreeMap::new();
    let mut declaring: BTreeMap<u16, (usize, &str)> = BTreeMap::new();
    for (at, member) in members.iter().enumerate() {
        let (id, number) = (&*member.instance.service.id, member.number);
        let protocol = declared_protocol(member, invalid);
        let port = ports.entry(number).or_insert_with(|| Port {
            name: Arc::default(),
            number,
            protocol: Protocol::Tcp,
            target: TargetPort::Number(member.target),
        });
        let Some(protocol) = protocol else { continue };
        let (first_at, first) = *declaring.entry(number).or_insert((at, id));
        if first_at == at {
            port.protocol = protocol;
        } else if port.protocol != protocol {
            let of_first = port.protocol.as_str();
            invalid.push(format!(
                "instance {id:?}: port {number} has protocol {of_first}, which instance {first:?} declares"
            ));
        }
    }
    for port in ports.values_mut() {
        let protocol = port.protocol.as_str().to_ascii_lowercase();
        port.name = format!("{protocol}-{}", port.number).into();
    }
    ports
}

/// Returns the protocol that an instance declares, if it is known.
fn declared_protocol(member: &ConsulInstance<'_>, invalid: &mut Vec<String>) -> Option<Protocol> {
    let text = member.labels.get("protocol")?;
    match Protocol::of_port("TCP", Some(text), "", member.number) {
        Protocol::Auto => {
            let id = &member.instance.service.id;
            invalid.push(format!("instance {id:?}: protocol {text:?} is unknown and ignored"));
            None
        }
        protocol => Some(protocol),
    }
}

fn endpoint(
    name: &str,
    member: &ConsulInstance<'_>,
    ports: &BTreeMap<u16, Port>,
    datacentre: &str,
) -> Option<Endpoint> {
    let (health, weight) = health(member);
    Some(Endpoint {
        address: member.ip?,
        port: member.target,
        port_name: Arc::clone(&ports.get(&member.number)?.name),
        health,
        weight,
        locality: Arc::new(locality(member, datacentre)),
        network_label: network(member),
        tls_mode: tls_mode(member),
        service_account: None,
        workload: Some(Arc::new(WorkloadKey::new(
            NAMESPACE,
            Arc::clone(&member.instance.service.id),
        ))),
        pod: PodState::Known,
        node: None,
        hostname: None,
        telemetry: Some(
            telemetry(name, NAMESPACE, |name| member.labels.get(name).map(|value| &**value)).into(),
        ),
        labels: given_labels(&member.labels),
    })
}

fn named_endpoint(
    member: &ConsulInstance<'_>,
    ports: &BTreeMap<u16, Port>,
    datacentre: &str,
) -> NamedEndpoint {
    let own = ports.get(&member.number);
    NamedEndpoint {
        address: Arc::clone(member.address),
        ports: own.map(|port| (Arc::clone(&port.name), member.target)).into_iter().collect(),
        weight: health(member).1,
        locality: Arc::new(locality(member, datacentre)),
        network: network(member),
        tls_mode: tls_mode(member),
        labels: given_labels(&member.labels),
    }
}

/// Returns whether an instance receives traffic, and its weight. As in Consul's own DNS, an
/// instance with a warning still serves, with the weight that the service gives it.
fn health(member: &ConsulInstance<'_>) -> (Health, u32) {
    let Instance { service, checks, .. } = member.instance;
    let all = |fit: &[&str]| checks.iter().all(|Check { status }| fit.contains(&&**status));
    let weight = match (all(&["passing"]), all(&["passing", "warning"])) {
        (true, _) => service.weights.passing.max(1),
        (_, true) => service.weights.warning,
        _ => 0,
    };
    match u32::try_from(weight.min(WEIGHT_MAX)) {
        Ok(weight @ 1..) => (Health::Healthy, weight),
        _ => (Health::Unhealthy, 1),
    }
}

fn locality(member: &ConsulInstance<'_>, datacentre: &str) -> Locality {
    let instance = member.instance;
    let own = instance.service.locality.as_ref().or(instance.node.locality.as_ref());
    if let Some(ConsulLocality { region, zone }) = own.filter(|place| !place.region.is_empty()) {
        let (region, zone) = (Arc::clone(region), Arc::clone(zone));
        return Locality { region, zone, subzone: Arc::default() };
    }
    let first_value = |keys: [&str; 2]| {
        let found = keys
            .iter()
            .find_map(|key| member.labels.get(*key).or_else(|| instance.node.meta.get(*key)));
        found.cloned().filter(|text| !text.is_empty())
    };
    Locality {
        region: first_value(["topology.kubernetes.io/region", "region"])
            .unwrap_or_else(|| datacentre.into()),
        zone: first_value(["topology.kubernetes.io/zone", "zone"]).unwrap_or_default(),
        subzone: first_value(["topology.istio.io/subzone", "subzone"]).unwrap_or_default(),
    }
}

fn network(member: &ConsulInstance<'_>) -> Option<NetworkId> {
    let label = [NETWORK_LABEL, "network"];
    let named = label.iter().find_map(|key| member.labels.get(*key));
    named.filter(|text| !text.is_empty()).map(|text| NetworkId::new(Arc::clone(text)))
}

fn tls_mode(member: &ConsulInstance<'_>) -> TlsMode {
    TlsMode::from_label(member.labels.get(TLS_MODE_LABEL).map(|text| &**text))
}

/// Whether the address cannot belong to a host.
fn is_no_hosts(address: IpAddr) -> bool {
    special(address).is_some_and(|special| special.is_no_hosts())
}

/// Returns the address that Consul itself assigns to the service; the lowest if instances disagree.
fn virtual_address(members: &[ConsulInstance<'_>]) -> Option<IpAddr> {
    let tagged = members.iter().flat_map(|member| &member.instance.service.tagged_addresses);
    let virtuals =
        tagged.filter(|(tag, _)| &***tag == "consul-virtual" || tag.starts_with("consul-virtual:"));
    let addresses = virtuals.filter_map(|(_, tagged)| tagged.address.parse::<IpAddr>().ok());
    let usable = addresses.filter(|ip| !is_no_hosts(*ip));
    usable.collect::<BTreeSet<_>>().into_iter().next()
}
