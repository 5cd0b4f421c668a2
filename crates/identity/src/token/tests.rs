use super::*;
use crate::token_signer::Signer;

const ISSUER: &str = "https://kubernetes.default.svc.cluster.local";

fn ours() -> Vec<String> {
    vec!["istio-ca".to_owned(), "strait-ca".to_owned()]
}

fn verified(token: &str, keys: &IssuerKeys, now: SystemTime) -> Result<TokenClaims, TokenFlaw> {
    let token = SignedToken::read(token)?;
    token.check(&ours(), now)?;
    token.verify(keys).cloned()
}

#[test]
fn token_of_the_cluster_identifies_the_pod() {
    let (signer, now) = (Signer::new(ISSUER, "k1"), SystemTime::now());
    let claims = verified(&signer.sign(&signer.claims(now)), &signer.keys(), now).expect("good");
    let pod = TokenPod { name: "web-0".into(), uid: "pod-uid".into() };
    assert_eq!((&*claims.namespace, &*claims.service_account), ("shop", "web"));
    assert_eq!((claims.pod, claims.node.as_deref()), (Some(pod), Some("node-1")));
    let remaining = claims.expires.duration_since(now).expect("later");
    assert!((3599..=3600).contains(&remaining.as_secs()), "{remaining:?}");
}

/// Keys and a token made by OpenSSL, in the form of kube-apiserver.
#[test]
fn rsa_signature_is_verified() {
    let keys = include_bytes!(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../tests/corpus/fuzz/token/keys.json"
    ));
    let token =
        include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/corpus/fuzz/token/rs256"));
    let keys = IssuerKeys::parse(ISSUER, keys).expect("keys");
    let claims = verified(token, &keys, SystemTime::now()).expect("good");
    assert_eq!(claims.pod.expect("a pod").name, "web-0".into());
    // Changes one letter of the signed part, and another in the signature.
    for at in [100, token.len() - 20] {
        let other = if token.as_bytes()[at] == b'A' { "B" } else { "A" };
        let mut changed = token.to_owned();
        changed.replace_range(at..=at, other);
        let found = verified(&changed, &keys, SystemTime::now());
        assert!(matches!(found, Err(TokenFlaw::Signature | TokenFlaw::Form(_))), "{found:?}");
    }
}

#[test]
fn token_outside_its_validity_or_audience_is_rejected() {
    let (signer, now) = (Signer::new(ISSUER, "k1"), SystemTime::now());
    let seconds = now.duration_since(UNIX_EPOCH).expect("after 1970").as_secs();
    let cases: [(&str, Value, Option<TokenFlaw>); 7] = [
        ("exp", json!(seconds), Some(TokenFlaw::Ended)),
        ("exp", json!(seconds + 2), None),
        ("nbf", json!(seconds + 59), None),
        ("nbf", json!(seconds + 120), Some(TokenFlaw::Early)),
        ("iat", json!(seconds + 120), Some(TokenFlaw::Early)),
        ("aud", json!("strait-ca"), None),
        ("aud", json!(["other"]), Some(TokenFlaw::Audience(vec!["other".to_owned()]))),
    ];
    for (name, value, expected) in cases {
        let mut claims = signer.claims(now);
        claims[name] = value.clone();
        let found = verified(&signer.sign(&claims), &signer.keys(), now).err();
        assert_eq!(found, expected, "{name} = {value}");
    }
}

#[test]
fn malformed_token_is_rejected() {
    let (signer, now) = (Signer::new(ISSUER, "k1"), SystemTime::now());
    let good = signer.claims(now);
    let without = |path: &str| {
        let (parent, name) = path.rsplit_once('/').expect("a path");
        let mut claims = good.clone();
        let parent = claims.pointer_mut(parent).and_then(Value::as_object_mut).expect("an object");
        assert!(parent.remove(name).is_some(), "{path}");
        claims
    };
    for (path, named) in [
        ("/exp", "exp"),
        ("/iss", "iss"),
        ("/aud", "aud"),
        ("/sub", "sub"),
        ("/kubernetes.io", "claims"),
        ("/kubernetes.io/namespace", "claims"),
        ("/kubernetes.io/serviceaccount", "claims"),
        ("/kubernetes.io/serviceaccount/name", "claims"),
        ("/kubernetes.io/pod/uid", "claims"),
    ] {
        let found = verified(&signer.sign(&without(path)), &signer.keys(), now);
        assert_eq!(found, Err(TokenFlaw::Form(named)), "without {path}");
    }
    for (path, value, named) in [
        ("/exp", json!("1764230400"), "exp"),
        ("/exp", json!(1_764_230_400.5), "exp"),
        ("/aud", json!(["istio-ca", 1]), "aud"),
        ("/sub", json!(null), "sub"),
    ] {
        let mut claims = good.clone();
        *claims.pointer_mut(path).expect("it is there") = value;
        let found = verified(&signer.sign(&claims), &signer.keys(), now);
        assert_eq!(found, Err(TokenFlaw::Form(named)), "{path}");
    }
    for (path, value) in [
        ("/sub", "system:serviceaccount:shop:other"),
        ("/sub", "system:serviceaccount:kube-system:web"),
        ("/kubernetes.io/namespace", "other"),
        ("/kubernetes.io/serviceaccount/name", "other"),
    ] {
        let mut claims = good.clone();
        *claims.pointer_mut(path).expect("it is there") = json!(value);
        let found = verified(&signer.sign(&claims), &signer.keys(), now);
        assert_eq!(found, Err(TokenFlaw::Form("sub")), "{path} is {value}");
    }
    let twice = good.to_string().replacen('{', r#"{"sub":"system:serviceaccount:a:b","#, 1);
    let header = json!({ "alg": "ES256", "kid": "k1" });
    let found = verified(&signer.sign_as(&header, &twice), &signer.keys(), now);
    assert_eq!(found, Err(TokenFlaw::Form("claims")), "a claim that comes twice");

    let token = signer.sign(&good);
    let [header, claims, signature] = token.split('.').collect::<Vec<_>>()[..] else {
        panic!("{token}")
    };
    let unsigned_header = URL_SAFE_NO_PAD.encode(r#"{"alg":"none","kid":"k1"}"#);
    for (text, expected) in [
        (String::new(), TokenFlaw::Form("parts")),
        ("a.b".to_owned(), TokenFlaw::Form("parts")),
        (format!("{token}.x"), TokenFlaw::Form("claims")),
        (format!("{header}.{claims}."), TokenFlaw::Signature),
        (format!("{unsigned_header}.{claims}."), TokenFlaw::Algorithm("none".to_owned())),
        (
            format!("{unsigned_header}.{claims}.{signature}"),
            TokenFlaw::Algorithm("none".to_owned()),
        ),
        (format!("{header}.{claims}.{signature}="), TokenFlaw::Form("signature")),
        ("x".repeat(TOKEN_BYTES_MAX + 1), TokenFlaw::TooLong(TOKEN_BYTES_MAX + 1)),
    ] {
        assert_eq!(verified(&text, &signer.keys(), now), Err(expected), "{text}");
    }
    for (header, expected) in [
        (json!({ "alg": "ES256", "kid": "k1", "crit": ["b64"] }), TokenFlaw::Form("crit")),
        (json!({ "alg": "ES256", "kid": "k2" }), TokenFlaw::UnknownKey(Some("k2".to_owned()))),
        (json!({ "alg": "ES256" }), TokenFlaw::UnknownKey(None)),
        (json!({ "alg": "HS256", "kid": "k1" }), TokenFlaw::Algorithm("HS256".to_owned())),
        (json!({ "alg": "RS256", "kid": "k1" }), TokenFlaw::Algorithm("RS256".to_owned())),
    ] {
        let token = signer.sign_as(&header, &good.to_string());
        assert_eq!(verified(&token, &signer.keys(), now), Err(expected), "{header}");
    }
}

#[test]
fn token_of_another_cluster_is_rejected_even_with_the_same_issuer() {
    let (east, now) = (Signer::new(ISSUER, "k1"), SystemTime::now());
    // Equal names of issuer and key are common; the keys differ.
    let same_names = Signer::new(ISSUER, "k1");
    let token = same_names.sign(&same_names.claims(now));
    assert_eq!(verified(&token, &east.keys(), now), Err(TokenFlaw::Signature));
    let west = Signer::new("https://west.example", "k1");
    let found = verified(&west.sign(&west.claims(now)), &east.keys(), now);
    assert!(matches!(found, Err(TokenFlaw::Issuer { .. })), "{found:?}");
}

#[test]
fn keys_are_bounded_and_round_trip() {
    let signer = Signer::new(ISSUER, "k1");
    let keys = signer.keys();
    let again = IssuerKeys::parse(ISSUER, keys.to_key_set().as_bytes());
    assert_eq!(again, Ok(keys));
    let key = signer.key_set()["keys"][0].clone();
    let with = |name: &str, value: Value| {
        let mut key = key.clone();
        key[name] = value;
        json!({ "keys": [key] }).to_string()
    };
    for unusable in [
        "[]".to_owned(),
        json!({ "keys": [] }).to_string(),
        json!({ "keys": vec![key.clone(); KEYS_MAX + 1] }).to_string(),
        with("use", json!("enc")),
        with("alg", json!("ES384")),
        with("crv", json!("P-521")),
        with("kid", json!("k".repeat(KEY_ID_MAX + 1))),
        with("x", json!("AAAA")),
        with("kty", json!("oct")),
    ] {
        assert!(IssuerKeys::parse(ISSUER, unusable.as_bytes()).is_err(), "{unusable}");
    }
    assert!(IssuerKeys::parse("", signer.key_set().to_string().as_bytes()).is_err());
}
