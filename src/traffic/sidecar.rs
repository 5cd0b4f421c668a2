//! Sidecar: which services the proxies of a namespace, or some of them, are given. (Istio, "Sidecar";
//! docs/reference/traffic.md, "Sidecar".)

use std::collections::BTreeSet;
use std::sync::Arc;

use imbl::OrdMap;
use imbl::ordmap::DiffItem;
use serde::Deserialize;
use serde_json::Value;

use super::changes::TrafficChanges;
use super::hosts::HostPattern;
use super::kind::KindSettings;
use super::object::{self, ObjectMeta, RawWorkloadSelector, Reason};
use super::selection::{RuleSelector, Selection, Selectors};
use crate::codes;
use crate::mesh::OutboundTrafficPolicy;
use crate::model::Namespace;

/// What one object says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sidecar {
    /// Which object it is.
    pub meta: ObjectMeta,
    /// The proxies of its namespace that it holds for, where these are not all.
    pub selector: Option<RuleSelector>,
    /// Never empty.
    egress: Vec<EgressListener>,
    /// What becomes of connections to what the mesh doesn't know, if it says so.
    pub outbound: Option<OutboundTrafficPolicy>,
}

/// Services that are reached at one port, or at all that no other such listener takes.
#[derive(Debug, Clone, PartialEq, Eq)]
struct EgressListener {
    port: Option<u16>,
    imported: Vec<HostImport>,
    /// Left out of these.
    excluded: Vec<HostImport>,
}

/// Hosts of some namespaces.
#[derive(Debug, Clone, PartialEq, Eq)]
struct HostImport {
    namespace: ImportNamespace,
    host: HostPattern,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum ImportNamespace {
    Any,
    /// That of the proxy.
    Own,
    Named(Namespace),
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct RawSidecar {
    workload_selector: Option<RawWorkloadSelector>,
    ingress: Vec<Value>,
    egress: Vec<RawEgressListener>,
    inbound_connection_pool: Option<Value>,
    outbound_traffic_policy: Option<RawOutboundTrafficPolicy>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct RawEgressListener {
    port: Option<RawListenerPort>,
    bind: String,
    capture_mode: Option<String>,
    hosts: Vec<String>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct RawListenerPort {
    number: u32,
    protocol: String,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct RawOutboundTrafficPolicy {
    mode: Option<OutboundTrafficPolicy>,
    egress_proxy: Option<Value>,
}

impl Sidecar {
    /// Reads an object, with what its owner should know.
    ///
    /// # Errors
    /// Why it is refused whole.
    pub fn read(
        meta: ObjectMeta,
        object: &Value,
        settings: &KindSettings,
    ) -> Result<(Self, Vec<Reason>), Reason> {
        let raw: RawSidecar = object::body(object)?;
        let mut reasons = Vec::new();
        let mut unsupported = |is_there: bool, path: &str, text: &str| {
            if is_there {
                reasons.push(Reason::lost(&codes::TRAFFIC_UNSUPPORTED, path, text));
            }
        };
        unsupported(
            !raw.ingress.is_empty(),
            "spec.ingress",
            "inbound listeners are those of the services that a workload serves",
        );
        unsupported(
            raw.inbound_connection_pool.is_some(),
            "spec.inboundConnectionPool",
            "inbound connections have no limits",
        );
        let policy = raw.outbound_traffic_policy;
        unsupported(
            policy.as_ref().is_some_and(|policy| policy.egress_proxy.is_some()),
            "spec.outboundTrafficPolicy.egressProxy",
            "what the mesh doesn't know is reached directly or not at all",
        );
        if policy.as_ref().is_some_and(|policy| policy.mode.is_none()) {
            let text = "no mode is REGISTRY_ONLY: nothing that the mesh doesn't know is reached";
            let path = "spec.outboundTrafficPolicy";
            reasons.push(Reason::warning(&codes::SIDECAR_POLICY, path, text));
        }
        let outbound =
            policy.map(|policy| policy.mode.unwrap_or(OutboundTrafficPolicy::RegistryOnly));
        let mut egress = Vec::new();
        for (at, raw) in raw.egress.into_iter().enumerate() {
            egress.extend(EgressListener::read(raw, at, settings, &mut reasons));
        }
        if egress.is_empty() && reasons.iter().all(|one| !one.path.starts_with("spec.egress")) {
            egress.push(EgressListener::of_everything());
        }
        let selector = raw.workload_selector.map(|raw| raw.match_labels);
        let selector = selector.filter(|labels| !labels.is_empty()).map(|labels| {
            let pair = |(key, value): (String, String)| (key.into(), value.into());
            Arc::new(labels.into_iter().map(pair).collect())
        });
        Ok((Self { meta, selector, egress, outbound }, reasons))
    }

    /// The listener that takes a port.
    fn listener(&self, port: u16) -> impl Iterator<Item = &EgressListener> {
        let has_own = self.egress.iter().any(|one| one.port == Some(port));
        let wanted = has_own.then_some(port);
        self.egress.iter().filter(move |one| one.port == wanted)
    }
}

impl EgressListener {
    fn of_everything() -> Self {
        let all = HostImport { namespace: ImportNamespace::Any, host: HostPattern::all() };
        Self { port: None, imported: vec![all], excluded: Vec::new() }
    }

    fn read(
        raw: RawEgressListener,
        at: usize,
        settings: &KindSettings,
        reasons: &mut Vec<Reason>,
    ) -> Option<Self> {
        let path = format!("spec.egress[{at}]");
        let mut lost = |field: &str, text: String| {
            let path = format!("{path}{field}");
            reasons.push(Reason::lost(&codes::TRAFFIC_UNSUPPORTED, path, text));
        };
        if !raw.bind.is_empty() {
            lost(".bind", "services are reached at their own addresses".to_owned());
        }
        if raw.capture_mode.as_deref() == Some("NONE") {
            lost(".captureMode", "all connections are redirected".to_owned());
        }
        let port = raw.port.filter(|port| port.number != 0);
        if port.as_ref().is_some_and(|port| port.protocol.eq_ignore_ascii_case("HTTP_PROXY")) {
            lost(".port.protocol", "nothing listens for requests to a proxy".to_owned());
            return None;
        }
        let port = match port.map(|port| u16::try_from(port.number).map_err(|_| port.number)) {
            None => None,
            Some(Ok(port)) => Some(port),
            Some(Err(number)) => {
                let text = format!("{number} is no port; the listener is left out");
                let path = format!("{path}.port.number");
                reasons.push(Reason::lost(&codes::TRAFFIC_PORT, path, text));
                return None;
            }
        };
        let (mut imported, mut excluded) = (Vec::new(), Vec::new());
        for (at, text) in raw.hosts.iter().enumerate() {
            match HostImport::read(text, settings) {
                Ok((import, true)) => imported.push(import),
                Ok((import, false)) => excluded.push(import),
                Err(fact) => {
                    let text = format!("{text:?} {fact}; nothing is imported by it");
                    let path = format!("{path}.hosts[{at}]");
                    reasons.push(Reason::lost(&codes::SIDECAR_HOST, path, text));
                }
            }
        }
        Some(Self { port, imported, excluded })
    }

    /// Whether a service of that namespace is among its hosts.
    fn has(&self, host: &HostPattern, owner: &Namespace, own: &Namespace) -> bool {
        let fits = |one: &HostImport| one.is_of(owner, own) && one.host.contains(host);
        self.imported.iter().any(fits) && !self.excluded.iter().any(fits)
    }

    /// Whether rules of that namespace for such a host are.
    fn has_rules(&self, host: &HostPattern, owner: &Namespace, own: &Namespace) -> bool {
        let meets = |one: &HostImport| one.is_of(owner, own) && one.host.meets(host);
        let excludes = |one: &HostImport| one.is_of(owner, own) && one.host.contains(host);
        self.imported.iter().any(meets) && !self.excluded.iter().any(excludes)
    }
}

impl HostImport {
    /// Reads `namespace/host`; whether it is imported or excluded.
    fn read(text: &str, settings: &KindSettings) -> Result<(Self, bool), String> {
        let (namespace, host) =
            text.split_once('/').ok_or("has no namespace before a slash, as in ./* or shop/*")?;
        let (namespace, imports) = match namespace.strip_prefix('~') {
            None => (namespace, true),
            Some("") => ("*", false),
            Some(excluded) => (excluded, false),
        };
        let namespace = match namespace {
            "" => return Err("has no namespace before its slash".to_owned()),
            "*" => ImportNamespace::Any,
            "." => ImportNamespace::Own,
            name => ImportNamespace::Named(Namespace::from(name)),
        };
        if host != "*" && !host.contains('.') {
            return Err(format!(
                "names a host that is not in full, as in {host}.NAMESPACE.svc.{}",
                settings.domain
            ));
        }
        let host =
            HostPattern::parse(host, "", &settings.domain).map_err(|error| error.to_string())?;
        Ok((Self { namespace, host }, imports))
    }

    fn is_of(&self, owner: &Namespace, own: &Namespace) -> bool {
        match &self.namespace {
            ImportNamespace::Any => true,
            ImportNamespace::Own => owner == own,
            ImportNamespace::Named(name) => owner == name,
        }
    }
}

/// What of the mesh a proxy is given, as far as Sidecars say it. Everything by default.
#[derive(Debug, Clone, Copy)]
pub struct ImportScope<'a> {
    sidecar: Option<&'a Arc<Sidecar>>,
    /// The proxy's.
    namespace: &'a Namespace,
}

impl<'a> ImportScope<'a> {
    /// The object that says so.
    pub fn sidecar(&self) -> Option<&'a Arc<Sidecar>> {
        self.sidecar
    }

    /// Whether a service of the namespace `owner` is reached at some port.
    pub fn includes(&self, host: &HostPattern, owner: &Namespace) -> bool {
        self.sidecar.is_none_or(|sidecar| {
            sidecar.egress.iter().any(|one| one.has(host, owner, self.namespace))
        })
    }

    /// Whether it is reached at that port.
    pub fn includes_port(&self, host: &HostPattern, owner: &Namespace, port: u16) -> bool {
        self.sidecar.is_none_or(|sidecar| {
            sidecar.listener(port).any(|one| one.has(host, owner, self.namespace))
        })
    }

    /// Whether services may be reached at some of their ports alone.
    pub fn is_by_port(&self) -> bool {
        self.sidecar.is_some_and(|sidecar| sidecar.egress.iter().any(|one| one.port.is_some()))
    }

    /// Whether rules for a host, which are in the namespace `owner`, hold for the proxy.
    pub fn includes_rules(&self, host: &HostPattern, owner: &Namespace) -> bool {
        self.sidecar.is_none_or(|sidecar| {
            sidecar.egress.iter().any(|one| one.has_rules(host, owner, self.namespace))
        })
    }
}

/// All Sidecars, by namespace: of each those with a selector first, the oldest of either first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sidecars {
    by_namespace: OrdMap<Namespace, Arc<[Arc<Sidecar>]>>,
    root_namespace: Namespace,
}

impl Sidecars {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.by_namespace.is_empty()
    }

    /// Whether it matters that a proxy is in this namespace.
    pub fn concerns(&self, namespace: &Namespace) -> bool {
        self.by_namespace.contains_key(namespace) || self.of_root().is_some()
    }

    /// The namespaces that have any.
    pub fn namespaces(&self) -> impl Iterator<Item = &Namespace> {
        self.by_namespace.keys()
    }

    /// What a proxy is given: one Sidecar says it, of the proxy's namespace with a selector, else without, else of the
    /// root namespace without. Two are never mixed.
    pub fn scope<'a>(&'a self, namespace: &'a Namespace, selection: &Selection) -> ImportScope<'a> {
        let own = self.candidates(namespace);
        let selected = |sidecar: &&Arc<Sidecar>| {
            sidecar.selector.as_ref().is_none_or(|selector| selection.contains(selector))
        };
        ImportScope { sidecar: own.iter().find(selected).or_else(|| self.of_root()), namespace }
    }

    /// Whether some proxy of a namespace may be given a service.
    pub fn may_include(
        &self,
        namespace: &Namespace,
        host: &HostPattern,
        owner: &Namespace,
    ) -> bool {
        let own = self.candidates(namespace);
        let by = |sidecar| ImportScope { sidecar: Some(sidecar), namespace }.includes(host, owner);
        let is_for_all = own.iter().any(|sidecar| sidecar.selector.is_none());
        own.iter().any(by) || (!is_for_all && self.of_root().is_none_or(by))
    }

    /// Why a Sidecar holds for nobody.
    pub fn loss(&self, meta: &ObjectMeta) -> Option<Reason> {
        let own = self.candidates(&meta.namespace);
        let this = own.iter().find(|sidecar| sidecar.meta == *meta)?;
        let first = own.iter().find(|sidecar| sidecar.selector == this.selector)?;
        (first.meta != *meta).then(|| {
            let whom = if this.selector.is_some() { "the same proxies" } else { "the namespace" };
            let text =
                format!("Sidecar {} is older and holds for {whom}: this one for none", first.meta);
            Reason::lost(&codes::SIDECAR_SHADOWED, "spec", text)
        })
    }

    /// The namespaces in which proxies may be given others than by the Sidecars of before; `None` for all.
    pub fn differing(&self, before: &Self) -> Option<BTreeSet<Namespace>> {
        if self.of_root() != before.of_root() || self.root_namespace != before.root_namespace {
            return None;
        }
        let namespace = |item: DiffItem<'_, '_, Namespace, Arc<[Arc<Sidecar>]>>| match item {
            DiffItem::Add(namespace, _) | DiffItem::Remove(namespace, _) => namespace.clone(),
            DiffItem::Update { new: (namespace, _), .. } => namespace.clone(),
        };
        Some(before.by_namespace.diff(&self.by_namespace).map(namespace).collect())
    }

    fn candidates(&self, namespace: &Namespace) -> &[Arc<Sidecar>] {
        self.by_namespace.get(namespace).map_or(&[], |all| all)
    }

    /// What holds where a namespace has none.
    fn of_root(&self) -> Option<&Arc<Sidecar>> {
        let root = self.candidates(&self.root_namespace);
        root.iter().find(|sidecar| sidecar.selector.is_none())
    }

    pub(super) fn insert(&mut self, sidecar: &Arc<Sidecar>, into: SidecarsInForce<'_>) {
        let before = self.of_root().cloned();
        self.root_namespace.clone_from(into.root_namespace);
        let namespace = &sidecar.meta.namespace;
        if let Some(selector) = &sidecar.selector {
            into.changes.selectors |= into.selectors.add(Some(namespace), Arc::clone(selector));
        }
        let key = |one: &Sidecar| (one.selector.is_none(), one.meta.clone());
        let mut all = self.candidates(namespace).to_vec();
        let place = all.partition_point(|one| key(one) < key(sidecar));
        all.insert(place, Arc::clone(sidecar));
        self.by_namespace.insert(namespace.clone(), all.into());
        into.changes.scopes.insert(namespace.clone());
        into.changes.every_scope |= self.of_root() != before.as_ref();
    }

    pub(super) fn remove(&mut self, sidecar: &Sidecar, from: SidecarsInForce<'_>) {
        let before = self.of_root().cloned();
        let namespace = &sidecar.meta.namespace;
        if let Some(selector) = &sidecar.selector {
            from.changes.selectors |= from.selectors.remove(Some(namespace), selector);
        }
        let mut all = self.candidates(namespace).to_vec();
        all.retain(|one| one.meta != sidecar.meta);
        if all.is_empty() {
            self.by_namespace.remove(namespace);
        } else {
            self.by_namespace.insert(namespace.clone(), all.into());
        }
        from.changes.scopes.insert(namespace.clone());
        from.changes.every_scope |= self.of_root() != before.as_ref();
    }
}

/// What changes with Sidecars.
pub(super) struct SidecarsInForce<'a> {
    pub(super) selectors: &'a mut Selectors,
    pub(super) changes: &'a mut TrafficChanges,
    pub(super) root_namespace: &'a Namespace,
}

#[cfg(test)]
mod tests;
