//! Signature Version 4 of AWS.

use jiff::Timestamp;
use ring::hmac;

use strait_base::hex;
use strait_kube_client::Redacted;

/// The name of the algorithm.
pub(super) const ALGORITHM: &str = "AWS4-HMAC-SHA256";

/// The time, region and service of a signature.
pub(super) struct SigningScope<'a> {
    pub(super) time: Timestamp,
    pub(super) region: &'a str,
    pub(super) service: &'a str,
}

/// A request in the form that is signed.
pub(super) struct CanonicalRequest<'a> {
    pub(super) method: &'a str,
    pub(super) path: &'a str,
    /// The parameters, encoded and sorted.
    pub(super) query: &'a str,
    /// The signed headers, in lower case and sorted.
    pub(super) headers: &'a [(&'a str, &'a str)],
    pub(super) body: &'a [u8],
}

impl SigningScope<'_> {
    /// Returns the time as `20150830T123600Z`.
    pub(super) fn date_time(&self) -> String {
        self.time.strftime("%Y%m%dT%H%M%SZ").to_string()
    }

    fn day(&self) -> String {
        self.time.strftime("%Y%m%d").to_string()
    }

    /// Returns the scope of the credential.
    pub(super) fn text(&self) -> String {
        format!("{}/{}/{}/aws4_request", self.day(), self.region, self.service)
    }

    /// Returns the signature of a request, in hexadecimal.
    pub(super) fn sign(&self, request: &CanonicalRequest<'_>, secret: &Redacted<String>) -> String {
        let text = self.string_to_sign(&request.text());
        let mut key = format!("AWS4{}", secret.reveal()).into_bytes();
        for part in [&self.day(), self.region, self.service, "aws4_request"] {
            key = hmac_sha256(&key, part.as_bytes());
        }
        hex::encode(&hmac_sha256(&key, text.as_bytes()))
    }

    fn string_to_sign(&self, canonical: &str) -> String {
        let hash = hex::sha256(canonical.as_bytes());
        format!("{ALGORITHM}\n{}\n{}\n{hash}", self.date_time(), self.text())
    }
}

impl CanonicalRequest<'_> {
    /// Returns the names of the signed headers.
    pub(super) fn signed_headers(&self) -> String {
        self.headers.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(";")
    }

    fn text(&self) -> String {
        let Self { method, path, query, headers, body } = self;
        let mut text = format!("{method}\n{path}\n{query}\n");
        for (name, value) in *headers {
            text += &format!("{name}:{}\n", single_spaced(value));
        }
        let hash = hex::sha256(body);
        text + &format!("\n{}\n{hash}", self.signed_headers())
    }
}

/// Returns a header's value without surrounding spaces, and with single ones inside.
fn single_spaced(value: &str) -> String {
    value.split_ascii_whitespace().collect::<Vec<_>>().join(" ")
}

fn hmac_sha256(key: &[u8], text: &[u8]) -> Vec<u8> {
    hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), text).as_ref().to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::members::form::form_text;

    /// The secret key of the examples in AWS's documentation and test suite.
    fn sign(query: &[(&str, &str)], headers: &[(&str, &str)], method: &str, body: &[u8]) -> String {
        let scope = SigningScope {
            time: "2015-08-30T12:36:00Z".parse().expect("a time"),
            region: "us-east-1",
            service: "service",
        };
        let query = form_text(query);
        let request = CanonicalRequest { method, path: "/", query: &query, headers, body };
        scope.sign(&request, &Redacted::new("wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY".to_owned()))
    }

    /// The cases `get-vanilla`, `get-vanilla-query-order-key-case` and `post-vanilla` of AWS's suite
    /// for Signature Version 4.
    #[test]
    fn signatures_equal_the_published_ones() {
        let headers = [("host", "example.amazonaws.com"), ("x-amz-date", "20150830T123600Z")];
        assert_eq!(
            sign(&[], &headers, "GET", b""),
            "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31"
        );
        assert_eq!(
            sign(&[("Param2", "value2"), ("Param1", "value1")], &headers, "GET", b""),
            "b97d918cfa904a5beff61c982a1b6f458b799221646efd99d3219ec94cdf2500"
        );
        assert_eq!(
            sign(&[], &headers, "POST", b""),
            "5da7c1a2acd57cee7505fc6676e4e544621c30862966e37dddb68e92efbe5d6b"
        );
    }

    #[test]
    fn query_is_sorted_after_encoding() {
        let query = form_text(&[("b", "1 2"), ("a", "x/y+z"), ("a", "~-_.")]);
        assert_eq!(query, "a=x%2Fy%2Bz&a=~-_.&b=1%202");
    }
}
