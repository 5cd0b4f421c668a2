//! The oracle of the direct encoder of assignments: builds the same assignments as messages and
//! encodes them with prost. Tests and fuzz targets provide the random numbers.

use std::iter::repeat;
use std::sync::Arc;

use prost::Message;
use rand::{Rng, RngCore};

use super::cds::{GATEWAY_MARK, SOCKET_MATCH, tls_mode};
use super::eds::{Modes, WORKLOAD, WORKLOAD_FILTER, encoded};
use super::service_metrics::METADATA;
use strait_mesh::push::view::{Assignment, AssignmentGroup, AssignmentMember, TelemetryOrigin};
use strait_model::{Locality, TlsMode};
use strait_proto::envoy::envoy::config::core::v3 as core;
use strait_proto::envoy::envoy::config::endpoint::v3 as endpoint;
use strait_proto::envoy::google::protobuf::value::Kind;
use strait_proto::envoy::google::protobuf::{Struct, UInt32Value, Value};

fn message(
    name: &str,
    modes: Modes,
    Assignment { localities, origins }: &Assignment,
) -> endpoint::ClusterLoadAssignment {
    endpoint::ClusterLoadAssignment {
        cluster_name: name.into(),
        endpoints: localities.iter().map(|group| locality(modes, group, origins)).collect(),
        ..Default::default()
    }
}

fn locality(
    modes: Modes,
    group: &AssignmentGroup,
    origins: &[TelemetryOrigin],
) -> endpoint::LocalityLbEndpoints {
    let AssignmentGroup { locality, priority, members, weight } = group;
    let metadata = |mode| core::Metadata {
        filter_metadata: [(SOCKET_MATCH.into(), tls_mode(mode))].into(),
        ..Default::default()
    };
    let explicit = |member: &AssignmentMember| match usize::from(member.origin).checked_sub(1) {
        Some(at) => {
            let mut expected = match modes {
                Modes::Stated => metadata(member.tls_mode),
                Modes::Unstated => core::Metadata::default(),
            };
            expected.filter_metadata.insert(WORKLOAD_FILTER.into(), workload(&origins[at]));
            let mut strait = names(&origins[at]);
            if member.is_gateway {
                strait.fields.extend(gateway_mark());
            }
            expected.filter_metadata.insert(METADATA.into(), strait);
            Some(expected)
        }
        None if member.is_gateway => Some(core::Metadata {
            filter_metadata: [(METADATA.into(), Struct { fields: gateway_mark().into() })].into(),
            ..Default::default()
        }),
        None => (modes == Modes::Stated && member.tls_mode == TlsMode::Disabled)
            .then(|| metadata(TlsMode::Disabled)),
    };
    endpoint::LocalityLbEndpoints {
        locality: (!locality.is_empty()).then(|| core::Locality {
            region: locality.region.to_string(),
            zone: locality.zone.to_string(),
            sub_zone: locality.subzone.to_string(),
        }),
        load_balancing_weight: weight
            .or_else(|| members.iter().map(|member| member.weight).reduce(u32::saturating_add))
            .map(|value| UInt32Value { value }),
        priority: *priority,
        lb_endpoints: members.iter().map(|member| lb_endpoint(member, explicit(member))).collect(),
        ..Default::default()
    }
}

fn gateway_mark() -> [(String, Value); 1] {
    let (key, value) = GATEWAY_MARK;
    [(key.into(), Value { kind: Some(Kind::StringValue(value.into())) })]
}

fn workload(TelemetryOrigin { telemetry, cluster }: &TelemetryOrigin) -> Struct {
    let telemetry = telemetry.as_deref().unwrap_or(";;;");
    let text = Kind::StringValue(format!("{telemetry};{cluster}"));
    Struct { fields: [(WORKLOAD.into(), Value { kind: Some(text) })].into() }
}

fn names(TelemetryOrigin { telemetry, cluster }: &TelemetryOrigin) -> Struct {
    let parts = telemetry.as_deref().unwrap_or_default().split(';').chain(repeat(""));
    let keys = ["workload", "namespace", "service", "revision"];
    let all = keys.into_iter().zip(parts).chain([("cluster", cluster.as_str())]);
    let all = all.filter(|(_, text)| !text.is_empty()).map(|(key, text)| {
        (key.to_owned(), Value { kind: Some(Kind::StringValue(text.to_owned())) })
    });
    Struct { fields: all.collect() }
}

fn lb_endpoint(
    member: &AssignmentMember,
    metadata: Option<core::Metadata>,
) -> endpoint::LbEndpoint {
    use core::address::Address::SocketAddress;
    use core::socket_address::PortSpecifier;
    let address = |address: String| {
        let socket = core::SocketAddress {
            address,
            port_specifier: Some(PortSpecifier::PortValue(member.port.into())),
            ..Default::default()
        };
        Some(core::Address { address: Some(SocketAddress(socket)) })
    };
    let additional = member
        .additional
        .map(|one| endpoint::endpoint::AdditionalAddress { address: address(one.to_string()) });
    endpoint::LbEndpoint {
        host_identifier: Some(endpoint::lb_endpoint::HostIdentifier::Endpoint(
            endpoint::Endpoint {
                address: address(member.address.to_string()),
                additional_addresses: additional.into_iter().collect(),
                ..Default::default()
            },
        )),
        metadata,
        // The default weight of an endpoint is 1.
        load_balancing_weight: (member.weight != 1).then_some(UInt32Value { value: member.weight }),
        ..Default::default()
    }
}

fn any_member(random: &mut dyn RngCore, origins: usize) -> AssignmentMember {
    let address = match random.random_range(0..4) {
        0 => std::net::Ipv6Addr::from_bits(random.random()).into(),
        // Runs of zeros are abbreviated in the text of an address.
        1 => std::net::Ipv6Addr::from_bits(random.random::<u128>() & random.random::<u128>() << 64)
            .into(),
        _ => std::net::Ipv4Addr::from_bits(random.random()).into(),
    };
    let weight = match random.random_range(0..4) {
        0 => 2_u32.pow(random.random_range(0..32)),
        1 => random.random_range(1..=u32::MAX),
        _ => 1,
    };
    let additional =
        random.random_bool(0.2).then(|| std::net::Ipv6Addr::from_bits(random.random()));
    // A gateway always accepts mTLS.
    let is_gateway = random.random_bool(0.2);
    AssignmentMember {
        address,
        additional,
        port: [0, 1, 80, 127, 128, 8080, 16_383, 16_384, u16::MAX][random.random_range(0..9)],
        weight,
        tls_mode: [TlsMode::Istio, TlsMode::Disabled]
            [usize::from(!is_gateway && random.random_bool(0.3))],
        is_gateway,
        origin: if origins == 0 { 0 } else { random.random_range(1..=origins) as u16 },
    }
}

fn any_group(random: &mut dyn RngCore, origins: usize) -> AssignmentGroup {
    let long = "r".repeat(200);
    let texts = ["", "region", "region/zone", "region/zone/subzone", "//subzone", "ü/é/ß", &long];
    let count = [0, 1, 2, 3, 200][random.random_range(0..5)];
    AssignmentGroup {
        locality: Arc::new(Locality::parse(texts[random.random_range(0..texts.len())])),
        priority: [0, 0, 1, 130][random.random_range(0..4)],
        members: (0..count).map(|_| any_member(random, origins)).collect(),
        weight: [None, Some(1), Some(300)][random.random_range(0..3)],
    }
}

/// Generates an assignment and compares the direct encoding with prost's.
///
/// # Panics
/// Panics if they differ.
pub fn direct_encoding_equals_prost(random: &mut dyn RngCore) {
    let origins = [0, 0, 1, 3][random.random_range(0..4)];
    let localities = (0..random.random_range(0..7)).map(|_| any_group(random, origins)).collect();
    let telemetry = ["web;shop;web;v1", ";;;", &"long".repeat(60)];
    let origin = |at: usize| TelemetryOrigin {
        telemetry: telemetry.get(at).map(|text| (*text).into()),
        cluster: "east".into(),
    };
    let assignment =
        Assignment { localities, origins: (0..origins).map(|at| origin(at + 1)).collect() };
    let modes = [Modes::Stated, Modes::Unstated][random.random_range(0..2)];
    let long = "n".repeat(300);
    let name = ["outbound|80||web.ns.svc.cluster.local", "", &long][random.random_range(0..3)];
    let expected = message(name, modes, &assignment);
    let written = encoded(name, modes, &assignment);
    let read = endpoint::ClusterLoadAssignment::decode(&*written).expect("well-formed");
    assert_eq!(read, expected);
    // Prost encodes the two entries of a map in either order.
    match origins {
        0 => assert_eq!(written, expected.encode_to_vec()),
        _ => assert_eq!(written.len(), expected.encoded_len()),
    }
    assert_eq!(written.len(), written.capacity(), "no spare capacity");
}

#[cfg(test)]
#[test]
fn random_assignments_are_encoded_like_prost() {
    use rand::SeedableRng;
    let mut random = rand::rngs::StdRng::seed_from_u64(7);
    for _ in 0..500 {
        direct_encoding_equals_prost(&mut random);
    }
}
