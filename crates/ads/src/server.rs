//! The ADS server: accepts connections, and limits the resources that unauthenticated peers can
//! use.
//!
//! It owns the state that all connections share, and decides when a connection must end.
//! `connection` handles one connection, `stream` one stream.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tonic::service::Routes;

use super::audit;
use super::connection::AcceptedConnection;
use super::health::HealthService;
use super::shared::ServerShared;
pub use super::shared::XdsConfig;
use strait_base::codes;
use strait_base::descriptors::{self, ListeningPort};
use strait_base::task::Supervisor;
use strait_identity::CertificateService;
use strait_proto::health::health_server::HealthServer;
use strait_proto::istio::auth::istio_certificate_service_server::IstioCertificateServiceServer;

/// The maximum size of a certificate request, in bytes: four times the size that is read of one.
const CERTIFICATE_REQUEST_MAX: usize = 64 << 10;
/// The maximum number of file descriptors that are reserved for connections of proxies.
const RESERVE_MAX: usize = 64;
/// The pause between two reports of failed handshakes.
const FAILURES_PAUSE: Duration = Duration::from_secs(1);
/// The pause between two sweeps of the caches of encoded resources. Each sweep checks all entries.
const SWEEP_PAUSE: Duration = Duration::from_secs(60);

/// The pause between two rounds of the audit, and between two checks for streams to audit.
const AUDIT_PAUSE: Duration = Duration::from_secs(1);

/// Accepts connections until the server drains.
pub async fn serve(listener: TcpListener, config: XdsConfig, tasks: Supervisor) {
    let certificates = CertificateService::new(
        config.identity.clone(),
        config.trust_domain.clone(),
        Arc::clone(&config.callers),
        Arc::clone(&config.stats.issued),
        config.certificate_lifetime_max,
    );
    let health = HealthService { context: config.context.clone(), drain: config.drain.clone() };
    let certificates = IstioCertificateServiceServer::new(certificates)
        .max_decoding_message_size(CERTIFICATE_REQUEST_MAX);
    let routes = Routes::new(certificates).add_service(HealthServer::new(health)).prepare();
    let room = Arc::new(Semaphore::new(config.max_connections));
    let reserve = descriptors::share(8, 4, RESERVE_MAX);
    let mut port = ListeningPort::new("xds", listener, reserve, Arc::clone(&config.descriptors));
    let shared = Arc::new(ServerShared::new(config));
    let swept = Arc::clone(&shared);
    tasks.spawn_restarting("sweep", SWEEP_PAUSE, move || Arc::clone(&swept).sweep());
    if let Some(interval) = shared.audit_interval {
        let audited = Arc::clone(&shared);
        let round = move || audit::round(Arc::clone(&audited), interval);
        tasks.spawn_restarting("audit", AUDIT_PAUSE, round);
    }
    let failed = Arc::clone(&shared);
    let told = move || {
        let shared = Arc::clone(&failed);
        async move {
            shared.failures.log_new(&codes::PEER_CERTIFICATE, "TLS handshakes failed");
            shared.refused_calls.log_new(&codes::CALLER_UNKNOWN, "calls refused");
        }
    };
    tasks.spawn_restarting("handshake failures", FAILURES_PAUSE, told);
    loop {
        let accepted = tokio::select! {
            () = shared.drain.cancelled() => return,
            accepted = port.accept() => accepted,
        };
        match accepted {
            Ok((socket, address, seat)) => {
                shared.stats.connections.fetch_add(1, Ordering::Relaxed);
                let Ok(room) = Arc::clone(&room).try_acquire_owned() else {
                    shared.stats.handshake_failed("too many connections");
                    shared.failures.note(address, "too many connections");
                    continue;
                };
                let Some(place) = shared.handshakes.enter(address.ip()) else {
                    shared.stats.handshake_failed("too many handshakes");
                    shared.failures.note(address, "too many handshakes of this source");
                    continue;
                };
                let (shared, routes) = (Arc::clone(&shared), routes.clone());
                let connection =
                    AcceptedConnection { shared, address, routes, room: Some((room, seat)) };
                // Boxed, because the wrapper of a task contains the future twice.
                tasks.spawn("connection", Box::pin(connection.run(socket, place)));
            }
            // The next call of `accept` pauses first.
            Err(_) => drop(shared.stats.accept_errors.fetch_add(1, Ordering::Relaxed)),
        }
    }
}
