//! Redaction of credentials in a bundle: passwords, tokens, private keys, cookies.
//!
//! By design, responses of the admin port contain no credentials; this is the second safeguard. It
//! recognizes fields by their names, values by their form, and secrets that this command itself
//! knows by comparison. In doubt, it redacts.

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD};
use serde_json::Value;

/// Replacement text for a secret.
pub(super) const HIDDEN: &str = "<redacted>";
/// Base64 texts of at least this length are decoded and searched.
const ENCODED_MIN: usize = 40;
/// Maximum depth to which nested encoded texts are searched.
const DEPTH_MAX: usize = 3;

/// Names of fields and headers with secret values: lower case, only letters and digits.
const SECRET_NAMES: [&str; 10] = [
    "authorization",
    "proxyauthorization",
    "cookie",
    "setcookie",
    "bearer",
    "passphrase",
    "clientkeydata",
    "clientkey",
    "tlskey",
    "sessionticketkeys",
];
/// Endings of names of fields and headers with secret values.
const SECRET_ENDS: [&str; 9] = [
    "password",
    "passwd",
    "token",
    "apikey",
    "privatekey",
    "secretkey",
    "clientsecret",
    "sharedsecret",
    "keypem",
];
/// Words in a header's name that indicate a secret value.
const SECRET_PARTS: [&str; 14] = [
    "auth",
    "credential",
    "credentials",
    "csrf",
    "jwt",
    "key",
    "pass",
    "pwd",
    "secret",
    "session",
    "sig",
    "signature",
    "token",
    "xsrf",
];
/// Fields of an object that describes only a header: its name and its value.
const BESIDE_HEADER: [&str; 6] = ["name", "key", "value", "rawValue", "raw_value", "stringMatch"];
/// Prefixes of tokens of well-known providers.
const TOKEN_STARTS: [&str; 10] =
    ["AKIA", "ASIA", "ghp_", "gho_", "ghs_", "github_pat_", "xoxb-", "xoxp-", "ya29.", "hvs."];
/// Start and end markers of the PEM form (RFC 7468).
const PEM: (&str, &str) = ("-----BEGIN ", "-----END ");

/// Redacts secrets and counts them.
pub(super) struct Redactor {
    known: Vec<String>,
    found: usize,
}

impl Redactor {
    /// Creates a redactor that also redacts these known secrets. Secrets of fewer than 8 characters
    /// are ignored.
    pub(super) fn new(known: impl IntoIterator<Item = String>) -> Self {
        let known = known.into_iter().filter(|secret| secret.len() >= 8).collect();
        Self { known, found: 0 }
    }

    /// Redacts a response. Returns the text and the number of secrets; without secrets, the text is
    /// unchanged.
    pub(super) fn answer(&mut self, raw: &str) -> (String, usize) {
        let before = self.found;
        let clean = match serde_json::from_str::<Value>(raw) {
            Ok(mut value) => {
                self.value(&mut value);
                match self.found == before {
                    true => raw.to_owned(),
                    false => format!("{value:#}\n"),
                }
            }
            Err(_) => self.text(raw),
        };
        (clean, self.found - before)
    }

    fn value(&mut self, value: &mut Value) {
        match value {
            Value::String(text) => {
                let before = self.found;
                let clean = self.text(text);
                if self.found > before {
                    *text = clean;
                }
            }
            Value::Array(values) => values.iter_mut().for_each(|value| self.value(value)),
            Value::Object(fields) => {
                // A header or a variable: one field is the name, another the value.
                let named = ["name", "key"]
                    .iter()
                    .any(|it| fields.get(*it).and_then(Value::as_str).is_some_and(is_secret_name));
                let is_header = fields.keys().all(|name| BESIDE_HEADER.contains(&name.as_str()));
                let named = named
                    || is_header
                        && ["name", "key"].iter().any(|it| {
                            fields.get(*it).and_then(Value::as_str).is_some_and(is_secret_header)
                        });
                for (name, value) in fields {
                    let is_value = name != "name" && name != "key";
                    if is_secret_name(name) || (named && is_value) {
                        self.hide(value);
                        continue;
                    }
                    if let Value::Object(headers) = value
                        && name.to_lowercase().contains("headers")
                    {
                        let secret = headers.iter_mut().filter(|(name, _)| is_secret_header(name));
                        secret.for_each(|(_, value)| self.hide(value));
                    }
                    self.value(value);
                }
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }

    /// Replaces all texts in a value.
    fn hide(&mut self, value: &mut Value) {
        match value {
            Value::String(text) if !text.is_empty() && text != HIDDEN => {
                HIDDEN.clone_into(text);
                self.found += 1;
            }
            Value::Array(values) => values.iter_mut().for_each(|value| self.hide(value)),
            Value::Object(fields) => fields.values_mut().for_each(|value| self.hide(value)),
            _ => {}
        }
    }

    /// Redacts a text.
    pub(super) fn text(&mut self, text: &str) -> String {
        self.text_at(text, 0)
    }

    fn text_at(&mut self, text: &str, depth: usize) -> String {
        let mut text = text.to_owned();
        for secret in &self.known {
            self.found += text.matches(secret.as_str()).count();
            text = text.replace(secret.as_str(), HIDDEN);
        }
        let text = self.keys(&text);
        self.words(&text, depth)
    }

    /// Redacts private keys in PEM form. A key that is cut off extends to the end of the text.
    fn keys(&mut self, text: &str) -> String {
        let mut clean = String::with_capacity(text.len());
        let mut rest = text;
        while let Some(at) = rest.find(PEM.0) {
            let (before, block) = rest.split_at(at);
            clean += before;
            let is_key = block.split("-----").nth(1).is_some_and(|it| it.contains("PRIVATE KEY"));
            if !is_key {
                clean += PEM.0;
                rest = &block[PEM.0.len()..];
                continue;
            }
            self.found += 1;
            clean += HIDDEN;
            let end = block.find(PEM.1).map_or(block.len(), |end| {
                let tail = &block[end + PEM.1.len()..];
                tail.find("-----").map_or(block.len(), |more| end + PEM.1.len() + more + 5)
            });
            rest = &block[end..];
        }
        clean + rest
    }

    /// Redacts words that are secret because of their form or the text before them.
    fn words(&mut self, text: &str, depth: usize) -> String {
        let mut clean = String::with_capacity(text.len());
        let mut rest = text;
        while !rest.is_empty() {
            let start = rest.find(is_of_word).unwrap_or(rest.len());
            let (between, word) = rest.split_at(start);
            clean += between;
            let end = word.find(|c| !is_of_word(c)).unwrap_or(word.len());
            let (word, after) = word.split_at(end);
            match self.is_secret(&clean, word, after, depth) {
                true => {
                    clean += HIDDEN;
                    self.found += 1;
                }
                false => clean += word,
            }
            rest = after;
        }
        clean
    }

    /// Returns whether a word is a secret, given the text before and after it.
    fn is_secret(&self, before: &str, word: &str, after: &str, depth: usize) -> bool {
        if word.is_empty() {
            return false;
        }
        let assigned = before.trim_end_matches([' ', '"', '\'', '\\']);
        if let Some(name) = assigned.strip_suffix([':', '=']) {
            let name = name.trim_end_matches([' ', '"', '\'', '\\']);
            let start = name.rfind(|c| !is_of_name(c)).map_or(0, |at| at + 1);
            let name = &name[start..];
            // In prose, a colon often follows the name of a secret: "token: expired".
            let certain = assigned.ends_with('=') || name.to_lowercase().contains("passw");
            if is_secret_name(name) && (certain || is_random(word)) {
                return true;
            }
        }
        let mut words = before.trim_end().rsplit(|c: char| !c.is_ascii_alphabetic());
        let scheme = words.next().unwrap_or_default();
        let scheme = ["bearer", "basic"].iter().any(|it| scheme.eq_ignore_ascii_case(it));
        if scheme && before.ends_with(' ') && is_random(word) {
            return true;
        }
        // scheme://user:password@host
        if after.starts_with('@') && before.ends_with(':') {
            let user = before.rfind("://").map(|at| &before[at + 3..]);
            if user.is_some_and(|user| !user.contains(['/', ' ', '@'])) {
                return true;
            }
        }
        TOKEN_STARTS.iter().any(|start| word.len() > 14 && word.starts_with(start))
            || is_web_token(word)
            || (word.len() >= ENCODED_MIN && depth < DEPTH_MAX && holds_secret(word, depth))
    }
}

/// Returns whether a Base64 text contains a secret.
fn holds_secret(word: &str, depth: usize) -> bool {
    let bytes = STANDARD_NO_PAD.decode(word).or_else(|_| URL_SAFE_NO_PAD.decode(word));
    let Some(text) = bytes.ok().and_then(|bytes| String::from_utf8(bytes).ok()) else {
        // The text is cut off or incomplete: the beginning of a PEM key is sufficient.
        return word.starts_with("LS0tLS1CRUdJTiBQUklWQVRF");
    };
    let mut within = Redactor::new([]);
    within.text_at(&text, depth + 1);
    within.found > 0
}

/// Returns whether a word is a JSON Web Token (RFC 7519), signed or not.
fn is_web_token(word: &str) -> bool {
    let mut parts = word.split('.');
    let encoded = |part: Option<&str>| part.is_some_and(|it| it.starts_with("eyJ"));
    encoded(parts.next()) && encoded(parts.next())
}

/// Returns whether a word looks random, unlike a word of a sentence.
fn is_random(word: &str) -> bool {
    let has = |what: fn(&u8) -> bool| word.as_bytes().iter().any(what);
    let inner = |what: fn(&u8) -> bool| word.as_bytes().iter().skip(1).any(what);
    let mixed = inner(u8::is_ascii_uppercase) && has(u8::is_ascii_lowercase);
    word.len() >= 8 && (has(u8::is_ascii_digit) || mixed)
}

fn is_of_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.')
}

/// Returns whether tokens and Base64 use this character, apart from Base64 padding.
fn is_of_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '+' | '/' | '_' | '-' | '.' | '~')
}

/// Returns whether a header of this name carries a secret. Custom headers are recognized by single
/// words in their names.
fn is_secret_header(name: &str) -> bool {
    let parts = name.split(|c: char| !c.is_ascii_alphanumeric());
    is_secret_name(name)
        || parts.into_iter().any(|part| SECRET_PARTS.contains(&part.to_lowercase().as_str()))
}

/// Returns whether a field of this name is secret. The name of a Secret object is not secret.
fn is_secret_name(name: &str) -> bool {
    let name: String =
        name.chars().filter(char::is_ascii_alphanumeric).collect::<String>().to_lowercase();
    SECRET_NAMES.contains(&name.as_str()) || SECRET_ENDS.iter().any(|end| name.ends_with(end))
}

#[cfg(test)]
mod tests {
    use base64::engine::general_purpose::STANDARD;
    use serde_json::json;

    use super::*;

    const CANARY: &str = "c4n4ryAbCdEfGh0123";

    fn key() -> String {
        // Assembled here, so that scanners do not report a private key in this file.
        let kind = "PRIVATE KEY";
        format!("-----BEGIN EC {kind}-----\n{CANARY}{CANARY}\n-----END EC {kind}-----\n")
    }

    fn web_token() -> String {
        let part = |text: &str| URL_SAFE_NO_PAD.encode(text);
        format!("{}.{}.{CANARY}", part(r#"{"alg":"RS256"}"#), part(r#"{"sub":"a"}"#))
    }

    #[test]
    fn secrets_are_redacted_in_every_position() {
        let kubeconfig = format!("users: [{{name: u, user: {{token: {CANARY}}}}}]");
        let planted = [
            json!({ "token": CANARY }),
            json!({ "user": { "client-key-data": CANARY, "password": "weak" } }),
            json!([{ "header": { "key": "Authorization", "value": CANARY } }]),
            json!({ "header": { "name": "x-api-key", "rawValue": CANARY } }),
            json!({ "header": { "key": "x-secret", "value": CANARY } }),
            json!({ "appendAction": "A", "header": { "key": "X-Auth-User", "value": "weak" } }),
            json!({ "headers": [{ "name": "x-session", "stringMatch": { "exact": CANARY } }] }),
            json!({ "includeAdditionalHeadersInCheck": { "x-key": CANARY, "x-other": "a" } }),
            json!({ "privateKey": { "inlineString": CANARY } }),
            json!({ "tls_certificate": { "private_key": { "inline_bytes": CANARY } } }),
            json!({ "reason": format!("401 with Authorization: Bearer {CANARY}") }),
            json!({ "reason": format!("GET https://u:{CANARY}@10.0.0.1:6443/api failed") }),
            json!({ "reason": format!("GET /x?access_token={CANARY}&limit=1 failed") }),
            json!({ "text": format!("before {} after", key()) }),
            json!({ "text": key().split("-----END").next().expect("cut off") }),
            json!({ "text": kubeconfig }),
            json!({ "data": STANDARD.encode(&kubeconfig) }),
            json!({ "data": STANDARD.encode(STANDARD.encode(key())) }),
            json!({ "data": web_token() }),
            json!({ "data": format!("password={CANARY}") }),
            json!({ "data": format!("{{\"password\": \"{CANARY}\"}}") }),
            json!({ "data": "the known one is known-to-us" }),
        ];
        for planted in planted {
            let mut redactor = Redactor::new(["known-to-us".to_owned()]);
            let raw = format!("{planted:#}\n");
            let (clean, found) = redactor.answer(&raw);
            assert!(found > 0, "nothing found in {raw}");
            for secret in [CANARY, "weak", "known-to-us", &STANDARD.encode(CANARY)] {
                assert!(!clean.contains(secret), "{clean}");
            }
            assert!(serde_json::from_str::<Value>(&clean).is_ok(), "{clean}");
            // Also in texts that are not JSON.
            let (text, found) = Redactor::new(["known-to-us".to_owned()]).answer(&raw[1..]);
            let plain = planted.get("text").is_some() || planted.get("reason").is_some();
            assert!(!plain || (found > 0 && !text.contains(CANARY)), "{text}");
        }
    }

    #[test]
    fn text_without_secrets_is_unchanged() {
        let certificate = format!(
            "-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----\n",
            STANDARD.encode([7_u8; 300])
        );
        let plain = json!({
            "secret": "strait-system/cluster-prod-eu",
            "credential": { "expires": "2026-11-25T02:00:00Z", "renewsItself": true },
            "tokenExpires": "2026-11-25T02:00:00Z",
            "tokens": 3,
            "reason": "answered 401: the token: expired at 2026-11-20, renew it by strait cluster rotate prod-eu",
            "next": "pass the bearer token by --token-file; Basic authentication is not for this",
            "identity": "spiffe://cluster.local/ns/shop/sa/web",
            "url": "https://10.0.0.1:6443/api/v1/namespaces?limit=500",
            "name": "outbound|8080||reviews.shop.svc.cluster.local",
            "version": "0f1e2d3c4b5a69788796a5b4c3d2e1f00f1e2d3c4b5a69788796a5b4c3d2e1f0",
            "chain": certificate,
            "id": "sidecar~10.1.2.3~web-7d9f8b6c5-x2x4z.shop~shop.svc.cluster.local",
            "empty": { "password": "" },
            "service": { "name": "auth.shop.svc.cluster.local", "resolution": "DNS" },
            "header": { "key": ":authority", "value": "a.example" },
            "headersToUpstream": { "x-version": "v1", "x-keyboard": "de" },
            "hostile": "\u{202e}<img onerror> é …:=@",
        });
        let raw = format!("{plain:#}\n");
        assert_eq!(Redactor::new([]).answer(&raw), (raw, 0));
    }
}
