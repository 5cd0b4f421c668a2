//! The HTTP servers of the agent: health for the kubelet (15021), and health, metrics, the application's probes and two
//! commands (15020).
//!
//! They read the state of other modules. Commands are accepted only from the pod itself.

use std::convert::Infallible;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue};
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tracing::{info, warn};

use crate::envoy::EnvoyAdmin;
use crate::lifecycle::{EnvoyStatus, ShutdownStage};
use crate::probes::{self, AppProbes};
use crate::problem::Problem;
use crate::renewal::CertificateStatus;
use crate::scrape::{AppMetrics, Scrape};

/// The maximum number of connections. Further connections wait to be accepted.
const CONNECTIONS_MAX: usize = 64;
/// Time limit for the header of a request.
const HEAD: Duration = Duration::from_secs(10);

/// The body of a response.
pub(crate) type PageBody = BoxBody<Bytes, Infallible>;

/// The port of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Port {
    /// 15021: only health.
    Health,
    /// 15020: all pages.
    Agent,
}

/// The state that pages show, and the channel for commands.
pub(crate) struct Pages {
    pub(crate) admin: EnvoyAdmin,
    pub(crate) envoy: watch::Receiver<EnvoyStatus>,
    pub(crate) certificate: watch::Receiver<CertificateStatus>,
    pub(crate) shutdown: watch::Sender<ShutdownStage>,
    /// Whether the agent runs an Envoy.
    pub(crate) has_envoy: bool,
    pub(crate) probes: AppProbes,
    pub(crate) app_metrics: Option<AppMetrics>,
    /// The number of the Envoy start that has received its configuration; 0 for none.
    pub(crate) configured: AtomicU64,
}

impl Pages {
    /// Serves one port while it is polled.
    pub(crate) async fn serve(self: &Arc<Self>, listener: TcpListener, port: Port) -> Infallible {
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                accepted = listener.accept(), if connections.len() < CONNECTIONS_MAX => match accepted {
                    Ok((stream, peer)) => {
                        connections.spawn(Arc::clone(self).connection(stream, peer, port));
                    }
                    Err(error) => {
                        warn!("no connection can be accepted: {error}; next: raise the limit of open files");
                        tokio::time::sleep(Duration::from_millis(100)).await;
                    }
                },
                Some(ended) = connections.join_next() => {
                    if let Err(error) = ended {
                        warn!("a request failed unexpectedly: {error}; next: report it");
                    }
                }
            }
        }
    }

    async fn connection(self: Arc<Self>, stream: TcpStream, peer: SocketAddr, port: Port) {
        let service = service_fn(|request: Request<Incoming>| {
            let pages = Arc::clone(&self);
            async move { Ok::<_, Infallible>(pages.answer(&request, peer.ip(), port).await) }
        });
        let mut server = http1::Builder::new();
        server.timer(TokioTimer::new()).header_read_timeout(HEAD).max_buf_size(16 << 10);
        // Errors are ignored: the client notices them.
        let _ = server.serve_connection(TokioIo::new(stream), service).await;
    }

    async fn answer(
        &self,
        request: &Request<Incoming>,
        peer: IpAddr,
        port: Port,
    ) -> Response<PageBody> {
        let path = request.uri().path();
        match (request.method(), path, port) {
            (&Method::GET, "/healthz/ready", _) => self.ready().await,
            (&Method::GET, "/stats/prometheus", Port::Agent) => self.metrics(request.headers()),
            (&Method::GET, _, Port::Agent) if probes::is_path(path) => {
                match self.probes.run(path, request.headers()).await {
                    Some(Ok(status)) => text(status, String::new()),
                    Some(Err(fact)) => text(StatusCode::SERVICE_UNAVAILABLE, fact),
                    None => {
                        text(StatusCode::NOT_FOUND, format!("{path} is not a probe of this pod"))
                    }
                }
            }
            (&Method::POST, "/drain", Port::Agent) => self.ordered(peer, ShutdownStage::Drain),
            (&Method::POST, "/quitquitquit", Port::Agent) => self.ordered(peer, ShutdownStage::End),
            _ => text(StatusCode::NOT_FOUND, format!("{} {path} does not exist", request.method())),
        }
    }

    async fn ready(&self) -> Response<PageBody> {
        match self.is_ready().await {
            Ok(()) => text(StatusCode::OK, "ready".to_owned()),
            Err(fact) => text(StatusCode::SERVICE_UNAVAILABLE, fact),
        }
    }

    async fn is_ready(&self) -> Result<(), String> {
        if *self.shutdown.borrow() > ShutdownStage::Serve {
            return Err("the proxy drains".to_owned());
        }
        if self.certificate.borrow().ends.is_none() {
            return Err("there is no certificate yet".to_owned());
        }
        if !self.has_envoy {
            return Ok(());
        }
        let EnvoyStatus { starts, runs } = *self.envoy.borrow();
        if !runs {
            return Err("Envoy is not running".to_owned());
        }
        self.admin.live().await.map_err(|fact| format!("Envoy is not live: {fact}"))?;
        if self.configured.load(Ordering::Relaxed) != starts {
            self.admin.configured().await.map_err(|fact| format!("Envoy has {fact}"))?;
            self.configured.store(starts, Ordering::Relaxed);
        }
        Ok(())
    }

    fn metrics(&self, headers: &HeaderMap) -> Response<PageBody> {
        let scrape = Scrape {
            admin: self.admin,
            app: self.app_metrics.clone(),
            certificate: self.certificate.borrow().clone(),
            envoy_starts: self.envoy.borrow().starts,
        };
        let mut answer = Response::new(scrape.begin(headers));
        let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
        answer.headers_mut().insert(CONTENT_TYPE, kind);
        answer
    }

    fn ordered(&self, peer: IpAddr, stage: ShutdownStage) -> Response<PageBody> {
        if !is_the_pod(peer) {
            let fact = format!("{peer} is not this pod: send the request from 127.0.0.1");
            return text(StatusCode::FORBIDDEN, fact);
        }
        info!(?stage, "requested from the pod");
        self.shutdown.send_if_modified(|now| {
            let more = *now < stage;
            *now = (*now).max(stage);
            more
        });
        text(StatusCode::OK, "ok".to_owned())
    }
}

/// Returns whether a process of the pod sent the request: from the loopback, but not from the address that Envoy uses
/// to forward requests of others.
fn is_the_pod(peer: IpAddr) -> bool {
    let peer = peer.to_canonical();
    peer.is_loopback() && peer != IpAddr::V4(Ipv4Addr::new(127, 0, 0, 6))
}

fn text(status: StatusCode, text: String) -> Response<PageBody> {
    let mut answer = Response::new(Full::new(Bytes::from(text + "\n")).boxed());
    *answer.status_mut() = status;
    answer
}

/// Binds a port.
///
/// # Errors
/// The address can't be bound.
pub(crate) async fn bind(address: SocketAddr, flag: &str) -> Result<TcpListener, Problem> {
    TcpListener::bind(address).await.map_err(|error| {
        let fact = format!("cannot listen on {flag} {address}: {error}");
        Problem::new("STR0959", fact, "find the process that uses the port: ss -ltnp")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_accepted_from_loopback_but_not_through_envoy() {
        let from = |text: &str| is_the_pod(text.parse().expect("an address"));
        assert!(from("127.0.0.1") && from("::1") && from("::ffff:127.0.0.1"));
        assert!(!from("127.0.0.6") && !from("::ffff:127.0.0.6") && !from("10.0.0.1"));
    }
}
