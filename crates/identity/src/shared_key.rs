//! Signatures that all replicas of a control plane can create and verify, and no other process.

use ring::hmac;

use strait_base::hex;

/// A key for signatures with one purpose.
#[derive(Debug, Clone)]
pub struct SharedKey(hmac::Key);

impl SharedKey {
    /// Derives a key for `purpose` from a secret. Each purpose has a different key.
    pub fn derive(secret: &[u8], purpose: &str) -> Self {
        Self::derived(&hmac::Key::new(hmac::HMAC_SHA256, secret), purpose)
    }

    pub(super) fn derived(secret: &hmac::Key, purpose: &str) -> Self {
        Self(hmac::Key::new(hmac::HMAC_SHA256, hmac::sign(secret, purpose.as_bytes()).as_ref()))
    }

    /// Returns the signature of a text, in hexadecimal.
    pub fn sign(&self, text: &str) -> String {
        hex::encode(hmac::sign(&self.0, text.as_bytes()).as_ref())
    }

    /// Returns whether `signature` is the signature of a text. Takes equally long for all wrong
    /// signatures.
    pub fn verify(&self, text: &str, signature: &str) -> bool {
        let tag = hex::decode(signature);
        tag.is_some_and(|tag| hmac::verify(&self.0, text.as_bytes(), &tag).is_ok())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signature_is_valid_for_its_text_key_and_purpose() {
        let key = SharedKey::derive(b"secret", "a");
        let signature = key.sign("text");
        assert!(SharedKey::derive(b"secret", "a").verify("text", &signature));
        assert!(!SharedKey::derive(b"secret", "b").verify("text", &signature));
        assert!(!SharedKey::derive(b"other", "a").verify("text", &signature));
        assert!(!key.verify("text2", &signature));
        for wrong in ["", "zz", "+1", "é", &signature[1..], &signature[2..]] {
            assert!(!key.verify("text", wrong), "{wrong}");
        }
    }

    #[test]
    fn signature_has_two_digits_for_each_byte() {
        let key = SharedKey::derive(b"secret", "a");
        let signed = (0..).map(|number: u32| (number.to_string(), key.sign(&number.to_string())));
        let ends_in_small_byte =
            |(_, signature): &(String, String)| signature.as_bytes()[62] == b'0';
        let (text, signature) = signed.into_iter().find(ends_in_small_byte).expect("one in 16");
        let last = &signature[63..];
        assert!(key.verify(&text, &signature));
        for wrong in [format!("{}{last}", &signature[..62]), format!("{signature}0")] {
            assert!(!key.verify(&text, &wrong), "{wrong}");
        }
    }
}
