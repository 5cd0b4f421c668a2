//! `strait cluster drain`, `pause` and `resume`: set the mode of a member as an annotation of
//! the member's Secret.

use clap::Args;
use serde_json::json;

use super::add::cluster_id;
use super::api::{full_name, holds, is_relayed, path_of};
use super::follow::{Goal, Wait};
use super::{ClusterChange, done};
use crate::cli::failure::{CommandResult, Exit};
use strait_sources::clusters::secret::MODE_ANNOTATION;

/// Flags of `drain`, `pause` and `resume`.
#[derive(Debug, Args)]
pub(crate) struct ModeArgs {
    /// ID of the cluster
    name: String,
    #[command(flatten)]
    change: ClusterChange,
    #[command(flatten)]
    wait: Wait,
}

/// Sets the mode to `drain`, `pause`, or neither.
pub(crate) async fn run(args: &ModeArgs, mode: Option<&'static str>) -> CommandResult {
    let id = cluster_id(&args.name)?;
    args.wait.check()?;
    let hub = args.change.hub.open().await?;
    let secrets = hub.member_secrets(&args.change.hub.namespace).await?;
    // The oldest of several Secrets with the ID is active; a Secret on standby does not affect the
    // cluster.
    let secret = secrets
        .iter()
        .find(|secret| holds(secret, id.as_str()))
        .ok_or_else(|| args.change.hub.no_member(&hub, id.as_str()))?;
    let name = full_name(secret);
    let now = secret["metadata"]["annotations"][MODE_ANNOTATION].as_str();
    if now.filter(|now| !now.is_empty()) == mode {
        done(&format!("secret {name} already has this mode"));
        return args.wait.follow(&id, &Goal::Mode(mode)).await;
    }
    let means = match mode {
        Some("drain") => "its endpoints are withdrawn from all proxies; it is still watched",
        Some(_) => "its current state is frozen, and its API server is not called",
        None => "its endpoints are sent to proxies again",
    };
    let mut plan = match mode {
        Some(mode) => format!(
            "Will annotate secret {name} in {} with {MODE_ANNOTATION}={mode}\n",
            hub.context
        ),
        None => format!(
            "Will remove the annotation {MODE_ANNOTATION} from secret {name} in {}\n",
            hub.context
        ),
    };
    plan += &format!("  cluster {id}: {means}\n");
    if now == Some("drain") && mode == Some("pause") {
        plan += "  ! this ends the drain: its endpoints are sent to proxies again\n";
    }
    let others = secret["data"].as_object().into_iter().flatten();
    let others: Vec<&str> = others
        .map(|(key, _)| key.as_str())
        .filter(|key| *key != id.as_str() && !is_relayed(secret))
        .collect();
    if !others.is_empty() {
        plan += &format!(
            "  ! this also applies to the other clusters in the secret: {}\n",
            others.join(", ")
        );
    }
    if !args.change.confirmed(&plan).await? {
        return Ok(Exit::Fine);
    }
    let patch = json!({ "metadata": { "annotations": { MODE_ANNOTATION: mode } } });
    hub.merge(&path_of(secret), &patch).await?;
    done(&format!("secret {name} changed"));
    args.wait.follow(&id, &Goal::Mode(mode)).await
}
