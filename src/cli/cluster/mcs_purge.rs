//! `strait cluster mcs-purge`: deletes the ServiceImports, derived Services and EndpointSlices that
//! Strait wrote into a cluster for exported services.

use clap::Args;
use serde_json::Value;

use super::api::{ClusterApi, holds};
use super::purged_cluster::{compare, refuse_other_member};
use super::{ClusterChange, done};
use crate::cli::failure::{CommandFailure, CommandResult, Exit};
use crate::cli::output::items;
use strait_model::MCS_API;
use strait_sources::registry::kube::derived_service_name;

/// Flags of `strait cluster mcs-purge`.
#[derive(Debug, Args)]
pub(crate) struct McsPurgeArgs {
    /// ID of the cluster
    name: String,
    /// Context of that cluster [default: the cluster ID]
    #[arg(value_name = "CONTEXT")]
    remote: Option<String>,
    /// Only objects of this cluster set, as in 'strait serve --clusterset' [default: all sets]
    #[arg(long, value_name = "NAME")]
    clusterset: Option<String>,
    #[command(flatten)]
    change: ClusterChange,
}

/// The versions of the API, preferred first.
pub(super) const VERSIONS: [&str; 2] = ["v1beta1", "v1alpha1"];
/// The label of derived Services with the name of the ServiceImport.
const SERVICE_NAME: &str = "multicluster.kubernetes.io/service-name";
/// The label with the name of the cluster set.
const SET: &str = "strait.dev/clusterset";

/// The objects that Strait wrote into a cluster for exported services, in the order in which they are
/// deleted: a Service is deleted before its ServiceImport, because a cluster without a garbage
/// collector would keep it.
#[derive(Debug, Default)]
pub(super) struct WrittenObjects {
    slices: Vec<WrittenObject>,
    services: Vec<WrittenObject>,
    imports: Vec<WrittenObject>,
}

#[derive(Debug)]
struct WrittenObject {
    path: String,
    uid: String,
}

impl WrittenObjects {
    /// Lists the objects of one cluster set, or of all.
    pub(super) async fn list(
        cluster: &ClusterApi,
        set: Option<&str>,
    ) -> Result<Self, CommandFailure> {
        let slices = "/apis/discovery.k8s.io/v1";
        let is_slice = |metadata: &Value| {
            metadata["labels"]["endpointslice.kubernetes.io/managed-by"] == "strait.dev"
                && is_derived(metadata, &metadata["labels"]["kubernetes.io/service-name"])
        };
        let is_service = |metadata: &Value| is_derived(metadata, &metadata["name"]);
        let is_import = |metadata: &Value| controller(metadata).is_none();
        let mut written = Self {
            slices: listed(cluster, slices, "endpointslices", set, is_slice)
                .await?
                .unwrap_or_default(),
            services: listed(cluster, "/api/v1", "services", set, is_service)
                .await?
                .unwrap_or_default(),
            imports: Vec::new(),
        };
        for version in VERSIONS {
            let api = format!("/apis/{MCS_API}/{version}");
            if let Some(imports) = listed(cluster, &api, "serviceimports", set, is_import).await? {
                written.imports = imports;
                break;
            }
        }
        Ok(written)
    }

    /// Returns the numbers of objects, such as `2 ServiceImports, 2 Services, 5 EndpointSlices`;
    /// `None` without objects.
    pub(super) fn counts(&self) -> Option<String> {
        let kinds = [
            (&self.imports, "ServiceImport"),
            (&self.services, "derived Service"),
            (&self.slices, "EndpointSlice"),
        ];
        let counts: Vec<_> = kinds
            .iter()
            .filter(|(objects, _)| !objects.is_empty())
            .map(|(objects, kind)| match objects.len() {
                1 => format!("1 {kind}"),
                count => format!("{count} {kind}s"),
            })
            .collect();
        (!counts.is_empty()).then(|| counts.join(", "))
    }

    /// Deletes the objects.
    pub(super) async fn delete(&self, cluster: &ClusterApi) -> Result<(), CommandFailure> {
        for WrittenObject { path, uid } in
            self.slices.iter().chain(&self.services).chain(&self.imports)
        {
            cluster.delete_exactly(path, uid).await?;
        }
        Ok(())
    }
}

/// Returns whether a derived Service of the labelled ServiceImport has this name, and no controller
/// of another kind owns the object.
fn is_derived(metadata: &Value, name: &Value) -> bool {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let import = text(&metadata["labels"][SERVICE_NAME]);
    let is_owned =
        controller(metadata).is_none_or(|kind| ["ServiceImport", "Service"].contains(&kind));
    is_owned && *name == derived_service_name(&text(&metadata["namespace"]), &import)
}

/// Returns the kind of the object that controls an object.
fn controller(metadata: &Value) -> Option<&str> {
    let owners = items(&metadata["ownerReferences"]).iter();
    owners.filter(|owner| owner["controller"] == true).find_map(|owner| owner["kind"].as_str())
}

/// Lists the objects of one kind with the labels of Strait, if their metadata is accepted. Returns
/// `None` if the API server does not have the kind.
async fn listed(
    cluster: &ClusterApi,
    api: &str,
    plural: &str,
    set: Option<&str>,
    is_written: impl Fn(&Value) -> bool,
) -> Result<Option<Vec<WrittenObject>>, CommandFailure> {
    let set = set.map(|set| format!("%3D{set}")).unwrap_or_default();
    let labels = format!(
        "{}%2C{}{set}",
        "app.kubernetes.io/managed-by%3Dstrait".replace('/', "%2F"),
        SET.replace('/', "%2F")
    );
    let Some(list) = cluster.get(&format!("{api}/{plural}?labelSelector={labels}")).await? else {
        return Ok(None);
    };
    let objects = items(&list["items"]).iter().map(|object| &object["metadata"]);
    let objects = objects.filter(|metadata| is_written(metadata)).map(|metadata| {
        let text = |field: &str| metadata[field].as_str().unwrap_or_default().to_owned();
        let path = format!("{api}/namespaces/{}/{plural}/{}", text("namespace"), text("name"));
        WrittenObject { path, uid: text("uid") }
    });
    Ok(Some(objects.collect()))
}

/// Runs `strait cluster mcs-purge`.
pub(crate) async fn run(args: &McsPurgeArgs) -> CommandResult {
    let id = &args.name;
    let hub = args.change.hub.open().await?;
    let remote = args.change.hub.remote(args.remote.as_ref().unwrap_or(id)).await?;
    let mut secrets = hub.member_secrets(&args.change.hub.namespace).await?;
    let command = |id: &str, context: &str| format!("strait cluster mcs-purge {id} {context}");
    refuse_other_member(&remote, &secrets, id, command)?;
    secrets.retain(|secret| holds(secret, id));
    let mut plan = compare(&remote, &secrets, id).await?;
    let written = WrittenObjects::list(&remote, args.clusterset.as_deref()).await?;
    let Some(counts) = written.counts() else {
        done(&format!("{} has no ServiceImports that Strait wrote", remote.context));
        return Ok(Exit::Fine);
    };
    plan += &format!(
        "Will delete from {}: {counts}\n  pods without sidecars no longer resolve and reach these services by their names in the cluster set\n",
        remote.context
    );
    if !secrets.is_empty() {
        plan += &format!(
            "  ! the control plane creates them again unless imports are off for cluster {id}: --mcs-imports, or clusters.{id}.mcs.imports in the policy file\n"
        );
    }
    if !args.change.confirmed(&plan).await? {
        return Ok(Exit::Fine);
    }
    written.delete(&remote).await?;
    done(&format!("deleted from {}: {counts}", remote.context));
    Ok(Exit::Fine)
}
