//! Status of Ingresses and IngressClasses.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::Value;

use super::clients::Audience;
use super::covered_rules::ObjectCoverage;
use super::{ConfigView, Finding};
use crate::standing::ObjectStanding;
use strait_base::codes;
use strait_model::{ExportTo, Hostname, IngressStatus, Namespace, Resolution};
use strait_rules::traffic::gateway::Gateway;
use strait_rules::traffic::ingress::{INGRESS_CONTROLLER, Ingress, IngressClass};
use strait_rules::traffic::ingress_merge::shadowed_paths;
use strait_rules::traffic::route::RouteOrigin;
use strait_rules::traffic::{HostPattern, Reason, TrafficObject};

impl ConfigView<'_> {
    /// Returns the status of an Ingress. It applies to the routers that serve Ingresses.
    pub(super) fn ingress(&self, ingress: &Ingress) -> Finding {
        let settings = &self.context.mesh.ingress;
        if let Err(why) = ingress.is_followed(self.ingress_classes(), settings) {
            return Finding::unused(&codes::INGRESS_CLASS, "spec.ingressClassName", why);
        }
        // A just parsed Ingress may not be active yet.
        let gateways = &self.context.traffic.gateways;
        let Some(gateway) = gateways.generated_from(&ingress.meta) else {
            return Finding::default();
        };
        let mut found = self.gateway(gateway);
        found.reasons.extend(self.withheld(&ingress.meta, &ExportTo::Public));
        if found.standing.is_some() {
            let text = format!("no known workload has the label istio={}", settings.selector);
            return Finding::unused(&codes::SELECTOR_UNUSED, "spec", text);
        }
        let taken = self.taken(ingress, gateway);
        let covered = self.covered_rules().of(&RouteOrigin::for_ingress(&ingress.meta));
        if !taken.is_empty() && taken.len() == ingress.rules.len()
            || covered.is_some_and(ObjectCoverage::is_whole)
        {
            found.standing = Some(ObjectStanding::Shadowed);
        }
        let covered = covered.into_iter().flat_map(|covered| covered.reasons(false));
        let is_taken = |reason: &Reason| taken.iter().any(|one| one.path == reason.path);
        found.reasons.extend(covered.filter(|reason| !is_taken(reason)));
        found.reasons.extend(taken);
        let clients = Audience::from([Namespace::default()]);
        let mut reported_paths = BTreeSet::new();
        for one in &ingress.rules {
            let place = &one.rule.place;
            let backend = if place.path.is_some() { ".backend" } else { "" };
            let path = format!(
                "{}{backend}",
                RouteOrigin::for_ingress(&ingress.meta).http_rule_path(place)
            );
            for to in one.rule.destinations.iter().filter(|_| reported_paths.insert(path.clone())) {
                let wrong = self.destination(
                    to,
                    path.clone(),
                    &BTreeSet::new(),
                    &clients,
                    "requests are answered with 503",
                );
                found.reasons.extend(wrong);
            }
        }
        found
    }

    /// Returns the statuses that Ingresses should have. Ingresses that already have this status and
    /// Ingresses of other controllers are left out. Returns none if the Service does not exist:
    /// then another program knows the addresses.
    pub fn ingress_statuses(&self) -> Vec<IngressStatus> {
        let Some(addresses) = self.ingress_addresses() else { return Vec::new() };
        let settings = &self.context.mesh.ingress;
        let all = self.reports.traffic.iter().filter_map(|(key, report)| {
            let Some((_, TrafficObject::Ingress(ingress))) = report.good() else { return None };
            ingress.is_followed(self.ingress_classes(), settings).ok()?;
            let object = self.reports.objects.get(key)?.to_value();
            let generation = object.pointer("/metadata/generation").and_then(Value::as_i64)?;
            let key = (**key).clone();
            let status = IngressStatus { key, generation, addresses: Arc::clone(&addresses) };
            status.merged(&object["status"]).map(|_| status)
        });
        all.collect()
    }

    /// Returns the addresses of the Service that receives the traffic for Ingresses, in the cluster
    /// that contains the objects.
    fn ingress_addresses(&self) -> Option<Arc<[Arc<str>]>> {
        let (settings, mesh) = (&self.context.settings, &self.context.mesh);
        let name = &mesh.ingress.service;
        let host = Hostname::of_kubernetes_service(name, &mesh.root_namespace, &settings.domain);
        let service = self.context.services.get(&host)?;
        let own = service.by_cluster.get(settings.config_cluster.as_ref()?)?;
        Some(match &own.resolution {
            Resolution::Alias(target) => [Arc::from(target.as_str())].into(),
            _ => own.external_addresses.iter().cloned().collect(),
        })
    }

    /// Returns the paths of an Ingress that belong to older objects.
    fn taken(&self, ingress: &Ingress, gateway: &Gateway) -> Vec<Reason> {
        let hosts: BTreeSet<&HostPattern> = ingress.hosts().collect();
        let namespace = Namespace::default();
        let services = &self.context.traffic.virtual_services;
        let joined = services.for_gateway(&gateway.name, &namespace);
        let own = joined.filter_map(|routed| {
            let host = routed.service.hosts.iter().find(|host| hosts.contains(host))?;
            Some(shadowed_paths(host, routed.http.rules.iter()))
        });
        let is_own = |origin: &RouteOrigin| *origin == RouteOrigin::for_ingress(&ingress.meta);
        own.flatten().filter(|(origin, _)| is_own(origin)).map(|(_, reason)| reason).collect()
    }

    /// Returns the status of an IngressClass.
    pub(super) fn ingress_class(&self, class: &IngressClass) -> Finding {
        if class.controller != INGRESS_CONTROLLER {
            let text =
                format!("its controller is {:?}, not {INGRESS_CONTROLLER}", class.controller);
            return Finding::unused(&codes::INGRESS_CLASS, "spec.controller", text);
        }
        Finding::default()
    }

    fn ingress_classes(&self) -> impl Iterator<Item = &IngressClass> {
        self.reports.traffic.values().filter_map(|report| match report.good() {
            Some((_, TrafficObject::IngressClass(class))) => Some(&**class),
            _ => None,
        })
    }
}
