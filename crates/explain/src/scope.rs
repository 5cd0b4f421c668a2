//! Computes the Sidecar that the calls of a namespace need, from the proxies' observed calls.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Value, json};

use strait_mesh::aggregate::MergedService;
use strait_mesh::push::PushContext;
use strait_model::{Collection, ISTIO_NETWORKING, Namespace, ObjectKey};
use strait_rules::traffic::{HostPattern, Selection};

/// Number of imported services from which all services of a namespace are imported together.
const TOGETHER_FROM: usize = 2;

/// Observed calls of the proxies of a namespace.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct CalledHosts {
    /// Hosts of services, from names of upstream clusters.
    pub hosts: BTreeSet<String>,
    /// Names, without ports, under which these services were called.
    pub names: BTreeSet<String>,
    /// Names for which no upstream cluster of a service responded, or the cluster is unknown.
    pub passed: BTreeSet<String>,
}

/// A suggested Sidecar.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScopeSuggestion {
    /// The Sidecar object.
    pub object: Value,
    /// Whether a Sidecar of that name exists. The suggestion keeps all its fields except the
    /// imports.
    pub replaces: bool,
    /// Called names that match nothing in the mesh.
    pub unknown: BTreeSet<String>,
    /// Names of other Sidecars of the namespace, which apply to some workloads instead.
    pub others: Vec<String>,
}

/// Returns the Sidecar with which the proxies of a namespace can still make their calls. It imports
/// their own namespace completely, and the called services of other namespaces with the namespaces
/// of the rules for them.
pub fn suggest_scope(
    context: &PushContext,
    stored: &Collection,
    namespace: &Namespace,
    called: &CalledHosts,
) -> ScopeSuggestion {
    let mut reader = ScopeReader { context, namespace, wanted: BTreeMap::new() };
    let mut unknown = BTreeSet::new();
    for name in called.hosts.iter().chain(&called.passed) {
        if !reader.service(name) && !reader.rules(name) {
            unknown.insert(name.clone());
        }
    }
    for name in &called.names {
        reader.rules(name);
    }
    let mut hosts = vec!["./*".to_owned()];
    for (owner, wanted) in &reader.wanted {
        let all = reader.visible_of(owner);
        if wanted.len() >= TOGETHER_FROM && all.is_subset(wanted) && all.len() >= TOGETHER_FROM {
            hosts.push(format!("{owner}/*"));
        } else {
            hosts.extend(wanted.iter().map(|host| format!("{owner}/{host}")));
        }
    }
    let scope = context.traffic.sidecars.scope(namespace, &Selection::default());
    let own = scope.sidecar().filter(|one| one.meta.namespace == *namespace);
    let name = own.map_or_else(|| "default".into(), |own| Arc::clone(&own.meta.name));
    let key = |name: &str| ObjectKey {
        kind: "Sidecar".into(),
        group: ISTIO_NETWORKING.into(),
        namespace: namespace.as_str().into(),
        name: name.into(),
    };
    let before = stored.get(&key(&name));
    let mut spec =
        before.and_then(|before| before.to_value().get("spec").cloned()).unwrap_or_default();
    if !spec.is_object() {
        spec = json!({});
    }
    spec["egress"] = json!([{ "hosts": hosts }]);
    let is_other = |key: &&ObjectKey| {
        *key.kind == *"Sidecar" && *key.namespace == *namespace.as_str() && key.name != name
    };
    let others = stored.iter().map(|(key, _)| key).filter(is_other);
    ScopeSuggestion {
        object: json!({
            "apiVersion": "networking.istio.io/v1",
            "kind": "Sidecar",
            "metadata": { "name": name, "namespace": namespace },
            "spec": spec,
        }),
        replaces: before.is_some(),
        unknown,
        others: others.map(|key| key.name.to_string()).collect(),
    }
}

struct ScopeReader<'a> {
    context: &'a PushContext,
    namespace: &'a Namespace,
    /// Hosts to import, by namespace.
    wanted: BTreeMap<Namespace, BTreeSet<String>>,
}

impl ScopeReader<'_> {
    fn want(&mut self, owner: &Namespace, host: String) {
        if owner != self.namespace {
            self.wanted.entry(owner.clone()).or_default().insert(host);
        }
    }

    /// Imports the service with this name, as clients of the namespace see it. Returns whether it
    /// exists.
    fn service(&mut self, name: &str) -> bool {
        let Some(service) = self.called(name) else { return false };
        let service = Arc::clone(service);
        let host = service.hostname().to_string();
        self.want(&service.primary.namespace, host.clone());
        self.rules(&host);
        true
    }

    fn called(&self, name: &str) -> Option<&Arc<MergedService>> {
        let domain = &self.context.settings.domain;
        let own = format!("{name}.{}.svc.{domain}", self.namespace);
        let candidates =
            [name.to_owned(), own, format!("{name}.svc.{domain}"), format!("{name}.{domain}")];
        let is_visible =
            |service: &&Arc<MergedService>| service.primary.export_to.visible_to(self.namespace);
        let exact = candidates.iter().filter_map(|name| self.context.service(name, self.namespace));
        let mut exact = exact.filter(is_visible);
        exact.next().or_else(|| {
            // Entries with a wildcard host, the most specific first.
            let dots = name.match_indices('.').filter(|(at, _)| *at > 0);
            let wider = dots.map(|(at, _)| format!("*{}", &name[at..]));
            let mut found = wider.filter_map(|name| self.context.service(&name, self.namespace));
            found.find(is_visible)
        })
    }

    /// Imports the rules of other namespaces for this name. Returns whether any exist.
    fn rules(&mut self, name: &str) -> bool {
        let domain = &self.context.settings.domain;
        let Ok(host) = HostPattern::parse(name, self.namespace.as_str(), domain) else {
            return false;
        };
        let rules: BTreeSet<Namespace> = self
            .context
            .traffic
            .virtual_services
            .for_host(&host, self.namespace)
            .flatten()
            .map(|routed| routed.service.meta.namespace.clone())
            .collect();
        for owner in &rules {
            self.want(owner, host.to_string());
        }
        !rules.is_empty()
    }

    /// Returns the services of a namespace that clients can see.
    fn visible_of(&self, owner: &Namespace) -> BTreeSet<String> {
        let all = self.context.services_of(self.namespace);
        all.filter(|service| {
            service.primary.namespace == *owner
                && service.primary.export_to.visible_to(self.namespace)
        })
        .map(|service| service.hostname().to_string())
        .collect()
    }
}
