//! Small programs that the rig runs inside namespaces, as `real helper NAME ...`: the echo server
//! behind each sidecar, the client that counts responses by pod, a GET for Envoy's admin interface,
//! requests to an API server, an ADS server that breaks its stream, and a provider of external
//! authorization.
//!
//! Each prints one JSON value on stdout, or fails with a reason on stderr.

mod ads;
mod authorizer;
mod echo;
mod kube;
mod load;
mod tls;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::ExitCode;
use std::time::Duration;

use serde_json::Value;

/// The first argument that selects a helper in this test binary.
pub(crate) const COMMAND: &str = "helper";

pub(crate) use ads::{
    ADDRESS as ADS_ADDRESS, BROKEN as ADS_BROKEN, LISTED as ADS_LISTED, NAME as ADS_NAME,
};
pub(crate) use authorizer::{ANSWERED_BY, ASKED_BY, GRPC_PORT};
pub(crate) use echo::{HTTP_PORT, TCP_PORT};
pub(crate) use load::{Answers, Load};
pub(crate) use tls::Caller;

/// Runs the helper that `arguments` select.
pub(crate) fn main(arguments: &[String]) -> ExitCode {
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = match arguments.as_slice() {
        ["echo", name, cluster] => echo::serve(name, cluster),
        ["load", specification] => load::run(specification),
        ["get", address, path, token @ ..] => get(address, path, token).map(Value::String),
        ["kube", kubeconfig] => kube::requests(kubeconfig),
        ["tls"] => tls::call(),
        ["ads"] => ads::serve(),
        ["authorizer", name] => authorizer::serve(name),
        _ => Err(format!("no such helper: {arguments:?}")),
    };
    match outcome {
        Ok(answer) => {
            println!("{answer}");
            ExitCode::SUCCESS
        }
        Err(fact) => {
            eprintln!("{fact}");
            ExitCode::FAILURE
        }
    }
}

/// Makes a blocking HTTP/1.1 exchange on a new connection. Returns status and body.
fn exchange(
    address: &str,
    host: &str,
    path: &str,
    headers: &str,
    timeout: Duration,
) -> Result<(u16, String), String> {
    let mut stream = connect(address, timeout)?;
    let request =
        format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{headers}\r\n");
    stream.write_all(request.as_bytes()).map_err(|error| format!("write: {error}"))?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).map_err(|error| format!("read: {error}"))?;
    let answer = String::from_utf8_lossy(&answer);
    let (head, body) = answer.split_once("\r\n\r\n").ok_or("closed before an answer")?;
    let status =
        head.split(' ').nth(1).and_then(|status| status.parse().ok()).ok_or("no status line")?;
    let chunked = head.to_ascii_lowercase().contains("\r\ntransfer-encoding: chunked");
    Ok((status, if chunked { unchunk(body) } else { body.to_owned() }))
}

fn connect(address: &str, timeout: Duration) -> Result<TcpStream, String> {
    let address = address.parse().map_err(|error| format!("{address}: {error}"))?;
    let stream = TcpStream::connect_timeout(&address, timeout)
        .map_err(|error| format!("connect: {error}"))?;
    stream.set_read_timeout(Some(timeout)).map_err(|error| error.to_string())?;
    Ok(stream)
}

fn unchunk(mut body: &str) -> String {
    let mut whole = String::new();
    while let Some((size, rest)) = body.split_once("\r\n") {
        let size = usize::from_str_radix(size.trim(), 16).unwrap_or(0);
        let Some(chunk) = rest.get(..size).filter(|_| size > 0) else { break };
        whole.push_str(chunk);
        body = rest.get(size + 2..).unwrap_or_default();
    }
    whole
}

/// Makes a GET request, with the bearer token in `token`, if any.
fn get(address: &str, path: &str, token: &[&str]) -> Result<String, String> {
    let headers: String =
        token.iter().map(|token| format!("Authorization: Bearer {token}\r\n")).collect();
    let (status, body) = exchange(address, "localhost", path, &headers, Duration::from_secs(10))?;
    if status == 200 { Ok(body) } else { Err(format!("{status} {body}")) }
}
