//! Assignments: the endpoints of one upstream cluster for one view.
//!
//! This message is generated more often than any other, so it is encoded directly into bytes.
//! Building it from structs would cost several times as much. The few encoded fields are named next
//! to their tags (Envoy's `config/endpoint/v3` and `config/core/v3`). The tests compare the bytes
//! with prost's encoding of the same message.

use std::io::Write;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::LazyLock;

use super::cds::{GATEWAY_MARK, SOCKET_MATCH, TLS_MODE};
use super::service_metrics::{METADATA, workload_names};
use super::{encode, library};
use strait_mesh::aggregate::MergedService;
use strait_mesh::push::PushContext;
use strait_mesh::push::subset::SubsetFilter;
use strait_mesh::push::view::{
    Assignment, AssignmentGroup, AssignmentMember, Role, TelemetryOrigin, ViewKey, assignment_of,
};
use strait_model::{Resolution, TlsMode};
use strait_xds::resource::Resource;

/// Returns the assignment of the upstream cluster `name`, which belongs to a port of the service or
/// to a subset of it.
pub(super) fn assigned(
    context: &PushContext,
    view: &ViewKey,
    name: &str,
    port: u16,
    service: &MergedService,
    subset: SubsetFilter<'_>,
) -> Resource {
    let alias = matches!(service.primary.resolution, Resolution::Alias(_));
    if alias || service.port_in(&view.cluster, port).is_none() {
        return empty(name);
    }
    let given = assignment_of(context, view, service, port, subset);
    if view.grpc.is_some() {
        return encode(name, &library::assignment(name, &given));
    }
    // A gateway forwards encrypted connections and does not need the mode. For clients, plain-text
    // endpoints state their mode if other endpoints accept mTLS or may accept it later. If only
    // current mTLS endpoints counted, an endpoint would be reached in the wrong mode while its
    // upstream cluster changes (docs/decisions/0022).
    let modes = match view.role {
        Role::Client if service.may_accept_mtls => Modes::Stated,
        _ => Modes::Unstated,
    };
    Resource::new(name, encoded(name, modes, &given))
}

/// Returns the assignment of an upstream cluster that has no endpoints or is unknown. Without a
/// response, Envoy would wait for one.
pub(super) fn empty(name: &str) -> Resource {
    Resource::new(name, encoded(name, Modes::Unstated, &Assignment::default()))
}

/// Whether the metadata of endpoints states their TLS mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Modes {
    /// No endpoint states its mode: all are reached in the same way.
    Unstated,
    /// Plain-text endpoints state their mode. Endpoints without a mode are reached with mTLS.
    Stated,
}

/// Encodes a `ClusterLoadAssignment` into a vector without spare capacity.
pub(super) fn encoded(name: &str, modes: Modes, assignment: &Assignment) -> Vec<u8> {
    let Assignment { localities: groups, origins } = assignment;
    let by_origin: Vec<_> =
        origins.iter().map(|origin| MemberMetadata::new(modes, origin)).collect();
    let count: usize = groups.iter().map(|group| group.members.len()).sum();
    let member_bytes =
        MEMBER_BYTES + by_origin.iter().map(|origin| origin.mtls.len()).max().unwrap_or_default();
    let mut bodies = Vec::with_capacity(count * member_bytes + groups.len() * GROUP_BYTES);
    let mut ends = Vec::with_capacity(groups.len());
    for group in groups {
        write_group(&mut bodies, modes, group, &by_origin);
        ends.push(bodies.len());
    }
    let sizes = || ends.iter().scan(0, |start, end| Some(*end - std::mem::replace(start, *end)));
    let groups_size: usize = sizes().map(block_size).sum();
    let name_size = if name.is_empty() { 0 } else { block_size(name.len()) };
    let mut out = Vec::with_capacity(name_size + groups_size);
    write_text(&mut out, tag(1), name); // cluster_name
    let mut rest = bodies.as_slice();
    for size in sizes() {
        let (body, later) = rest.split_at(size);
        write_block(&mut out, tag(2), body); // endpoints
        rest = later;
    }
    out
}

/// Usual size of a member of an assignment without its metadata, in bytes.
const MEMBER_BYTES: usize = 40;
/// Usual size of a locality without its members, in bytes.
const GROUP_BYTES: usize = 128;

/// Encodes a `LocalityLbEndpoints`. `by_origin` contains the metadata of members by origin.
fn write_group(
    out: &mut Vec<u8>,
    modes: Modes,
    group: &AssignmentGroup,
    by_origin: &[MemberMetadata],
) {
    let AssignmentGroup { priority, locality, members, weight } = group;
    if !locality.is_empty() {
        let parts = [&locality.region, &locality.zone, &locality.subzone];
        let mut body = Vec::with_capacity(parts.iter().map(|part| block_size(part.len())).sum());
        for (part, number) in parts.into_iter().zip(1..) {
            write_text(&mut body, tag(number), part); // region, zone, sub_zone
        }
        write_block(out, tag(1), &body); // locality
    }
    for member in members {
        let origin_metadata = by_origin.get(usize::from(member.origin).wrapping_sub(1));
        let metadata = match origin_metadata {
            Some(origin) if member.is_gateway => &origin.gateway,
            Some(origin) => origin.metadata(member.tls_mode),
            None if member.is_gateway => gateway_metadata(),
            None if modes == Modes::Stated => metadata(member.tls_mode),
            None => &[],
        };
        write_member(out, member, metadata);
    }
    // Envoy uses the weight only with locality-weighted load balancing. gRPC sends no traffic to a
    // locality without a weight.
    let sum = || members.iter().fold(0_u32, |sum, member| sum.saturating_add(member.weight));
    let weight = weight.unwrap_or_else(sum);
    if weight != 0 {
        let size = varint_size(weight);
        out.extend([tag(3), 1 + size, 1 << 3]); // load_balancing_weight, its value
        write_size(out, weight as usize);
    }
    if *priority != 0 {
        out.push(5 << 3); // priority
        write_size(out, *priority as usize);
    }
}

/// Encodes an `LbEndpoint` as a member of `LocalityLbEndpoints`: an `Address` in an `Endpoint`.
/// `metadata` is the encoded field.
fn write_member(out: &mut Vec<u8>, member: &AssignmentMember, metadata: &[u8]) {
    if let Some(additional) = member.additional {
        return write_dual_stack_member(out, member, additional, metadata);
    }
    // Built in a buffer and copied once. The address comes first, because the enclosing messages
    // contain its length.
    let mut bytes = [0; HEAD + ADDRESS_BYTES_MAX + TAIL_MAX];
    let text = address(member.address, &mut bytes);
    let mut end = HEAD + text;
    let mut push = |byte: u8| {
        bytes[end] = byte;
        end += 1;
    };
    push(3 << 3); // port_value
    push_varint(&mut push, member.port.into());
    let socket = end - HEAD + 2;
    let before_weight = end;
    let mut push = |byte: u8| {
        bytes[end] = byte;
        end += 1;
    };
    // The default weight of an endpoint is 1.
    if member.weight != 1 {
        push(tag(4)); // load_balancing_weight
        push(1 + varint_size(member.weight));
        push(1 << 3); // value
        push_varint(&mut push, member.weight);
    }
    // An address has at most 45 bytes, so each of these lengths is below 128 and takes one byte.
    let size = 6 + socket + metadata.len() + (end - before_weight);
    bytes[SIZE_END..HEAD].copy_from_slice(&[
        tag(1), // endpoint
        socket as u8 + 4,
        tag(1), // address
        socket as u8 + 2,
        tag(1), // socket_address
        socket as u8,
        tag(2), // address
        text as u8,
    ]);
    // The size of a member without metadata usually takes one byte.
    let start = if size < 0x80 {
        bytes[SIZE_END - 1] = size as u8;
        SIZE_END - 2
    } else {
        let varint = Varint::encode(size as u64);
        let start = SIZE_END - varint.size();
        bytes[start..SIZE_END].copy_from_slice(varint.bytes());
        start - 1
    };
    bytes[start] = tag(2); // lb_endpoints
    if metadata.is_empty() {
        return out.extend_from_slice(&bytes[start..end]);
    }
    out.extend_from_slice(&bytes[start..before_weight]);
    out.extend_from_slice(metadata);
    if end > before_weight {
        out.extend_from_slice(&bytes[before_weight..end]);
    }
}

/// Encodes an `LbEndpoint` with two addresses. This case is rare, so it is not optimized.
fn write_dual_stack_member(
    out: &mut Vec<u8>,
    member: &AssignmentMember,
    additional: Ipv6Addr,
    metadata: &[u8],
) {
    // Encodes an `Address` with a `SocketAddress`.
    let socket = |address: IpAddr| {
        let mut socket = Vec::new();
        write_text(&mut socket, tag(2), &address.to_string()); // address
        socket.push(3 << 3); // port_value
        write_size(&mut socket, member.port.into());
        let mut body = Vec::new();
        write_block(&mut body, tag(1), &socket); // socket_address
        body
    };
    let mut endpoint = Vec::new();
    write_block(&mut endpoint, tag(1), &socket(member.address)); // address
    let mut more = Vec::new();
    write_block(&mut more, tag(1), &socket(additional.into())); // address
    write_block(&mut endpoint, tag(4), &more); // additional_addresses
    let mut body = Vec::new();
    write_block(&mut body, tag(1), &endpoint); // endpoint
    body.extend_from_slice(metadata);
    if member.weight != 1 {
        let mut weight = vec![1 << 3]; // value
        write_size(&mut weight, member.weight as usize);
        write_block(&mut body, tag(4), &weight); // load_balancing_weight
    }
    write_block(out, tag(2), &body); // lb_endpoints
}

/// Position of the end of a member's size: its field number and the longest varint come before.
const SIZE_END: usize = 1 + 5;
/// Number of bytes before the text of an address.
const HEAD: usize = SIZE_END + 8;
/// Maximum number of bytes after the text of an address: port and weight.
const TAIL_MAX: usize = 4 + 8;

fn push_varint(push: &mut impl FnMut(u8), mut number: u32) {
    while number >= 0x80 {
        push(number as u8 | 0x80);
        number >>= 7;
    }
    push(number as u8);
}

fn varint_size(number: u32) -> u8 {
    // Each byte of a varint holds seven bits.
    ((u32::BITS - (number | 1).leading_zeros()).div_ceil(7)) as u8
}

/// Returns the encoded field `metadata` with the TLS mode of an endpoint, or nothing for mTLS.
fn metadata(mode: TlsMode) -> &'static [u8] {
    static DISABLED: LazyLock<Vec<u8>> =
        LazyLock::new(|| metadata_field(&made_metadata(TlsMode::Disabled)));
    match mode {
        TlsMode::Istio => &[],
        TlsMode::Changing | TlsMode::Disabled => &DISABLED,
    }
}

/// Returns the encoded field `metadata` of a gateway without an origin.
fn gateway_metadata() -> &'static [u8] {
    static GATEWAY: LazyLock<Vec<u8>> =
        LazyLock::new(|| metadata_field(&made_entry(METADATA, [GATEWAY_MARK])));
    &GATEWAY
}

/// Encodes a `Metadata`, which consists of these entries, as a field of a member.
fn metadata_field(entries: &[u8]) -> Vec<u8> {
    let mut field = Vec::with_capacity(block_size(entries.len()));
    write_block(&mut field, tag(3), entries);
    field
}

fn made_metadata(mode: TlsMode) -> Vec<u8> {
    made_entry(SOCKET_MATCH, [(TLS_MODE, mode.as_str())])
}

/// Encodes an entry of a `Metadata`: a filter and its texts by key.
fn made_entry<'a>(
    filter: &str,
    texts: impl IntoIterator<Item = (&'static str, &'a str)>,
) -> Vec<u8> {
    let entry = |key: &str, value: &[u8]| {
        let mut entry = Vec::with_capacity(block_size(key.len()) + block_size(value.len()));
        write_text(&mut entry, tag(1), key); // key
        write_block(&mut entry, tag(2), value); // value
        let mut map = Vec::with_capacity(block_size(entry.len()));
        write_block(&mut map, tag(1), &entry); // fields of a Struct, filter_metadata of a Metadata
        map
    };
    let mut fields = Vec::new();
    for (key, text) in texts {
        let mut value = Vec::with_capacity(block_size(text.len()));
        write_block(&mut value, tag(3), text.as_bytes()); // string_value
        fields.extend(entry(key, &value));
    }
    entry(filter, &fields)
}

/// The encoded field `metadata` of members with one origin: the TLS mode and the workload name for
/// telemetry, in the format of Istio's control plane and as separate names for service metrics.
/// `mtls` is for endpoints that accept mTLS, `plain` for the others.
pub(super) struct MemberMetadata {
    mtls: Vec<u8>,
    plain: Vec<u8>,
    /// For gateways, which always accept mTLS.
    gateway: Vec<u8>,
}

impl MemberMetadata {
    fn new(modes: Modes, TelemetryOrigin { telemetry, cluster }: &TelemetryOrigin) -> Self {
        let telemetry = telemetry.as_deref().unwrap_or(";;;");
        let text = format!("{telemetry};{cluster}");
        let workload = made_entry(WORKLOAD_FILTER, [(WORKLOAD, &*text)]);
        let names = || workload_names(telemetry, cluster.as_str());
        let encoded = |mode, strait: Vec<u8>| {
            let tls_mode = match modes {
                Modes::Stated => made_metadata(mode),
                Modes::Unstated => Vec::new(),
            };
            metadata_field(&[tls_mode, workload.clone(), strait].concat())
        };
        Self {
            mtls: encoded(TlsMode::Istio, made_entry(METADATA, names())),
            plain: encoded(TlsMode::Disabled, made_entry(METADATA, names())),
            gateway: encoded(
                TlsMode::Istio,
                made_entry(METADATA, std::iter::once(GATEWAY_MARK).chain(names())),
            ),
        }
    }

    fn metadata(&self, mode: TlsMode) -> &[u8] {
        match mode {
            TlsMode::Istio => &self.mtls,
            TlsMode::Changing | TlsMode::Disabled => &self.plain,
        }
    }
}

/// The metadata filter in which Istio's own filters look up the destination workload.
pub(super) const WORKLOAD_FILTER: &str = "istio";
pub(super) const WORKLOAD: &str = "workload";

/// Maximum length of an address as text: IPv6 with an embedded IPv4 address.
const ADDRESS_BYTES_MAX: usize = 45;

/// Writes the text of an address after [`HEAD`] and returns its length.
fn address(address: IpAddr, bytes: &mut [u8; HEAD + ADDRESS_BYTES_MAX + TAIL_MAX]) -> usize {
    let text = &mut bytes[HEAD..];
    match address {
        IpAddr::V4(address) => {
            let mut length = 0;
            for octet in address.octets() {
                let Digits { bytes, count } = DIGITS[usize::from(octet)];
                text[length..length + 4].copy_from_slice(&bytes);
                length += usize::from(count);
            }
            // No dot follows the last part.
            length - 1
        }
        IpAddr::V6(address) => {
            let room = text.len();
            let mut rest = text;
            // The text always fits.
            let written = write!(rest, "{address}");
            debug_assert!(written.is_ok());
            room - rest.len()
        }
    }
}

/// The decimal digits of a number up to 255, followed by a dot.
#[derive(Clone, Copy)]
struct Digits {
    bytes: [u8; 4],
    count: u8,
}

static DIGITS: [Digits; 256] = {
    let mut all = [Digits { bytes: [0; 4], count: 0 }; 256];
    let mut number = 0;
    while number < 256 {
        let a = b'0' + (number / 100) as u8;
        let b = b'0' + (number / 10 % 10) as u8;
        let c = b'0' + (number % 10) as u8;
        let (bytes, count) = if number >= 100 {
            ([a, b, c, b'.'], 4)
        } else if number >= 10 {
            ([b, c, b'.', 0], 3)
        } else {
            ([c, b'.', 0, 0], 2)
        };
        all[number] = Digits { bytes, count };
        number += 1;
    }
    all
};

/// Returns the tag of a length-delimited field. Field numbers up to 15 take one byte.
const fn tag(number: u8) -> u8 {
    number << 3 | 2
}

fn block_size(length: usize) -> usize {
    1 + Varint::encode(length as u64).size() + length
}

fn write_size(out: &mut Vec<u8>, size: usize) {
    if size < 0x80 {
        out.push(size as u8);
    } else {
        out.extend_from_slice(Varint::encode(size as u64).bytes());
    }
}

fn write_block(out: &mut Vec<u8>, tag: u8, body: &[u8]) {
    out.push(tag);
    write_size(out, body.len());
    out.extend_from_slice(body);
}

/// Writes a string field unless it is empty.
fn write_text(out: &mut Vec<u8>, tag: u8, text: &str) {
    if !text.is_empty() {
        write_block(out, tag, text.as_bytes());
    }
}

/// A varint: groups of seven bits, lowest first.
struct Varint {
    bytes: [u8; 10],
    size: u8,
}

impl Varint {
    fn encode(mut number: u64) -> Self {
        let mut varint = Self { bytes: [0; 10], size: 1 };
        for byte in &mut varint.bytes {
            *byte = number as u8 | 0x80;
            number >>= 7;
            if number == 0 {
                *byte &= 0x7f;
                break;
            }
            varint.size += 1;
        }
        varint
    }

    fn size(&self) -> usize {
        self.size.into()
    }

    fn bytes(&self) -> &[u8] {
        &self.bytes[..self.size()]
    }
}
