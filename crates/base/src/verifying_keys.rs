//! Selects the keys of a JSON Web Key Set (RFC 7517) that verify tokens.
//!
//! Envoy refuses an entire listener for a set without usable keys, and possibly for a single
//! unreadable key. Therefore only the keys that Envoy accepts are sent. Issuers also publish other
//! keys, for example for encryption.
//!
//! The author of a policy chooses the server of the keys, so a set is untrusted: the number of
//! keys, their fields, the length, and quotations in messages are bounded here.

use base64::Engine as _;
use base64::engine::general_purpose::{URL_SAFE, URL_SAFE_NO_PAD};
use ring::agreement::{ECDH_P256, ECDH_P384, EphemeralPrivateKey, UnparsedPublicKey};
use ring::rand::SystemRandom;
use serde_json::{Map, Value, json};

use crate::bounded::head;

/// Fields of private keys and of symmetric keys, with which a verifier could also sign (RFC 7518,
/// 6).
const PRIVATE: [&str; 8] = ["d", "p", "q", "dp", "dq", "qi", "oth", "k"];
/// The fields that are sent, which are the fields that Envoy reads (RFC 7517, 4; RFC 7518, 6; RFC
/// 8037, 2). Sending other fields, for example certificate chains, to every proxy would be useless.
const KEPT: [&str; 9] = ["kty", "kid", "use", "alg", "crv", "x", "y", "n", "e"];
/// Maximum number of keys in a set, including keys that cannot verify tokens.
const KEYS_MAX: usize = 64;
/// Maximum size of a set's keys as sent, in bytes: 64 RSA keys with 4096 bits have 47 KiB.
const SET_BYTES_MAX: usize = 64 * 1024;
/// Maximum number of keys for which a problem is reported.
const FACTS_MAX: usize = 3;
/// Maximum length of quoted text of other parties in a message, in bytes.
const REPEATED_MAX: usize = 64;
/// Sizes of an RSA modulus, in bits. Envoy's library accepts at most twice the upper limit.
const RSA_BITS: std::ops::RangeInclusive<usize> = 1024..=8192;
/// Maximum length of an RSA exponent, in bytes.
const RSA_EXPONENT_BYTES: usize = 4;

/// Returns the keys of a set that verify tokens as the text of a set: at most 64 keys in at most 64
/// KiB, without unneeded fields. Takes some milliseconds for many keys on elliptic curves.
///
/// # Errors
/// Returns the problem in a few hundred bytes.
pub fn verifying_keys(text: &str) -> Result<String, String> {
    let set: Value = serde_json::from_str(text).map_err(|error| format!("is not JSON: {error}"))?;
    let Some(keys) = set.get("keys").and_then(Value::as_array) else {
        return Err("has no list of keys".to_owned());
    };
    let is_private = |key: &Value| PRIVATE.iter().any(|part| key.get(part).is_some());
    if keys.iter().any(is_private) {
        return Err("contains a private key, which every proxy would receive. Provide only the public part, and create a new key".to_owned());
    }
    if keys.len() > KEYS_MAX {
        let count = keys.len();
        return Err(format!("lists {count} keys, and the limit is {KEYS_MAX}"));
    }
    let (mut good, mut bad) = (Vec::new(), Vec::new());
    for (at, key) in keys.iter().enumerate() {
        match check(key) {
            Ok(()) => good.push(kept(key)),
            Err(fact) => bad.push(format!("keys[{at}] {fact}")),
        }
    }
    if good.is_empty() {
        return Err(format!("has no key to verify tokens with: {}", few(&bad)));
    }
    let good = json!({ "keys": good }).to_string();
    if good.len() > SET_BYTES_MAX {
        let bytes = good.len();
        return Err(format!("has {bytes} bytes of keys, and the limit is {SET_BYTES_MAX}"));
    }
    Ok(good)
}

/// Joins the first problems and the number of further ones.
fn few(facts: &[String]) -> String {
    let (listed, further) = facts.split_at(facts.len().min(FACTS_MAX));
    match (listed, further.len()) {
        ([], _) => "it is empty".to_owned(),
        (_, 0) => listed.join("; "),
        (_, count) => format!("{}; and {count} more", listed.join("; ")),
    }
}

/// Shortens a text of another party to at most `bytes_max` bytes, for an error or log message.
pub fn cut(text: &str, bytes_max: usize) -> String {
    if text.len() <= bytes_max {
        return text.to_owned();
    }
    // An ellipsis has three bytes.
    format!("{}…", head(text, bytes_max.saturating_sub(3)))
}

/// Returns the fields of a key that are sent.
fn kept(key: &Value) -> Map<String, Value> {
    let part = |name: &&str| Some(((*name).to_owned(), key.get(name)?.as_str()?.into()));
    KEPT.iter().filter_map(part).collect()
}

fn check(key: &Value) -> Result<(), String> {
    if key.get("kid").is_some_and(|kid| !kid.is_string()) {
        return Err("has a kid that is not a string".to_owned());
    }
    if key.get("use").is_some_and(|it| it == "enc") {
        return Err("is for encryption".to_owned());
    }
    match key.get("kty").and_then(Value::as_str) {
        Some("RSA") => check_rsa(key),
        Some("EC") => check_elliptic(key),
        Some("OKP") => check_edwards(key),
        Some(other) => Err(format!("is of kind {}, not RSA, EC or OKP", cut(other, REPEATED_MAX))),
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
            let other = cut(other.unwrap_or("none"), REPEATED_MAX);
            return Err(format!("is on curve {other}, not P-256 or P-384"));
        }
    };
    algorithm(key, &algorithms)?;
    let mut point = vec![4];
    for part in ["x", "y"] {
        let number = number(key, part)?;
        let missing = length.checked_sub(number.len()).ok_or(format!("has a {part} too long"))?;
        point.extend(std::iter::repeat_n(0, missing).chain(number));
    }
    // The key agreement succeeds only if the point is on the curve.
    let own = EphemeralPrivateKey::generate(curve, &SystemRandom::new());
    let agreed = own.and_then(|own| {
        ring::agreement::agree_ephemeral(own, &UnparsedPublicKey::new(curve, &point), |_| ())
    });
    agreed.map_err(|_| "is not a point on its curve".to_owned())
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

/// Returns an error if a key names an algorithm that is not in the list.
fn algorithm(key: &Value, all: &[&str]) -> Result<(), String> {
    match key.get("alg") {
        None => Ok(()),
        Some(Value::String(name)) if all.contains(&name.as_str()) => Ok(()),
        Some(other) => {
            let other = cut(&other.to_string(), REPEATED_MAX);
            Err(format!("is for {other}, which is not supported"))
        }
    }
}

/// Decodes a number as bytes, highest first, without leading zeros and with at least one byte.
fn number(key: &Value, part: &str) -> Result<Vec<u8>, String> {
    let bytes = decoded(key, part)?;
    let first = bytes.iter().position(|byte| *byte != 0).ok_or(format!("has no {part}"))?;
    Ok(bytes[first..].to_vec())
}

fn decoded(key: &Value, part: &str) -> Result<Vec<u8>, String> {
    let text = key.get(part).and_then(Value::as_str).ok_or(format!("has no {part}"))?;
    let bytes = URL_SAFE_NO_PAD.decode(text).or_else(|_| URL_SAFE.decode(text));
    bytes.map_err(|_| format!("has a {part} that is not base64url"))
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
    fn set_is_reduced_to_verifying_keys() {
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
    fn reason_is_reported_for_a_key_that_verifies_nothing() {
        let with = |part: &str, value: &str| {
            let mut key = elliptic();
            key[part] = value.into();
            key
        };
        assert!(
            fact(&with("x", "NKBCTNIcKUSDii11ySs3526iDZ8AiTo7Tu6KPAqv7D4")).contains("not a point")
        );
        assert!(fact(&with("x", "!")).contains("not base64url"));
        assert!(fact(&with("crv", "P-521")).contains("curve P-521"));
        assert!(fact(&with("alg", "ES384")).contains("ES384"));
        assert!(fact(&with("use", "enc")).contains("encrypt"));
        assert!(fact(&with("d", "AA")).contains("private"));
        assert!(fact(&json!({ "kty": "RSA", "n": "AQAB", "e": "AQAB" })).contains("17 bits"));
        assert!(fact(&json!({ "kty": "oct" })).contains("oct"));
        assert!(verifying_keys(r#"{"keys":[]}"#).expect_err("none").contains("empty"));
        assert!(verifying_keys("{}").expect_err("none").contains("no list"));
    }

    /// A hostile server's response, within the bytes that are read, has little cost, also in
    /// messages about it.
    #[test]
    fn result_is_small_whatever_a_set_contains() {
        const LONG: usize = 1024 * 1024;
        let set = |keys: Value| json!({ "keys": keys }).to_string();
        let long = "\u{e4}".repeat(LONG / 2);
        let with = |part: &str, value: Value| {
            let mut key = elliptic();
            key[part] = value;
            key
        };
        let padded = format!("{}{}", "A".repeat(LONG), URL_SAFE_NO_PAD.encode([0xc1; 255]));
        let rsa = json!({ "kty": "RSA", "n": padded, "e": "AQAB" });
        let refused = [
            (set(vec![json!(0); LONG / 2].into()), "lists 524288 keys, and the limit is 64"),
            (set(vec![json!(0); 64].into()), "keys[2] has no kind (kty); and 61 more"),
            (set(vec![elliptic(); 65].into()), "lists 65 keys"),
            (set(json!([{ "kty": long }])), "is of kind \u{e4}\u{e4}"),
            (set(json!([with("crv", long.as_str().into())])), "is on curve \u{e4}\u{e4}"),
            (set(json!([with("alg", long.as_str().into())])), "is for \"\u{e4}\u{e4}"),
            (set(json!([with("alg", vec![0; LONG / 2].into())])), "is for [0,0,"),
            (set(json!([with("kid", long.as_str().into())])), "bytes of keys, and the limit is"),
            (set(json!([rsa])), "bytes of keys, and the limit is 65536"),
        ];
        for (text, part) in refused {
            let fact = verifying_keys(&text).expect_err(part);
            assert!(fact.contains(part) && fact.len() < 400, "{} bytes: {fact}", fact.len());
        }
        let mut key = with("x5c", vec![long.as_str(); 2].into());
        key["use"] = json!({ "padding": long });
        let kept = verifying_keys(&set(vec![key; 64].into())).expect("64 that verify");
        let expected = set(vec![elliptic(); 64].into());
        assert_eq!(kept, expected, "nothing but what verifies");
        assert_eq!([cut("abcdef", 6), cut("abcdef", 5)], ["abcdef", "ab\u{2026}"]);
        assert_eq!(cut("\u{e4}\u{e4}\u{e4}\u{e4}", 6), "\u{e4}\u{2026}");
    }
}
