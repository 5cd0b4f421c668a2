//! A client that sends many requests, on new connections or on a few persistent ones, and counts
//! responses by pod.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{connect, exchange};
use crate::netns::Netns;
use crate::process::Process;
use crate::wait;

/// The requests to send. Passed to the helper as JSON.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Load {
    /// Address and port to dial.
    pub(crate) address: String,
    /// The Host header of HTTP requests. `None` sends one line over TCP.
    pub(crate) host: Option<String>,
    /// The path of HTTP requests.
    pub(crate) path: String,
    /// The number of requests; fewer if `seconds` pass first.
    pub(crate) requests: usize,
    /// The number of concurrent workers.
    pub(crate) concurrency: usize,
    /// The maximum duration in seconds.
    pub(crate) seconds: u64,
    /// The pause between two requests of one worker, in milliseconds.
    pub(crate) pause_ms: u64,
    /// Whether each worker keeps its HTTP connection open.
    pub(crate) keep: bool,
    /// The load ends as soon as this file exists.
    pub(crate) until: Option<PathBuf>,
}

/// The results of a load.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(crate) struct Answers {
    /// The number of requests sent.
    pub(crate) requests: usize,
    /// Responses by `cluster/pod`.
    pub(crate) by: BTreeMap<String, usize>,
    /// Failures by reason. An HTTP status other than 200 is a failure.
    pub(crate) failures: BTreeMap<String, usize>,
    /// One response of each pod.
    pub(crate) samples: BTreeMap<String, Value>,
}

impl Load {
    /// Starts the load in a namespace. Its results are in `NAME.out` of `folder` at the end.
    pub(crate) fn spawn(&self, netns: &Netns, folder: &Path, name: &str) -> Process {
        let specification = serde_json::to_string(self).expect("plain values");
        Process::spawn(netns.helper_command(&["load", &specification]), folder, name)
    }

    /// Returns a load of `requests` TCP connections.
    pub(crate) fn tcp(address: &str, requests: usize) -> Self {
        Self {
            address: address.into(),
            host: None,
            path: "/".into(),
            requests,
            concurrency: 4,
            seconds: 60,
            pause_ms: 0,
            keep: false,
            until: None,
        }
    }

    /// Returns a load of `requests` HTTP requests for `host`.
    pub(crate) fn http(address: &str, host: &str, requests: usize) -> Self {
        Self { host: Some(host.into()), ..Self::tcp(address, requests) }
    }

    /// Sends all requests over this number of persistent connections.
    pub(crate) fn over(self, connections: usize) -> Self {
        Self { concurrency: connections, keep: true, ..self }
    }

    /// Sends requests for this number of seconds, some hundred a second.
    pub(crate) fn lasting(self, seconds: u64) -> Self {
        Self { requests: usize::MAX, concurrency: 2, seconds, pause_ms: 10, ..self }
    }
}

pub(super) fn run(specification: &str) -> Result<Value, String> {
    let load: Load = serde_json::from_str(specification).map_err(|error| error.to_string())?;
    let answers = Mutex::new(Answers::default());
    let started = AtomicUsize::new(0);
    let end = Instant::now() + Duration::from_secs(load.seconds);
    std::thread::scope(|scope| {
        for _ in 0..load.concurrency {
            scope.spawn(|| {
                let mut connection = None;
                while started.fetch_add(1, Ordering::Relaxed) < load.requests
                    && Instant::now() < end
                    && !load.until.as_ref().is_some_and(|file| file.exists())
                {
                    let answer = send_request(&load, &mut connection);
                    answers.lock().expect("no worker panics").count(answer);
                    wait::pause(Duration::from_millis(load.pause_ms));
                }
            });
        }
    });
    let answers = answers.into_inner().expect("no worker panics");
    serde_json::to_value(answers).map_err(|error| error.to_string())
}

impl Answers {
    fn count(&mut self, answer: Result<Value, String>) {
        self.requests += 1;
        match answer {
            Ok(answer) => {
                let text =
                    |key: &str| answer.get(key).and_then(Value::as_str).unwrap_or("?").to_owned();
                let who = format!("{}/{}", text("cluster"), text("pod"));
                *self.by.entry(who.clone()).or_default() += 1;
                self.samples.entry(who).or_insert(answer);
            }
            Err(fact) => *self.failures.entry(fact).or_default() += 1,
        }
    }
}

/// A connection for consecutive requests.
type ReusedConnection = Option<BufReader<TcpStream>>;

fn send_request(load: &Load, connection: &mut ReusedConnection) -> Result<Value, String> {
    let timeout = Duration::from_secs(10);
    let text = match &load.host {
        Some(host) if load.keep => {
            let mut stream = match connection.take() {
                Some(stream) => stream,
                None => BufReader::new(connect(&load.address, timeout)?),
            };
            let (status, body) = exchange_on(&mut stream, host, &load.path)?;
            if status != 200 {
                return Err(format!("{status} {body}"));
            }
            *connection = Some(stream);
            body
        }
        Some(host) => match exchange(&load.address, host, &load.path, "", timeout)? {
            (200, body) => body,
            (status, body) => return Err(format!("{status} {body}")),
        },
        None => {
            let mut stream = connect(&load.address, timeout)?;
            // Envoy needs at least five bytes to rule out the beginning of TLS.
            stream.write_all(b"who is there?\n").map_err(|error| format!("write: {error}"))?;
            let mut line = String::new();
            BufReader::new(stream)
                .read_line(&mut line)
                .map_err(|error| format!("read: {error}"))?;
            line
        }
    };
    if text.is_empty() {
        return Err("closed before an answer".into());
    }
    serde_json::from_str(&text).map_err(|error| format!("{error} in {text:?}"))
}

/// Sends a GET on a persistent connection. Returns status and body.
fn exchange_on(
    stream: &mut BufReader<TcpStream>,
    host: &str,
    path: &str,
) -> Result<(u16, String), String> {
    let request = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n");
    let lost = |error: std::io::Error| format!("on a kept connection: {error}");
    stream.get_mut().write_all(request.as_bytes()).map_err(lost)?;
    let (mut status, mut length, mut line) = (None, 0, String::new());
    loop {
        line.clear();
        if stream.read_line(&mut line).map_err(lost)? == 0 {
            return Err("a kept connection was closed".into());
        }
        match line.trim_end().split_once(':') {
            Some((name, value)) if name.eq_ignore_ascii_case("content-length") => {
                length = value.trim().parse().map_err(|error| format!("{error}"))?;
            }
            Some(_) => {}
            None if status.is_none() => {
                status = line.split(' ').nth(1).and_then(|status| status.parse().ok());
                status.ok_or("no status line")?;
            }
            None => break,
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).map_err(lost)?;
    Ok((status.ok_or("no status line")?, String::from_utf8_lossy(&body).into_owned()))
}
