//! Formats and parses bytes as hexadecimal digits.

use std::fmt::Write as _;

use ring::digest::{SHA256, digest};

/// Encodes bytes as lower-case hexadecimal digits, two for each byte.
pub fn encode(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        // Writing to a string does not fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

/// Decodes hexadecimal digits, in lower or upper case. Returns `None` if `text` is not two digits for each byte.
pub fn decode(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let (pairs, []) = text.as_bytes().as_chunks::<2>() else { return None };
    pairs.iter().map(|[high, low]| Some(digit(*high)? << 4 | digit(*low)?)).collect()
}

/// Returns the SHA-256 of `bytes` in hexadecimal.
pub fn sha256(bytes: &[u8]) -> String {
    encode(digest(&SHA256, bytes).as_ref())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_byte_has_two_digits() {
        assert_eq!(encode(&[0, 1, 0x7f, 0xff]), "00017fff");
        // The example "abc" of FIPS 180-4.
        let expected = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(sha256(b"abc"), expected);
    }

    #[test]
    fn only_two_digits_for_each_byte_are_decoded() {
        assert_eq!(decode("00017fFf"), Some(vec![0, 1, 0x7f, 0xff]));
        assert_eq!(decode(""), Some(vec![]));
        for wrong in ["0", "000", "+1", "0g", "0 ", "é", "0x00", "é0"] {
            assert_eq!(decode(wrong), None, "{wrong}");
        }
    }
}
