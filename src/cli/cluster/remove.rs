//! `strait cluster remove`: deletes the Secret, which ends the membership.

use clap::Args;
use serde_json::{Value, json};

use super::api::{full_name, holds, is_relayed, path_of};
use super::export_conditions::ExportConditions;
use super::follow::{ChangeMark, Goal, Wait};
use super::manifests::{self, More, ReaderLevel};
use super::mcs_purge::WrittenObjects;
use super::membership::limits;
use super::purged_cluster::{compare, refuse_other_member};
use super::{ClusterChange, done, gateway, istio_service, webhook};
use crate::cli::failure::{CommandResult, Exit};
use strait_model::{ClusterId, ImportMode};
use strait_sources::clusters::secret::MODE_ANNOTATION;

/// `strait cluster remove`.
#[derive(Debug, Args)]
pub(crate) struct RemoveArgs {
    /// ID of the cluster
    name: String,
    /// Also remove the reader, the gateway and the objects of exported services from the cluster of
    /// this context, once no proxy uses its endpoints; this affects every control plane that uses the
    /// reader
    #[arg(long, value_name = "CONTEXT")]
    purge: Option<String>,
    #[command(flatten)]
    change: ClusterChange,
    #[command(flatten)]
    wait: Wait,
}

/// Runs `strait cluster remove`.
pub(crate) async fn run(args: &RemoveArgs) -> CommandResult {
    let id = &args.name;
    let hub = args.change.hub.open().await?;
    let remote = match &args.purge {
        Some(context) => Some(args.change.hub.remote(context).await?),
        None => None,
    };
    let mut secrets = hub.member_secrets(&args.change.hub.namespace).await?;
    if let Some(remote) = &remote {
        let command =
            |id: &str, context: &str| format!("strait cluster remove {id} --purge {context}");
        refuse_other_member(remote, &secrets, id, command)?;
    }
    secrets.retain(|secret| holds(secret, id));
    if secrets.is_empty() && remote.is_none() {
        return Err(args.change.hub.no_member(&hub, id));
    }
    let alone = |secret: &Value| {
        is_relayed(secret) || secret["data"].as_object().is_none_or(|data| data.len() <= 1)
    };
    let mut plan = match &remote {
        Some(remote) => compare(remote, &secrets, id).await?,
        None => String::new(),
    };
    for secret in &secrets {
        let what = if alone(secret) { "secret" } else { "the cluster's key from secret" };
        plan += &format!("Will remove {what} {} in {}\n", full_name(secret), hub.context);
    }
    if !secrets.is_empty() {
        plan += &format!(
            "  cluster {id} leaves the mesh; its endpoints are removed after the removal grace period\n"
        );
    }
    if let Some(remote) = &remote {
        if !secrets.is_empty() {
            plan += "  first, the command withdraws its endpoints, and waits until no proxy uses them\n";
        }
        plan += &format!(
            "Will remove from {}: clusterrolebinding, clusterrole and namespace strait-reader with all its tokens,\n  \
             mutatingwebhookconfiguration strait-inject: new pods get no sidecar any more;\n  \
             and other objects of 'strait cluster add': namespace strait-gateway with the gateway, service {}/istiod\n",
            remote.context, args.change.hub.namespace
        );
        if let Some(counts) = WrittenObjects::list(remote, None).await?.counts() {
            plan += &format!("  objects of exported services: {counts}\n");
        }
        plan.extend(ExportConditions::list(remote).await?.describe());
    }
    if !args.change.confirmed(&plan).await? {
        return Ok(Exit::Fine);
    }
    let cluster = ClusterId::from(id.as_str());
    // A drain would affect the other clusters of a Secret too.
    let drains = remote.is_some() && secrets.iter().all(alone);
    let goal = if drains { Goal::Mode(Some("drain")) } else { Goal::Removed };
    let mark = match remote {
        Some(_) => args.wait.mark(&cluster, &goal).await,
        None => ChangeMark::default(),
    };
    if drains && !secrets.is_empty() {
        let drain = json!({ "metadata": { "annotations": { MODE_ANNOTATION: "drain" } } });
        for secret in &secrets {
            hub.merge(&path_of(secret), &drain).await?;
        }
        args.wait.withdrawn(&cluster, &goal, &mark).await;
    }
    for secret in &secrets {
        let path = path_of(secret);
        if alone(secret) {
            hub.delete(&path).await?;
        } else {
            hub.merge(&path, &json!({ "data": { id.as_str(): null } })).await?;
        }
        done(&format!("cluster {id} removed from secret {}", full_name(secret)));
    }
    if let Some(remote) = remote {
        if !drains {
            args.wait.withdrawn(&cluster, &goal, &mark).await;
        }
        // Otherwise its API server would keep calling the webhook.
        for manifest in [webhook::named()].iter().chain(webhook::rights().iter().rev()) {
            remote.delete(&path_of(manifest)).await?;
        }
        // The control plane has read the removed Secret, and writes no objects any more.
        WrittenObjects::list(&remote, None).await?.delete(&remote).await?;
        match ExportConditions::list(&remote).await {
            Ok(conditions) => conditions.remove(&remote).await,
            Err(failure) => {
                done(&format!("the conditions of ServiceExports stay: {}", failure.message()));
            }
        }
        // Bindings first: a partially removed reader has no rights.
        let everything = More {
            own_mesh: true,
            own_traffic: true,
            tokens: true,
            self_renew: true,
            roots: true,
            gateway_secrets: Vec::new(),
            imports: ImportMode::Full,
            namespaces: limits(&secrets),
        };
        for manifest in manifests::reader(ReaderLevel::Kinds, &everything).iter().rev() {
            remote.delete(&path_of(manifest)).await?;
        }
        let other_manifests = [gateway::namespace()]
            .into_iter()
            .chain(istio_service::named(&args.change.hub.namespace));
        for manifest in other_manifests {
            let path = path_of(&manifest);
            let there = remote.get(&path).await?.unwrap_or_default();
            // Objects that Helm or another program created stay.
            if there["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "strait" {
                remote.delete(&path).await?;
            }
        }
        done(&format!("removed the reader from {}", remote.context));
    }
    match args.wait.wait {
        true => args.wait.follow(&cluster, &Goal::Removed).await,
        false => Ok(Exit::Fine),
    }
}
