//! Many clusters from one seed, as load for tests, benches and demos.
//!
//! A world owns its clusters and their plan, and acts as the controllers that a simulated cluster lacks: it
//! replaces endpoints, scales and rolls out. Each endpoint that it adds later has a unique address, a stamp
//! by which a receiver recognizes the change. Like a controller, it overwrites changes of others to its
//! slices.

mod plan;
mod sketches;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};

use crate::cluster::{Options, SimCluster};
use crate::object::Name;
use crate::objects::{self, HTTP, NETWORK_LABEL};
use crate::resource::{Family, RESOURCES, Resource};
use crate::stamps::{self, Noted, Stamp, StampKind, StampLog};
use crate::status::ApiError;
use crate::store::{AtOnce, Store};
use crate::weight;
use plan::{Place, Plan, Pod, as_u32, gateway, node_name, slice_name};
use sketches::{Scene, What};

/// The interval of real API servers, so that thousands of idle watches cost as much as theirs.
const BOOKMARKS: Duration = Duration::from_secs(60);

/// The maximum length of a label value, in characters.
const LABEL_MAX: usize = 63;

/// The maximum number of endpoints per slice, as with the real controller.
const SLICE_ENDPOINTS_MAX: usize = 100;

/// The supported rates, in changes per second. Other rates are replaced by the nearest one.
pub const RATES: RangeInclusive<f64> = 0.001..=1_000_000.0;

/// The settings of a world.
#[derive(Debug, Clone)]
pub struct WorldOptions {
    /// Number of clusters, named `c1`, `c2` and so on.
    pub clusters: usize,
    /// Services in each cluster.
    pub services: usize,
    /// Endpoints of each service in each cluster.
    pub endpoints: usize,
    /// How many services of each cluster, the last ones, are headless.
    pub headless: usize,
    /// Number of networks; cluster `i` is in network `((i - 1) mod N) + 1`. Clusters of different networks
    /// use the same pod addresses. With one network, nothing is labeled.
    pub networks: usize,
    /// The seed of all random values.
    pub seed: u64,
    /// Whether all clusters have the same services. Otherwise each name ends with the cluster name.
    pub same_names: bool,
    /// Whether each endpoint has a pod.
    pub pods: bool,
    /// Whether all objects are stored encoded as protobuf, so that a list uses little CPU: about 6
    /// KB per pod.
    pub encoded: bool,
    /// Whether the servers offer HTTP/2.
    pub http2: bool,
    /// The system namespace, which contains the network's label and the gateway.
    pub system_namespace: String,
    /// APIs in addition to the core, all without objects.
    pub families: BTreeSet<Family>,
    /// Whether each service has a ServiceExport, which needs [`Family::MultiCluster`].
    pub exports: bool,
    /// The cluster whose system namespace contains the Secrets of all others. An ID other than `c1`, `c2`
    /// and so on adds an empty cluster.
    pub config_cluster: Option<String>,
}

impl Default for WorldOptions {
    fn default() -> WorldOptions {
        WorldOptions {
            clusters: 2,
            services: 10,
            endpoints: 3,
            headless: 0,
            networks: 1,
            seed: 1,
            same_names: true,
            pods: false,
            encoded: false,
            http2: true,
            system_namespace: "strait-system".to_owned(),
            families: BTreeSet::new(),
            exports: false,
            config_cluster: None,
        }
    }
}

/// The reason why a world can't be generated or changed.
#[derive(Debug)]
pub enum WorldError {
    /// The address plan has too few addresses in one network for the named objects.
    TooLarge(&'static str),
    /// Stamped addresses would repeat; only this many are left.
    NoAddresses(usize),
    /// No cluster has this ID.
    NoSuchCluster(String),
    /// The cluster does not have this service (`NAMESPACE/NAME`), or has none.
    NoSuchService(String),
    /// The service has no endpoint to replace.
    NoEndpoints(String),
    /// The service has no port `http`, the only one whose target also has a name.
    NoNamedPort(String),
    /// The text is not a valid label.
    NoLabel(String),
    /// All clusters are in one network, so there are no gateways.
    OneNetwork,
    /// The store refused the change.
    Refused(ApiError),
    /// No port is available.
    Io(io::Error),
}

impl std::fmt::Display for WorldError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            WorldError::TooLarge(what) => {
                write!(f, "the address plan has too few addresses for the {what}")
            }
            WorldError::NoAddresses(left) => {
                write!(
                    f,
                    "the address plan has too few addresses for the endpoints: at most {left} more are possible"
                )
            }
            WorldError::NoSuchCluster(id) => write!(f, "no cluster {id:?}"),
            WorldError::NoSuchService(name) => write!(f, "no service {name:?} in this cluster"),
            WorldError::NoEndpoints(name) => write!(f, "service {name:?} has no endpoint"),
            WorldError::NoNamedPort(name) => write!(f, "service {name:?} has no port http"),
            WorldError::OneNetwork => write!(f, "there is only one network, so it has no gateway"),
            WorldError::NoLabel(text) => {
                write!(f, "{text:?} is not a valid key or value of a label")
            }
            WorldError::Refused(_) => write!(f, "the store refused an object"),
            WorldError::Io(_) => write!(f, "can't open a port"),
        }
    }
}

impl std::error::Error for WorldError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            WorldError::Refused(error) => Some(error),
            WorldError::Io(error) => Some(error),
            _ => None,
        }
    }
}

impl From<ApiError> for WorldError {
    fn from(error: ApiError) -> WorldError {
        WorldError::Refused(error)
    }
}

/// A running world.
#[derive(Debug)]
pub struct World {
    scene: Arc<Scene>,
    members: Vec<Member>,
    /// Locked during a change, because concurrent changes would overwrite each other.
    changes: Mutex<Changes>,
}

#[derive(Debug)]
struct Member {
    cluster: SimCluster,
    network: String,
    services: Vec<Name>,
}

#[derive(Debug)]
struct Changes {
    random: StdRng,
    stamps: StampLog,
    /// The endpoints of changed services, by cluster and service.
    places: BTreeMap<(usize, usize), Vec<Place>>,
    /// Services that were added, and services of the plan that were removed.
    added: BTreeSet<(usize, usize)>,
    removed: BTreeSet<(usize, usize)>,
}

impl Changes {
    /// Returns the number of stamped addresses that no endpoint has.
    fn addresses_left(&self) -> usize {
        let stamped = |place: &&Place| matches!(place.pod, Pod::Stamped(_));
        let used = self.places.values().flatten().filter(stamped).count();
        usize::try_from(stamps::ADDRESSES).unwrap_or(usize::MAX).saturating_sub(used)
    }
}

impl World {
    /// Generates and starts all clusters.
    ///
    /// # Errors
    /// The plan has too few addresses, or no port is available.
    pub async fn generate(options: WorldOptions) -> Result<World, WorldError> {
        let random = StdRng::seed_from_u64(options.seed);
        let scene = Arc::new(Scene::new(Plan::new(options)?));
        let options = &scene.plan.options;
        let mut filled = Vec::new();
        for index in 0..options.clusters {
            let id = format!("c{}", index + 1);
            let cluster = start(&id, scene.identity(index), options).await?;
            let (store, scene) = (cluster.clone(), scene.clone());
            let services = tokio::task::spawn_blocking(move || fill(&scene, index, store.store()));
            filled.push((cluster, index, services));
        }
        let mut members = Vec::new();
        for (cluster, index, services) in filled {
            let services = services.await.expect("filling a store does not panic")?;
            members.push(Member { cluster, network: scene.plan.network(index), services });
        }
        if let Some(id) = &options.config_cluster {
            if !members.iter().any(|member| member.cluster.id() == id) {
                let cluster = start(id, format!("{id} of world {}", options.seed), options).await?;
                define_kinds(&options.families, cluster.store())?;
                apply(cluster.store(), objects::namespace(&options.system_namespace))?;
                members.push(Member { cluster, network: String::new(), services: Vec::new() });
            }
            let (config, others): (Vec<_>, Vec<_>) =
                members.iter().map(|member| &member.cluster).partition(|c| c.id() == id);
            for (config, other) in config.iter().flat_map(|c| others.iter().map(move |o| (c, o))) {
                apply(config.store(), other.member_secret(&options.system_namespace))?;
            }
        }
        let stamps = StampLog::new();
        let changes = Mutex::new(Changes {
            random,
            stamps,
            places: BTreeMap::new(),
            added: BTreeSet::new(),
            removed: BTreeSet::new(),
        });
        Ok(World { scene, members, changes })
    }

    /// Returns all clusters, in the order of their numbers.
    pub fn clusters(&self) -> impl Iterator<Item = &SimCluster> {
        self.members.iter().map(|member| &member.cluster)
    }

    /// Returns the cluster with this ID.
    ///
    /// # Errors
    /// The cluster does not exist.
    pub fn cluster(&self, id: &str) -> Result<&SimCluster, WorldError> {
        self.member(id).map(|member| &member.cluster)
    }

    /// Returns the network of a cluster: `n1`, `n2` and so on.
    ///
    /// # Errors
    /// The cluster does not exist.
    pub fn network(&self, id: &str) -> Result<&str, WorldError> {
        self.member(id).map(|member| &*member.network)
    }

    /// Returns the generated services of a cluster.
    ///
    /// # Errors
    /// The cluster does not exist.
    pub fn services(&self, id: &str) -> Result<&[Name], WorldError> {
        self.member(id).map(|member| &*member.services)
    }

    /// Returns the existing service with this name (`NAMESPACE/NAME`), or a random one if it is `None`.
    pub(crate) fn choose(&self, id: &str, service: Option<&str>) -> Result<String, WorldError> {
        let (cluster, service) = self.pick(&mut self.lock(), id, service)?;
        Ok(display(&self.at(cluster, service).1))
    }

    /// Replaces one endpoint of a service (`NAMESPACE/NAME`, or a random one) with a stamped one.
    ///
    /// # Errors
    /// The cluster, the service or an endpoint does not exist.
    pub fn change(&self, id: &str, service: Option<&str>) -> Result<Stamp, WorldError> {
        let changes = &mut *self.lock();
        let (cluster, service) = self.pick(changes, id, service)?;
        let count = self.places(changes, cluster, service).len();
        if count == 0 {
            return Err(WorldError::NoEndpoints(display(&self.at(cluster, service).1)));
        }
        let index = changes.random.random_range(0..count);
        self.replace(changes, cluster, service, index)
    }

    /// Replaces all endpoints of a service one by one, `per_second` of them each second, as a rolling
    /// update does. Returns the stamps.
    ///
    /// # Errors
    /// The cluster or the service does not exist.
    pub async fn rollout(
        &self,
        id: &str,
        service: Option<&str>,
        per_second: f64,
    ) -> Result<Vec<Stamp>, WorldError> {
        let (cluster, service) = self.pick(&mut self.lock(), id, service)?;
        let count = self.places(&self.lock(), cluster, service).len();
        let per_second = per_second.clamp(*RATES.start(), *RATES.end());
        let mut pace = tokio::time::interval(Duration::from_secs_f64(1.0 / per_second));
        let mut stamps = Vec::new();
        for index in 0..count {
            pace.tick().await;
            stamps.push(self.replace(&mut self.lock(), cluster, service, index)?);
        }
        Ok(stamps)
    }

    /// Scales a service: removes the last endpoints, or adds stamped ones.
    ///
    /// # Errors
    /// The cluster or the service does not exist, or there are too few addresses.
    pub fn scale(
        &self,
        id: &str,
        service: Option<&str>,
        endpoints: usize,
    ) -> Result<Vec<Stamp>, WorldError> {
        let changes = &mut *self.lock();
        let (cluster, service) = self.pick(changes, id, service)?;
        let old = self.places(changes, cluster, service);
        let left = changes.addresses_left();
        if endpoints.saturating_sub(old.len()) > left {
            return Err(WorldError::NoAddresses(left));
        }
        let mut new = old.clone();
        new.truncate(endpoints);
        let first = changes.stamps.next();
        for seq in (first..).take(endpoints.saturating_sub(old.len())) {
            let node = self.scene.plan.node(cluster, service, new.len());
            new.push(Place { pod: Pod::Stamped(seq), node });
        }
        let added = new.get(old.len()..).unwrap_or_default();
        let (member, name) = self.at(cluster, service);
        let mut store = member.cluster.store().at_once();
        added.iter().for_each(|place| self.put_pod(&mut store, cluster, service, *place));
        let at_ns = stamps::now_ns();
        // The first slice stays even if it is empty, as with the real controller.
        let slices = |places: &[Place]| places.len().div_ceil(SLICE_ENDPOINTS_MAX).max(1);
        for slice in 0..slices(&new) {
            if in_slice(&old, slice) != in_slice(&new, slice) || slice >= slices(&old) {
                self.put_slice(&mut store, cluster, service, slice, &new);
            }
        }
        for slice in slices(&new)..slices(&old) {
            let slice = Name::new(&name.namespace, &slice_name(&name.name, slice));
            store.delete(resource("EndpointSlice"), &slice);
        }
        let gone = old.get(new.len()..).unwrap_or_default();
        gone.iter().for_each(|place| self.delete_pod(&mut store, cluster, service, *place));
        drop(store);
        let added = added.len();
        changes.places.insert((cluster, service), new);
        let kind = self.endpoint_kind(service);
        Ok((0..added).map(|_| self.note(changes, cluster, service, at_ns, kind)).collect())
    }

    /// Adds a service with `endpoints` endpoints, in an existing namespace. The first stamp is the service's,
    /// the others are its endpoints'. Its pods are created before it, as if their Deployment were older.
    ///
    /// # Errors
    /// The cluster does not exist, has no services, or there are too few addresses.
    pub fn add_service(&self, id: &str, endpoints: usize) -> Result<Vec<Stamp>, WorldError> {
        let changes = &mut *self.lock();
        let (cluster, _) = self.pick(changes, id, None)?;
        let left = changes.addresses_left();
        if endpoints >= left {
            return Err(WorldError::NoAddresses(left));
        }
        let first = changes.stamps.next();
        let service = self.scene.plan.number_of_added(first);
        let places: Vec<_> = (0..endpoints)
            .zip(first + 1..)
            .map(|(number, seq)| Place {
                pod: Pod::Stamped(seq),
                node: self.scene.plan.node(cluster, service, number),
            })
            .collect();
        let (member, name) = self.at(cluster, service);
        let mut store = member.cluster.store().at_once();
        let sketch = |what| self.scene.sketch(cluster, service, what);
        if self.scene.plan.options.pods {
            store.put(resource("ServiceAccount"), name.clone(), sketch(What::Account));
        }
        places.iter().for_each(|place| self.put_pod(&mut store, cluster, service, *place));
        let at_ns = stamps::now_ns();
        store.put(resource("Service"), name, sketch(What::Service));
        for slice in 0..places.len().div_ceil(SLICE_ENDPOINTS_MAX).max(1) {
            self.put_slice(&mut store, cluster, service, slice, &places);
        }
        drop(store);
        changes.places.insert((cluster, service), places);
        changes.added.insert((cluster, service));
        let mut noted = vec![self.note(changes, cluster, service, at_ns, StampKind::ServiceAdded)];
        let kind = self.endpoint_kind(service);
        noted.extend((0..endpoints).map(|_| self.note(changes, cluster, service, at_ns, kind)));
        Ok(noted)
    }

    /// Deletes a service (`NAMESPACE/NAME`, or a random one) and its slices. Its pods stay, as after the
    /// deletion of a real Service.
    ///
    /// # Errors
    /// The cluster or the service does not exist.
    pub fn remove_service(&self, id: &str, service: Option<&str>) -> Result<Stamp, WorldError> {
        let changes = &mut *self.lock();
        let (cluster, service) = self.pick(changes, id, service)?;
        let slices =
            self.places(changes, cluster, service).len().div_ceil(SLICE_ENDPOINTS_MAX).max(1);
        let (member, name) = self.at(cluster, service);
        let at_ns = stamps::now_ns();
        let mut store = member.cluster.store().at_once();
        store.delete(resource("Service"), &name);
        for slice in 0..slices {
            let slice = Name::new(&name.namespace, &slice_name(&name.name, slice));
            store.delete(resource("EndpointSlice"), &slice);
        }
        drop(store);
        if !changes.added.remove(&(cluster, service)) {
            changes.removed.insert((cluster, service));
        }
        Ok(self.note(changes, cluster, service, at_ns, StampKind::ServiceRemoved))
    }

    /// Deletes the Service of a cluster's east-west gateway, or restores it.
    ///
    /// # Errors
    /// The cluster does not exist, or there is only one network.
    pub fn set_gateway(&self, id: &str, is_there: bool) -> Result<(), WorldError> {
        let cluster = self.position(id)?;
        let (plan, store) = (&self.scene.plan, self.members[cluster].cluster.store());
        if plan.options.networks < 2 {
            return Err(WorldError::OneNetwork);
        }
        let service = gateway(plan, cluster);
        if is_there {
            return apply(store, service);
        }
        let part = |field: &str| service["metadata"][field].as_str().unwrap_or_default();
        store.at_once().delete(resource("Service"), &Name::new(part("namespace"), part("name")));
        Ok(())
    }

    /// Switches the target of port `http` of a service between its number and its name in the pods. This
    /// changes the definition of the service, but no endpoint.
    ///
    /// # Errors
    /// The cluster or the service does not exist, or the service has no port `http`.
    pub fn change_target_port(
        &self,
        id: &str,
        service: Option<&str>,
    ) -> Result<String, WorldError> {
        self.edit(id, service, |name, service| {
            let ports = service["spec"]["ports"].as_array_mut();
            let port = ports.into_iter().flatten().find(|port| port["name"] == HTTP.name);
            let port = port.ok_or_else(|| WorldError::NoNamedPort(name.to_owned()))?;
            let by_name = port["targetPort"].is_string();
            port["targetPort"] = if by_name { json!(HTTP.target) } else { json!(HTTP.name) };
            Ok(())
        })
    }

    /// Sets a label of a service.
    ///
    /// # Errors
    /// The cluster or the service does not exist, or key or value are invalid.
    pub fn label_service(
        &self,
        id: &str,
        service: Option<&str>,
        (key, value): (&str, &str),
    ) -> Result<String, WorldError> {
        for text in [key, value] {
            let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./".contains(&byte);
            if text.len() > LABEL_MAX || !text.bytes().all(plain) || key.is_empty() {
                return Err(WorldError::NoLabel(text.to_owned()));
            }
        }
        self.edit(id, service, |_, service| {
            service["metadata"]["labels"][key] = json!(value);
            Ok(())
        })
    }

    /// Changes a Service like a client that reads and writes it. Returns its name.
    fn edit(
        &self,
        id: &str,
        service: Option<&str>,
        change: impl FnOnce(&str, &mut Value) -> Result<(), WorldError>,
    ) -> Result<String, WorldError> {
        let changes = &mut *self.lock();
        let (cluster, service) = self.pick(changes, id, service)?;
        let (member, name) = self.at(cluster, service);
        let (store, kind) = (member.cluster.store(), resource("Service"));
        let shown = display(&name);
        let current = store.find(kind, &name);
        let mut wanted = current.ok_or_else(|| WorldError::NoSuchService(shown.clone()))?.value();
        change(&shown, &mut wanted)?;
        store.update(kind, &name, false, |_| Ok(wanted))?;
        Ok(shown)
    }

    /// Changes random services of random clusters, at random times, `per_second` times per second on
    /// average, until dropped.
    pub async fn churn(&self, per_second: f64) {
        let per_second = per_second.clamp(*RATES.start(), *RATES.end());
        let mut due = tokio::time::Instant::now();
        loop {
            let (gap, index) = {
                let random = &mut self.lock().random;
                // The intervals of a Poisson process.
                let gap = -random.random_range(f64::MIN_POSITIVE..1.0).ln() / per_second;
                (gap, random.random_range(0..self.scene.plan.options.clusters))
            };
            due += Duration::from_secs_f64(gap);
            tokio::time::sleep_until(due).await;
            // A service without endpoints is skipped.
            let _ = self.change(self.members[index].cluster.id(), None);
        }
    }

    /// Returns at most `limit` stamps with numbers above `since`, oldest first. About a million are
    /// stored.
    pub fn stamps(&self, since: u64, limit: usize) -> Vec<Stamp> {
        let noted = self.lock().stamps.after(since, limit);
        noted.into_iter().map(|(seq, noted)| self.named(seq, noted)).collect()
    }

    fn member(&self, id: &str) -> Result<&Member, WorldError> {
        self.position(id).map(|index| &self.members[index])
    }

    fn position(&self, id: &str) -> Result<usize, WorldError> {
        let found = self.members.iter().position(|member| member.cluster.id() == id);
        found.ok_or_else(|| WorldError::NoSuchCluster(id.to_owned()))
    }

    /// Returns the indexes of a cluster and a service in this cluster. The service is random if `wanted`
    /// is `None`.
    fn pick(
        &self,
        changes: &mut Changes,
        id: &str,
        wanted: Option<&str>,
    ) -> Result<(usize, usize), WorldError> {
        let cluster = self.position(id)?;
        let services = &self.members[cluster].services;
        let first = (wanted.is_none() && !services.is_empty())
            .then(|| changes.random.random_range(0..services.len()));
        let is_there = |service: &usize| !changes.removed.contains(&(cluster, *service));
        let added = || {
            let of_cluster = changes.added.range((cluster, 0)..=(cluster, usize::MAX));
            of_cluster.map(|(_, service)| *service)
        };
        let found = match wanted {
            Some(wanted) => (0..services.len())
                .find(|service| display(&services[*service]) == wanted)
                .filter(is_there)
                .or_else(|| {
                    added().find(|service| display(&self.at(cluster, *service).1) == wanted)
                }),
            // The next existing service after a random index.
            None => first.and_then(|first| (first..services.len()).chain(0..first).find(is_there)),
        };
        let service =
            found.ok_or_else(|| WorldError::NoSuchService(wanted.unwrap_or("any").to_owned()))?;
        Ok((cluster, service))
    }

    /// Returns the cluster and service at the indexes from [`World::pick`].
    fn at(&self, cluster: usize, service: usize) -> (&Member, Name) {
        let member = &self.members[cluster];
        let planned = member.services.get(service).cloned();
        (member, planned.unwrap_or_else(|| self.scene.plan.service(cluster, service)))
    }

    /// Returns the kind of change that a new endpoint of a service causes.
    fn endpoint_kind(&self, service: usize) -> StampKind {
        if self.scene.plan.is_headless(service) {
            StampKind::HeadlessPod
        } else {
            StampKind::Endpoint
        }
    }

    /// Returns the current endpoints of a service.
    fn places(&self, changes: &Changes, cluster: usize, service: usize) -> Vec<Place> {
        let changed = changes.places.get(&(cluster, service)).cloned();
        changed.unwrap_or_else(|| self.scene.plan.places(cluster, service))
    }

    /// Replaces endpoint `index` with a stamped one, in this order: new pod, slice, old pod.
    fn replace(
        &self,
        changes: &mut Changes,
        cluster: usize,
        service: usize,
        index: usize,
    ) -> Result<Stamp, WorldError> {
        let mut places = self.places(changes, cluster, service);
        let place = places.get_mut(index);
        let place =
            place.ok_or_else(|| WorldError::NoEndpoints(display(&self.at(cluster, service).1)))?;
        let old = *place;
        place.pod = Pod::Stamped(changes.stamps.next());
        let mut store = self.members[cluster].cluster.store().at_once();
        self.put_pod(&mut store, cluster, service, *place);
        let at_ns = stamps::now_ns();
        let slice = index / SLICE_ENDPOINTS_MAX;
        self.put_slice(&mut store, cluster, service, slice, &places);
        self.delete_pod(&mut store, cluster, service, old);
        drop(store);
        changes.places.insert((cluster, service), places);
        Ok(self.note(changes, cluster, service, at_ns, self.endpoint_kind(service)))
    }

    /// Records and returns the next stamp.
    fn note(
        &self,
        changes: &mut Changes,
        cluster: usize,
        service: usize,
        at_ns: u64,
        kind: StampKind,
    ) -> Stamp {
        let seq = changes.stamps.next();
        let noted = Noted { cluster: as_u32(cluster), service: as_u32(service), at_ns, kind };
        changes.stamps.push(noted);
        self.named(seq, noted)
    }

    fn named(&self, seq: u64, Noted { cluster, service, at_ns, kind }: Noted) -> Stamp {
        let (member, name) = self.at(cluster as usize, service as usize);
        Stamp {
            seq,
            address: stamps::address(seq),
            cluster: member.cluster.id().to_owned(),
            service: display(&name),
            hostname: format!("{}.{}.svc.cluster.local", name.name, name.namespace),
            at_ns,
            kind,
        }
    }

    fn put_slice(
        &self,
        store: &mut AtOnce<'_>,
        cluster: usize,
        service: usize,
        slice: usize,
        places: &[Place],
    ) {
        let (_, name) = self.at(cluster, service);
        put_slice(&self.scene, store, (cluster, service), &name, slice, places);
    }

    fn put_pod(&self, store: &mut AtOnce<'_>, cluster: usize, service: usize, place: Place) {
        if self.scene.plan.options.pods {
            let (_, name) = self.at(cluster, service);
            put_pod(&self.scene, store, (cluster, service), &name, place);
        }
    }

    fn delete_pod(&self, store: &mut AtOnce<'_>, cluster: usize, service: usize, place: Place) {
        if self.scene.plan.options.pods {
            let (_, name) = self.at(cluster, service);
            let pod = Name::new(&name.namespace, &place.pod.name(&name.name));
            store.delete(resource("Pod"), &pod);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Changes> {
        self.changes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn start(
    id: &str,
    identity: String,
    options: &WorldOptions,
) -> Result<SimCluster, WorldError> {
    let options = Options {
        identity: Some(identity),
        families: options.families.clone(),
        bookmark_interval: BOOKMARKS,
        http2: options.http2,
        ..Options::default()
    };
    SimCluster::start(id, options).await.map_err(WorldError::Io)
}

fn display(name: &Name) -> String {
    format!("{}/{}", name.namespace, name.name)
}

/// Returns the endpoints of slice number `slice`.
fn in_slice(places: &[Place], slice: usize) -> &[Place] {
    places.chunks(SLICE_ENDPOINTS_MAX).nth(slice).unwrap_or_default()
}

/// Writes all objects of one cluster.
fn fill(scene: &Arc<Scene>, cluster: usize, store: &Store) -> Result<Vec<Name>, WorldError> {
    let plan = &scene.plan;
    let options = &plan.options;
    define_kinds(&options.families, store)?;
    let system = objects::namespace(&options.system_namespace);
    if options.networks > 1 {
        let network = plan.network(cluster);
        apply(store, objects::labelled(system, NETWORK_LABEL, &network))?;
        apply(store, gateway(plan, cluster))?;
    } else {
        apply(store, system)?;
    }
    for node in 0..plan.nodes() {
        let (region, zone) = plan.locality(cluster, node);
        apply(store, weight::node(objects::node(&node_name(cluster, node), &region, &zone)))?;
    }
    let services: Vec<_> = (0..options.services).map(|i| plan.service(cluster, i)).collect();
    for namespace in services.iter().map(|name| &name.namespace).collect::<BTreeSet<_>>() {
        apply(store, objects::namespace(namespace))?;
    }
    for Name { namespace, name } in services.iter().filter(|_| options.exports) {
        apply(store, objects::service_export(namespace, name))?;
    }
    let store = &mut store.at_once();
    for (i, name) in services.iter().enumerate() {
        let sketch = |what| scene.sketch(cluster, i, what);
        store.put(resource("Service"), name.clone(), sketch(What::Service));
        let places = plan.places(cluster, i);
        if options.pods {
            store.put(resource("ServiceAccount"), name.clone(), sketch(What::Account));
            places.iter().for_each(|place| put_pod(scene, store, (cluster, i), name, *place));
        }
        for slice in 0..places.len().div_ceil(SLICE_ENDPOINTS_MAX).max(1) {
            put_slice(scene, store, (cluster, i), name, slice, &places);
        }
    }
    if options.encoded {
        store.keep_protobuf();
    }
    Ok(services)
}

/// Writes the definitions of custom kinds, because some clients wait for them.
fn define_kinds(families: &BTreeSet<Family>, store: &Store) -> Result<(), WorldError> {
    let custom = |row: &&Resource| row.family != Family::Core && families.contains(&row.family);
    for row in RESOURCES.iter().filter(custom) {
        apply(store, weight::definition(row))?;
    }
    Ok(())
}

/// Applies an object with a fixed creation time, which is equal in every run.
fn apply(store: &Store, mut object: Value) -> Result<(), WorldError> {
    object["metadata"]["creationTimestamp"] = json!(weight::CREATED);
    store.apply(object)?;
    Ok(())
}

fn put_pod(
    scene: &Arc<Scene>,
    store: &mut AtOnce<'_>,
    (cluster, service): (usize, usize),
    name: &Name,
    place: Place,
) {
    let pod = Name::new(&name.namespace, &place.pod.name(&name.name));
    store.put(resource("Pod"), pod, scene.sketch(cluster, service, What::Pod(place)));
}

fn put_slice(
    scene: &Arc<Scene>,
    store: &mut AtOnce<'_>,
    (cluster, service): (usize, usize),
    name: &Name,
    slice: usize,
    places: &[Place],
) {
    let what = What::Slice(as_u32(slice), in_slice(places, slice).into());
    let slice = Name::new(&name.namespace, &slice_name(&name.name, slice));
    store.put(resource("EndpointSlice"), slice, scene.sketch(cluster, service, what));
}

fn resource(kind: &str) -> &'static Resource {
    Resource::by_name(kind).expect("the table has it")
}
