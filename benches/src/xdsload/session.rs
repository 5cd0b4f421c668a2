//! The subscriptions of one proxy and the names and versions that it has, without bodies.
//! Synchronous, without I/O.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use bytes::Bytes;

use crate::names::{ByName, Names};
use crate::options::Subscription;
use crate::response::Response;
use crate::wire::{ByKind, Form, Kind, Request, Resource, assignment_of, routes_of};

/// A name that does not exist. A reconnecting proxy with all versions may receive no response,
/// because nothing changed. The response to this name shows that the server has processed the
/// request.
const PROBE: &[u8] = b"outbound|9||probe.xdsload.invalid";

/// The properties of a proxy.
#[derive(Debug, Clone)]
pub(crate) struct Profile {
    pub(crate) number: u32,
    pub(crate) form: Form,
    pub(crate) subscribe: Subscription,
    pub(crate) listeners: bool,
    /// Whether it subscribes to the route configurations that its listeners name.
    pub(crate) routes: bool,
    /// Whether it subscribes to single virtual hosts of these.
    pub(crate) vhds: bool,
    pub(crate) name_table: bool,
    pub(crate) rejects: bool,
    /// Whether it reports its versions when it reconnects.
    pub(crate) keeps_versions: bool,
    /// The minimum number of upstream clusters for being in sync.
    pub(crate) expected: usize,
    /// The encoded node.
    pub(crate) node: Bytes,
    /// The assignments to which it subscribes instead of upstream clusters.
    pub(crate) names: Option<Arc<[Vec<u8>]>>,
}

/// The version of a resource: not received, received but not stored, or stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    Awaited,
    Came,
    Kept(u32),
}

/// An upstream cluster: its version and its assignment.
#[derive(Debug, Clone, Copy)]
struct Cluster {
    version: Version,
    assignment: Option<u32>,
}

/// One proxy's stream.
#[derive(Debug)]
pub(crate) struct Session {
    profile: Profile,
    /// Subscribed assignments.
    assignments: ByName<Version>,
    awaited: usize,
    /// Subscribed assignments that no request has named yet.
    unasked: Vec<u32>,
    clusters: ByName<Cluster>,
    /// The number of upstream clusters that have an assignment.
    with_assignment: usize,
    /// Whether a cluster with an assignment may have been removed, or has another assignment now.
    lost: bool,
    knows_clusters: bool,
    /// The route configurations that each listener names, and for each route configuration its
    /// state and the number of listeners that name it.
    listeners: BTreeMap<u32, Vec<u32>>,
    routes: BTreeMap<u32, Route>,
    knows_listeners: bool,
    /// Whether it has subscribed to virtual hosts, which Envoy does once it has a route.
    asked_hosts: bool,
    probing: bool,
    was_in_sync: bool,
    /// Whether it was in sync since the stream began.
    been_in_sync: bool,
    /// For the current response: the number of resources received, and the last upstream cluster.
    resources: u64,
    last_cluster: Option<u32>,
    /// The last nonce and version of each type (SotW).
    last: ByKind<(Vec<u8>, Vec<u8>)>,
}

/// A route configuration that some listener names.
#[derive(Debug)]
struct Route {
    version: Version,
    listeners: usize,
    /// Whether a request has named it.
    asked: bool,
    /// Whether virtual hosts of it have been received, or the server has reported that it has none.
    has_hosts: bool,
}

/// The effect of a response.
#[derive(Debug)]
pub(crate) struct Step {
    pub(crate) resources: u64,
    /// Whether the proxy has just received the last missing resource.
    pub(crate) came_in_sync: bool,
}

impl Session {
    pub(crate) fn new(profile: Profile) -> Self {
        Self {
            profile,
            assignments: ByName::default(),
            awaited: 0,
            unasked: Vec::new(),
            clusters: ByName::default(),
            with_assignment: 0,
            lost: false,
            knows_clusters: false,
            listeners: BTreeMap::new(),
            routes: BTreeMap::new(),
            knows_listeners: false,
            asked_hosts: false,
            probing: false,
            was_in_sync: false,
            been_in_sync: false,
            resources: 0,
            last_cluster: None,
            last: Default::default(),
        }
    }

    fn in_sync(&self) -> bool {
        let expected = self.profile.expected;
        self.knows_clusters
            && self.awaited == 0
            && !self.probing
            && (!self.profile.routes || self.has_routes())
            && (expected == 0 || self.profile.names.is_some() || self.with_assignment >= expected)
    }

    /// Returns whether it was in sync since the stream began. If so, later resources are changes.
    pub(crate) fn been_in_sync(&self) -> bool {
        self.been_in_sync
    }

    fn has_routes(&self) -> bool {
        let vhds = self.profile.vhds;
        let has = |route: &Route| route.version != Version::Awaited && (route.has_hosts || !vhds);
        self.knows_listeners && self.routes.values().all(has)
    }

    /// Calls `each` with the names of all subscribed assignments.
    pub(crate) fn asks_for(&self, names: &Names, each: impl FnMut(&[u8])) {
        self.assignments.iter().map(|(name, _)| names.name(name)).for_each(each);
    }

    /// Appends the first requests of a stream to `out`.
    pub(crate) fn begin(&mut self, names: &mut Names, out: &mut Vec<u8>) {
        let form = self.profile.form;
        let comes_back = self.was_in_sync && self.profile.keeps_versions && form == Form::Delta;
        self.was_in_sync = false;
        self.been_in_sync = false;
        self.resources = 0;
        self.last_cluster = None;
        self.last = Default::default();
        // Versions of listeners and routes are not stored, so all of them are received again.
        self.listeners.clear();
        self.routes.clear();
        self.knows_listeners = false;
        self.asked_hosts = false;
        if !comes_back {
            self.assignments.clear();
            self.forget_clusters();
            self.awaited = 0;
            self.knows_clusters = false;
        }
        self.probing = comes_back;
        let asks_for_clusters = self.profile.names.is_none();
        if let Some(given) = self.profile.names.clone() {
            self.knows_clusters = true;
            given.iter().for_each(|name| self.take_on(names.id(name)));
        } else {
            let mut clusters = Request::new(form, Kind::Cds, out);
            clusters.node(&self.profile.node);
            for (cluster, known) in self.clusters.iter() {
                if let Version::Kept(version) = known.version {
                    clusters.held(names.name(cluster), names.version_text(version));
                }
            }
            clusters.end();
        }
        if self.assignments.len() > 0 || comes_back {
            let mut request = Request::new(form, Kind::Eds, out);
            if !asks_for_clusters {
                request.node(&self.profile.node);
            }
            for (name, version) in self.assignments.iter() {
                request.name(names.name(name));
                if let Version::Kept(version) = version {
                    request.held(names.name(name), names.version_text(*version));
                }
            }
            if comes_back {
                request.name(PROBE);
            }
            request.end();
            self.unasked.clear();
        }
        if self.profile.listeners || self.profile.routes {
            Request::new(form, Kind::Lds, out).end();
        }
        if self.profile.name_table {
            Request::new(form, Kind::Nds, out).end();
        }
    }

    /// Processes a resource of the current response.
    pub(crate) fn take(&mut self, kind: Kind, resource: &Resource<'_>, names: &mut Names) {
        match kind {
            Kind::Cds => self.cluster(resource, names),
            Kind::Eds => {
                if resource.name == PROBE {
                    self.probing = false;
                } else {
                    let name = names.id(resource.name);
                    let version = self.version(name, resource.version, names);
                    self.came(name, version);
                }
            }
            Kind::Lds if self.profile.routes => self.listener(resource, names),
            Kind::Rds => {
                if let Some(route) = self.routes.get_mut(&names.id(resource.name)) {
                    route.version = Version::Came;
                }
            }
            Kind::Vhds => self.hosts_came(resource.name, names),
            Kind::Lds | Kind::Nds | Kind::Other => {}
        }
        self.resources += 1;
    }

    /// Processes the end of a response, and appends the requests that answer it to `out`.
    pub(crate) fn end(
        &mut self,
        response: &Response,
        names: &mut Names,
        out: &mut Vec<u8>,
    ) -> Step {
        let resources = std::mem::take(&mut self.resources);
        self.last_cluster = None;
        let mut asked = (Kind::Eds, Vec::new(), Vec::new());
        match response.kind {
            Kind::Cds => {
                if resources == 0 && self.profile.form == Form::Sotw {
                    self.forget_clusters();
                }
                for name in &response.removed {
                    let before = self.clusters.remove(names.id(name));
                    self.part(before, None);
                }
                let (new, gone) = self.resubscribe();
                asked = (Kind::Eds, new, gone);
                self.knows_clusters = true;
            }
            Kind::Eds => {
                for name in &response.removed {
                    if *name == PROBE {
                        self.probing = false;
                    } else {
                        self.came(names.id(name), Version::Came);
                    }
                }
            }
            Kind::Lds if self.profile.routes => {
                if resources == 0 && self.profile.form == Form::Sotw {
                    self.forget_listeners();
                }
                for name in &response.removed {
                    self.forget_listener(names.id(name));
                }
                let (new, gone) = self.resubscribe_routes();
                asked = (Kind::Rds, new, gone);
                self.knows_listeners = true;
            }
            Kind::Rds => {
                // A removal is a response too.
                for name in &response.removed {
                    if let Some(route) = self.routes.get_mut(&names.id(name)) {
                        route.version = Version::Came;
                    }
                }
            }
            Kind::Vhds => {
                for name in &response.removed {
                    self.hosts_came(name, names);
                }
            }
            Kind::Lds | Kind::Nds | Kind::Other => {}
        }
        self.answer(response, names, asked, out);
        if self.profile.vhds && response.kind == Kind::Rds && !self.asked_hosts {
            self.asked_hosts = true;
            Request::new(self.profile.form, Kind::Vhds, out).end();
        }
        let in_sync = self.in_sync();
        let came_in_sync = in_sync && !self.was_in_sync;
        self.was_in_sync = in_sync;
        self.been_in_sync |= in_sync;
        Step { resources, came_in_sync }
    }

    fn version(&self, name: u32, version: &[u8], names: &mut Names) -> Version {
        if self.profile.keeps_versions && !version.is_empty() {
            Version::Kept(names.version(name, version))
        } else {
            Version::Came
        }
    }

    fn cluster(&mut self, resource: &Resource<'_>, names: &mut Names) {
        if self.profile.form == Form::Sotw && self.resources == 0 {
            // Clusters that are not in the response have been removed.
            self.forget_clusters();
        }
        let name = names.id_behind(self.last_cluster, resource.name);
        self.last_cluster = Some(name);
        let version = self.version(name, resource.version, names);
        let assignment = assignment_of(resource.body, resource.name);
        let assignment =
            assignment.map(
                |assignment| {
                    if assignment == resource.name { name } else { names.id(assignment) }
                },
            );
        let before = self.clusters.insert(name, Cluster { version, assignment });
        self.with_assignment += usize::from(assignment.is_some());
        self.part(before, assignment);
        let Profile { subscribe, number, .. } = self.profile;
        if let Some(assignment) = assignment
            && names.wanted(assignment, subscribe, number)
        {
            self.take_on(assignment);
        }
    }

    fn listener(&mut self, resource: &Resource<'_>, names: &mut Names) {
        if self.profile.form == Form::Sotw && self.resources == 0 {
            // Listeners that are not in the response have been removed.
            self.forget_listeners();
        }
        let mut named = Vec::new();
        routes_of(resource.body, |route| named.push(names.id(route)));
        for route in &named {
            let new =
                Route { version: Version::Awaited, listeners: 0, asked: false, has_hosts: false };
            self.routes.entry(*route).or_insert(new).listeners += 1;
        }
        // The old names are removed after the new ones are added, so that the state of a name in
        // both is retained.
        let name = names.id(resource.name);
        self.forget_listener(name);
        if !named.is_empty() {
            self.listeners.insert(name, named);
        }
    }

    /// Records a virtual host, `ROUTE/HOST`.
    fn hosts_came(&mut self, host: &[u8], names: &mut Names) {
        let route = host.iter().rposition(|byte| *byte == b'/').map(|end| &host[..end]);
        if let Some(route) = route.and_then(|route| self.routes.get_mut(&names.id(route))) {
            route.has_hosts = true;
        }
    }

    fn forget_listener(&mut self, name: u32) {
        for route in self.listeners.remove(&name).unwrap_or_default() {
            if let Some(route) = self.routes.get_mut(&route) {
                route.listeners -= 1;
            }
        }
    }

    fn forget_listeners(&mut self) {
        self.listeners.clear();
        self.routes.values_mut().for_each(|route| route.listeners = 0);
    }

    /// Drops the route configurations that no listener names any more. Returns the new names and
    /// the dropped ones.
    fn resubscribe_routes(&mut self) -> (Vec<u32>, Vec<u32>) {
        let is_gone = |(_, route): &(&u32, &Route)| route.listeners == 0;
        let gone: Vec<u32> = self.routes.iter().filter(is_gone).map(|(name, _)| *name).collect();
        let asked = gone.iter().filter_map(|name| {
            let route = self.routes.remove(name)?;
            route.asked.then_some(*name)
        });
        let gone: Vec<u32> = asked.collect();
        let unasked = self.routes.iter_mut().filter(|(_, route)| !route.asked);
        let new = unasked.map(|(name, route)| {
            route.asked = true;
            *name
        });
        (new.collect(), gone)
    }

    fn forget_clusters(&mut self) {
        self.lost |= self.with_assignment > 0;
        self.with_assignment = 0;
        self.clusters.clear();
    }

    /// Updates the counters for an upstream cluster that changes, with its new assignment.
    fn part(&mut self, before: Option<Cluster>, now: Option<u32>) {
        if let Some(assignment) = before.and_then(|before| before.assignment) {
            self.with_assignment -= 1;
            self.lost |= now != Some(assignment);
        }
    }

    fn take_on(&mut self, name: u32) {
        if !self.assignments.contains(name) {
            self.assignments.insert(name, Version::Awaited);
            self.awaited += 1;
            self.unasked.push(name);
        }
    }

    /// Drops assignments whose upstream cluster was removed. Returns the new names and the dropped
    /// ones.
    fn resubscribe(&mut self) -> (Vec<u32>, Vec<u32>) {
        let mut gone = Vec::new();
        if std::mem::take(&mut self.lost) {
            let known: HashSet<u32> =
                self.clusters.iter().filter_map(|(_, cluster)| cluster.assignment).collect();
            let held = self.assignments.iter().map(|(name, _)| name);
            gone.extend(held.filter(|name| !known.contains(name)));
        }
        for name in &gone {
            if self.assignments.remove(*name) == Some(Version::Awaited) {
                self.awaited -= 1;
            }
        }
        (std::mem::take(&mut self.unasked), gone)
    }

    fn came(&mut self, name: u32, version: Version) {
        if let Some(held) = self.assignments.get_mut(name) {
            self.awaited -= usize::from(*held == Version::Awaited);
            *held = version;
        }
    }

    /// Calls `each` with every name of a type with subscriptions by name.
    fn watched(&self, kind: Kind, mut each: impl FnMut(u32)) {
        match kind {
            Kind::Eds => self.assignments.iter().for_each(|(name, _)| each(name)),
            Kind::Rds => self.routes.keys().for_each(|name| each(*name)),
            _ => {}
        }
    }

    fn answer(
        &mut self,
        response: &Response,
        names: &Names,
        (asked, new, gone): (Kind, Vec<u32>, Vec<u32>),
        out: &mut Vec<u8>,
    ) {
        let form = self.profile.form;
        let mut answer = Request::new(form, response.kind, out);
        answer.nonce(&response.nonce);
        if self.profile.rejects {
            answer.rejected();
        }
        if form == Form::Sotw {
            let (nonce, version) = &mut self.last[response.kind.index()];
            nonce.clone_from(&response.nonce);
            if !self.profile.rejects {
                version.clone_from(&response.version);
            }
            answer.version(version);
            self.watched(response.kind, |name| answer.name(names.name(name)));
        }
        answer.end();
        if new.is_empty() && gone.is_empty() {
            return;
        }
        let mut request = Request::new(form, asked, out);
        if form == Form::Sotw {
            let (nonce, version) = &self.last[asked.index()];
            request.nonce(nonce);
            request.version(version);
            self.watched(asked, |name| request.name(names.name(name)));
        } else {
            new.iter().for_each(|name| request.name(names.name(*name)));
            gone.iter().for_each(|name| request.unsubscribe(names.name(*name)));
        }
        request.end();
    }
}

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::*;
    use crate::response::{Event, Reader};
    use strait_proto::envoy::envoy::config::cluster::v3 as cluster;
    use strait_proto::envoy::envoy::service::discovery::v3 as ads;
    use strait_proto::envoy::google::protobuf::Any;

    fn session(subscribe: Subscription) -> Session {
        Session::new(Profile {
            number: 0,
            form: Form::Delta,
            subscribe,
            listeners: false,
            routes: false,
            vhds: false,
            name_table: false,
            rejects: false,
            keeps_versions: true,
            expected: 0,
            node: Bytes::from_static(b""),
            names: None,
        })
    }

    fn response(kind: Kind, resources: &[(&str, &str)], removed: &[&str]) -> Vec<u8> {
        use cluster::cluster::{ClusterDiscoveryType, DiscoveryType};
        let body = |name: &str| {
            let kind = ClusterDiscoveryType::Type(DiscoveryType::Eds.into());
            let cluster_discovery_type = Some(kind);
            cluster::Cluster { name: name.into(), cluster_discovery_type, ..Default::default() }
        };
        let resource = |(name, version): &(&str, &str)| ads::Resource {
            name: (*name).into(),
            version: (*version).into(),
            resource: Some(Any { type_url: kind.url().into(), value: body(name).encode_to_vec() }),
            ..Default::default()
        };
        ads::DeltaDiscoveryResponse {
            resources: resources.iter().map(resource).collect(),
            removed_resources: removed.iter().map(|name| (*name).into()).collect(),
            type_url: kind.url().into(),
            nonce: "n".into(),
            ..Default::default()
        }
        .encode_to_vec()
    }

    fn begin(session: &mut Session, names: &mut Names) -> Vec<ads::DeltaDiscoveryRequest> {
        let mut out = Vec::new();
        session.begin(names, &mut out);
        requests(&out)
    }

    /// Processes a response. Returns whether the proxy is now in sync, and its requests.
    fn apply(
        session: &mut Session,
        names: &mut Names,
        response: &[u8],
    ) -> (bool, Vec<ads::DeltaDiscoveryRequest>) {
        let length = u32::try_from(response.len()).expect("short").to_be_bytes();
        let framed = [&[0], &length[..], response].concat();
        let (mut came_in_sync, mut out) = (None, Vec::new());
        let read = Reader::new(Form::Delta).take(&framed, |event| match event {
            Event::Resource(kind, resource) => session.take(kind, &resource, names),
            Event::End(response) => {
                came_in_sync = Some(session.end(&response, names, &mut out).came_in_sync);
            }
        });
        read.expect("a response");
        (came_in_sync.expect("a whole response"), requests(&out))
    }

    fn requests(mut framed: &[u8]) -> Vec<ads::DeltaDiscoveryRequest> {
        let mut requests = Vec::new();
        while let Some((&[_, ref length @ ..], rest)) = framed.split_first_chunk::<5>() {
            let (message, rest) = rest.split_at(u32::from_be_bytes(*length) as usize);
            requests.push(ads::DeltaDiscoveryRequest::decode(message).expect("a request"));
            framed = rest;
        }
        requests
    }

    #[test]
    fn proxy_is_in_sync_when_it_has_every_assignment() {
        let (mut session, mut names) = (session(Subscription::All), Names::default());
        begin(&mut session, &mut names);
        let mut apply = |response: &[u8]| apply(&mut session, &mut names, response);
        let (in_sync, answers) = apply(&response(Kind::Cds, &[("a", "1"), ("b", "1")], &[]));
        assert_eq!(answers[1].resource_names_subscribe, ["a", "b"]);
        assert!(!in_sync);
        let (in_sync, _) = apply(&response(Kind::Eds, &[("a", "1")], &[]));
        assert!(!in_sync);
        // A removal is a response too.
        let (in_sync, _) = apply(&response(Kind::Eds, &[], &["b"]));
        assert!(in_sync);
        let (_, answers) = apply(&response(Kind::Cds, &[], &["b"]));
        assert_eq!(answers[1].resource_names_unsubscribe, ["b"]);
    }

    #[test]
    fn proxy_reconnects_with_its_versions() {
        let (mut session, mut names) = (session(Subscription::All), Names::default());
        begin(&mut session, &mut names);
        apply(&mut session, &mut names, &response(Kind::Cds, &[("a", "7")], &[]));
        apply(&mut session, &mut names, &response(Kind::Eds, &[("a", "8")], &[]));
        let again = begin(&mut session, &mut names);
        assert_eq!(again[0].initial_resource_versions["a"], "7");
        assert_eq!(again[1].initial_resource_versions["a"], "8");
        assert!(!session.in_sync(), "nothing has been answered");
        let probed = std::str::from_utf8(PROBE).expect("ASCII");
        let (in_sync, _) = apply(&mut session, &mut names, &response(Kind::Eds, &[], &[probed]));
        assert!(in_sync);
    }

    #[test]
    fn proxy_without_assignments_is_in_sync() {
        let (mut session, mut names) = (session(Subscription::Fraction(0.0)), Names::default());
        begin(&mut session, &mut names);
        let clusters = response(Kind::Cds, &[("a", "1")], &[]);
        let (in_sync, answers) = apply(&mut session, &mut names, &clusters);
        assert!(in_sync && answers.len() == 1);
    }

    /// A listener with a filter for each route configuration, encoded field by field.
    fn listener(name: &str, routes: &[&str]) -> Vec<u8> {
        let put = |number: u8, bytes: &[u8]| {
            let mut out = vec![number << 3 | 2];
            prost::encoding::encode_varint(bytes.len() as u64, &mut out);
            [out, bytes.to_vec()].concat()
        };
        let url = b"type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager";
        let filter = |route: &&str| {
            let manager = put(3, &put(2, route.as_bytes()));
            put(3, &put(4, &[put(1, url), put(2, &manager)].concat()))
        };
        let filters: Vec<u8> = routes.iter().flat_map(filter).collect();
        [put(1, name.as_bytes()), put(3, &filters)].concat()
    }

    #[test]
    fn routes_named_by_listeners_are_subscribed() {
        let mut session = session(Subscription::All);
        session.profile.routes = true;
        let mut names = Names::default();
        let first = begin(&mut session, &mut names);
        assert_eq!(first[1].type_url, Kind::Lds.url());
        apply(&mut session, &mut names, &response(Kind::Cds, &[], &[]));
        let mut told = |kind: Kind, resources: &[(&str, &[&str])], removed: &[&str]| {
            let (mut session_out, mut requested) = (Vec::new(), Vec::new());
            for (name, routes) in resources {
                let body = listener(name, routes);
                let resource = Resource { name: name.as_bytes(), version: b"", body: &body };
                session.take(kind, &resource, &mut names);
            }
            let removed = removed.iter().map(|name| name.as_bytes().to_vec()).collect();
            let response = Response { kind, removed, nonce: b"n".to_vec(), ..Response::NONE };
            let step = session.end(&response, &mut names, &mut session_out);
            for request in requests(&session_out).into_iter().skip(1) {
                assert_eq!(request.type_url, Kind::Rds.url());
                requested.push(request.resource_names_subscribe);
                requested.push(request.resource_names_unsubscribe);
            }
            (step.came_in_sync, requested.concat())
        };
        let [none, asked]: [&[String]; 2] = [&[], &["80".into(), "b:90".into()]];
        let both: &[(&str, &[&str])] = &[("0.0.0.0_80", &["80", "80"]), ("0.0.0.0_90", &["b:90"])];
        assert_eq!(told(Kind::Lds, both, &[]), (false, asked.to_vec()));
        assert_eq!(told(Kind::Rds, &[("80", &[])], &[]), (false, none.to_vec()));
        assert_eq!(told(Kind::Rds, &[("b:90", &[])], &[]), (true, none.to_vec()));
        // A listener that is received again names the same routes.
        assert_eq!(told(Kind::Lds, &both[..1], &[]), (false, none.to_vec()));
        assert_eq!(told(Kind::Lds, &[], &["0.0.0.0_90"]), (false, vec!["b:90".into()]));
    }

    #[test]
    fn hosts_are_subscribed_once_and_complete_the_routes() {
        let mut session = session(Subscription::All);
        (session.profile.routes, session.profile.vhds) = (true, true);
        let mut names = Names::default();
        begin(&mut session, &mut names);
        apply(&mut session, &mut names, &response(Kind::Cds, &[], &[]));
        for (name, routes) in [("0.0.0.0_80", ["80"]), ("0.0.0.0_90", ["90"])] {
            let body = listener(name, &routes);
            let resource = Resource { name: name.as_bytes(), version: b"", body: &body };
            session.take(Kind::Lds, &resource, &mut names);
        }
        let response_of = |kind| Response { kind, nonce: b"n".to_vec(), ..Response::NONE };
        session.end(&response_of(Kind::Lds), &mut names, &mut Vec::new());
        let mut told = |bytes: Vec<u8>| apply(&mut session, &mut names, &bytes);
        let (in_sync, answers) = told(response(Kind::Rds, &[("80", "1")], &[]));
        assert_eq!((in_sync, answers.len(), &*answers[1].type_url), (false, 2, Kind::Vhds.url()));
        assert!(answers[1].resource_names_subscribe.is_empty());
        let (in_sync, answers) = told(response(Kind::Rds, &[("90", "1")], &[]));
        assert_eq!((in_sync, answers.len()), (false, 1));
        let (in_sync, answers) = told(response(Kind::Vhds, &[("80/a", "1"), ("80/b", "1")], &[]));
        assert_eq!((in_sync, answers.len()), (false, 1));
        assert!(told(response(Kind::Vhds, &[], &["90/"])).0);
    }

    #[test]
    fn sotw_response_replaces_all_clusters() {
        let mut session = session(Subscription::All);
        session.profile.form = Form::Sotw;
        let (mut names, mut out) = (Names::default(), Vec::new());
        session.begin(&mut names, &mut out);
        let told = |session: &mut Session, names: &mut Names, clusters: &[&[u8]]| {
            for name in clusters {
                // `type: EDS`, as a number.
                let body = [&[10, 1][..], name, &[16, 3]].concat();
                let resource = Resource { name, version: b"", body: &body };
                session.take(Kind::Cds, &resource, names);
            }
            let (nonce, version) = (b"n".to_vec(), b"1".to_vec());
            let response = Response { kind: Kind::Cds, nonce, version, ..Response::NONE };
            session.end(&response, names, &mut Vec::new());
            let mut asked = Vec::new();
            session.asks_for(names, |name| asked.push(name.to_vec()));
            asked
        };
        assert_eq!(told(&mut session, &mut names, &[b"a", b"b"]), [b"a", b"b"]);
        assert_eq!(told(&mut session, &mut names, &[b"b", b"c"]), [b"b", b"c"]);
        assert!(told(&mut session, &mut names, &[]).is_empty());
    }
}
