//! Lists and events of a watch in JSON.

use std::borrow::Cow;

use bytes::{Bytes, BytesMut};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;

use super::envelope::{CutError, ENVELOPE_BYTES_MAX, ListEnd, WatchLine, keep};
use super::object::{Form, InvalidField, ObjectKind, OnlyMeta, null_as_default};

/// Decodes an object.
pub(super) fn form<'a, F: Form<'a>>(json: &'a [u8]) -> Result<F, InvalidField> {
    if let Some((form, [])) = F::of_plain_json(json) {
        return Ok(form);
    }
    decode(json).map_err(|error| InvalidField {
        key: serde_json::from_slice::<OnlyMeta<'_>>(json).ok().and_then(|only| {
            let identity = only.metadata.identity();
            identity.makes_sense().then(|| identity.key())
        }),
        reason: error.to_string(),
    })
}

/// Decodes a value. That all of it is in UTF-8 is seen once, faster than of each text in it; where it
/// isn't, only those texts need be that are read.
fn decode<'a, T: Deserialize<'a>>(json: &'a [u8]) -> Result<T, serde_json::Error> {
    match std::str::from_utf8(json) {
        Ok(text) => serde_json::from_str(text),
        Err(_) => serde_json::from_slice(json),
    }
}

/// Decodes an event.
pub(super) fn line<K: ObjectKind>(kind: &K, json: &[u8]) -> Result<WatchLine<K::Kept>, String> {
    #[derive(Deserialize)]
    struct Event<'a, F> {
        #[serde(rename = "type", borrow)]
        kind: Cow<'a, str>,
        object: F,
    }
    // Nearly all are objects that are so now and make sense: read in one go. The rest is looked at
    // once more.
    let applied = plain_line(json).or_else(|| {
        let Event { kind, object } = decode::<Event<'_, K::ObjectForm<'_>>>(json).ok()?;
        matches!(&*kind, "ADDED" | "MODIFIED").then_some(object)
    });
    if let Some(object) = applied
        && object.identity().makes_sense()
        && let Ok((object, version)) = keep(kind, object)
    {
        return Ok(WatchLine::Applied { object, version });
    }

    let text = |error: serde_json::Error| error.to_string();
    let event: Event<'_, &RawValue> = serde_json::from_slice(json).map_err(text)?;
    let object = event.object.get().as_bytes();
    WatchLine::of_event(
        &event.kind,
        || form(object).and_then(|form| keep(kind, form)),
        || Ok(serde_json::from_slice::<OnlyMeta<'_>>(object).map_err(text)?.metadata),
        || {
            #[derive(Default, Deserialize)]
            #[serde(default)]
            struct Status {
                code: u16,
                message: String,
                reason: String,
            }
            let status: Status = serde_json::from_slice(object).map_err(text)?;
            Ok(WatchLine::of_status(status.code.into(), &status.reason, &status.message))
        },
    )
}

/// The object of an event that says that it is so now, if both are written as API servers write them.
fn plain_line<'a, F: Form<'a>>(json: &'a [u8]) -> Option<F> {
    let rest = json.strip_prefix(br#"{"type":""#)?;
    let rest = rest.strip_prefix(b"ADDED").or_else(|| rest.strip_prefix(b"MODIFIED"))?;
    let (object, rest) = F::of_plain_json(rest.strip_prefix(br#"","object":"#)?)?;
    (rest == b"}").then_some(object)
}

/// Cuts a list into its objects as it arrives.
///
/// Follows strings and nesting only, by a counter; whether it is JSON is judged by whoever decodes
/// the objects, and what is around them.
pub(super) struct JsonList {
    longest: usize,
    buffer: BytesMut,
    /// How many bytes of the buffer have been looked at.
    seen: usize,
    place: JsonListPosition,
    /// How many braces and brackets are open, counted from the place.
    depth: usize,
    text: InText,
    /// What is around the objects, decoded at the end.
    envelope: Vec<u8>,
    /// Where in the envelope the last text of the outermost object begins.
    name_at: usize,
}

/// Where in a list we are.
#[derive(Clone, Copy, PartialEq, Eq)]
enum JsonListPosition {
    /// Around the objects.
    Envelope,
    /// After `"items":`, before what that is.
    Items,
    /// Between two objects.
    Between,
    /// In an object, or whatever is in its place.
    Object,
}

/// Whether we are in a text.
#[derive(Clone, Copy, PartialEq, Eq)]
enum InText {
    No,
    Yes,
    /// After a backslash.
    Escaped,
}

impl JsonList {
    /// A list whose objects are at most `longest` bytes long.
    pub(super) fn new(longest: usize) -> Self {
        Self {
            longest,
            buffer: BytesMut::new(),
            seen: 0,
            place: JsonListPosition::Envelope,
            depth: 0,
            text: InText::No,
            envelope: Vec::new(),
            name_at: 0,
        }
    }

    /// Adds what was received.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// How many bytes are held.
    pub(super) fn buffered(&self) -> usize {
        self.buffer.len()
    }

    /// Takes the next whole object; `None` until there is one.
    pub(super) fn next(&mut self) -> Result<Option<Bytes>, CutError> {
        while let Some(&byte) = self.buffer.get(self.seen) {
            // Most of an object is text, and most of text is neither end nor escape.
            if self.place == JsonListPosition::Object && self.text == InText::Yes {
                let rest = self.buffer.get(self.seen..).unwrap_or_default();
                let plain = memchr::memchr2(b'"', b'\\', rest).unwrap_or(rest.len());
                if plain > 0 {
                    self.seen += plain;
                    if self.seen >= self.longest {
                        return Err(CutError::TooLong);
                    }
                    continue;
                }
            }
            match self.place {
                JsonListPosition::Envelope | JsonListPosition::Items => {
                    self.envelope_byte(byte);
                    if self.envelope.len() > ENVELOPE_BYTES_MAX {
                        return Err(CutError::Malformed("it has more to say than objects".into()));
                    }
                }
                JsonListPosition::Between => match byte {
                    b']' => {
                        self.envelope.push(b']');
                        self.place = JsonListPosition::Envelope;
                        // `items` is in the outermost object.
                        self.depth = 1;
                    }
                    b',' | b' ' | b'\n' | b'\r' | b'\t' => {}
                    _ => {
                        // What is before it has been taken care of.
                        drop(self.buffer.split_to(self.seen));
                        (self.seen, self.depth, self.place) = (0, 0, JsonListPosition::Object);
                        continue;
                    }
                },
                JsonListPosition::Object => {
                    if let Some(object) = self.object_byte(byte) {
                        return Ok(Some(object));
                    }
                    if self.seen >= self.longest {
                        return Err(CutError::TooLong);
                    }
                }
            }
            self.seen += 1;
        }
        if self.place != JsonListPosition::Object {
            self.buffer.clear();
            self.seen = 0;
        }
        Ok(None)
    }

    /// Takes a byte of what is around the objects.
    fn envelope_byte(&mut self, byte: u8) {
        if self.place == JsonListPosition::Items && !byte.is_ascii_whitespace() {
            self.place =
                if byte == b'[' { JsonListPosition::Between } else { JsonListPosition::Envelope };
        }
        self.envelope.push(byte);
        if self.place == JsonListPosition::Between {
            return;
        }
        let was_in_text = self.text != InText::No;
        self.step(byte);
        if self.depth == 1 && self.text == InText::Yes && !was_in_text {
            self.name_at = self.envelope.len();
        }
        let name = self.envelope.get(self.name_at..).unwrap_or_default();
        if byte == b':' && !was_in_text && self.depth == 1 && name.starts_with(b"items\"") {
            self.place = JsonListPosition::Items;
        }
    }

    /// Takes a byte in the place of an object; returns the object if that ends it.
    fn object_byte(&mut self, byte: u8) -> Option<Bytes> {
        let was_in_text = self.text != InText::No;
        // A number or a name in the place of an object ends where something else begins.
        if self.depth == 0 && !was_in_text && self.seen > 0 && matches!(byte, b',' | b']') {
            self.place = JsonListPosition::Between;
            let object = self.buffer.split_to(self.seen).freeze();
            self.seen = 0;
            return Some(object);
        }
        self.step(byte);
        let ends = !was_in_text && self.depth == 0 && matches!(byte, b'}' | b']');
        ends.then(|| {
            self.place = JsonListPosition::Between;
            let object = self.buffer.split_to(self.seen + 1).freeze();
            self.seen = 0;
            object
        })
    }

    /// Follows texts and nesting.
    fn step(&mut self, byte: u8) {
        match (self.text, byte) {
            (InText::Escaped, _) | (InText::No, b'"') => self.text = InText::Yes,
            (InText::Yes, b'\\') => self.text = InText::Escaped,
            (InText::Yes, b'"') => self.text = InText::No,
            (InText::No, b'{' | b'[') => self.depth += 1,
            (InText::No, b'}' | b']') => self.depth = self.depth.saturating_sub(1),
            _ => {}
        }
    }

    /// What the list says of itself, once all has been received.
    pub(super) fn end(self) -> Result<ListEnd, String> {
        #[derive(Deserialize)]
        struct Envelope<'a> {
            #[serde(borrow)]
            metadata: Metadata<'a>,
            // Not defaulted: JSON without items is no list, and an empty list would withdraw
            // everything. Go writes an empty list as null.
            #[serde(deserialize_with = "null_as_default")]
            items: Vec<IgnoredAny>,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Metadata<'a> {
            #[serde(borrow)]
            resource_version: Cow<'a, str>,
            #[serde(default, borrow, rename = "continue")]
            next: Option<Cow<'a, str>>,
        }
        if self.place != JsonListPosition::Envelope {
            return Err("it ended within its objects".into());
        }
        let envelope: Envelope<'_> =
            serde_json::from_slice(&self.envelope).map_err(|error| error.to_string())?;
        if !envelope.items.is_empty() {
            return Err("its items are in no known place".into());
        }
        let Metadata { resource_version, next } = envelope.metadata;
        Ok(ListEnd {
            version: resource_version.into_owned(),
            next: next.filter(|token| !token.is_empty()).map(Cow::into_owned),
        })
    }
}
