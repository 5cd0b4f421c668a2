//! The responses that the findings of `strait check` depend on.

use serde_json::Value;

use crate::cli::client::AdminClient;
use crate::cli::failure::{CommandFailure, Exit};

/// Responses of the control plane.
#[derive(Default)]
pub(in crate::cli) struct CheckInputs {
    pub(in crate::cli) clusters: Value,
    pub(in crate::cli) sources: Value,
    pub(in crate::cli) networks: Value,
    pub(in crate::cli) services: Value,
    pub(in crate::cli) mesh: Value,
    pub(in crate::cli) policy: Value,
    /// Status of each configuration object.
    pub(in crate::cli) config: Value,
    pub(in crate::cli) proxies: Value,
    pub(in crate::cli) push: Value,
    /// State of the CA; null if the control plane is too old to report it.
    pub(in crate::cli) certificates: Value,
    /// Held configuration; null if the control plane is too old to report it.
    pub(in crate::cli) hold: Value,
    /// State of a gradual rollout; null if the control plane is too old to report it.
    pub(in crate::cli) rollout: Value,
    /// The replicas of the control plane; null if it is too old to report them.
    pub(in crate::cli) replicas: Value,
    /// Reason why the control plane is not ready, if it has not read all sources yet. Networks,
    /// services, objects and the mesh's settings are unknown then.
    pub(in crate::cli) waits: Option<String>,
}

impl CheckInputs {
    /// Requests all responses.
    pub(in crate::cli) async fn of(client: &AdminClient) -> Result<Self, CommandFailure> {
        let get = async |path: &str| Ok::<_, CommandFailure>(client.get(path, &[]).await?.value);
        let mut answers = Self {
            clusters: get("/debug/clusters").await?,
            sources: get("/debug/sources").await?,
            policy: get("/debug/policy").await?,
            proxies: get("/debug/proxies").await?,
            push: get("/debug/push").await?,
            certificates: get("/debug/certificates").await.unwrap_or_default(),
            hold: get("/debug/hold").await.unwrap_or_default(),
            rollout: get("/debug/rollout").await.unwrap_or_default(),
            replicas: get("/debug/replicas").await.unwrap_or_default(),
            ..Self::default()
        };
        let mut waits = None;
        for (path, into) in [
            ("/debug/networks", &mut answers.networks),
            ("/debug/services", &mut answers.services),
            ("/debug/mesh", &mut answers.mesh),
            ("/debug/config", &mut answers.config),
        ] {
            match get(path).await {
                Ok(value) => *into = value,
                Err(failure) if failure.exit == Exit::Unhealthy => {
                    waits = Some(failure.message().to_owned());
                }
                Err(failure) => return Err(failure),
            }
        }
        Ok(Self { waits, ..answers })
    }
}
