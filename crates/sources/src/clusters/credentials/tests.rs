//! Gateways that request a credential again while their API server has a problem.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::json;

use super::*;
use strait_kube_client::testing::loopback_access;
use strait_model::credential::Credential;
use strait_sim::{Fault, Options, SimCluster};

/// A member with a Secret that contains trust roots, and the registry that reads this Secret.
struct World {
    sim: SimCluster,
    clients: watch::Sender<Arc<MemberClients>>,
    credentials: MemberCredentials,
    roots: String,
}

impl World {
    async fn new() -> Self {
        let sim = SimCluster::start("east", Options::default()).await.expect("a free port");
        let made = rcgen::generate_simple_self_signed(["ca".to_owned()]).expect("a certificate");
        let roots = made.cert.pem();
        let secret = json!({
            "apiVersion": "v1", "kind": "Secret",
            "metadata": { "namespace": "edge", "name": "shop" },
            "data": { "ca.crt": STANDARD.encode(&roots) },
        });
        sim.store().apply(secret).expect("a secret");
        let access = loopback_access(&sim.url(), sim.certificate_authority(), sim.token());
        let client = ApiClient::new(&access).expect("usable");
        let clients = watch::Sender::new(Arc::new([("east".into(), client)].into()));
        let credentials = MemberCredentials::new(clients.subscribe(), Supervisor::new());
        Self { sim, clients, credentials, roots }
    }

    /// Restarts the reader with a file.
    fn keep_in(&mut self, file: &std::path::Path) {
        let credentials = MemberCredentials::new(self.clients.subscribe(), Supervisor::new());
        self.credentials = credentials.keeping_in(file.to_owned());
    }

    /// Requests the credential as a gateway with this account. Returns its settled state.
    async fn sent_to(&self, account: &str) -> CredentialState {
        let own = "edge".into();
        let name = CredentialName::parse("kubernetes://shop-cacert", &own).expect("a name");
        let account = format!("spiffe://cluster.local/ns/edge/sa/{account}");
        let account = account.parse().expect("a SPIFFE ID");
        let mut state = self.credentials.follow(&"east".into(), &account, &name);
        let settled =
            tokio::time::timeout(Duration::from_secs(30), state.wait_for(|state| state.settled));
        settled.await.expect("in time").expect("it continues").clone()
    }

    /// Waits until all followers have ended.
    async fn until_abandoned(&self) {
        let waited = tokio::time::timeout(Duration::from_secs(10), async {
            while !lock(&self.credentials.followed).is_empty() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        });
        waited.await.expect("in time");
    }

    fn holds_roots(&self, state: &CredentialState) -> bool {
        let roots = self.roots.as_bytes().to_vec();
        state.current.as_deref() == Some(&Credential::Roots { roots, revoked: None })
    }
}

fn code(state: &CredentialState) -> Option<&str> {
    state.trouble.as_ref().map(|trouble| trouble.code.id)
}

#[tokio::test]
async fn gateway_that_asks_again_while_the_api_server_is_unreachable_gets_the_last_credential() {
    let world = World::new().await;
    let first = world.sent_to("gateway").await;
    assert!(world.holds_roots(&first) && first.trouble.is_none(), "{first:?}");
    world.until_abandoned().await;
    world.sim.fault(Fault::Errors { codes: vec![503] });
    // The answer to the access review has expired.
    world.credentials.access.forget();
    let again = world.sent_to("gateway").await;
    assert!(world.holds_roots(&again), "{again:?}");
    assert_eq!(code(&again), Some("STR0541"), "with the reason");
    let other = world.sent_to("other").await;
    assert_eq!((other.current.clone(), code(&other)), (None, Some("STR0541")), "never reviewed");
    world.until_abandoned().await;
    // The member's client is gone as well.
    world.clients.send_replace(Arc::default());
    assert!(world.holds_roots(&world.sent_to("gateway").await));
}

#[tokio::test]
async fn stored_credential_is_sent_after_a_restart_while_the_api_server_is_unreachable() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("gateway-secrets.json");
    let mut world = World::new().await;
    world.keep_in(&file);
    assert!(world.holds_roots(&world.sent_to("gateway").await));
    let written = tokio::time::timeout(Duration::from_secs(10), async {
        while kept::read(&file).is_ok_and(|stored| stored.is_empty()) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
    written.await.expect("in time");
    let mode = std::os::unix::fs::MetadataExt::mode(&file.metadata().expect("a file"));
    assert_eq!(mode & 0o777, 0o600);
    world.clients.send_replace(Arc::default());
    world.keep_in(&file);
    let restored = world.sent_to("gateway").await;
    assert!(world.holds_roots(&restored), "{restored:?}");
    assert_eq!(code(&restored), Some("STR0541"));
    assert_eq!(world.sent_to("other").await.current, None);
}

#[tokio::test]
async fn deleted_secret_is_not_sent_from_memory() {
    let world = World::new().await;
    assert!(world.holds_roots(&world.sent_to("gateway").await));
    world.until_abandoned().await;
    world.sim.store().delete("Secret", "edge", "shop").expect("it exists");
    let again = world.sent_to("gateway").await;
    assert_eq!(again.current, None);
    world.until_abandoned().await;
    world.clients.send_replace(Arc::default());
    assert_eq!(world.sent_to("gateway").await.current, None);
}
