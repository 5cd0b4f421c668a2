//! `strait cluster import`: members from a kubeconfig, or from a Secret made for Istio.
//!
//! Judged by the very function that will judge the Secret later, so what is taken here is taken there.

use std::collections::BTreeMap;
use std::io::Read;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use clap::Args;
use http::Uri;
use serde_json::Value;

use super::Change;
use super::add::{
    Manifests, Wait, check_network, check_trust_domain, cluster_id, free, loopback_for,
    make_secret, network, of_config_cluster, refused,
};
use crate::apiserver::Loopback;
use crate::cli::failure::{Exit, Failure, Outcome};
use crate::cli::output;
use crate::clusters::kubeconfig;
use crate::clusters::secret::{self, Member, NETWORK_ANNOTATION, TRUST_DOMAIN_ANNOTATION};
use crate::model::{ClusterId, Mode};

/// `strait cluster import`.
#[derive(Debug, Args)]
pub(crate) struct ImportArgs {
    /// A kubeconfig, or the manifest of a Secret with kubeconfigs; '-' for standard input
    #[arg(value_name = "FILE|-")]
    file: String,
    /// The cluster ID [default: the Secret's key, or the kubeconfig's current context]
    #[arg(long, value_name = "ID")]
    name: Option<String>,
    /// Its network; fixes it, whatever labels say
    #[arg(long, value_name = "NET")]
    network: Option<String>,
    /// Trust domain of its workloads' certificates [default: as the Secret says, else the mesh's]
    #[arg(long, value_name = "TD")]
    trust_domain: Option<String>,
    /// URL of its API server [default: as in the kubeconfig]
    #[arg(long, value_name = "URL")]
    server: Option<Uri>,
    #[command(flatten)]
    change: Change,
    #[command(flatten)]
    wait: Wait,
    /// Print the Secrets instead of applying them
    #[arg(long, short, value_enum)]
    output: Option<Manifests>,
}

/// What the flags, else the annotations, say of the clusters.
struct Named {
    network: Option<String>,
    trust_domain: Option<String>,
}

/// Runs `strait cluster import`.
pub(crate) async fn run(args: &ImportArgs) -> Outcome {
    check_network(args.network.as_deref())?;
    check_trust_domain(args.trust_domain.as_deref())?;
    let members = read(args, &bytes(&args.file)?)?;
    let ns = &args.change.hub.namespace;
    if args.output.is_some() {
        let secrets: Vec<String> =
            members.iter().map(|(id, member)| secret::to_yaml(ns, id, member)).collect();
        output::print(&secrets.join("---\n"))?;
        return Ok(Exit::Fine);
    }
    let line = |(id, member): (&ClusterId, &Member)| {
        format!(
            "Will make secret {ns}/{}: cluster ID {id}, {}\n",
            secret::name_of(id),
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
            // One that can't be reached from here may be a member nonetheless.
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
        make_secret(&hub, ns, id, member).await?;
    }
    let mut end = Exit::Fine;
    for id in members.keys() {
        if args.wait.follow(id).await? != Exit::Fine {
            end = Exit::Unhealthy;
        }
    }
    Ok(end)
}

fn bytes(file: &str) -> Result<Vec<u8>, Failure> {
    // One byte more than is taken of a Secret as a whole, so that a larger one is seen to be.
    let limit = 4 * kubeconfig::BYTES_MAX as u64 + 1;
    let mut bytes = Vec::new();
    let read = match file {
        "-" => std::io::stdin().lock().take(limit).read_to_end(&mut bytes),
        file => std::fs::File::open(file).and_then(|open| open.take(limit).read_to_end(&mut bytes)),
    };
    read.map_err(|error| {
        let absent = error.kind() == std::io::ErrorKind::NotFound;
        let exit = if absent { Exit::Usage } else { Exit::Failed };
        Failure::new(exit, format!("{file} can't be read: {error}"))
            .next("name a kubeconfig, or the manifest of a Secret with kubeconfigs")
    })?;
    Ok(bytes)
}

/// The clusters of a file, all of them usable.
fn read(args: &ImportArgs, bytes: &[u8]) -> Result<BTreeMap<ClusterId, Member>, Failure> {
    let text = std::str::from_utf8(bytes).unwrap_or_default();
    // Only to tell the two apart; what is no YAML gets its refusal from the strict reader below.
    let tree: Value = serde_saphyr::from_str(text).unwrap_or_default();
    let mut found: BTreeMap<String, Vec<u8>> = BTreeMap::new();
    let mut named =
        Named { network: args.network.clone(), trust_domain: args.trust_domain.clone() };
    if tree["kind"] == "Secret" {
        for (key, value) in tree["data"].as_object().into_iter().flatten() {
            let decoded = BASE64.decode(value.as_str().unwrap_or_default());
            found.insert(
                key.clone(),
                decoded
                    .map_err(|_| Failure::failed(format!("data of key {key:?} is not base64")))?,
            );
        }
        for (key, value) in tree["stringData"].as_object().into_iter().flatten() {
            found.insert(key.clone(), value.as_str().unwrap_or_default().into());
        }
        let annotation = |name: &str| {
            let text = tree["metadata"]["annotations"][name].as_str();
            text.filter(|text| !text.is_empty()).map(str::to_owned)
        };
        named.network = named.network.or_else(|| annotation(NETWORK_ANNOTATION));
        named.trust_domain = named.trust_domain.or_else(|| annotation(TRUST_DOMAIN_ANNOTATION));
        check_network(named.network.as_deref())?;
        check_trust_domain(named.trust_domain.as_deref())?;
        if found.is_empty() {
            return Err(Failure::failed(format!("the Secret in {} holds no cluster", args.file)));
        }
        if let Some(name) = &args.name {
            let [only] = found.into_values().collect::<Vec<_>>().try_into().map_err(|_| {
                Failure::usage("--name can't name the clusters of a Secret with several")
            })?;
            found = BTreeMap::from([(name.clone(), only)]);
        }
    } else {
        let name = args.name.as_deref().or(tree["current-context"].as_str());
        let name = name
            .filter(|name| !name.is_empty())
            .ok_or_else(|| Failure::usage("the cluster needs an ID").next("add --name ID"));
        // A kubeconfig that is refused anyway is told its own fault first.
        if let Err(refusal) = kubeconfig::parse(bytes, None, Loopback::Allowed) {
            return Err(refused(&args.file, &refusal));
        }
        found.insert(name?.to_owned(), bytes.to_vec());
    }
    found.into_iter().map(|(key, bytes)| member(args, &key, &bytes, &named)).collect()
}

fn member(
    args: &ImportArgs,
    key: &str,
    bytes: &[u8],
    named: &Named,
) -> Result<(ClusterId, Member), Failure> {
    let id = cluster_id(key)?;
    let loopback = loopback_for(args.server.as_ref());
    let mut access = kubeconfig::parse(bytes, None, loopback)
        .map_err(|refusal| refused(&format!("{}, cluster {id}", args.file), &refusal))?;
    if let Some(server) = &args.server {
        access.server = server.clone();
        let written = kubeconfig::write(&id, &access);
        kubeconfig::parse(written.as_bytes(), None, loopback).map_err(|refusal| {
            refused(&format!("--server {server}"), &refusal).exit(Exit::Usage)
        })?;
    }
    let trust_domain = named.trust_domain.as_deref().map(Arc::from);
    let network = network(named.network.as_deref());
    Ok((id, Member { access, network, mode: Mode::Normal, uid: None, trust_domain }))
}
