//! Two configurations at the same time: streams of many kinds use one or the other and switch
//! between them while clusters change. After each step, each stream has exactly the resources that
//! a fresh stream would receive from its configuration.

use std::time::Instant;

use tokio::sync::{oneshot, watch};

use super::*;
use crate::heads::{ConfigVariant, ConfigVariants};
use strait_mesh::push::event_loop::{
    LoopCounters, LoopOutputs, RolloutCandidate, ServedConfigurations, VariantOutputs,
};
use strait_mesh::push::subscription_index::{Subscription, SubscriptionIndex};
use strait_mesh::rollout::Cohort;
use strait_mesh::timeline::{Delivery, Timeline};
use strait_model::dirty::{Dirty, Wildcards};

/// A stream that only re-evaluates resources named in notifications.
pub(super) struct Watcher {
    pub(super) proxy: Arc<Proxy>,
    location: Arc<ProxyLocation>,
    pub(super) subscription: Subscription,
    pub(super) head: Option<Arc<ConfigVariant>>,
    pub(super) resources: Shape,
}

/// The state that all streams share.
pub(super) struct Mesh {
    pub(super) heads: ServedConfigurations,
    outputs: LoopOutputs,
    settled: watch::Receiver<Option<Arc<PushContext>>>,
    cache: Arc<Cache>,
    pub(super) shares: ConfigVariants,
    figures: LoopCounters,
}

/// Number of occurrences of each event.
#[derive(Debug, Default)]
pub(super) struct Tried {
    looked: usize,
    begun: usize,
    pub(super) moved: usize,
    promoted: usize,
    ended: usize,
    /// Streams of a cohort that were notified of some resources only.
    pub(super) in_part: usize,
    /// Streams whose resources differ between the two configurations.
    different: usize,
}

impl Mesh {
    pub(super) fn new(state: MeshState) -> Self {
        let (context, settled) = watch::channel(None);
        let cache = Arc::<Cache>::default();
        let outputs = LoopOutputs {
            context,
            subscription_index: Arc::default(),
            change_impact: Arc::<Cache>::clone(&cache),
            names: watch::channel(BTreeSet::new()).0,
            timeline: Arc::new(Timeline::default()),
            retained: Arc::default(),
            figures: watch::channel(LoopCounters::none()).0,
        };
        let heads = ServedConfigurations::new(state, &outputs);
        let figures = LoopCounters::none();
        Self { heads, outputs, settled, cache, shares: ConfigVariants::default(), figures }
    }

    pub(super) fn publish(&mut self) {
        self.heads.publish(&self.outputs, None, Instant::now(), &mut self.figures);
    }

    pub(super) fn context(&self, head: Option<&ConfigVariant>) -> Arc<PushContext> {
        let versions = head.map_or(&self.settled, ConfigVariant::versions);
        versions.borrow().clone().expect("a version")
    }

    fn cache<'a>(&'a self, head: Option<&'a Arc<ConfigVariant>>) -> &'a Cache {
        head.map_or(&self.cache, |head| head.cache())
    }

    fn give(&self, cohort: Cohort, head: &Arc<ConfigVariant>) -> usize {
        assert!(self.shares.give(cohort.clone(), head));
        let delivery = Arc::new(Delivery::new(Instant::now()));
        self.outputs.subscription_index.mark_proxies(|proxy| cohort.contains(proxy), &delivery)
    }

    fn end(&self, head: &ConfigVariant) {
        self.shares.end(head);
        let delivery = Arc::new(Delivery::new(Instant::now()));
        head.subscription_index().mark_proxies(|_| true, &delivery);
    }
}

pub(super) fn subscribe(
    subscription_index: &Arc<SubscriptionIndex>,
    proxy: &Proxy,
) -> Subscription {
    subscription_index.subscribe(Some((proxy.cluster.clone(), proxy.workload.clone())))
}

impl Watcher {
    fn new(mesh: &Mesh, proxy: Proxy) -> Self {
        let context = mesh.context(None);
        let proxy = Arc::new(proxy);
        let mut new = Self {
            location: locate(&context, &proxy),
            subscription: subscribe(&mesh.outputs.subscription_index, &proxy),
            proxy,
            head: None,
            resources: Shape::new(),
        };
        new.take_all(mesh);
        new
    }

    /// Re-evaluates all resources in the assigned configuration.
    fn take_all(&mut self, mesh: &Mesh) -> bool {
        let head = mesh.shares.variant_for(&self.proxy);
        let number = |head: &Option<Arc<ConfigVariant>>| head.as_ref().map(|head| head.number);
        let moved = number(&head) != number(&self.head);
        if moved {
            let subscription_index = head
                .as_ref()
                .map_or(&mesh.outputs.subscription_index, |head| head.subscription_index());
            self.subscription = subscribe(subscription_index, &self.proxy);
            self.head = head;
        }
        let context = mesh.context(self.head.as_deref());
        let cache = mesh.cache(self.head.as_ref());
        self.location = locate(&context, &self.proxy);
        self.resources = shape(&context, &self.location, cache);
        let names = |wanted: ResourceType| {
            let all = self.resources.keys().filter(move |(kind, _)| *kind == wanted);
            all.map(|(_, name)| Arc::from(name.as_str())).collect::<Vec<Arc<str>>>()
        };
        let (routes, endpoints) = (names(ResourceType::Route), names(ResourceType::Endpoint));
        self.subscription.watch_lists(Wildcards::ALL);
        self.subscription.watch_routes(&routes, &[]);
        let hostname = |name: &str| OutboundName::parse(name).map(|name| name.hostname);
        self.subscription.watch(&endpoints, hostname);
        let network = self.location.network.clone();
        let proxy_config = ProxyConfig::new(&context, &self.proxy, network, cache);
        let view = proxy_config.at(self.location.whereabouts.clone()).view_class();
        let labels = context.known_labels(&self.proxy);
        self.subscription.set_location((*self.location).clone(), view, labels);
        moved
    }

    /// Re-evaluates the resources that the notification to the stream names.
    pub(super) fn look(&mut self, mesh: &Mesh, tried: &mut Tried) {
        let dirty = self.subscription.take();
        if dirty.is_empty() {
            return;
        }
        if dirty.everything {
            tried.moved += usize::from(self.take_all(mesh));
            return;
        }
        tried.in_part += usize::from(self.head.is_some());
        let context = mesh.context(self.head.as_deref());
        let now = shape(&context, &self.location, mesh.cache(self.head.as_ref()));
        let is_notified = |(kind, name): &(ResourceType, String)| is_dirty(&dirty, *kind, name);
        self.resources.retain(|key, _| !is_notified(key));
        self.resources.extend(now.into_iter().filter(|(key, _)| is_notified(key)));
    }
}

fn is_dirty(dirty: &Dirty, kind: ResourceType, name: &str) -> bool {
    match kind {
        ResourceType::Route => dirty.routes.contains(name),
        ResourceType::Endpoint => dirty.endpoints.iter().any(|one| **one == *name),
        kind => dirty.lists.contains(kind.wildcard().expect("the others are")),
    }
}

pub(super) fn locate(context: &PushContext, proxy: &Arc<Proxy>) -> Arc<ProxyLocation> {
    let network = context.network_of_cluster(&proxy.cluster);
    let whereabouts = context.whereabouts(proxy);
    Arc::new(ProxyLocation { proxy: Arc::clone(proxy), network, whereabouts })
}

/// Returns several kinds of proxies, each several times, so that only some are in a cohort.
pub(super) fn watchers(mesh: &Mesh) -> Vec<Watcher> {
    let kinds = proxies().into_iter().filter(|proxy| !proxy.is_proxyless());
    let all = kinds.flat_map(|proxy| {
        let id = Arc::clone(&proxy.id);
        (0..2).map(move |at| Proxy { id: format!("{id}-{at}").into(), ..proxy.clone() })
    });
    all.map(|proxy| Watcher::new(mesh, proxy)).collect()
}

/// Returns the rules after some changes, and the events for a configuration with these rules.
fn next_rules(random: &mut StdRng, rules: &Rules) -> (Rules, Vec<MeshEvent>) {
    let mut next = Rules {
        objects: rules.objects.clone(),
        index: rules.index.replica(),
        policies: rules.policies.clone(),
        access: rules.access.clone(),
        past: Vec::new(),
    };
    let mut events = Vec::new();
    for _ in 0..random.random_range(1..6) {
        events.push(ruled(random, &mut next));
    }
    if random.random_ratio(1, 4) {
        let mut config = asking_config();
        config.enable_auto_mtls = false;
        events.push(MeshEvent::MeshConfig(Arc::new(config)));
    }
    (next, events)
}

fn run_history(seed: u64, tried: &mut Tried) {
    let random = &mut StdRng::seed_from_u64(seed);
    let mut state = some_mesh(settings(), random);
    state.apply(asking_policy());
    state.apply(MeshEvent::Complete);
    let mut mesh = Mesh::new(state);
    mesh.publish();
    let (mut epochs, mut rules) = (BTreeMap::new(), rules());
    let mut watchers = watchers(&mesh);
    let mut next: Option<(Rules, Arc<ConfigVariant>, u8)> = None;
    for step in 0..STEPS / 2 {
        match &mut next {
            None if random.random_ratio(1, 4) => {
                let (candidate, configuration) = next_rules(random, &rules);
                tried.begun += 1;
                let (head, outputs): (_, VariantOutputs) = ConfigVariant::new(tried.begun as u64);
                let begun = RolloutCandidate { configuration, outputs };
                mesh.heads.apply(MeshEvent::BeginNext(Box::new(begun)));
                next = Some((candidate, head, 0));
            }
            // Extends the cohort, at the first version and later.
            Some((_, head, percent)) if random.random_ratio(1, 4) => {
                *percent = (*percent + 30).min(90);
                let proxies = watchers.iter().map(|watcher| &*watcher.proxy);
                let cohort = Cohort::new(format!("{seed}").into(), 0).filled(*percent, proxies);
                if head.versions().borrow().is_some() {
                    mesh.give(cohort, head);
                }
            }
            Some((_, head, _)) if random.random_ratio(1, 12) => {
                // Ends the rollout, together with other events.
                let (ended, _) = oneshot::channel();
                mesh.heads.apply(MeshEvent::EndNext(ended));
                mesh.end(head);
                tried.ended += 1;
                next = None;
            }
            Some((candidate, head, _)) if random.random_ratio(1, 12) => {
                let update = rules.index.restore(candidate.index.counting());
                rules.objects = candidate.objects.clone();
                update.into_iter().for_each(|one| mesh.heads.apply(MeshEvent::Traffic(one)));
                let (ended, mut has_ended) = oneshot::channel();
                mesh.heads.apply(MeshEvent::EndNext(ended));
                mesh.publish();
                has_ended.try_recv().expect("all that came before is published");
                mesh.end(head);
                tried.promoted += 1;
                next = None;
            }
            _ => {}
        }
        for _ in 0..random.random_range(1..3) {
            let event = event(random, &mut epochs, &mut rules);
            mesh.heads.apply(event);
        }
        mesh.publish();
        // One cache for each configuration.
        let scratch = [Cache::default(), Cache::default()];
        for watcher in &mut watchers {
            watcher.look(&mesh, tried);
            let context = mesh.context(watcher.head.as_deref());
            let scratch_cache = |is_next: bool| &scratch[usize::from(is_next)];
            let location = locate(&context, &watcher.proxy);
            let fresh = shape(&context, &location, scratch_cache(watcher.head.is_some()));
            let place = format!("seed {seed}, step {step}, {}", watcher.proxy.id);
            let missed = differing(&watcher.resources, &fresh);
            assert!(missed.is_empty(), "{place}: {missed:?}, next: {}", watcher.head.is_some());
            let general = mesh.context(None);
            if watcher.head.is_some() {
                let location = locate(&general, &watcher.proxy);
                let others = shape(&general, &location, scratch_cache(false));
                tried.different += usize::from(!differing(&others, &fresh).is_empty());
            }
            tried.looked += 1;
        }
    }
}

#[test]
fn each_stream_has_the_resources_of_its_own_configuration() {
    let mut tried = Tried::default();
    let rounds = rounds(1);
    for seed in 1..=rounds {
        run_history(seed, &mut tried);
    }
    let rounds = usize::try_from(rounds).expect("few");
    let Tried { looked, begun, moved, promoted, ended, in_part, different } = tried;
    assert!(looked > 500 * rounds && begun > rounds && promoted + ended > 0, "{tried:?}");
    assert!(moved > 25 * rounds && in_part > 10 * rounds && different > 10 * rounds, "{tried:?}");
}
