//! What becomes of Ingresses and IngressClasses.

use std::collections::BTreeSet;

use super::clients::Audience;
use super::{ConfigView, Finding};
use crate::codes;
use crate::explain::standing::ObjectStanding;
use crate::model::Namespace;
use crate::traffic::gateway::Gateway;
use crate::traffic::ingress::{INGRESS_CONTROLLER, Ingress, IngressClass};
use crate::traffic::ingresses::taken_paths;
use crate::traffic::route::RouteOrigin;
use crate::traffic::{HostPattern, Reason, TrafficObject};

impl ConfigView<'_> {
    /// An Ingress is in force for the routers that serve Ingresses.
    pub(super) fn ingress(&self, ingress: &Ingress) -> Finding {
        let settings = &self.context.mesh.ingress;
        if let Err(why) = ingress.is_followed(self.ingress_classes(), settings) {
            return Finding::unused(&codes::INGRESS_CLASS, "spec.ingressClassName", why);
        }
        // What was read just now is in force in a moment.
        let gateways = &self.context.traffic.gateways;
        let Some(gateway) = gateways.of_ingress(&ingress.meta) else { return Finding::default() };
        let mut found = self.gateway(gateway);
        if found.standing.is_some() {
            let text =
                format!("no workload that is known has the label istio={}", settings.selector);
            return Finding::unused(&codes::SELECTOR_UNUSED, "spec", text);
        }
        let taken = self.taken(ingress, gateway);
        if !taken.is_empty() && taken.len() == ingress.rules.len() {
            found.standing = Some(ObjectStanding::Shadowed);
        }
        found.reasons.extend(taken);
        let clients = Audience::from([Namespace::default()]);
        let mut told = BTreeSet::new();
        for one in &ingress.rules {
            let place = &one.rule.place;
            let backend = if place.path.is_some() { ".backend" } else { "" };
            let path =
                format!("{}{backend}", RouteOrigin::of_ingress(&ingress.meta).path_of(place));
            for to in one.rule.destinations.iter().filter(|_| told.insert(path.clone())) {
                let wrong =
                    self.destination(to, path.clone(), &BTreeSet::new(), &clients, "answered 503");
                found.reasons.extend(wrong);
            }
        }
        found
    }

    /// What of an Ingress others have, that came first.
    fn taken(&self, ingress: &Ingress, gateway: &Gateway) -> Vec<Reason> {
        let hosts: BTreeSet<&HostPattern> = ingress.hosts().collect();
        let namespace = Namespace::default();
        let services = &self.context.traffic.virtual_services;
        let joined = services.of_gateway(&gateway.name, &namespace);
        let own = joined.filter_map(|routed| {
            let host = routed.service.hosts.iter().find(|host| hosts.contains(host))?;
            Some(taken_paths(host, routed.http.rules.iter()))
        });
        let is_own = |origin: &RouteOrigin| *origin == RouteOrigin::of_ingress(&ingress.meta);
        own.flatten().filter(|(origin, _)| is_own(origin)).map(|(_, reason)| reason).collect()
    }

    /// An IngressClass is in force as long as some Ingress is of it.
    pub(super) fn ingress_class(&self, class: &IngressClass) -> Finding {
        if class.controller != INGRESS_CONTROLLER {
            let text =
                format!("its controller is {:?}, not {INGRESS_CONTROLLER}", class.controller);
            return Finding::unused(&codes::INGRESS_CLASS, "spec.controller", text);
        }
        Finding::default()
    }

    fn ingress_classes(&self) -> impl Iterator<Item = &IngressClass> {
        self.reports.traffic.values().filter_map(|report| match &report.good {
            Some((_, TrafficObject::IngressClass(class))) => Some(&**class),
            _ => None,
        })
    }
}
