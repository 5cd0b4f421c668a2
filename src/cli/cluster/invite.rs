//! `strait cluster invite`: creates a member that is read through a relay, and prints the values of the relay's chart.
//! `strait cluster rotate` replaces the certificates of the member's relays.

use std::path::PathBuf;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD as BASE64, URL_SAFE_NO_PAD};
use clap::Args;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::add::{check_network, cluster_id};
use super::api::{self, ClusterApi, full_name, holds, is_relayed, path_of};
use super::membership::refuse_config_cluster;
use super::{ClusterChange, done};
use crate::cli::failure::{CommandFailure, CommandResult, Exit};
use crate::cli::output::print;
use strait_base::codes;
use strait_base::duration::HumanDuration;
use strait_base::hex;
use strait_model::ClusterId;
use strait_relay::hub::{
    GENERATION_ANNOTATION, GENERATION_FROM_ANNOTATION, INVITATION_EXPIRES_KEY, INVITATION_KEY,
    RELAY_ANNOTATION,
};
use strait_sources::clusters::secret::{CLUSTER_ID_ANNOTATION, NETWORK_ANNOTATION, secret_name};
use strait_sources::store::SECRET_LABEL;

/// The limits of an invitation's validity.
const TTL_MIN: Duration = Duration::from_secs(1);
const TTL_MAX: Duration = Duration::from_secs(24 * 3600);
/// The port of the hub to which relays connect.
const PORT: u16 = 15012;
/// How long certificates of the previous generation stay valid after a rotation.
const OLD_GENERATION: Duration = Duration::from_secs(3600);

/// `strait cluster invite`.
#[derive(Debug, Args)]
pub(crate) struct InviteArgs {
    /// ID of the member
    name: String,
    /// Network of the member's pods
    #[arg(long)]
    network: Option<String>,
    /// How long the invitation is valid, 1s to 24h
    #[arg(long, value_name = "D", default_value = "1h")]
    ttl: HumanDuration,
    /// Address at which the relay reaches the control plane, HOST:PORT; repeatable [default: the
    /// address of its Service, port 15012]
    #[arg(long = "hub", value_name = "HOST:PORT")]
    hubs: Vec<String>,
    /// File with the roots of the control plane's certificate, PEM [default: the published roots]
    #[arg(long, value_name = "FILE")]
    hub_roots: Option<PathBuf>,
    #[command(flatten)]
    config: api::Hub,
}

/// Runs `strait cluster invite`.
pub(crate) async fn run(args: &InviteArgs) -> CommandResult {
    let id = cluster_id(&args.name)?;
    check_network(args.network.as_deref())?;
    if !(TTL_MIN..=TTL_MAX).contains(&args.ttl.0) {
        return Err(CommandFailure::usage("--ttl must be from 1s to 24h"));
    }
    if let Some(wrong) = args.hubs.iter().find(|hub| !is_host_and_port(hub)) {
        return Err(CommandFailure::usage(format!("--hub {wrong:?} is not HOST:PORT")));
    }
    let (config, namespace) = (args.config.open().await?, args.config.namespace.clone());
    refuse_config_cluster(&config, &namespace, &id).await?;
    let roots = roots(args, &config, &namespace).await?;
    let hubs = hubs(args, &config, &namespace).await?;
    let secrets = config.member_secrets(&namespace).await?;
    let existing = secrets.iter().find(|secret| holds(secret, id.as_str()));
    if let Some(secret) = existing.filter(|secret| !is_relayed(secret)) {
        let text =
            format!("{id} is already a member with a kubeconfig, in secret {}", full_name(secret));
        return Err(CommandFailure::failed(text)
            .next(format!("to replace it: strait cluster remove {id}; then invite again")));
    }
    let token = URL_SAFE_NO_PAD.encode(rand::random::<[u8; 32]>());
    let expires = second_after(args.ttl.0);
    write(args, &config, &namespace, &id, existing, (&token, expires)).await?;
    let values = values(&id, &hubs, &roots, &token);
    print(&values)?;
    eprint_line!(
        "The invitation of {id} is valid until {expires}. In the member's cluster:\n  \
         helm install strait-relay deploy/charts/strait-member --namespace strait-system --create-namespace --values VALUES.yaml\n\
         Then: strait cluster get {id}"
    );
    Ok(Exit::Fine)
}

/// Writes the invitation into the member's Secret. A previous invitation ends.
async fn write(
    args: &InviteArgs,
    config: &ClusterApi,
    namespace: &str,
    id: &ClusterId,
    existing: Option<&Value>,
    (token, expires): (&str, Timestamp),
) -> Result<(), CommandFailure> {
    let data = json!({
        INVITATION_KEY: BASE64.encode(hex::sha256(token.as_bytes())),
        INVITATION_EXPIRES_KEY: BASE64.encode(expires.to_string()),
    });
    if let Some(secret) = existing {
        let mut patch = json!({ "data": data });
        if let Some(network) = &args.network {
            patch["metadata"] = json!({ "annotations": { NETWORK_ANNOTATION: network } });
        }
        return config.merge(&path_of(secret), &patch).await;
    }
    let (label, value) = SECRET_LABEL;
    let mut secret = json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": secret_name(id),
            "namespace": namespace,
            "labels": { label: value },
            "annotations": {
                RELAY_ANNOTATION: "true",
                CLUSTER_ID_ANNOTATION: id.as_str(),
                GENERATION_ANNOTATION: first_generation().to_string(),
            },
        },
        "data": data,
    });
    if let Some(network) = &args.network {
        secret["metadata"]["annotations"][NETWORK_ANNOTATION] = json!(network);
    }
    config.apply(&secret).await
}

async fn roots(
    args: &InviteArgs,
    config: &ClusterApi,
    namespace: &str,
) -> Result<String, CommandFailure> {
    if let Some(file) = &args.hub_roots {
        return std::fs::read_to_string(file).map_err(|error| {
            CommandFailure::failed(format!("--hub-roots {} can't be read: {error}", file.display()))
        });
    }
    config.published_roots(namespace).await?.ok_or_else(|| {
        let code = &codes::RELAY_NO_CA;
        CommandFailure::coded(
            code,
            format!(
                "no roots are published in ConfigMap {namespace}/{}: the control plane has no CA (--ca-dir), or is not running. If it signs certificates of relays with --relay-ca-dir, set the roots of its own certificate: --hub-roots FILE",
                api::ROOTS
            ),
        )
    })
}

async fn hubs(
    args: &InviteArgs,
    config: &ClusterApi,
    namespace: &str,
) -> Result<Vec<String>, CommandFailure> {
    if !args.hubs.is_empty() {
        return Ok(args.hubs.clone());
    }
    let front = config.front(namespace).await?.ok_or_else(|| {
        CommandFailure::failed(format!(
            "Service {namespace}/strait has no address outside of its cluster"
        ))
        .next("name the address at which the relay reaches port 15012: --hub HOST:PORT")
    })?;
    let host =
        if front.address.contains(':') { format!("[{}]", front.address) } else { front.address };
    Ok(vec![format!("{host}:{PORT}")])
}

/// Returns the values of the relay's chart, in YAML.
fn values(id: &ClusterId, hubs: &[String], roots: &str, token: &str) -> String {
    let quoted = |text: &str| Value::from(text).to_string();
    let mut text =
        format!("relay:\n  enabled: true\n  cluster: {}\n  hubs:\n", quoted(id.as_str()));
    for hub in hubs {
        text += &format!("  - {}\n", quoted(hub));
    }
    text += "  roots: |\n";
    for line in roots.lines().filter(|line| !line.trim().is_empty()) {
        text += &format!("    {}\n", line.trim());
    }
    text += &format!("  invitation: {}\n", quoted(token));
    text
}

fn is_host_and_port(text: &str) -> bool {
    text.rsplit_once(':').is_some_and(|(host, port)| {
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        !bare.is_empty()
            && port.parse::<u16>().is_ok_and(|port| port > 0)
            && (host.starts_with('[') == bare.contains(':'))
            && !host.contains(['/', '@', ' '])
    })
}

/// Returns the time after `wait`, in whole seconds.
fn second_after(wait: Duration) -> Timestamp {
    let wait = SignedDuration::try_from(wait).unwrap_or(SignedDuration::MAX);
    (Timestamp::now() + wait).round(jiff::Unit::Second).unwrap_or_default()
}

/// Returns the first generation of a new Secret: the time in milliseconds, so that it is higher than all generations of an
/// earlier Secret for the cluster. Otherwise, certificates that were revoked or whose cluster was removed would be accepted
/// again until they expire.
fn first_generation() -> u64 {
    u64::try_from(Timestamp::now().as_millisecond()).unwrap_or(1).max(1)
}

/// Raises the generation of a relay's certificates. Lower ones are refused after an hour, or at once with `now`.
pub(super) async fn rotate(
    change: &ClusterChange,
    config: &ClusterApi,
    id: &ClusterId,
    secret: &Value,
    now: bool,
) -> CommandResult {
    let annotation = &secret["metadata"]["annotations"][GENERATION_ANNOTATION];
    let generation: u64 = annotation.as_str().and_then(|text| text.parse().ok()).unwrap_or(1);
    let next = generation.saturating_add(1);
    // Without this time, the hub refuses previous generations at once.
    let from = (!now).then(|| second_after(OLD_GENERATION));
    let name = full_name(secret);
    let effect = match from {
        None => "its relays are disconnected and must enrol again with a new invitation".to_owned(),
        Some(from) => format!("its relays must renew their certificates by {from}"),
    };
    let plan = format!(
        "Will raise the generation of the relay's certificates in secret {name} in {} from {generation} to {next}\n  cluster {id}: {effect}\n",
        config.context
    );
    if !change.confirmed(&plan).await? {
        return Ok(Exit::Fine);
    }
    let patch = json!({ "metadata": { "annotations": {
        GENERATION_ANNOTATION: next.to_string(),
        GENERATION_FROM_ANNOTATION: from.map(|from| from.to_string()),
    } } });
    config.merge(&path_of(secret), &patch).await?;
    done(&format!("secret {name} changed: generation {next}"));
    if now {
        done(&format!("next: strait cluster invite {id}"));
    }
    Ok(Exit::Fine)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_those_of_the_chart() {
        let roots = "-----BEGIN CERTIFICATE-----\nAA==\n-----END CERTIFICATE-----\n";
        let text = values(&"west".into(), &["hub.example:15012".into()], roots, "t0ken");
        let read: Value = serde_saphyr::from_str(&text).expect("YAML");
        assert_eq!(
            read,
            json!({ "relay": {
                "enabled": true, "cluster": "west", "hubs": ["hub.example:15012"],
                "roots": roots, "invitation": "t0ken",
            } })
        );
    }

    #[test]
    fn hub_is_a_host_and_a_port() {
        for good in ["hub:15012", "192.0.2.1:1", "[2001:db8::1]:15012"] {
            assert!(is_host_and_port(good), "{good}");
        }
        for wrong in [
            "hub",
            "hub:",
            ":15012",
            "hub:0",
            "hub:65536",
            "2001:db8::1:15012",
            "https://hub:1",
            "a@b:1",
        ] {
            assert!(!is_host_and_port(wrong), "{wrong}");
        }
    }
}
