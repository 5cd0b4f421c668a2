//! Access to clusters as the operator: with kubectl's kubeconfig and the operator's rights.
//!
//! Any kubeconfig is accepted here, including ones that run programs: it is the operator's own, on
//! the operator's machine. Credentials in a Secret are always written through
//! `clusters::kubeconfig`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use http::{Method, Request, Uri};
use hyper_util::client::legacy::Client as HttpClient;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use k8s_openapi::api::core::v1::Pod;
use kube::client::{AuthError, ConfigExt};
use kube::config::{AuthInfo, KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Api, Client, Config};
use serde_json::Value;
use tokio::io::DuplexStream;
use tower::{BoxError, ServiceBuilder};

use crate::cli::failure::{CommandFailure, Exit};
use crate::cli::output::{clean, items, root_cause};
use strait_base::codes;
use strait_kube_client::{Access, ApiCredential, Loopback, Redacted};
use strait_relay::hub::RELAY_ANNOTATION;
use strait_sources::clusters::secret::CLUSTER_ID_ANNOTATION;
use strait_sources::store::{ISTIO_SECRET_LABEL, SECRET_LABEL, kubeconfig};

/// ConfigMap in which meshes publish the root certificates that workloads trust.
pub(crate) const ROOTS: &str = "istio-ca-root-cert";

/// Annotation of the control plane's Service: the name or address at which other clusters reach it.
/// The chart writes it.
const ADDRESS_ANNOTATION: &str = "strait.dev/address";

/// Address at which other clusters reach the control plane's Service.
pub(crate) struct Front {
    /// A DNS name or an IP address.
    pub(crate) address: String,
    /// Whether the operator configured it, so that the certificate contains it too.
    pub(crate) is_named: bool,
    pub(crate) ports: Vec<u64>,
}

/// Time limit for connecting.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);

/// Time limit for one request.
const REQUEST_LIMIT: Duration = Duration::from_secs(20);
/// Field manager of the applied fields.
const FIELD_MANAGER: &str = "strait";

/// The control plane's default namespace.
pub(crate) const SYSTEM_NAMESPACE: &str = "strait-system";

/// The kubeconfig with the config cluster.
#[derive(Debug, Clone, Args)]
pub(crate) struct HubKubeconfig {
    /// Kubeconfig with all contexts [default: as in kubectl]
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Context of the config cluster [default: the current context]
    #[arg(long, value_name = "CONFIG_CONTEXT")]
    context: Option<String>,
}

impl HubKubeconfig {
    /// Returns the usual kubeconfig with this context.
    pub(crate) fn of_context(context: &str) -> Self {
        Self { kubeconfig: None, context: Some(context.to_owned()) }
    }

    /// Returns the current context of the usual kubeconfig, if it can be read.
    pub(crate) fn current_context() -> Option<String> {
        let usual = Self { kubeconfig: None, context: None };
        usual.hub(SYSTEM_NAMESPACE.to_owned()).contexts().ok()?.current_context
    }

    /// Returns the config cluster with the control plane in this namespace.
    pub(crate) fn hub(&self, namespace: String) -> Hub {
        Hub { kubeconfig: self.clone(), namespace }
    }
}

/// Flags for the config cluster.
#[derive(Debug, Clone, Args)]
pub(crate) struct Hub {
    #[command(flatten)]
    kubeconfig: HubKubeconfig,
    /// Namespace of the control plane
    #[arg(
        long,
        short,
        visible_alias = "system-namespace",
        env = "STRAIT_NAMESPACE",
        value_name = "NS",
        default_value = SYSTEM_NAMESPACE
    )]
    pub(crate) namespace: String,
}

impl Hub {
    /// Connects to the config cluster.
    pub(crate) async fn open(&self) -> Result<ClusterApi, CommandFailure> {
        ClusterApi::open(self.contexts()?, self.kubeconfig.context.as_deref()).await
    }

    /// Connects to another cluster of the same kubeconfig.
    pub(crate) async fn remote(&self, context: &str) -> Result<ClusterApi, CommandFailure> {
        ClusterApi::open(self.contexts()?, Some(context)).await
    }

    /// Returns the error for a cluster without a Secret.
    pub(crate) fn no_member(&self, hub: &ClusterApi, id: &str) -> CommandFailure {
        let text = format!(
            "no secret in namespace {} of {} contains cluster {id}",
            self.namespace, hub.context
        );
        CommandFailure::failed(text).next(format!(
            "to list the members: strait cluster list -o wide\nto make it a member: strait cluster add CONTEXT --name {id}"
        ))
    }

    /// Merges the files like kubectl: of entries with the same name, the first one is used.
    fn contexts(&self) -> Result<Kubeconfig, CommandFailure> {
        let usual = || kubeconfig::usual_files().into_iter().filter(|file| file.exists()).collect();
        let files: Vec<PathBuf> =
            self.kubeconfig.kubeconfig.clone().map_or_else(usual, |file| vec![file]);
        let name_it = "set --kubeconfig or KUBECONFIG";
        if files.is_empty() {
            return Err(CommandFailure::usage("no kubeconfig was found").next(name_it));
        }
        files.iter().try_fold(Kubeconfig::default(), |merged, file| {
            let read = Kubeconfig::read_from(file).and_then(|mut read| {
                read.current_context = read.current_context.filter(|name| !name.is_empty());
                merged.merge(read)
            });
            read.map_err(|error| {
                let fact = match &error {
                    // A snippet of the text would reveal credentials.
                    KubeconfigError::Parse(error) => error.without_snippet().to_string(),
                    error => root_cause(error),
                };
                let text = format!("kubeconfig {} can't be read: {}", file.display(), clean(&fact));
                let exit = if file.exists() { Exit::Failed } else { Exit::Usage };
                CommandFailure::new(exit, text).next(name_it)
            })
        })
    }
}

/// Access to one cluster.
pub(crate) struct ClusterApi {
    /// Name of the cluster's context in the kubeconfig.
    pub(crate) context: String,
    client: Client,
    config: Config,
    skips_verification: bool,
    ca_pem: Option<Vec<u8>>,
}

impl ClusterApi {
    async fn open(kubeconfig: Kubeconfig, context: Option<&str>) -> Result<Self, CommandFailure> {
        let Some(name) = context.map(str::to_owned).or(kubeconfig.current_context.clone()) else {
            return Err(CommandFailure::usage("the kubeconfig has no current context")
                .next("add --context"));
        };
        let known: Vec<&str> = kubeconfig.contexts.iter().map(|one| one.name.as_str()).collect();
        if !known.contains(&name.as_str()) {
            let has = if known.is_empty() { "none".into() } else { known.join(", ") };
            return Err(CommandFailure::usage(format!(
                "the kubeconfig has no context {name:?}; it has {}",
                clean(&has)
            ))
            .next("kubectl config get-contexts"));
        }
        let options = KubeConfigOptions { context: Some(name.clone()), ..Default::default() };
        let config =
            Config::from_custom_kubeconfig(kubeconfig, &options).await.map_err(|error| {
                CommandFailure::failed(format!(
                    "context {name} can't be used: {}",
                    root_cause(&error)
                ))
                .next(format!("kubectl --context {name} version"))
            })?;
        let ca_pem = config.root_cert.as_ref().map(|certificates| pem(certificates));
        let skips_verification = config.accept_invalid_certs;
        let client = client(&name, &config)?;
        Ok(Self { context: name, client, config, skips_verification, ca_pem })
    }

    /// Returns the URL of the API server.
    pub(crate) fn server(&self) -> &Uri {
        &self.config.cluster_url
    }

    /// Returns access to the same API server with only a bearer token.
    pub(crate) fn with_token(&self, token: &str) -> Result<Self, CommandFailure> {
        let mut config = self.config.clone();
        config.auth_info = AuthInfo { token: Some(token.to_owned().into()), ..AuthInfo::default() };
        self.with_config(config)
    }

    /// Returns access to the API server of `access`, with its credential if that is a token.
    pub(crate) fn with_access(&self, access: &Access) -> Result<Self, CommandFailure> {
        let mut config = Config::new(access.server.clone());
        config.root_cert = access.ca_pem.as_deref().map(der);
        config.tls_server_name.clone_from(&access.tls_server_name);
        if let ApiCredential::Token(token) = &access.credential {
            config.auth_info.token = Some(token.reveal().clone().into());
        }
        self.with_config(config)
    }

    /// Returns the same access with another name in messages.
    pub(crate) fn named(self, name: &str) -> Self {
        Self { context: name.to_owned(), ..self }
    }

    fn with_config(&self, config: Config) -> Result<Self, CommandFailure> {
        let client = client(&self.context, &config)?;
        let (context, ca_pem) = (self.context.clone(), self.ca_pem.clone());
        Ok(Self { context, client, config, skips_verification: self.skips_verification, ca_pem })
    }

    /// Returns how the control plane will reach this cluster with `token`: inline data only. A
    /// loopback address is allowed if the operator named the URL, but not from a kubeconfig.
    pub(crate) fn access(
        &self,
        token: String,
        server: Option<&Uri>,
        tls_server_name: Option<&str>,
    ) -> Result<Access, CommandFailure> {
        if self.skips_verification {
            return Err(CommandFailure::coded(
                &codes::SKIPS_VERIFICATION,
                format!(
                    "context {} skips TLS verification, which is not allowed for members",
                    self.context
                ),
            ));
        }
        let name = tls_server_name.map(str::to_owned);
        Ok(Access {
            server: server.unwrap_or(self.server()).clone(),
            ca_pem: self.ca_pem.clone(),
            tls_server_name: name.or_else(|| self.config.tls_server_name.clone()),
            credential: ApiCredential::Token(Redacted::new(token)),
            loopback: if server.is_some() { Loopback::Allowed } else { Loopback::Refused },
            proxy: None,
        })
    }

    /// Returns the UID of the namespace kube-system, which identifies a cluster under any name.
    pub(crate) async fn uid(&self) -> Result<String, CommandFailure> {
        let path = "/api/v1/namespaces/kube-system";
        let found = self.get(path).await?.unwrap_or_default();
        found["metadata"]["uid"].as_str().map(str::to_owned).ok_or_else(|| {
            CommandFailure::failed(format!("{} has no namespace kube-system", self.context))
        })
    }

    /// Reads an object. Returns `None` if it does not exist.
    pub(crate) async fn get(&self, path: &str) -> Result<Option<Value>, CommandFailure> {
        self.request(Method::GET, path, "application/json", None).await
    }

    /// Returns the published root certificates for workloads, in PEM, if there are any.
    pub(crate) async fn published_roots(
        &self,
        namespace: &str,
    ) -> Result<Option<String>, CommandFailure> {
        let found = self.get(&format!("/api/v1/namespaces/{namespace}/configmaps/{ROOTS}")).await?;
        let text = found.as_ref().and_then(|found| found["data"]["root-cert.pem"].as_str());
        Ok(text.map(str::to_owned))
    }

    /// Applies an object: creates it, or takes over the fields of `manifest`.
    pub(crate) async fn apply(&self, manifest: &Value) -> Result<(), CommandFailure> {
        let path = format!("{}?fieldManager={FIELD_MANAGER}&force=true", path_of(manifest));
        let kind = "application/apply-patch+yaml";
        let applied = self.request(Method::PATCH, &path, kind, Some(manifest)).await?;
        let gone = || CommandFailure::failed(format!("{path} does not exist in {}", self.context));
        applied.map(|_| ()).ok_or_else(gone)
    }

    /// Applies a merge patch to an object.
    pub(crate) async fn merge(&self, path: &str, patch: &Value) -> Result<(), CommandFailure> {
        let path = format!("{path}?fieldManager={FIELD_MANAGER}");
        let kind = "application/merge-patch+json";
        let changed = self.request(Method::PATCH, &path, kind, Some(patch)).await?;
        changed.map(|_| ()).ok_or_else(|| CommandFailure::failed(format!("{path} was deleted")))
    }

    /// Deletes an object. Returns `false` if it did not exist.
    pub(crate) async fn delete(&self, path: &str) -> Result<bool, CommandFailure> {
        let found = self.request(Method::DELETE, path, "application/json", None).await?;
        Ok(found.is_some())
    }

    /// Deletes an object if it still has this UID. Returns `false` if it did not exist.
    pub(crate) async fn delete_exactly(
        &self,
        path: &str,
        uid: &str,
    ) -> Result<bool, CommandFailure> {
        let options = serde_json::json!({
            "apiVersion": "v1", "kind": "DeleteOptions", "preconditions": { "uid": uid },
        });
        let kind = "application/json";
        let found = self.request(Method::DELETE, path, kind, Some(&options)).await?;
        Ok(found.is_some())
    }

    /// Requests a token of the reader, valid for `seconds` or as long as the API server allows, and
    /// returns it with its expiry. Returns `None` if the reader does not exist.
    pub(crate) async fn reader_token(
        &self,
        seconds: u64,
    ) -> Result<Option<(String, String)>, CommandFailure> {
        let spec = serde_json::json!({ "expirationSeconds": seconds });
        self.request_token(super::manifests::TOKEN_PATH, &spec).await
    }

    /// Requests a token of the service account at `path`, and returns it with its expiry. Returns
    /// `None` if the account does not exist.
    pub(crate) async fn request_token(
        &self,
        path: &str,
        spec: &Value,
    ) -> Result<Option<(String, String)>, CommandFailure> {
        let request = serde_json::json!({
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": spec,
        });
        let json = "application/json";
        let Some(answer) = self.request(Method::POST, path, json, Some(&request)).await? else {
            return Ok(None);
        };
        let part = |name: &str| answer["status"][name].as_str().map(str::to_owned);
        match (part("token"), part("expirationTimestamp")) {
            (Some(token), Some(ends)) => Ok(Some((token, ends))),
            _ => Err(CommandFailure::failed(format!(
                "{} returned no token for a TokenRequest",
                self.context
            ))),
        }
    }

    /// Returns the address at which other clusters reach the control plane's Service, or `None` if
    /// it has no address outside its cluster.
    pub(crate) async fn front(&self, namespace: &str) -> Result<Option<Front>, CommandFailure> {
        let path = format!("/api/v1/namespaces/{namespace}/services/strait");
        let service = self.get(&path).await?.unwrap_or_default();
        let first = &service["status"]["loadBalancer"]["ingress"][0];
        let named = &service["metadata"]["annotations"][ADDRESS_ANNOTATION];
        let address = [named, &first["ip"], &first["hostname"], &service["spec"]["externalIPs"][0]]
            .into_iter()
            .find_map(Value::as_str);
        let ports = items(&service["spec"]["ports"]).iter().filter_map(|one| one["port"].as_u64());
        Ok(address.map(|address| Front {
            address: address.to_owned(),
            is_named: named.is_string(),
            ports: ports.collect(),
        }))
    }

    /// Returns the Secrets that describe member clusters, the oldest first.
    pub(crate) async fn member_secrets(
        &self,
        namespace: &str,
    ) -> Result<Vec<Value>, CommandFailure> {
        let mut found: Vec<Value> = Vec::new();
        for (label, value) in [ISTIO_SECRET_LABEL, SECRET_LABEL] {
            let selector = format!("{}%3D{value}", label.replace('/', "%2F"));
            let path = format!("/api/v1/namespaces/{namespace}/secrets?labelSelector={selector}");
            let list = self.get(&path).await?.unwrap_or_default();
            for secret in items(&list["items"]) {
                if !found
                    .iter()
                    .any(|known| known["metadata"]["name"] == secret["metadata"]["name"])
                {
                    found.push(secret.clone());
                }
            }
        }
        let age = |secret: &Value| {
            let text =
                |part: &str| secret["metadata"][part].as_str().unwrap_or_default().to_owned();
            (text("creationTimestamp"), text("name"))
        };
        found.sort_by_key(age);
        Ok(found)
    }

    async fn request(
        &self,
        method: Method,
        path: &str,
        content: &str,
        body: Option<&Value>,
    ) -> Result<Option<Value>, CommandFailure> {
        let what =
            format!("{method} {} in {}", path.split('?').next().unwrap_or(path), self.context);
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("Content-Type", content)
            .body(body.map(Value::to_string).unwrap_or_default().into_bytes())
            .map_err(|_| {
                CommandFailure::usage(format!(
                    "{path:?} contains characters that are invalid in a name"
                ))
            })?;
        let response = tokio::time::timeout(REQUEST_LIMIT, self.client.request::<Value>(request));
        let Ok(answer) = response.await else {
            return Err(self.away(&format!("no answer within {} s", REQUEST_LIMIT.as_secs())));
        };
        match answer {
            Ok(value) => Ok(Some(value)),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
            Err(error) => Err(self.failure(&what, &error)),
        }
    }

    /// Opens a connection to a port of a pod through the API server and the kubelet. If the pod
    /// does not accept it, the returned future has the reason of the kubelet.
    pub(crate) async fn dial_pod(
        &self,
        namespace: &str,
        pod: &str,
        port: u16,
    ) -> Result<(DuplexStream, impl Future<Output = Option<String>> + use<>), CommandFailure> {
        let pods = Api::<Pod>::namespaced(self.client.clone(), namespace);
        let what = format!("port-forward to pod {namespace}/{pod} in {}", self.context);
        let Ok(dialled) = tokio::time::timeout(REQUEST_LIMIT, pods.portforward(pod, &[port])).await
        else {
            return Err(self.away(&format!("no answer within {} s", REQUEST_LIMIT.as_secs())));
        };
        let mut forward = dialled.map_err(|error| self.failure(&what, &error))?;
        let (stream, error) = (forward.take_stream(port), forward.take_error(port));
        stream.zip(error).ok_or_else(|| CommandFailure::failed(format!("{what}: no stream")))
    }

    fn failure(&self, what: &str, error: &kube::Error) -> CommandFailure {
        match error {
            kube::Error::Api(status) => match status.code {
                401 => self.refused(what),
                403 => CommandFailure::new(
                    Exit::NoRights,
                    format!("{what}: {}", clean(&status.message)),
                )
                .next(next_of_forbidden(&self.context, &status.message))
                .denied(),
                code => CommandFailure::failed(format!(
                    "{what} answered {code}: {}",
                    clean(&status.message)
                )),
            },
            kube::Error::Auth(error) => no_credential(&self.context, error),
            kube::Error::SerdeError(_) => {
                CommandFailure::failed(format!("{what}: the response is not one of an API server"))
            }
            kube::Error::UpgradeConnection(error) => CommandFailure::failed(format!(
                "{what}: the API server, or a proxy in front of it, does not open a WebSocket: {}",
                clean(&error.to_string())
            ))
            .next(format!("kubectl --context {} version", self.context)),
            error => match strait_kube_client::ApiError::from_exchange(what, error) {
                strait_kube_client::ApiError::Unauthorized(_) => self.refused(what),
                strait_kube_client::ApiError::Tls(fact) => {
                    self.away(&fact).code(codes::TLS_FAILED.id).next(codes::TLS_FAILED.next)
                }
                error => self.away(&error.to_string()),
            },
        }
    }

    fn refused(&self, what: &str) -> CommandFailure {
        let fact = format!("the credential for {} is not accepted", self.context);
        CommandFailure::new(Exit::NoRights, format!("{what}: {fact}"))
            .next(format!("kubectl --context {} auth whoami", self.context))
    }

    fn away(&self, fact: &str) -> CommandFailure {
        let text = format!(
            "the API server of context {} ({}) can't be reached: {}",
            self.context,
            self.server(),
            clean(fact)
        );
        CommandFailure::new(Exit::Unreachable, text)
            .next(format!("kubectl --context {} version", self.context))
    }

    /// Returns the error for a missing system namespace.
    pub(crate) fn no_namespace(&self, namespace: &str) -> CommandFailure {
        let text = format!("{} has no namespace {namespace}; nothing was changed", self.context);
        CommandFailure::failed(text).next(format!(
            "set --namespace to the control plane's namespace, or create it: kubectl create namespace {namespace}"
        ))
    }
}

/// Creates a client that verifies certificates like the control plane.
fn client(context: &str, config: &Config) -> Result<Client, CommandFailure> {
    let unusable = |fact: String| {
        CommandFailure::failed(format!("context {context} can't be used: {}", clean(&fact)))
            .next(format!("kubectl --context {context} version"))
    };
    if config.proxy_url.is_some() {
        return Err(unusable("it uses a proxy, which is not supported".to_owned()));
    }
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_connect_timeout(Some(CONNECT_LIMIT));
    let failed = |error: &kube::Error| match error {
        kube::Error::Auth(error) => no_credential(context, error),
        error => unusable(root_cause(error)),
    };
    // First, because a credential program is started here, and only once.
    let authorization = config.auth_layer().map_err(|error| failed(&error))?;
    let tls =
        strait_kube_client::connector(config, tcp).map_err(|error| unusable(error.to_string()))?;
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(authorization)
        .layer(config.extra_headers_layer().map_err(|error| failed(&error))?)
        .map_err(BoxError::from)
        .service(HttpClient::builder(TokioExecutor::new()).build(tls));
    Ok(Client::new(service, config.default_namespace.clone()))
}

/// Returns the error for a context without a usable credential. The output of a credential program
/// may contain the credential and is not shown.
fn no_credential(context: &str, error: &AuthError) -> CommandFailure {
    let fact = match error {
        AuthError::AuthExecStart(error) => {
            format!("its credential program can't be started: {error}")
        }
        AuthError::AuthExecRun { out, .. } => {
            let errors = String::from_utf8_lossy(&out.stderr);
            let last = errors.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("see above");
            format!("its credential program failed ({}): {last}", out.status)
        }
        AuthError::AuthExecParse(_) => {
            "its credential program printed no ExecCredential".to_owned()
        }
        error => root_cause(error),
    };
    CommandFailure::new(
        Exit::NoRights,
        format!("no credential for context {context}: {}", clean(&fact)),
    )
    .next(format!("kubectl --context {context} auth whoami"))
}

/// Returns the API path of an object. Supports the kinds that this program creates.
pub(crate) fn path_of(manifest: &Value) -> String {
    let part = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (name, namespace) =
        (part(&manifest["metadata"]["name"]), part(&manifest["metadata"]["namespace"]));
    let rbac = "/apis/rbac.authorization.k8s.io/v1";
    match manifest["kind"].as_str() {
        Some("Namespace") => format!("/api/v1/namespaces/{name}"),
        Some("ServiceAccount") => format!("/api/v1/namespaces/{namespace}/serviceaccounts/{name}"),
        Some("Role") => {
            format!("/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/roles/{name}")
        }
        Some("RoleBinding") => {
            format!("/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/rolebindings/{name}")
        }
        Some("ClusterRole") => format!("{rbac}/clusterroles/{name}"),
        Some("ClusterRoleBinding") => format!("{rbac}/clusterrolebindings/{name}"),
        Some("MutatingWebhookConfiguration") => {
            format!("/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/{name}")
        }
        Some("ValidatingAdmissionPolicy") => {
            format!("/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies/{name}")
        }
        Some("ValidatingAdmissionPolicyBinding") => format!(
            "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings/{name}"
        ),
        Some("Service") => format!("/api/v1/namespaces/{namespace}/services/{name}"),
        Some("EndpointSlice") => {
            format!("/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices/{name}")
        }
        Some("Deployment") => format!("/apis/apps/v1/namespaces/{namespace}/deployments/{name}"),
        Some("PodDisruptionBudget") => {
            format!("/apis/policy/v1/namespaces/{namespace}/poddisruptionbudgets/{name}")
        }
        // A Secret. Items of a list have no kind.
        _ => format!("/api/v1/namespaces/{namespace}/secrets/{name}"),
    }
}

fn pem(certificates: &[Vec<u8>]) -> Vec<u8> {
    use base64::Engine as _;
    let encoded = |der: &Vec<u8>| {
        let text = base64::engine::general_purpose::STANDARD.encode(der);
        let lines: Vec<&str> =
            text.as_bytes().chunks(64).filter_map(|line| std::str::from_utf8(line).ok()).collect();
        format!("-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----\n", lines.join("\n"))
    };
    certificates.iter().map(encoded).collect::<String>().into_bytes()
}

fn der(pem: &[u8]) -> Vec<Vec<u8>> {
    use rustls_pki_types::CertificateDer;
    use rustls_pki_types::pem::PemObject;
    CertificateDer::pem_slice_iter(pem).flatten().map(|der| der.to_vec()).collect()
}

/// Returns whether a Secret defines a member that is read through a relay.
pub(crate) fn is_relayed(secret: &Value) -> bool {
    secret["metadata"]["annotations"][RELAY_ANNOTATION] == "true"
}

/// Returns whether a Secret contains the cluster `id`.
pub(crate) fn holds(secret: &Value, id: &str) -> bool {
    match is_relayed(secret) {
        true => secret["metadata"]["annotations"][CLUSTER_ID_ANNOTATION] == id,
        false => secret["data"].get(id).is_some(),
    }
}

/// Returns the content of a Secret by cluster ID. Values that cannot be decoded are empty.
pub(crate) fn kubeconfigs(secret: &Value) -> Vec<(String, Vec<u8>)> {
    use base64::Engine as _;
    let decode = |value: &Value| {
        let text = value.as_str().unwrap_or_default();
        base64::engine::general_purpose::STANDARD.decode(text).unwrap_or_default()
    };
    let entries = secret["data"].as_object().into_iter().flatten();
    let entries = entries.filter(|_| !is_relayed(secret));
    entries.map(|(key, value)| (key.clone(), decode(value))).collect()
}

/// Returns `namespace/name` of an object.
pub(crate) fn full_name(object: &Value) -> String {
    let part = |name: &str| clean(object["metadata"][name].as_str().unwrap_or_default());
    format!("{}/{}", part("namespace"), part("name"))
}

/// Returns the next step if an API server denies a request.
fn next_of_forbidden(context: &str, message: &str) -> String {
    // No object can be created in a namespace that is being deleted, regardless of rights.
    match message.contains("being terminated") {
        true => format!(
            "wait until that namespace is deleted, and run the command again:\nkubectl --context {context} get namespaces"
        ),
        false => "request that right, or ask a person who has it to apply the output of -o yaml"
            .to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::next_of_forbidden;

    #[test]
    fn terminating_namespace_is_not_a_missing_right() {
        let refused = |why: &str| {
            next_of_forbidden(
                "west",
                &format!("serviceaccounts \"strait-reader\" is forbidden: {why}"),
            )
        };
        let going = refused(
            "unable to create new content in namespace strait-reader because it is being terminated",
        );
        assert!(going.starts_with("wait until"), "{going}");
        assert!(refused("User \"carol\" cannot create resource").starts_with("request that right"));
    }
}
