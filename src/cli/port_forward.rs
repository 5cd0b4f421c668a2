//! A port-forward to the control plane of a kubeconfig context, opened by the command itself.
//!
//! A local port accepts connections. Each is forwarded to the admin port of a ready pod of the
//! control plane, through the API server and the kubelet. The token comes from the config cluster
//! too: from the service account `strait-admin` or, without the right to request its tokens, from
//! `strait-viewer`.

use std::net::Ipv4Addr;
use std::sync::Arc;

use futures::future::BoxFuture;
use serde_json::{Value, json};
use tokio::io::{DuplexStream, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::OnceCell;

use super::cluster::api::{ClusterApi, HubKubeconfig, SYSTEM_NAMESPACE};
use super::failure::{CommandFailure, Exit};
use super::output::{clean, items};
use strait_base::task::Supervisor;
use strait_server::admin::{ADMIN_ACCOUNT, AUDIENCE, VIEWER_ACCOUNT};

/// The admin port of a pod of the control plane.
const ADMIN_PORT: u16 = 15014;
/// Lifetime of the token in seconds.
const TOKEN_SECONDS: u64 = 3600;
/// Maximum number of pods that are tried for a connection.
const PODS_MAX: usize = 3;

/// The port-forward of this process.
static OPEN: OnceCell<PortForward> = OnceCell::const_new();

/// A local port that leads to the control plane, and a token that it accepts.
pub(super) struct PortForward {
    /// URL of the local port.
    pub(super) server: String,
    /// A token of a service account, unless the caller has one.
    pub(super) token: Option<String>,
    _tasks: Supervisor,
}

/// Returns the port-forward of this process, which all its requests share. It ends with the
/// process.
pub(super) async fn open(
    context: &str,
    needs_token: bool,
) -> Result<&'static PortForward, CommandFailure> {
    OPEN.get_or_try_init(async || PortForward::open(context, needs_token).await).await
}

/// Returns whether this process forwards a port.
pub(super) fn is_open() -> bool {
    OPEN.initialized()
}

impl PortForward {
    async fn open(context: &str, needs_token: bool) -> Result<Self, CommandFailure> {
        let set = std::env::var("STRAIT_NAMESPACE").ok().filter(|name| !name.is_empty());
        let namespace = set.unwrap_or_else(|| SYSTEM_NAMESPACE.to_owned());
        let api = HubKubeconfig::of_context(context).hub(namespace.clone()).open().await?;
        let pods = Arc::new(StraitPods { api, namespace });
        // The first connection is opened here, so that its error is the error of the command.
        let first = pods.dial().await?;
        let token = match needs_token {
            true => Some(pods.token().await?),
            false => None,
        };
        let failed = |error: std::io::Error| {
            CommandFailure::failed(format!("can't listen on a port of 127.0.0.1: {error}"))
        };
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.map_err(failed)?;
        let server = format!("http://{}", listener.local_addr().map_err(failed)?);
        let tasks = Supervisor::new();
        tasks.spawn("port-forward", accept(listener, pods, first, tasks.clone()));
        Ok(Self { server, token, _tasks: tasks })
    }
}

/// The pods of the control plane.
struct StraitPods {
    api: ClusterApi,
    namespace: String,
}

/// A connection to a pod.
struct PodConnection {
    /// The namespace, name and context of the pod.
    pod: String,
    stream: DuplexStream,
    /// The kubelet's reason if the pod does not accept the connection.
    refusal: BoxFuture<'static, Option<String>>,
}

impl StraitPods {
    /// Opens a connection to a ready pod.
    async fn dial(&self) -> Result<PodConnection, CommandFailure> {
        let Self { api, namespace } = self;
        let path = format!(
            "/api/v1/namespaces/{namespace}/pods?labelSelector=app.kubernetes.io%2Fname%3Dstrait"
        );
        let list = api.get(&path).await?.unwrap_or_default();
        let mut failure = self.no_pod(items(&list["items"]).len());
        let ready = items(&list["items"]).iter().filter(|pod| is_ready(pod));
        for pod in ready.filter_map(|pod| pod["metadata"]["name"].as_str()).take(PODS_MAX) {
            match api.dial_pod(namespace, pod, ADMIN_PORT).await {
                Ok((stream, refusal)) => {
                    let pod = format!("pod {namespace}/{pod} in {}", api.context);
                    return Ok(PodConnection { pod, stream, refusal: Box::pin(refusal) });
                }
                // The other pods need the same right.
                Err(denied) if denied.exit == Exit::NoRights => {
                    return Err(denied.next(format!(
                        "request the right to create pods/portforward in namespace {namespace} of {}, or run:\n\
                         kubectl --context {} -n {namespace} exec deploy/strait -- strait COMMAND",
                        api.context, api.context
                    )));
                }
                Err(other) => failure = other,
            }
        }
        Err(failure)
    }

    fn no_pod(&self, total: usize) -> CommandFailure {
        let (namespace, context) = (&self.namespace, &self.api.context);
        let fact = match total {
            0 => "has no pod of the control plane".to_owned(),
            total => format!("has no ready pod of the control plane, of {total}"),
        };
        CommandFailure::new(Exit::Unreachable, format!("namespace {namespace} of {context} {fact}"))
            .next(format!(
                "kubectl --context {context} -n {namespace} get pods -l app.kubernetes.io/name=strait\n\
                 if the control plane has another namespace: set STRAIT_NAMESPACE; if it runs in another cluster: set --kube-context"
            ))
    }

    /// Requests a token that the admin API accepts.
    async fn token(&self) -> Result<String, CommandFailure> {
        let Self { api, namespace } = self;
        let spec = json!({ "audiences": [AUDIENCE], "expirationSeconds": TOKEN_SECONDS });
        let mut denied = None;
        for account in [ADMIN_ACCOUNT, VIEWER_ACCOUNT] {
            let path = format!("/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token");
            match api.request_token(&path, &spec).await {
                Ok(Some((token, _))) => return Ok(token),
                Ok(None) => {}
                Err(failure) if failure.denied => denied = Some(failure),
                Err(failure) => return Err(failure),
            }
        }
        let names = format!("{ADMIN_ACCOUNT} or {VIEWER_ACCOUNT}");
        let token_file = "set --token-file to the file of an admin token or reader token";
        Err(match denied {
            Some(failure) => failure.next(format!(
                "request the right to create serviceaccounts/token of {names} in namespace {namespace} of {}, or {token_file}",
                api.context
            )),
            None => CommandFailure::new(
                Exit::NoRights,
                format!("namespace {namespace} of {} has no service account {names}", api.context),
            )
            .next(format!("upgrade the chart of the control plane, or {token_file}")),
        })
    }
}

fn is_ready(pod: &Value) -> bool {
    let conditions = items(&pod["status"]["conditions"]).iter();
    let mut ready = conditions.filter(|one| one["type"] == "Ready" && one["status"] == "True");
    pod["metadata"]["deletionTimestamp"].is_null() && ready.next().is_some()
}

/// Forwards the connections of the local port.
async fn accept(
    listener: TcpListener,
    pods: Arc<StraitPods>,
    first: PodConnection,
    tasks: Supervisor,
) {
    let mut first = Some(first);
    while let Ok((client, _)) = listener.accept().await {
        let (pods, opened) = (Arc::clone(&pods), first.take());
        tasks.spawn("forwarded connection", async move {
            let connection = match opened {
                Some(connection) => Ok(connection),
                None => pods.dial().await,
            };
            match connection {
                Ok(connection) => forward(client, connection).await,
                Err(failure) => eprint_line!("! port-forward: {}", failure.message()),
            }
        });
    }
}

async fn forward(mut client: TcpStream, connection: PodConnection) {
    let PodConnection { pod, mut stream, refusal } = connection;
    tokio::select! {
        biased;
        Some(fact) = refusal => eprint_line!("! port-forward to {pod} failed: {}", clean(&fact)),
        // The client of the local port reports an interrupted response.
        _ = copy_bidirectional(&mut client, &mut stream) => {}
    }
}
