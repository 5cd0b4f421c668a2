//! EndpointSlices: which addresses stand behind a Service, and how they fare.

use std::net::IpAddr;
use std::sync::Arc;

use serde::Deserialize;

use crate::apiserver::{Key, Metadata, Object, null_as_default};
use crate::model::Health;

const SERVICE_LABEL: &str = "kubernetes.io/service-name";
/// Made from other clusters' services by a multi-cluster services controller: those clusters are
/// read themselves.
const IMPORTED_LABEL: &str = "multicluster.kubernetes.io/service-name";

/// What is decoded of an EndpointSlice.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct SliceObject {
    #[serde(default, deserialize_with = "null_as_default")]
    metadata: Metadata,
    #[serde(default, deserialize_with = "null_as_default")]
    address_type: String,
    #[serde(default, deserialize_with = "null_as_default")]
    endpoints: Vec<EndpointObject>,
    #[serde(default, deserialize_with = "null_as_default")]
    ports: Vec<PortObject>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct EndpointObject {
    #[serde(deserialize_with = "null_as_default")]
    addresses: Vec<String>,
    #[serde(deserialize_with = "null_as_default")]
    conditions: Conditions,
    target_ref: Option<TargetRef>,
    node_name: Option<Arc<str>>,
    zone: Option<Arc<str>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct TargetRef {
    kind: Option<String>,
    namespace: Option<Arc<str>>,
    name: Option<Arc<str>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct PortObject {
    #[serde(deserialize_with = "null_as_default")]
    name: Arc<str>,
    port: Option<i64>,
}

impl Object for SliceObject {
    fn metadata(&self) -> &Metadata {
        &self.metadata
    }
}

/// What the API server says of an endpoint; each may be unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(default)]
pub(super) struct Conditions {
    pub(super) ready: Option<bool>,
    pub(super) serving: Option<bool>,
    pub(super) terminating: Option<bool>,
}

impl Conditions {
    /// Whether the endpoint may take traffic. Unknown means ready, serving, and not terminating
    /// (EndpointSlice API). Sessions of a service with `persistent_sessions` go on to the end.
    pub(super) fn health(self, persistent_sessions: bool) -> Health {
        let terminating = self.terminating.unwrap_or(false);
        if self.ready.unwrap_or(true) {
            Health::Healthy
        } else if terminating && persistent_sessions && self.serving.unwrap_or(true) {
            Health::Draining
        } else if terminating {
            Health::Terminating
        } else {
            Health::Unhealthy
        }
    }
}

/// What is kept of an EndpointSlice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Slice {
    /// The Service it belongs to.
    pub(super) service: Key,
    /// Name and target port of each port.
    pub(super) ports: Vec<(Arc<str>, u16)>,
    pub(super) members: Vec<Member>,
}

/// One endpoint of a slice, on all its ports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Member {
    pub(super) address: IpAddr,
    pub(super) conditions: Conditions,
    /// The pod it names.
    pub(super) pod: Option<Key>,
    pub(super) node: Option<Arc<str>>,
    pub(super) zone: Option<Arc<str>>,
}

impl SliceObject {
    /// Keeps what is needed, `None` where nothing is: a slice of names, without a Service, or
    /// imported. The second value says what of it makes no sense.
    pub(super) fn convert(self) -> (Option<Slice>, Option<String>) {
        let labels = &self.metadata.labels;
        let Some(owner) = labels.get(SERVICE_LABEL).filter(|owner| !owner.is_empty()) else {
            return (None, None);
        };
        if self.address_type == "FQDN" || labels.contains_key(IMPORTED_LABEL) {
            return (None, None);
        }
        let namespace = &self.metadata.namespace;
        let service = Key { namespace: Arc::clone(namespace), name: Arc::clone(owner) };
        let mut odd = None;

        let mut ports = Vec::with_capacity(self.ports.len());
        for port in self.ports {
            // No number means every port, of which a proxy can make nothing.
            let Some(number) = port.port else { continue };
            match u16::try_from(number) {
                Ok(number) if number > 0 => ports.push((port.name, number)),
                _ => odd = Some(format!("{number} is no port")),
            }
        }

        let mut members = Vec::with_capacity(self.endpoints.len());
        for endpoint in self.endpoints {
            // Further addresses are the same endpoint once more (EndpointSlice API).
            let Some(text) = endpoint.addresses.first() else {
                odd = Some("an endpoint has no address".into());
                continue;
            };
            let Ok(address) = text.parse() else {
                odd = Some(format!("{text:?} is no address"));
                continue;
            };
            let pod = endpoint.target_ref.filter(|target| target.kind.as_deref() == Some("Pod"));
            members.push(Member {
                address,
                conditions: endpoint.conditions,
                pod: pod.and_then(|pod| {
                    Some(Key {
                        namespace: pod.namespace.unwrap_or_else(|| Arc::clone(namespace)),
                        name: pod.name?,
                    })
                }),
                node: endpoint.node_name,
                zone: endpoint.zone,
            });
        }
        (Some(Slice { service, ports, members }), odd)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_say_whether_an_endpoint_may_take_traffic() {
        use Health::{Draining, Healthy, Terminating, Unhealthy};
        let (yes, no) = (Some(true), Some(false));
        // ready, serving, terminating; without and with persistent sessions.
        let table = [
            (None, None, None, Healthy, Healthy),
            (yes, None, None, Healthy, Healthy),
            (yes, no, yes, Healthy, Healthy),
            (no, None, None, Unhealthy, Unhealthy),
            (no, yes, None, Unhealthy, Unhealthy),
            (no, yes, no, Unhealthy, Unhealthy),
            (no, yes, yes, Terminating, Draining),
            (no, None, yes, Terminating, Draining),
            (no, no, yes, Terminating, Terminating),
            (no, no, no, Unhealthy, Unhealthy),
        ];
        for (ready, serving, terminating, plain, persistent) in table {
            let conditions = Conditions { ready, serving, terminating };
            assert_eq!(conditions.health(false), plain, "{conditions:?}");
            assert_eq!(conditions.health(true), persistent, "{conditions:?}, persistent");
        }
    }
}
