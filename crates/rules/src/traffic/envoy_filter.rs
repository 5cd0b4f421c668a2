//! EnvoyFilter: HTTP filters that users put among those of their proxies, what they merge into the managers of these, and
//! upstream clusters that they add, in Envoy's own words. (Istio, "Envoy Filter";
//! docs/reference/traffic.md, "EnvoyFilter".)
//!
//! Patches are taken one by one, and only those that an Envoy can't refuse: one that it refused would cost its proxies all that
//! a listener has. What is not followed is said with what is there instead.

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
use strait_model::{Namespace, Proxy, ProxyType};

/// What one object says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EnvoyFilter {
    /// Which object it is.
    pub meta: ObjectMeta,
    /// The proxies that it holds for, where these are not all of its namespace, or of all namespaces if that is the root
    /// namespace.
    pub selector: Option<RuleSelector>,
    /// Objects with a lower one are followed first.
    priority: i32,
    /// In the order of the object.
    patches: Vec<FilterPatch>,
}

/// A part of what requests pass, and where they are when they do.
#[derive(Debug, Clone, PartialEq, Eq)]
struct FilterPatch {
    /// Its place in the object, from 0.
    index: usize,
    /// Where these requests are; `None` for everywhere.
    place: Option<PatchPlace>,
    /// The port at which they arrive; `None` for each.
    port: Option<u16>,
    /// The proxies that it is for; `None` for all that the object is for.
    proxies: Option<Arc<ProxyMatch>>,
    what: Arc<PlacedPatch>,
}

/// What a patch does.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum PlacedPatch {
    /// Puts a filter among others.
    Filter(PlacedFilter),
    /// Merges something into the managers of filters.
    Manager(PatchedManager),
    /// Adds an upstream cluster.
    Cluster(AddedCluster),
}

/// A filter, and where it stands among those of a proxy.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PlacedFilter {
    /// Whether it comes before all others; else it comes right before the router.
    pub is_first: bool,
    /// The filter.
    pub filter: PatchedFilter,
}

/// Where requests are when a filter sees them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PatchPlace {
    /// On the way into the workload of a sidecar.
    Inbound,
    /// On the way out of it.
    Outbound,
    /// At a router.
    Gateway,
}

impl PatchPlace {
    /// Where a proxy sees requests. Libraries have no filters of users.
    pub fn of(proxy: &Proxy) -> &'static [Self] {
        match (proxy.grpc, proxy.kind) {
            (Some(_), _) => &[],
            (None, ProxyType::Sidecar) => &[Self::Outbound, Self::Inbound],
            (None, ProxyType::Router) => &[Self::Gateway],
        }
    }
}

/// The patches that hold at one place, in the order in which they are made, each with the port that it is for.
pub type FiltersAt = Arc<[(Option<u16>, Arc<PlacedPatch>)]>;

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct RawEnvoyFilter {
    workload_selector: Option<RawWorkloadSelector>,
    target_refs: Vec<Value>,
    priority: i32,
    config_patches: Vec<Value>,
}

/// What is wrong with a patch: the path below it, a fact, and what is there instead.
type PatchFault = (String, String);

const MANAGERS: [&str; 2] =
    ["envoy.filters.network.http_connection_manager", "envoy.http_connection_manager"];
/// What patches are applied to that are about these.
const OF_MANAGERS: &str = "NETWORK_FILTER";
/// The same of upstream clusters.
const OF_CLUSTERS: &str = "CLUSTER";
const ROUTERS: [&str; 2] = ["envoy.filters.http.router", "envoy.router"];

/// Of how many sorts of proxies one object may speak: each is tried for every proxy.
const PROXIES_MAX: usize = 64;

impl EnvoyFilter {
    /// Reads an object, with what its owner should know. A patch that isn't followed costs no other.
    ///
    /// # Errors
    /// Why it is refused whole.
    pub fn read(meta: ObjectMeta, object: &Value) -> Result<(Self, Vec<Reason>), Reason> {
        let (raw, mut reasons) = object::body::<RawEnvoyFilter>(object)?;
        if !raw.target_refs.is_empty() {
            // For all would be for others than its owner meant.
            let text = "name workloads by spec.workloadSelector: a target is not followed";
            return Err(Reason::lost(&codes::ENVOY_FILTER_FIELD, "spec.targetRefs", text));
        }
        let mut patches: Vec<FilterPatch> = Vec::new();
        let mut proxies = BTreeSet::new();
        for (at, raw) in raw.config_patches.iter().enumerate() {
            let read = FilterPatch::read(at, raw).and_then(|patch| {
                let Some(wanted) = &patch.proxies else { return Ok(patch) };
                if proxies.len() == PROXIES_MAX && !proxies.contains(wanted) {
                    let fact =
                        format!("an object tells {PROXIES_MAX} sorts of proxies apart at most");
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

    /// Whether it says nothing, or nothing that is followed.
    pub fn is_empty(&self) -> bool {
        self.patches.is_empty()
    }

    /// Whether some patch of it is for a proxy that is selected so.
    pub fn patches(&self, selection: &Selection) -> bool {
        self.patches.iter().any(|patch| patch.is_for(selection))
    }

    /// What its patches ask of proxies.
    fn proxies(&self) -> impl Iterator<Item = &Arc<ProxyMatch>> {
        self.patches.iter().filter_map(|patch| patch.proxies.as_ref())
    }

    /// Whom its filters ask about requests of such a proxy at these places: each with the place of its patch in the object, and the
    /// filter's name.
    pub fn asks(
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
            Some((patch.index, &*filter.name, filter.asks.as_ref()?))
        })
    }
}

impl FilterPatch {
    /// Whether it is for a proxy that is selected so.
    fn is_for(&self, selection: &Selection) -> bool {
        self.proxies.as_ref().is_none_or(|wanted| selection.is_of(wanted))
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

    /// Where it is to be put: the place, the port, and whether the router is named.
    fn target(raw: &Value) -> Result<(Option<PatchPlace>, Option<u16>, bool), PatchFault> {
        let apply_to = text(raw, "applyTo");
        if !["HTTP_FILTER", OF_MANAGERS, OF_CLUSTERS].contains(&apply_to) {
            let fact =
                format!("{apply_to:?} is not patched, HTTP_FILTER is; {}", instead_of(apply_to));
            return Err((".applyTo".into(), fact));
        }
        let matches = raw.get("match").unwrap_or(&Value::Null);
        let path = ".match";
        let (fields, instead): (&[&str], _) = match apply_to {
            OF_CLUSTERS => (&["context", "proxy"], "a cluster that is added is there in a context"),
            _ => (&["context", "proxy", "listener"], "name a context and a port of the listener"),
        };
        known(matches, path, fields, instead)?;
        let place = match text(matches, "context") {
            "" | "ANY" => None,
            "SIDECAR_INBOUND" => Some(PatchPlace::Inbound),
            "SIDECAR_OUTBOUND" => Some(PatchPlace::Outbound),
            "GATEWAY" => Some(PatchPlace::Gateway),
            other => return Err((format!("{path}.context"), format!("{other:?} is no context"))),
        };
        let listener = matches.get("listener").unwrap_or(&Value::Null);
        let path = ".match.listener";
        known(listener, path, &["portNumber", "filterChain"], "name its port")?;
        let port = match listener.get("portNumber").filter(|port| !port.is_null()) {
            None => None,
            Some(port) => {
                let number = port.as_u64().and_then(|port| u16::try_from(port).ok());
                let fault = || (format!("{path}.portNumber"), format!("{port} is no port"));
                Some(number.ok_or_else(fault)?).filter(|port| *port != 0)
            }
        };
        let chain = listener.get("filterChain").unwrap_or(&Value::Null);
        let path = ".match.listener.filterChain";
        known(chain, path, &["filter"], "name a port of the listener")?;
        let filter = chain.get("filter").unwrap_or(&Value::Null);
        let path = ".match.listener.filterChain.filter";
        known(filter, path, &["name", "subFilter"], "name a port of the listener")?;
        let manager = text(filter, "name");
        if !manager.is_empty() && !MANAGERS.contains(&manager) {
            let fact = format!("{manager:?} has no HTTP filters; {} has", MANAGERS[0]);
            return Err((format!("{path}.name"), fact));
        }
        if manager.is_empty() && apply_to == OF_MANAGERS {
            let fact = format!("of network filters {} is patched: name it", MANAGERS[0]);
            return Err((format!("{path}.name"), fact));
        }
        let before = filter.get("subFilter").unwrap_or(&Value::Null);
        let path = ".match.listener.filterChain.filter.subFilter";
        known(before, path, &["name"], "name the router")?;
        let before = text(before, "name");
        if !before.is_empty() && apply_to == OF_MANAGERS {
            let fact = "what is merged into a manager has no place among its filters".to_owned();
            return Err((format!("{path}.name"), fact));
        }
        if !before.is_empty() && !ROUTERS.contains(&before) {
            let fact = format!(
                "which filters there are beside the router is no promise; name {}, or INSERT_FIRST",
                ROUTERS[0]
            );
            return Err((format!("{path}.name"), fact));
        }
        Ok((place, port, !before.is_empty()))
    }
}

/// That a patch does the one thing that is followed for what it is about.
fn is_operation(patch: &Value, followed: &str, about: &str) -> Result<(), PatchFault> {
    known(patch, ".patch", &["operation", "value"], "order objects by priority")?;
    match text(patch, "operation") {
        operation if operation == followed => Ok(()),
        other => {
            let fact = format!("{other:?} is not followed for {about}; {followed} is");
            Err((".patch.operation".into(), fact))
        }
    }
}

/// Whether the filter comes first.
fn operation(patch: &Value, before_router: bool) -> Result<bool, PatchFault> {
    known(patch, ".patch", &["operation", "value"], "order objects by priority")?;
    match text(patch, "operation") {
        "INSERT_FIRST" => Ok(true),
        // Before nothing that is named is before all.
        "INSERT_BEFORE" => Ok(!before_router),
        other => {
            let fact = format!(
                "{other:?} is not followed for filters; INSERT_FIRST and INSERT_BEFORE are"
            );
            Err((".patch.operation".into(), fact))
        }
    }
}

fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value.get(field).and_then(Value::as_str).unwrap_or_default()
}

/// That nothing else is said than these.
fn known(value: &Value, path: &str, fields: &[&str], instead: &str) -> Result<(), PatchFault> {
    let empty = || Value::Object(serde_json::Map::new());
    let Some(given) = value.as_object() else {
        let fact = "it is no object".to_owned();
        return if value.is_null() { Ok(()) } else { Err((path.to_owned(), fact)) };
    };
    let mut others = given.iter().filter(|(_, value)| !value.is_null() && **value != empty());
    match others.find(|(key, _)| !fields.contains(&key.as_str())) {
        Some((key, _)) => {
            Err((format!("{path}.{key}"), format!("{key} is not followed; {instead}")))
        }
        None => Ok(()),
    }
}

/// What there is in the place of patches of other parts.
fn instead_of(apply_to: &str) -> &'static str {
    match apply_to {
        "ROUTE_CONFIGURATION" | "VIRTUAL_HOST" | "HTTP_ROUTE" => {
            "a VirtualService says which way requests go"
        }
        "LISTENER" | "FILTER_CHAIN" | "LISTENER_FILTER" => {
            "a Sidecar or a Gateway says what is listened to, the mesh config what holds for all"
        }
        "EXTENSION_CONFIG" => "write the filter into the patch itself",
        "BOOTSTRAP" => "write it into the bootstrap that the proxy starts with",
        _ => "write applyTo: HTTP_FILTER",
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

/// All of them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EnvoyFilters {
    objects: ScopedObjects<EnvoyFilter>,
}

impl EnvoyFilters {
    /// Whether it matters that a proxy is in this namespace.
    pub fn concerns(&self, namespace: &Namespace) -> bool {
        !self.objects.of(namespace).is_empty()
    }

    /// Whether proxies of a namespace have the same filters as by those of before.
    pub fn same_in(&self, before: &Self, namespace: &Namespace) -> bool {
        self.objects.all_same_in(&before.objects, namespace)
    }

    /// Those that hold for a proxy: by priority, those of the root namespace before its own, the oldest first.
    pub fn of_proxy(&self, namespace: &Namespace, selection: &Selection) -> Vec<&Arc<EnvoyFilter>> {
        let root = self.objects.root_namespace();
        let of_root = self.objects.of(root).iter().map(|one| (false, one));
        let own = self.objects.of(namespace).iter().filter(|_| namespace != root);
        let all = of_root.chain(own.map(|one| (true, one)));
        let holds = |one: &EnvoyFilter| {
            one.selector.as_ref().is_none_or(|selector| selection.contains(selector))
        };
        let mut all: Vec<_> = all.filter(|(_, one)| holds(one)).collect();
        all.sort_by_key(|(is_own, one)| (one.priority, *is_own, &one.meta));
        all.into_iter().map(|(_, one)| one).collect()
    }

    /// Whom filters of users ask about requests of a proxy.
    pub fn asked_by(&self, proxy: &Proxy, selection: &Selection) -> BTreeSet<&FilterUpstream> {
        if self.objects.is_empty() {
            return BTreeSet::new();
        }
        let all = self.of_proxy(proxy.namespace(), selection);
        let places = PatchPlace::of(proxy);
        let asked = all.into_iter().flat_map(|one| one.asks(places, selection));
        asked.map(|(_, _, to)| to).collect()
    }

    /// The upstream clusters that a proxy has besides: of each name the first.
    pub fn clusters_of(&self, proxy: &Proxy, selection: &Selection) -> Vec<&AddedCluster> {
        let mut names = BTreeSet::new();
        if self.objects.is_empty() {
            return Vec::new();
        }
        let places = PatchPlace::of(proxy);
        let all = self.of_proxy(proxy.namespace(), selection).into_iter();
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

    /// The filters that a proxy has at one place, in the order in which they are put in.
    pub fn at(
        &self,
        (namespace, selection): (&Namespace, &Selection),
        place: PatchPlace,
    ) -> FiltersAt {
        let all = self.of_proxy(namespace, selection).into_iter().flat_map(|one| &one.patches);
        let there = all
            .filter(|patch| patch.is_for(selection) && patch.place.is_none_or(|one| one == place));
        there.map(|patch| (patch.port, Arc::clone(&patch.what))).collect()
    }

    pub(super) fn insert(&mut self, filter: &Arc<EnvoyFilter>, into: ScopedInForce<'_>) {
        let namespace = asked_of(filter, into.root_namespace);
        for wanted in filter.proxies() {
            into.changes.selectors |= into.selectors.ask(namespace, Arc::clone(wanted));
        }
        self.objects.insert(filter, into, note);
    }

    pub(super) fn remove(&mut self, filter: &EnvoyFilter, from: ScopedInForce<'_>) {
        let namespace = asked_of(filter, from.root_namespace);
        for wanted in filter.proxies() {
            from.changes.selectors |= from.selectors.ask_no_more(namespace, wanted);
        }
        self.objects.remove(filter, from, note);
    }
}

/// Whose proxies an object may be for; `None` for those of all namespaces.
fn asked_of<'a>(filter: &'a EnvoyFilter, root: &Namespace) -> Option<&'a Namespace> {
    Some(&filter.meta.namespace).filter(|namespace| *namespace != root)
}

/// Who has other filters than before is found out proxy by proxy, so that those for all are no other matter.
fn note(changes: &mut TrafficChanges, namespace: &Namespace, _: bool) {
    changes.filters.insert(namespace.clone());
}

#[cfg(test)]
mod tests;
