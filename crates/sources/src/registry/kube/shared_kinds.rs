//! Reads the ServiceExports and ServiceImports of a cluster, whose kinds may be absent, change their
//! version, or be removed.
//!
//! A server that removes a kind deletes its objects first, each with an event like any deletion. This
//! must not withdraw the services that the cluster exports, so a deletion of an export is passed on once
//! the server has confirmed that it still has the kind.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::time::sleep;

use super::index::{IndexEvent, IndexedKind, ReadAs};
use super::mcs::{self, Export, Import};
use super::scope::Scope;
use super::write_plan::SharingWanted;
use strait_kube_client::{ApiClient, ApiError, Backoff, ListSelection, ReadLimits, WatchEvent};

/// How often to check for a better version of the multi-cluster services API, and the pauses if the
/// server has none and if it is unreachable.
const LOOK: Duration = Duration::from_secs(300);
const ABSENT: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(120));
const AGAIN: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(30));
/// The delay from a deletion to the request that confirms the kind. The discovery of a real API
/// server shows the removal of a kind within some milliseconds.
const CONFIRMED_AFTER: Duration = Duration::from_millis(500);
/// Capacity of the channel of exports that wait for a confirmation.
const EXPORTS_MAX: usize = 256;

/// Reads exports and imports, in one namespace or in the whole cluster, in the version that the server
/// has. The version can change in the meantime. While the server has none, or removes it, the previous
/// exports stay.
pub(super) async fn read<E>(
    (client, scope, limits): (&ApiClient, &Scope, ReadLimits),
    namespace: Option<&Arc<str>>,
    sink: &mpsc::Sender<E>,
    version: &watch::Sender<Option<&'static str>>,
    mut wanted: SharingWanted,
) where
    E: From<IndexEvent<Export>> + From<IndexEvent<Import>>,
{
    wanted.wait().await;
    let (mut absent, mut again) = (ABSENT, AGAIN);
    loop {
        let pause = match mcs::served(client).await {
            Ok(served) => {
                version.send_replace(Some(served));
                // Boxed here, so that clusters without these kinds need no memory for it.
                let how = (client, scope, limits);
                Box::pin(read_version(how, namespace, sink, served)).await;
                if sink.is_closed() {
                    return;
                }
                continue;
            }
            Err(error) => {
                let pause = if matches!(error, ApiError::NotFound(_)) {
                    absent.pause(rand::random())
                } else {
                    // It may have been installed while the server was unreachable.
                    absent = ABSENT;
                    again.pause(rand::random())
                };
                let failed = [
                    E::from(IndexEvent::<Export>::Failed(error.clone())),
                    E::from(IndexEvent::<Import>::Failed(error)),
                ];
                for failed in failed {
                    if sink.send(failed).await.is_err() {
                        return;
                    }
                }
                pause
            }
        };
        sleep(pause).await;
    }
}

/// Reads both kinds in one version until the server has a better one or removes it.
async fn read_version<E>(
    (client, scope, limits): (&ApiClient, &Scope, ReadLimits),
    namespace: Option<&Arc<str>>,
    sink: &mpsc::Sender<E>,
    served: &'static str,
) where
    E: From<IndexEvent<Export>> + From<IndexEvent<Import>>,
{
    let selection = |kind: IndexedKind| ListSelection {
        namespace: namespace.map(ToString::to_string),
        ..ListSelection::all(mcs::GROUP, served, kind.plural())
    };
    let (exports, imports) =
        (selection(IndexedKind::ServiceExports), selection(IndexedKind::ServiceImports));
    let (unconfirmed, received) = mpsc::channel(EXPORTS_MAX);
    tokio::select! {
        () = client.read(ReadAs::<Export>::with(scope), exports, limits, &unconfirmed) => {}
        () = client.read(ReadAs::<Import>::with(scope), imports, limits, sink) => {}
        () = confirm(client, received, sink) => {}
        () = replaced(client, served) => {}
    }
}

/// Forwards events of exports, and deletions once they are confirmed. Returns when the server removes
/// the kind, or when the receiver of events is dropped.
async fn confirm<E: From<IndexEvent<Export>>>(
    client: &ApiClient,
    mut received: mpsc::Receiver<IndexEvent<Export>>,
    sink: &mpsc::Sender<E>,
) {
    let mut has_list = false;
    // The number of waiting events that the last confirmation includes.
    let mut confirmed = 0;
    while let Some(event) = received.recv().await {
        // The kind existed just before the first list.
        if confirmed > 0 {
            confirmed -= 1;
        } else if has_list && may_delete(&event) {
            sleep(CONFIRMED_AFTER).await;
            confirmed = received.len();
            if !has_kind(client).await {
                return;
            }
        }
        has_list |= matches!(event, WatchEvent::Restarted { .. });
        if sink.send(event.into()).await.is_err() {
            return;
        }
    }
}

/// Whether an event can remove an export from the index.
fn may_delete(event: &IndexEvent<Export>) -> bool {
    matches!(event, WatchEvent::Deleted(_) | WatchEvent::Restarted { .. })
}

/// Whether the server has the kind and does not remove it. Waits for an answer.
async fn has_kind(client: &ApiClient) -> bool {
    let mut again = AGAIN;
    loop {
        match mcs::served(client).await {
            Ok(_) => return true,
            Err(ApiError::NotFound(_)) => return false,
            Err(_) => sleep(again.pause(rand::random())).await,
        }
    }
}

/// Waits until the server has a better version.
async fn replaced(client: &ApiClient, served: &str) {
    loop {
        sleep(LOOK).await;
        if mcs::served(client).await.is_ok_and(|now| now != served) {
            return;
        }
    }
}
