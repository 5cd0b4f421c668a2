//! A cluster's own claim in the mesh ConfigMap in the system namespace: the trust domain of the
//! workloads. All other settings there belong to the mesh and are not read here.
//!
//! The ConfigMap is requested at intervals instead of watched: it hardly ever changes, and a watch
//! takes memory all the time. A missing permission to read it is not reported, because granting it
//! is optional.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use tokio::sync::watch;
use tokio::time::sleep;

use strait_kube_client::{ApiClient, ApiError, Backoff, null_as_default};
use strait_model::mesh_config::own_trust_domain;

/// The interval of requests. The ConfigMap changes once in years, and each check is two requests to
/// each of thousands of clusters.
const EVERY: Duration = Duration::from_secs(300);
/// The first and the maximum pause after a failure.
const RETRY: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(10));
/// Number of failed responses after which the cluster counts as having no claims, so that it does
/// not wait forever.
const TRIES: u32 = 3;
/// The ConfigMaps. The first that exists is used.
const CONFIG_MAPS: [&str; 2] = ["strait", "istio"];

/// How a cluster's own trust domain is treated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OwnMesh {
    /// The own trust domain is not read: the ConfigMap of the config cluster is the mesh's.
    Unread,
    /// The own trust domain has no effect. If it differs from the trust domain in which the cluster
    /// is read, it is shown with this reason.
    Overruled(Arc<str>),
    /// The own trust domain applies; without one, this trust domain of the mesh applies.
    Counts(Arc<str>),
}

/// The own claims of a cluster.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClusterClaims {
    /// The trust domain of the workloads, if the cluster names one.
    pub trust_domain: Option<Arc<str>>,
    /// Why its claims are not used.
    pub problem: Option<String>,
}

#[derive(Deserialize)]
struct OwnMeshConfigMap {
    #[serde(default, deserialize_with = "null_as_default")]
    data: BTreeMap<String, String>,
}

/// Publishes the cluster's claims, now and on each change. Publishes nothing while the API server
/// is unreachable.
pub(super) async fn follow(
    client: &ApiClient,
    namespace: &str,
    claims: &watch::Sender<Option<ClusterClaims>>,
) {
    let (mut backoff, mut tries) = (Backoff::new(RETRY.0, RETRY.1), 0);
    loop {
        // Boxed: it takes no memory between two checks.
        let own = match Box::pin(read_claims(client, namespace)).await {
            Ok(own) => Some(own),
            Err(ApiError::Forbidden(_) | ApiError::NotFound(_)) => Some(ClusterClaims::default()),
            // The request was not answered.
            Err(
                ApiError::Tls(_)
                | ApiError::Unreachable(_)
                | ApiError::Silent { .. }
                | ApiError::Broken { .. }
                | ApiError::Unauthorized(_),
            ) => None,
            Err(error) => {
                tries += 1;
                let problem = Some(format!("cannot read its mesh ConfigMap: {error}"));
                (tries >= TRIES).then_some(ClusterClaims { trust_domain: None, problem })
            }
        };
        let is_known = own.is_some();
        claims.send_if_modified(|current| {
            // Known claims stay while they cannot be read.
            let new = own.filter(|own| tries == 0 || current.is_none() || own.problem.is_none());
            let differs = new.is_some() && *current != new;
            if differs {
                *current = new;
            }
            differs
        });
        if is_known {
            (backoff, tries) = (Backoff::new(RETRY.0, RETRY.1), 0);
            sleep(EVERY).await;
        } else {
            sleep(backoff.pause(rand::random())).await;
        }
    }
}

async fn read_claims(client: &ApiClient, namespace: &str) -> Result<ClusterClaims, ApiError> {
    let path = |name| format!("/api/v1/namespaces/{namespace}/configmaps/{name}");
    let [ours, istios] = CONFIG_MAPS.map(path);
    // Concurrently: a slow cluster must not have started to report before both are known.
    let found = tokio::join!(
        client.get::<OwnMeshConfigMap>(&ours),
        client.get::<OwnMeshConfigMap>(&istios)
    );
    for (name, found) in CONFIG_MAPS.into_iter().zip([found.0, found.1]) {
        match found {
            Ok(found) => return Ok(read(name, &found.data)),
            Err(ApiError::NotFound(_)) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(ClusterClaims::default())
}

fn read(name: &str, data: &BTreeMap<String, String>) -> ClusterClaims {
    let text = data.get("mesh").map(String::as_str).unwrap_or_default();
    match own_trust_domain(text) {
        Ok(domain) => ClusterClaims { trust_domain: domain.map(Arc::from), problem: None },
        Err(fact) => {
            let problem = Some(format!("its ConfigMap {name} is not used, key mesh: {fact}"));
            ClusterClaims { trust_domain: None, problem }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_trust_domain_is_read() {
        let parse = |text: &str| read("istio", &[("mesh".to_owned(), text.to_owned())].into());
        let domain = |text: &str| parse(text).trust_domain.as_deref().map(str::to_owned);
        assert_eq!(
            domain("trustDomain: west.example\nconnectTimeout: -1s"),
            Some("west.example".into())
        );
        for silent in ["", "trustDomain: ''", "accessLogFile: /dev/stdout"] {
            assert_eq!(parse(silent), ClusterClaims::default(), "{silent}");
        }
        for invalid in ["trustDomain: West", "trustDomain: [a]", "a: b: c"] {
            let problem = parse(invalid).problem.expect(invalid);
            assert!(problem.contains("ConfigMap istio is not used"), "{problem}");
        }
    }
}
