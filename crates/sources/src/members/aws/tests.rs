#![expect(clippy::disallowed_methods, reason = "tasks of a test end with the test")]

//! Tests of presigned tokens: published vectors, and a fake STS and Pod Identity agent on loopback.

use std::sync::Mutex as StdMutex;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use super::*;
use crate::members::{AwsCredentials, OperatorUrl};

fn settings() -> AwsIdentity {
    AwsIdentity {
        region: "eu-north-1".to_owned(),
        credentials: None,
        assume_role: None,
        endpoint: None,
        roots: None,
    }
}

fn token(session_token: Option<&str>) -> String {
    let credentials = Credentials {
        access_key_id: "AKIDEXAMPLE".to_owned(),
        secret_access_key: Redacted::new("wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY".to_owned()),
        session_token: session_token.map(|token| Redacted::new(token.to_owned())),
        expires: SystemTime::UNIX_EPOCH,
    };
    let time = "2015-08-30T12:36:00Z".parse().expect("a time");
    presign(&settings(), &credentials, "north", time).expect("a token")
}

fn decoded(token: &str) -> String {
    let encoded = token.strip_prefix("k8s-aws-v1.").expect("the prefix");
    String::from_utf8(URL_SAFE_NO_PAD.decode(encoded).expect("base64url")).expect("text")
}

/// The expected values were computed with botocore 1.44.8.
#[test]
fn presigned_tokens_equal_those_of_the_aws_library() {
    let plain = token(None);
    assert!(decoded(&plain).ends_with(
        "&X-Amz-Signature=6e6576e772557b493aba8a561e94b45739fba8f41ddfec3fac4fcb2ea5162ea3"
    ));
    assert_eq!(plain.len(), 483);
    let hash = strait_base::hex::sha256(plain.as_bytes());
    assert_eq!(hash, "b02fbafedac34bbe2f1a70b331c357f79984f721889199da5590ede585a208d8");
    let session = "6e86291e8372ff2a2260956d9b8aae1d763fbf315fa00fa31553b73ebf194267";
    let with_session = token(Some(session));
    assert!(decoded(&with_session).ends_with(
        "&X-Amz-Signature=08f754ab40eb2cee3810c648697e3380d4a26a300187e01ced0d676842bccae1"
    ));
    assert_eq!(with_session.len(), 598);
}

#[test]
fn name_of_a_cluster_cannot_change_the_signed_request() {
    let credentials = Credentials {
        access_key_id: "a".to_owned(),
        secret_access_key: Redacted::new("b".to_owned()),
        session_token: None,
        expires: SystemTime::UNIX_EPOCH,
    };
    for name in ["", "a b", "a\nx-evil:b", "\u{e9}"] {
        assert!(presign(&settings(), &credentials, name, Timestamp::UNIX_EPOCH).is_err());
    }
}

/// Answers each connection with the next of `answers`, and records the requests.
async fn fake(answers: Vec<String>) -> (String, Arc<StdMutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let url = format!("http://{}/", listener.local_addr().expect("an address"));
    let requests = Arc::<StdMutex<Vec<String>>>::default();
    let seen = Arc::clone(&requests);
    tokio::spawn(async move {
        for answer in answers {
            let (mut stream, _) = listener.accept().await.expect("a connection");
            let mut request = Vec::new();
            let mut buffer = [0; 4096];
            loop {
                let read = stream.read(&mut buffer).await.expect("a request");
                request.extend_from_slice(&buffer[..read]);
                let text = String::from_utf8_lossy(&request).into_owned();
                let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
                let length = head.lines().find_map(|line| {
                    line.to_ascii_lowercase()
                        .strip_prefix("content-length: ")?
                        .parse::<usize>()
                        .ok()
                });
                if body.len() >= length.unwrap_or(0) {
                    strait_base::lock::lock(&seen).push(text);
                    break;
                }
            }
            stream.write_all(answer.as_bytes()).await.expect("sent");
        }
    });
    (url, requests)
}

fn ok(body: &str) -> String {
    format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}", body.len())
}

fn sts_answer(key: &str) -> String {
    ok(&format!(
        "<R><Credentials><AccessKeyId>{key}</AccessKeyId><SecretAccessKey>canary</SecretAccessKey>\
         <SessionToken>canary-session</SessionToken><Expiration>2099-01-01T00:00:00Z</Expiration>\
         </Credentials></R>"
    ))
}

#[tokio::test]
async fn tokens_of_all_clusters_share_one_request_for_credentials() {
    let directory = tempfile::tempdir().expect("a directory");
    let token_file = directory.path().join("token");
    std::fs::write(&token_file, "web-canary\n").expect("written");
    let (url, requests) = fake(vec![sts_answer("ASIA1"), sts_answer("ASIA2")]).await;
    let session = AwsSession::new(AwsIdentity {
        credentials: Some(AwsCredentials::WebIdentity {
            role: "arn:aws:iam::1:role/r".to_owned(),
            token_file,
            lifetime: Duration::from_secs(900),
        }),
        assume_role: Some("arn:aws:iam::2:role/s".to_owned()),
        endpoint: Some(OperatorUrl::parse(&url).expect("on loopback")),
        ..settings()
    });
    let (north, south) = tokio::join!(eks_token(&session, "north"), eks_token(&session, "south"));
    let (north, south) = (north.expect("a token"), south.expect("a token"));
    assert!(decoded(north.credential.token().expect("a token")).contains("Credential=ASIA2%2F"));
    assert_ne!(north.credential, south.credential);
    assert!(north.refresh_after <= REFRESHED_AFTER && north.expires.is_some());
    let requests = strait_base::lock::lock(&requests).clone();
    let [web, role] = &requests[..] else { panic!("{} requests", requests.len()) };
    assert!(web.starts_with("POST / HTTP/1.1\r\n"), "{web}");
    assert!(web.contains("Action=AssumeRoleWithWebIdentity&DurationSeconds=900&RoleArn=arn%3Aaws%3Aiam%3A%3A1%3Arole%2Fr&"), "{web}");
    assert!(
        web.ends_with("&WebIdentityToken=web-canary") && !web.contains("authorization"),
        "{web}"
    );
    assert!(role.contains("Action=AssumeRole&"), "{role}");
    assert!(
        role.contains("AWS4-HMAC-SHA256 Credential=ASIA1/")
            && role.contains("SignedHeaders=content-type;host;x-amz-date;x-amz-security-token"),
        "{role}"
    );
    assert!(!format!("{session:?}{north:?}").contains("canary"));
}

#[tokio::test]
async fn pod_identity_agent_receives_the_current_token() {
    let directory = tempfile::tempdir().expect("a directory");
    let token_file = directory.path().join("token");
    let answer = r#"{"AccessKeyId": "ASIA3", "SecretAccessKey": "canary", "Token": "canary-session", "Expiration": "2099-01-01T00:00:00Z"}"#;
    let (url, requests) = fake(vec![ok(answer)]).await;
    let session = AwsSession::new(AwsIdentity {
        credentials: Some(AwsCredentials::PodIdentity {
            url: OperatorUrl::parse(&format!("{url}v1/credentials")).expect("on loopback"),
            token_file: token_file.clone(),
        }),
        ..settings()
    });
    // Written after the session was created.
    std::fs::write(&token_file, "pod-token").expect("written");
    let token = eks_token(&session, "north").await.expect("a token");
    assert!(decoded(token.credential.token().expect("a token")).starts_with("https://sts.eu-north-1.amazonaws.com/?Action=GetCallerIdentity&Version=2011-06-15&X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=ASIA3%2F"));
    let request = strait_base::lock::lock(&requests).join("");
    assert!(request.starts_with("GET /v1/credentials HTTP/1.1\r\n"), "{request}");
    assert!(request.contains("authorization: pod-token\r\n"), "{request}");
}

#[tokio::test]
async fn hostile_token_endpoint_is_refused_without_its_secrets() {
    let endless = ok(&"a".repeat(100_000));
    let redirect = "HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
    for (answer, fact) in [
        (endless, "larger than 64 KiB"),
        (redirect.to_owned(), "status 302"),
        (ok("canary"), "no AWS credentials"),
    ] {
        let directory = tempfile::tempdir().expect("a directory");
        let token_file = directory.path().join("token");
        std::fs::write(&token_file, "canary").expect("written");
        let (url, _) = fake(vec![answer]).await;
        let session = AwsSession::new(AwsIdentity {
            credentials: Some(AwsCredentials::PodIdentity {
                url: OperatorUrl::parse(&url).expect("on loopback"),
                token_file,
            }),
            ..settings()
        });
        let error = eks_token(&session, "north").await.expect_err(fact).fact;
        assert!(error.contains(fact) && !error.contains("canary"), "{error}");
    }
}
