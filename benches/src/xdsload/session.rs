//! What one proxy asks for and holds: names and versions, no bodies. Plain and synchronous.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use foldhash::fast::RandomState;

use crate::options::Subscription;
use crate::wire::{Form, Kind, Request, Response, assignment_of};

/// A name nobody has. Who comes back with everything it held may get no answer at all, because nothing
/// changed; the answer to this one shows that the server has looked.
const PROBE: &[u8] = b"outbound|9||probe.xdsload.invalid";

/// Names and versions, each kept once for all proxies of a thread.
#[derive(Debug, Default)]
pub(crate) struct Names {
    ids: HashMap<Rc<[u8]>, u32, RandomState>,
    texts: Vec<Rc<[u8]>>,
}

impl Names {
    fn id(&mut self, text: &[u8]) -> u32 {
        if let Some(id) = self.ids.get(text) {
            return *id;
        }
        let id = u32::try_from(self.texts.len()).unwrap_or(u32::MAX);
        let text: Rc<[u8]> = text.into();
        self.texts.push(Rc::clone(&text));
        self.ids.insert(text, id);
        id
    }

    fn text(&self, id: u32) -> &[u8] {
        self.texts.get(id as usize).map_or(&[], |text| text)
    }
}

/// What a proxy is like.
#[derive(Debug, Clone)]
pub(crate) struct Profile {
    pub(crate) number: u32,
    pub(crate) form: Form,
    pub(crate) subscribe: Subscription,
    pub(crate) listeners: bool,
    pub(crate) rejects: bool,
    /// Whether it says what it holds when it comes back.
    pub(crate) keeps_versions: bool,
    /// Upstream clusters it must know to be in sync.
    pub(crate) expected: usize,
    /// The encoded node.
    pub(crate) node: Bytes,
    /// The assignments it asks for instead of asking for upstream clusters.
    pub(crate) names: Option<Arc<[Vec<u8>]>>,
}

/// A version that has not come yet, or one nobody keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    Awaited,
    Came,
    Kept(u32),
}

/// One proxy's stream.
#[derive(Debug)]
pub(crate) struct Session {
    profile: Profile,
    /// Assignments that are asked for.
    assignments: BTreeMap<u32, Version>,
    awaited: usize,
    /// Those of them that no request has named yet.
    unasked: Vec<u32>,
    /// Upstream clusters by name: their version, and the assignment they have.
    clusters: HashMap<u32, (Version, Option<u32>), RandomState>,
    /// How many of them have one.
    with_assignment: usize,
    /// Whether one that had one may have gone, or has another.
    lost: bool,
    knows_clusters: bool,
    probing: bool,
    was_in_sync: bool,
    /// The last nonce and version of each type (SotW).
    last: [(Vec<u8>, Vec<u8>); 4],
}

/// What a response led to.
#[derive(Debug)]
pub(crate) struct Step {
    pub(crate) kind: Kind,
    pub(crate) resources: u64,
    pub(crate) answers: Vec<Bytes>,
    /// Whether the proxy has just got what it still lacked.
    pub(crate) came_in_sync: bool,
}

impl Session {
    pub(crate) fn new(profile: Profile) -> Self {
        Self {
            profile,
            assignments: BTreeMap::new(),
            awaited: 0,
            unasked: Vec::new(),
            clusters: HashMap::default(),
            with_assignment: 0,
            lost: false,
            knows_clusters: false,
            probing: false,
            was_in_sync: false,
            last: Default::default(),
        }
    }

    /// Whether everything it asked for has come.
    pub(crate) fn in_sync(&self) -> bool {
        let expected = self.profile.expected;
        self.knows_clusters
            && self.awaited == 0
            && !self.probing
            && (expected == 0 || self.profile.names.is_some() || self.with_assignment >= expected)
    }

    /// The names of the assignments it asks for.
    pub(crate) fn asks_for(&self, names: &Names, each: impl FnMut(&[u8])) {
        self.assignments.keys().map(|name| names.text(*name)).for_each(each);
    }

    /// The requests that begin a stream.
    pub(crate) fn begin(&mut self, names: &mut Names) -> Vec<Bytes> {
        let form = self.profile.form;
        let comes_back = self.was_in_sync && self.profile.keeps_versions && form == Form::Delta;
        self.was_in_sync = false;
        self.last = Default::default();
        let mut requests = Vec::new();
        if !comes_back {
            self.assignments.clear();
            self.forget_clusters();
            self.awaited = 0;
            self.knows_clusters = false;
        }
        self.probing = comes_back;
        if let Some(given) = self.profile.names.clone() {
            self.knows_clusters = true;
            given.iter().for_each(|name| self.take_on(names.id(name)));
        } else {
            let mut clusters = Request::new(form, Kind::Cds).node(&self.profile.node);
            for (cluster, (version, _)) in &self.clusters {
                if let Version::Kept(version) = version {
                    clusters.held(names.text(*cluster), names.text(*version));
                }
            }
            requests.push(clusters.framed());
        }
        if !self.assignments.is_empty() || comes_back {
            let mut request = Request::new(form, Kind::Eds);
            if requests.is_empty() {
                request = request.node(&self.profile.node);
            }
            for (name, version) in &self.assignments {
                request.name(names.text(*name));
                if let Version::Kept(version) = version {
                    request.held(names.text(*name), names.text(*version));
                }
            }
            if comes_back {
                request.name(PROBE);
            }
            requests.push(request.framed());
            self.unasked.clear();
        }
        if self.profile.listeners {
            requests.push(Request::new(form, Kind::Lds).framed());
        }
        requests
    }

    /// Takes one response; `assignment` sees each assignment that came, by its name.
    pub(crate) fn apply<'a>(
        &mut self,
        message: &'a [u8],
        names: &mut Names,
        mut assignment: impl FnMut(&'a [u8], &'a [u8]),
    ) -> Step {
        let response = Response::read(message, self.profile.form);
        let mut step =
            Step { kind: response.kind, resources: 0, answers: Vec::new(), came_in_sync: false };
        let mut asked = (Vec::new(), Vec::new());
        match response.kind {
            Kind::Cds => {
                step.resources = self.clusters(&response, names);
                asked = self.resubscribe();
                self.knows_clusters = true;
            }
            Kind::Eds => {
                for resource in response.resources() {
                    step.resources += 1;
                    self.came(resource.name, resource.version, names);
                    assignment(resource.name, resource.body);
                }
                for name in &response.removed {
                    self.came(name, &[], names);
                }
            }
            Kind::Lds | Kind::Other => step.resources = response.resources().count() as u64,
        }
        self.answer(&response, names, asked, &mut step.answers);
        let in_sync = self.in_sync();
        step.came_in_sync = in_sync && !self.was_in_sync;
        self.was_in_sync = in_sync;
        step
    }

    fn version(&self, version: &[u8], names: &mut Names) -> Version {
        if self.profile.keeps_versions && !version.is_empty() {
            Version::Kept(names.id(version))
        } else {
            Version::Came
        }
    }

    fn clusters(&mut self, response: &Response<'_>, names: &mut Names) -> u64 {
        let mut resources = 0;
        if self.profile.form == Form::Sotw {
            // What isn't in it has gone.
            self.forget_clusters();
        }
        for resource in response.resources() {
            resources += 1;
            let version = self.version(resource.version, names);
            let assignment = assignment_of(resource.body, resource.name);
            let number = self.profile.number;
            let known = assignment.map(|name| names.id(name));
            let wanted = assignment.is_some_and(|name| self.profile.subscribe.wants(number, name));
            let before = self.clusters.insert(names.id(resource.name), (version, known));
            self.with_assignment += usize::from(known.is_some());
            self.part(before, known);
            if let Some(name) = known.filter(|_| wanted) {
                self.take_on(name);
            }
        }
        for name in &response.removed {
            let before = self.clusters.remove(&names.id(name));
            self.part(before, None);
        }
        resources
    }

    fn forget_clusters(&mut self) {
        self.lost |= self.with_assignment > 0;
        self.with_assignment = 0;
        self.clusters.clear();
    }

    /// Takes note that an upstream cluster is no longer what it was, and which assignment it has now.
    fn part(&mut self, before: Option<(Version, Option<u32>)>, now: Option<u32>) {
        if let Some((_, Some(assignment))) = before {
            self.with_assignment -= 1;
            self.lost |= now != Some(assignment);
        }
    }

    fn take_on(&mut self, name: u32) {
        self.assignments.entry(name).or_insert_with(|| {
            self.awaited += 1;
            self.unasked.push(name);
            Version::Awaited
        });
    }

    /// Drops assignments whose upstream cluster has gone, and says which are new and which have gone.
    fn resubscribe(&mut self) -> (Vec<u32>, Vec<u32>) {
        let mut gone = Vec::new();
        if std::mem::take(&mut self.lost) {
            let known: HashSet<u32> =
                self.clusters.values().filter_map(|(_, name)| *name).collect();
            gone.extend(self.assignments.keys().filter(|name| !known.contains(name)));
        }
        for name in &gone {
            if self.assignments.remove(name) == Some(Version::Awaited) {
                self.awaited -= 1;
            }
        }
        (std::mem::take(&mut self.unasked), gone)
    }

    fn came(&mut self, name: &[u8], version: &[u8], names: &mut Names) {
        if name == PROBE {
            self.probing = false;
            return;
        }
        let version = self.version(version, names);
        if let Some(held) = self.assignments.get_mut(&names.id(name)) {
            self.awaited -= usize::from(*held == Version::Awaited);
            *held = version;
        }
    }

    fn answer(
        &mut self,
        response: &Response<'_>,
        names: &Names,
        (new, gone): (Vec<u32>, Vec<u32>),
        answers: &mut Vec<Bytes>,
    ) {
        let form = self.profile.form;
        let mut answer = Request::new(form, response.kind).nonce(response.nonce);
        if self.profile.rejects {
            answer = answer.rejected();
        }
        if form == Form::Sotw {
            let (nonce, version) = &mut self.last[response.kind.index()];
            *nonce = response.nonce.to_vec();
            if !self.profile.rejects {
                *version = response.version.to_vec();
            }
            answer = answer.version(version);
            if response.kind == Kind::Eds {
                self.assignments.keys().for_each(|name| answer.name(names.text(*name)));
            }
        }
        answers.push(answer.framed());
        if new.is_empty() && gone.is_empty() {
            return;
        }
        let mut request = Request::new(form, Kind::Eds);
        if form == Form::Sotw {
            let (nonce, version) = &self.last[Kind::Eds.index()];
            request = request.nonce(nonce).version(version);
            self.assignments.keys().for_each(|name| request.name(names.text(*name)));
        } else {
            new.iter().for_each(|name| request.name(names.text(*name)));
            gone.iter().for_each(|name| request.unsubscribe(names.text(*name)));
        }
        answers.push(request.framed());
    }
}

#[cfg(test)]
mod tests {
    use prost::Message;
    use strait_proto::envoy::envoy::config::cluster::v3 as cluster;
    use strait_proto::envoy::envoy::service::discovery::v3 as ads;
    use strait_proto::envoy::google::protobuf::Any;

    use super::*;

    fn session(subscribe: Subscription) -> Session {
        Session::new(Profile {
            number: 0,
            form: Form::Delta,
            subscribe,
            listeners: false,
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

    fn requests(framed: &[Bytes]) -> Vec<ads::DeltaDiscoveryRequest> {
        let decode = |bytes: &Bytes| ads::DeltaDiscoveryRequest::decode(&bytes[5..]);
        framed.iter().map(|bytes| decode(bytes).expect("a request")).collect()
    }

    #[test]
    fn a_proxy_is_in_sync_when_every_assignment_has_come() {
        let (mut session, mut names) = (session(Subscription::All), Names::default());
        session.begin(&mut names);
        let clusters = response(Kind::Cds, &[("a", "1"), ("b", "1")], &[]);
        let step = session.apply(&clusters, &mut names, |_, _| {});
        assert_eq!(requests(&step.answers)[1].resource_names_subscribe, ["a", "b"]);
        assert!(!step.came_in_sync);
        let mut seen = Vec::new();
        let first = response(Kind::Eds, &[("a", "1")], &[]);
        let step = session.apply(&first, &mut names, |name, _| seen.push(name.to_vec()));
        assert!(!step.came_in_sync && seen == [b"a"]);
        // That there is none is an answer too.
        let second = response(Kind::Eds, &[], &["b"]);
        assert!(session.apply(&second, &mut names, |_, _| {}).came_in_sync);
        let gone = response(Kind::Cds, &[], &["b"]);
        let step = session.apply(&gone, &mut names, |_, _| {});
        assert_eq!(requests(&step.answers)[1].resource_names_unsubscribe, ["b"]);
    }

    #[test]
    fn a_proxy_comes_back_with_what_it_held() {
        let (mut session, mut names) = (session(Subscription::All), Names::default());
        session.begin(&mut names);
        session.apply(&response(Kind::Cds, &[("a", "7")], &[]), &mut names, |_, _| {});
        session.apply(&response(Kind::Eds, &[("a", "8")], &[]), &mut names, |_, _| {});
        let again = requests(&session.begin(&mut names));
        assert_eq!(again[0].initial_resource_versions["a"], "7");
        assert_eq!(again[1].initial_resource_versions["a"], "8");
        assert!(!session.in_sync(), "nothing has been answered");
        let probed = std::str::from_utf8(PROBE).expect("ASCII");
        let step = session.apply(&response(Kind::Eds, &[], &[probed]), &mut names, |_, _| {});
        assert!(step.came_in_sync);
    }

    #[test]
    fn a_proxy_without_clusters_to_ask_for_is_in_sync() {
        let (mut session, mut names) = (session(Subscription::Fraction(0.0)), Names::default());
        session.begin(&mut names);
        let step = session.apply(&response(Kind::Cds, &[("a", "1")], &[]), &mut names, |_, _| {});
        assert!(step.came_in_sync && step.answers.len() == 1);
    }
}
