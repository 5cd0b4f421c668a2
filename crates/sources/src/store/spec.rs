//! Converts the body of an object from its protobuf message to the form in manifests.

use std::collections::BTreeMap;

use prost::{DecodeError, Message};
use serde_json::{Value, json};

use strait_proto::istio::networking::{ServiceEntry, WorkloadEntry, service_entry};
use strait_proto::istio::security::{
    AuthorizationPolicy, PeerAuthentication, PolicyTargetReference, Rule, WorkloadSelector,
    authorization_policy, peer_authentication as peer,
};
use strait_proto::json::to_manifest;

/// The body is not a valid message of the kind.
#[derive(Debug)]
pub(super) struct UnreadableSpec;

impl From<DecodeError> for UnreadableSpec {
    fn from(_: DecodeError) -> Self {
        Self
    }
}

/// Converts the spec of the kind with this protobuf message ([`strait_model::ConfigKind::message`]).
pub(super) fn read(message: &str, body: &[u8]) -> Result<Value, UnreadableSpec> {
    match message {
        "istio.networking.v1alpha3.ServiceEntry" => service_entry(body),
        "istio.networking.v1alpha3.WorkloadEntry" => workload_entry(body),
        "istio.security.v1beta1.AuthorizationPolicy" => authorization_policy(body),
        "istio.security.v1beta1.PeerAuthentication" => peer_authentication(body),
        _ => described(message, body),
    }
}

/// Converts the spec of a kind with its descriptor. The reader of manifests interprets the fields.
fn described(message: &str, body: &[u8]) -> Result<Value, UnreadableSpec> {
    to_manifest(message, body).map_err(|_| UnreadableSpec)
}

/// Converts the spec of a ServiceEntry.
fn service_entry(body: &[u8]) -> Result<Value, UnreadableSpec> {
    let entry = ServiceEntry::decode(body)?;
    // An enum number without a name is passed on unchanged: the reader of the object reports the
    // error.
    let location = service_entry::Location::try_from(entry.location)
        .map_or(entry.location.to_string(), |value| value.as_str_name().to_owned());
    let resolution = service_entry::Resolution::try_from(entry.resolution)
        .map_or(entry.resolution.to_string(), |value| value.as_str_name().to_owned());
    let ports = entry.ports.into_iter().map(|port| {
        json!({
            "number": port.number,
            "name": port.name,
            "protocol": port.protocol,
            "targetPort": port.target_port,
        })
    });
    Ok(json!({
        "hosts": entry.hosts,
        "addresses": entry.addresses,
        "ports": ports.collect::<Vec<_>>(),
        "location": location,
        "resolution": resolution,
        "endpoints": entry.endpoints.into_iter().map(workload).collect::<Vec<_>>(),
        "exportTo": entry.export_to,
        "subjectAltNames": entry.subject_alt_names,
        "workloadSelector": entry.workload_selector.map(|one| json!({"labels": one.labels})),
    }))
}

/// Converts the spec of a WorkloadEntry.
fn workload_entry(body: &[u8]) -> Result<Value, UnreadableSpec> {
    Ok(workload(WorkloadEntry::decode(body)?))
}

pub(super) fn workload(entry: WorkloadEntry) -> Value {
    let ports: BTreeMap<String, u32> = entry.ports;
    json!({
        "address": entry.address,
        "ports": ports,
        "labels": entry.labels,
        "network": entry.network,
        "locality": entry.locality,
        "weight": entry.weight,
        "serviceAccount": entry.service_account,
    })
}

/// Converts the spec of a PeerAuthentication.
fn peer_authentication(body: &[u8]) -> Result<Value, UnreadableSpec> {
    let policy: PeerAuthentication = whole(body)?;
    let mode = |mtls: &peer::MutualTls| {
        let mode = peer::mutual_tls::Mode::try_from(mtls.mode);
        json!({ "mode": mode.map_or(mtls.mode.to_string(), |value| value.as_str_name().to_owned()) })
    };
    let ports = policy.port_level_mtls.iter().map(|(port, mtls)| (port.to_string(), mode(mtls)));
    let ports: serde_json::Map<_, _> = ports.collect();
    let mut spec = json!({});
    put(&mut spec, "selector", policy.selector.map(selector));
    put(&mut spec, "mtls", policy.mtls.as_ref().map(mode));
    put(&mut spec, "portLevelMtls", (!ports.is_empty()).then(|| ports.into()));
    Ok(spec)
}

/// Converts the spec of an AuthorizationPolicy.
fn authorization_policy(body: &[u8]) -> Result<Value, UnreadableSpec> {
    let policy: AuthorizationPolicy = whole(body)?;
    let action = authorization_policy::Action::try_from(policy.action);
    let action = action.map_or(policy.action.to_string(), |value| value.as_str_name().to_owned());
    let mut spec = json!({ "action": action });
    put(&mut spec, "selector", policy.selector.map(selector));
    put(&mut spec, "provider", policy.provider.map(|one| json!({ "name": one.name })));
    put(&mut spec, "targetRef", policy.target_ref.map(target));
    let targets: Vec<_> = policy.target_refs.into_iter().map(target).collect();
    put(&mut spec, "targetRefs", (!targets.is_empty()).then(|| targets.into()));
    let rules: Vec<_> = policy.rules.into_iter().map(rule).collect();
    put(&mut spec, "rules", (!rules.is_empty()).then(|| rules.into()));
    Ok(spec)
}

/// Decodes a message whose fields are all known: an unknown field may restrict the effect of the
/// others.
fn whole<M: Message + Default>(body: &[u8]) -> Result<M, UnreadableSpec> {
    let message = M::decode(body)?;
    if message.encoded_len() == body.len() { Ok(message) } else { Err(UnreadableSpec) }
}

fn put(spec: &mut Value, field: &str, value: Option<Value>) {
    if let Some(value) = value {
        spec[field] = value;
    }
}

fn selector(selector: WorkloadSelector) -> Value {
    json!({ "matchLabels": selector.match_labels })
}

fn target(target: PolicyTargetReference) -> Value {
    let PolicyTargetReference { group, kind, name, namespace } = target;
    let mut object = json!({ "group": group, "kind": kind, "name": name });
    put(&mut object, "namespace", (!namespace.is_empty()).then(|| namespace.into()));
    object
}

fn rule(rule: Rule) -> Value {
    let list = |field: &'static str, values: Vec<String>| (field, values);
    let fields = |lists: Vec<(&'static str, Vec<String>)>| {
        let given = lists.into_iter().filter(|(_, values)| !values.is_empty());
        Value::Object(given.map(|(field, values)| (field.to_owned(), values.into())).collect())
    };
    let from = rule.from.into_iter().map(|one| match one.source {
        None => json!({}),
        Some(source) => json!({ "source": fields(vec![
            list("principals", source.principals),
            list("notPrincipals", source.not_principals),
            list("requestPrincipals", source.request_principals),
            list("notRequestPrincipals", source.not_request_principals),
            list("namespaces", source.namespaces),
            list("notNamespaces", source.not_namespaces),
            list("ipBlocks", source.ip_blocks),
            list("notIpBlocks", source.not_ip_blocks),
            list("remoteIpBlocks", source.remote_ip_blocks),
            list("notRemoteIpBlocks", source.not_remote_ip_blocks),
        ])}),
    });
    let to = rule.to.into_iter().map(|one| match one.operation {
        None => json!({}),
        Some(operation) => json!({ "operation": fields(vec![
            list("hosts", operation.hosts),
            list("notHosts", operation.not_hosts),
            list("ports", operation.ports),
            list("notPorts", operation.not_ports),
            list("methods", operation.methods),
            list("notMethods", operation.not_methods),
            list("paths", operation.paths),
            list("notPaths", operation.not_paths),
        ])}),
    });
    let when = rule.when.into_iter().map(|one| {
        let mut condition =
            fields(vec![list("values", one.values), list("notValues", one.not_values)]);
        condition["key"] = one.key.into();
        condition
    });
    let (from, to, when): (Vec<_>, Vec<_>, Vec<_>) = (from.collect(), to.collect(), when.collect());
    let mut object = json!({});
    for (field, items) in [("from", from), ("to", to), ("when", when)] {
        put(&mut object, field, (!items.is_empty()).then(|| items.into()));
    }
    object
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use strait_model::ConfigKind;
    use strait_proto::json::from_json;

    /// Returns an example spec of each kind that is converted with its descriptor, in the form of a
    /// manifest.
    fn specs() -> Vec<(&'static str, &'static str, Value)> {
        vec![
            (
                "VirtualService",
                "istio.networking.v1alpha3.VirtualService",
                json!({
                    "hosts": ["web"], "gateways": ["mesh"], "exportTo": ["."],
                    "http": [{
                        "name": "all",
                        "match": [{
                            "uri": {"prefix": ""}, "headers": {"x-a": {"exact": "b"}}, "withoutHeaders": {"c": {}},
                            "queryParams": {"q": {"regex": "[0-9]+"}}, "ignoreUriCase": true, "port": 80,
                            "sourceLabels": {"app": "a"}, "sourceNamespace": "shop", "statPrefix": "s",
                        }],
                        "route": [{
                            "destination": {"host": "web", "subset": "v1", "port": {"number": 80}}, "weight": 90,
                            "headers": {"request": {"set": {"a": "b"}, "add": {"c": "d"}, "remove": ["e"]}},
                        }],
                        "redirect": {"uri": "/", "redirectCode": 302, "derivePort": "FROM_REQUEST_PORT"},
                        "directResponse": {"status": 503, "body": {"bytes": "Z29uZQ=="}},
                        "delegate": {"name": "a", "namespace": "b"},
                        "rewrite": {"uriRegexRewrite": {"match": "a", "rewrite": "b"}},
                        "timeout": "3s",
                        "retries": {"attempts": 2, "perTryTimeout": "5s", "retryRemoteLocalities": true, "backoff": "1s"},
                        "fault": {
                            "delay": {"percentage": {"value": 1.5}, "fixedDelay": "2s"},
                            "abort": {"percentage": {"value": 0.5}, "httpStatus": 503},
                        },
                        "mirrors": [{"destination": {"host": "b"}, "percentage": {"value": 2.5}}],
                        "mirrorPercent": 7,
                        "corsPolicy": {
                            "allowOrigins": [{"exact": "*"}], "maxAge": "60s", "allowCredentials": false,
                            "unmatchedPreflights": "IGNORE",
                        },
                    }],
                    "tls": [{"match": [{"sniHosts": ["a"], "port": 443}], "route": [{"destination": {"host": "a"}}]}],
                    "tcp": [{"match": [{"destinationSubnets": ["10.0.0.0/8"]}], "route": [{"destination": {"host": "a"}, "weight": 1}]}],
                }),
            ),
            (
                "DestinationRule",
                "istio.networking.v1alpha3.DestinationRule",
                json!({
                    "host": "web", "exportTo": ["*"], "workloadSelector": {"matchLabels": {"a": "b"}},
                    "trafficPolicy": {
                        "tls": {"mode": "ISTIO_MUTUAL", "sni": "a", "subjectAltNames": ["b"], "insecureSkipVerify": true},
                        "connectionPool": {
                            "tcp": {"maxConnections": 1, "connectTimeout": "1s", "tcpKeepalive": {"probes": 3, "time": "9s"}},
                            "http": {"http1MaxPendingRequests": 1, "http2MaxRequests": 2, "h2UpgradePolicy": "UPGRADE", "maxConcurrentStreams": 5},
                        },
                        "outlierDetection": {"consecutive5xxErrors": 0, "consecutiveGatewayErrors": 3, "baseEjectionTime": "30s", "minHealthPercent": 5},
                        "loadBalancer": {
                            "consistentHash": {"httpCookie": {"name": "c", "ttl": "0s"}, "ringHash": {"minimumRingSize": 1024}},
                            "localityLbSetting": {"distribute": [{"from": "a", "to": {"b": 100}}], "failoverPriority": ["x"], "enabled": false},
                            "warmup": {"duration": "5s", "minimumPercent": 10.5},
                        },
                        "portLevelSettings": [{"port": {"number": 80}, "loadBalancer": {"simple": "RANDOM"}}],
                        "tunnel": {"protocol": "CONNECT", "targetHost": "a", "targetPort": 1},
                        "proxyProtocol": {"version": "V2"},
                        "retryBudget": {"percent": 25.5, "minRetryConcurrency": 3},
                    },
                    "subsets": [{"name": "v1", "labels": {"version": "v1"}}],
                }),
            ),
            (
                "Gateway",
                "istio.networking.v1alpha3.Gateway",
                json!({
                    "selector": {"istio": "ingressgateway"},
                    "servers": [{
                        "port": {"number": 443, "name": "https", "protocol": "HTTPS"}, "hosts": ["*"], "name": "a", "bind": "::",
                        "tls": {"mode": "MUTUAL", "credentialName": "c", "minProtocolVersion": "TLSV1_2", "cipherSuites": ["x"], "httpsRedirect": true},
                    }],
                }),
            ),
            (
                "Sidecar",
                "istio.networking.v1alpha3.Sidecar",
                json!({
                    "workloadSelector": {"labels": {"a": "b"}},
                    "outboundTrafficPolicy": {"mode": "ALLOW_ANY", "egressProxy": {"host": "e"}},
                    "inboundConnectionPool": {"http": {"maxRetries": 1}},
                    "ingress": [{"port": {"number": 80, "protocol": "HTTP", "name": "h"}, "defaultEndpoint": "127.0.0.1:1", "captureMode": "NONE"}],
                    "egress": [{"hosts": ["./*"], "bind": "0.0.0.0"}],
                }),
            ),
            (
                "EnvoyFilter",
                "istio.networking.v1alpha3.EnvoyFilter",
                json!({
                    "workloadSelector": {"labels": {"a": "b"}}, "priority": -1,
                    "targetRefs": [{"kind": "Service", "name": "s"}],
                    "configPatches": [{
                        "applyTo": "HTTP_FILTER",
                        "match": {
                            "context": "SIDECAR_INBOUND", "proxy": {"proxyVersion": "1.*"},
                            "listener": {"portNumber": 80, "filterChain": {"filter": {"name": "a", "subFilter": {"name": "b"}}}},
                        },
                        "patch": {"operation": "INSERT_BEFORE", "filterClass": "AUTHZ", "value": {"name": "x", "typed_config": {"@type": "y", "z": [1.0, null, true]}}},
                    }],
                }),
            ),
            (
                "ProxyConfig",
                "istio.networking.v1beta1.ProxyConfig",
                json!({"selector": {"matchLabels": {"a": "b"}}, "concurrency": 0, "environmentVariables": {"A": "b"}, "image": {"imageType": "distroless"}}),
            ),
            (
                "RequestAuthentication",
                "istio.security.v1beta1.RequestAuthentication",
                json!({
                    "selector": {"matchLabels": {"a": "b"}}, "targetRefs": [{"kind": "Gateway", "name": "g"}],
                    "jwtRules": [{
                        "issuer": "i", "audiences": ["a"], "jwksUri": "https://i/keys", "jwks": "{}", "fromHeaders": [{"name": "x", "prefix": "Bearer "}],
                        "fromParams": ["p"], "fromCookies": ["c"], "outputPayloadToHeader": "o", "forwardOriginalToken": true,
                        "outputClaimToHeaders": [{"header": "h", "claim": "c"}], "timeout": "5s", "spaceDelimitedClaims": ["s"],
                    }],
                }),
            ),
            (
                "Telemetry",
                "istio.telemetry.v1alpha1.Telemetry",
                json!({
                    "accessLogging": [{"match": {"mode": "SERVER"}, "providers": [{"name": "envoy"}], "disabled": false, "filter": {"expression": "true"}}],
                    "tracing": [{"randomSamplingPercentage": 1.5, "customTags": {"t": {"header": {"name": "h", "defaultValue": "d"}}}, "disableSpanReporting": true}],
                    "metrics": [{"overrides": [{"match": {"metric": "REQUEST_COUNT", "mode": "CLIENT"}, "tagOverrides": {"a": {"operation": "REMOVE"}}}]}],
                }),
            ),
        ]
    }

    #[test]
    fn kinds_with_a_descriptor_are_converted_to_the_form_in_manifests() {
        for (kind, message, spec) in specs() {
            let body =
                from_json(message, &spec).unwrap_or_else(|error| panic!("{kind}: {error:?}"));
            assert_eq!(read(message, &body).expect("it is valid"), spec, "{kind}");
            assert!(read(message, &[0xff]).is_err());
        }
        let by_hand =
            ["ServiceEntry", "WorkloadEntry", "AuthorizationPolicy", "PeerAuthentication"];
        let all = ConfigKind::from_mcp().filter(|row| !by_hand.contains(&row.kind));
        let all = all.map(|row| (row.kind, row.message)).collect::<BTreeSet<_>>();
        let tried: BTreeSet<_> =
            specs().iter().map(|(kind, message, _)| (*kind, Some(*message))).collect();
        assert_eq!(all, tried, "each of them is tried");
    }

    /// The reader of manifests reports it, like any other unknown field.
    #[test]
    fn unknown_field_is_passed_on_by_its_number() {
        let message = "istio.networking.v1alpha3.VirtualService";
        // In a match without other fields, in an HTTP route: field 99, a number.
        let unknown = [0x98, 0x06, 0x01];
        let within = |tag: u8, inner: &[u8]| [&[tag, inner.len() as u8], inner].concat();
        let body = within(0x1a, &within(0x0a, &unknown));
        let read = described(message, &body).expect("it is valid");
        assert_eq!(read, json!({ "http": [{ "match": [{ "field99": null }] }] }));
        let read = described(message, &unknown).expect("it is valid");
        assert_eq!(read, json!({ "field99": null }));
    }
}
