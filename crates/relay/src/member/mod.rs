//! The side of a relay in the member cluster.
//!
//! [`run`] obtains a certificate (`keeper.rs`, `enrol.rs`), dials the hub (`dial.rs`) as often as `connections.rs`
//! decides, and serves the hub's requests on each connection (`serve.rs`), if `list.rs` permits them. Invariants:
//!
//! - A refused request opens no connection to the API server and changes nothing.
//! - The credential of the relay goes to the API server only, and its private key never leaves the relay and its store.
//! - A relay has no state besides its certificate: everything else ends with a connection.

mod api_server;
mod certificate;
mod connections;
mod dial;
mod enrol;
mod keeper;
mod list;
mod serve;
mod store;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;

use std::future::Future;
use std::sync::Arc;
use std::time::Instant;

use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use strait_base::codes;
use strait_base::task::until;
use strait_kube_client::{Access, AccessError};
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tracing::{debug, info, warn};

use self::api_server::ApiServer;
use self::certificate::RelayCertificate;
use self::connections::{ConnectionAction, ConnectionId, HubConnections};
pub use self::dial::{HostPort, HttpProxy, HubDialler};
use self::keeper::CertificateKeeper;
pub use self::keeper::EnrolCredential;
pub use self::list::RequestList;
use self::serve::{HubReplica, RequestForwarder};
pub use self::store::CertificateStore;
use crate::wire::ALPN;

/// The settings of a relay.
#[derive(Debug, Clone)]
pub struct RelaySettings {
    /// The ID of the member.
    pub cluster: String,
    /// The name of this relay's pod or host.
    pub instance: String,
    /// The addresses of the hub, at least one.
    pub hubs: Vec<HostPort>,
    /// How the hub is dialled.
    pub dialler: HubDialler,
    /// The credential for the first certificate.
    pub credential: EnrolCredential,
    /// Where certificates are stored.
    pub store: CertificateStore,
    /// The requests that are forwarded.
    pub list: RequestList,
}

/// Runs a relay until `stop`. `access` contains the API server of its cluster. `ready` is the number of
/// connections on which the hub has said hello.
///
/// # Errors
/// Fails if `access` is unusable. All later errors are only logged.
pub async fn run(
    settings: RelaySettings,
    access: watch::Receiver<Access>,
    ready: watch::Sender<usize>,
    stop: impl Future<Output = ()> + Send,
) -> Result<(), AccessError> {
    let RelaySettings { cluster, instance, hubs, dialler, credential, store, list } = settings;
    let api = Arc::new(ApiServer::new(access)?);
    let (closed_early, certificates) = (Arc::new(Notify::new()), watch::Sender::new(None));
    let (certificate, outdated) = (certificates.subscribe(), watch::Sender::new(None));
    let keeper = CertificateKeeper {
        cluster: cluster.clone(),
        hubs: hubs.clone(),
        dialler: dialler.clone(),
        credential,
        store,
        api: Arc::clone(&api),
        closed_early: Arc::clone(&closed_early),
        outdated: outdated.subscribe(),
        current: certificates,
    };
    let service = Arc::new(RequestForwarder::new(api, list, cluster, instance));
    let relay = Relay {
        connections: HubConnections::new(hubs.len()),
        hubs,
        dialler,
        service,
        certificate,
        outdated,
        closed_early,
        ready,
        stops: Vec::new(),
        attempts: FuturesUnordered::new(),
    };
    let keep: BoxFuture<'_, ()> = Box::pin(keeper.run());
    let serve: BoxFuture<'_, ()> = Box::pin(relay.run(stop));
    tokio::select! {
        () = keep => {}
        () = serve => {}
    }
    Ok(())
}

/// The certificate that the hub asks to renew.
type OutdatedCertificate = watch::Sender<Option<Arc<RelayCertificate>>>;

/// The replica of the hub that has said hello on a connection.
type HelloEvent = (ConnectionId, HubReplica);

/// How a connection ended: the reason, and whether TLS was established.
struct Ended {
    id: ConnectionId,
    hub: usize,
    fact: String,
    was_connected: bool,
}

/// The connections of a relay.
struct Relay {
    connections: HubConnections,
    hubs: Vec<HostPort>,
    dialler: HubDialler,
    service: Arc<RequestForwarder>,
    certificate: watch::Receiver<Option<Arc<RelayCertificate>>>,
    outdated: OutdatedCertificate,
    closed_early: Arc<Notify>,
    ready: watch::Sender<usize>,
    /// Closes each connection when it is dropped.
    stops: Vec<(ConnectionId, oneshot::Sender<()>)>,
    attempts: FuturesUnordered<BoxFuture<'static, Ended>>,
}

impl Relay {
    async fn run(mut self, stop: impl Future<Output = ()> + Send) {
        let (events, mut received) = mpsc::unbounded_channel();
        let mut stop = std::pin::pin!(stop);
        loop {
            let certificate = self.certificate.borrow_and_update().clone();
            if let Some(certificate) = certificate {
                self.act(&certificate, &events);
            }
            let next = self.connections.next();
            tokio::select! {
                () = &mut stop => break,
                Some((id, replica)) = received.recv() => {
                    let name = replica.name.clone();
                    if self.connections.hello(id, replica) {
                        info!(replica = name, "connected to the hub");
                    }
                }
                Some(ended) = self.attempts.next() => self.ended(ended),
                Ok(()) = self.certificate.changed() => self.connections.outdate(),
                () = until(next) => {}
            }
            self.ready.send_replace(self.connections.ready());
        }
        self.stops.clear();
        // Each connection limits the time of its end.
        while self.attempts.next().await.is_some() {}
    }

    fn act(
        &mut self,
        certificate: &Arc<RelayCertificate>,
        events: &mpsc::UnboundedSender<HelloEvent>,
    ) {
        for action in self.connections.act(Instant::now(), rand::random()) {
            match action {
                ConnectionAction::Dial { id, hub } => {
                    let (stop, stopped) = oneshot::channel();
                    self.stops.push((id, stop));
                    let attempt = connect(
                        self.dialler.clone(),
                        (hub, self.hubs[hub].clone()),
                        (Arc::clone(certificate), self.outdated.clone()),
                        Arc::clone(&self.service),
                        (id, events.clone()),
                        stopped,
                    );
                    self.attempts.push(Box::pin(attempt));
                }
                ConnectionAction::Close(id) => {
                    debug!(connection = id, "closing a surplus connection");
                    self.stops.retain(|(open, _)| *open != id);
                }
            }
        }
    }

    fn ended(&mut self, Ended { id, hub, fact, was_connected }: Ended) {
        let was_wanted = self.stops.iter().any(|(open, _)| *open == id);
        self.stops.retain(|(open, _)| *open != id);
        let had_hello = self.connections.ended(id, Instant::now(), rand::random());
        if !was_wanted {
            return;
        }
        let hub = &self.hubs[hub];
        if had_hello {
            info!(%hub, "the connection to the hub has ended: {fact}");
        } else if was_connected && self.connections.is_accepted() {
            // Another connection proves that the certificate is accepted.
            info!(%hub, "the hub closed the connection before its first request, probably because it has enough connections: {fact}");
        } else if was_connected {
            warn!(
                %hub,
                "{}: the hub closed the connection before its first request, probably because it does not accept the relay's certificate: {fact}",
                codes::RELAY_CERTIFICATE
            );
            self.closed_early.notify_one();
        } else {
            warn!(%hub, "{}: no connection to the hub: {fact}", codes::RELAY_HUB);
        }
    }
}

/// Dials the hub and serves its requests, until the connection ends or `stopped`.
async fn connect(
    dialler: HubDialler,
    (hub, address): (usize, HostPort),
    (certificate, outdated): (Arc<RelayCertificate>, OutdatedCertificate),
    service: Arc<RequestForwarder>,
    (id, events): (ConnectionId, mpsc::UnboundedSender<HelloEvent>),
    mut stopped: oneshot::Receiver<()>,
) -> Ended {
    let ended = |fact: String, was_connected| Ended { id, hub, fact, was_connected };
    let dialled = tokio::select! {
        dialled = Box::pin(dialler.connect(&address, ALPN, Some(&certificate))) => dialled,
        _ = &mut stopped => return ended("stopped".to_owned(), false),
    };
    let stream = match dialled {
        Ok(stream) => stream,
        Err(error) => return ended(error.to_string(), false),
    };
    let on_hello = move |replica, is_to_renew| {
        // Each connection of an outdated certificate asks. The present one is renewed once.
        if is_to_renew {
            outdated.send_replace(Some(Arc::clone(&certificate)));
        }
        // The receiver ends together with the relay.
        let _ = events.send((id, replica));
    };
    let stop = async {
        let _ = stopped.await;
    };
    match service.serve(stream, on_hello, stop).await {
        Ok(()) => ended("closed".to_owned(), true),
        Err(error) => ended(enrol::with_cause(&error), true),
    }
}
