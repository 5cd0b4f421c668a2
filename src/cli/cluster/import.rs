//! `strait cluster import`: adds members from a kubeconfig, or from a Secret made for Istio.
//!
//! The input is checked by the function that later reads the Secret, so an accepted input is
//! accepted there too.

use std::collections::BTreeMap;
use std::io::Read;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use clap::Args;
use http::Uri;
use serde_json::Value;

use super::ClusterChange;
use super::add::{
    Manifests, check_network, check_trust_domain, cluster_id, loopback_for, make_secret, network,
    of_config_cluster, refused,
};
use super::follow::{Goal, Wait};
use super::membership::free;
use crate::cli::failure::{CommandFailure, CommandResult, Exit};
use crate::cli::output;
use strait_kube_client::Loopback;
use strait_model::{ClusterId, Mode};
use strait_sources::clusters::formats::MemberReach;
use strait_sources::clusters::kubeconfig;
use strait_sources::clusters::secret::{
    self, MemberSpec, NETWORK_ANNOTATION, TRUST_DOMAIN_ANNOTATION,
};

/// `strait cluster import`.
#[derive(Debug, Args)]
pub(crate) struct ImportArgs {
    /// A kubeconfig, or the manifest of a Secret with kubeconfigs; '-' for standard input
    #[arg(value_name = "FILE|-")]
    file: String,
    /// ID of the cluster [default: the Secret's key, or the kubeconfig's current context]
    #[arg(long, value_name = "ID")]
    name: Option<String>,
    /// Network of the cluster; overrides labels
    #[arg(long, value_name = "NET")]
    network: Option<String>,
    /// Trust domain in the certificates of the cluster's workloads [default: as in the Secret, else
    /// the mesh's]
    #[arg(long, value_name = "TD")]
    trust_domain: Option<String>,
    /// URL of the cluster's API server [default: as in the kubeconfig]
    #[arg(long, value_name = "URL")]
    api_server: Option<Uri>,
    #[command(flatten)]
    change: ClusterChange,
    #[command(flatten)]
    wait: Wait,
    /// Print the Secrets instead of applying them
    #[arg(long, short, value_enum)]
    output: Option<Manifests>,
}

/// Network and trust domain of the clusters: from the flags, or else from the annotations.
struct ImportNames {
    network: Option<String>,
    trust_domain: Option<String>,
}

/// Runs `strait cluster import`.
pub(crate) async fn run(args: &ImportArgs) -> CommandResult {
    check_network(args.network.as_deref())?;
    check_trust_domain(args.trust_domain.as_deref())?;
    args.wait.check()?;
    let members = read(args, &bytes(&args.file)?)?;
    let ns = &args.change.hub.namespace;
    if args.output.is_some() {
        let secrets: Vec<String> =
            members.iter().map(|(id, member)| secret::to_yaml(ns, id, member, false)).collect();
        output::print(&secrets.join("---\n"))?;
        return Ok(Exit::Fine);
    }
    let line = |(id, member): (&ClusterId, &MemberSpec)| {
        format!(
            "Will create secret {ns}/{}: cluster ID {id}, {}\n",
            secret::secret_name(id),
            member.access.server
        )
    };
    if !args.change.confirmed(&members.iter().map(line).collect::<String>()).await? {
        return Ok(Exit::Fine);
    }
    let hub = args.change.hub.open().await?;
    let hub_uid = hub.uid().await?;
    for (id, member) in &members {
        let of_hub = member.access.server == *hub.server()
            // A cluster that is unreachable from here may still be a valid member.
            || hub.with_access(&member.access)?.uid().await.is_ok_and(|uid| uid == hub_uid);
        if of_hub {
            return Err(of_config_cluster(
                &format!("cluster {id} of {}", args.file),
                &hub,
                &hub_uid,
            ));
        }
        free(&hub, ns, id, &member.access.server).await?;
    }
    for (id, member) in &members {
        make_secret(&hub, ns, id, member, false).await?;
    }
    let mut end = Exit::Fine;
    for id in members.keys() {
        if args.wait.follow(id, &Goal::Synced).await? != Exit::Fine {
            end = Exit::Unhealthy;
        }
    }
    Ok(end)
}

fn bytes(file: &str) -> Result<Vec<u8>, CommandFailure> {
    // One byte more than the maximum size of a Secret, so that a larger file is detected.
    let limit = 4 * kubeconfig::BYTES_MAX as u64 + 1;
    let mut bytes = Vec::new();
    let read = match file {
        "-" => std::io::stdin().lock().take(limit).read_to_end(&mut bytes),
        file => std::fs::File::open(file).and_then(|open| open.take(limit).read_to_end(&mut bytes)),
    };
    read.map_err(|error| {
        let absent = error.kind() == std::io::ErrorKind::NotFound;
        let exit = if absent { Exit::Usage } else { Exit::Failed };
        CommandFailure::new(exit, format!("{file} can't be read: {error}"))
            .next("choose a kubeconfig, or the manifest of a Secret with kubeconfigs")
    })?;
    Ok(bytes)
}

/// Reads the clusters of a file. All of them must be usable.
fn read(
    args: &ImportArgs,
    bytes: &[u8],
) -> Result<BTreeMap<ClusterId, MemberSpec>, CommandFailure> {
    let text = std::str::from_utf8(bytes).unwrap_or_default();
    // This only distinguishes the two formats. The strict reader below rejects invalid YAML.
    let documents: Vec<(&str, Value)> = documents(text)
        .into_iter()
        .map(|text| (text, serde_saphyr::from_str::<Value>(text).unwrap_or_default()))
        .filter(|(text, tree)| !tree.is_null() || !is_blank(text))
        .collect();
    let secrets: Vec<&Value> =
        documents.iter().map(|(_, tree)| tree).filter(|tree| tree["kind"] == "Secret").collect();
    let mut found: Vec<(String, Vec<u8>, ImportNames)> = Vec::new();
    if secrets.is_empty() {
        let (bytes, tree) = match &documents[..] {
            // The only document: tools may print an empty document after it.
            [(text, tree)] => (text.as_bytes(), tree),
            _ => (bytes, &Value::Null),
        };
        // An invalid kubeconfig is reported before a missing ID.
        if let Err(refusal) = kubeconfig::parse(bytes, None, Loopback::Allowed) {
            return Err(refused(&args.file, &refusal, None));
        }
        let name = args.name.as_deref().or(tree["current-context"].as_str());
        let name = name.filter(|name| !name.is_empty()).ok_or_else(|| {
            CommandFailure::usage("the cluster needs an ID").next("add --name ID")
        })?;
        let named =
            ImportNames { network: args.network.clone(), trust_domain: args.trust_domain.clone() };
        found.push((name.to_owned(), bytes.to_vec(), named));
    }
    for secret in secrets {
        found.extend(of_secret(args, secret)?);
    }
    if let (Some(name), false) = (&args.name, found.is_empty()) {
        let [(_, bytes, named)] = <[_; 1]>::try_from(found).map_err(|_| {
            CommandFailure::usage("--name can't be used for a file with several clusters")
        })?;
        found = vec![(name.clone(), bytes, named)];
    }
    let mut members = BTreeMap::new();
    for (key, bytes, named) in found {
        let (id, member) = member(args, &key, &bytes, &named)?;
        if members.insert(id, member).is_some() {
            return Err(CommandFailure::failed(format!(
                "{} contains cluster {key} twice",
                args.file
            )));
        }
    }
    Ok(members)
}

/// Splits a YAML file into its documents, unchanged.
fn documents(text: &str) -> Vec<&str> {
    let mut documents = Vec::new();
    let (mut start, mut at) = (0, 0);
    for line in text.split_inclusive('\n') {
        let bare = line.trim_end();
        if bare == "---" || bare.starts_with("--- ") {
            documents.push(&text[start..at]);
            start = at + line.len();
        }
        at += line.len();
    }
    documents.push(&text[start..]);
    documents
}

/// Returns whether a document contains only comments.
fn is_blank(text: &str) -> bool {
    text.lines().map(str::trim).all(|line| line.is_empty() || line.starts_with('#'))
}

/// Returns the content of one Secret by key. Its annotations are used if no flag overrides them.
fn of_secret(
    args: &ImportArgs,
    secret: &Value,
) -> Result<Vec<(String, Vec<u8>, ImportNames)>, CommandFailure> {
    let mut data: BTreeMap<String, Vec<u8>> = BTreeMap::new();
    for (key, value) in secret["data"].as_object().into_iter().flatten() {
        let decoded = BASE64.decode(value.as_str().unwrap_or_default());
        let decoded = decoded
            .map_err(|_| CommandFailure::failed(format!("data of key {key:?} is not base64")))?;
        data.insert(key.clone(), decoded);
    }
    for (key, value) in secret["stringData"].as_object().into_iter().flatten() {
        data.insert(key.clone(), value.as_str().unwrap_or_default().into());
    }
    if data.is_empty() {
        return Err(CommandFailure::failed(format!(
            "the Secret in {} contains no cluster",
            args.file
        )));
    }
    let annotation = |name: &str| {
        let text = secret["metadata"]["annotations"][name].as_str();
        text.filter(|text| !text.is_empty()).map(str::to_owned)
    };
    let named = || ImportNames {
        network: args.network.clone().or_else(|| annotation(NETWORK_ANNOTATION)),
        trust_domain: args.trust_domain.clone().or_else(|| annotation(TRUST_DOMAIN_ANNOTATION)),
    };
    check_network(named().network.as_deref())?;
    check_trust_domain(named().trust_domain.as_deref())?;
    Ok(data.into_iter().map(|(key, bytes)| (key, bytes, named())).collect())
}

fn member(
    args: &ImportArgs,
    key: &str,
    bytes: &[u8],
    named: &ImportNames,
) -> Result<(ClusterId, MemberSpec), CommandFailure> {
    let id = cluster_id(key)?;
    let loopback = loopback_for(args.api_server.as_ref());
    let mut access = kubeconfig::parse(bytes, None, loopback)
        .map_err(|refusal| refused(&format!("{}, cluster {id}", args.file), &refusal, Some(&id)))?;
    if let Some(server) = &args.api_server {
        access.server = server.clone();
        let written = kubeconfig::write(&id, &access);
        kubeconfig::parse(written.as_bytes(), None, loopback).map_err(|refusal| {
            refused(&format!("--api-server {server}"), &refusal, Some(&id)).exit(Exit::Usage)
        })?;
    }
    let trust_domain = named.trust_domain.as_deref().map(Arc::from);
    let network = network(named.network.as_deref());
    let (mode, uid, reach) = (Mode::Normal, None, MemberReach::default());
    Ok((id, MemberSpec { access, network, mode, uid, trust_domain, reach, set_name: None }))
}
