//! A provider of external authorization: over HTTP on port 8080, over gRPC on port 9191. It allows
//! paths that end with /ok, and all connections of workloads that it knows. It adds the caller's
//! identity, as reported by its own sidecar, to allowed requests. Ends with its namespace.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};

use serde_json::Value;

use super::HTTP_PORT;
use strait_proto::envoy::envoy::config::core::v3::{HeaderValue, HeaderValueOption};
use strait_proto::envoy::envoy::service::auth::v3 as auth;
use strait_proto::envoy::envoy::r#type::v3::HttpStatus;
use strait_proto::envoy::google::rpc::Status;

/// The gRPC port. The HTTP port is that of all applications.
pub(crate) const GRPC_PORT: u16 = 9191;
/// The header of allowed requests with the asking workload: `URI=…`.
pub(crate) const ASKED_BY: &str = "x-asked-by";
/// The header with the provider that responded.
pub(crate) const ANSWERED_BY: &str = "x-answered-by";

/// The header in which a sidecar reports the identity of a client.
const CLIENT: &str = "x-forwarded-client-cert";

pub(super) fn serve(name: &str) -> Result<Value, String> {
    let runtime = tokio::runtime::Runtime::new().map_err(|error| error.to_string())?;
    let http = TcpListener::bind(("0.0.0.0", HTTP_PORT))
        .map_err(|error| format!("port {HTTP_PORT}: {error}"))?;
    let address = format!("0.0.0.0:{GRPC_PORT}").parse().expect("an address");
    let service = OverGrpc { name: name.to_owned() };
    let service = auth::authorization_server::AuthorizationServer::new(service);
    let server = tonic::transport::Server::builder().add_service(service).serve(address);
    println!("listening");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::scope(|scope| {
                for stream in http.incoming().flatten() {
                    scope.spawn(|| answer(stream, name).ok());
                }
            });
        });
        runtime.block_on(server).map_err(|error| error.to_string())
    })?;
    Ok(Value::Null)
}

fn allows(path: &str) -> bool {
    path.ends_with("/ok")
}

/// Returns the `URI=…` in the sidecar's header about the asking workload.
fn asker(client: &str) -> String {
    let uri = client.split([';', ',']).find(|part| part.starts_with("URI="));
    uri.unwrap_or("nobody").to_owned()
}

/// Answers requests on one connection. Each asks whether a request to a workload is allowed.
fn answer(mut stream: TcpStream, name: &str) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 {
            return Ok(());
        }
        let status = match line.split(' ').nth(1) {
            Some(path) if allows(path) => "200 OK",
            _ => "403 Forbidden",
        };
        let mut client = String::new();
        loop {
            line.clear();
            reader.read_line(&mut line)?;
            let Some((header, value)) = line.trim_end().split_once(':') else { break };
            if header.eq_ignore_ascii_case(CLIENT) {
                client = asker(value.trim());
            }
        }
        let answer = format!(
            "HTTP/1.1 {status}\r\n{ASKED_BY}: {client}\r\n{ANSWERED_BY}: {name}\r\ncontent-length: 0\r\n\r\n"
        );
        stream.write_all(answer.as_bytes())?;
    }
}

struct OverGrpc {
    name: String,
}

#[tonic::async_trait]
impl auth::authorization_server::Authorization for OverGrpc {
    async fn check(
        &self,
        request: tonic::Request<auth::CheckRequest>,
    ) -> Result<tonic::Response<auth::CheckResponse>, tonic::Status> {
        let client = request.metadata().get(CLIENT).and_then(|value| value.to_str().ok());
        let client = asker(client.unwrap_or_default());
        let attributes = request.into_inner().attributes.unwrap_or_default();
        let path = attributes.request.and_then(|request| request.http).map(|http| http.path);
        let allowed = match path.filter(|path| !path.is_empty()) {
            Some(path) => allows(&path),
            None => client.contains("/sa/guarded"),
        };
        let header = |key: &str, value: &str| HeaderValueOption {
            header: Some(HeaderValue {
                key: key.into(),
                value: value.into(),
                ..Default::default()
            }),
            ..Default::default()
        };
        let headers = vec![header(ASKED_BY, &client), header(ANSWERED_BY, &self.name)];
        let (code, answer) = if allowed {
            let passes = auth::OkHttpResponse { headers, ..Default::default() };
            (tonic::Code::Ok, auth::check_response::HttpResponse::OkResponse(passes))
        } else {
            let status = Some(HttpStatus { code: 403 });
            let denied = auth::DeniedHttpResponse { status, ..Default::default() };
            (
                tonic::Code::PermissionDenied,
                auth::check_response::HttpResponse::DeniedResponse(denied),
            )
        };
        Ok(tonic::Response::new(auth::CheckResponse {
            status: Some(Status { code: code as i32, ..Default::default() }),
            http_response: Some(answer),
            ..Default::default()
        }))
    }
}
