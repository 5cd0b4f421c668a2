//! The little of protobuf that a load client needs: it walks over responses without decoding them, and
//! writes requests straight into a buffer.
//!
//! Field numbers are those of Envoy's `discovery.proto`. Nothing here allocates for a resource.

use bytes::{BufMut, BytesMut};

/// One field of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Value<'a> {
    /// A number.
    Varint(u64),
    /// Text, bytes or a message.
    Bytes(&'a [u8]),
    /// Four or eight bytes, which nobody asks for.
    Fixed,
}

/// The fields of a message in their order. Ends early where the bytes are no message.
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

    /// The first text, bytes or message with this number.
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

/// A resource type, as far as a load client tells them apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Upstream clusters.
    Cds,
    /// Assignments.
    Eds,
    /// Listeners.
    Lds,
    /// Anything else.
    Other,
}

impl Kind {
    /// All, in the order of [`Kind::index`].
    pub(crate) const ALL: [Self; 4] = [Self::Cds, Self::Eds, Self::Lds, Self::Other];

    /// The type URL on the wire.
    pub(crate) fn url(self) -> &'static str {
        match self {
            Self::Cds => "type.googleapis.com/envoy.config.cluster.v3.Cluster",
            Self::Eds => "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment",
            Self::Lds => "type.googleapis.com/envoy.config.listener.v3.Listener",
            Self::Other => "",
        }
    }

    /// The name in reports.
    pub(crate) fn short(self) -> &'static str {
        ["cds", "eds", "lds", "other"][self.index()]
    }

    /// Its place in a table with one entry for each kind.
    pub(crate) fn index(self) -> usize {
        self as usize
    }

    fn of(url: &[u8]) -> Self {
        let known = Self::ALL.into_iter().find(|kind| kind.url().as_bytes() == url);
        known.unwrap_or(Self::Other)
    }
}

/// The form of the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Form {
    /// Incremental.
    Delta,
    /// State of the world.
    Sotw,
}

/// What a response says, in slices of its bytes.
#[derive(Debug)]
pub(crate) struct Response<'a> {
    pub(crate) kind: Kind,
    pub(crate) nonce: &'a [u8],
    /// Of all (SotW); of the system (Delta).
    pub(crate) version: &'a [u8],
    pub(crate) removed: Vec<&'a [u8]>,
    message: &'a [u8],
    form: Form,
}

/// One resource of a response.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Resource<'a> {
    pub(crate) name: &'a [u8],
    /// Its own version; empty in the SotW form.
    pub(crate) version: &'a [u8],
    pub(crate) body: &'a [u8],
}

impl<'a> Response<'a> {
    /// Walks once over the outermost fields.
    pub(crate) fn read(message: &'a [u8], form: Form) -> Self {
        let mut response = Self {
            kind: Kind::Other,
            nonce: &[],
            version: &[],
            removed: Vec::new(),
            message,
            form,
        };
        for field in Fields(message) {
            match field {
                (1, Value::Bytes(version)) => response.version = version,
                (4, Value::Bytes(url)) => response.kind = Kind::of(url),
                (5, Value::Bytes(nonce)) => response.nonce = nonce,
                (6, Value::Bytes(name)) if form == Form::Delta => response.removed.push(name),
                _ => {}
            }
        }
        response
    }

    /// The resources in their order.
    pub(crate) fn resources(&self) -> impl Iterator<Item = Resource<'a>> {
        let form = self.form;
        Fields(self.message).filter_map(move |field| match field {
            (2, Value::Bytes(resource)) if form == Form::Delta => delta_resource(resource),
            (2, Value::Bytes(any)) => {
                let body = Fields(any).bytes(2).unwrap_or_default();
                // All types we ask for have their name first.
                let name = Fields(body).bytes(1)?;
                Some(Resource { name, version: &[], body })
            }
            _ => None,
        })
    }
}

fn delta_resource(resource: &[u8]) -> Option<Resource<'_>> {
    let (mut name, mut version, mut body) = (None, &[][..], &[][..]);
    for field in Fields(resource) {
        match field {
            (1, Value::Bytes(bytes)) => version = bytes,
            (2, Value::Bytes(any)) => body = Fields(any).bytes(2).unwrap_or_default(),
            (3, Value::Bytes(bytes)) => name = Some(bytes),
            _ => {}
        }
    }
    Some(Resource { name: name?, version, body })
}

/// The name under which an upstream cluster gets its endpoints, if it gets them by EDS.
pub(crate) fn assignment_of<'a>(cluster: &'a [u8], name: &'a [u8]) -> Option<&'a [u8]> {
    const EDS: u64 = 3;
    let mut wanted = None;
    for field in Fields(cluster) {
        match field {
            (2, Value::Varint(EDS)) => wanted = wanted.or(Some(name)),
            (3, Value::Bytes(config)) => {
                wanted = Fields(config).bytes(2).filter(|name| !name.is_empty()).or(wanted);
            }
            // These two stand in front of everything that is large.
            (4.., _) if wanted.is_some() => break,
            _ => {}
        }
    }
    wanted
}

/// A request in the making, without its frame.
#[derive(Debug)]
pub(crate) struct Request {
    form: Form,
    message: BytesMut,
}

impl Request {
    /// A request about a type.
    pub(crate) fn new(form: Form, kind: Kind) -> Self {
        let mut request = Self { form, message: BytesMut::with_capacity(256) };
        request.put(if form == Form::Delta { 2 } else { 4 }, kind.url().as_bytes());
        request
    }

    /// Who asks: an encoded `Node`.
    pub(crate) fn node(mut self, node: &[u8]) -> Self {
        self.put(if self.form == Form::Delta { 1 } else { 2 }, node);
        self
    }

    /// Which response is answered.
    pub(crate) fn nonce(mut self, nonce: &[u8]) -> Self {
        self.put(if self.form == Form::Delta { 6 } else { 5 }, nonce);
        self
    }

    /// The version that is held (SotW).
    pub(crate) fn version(mut self, version: &[u8]) -> Self {
        self.put(1, version);
        self
    }

    /// A name that is watched (SotW), or from now on (Delta).
    pub(crate) fn name(&mut self, name: &[u8]) {
        self.put(3, name);
    }

    /// A name that is no longer watched (Delta).
    pub(crate) fn unsubscribe(&mut self, name: &[u8]) {
        self.put(4, name);
    }

    /// A resource that is held from a stream before (Delta).
    pub(crate) fn held(&mut self, name: &[u8], version: &[u8]) {
        let mut entry = Vec::with_capacity(name.len() + version.len() + 8);
        put(&mut entry, 1, name);
        put(&mut entry, 2, version);
        self.put(5, &entry);
    }

    /// Rejects what is answered.
    pub(crate) fn rejected(mut self) -> Self {
        let mut status = vec![8, 3]; // code: INVALID_ARGUMENT
        put(&mut status, 2, b"rejected on purpose by xdsload");
        self.put(if self.form == Form::Delta { 7 } else { 6 }, &status);
        self
    }

    /// With the frame of gRPC around it.
    pub(crate) fn framed(self) -> bytes::Bytes {
        let mut framed = BytesMut::with_capacity(self.message.len() + 5);
        framed.put_u8(0);
        // Requests are far smaller than 4 GiB: they hold names, each once.
        framed.put_u32(u32::try_from(self.message.len()).unwrap_or(u32::MAX));
        framed.put(self.message);
        framed.freeze()
    }

    fn put(&mut self, number: u8, value: &[u8]) {
        put(&mut self.message, number, value);
    }
}

fn put(out: &mut impl BufMut, number: u8, value: &[u8]) {
    out.put_u8(number << 3 | 2);
    prost::encoding::encode_varint(value.len() as u64, out);
    out.put_slice(value);
}

#[cfg(test)]
mod tests {
    use prost::Message;
    use strait_proto::envoy::envoy::config::cluster::v3 as cluster;
    use strait_proto::envoy::envoy::config::core::v3::Node;
    use strait_proto::envoy::envoy::service::discovery::v3 as ads;
    use strait_proto::envoy::google::protobuf::Any;

    use super::*;

    #[test]
    fn a_walk_sees_what_decoding_sees() {
        let resource = |name: &str| ads::Resource {
            name: name.into(),
            version: "v7".into(),
            resource: Some(Any { type_url: Kind::Eds.url().into(), value: name.into() }),
            ..Default::default()
        };
        let message = ads::DeltaDiscoveryResponse {
            system_version_info: "s".into(),
            resources: vec![resource("a"), resource("b")],
            type_url: Kind::Eds.url().into(),
            removed_resources: vec!["c".into()],
            nonce: "n".into(),
            ..Default::default()
        }
        .encode_to_vec();
        let response = Response::read(&message, Form::Delta);
        assert_eq!((response.kind, response.nonce), (Kind::Eds, &b"n"[..]));
        assert_eq!(response.removed, [b"c"]);
        let seen: Vec<_> = response.resources().collect();
        let expected = |name| Resource { name, version: b"v7", body: name };
        assert_eq!(seen, [expected(b"a"), expected(b"b")]);
        // A torn message ends the walk and nothing else.
        let torn = &message[..message.len() - 3];
        assert!(Response::read(torn, Form::Delta).resources().count() <= 2);
    }

    #[test]
    fn requests_decode_to_what_was_put_in() {
        let node = Node { id: "sidecar".into(), ..Default::default() };
        let mut request =
            Request::new(Form::Delta, Kind::Cds).node(&node.encode_to_vec()).nonce(b"n").rejected();
        request.name(b"a");
        request.unsubscribe(b"b");
        request.held(b"c", b"v");
        let framed = request.framed();
        let request = ads::DeltaDiscoveryRequest::decode(&framed[5..]).expect("a request");
        assert_eq!(request.node, Some(node.clone()));
        assert_eq!(request.type_url, Kind::Cds.url());
        assert_eq!(request.response_nonce, "n");
        assert_eq!(request.error_detail.map(|status| status.code), Some(3));
        assert_eq!(request.resource_names_subscribe, ["a"]);
        assert_eq!(request.resource_names_unsubscribe, ["b"]);
        assert_eq!(request.initial_resource_versions["c"], "v");

        let mut request = Request::new(Form::Sotw, Kind::Eds)
            .node(&node.encode_to_vec())
            .version(b"7")
            .nonce(b"n");
        request.name(b"a");
        let framed = request.framed();
        let request = ads::DiscoveryRequest::decode(&framed[5..]).expect("a request");
        assert_eq!(request.node, Some(node));
        assert_eq!((&*request.version_info, &*request.response_nonce), ("7", "n"));
        assert_eq!(request.resource_names, ["a"]);
    }

    #[test]
    fn only_upstream_clusters_of_eds_have_assignments() {
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
