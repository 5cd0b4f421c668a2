//! Pods: identity, labels, network and ports of running workloads.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use serde::de::{SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::kind::{IndexedObject, ObjectList, ReadKind, workload_key};
use super::namespace::network;
use super::scope::Scope;
use strait_kube_client::{
    BorrowedText, FieldValue, Form, Gather, Identity, MalformedMessage, Meta, NamespacedName,
    OwnerReference, ProtobufMessage, Raw, list, null_as_default,
};
use strait_model::{
    Addresses, EndpointMetadata, Locality, Profile, TLS_MODE_LABEL, TlsMode, UidMark, Workload,
    WorkloadKey, WorkloadsBuilder, telemetry,
};

/// The decoded part of a Pod.
#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct PodForm<'a> {
    #[serde(borrow, deserialize_with = "null_as_default")]
    metadata: Meta<'a>,
    #[serde(borrow, deserialize_with = "null_as_default")]
    spec: PodSpec<'a>,
    #[serde(borrow, deserialize_with = "null_as_default")]
    status: PodStatus<'a>,
}

#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct PodSpec<'a> {
    #[serde(borrow)]
    service_account_name: BorrowedText<'a>,
    #[serde(borrow)]
    node_name: BorrowedText<'a>,
    #[serde(borrow)]
    hostname: BorrowedText<'a>,
    #[serde(borrow)]
    subdomain: BorrowedText<'a>,
    #[serde(borrow, deserialize_with = "list")]
    containers: Vec<Container<'a>>,
    #[serde(borrow, deserialize_with = "list")]
    init_containers: Vec<Container<'a>>,
}

#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Container<'a> {
    #[serde(borrow)]
    restart_policy: BorrowedText<'a>,
    #[serde(borrow, deserialize_with = "list")]
    ports: Vec<ContainerPort<'a>>,
}

#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ContainerPort<'a> {
    #[serde(borrow)]
    name: BorrowedText<'a>,
    container_port: i64,
}

#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
struct PodStatus<'a> {
    #[serde(borrow)]
    phase: BorrowedText<'a>,
    #[serde(deserialize_with = "null_as_default")]
    conditions: NotReady,
    #[serde(borrow, rename = "podIP")]
    pod_ip: BorrowedText<'a>,
    #[serde(borrow, rename = "podIPs", deserialize_with = "list")]
    pod_ips: Vec<PodIp<'a>>,
}

/// Whether there is a condition `Ready` that is not true. Other conditions are not stored.
#[derive(Debug, Default, PartialEq)]
struct NotReady(bool);

#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
struct PodCondition<'a> {
    #[serde(borrow, rename = "type")]
    kind: Raw<'a>,
    #[serde(borrow)]
    status: Raw<'a>,
}

impl NotReady {
    fn note(&mut self, condition: &PodCondition<'_>) {
        self.0 |= *condition.kind == *b"Ready" && *condition.status != *b"True";
    }
}

impl<'de> Deserialize<'de> for NotReady {
    fn deserialize<D: Deserializer<'de>>(json: D) -> Result<Self, D::Error> {
        struct Conditions;
        impl<'de> Visitor<'de> for Conditions {
            type Value = NotReady;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of conditions")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<NotReady, A::Error> {
                let mut found = NotReady::default();
                while let Some(condition) = list.next_element::<PodCondition<'de>>()? {
                    found.note(&condition);
                }
                Ok(found)
            }
        }
        json.deserialize_seq(Conditions)
    }
}

#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
struct PodIp<'a> {
    #[serde(borrow)]
    ip: BorrowedText<'a>,
}

// Field numbers: k8s.io/api/core/v1/generated.proto.

impl<'a> ProtobufMessage<'a> for PodForm<'a> {
    fn field(&mut self, number: u32, value: FieldValue<'a>) -> Result<(), MalformedMessage> {
        match number {
            1 => value.message(&mut self.metadata),
            2 => value.message(&mut self.spec),
            3 => value.message(&mut self.status),
            _ => Ok(()),
        }
    }
}

impl<'a> ProtobufMessage<'a> for PodSpec<'a> {
    fn field(&mut self, number: u32, value: FieldValue<'a>) -> Result<(), MalformedMessage> {
        match number {
            2 => value.push(&mut self.containers)?,
            8 => self.service_account_name = value.text()?,
            10 => self.node_name = value.text()?,
            16 => self.hostname = value.text()?,
            17 => self.subdomain = value.text()?,
            20 => value.push(&mut self.init_containers)?,
            _ => {}
        }
        Ok(())
    }
}

impl<'a> ProtobufMessage<'a> for Container<'a> {
    fn field(&mut self, number: u32, value: FieldValue<'a>) -> Result<(), MalformedMessage> {
        match number {
            6 => value.push(&mut self.ports)?,
            24 => self.restart_policy = value.text()?,
            _ => {}
        }
        Ok(())
    }
}

impl<'a> ProtobufMessage<'a> for ContainerPort<'a> {
    fn field(&mut self, number: u32, value: FieldValue<'a>) -> Result<(), MalformedMessage> {
        match number {
            1 => self.name = value.text()?,
            3 => self.container_port = value.number()?,
            _ => {}
        }
        Ok(())
    }
}

impl<'a> ProtobufMessage<'a> for PodStatus<'a> {
    fn field(&mut self, number: u32, value: FieldValue<'a>) -> Result<(), MalformedMessage> {
        match number {
            1 => self.phase = value.text()?,
            2 => {
                let mut condition = PodCondition::default();
                value.message(&mut condition)?;
                self.conditions.note(&condition);
            }
            6 => self.pod_ip = value.text()?,
            12 => value.push(&mut self.pod_ips)?,
            _ => {}
        }
        Ok(())
    }
}

impl<'a> ProtobufMessage<'a> for PodCondition<'a> {
    fn field(&mut self, number: u32, value: FieldValue<'a>) -> Result<(), MalformedMessage> {
        match number {
            1 => self.kind = value.bytes()?.into(),
            2 => self.status = value.bytes()?.into(),
            _ => {}
        }
        Ok(())
    }
}

impl<'a> ProtobufMessage<'a> for PodIp<'a> {
    fn field(&mut self, number: u32, value: FieldValue<'a>) -> Result<(), MalformedMessage> {
        if number == 1 {
            self.ip = value.text()?;
        }
        Ok(())
    }
}

impl<'a> Form<'a> for PodForm<'a> {
    fn from_protobuf(bytes: &'a [u8]) -> Result<Self, MalformedMessage> {
        let mut form = Self::default();
        form.merge(bytes).map(|()| form)
    }

    fn identity(&self) -> Identity<'_> {
        self.metadata.identity()
    }
}

/// The stored part of a Pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PodRecord {
    pub(super) workload: Workload,
    /// Whether it receives traffic. A pod without the condition does.
    pub(super) ready: bool,
}

impl ReadKind for PodRecord {
    type Form<'a> = PodForm<'a>;
    type List = PodList;

    fn convert(form: PodForm<'_>, scope: &Scope) -> IndexedObject<Self> {
        let PodForm { metadata, spec, status } = form;
        let key = scope.key(metadata.identity());
        // It never runs again, and another pod may have its address.
        if matches!(&*status.phase, "Succeeded" | "Failed") {
            return IndexedObject { key, value: None, invalid: None };
        }
        let mut invalid = None;
        let mut addresses: Vec<IpAddr> = Vec::new();
        // `podIP` repeats the first of `podIPs`.
        let is_repeated = status.pod_ips.first().is_some_and(|first| first.ip == status.pod_ip);
        let single = (!is_repeated).then_some(&status.pod_ip);
        let texts = status.pod_ips.iter().map(|one| &one.ip).chain(single);
        for text in texts.filter_map(BorrowedText::given) {
            match text.parse() {
                Ok(address) if addresses.contains(&address) => {}
                Ok(address) => addresses.push(address),
                Err(_) => invalid = Some(format!("{text:?} is not an IP address").into()),
            }
        }

        let account = spec.service_account_name.given().unwrap_or("default");
        // An init container with a restart policy is a sidecar, which runs as long as the pod.
        let sidecars = spec.init_containers.iter();
        let sidecars = sidecars.filter(|one| *one.restart_policy == *"Always");
        let ports = spec.containers.iter().chain(sidecars).flat_map(|one| &one.ports);
        let named = ports.filter_map(|port| {
            let number = u16::try_from(port.container_port).ok().filter(|number| *number > 0);
            Some((port.name.given()?, number?))
        });
        let mut ports: Vec<(&str, u16)> = named.collect();
        // The first of two ports with the same name wins.
        ports.sort_by_key(|(name, _)| *name);
        ports.dedup_by_key(|(name, _)| *name);

        let is_named = *spec.hostname == *metadata.name;
        let subdomain = spec.subdomain.given().filter(|_| is_named);
        let labels = metadata.labels.sorted();
        let telemetry = (scope.settings.metadata == EndpointMetadata::Full).then(|| {
            let label = |name: &str| {
                labels.iter().find(|(label, _)| **label == *name).map(|(_, value)| &**value)
            };
            telemetry(
                workload_name(&metadata.name, &metadata.controller, label),
                &metadata.namespace,
                label,
            )
        });
        let mut text = Vec::with_capacity(512);
        // Each part with its length, so that different profiles have different encodings.
        let mut write = |part: &[u8]| {
            text.extend_from_slice(&part.len().to_le_bytes());
            text.extend_from_slice(part);
        };
        write(scope.settings.trust_domain.as_bytes());
        write(metadata.namespace.as_bytes());
        write(account.as_bytes());
        write(subdomain.unwrap_or_default().as_bytes());
        for (name, value) in &labels {
            write(name.as_bytes());
            write(value.as_bytes());
        }
        write(b"");
        write(telemetry.as_deref().unwrap_or_default().as_bytes());
        for (name, number) in &ports {
            write(name.as_bytes());
            write(&number.to_le_bytes());
        }
        let profile = scope.profile(&text, || {
            let labels = scope.sorted_labels(labels);
            let label = labels.get(TLS_MODE_LABEL).map(|value| &**value);
            Profile {
                service_account: scope.text(account),
                identity: scope.identity(&metadata.namespace, account),
                tls_mode: TlsMode::from_label(label),
                network_label: network(&labels),
                locality: Locality::claimed(&labels).map(Into::into),
                telemetry: telemetry.as_deref().map(|text| scope.text(text)),
                subdomain: subdomain.map(|name| scope.text(name)),
                named_ports: ports.iter().map(|(name, port)| (scope.text(name), *port)).collect(),
                labels: Arc::new(labels),
            }
        });
        let node = spec.node_name.given().and_then(|name| scope.node(name.as_bytes()));
        let addresses = addresses.into_iter().collect::<Addresses>();
        let addresses = addresses.marked(UidMark::of(&metadata.uid));
        let ready = !status.conditions.0 && metadata.deletion_timestamp.seconds() == 0;
        let workload = Workload { profile, addresses, node };
        IndexedObject { key, value: Some(Self { workload, ready }), invalid }
    }
}

/// Returns the workload name of a pod: the name of the controller's owner, if that owner is known
/// to create controllers; else the name of the controller, or of the pod.
fn workload_name<'a>(
    pod: &'a str,
    controller: &'a OwnerReference<'_>,
    label: impl Fn(&str) -> Option<&'a str>,
) -> &'a str {
    match &*controller.kind {
        "" => pod,
        kind => strait_model::workload_of_controller(kind, &controller.name, label),
    }
}

/// A list of pods, the most frequent kind, gathered in the form in which it is stored. Storing the
/// pods one by one would leave a fragmented heap, three times as large.
#[derive(Debug, Default)]
pub(super) struct PodList {
    pub(super) pods: WorkloadsBuilder,
    /// Pods that have an address and receive no traffic.
    pub(super) unready: BTreeSet<WorkloadKey>,
    /// The reasons of invalid parts, by pod.
    pub(super) invalid: BTreeMap<NamespacedName, Box<str>>,
}

impl Gather<IndexedObject<PodRecord>> for PodList {
    fn add(&mut self, object: IndexedObject<PodRecord>) {
        let IndexedObject { key, value, invalid } = object;
        let Some(PodRecord { workload, ready }) = value else { return self.forget(&key) };
        if !ready && !workload.addresses.is_empty() {
            self.unready.insert(workload_key(&key));
        } else if !self.unready.is_empty() {
            self.unready.remove(&workload_key(&key));
        }
        self.pods.put(&key.namespace, &key.name, workload);
        match invalid {
            Some(reason) => _ = self.invalid.insert(key, reason),
            None => _ = self.invalid.remove(&key),
        }
    }

    fn forget(&mut self, key: &NamespacedName) {
        self.pods.remove(&key.namespace, &key.name);
        self.unready.remove(&workload_key(key));
        self.invalid.remove(key);
    }

    fn len(&self) -> usize {
        self.pods.len()
    }
}

impl ObjectList<PodRecord> for PodList {
    fn count(&self) -> usize {
        self.pods.len()
    }
}
