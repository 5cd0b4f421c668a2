//! Tests of the identities `google`, `azure` and `exchange` with token endpoints on loopback that
//! compare each request with the documentation.

use std::time::{Duration, SystemTime};

use strait_sim::cloud::{ACCOUNT, CLIENT, CloudMode, FakeCloud, PROVIDER, SUBJECT, TENANT};

use crate::members::book::TokenBook;
use crate::members::obtained::ObtainedCredential;
use crate::members::token_endpoint::TokenFailure;
use crate::members::token_source::TokenSource;
use crate::members::{IdentityKind, MemberIdentity, MemberSources};
use strait_base::task::Supervisor;
use strait_kube_client::{CredentialFeed, IssuedCredential};

/// The cloud, and the directory of the token file.
struct Fixture {
    cloud: FakeCloud,
    directory: tempfile::TempDir,
}

impl Fixture {
    async fn start() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        std::fs::write(directory.path().join("token"), format!("{SUBJECT}\n")).expect("written");
        Self { cloud: FakeCloud::start().await.expect("a free port"), directory }
    }

    /// Returns an identity of the operator file; `URL` and `FILE` are replaced.
    fn identity(&self, kind: &str) -> MemberIdentity {
        let file = self.directory.path().join("token").display().to_string();
        let kind = kind.replace("URL", self.cloud.url()).replace("FILE", &file);
        let text = format!(
            "apiVersion: strait.dev/v1\nkind: MemberSources\nidentities: [{{name: i, servers: [a.test], {kind}}}]\n"
        );
        let file = MemberSources::parse(&text).expect(&text);
        file.identity("i").expect("it exists").clone()
    }

    async fn obtain(&self, kind: &str) -> Result<ObtainedCredential, TokenFailure> {
        let source = match self.identity(kind).kind {
            IdentityKind::Google(google) => TokenSource::Google(Box::new(google)),
            IdentityKind::Azure(azure) => TokenSource::Entra(Box::new(azure)),
            IdentityKind::Exchange(exchange) => TokenSource::Exchange {
                identity: Box::new(exchange),
                audience: "strait-member-east".to_owned(),
            },
            other => panic!("{other:?}"),
        };
        source.obtain().await
    }
}

const METADATA: &str = "google: {metadata: {endpoint: 'URL'}}";
const EXCHANGE: &str = "exchange: {endpoint: 'URL/exchange', tokenFile: FILE}";

fn federation(rest: &str) -> String {
    format!(
        "google: {{workloadIdentityFederation: {{audience: '{PROVIDER}', tokenFile: FILE, endpoint: 'URL'{rest}}}}}"
    )
}

fn azure() -> String {
    format!("azure: {{tenant: {TENANT}, clientId: {CLIENT}, tokenFile: FILE, authority: 'URL'}}")
}

fn all() -> Vec<String> {
    let account = federation(&format!(", serviceAccount: {ACCOUNT}"));
    vec![METADATA.to_owned(), federation(""), account, azure(), EXCHANGE.to_owned()]
}

fn seconds_left(token: &ObtainedCredential) -> u64 {
    let expires = token.expires.expect("it expires");
    expires.duration_since(SystemTime::now()).expect("in the future").as_secs()
}

#[tokio::test]
async fn each_identity_sends_the_documented_requests() {
    for kind in all() {
        let fixture = Fixture::start().await;
        let token = fixture.obtain(&kind).await.unwrap_or_else(|failure| panic!("{failure:?}"));
        assert_eq!(fixture.cloud.violations(), [""; 0], "{kind}");
        assert_eq!(
            fixture.cloud.issued().last().map(String::as_str),
            token.credential.token(),
            "{kind}"
        );
        assert!(seconds_left(&token).abs_diff(3600) <= 2, "{kind}");
        assert!(token.refresh_after.as_secs().abs_diff(1800) <= 1, "{kind}");
        let requests = if kind.contains("serviceAccount") { 2 } else { 1 };
        assert_eq!(fixture.cloud.requests().len(), requests, "{kind}");
    }
}

#[tokio::test]
async fn endpoint_of_googles_token_service_may_have_its_own_path() {
    let fixture = Fixture::start().await;
    fixture.obtain(&federation("").replace("'URL'", "'URL/v1/token'")).await.expect("a token");
    assert_eq!(fixture.cloud.requests(), ["/v1/token"]);
}

#[tokio::test]
async fn stated_lifetime_is_limited() {
    for (stated, expected) in [(-5, 60), (0, 60), (1 << 40, 86_400)] {
        let fixture = Fixture::start().await;
        fixture.cloud.set_mode(CloudMode::Issue(stated));
        let token = fixture.obtain(METADATA).await.expect("a token");
        assert!(seconds_left(&token).abs_diff(expected) <= 1, "{stated}");
    }
}

#[tokio::test]
async fn clock_of_the_endpoint_may_differ() {
    for skew in [-7200, 7200] {
        let fixture = Fixture::start().await;
        fixture.cloud.set_skew(skew);
        for kind in all() {
            let token = fixture.obtain(&kind).await.unwrap_or_else(|failure| panic!("{failure:?}"));
            assert!(seconds_left(&token).abs_diff(3600) <= 2, "{kind} {skew}");
        }
        // A refusal names the difference, because assertions have dates.
        fixture.cloud.set_mode(CloudMode::InvalidGrant);
        let fact = fixture.obtain(&azure()).await.expect_err("refused").fact;
        assert!(fact.contains("the clock of this machine is"), "{fact}");
    }
}

#[tokio::test]
async fn faulty_endpoint_is_reported_without_any_credential() {
    let other = FakeCloud::start().await.expect("a free port");
    let long = "larger than 64 KiB";
    for (mode, fact) in [
        (CloudMode::TooManyRequests(7), "status 429"),
        (CloudMode::InvalidGrant, "is not within its valid time range"),
        (CloudMode::Unavailable, "status 503"),
        (CloudMode::Huge, long),
        (CloudMode::Redirect(other.url().to_owned()), "redirects are not followed"),
        (CloudMode::Garbage, "has no access"),
        (CloudMode::BrokenToken, "a token that no header can contain"),
        (CloudMode::Silent, "no answer within"),
        (CloudMode::Slow, "no answer within"),
    ] {
        let fixture = Fixture::start().await;
        fixture.cloud.set_mode(mode.clone());
        let kinds = all();
        // Waiting at the same time saves time. Other requests are sent one after another: each loads
        // the roots of this machine, which delays the others.
        let failures = match mode {
            CloudMode::Silent | CloudMode::Slow => {
                futures::future::join_all(kinds.iter().map(|kind| fixture.obtain(kind))).await
            }
            _ => {
                let mut failures = Vec::new();
                for kind in &kinds {
                    failures.push(fixture.obtain(kind).await);
                }
                failures
            }
        };
        for (kind, failure) in kinds.iter().zip(failures) {
            let failure = failure.expect_err(fact);
            let shown = format!("{failure:?}");
            assert!(failure.fact.contains(fact) && !shown.contains("canary"), "{kind} {shown}");
            assert!(failure.fact.contains(fixture.cloud.url()), "{shown}");
            let pause = matches!(mode, CloudMode::TooManyRequests(_)).then_some(7);
            assert_eq!(failure.retry_after.map(|pause| pause.as_secs()), pause, "{shown}");
        }
    }
    assert!(other.requests().is_empty(), "a redirect was followed");
}

#[tokio::test]
async fn refused_request_is_reported_with_the_next_step() {
    let fixture = Fixture::start().await;
    fixture.cloud.set_mode(CloudMode::InvalidGrant);
    for (kind, step) in [
        (azure(), "check the federated credential of application"),
        (federation(""), "check that the provider //iam.googleapis.com"),
        (EXCHANGE.to_owned(), "check that the endpoint accepts the issuer"),
        (METADATA.to_owned(), "linked to a Google service account"),
    ] {
        let fact = fixture.obtain(&kind).await.expect_err("refused").fact;
        assert!(fact.contains(step), "{fact}");
    }
}

#[tokio::test]
async fn token_that_no_member_would_accept_is_refused() {
    for (mode, fact) in [
        (CloudMode::Expired, "the token in the answer expired at"),
        (CloudMode::WrongAudience, "is for audience canary-audience, not"),
    ] {
        let fixture = Fixture::start().await;
        fixture.cloud.set_mode(mode);
        for kind in [azure(), EXCHANGE.to_owned()] {
            let failure = fixture.obtain(&kind).await.expect_err(fact);
            assert!(failure.fact.contains(fact), "{failure:?}");
        }
    }
}

/// Waits for a state of a token.
async fn until(feed: &CredentialFeed, is_met: impl Fn(&IssuedCredential) -> bool) {
    let mut feed = feed.clone();
    let wait = async {
        while !is_met(&feed.current()) {
            feed.changed().await;
        }
    };
    let met = tokio::time::timeout(Duration::from_secs(30), wait).await;
    assert!(met.is_ok(), "{:?}", feed.current());
}

#[tokio::test]
async fn one_request_serves_all_members_of_an_identity() {
    for kind in [METADATA.to_owned(), federation(""), azure()] {
        let fixture = Fixture::start().await;
        let (tasks, identity) = (Supervisor::new(), fixture.identity(&kind));
        let book = TokenBook::new(None, &tasks);
        let member = |n: u32| book.feed(&identity, &format!("m{n}"), "x").expect("a feed");
        let feeds: Vec<_> = (0..100).map(member).collect();
        for feed in &feeds {
            until(feed, |state| state.credential.is_some()).await;
        }
        assert_eq!(fixture.cloud.requests().len(), 1, "{kind}");
        assert_eq!(tasks.running(), 1);
        assert!(!format!("{book:?}{feeds:?}{:?}", feeds[0].current()).contains("canary"));
    }
}

#[tokio::test]
async fn exchanged_token_is_for_one_member_each() {
    let fixture = Fixture::start().await;
    let book = TokenBook::new(None, &Supervisor::new());
    let identity = fixture.identity(EXCHANGE);
    let feeds = ["east", "west"].map(|id| book.feed(&identity, id, id).expect("a feed"));
    for (feed, id) in feeds.iter().zip(["east", "west"]) {
        until(feed, |state| state.credential.is_some()).await;
        let credential = feed.current().credential.expect("a token");
        let audience = crate::lifetime::audiences(credential.token().unwrap_or_default());
        assert_eq!(audience, [format!("strait-member-{id}")]);
    }
    assert_eq!(fixture.cloud.requests().len(), 2);
}

#[tokio::test]
async fn requested_pause_is_respected_and_the_old_token_stays() {
    let fixture = Fixture::start().await;
    let book = TokenBook::new(None, &Supervisor::new());
    fixture.cloud.set_mode(CloudMode::TooManyRequests(60));
    let feed = book.feed(&fixture.identity(&azure()), "east", "east").expect("a feed");
    until(&feed, |state| state.error.is_some()).await;
    let error = feed.current().error.expect("an error");
    assert!(error.starts_with("STR0232") && error.contains("status 429"), "{error}");
    // Without the header, the next request would follow after one second.
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(fixture.cloud.requests().len(), 1);
}
