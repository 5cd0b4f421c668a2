//! Objects that apply to traffic for services of other namespaces.

use std::collections::BTreeSet;

use serde_json::Value;

use super::ConfigView;
use super::clients::{Audience, of_clients};
use super::objects::items;
use crate::standing::ConfigReason;
use strait_base::codes;
use strait_base::names::list_first;
use strait_model::Namespace;
use strait_model::policy::ForeignHostsMode;
use strait_rules::traffic::foreign::{is_exported, owner_by_name};
use strait_rules::traffic::object::export_to;
use strait_rules::traffic::virtual_service::VirtualService;
use strait_rules::traffic::{HostPattern, Reason};

/// Maximum number of namespaces that a message names.
const NAMED_MAX: usize = 5;

impl ConfigView<'_> {
    /// Returns whether objects of a namespace are reported if they apply to traffic of other
    /// namespaces.
    pub(super) fn notes_foreign(&self, namespace: &Namespace) -> bool {
        self.context.policy.traffic().foreign_hosts != ForeignHostsMode::Allow
            && namespace.as_str() != self.context.mesh.root_namespace
    }

    /// Returns whether exported objects apply to hosts of other namespaces only at proxies in the
    /// objects' namespace.
    fn denies_foreign(&self) -> bool {
        self.context.policy.traffic().foreign_hosts == ForeignHostsMode::Deny
    }

    /// Reports a host that belongs to other namespaces. `clients` are the namespaces of the clients
    /// to which the object applies for this host.
    pub(super) fn foreign_host(
        &self,
        service: &VirtualService,
        host: &HostPattern,
        clients: &Audience,
        path: &str,
    ) -> Option<Reason> {
        let namespace = &service.meta.namespace;
        if !is_exported(&service.export_to, namespace) || !self.notes_foreign(namespace) {
            return None;
        }
        let mut owners = self.owners_of_host(host);
        owners.remove(namespace);
        if owners.is_empty() {
            return None;
        }
        let owners = list_namespaces(&owners);
        if self.denies_foreign() {
            let text = format!(
                "{host} belongs to namespace {owners}: the rules apply to it for clients of namespace {namespace} only (policy \
                 traffic.foreignHosts)"
            );
            return Some(Reason::lost(&codes::FOREIGN_HOST, path, text));
        }
        let others: Audience = clients.iter().filter(|one| *one != namespace).cloned().collect();
        if others.is_empty() {
            return None;
        }
        let clients = match others.contains(&Namespace::default()) {
            true => " for clients of all namespaces".to_owned(),
            false => of_clients(&others, &Audience::new()),
        };
        let text = format!(
            "{host} belongs to namespace {owners}, and the rules of this object apply to its traffic{clients}"
        );
        Some(Reason::warning(&codes::FOREIGN_HOST, path, text))
    }

    /// Reports a host of a ServiceEntry whose name belongs to another namespace. The flag in the
    /// result says whether the policy denies the host.
    pub(super) fn foreign_name(
        &self,
        (host, namespace): (&str, &Namespace),
        object: &Value,
        path: &str,
    ) -> Option<(ConfigReason, bool)> {
        let owner = owner_by_name(host, &self.context.settings.domain)?;
        if owner == *namespace || !self.notes_foreign(namespace) {
            return None;
        }
        let written = items(object, "/spec/exportTo").iter().filter_map(Value::as_str);
        let written: Vec<String> = written.map(str::to_owned).collect();
        let export_to =
            export_to(&written, &self.context.mesh.default_service_export_to, namespace);
        if !is_exported(&export_to, namespace) {
            return None;
        }
        let is_denied = self.denies_foreign();
        let end = match is_denied {
            true => "the entry has no effect for it (policy traffic.foreignHosts)",
            false => "clients that use this name reach the entry",
        };
        let text = format!("{host} is a name of namespace {owner}: {end}");
        Some((ConfigReason::new(&codes::FOREIGN_HOST, path, text), is_denied))
    }

    /// Returns whether a VirtualService applies to no proxy because all its hosts belong to other
    /// namespaces.
    pub(super) fn is_denied(&self, service: &VirtualService, reasons: &[Reason]) -> bool {
        let denied =
            reasons.iter().filter(|one| one.is_lost && one.code.id == codes::FOREIGN_HOST.id);
        let hosts = service.mesh_hosts().count();
        hosts > 0
            && denied.count() >= hosts
            && service.own_gateways().next().is_none()
            && self.services_known
            && !self.may_have_clients(&service.meta.namespace)
    }

    /// Returns the namespaces that own a host, or that own the hosts that a wildcard contains.
    fn owners_of_host(&self, host: &HostPattern) -> BTreeSet<Namespace> {
        let domain = &self.context.settings.domain;
        let by_name = || owner_by_name(&host.to_string(), domain).into_iter().collect();
        let Some(name) = host.exact() else {
            let all = self.context.all_services();
            let all = all.filter(|one| host.contains(&HostPattern::for_service(one.hostname())));
            let found: BTreeSet<_> = all.map(|one| one.primary.namespace.clone()).collect();
            return if found.is_empty() { by_name() } else { found };
        };
        if let Some(service) = self.context.services.get(name) {
            return [service.primary.namespace.clone()].into();
        }
        let private = self.context.private.get(name);
        let private: BTreeSet<_> =
            private.into_iter().flat_map(|all| all.keys()).cloned().collect();
        if !private.is_empty() {
            return private;
        }
        let found: BTreeSet<_> = by_name();
        if !found.is_empty() {
            return found;
        }
        let holds = |pattern: &HostPattern| pattern.contains(host);
        let wildcards = self.context.wildcard_services();
        let narrowest = wildcards.filter(|one| holds(&HostPattern::for_service(one.hostname())));
        let narrowest = narrowest.max_by_key(|one| one.hostname().as_str().len());
        narrowest.map(|one| one.primary.namespace.clone()).into_iter().collect()
    }
}

/// Formats a list of namespaces.
pub(super) fn list_namespaces(namespaces: &BTreeSet<Namespace>) -> String {
    list_first(namespaces.iter().map(Namespace::as_str), NAMED_MAX)
}
