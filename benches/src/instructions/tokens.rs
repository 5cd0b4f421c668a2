//! The verification of a pod's token with the API server's keys, as in each call with a token.

use std::hint::black_box;
use std::time::{Duration, UNIX_EPOCH};

use super::Case;
use strait_identity::token::{IssuerKeys, SignedToken};

const ISSUER: &str = "https://kubernetes.default.svc.cluster.local";

/// A token as an API server signs it (RS256), issued in 2026. The private key was discarded.
const TOKEN: &str = concat!(
    "eyJhbGciOiJSUzI1NiIsImtpZCI6Ijh2UzJvMnBEcTB5SnBRMWJNajVsNnkwdEM4bTF6WTNrcWZDMlhuQjdlVW8ifQ.eyJhdWQiOlsia",
    "XN0aW8tY2EiXSwiZXhwIjo0MTAyNDQ0ODAwLCJpYXQiOjE3NjcyMjU2MDAsImlzcyI6Imh0dHBzOi8va3ViZXJuZXRlcy5kZWZhdWx0L",
    "nN2Yy5jbHVzdGVyLmxvY2FsIiwianRpIjoiNWIxYTZmMWUtN2Y0Yi00YzVkLTlkNWUtMGE5YjNjMmQxZTBmIiwia3ViZXJuZXRlcy5pb",
    "yI6eyJuYW1lc3BhY2UiOiJzaG9wIiwibm9kZSI6eyJuYW1lIjoibm9kZS0xNyIsInVpZCI6IjBmNmMyYjNlLTFkMmMtNGU1Zi04YTliL",
    "TdjNmQ1ZTRmM2EyYiJ9LCJwb2QiOnsibmFtZSI6IndlYi03ZDlmOGI2YzUteDJ4NHoiLCJ1aWQiOiI5YThiN2M2ZC01ZTRmLTRhM2ItO",
    "GMyZC0xZTBmOWE4YjdjNmQifSwic2VydmljZWFjY291bnQiOnsibmFtZSI6IndlYiIsInVpZCI6IjFhMmIzYzRkLTVlNmYtNGE3Yi04Y",
    "zlkLTBlMWYyYTNiNGM1ZCJ9fSwibmJmIjoxNzY3MjI1NjAwLCJzdWIiOiJzeXN0ZW06c2VydmljZWFjY291bnQ6c2hvcDp3ZWIifQ.oj",
    "7iTeQbwHFslFV9QwOhzobAFhui47QOwJC6C62Xa0Sjgi-Mk_VE-xV475I5K8q-VljV2XIhuX1coloP-N9TrODDOMZbH6mWITzvV-S2Ga",
    "vOy--pacZYCuPUdAgfvj4IXml8LMnhlmHn9AWclRrewZArkRd0Sglm1epCR7qwjBz6DD0hlUsyeHt_7M3rzu-zY7HYRzDd_FYv350KRm",
    "hazpdEzzteniiuTEQ6393r9nR0fev7VPjHqugTArg0kQmj1zKAnWE61mGYYQWiK0kNwa2rad6W5hYG2TkJ5dcAvtm7qTrn8uMVXrX5kN",
    "S-fjMU1b4zxicjlNnED3DbFUZhqg",
);

/// The modulus of the public key.
const MODULUS: &str = concat!(
    "yk_ZJh1js6nFYBjX4rC6HmdS_zRmul_9kkVoNTc-KN03Yk6OB87o9VuJMMQNloHSBrro9vkl20-kFbuCwn2jvfpb72oCEEdbT9uIsjOR",
    "GqvA8uxUhWVV0VQuADiAyRrKk3tRca6rHjtrGskChsBBl8eYA72s_3nfMcZdpIVGcmltZRuEfNKKUi0YCfLOIr6qpROYVKn1E4jbQoT1",
    "dDf51jU63sXm2YKnIxJDRV049qLqhMVrza8slrWJtbj0feLzrWEAezYgvMiBrAgBtbWTvtD7gKDei2JfukazN2OTlbsHeQ6JqUyDGn8F",
    "nOyVga5QGxo6zUqKG6ON8GUP56aQmw",
);

/// Verifies the token of a thousand calls, one after the other.
pub(super) fn verify() -> Case {
    let key = format!(
        r#"{{"keys":[{{"use":"sig","kty":"RSA","kid":"8vS2o2pDq0yJpQ1bMj5l6y0tC8m1zY3kqfC2XnB7eUo","alg":"RS256","n":"{MODULUS}","e":"AQAB"}}]}}"#
    );
    let keys = IssuerKeys::parse(ISSUER, key.as_bytes()).expect("keys");
    let audiences = ["istio-ca".to_owned(), "strait-ca".to_owned()];
    let now = UNIX_EPOCH + Duration::from_secs(1_800_000_000);
    Case::new(1000, move || {
        for _ in 0..1000 {
            let token = SignedToken::read(black_box(TOKEN)).expect("a token");
            token.check(&audiences, now).expect("it holds");
            black_box(token.verify(&keys).expect("signed by them"));
        }
    })
}
