//! Decodes endpoints in protobuf as Go encodes them: fields in the order of their numbers, none
//! longer than 127 bytes.
//!
//! Each field is expected at its position, without a search for other fields. All other encodings
//! are left to [`ProtobufMessage::merge`]; if both succeed, the results are equal.

use super::rows::{Conditions, EndpointForm, TargetRef};
use strait_kube_client::ProtobufMessage;

/// Decodes an endpoint. Field numbers: k8s.io/api/discovery/v1/generated.proto.
#[inline]
pub(super) fn endpoint(bytes: &[u8]) -> Option<EndpointForm<&[u8]>> {
    let mut rest = InOrder(bytes);
    let address = Some(rest.take(1)?);
    while rest.take(1).is_some() {}
    let conditions = match rest.take_usual_conditions() {
        Some(conditions) => conditions,
        None => conditions(rest.take(2).unwrap_or_default())?,
    };
    let hostname = rest.take(3).unwrap_or_default();
    let target = target(rest.take(4).unwrap_or_default())?;
    let node = rest.take(6).unwrap_or_default();
    let zone = rest.take(7).unwrap_or_default();
    let _hints = rest.take(8);
    rest.0.is_empty().then_some(EndpointForm { address, conditions, target, hostname, node, zone })
}

/// Decodes conditions, some of them unknown.
#[cold]
fn conditions(bytes: &[u8]) -> Option<Conditions> {
    let mut conditions = Conditions::default();
    conditions.merge(bytes).ok().map(|()| conditions)
}

/// Decodes an `ObjectReference`: k8s.io/api/core/v1/generated.proto.
#[inline]
fn target(bytes: &[u8]) -> Option<TargetRef<&[u8]>> {
    let mut rest = InOrder(bytes);
    let mut next = |number| rest.take(number).unwrap_or_default();
    let target = TargetRef { kind: next(1), namespace: next(2), name: next(3) };
    let _uid_and_versions_and_path = [next(4), next(5), next(6), next(7)];
    rest.0.is_empty().then_some(target)
}

/// The remaining bytes.
struct InOrder<'a>(&'a [u8]);

impl<'a> InOrder<'a> {
    /// Returns the bytes of this field if it is next.
    #[inline]
    fn take(&mut self, number: u8) -> Option<&'a [u8]> {
        let [key, length @ 0..0x80, after @ ..] = self.0 else { return None };
        if *key != number << 3 | 2 {
            return None;
        }
        let (value, after) = after.split_at_checked(usize::from(*length))?;
        self.0 = after;
        Some(value)
    }

    /// Returns conditions if they are next and all three are known: eight bytes that are constant
    /// except for three bits.
    #[inline]
    fn take_usual_conditions(&mut self) -> Option<Conditions> {
        const WRITTEN: u64 = u64::from_le_bytes([0x12, 6, 0x08, 0, 0x10, 0, 0x18, 0]);
        const FLAGS: u64 = u64::from_le_bytes([0, 0, 0, 1, 0, 1, 0, 1]);
        let (eight, after) = self.0.split_first_chunk()?;
        let eight = u64::from_le_bytes(*eight);
        let flag = |byte: u32| Some(eight >> (8 * byte) & 1 == 1);
        (eight & !FLAGS == WRITTEN).then(|| {
            self.0 = after;
            Conditions { ready: flag(3), serving: flag(5), terminating: flag(7) }
        })
    }
}

#[cfg(test)]
mod tests {
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    use super::*;

    /// All fields of Go's type, except the removed ones.
    const WRITTEN: &[u8] = b"\x0a\x0810.0.0.1\x0a\x0810.0.0.2\x12\x06\x08\x01\x10\x01\x18\x00\x1a\x05web-0\x22\x27\
        \x0a\x03Pod\x12\x04shop\x1a\x0dweb-7d8-abcde\x22\x049d1c\x2a\x00\x32\x015\x3a\x002\x06node-1:\x02z1B\x06\x0a\x04\x0a\x02z1";

    /// Whether the endpoint was decoded. Checks that the result equals that of the field-by-field
    /// decoder.
    fn is_in_order(bytes: &[u8]) -> bool {
        let Some(read) = endpoint(bytes) else { return false };
        let mut full = EndpointForm::default();
        assert_eq!(full.merge(bytes), Ok(()), "{}", bytes.escape_ascii());
        assert_eq!(read, full, "{}", bytes.escape_ascii());
        true
    }

    #[test]
    fn encoding_of_go_is_decoded() {
        assert!(is_in_order(WRITTEN));
        let endpoint = endpoint(WRITTEN).expect("the fields are in order");
        assert_eq!(endpoint.address, Some(&b"10.0.0.1"[..]));
        let target = TargetRef { kind: &b"Pod"[..], namespace: b"shop", name: b"web-7d8-abcde" };
        assert_eq!(endpoint.target, target);
        assert_eq!((endpoint.node, endpoint.zone), (&b"node-1"[..], &b"z1"[..]));
        assert_eq!(endpoint.hostname, b"web-0");
        assert!(is_in_order(b"\x0a\x0810.0.0.1"));
        assert!(
            is_in_order(b"\x0a\x0810.0.0.1\x12\x02\x08\x00"),
            "serving and terminating are unknown"
        );
    }

    #[test]
    fn other_encodings_are_left_to_the_field_by_field_decoder() {
        let long = [&b"\x0a\x80\x01"[..], &[b'1'; 128]].concat();
        let others: [&[u8]; 6] = [
            b"",
            b"2\x06node-1",
            b"\x0a\x0110:\x01z2\x01n",
            b"\x0a\x011:\x01z:\x01y",
            b"\x0a\x011\x12\x01\xff",
            &long,
        ];
        for bytes in others {
            assert!(!is_in_order(bytes), "{}", bytes.escape_ascii());
        }
    }

    #[test]
    fn both_decoders_agree_on_random_bytes() {
        let mut random = StdRng::seed_from_u64(7);
        let mut read = 0;
        for _ in 0..50_000 {
            let mut bytes = WRITTEN.to_vec();
            for _ in 0..random.random_range(1..4) {
                let at = random.random_range(0..bytes.len());
                let end = (at + random.random_range(0..3)).min(bytes.len());
                let piece =
                    if random.random() { vec![random.random_range(0..0x44)] } else { Vec::new() };
                bytes.splice(at..end, piece);
            }
            read += u32::from(is_in_order(&bytes));
        }
        assert!(read > 1_000, "{read}: almost none were in order");
    }
}
