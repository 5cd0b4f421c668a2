use super::*;
use crate::testing::{Ca, id};
use crate::token_signer::Signer;

/// Accepts every well-formed token as a token of account `web`.
#[derive(Debug)]
struct Registry;

impl CallerRegistry for Registry {
    fn verify<'a>(&'a self, token: &'a str, cluster: &'a ClusterId) -> CallerAnswer<'a> {
        let read = SignedToken::read(token);
        let refused =
            |flaw| CallerRefusal::unauthenticated(&codes::TOKEN_REFUSED, format!("{flaw}"));
        let answer = read.map_err(refused).map(|token| {
            let expires = token.unverified().expires;
            let proof = TokenProof { cluster: cluster.clone(), named: true, pod: None, expires };
            Caller::from_token(id("web"), proof)
        });
        Box::pin(async { answer })
    }

    fn runs(&self, _: &ClusterId, _: &SpiffeId) -> bool {
        false
    }
}

fn headers(values: &[(&'static str, &str)]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in values {
        headers.append(*name, value.parse().expect("a value"));
    }
    headers
}

#[tokio::test]
async fn caller_is_identified_by_certificate_or_token() {
    let now = SystemTime::now();
    let signer = Signer::new("https://issuer.example", "k1");
    let bearer = format!("Bearer {}", signer.sign(&signer.claims(now)));
    let ca = Ca::new();
    let peer = |name| {
        let (chain, _) = ca.workload(name);
        Arc::new(ca.roots().authenticate(&chain, now).expect("verifies"))
    };
    let (web, db) = (peer("web"), peer("db"));
    let east = ("clusterid", "east");
    let token = ("authorization", &*bearer);
    let lower = bearer.replacen("Bearer", "bearer", 1);
    // Certificate of the peer, headers, and the expected proof or code.
    type Headers<'a> = Vec<(&'static str, &'a str)>;
    let cases: Vec<(_, Headers<'_>, Result<&str, &str>)> = vec![
        (None, vec![token, east], Ok("token")),
        (None, vec![("authorization", &lower), east], Ok("token")),
        (Some(&web), vec![], Ok("certificate")),
        (Some(&web), vec![token, east], Ok("certificate")),
        (Some(&db), vec![token, east], Err("STR0521")),
        (Some(&db), vec![("authorization", "Bearer x")], Err("STR0521")),
        (None, vec![], Err("STR0520")),
        (None, vec![east], Err("STR0520")),
        (None, vec![token], Err("STR0520")),
        (None, vec![token, ("clusterid", "")], Err("STR0520")),
        (None, vec![token, east, east], Err("STR0520")),
        (None, vec![token, token, east], Err("STR0520")),
        (None, vec![token, east, ("clusterid", "west")], Err("STR0520")),
        (Some(&web), vec![east, ("clusterid", "west")], Err("STR0520")),
        (None, vec![("authorization", "Basic eDp5"), east], Err("STR0520")),
        (None, vec![("authorization", "Bearer x"), east], Err("STR0522")),
    ];
    for (peer, values, expected) in cases {
        let found = identify(peer, &headers(&values), Some(&Registry)).await;
        let found = found.as_ref().map(|caller| match caller.proof() {
            CallerProof::Certificate(..) => "certificate",
            CallerProof::Token(_) => "token",
        });
        assert_eq!(found.map_err(|refusal| refusal.code.id), expected, "{values:?}");
    }
    // If certificates are required, tokens are ignored, including contradictory ones.
    let refused = identify(None, &headers(&[token, east]), None).await.expect_err("refused");
    assert_eq!(refused.kind, RefusalKind::Unauthenticated);
    assert!(identify(Some(&db), &headers(&[token, east]), None).await.is_ok());
}

/// Registry of a mesh with a config cluster.
#[derive(Debug)]
struct WithConfigCluster;

impl CallerRegistry for WithConfigCluster {
    fn verify<'a>(&'a self, token: &'a str, cluster: &'a ClusterId) -> CallerAnswer<'a> {
        Registry.verify(token, cluster)
    }

    fn unnamed(&self) -> Option<ClusterId> {
        Some("config".into())
    }

    fn runs(&self, _: &ClusterId, _: &SpiffeId) -> bool {
        false
    }
}

#[tokio::test]
async fn token_without_cluster_is_of_the_config_cluster_but_of_no_proxy() {
    let signer = Signer::new("https://issuer.example", "k1");
    let bearer = format!("Bearer {}", signer.sign(&signer.claims(SystemTime::now())));
    let identified = async |values: &[(&'static str, &str)]| {
        identify(None, &headers(values), Some(&WithConfigCluster)).await.expect("known")
    };
    let unnamed = identified(&[("authorization", &bearer)]).await;
    assert_eq!(unnamed.token().expect("a token").cluster.as_str(), "config");
    assert!(unnamed.is_named().is_err(), "it may only read the status of others");
    let named = identified(&[("authorization", &bearer), ("clusterid", "config")]).await;
    assert!(named.is_named().is_ok());
}
