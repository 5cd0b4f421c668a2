//! Parser of ServiceEntries and WorkloadEntries (Istio, "Service Entry" and "Workload Entry").

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use strait_base::address::special;
use strait_base::dns_name::is_dns_label;
use strait_base::unread;
use strait_model::{
    ExportTo, Health, Hostname, Labels, Locality, NETWORK_LABEL, Namespace, NetworkId, Port,
    Protocol, SHARE_LABEL, TLS_MODE_LABEL, TargetPort, TlsMode, WorkloadKey, telemetry,
};

const HEALTH_CHECKED: &str = "proxy.istio.io/health-checks-enabled";
/// Label of a workload that receives no new connections.
const DRAINING: &str = "istio.io/draining";
/// Label that disables automatic addresses for an entry without addresses, if it is `false`.
const ALLOCATE: &str = "networking.istio.io/enable-autoallocate-ip";
/// Prefix of the address of a Unix socket, before its path.
const SOCKET: &str = "unix://";

/// Maximum number of endpoints of an entry, including the copies for each host and each port.
const ENDPOINTS_MAX: usize = 65_536;

/// An error in an object.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
#[error("{field}: {fact}")]
pub struct Fault {
    /// Path of the field, from the root of the object.
    pub field: String,
    /// Description of the error.
    pub fact: String,
}

impl Fault {
    fn new(field: impl Into<String>, fact: impl fmt::Display) -> Self {
        Self { field: field.into(), fact: fact.to_string() }
    }
}

/// An error in one part of an object whose other parts apply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PartFault {
    pub(super) fault: Fault,
    /// Effect on that part.
    pub(super) effect: &'static str,
}

/// Collector for the errors of parts.
#[derive(Debug, Default)]
struct PartFaults(Vec<PartFault>);

impl PartFaults {
    fn add(&mut self, fault: Fault, effect: &'static str) {
        self.0.push(PartFault { fault, effect });
    }

    /// Returns the parts that can be read. If all parts are invalid, the first fault is an error of
    /// the whole object.
    fn keep<T>(
        &mut self,
        parts: impl Iterator<Item = Result<T, Fault>>,
        effect: &'static str,
    ) -> Result<Vec<T>, Fault> {
        let (mut readable, mut lost) = (Vec::new(), Vec::new());
        for part in parts {
            match part {
                Ok(part) => readable.push(part),
                Err(fault) => lost.push(fault),
            }
        }
        if readable.is_empty() && !lost.is_empty() {
            return Err(lost.swap_remove(0));
        }
        lost.into_iter().for_each(|fault| self.add(fault, effect));
        Ok(readable)
    }
}

/// A parsed ServiceEntry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ServiceEntry {
    pub(super) name: WorkloadKey,
    /// Creation time in seconds since the Unix epoch; 0 if unknown.
    pub(super) created: i64,
    /// Hosts; never empty.
    pub(super) hosts: Vec<Hostname>,
    pub(super) addresses: Vec<IpAddr>,
    /// CIDR ranges in `addresses`.
    pub(super) ranges: Vec<IpNet>,
    /// Parts that are left out or have no effect.
    pub(super) faults: Vec<PartFault>,
    /// Whether a host without addresses receives automatic ones.
    pub(super) allocate: bool,
    /// Addresses of hosts in the status of the object.
    pub(super) status_addresses: Vec<(Hostname, IpAddr)>,
    /// Ports, with unique numbers and names.
    pub(super) ports: Vec<Port>,
    pub(super) external: bool,
    pub(super) accounts: Vec<Arc<str>>,
    pub(super) export_to: ExportTo,
    /// The label that keeps it in the cluster whose store has it.
    pub(super) share: Option<bool>,
    pub(super) endpoints: Vec<EntryEndpoint>,
    pub(super) how: EndpointDiscovery,
    /// Selector of WorkloadEntries in the same namespace. An empty one selects all.
    pub(super) selector: Option<Labels>,
}

/// Method to find the endpoints of a ServiceEntry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EndpointDiscovery {
    Static,
    Dns,
    DnsRoundRobin,
    None,
}

/// An inline endpoint of a ServiceEntry, or a WorkloadEntry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct EntryEndpoint {
    /// Name of the WorkloadEntry; `None` for an inline endpoint of a ServiceEntry.
    pub(super) name: Option<Arc<WorkloadKey>>,
    pub(super) address: EntryAddress,
    /// Port numbers of the workload, by port name of the service.
    pub(super) ports: BTreeMap<Arc<str>, u16>,
    pub(super) labels: Arc<Labels>,
    pub(super) network: Option<NetworkId>,
    pub(super) locality: Arc<Locality>,
    pub(super) weight: u32,
    /// Name of the service account, in the namespace of the object.
    pub(super) account: Option<Arc<str>>,
    pub(super) health: Health,
    /// Telemetry attributes: see [`strait_model::Endpoint::telemetry`].
    pub(super) telemetry: Arc<str>,
}

/// Address of a workload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum EntryAddress {
    Ip(IpAddr),
    /// A DNS name that the client resolves.
    Name(Arc<str>),
    /// Path of a Unix socket on the host of the client.
    Socket(Arc<str>),
    /// No address: the workload is reached through the gateways of the network.
    Network,
}

impl EntryEndpoint {
    /// Returns whether the workload accepts mTLS. Outside of the mesh, only the label decides.
    /// Inside the mesh, a workload with a service account has a certificate.
    pub(super) fn tls_mode(&self, external: bool) -> TlsMode {
        match self.labels.get(TLS_MODE_LABEL) {
            Some(label) => TlsMode::from_label(Some(label)),
            None if self.account.is_some() && !external => TlsMode::Istio,
            None => TlsMode::Disabled,
        }
    }

    /// Returns the workload's port number for a port of the service. The workload's own setting
    /// takes precedence.
    pub(super) fn port(&self, EntryPort { port, own_name }: &EntryPort) -> u16 {
        match (self.ports.get(own_name), &port.target) {
            (Some(own), _) => *own,
            (None, TargetPort::Number(number)) => *number,
            (None, TargetPort::Name(_)) => port.number,
        }
    }
}

/// A port of an entry, as part of a host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct EntryPort {
    /// The port, whose name is unique among the ports of the host.
    pub(super) port: Port,
    /// Name of the port in the entry. Workloads use it to set their own port number.
    pub(super) own_name: Arc<str>,
}

impl From<&Port> for EntryPort {
    fn from(port: &Port) -> Self {
        Self { own_name: Arc::clone(&port.name), port: port.clone() }
    }
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct ServiceEntryForm {
    hosts: Vec<String>,
    addresses: Vec<String>,
    ports: Vec<PortForm>,
    location: String,
    resolution: String,
    endpoints: Vec<WorkloadForm>,
    workload_selector: Option<SelectorForm>,
    export_to: Vec<String>,
    subject_alt_names: Vec<Arc<str>>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct PortForm {
    number: i64,
    name: Arc<str>,
    protocol: String,
    target_port: i64,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct WorkloadForm {
    address: String,
    ports: BTreeMap<Arc<str>, i64>,
    labels: Labels,
    network: Arc<str>,
    locality: String,
    weight: u32,
    service_account: Arc<str>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct SelectorForm {
    labels: Labels,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct EntryMetadata {
    labels: Labels,
    annotations: Labels,
    #[serde(rename = "creationTimestamp")]
    created: Option<String>,
}

/// Parses a ServiceEntry. Also returns the unknown fields. If `exportTo` is absent,
/// `default_export` applies, which is a list of the same form.
pub(super) fn service_entry(
    name: WorkloadKey,
    object: &Value,
    default_export: &[String],
) -> Result<(ServiceEntry, Vec<Fault>), Fault> {
    let metadata: EntryMetadata = metadata(object)?;
    let (spec, unread) = spec::<ServiceEntryForm>(object)?;
    let external = match spec.location.as_str() {
        "" | "MESH_EXTERNAL" => true,
        "MESH_INTERNAL" => false,
        other => return Err(unknown("spec.location", other, "MESH_EXTERNAL or MESH_INTERNAL")),
    };
    let mut how = match spec.resolution.as_str() {
        "STATIC" => EndpointDiscovery::Static,
        "DNS" => EndpointDiscovery::Dns,
        "DNS_ROUND_ROBIN" => EndpointDiscovery::DnsRoundRobin,
        // Proxies connect to the address that the client resolved, which is the meaning of
        // DYNAMIC_DNS.
        "" | "NONE" | "DYNAMIC_DNS" => EndpointDiscovery::None,
        other => {
            let values = "NONE, STATIC, DNS, DNS_ROUND_ROBIN or DYNAMIC_DNS";
            return Err(unknown("spec.resolution", other, values));
        }
    };
    let mut faults = PartFaults::default();
    if spec.resolution == "DYNAMIC_DNS" {
        let fact = "DYNAMIC_DNS does not resolve hosts again";
        faults.add(Fault::new("spec.resolution", fact), "it is handled as NONE");
    }
    let selector = spec.workload_selector;
    if selector.is_some() && !spec.endpoints.is_empty() {
        return Err(Fault::new("spec.workloadSelector", "cannot be combined with endpoints"));
    }
    let ports = ports(spec.ports, &mut faults)?;
    let endpoints = spec.endpoints.into_iter().enumerate().map(|(index, form)| {
        let field = format!("spec.endpoints[{index}]");
        unknown_ports(&form, &field, &ports, &mut faults);
        workload(None, &name.namespace, form, &field)?.located(&field)
    });
    let endpoints: Vec<_> = endpoints.collect();
    let endpoints: Vec<EntryEndpoint> =
        faults.keep(endpoints.into_iter(), "the entry applies without this endpoint")?;
    let endpoints = without_duplicates(endpoints, &mut faults);
    let used = match how {
        EndpointDiscovery::None => 0,
        EndpointDiscovery::DnsRoundRobin => 1,
        EndpointDiscovery::Static | EndpointDiscovery::Dns => usize::MAX,
    };
    if endpoints.len() > used {
        let resolution = if spec.resolution.is_empty() { "NONE" } else { &spec.resolution };
        let fact = format!("resolution {resolution} uses {used} of {} endpoints", endpoints.len());
        let field = format!("spec.endpoints[{used}]");
        faults.add(Fault::new(field, fact), "this endpoint and later ones have no effect");
    }
    let is_socket = |one: &EntryEndpoint| matches!(one.address, EntryAddress::Socket(_));
    if how == EndpointDiscovery::Static && !endpoints.is_empty() && endpoints.iter().all(is_socket)
    {
        // Socket addresses are part of the upstream cluster itself, like DNS names.
        how = EndpointDiscovery::Dns;
    }
    let has_socket = endpoints.iter().any(is_socket);
    for (index, endpoint) in endpoints.iter().enumerate() {
        let fact = match (&endpoint.address, how) {
            (EntryAddress::Name(name), EndpointDiscovery::Static) => {
                format!("{name:?} is not an IP address, which resolution STATIC requires")
            }
            (EntryAddress::Name(name), _) if has_socket => {
                format!("DNS name {name:?} cannot be combined with a Unix socket")
            }
            (EntryAddress::Socket(path), EndpointDiscovery::Static) => {
                format!("{SOCKET}{path} cannot be combined with IP addresses")
            }
            _ => continue,
        };
        return Err(Fault::new(format!("spec.endpoints[{index}].address"), fact));
    }
    let hosts = hosts(&spec.hosts, &mut faults)?;
    let product = hosts.len().saturating_mul(endpoints.len()).saturating_mul(ports.len());
    if product > ENDPOINTS_MAX {
        let fact = format!(
            "{} endpoints for each of {} hosts and {} ports exceed {ENDPOINTS_MAX}: split the \
             entry into several",
            endpoints.len(),
            hosts.len(),
            ports.len()
        );
        return Err(Fault::new("spec.endpoints", fact));
    }
    let resolved = matches!(how, EndpointDiscovery::Dns | EndpointDiscovery::DnsRoundRobin);
    let wildcard = hosts.iter().find(|host| host.as_str().starts_with('*'));
    if let Some(host) = wildcard.filter(|_| resolved && endpoints.is_empty() && selector.is_none())
    {
        let fact = format!("{host} cannot be resolved: set endpoints");
        return Err(Fault::new("spec.resolution", fact));
    }
    let (addresses, ranges) = addresses(&spec.addresses, &mut faults);
    for fault in idle_exports(&spec.export_to) {
        faults.add(fault, "the other entries apply");
    }
    let share = match metadata.labels.get(SHARE_LABEL).map(|value| &**value) {
        None => None,
        Some("true") => Some(true),
        Some("false") => Some(false),
        Some(other) => {
            let field = format!("metadata.labels[{SHARE_LABEL}]");
            let fact = format!("{other:?} is neither true nor false");
            faults.add(Fault::new(field, fact), "the label is ignored");
            None
        }
    };
    let export = if spec.export_to.is_empty() { default_export } else { &spec.export_to };
    let entry = ServiceEntry {
        created: created(&metadata),
        hosts,
        how,
        addresses,
        ranges,
        faults: faults.0,
        status_addresses: status_addresses(object),
        allocate: metadata.labels.get(ALLOCATE).is_none_or(|text| &**text != "false"),
        ports,
        external,
        accounts: spec.subject_alt_names,
        export_to: export_to(export, &name.namespace),
        share,
        endpoints,
        selector: selector.map(|selector| selector.labels),
        name,
    };
    Ok((entry, unread))
}

/// Parses a WorkloadEntry. Also returns the unknown fields.
pub(super) fn workload_entry(
    name: WorkloadKey,
    object: &Value,
) -> Result<(EntryEndpoint, Vec<Fault>), Fault> {
    let metadata: EntryMetadata = metadata(object)?;
    let (form, unread) = spec::<WorkloadForm>(object)?;
    let namespace = name.namespace.clone();
    let mut workload = workload(Some(Arc::new(name)), &namespace, form, "spec")?;
    let labels = workload.labels.iter().chain(metadata.labels.iter());
    let labels = labels.map(|(name, value)| (Arc::clone(name), Arc::clone(value)));
    workload.labels = Arc::new(labels.collect());
    workload.complete(&namespace);
    let checked = metadata.annotations.get(HEALTH_CHECKED).is_some_and(|text| &**text == "true");
    if checked && !is_healthy(object) {
        workload.health = Health::Unhealthy;
    }
    Ok((workload.located("spec")?, unread))
}

/// Returns whether the condition `Healthy` is true. A missing condition is false.
fn is_healthy(object: &Value) -> bool {
    let conditions = object.pointer("/status/conditions").and_then(Value::as_array);
    let text = |condition: &Value, key: &str| condition.get(key)?.as_str().map(str::to_owned);
    conditions.into_iter().flatten().any(|condition| {
        text(condition, "type").as_deref() == Some("Healthy")
            && text(condition, "status").as_deref() == Some("True")
    })
}

/// Parses the spec of an object. Also returns the unknown fields.
fn spec<T: DeserializeOwned>(object: &Value) -> Result<(T, Vec<Fault>), Fault> {
    let (spec, unread) =
        unread::read_spec(object).map_err(|(field, error)| Fault::new(field, error))?;
    Ok((spec, unread.into_messages().map(|(field, fact)| Fault { field, fact }).collect()))
}

fn metadata(object: &Value) -> Result<EntryMetadata, Fault> {
    let metadata = object.get("metadata").unwrap_or(&Value::Null);
    EntryMetadata::deserialize(metadata).map_err(|error| Fault::new("metadata", error))
}

fn created(metadata: &EntryMetadata) -> i64 {
    let time = metadata.created.as_deref().and_then(|text| text.parse::<jiff::Timestamp>().ok());
    time.map_or(0, jiff::Timestamp::as_second)
}

fn unknown(field: &str, found: &str, valid_values: &str) -> Fault {
    Fault::new(field, format!("{found:?} is not a valid value; use {valid_values}"))
}

fn hosts(texts: &[String], faults: &mut PartFaults) -> Result<Vec<Hostname>, Fault> {
    if texts.is_empty() {
        return Err(Fault::new("spec.hosts", "is empty"));
    }
    let mut distinct = BTreeSet::new();
    let named = texts.iter().enumerate().map(|(index, text)| {
        let field = || format!("spec.hosts[{index}]");
        let name = text.trim_end_matches('.').to_ascii_lowercase();
        if !is_dns_name(name.strip_prefix("*.").unwrap_or(&name)) {
            return Err(Fault::new(field(), format!("{text:?} is not a DNS name")));
        }
        if !distinct.insert(name.clone()) {
            return Err(Fault::new(field(), format!("{text:?} is a duplicate")));
        }
        Ok(Hostname::from(name))
    });
    faults.keep(named, "the entry applies without this host")
}

fn is_dns_name(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    let fits = |label: &str| (1..=63).contains(&label.len()) && label.chars().all(plain);
    text.len() <= 253 && text.split('.').all(fits)
}

/// Returns the addresses in the status, by host. Invalid addresses are ignored.
fn status_addresses(object: &Value) -> Vec<(Hostname, IpAddr)> {
    let entries = object.pointer("/status/addresses").and_then(Value::as_array);
    let address = |entry: &Value| {
        let host = entry.get("host")?.as_str()?.to_ascii_lowercase();
        Some((Hostname::from(host), entry.get("value")?.as_str()?.parse().ok()?))
    };
    let mut addresses: Vec<(Hostname, IpAddr)> =
        entries.into_iter().flatten().filter_map(address).collect();
    // The sort is stable, so that the addresses of one host keep their order.
    addresses.sort_by(|(one, _), (other, _)| one.cmp(other));
    addresses
}

/// Returns the entries of `exportTo` that are duplicates, are redundant because of `*`, or are not
/// the name of a namespace.
fn idle_exports(namespaces: &[String]) -> Vec<Fault> {
    let is_for_all = namespaces.iter().any(|entry| entry == "*");
    let mut before = BTreeSet::new();
    let entries = namespaces.iter().enumerate();
    let idle = entries.filter_map(|(at, entry)| {
        let fact = match !before.insert(entry) {
            true => format!("{entry:?} is a duplicate"),
            false if is_for_all && entry != "*" => format!("{entry:?} is redundant next to *"),
            false if !is_export_item(entry) => format!("{entry:?} is not the name of a namespace"),
            false => return None,
        };
        Some(Fault::new(format!("spec.exportTo[{at}]"), fact))
    });
    idle.collect()
}

/// Returns whether an entry of `exportTo` has a meaning: `*`, `.`, `~`, or a DNS label (RFC 1123) as
/// namespaces have.
fn is_export_item(text: &str) -> bool {
    is_dns_label(text) || ["*", ".", "~"].contains(&text)
}

/// Parses addresses and CIDR ranges.
fn addresses(texts: &[String], faults: &mut PartFaults) -> (Vec<IpAddr>, Vec<IpNet>) {
    let (mut singles, mut ranges) = (Vec::new(), Vec::new());
    let mut before = BTreeSet::new();
    for (index, text) in texts.iter().enumerate() {
        let mut fault = |fact: &str| {
            let field = format!("spec.addresses[{index}]");
            let fault = Fault::new(field, format!("{text:?} is {fact}"));
            faults.add(fault, "the entry applies without this address");
        };
        let found = text.parse::<IpNet>().or_else(|_| text.parse::<IpAddr>().map(IpNet::from));
        let Ok(range) = found.map(|range| range.trunc()) else {
            fault("neither an IP address nor a CIDR range");
            continue;
        };
        // No service has this address, and a listener for it would capture the connections of all
        // services.
        let is_no_hosts = special(range.addr()).is_some_and(|special| special.is_no_hosts());
        if is_no_hosts || range.prefix_len() == 0 {
            fault("not a valid address of a service");
            continue;
        }
        if range.prefix_len() == range.max_prefix_len() {
            singles.push(range.addr());
        } else if before.insert(range) {
            ranges.push(range);
        }
    }
    (singles, ranges)
}

fn ports(forms: Vec<PortForm>, faults: &mut PartFaults) -> Result<Vec<Port>, Fault> {
    if forms.is_empty() {
        return Err(Fault::new("spec.ports", "is empty"));
    }
    let (mut numbers, mut names) = (BTreeSet::new(), BTreeSet::new());
    let mut unknown = Vec::new();
    let read = forms.into_iter().enumerate().map(|(index, form)| {
        let field = |name: &str| format!("spec.ports[{index}].{name}");
        let number = port_number(form.number, &field("number"))?;
        let target = match form.target_port {
            0 => number,
            given => port_number(given, &field("targetPort"))?,
        };
        if form.name.is_empty() {
            return Err(Fault::new(field("name"), "is empty"));
        }
        if !numbers.insert(number) {
            return Err(Fault::new(field("number"), format!("{number} is a duplicate")));
        }
        if !names.insert(Arc::clone(&form.name)) {
            return Err(Fault::new(field("name"), format!("{:?} is a duplicate", form.name)));
        }
        let declared = Some(form.protocol.as_str()).filter(|text| !text.is_empty());
        if let Some(text) = declared.filter(|text| !Protocol::is_known(text)) {
            unknown
                .push(Fault::new(field("protocol"), format!("{text:?} is not a known protocol")));
        }
        Ok(Port {
            number,
            protocol: Protocol::of_port("TCP", declared, &form.name, number),
            target: TargetPort::Number(target),
            name: form.name,
        })
    });
    let read: Vec<_> = read.collect();
    for fault in unknown {
        faults.add(fault, "the protocol of the port is detected");
    }
    faults.keep(read.into_iter(), "the entry applies without this port")
}

/// Adds an error for each port name of an endpoint that is not a port of the entry.
fn unknown_ports(form: &WorkloadForm, field: &str, ports: &[Port], faults: &mut PartFaults) {
    let is_port_name = |name: &str| ports.iter().any(|port| *port.name == *name);
    for name in form.ports.keys().filter(|name| !is_port_name(name)) {
        let fault =
            Fault::new(format!("{field}.ports.{name}"), "no port of the entry has this name");
        faults.add(fault, "this setting has no effect");
    }
}

/// Returns the endpoints without those that have the address, the ports and the network of an
/// earlier one. Proxies receive an address once, so that the weight of a second one is lost.
fn without_duplicates(
    endpoints: Vec<EntryEndpoint>,
    faults: &mut PartFaults,
) -> Vec<EntryEndpoint> {
    let mut seen = HashMap::new();
    let mut unique = Vec::with_capacity(endpoints.len());
    for (index, endpoint) in endpoints.into_iter().enumerate() {
        if let EntryAddress::Ip(address) = endpoint.address {
            let place = (address, endpoint.network.clone(), endpoint.ports.clone());
            let first = *seen.entry(place).or_insert(index);
            if first != index {
                let fact = format!("has the address and the ports of endpoints[{first}]");
                let fault = Fault::new(format!("spec.endpoints[{index}]"), fact);
                faults.add(fault, "the entry applies without this endpoint and its weight");
                continue;
            }
        }
        unique.push(endpoint);
    }
    unique
}

fn port_number(number: i64, field: &str) -> Result<u16, Fault> {
    let number = u16::try_from(number).ok().filter(|number| *number != 0);
    number.ok_or_else(|| Fault::new(field, "is not between 1 and 65535"))
}

fn export_to(texts: &[String], own: &Namespace) -> ExportTo {
    ExportTo::of_list(texts, own)
}

fn workload(
    name: Option<Arc<WorkloadKey>>,
    namespace: &Namespace,
    form: WorkloadForm,
    field: &str,
) -> Result<EntryEndpoint, Fault> {
    let address = match form.address.parse::<IpAddr>() {
        Ok(address) if address.is_unspecified() => {
            let fact = format!("{address} is the unspecified address, which no host has");
            return Err(Fault::new(format!("{field}.address"), fact));
        }
        Ok(address) => EntryAddress::Ip(address),
        Err(_) if form.address.is_empty() => EntryAddress::Network,
        Err(_) if form.address.starts_with("unix:") => {
            let path = form.address.strip_prefix(SOCKET);
            match path.filter(|path| path.len() > 1 && path.starts_with(['/', '@'])) {
                Some(path) => EntryAddress::Socket(path.into()),
                None => {
                    let fact = format!("{:?} is not of the form {SOCKET}/PATH", form.address);
                    return Err(Fault::new(format!("{field}.address"), fact));
                }
            }
        }
        Err(_) if !is_dns_name(form.address.trim_end_matches('.')) => {
            let fact = format!("{:?} is neither an IP address nor a DNS name", form.address);
            return Err(Fault::new(format!("{field}.address"), fact));
        }
        Err(_) => EntryAddress::Name(form.address.into()),
    };
    let ports = form.ports.into_iter().map(|(name, number)| {
        let number = port_number(number, &format!("{field}.ports.{name}"))?;
        Ok((name, number))
    });
    let given = |text: &Arc<str>| !text.is_empty();
    let mut workload = EntryEndpoint {
        name,
        address,
        ports: ports.collect::<Result<_, _>>()?,
        labels: Arc::new(form.labels),
        network: Some(form.network).filter(given).map(NetworkId::new),
        locality: Arc::new(Locality::parse(&form.locality)),
        weight: form.weight.max(1),
        account: Some(form.service_account).filter(given),
        health: Health::Healthy,
        telemetry: "".into(),
    };
    workload.complete(namespace);
    Ok(workload)
}

impl EntryEndpoint {
    /// Checks that an endpoint without an address has a network, whose gateways then route to it.
    fn located(self, field: &str) -> Result<Self, Fault> {
        match self.address {
            EntryAddress::Network if self.network.is_none() => {
                let fact = "is empty, which is allowed only with a network";
                Err(Fault::new(format!("{field}.address"), fact))
            }
            _ => Ok(self),
        }
    }

    /// Sets fields that are not set from the labels.
    fn complete(&mut self, namespace: &Namespace) {
        let name = self.name.as_ref().map(|name| &*name.name).unwrap_or_default();
        let label = |name: &str| self.labels.get(name).map(|value| &**value);
        self.telemetry = telemetry(name, namespace.as_str(), label).into();
        if self.labels.get(DRAINING).is_some_and(|text| !text.is_empty()) {
            self.health = Health::Draining;
        }
        if self.network.is_none()
            && let Some(label) = self.labels.get(NETWORK_LABEL).filter(|label| !label.is_empty())
        {
            self.network = Some(NetworkId::new(Arc::clone(label)));
        }
        if self.locality.is_empty()
            && let Some(claimed) = Locality::claimed(&self.labels)
        {
            self.locality = Arc::new(claimed);
        }
    }
}
