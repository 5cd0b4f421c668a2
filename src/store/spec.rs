//! The body of an object, from its message to the form in which manifests have it.

use std::collections::BTreeMap;

use prost::{DecodeError, Message};
use serde_json::{Value, json};
use strait_proto::istio::networking::{ServiceEntry, WorkloadEntry, service_entry};
use strait_proto::istio::security::{
    AuthorizationPolicy, PeerAuthentication, PolicyTargetReference, Rule, WorkloadSelector,
    authorization_policy, peer_authentication as peer,
};

/// The spec of a ServiceEntry.
pub(super) fn service_entry(body: &[u8]) -> Result<Value, DecodeError> {
    let entry = ServiceEntry::decode(body)?;
    // A number without a name is passed on as one: who reads the object says what is wrong with it.
    let location = service_entry::Location::try_from(entry.location)
        .map_or(entry.location.to_string(), |known| known.as_str_name().to_owned());
    let resolution = service_entry::Resolution::try_from(entry.resolution)
        .map_or(entry.resolution.to_string(), |known| known.as_str_name().to_owned());
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

/// The spec of a WorkloadEntry.
pub(super) fn workload_entry(body: &[u8]) -> Result<Value, DecodeError> {
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

/// The spec of a PeerAuthentication.
pub(super) fn peer_authentication(body: &[u8]) -> Result<Value, DecodeError> {
    let policy: PeerAuthentication = whole(body)?;
    let mode = |mtls: &peer::MutualTls| {
        let mode = peer::mutual_tls::Mode::try_from(mtls.mode);
        json!({ "mode": mode.map_or(mtls.mode.to_string(), |known| known.as_str_name().to_owned()) })
    };
    let ports = policy.port_level_mtls.iter().map(|(port, mtls)| (port.to_string(), mode(mtls)));
    let ports: serde_json::Map<_, _> = ports.collect();
    let mut spec = json!({});
    put(&mut spec, "selector", policy.selector.map(selector));
    put(&mut spec, "mtls", policy.mtls.as_ref().map(mode));
    put(&mut spec, "portLevelMtls", (!ports.is_empty()).then(|| ports.into()));
    Ok(spec)
}

/// The spec of an AuthorizationPolicy.
pub(super) fn authorization_policy(body: &[u8]) -> Result<Value, DecodeError> {
    let policy: AuthorizationPolicy = whole(body)?;
    let action = authorization_policy::Action::try_from(policy.action);
    let action = action.map_or(policy.action.to_string(), |known| known.as_str_name().to_owned());
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

/// A message all of whose fields are known: one that we don't know may restrict what the others allow.
fn whole<M: Message + Default + std::fmt::Debug>(body: &[u8]) -> Result<M, DecodeError> {
    let message = M::decode(body)?;
    if message.encoded_len() == body.len() {
        return Ok(message);
    }
    // There is no other way to make such an error.
    Err(M::decode(&[0_u8][..]).expect_err("a tag of zero is no tag"))
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
