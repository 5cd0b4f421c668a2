//! Which keys of a JSON Web Key Set (RFC 7517) verify tokens.
//!
//! An Envoy refuses the whole listener for a set in which it finds nothing to verify with, and may do so for a single key
//! it can't read: so it is sent those alone that it takes. Issuers publish others beside them, to encrypt with.

use base64::Engine as _;
use base64::engine::general_purpose::{URL_SAFE, URL_SAFE_NO_PAD};
use ring::agreement::{ECDH_P256, ECDH_P384, EphemeralPrivateKey, UnparsedPublicKey};
use ring::rand::SystemRandom;
use serde_json::{Value, json};

/// What only the private part of a key has, or a key that whoever verifies could sign with (RFC 7518, 6).
const PRIVATE: [&str; 8] = ["d", "p", "q", "dp", "dq", "qi", "oth", "k"];
/// Sizes of an RSA modulus, in bits. Envoy's library takes no more than twice the larger one.
const RSA_BITS: std::ops::RangeInclusive<usize> = 1024..=8192;
/// The most of an RSA exponent, in bytes.
const RSA_EXPONENT_BYTES: usize = 4;

/// The keys of a set that verify tokens, as the text of a set.
///
/// # Errors
/// What is wrong with it.
pub fn verifying_keys(text: &str) -> Result<String, String> {
    let set: Value = serde_json::from_str(text).map_err(|error| format!("is no JSON: {error}"))?;
    let Some(keys) = set.get("keys").and_then(Value::as_array) else {
        return Err("has no list of keys".to_owned());
    };
    let is_private = |key: &Value| PRIVATE.iter().any(|part| key.get(part).is_some());
    if keys.iter().any(is_private) {
        return Err("holds a private key: every proxy would be sent it. Give the public part, and make another key".to_owned());
    }
    let (mut good, mut bad) = (Vec::new(), Vec::new());
    for (at, key) in keys.iter().enumerate() {
        match check(key) {
            Ok(()) => good.push(key),
            Err(fact) => bad.push(format!("keys[{at}] {fact}")),
        }
    }
    if good.is_empty() {
        let facts = if bad.is_empty() { "it is empty".to_owned() } else { bad.join("; ") };
        return Err(format!("has no key to verify tokens with: {facts}"));
    }
    Ok(json!({ "keys": good }).to_string())
}

fn check(key: &Value) -> Result<(), String> {
    if key.get("kid").is_some_and(|kid| !kid.is_string()) {
        return Err("has a kid that is no text".to_owned());
    }
    if key.get("use").is_some_and(|it| it == "enc") {
        return Err("is there to encrypt".to_owned());
    }
    match key.get("kty").and_then(Value::as_str) {
        Some("RSA") => check_rsa(key),
        Some("EC") => check_elliptic(key),
        Some("OKP") => check_edwards(key),
        Some(other) => Err(format!("is of kind {other}, not RSA, EC or OKP")),
        None => Err("has no kind (kty)".to_owned()),
    }
}

fn check_rsa(key: &Value) -> Result<(), String> {
    algorithm(key, &["RS256", "RS384", "RS512", "PS256", "PS384", "PS512"])?;
    let [modulus, exponent] = [number(key, "n")?, number(key, "e")?];
    let bits = modulus.len() * 8 - modulus.first().map_or(0, |byte| byte.leading_zeros() as usize);
    let is_odd = |number: &[u8]| number.last().is_some_and(|last| last % 2 == 1);
    if !RSA_BITS.contains(&bits) || !is_odd(&modulus) {
        return Err(format!("has a modulus of {bits} bits, or an even one"));
    }
    if exponent.len() > RSA_EXPONENT_BYTES || !is_odd(&exponent) || exponent == [1] {
        return Err("has an exponent that is even, 1, or too large".to_owned());
    }
    Ok(())
}

fn check_elliptic(key: &Value) -> Result<(), String> {
    let (curve, algorithms, length) = match key.get("crv").and_then(Value::as_str) {
        Some("P-256") => (&ECDH_P256, ["ES256"], 32_usize),
        Some("P-384") => (&ECDH_P384, ["ES384"], 48),
        other => {
            return Err(format!("is on curve {}, not P-256 or P-384", other.unwrap_or("none")));
        }
    };
    algorithm(key, &algorithms)?;
    let mut point = vec![4];
    for part in ["x", "y"] {
        let number = number(key, part)?;
        let missing = length.checked_sub(number.len()).ok_or(format!("has a {part} too long"))?;
        point.extend(std::iter::repeat_n(0, missing).chain(number));
    }
    // Agreeing on a secret with it is what shows whether the point is on the curve.
    let own = EphemeralPrivateKey::generate(curve, &SystemRandom::new());
    let agreed = own.and_then(|own| {
        ring::agreement::agree_ephemeral(own, &UnparsedPublicKey::new(curve, &point), |_| ())
    });
    agreed.map_err(|_| "is no point of its curve".to_owned())
}

fn check_edwards(key: &Value) -> Result<(), String> {
    algorithm(key, &["EdDSA"])?;
    if key.get("crv").is_none_or(|curve| curve != "Ed25519") {
        return Err("is on another curve than Ed25519".to_owned());
    }
    match decoded(key, "x")?.len() {
        32 => Ok(()),
        length => Err(format!("has {length} bytes, not 32")),
    }
}

/// Whether a key is for one of these algorithms, if it names one.
fn algorithm(key: &Value, all: &[&str]) -> Result<(), String> {
    match key.get("alg") {
        None => Ok(()),
        Some(Value::String(name)) if all.contains(&name.as_str()) => Ok(()),
        Some(other) => Err(format!("is for {other}, which verifies nothing here")),
    }
}

/// A number in bytes, the highest first, without leading zeros; at least one byte.
fn number(key: &Value, part: &str) -> Result<Vec<u8>, String> {
    let bytes = decoded(key, part)?;
    let first = bytes.iter().position(|byte| *byte != 0).ok_or(format!("has no {part}"))?;
    Ok(bytes[first..].to_vec())
}

fn decoded(key: &Value, part: &str) -> Result<Vec<u8>, String> {
    let text = key.get(part).and_then(Value::as_str).ok_or(format!("has no {part}"))?;
    let bytes = URL_SAFE_NO_PAD.decode(text).or_else(|_| URL_SAFE.decode(text));
    bytes.map_err(|_| format!("has a {part} that is no base64url"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of RFC 7517, A.1.
    fn elliptic() -> Value {
        json!({ "kty": "EC", "crv": "P-256", "kid": "1", "x": "MKBCTNIcKUSDii11ySs3526iDZ8AiTo7Tu6KPAqv7D4",
            "y": "4Etl6SRW2YiLUrN5vfvVHuhp7x8PxltmWWlbbM4IFyM" })
    }

    fn fact(key: &Value) -> String {
        verifying_keys(&json!({ "keys": [key] }).to_string()).expect_err("it verifies nothing")
    }

    #[test]
    fn a_set_is_reduced_to_what_verifies() {
        let encrypts = json!({ "kty": "RSA", "alg": "RSA-OAEP", "n": "AQAB", "e": "AQAB" });
        let edwards = json!({ "kty": "OKP", "crv": "Ed25519", "alg": "EdDSA", "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo" });
        let modulus = URL_SAFE_NO_PAD.encode([0xc1; 256]);
        let rsa = json!({ "kty": "RSA", "alg": "RS256", "use": "sig", "n": modulus, "e": "AQAB" });
        let set = json!({ "keys": [encrypts, elliptic(), edwards, rsa] }).to_string();
        let kept: Value =
            serde_json::from_str(&verifying_keys(&set).expect("three")).expect("JSON");
        assert_eq!(kept["keys"], json!([elliptic(), edwards, rsa]));
    }

    #[test]
    fn of_a_key_that_verifies_nothing_it_is_said_why() {
        let with = |part: &str, value: &str| {
            let mut key = elliptic();
            key[part] = value.into();
            key
        };
        assert!(
            fact(&with("x", "NKBCTNIcKUSDii11ySs3526iDZ8AiTo7Tu6KPAqv7D4")).contains("no point")
        );
        assert!(fact(&with("x", "!")).contains("no base64url"));
        assert!(fact(&with("crv", "P-521")).contains("curve P-521"));
        assert!(fact(&with("alg", "ES384")).contains("ES384"));
        assert!(fact(&with("use", "enc")).contains("encrypt"));
        assert!(fact(&with("d", "AA")).contains("private"));
        assert!(fact(&json!({ "kty": "RSA", "n": "AQAB", "e": "AQAB" })).contains("17 bits"));
        assert!(fact(&json!({ "kty": "oct" })).contains("oct"));
        assert!(verifying_keys(r#"{"keys":[]}"#).expect_err("none").contains("empty"));
        assert!(verifying_keys("{}").expect_err("none").contains("no list"));
    }
}
