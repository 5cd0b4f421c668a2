//! `strait cluster add`: from a context of the operator's kubeconfig to a member cluster.
//!
//! Looks first (both clusters answer, they are two, the ID is free, the address makes sense), says what it
//! will make and which rights it takes, then makes it: a reader in the remote cluster, a token that ends,
//! and a Secret in the config cluster. What fails half-way can be run again: the reader is applied, not
//! created, and the Secret comes last.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use clap::{Args, ValueEnum};
use http::Uri;
use serde_json::{Value, json};

use super::api::{ClusterApi, full_name, holds};
use super::follow::{Goal, Wait};
use super::manifests::{self, More, Rbac};
use super::preview::preview;
use super::webhook::WebhookFlags;
use super::{ClusterChange, done};
use crate::apiserver::{Access, Loopback};
use crate::cli::duration::HumanDuration;
use crate::cli::failure::{CommandFailure, CommandResult, Exit};
use crate::cli::output::{self, text};
use crate::clusters::kubeconfig::{self, KubeconfigRefusal};
use crate::clusters::secret::{self, MemberSpec};
use crate::codes;
use crate::model::{ClusterId, Mode, NetworkId, is_trust_domain};

/// `strait cluster add`.
#[derive(Debug, Args)]
pub(crate) struct AddArgs {
    /// Context of the cluster to add
    #[arg(value_name = "CONTEXT")]
    remote: String,
    /// Its cluster ID [default: the context's name]
    #[arg(long, value_name = "ID")]
    name: Option<String>,
    /// Its network; fixes it, whatever labels say
    #[arg(long, value_name = "NET")]
    network: Option<String>,
    /// Trust domain of its workloads' certificates [default: the mesh's]
    #[arg(long, value_name = "TD")]
    trust_domain: Option<String>,
    /// Let the control plane read that trust domain from the cluster's own mesh ConfigMap
    #[arg(long, conflicts_with = "trust_domain")]
    own_mesh_config: bool,
    /// URL by which the control plane reaches its API server [default: as in the kubeconfig]
    #[arg(long, value_name = "URL")]
    api_server: Option<Uri>,
    /// Name in the API server's certificate, where the URL has another
    #[arg(long, value_name = "NAME")]
    tls_server_name: Option<String>,
    /// What the control plane may read in it
    #[arg(long, value_enum, default_value = "full")]
    rbac: Rbac,
    /// How long the token is valid
    #[arg(long, value_name = "D", default_value = "720h")]
    token_ttl: HumanDuration,
    /// Let the reader ask for its next token itself, and the control plane renew it in good time
    #[arg(long)]
    self_renew: bool,
    /// Let the control plane write the roots that workloads are to believe, in each namespace
    #[arg(long)]
    roots: bool,
    #[command(flatten)]
    webhook: WebhookFlags,
    #[command(flatten)]
    change: ClusterChange,
    #[command(flatten)]
    wait: Wait,
    /// Print the manifests, for both clusters, instead of applying them
    #[arg(long, short, value_enum)]
    output: Option<Manifests>,
}

/// How manifests are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Manifests {
    /// As YAML
    Yaml,
}

/// Runs `strait cluster add`.
pub(crate) async fn run(args: &AddArgs) -> CommandResult {
    let id = cluster_id(args.name.as_deref().unwrap_or(&args.remote))?;
    check_network(args.network.as_deref())?;
    check_trust_domain(args.trust_domain.as_deref())?;
    check_ttl(args.token_ttl)?;
    args.wait.check()?;
    let hub = args.change.hub.open().await?;
    let remote = args.change.hub.remote(&args.remote).await?;
    // Before anything is asked of anybody: an address that can't work.
    let access = |token: String| {
        let access =
            remote.access(token, args.api_server.as_ref(), args.tls_server_name.as_deref())?;
        checked(&id, &access).map_err(|failure| match &args.api_server {
            Some(_) => failure.exit(Exit::Usage),
            None => failure,
        })?;
        Ok::<_, CommandFailure>(MemberSpec {
            access,
            network: network(args.network.as_deref()),
            mode: Mode::Normal,
            uid: None,
            trust_domain: args.trust_domain.as_deref().map(Arc::from),
        })
    };
    let server = access("not-yet-known".into())?.access.server;
    let (hub_uid, remote_uid) = (hub.uid().await?, remote.uid().await?);
    if hub_uid == remote_uid {
        return Err(of_config_cluster(&format!("context {}", remote.context), &hub, &hub_uid));
    }
    let ns = &args.change.hub.namespace;
    if hub.get(&format!("/api/v1/namespaces/{ns}")).await?.is_none() {
        return Err(hub.no_namespace(ns));
    }
    // What is printed may be to change what a member's API server is told of the webhook.
    if args.output.is_none() || !args.webhook.is_asked() {
        free(&hub, ns, &id, &server).await?;
    }
    let version = remote.get("/version").await?.unwrap_or_default();
    let webhook = args.webhook.manifests(&hub, ns, &id, args.network.as_deref()).await?;
    let made = || manifests::reader(args.rbac, args.more()).into_iter().chain(webhook.clone());

    if args.output.is_some() {
        return print_manifests(args, &id, &remote, made(), access).await;
    }
    let resources: Vec<&str> = args.rbac.resources().iter().map(|(_, name)| *name).collect();
    let mut plan = output::table(
        &[],
        vec![
            vec![
                "Config cluster".into(),
                hub.context.clone().into(),
                hub.server().to_string().into(),
                format!("kube-system {hub_uid}").into(),
            ],
            vec![
                "Remote cluster".into(),
                remote.context.clone().into(),
                remote.server().to_string().into(),
                format!("kube-system {remote_uid}, {}", text(&version["gitVersion"])).into(),
            ],
        ],
        &output::OutputStyle::of_stdout(),
    );
    plan += &format!(
        "Will make in {} (rbac level {})\n  namespace strait-reader, serviceaccount strait-reader\n  \
         clusterrole strait-reader: get, list, watch {}; no secrets, {}\n",
        remote.context,
        args.rbac.as_str(),
        resources.join(", "),
        if args.roots { "no writes of other objects than these" } else { "no writes of objects" },
    );
    match args.rbac {
        Rbac::Core => {
            plan += "  ! without pods and nodes no identity is known: nothing of it can cross networks,\n    \
                     and localities come from its slices only; no pod of it can call by its token\n";
        }
        Rbac::Full => {
            plan += "  and create of tokenreviews, and get of the keys by which tokens are signed:\n    \
                     to know pods by their tokens\n";
        }
    }
    if args.roots {
        plan += "  create of ConfigMaps, and get, list, watch, update of istio-ca-root-cert and strait-ca-root-cert:\n    \
                 the roots that its workloads are to believe\n";
    }
    if args.self_renew {
        plan += "  role strait-reader: create of serviceaccounts/token, for strait-reader alone: its next token\n";
    }
    if args.own_mesh_config {
        plan += "  and get of the ConfigMaps strait and istio: its own trust domain\n";
    }
    plan += args.webhook.told();
    plan += &format!(
        "Will make in {}\n  secret {ns}/{}: cluster ID {id}, a token valid {}\n",
        hub.context,
        secret::name_of(&id),
        args.token_ttl
    );
    let told = preview(&remote, &hub, ns, args.network.as_deref(), &args.wait.connect()).await;
    plan += &told;
    if !args.change.confirmed(&plan).await? {
        let finds_problem = told.lines().any(|line| line.trim_start().starts_with('!'));
        return Ok(if finds_problem { Exit::Unhealthy } else { Exit::Fine });
    }
    for manifest in made() {
        remote.apply(&manifest).await?;
    }
    done(&format!("reader made in {}", remote.context));
    let (token, ends) = token(&remote, args.token_ttl).await?;
    check_rights(&remote.with_token(&token)?, args.rbac).await?;
    done(&format!("it reads {}; token valid until {ends}", resources.join(", ")));
    make_secret(&hub, ns, &id, &access(token)?, args.self_renew).await?;
    args.wait.follow(&id, &Goal::Synced).await
}

impl AddArgs {
    fn more(&self) -> More {
        More { own_mesh: self.own_mesh_config, self_renew: self.self_renew, roots: self.roots }
    }
}

/// The refusal of what leads to the config cluster itself.
pub(super) fn of_config_cluster(what: &str, hub: &ClusterApi, uid: &str) -> CommandFailure {
    let fact = format!(
        "{what} leads to the config cluster itself, that of context {} (kube-system {uid}), and it is a member already",
        hub.context
    );
    CommandFailure::coded(&codes::SAME_CLUSTER_TWICE, fact)
        .next("name another cluster, or the context of the config cluster by --context")
}

/// A cluster ID, or what is wrong with it.
pub(super) fn cluster_id(text: &str) -> Result<ClusterId, CommandFailure> {
    ClusterId::parse(text).map_err(|error| {
        CommandFailure::usage(format!("{text:?} can't be a cluster ID: {error}"))
            .code(codes::CLUSTER_ID_INVALID.id)
            .next("choose one by --name; it is the CLUSTER_ID of the cluster's proxies")
    })
}

/// Kubernetes makes no tokens that live shorter.
pub(super) fn check_ttl(ttl: HumanDuration) -> Result<(), CommandFailure> {
    if ttl.0 >= Duration::from_secs(600) {
        return Ok(());
    }
    Err(CommandFailure::usage(format!(
        "--token-ttl {ttl} is less than 10m, the least an API server gives"
    )))
}

/// The refusal of what names no network.
pub(super) fn check_trust_domain(name: Option<&str>) -> Result<(), CommandFailure> {
    match name.filter(|name| !is_trust_domain(name)) {
        None => Ok(()),
        Some(name) => Err(CommandFailure::usage(format!(
            "--trust-domain {name:?} is not a trust domain: at most 255 of a-z, 0-9, '.', '-' and '_'"
        ))),
    }
}

pub(crate) fn check_network(name: Option<&str>) -> Result<(), CommandFailure> {
    let edge = |byte: Option<u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric());
    let good = name.is_none_or(|name| {
        name.len() <= 63
            && edge(name.bytes().next())
            && edge(name.bytes().last())
            && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
    });
    if good {
        Ok(())
    } else {
        Err(CommandFailure::usage(format!(
            "--network {:?} is not a network's name: at most 63 letters, digits, '-', '_' and '.'",
            name.unwrap_or_default()
        )))
    }
}

pub(super) fn network(name: Option<&str>) -> Option<NetworkId> {
    name.map(NetworkId::from)
}

/// The failure that a refused kubeconfig is, of a cluster whose ID is known or not.
pub(super) fn refused(
    what: &str,
    refusal: &KubeconfigRefusal,
    id: Option<&ClusterId>,
) -> CommandFailure {
    let field =
        if refusal.field.is_empty() { String::new() } else { format!("{} ", refusal.field) };
    let fact = output::clean(&format!("{field}{}", refusal.fact));
    let failure =
        CommandFailure::coded(refusal.code, format!("{what}: {fact}; nothing was changed"))
            .next(refusal.code.next_for(id.map(ClusterId::as_str)));
    if *refusal.code == codes::LOOPBACK_SERVER {
        return failure.next(
            "name the URL that the control plane can use: --api-server https://HOST:PORT\n\
             (the same one again, if the control plane runs on this machine)",
        );
    }
    failure
}

/// Whether the control plane would take it: asked of the function that will.
fn checked(id: &ClusterId, access: &Access) -> Result<(), CommandFailure> {
    let written = kubeconfig::write(id, access);
    kubeconfig::parse(written.as_bytes(), None, access.loopback)
        .map(|_| ())
        .map_err(|refusal| refused(&format!("cluster {id}"), &refusal, Some(id)))
}

/// Refuses an ID that a Secret holds already, and an API server that is a member's.
pub(super) async fn free(
    hub: &ClusterApi,
    namespace: &str,
    id: &ClusterId,
    server: &Uri,
) -> Result<(), CommandFailure> {
    let secrets = hub.member_secrets(namespace).await?;
    if let Some(secret) = secrets.iter().find(|secret| holds(secret, id.as_str())) {
        return Err(CommandFailure::coded(
            &codes::ID_TAKEN,
            format!("cluster ID {id} is held by secret {}; nothing was changed", full_name(secret)),
        )
        .next(format!(
            "for a new token: strait cluster rotate {id}\nfor another cluster: --name ID"
        )));
    }
    for secret in &secrets {
        let entries = secret["data"].as_object().into_iter().flatten();
        let same = |value: &Value| {
            let text = BASE64.decode(value.as_str().unwrap_or_default()).unwrap_or_default();
            let read = kubeconfig::parse(&text, None, Loopback::Allowed);
            read.is_ok_and(|access| access.server == *server)
        };
        if let Some((other, _)) = entries.into_iter().find(|(_, value)| same(value)) {
            return Err(CommandFailure::coded(
                &codes::SAME_CLUSTER_TWICE,
                format!(
                    "{server} is the API server of member {other} already (secret {}); nothing was changed",
                    full_name(secret)
                ),
            )
            .next(format!(
                "for a new token: strait cluster rotate {other}\nto rename it: strait cluster remove {other}, then add it"
            )));
        }
    }
    Ok(())
}

async fn token(
    remote: &ClusterApi,
    ttl: HumanDuration,
) -> Result<(String, String), CommandFailure> {
    remote.reader_token(ttl.0.as_secs()).await?.ok_or_else(|| {
        CommandFailure::failed(format!(
            "{} has no serviceaccount strait-reader/strait-reader",
            remote.context
        ))
        .next(format!("strait cluster add {}", remote.context))
    })
}

/// Reads one object of each kind with the new token. Roles take a moment to be known.
async fn check_rights(reader: &ClusterApi, rbac: Rbac) -> Result<(), CommandFailure> {
    for (group, resource) in rbac.resources() {
        let root = if group.is_empty() { "/api/v1".into() } else { format!("/apis/{group}/v1") };
        let path = format!("{root}/{resource}?limit=1");
        let mut tries = 0;
        loop {
            match reader.get(&path).await {
                Err(failure) if failure.exit == Exit::NoRights && tries < 20 => {
                    tries += 1;
                    tokio::time::sleep(Duration::from_millis(500)).await;
                }
                answer => break answer.map(|_| ())?,
            }
        }
    }
    Ok(())
}

/// Writes the Secret that makes `id` a member, and says so.
pub(super) async fn make_secret(
    hub: &ClusterApi,
    namespace: &str,
    id: &ClusterId,
    member: &MemberSpec,
    self_renew: bool,
) -> Result<(), CommandFailure> {
    let written = secret::to_yaml(namespace, id, member, self_renew);
    let mut manifest: Value = serde_saphyr::from_str(&written)
        .map_err(|_| CommandFailure::failed("the Secret that was written can't be read back"))?;
    // Field ownership is kept of `data` only.
    let entries = manifest["stringData"].take();
    let encoded = entries.as_object().into_iter().flatten().map(|(key, value)| {
        (key.clone(), json!(BASE64.encode(value.as_str().unwrap_or_default())))
    });
    manifest["data"] = Value::Object(encoded.collect());
    if let Some(fields) = manifest.as_object_mut() {
        fields.remove("stringData");
    }
    hub.apply(&manifest).await?;
    done(&format!("secret {namespace}/{} made in {}", secret::name_of(id), hub.context));
    Ok(())
}

async fn print_manifests(
    args: &AddArgs,
    id: &ClusterId,
    remote: &ClusterApi,
    made: impl Iterator<Item = Value>,
    access: impl Fn(String) -> Result<MemberSpec, CommandFailure>,
) -> CommandResult {
    let mut out = format!("# In {}:\n", remote.context);
    for manifest in made {
        out += &format!("{}---\n", output::yaml(&manifest));
    }
    match remote.reader_token(args.token_ttl.0.as_secs()).await? {
        Some((token, ends)) => {
            out += &format!("# In the config cluster. The token is valid until {ends}.\n");
            out +=
                &secret::to_yaml(&args.change.hub.namespace, id, &access(token)?, args.self_renew);
        }
        None => {
            out += "# In the config cluster: a Secret, once the above is applied and a token can be made.\n\
                    # Run the same command again to have it printed.\n";
        }
    }
    output::print(&out)?;
    Ok(Exit::Fine)
}

/// Loopback addresses are believed where the operator has named the URL.
pub(super) fn loopback_for(server: Option<&Uri>) -> Loopback {
    if server.is_some() { Loopback::Allowed } else { Loopback::Refused }
}
