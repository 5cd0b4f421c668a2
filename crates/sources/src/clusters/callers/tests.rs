use std::time::Duration;

use futures::FutureExt as _;

use super::super::status::ClusterState;
use super::*;
use strait_identity::token::TokenPod;
use strait_identity::token_signer::Signer;
use strait_model::KnownCluster;
use strait_model::testing::member;

const ISSUER: &str = "https://kubernetes.default.svc";

/// Reports that every member runs pod `web-0` of `shop`, with this UID.
#[derive(Debug)]
struct EachRuns(&'static str);

impl RunningPods for EachRuns {
    fn has_pod(&self, _: &ClusterId, id: &SpiffeId, pod: &TokenPod) -> bool {
        id.service_account() == "web" && &*pod.name == "web-0" && *pod.uid == *self.0
    }

    fn has_account(&self, _: &ClusterId, id: &SpiffeId) -> bool {
        id.service_account() == "web"
    }

    fn root_namespace(&self) -> Option<String> {
        Some("mesh-root".to_owned())
    }
}

/// Creates members `config`, `east` and `west`, whose API servers are all unreachable, with the
/// keys of some.
fn callers(keys: &[(&str, &Signer)], uid: &'static str, policy: &str) -> MemberCallers {
    let config = KnownCluster { config: true, ..member(None) };
    let clusters = [("config", config), ("east", member(None)), ("west", member(None))];
    let clusters = clusters.map(|(id, cluster)| (ClusterId::from(id), cluster)).into();
    let keys = keys.iter().map(|(id, signer)| (ClusterId::from(*id), Arc::new(signer.keys())));
    MemberCallers {
        config: CallersConfig {
            known: watch::channel(Arc::new(KnownClusters { clusters })).1,
            settled: watch::channel(MembersSettled::All).1,
            clients: watch::channel(Arc::default()).1,
            policy: watch::channel(Arc::new(Policy::parse(policy).expect("a policy"))).1,
            statuses: watch::channel(Arc::default()).1,
            pods: Arc::new(EachRuns(uid)),
            audiences: vec!["istio-ca".to_owned()],
            aliases: [(ClusterId::from("Kubernetes"), ClusterId::from("east"))].into(),
            system_namespace: "strait-system".to_owned(),
            outside: None,
            remembered: MemberKeys::new(),
        },
        keys: watch::channel(Arc::new(keys.collect())).1,
        requests: Arc::default(),
        reviews: Reviews::default(),
    }
}

const NO_RULES: &str = "apiVersion: strait.dev/v1\nkind: Policy\n";

/// Returns the caller, or the code and the kind of the refusal.
async fn verdict(
    callers: &MemberCallers,
    token: &str,
    cluster: &str,
) -> Result<String, (&'static str, RefusalKind)> {
    let found = callers.verify(token, &ClusterId::from(cluster)).await;
    let found = found.map(|caller| caller.identity().to_string());
    found.map_err(|refusal| (refusal.code.id, refusal.kind))
}

#[tokio::test]
async fn known_pod_is_verified_with_only_the_keys_of_its_member() {
    let [east, west] = ["k1", "k2"].map(|id| Signer::new(ISSUER, id));
    let callers = callers(&[("east", &east), ("west", &west)], "pod-uid", NO_RULES);
    let now = SystemTime::now();
    let token = east.sign(&east.claims(now));
    let web = || Ok("spiffe://cluster.local/ns/shop/sa/web".to_owned());
    assert_eq!(verdict(&callers, &token, "east").await, web());
    assert_eq!(verdict(&callers, &token, "Kubernetes").await, web(), "an alias");
    let unknown = Err(("STR0520", RefusalKind::Unauthenticated));
    assert_eq!(verdict(&callers, &token, "north").await, unknown);
    // The key may be new in `west`, which cannot be reached.
    let later = Err(("STR0523", RefusalKind::Unavailable));
    assert_eq!(verdict(&callers, &token, "west").await, later);
    let foreign = Signer::new("https://other.example", "k1");
    let token = foreign.sign(&foreign.claims(now));
    let refused = Err(("STR0522", RefusalKind::Unauthenticated));
    assert_eq!(verdict(&callers, &token, "east").await, refused, "from another issuer");
    let mut ended = east.claims(now);
    ended["exp"] = ended["iat"].clone();
    assert_eq!(verdict(&callers, &east.sign(&ended), "east").await, refused, "it has expired");
}

#[tokio::test]
async fn token_that_cannot_be_checked_may_be_retried() {
    let [east, west] = ["k1", "k2"].map(|id| Signer::new(ISSUER, id));
    let later = Err(("STR0523", RefusalKind::Unavailable));
    let now = SystemTime::now();
    let token = east.sign(&east.claims(now));
    // The known pod is an older one with the same name.
    let stale = callers(&[("east", &east)], "another-uid", NO_RULES);
    assert_eq!(verdict(&stale, &token, "east").await, later);
    // The keys of `east` are unknown. The token would be sent to `east` if its issuer were not also
    // that of `west`.
    let unread = callers(&[("west", &west)], "pod-uid", NO_RULES);
    let found = unread.verify(&token, &ClusterId::from("east")).await.expect_err("not now");
    assert!(found.reason.contains("the issuer is that of west"), "{found}");
    let by_hand = {
        let mut claims = east.claims(now);
        claims["kubernetes.io"]["pod"] = serde_json::Value::Null;
        east.sign(&claims)
    };
    let callers = callers(&[("east", &east)], "pod-uid", NO_RULES);
    assert_eq!(verdict(&callers, &by_hand, "east").await, later, "not bound to a pod");
}

#[tokio::test]
async fn policy_limits_the_namespaces_a_member_vouches_for() {
    let signer = Signer::new(ISSUER, "k1");
    let all = [("config", &signer), ("east", &signer), ("west", &signer)];
    let rule = format!("{NO_RULES}clusters:\n  west:\n    identities: [strait-system]\n");
    let callers = callers(&all, "pod-uid", &rule);
    let token_in = |namespace: &str| {
        let mut claims = signer.claims(SystemTime::now());
        claims["sub"] = format!("system:serviceaccount:{namespace}:web").into();
        claims["kubernetes.io"]["namespace"] = namespace.into();
        signer.sign(&claims)
    };
    let (shop, system, root) = (token_in("shop"), token_in("strait-system"), token_in("mesh-root"));
    for (cluster, token, is_accepted) in [
        ("config", &shop, true),
        ("config", &system, true),
        ("east", &shop, true),
        ("east", &system, false),
        ("config", &root, true),
        ("east", &root, false),
        ("west", &root, false),
        ("west", &shop, false),
        ("west", &system, true),
    ] {
        let found = verdict(&callers, token, cluster).await;
        assert_eq!(found.is_ok(), is_accepted, "{cluster}: {found:?}");
        if !is_accepted {
            assert_eq!(found, Err(("STR0524", RefusalKind::Denied)));
        }
    }
}

/// While a member's API server is down, its nodes cannot renew the tokens of their pods: the
/// operator may extend them.
#[tokio::test]
async fn expired_token_is_accepted_while_its_member_is_unreachable_if_policy_allows() {
    let signer = Signer::new(ISSUER, "k1");
    let hours = |hours: u64| Duration::from_secs(hours * 3600);
    let ended = |ago: Duration, uid: &str| {
        // The tokens are valid for one hour.
        let mut claims = signer.claims(SystemTime::now() - ago - hours(1));
        claims["kubernetes.io"]["pod"]["uid"] = uid.into();
        signer.sign(&claims)
    };
    let grace = format!("{NO_RULES}clusters:\n  east:\n    darkTokenGrace: 24h\n");
    let callers_with = |policy: &str, state: ClusterState| {
        let mut callers = callers(&[("east", &signer), ("west", &signer)], "pod-uid", policy);
        let status = |id: &str| ClusterStatus { state, ..ClusterStatus::live(id) };
        callers.config.statuses = watch::channel(Arc::new(vec![status("east"), status("west")])).1;
        callers
    };
    let refused = Err(("STR0522", RefusalKind::Unauthenticated));
    let [recent, old] = [hours(23), hours(25)].map(|ago| ended(ago, "pod-uid"));
    let dark = callers_with(&grace, ClusterState::Stale);
    let accepted =
        dark.verify(&recent, &ClusterId::from("east")).await.expect("within the grace period");
    let remaining = accepted.token().expect("a token").expires.duration_since(SystemTime::now());
    let remaining = remaining.expect("it is still accepted");
    assert!(
        remaining > hours(1) - Duration::from_secs(60) && remaining <= hours(1),
        "{remaining:?}"
    );
    assert_eq!(verdict(&dark, &old, "east").await, refused, "not after the grace period");
    assert_eq!(verdict(&dark, &recent, "west").await, refused, "only for the named member");
    let unknown = ended(hours(23), "another-uid");
    assert_eq!(verdict(&dark, &unknown, "east").await, refused, "only for known pods");
    for state in [ClusterState::Live, ClusterState::AuthFailed, ClusterState::Paused] {
        assert_eq!(
            verdict(&callers_with(&grace, state), &recent, "east").await,
            refused,
            "{state:?}"
        );
    }
    for state in [ClusterState::Restored, ClusterState::Timeout] {
        assert!(verdict(&callers_with(&grace, state), &recent, "east").await.is_ok(), "{state:?}");
    }
    let without = callers_with(NO_RULES, ClusterState::Stale);
    assert_eq!(verdict(&without, &recent, "east").await, refused, "unless the operator allows it");
    let mut claims = signer.claims(SystemTime::now() - hours(24));
    claims["aud"] = serde_json::json!(["another"]);
    assert_eq!(
        verdict(&dark, &signer.sign(&claims), "east").await,
        refused,
        "only for our audience"
    );
}

#[tokio::test]
async fn issuer_outside_the_clusters_vouches_only_for_its_namespaces() {
    let (east, outside) = (Signer::new(ISSUER, "k1"), Signer::new("https://idp.example", "k9"));
    let mut callers = callers(&[("east", &east)], "pod-uid", NO_RULES);
    let (keys, keys_receiver) = watch::channel(Err("its answer is no JSON".to_owned()));
    let place = KeyPlace::Uri("https://idp.example/keys".into());
    let requests = Arc::<KeyRequests<KeyPlace>>::default();
    callers.config.outside = Some(OutsideIssuer {
        issuer: outside.issuer.clone(),
        cluster: "east".into(),
        namespaces: vec!["vms".to_owned(), "strait-system".to_owned()],
        keys: keys_receiver,
        place: place.clone(),
        requests: Arc::clone(&requests),
    });
    let now = SystemTime::now();
    let claims = |sub: &str| {
        let mut claims = outside.claims(now);
        claims.as_object_mut().expect("an object").remove("kubernetes.io");
        claims["sub"] = sub.into();
        claims
    };
    let token = |sub: &str| outside.sign(&claims(sub));
    let vm = token("system:serviceaccount:vms:db");
    let later = Err(("STR0523", RefusalKind::Unavailable));
    assert_eq!(verdict(&callers, &vm, "east").await, later, "no keys yet");
    let reason = async |token: &str| {
        let refused = callers.verify(token, &"east".into()).await;
        refused.map(|caller| caller.identity().to_string()).expect_err("refused").reason
    };
    let refusal = reason(&vm).await;
    assert!(refusal.contains("--token-jwks): its answer is no JSON"), "{refusal}");
    drop(keys.send_replace(Ok(Arc::new(outside.keys()))));
    // Each refusal names the issuer's cluster and the reason, also for tokens that belong to no
    // account.
    let without = |name: &str| {
        let mut claims = claims("system:serviceaccount:vms:db");
        claims.as_object_mut().expect("an object").remove(name);
        outside.sign(&claims)
    };
    assert_eq!(requests.next().now_or_never(), None, "its keys are known");
    let stranger = Signer::new("https://idp.example", "k7");
    let mut elsewhere = claims("system:serviceaccount:vms:db");
    elsewhere["iss"] = "https://else.example".into();
    let mut half = claims("system:serviceaccount:vms:db");
    half["exp"] = 1.5.into();
    for (token, fact) in [
        (
            token("db"),
            "token of --token-issuer: it is not a token of a service account: sub is missing or",
        ),
        (
            without("exp"),
            "token of --token-issuer: it is not a token of a service account: exp is missing",
        ),
        (
            outside.sign(&half),
            "token of --token-issuer: it is not a token of a service account: exp is",
        ),
        (stranger.sign(&claims("system:serviceaccount:vms:db")), "its key (kid \"k7\") is not"),
        (outside.sign(&elsewhere), "\"https://else.example\", not \"https://idp.example\""),
        (
            "hello".to_owned(),
            "token of cluster east: it is not a token of a service account: parts",
        ),
    ] {
        let refusal = reason(&token).await;
        assert!(refusal.contains(fact), "{fact}: {refusal}");
    }
    let found = verdict(&callers, &vm, "east").await;
    assert_eq!(found, Ok("spiffe://cluster.local/ns/vms/sa/db".to_owned()));
    let refused = Err(("STR0522", RefusalKind::Unauthenticated));
    assert_eq!(verdict(&callers, &vm, "west").await, refused, "for workloads of another cluster");
    // The issuer may have a new key.
    assert_eq!(requests.next().now_or_never(), Some([place].into()));
    let denied = Err(("STR0524", RefusalKind::Denied));
    for (sub, expected) in [
        ("system:serviceaccount:shop:web", &denied),
        // In an allowed namespace, but still reserved for the config cluster.
        ("system:serviceaccount:strait-system:strait", &denied),
        ("system:serviceaccount:vms", &refused),
        ("system:serviceaccount:vms:a:b", &refused),
        ("db", &refused),
    ] {
        assert_eq!(verdict(&callers, &token(sub), "east").await, *expected, "{sub}");
    }
    let mut other = claims("system:serviceaccount:vms:db");
    other["aud"] = "somebody".into();
    assert_eq!(verdict(&callers, &outside.sign(&other), "east").await, refused, "the audience");
    // Kubernetes claims make it a token of a cluster, which has different keys.
    let bound = outside.sign(&outside.claims(now));
    assert_eq!(verdict(&callers, &bound, "east").await, refused);
    // A cluster's key must not sign tokens for workloads outside the clusters.
    let mut forged = claims("system:serviceaccount:vms:db");
    assert_eq!(verdict(&callers, &east.sign(&forged), "east").await, refused);
    forged["iss"] = ISSUER.into();
    assert_eq!(verdict(&callers, &east.sign(&forged), "east").await, refused);
    let web = verdict(&callers, &east.sign(&east.claims(now)), "east").await;
    assert_eq!(web, Ok("spiffe://cluster.local/ns/shop/sa/web".to_owned()), "pods continue");
}
