//! What a cluster says of itself in the mesh ConfigMap of its own system namespace: the trust domain of its
//! workloads. All else in there is the mesh's to say, and is not read here.
//!
//! Asked for now and then, not watched: it hardly ever changes, and a watch takes room all the time. Where the right to
//! read it is missing, that is not reported: granting it is a deliberate choice.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use tokio::sync::watch;
use tokio::time::sleep;

use strait_kube_client::{ApiClient, ApiError, Backoff, null_as_default};
use strait_model::mesh_config::own_trust_domain;

/// How often it is looked at: it changes once in years, and each look is two questions to each of thousands of
/// clusters.
const EVERY: Duration = Duration::from_secs(300);
/// How long to wait after a failure, at first and at most.
const AGAIN: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(10));
/// After so many answers that are none, the cluster is taken to say nothing: it must not wait for it for ever.
const TRIES: u32 = 3;
/// The ConfigMaps, the first that is there counts.
const CONFIG_MAPS: [&str; 2] = ["strait", "istio"];

/// What becomes of what a cluster says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OwnMesh {
    /// It is not read: what the ConfigMap of the config cluster says is the mesh's.
    Unread,
    /// Another trust domain than that in which the cluster is read is shown, with this, why it doesn't count.
    Overruled(Arc<str>),
    /// It counts; what it leaves out is this, the mesh's.
    Counts(Arc<str>),
}

/// What a cluster says of itself.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Own {
    /// The trust domain of its workloads, where it names one.
    pub trust_domain: Option<Arc<str>>,
    /// Why what it says is not used.
    pub problem: Option<String>,
}

#[derive(Deserialize)]
struct OwnMeshConfigMap {
    #[serde(default, deserialize_with = "null_as_default")]
    data: BTreeMap<String, String>,
}

/// Says what the cluster says, now and whenever that changes. Says nothing while it can't be asked.
pub(super) async fn follow(client: &ApiClient, namespace: &str, said: &watch::Sender<Option<Own>>) {
    let (mut backoff, mut tries) = (Backoff::new(AGAIN.0, AGAIN.1), 0);
    loop {
        // Apart: between two looks it takes no room.
        let own = match Box::pin(ask(client, namespace)).await {
            Ok(own) => Some(own),
            Err(ApiError::Forbidden(_) | ApiError::NotFound(_)) => Some(Own::default()),
            // It was not asked at all.
            Err(
                ApiError::Tls(_)
                | ApiError::Unreachable(_)
                | ApiError::Silent { .. }
                | ApiError::Broken { .. }
                | ApiError::Unauthorized(_),
            ) => None,
            Err(error) => {
                tries += 1;
                let problem = Some(format!("its mesh ConfigMap can't be read: {error}"));
                (tries >= TRIES).then_some(Own { trust_domain: None, problem })
            }
        };
        let is_told = own.is_some();
        said.send_if_modified(|held| {
            // What was known once stays while it can't be read.
            let new = own.filter(|own| tries == 0 || held.is_none() || own.problem.is_none());
            let differs = new.is_some() && *held != new;
            if differs {
                *held = new;
            }
            differs
        });
        if is_told {
            (backoff, tries) = (Backoff::new(AGAIN.0, AGAIN.1), 0);
            sleep(EVERY).await;
        } else {
            sleep(backoff.pause(rand::random())).await;
        }
    }
}

async fn ask(client: &ApiClient, namespace: &str) -> Result<Own, ApiError> {
    let path = |name| format!("/api/v1/namespaces/{namespace}/configmaps/{name}");
    let [ours, istios] = CONFIG_MAPS.map(path);
    // At once: a slow cluster has not begun to speak before both have been heard.
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
    Ok(Own::default())
}

fn read(name: &str, data: &BTreeMap<String, String>) -> Own {
    let text = data.get("mesh").map(String::as_str).unwrap_or_default();
    match own_trust_domain(text) {
        Ok(domain) => Own { trust_domain: domain.map(Arc::from), problem: None },
        Err(fact) => {
            let problem = Some(format!("its ConfigMap {name} is not used, key mesh: {fact}"));
            Own { trust_domain: None, problem }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trust_domain_is_read_and_what_else_is_there_is_nobodys_business() {
        let says = |text: &str| read("istio", &[("mesh".to_owned(), text.to_owned())].into());
        let domain = |text: &str| says(text).trust_domain.as_deref().map(str::to_owned);
        assert_eq!(
            domain("trustDomain: west.example\nconnectTimeout: -1s"),
            Some("west.example".into())
        );
        for silent in ["", "trustDomain: ''", "accessLogFile: /dev/stdout"] {
            assert_eq!(says(silent), Own::default(), "{silent}");
        }
        for bad in ["trustDomain: West", "trustDomain: [a]", "a: b: c"] {
            let problem = says(bad).problem.expect(bad);
            assert!(problem.contains("ConfigMap istio is not used"), "{problem}");
        }
    }
}
