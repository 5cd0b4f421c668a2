//! Raw forms of Ingress and IngressClass (Kubernetes, `networking.k8s.io/v1`).

use std::sync::Arc;

use serde::Deserialize;
use serde_json::Value;

#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct RawIngressClass {
    pub(super) controller: String,
    pub(super) parameters: Option<Value>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct RawIngress {
    pub(super) ingress_class_name: Option<String>,
    pub(super) default_backend: Option<RawIngressBackend>,
    pub(super) rules: Vec<RawIngressRule>,
    pub(super) tls: Vec<RawIngressTls>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct RawIngressRule {
    pub(super) host: String,
    pub(super) http: RawIngressPaths,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct RawIngressPaths {
    pub(super) paths: Vec<RawIngressPath>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct RawIngressPath {
    pub(super) path: String,
    pub(super) path_type: String,
    pub(super) backend: RawIngressBackend,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct RawIngressBackend {
    pub(super) service: Option<RawIngressService>,
    /// A backend of another kind, which is not supported.
    #[serde(rename = "resource")]
    _resource: Option<Value>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct RawIngressService {
    pub(super) name: String,
    pub(super) port: RawIngressPort,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct RawIngressPort {
    pub(super) name: Arc<str>,
    pub(super) number: u32,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct RawIngressTls {
    pub(super) hosts: Vec<String>,
    pub(super) secret_name: String,
}
