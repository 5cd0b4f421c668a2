//! The body of an object, from its message to the form in which manifests have it.

use std::collections::BTreeMap;

use prost::{DecodeError, Message};
use serde_json::{Value, json};
use strait_proto::istio::networking::{ServiceEntry, WorkloadEntry, service_entry};

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
