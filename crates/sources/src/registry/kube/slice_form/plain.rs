//! Decodes EndpointSlices in JSON as Go encodes them: no blanks, no escapes in the decoded fields,
//! each name once.
//!
//! Such JSON is decoded in one pass, in a third of the time of a general parser. Anything else,
//! invalid or merely unusual, is left to the general parser. If both succeed, the results are
//! equal.

use serde::Deserialize;
use serde_json::Deserializer;

use super::rows::{Conditions, EndpointForm, SliceForm, TargetRef};

/// Decodes the slice at the beginning of `json`. Returns it with the remaining bytes.
pub(super) fn slice<'a>(json: &'a [u8]) -> Option<(SliceForm<'a>, &'a [u8])> {
    let (mut plain, mut slice) = (JsonScanner(json), SliceForm::default());
    // An endpoint takes at least about 230 bytes.
    slice.endpoints.reserve(json.len() / 220);
    let mut seen_names = SeenNames::default();
    plain.members(|plain| {
        if plain.takes(b"\"metadata\":") {
            seen_names.first(1)?;
            slice.metadata = plain.value()?;
        } else if plain.takes(b"\"endpoints\":[") {
            seen_names.first(2)?;
            plain.elements(|plain| {
                plain.endpoint().map(|endpoint| slice.endpoints.push(endpoint))
            })?;
        } else if plain.takes(b"\"ports\":") {
            seen_names.first(4)?;
            slice.ports = plain.value()?;
        } else if plain.takes(b"\"addressType\":\"") {
            seen_names.first(8)?;
            slice.address_type = std::str::from_utf8(plain.text()?).ok()?.into();
        } else if plain.takes(b"\"kind\":\"") || plain.takes(b"\"apiVersion\":\"") {
            plain.text()?;
        } else {
            return None;
        }
        Some(())
    })?;
    Some((slice, plain.0))
}

/// The remaining bytes.
struct JsonScanner<'a>(&'a [u8]);

/// The names of an object so far: none of them may occur twice.
#[derive(Default)]
struct SeenNames(u8);

impl SeenNames {
    #[inline]
    fn first(&mut self, bit: u8) -> Option<()> {
        let first = self.0 & bit == 0;
        self.0 |= bit;
        first.then_some(())
    }
}

impl<'a> JsonScanner<'a> {
    #[inline]
    fn takes(&mut self, expected: &[u8]) -> bool {
        let rest = self.0.strip_prefix(expected);
        self.0 = rest.unwrap_or(self.0);
        rest.is_some()
    }

    #[inline]
    fn take(&mut self, expected: &[u8]) -> Option<()> {
        self.takes(expected).then_some(())
    }

    /// Scans an object, name by name.
    #[inline]
    fn members(&mut self, member: impl FnMut(&mut Self) -> Option<()>) -> Option<()> {
        self.take(b"{")?;
        self.until(b"}", member)
    }

    /// Scans a list whose opening bracket has been consumed, element by element.
    #[inline]
    fn elements(&mut self, element: impl FnMut(&mut Self) -> Option<()>) -> Option<()> {
        self.until(b"]", element)
    }

    #[inline]
    fn until(&mut self, end: &[u8], mut item: impl FnMut(&mut Self) -> Option<()>) -> Option<()> {
        if self.takes(end) {
            return Some(());
        }
        loop {
            item(self)?;
            if self.takes(end) {
                return Some(());
            }
            self.take(b",")?;
        }
    }

    fn endpoint(&mut self) -> Option<EndpointForm<&'a [u8]>> {
        let (mut endpoint, mut seen_names) = (EndpointForm::default(), SeenNames::default());
        self.members(|plain| {
            if plain.takes(b"\"addresses\":[\"") {
                seen_names.first(1)?;
                endpoint.address = Some(plain.text()?);
                while plain.takes(b",\"") {
                    plain.text()?;
                }
                plain.take(b"]")?;
            } else if plain.takes(b"\"conditions\":") {
                seen_names.first(2)?;
                endpoint.conditions = plain.conditions()?;
            } else if plain.takes(b"\"targetRef\":") {
                seen_names.first(4)?;
                endpoint.target = plain.target()?;
            } else if plain.takes(b"\"nodeName\":\"") {
                seen_names.first(8)?;
                endpoint.node = plain.text()?;
            } else if plain.takes(b"\"zone\":\"") {
                seen_names.first(16)?;
                endpoint.zone = plain.text()?;
            } else if plain.takes(b"\"hostname\":\"") {
                seen_names.first(32)?;
                endpoint.hostname = plain.text()?;
            } else if plain.takes(b"\"hints\":") {
                plain.hints()?;
            } else {
                return None;
            }
            Some(())
        })?;
        Some(endpoint)
    }

    #[inline]
    fn conditions(&mut self) -> Option<Conditions> {
        let (mut conditions, mut seen_names) = (Conditions::default(), SeenNames::default());
        self.members(|plain| {
            let condition = if plain.takes(b"\"ready\":") {
                seen_names.first(1).map(|()| &mut conditions.ready)
            } else if plain.takes(b"\"serving\":") {
                seen_names.first(2).map(|()| &mut conditions.serving)
            } else if plain.takes(b"\"terminating\":") {
                seen_names.first(4).map(|()| &mut conditions.terminating)
            } else {
                None
            };
            *condition? = Some(plain.flag()?);
            Some(())
        })?;
        Some(conditions)
    }

    #[inline]
    fn target(&mut self) -> Option<TargetRef<&'a [u8]>> {
        let (mut target, mut seen_names) = (TargetRef::default(), SeenNames::default());
        self.members(|plain| {
            if plain.takes(b"\"kind\":\"") {
                seen_names.first(1)?;
                target.kind = plain.text()?;
            } else if plain.takes(b"\"namespace\":\"") {
                seen_names.first(2)?;
                target.namespace = plain.text()?;
            } else if plain.takes(b"\"name\":\"") {
                seen_names.first(4)?;
                target.name = plain.text()?;
            } else if plain.takes(b"\"uid\":\"") || plain.takes(b"\"resourceVersion\":\"") {
                plain.text()?;
            } else {
                return None;
            }
            Some(())
        })?;
        Some(target)
    }

    /// Scans the hints for other readers, which are not stored.
    fn hints(&mut self) -> Option<()> {
        self.members(|plain| {
            (plain.takes(b"\"forZones\":[") || plain.takes(b"\"forNodes\":[")).then_some(())?;
            plain.elements(|plain| {
                plain.take(b"{\"name\":\"")?;
                plain.text()?;
                plain.take(b"}")
            })
        })
    }

    #[inline]
    fn flag(&mut self) -> Option<bool> {
        let yes = self.takes(b"true");
        (yes || self.takes(b"false")).then_some(yes)
    }

    /// Scans a string whose opening quote has been consumed. Fails on an escape.
    #[inline]
    fn text(&mut self) -> Option<&'a [u8]> {
        let mut at = 0;
        let end = loop {
            let rest = self.0.get(at..)?;
            let eight = rest.first_chunk().copied().unwrap_or_else(|| last(rest));
            match special(u64::from_le_bytes(eight)) {
                0 => at += 8,
                marks => break at + marks.trailing_zeros() as usize / 8,
            }
        };
        let (text, rest) = self.0.split_at_checked(end)?;
        self.0 = rest.strip_prefix(b"\"")?;
        Some(text)
    }

    /// Decodes a list or an object with the general parser.
    fn value<T: Deserialize<'a>>(&mut self) -> Option<T> {
        // The end of other values is not detectable here.
        matches!(self.0.first()?, b'[' | b'{').then_some(())?;
        let mut values = Deserializer::from_slice(self.0).into_iter::<T>();
        let value = values.next()?.ok()?;
        self.0 = self.0.get(values.byte_offset()..)?;
        Some(value)
    }
}

/// Returns fewer than eight bytes, padded with zeros, which cannot occur in a string.
#[cold]
fn last(bytes: &[u8]) -> [u8; 8] {
    let mut last = [0; 8];
    last.iter_mut().zip(bytes).for_each(|(to, byte)| *to = *byte);
    last
}

/// Marks the first of eight bytes that is not plain text: a quote, a backslash, a control
/// character, or a byte beyond ASCII. Bytes after it may be marked too.
#[inline]
fn special(eight: u64) -> u64 {
    const ONES: u64 = u64::MAX / 0xff;
    // The subtraction borrows from the highest bit of each byte that is less.
    let (quote, slash) = (eight ^ (ONES * 0x22), eight ^ (ONES * 0x5c));
    let less =
        quote.wrapping_sub(ONES) | slash.wrapping_sub(ONES) | eight.wrapping_sub(ONES * 0x20);
    (less | eight) & (ONES << 7)
}

#[cfg(test)]
mod tests {
    use rand::rngs::StdRng;
    use rand::seq::IndexedRandom;
    use rand::{Rng, SeedableRng};

    use super::*;

    /// All fields of Go's type, except the removed ones.
    const WRITTEN: &str = concat!(
        r#"{"kind":"EndpointSlice","apiVersion":"discovery.k8s.io/v1","metadata":{"name":"web-1","namespace":"shop","#,
        r#""uid":"u","resourceVersion":"7","labels":{"kubernetes.io/service-name":"web"},"managedFields":[{"a":{}}]},"#,
        r#""addressType":"IPv4","endpoints":[{"addresses":["10.0.0.1","10.0.0.2"],"conditions":{"ready":true,"#,
        r#""serving":true,"terminating":false},"hostname":"web-0","targetRef":{"kind":"Pod","namespace":"shop","#,
        r#""name":"web-7d8-abcde","uid":"9d1c","resourceVersion":"5"},"nodeName":"node-1","zone":"z1","#,
        r#""hints":{"forZones":[{"name":"z1"},{"name":"z2"}],"forNodes":[]}},{"addresses":["10.0.0.3"],"conditions":{}}],"#,
        r#""ports":[{"name":"http","protocol":"TCP","port":8080}]}"#,
    );

    /// Whether the slice was decoded. Checks that the result equals that of the general parser.
    fn is_plain(json: &[u8]) -> bool {
        let Some((plain, rest)) = slice(json) else { return false };
        let whole = json.get(..json.len() - rest.len()).expect("a part");
        let full = serde_json::from_slice::<SliceForm<'_>>(whole);
        let shown = String::from_utf8_lossy(whole);
        assert_eq!(plain, full.unwrap_or_else(|error| panic!("{error}: {shown}")), "{shown}");
        true
    }

    #[test]
    fn encoding_of_go_is_decoded() {
        assert!(is_plain(WRITTEN.as_bytes()));
        assert!(is_plain(br#"{"endpoints":[],"ports":[]}, and what follows"#));
        assert!(is_plain(b"{}"));
    }

    #[test]
    fn response_of_a_real_api_server_is_decoded() {
        #[derive(Deserialize)]
        struct List<'a> {
            #[serde(borrow)]
            items: Vec<&'a serde_json::value::RawValue>,
        }
        let path = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../tests/corpus/kubernetes/endpointslices.list.json"
        );
        let json = std::fs::read(path).expect("it is in the repository");
        let list: List<'_> = serde_json::from_slice(&json).expect("a list");
        assert!(!list.items.is_empty());
        for item in list.items {
            assert!(is_plain(item.get().as_bytes()), "{item}");
        }
    }

    #[test]
    fn other_encodings_are_left_to_the_general_parser() {
        for (part, replacement) in [
            ("web-7d8-abcde", "web-7d8-\\u0061"),
            ("web-7d8-abcde", "web-\u{e4}"),
            ("web-7d8-abcde", "web-\n"),
            (r#""kind":"Pod","#, r#""kind": "Pod","#),
            (r#""kind":"Pod","#, r#""kind":"Pod","kind":"Pod","#),
            (r#""kind":"Pod","#, r#""kind":null,"#),
            (r#""kind":"Pod","#, r#""kin":"Pod","#),
            (r#""ready":true"#, r#""ready":truth"#),
            (r#"["10.0.0.3"]"#, "[]"),
            (r#""zone":"z1","#, r#""zone":"z1","zone":"","#),
            (r#""zone":"z1","#, r#""zone":"z1",,"#),
            (r#""ports":["#, r#""ports":"no","endpoints":["#),
            (r#""addressType":"IPv4","#, r#""addressType":"IPv4","endpoints":[],"#),
        ] {
            let changed = WRITTEN.replacen(part, replacement, 1);
            assert_ne!(changed, WRITTEN);
            assert!(!is_plain(changed.as_bytes()), "{changed}");
        }
        for end in 0..WRITTEN.len() {
            assert!(!is_plain(&WRITTEN.as_bytes()[..end]), "{end}");
        }
    }

    #[test]
    fn both_decoders_agree_on_random_bytes() {
        let mut random = StdRng::seed_from_u64(7);
        let pieces: Vec<&[u8]> =
            WRITTEN.as_bytes().chunk_by(|_, next| !b"{}[],:\"".contains(next)).collect();
        let mut read = 0;
        for _ in 0..20_000 {
            let mut json = WRITTEN.as_bytes().to_vec();
            for _ in 0..random.random_range(1..4) {
                let at = random.random_range(0..json.len());
                let end = (at + random.random_range(0..9)).min(json.len());
                let piece: Vec<u8> = match random.random_range(0..3) {
                    0 => pieces.choose(&mut random).expect("some").to_vec(),
                    1 => vec![random.random()],
                    _ => Vec::new(),
                };
                json.splice(at..end, piece);
            }
            read += u32::from(is_plain(&json));
        }
        assert!(read > 1_000, "{read}: almost none were plain");
    }

    #[test]
    fn string_ends_at_its_closing_quote() {
        for length in 0..20 {
            for after in ["\"", "\"]}", "\",\"and more that follows"] {
                let text = "x".repeat(length);
                let json = format!("{text}{after}");
                let mut plain = JsonScanner(json.as_bytes());
                assert_eq!(plain.text(), Some(text.as_bytes()));
                assert_eq!(plain.0, &after.as_bytes()[1..]);
            }
            for invalid in ["\\", "\u{1f}", "\u{80}", "\u{1f600}", ""] {
                let json = format!("{}{invalid}", "x".repeat(length));
                assert_eq!(JsonScanner(json.as_bytes()).text(), None, "{json}");
            }
            let all: String = (' '..='~').filter(|plain| !"\"\\".contains(*plain)).collect();
            assert_eq!(JsonScanner(format!("{all}\"").as_bytes()).text(), Some(all.as_bytes()));
        }
    }
}
