//! Sources of configuration: a directory, or the config cluster.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::sync::watch;
use tracing::warn;

use super::authority_secret::SecretStore;
use super::{ServeError, estate_ca};
use crate::config::ServeArgs;
use strait_base::latest::publish_change;
use strait_base::source_status::{RememberedStores, SourceFacts, SourceStatusTable};
use strait_base::task::Supervisor;
use strait_identity::authority::load_or_create;
use strait_identity::{AuthorityFrom, AuthorityPem, AuthorityStore as _, DirectoryStore};
use strait_kube_client::{Access, Loopback};
use strait_model::mesh_config::SourceProblem;
use strait_model::{ClusterId, Collection, NamespaceFilter, ObjectFiles, RememberedObjects};
use strait_model::{
    mesh_config as mesh,
    mesh_config::{Defaults, GatewayScope, HostSharing, StoreAddress, StoreSource as Listed},
};
use strait_sources::clusters::RememberedMember;
use strait_sources::clusters::reconciler::{self, CONFIGURATION_WAIT};
use strait_sources::mesh_config_watch::{ConfigMapData, ConfigTextSource, MeshWatcher};
use strait_sources::store::combined::{self, Store};
use strait_sources::store::own_cluster::own_cluster;
use strait_sources::store::{self, CONFIG_MAPS, ObjectName, Objects, WatchedConfigMap, mcp};

/// Source of the configuration.
pub(super) enum ConfigOrigin {
    Directory(PathBuf),
    Cluster { id: ClusterId, access: watch::Receiver<Access>, in_pod: bool },
}

impl ConfigOrigin {
    pub(super) async fn of(args: &ServeArgs, tasks: &Supervisor) -> Result<Self, ServeError> {
        if let Some(path) = &args.sources.config_dir {
            let read = std::fs::read_dir(path);
            read.map_err(|source| ServeError::ConfigDir { path: path.clone(), source })?;
            return Ok(Self::Directory(path.clone()));
        }
        let id = ClusterId::parse(&args.cluster_id)
            .map_err(|source| ServeError::ClusterId { id: args.cluster_id.clone(), source })?;
        let own =
            own_cluster(args.sources.kubeconfig.as_deref(), args.sources.context.as_deref(), tasks)
                .await?;
        Ok(Self::Cluster { id, access: own.access, in_pod: own.in_pod })
    }

    /// Starts to read the objects. `restored` is the state from before the start. The result
    /// includes the contact with the API server.
    pub(super) fn objects(
        &self,
        args: &ServeArgs,
        restored: &strait_lkg::RestoredState,
        is_persisted: bool,
        tasks: &Supervisor,
    ) -> store::kube::ConfigClusterState {
        let kind = match self {
            Self::Directory(_) => combined::OWN_DIRECTORY,
            Self::Cluster { .. } => combined::OWN_CLUSTER,
        };
        let held = restored.stores.get(&combined::own_name(kind)).map(|known| known.held.clone());
        let RememberedObjects { objects, files } = held.unwrap_or_default();
        let names = CONFIG_MAPS.map(|name| ObjectName::new(&args.namespace, name));
        let known = store::RememberedStore {
            secrets: restored.clusters.values().filter_map(RememberedMember::holder).collect(),
            config_maps: restored.mesh.iter().flat_map(|_| names.clone()).collect(),
            entries: objects,
            config_map: restored.mesh.as_ref().and_then(|data| config_map(&names, data, &files)),
            files,
            is_persisted,
        };
        match self {
            Self::Directory(path) => store::kube::ConfigClusterState {
                objects: store::files::watch(path.clone(), args.namespace.clone(), known, tasks),
                unread: watch::channel(None).1,
                contact: watch::channel(SourceFacts::starting(combined::OWN_CLUSTER, "")).1,
            },
            Self::Cluster { access, .. } => {
                store::kube::watch(access.clone(), args.namespace.clone(), known, tasks)
            }
        }
    }

    pub(super) fn config_cluster(&self) -> Option<reconciler::ConfigCluster> {
        match self {
            Self::Directory(_) => None,
            Self::Cluster { id, access, .. } => {
                Some(reconciler::ConfigCluster { id: id.clone(), access: access.clone() })
            }
        }
    }

    pub(super) fn config_cluster_id(&self) -> Option<ClusterId> {
        self.config_cluster().map(|cluster| cluster.id)
    }

    /// Returns whether loopback addresses may be dialled. In a pod they belong to the pod itself;
    /// on an operator's machine they may belong to a cluster.
    pub(super) fn loopback(&self) -> Loopback {
        match self {
            Self::Cluster { in_pod: true, .. } => Loopback::Refused,
            _ => Loopback::Allowed,
        }
    }

    /// Returns whether the built-in CA is stored in this folder of the state directory. Replicas in
    /// pods share a CA in a Secret instead, because each has its own directory, unless a CA is on
    /// disk already.
    fn keeps_authority_in(&self, folder: &Path) -> bool {
        !matches!(self, Self::Cluster { in_pod: true, .. }) || folder.exists()
    }

    /// Returns the CA if none is configured: the stored one if it exists, otherwise the CA of the
    /// Istio installation in the config cluster, otherwise a new one. A new CA is stored in the
    /// state directory, or without one, in a Secret.
    pub(super) async fn authority(
        &self,
        args: &ServeArgs,
        state_dir: Option<&Path>,
        tasks: &Supervisor,
    ) -> Result<AuthorityFrom, ServeError> {
        let now = SystemTime::now();
        let on_disk = state_dir.map(|state| state.join("ca"));
        let on_disk = on_disk.filter(|folder| self.keeps_authority_in(folder)).map(DirectoryStore);
        let in_cluster = match self {
            Self::Directory(_) => None,
            Self::Cluster { access, .. } => {
                let current = access.borrow().clone();
                let secret = SecretStore::new(current, args.namespace.clone());
                let kept = match &on_disk {
                    Some(store) => store.load().await?,
                    None => secret.load().await?,
                };
                if let Some(kept) = kept {
                    return Ok(AuthorityFrom::Stored(kept));
                }
                let (access, namespace) = (access.clone(), args.namespace.clone());
                if let Some(followed) = estate_ca::follow(access, namespace, tasks).await? {
                    return Ok(AuthorityFrom::Followed(followed));
                }
                Some(secret)
            }
        };
        let kept = match (on_disk, in_cluster) {
            (Some(store), _) => load_or_create(&store, now).await?,
            (None, Some(secret)) => load_or_create(&secret, now).await?,
            (None, None) => {
                warn!(
                    "the built-in CA is lost when this process ends, and all proxies need new certificates then; set --state-dir or --ca-dir to keep it"
                );
                AuthorityPem::generate(now)?
            }
        };
        Ok(AuthorityFrom::Stored(kept))
    }
}

/// Returns the active ConfigMap of the mesh if it is in these files: the first listed name.
fn config_map(
    names: &[ObjectName],
    data: &BTreeMap<String, String>,
    files: &ObjectFiles,
) -> Option<Arc<WatchedConfigMap>> {
    let is_listed = |name: &&ObjectName| {
        files.values().flat_map(|keys| keys.iter()).any(|key| {
            (&*key.kind, &*key.group) == ("ConfigMap", "")
                && (&key.namespace, &key.name) == (&name.namespace, &name.name)
        })
    };
    let name = names.iter().find(is_listed)?.clone();
    Some(Arc::new(WatchedConfigMap { name, data: data.clone() }))
}

/// The stores of configuration objects.
pub(super) struct ObjectStores {
    config: combined::StoresConfig,
    node: mcp::McpNode,
    listed: watch::Sender<Vec<Store>>,
    namespaces: watch::Sender<Arc<NamespaceFilter>>,
    tasks: Supervisor,
}

impl ObjectStores {
    pub(super) fn of(
        args: &ServeArgs,
        (own, own_contact): (watch::Receiver<Option<Arc<Objects>>>, watch::Receiver<SourceFacts>),
        (remembered, is_persisted): (RememberedStores<RememberedObjects>, bool),
        source_statuses: SourceStatusTable,
        tasks: &Supervisor,
    ) -> Self {
        let listed = watch::Sender::new(Vec::new());
        let namespaces = watch::Sender::new(Arc::default());
        let own_kind = match &args.sources.config_dir {
            Some(path) => (combined::OWN_DIRECTORY, path.display().to_string()),
            None => (combined::OWN_CLUSTER, args.cluster_id.clone()),
        };
        let config = combined::StoresConfig {
            own,
            own_contact,
            own_kind,
            stores: listed.subscribe(),
            namespaces: namespaces.subscribe(),
            system_namespace: args.namespace.clone(),
            source_statuses,
            remembered,
            is_persisted,
            remembered_contents: watch::Sender::new(None),
        };
        let node = mcp::McpNode { namespace: args.namespace.clone(), domain: args.domain.clone() };
        Self { config, node, listed, namespaces, tasks: tasks.clone() }
    }

    /// Returns whether Strait's own store has been read.
    pub(super) fn is_read(&self) -> bool {
        self.config.own.borrow().is_some()
    }

    /// Returns the contents of each store that must be saved.
    pub(super) fn held(&self) -> watch::Receiver<Option<Arc<combined::StoreContents>>> {
        self.config.remembered_contents.subscribe()
    }

    /// Returns the last valid version of each object in all stores before the start.
    pub(super) fn remembered(&self) -> Collection {
        // The last entry wins when collecting, and the first store must win.
        let known = self.config.remembered.values().rev();
        let objects = known.flat_map(|known| known.held.objects.iter());
        objects.map(|(key, object)| (key.clone(), object.clone())).collect()
    }

    /// Reads the stores that the mesh config lists, in addition to Strait's own.
    pub(super) async fn watch(
        self,
        settings: watch::Receiver<mesh::MeshSettings>,
    ) -> watch::Receiver<Option<Arc<Objects>>> {
        let Self { config, node, listed, namespaces, tasks } = self;
        let is_read =
            config.own.borrow().is_some() || config.remembered.contains_key(&config.own_name());
        listed.send_replace(stores(&settings.borrow().config.config_sources, &node));
        namespaces.send_replace(Arc::clone(&settings.borrow().config.namespaces));
        let mut objects = combined::watch(config, &tasks);
        if is_read {
            // This fails only when the process ends.
            let _ = objects.wait_for(Option::is_some).await;
        }
        tasks.spawn("config sources", follow_list(settings, node, listed, namespaces));
        objects
    }
}

async fn follow_list(
    mut settings: watch::Receiver<mesh::MeshSettings>,
    node: mcp::McpNode,
    listed: watch::Sender<Vec<Store>>,
    namespaces: watch::Sender<Arc<NamespaceFilter>>,
) {
    while settings.changed().await.is_ok() {
        let config = Arc::clone(&settings.borrow_and_update().config);
        publish_change(&listed, stores(&config.config_sources, &node));
        publish_change(&namespaces, Arc::clone(&config.namespaces));
    }
}

fn stores(sources: &[Listed], node: &mcp::McpNode) -> Vec<Store> {
    let store = |source: &Listed| match &source.place {
        StoreAddress::Own => Store::Own,
        StoreAddress::Directory(path) => Store::Directory(path.clone()),
        StoreAddress::Xds(address) => Store::Mcp(mcp::McpServer {
            address: address.clone(),
            tls: source.tls.as_ref().map(|tls| mcp::McpTls {
                ca: tls.ca_certificates.clone(),
                client: tls.client.clone(),
                server_name: tls.server_name.clone(),
            }),
            node: node.clone(),
        }),
    };
    sources.iter().map(store).collect()
}

/// Source of the mesh settings: the configured files, otherwise the first ConfigMap of
/// [`CONFIG_MAPS`] that exists.
pub(super) struct MeshSource {
    config: Option<PathBuf>,
    networks: Option<PathBuf>,
    defaults: Defaults,
    namespace: String,
    objects: watch::Receiver<Option<Arc<Objects>>>,
    data: watch::Sender<ConfigMapData>,
    /// Settings that are not active, and why.
    problems: watch::Sender<Vec<SourceProblem>>,
    /// Maximum wait for the configuration; unlimited unless a restored state exists.
    contact_timeout: Option<Duration>,
    tasks: Supervisor,
}

impl MeshSource {
    /// Creates the source. `remembered` is the restored data of the ConfigMap, if there is a
    /// restored state.
    pub(super) fn of(
        args: &ServeArgs,
        objects: watch::Receiver<Option<Arc<Objects>>>,
        remembered: Option<ConfigMapData>,
        tasks: &Supervisor,
    ) -> Self {
        Self {
            config: args.sources.mesh_config.clone(),
            networks: args.sources.mesh_networks.clone(),
            defaults: Defaults {
                domain: args.domain.clone(),
                trust_domain: args.trust_domain.clone(),
                namespace: args.namespace.clone(),
                gateway_scope: match args.scope_gateway_to_namespace {
                    true => GatewayScope::OwnNamespace,
                    false => GatewayScope::AnyNamespace,
                },
                host_sharing: match args.join_virtual_services {
                    true => HostSharing::AllJoined,
                    false => HostSharing::FirstAlone,
                },
            },
            namespace: args.namespace.clone(),
            objects,
            contact_timeout: remembered.is_some().then_some(CONFIGURATION_WAIT),
            data: watch::Sender::new(remembered.flatten()),
            problems: watch::Sender::new(Vec::new()),
            tasks: tasks.clone(),
        }
    }

    /// Returns the defaults from flags for settings that the mesh config leaves out.
    pub(super) fn defaults(&self) -> Defaults {
        self.defaults.clone()
    }

    /// Returns the data of the ConfigMap.
    pub(super) fn data(&self) -> watch::Receiver<ConfigMapData> {
        self.data.subscribe()
    }

    /// Returns the problems of the settings read last.
    pub(super) fn problems(&self) -> watch::Receiver<Vec<SourceProblem>> {
        self.problems.subscribe()
    }

    /// Waits until the configuration has been read once, so that the result contains its settings
    /// from the start. Then follows changes.
    pub(super) async fn watch(mut self) -> watch::Receiver<mesh::MeshSettings> {
        let read = self.objects.wait_for(Option::is_some);
        let read = match self.contact_timeout {
            Some(contact_timeout) => tokio::time::timeout(contact_timeout, read).await.ok(),
            None => Some(read.await),
        };
        let read = read.and_then(Result::ok).and_then(|objects| objects.clone());
        if let Some(objects) = read {
            self.data.send_replace(data_of(&objects, &self.namespace));
        }
        let seen = self.data.subscribe();
        let source = |file: Option<PathBuf>| match file {
            Some(file) => ConfigTextSource::File(file),
            None => ConfigTextSource::ConfigMap {
                name: format!("{}/{}", self.namespace, CONFIG_MAPS.join(" or ")),
                data: seen.clone(),
            },
        };
        let (config, networks) = (source(self.config), source(self.networks));
        let (watcher, settings) = MeshWatcher::new(config, networks, self.defaults, self.problems);
        self.tasks.spawn("mesh settings", watcher.run());
        self.tasks.spawn("mesh ConfigMap", follow(self.objects, self.namespace, self.data));
        settings
    }
}

async fn follow(
    mut objects: watch::Receiver<Option<Arc<Objects>>>,
    namespace: String,
    data: watch::Sender<ConfigMapData>,
) {
    while objects.changed().await.is_ok() {
        let new = objects.borrow_and_update().as_deref().and_then(|now| data_of(now, &namespace));
        publish_change(&data, new);
    }
}

fn data_of(objects: &Objects, namespace: &str) -> ConfigMapData {
    let named = |name: &str| {
        objects
            .config_maps
            .iter()
            .find(|map| &*map.name.namespace == namespace && &*map.name.name == name)
    };
    CONFIG_MAPS.into_iter().find_map(named).map(|map| Arc::new(map.data.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use strait_kube_client::ApiCredential;

    #[test]
    fn pods_share_a_ca_unless_one_is_on_disk() {
        let directory = tempfile::tempdir().expect("a directory");
        let (there, not_there) = (directory.path(), directory.path().join("ca"));
        let access = Access {
            server: "https://10.96.0.1".parse().expect("a URI"),
            ca_pem: None,
            tls_server_name: None,
            credential: ApiCredential::None,
            loopback: Loopback::Refused,
            proxy: None,
        };
        let origin = |in_pod| ConfigOrigin::Cluster {
            id: ClusterId::parse("config").expect("an ID"),
            access: watch::channel(access.clone()).1,
            in_pod,
        };
        assert!(!origin(true).keeps_authority_in(&not_there), "shared");
        assert!(origin(true).keeps_authority_in(there), "proxies have certificates of it");
        assert!(origin(false).keeps_authority_in(&not_there), "one process, one directory");
        assert!(ConfigOrigin::Directory(there.to_owned()).keeps_authority_in(&not_there));
    }
}
