//! EnvoyFilter: additional HTTP filters, settings merged into HTTP connection managers, and
//! additional upstream clusters, as Envoy configuration (Istio, "Envoy Filter";
//! docs/reference/traffic.md, "EnvoyFilter").
//!
//! Patches are applied one by one, and only if Envoy cannot reject them: a rejected patch would
//! take down the whole listener of a proxy. An unsupported patch is reported with the alternative.

mod added;
mod filters;
mod lua;
mod manager;

use std::collections::BTreeSet;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::Value;

pub use self::added::AddedCluster;
pub use self::filters::{FilterUpstream, PatchedFilter};
pub use self::manager::PatchedManager;
use super::changes::TrafficChanges;
use super::object::{self, ObjectMeta, RawWorkloadSelector, Reason};
use super::proxy_match::ProxyMatch;
use super::scoped::{Scoped, ScopedInForce, ScopedObjects};
use super::selection::{self, RuleSelector, Selection};
use strait_base::codes;
use strait_base::names::list_first;
use strait_model::{Namespace, Proxy, ProxyType};

/// A parsed EnvoyFilter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EnvoyFilter {
    /// Name, namespace and age of the object.
    pub meta: ObjectMeta,
    /// Selector of the proxies that it applies to; `None` for all proxies of the namespace, or of
    /// the mesh if the object is in the root namespace.
    pub selector: Option<RuleSelector>,
    /// Priority. Objects with a lower value are applied first.
    priority: i32,
    /// Patches, in the order of the object.
    patches: Vec<FilterPatch>,
}

/// A patch and the traffic that it applies to.
#[derive(Debug, Clone, PartialEq, Eq)]
struct FilterPatch {
    /// Index in the object, from 0.
    index: usize,
    /// Direction of the traffic; `None` for all directions.
    place: Option<PatchPlace>,
    /// Port of the listener; `None` for all ports.
    port: Option<u16>,
    /// The proxies that the patch applies to; `None` for all proxies of the object.
    proxies: Option<Arc<ProxyMatch>>,
    what: Arc<PlacedPatch>,
}

/// Effect of a patch.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum PlacedPatch {
    /// Inserts an HTTP filter.
    Filter(PlacedFilter),
    /// Merges settings into HTTP connection managers.
    Manager(PatchedManager),
    /// Adds an upstream cluster.
    Cluster(AddedCluster),
}

/// An HTTP filter and its position in the filter chain of a proxy.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PlacedFilter {
    /// Whether the filter is the first. Otherwise it is directly before the router.
    pub is_first: bool,
    /// The filter.
    pub filter: PatchedFilter,
}

/// Direction of the traffic that a patch applies to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PatchPlace {
    /// Inbound traffic of a sidecar.
    Inbound,
    /// Outbound traffic of a sidecar.
    Outbound,
    /// Traffic of a gateway.
    Gateway,
}

impl PatchPlace {
    /// Returns the directions of a proxy's traffic. Proxyless gRPC clients have no user-defined
    /// filters.
    pub fn for_proxy(proxy: &Proxy) -> &'static [Self] {
        match (proxy.grpc, proxy.kind) {
            (Some(_), _) => &[],
            (None, ProxyType::Sidecar) => &[Self::Outbound, Self::Inbound],
            (None, ProxyType::Router) => &[Self::Gateway],
        }
    }
}

/// The patches for one direction in the order of their application, each with its port.
pub type FiltersAt = Arc<[(Option<u16>, Arc<PlacedPatch>)]>;

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct RawEnvoyFilter {
    workload_selector: Option<RawWorkloadSelector>,
    target_refs: Vec<Value>,
    priority: i32,
    config_patches: Vec<Value>,
}

/// A fault of a patch: path below the patch, and a description with the alternative.
type PatchFault = (String, String);

const MANAGERS: [&str; 2] =
    ["envoy.filters.network.http_connection_manager", "envoy.http_connection_manager"];
/// `applyTo` of patches for HTTP connection managers.
const OF_MANAGERS: &str = "NETWORK_FILTER";
/// `applyTo` of patches for upstream clusters.
const OF_CLUSTERS: &str = "CLUSTER";
const ROUTERS: [&str; 2] = ["envoy.filters.http.router", "envoy.router"];

/// Maximum number of versions of proxies that a reason lists.
const VERSIONS_NAMED: usize = 5;
/// Maximum number of different proxy matches of an object. Each is evaluated for every proxy.
const PROXIES_MAX: usize = 64;

impl EnvoyFilter {
    /// Parses an object. Also returns the reasons to report to its owner. An unsupported patch does
    /// not affect the others.
    ///
    /// # Errors
    /// The reason why the whole object is refused.
    pub fn read(meta: ObjectMeta, object: &Value) -> Result<(Self, Vec<Reason>), Reason> {
        let (raw, mut reasons) = object::body::<RawEnvoyFilter>(object)?;
        if !raw.target_refs.is_empty() {
            // Without the target, the object would apply to more proxies than intended.
            let text = "targets are not supported: select workloads with spec.workloadSelector";
            return Err(Reason::lost(&codes::ENVOY_FILTER_FIELD, "spec.targetRefs", text));
        }
        let mut patches: Vec<FilterPatch> = Vec::new();
        let mut proxies = BTreeSet::new();
        for (at, raw) in raw.config_patches.iter().enumerate() {
            if raw.is_array() {
                let path = format!("spec.configPatches[{at}]");
                let text = "it is a list: write each field of the patch with its name";
                return Err(Reason::lost(&codes::TRAFFIC_MALFORMED, path, text));
            }
            let read = FilterPatch::read(at, raw).and_then(|patch| {
                let Some(wanted) = &patch.proxies else { return Ok(patch) };
                if proxies.len() == PROXIES_MAX && !proxies.contains(wanted) {
                    let fact =
                        format!("an object may have at most {PROXIES_MAX} different proxy matches");
                    return Err((&codes::ENVOY_FILTER_FIELD, (".match.proxy".to_owned(), fact)));
                }
                proxies.insert(Arc::clone(wanted));
                Ok(patch)
            });
            match read {
                Ok(patch) => patches.push(patch),
                Err((code, (path, fact))) => {
                    let path = format!("spec.configPatches[{at}]{path}");
                    let text = format!("{fact}; the patch is left out");
                    reasons.push(Reason::lost(code, path, text));
                }
            }
        }
        let selector = raw.workload_selector.and_then(|raw| selection::selector(&raw.match_labels));
        Ok((Self { meta, selector, priority: raw.priority, patches }, reasons))
    }

    /// Returns whether the object has no supported patch.
    pub fn is_empty(&self) -> bool {
        self.patches.is_empty()
    }

    /// Returns whether any patch applies to a proxy with this selection.
    pub fn patches(&self, selection: &Selection) -> bool {
        self.patches.iter().any(|patch| patch.is_for(selection))
    }

    /// Iterates over the patches for a listener's port. Returns the index, the direction (`None` for
    /// all), and the port of each.
    pub fn ports(&self) -> impl Iterator<Item = (usize, Option<PatchPlace>, u16)> {
        self.patches.iter().filter_map(|patch| Some((patch.index, patch.place, patch.port?)))
    }

    /// Returns the path of each condition of a patch that none of these proxies meets, with the
    /// fact. The proxies are in the scope of the object.
    pub fn unmet_conditions(&self, proxies: &[(&Proxy, Selection)]) -> Vec<(String, String)> {
        let unmet = self.patches.iter().filter_map(|patch| {
            let path = format!("spec.configPatches[{}].match", patch.index);
            let is_there = |proxy: &Proxy| {
                let places = PatchPlace::for_proxy(proxy);
                patch.place.map_or(!places.is_empty(), |place| places.contains(&place))
            };
            let mut there = proxies.iter().filter(|(proxy, _)| is_there(proxy)).peekable();
            if there.peek().is_none() {
                let kind = match patch.place? {
                    PatchPlace::Gateway => "gateway",
                    PatchPlace::Inbound | PatchPlace::Outbound => "sidecar",
                };
                let fact = format!("no {kind} in the scope of the object is connected");
                return Some((format!("{path}.context"), fact));
            }
            let wanted = patch.proxies.as_ref()?;
            let mut versions = BTreeSet::new();
            for (proxy, selection) in there {
                if patch.is_for(selection) {
                    return None;
                }
                versions.insert(proxy.istio_version.as_deref().unwrap_or("none of Istio"));
            }
            let path = format!("{path}.proxy{}", wanted.path());
            let mut fact = "no connected proxy in the scope of the object meets it".to_owned();
            if !path.ends_with("metadata") {
                fact += &format!("; versions: {}", list_first(versions.iter(), VERSIONS_NAMED));
            }
            Some((path, fact))
        });
        unmet.collect()
    }

    /// Iterates over the proxy matches of the patches.
    fn proxies(&self) -> impl Iterator<Item = &Arc<ProxyMatch>> {
        self.patches.iter().filter_map(|patch| patch.proxies.as_ref())
    }

    /// Iterates over the upstream clusters that its filters query about requests of a proxy in
    /// these directions, each with the index of the patch and the name of the filter.
    pub fn queried_upstreams(
        &self,
        places: &[PatchPlace],
        selection: &Selection,
    ) -> impl Iterator<Item = (usize, &str, &FilterUpstream)> {
        let is_there = |patch: &&FilterPatch| {
            patch.is_for(selection) && patch.place.is_none_or(|place| places.contains(&place))
        };
        let there = self.patches.iter().filter(is_there);
        there.filter_map(|patch| {
            let PlacedPatch::Filter(PlacedFilter { filter, .. }) = &*patch.what else {
                return None;
            };
            Some((patch.index, &*filter.name, filter.upstream.as_ref()?))
        })
    }
}

impl FilterPatch {
    /// Returns whether the patch applies to a proxy with this selection.
    fn is_for(&self, selection: &Selection) -> bool {
        self.proxies.as_ref().is_none_or(|wanted| selection.matches_proxy(wanted))
    }

    fn read(index: usize, raw: &Value) -> Result<Self, (&'static codes::Code, PatchFault)> {
        let unfollowed = |fault: PatchFault| (&codes::ENVOY_FILTER_FIELD, fault);
        let refused = |(path, fact): filters::FilterFault| {
            let dot = if path.is_empty() { "" } else { "." };
            (&codes::ENVOY_FILTER_VALUE, (format!(".patch.value{dot}{path}"), fact))
        };
        let (place, port, before_router) = Self::target(raw).map_err(unfollowed)?;
        let proxies = ProxyMatch::read(&raw["match"]["proxy"]);
        let proxies = proxies.map_err(|(path, fact)| {
            (&codes::ENVOY_FILTER_FIELD, (format!(".match.proxy{path}"), fact))
        })?;
        let patch = raw.get("patch").unwrap_or(&Value::Null);
        let value = patch.get("value").unwrap_or(&Value::Null);
        let what = match text(raw, "applyTo") {
            OF_MANAGERS => {
                is_operation(patch, "MERGE", MANAGERS[0]).map_err(unfollowed)?;
                PlacedPatch::Manager(manager::read(value).map_err(refused)?)
            }
            OF_CLUSTERS => {
                is_operation(patch, "ADD", "upstream clusters").map_err(unfollowed)?;
                PlacedPatch::Cluster(added::read(value).map_err(refused)?)
            }
            _ => {
                let is_first = operation(patch, before_router).map_err(unfollowed)?;
                let filter = filters::read(value).map_err(refused)?;
                PlacedPatch::Filter(PlacedFilter { is_first, filter })
            }
        };
        let proxies = proxies.map(Arc::new);
        Ok(Self { index, place, port, proxies, what: Arc::new(what) })
    }

    /// Parses the target of a patch: direction, port, and whether the router is the anchor.
    fn target(raw: &Value) -> Result<(Option<PatchPlace>, Option<u16>, bool), PatchFault> {
        let apply_to = text(raw, "applyTo");
        if !["HTTP_FILTER", OF_MANAGERS, OF_CLUSTERS].contains(&apply_to) {
            let fact = format!("{apply_to:?} is not supported; {}", alternative_to(apply_to));
            return Err((".applyTo".into(), fact));
        }
        let matches = raw.get("match").unwrap_or(&Value::Null);
        let path = ".match";
        let (fields, instead): (&[&str], _) = match apply_to {
            OF_CLUSTERS => (
                &["context", "proxy"],
                "an added cluster can be limited only to a \
                                                    context",
            ),
            _ => (&["context", "proxy", "listener"], "use a context and a port of the listener"),
        };
        check_fields(matches, path, fields, instead)?;
        let place = match text(matches, "context") {
            "" | "ANY" => None,
            "SIDECAR_INBOUND" => Some(PatchPlace::Inbound),
            "SIDECAR_OUTBOUND" => Some(PatchPlace::Outbound),
            "GATEWAY" => Some(PatchPlace::Gateway),
            other => {
                return Err((
                    format!("{path}.context"),
                    format!(
                        "{other:?} is not a valid \
                                                                     context"
                    ),
                ));
            }
        };
        let listener = matches.get("listener").unwrap_or(&Value::Null);
        let path = ".match.listener";
        check_fields(listener, path, &["portNumber", "filterChain"], "use its port")?;
        let port = match listener.get("portNumber").filter(|port| !port.is_null()) {
            None => None,
            Some(port) => {
                let number = port.as_u64().and_then(|port| u16::try_from(port).ok());
                let fault =
                    || (format!("{path}.portNumber"), format!("{port} is not a valid port"));
                Some(number.ok_or_else(fault)?).filter(|port| *port != 0)
            }
        };
        let chain = listener.get("filterChain").unwrap_or(&Value::Null);
        let path = ".match.listener.filterChain";
        check_fields(chain, path, &["filter"], "use a port of the listener")?;
        let filter = chain.get("filter").unwrap_or(&Value::Null);
        let path = ".match.listener.filterChain.filter";
        check_fields(filter, path, &["name", "subFilter"], "use a port of the listener")?;
        let manager = text(filter, "name");
        if !manager.is_empty() && !MANAGERS.contains(&manager) {
            let fact = format!("{manager:?} has no HTTP filters; use {}", MANAGERS[0]);
            return Err((format!("{path}.name"), fact));
        }
        if manager.is_empty() && apply_to == OF_MANAGERS {
            let fact =
                format!("only the network filter {} is supported: set its name", MANAGERS[0]);
            return Err((format!("{path}.name"), fact));
        }
        let before = filter.get("subFilter").unwrap_or(&Value::Null);
        let path = ".match.listener.filterChain.filter.subFilter";
        check_fields(before, path, &["name"], "use the name of the router")?;
        let before = text(before, "name");
        if !before.is_empty() && apply_to == OF_MANAGERS {
            let fact = "settings that are merged into a connection manager have no position among \
                        its filters"
                .to_owned();
            return Err((format!("{path}.name"), fact));
        }
        if !before.is_empty() && !ROUTERS.contains(&before) {
            let fact = format!(
                "only the router is a stable anchor among the filters; use {}, or INSERT_FIRST",
                ROUTERS[0]
            );
            return Err((format!("{path}.name"), fact));
        }
        Ok((place, port, !before.is_empty()))
    }
}

/// Checks that a patch uses the only supported operation for its target.
fn is_operation(patch: &Value, followed: &str, about: &str) -> Result<(), PatchFault> {
    check_fields(patch, ".patch", &["operation", "value"], "use priority to order objects")?;
    match text(patch, "operation") {
        operation if operation == followed => Ok(()),
        other => {
            let fact = format!("{other:?} is not supported for {about}; use {followed}");
            Err((".patch.operation".into(), fact))
        }
    }
}

/// Returns whether the filter is inserted at the beginning.
fn operation(patch: &Value, before_router: bool) -> Result<bool, PatchFault> {
    check_fields(patch, ".patch", &["operation", "value"], "use priority to order objects")?;
    match text(patch, "operation") {
        "INSERT_FIRST" => Ok(true),
        // INSERT_BEFORE without an anchor inserts at the beginning.
        "INSERT_BEFORE" => Ok(!before_router),
        other => {
            let fact = format!(
                "{other:?} is not supported for filters; use INSERT_FIRST or INSERT_BEFORE"
            );
            Err((".patch.operation".into(), fact))
        }
    }
}

fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value.get(field).and_then(Value::as_str).unwrap_or_default()
}

/// Checks that a value has no other fields than these.
fn check_fields(
    value: &Value,
    path: &str,
    fields: &[&str],
    instead: &str,
) -> Result<(), PatchFault> {
    let empty = || Value::Object(serde_json::Map::new());
    let Some(given) = value.as_object() else {
        let fact = "it is not an object".to_owned();
        return if value.is_null() { Ok(()) } else { Err((path.to_owned(), fact)) };
    };
    let mut others = given.iter().filter(|(_, value)| !value.is_null() && **value != empty());
    match others.find(|(key, _)| !fields.contains(&key.as_str())) {
        Some((key, _)) => {
            Err((format!("{path}.{key}"), format!("{key} is not supported; {instead}")))
        }
        None => Ok(()),
    }
}

/// Returns the alternative to a patch of an unsupported part.
fn alternative_to(apply_to: &str) -> &'static str {
    match apply_to {
        "ROUTE_CONFIGURATION" | "VIRTUAL_HOST" | "HTTP_ROUTE" => "use a VirtualService for routes",
        "LISTENER" | "FILTER_CHAIN" | "LISTENER_FILTER" => {
            "use a Sidecar or a Gateway for listeners, and the mesh config for settings of all \
             proxies"
        }
        "EXTENSION_CONFIG" => "write the filter into the patch itself",
        "BOOTSTRAP" => "write it into the bootstrap of the proxy",
        _ => "use applyTo: HTTP_FILTER",
    }
}

impl Scoped for EnvoyFilter {
    const ROOT_SELECTS_ALL: bool = true;

    fn meta(&self) -> &ObjectMeta {
        &self.meta
    }

    fn selector(&self) -> Option<&RuleSelector> {
        self.selector.as_ref()
    }
}

/// All active EnvoyFilters.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EnvoyFilters {
    objects: ScopedObjects<EnvoyFilter>,
}

impl EnvoyFilters {
    /// Returns whether any EnvoyFilter is in this namespace.
    pub fn concerns(&self, namespace: &Namespace) -> bool {
        !self.objects.in_namespace(namespace).is_empty()
    }

    /// Returns whether the proxies of a namespace have the same filters as in an earlier version.
    pub fn same_in(&self, before: &Self, namespace: &Namespace) -> bool {
        self.objects.all_same_in(&before.objects, namespace)
    }

    /// Returns the objects that apply to a proxy. They are sorted by priority. Among equal
    /// priorities, objects of the root namespace come first, then older objects.
    pub fn for_proxy(
        &self,
        namespace: &Namespace,
        selection: &Selection,
    ) -> Vec<&Arc<EnvoyFilter>> {
        let root = self.objects.root_namespace();
        let root_filters = self.objects.in_namespace(root).iter().map(|one| (false, one));
        let own = self.objects.in_namespace(namespace).iter().filter(|_| namespace != root);
        let all = root_filters.chain(own.map(|one| (true, one)));
        let holds = |filter: &EnvoyFilter| {
            filter.selector.as_ref().is_none_or(|selector| selection.contains(selector))
        };
        let mut all: Vec<_> = all.filter(|(_, one)| holds(one)).collect();
        all.sort_by_key(|(is_own, one)| (one.priority, *is_own, &one.meta));
        all.into_iter().map(|(_, one)| one).collect()
    }

    /// Returns the upstream clusters that filters query about requests of a proxy.
    pub fn upstreams_queried_by(
        &self,
        proxy: &Proxy,
        selection: &Selection,
    ) -> BTreeSet<&FilterUpstream> {
        if self.objects.is_empty() {
            return BTreeSet::new();
        }
        let all = self.for_proxy(proxy.namespace(), selection);
        let places = PatchPlace::for_proxy(proxy);
        let queried = all.into_iter().flat_map(|one| one.queried_upstreams(places, selection));
        queried.map(|(_, _, to)| to).collect()
    }

    /// Returns the additional upstream clusters of a proxy. If several have the same name, the
    /// first applies.
    pub fn clusters_for(&self, proxy: &Proxy, selection: &Selection) -> Vec<&AddedCluster> {
        let mut names = BTreeSet::new();
        if self.objects.is_empty() {
            return Vec::new();
        }
        let places = PatchPlace::for_proxy(proxy);
        let all = self.for_proxy(proxy.namespace(), selection).into_iter();
        let patches = all.flat_map(|one| &one.patches).filter(|patch| {
            patch.is_for(selection)
                && !places.is_empty()
                && patch.place.is_none_or(|place| places.contains(&place))
        });
        let clusters = patches.filter_map(|patch| match &*patch.what {
            PlacedPatch::Cluster(cluster) => Some(cluster),
            _ => None,
        });
        clusters.filter(|cluster| names.insert(&cluster.name)).collect()
    }

    /// Returns the patches of a proxy for one direction, in the order of their application.
    pub fn at(
        &self,
        (namespace, selection): (&Namespace, &Selection),
        place: PatchPlace,
    ) -> FiltersAt {
        let all = self.for_proxy(namespace, selection).into_iter().flat_map(|one| &one.patches);
        let there = all
            .filter(|patch| patch.is_for(selection) && patch.place.is_none_or(|one| one == place));
        there.map(|patch| (patch.port, Arc::clone(&patch.what))).collect()
    }

    pub(super) fn insert(&mut self, filter: &Arc<EnvoyFilter>, into: ScopedInForce<'_>) {
        let namespace = applied_namespace(filter, into.root_namespace);
        for wanted in filter.proxies() {
            into.changes.selectors |= into.selectors.add_condition(namespace, Arc::clone(wanted));
        }
        self.objects.insert(filter, into, note);
    }

    pub(super) fn remove(&mut self, filter: &EnvoyFilter, from: ScopedInForce<'_>) {
        let namespace = applied_namespace(filter, from.root_namespace);
        for wanted in filter.proxies() {
            from.changes.selectors |= from.selectors.remove_condition(namespace, wanted);
        }
        self.objects.remove(filter, from, note);
    }
}

/// Returns the namespace of the proxies that an object may apply to; `None` for all namespaces.
fn applied_namespace<'a>(filter: &'a EnvoyFilter, root: &Namespace) -> Option<&'a Namespace> {
    Some(&filter.meta.namespace).filter(|namespace| *namespace != root)
}

/// Records the namespace. The affected proxies are computed one by one, also for objects that apply
/// to all.
fn note(changes: &mut TrafficChanges, namespace: &Namespace, _: bool) {
    changes.filters.insert(namespace.clone());
}

#[cfg(test)]
mod tests;
