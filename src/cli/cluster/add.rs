//! `strait cluster add`: turns a context of the operator's kubeconfig into a member cluster.
//!
//! It first checks that both clusters respond, that they are different, that the ID is free and
//! that the address is usable. It then prints the objects and rights that it will create, and
//! creates them: a reader in the remote cluster, a token that expires, and a Secret in the config
//! cluster. The command can be repeated after a failure: the reader is applied, not created, and
//! the Secret comes last.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use clap::{Args, ValueEnum};
use http::Uri;
use serde_json::{Value, json};

use super::api::{ClusterApi, Front, kubeconfigs};
use super::follow::{Goal, Wait};
use super::gateway::{GatewayFlags, GatewayPlan};
use super::manifests::{self, More, Rbac, ReaderLevel};
use super::membership::{check_limits, free};
use super::preview::preview;
use super::webhook::WebhookFlags;
use super::{ClusterChange, done, istio_service, rights};
use crate::cli::failure::{CommandFailure, CommandResult, Exit};
use crate::cli::output::{self, OutputStyle, text};
use strait_base::codes;
use strait_base::duration::HumanDuration;
use strait_bootstrap::Discovery;
use strait_kube_client::{Access, Loopback};
use strait_model::{
    ClusterId, ImportMode, Mode, NETWORK_LABEL, NetworkId, ReadNamespaces, is_trust_domain,
};
use strait_sources::clusters::formats::MemberReach;
use strait_sources::clusters::kubeconfig::{self, KubeconfigRefusal};
use strait_sources::clusters::secret::{self, MemberSpec};

/// `strait cluster add`.
#[derive(Debug, Clone, Args)]
pub(crate) struct AddArgs {
    /// Context of the cluster to add; or of the config cluster, to add a gateway or injection to it
    #[arg(value_name = "CONTEXT", required_unless_present_any = ["from", "rights"])]
    pub(super) remote: Option<String>,
    /// Add all clusters of this YAML file: a list of entries with context and, if they differ from
    /// the flags, name, network, trustDomain, apiServer, tlsServerName, discovery, injectAt,
    /// istioService
    #[arg(long, value_name = "FILE", conflicts_with_all = ["remote", "name", "output"])]
    pub(super) from: Option<PathBuf>,
    /// List the rights that the control plane gets and the features that need each, then exit
    #[arg(long)]
    rights: bool,
    /// ID of the cluster [default: the context's name]
    #[arg(long, value_name = "ID")]
    pub(super) name: Option<String>,
    /// Network of the cluster; overrides labels
    #[arg(long, value_name = "NET")]
    pub(super) network: Option<String>,
    /// Trust domain in the certificates of the cluster's workloads [default: the mesh's]
    #[arg(long, value_name = "TD")]
    pub(super) trust_domain: Option<String>,
    /// Let the control plane read that trust domain from the cluster's own mesh ConfigMap
    #[arg(long, conflicts_with = "trust_domain")]
    own_mesh_config: bool,
    /// Let the control plane read the cluster's traffic objects, for trafficFrom of the policy file
    #[arg(long)]
    own_traffic: bool,
    /// URL at which the control plane reaches the cluster's API server [default: as in the
    /// kubeconfig]
    #[arg(long, value_name = "URL")]
    pub(super) api_server: Option<Uri>,
    /// Name in the API server's certificate, if it differs from the URL
    #[arg(long, value_name = "NAME")]
    pub(super) tls_server_name: Option<String>,
    /// Kinds of objects that the control plane may read in the cluster: 1 for services,
    /// EndpointSlices and pods; 2 also for nodes and namespaces; 3 also for gateways, exports and
    /// imports of services, and WorkloadEntries [default: 2, with --mcs-imports 3]
    #[arg(long, value_name = "1|2|3", value_parser = clap::value_parser!(u8).range(1..=3), conflicts_with = "rbac")]
    level: Option<u8>,
    /// Let the control plane verify the tokens of pods; implied by --gateway and --inject
    #[arg(long)]
    tokens: bool,
    /// Deprecated, use --level and --tokens
    #[arg(long, value_enum)]
    rbac: Option<Rbac>,
    /// Let the control plane read only these namespaces, at most 32, by Roles in them
    #[arg(long, value_name = "NS,…", value_parser = namespaces, conflicts_with_all = ["tokens", "own_mesh_config", "own_traffic", "roots", "gateway_secrets", "mcs_imports", "gateway", "inject"])]
    namespaces: Option<ReadNamespaces>,
    /// Lifetime of the token
    #[arg(long, value_name = "D", default_value = "720h")]
    token_ttl: HumanDuration,
    /// Let the reader request its next token itself, so that the control plane renews it before it
    /// expires
    #[arg(long)]
    self_renew: bool,
    /// Let the control plane write the root certificates for workloads into each namespace; implied
    /// by --gateway and --inject
    #[arg(long)]
    roots: bool,
    /// Let the control plane read the Secrets of a namespace, for the gateways that run in it;
    /// repeatable
    #[arg(long, value_name = "NS", value_delimiter = ',')]
    gateway_secrets: Vec<String>,
    /// Let the control plane write the objects of exported services: names (ServiceImports and
    /// derived Services) or full (also EndpointSlices)
    #[arg(long, value_name = "MODE", num_args = 0..=1, require_equals = true, default_missing_value = "names", value_parser = ImportMode::named)]
    mcs_imports: Option<ImportMode>,
    #[command(flatten)]
    pub(super) gateway: GatewayFlags,
    /// Address at which the cluster's gateway reaches the control plane: HOST:PORT, several
    /// separated by commas [default: the address of the config cluster's Service strait]
    #[arg(long, value_name = "HOST:PORT", requires = "gateway", value_parser = discovery)]
    pub(super) discovery: Option<String>,
    #[command(flatten)]
    pub(super) webhook: WebhookFlags,
    /// Create a Service istiod in the cluster that routes to the control plane, for Istio's agents
    #[arg(long, value_name = "ADDRESS", value_parser = istio_service::address)]
    pub(super) istio_service: Option<String>,
    #[command(flatten)]
    pub(super) change: ClusterChange,
    #[command(flatten)]
    pub(super) wait: Wait,
    /// Print the manifests for both clusters instead of applying them
    #[arg(long, short, value_enum)]
    output: Option<Manifests>,
}

/// Placeholder for a token that does not exist yet.
const NO_TOKEN: &str = "made-when-it-is-added";

/// Format of printed manifests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Manifests {
    /// As YAML
    Yaml,
}

/// Parses control plane addresses that are separated by commas.
///
/// # Errors
/// If an address is not `HOST:PORT`.
pub(super) fn discovery(text: &str) -> Result<String, String> {
    for one in text.split(',') {
        one.parse::<Discovery>().map_err(|error| format!("{one:?}: {error}"))?;
    }
    Ok(text.to_owned())
}

/// Parses namespaces that are separated by commas.
///
/// # Errors
/// If a name is invalid or repeated, or if there are too many.
fn namespaces(text: &str) -> Result<ReadNamespaces, String> {
    ReadNamespaces::of(text.split(',').map(str::trim))
}

/// Runs `strait cluster add` for one cluster.
pub(crate) async fn run(args: &AddArgs) -> CommandResult {
    args.check()?;
    if args.rights {
        let rights = rights::rights(args.level(), &args.more(), args.webhook.is_requested());
        output::print(&rights::table(&rights, &OutputStyle::of_stdout()))?;
        return Ok(Exit::Fine);
    }
    let hub = args.change.hub.open().await?;
    let joining = prepare(args, &hub).await?;
    if args.output.is_some() {
        return joining.print().await;
    }
    if !args.change.confirmed(&joining.plan).await? {
        output::print(&joining.manifests()?)?;
        return Ok(joining.dry_exit());
    }
    joining.carry_out().await?;
    joining.follow().await
}

/// A cluster that can be added: the objects to create, and the plan for its operator.
pub(super) struct Joining<'a> {
    args: AddArgs,
    /// ID of the cluster.
    pub(super) id: ClusterId,
    hub: &'a ClusterApi,
    remote: ClusterApi,
    /// Objects to create in the cluster.
    objects: Vec<Value>,
    /// Whether the cluster is already a member, and therefore gets no Secret. The config cluster
    /// always is.
    is_member: bool,
    /// Whether the preview found a problem that the operator should check first.
    finds_problem: bool,
    /// Text of the plan, for people.
    pub(super) plan: String,
}

/// Checks both clusters and rejects what cannot work. Changes nothing.
pub(super) async fn prepare<'a>(
    args: &AddArgs,
    hub: &'a ClusterApi,
) -> Result<Joining<'a>, CommandFailure> {
    let context = args.remote.as_deref().unwrap_or_default();
    let id = cluster_id(args.name.as_deref().unwrap_or(context))?;
    args.check()?;
    let remote = args.change.hub.remote(context).await?;
    // An unusable address is rejected before any request.
    let server = member(args, &id, &remote, NO_TOKEN.into()).map(|spec| spec.access.server);
    let hub_uid = hub.uid().await?;
    let remote_uid = remote.uid().await;
    let is_hub = remote_uid.as_ref().is_ok_and(|uid| *uid == hub_uid);
    let has_parts = args.has_agents();
    if is_hub && (!has_parts || !args.gateway_secrets.is_empty()) {
        return Err(of_config_cluster(&format!("context {}", remote.context), hub, &hub_uid));
    }
    let (server, remote_uid) = match is_hub {
        true => (remote.server().clone(), hub_uid.clone()),
        false => (server?, remote_uid?),
    };
    let ns = &args.change.hub.namespace;
    if hub.get(&format!("/api/v1/namespaces/{ns}")).await?.is_none() {
        return Err(hub.no_namespace(ns));
    }
    for name in args.namespaces.iter().flat_map(ReadNamespaces::names) {
        if remote.get(&format!("/api/v1/namespaces/{name}")).await?.is_none() {
            let fact = format!("{} has no namespace {name}; nothing was changed", remote.context);
            return Err(CommandFailure::failed(fact).next(format!(
                "correct --namespaces, or create it: kubectl --context {} create namespace {name}",
                remote.context
            )));
        }
    }
    // A gateway, injection or other rights can be added to a member later.
    let is_addition = has_parts || args.names_rights();
    let is_member = is_hub || (is_addition && is_member(args, hub).await?);
    if !is_member {
        free(hub, ns, &id, &server).await?;
    } else if !is_hub && !has_parts {
        let namespaces = args.namespaces.clone().unwrap_or_default();
        check_limits(hub, ns, &id, &namespaces).await?;
    }
    let version = remote.get("/version").await?.unwrap_or_default();
    let network = args.network.as_deref();
    let discovery = discovery_of(args, hub, is_hub).await?;
    let image = args.gateway.image();
    let gateway = network.filter(|_| args.gateway.gateway).map(|network| {
        let (cluster, discovery, image) = (id.as_str(), &*discovery, &*image);
        GatewayPlan { cluster, network, discovery, image }
    });
    let webhook = args.webhook.manifests(hub, ns, (&id, &remote), network).await?;
    let mut objects = match is_hub {
        true => in_network(hub, ns, network).await?,
        false => manifests::reader(args.level(), &args.more()),
    };
    objects.extend(args.istio_service.iter().flat_map(|at| istio_service::manifests(ns, at)));
    objects.extend(gateway.iter().flat_map(GatewayPlan::manifests));
    // Last, because the API server calls the webhook from then on.
    let of_reader = |object: &Value| is_hub && object["kind"] != "MutatingWebhookConfiguration";
    objects.extend(webhook.into_iter().filter(|object| !of_reader(object)));

    let mut plan = clusters(hub, &hub_uid, &remote, &remote_uid, &version);
    plan += &format!("Will create in {}", remote.context);
    plan += &if is_hub {
        let label =
            network.map(|network| format!("  label {NETWORK_LABEL}={network} of namespace {ns}\n"));
        format!(", the config cluster\n{}", label.unwrap_or_default())
    } else {
        let known = if is_member { ", which is already a member" } else { "" };
        format!(
            "{known} ({})\n{}",
            args.level().as_str(),
            rights::plan_text(args.level(), &args.more())
        )
    };
    plan += &gateway.as_ref().map(GatewayPlan::plan_text).unwrap_or_default();
    plan +=
        &args.istio_service.iter().map(|at| istio_service::plan_text(ns, at)).collect::<String>();
    plan += args.webhook.plan_text();
    if !is_hub {
        plan += &unconfigured_address(args, hub).await?;
        plan += &rights::removed_text(&remote, &objects).await?;
    }
    let mut finds_problem = false;
    if !is_member {
        plan += &format!(
            "Will create in {}\n  secret {ns}/{}: cluster ID {id}, a token valid {}\n",
            hub.context,
            secret::secret_name(&id),
            args.token_ttl
        );
        let joining = (id.as_str(), &remote);
        let of_network = (network, gateway.is_some());
        let findings = preview(joining, hub, ns, of_network, &args.wait.connect()).await;
        finds_problem = findings.lines().any(|line| line.trim_start().starts_with('!'));
        plan += &findings;
    }
    Ok(Joining { args: args.clone(), id, hub, remote, objects, is_member, finds_problem, plan })
}

/// Returns the objects that assign the config cluster to a network. It has no member Secret that
/// could do this.
///
/// # Errors
/// If it already belongs to a different network.
async fn in_network(
    hub: &ClusterApi,
    namespace: &str,
    network: Option<&str>,
) -> Result<Vec<Value>, CommandFailure> {
    let Some(network) = network else { return Ok(Vec::new()) };
    let found = hub.get(&format!("/api/v1/namespaces/{namespace}")).await?.unwrap_or_default();
    if let Some(other) = found["metadata"]["labels"][NETWORK_LABEL].as_str()
        && other != network
    {
        let text = format!(
            "namespace {namespace} of {} assigns the cluster to network {other:?}, not {network:?}; nothing was changed",
            hub.context
        );
        return Err(CommandFailure::failed(text).next(format!(
            "set --network {other}, or change the network first: strait network join {} --network {network}",
            hub.context
        )));
    }
    Ok(vec![json!({
        "apiVersion": "v1", "kind": "Namespace",
        "metadata": { "name": namespace, "labels": { NETWORK_LABEL: network } },
    })])
}

/// Returns the control plane addresses for the gateway; empty if no gateway is requested.
async fn discovery_of(
    args: &AddArgs,
    hub: &ClusterApi,
    is_hub: bool,
) -> Result<String, CommandFailure> {
    let ns = &args.change.hub.namespace;
    match &args.discovery {
        Some(reason) => return Ok(reason.clone()),
        None if !args.gateway.gateway => return Ok(String::new()),
        None if is_hub => return Ok(format!("strait.{ns}.svc:15012")),
        None => {}
    }
    let Some(Front { address, .. }) = hub.front(ns).await? else {
        return Err(CommandFailure::failed(format!(
            "service {ns}/strait of {} has no address outside its cluster, so the gateway can't reach the control plane; nothing was changed",
            hub.context
        ))
        .next("wait for its load balancer, or set the address: --discovery HOST:15012"));
    };
    Ok(if address.contains(':') {
        format!("[{address}]:15012")
    } else {
        format!("{address}:15012")
    })
}

/// Returns a warning if the cluster gets an address of the control plane that no operator
/// configured, because the control plane's certificate may lack it.
async fn unconfigured_address(args: &AddArgs, hub: &ClusterApi) -> Result<String, CommandFailure> {
    let is_gateway_given = args.gateway.gateway && args.discovery.is_none();
    let is_webhook_given = args.webhook.is_requested() && args.webhook.inject_at.is_none();
    let ns = &args.change.hub.namespace;
    match hub.front(ns).await? {
        Some(Front { address, is_named: false, .. }) if is_gateway_given || is_webhook_given => {
            Ok(format!(
                "  ? {address} is the load balancer address of service {ns}/strait: the control plane's certificate must contain it;\n    \
                 helm upgrade strait deploy/charts/strait -n {ns} --reuse-values --set service.address={address}\n"
            ))
        }
        _ => Ok(String::new()),
    }
}

/// Returns the first lines of a plan: the two clusters.
fn clusters(
    hub: &ClusterApi,
    hub_uid: &str,
    remote: &ClusterApi,
    remote_uid: &str,
    version: &Value,
) -> String {
    output::table(
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
        &OutputStyle::of_stdout(),
    )
}

/// Returns the specification of a member with this token.
fn member(
    args: &AddArgs,
    id: &ClusterId,
    remote: &ClusterApi,
    token: String,
) -> Result<MemberSpec, CommandFailure> {
    let access = remote.access(token, args.api_server.as_ref(), args.tls_server_name.as_deref())?;
    checked(id, &access).map_err(|failure| match &args.api_server {
        Some(_) => failure.exit(Exit::Usage),
        None => failure,
    })?;
    Ok(MemberSpec {
        access,
        network: network(args.network.as_deref()),
        mode: Mode::Normal,
        uid: None,
        trust_domain: args.trust_domain.as_deref().map(Arc::from),
        reach: MemberReach {
            namespaces: args.namespaces.clone().unwrap_or_default(),
            ..MemberReach::default()
        },
        set_name: None,
    })
}

impl Joining<'_> {
    /// Creates all objects; the Secret comes last.
    pub(super) async fn carry_out(&self) -> Result<(), CommandFailure> {
        let Self { args, id, hub, remote, .. } = self;
        for manifest in &self.objects {
            remote.apply(manifest).await?;
        }
        if self.is_member {
            let rights = if args.has_agents() {
                "the requested gateway and injection"
            } else {
                "the rights"
            };
            done(&format!("applied {rights} in {}", remote.context));
            return Ok(());
        }
        done(&format!("created the reader in {}", remote.context));
        let (token, ends) = token(remote, args.token_ttl).await?;
        let more = args.more();
        check_rights(&remote.with_token(&token)?, args.level(), &more.namespaces).await?;
        let read = rights::read_text(args.level(), &more.namespaces);
        done(&format!("the reader can read {read}; token valid until {ends}"));
        let spec = member(args, id, remote, token)?;
        make_secret(hub, &args.change.hub.namespace, id, &spec, args.self_renew).await
    }

    /// Reports how the control plane processes the change, and prints the next steps.
    pub(super) async fn follow(&self) -> CommandResult {
        let Self { args, id, remote, .. } = self;
        let end = match self.is_member {
            true => Exit::Fine,
            false => args.wait.follow(id, &Goal::Synced).await?,
        };
        let network = args.network.as_deref().filter(|_| args.gateway.gateway);
        if let Some(network) = network {
            eprint_line!(
                "next: strait network get {network} --wait    # until it has a usable gateway"
            );
        }
        if args.webhook.is_requested() {
            eprint_line!(
                "next: kubectl --context {} label namespace NAMESPACE strait.dev/inject=enabled    # and restart its pods",
                remote.context
            );
        }
        Ok(end)
    }

    /// Returns the exit code of a dry run.
    pub(super) fn dry_exit(&self) -> Exit {
        if self.finds_problem { Exit::Unhealthy } else { Exit::Fine }
    }

    /// Returns all manifests for both clusters, with a placeholder instead of the token.
    pub(super) fn manifests(&self) -> Result<String, CommandFailure> {
        let Self { args, id, remote, .. } = self;
        let mut out = self.of_remote();
        if !self.is_member {
            out += &format!("# In {}:\n", self.hub.context);
            let spec = member(args, id, remote, NO_TOKEN.to_owned())?;
            out += &secret::to_yaml(&args.change.hub.namespace, id, &spec, args.self_renew);
        }
        Ok(out)
    }

    fn of_remote(&self) -> String {
        let mut out = format!("# In {}:\n", self.remote.context);
        for manifest in &self.objects {
            out += &format!("{}---\n", output::yaml(manifest));
        }
        out
    }

    async fn print(&self) -> CommandResult {
        let Self { args, id, remote, .. } = self;
        let mut out = self.of_remote();
        let made = match self.is_member {
            true => return output::print(&out).map(|()| Exit::Fine),
            false => remote.reader_token(args.token_ttl.0.as_secs()).await?,
        };
        match made {
            Some((token, ends)) => {
                out += &format!("# In the config cluster. The token is valid until {ends}.\n");
                let spec = member(args, id, remote, token)?;
                out += &secret::to_yaml(&args.change.hub.namespace, id, &spec, args.self_renew);
            }
            None => {
                out += "# In the config cluster: a Secret, after the manifests above are applied and a token can be created.\n\
                        # Run the same command again to print it.\n";
            }
        }
        output::print(&out)?;
        Ok(Exit::Fine)
    }
}

impl AddArgs {
    fn level(&self) -> ReaderLevel {
        match (self.level, self.rbac) {
            (Some(1), _) => ReaderLevel::Endpoints,
            (Some(3..), _) => ReaderLevel::Kinds,
            (None, None) if self.mcs_imports.is_some() => ReaderLevel::Kinds,
            (None, Some(Rbac::Core)) => ReaderLevel::Core,
            _ => ReaderLevel::Places,
        }
    }

    /// Returns whether a flag names rights, which can be changed for an existing member too.
    fn names_rights(&self) -> bool {
        self.level.is_some()
            || self.rbac.is_some()
            || self.tokens
            || self.own_mesh_config
            || self.own_traffic
            || self.roots
            || !self.gateway_secrets.is_empty()
            || self.mcs_imports.is_some()
            || self.namespaces.is_some()
    }

    fn more(&self) -> More {
        More {
            own_mesh: self.own_mesh_config,
            own_traffic: self.own_traffic,
            // Injected pods and gateways authenticate with tokens, and need the root certificates
            // when they start.
            tokens: self.tokens || self.rbac == Some(Rbac::Full) || self.has_agents(),
            self_renew: self.self_renew,
            roots: self.roots || self.has_agents(),
            gateway_secrets: self.gateway_secrets.clone(),
            imports: self.mcs_imports.unwrap_or_default(),
            namespaces: self.namespaces.clone().unwrap_or_default(),
        }
    }

    /// Returns whether the command prepares the cluster for pods with agents.
    fn has_agents(&self) -> bool {
        self.gateway.gateway || self.webhook.is_requested()
    }

    /// Rejects invalid combinations of flags, before any request.
    pub(super) fn check(&self) -> Result<(), CommandFailure> {
        if self.mcs_imports.is_some() && !self.level().has("serviceexports") {
            let fact = "--mcs-imports needs the right to read exports of services";
            return Err(CommandFailure::usage(fact).next("use --level 3"));
        }
        check_network(self.network.as_deref())?;
        check_trust_domain(self.trust_domain.as_deref())?;
        check_ttl(self.token_ttl)?;
        self.wait.check()?;
        if self.gateway.gateway && self.network.is_none() && self.from.is_none() && !self.rights {
            return Err(CommandFailure::usage("--gateway requires the name of its network")
                .next("add --network NET"));
        }
        Ok(())
    }
}

/// Returns the error for an address of the config cluster itself.
pub(super) fn of_config_cluster(what: &str, hub: &ClusterApi, uid: &str) -> CommandFailure {
    let fact = format!(
        "{what} is the config cluster (context {}, UID {uid} of kube-system), which is always a member",
        hub.context
    );
    CommandFailure::coded(&codes::SAME_CLUSTER_TWICE, fact)
        .next("choose another cluster, or set --context to the context of the config cluster\nfor a gateway or injection in the config cluster itself: --gateway, --inject\n\
               for the Secrets of its gateways: rbac.gatewaySecrets of the chart strait instead of --gateway-secrets")
}

/// Parses a cluster ID.
pub(super) fn cluster_id(text: &str) -> Result<ClusterId, CommandFailure> {
    ClusterId::parse(text).map_err(|error| {
        CommandFailure::usage(format!("{text:?} can't be a cluster ID: {error}"))
            .code(codes::CLUSTER_ID_INVALID.id)
            .next(
                "choose another ID (strait cluster add: --name ID); \
                 it is the CLUSTER_ID of the cluster's proxies",
            )
    })
}

/// Checks a token's lifetime. Kubernetes does not issue tokens that live less than 10 minutes.
pub(super) fn check_ttl(ttl: HumanDuration) -> Result<(), CommandFailure> {
    if ttl.0 >= Duration::from_secs(600) {
        return Ok(());
    }
    Err(CommandFailure::usage(format!(
        "--token-ttl {ttl} is less than 10m, the minimum of an API server"
    )))
}

/// Checks the name of a trust domain.
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

/// Returns the error for a refused kubeconfig; `id` is its cluster, if known.
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
            "set the URL that the control plane can use: --api-server https://HOST:PORT\n\
             (the same one again, if the control plane runs on this machine)",
        );
    }
    failure
}

/// Checks with the control plane's own parser that it will accept the kubeconfig.
fn checked(id: &ClusterId, access: &Access) -> Result<(), CommandFailure> {
    let written = kubeconfig::write(id, access);
    kubeconfig::parse(written.as_bytes(), None, access.loopback)
        .map(|_| ())
        .map_err(|refusal| refused(&format!("cluster {id}"), &refusal, Some(id)))
}

/// Returns whether the cluster to add is already a member with the same ID and API server address.
///
/// # Errors
/// If the kubeconfig or the Secrets cannot be read.
pub(super) async fn is_member(args: &AddArgs, hub: &ClusterApi) -> Result<bool, CommandFailure> {
    let context = args.remote.as_deref().unwrap_or_default();
    let id = args.name.as_deref().unwrap_or(context);
    let remote = args.change.hub.remote(context).await?;
    let server = args.api_server.as_ref().unwrap_or(remote.server());
    let secrets = hub.member_secrets(&args.change.hub.namespace).await?;
    let entries = secrets.iter().flat_map(kubeconfigs).filter(|(key, _)| key == id);
    let reads = |bytes: &[u8]| kubeconfig::parse(bytes, None, Loopback::Allowed);
    let mut read = entries.filter_map(|(_, bytes)| reads(&bytes).ok());
    Ok(read.any(|access| access.server == *server))
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

/// Reads one object of each kind with the new token. Retries, because new roles take a moment to
/// take effect.
async fn check_rights(
    reader: &ClusterApi,
    level: ReaderLevel,
    namespaces: &ReadNamespaces,
) -> Result<(), CommandFailure> {
    let root = |group: &str| match group {
        "" => "/api/v1".to_owned(),
        group => format!("/apis/{group}/v1"),
    };
    let mut paths: Vec<String> = Vec::new();
    for (group, resource) in level.resources(namespaces) {
        let (root, names) = (root(group), namespaces.names());
        paths.extend(
            names.iter().map(|name| format!("{root}/namespaces/{name}/{resource}?limit=1")),
        );
        paths.extend(namespaces.is_whole().then(|| format!("{root}/{resource}?limit=1")));
    }
    for path in paths {
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

/// Writes the Secret that makes `id` a member, and reports it.
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
    // Field ownership is tracked for `data` only.
    let entries = manifest["stringData"].take();
    let encoded = entries.as_object().into_iter().flatten().map(|(key, value)| {
        (key.clone(), json!(BASE64.encode(value.as_str().unwrap_or_default())))
    });
    manifest["data"] = Value::Object(encoded.collect());
    if let Some(fields) = manifest.as_object_mut() {
        fields.remove("stringData");
    }
    hub.apply(&manifest).await?;
    done(&format!("created secret {namespace}/{} in {}", secret::secret_name(id), hub.context));
    Ok(())
}

/// Allows loopback addresses if the operator named the URL.
pub(super) fn loopback_for(server: Option<&Uri>) -> Loopback {
    if server.is_some() { Loopback::Allowed } else { Loopback::Refused }
}
