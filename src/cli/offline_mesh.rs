//! A mesh that is built from files, with the same code as in a running control plane: the same
//! readers, indexes and event loop state.

use std::collections::BTreeSet;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Value, json};

use super::failure::CommandFailure;
use strait_base::codes::{self, Code};
use strait_base::names::list_first;
use strait_explain::{ConfigReason, ConfigReports, ConfigState, ObjectStanding};
use strait_kube_client::Encoding;
use strait_mesh::push::PushContext;
use strait_mesh::push::context::FixedSettings;
use strait_mesh::push::event_loop::{MeshEvent, MeshState};
use strait_model::mesh_config::{Defaults, MeshConfig, MeshNetworks};
use strait_model::registry::{Epoch, RegistryUpdate, ShardChange, ShardKey};
use strait_model::{ClusterId, ConfigKind, EndpointMetadata, ObjectKey};
use strait_rules::access::{AccessIndex, AccessSettings, PolicyErrors};
use strait_rules::service_entry::EntryIndex;
use strait_rules::traffic::{KindSettings, TrafficIndex};
use strait_sources::registry::kube::offline::{Offline, OfflineResponse};
use strait_sources::store::files::{
    ManifestContents, ManifestNamespaces, manifests_in, read_manifests,
};
use strait_sources::store::{CONFIG_MAPS, Warning, WatchedConfigMap};

/// DNS domain and trust domain of a mesh that does not configure them.
const DOMAIN: &str = "cluster.local";
/// Cluster ID of Services in files.
const CLUSTER: &str = "files";

/// Maximum number of objects that a note lists.
const NAMED_MAX: usize = 10;

/// Maximum size of all files together, in bytes: about ten times the size of ten thousand objects
/// as an API server shows them.
const FILES_BYTES_MAX: u64 = 256 << 20;

/// A mesh that is built from files.
pub(super) struct OfflineMesh {
    /// The resulting snapshot.
    pub(super) context: Arc<PushContext>,
    /// Reports about each object.
    pub(super) reports: ConfigReports,
    /// Warnings about parts of the files that cannot be read or have no effect.
    pub(super) warnings: Vec<Warning>,
    /// The status of the ConfigMap with the mesh config and the mesh networks, if the files contain
    /// one.
    pub(super) settings: Option<ConfigState>,
    /// Notes about objects and ConfigMaps in unexpected namespaces.
    pub(super) notes: Vec<String>,
}

/// Reads files, directories (without subdirectories), and standard input for `-`.
///
/// # Errors
/// If a file cannot be read, or all files together are larger than 256 MiB.
pub(super) fn read_files(paths: &[PathBuf]) -> Result<Vec<(String, Vec<u8>)>, CommandFailure> {
    read_within(paths, FILES_BYTES_MAX)
}

/// Reads files like [`read_files`], with a limit in bytes.
fn read_within(
    paths: &[PathBuf],
    bytes_max: u64,
) -> Result<Vec<(String, Vec<u8>)>, CommandFailure> {
    let wrong = |path: &Path, error: std::io::Error| {
        CommandFailure::usage(format!("{} can't be read: {error}", path.display()))
            .next("choose existing files or directories, or - for standard input")
    };
    let mut left = bytes_max;
    let mut read = |source: &mut dyn std::io::Read, path: &Path| {
        let mut bytes = Vec::new();
        // Devices and pipes may never end.
        let length = source.take(left + 1).read_to_end(&mut bytes);
        let length = length.map_err(|error| wrong(path, error))? as u64;
        left = left.checked_sub(length).ok_or_else(|| {
            let text =
                format!("{}: all files together are longer than {bytes_max} bytes", path.display());
            CommandFailure::usage(text).next("choose fewer files at a time")
        })?;
        Ok::<_, CommandFailure>(bytes)
    };
    let mut files = Vec::new();
    for path in paths {
        if *path == Path::new("-") {
            let bytes = read(&mut std::io::stdin().lock(), Path::new("standard input"))?;
            files.push(("standard input".to_owned(), bytes));
            continue;
        }
        let all = match path.is_dir() {
            true => manifests_in(path).map_err(|error| wrong(path, error))?,
            false => vec![path.clone()],
        };
        for path in all {
            let mut file = std::fs::File::open(&path).map_err(|error| wrong(&path, error))?;
            let bytes = read(&mut file, &path)?;
            files.push((path.display().to_string(), bytes));
        }
    }
    Ok(files)
}

impl OfflineMesh {
    /// Builds the mesh of these files with this system namespace. Objects without a namespace are
    /// in `namespace`.
    ///
    /// # Errors
    /// If the mesh config is invalid, or the objects of member clusters are inconsistent.
    pub(super) fn of(
        files: Vec<(String, Vec<u8>)>,
        namespace: &str,
        system_namespace: &str,
    ) -> Result<Self, CommandFailure> {
        let namespaces =
            ManifestNamespaces { of_objects: namespace, system: Some(system_namespace) };
        let ManifestContents { objects, members, unnamed } = read_manifests(files, namespaces);
        let defaults = Defaults {
            domain: DOMAIN.to_owned(),
            trust_domain: DOMAIN.to_owned(),
            namespace: system_namespace.to_owned(),
            ..Defaults::default()
        };
        let named = |name: &str| {
            objects
                .config_maps
                .iter()
                .find(|map| &*map.name.namespace == system_namespace && &*map.name.name == name)
        };
        let map = CONFIG_MAPS.into_iter().find_map(named);
        let text = map.and_then(|map| map.data.get("mesh"));
        let config = match text {
            Some(text) => MeshConfig::parse(text, &defaults).map_err(|error| {
                CommandFailure::coded(&codes::MESH_CONFIG, format!("mesh config: {error}"))
            })?,
            None => MeshConfig::new(&defaults),
        };
        let settings_state = map.map(|map| state_of_settings(map, &config));
        let mut notes = settings_elsewhere(&objects.config_maps, system_namespace);
        notes.extend(in_root_namespace(&unnamed, namespace, &config.root_namespace));
        let mut entries = EntryIndex::new(&config.trust_domain);
        entries.export_by_default(&config.default_service_export_to);
        let mut traffic = TrafficIndex::new(KindSettings::for_domain(DOMAIN, &config));
        let settings = AccessSettings {
            root: config.root_namespace.as_str().into(),
            errors: PolicyErrors::default(),
        };
        let mut access = AccessIndex::new(settings.clone());
        let mut state = MeshState::new(Arc::new(FixedSettings {
            domain: DOMAIN.to_owned(),
            trust_domain: config.trust_domain.clone(),
            system_namespace: system_namespace.to_owned(),
            config_cluster: Some(ClusterId::from(CLUSTER)),
            allow_direct_cross_network: false,
            headless_pods_max: 1000,
            metadata: EndpointMetadata::Lean,
            cluster_aliases: [].into(),
        }))
        .measuring(strait_envoy::rule_bytes);
        let services = services(&members, &objects.others, &config, system_namespace)?;
        state.apply(MeshEvent::MeshConfig(Arc::new(config)));
        state.apply(MeshEvent::Registry(services));
        if let Some(change) = access.apply(&settings, &objects.others) {
            state.apply(MeshEvent::Access(change.policies, change.causes));
        }
        if let Some(change) = entries.apply(&objects.others) {
            let shard = ShardKey::service_entries();
            let update = RegistryUpdate { shard, epoch: Epoch(0), change };
            state.apply(MeshEvent::Entries(update, Arc::clone(entries.selections())));
        }
        if let Some(update) = traffic.apply(&objects.others) {
            state.apply(MeshEvent::Traffic(update));
        }
        state.apply(MeshEvent::Complete);
        state.apply(MeshEvent::CompleteWithoutNames);
        let (context, _) = state.next_version().expect("the first version always differs");
        let reports = ConfigReports {
            objects: objects.others.clone(),
            unread: Arc::clone(&objects.unread),
            traffic: traffic.reports().clone(),
            members: Default::default(),
            entries: entries.problems().into(),
            keys: Arc::default(),
            waiting: None,
        };
        let warnings = objects.warnings;
        Ok(Self { context, reports, warnings, settings: settings_state, notes })
    }
}

/// Returns the status of the ConfigMap with the mesh config and the mesh networks, with the findings
/// of `strait check` about them.
fn state_of_settings(map: &WatchedConfigMap, config: &MeshConfig) -> ConfigState {
    let reason = |code: &'static Code, field: &str, path: &str, text: &str| {
        ConfigReason::new(code, format!("data.{field}{path}"), text)
    };
    let mut reasons = Vec::new();
    reasons.extend(config.ignored.iter().map(|field| {
        reason(&codes::MESH_FIELD_UNUSED, "mesh.", field, "this field has no effect")
    }));
    reasons.extend(
        config
            .default_provider_faults
            .iter()
            .map(|fault| reason(&codes::MESH_DEFAULT_PROVIDER, "mesh.", &fault.path, &fault.text)),
    );
    let mut state = ObjectStanding::InForce;
    match map.data.get("meshNetworks").map(|text| MeshNetworks::parse(text)) {
        None => {}
        Some(Err(error)) => {
            state = ObjectStanding::Refused;
            reasons.push(reason(&codes::MESH_NETWORKS, "meshNetworks", "", &error.to_string()));
        }
        Some(Ok(networks)) => {
            if !networks.conflicts().is_empty() {
                state = ObjectStanding::Partly;
            }
            reasons.extend(
                networks
                    .conflicts()
                    .iter()
                    .map(|fact| reason(&codes::MESH_NETWORKS_CONFLICT, "meshNetworks", "", fact)),
            );
        }
    }
    ConfigState {
        kind: "ConfigMap".to_owned(),
        namespace: map.name.namespace.to_string(),
        name: map.name.name.to_string(),
        store: "config",
        cluster: None,
        state,
        proxies: 0,
        reasons,
    }
}

/// Returns a note for each ConfigMap with a mesh config outside of the control plane's namespace.
fn settings_elsewhere(maps: &[Arc<WatchedConfigMap>], system_namespace: &str) -> Vec<String> {
    let is_elsewhere = |map: &&Arc<WatchedConfigMap>| {
        CONFIG_MAPS.contains(&&*map.name.name)
            && map.data.contains_key("mesh")
            && &*map.name.namespace != system_namespace
    };
    let note = |map: &Arc<WatchedConfigMap>| {
        format!(
            "the mesh config in ConfigMap {} is not used: the system namespace is {system_namespace} \
             (--system-namespace)",
            map.name
        )
    };
    maps.iter().filter(is_elsewhere).map(note).collect()
}

/// Returns a note about objects without a namespace that would apply to the whole mesh if they were
/// in the root namespace.
fn in_root_namespace(
    unnamed: &BTreeSet<ObjectKey>,
    namespace: &str,
    root_namespace: &str,
) -> Option<String> {
    if namespace == root_namespace {
        return None;
    }
    let objects =
        unnamed.iter().filter(|key| ConfigKind::find(key).is_some_and(|kind| kind.mesh_wide));
    let objects: Vec<String> = objects.map(|key| format!("{} {}", key.kind, key.name)).collect();
    let named = list_first(objects.iter(), NAMED_MAX);
    (!objects.is_empty()).then(|| {
        format!(
            "no metadata.namespace: {named}; checked in namespace {namespace} (-n). In the root namespace \
             {root_namespace} such an object applies to the whole mesh"
        )
    })
}

/// Converts the Services of the files, with their endpoints and pods, into an update of one
/// cluster.
fn services(
    members: &[Value],
    others: &strait_model::Collection,
    config: &MeshConfig,
    system_namespace: &str,
) -> Result<RegistryUpdate, CommandFailure> {
    let mut cluster = Offline::in_mesh(DOMAIN, &config.trust_domain, system_namespace);
    let slices = others.iter().filter(|(key, _)| &*key.kind == "EndpointSlice");
    let slices: Vec<Value> = slices.map(|(_, object)| object.to_value()).collect();
    let of_kind = |kind: &str| members.iter().filter(|one| one["kind"] == kind).collect::<Vec<_>>();
    let slices = slices.iter().collect();
    for (plural, items) in
        [("services", of_kind("Service")), ("pods", of_kind("Pod")), ("endpointslices", slices)]
    {
        let list = json!({ "metadata": { "resourceVersion": "1" }, "items": items }).to_string();
        let what = OfflineResponse::List;
        cluster
            .take(plural, what, Encoding::Json, list.as_bytes())
            .map_err(|error| CommandFailure::failed(format!("{plural}: {error}")))?;
    }
    let shard = ShardKey::kubernetes(ClusterId::from(CLUSTER));
    let change = ShardChange::Reset(cluster.everything());
    Ok(RegistryUpdate { shard, epoch: Epoch(0), change })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::failure::Exit;

    #[test]
    fn endless_input_is_read_up_to_the_limit() {
        let folder = tempfile::tempdir().expect("a directory");
        let file = |name: &str, length: usize| {
            let path = folder.path().join(name);
            std::fs::write(&path, vec![b'#'; length]).expect("written");
            path
        };
        let (half, other) = (file("a.yaml", 512), file("b.yaml", 512));
        assert_eq!(read_within(&[half.clone(), other], 1024).expect("it is within").len(), 2);
        let more = file("c.yaml", 513);
        for paths in [vec!["/dev/zero".into()], vec![half, more]] {
            let failure = read_within(&paths, 1024).expect_err("it is longer");
            assert_eq!(failure.exit, Exit::Usage);
            assert!(failure.message().contains("longer than 1024 bytes"), "{failure}");
        }
    }
}
