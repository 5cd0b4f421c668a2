//! The responses that the findings of `strait check` depend on.

use serde::de::DeserializeOwned;

use crate::cli::client::AdminClient;
use crate::cli::failure::{CommandFailure, Exit};
use crate::cli::output::Sent;
use strait_admin_api::{
    CertificateStatus, Cluster, HoldStatus, Mesh, Network, ObjectStatus, Policy, Proxy, Push,
    Replica, ReplicaState, Replicas, Rollout, Service, Source,
};

/// Responses of the control plane. A response that an old control plane does not have is empty.
#[derive(Default)]
pub(in crate::cli) struct CheckInputs {
    pub(in crate::cli) clusters: Sent<Vec<Cluster>>,
    pub(in crate::cli) sources: Vec<Source>,
    pub(in crate::cli) networks: Sent<Vec<Network>>,
    pub(in crate::cli) services: Vec<Service>,
    pub(in crate::cli) mesh: Mesh,
    pub(in crate::cli) policy: Policy,
    /// Status of each configuration object.
    pub(in crate::cli) config: Vec<ObjectStatus>,
    pub(in crate::cli) proxies: Sent<Vec<Proxy>>,
    pub(in crate::cli) push: Push,
    /// The figures of each other replica that answers, with its name.
    pub(in crate::cli) other_processes: Vec<(String, Push)>,
    pub(in crate::cli) certificates: CertificateStatus,
    pub(in crate::cli) hold: Sent<HoldStatus>,
    pub(in crate::cli) rollout: Sent<Rollout>,
    pub(in crate::cli) replicas: Replicas,
    /// Reason why the control plane is not ready, if it has not read all sources yet. Networks,
    /// services, objects and the mesh's settings are unknown then.
    pub(in crate::cli) unready_reason: Option<String>,
}

impl CheckInputs {
    /// Requests all responses.
    pub(in crate::cli) async fn of(client: &AdminClient) -> Result<Self, CommandFailure> {
        let mut unready_reason = None;
        let replicas =
            get::<Replicas>(client, "/debug/replicas").await.unwrap_or_default().into_typed();
        Ok(Self {
            clusters: get(client, "/debug/clusters").await?,
            sources: get::<Vec<Source>>(client, "/debug/sources").await?.into_typed(),
            policy: get::<Policy>(client, "/debug/policy").await?.into_typed(),
            proxies: get(client, "/debug/proxies").await?,
            push: get::<Push>(client, "/debug/push").await?.into_typed(),
            certificates: get::<CertificateStatus>(client, "/debug/certificates")
                .await
                .unwrap_or_default()
                .into_typed(),
            hold: get(client, "/debug/hold").await.unwrap_or_default(),
            rollout: get(client, "/debug/rollout").await.unwrap_or_default(),
            other_processes: other_processes(client, &replicas).await,
            replicas,
            networks: get_if_ready(client, "/debug/networks", &mut unready_reason).await?,
            services: get_if_ready::<Vec<Service>>(client, "/debug/services", &mut unready_reason)
                .await?
                .into_typed(),
            mesh: get_if_ready::<Mesh>(client, "/debug/mesh", &mut unready_reason)
                .await?
                .into_typed(),
            config: get_if_ready::<Vec<ObjectStatus>>(client, "/debug/config", &mut unready_reason)
                .await?
                .into_typed(),
            unready_reason,
        })
    }
}

/// Requests the figures of the other replicas. A replica that does not answer is left out.
async fn other_processes(client: &AdminClient, replicas: &Replicas) -> Vec<(String, Push)> {
    let others = replicas.replicas.iter().filter(|row| row.state == ReplicaState::Answers);
    let mut found = Vec::new();
    for Replica { name, .. } in others {
        if let Ok(answer) = client.get("/debug/push", &[("replica", name)]).await
            && let Ok(push) = Sent::<Push>::of(answer.value)
        {
            found.push((name.clone(), push.into_typed()));
        }
    }
    found
}

async fn get<T: DeserializeOwned>(
    client: &AdminClient,
    path: &str,
) -> Result<Sent<T>, CommandFailure> {
    Sent::of(client.get(path, &[]).await?.value)
}

/// Requests a response that exists only once all sources have been read. Before that, sets
/// `unready_reason`.
async fn get_if_ready<T: DeserializeOwned + Default>(
    client: &AdminClient,
    path: &str,
    unready_reason: &mut Option<String>,
) -> Result<Sent<T>, CommandFailure> {
    match get(client, path).await {
        Err(failure) if failure.exit == Exit::Unhealthy => {
            *unready_reason = Some(failure.message().to_owned());
            Ok(Sent::default())
        }
        found => found,
    }
}
