//! Client of the admin API: plain HTTP with a bearer token, one request at a time.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

use bytes::Bytes;
use clap::Args;
use http::header::{AUTHORIZATION, CONTENT_TYPE};
use http::{Request, StatusCode, Uri};
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::client::legacy::Client as HttpClient;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::net::TcpStream;

use super::cluster::api::HubKubeconfig;
use super::failure::{CommandFailure, Exit};
use super::output::{self, Sent, clean, items, root_cause};
use super::port_forward;
use strait_admin_api::Failure;
use strait_base::codes;
use strait_base::duration::HumanDuration;
use strait_base::lock::lock;
use strait_kube_client::percent_encode;

/// Maximum size of a response, in bytes. A configuration of 100,000 resources fits.
const ANSWER_BYTES_MAX: usize = 1 << 30;
/// Default URL of the control plane.
const SERVER: &str = "http://127.0.0.1:15014";
/// Time limit for a port-forward that no flag requested.
const FORWARD_LIMIT: Duration = Duration::from_secs(10);
/// Token of the service account in a pod.
const POD_TOKEN: &str = "/var/run/secrets/kubernetes.io/serviceaccount/token";
/// Default path of the token of `strait serve`.
const TOKEN_FILE: &str = "/var/lib/strait/admin-token";

/// Header that names the replicas that the response lacks.
const MISSING: &str = "strait-missing-replicas";
/// Header that says why one replica did not respond: `NAME: REASON`.
const REASON: &str = "strait-missing-reason";
/// Replicas that have been reported as missing.
static REPORTED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

/// Next step if the control plane cannot be reached.
const AWAY_NEXT: &str = "set --server or STRAIT_SERVER to its admin address. If it runs in a cluster, use one of:\n\
     strait COMMAND --kube-context CONTEXT\n\
     kubectl -n strait-system exec deploy/strait -- strait COMMAND";

/// Next step if the token is missing or not accepted.
const TOKEN_NEXT: &str = "set --token-file or STRAIT_TOKEN_FILE to the token's file: admin-token in the state \
     directory of 'strait serve', or the file of its --admin-token-file. If it runs in a cluster, use one of:\n\
     strait COMMAND --kube-context CONTEXT\n\
     kubectl -n strait-system exec deploy/strait -- strait COMMAND";

/// Flags for the address and token of the control plane.
#[derive(Debug, Clone, Args)]
pub(crate) struct ServerFlags {
    /// URL of the control plane's admin API [default: http://127.0.0.1:15014, or if nothing listens
    /// there, a port forwarded to the cluster of the kubeconfig's current context]
    #[arg(long, env = "STRAIT_SERVER", value_name = "URL")]
    server: Option<String>,
    /// Forward a port to the control plane in the cluster of this kubeconfig context instead of using
    /// --server, with a token of that cluster; STRAIT_NAMESPACE names its namespace
    #[arg(long, value_name = "CONTEXT")]
    kube_context: Option<String>,
    /// File with the admin token [default: /var/lib/strait/admin-token, if readable]
    #[arg(long, env = "STRAIT_TOKEN_FILE", value_name = "FILE")]
    token_file: Option<PathBuf>,
}

impl ServerFlags {
    /// Returns the URL without a final slash.
    ///
    /// # Errors
    /// If it is not `http://HOST:PORT`.
    pub(crate) fn url(&self) -> Result<String, CommandFailure> {
        let server = self.server.as_deref().unwrap_or(SERVER);
        let server = server.trim_end_matches('/').to_owned();
        let plain = server.parse::<Uri>().is_ok_and(|uri| {
            uri.scheme_str() == Some("http") && uri.host().is_some() && uri.path() == "/"
        });
        match plain {
            true => Ok(server),
            false => Err(CommandFailure::usage(format!(
                "--server {server:?} is not http://HOST:PORT: the admin API uses plain HTTP on a private address"
            ))
            .next("strait COMMAND --kube-context CONTEXT\nfor the URL of a member's API server, use --api-server")),
        }
    }

    /// Reads the token.
    fn token(&self) -> Result<Option<String>, CommandFailure> {
        match &self.token_file {
            Some(file) => read_token(file).map(Some).map_err(|error| {
                CommandFailure::new(
                    Exit::NoRights,
                    format!("the token file {} can't be read: {error}", file.display()),
                )
                .next(TOKEN_NEXT)
            }),
            None => Ok(read_token(Path::new(TOKEN_FILE)).ok()),
        }
    }

    /// Whether the command itself forwards a port.
    pub(crate) fn forwards(&self) -> bool {
        self.kube_context.is_some()
    }

    /// Returns the current context of the kubeconfig if no server is named and nothing listens at the
    /// default address. In a pod, the control plane of the same pod is meant.
    async fn implied_context(&self) -> Option<String> {
        if self.server.is_some() || Path::new(POD_TOKEN).exists() {
            return None;
        }
        let connecting = TcpStream::connect(SERVER.trim_start_matches("http://")).await;
        match connecting {
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
                HubKubeconfig::current_context()
            }
            _ => None,
        }
    }
}

/// Flags for a connection to the control plane.
#[derive(Debug, Clone, Args)]
pub(crate) struct Connect {
    #[command(flatten)]
    at: ServerFlags,
    /// Time to wait for a response
    #[arg(long, value_name = "D", default_value = "30s")]
    timeout: HumanDuration,
    /// Query only this replica of the control plane [default: all replicas]
    #[arg(long, value_name = "NAME")]
    replica: Option<String>,
    /// Whether the current context of the kubeconfig may be used.
    #[arg(skip = true)]
    follows_context: bool,
}

impl Connect {
    /// Returns a connection to a control plane that this process runs.
    pub(super) fn to(server: String, token_file: PathBuf) -> Self {
        Self {
            at: ServerFlags {
                server: Some(server),
                kube_context: None,
                token_file: Some(token_file),
            },
            timeout: HumanDuration(Duration::from_secs(30)),
            replica: None,
            follows_context: false,
        }
    }

    /// Whether the command itself may forward a port.
    pub(super) fn may_forward(&self) -> bool {
        self.at.forwards() || self.at.server.is_none()
    }

    /// Returns a connection with a timeout of 5 s, for commands that change clusters and query the
    /// control plane only in addition. Their config cluster may be that of another context.
    pub(crate) fn with_short_timeout(at: &ServerFlags) -> Self {
        let timeout = HumanDuration(Duration::from_secs(5));
        Self { at: at.clone(), timeout, replica: None, follows_context: false }
    }

    /// Opens a port-forward to the control plane in the cluster of a context, and returns the URL and
    /// the token.
    async fn forward(
        &self,
        context: &str,
        limit: HumanDuration,
    ) -> Result<(String, Option<String>), CommandFailure> {
        let token = self.at.token_file.as_ref().map(|_| self.at.token());
        let token = token.transpose()?.flatten();
        let opening = port_forward::open(context, token.is_none());
        let opened = tokio::time::timeout(limit.0, opening).await;
        let forward = opened.map_err(|_| {
            let text = format!("the port-forward with context {context} took longer than {limit}");
            CommandFailure::new(Exit::TimedOut, text)
                .next(format!("set a longer --timeout, or: kubectl --context {context} version"))
        })??;
        Ok((forward.server.clone(), token.or_else(|| forward.token.clone())))
    }

    /// Returns the URL and the token of the flags.
    fn direct(&self) -> Result<(String, Option<String>), CommandFailure> {
        Ok((self.at.url()?, self.at.token()?))
    }

    /// Returns the URL of the control plane, and the token.
    async fn place(&self) -> Result<(String, Option<String>), CommandFailure> {
        if let Some(context) = &self.at.kube_context {
            return self.forward(context, self.timeout).await;
        }
        let implied = match self.follows_context {
            true => self.at.implied_context().await,
            false => None,
        };
        let Some(context) = implied else { return self.direct() };
        let is_open = port_forward::is_open();
        let limit = HumanDuration(self.timeout.0.min(FORWARD_LIMIT));
        let forwarded = self.forward(&context, limit).await.map_err(|failure| {
            let text = format!(
                "the control plane at {SERVER} can't be reached: nothing listens there, and a port can't be forwarded with the current context: {}; proxies keep their configuration",
                failure.message()
            );
            CommandFailure::new(Exit::Unreachable, text).next(AWAY_NEXT)
        })?;
        if !is_open {
            eprint_line!(
                "Nothing listens at {SERVER}; using the control plane in the cluster of the current context, {}.",
                clean(&context)
            );
        }
        Ok(forwarded)
    }
}

/// A response of the admin API, as text and as a JSON value.
#[derive(Debug)]
pub(crate) struct AdminResponse {
    /// The response body.
    pub(crate) raw: String,
    /// The parsed response body.
    pub(crate) value: Value,
}

impl AdminResponse {
    /// Returns the response in typed form.
    ///
    /// # Errors
    /// If it does not have the form that this release expects.
    pub(crate) fn read<T: DeserializeOwned>(&self) -> Result<T, CommandFailure> {
        output::read(&self.value)
    }

    /// Returns the rows of a list as sent and in typed form.
    ///
    /// # Errors
    /// The errors of [`Self::read`].
    pub(crate) fn rows<T: DeserializeOwned>(&self) -> Result<Vec<Sent<T>>, CommandFailure> {
        items(&self.value).iter().cloned().map(Sent::of).collect()
    }
}

/// Client of one control plane's admin API.
pub(crate) struct AdminClient {
    http: HttpClient<HttpConnector, Full<Bytes>>,
    server: String,
    token: Option<String>,
    timeout: HumanDuration,
    replica: Option<String>,
}

impl AdminClient {
    /// Creates a client and reads the token. Does not connect, except for a port-forward: with
    /// `--kube-context`, or with the current context if no server is named and nothing listens at
    /// the default address.
    ///
    /// # Errors
    /// If the URL is not `http://HOST:PORT`, the named token file cannot be read, or the port cannot
    /// be forwarded.
    pub(crate) async fn new(connect: &Connect) -> Result<Self, CommandFailure> {
        let (server, token) = connect.place().await?;
        let http = HttpClient::builder(TokioExecutor::new()).build_http();
        let (timeout, replica) = (connect.timeout, connect.replica.clone());
        Ok(Self { http, server, token, timeout, replica })
    }
    /// Returns the URL of the control plane, without a final slash.
    pub(crate) fn server(&self) -> &str {
        &self.server
    }

    /// Sends `GET path?query` and returns the response.
    ///
    /// # Errors
    /// If the status is not 200: with the exit code and the next step for it.
    pub(crate) async fn get(
        &self,
        path: &str,
        query: &[(&str, &str)],
    ) -> Result<AdminResponse, CommandFailure> {
        let (status, raw) = self.fetch(path, query).await?;
        self.read(path, status, raw)
    }

    /// Sends `POST path?query` with a JSON body and returns the response.
    ///
    /// # Errors
    /// The errors of [`Self::get`].
    pub(crate) async fn post(
        &self,
        path: &str,
        query: &[(&str, &str)],
        body: &Value,
    ) -> Result<AdminResponse, CommandFailure> {
        let (status, raw) = self.in_time(self.request(path, query, Some(body))).await?;
        self.read(path, status, raw)
    }

    fn read(
        &self,
        path: &str,
        status: StatusCode,
        raw: String,
    ) -> Result<AdminResponse, CommandFailure> {
        let value = serde_json::from_str::<Value>(&raw);
        // The server's own message, if it has one.
        let failure = value.as_ref().ok().and_then(|value| output::read::<Failure>(value).ok());
        let said = failure.filter(|one| !one.error.is_empty()).map(|one| clean(&one.error));
        match (status, value) {
            (StatusCode::OK, Ok(value)) => Ok(AdminResponse { raw, value }),
            (StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN, _) => Err(self.refused()),
            (StatusCode::BAD_REQUEST, _) if said.is_some() => {
                Err(CommandFailure::usage(said.unwrap_or_default()))
            }
            (
                StatusCode::NOT_FOUND
                | StatusCode::BAD_GATEWAY
                | StatusCode::CONFLICT
                | StatusCode::PAYLOAD_TOO_LARGE
                | StatusCode::INSUFFICIENT_STORAGE,
                _,
            ) if said.is_some() => Err(CommandFailure::failed(said.unwrap_or_default())),
            (StatusCode::SERVICE_UNAVAILABLE, _) if said.is_some() => {
                Err(CommandFailure::new(Exit::Unhealthy, said.unwrap_or_default()).next(
                    "wait until it is ready: curl '".to_owned() + &self.server + "/readyz?verbose'",
                ))
            }
            (status, _) => Err(CommandFailure::failed(format!(
                "{}{path} answered {status}, which is not a response of a Strait control plane",
                self.server
            ))
            .next("set --server to the admin address of 'strait serve'")),
        }
    }

    /// Sends `GET path?query` and returns status and body of the response, with any status.
    ///
    /// # Errors
    /// If no response arrives in time.
    pub(crate) async fn fetch(
        &self,
        path: &str,
        query: &[(&str, &str)],
    ) -> Result<(StatusCode, String), CommandFailure> {
        self.in_time(self.request(path, query, None)).await
    }

    async fn in_time<T>(
        &self,
        request: impl Future<Output = Result<T, CommandFailure>>,
    ) -> Result<T, CommandFailure> {
        let response = tokio::time::timeout(self.timeout.0, request).await;
        response.map_err(|_| {
            let text = format!("{} did not answer within {}", self.server, self.timeout);
            CommandFailure::new(Exit::TimedOut, text)
                .next("set a longer --timeout, or read the logs of the control plane")
        })?
    }

    /// Returns the bearer token.
    pub(crate) fn token(&self) -> Option<&str> {
        self.token.as_deref()
    }

    async fn request(
        &self,
        path: &str,
        query: &[(&str, &str)],
        body: Option<&Value>,
    ) -> Result<(StatusCode, String), CommandFailure> {
        let mut url = format!("{}{path}", self.server);
        // Only responses of /debug cover all replicas.
        let replica = self.replica.as_deref().filter(|_| path.starts_with("/debug/"));
        let replica = replica.map(|replica| ("replica", replica));
        for (at, (name, value)) in query.iter().copied().chain(replica).enumerate() {
            url += &format!("{}{name}={}", if at == 0 { '?' } else { '&' }, percent_encode(value));
        }
        let mut request = match body {
            None => Request::get(url),
            Some(_) => Request::post(url).header(CONTENT_TYPE, "application/json"),
        };
        if let Some(token) = &self.token {
            request = request.header(AUTHORIZATION, format!("Bearer {token}"));
        }
        let body = body.map(|body| Bytes::from(body.to_string())).unwrap_or_default();
        let request = request.body(Full::new(body)).map_err(|_| {
            CommandFailure::usage("the token file contains characters that are invalid in a token")
        })?;
        let response = self.http.request(request).await.map_err(|error| self.away(&error))?;
        let status = response.status();
        let missing = response.headers().get(MISSING).and_then(|names| names.to_str().ok());
        let reasons = response.headers().get_all(REASON).into_iter();
        let reasons: Vec<_> = reasons.filter_map(|reason| reason.to_str().ok()).collect();
        missing.into_iter().for_each(|names| report_missing(names, &reasons));
        let body = Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect().await;
        let body = body.map_err(|error| self.away(&*error))?.to_bytes();
        Ok((status, String::from_utf8_lossy(&body).into_owned()))
    }

    fn away(&self, error: &(dyn std::error::Error + 'static)) -> CommandFailure {
        let text = format!(
            "the control plane at {} can't be reached: {}; proxies keep their configuration",
            self.server,
            root_cause(error)
        );
        CommandFailure::new(Exit::Unreachable, text).next(AWAY_NEXT)
    }

    fn refused(&self) -> CommandFailure {
        let fact = match self.token {
            Some(_) => "does not accept the token",
            None => "requires a token, and none was found",
        };
        let text = format!("the control plane at {} {fact}", self.server);
        CommandFailure::new(Exit::NoRights, text).next(TOKEN_NEXT)
    }
}

/// Reports the replicas that a response lacks, each once per process.
fn report_missing(names: &str, reasons: &[&str]) {
    let mut reported = lock(&REPORTED);
    for name in names.split(',').filter(|name| !name.is_empty()) {
        if reported.insert(name.to_owned()) {
            let of_name = |text: &&str| text.strip_prefix(name)?.strip_prefix(": ").map(clean);
            let reason = reasons.iter().find_map(of_name);
            let reason = reason.unwrap_or_else(|| "it did not answer".to_owned());
            let (name, code) = (clean(name), &codes::REPLICA_MISSING);
            eprint_line!(
                "{code}: replica {name} and the proxies that are connected to it are missing: {reason}"
            );
        }
    }
}

fn read_token(file: &Path) -> std::io::Result<String> {
    Ok(std::fs::read_to_string(file)?.trim().to_owned())
}
