//! Random clients of both protocol forms against a random source: see [`run`].

use std::collections::VecDeque;

use super::*;

const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];
/// The prefix of a body that every client rejects.
const BAD: &str = "bad";

#[test]
fn both_forms_end_with_the_resources_of_the_source() {
    for seed in 0..400 {
        if let Err((problem, log)) = run(seed) {
            panic!("seed {seed}: {problem}\n{}", log.join("\n"));
        }
    }
}

/// Runs one client of each form. The clients follow references, reject, delay and reconnect while
/// the source changes. Then the changes stop, and both clients must hold exactly the resources of
/// the source.
fn run(seed: u64) -> Result<(), (String, Vec<String>)> {
    let mut random = StdRng::seed_from_u64(seed);
    let mut log = Vec::new();
    let mut source = Source::default();
    let limit = [1, 20, 60, usize::MAX][random.random_range(0..4)];
    source.shared = NAMES.into_iter().filter(|_| random.random()).collect();
    source.piece_bytes = [1, 30, usize::MAX][random.random_range(0..3)];
    let mut clients = FORMS.map(|form| Client::new(form, limit));
    for _ in 0..random.random_range(20..120) {
        if random.random_ratio(1, 4) {
            let dirty = change(&mut source, &mut random, &mut log);
            clients.iter_mut().for_each(|client| client.hear(&dirty));
        } else {
            let client = &mut clients[random.random_range(0..2)];
            client.act(&mut source, &mut random, &mut log);
        }
    }
    log.push("rest".into());
    for client in &mut clients {
        let settled = client.settle(&mut source, &mut log).and_then(|()| client.check(&source));
        if let Err(problem) = settled {
            return Err((format!("{:?}: {problem}", client.form), log));
        }
    }
    Ok(())
}

/// Changes one resource. Returns the change that the streams are notified of.
fn change(source: &mut Source, random: &mut StdRng, log: &mut Vec<String>) -> Dirty {
    let kind = ResourceType::ALL[random.random_range(0..ResourceType::ALL.len())];
    let short = NAMES[random.random_range(0..NAMES.len())];
    let name = full(kind, short);
    if random.random_ratio(1, 4) {
        log.push(format!("source: {} -{short}", kind.short()));
        source.remove(kind, &name);
    } else {
        let bad = if random.random_ratio(1, 8) { BAD } else { "" };
        let mut value = format!("{bad}{}", random.random_range(0..3));
        if kind == ResourceType::Listener {
            for _ in 0..random.random_range(0..3) {
                write!(value, " {}", NAMES[random.random_range(0..NAMES.len())]).expect("a string");
            }
        }
        log.push(format!("source: {} {short}={value}", kind.short()));
        source.set(kind, &name, &value);
    }
    if random.random_ratio(1, 10) {
        return Dirty { everything: true, ..Dirty::default() };
    }
    let name = Arc::<str>::from(name);
    let lists = kind.wildcard().into_iter().collect();
    match kind {
        ResourceType::Endpoint => Dirty { endpoints: vec![name], ..Dirty::default() },
        ResourceType::Route => Dirty { routes: [name].into(), ..Dirty::default() },
        _ => Dirty { lists, ..Dirty::default() },
    }
}

/// A request, before it is converted to a protocol form.
#[derive(Debug)]
struct Ask {
    kind: ResourceType,
    nonce: String,
    error: Option<String>,
    /// SotW: all names that are subscribed to.
    names: BTreeSet<Arc<str>>,
    subscribe: BTreeSet<Arc<str>>,
    unsubscribe: BTreeSet<Arc<str>>,
    listed: BTreeMap<Arc<str>, Version>,
}

/// The state of a client for one type.
#[derive(Debug, Default)]
struct View {
    held: BTreeMap<Arc<str>, Arc<Resource>>,
    names: BTreeSet<Arc<str>>,
    /// Whether the type was requested on this stream.
    requested: bool,
    /// SotW: the nonce of the last response that was answered.
    answered: String,
    /// Answers that were not sent yet.
    answers: VecDeque<(String, Option<String>)>,
}

/// A model of Envoy, with its stream and the session of the stream.
struct Client {
    form: ProtocolForm,
    limit: usize,
    session: Session,
    dirty: Dirty,
    requests: VecDeque<Ask>,
    responses: VecDeque<Response>,
    views: BTreeMap<ResourceType, View>,
    /// Upstream clusters that wait for an assignment.
    warming: BTreeSet<Arc<str>>,
    /// Upstream clusters that waited for an assignment when the stream began.
    warming_before: BTreeSet<Arc<str>>,
    first: bool,
    /// The current time. It does not advance while the source changes, so that no answer is late.
    now: SystemTime,
}

impl Client {
    fn new(form: ProtocolForm, limit: usize) -> Self {
        Self {
            form,
            limit,
            session: Session::new(form),
            dirty: Dirty::default(),
            requests: VecDeque::new(),
            responses: VecDeque::new(),
            views: ResourceType::ALL.map(|kind| (kind, View::default())).into(),
            warming: BTreeSet::new(),
            warming_before: BTreeSet::new(),
            first: true,
            now: SystemTime::UNIX_EPOCH,
        }
    }

    /// Marks changes as `push::subscription_index` does: assignments that the client does not subscribe to at
    /// this time are not marked.
    fn hear(&mut self, dirty: &Dirty) {
        self.dirty.everything |= dirty.everything;
        self.dirty.lists.add(dirty.lists);
        self.dirty.routes.extend(dirty.routes.iter().cloned());
        let is_watched = |name: &&Arc<str>| self.session.assignments().any(|one| one == *name);
        self.dirty.endpoints.extend(dirty.endpoints.iter().filter(is_watched).cloned());
    }

    /// Performs one random step, if it is possible.
    fn act(&mut self, source: &mut Source, random: &mut StdRng, log: &mut Vec<String>) {
        let kind = ResourceType::ALL[random.random_range(0..ResourceType::ALL.len())];
        match random.random_range(0..40) {
            0 => self.reconnect(random, log),
            1..6 if !self.view(kind).requested => self.ask_first(kind, log),
            6..16 => self.answer(kind, log),
            16..22 => self.hear_out(),
            22..28 => self.serve_one(source, log),
            28..34 => self.send_one(source, log),
            _ => self.read_one(log),
        }
    }

    /// Performs steps until none is left.
    fn settle(&mut self, source: &mut Source, log: &mut Vec<String>) -> Result<(), String> {
        for kind in ResourceType::ALL.into_iter().filter(|kind| kind.is_wildcard()) {
            if !self.view(kind).requested {
                self.ask_first(kind, log);
            }
        }
        for _ in 0..200 {
            self.now += Duration::from_secs(1);
            self.hear_out();
            self.serve_one(source, log);
            self.send_one(source, log);
            self.read_one(log);
            ResourceType::ALL.into_iter().for_each(|kind| self.answer(kind, log));
            if self.requests.is_empty() && self.responses.is_empty() && !self.session.is_due() {
                return Ok(());
            }
        }
        Err("responses without end".into())
    }

    fn check(&self, source: &Source) -> Result<(), String> {
        for (kind, view) in &self.views {
            let mut expected: BTreeMap<Arc<str>, Arc<Resource>> = BTreeMap::new();
            if kind.is_wildcard() {
                expected.extend(source.of(*kind).map(|one| (Arc::clone(&one.name), one.clone())));
            } else {
                let mut source = source.clone();
                let resources = view.names.iter().filter_map(|name| source.one(*kind, name));
                expected.extend(resources.map(|one| (Arc::clone(&one.name), one)));
            }
            let held = self.session.held().remove(kind).unwrap_or_default();
            let held: BTreeMap<_, _> = held.into_iter().collect();
            let should =
                expected.clone().into_iter().map(|(name, one)| (name, HeldVersion::Sent(one)));
            // For a reconnected client, a correctly listed version is as good as a sent one.
            let believes = |(name, held): (Arc<str>, HeldVersion)| match held {
                HeldVersion::Listed(version) => {
                    let right = expected.get(&name).filter(|one| Some(one.version) == version);
                    (
                        Arc::clone(&name),
                        right.map_or(HeldVersion::Listed(version), |one| {
                            HeldVersion::Sent(Arc::clone(one))
                        }),
                    )
                }
                sent => (name, sent),
            };
            let held: BTreeMap<_, _> = held.into_iter().map(believes).collect();
            if held != should.collect() {
                return Err(format!("{}: the session believes in {held:#?}", kind.short()));
            }
            for (name, one) in &expected {
                if !is_bad(one) && view.held.get(name).map(|held| &held.body) != Some(&one.body) {
                    return Err(format!("{} {name} is {:?}", kind.short(), view.held.get(name)));
                }
            }
            if let Some(name) = view.held.keys().find(|name| !expected.contains_key(*name)) {
                return Err(format!("{} {name} is left behind", kind.short()));
            }
        }
        if self.warming.is_empty() { Ok(()) } else { Err(format!("warming: {:?}", self.warming)) }
    }

    fn view(&mut self, kind: ResourceType) -> &mut View {
        self.views.entry(kind).or_default()
    }

    /// Ends the stream and drops all messages in transit.
    fn reconnect(&mut self, random: &mut StdRng, log: &mut Vec<String>) {
        log.push(format!("{:?}: reconnects", self.form));
        let requested: Vec<_> = self.views.iter().filter(|(_, view)| view.requested).collect();
        let mut requested: Vec<_> = requested.into_iter().map(|(kind, _)| *kind).collect();
        for view in self.views.values_mut() {
            view.requested = false;
            view.answered.clear();
            view.answers.clear();
        }
        self.session = Session::new(self.form);
        self.dirty = Dirty::default();
        self.requests.clear();
        self.responses.clear();
        self.first = true;
        self.warming_before.clone_from(&self.warming);
        while !requested.is_empty() {
            let kind = requested.swap_remove(random.random_range(0..requested.len()));
            self.ask_first(kind, log);
        }
    }

    fn ask_first(&mut self, kind: ResourceType, log: &mut Vec<String>) {
        let view = self.view(kind);
        if view.names.is_empty() && !kind.is_wildcard() {
            return;
        }
        view.requested = true;
        // As in Envoy, the last assignment is listed even while a changed cluster waits for the
        // next one.
        let listed = view.held.values().map(|one| (Arc::clone(&one.name), one.version)).collect();
        let listed: BTreeMap<Arc<str>, Version> = listed;
        let names = view.names.clone();
        // Some clients do not subscribe again to the names that they list.
        let mut subscribe = names.clone();
        if names.len() % 2 == 1 {
            subscribe.retain(|name| !listed.contains_key(name));
        }
        let ask = Ask {
            kind,
            nonce: String::new(),
            error: None,
            subscribe,
            names,
            unsubscribe: BTreeSet::new(),
            listed,
        };
        self.request(ask, log);
    }

    fn request(&mut self, ask: Ask, log: &mut Vec<String>) {
        log.push(format!("{:?}: asks {ask:?}", self.form));
        self.requests.push_back(ask);
    }

    /// Sends the next answer of a type. SotW: it contains the current names.
    fn answer(&mut self, kind: ResourceType, log: &mut Vec<String>) {
        let view = self.view(kind);
        let Some((nonce, error)) = view.answers.pop_front() else { return };
        view.answered.clone_from(&nonce);
        let ask = Ask {
            kind,
            nonce,
            error,
            names: view.names.clone(),
            subscribe: BTreeSet::new(),
            unsubscribe: BTreeSet::new(),
            listed: BTreeMap::new(),
        };
        self.request(ask, log);
    }

    /// Passes the marked changes to the session.
    fn hear_out(&mut self) {
        self.session.on_change(&std::mem::take(&mut self.dirty));
    }

    /// Passes a request to the session.
    fn serve_one(&mut self, source: &mut Source, log: &mut Vec<String>) {
        let Some(ask) = self.requests.pop_front() else { return };
        log.push(format!("{:?}: served {}", self.form, ask.kind.short()));
        let id = "n".to_owned();
        let node = std::mem::take(&mut self.first).then(|| Node { id, ..Default::default() });
        let type_url = ask.kind.url().to_owned();
        let response_nonce = ask.nonce;
        let error_detail = ask.error.map(|message| Status { message, ..Default::default() });
        let list = |names: BTreeSet<Arc<str>>| names.iter().map(ToString::to_string).collect();
        let bytes = match self.form {
            ProtocolForm::Delta => DeltaDiscoveryRequest {
                node,
                type_url,
                response_nonce,
                error_detail,
                resource_names_subscribe: list(ask.subscribe),
                resource_names_unsubscribe: list(ask.unsubscribe),
                initial_resource_versions: ask
                    .listed
                    .iter()
                    .map(|(name, version)| (name.to_string(), version.to_string()))
                    .collect(),
                ..Default::default()
            }
            .encode_to_vec(),
            ProtocolForm::Sotw => DiscoveryRequest {
                node,
                type_url,
                response_nonce,
                error_detail,
                resource_names: list(ask.names),
                ..Default::default()
            }
            .encode_to_vec(),
        };
        let request = AdsRequest::read(self.form, &bytes).expect("a request");
        let handled = self.session.on_request(request, Some(source), self.now);
        handled.expect("a request within the protocol");
    }

    /// Sends a response of the session.
    fn send_one(&mut self, source: &mut Source, log: &mut Vec<String>) {
        if let Some(response) = self.session.next_response(source, self.limit, self.now) {
            check_bytes(&response, &response.to_bytes());
            assert!(self.session.watches.values().all(|watch| watch.is_consistent()), "{log:#?}");
            log.push(format!("{:?}: sent {response:?}", self.form));
            self.responses.push_back(response);
        }
    }

    /// Handles a response in the client, which keeps the previous version of a rejected resource.
    fn read_one(&mut self, log: &mut Vec<String>) {
        let Some(response) = self.responses.pop_front() else { return };
        log.push(format!("{:?}: reads #{}", self.form, response.nonce));
        let kind = response.kind;
        let mut gone: BTreeSet<Arc<str>> = response.removed.iter().cloned().collect();
        if self.form == ProtocolForm::Sotw && kind.is_wildcard() {
            gone = self.view(kind).held.keys().cloned().collect();
            response.all().for_each(|(one, _)| _ = gone.remove(&one.name));
        }
        self.check_order(kind, !gone.is_empty(), log);
        let mut refused = Vec::new();
        for (one, version) in response.all() {
            let view = self.views.entry(kind).or_default();
            if !kind.is_wildcard() && !view.names.contains(&one.name) {
                continue;
            }
            if is_bad(one) {
                refused.push(one.name.to_string());
            } else {
                let now = Arc::new(Resource { version, ..Resource::clone(one) });
                let before = view.held.insert(Arc::clone(&one.name), Arc::clone(&now));
                if kind == ResourceType::Cluster && before.as_ref() != Some(&now) {
                    self.warming.insert(Arc::clone(&one.name));
                }
            }
            if kind == ResourceType::Endpoint {
                self.warming.remove(&one.name);
            }
        }
        for name in gone {
            self.view(kind).held.remove(&name);
            if kind == ResourceType::Cluster {
                self.warming.remove(&name);
            }
        }
        let error = (!refused.is_empty()).then(|| format!("can't take {}", refused.join(", ")));
        self.view(kind).answers.push_back((response.nonce, error));
        self.follow(kind, log);
    }

    /// Checks that listeners and routes arrive only when no upstream cluster waits for its
    /// assignment, and that clusters are removed only after the resources that referred to them
    /// were answered.
    fn check_order(&self, kind: ResourceType, removes: bool, log: &[String]) {
        let is_late = self.now > SystemTime::UNIX_EPOCH;
        let leads = |kind| matches!(kind, ResourceType::Listener | ResourceType::Route);
        if leads(kind) && !is_late {
            let warming: Vec<_> = self.warming.difference(&self.warming_before).collect();
            assert!(warming.is_empty(), "{warming:?} have no assignment\n{}", log.join("\n"));
        }
        if kind == ResourceType::Cluster && removes && !is_late {
            let mut leading = self.views.iter().filter(|(kind, _)| leads(**kind));
            let answered = leading.all(|(_, view)| view.answers.is_empty());
            assert!(answered, "a cluster goes early\n{}", log.join("\n"));
        }
    }

    /// Subscribes to the names that the resources of `kind` refer to.
    fn follow(&mut self, kind: ResourceType, log: &mut Vec<String>) {
        let held = &self.view(kind).held;
        let (kind, names): (_, BTreeSet<Arc<str>>) = match kind {
            ResourceType::Cluster => (ResourceType::Endpoint, held.keys().cloned().collect()),
            ResourceType::Listener => {
                let routes = held.values().flat_map(|one| {
                    let body = one.body.to_bytes();
                    let text = std::str::from_utf8(&body).expect("text");
                    text.split(' ').skip(1).map(Arc::from).collect::<Vec<_>>()
                });
                (ResourceType::Route, routes.collect())
            }
            _ => return,
        };
        let repeats = kind == ResourceType::Endpoint && !self.warming.is_empty();
        let form = self.form;
        let view = self.view(kind);
        let before = std::mem::replace(&mut view.names, names.clone());
        view.held.retain(|name, _| names.contains(name));
        if !view.requested {
            self.ask_first(kind, log);
        } else if before != names || (form == ProtocolForm::Sotw && repeats) {
            let ask = Ask {
                kind,
                nonce: if form == ProtocolForm::Sotw {
                    view.answered.clone()
                } else {
                    String::new()
                },
                error: None,
                subscribe: names.difference(&before).cloned().collect(),
                unsubscribe: before.difference(&names).cloned().collect(),
                names,
                listed: BTreeMap::new(),
            };
            self.request(ask, log);
        }
    }
}

fn is_bad(resource: &Resource) -> bool {
    resource.body.to_bytes().starts_with(BAD.as_bytes())
}
