//! The subset of protobuf that a load client needs: it scans resources without decoding them, and
//! writes requests directly into a buffer.
//!
//! Field numbers are from Envoy's `discovery.proto`. Nothing here allocates.

/// One field of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Value<'a> {
    /// A number.
    Varint(u64),
    /// Text, bytes or a message.
    Bytes(&'a [u8]),
    /// Four or eight bytes, which are not used.
    Fixed,
}

/// The fields of a message in their order. Ends early if the bytes are not a message.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Fields<'a>(pub(crate) &'a [u8]);

impl<'a> Fields<'a> {
    fn varint(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let (first, rest) = self.0.split_first()?;
            self.0 = rest;
            value |= u64::from(first & 0x7f) << shift;
            if first & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }

    fn take(&mut self, length: u64) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(usize::try_from(length).ok()?)?;
        self.0 = rest;
        Some(taken)
    }

    /// Returns the length of the first field with its key, or `None` if the bytes don't determine
    /// it yet. The field may be incomplete.
    ///
    /// # Errors
    /// The bytes are not a field.
    pub(crate) fn length(mut self) -> Result<Option<usize>, ()> {
        let there = self.0.len();
        let Some(key) = self.varint() else { return self.unclear() };
        let Some(rest) = (match key & 7 {
            0 => self.varint().map(|_| 0),
            1 => Some(8),
            2 => self.varint(),
            5 => Some(4),
            _ => return Err(()),
        }) else {
            return self.unclear();
        };
        let rest = usize::try_from(rest).map_err(drop)?;
        (there - self.0.len()).checked_add(rest).map(Some).ok_or(())
    }

    /// Handles a missing number: it is incomplete or invalid.
    fn unclear(&self) -> Result<Option<usize>, ()> {
        if self.0.is_empty() { Ok(None) } else { Err(()) }
    }

    /// Returns the first text, bytes or message with this number.
    pub(crate) fn bytes(mut self, number: u64) -> Option<&'a [u8]> {
        self.find_map(|(tag, value)| match value {
            Value::Bytes(bytes) if tag == number => Some(bytes),
            _ => None,
        })
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = (u64, Value<'a>);

    fn next(&mut self) -> Option<Self::Item> {
        let key = self.varint()?;
        let value = match key & 7 {
            0 => Value::Varint(self.varint()?),
            1 => self.take(8).map(|_| Value::Fixed)?,
            2 => {
                let length = self.varint()?;
                Value::Bytes(self.take(length)?)
            }
            5 => self.take(4).map(|_| Value::Fixed)?,
            _ => return None,
        };
        Some((key >> 3, value))
    }
}

/// The resource types that a load client distinguishes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Upstream clusters.
    Cds,
    /// Assignments.
    Eds,
    /// Listeners.
    Lds,
    /// Route configurations.
    Rds,
    /// Single virtual hosts of route configurations.
    Vhds,
    /// The table from which an agent answers its workload's DNS queries.
    Nds,
    /// Anything else.
    Other,
}

/// A value for each [`Kind`].
pub(crate) type ByKind<T> = [T; Kind::ALL.len()];

impl Kind {
    /// All kinds, in the order of [`Kind::index`].
    pub(crate) const ALL: [Self; 7] =
        [Self::Cds, Self::Eds, Self::Lds, Self::Rds, Self::Vhds, Self::Nds, Self::Other];

    /// The type URL on the wire.
    pub(crate) fn url(self) -> &'static str {
        match self {
            Self::Cds => "type.googleapis.com/envoy.config.cluster.v3.Cluster",
            Self::Eds => "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment",
            Self::Lds => "type.googleapis.com/envoy.config.listener.v3.Listener",
            Self::Rds => "type.googleapis.com/envoy.config.route.v3.RouteConfiguration",
            Self::Vhds => "type.googleapis.com/envoy.config.route.v3.VirtualHost",
            Self::Nds => "type.googleapis.com/istio.networking.nds.v1.NameTable",
            Self::Other => "",
        }
    }

    /// The name in reports.
    pub(crate) fn short(self) -> &'static str {
        ["cds", "eds", "lds", "rds", "vhds", "nds", "other"][self.index()]
    }

    /// Returns its index in a table with one entry for each kind.
    pub(crate) fn index(self) -> usize {
        self as usize
    }

    /// Returns the kind with this type URL.
    pub(crate) fn of(url: &[u8]) -> Self {
        let known = Self::ALL.into_iter().find(|kind| kind.url().as_bytes() == url);
        known.unwrap_or(Self::Other)
    }
}

/// The variant of the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Form {
    /// Incremental.
    Delta,
    /// State of the world.
    Sotw,
}

/// One resource of a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Resource<'a> {
    pub(crate) name: &'a [u8],
    /// The version of the resource; empty in the SotW variant.
    pub(crate) version: &'a [u8],
    pub(crate) body: &'a [u8],
}

impl<'a> Resource<'a> {
    /// Reads a `Resource` and its type. Only the name table has no name.
    pub(crate) fn delta(resource: &'a [u8]) -> Option<(Kind, Self)> {
        let (mut name, mut version, mut any) = (None, &[][..], None);
        for field in Fields(resource) {
            match field {
                (1, Value::Bytes(bytes)) => version = bytes,
                (2, Value::Bytes(bytes)) => any = Some(bytes),
                (3, Value::Bytes(bytes)) => name = Some(bytes),
                _ => {}
            }
        }
        let (kind, body) = any.map_or((Kind::Other, &[][..]), read_any);
        let name = if kind == Kind::Nds { name.unwrap_or_default() } else { name? };
        Some((kind, Self { name, version, body }))
    }

    /// Reads an `Any` of a supported type. All types have their name first, except the name
    /// table, which has none.
    pub(crate) fn sotw(any: &'a [u8]) -> Option<(Kind, Self)> {
        let (kind, body) = read_any(any);
        let name = if kind == Kind::Nds { &[][..] } else { Fields(body).bytes(1)? };
        Some((kind, Self { name, version: &[], body }))
    }
}

fn read_any(any: &[u8]) -> (Kind, &[u8]) {
    let (mut kind, mut body) = (Kind::Other, &[][..]);
    for field in Fields(any) {
        match field {
            (1, Value::Bytes(url)) => kind = Kind::of(url),
            (2, Value::Bytes(bytes)) => body = bytes,
            _ => {}
        }
    }
    (kind, body)
}

/// Returns the name of an upstream cluster's assignment, if it uses EDS.
pub(crate) fn assignment_of<'a>(cluster: &'a [u8], name: &'a [u8]) -> Option<&'a [u8]> {
    const EDS: u64 = 3;
    let mut wanted = None;
    for field in Fields(cluster) {
        match field {
            (2, Value::Varint(EDS)) => wanted = wanted.or(Some(name)),
            (3, Value::Bytes(config)) => {
                wanted = Fields(config).bytes(2).filter(|name| !name.is_empty()).or(wanted);
            }
            // These two fields precede all large ones.
            (4.., _) if wanted.is_some() => break,
            _ => {}
        }
    }
    wanted
}

/// Calls `each` with the name of each route configuration that a listener uses.
pub(crate) fn routes_of<'a>(listener: &'a [u8], mut each: impl FnMut(&'a [u8])) {
    const MANAGER: &[u8] = b"type.googleapis.com/envoy.extensions.filters.network.\
        http_connection_manager.v3.HttpConnectionManager";
    let messages = |bytes: &'a [u8], numbers: &'static [u64]| {
        Fields(bytes).filter_map(move |(number, value)| match value {
            Value::Bytes(bytes) if numbers.contains(&number) => Some(bytes),
            _ => None,
        })
    };
    // `filter_chains` and `default_filter_chain`; `filters`; `typed_config`; `rds`; `route_config_name`.
    let chains = messages(listener, &[3, 25]);
    let filters = chains.flat_map(|chain| messages(chain, &[3]));
    for config in filters.filter_map(|filter| Fields(filter).bytes(4)) {
        if Fields(config).bytes(1) == Some(MANAGER)
            && let Some(manager) = Fields(config).bytes(2)
            && let Some(name) = Fields(manager).bytes(3).and_then(|rds| Fields(rds).bytes(2))
        {
            each(name);
        }
    }
}

/// A request that is being written, after others in the same buffer.
#[derive(Debug)]
pub(crate) struct Request<'a> {
    form: Form,
    start: usize,
    out: &'a mut Vec<u8>,
}

impl<'a> Request<'a> {
    /// The length of the prefix of a message: flag and length (gRPC over HTTP/2).
    const PREFIX: usize = 5;

    /// Begins a request for a type, at the end of `out`.
    pub(crate) fn new(form: Form, kind: Kind, out: &'a mut Vec<u8>) -> Self {
        let start = out.len();
        out.extend_from_slice(&[0; Self::PREFIX]);
        let mut request = Self { form, start, out };
        request.put(if form == Form::Delta { 2 } else { 4 }, kind.url().as_bytes());
        request
    }

    /// Writes the encoded `Node` of the sender.
    pub(crate) fn node(&mut self, node: &[u8]) {
        self.put(if self.form == Form::Delta { 1 } else { 2 }, node);
    }

    /// Writes the nonce of the response that is answered.
    pub(crate) fn nonce(&mut self, nonce: &[u8]) {
        self.put(if self.form == Form::Delta { 6 } else { 5 }, nonce);
    }

    /// Writes the current version (SotW).
    pub(crate) fn version(&mut self, version: &[u8]) {
        self.put(1, version);
    }

    /// Writes a subscribed name (SotW), or a new subscription (Delta).
    pub(crate) fn name(&mut self, name: &[u8]) {
        self.put(3, name);
    }

    /// Writes a removed subscription (Delta).
    pub(crate) fn unsubscribe(&mut self, name: &[u8]) {
        self.put(4, name);
    }

    /// Writes a resource and its version from an earlier stream (Delta).
    pub(crate) fn held(&mut self, name: &[u8], version: &[u8]) {
        let field = |value: &[u8]| 1 + prost::length_delimiter_len(value.len()) + value.len();
        self.out.push(5 << 3 | 2);
        prost::encoding::encode_varint((field(name) + field(version)) as u64, self.out);
        self.put(1, name);
        self.put(2, version);
    }

    /// Rejects the response that is answered.
    pub(crate) fn rejected(&mut self) {
        let mut status = vec![8, 3]; // code: INVALID_ARGUMENT
        put(&mut status, 2, b"rejected on purpose by xdsload");
        self.put(if self.form == Form::Delta { 7 } else { 6 }, &status);
    }

    /// Ends the request and writes its length.
    pub(crate) fn end(self) {
        // Requests are far smaller than 4 GiB: they contain each name once.
        let length = self.out.len() - self.start - Self::PREFIX;
        let length = u32::try_from(length).unwrap_or(u32::MAX).to_be_bytes();
        self.out[self.start + 1..][..length.len()].copy_from_slice(&length);
    }

    fn put(&mut self, number: u8, value: &[u8]) {
        put(self.out, number, value);
    }
}

fn put(out: &mut Vec<u8>, number: u8, value: &[u8]) {
    out.push(number << 3 | 2);
    prost::encoding::encode_varint(value.len() as u64, out);
    out.extend_from_slice(value);
}

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::*;
    use strait_proto::envoy::envoy::config::cluster::v3 as cluster;
    use strait_proto::envoy::envoy::config::core::v3::Node;
    use strait_proto::envoy::envoy::service::discovery::v3 as ads;

    #[test]
    fn length_of_a_field_is_read_from_its_key() {
        let length = |bytes: &[u8]| Fields(bytes).length();
        assert_eq!(length(&[0x12, 2, 1, 1]), Ok(Some(4)));
        assert_eq!(length(&[0x12, 2]), Ok(Some(4)));
        assert_eq!(length(&[0x12, 0x80, 1, 0]), Ok(Some(131)));
        assert_eq!(length(&[8, 0x80, 1, 7]), Ok(Some(3)));
        assert_eq!((length(&[9]), length(&[13, 0])), (Ok(Some(9)), Ok(Some(5))));
        for begun in [&[][..], &[0x92], &[0x12], &[0x12, 0x80], &[8]] {
            assert_eq!(length(begun), Ok(None));
        }
        // An unknown wire type, a number without an end, a length beyond any memory.
        let endless = [0xff; 11];
        let vast = [0x12, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1];
        for broken in [&[7][..], &endless, &vast] {
            assert_eq!(length(broken), Err(()));
        }
    }

    #[test]
    fn requests_decode_to_their_input() {
        let node = Node { id: "sidecar".into(), ..Default::default() };
        let mut out = Vec::new();
        let mut request = Request::new(Form::Delta, Kind::Cds, &mut out);
        request.node(&node.encode_to_vec());
        request.nonce(b"n");
        request.rejected();
        request.name(b"a");
        request.unsubscribe(b"b");
        request.held(b"c", b"v");
        request.end();
        let first = out.len();
        let mut request = Request::new(Form::Sotw, Kind::Eds, &mut out);
        request.node(&node.encode_to_vec());
        request.version(b"7");
        request.nonce(b"n");
        request.name(b"a");
        request.end();
        let (first, second) = out.split_at(first);
        let message = |framed: &[u8]| {
            let length = u32::try_from(framed.len() - 5).expect("short").to_be_bytes();
            assert_eq!(framed[..5], [&[0], &length[..]].concat());
            framed[5..].to_vec()
        };
        let request = ads::DeltaDiscoveryRequest::decode(&*message(first)).expect("a request");
        assert_eq!(request.node, Some(node.clone()));
        assert_eq!(request.type_url, Kind::Cds.url());
        assert_eq!(request.response_nonce, "n");
        assert_eq!(request.error_detail.map(|status| status.code), Some(3));
        assert_eq!(request.resource_names_subscribe, ["a"]);
        assert_eq!(request.resource_names_unsubscribe, ["b"]);
        assert_eq!(request.initial_resource_versions["c"], "v");
        let request = ads::DiscoveryRequest::decode(&*message(second)).expect("a request");
        assert_eq!(request.node, Some(node));
        assert_eq!((&*request.version_info, &*request.response_nonce), ("7", "n"));
        assert_eq!(request.resource_names, ["a"]);
    }

    #[test]
    fn name_table_has_no_name() {
        let any = |kind: Kind| strait_proto::envoy::google::protobuf::Any {
            type_url: kind.url().into(),
            value: vec![10, 1, b'x'],
        };
        let delta = |kind: Kind| {
            ads::Resource { resource: Some(any(kind)), ..Default::default() }.encode_to_vec()
        };
        let read = |bytes: &[u8]| Resource::delta(bytes).map(|(kind, it)| (kind, it.name.to_vec()));
        assert_eq!(read(&delta(Kind::Nds)), Some((Kind::Nds, Vec::new())));
        assert_eq!(read(&delta(Kind::Lds)), None);
        let sotw = |kind: Kind| {
            let bytes = any(kind).encode_to_vec();
            Resource::sotw(&bytes).map(|(_, it)| it.name.to_vec())
        };
        assert_eq!((sotw(Kind::Nds), sotw(Kind::Lds)), (Some(Vec::new()), Some(b"x".to_vec())));
    }

    #[test]
    fn routes_of_a_listener_are_found() {
        use strait_proto::envoy::envoy::config::listener::v3 as listener;
        use strait_proto::envoy::envoy::extensions::filters::network::http_connection_manager::v3 as http;
        use strait_proto::envoy::google::protobuf::Any;
        let filter = |url: &str, route: &str| {
            let rds = http::Rds { route_config_name: route.into(), ..Default::default() };
            let manager = http::HttpConnectionManager {
                stat_prefix: "outbound".into(),
                route_specifier: Some(http::http_connection_manager::RouteSpecifier::Rds(rds)),
                ..Default::default()
            };
            let any = Any { type_url: url.into(), value: manager.encode_to_vec() };
            listener::Filter {
                name: "a".into(),
                config_type: Some(listener::filter::ConfigType::TypedConfig(any)),
            }
        };
        let manager = "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager";
        let chain = |filters| listener::FilterChain { filters, ..Default::default() };
        let message = listener::Listener {
            name: "0.0.0.0_80".into(),
            filter_chains: vec![
                chain(vec![filter("type.googleapis.com/some.other", "no"), filter(manager, "80")]),
                chain(vec![filter(manager, "b:80")]),
            ],
            default_filter_chain: Some(chain(vec![filter(manager, "rest")])),
            ..Default::default()
        };
        let mut names = Vec::new();
        let bytes = message.encode_to_vec();
        routes_of(&bytes, |name| names.push(String::from_utf8_lossy(name).into_owned()));
        assert_eq!(names, ["80", "b:80", "rest"]);
    }

    #[test]
    fn only_eds_clusters_have_assignments() {
        use cluster::cluster::{ClusterDiscoveryType, DiscoveryType, EdsClusterConfig};
        let of = |kind: DiscoveryType, service_name: &str| {
            let message = cluster::Cluster {
                name: "a".into(),
                cluster_discovery_type: Some(ClusterDiscoveryType::Type(kind.into())),
                eds_cluster_config: Some(EdsClusterConfig {
                    service_name: service_name.into(),
                    ..Default::default()
                }),
                ..Default::default()
            };
            let bytes = message.encode_to_vec();
            assignment_of(&bytes, b"a").map(<[u8]>::to_vec)
        };
        assert_eq!(of(DiscoveryType::Eds, "").as_deref(), Some(&b"a"[..]));
        assert_eq!(of(DiscoveryType::Eds, "b").as_deref(), Some(&b"b"[..]));
        let none = cluster::Cluster { name: "a".into(), ..Default::default() }.encode_to_vec();
        assert_eq!(assignment_of(&none, b"a"), None);
    }
}
