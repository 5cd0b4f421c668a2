//! The gRPC health checking service, for probes and load balancers that support it. The status is
//! serving from the time when the mesh is completely known until the server drains. `/readyz` of
//! the admin address returns the same status.

use std::pin::Pin;
use std::sync::Arc;

use futures::stream::{Stream, unfold};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

use strait_mesh::push::PushContext;
use strait_proto::health::health_check_response::ServingStatus;
use strait_proto::health::health_server::Health;
use strait_proto::health::{HealthCheckRequest, HealthCheckResponse};

/// The services whose health can be requested. The empty name means the whole server.
const SERVICES: [&str; 3] = [
    "",
    "envoy.service.discovery.v3.AggregatedDiscoveryService",
    "istio.v1.auth.IstioCertificateService",
];

/// The implementation of the health checking service.
#[derive(Debug, Clone)]
pub(super) struct HealthService {
    pub(super) context: watch::Receiver<Option<Arc<PushContext>>>,
    pub(super) drain: CancellationToken,
}

impl HealthService {
    fn status(&self) -> ServingStatus {
        let ready = self.context.borrow().is_some() && !self.drain.is_cancelled();
        if ready { ServingStatus::Serving } else { ServingStatus::NotServing }
    }

    /// Waits until the status differs from `told`, the status that was sent last.
    async fn changed(&mut self, told: Option<ServingStatus>) -> ServingStatus {
        while Some(self.status()) == told {
            tokio::select! {
                () = self.drain.cancelled(), if !self.drain.is_cancelled() => {}
                changed = self.context.changed() => if changed.is_err() {
                    std::future::pending::<()>().await;
                },
            }
        }
        self.status()
    }
}

fn answer(status: ServingStatus) -> HealthCheckResponse {
    HealthCheckResponse { status: status.into() }
}

#[tonic::async_trait]
impl Health for HealthService {
    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        if !SERVICES.contains(&request.get_ref().service.as_str()) {
            return Err(Status::not_found("no such service"));
        }
        Ok(Response::new(answer(self.status())))
    }

    type WatchStream = Pin<Box<dyn Stream<Item = Result<HealthCheckResponse, Status>> + Send>>;

    async fn watch(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let known = SERVICES.contains(&request.get_ref().service.as_str());
        let statuses = unfold((self.clone(), None), move |(mut health, told)| async move {
            let status = match (known, told) {
                (true, _) => health.changed(told).await,
                // The protocol permits that the service becomes known later. Here, this never
                // happens.
                (false, None) => ServingStatus::ServiceUnknown,
                (false, Some(_)) => std::future::pending().await,
            };
            Some((Ok(answer(status)), (health, Some(status))))
        });
        Ok(Response::new(Box::pin(statuses)))
    }
}
