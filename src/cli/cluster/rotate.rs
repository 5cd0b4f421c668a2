//! `strait cluster rotate`: a new token into the Secret that is there.
//!
//! Make before break: the control plane syncs with the new token beside the old, then lets go of the old.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use clap::Args;
use serde_json::json;

use super::add::{Wait, check_ttl, cluster_id, refused};
use super::api::{full_name, holds, path_of};
use super::{Change, done};
use crate::apiserver::{Credential, Loopback, Redacted};
use crate::cli::duration::HumanDuration;
use crate::cli::failure::{Exit, Failure, Outcome};
use crate::clusters::kubeconfig;
use crate::codes;

/// `strait cluster rotate`.
#[derive(Debug, Args)]
pub(crate) struct RotateArgs {
    /// The cluster's ID
    name: String,
    /// Context of that cluster [default: of the same name]
    #[arg(value_name = "CONTEXT")]
    remote: Option<String>,
    /// How long the token is valid
    #[arg(long, value_name = "D", default_value = "720h")]
    token_ttl: HumanDuration,
    #[command(flatten)]
    change: Change,
    #[command(flatten)]
    wait: Wait,
}

/// Runs `strait cluster rotate`.
pub(crate) async fn run(args: &RotateArgs) -> Outcome {
    let id = cluster_id(&args.name)?;
    check_ttl(args.token_ttl)?;
    let hub = args.change.hub.open().await?;
    let secrets = hub.member_secrets(&args.change.hub.namespace).await?;
    let context = args.remote.as_deref().unwrap_or(id.as_str());
    let secret = secrets
        .iter()
        .find(|secret| holds(secret, id.as_str()))
        .ok_or_else(|| args.change.hub.no_member(&hub, id.as_str()))?;
    let remote = args.change.hub.remote(context).await.map_err(|failure| match &args.remote {
        None => failure.next(format!("name its context: strait cluster rotate {id} CONTEXT")),
        Some(_) => failure,
    })?;
    let name = full_name(secret);
    let held = BASE64.decode(secret["data"][id.as_str()].as_str().unwrap_or_default());
    let mut access = kubeconfig::parse(&held.unwrap_or_default(), None, Loopback::Allowed)
        .map_err(|refusal| refused(&format!("secret {name}, key {id}"), &refusal))?;
    let plan = format!(
        "Will ask {} for a new token of strait-reader, valid {}, and put it into secret {name} of {}\n",
        remote.context, args.token_ttl, hub.context
    );
    if !args.change.confirmed(&plan).await? {
        return Ok(Exit::Fine);
    }
    let token = remote.reader_token(args.token_ttl.0.as_secs()).await?;
    let (token, ends) = token.ok_or_else(|| {
        Failure::failed(format!(
            "{} has no serviceaccount strait-reader; nothing was changed",
            remote.context
        ))
        .next(format!(
            "name the cluster's own context: strait cluster rotate {id} CONTEXT\na Secret that strait cluster add did not make is renewed as it was made: put a new kubeconfig into it"
        ))
    })?;
    access.credential = Credential::Token(Redacted::new(token));
    // The Secret's API server may be out of our reach, not out of the control plane's; but if it
    // answers, it must be the cluster that gave the token.
    let there = remote.with_access(&access)?.uid().await;
    match there {
        Ok(uid) if uid != remote.uid().await? => {
            return Err(Failure::coded(
                &codes::IDENTITY_CHANGED,
                format!("context {} is not the cluster that secret {name} leads to; nothing was changed", remote.context),
            )
            .next(format!("strait cluster rotate {id} CONTEXT")));
        }
        Ok(_) => done(&format!("the API server takes it; valid until {ends}")),
        Err(failure) if failure.exit == Exit::NoRights => {
            return Err(Failure::coded(
                &codes::AUTH_FAILED,
                format!(
                    "{} does not take a token of context {}; nothing was changed",
                    access.server, remote.context
                ),
            )
            .next(format!("strait cluster rotate {id} CONTEXT")));
        }
        Err(_) => {
            eprintln!("! {} can't be reached from here, so the token was not tried", access.server);
        }
    }
    let written = BASE64.encode(kubeconfig::write(&id, &access));
    let mut target = secret.clone();
    target["kind"] = json!("Secret");
    hub.merge(&path_of(&target), &json!({ "data": { id.as_str(): written } })).await?;
    done(&format!("secret {name} changed"));
    args.wait.follow(&id).await
}
