//! `strait cluster rotate`: writes a new token into the existing Secret, for one cluster or for all
//! that need one.
//!
//! Make before break: the control plane syncs with the new token while it uses the old one, then
//! drops the old one.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use clap::Args;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::add::{check_ttl, cluster_id, refused};
use super::api::{ClusterApi, full_name, holds, is_relayed, kubeconfigs, path_of};
use super::follow::{Goal, Wait};
use super::{ClusterChange, done};
use crate::cli::failure::{CommandFailure, CommandResult, Exit};
use strait_base::codes;
use strait_base::duration::HumanDuration;
use strait_kube_client::{Access, ApiCredential, Loopback, Redacted};
use strait_model::ClusterId;
use strait_sources::clusters::kubeconfig;
use strait_sources::lifetime::Lifetime;

/// `strait cluster rotate`.
#[derive(Debug, Args)]
pub(crate) struct RotateArgs {
    /// ID of the cluster
    #[arg(required_unless_present = "all", conflicts_with = "all")]
    name: Option<String>,
    /// Context of that cluster [default: the cluster ID]
    #[arg(value_name = "CONTEXT")]
    remote: Option<String>,
    /// Every cluster whose token expires; the context of each must be named like its cluster ID
    #[arg(long)]
    all: bool,
    /// Only clusters whose token expires within D
    #[arg(long, value_name = "D")]
    expiring: Option<HumanDuration>,
    /// Lifetime of the new token
    #[arg(long, value_name = "D", default_value = "720h")]
    token_ttl: HumanDuration,
    /// For a member with a relay: refuse its present certificates at once instead of in an hour
    #[arg(long, conflicts_with = "all")]
    now: bool,
    #[command(flatten)]
    change: ClusterChange,
    #[command(flatten)]
    wait: Wait,
}

/// A cluster and the Secret with its token.
struct RotateTarget<'a> {
    id: ClusterId,
    secret: &'a Value,
    access: Access,
    expires: Option<Timestamp>,
}

/// Runs `strait cluster rotate`.
pub(crate) async fn run(args: &RotateArgs) -> CommandResult {
    check_ttl(args.token_ttl)?;
    args.wait.check()?;
    let named_cluster = args.name.as_deref().map(cluster_id).transpose()?;
    let hub = args.change.hub.open().await?;
    let secrets = hub.member_secrets(&args.change.hub.namespace).await?;
    if let Some(id) = &named_cluster
        && let Some(secret) = secrets.iter().find(|secret| holds(secret, id.as_str()))
        && is_relayed(secret)
    {
        if args.remote.is_some() {
            return Err(CommandFailure::usage(format!(
                "{id} is read through a relay, which renews its certificate itself: the command takes no context"
            )));
        }
        return super::invite::rotate(&args.change, &hub, id, secret, args.now).await;
    }
    if args.now {
        let fact = match &named_cluster {
            Some(id) => format!("{id} is not a member with a relay, and --now is only for these"),
            None => "--now needs the ID of a member with a relay".to_owned(),
        };
        return Err(CommandFailure::usage(fact).next("see the members: strait cluster list"));
    }
    let mut targets = match &named_cluster {
        Some(id) => vec![named(args, &hub, &secrets, id)?],
        None => with_an_end(&secrets),
    };
    if let Some(within) = args.expiring {
        let within = SignedDuration::try_from(within.0).unwrap_or(SignedDuration::MAX);
        let now = Timestamp::now();
        targets.retain(|target| {
            target.expires.is_some_and(|expires| expires.duration_since(now) < within)
        });
    }
    if targets.is_empty() {
        done("no token needs to be renewed");
        return Ok(Exit::Fine);
    }
    let mut plan = String::new();
    for target in &targets {
        let context = args.remote.as_deref().unwrap_or(target.id.as_str());
        let ends = target.expires.map(|expires| format!(" (the current one expires at {expires})"));
        plan += &format!(
            "Will request a new token of strait-reader from {context}, valid {}, and write it into secret {} of {}{}\n",
            args.token_ttl,
            full_name(target.secret),
            hub.context,
            ends.unwrap_or_default()
        );
    }
    // A missing context is reported before the plan is confirmed.
    if named_cluster.is_some() {
        context_of(args, &targets[0].id).await?;
    }
    if !args.change.confirmed(&plan).await? {
        return Ok(Exit::Fine);
    }
    let alone = targets.len() == 1 && named_cluster.is_some();
    let mut failed = Vec::new();
    for target in &targets {
        match renew(args, &hub, target).await {
            Ok(Exit::Fine) => {}
            outcome if alone => return outcome,
            Ok(_) => failed.push(target.id.as_str()),
            // A failure does not affect the other clusters.
            Err(failure) => {
                eprint_line!("{failure}");
                failed.push(target.id.as_str());
            }
        }
    }
    match failed[..] {
        [] => Ok(Exit::Fine),
        _ => Err(CommandFailure::failed(format!(
            "{} of {} tokens were not renewed: {}",
            failed.len(),
            targets.len(),
            failed.join(", ")
        ))
        .next("strait cluster rotate NAME CONTEXT for each")),
    }
}

fn named<'a>(
    args: &RotateArgs,
    hub: &ClusterApi,
    secrets: &'a [Value],
    id: &ClusterId,
) -> Result<RotateTarget<'a>, CommandFailure> {
    let secret = secrets
        .iter()
        .find(|secret| holds(secret, id.as_str()))
        .ok_or_else(|| args.change.hub.no_member(hub, id.as_str()))?;
    let held = BASE64.decode(secret["data"][id.as_str()].as_str().unwrap_or_default());
    let access = kubeconfig::parse(&held.unwrap_or_default(), None, Loopback::Allowed).map_err(
        |refusal| {
            let what = format!("secret {}, key {id}", full_name(secret));
            refused(&what, &refusal, Some(id))
        },
    )?;
    let expires = Lifetime::from_access(&access).map(|lifetime| lifetime.expires);
    Ok(RotateTarget { id: id.clone(), secret, access, expires })
}

/// Returns every cluster whose Secret contains a token that expires. The oldest of several Secrets
/// with an ID is used.
fn with_an_end(secrets: &[Value]) -> Vec<RotateTarget<'_>> {
    let mut found: Vec<RotateTarget<'_>> = Vec::new();
    for secret in secrets {
        for (key, bytes) in kubeconfigs(secret) {
            let Ok(id) = ClusterId::parse(&key) else { continue };
            let Ok(access) = kubeconfig::parse(&bytes, None, Loopback::Allowed) else { continue };
            let ApiCredential::Token(token) = &access.credential else { continue };
            let Some(lifetime) = Lifetime::from_token(token.reveal()) else { continue };
            if found.iter().all(|known| known.id != id) {
                found.push(RotateTarget { id, secret, access, expires: Some(lifetime.expires) });
            }
        }
    }
    found.sort_by(|a, b| a.id.cmp(&b.id));
    found
}

async fn context_of(args: &RotateArgs, id: &ClusterId) -> Result<ClusterApi, CommandFailure> {
    let context = args.remote.as_deref().unwrap_or(id.as_str());
    args.change.hub.remote(context).await.map_err(|failure| match &args.remote {
        None => failure.next(format!("set its context: strait cluster rotate {id} CONTEXT")),
        Some(_) => failure,
    })
}

async fn renew(args: &RotateArgs, hub: &ClusterApi, target: &RotateTarget<'_>) -> CommandResult {
    let RotateTarget { id, secret, .. } = target;
    let name = full_name(secret);
    let remote = context_of(args, id).await?;
    let (token, ends) = token(args, &remote, target).await?;
    let expires = Lifetime::from_token(&token).map(|lifetime| lifetime.expires);
    let credential = ApiCredential::Token(Redacted::new(token));
    let access = Access { credential, ..target.access.clone() };
    // The Secret's API server may be unreachable from here but reachable for the control plane. If
    // it responds, it must be the cluster that issued the token.
    let there = remote.with_access(&access)?.uid().await;
    match there {
        Ok(uid) if uid != remote.uid().await? => {
            return Err(CommandFailure::coded(
                &codes::IDENTITY_CHANGED,
                format!(
                    "context {} is not the cluster of secret {name}; nothing was changed",
                    remote.context
                ),
            )
            .next(format!("strait cluster rotate {id} CONTEXT")));
        }
        Ok(_) => done(&format!("the API server accepts the token; valid until {ends}")),
        Err(failure) if failure.denied => {
            return Err(CommandFailure::coded(
                &codes::RIGHTS_REFUSED,
                format!(
                    "{} accepts the token of context {}, but denies reading; nothing was changed",
                    access.server, remote.context
                ),
            )
            .next(codes::RIGHTS_REFUSED.next_for(Some(id.as_str()))));
        }
        Err(failure) if failure.exit == Exit::NoRights => {
            return Err(CommandFailure::coded(
                &codes::AUTH_FAILED,
                format!(
                    "{} rejects the token of context {}; nothing was changed",
                    access.server, remote.context
                ),
            )
            .next(format!("strait cluster rotate {id} CONTEXT")));
        }
        Err(_) => {
            eprint_line!(
                "! {} can't be reached from here, so the token was not tested",
                access.server
            );
        }
    }
    let written = BASE64.encode(kubeconfig::write(id, &access));
    hub.merge(&path_of(secret), &json!({ "data": { id.as_str(): written } })).await?;
    done(&format!("secret {name} changed"));
    match expires {
        Some(expires) => args.wait.follow(id, &Goal::Renewed(expires)).await,
        None => {
            eprint_line!(
                "! the token has no expiry, so this command can't check whether the control plane uses it"
            );
            Ok(Exit::Fine)
        }
    }
}

/// Requests a new token. Its expiry differs from the old one by at least a second, so that the
/// control plane's response shows which of the two it uses.
async fn token(
    args: &RotateArgs,
    remote: &ClusterApi,
    target: &RotateTarget<'_>,
) -> Result<(String, String), CommandFailure> {
    loop {
        let token = remote.reader_token(args.token_ttl.0.as_secs()).await?;
        let (token, ends) = token.ok_or_else(|| {
            let id = &target.id;
            CommandFailure::failed(format!(
                "{} has no serviceaccount strait-reader; nothing was changed",
                remote.context
            ))
            .next(format!(
                "set the cluster's own context: strait cluster rotate {id} CONTEXT\nif strait cluster add did not create the Secret, write a new kubeconfig into it"
            ))
        })?;
        let expires = Lifetime::from_token(&token).map(|lifetime| lifetime.expires);
        if expires.is_none() || expires != target.expires {
            return Ok((token, ends));
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}
