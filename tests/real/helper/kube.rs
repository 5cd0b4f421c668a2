//! Requests to an API server, with the kube crate.

use std::io::Read;

use serde_json::{Value, json};

use crate::kube::Request;

/// Reads a list of [`Request`]s from stdin, sends them in order, and stops at the first failure.
pub(super) fn requests(kubeconfig: &str) -> Result<Value, String> {
    let mut input = String::new();
    std::io::stdin().read_to_string(&mut input).map_err(|error| error.to_string())?;
    let requests: Vec<Request> = serde_json::from_str(&input).map_err(|error| error.to_string())?;
    let kubeconfig =
        std::fs::read_to_string(kubeconfig).map_err(|error| format!("{kubeconfig}: {error}"))?;
    let kubeconfig = serde_json::from_str(&kubeconfig).map_err(|error| error.to_string())?;
    // The kube crate connects only to the API server's own address.
    rustls::crypto::ring::default_provider()
        .install_default()
        .map_err(|_| "a provider is installed already")?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(|error| error.to_string())?.block_on(async {
        let config = ::kube::Config::from_custom_kubeconfig(kubeconfig, &Default::default()).await;
        let client = ::kube::Client::try_from(config.map_err(|error| error.to_string())?);
        let client = client.map_err(|error| error.to_string())?;
        let mut answers = Vec::new();
        for request in requests {
            let what = format!("{} {}", request.method, request.path);
            let body = request.body.map(|body| body.to_string()).unwrap_or_default();
            let http = http::Request::builder()
                .method(request.method.as_str())
                .uri(request.path)
                .header(
                    "content-type",
                    request.content_type.unwrap_or_else(|| "application/json".into()),
                )
                .body(body.into_bytes())
                .map_err(|error| error.to_string())?;
            let text =
                client.request_text(http).await.map_err(|error| format!("{what}: {error}"))?;
            answers.push(serde_json::from_str(&text).unwrap_or_else(|_| json!(text)));
        }
        Ok(Value::Array(answers))
    })
}
