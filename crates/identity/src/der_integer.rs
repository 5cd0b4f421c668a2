//! Non-negative INTEGERs (X.690, 8.3), for the values of certificate extensions.

/// The tag of an INTEGER.
const TAG: u8 = 0x02;

/// Encodes a number in its shortest form.
pub(super) fn encode(number: u64) -> Vec<u8> {
    // The first bit of an INTEGER is its sign.
    let mut content = vec![TAG, 9, 0];
    content.extend(number.to_be_bytes());
    let skipped = content[2..].windows(2).take_while(|two| two[0] == 0 && two[1] < 0x80).count();
    content.drain(2..2 + skipped);
    content[1] -= u8::try_from(skipped).unwrap_or_default();
    content
}

/// Decodes a number; `None` if `value` is not an INTEGER of at most 64 bits.
pub(super) fn decode(value: &[u8]) -> Option<u64> {
    let [TAG, length, digits @ ..] = value else { return None };
    if digits.len() != usize::from(*length) || digits.is_empty() || digits.len() > 9 {
        return None;
    }
    // The first bit is set in negative numbers only.
    if digits[0] >= 0x80 {
        return None;
    }
    digits.iter().try_fold(0u64, |so_far, digit| {
        so_far.checked_mul(256).map(|so_far| so_far + u64::from(*digit))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn number_round_trips_in_the_shortest_form() {
        for (number, encoded) in [
            (0, vec![2, 1, 0]),
            (1, vec![2, 1, 1]),
            (127, vec![2, 1, 127]),
            (128, vec![2, 2, 0, 128]),
            (256, vec![2, 2, 1, 0]),
            (u64::MAX, vec![2, 9, 0, 255, 255, 255, 255, 255, 255, 255, 255]),
        ] {
            assert_eq!(encode(number), encoded, "{number}");
            assert_eq!(decode(&encoded), Some(number));
        }
    }

    #[test]
    fn other_values_are_no_number() {
        for value in [
            &[][..],
            &[2],
            &[2, 0],
            &[2, 2, 1],
            &[4, 1, 1],
            &[2, 1, 0x80],
            &[2, 9, 1, 0, 0, 0, 0, 0, 0, 0, 0],
        ] {
            assert_eq!(decode(value), None, "{value:?}");
        }
    }
}
