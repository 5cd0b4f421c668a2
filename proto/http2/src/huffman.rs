//! Decoder for the Huffman code of HPACK (RFC 7541, appendix B).
//!
//! The code is canonical: codes of equal length are consecutive, in the order of [`SYMBOLS`]. Therefore
//! the number of codes of each length defines all codes.

/// Decodes a text; `None` if it is invalid. At most the first `limit` bytes of the text are returned.
pub(super) fn decode(bytes: &[u8], limit: usize) -> Option<Vec<u8>> {
    let mut text = Vec::new();
    // The bits since the last symbol, the first code of that length, and the index of that code's
    // symbol.
    let (mut code, mut length, mut first, mut index) = (0_u32, 0_usize, 0_u32, 0_u32);
    let mut all_ones = true;
    for byte in bytes {
        for shift in (0..8).rev() {
            let bit = u32::from(byte >> shift & 1);
            all_ones &= bit == 1;
            code = code << 1 | bit;
            length += 1;
            first <<= 1;
            // Thirty ones are the end-of-string symbol, which must not occur in a text.
            let count = u32::from(*COUNTS.get(length)?);
            if code < first + count {
                let symbol = *SYMBOLS.get((index + code - first) as usize)?;
                if text.len() < limit {
                    text.push(symbol);
                }
                (code, length, first, index, all_ones) = (0, 0, 0, 0, true);
            } else {
                first += count;
                index += count;
            }
        }
    }
    // The padding of the last byte consists of ones and is shorter than a byte.
    (length < 8 && all_ones).then_some(text)
}

/// The number of codes of each length in bits.
const COUNTS: [u8; 31] = [
    0, 0, 0, 0, 0, 10, 26, 32, 6, 0, 5, 3, 2, 6, 2, 3, 0, 0, 0, 3, 8, 13, 26, 29, 12, 4, 15, 19,
    29, 0, 3,
];

/// The decoded bytes, in the order of their codes.
const SYMBOLS: [u8; 256] = [
    48, 49, 50, 97, 99, 101, 105, 111, 115, 116, 32, 37, 45, 46, 47, 51, 52, 53, 54, 55, 56, 57,
    61, 65, 95, 98, 100, 102, 103, 104, 108, 109, 110, 112, 114, 117, 58, 66, 67, 68, 69, 70, 71,
    72, 73, 74, 75, 76, 77, 78, 79, 80, 81, 82, 83, 84, 85, 86, 87, 89, 106, 107, 113, 118, 119,
    120, 121, 122, 38, 42, 44, 59, 88, 90, 33, 34, 40, 41, 63, 39, 43, 124, 35, 62, 0, 36, 64, 91,
    93, 126, 94, 125, 60, 96, 123, 92, 195, 208, 128, 130, 131, 162, 184, 194, 224, 226, 153, 161,
    167, 172, 176, 177, 179, 209, 216, 217, 227, 229, 230, 129, 132, 133, 134, 136, 146, 154, 156,
    160, 163, 164, 169, 170, 173, 178, 181, 185, 186, 187, 189, 190, 196, 198, 228, 232, 233, 1,
    135, 137, 138, 139, 140, 141, 143, 147, 149, 150, 151, 152, 155, 157, 158, 165, 166, 168, 174,
    175, 180, 182, 183, 188, 191, 197, 231, 239, 9, 142, 144, 145, 148, 159, 171, 206, 215, 225,
    236, 237, 199, 207, 234, 235, 192, 193, 200, 201, 202, 205, 210, 213, 218, 219, 238, 240, 242,
    243, 255, 203, 204, 211, 212, 214, 221, 222, 223, 241, 244, 245, 246, 247, 248, 250, 251, 252,
    253, 254, 2, 3, 4, 5, 6, 7, 8, 11, 12, 14, 15, 16, 17, 18, 19, 20, 21, 23, 24, 25, 26, 27, 28,
    29, 30, 31, 127, 220, 249, 10, 13, 22,
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn examples_of_the_standard_are_decoded() {
        for (bytes, text) in [
            ("f1e3c2e5f23a6ba0ab90f4ff", "www.example.com"),
            ("a8eb10649cbf", "no-cache"),
            ("25a849e95ba97d7f", "custom-key"),
            ("25a849e95bb8e8b4bf", "custom-value"),
            ("d07abe941054d444a8200595040b8166e082a62d1bff", "Mon, 21 Oct 2013 20:13:21 GMT"),
        ] {
            let bytes: Vec<u8> = (0..bytes.len() / 2)
                .map(|at| u8::from_str_radix(&bytes[2 * at..2 * at + 2], 16).expect("hexadecimal"))
                .collect();
            assert_eq!(decode(&bytes, 100).as_deref(), Some(text.as_bytes()));
            assert_eq!(decode(&bytes, 3).as_deref(), Some(&text.as_bytes()[..3]));
        }
    }

    #[test]
    fn invalid_codes_are_refused() {
        // Padding with a zero, padding of a complete byte, and the end-of-string symbol.
        for bytes in [&[0b0000_0000][..], &[0b0000_0111, 0xff], &[0xff; 4]] {
            assert_eq!(decode(bytes, 100), None, "{bytes:?}");
        }
        assert_eq!(decode(&[], 100), Some(Vec::new()));
    }
}
