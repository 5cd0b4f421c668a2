//! The metrics of Envoy, the application and the agent in one response. The response is streamed; at most one line is
//! buffered.
//!
//! If one source fails, the others are complete: an incomplete line is omitted, and a metric names the failed source.

use std::convert::Infallible;
use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime};

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, Request, header};
use http_body_util::{BodyExt as _, Empty};
use hyper::body::{Body, Frame};
use serde::Deserialize;
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};

use crate::envoy::EnvoyAdmin;
use crate::http_client::{connect_beside_envoy, exchange};
use crate::pages::PageBody;
use crate::problem::Problem;
use crate::renewal::CertificateStatus;

/// The variable in which injection stores the port and path of the application's metrics.
pub(crate) const VARIABLE: &str = "STRAIT_PROMETHEUS_SCRAPE";
/// The maximum size of the metrics of one source, in bytes.
const SOURCE_BYTES_MAX: usize = 64 << 20;
/// The maximum length of a line, in bytes.
const LINE_BYTES_MAX: usize = 64 << 10;
/// The number of chunks buffered for the client. If the client reads slowly, the sources wait.
const CHUNKS: usize = 4;
/// Time limit for the response, if the client sets none.
const LIMIT: Duration = Duration::from_secs(10);

/// The location of the application's metrics.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AppMetrics {
    address: SocketAddr,
    path: String,
}

#[derive(Deserialize)]
struct Annotations {
    port: PortNumber,
    path: Option<String>,
}

/// A number, or a string, because annotations are strings.
#[derive(Deserialize)]
#[serde(untagged)]
enum PortNumber {
    Number(u16),
    Text(String),
}

impl AppMetrics {
    /// Parses `{"port": 8080, "path": "/metrics"}`.
    ///
    /// # Errors
    /// The text is not in this format.
    pub(crate) fn parse(text: &str, pod: IpAddr) -> Result<Self, Problem> {
        let problem = |fact: String| {
            let next = r#"give it as {"port": 8080, "path": "/metrics"}"#;
            Problem::new("STR0964", format!("{VARIABLE} can't be read: {fact}"), next)
        };
        let Annotations { port, path } =
            serde_json::from_str(text).map_err(|error| problem(error.to_string()))?;
        let port = match port {
            PortNumber::Number(port) => port,
            PortNumber::Text(text) => {
                text.parse().map_err(|_| problem(format!("{text:?} is no port")))?
            }
        };
        let path = path.unwrap_or_else(|| "/metrics".to_owned());
        Ok(Self { address: SocketAddr::new(pod, port), path })
    }
}

/// The sources of one response.
pub(crate) struct Scrape {
    pub(crate) admin: EnvoyAdmin,
    pub(crate) app: Option<AppMetrics>,
    pub(crate) certificate: CertificateStatus,
    pub(crate) envoy_starts: u64,
}

impl Scrape {
    /// Returns the body of the response, which the sources fill while it is read.
    pub(crate) fn begin(self, asked: &HeaderMap) -> PageBody {
        let seconds = asked.get("x-prometheus-scrape-timeout-seconds");
        let seconds = seconds.and_then(|value| value.to_str().ok()?.parse::<f64>().ok());
        let limit =
            seconds.filter(|s| (0.1..3600.0).contains(s)).map_or(LIMIT, Duration::from_secs_f64);
        // Ends before the client's limit, so that a source that hangs does not make the entire response late.
        let until = Instant::now() + limit.mul_f64(0.8);
        let (sender, chunks) = mpsc::channel(CHUNKS);
        let mut task = JoinSet::new();
        task.spawn(self.fill(sender, until));
        MetricsBody { chunks, _task: task }.boxed()
    }

    async fn fill(self, sender: mpsc::Sender<Bytes>, until: Instant) {
        let envoy = timeout_at(until, async {
            let stream =
                TcpStream::connect(self.admin.address).await.map_err(|error| error.to_string())?;
            copy(stream, "/stats/prometheus", &sender).await
        });
        let envoy_failed = !matches!(envoy.await, Ok(Ok(())));
        let app_failed = match &self.app {
            None => false,
            Some(app) => {
                let copied = timeout_at(until, async {
                    let stream = connect_beside_envoy(app.address).await;
                    copy(stream.map_err(|error| error.to_string())?, &app.path, &sender).await
                });
                !matches!(copied.await, Ok(Ok(())))
            }
        };
        // The client may have disconnected.
        let _ = sender.send(self.own(envoy_failed, app_failed).into()).await;
    }

    fn own(&self, envoy_failed: bool, app_failed: bool) -> String {
        let mut text = String::new();
        let mut metric = |name: &str, kind: &str, labels: &str, value: u64| {
            if !labels.ends_with("\"application\"}") {
                let _ = writeln!(text, "# TYPE {name} {kind}");
            }
            let _ = writeln!(text, "{name}{labels} {value}");
        };
        if let Some(ends) = self.certificate.ends {
            let seconds = ends.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
            metric("strait_agent_certificate_expiry_timestamp_seconds", "gauge", "", seconds);
        }
        metric("strait_agent_certificates_total", "counter", "", self.certificate.written);
        metric("strait_agent_certificate_failures_total", "counter", "", self.certificate.failures);
        metric("strait_agent_envoy_starts_total", "counter", "", self.envoy_starts);
        let failed = "strait_agent_scrape_failed";
        metric(failed, "gauge", "{source=\"envoy\"}", u64::from(envoy_failed));
        if self.app.is_some() {
            metric(failed, "gauge", "{source=\"application\"}", u64::from(app_failed));
        }
        text
    }
}

/// Forwards complete lines of a source's response.
async fn copy(stream: TcpStream, path: &str, sender: &mpsc::Sender<Bytes>) -> Result<(), String> {
    let request = Request::get(path)
        .header(header::HOST, "localhost")
        .header(header::ACCEPT, "text/plain;version=0.0.4")
        .body(Empty::new())
        .map_err(|error| error.to_string())?;
    exchange(stream, request, |answer| async move {
        if !answer.status().is_success() {
            return Err(format!("it answered {}", answer.status()));
        }
        let mut body = answer.into_body();
        let (mut lines, mut bytes) = (WholeLines::default(), 0);
        while let Some(frame) = body.frame().await {
            let Ok(chunk) = frame.map_err(|error| error.to_string())?.into_data() else { continue };
            bytes += chunk.len();
            if bytes > SOURCE_BYTES_MAX {
                return Err("it sends more than 64 MiB".to_owned());
            }
            send(sender, lines.push(&chunk)?).await?;
        }
        send(sender, lines.end()).await
    })
    .await
}

async fn send(sender: &mpsc::Sender<Bytes>, chunk: Bytes) -> Result<(), String> {
    if chunk.is_empty() {
        return Ok(());
    }
    sender.send(chunk).await.map_err(|_| "the client disconnected".to_owned())
}

/// A buffer that turns chunks of text into complete lines.
#[derive(Debug, Default)]
struct WholeLines {
    rest: BytesMut,
}

impl WholeLines {
    fn push(&mut self, chunk: &[u8]) -> Result<Bytes, String> {
        self.rest.extend_from_slice(chunk);
        let Some(end) = self.rest.iter().rposition(|byte| *byte == b'\n') else {
            let fact = "it sends a line of more than 64 KiB";
            return if self.rest.len() > LINE_BYTES_MAX {
                Err(fact.to_owned())
            } else {
                Ok(Bytes::new())
            };
        };
        Ok(without_end_mark(self.rest.split_to(end + 1).freeze()))
    }

    /// Returns the rest, after a source ended without an error.
    fn end(mut self) -> Bytes {
        if !self.rest.is_empty() {
            self.rest.extend_from_slice(b"\n");
        }
        without_end_mark(self.rest.freeze())
    }
}

/// Removes the end mark of OpenMetrics, which would end the entire response.
fn without_end_mark(lines: Bytes) -> Bytes {
    const MARK: &[u8] = b"# EOF\n";
    match lines.strip_suffix(MARK) {
        Some(before) if before.is_empty() || before.ends_with(b"\n") => lines.slice(..before.len()),
        _ => lines,
    }
}

/// A response body of chunks. Dropping it stops the task that produces them.
struct MetricsBody {
    chunks: mpsc::Receiver<Bytes>,
    _task: JoinSet<()>,
}

impl Body for MetricsBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.chunks.poll_recv(context).map(|chunk| chunk.map(|chunk| Ok(Frame::data(chunk))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_complete_lines_without_the_end_mark_are_forwarded() {
        let mut lines = WholeLines::default();
        assert_eq!(lines.push(b"a 1\nb").expect("short"), "a 1\n");
        assert_eq!(lines.push(b" 2").expect("short"), "");
        assert_eq!(lines.push(b"\nc 3\n# EOF\n").expect("short"), "b 2\nc 3\n");
        assert_eq!(lines.push(b"d 4").expect("short"), "");
        assert_eq!(lines.end(), "d 4\n");
    }

    #[test]
    fn overlong_line_is_an_error() {
        let mut lines = WholeLines::default();
        assert!(lines.push(&[b'x'; LINE_BYTES_MAX]).is_ok());
        assert!(lines.push(b"x").is_err());
    }

    #[test]
    fn annotations_may_be_strings() {
        let pod = IpAddr::from([10, 0, 0, 1]);
        let metrics =
            AppMetrics::parse(r#"{"scrape": "true", "port": "9100"}"#, pod).expect("read");
        assert_eq!(
            metrics,
            AppMetrics { address: "10.0.0.1:9100".parse().expect("one"), path: "/metrics".into() }
        );
        assert!(AppMetrics::parse(r#"{"port": "web"}"#, pod).is_err());
    }
}
