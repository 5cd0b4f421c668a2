//! Status of ServiceEntries and WorkloadEntries.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::Value;

use super::clients::seen;
use super::foreign::list_namespaces;
use super::objects::items;
use super::{ConfigView, Finding, state_of};
use crate::standing::{ConfigReason, ConfigState, ObjectStanding};
use strait_base::codes;
use strait_model::{Hostname, ISTIO_NETWORKING, Labels, Namespace, ObjectKey, WorkloadKey};
use strait_rules::traffic::Reason;

impl ConfigView<'_> {
    /// Returns the status of an entry. Returns `None` if the object is not an entry.
    pub(super) fn entry(&self, key: &ObjectKey) -> Option<ConfigState> {
        let is_service = match (&*key.group, &*key.kind) {
            (ISTIO_NETWORKING, "ServiceEntry") => true,
            (ISTIO_NETWORKING, "WorkloadEntry") => false,
            _ => return None,
        };
        let object = &self.reports.objects.get(key)?.to_value();
        let is_own = |kind: &str, name: &WorkloadKey| {
            *kind == *key.kind
                && *name.namespace.as_str() == *key.namespace
                && name.name == key.name
        };
        let problems = self.reports.entries.iter().filter(|one| is_own(one.kind, &one.object));
        let problems: Vec<_> = problems.collect();
        // The host list of an unreadable entry is unknown, so it has no lost hosts.
        let is_refused = problems.iter().any(|one| one.refused);
        let (mut state, used) = if is_service {
            self.service_entry(key, object, is_refused)
        } else {
            self.workload_entry(key, object)
        };
        if is_refused {
            state.reasons.clear();
            state.state = ObjectStanding::Refused;
        } else if !problems.is_empty() && used {
            let hosts = items(object, "/spec/hosts").len();
            let lost = problems.iter().filter(|one| one.fault.field.starts_with("spec.hosts["));
            let all_lost = is_service && hosts > 0 && lost.count() == hosts;
            state.state = if all_lost { ObjectStanding::Shadowed } else { ObjectStanding::Partly };
        }
        let reasons = problems.iter().map(|one| {
            let text = format!("{}; {}", one.fault.fact, one.effect);
            ConfigReason::new(&codes::ENTRY, one.fault.field.clone(), text)
        });
        state.reasons.extend(reasons);
        if is_service && !is_refused {
            let loss = self.entry_loss(key, object);
            if loss.is_whole {
                state.state = ObjectStanding::Shadowed;
            } else if loss.is_partly && state.state == ObjectStanding::InForce {
                state.state = ObjectStanding::Partly;
            }
            state.reasons.extend(loss.reasons);
            state.reasons.extend(self.shadowed_hosts(key));
        }
        Some(state)
    }

    /// Reports that entries of other namespaces have no effect for the hosts of the entry `key`.
    fn shadowed_hosts(&self, key: &ObjectKey) -> Option<ConfigReason> {
        let own = WorkloadKey::new(&*key.namespace, &*key.name);
        let lost = self.reports.entries.iter().filter(|one| one.holder.as_ref() == Some(&own));
        let others: BTreeSet<_> = lost.map(|one| one.object.namespace.clone()).collect();
        (!others.is_empty() && self.notes_foreign(&own.namespace)).then(|| {
            let text = format!(
                "entries of namespace {} have no effect for the hosts that they share with this older entry",
                list_namespaces(&others)
            );
            ConfigReason::new(&codes::FOREIGN_HOST, "spec.hosts", text)
        })
    }

    fn service_entry(
        &self,
        key: &ObjectKey,
        object: &Value,
        is_refused: bool,
    ) -> (ConfigState, bool) {
        let hosts = items(object, "/spec/hosts").iter().filter_map(Value::as_str);
        let hosts: Vec<String> = hosts.map(str::to_ascii_lowercase).collect();
        let is_of = |host: &String, namespace: &Namespace| {
            seen(self.context, host, namespace).is_some_and(|service| {
                service
                    .by_cluster
                    .values()
                    .chain([&service.primary])
                    .any(|own| *own.namespace.as_str() == *key.namespace)
            })
        };
        let proxies =
            self.clients.count(|namespace, _| hosts.iter().any(|host| is_of(host, namespace)));
        let proxies = if is_refused && hosts.is_empty() { 0 } else { proxies };
        let unselected = self.unselected_endpoints(key, object);
        let reasons = unselected.into_iter().chain(self.missing_endpoints(key, object)).collect();
        let found = Finding { proxies, reasons, ..Finding::default() };
        (state_of(key, ObjectStanding::InForce, found), true)
    }

    /// Reports a selector of a ServiceEntry that selects no workload.
    fn unselected_endpoints(&self, key: &ObjectKey, object: &Value) -> Option<Reason> {
        let labels = object.pointer("/spec/workloadSelector/labels")?;
        let labels = labels.as_object().filter(|labels| !labels.is_empty())?;
        let pairs = labels.iter().map(|(name, value)| {
            (Arc::from(&**name), Arc::from(value.as_str().unwrap_or_default()))
        });
        let is_none = self.services_known
            && !self.is_carried(&Labels::from_iter(pairs), &Namespace::from(&*key.namespace));
        let text = "no known workload has these labels, so the service has no endpoints";
        let path = "spec.workloadSelector";
        is_none.then(|| Reason::warning(&codes::SELECTOR_UNUSED, path, text))
    }

    /// Reports a static ServiceEntry whose hosts have no endpoints at all.
    fn missing_endpoints(&self, key: &ObjectKey, object: &Value) -> Option<Reason> {
        let spec = &object["spec"];
        let is_empty = spec["resolution"] == "STATIC"
            && items(spec, "/endpoints").is_empty()
            && spec["workloadSelector"].is_null();
        let namespace = Namespace::from(&*key.namespace);
        let has_endpoints = |host: &Value| {
            let host = host.as_str().unwrap_or_default().to_ascii_lowercase();
            let service = seen(self.context, &host, &namespace);
            service.is_some_and(|service| service.endpoints().next().is_some())
        };
        let hosts = items(spec, "/hosts");
        let is_lost = is_empty && self.services_known && !hosts.iter().any(has_endpoints);
        let text = "neither the entry nor another object has endpoints for its hosts";
        is_lost.then(|| Reason::warning(&codes::ENTRY_EMPTY, "spec.endpoints", text))
    }

    /// Reports ports of a WorkloadEntry that none of its services has.
    fn unnamed_ports(&self, object: &Value, using: &BTreeSet<Hostname>) -> Vec<Reason> {
        let Some(ports) = object.pointer("/spec/ports").and_then(Value::as_object) else {
            return Vec::new();
        };
        let services = using.iter().flat_map(|host| {
            let private = self.context.private.get(host.as_str());
            let private = private.into_iter().flat_map(|all| all.values());
            self.context.services.get(host.as_str()).into_iter().chain(private)
        });
        let has: BTreeSet<&str> =
            services.flat_map(|one| one.ports().map(|port| &*port.name)).collect();
        let listed = has.iter().copied().collect::<Vec<_>>().join(", ");
        let reason = |name: &String| {
            let text =
                format!("no service of the endpoint has a port {name:?}, they have {listed}");
            Reason::lost(&codes::TRAFFIC_PORT, format!("spec.ports.{name}"), text)
        };
        ports.keys().filter(|name| !has.contains(name.as_str())).map(reason).collect()
    }

    fn workload_entry(&self, key: &ObjectKey, object: &Value) -> (ConfigState, bool) {
        let name = WorkloadKey::new(&*key.namespace, &*key.name);
        let using = self.workloads.get_or_init(|| self.used_workloads()).get(&name);
        let Some(using) = using else {
            let text = "no ServiceEntry or Service selects it";
            let finding = Finding::unused(&codes::WORKLOAD_UNUSED, "metadata.labels", text);
            return (state_of(key, ObjectStanding::Unused, finding), false);
        };
        let proxies = self.clients.count(|namespace, _| {
            let mut hosts = using.iter();
            hosts.any(|host| seen(self.context, host.as_str(), namespace).is_some())
        });
        let reasons = self.unnamed_ports(object, using);
        let standing = match reasons.is_empty() {
            true => ObjectStanding::InForce,
            false => ObjectStanding::Partly,
        };
        let found = Finding { proxies, reasons, ..Finding::default() };
        (state_of(key, standing, found), true)
    }

    /// Returns the workloads that are endpoints of services from entries, with these services.
    fn used_workloads(&self) -> BTreeMap<WorkloadKey, BTreeSet<Hostname>> {
        let mut used = BTreeMap::<_, BTreeSet<_>>::new();
        for service in self.context.all_services() {
            for (_, endpoint, _) in service.endpoints().filter(|(shard, ..)| !shard.is_claimed()) {
                if let Some(workload) = endpoint.workload {
                    let hosts = used.entry(workload.to_key()).or_default();
                    hosts.insert(service.hostname().clone());
                }
            }
        }
        used
    }
}
