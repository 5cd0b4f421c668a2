//! Attributes that Envoy provides to expressions. (Envoy, "Attributes".)

use super::tokens::CelToken;

/// The groups of attributes with their attributes. In a group with an empty list, users choose the
/// names.
const GROUPS: [(&str, &[&str]); 10] = [
    (
        "request",
        &[
            "duration",
            "headers",
            "headers_bytes",
            "host",
            "id",
            "method",
            "path",
            "protocol",
            "query",
            "referer",
            "scheme",
            "size",
            "time",
            "total_size",
            "url_path",
            "useragent",
        ],
    ),
    (
        "response",
        &[
            "backend_latency",
            "code",
            "code_details",
            "flags",
            "grpc_status",
            "headers",
            "headers_bytes",
            "size",
            "total_size",
            "trailers",
        ],
    ),
    ("source", &["address", "port"]),
    ("destination", &["address", "port"]),
    (
        "connection",
        &[
            "dns_san_local_certificate",
            "dns_san_peer_certificate",
            "id",
            "mtls",
            "peer_certificate",
            "requested_server_name",
            "sha256_peer_certificate_digest",
            "subject_local_certificate",
            "subject_peer_certificate",
            "termination_details",
            "tls_version",
            "transport_failure_reason",
            "uri_san_local_certificate",
            "uri_san_peer_certificate",
        ],
    ),
    (
        "upstream",
        &[
            "address",
            "cx_pool_ready_duration",
            "dns_san_local_certificate",
            "dns_san_peer_certificate",
            "local_address",
            "locality",
            "num_endpoints",
            "peer_certificate",
            "port",
            "request_attempt_count",
            "sha256_peer_certificate_digest",
            "subject_local_certificate",
            "subject_peer_certificate",
            "tls_version",
            "transport_failure_reason",
            "uri_san_local_certificate",
            "uri_san_peer_certificate",
        ],
    ),
    (
        "xds",
        &[
            "cluster_metadata",
            "cluster_name",
            "filter_chain_name",
            "listener_direction",
            "listener_metadata",
            "node",
            "route_metadata",
            "route_name",
            "upstream_host_locality_metadata",
            "upstream_host_metadata",
            "virtual_host_metadata",
            "virtual_host_name",
        ],
    ),
    ("metadata", &[]),
    ("filter_state", &[]),
    ("upstream_filter_state", &[]),
];

/// Names of values and of types.
const OTHERS: [&str; 14] = [
    "bool",
    "bytes",
    "double",
    "false",
    "google",
    "in",
    "int",
    "list",
    "map",
    "null",
    "null_type",
    "string",
    "true",
    "uint",
];

/// Returns the names in an expression that are not attributes of Envoy, in their order.
pub(super) fn unknown(tokens: &[CelToken<'_>]) -> Vec<String> {
    let sign = |at: Option<usize>, sign: &str| {
        at.and_then(|at| tokens.get(at)).is_some_and(|token| *token == CelToken::Sign(sign))
    };
    let names = tokens.iter().enumerate().filter_map(|(at, token)| {
        let CelToken::Name(name) = token else { return None };
        let is_field = sign(at.checked_sub(1), ".");
        let is_called = sign(Some(at + 1), "(");
        if is_field || is_called || OTHERS.contains(name) {
            return None;
        }
        let Some((_, fields)) = GROUPS.iter().find(|(group, _)| group == name) else {
            return Some((*name).to_owned());
        };
        let field = sign(Some(at + 1), ".").then(|| tokens.get(at + 2)).flatten();
        match field {
            Some(CelToken::Name(field)) if !sign(Some(at + 3), "(") => {
                let is_attribute = fields.is_empty() || fields.contains(field);
                (!is_attribute).then(|| format!("{name}.{field}"))
            }
            _ => None,
        }
    });
    let mut unknown = Vec::new();
    for name in names {
        if !unknown.contains(&name) {
            unknown.push(name);
        }
    }
    unknown
}

#[cfg(test)]
mod tests {
    use super::super::{READABLE, unknown_attributes};

    #[test]
    fn names_that_are_not_attributes_of_envoy_are_found() {
        for (text, expected) in [
            ("respons.code >= 400", "respons"),
            ("response.cod >= 400", "response.cod"),
            ("true || has(request.headrs.a)", "request.headrs"),
            ("request.headers.a == code", "code"),
            ("connection.tls == 'a'", "connection.tls"),
        ] {
            assert_eq!(unknown_attributes(text), [expected], "{text}");
        }
        let others = ["filter_state.any.name == 1", "request['pth'] == '/'", "metadata['a'].b"];
        for text in READABLE.into_iter().chain(others) {
            assert_eq!(unknown_attributes(text), [""; 0], "{text}");
        }
    }
}
