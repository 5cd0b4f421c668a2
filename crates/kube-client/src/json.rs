//! Lists and events of a watch in JSON.

use std::borrow::Cow;

use bytes::{Bytes, BytesMut};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;

use super::envelope::{CutError, ENVELOPE_BYTES_MAX, ListEnd, WatchLine, convert};
use super::object::{Form, InvalidField, ObjectKind, OnlyMeta, null_as_default};

/// Decodes an object.
pub(super) fn form<'a, F: Form<'a>>(json: &'a [u8]) -> Result<F, InvalidField> {
    if let Some((form, [])) = F::from_plain_json(json) {
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

/// Decodes a value. UTF-8 is validated once for the whole value, which is faster than for each text
/// in it. If it is invalid, only the texts that are read must be valid.
fn decode<'a, T: Deserialize<'a>>(json: &'a [u8]) -> Result<T, serde_json::Error> {
    match std::str::from_utf8(json) {
        Ok(text) => serde_json::from_str(text),
        Err(_) => serde_json::from_slice(json),
    }
}

/// Decodes an event.
pub(super) fn line<K: ObjectKind>(kind: &K, json: &[u8]) -> Result<WatchLine<K::Stored>, String> {
    #[derive(Deserialize)]
    struct Event<'a, F> {
        #[serde(rename = "type", borrow)]
        kind: Cow<'a, str>,
        object: F,
    }
    // Nearly all events contain a valid current object and are decoded in one pass. Others are
    // decoded again.
    let applied = plain_line(json).or_else(|| {
        let Event { kind, object } = decode::<Event<'_, K::ObjectForm<'_>>>(json).ok()?;
        matches!(&*kind, "ADDED" | "MODIFIED").then_some(object)
    });
    if let Some(object) = applied
        && object.identity().makes_sense()
        && let Ok((object, version)) = convert(kind, object)
    {
        return Ok(WatchLine::Applied { object, version });
    }

    let text = |error: serde_json::Error| error.to_string();
    let event: Event<'_, &RawValue> = serde_json::from_slice(json).map_err(text)?;
    let object = event.object.get().as_bytes();
    WatchLine::from_event(
        &event.kind,
        || form(object).and_then(|form| convert(kind, form)),
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
            Ok(WatchLine::from_status(status.code.into(), &status.reason, &status.message))
        },
    )
}

/// Decodes the object of an event that reports its current version, if both have the format of API
/// servers.
fn plain_line<'a, F: Form<'a>>(json: &'a [u8]) -> Option<F> {
    let rest = json.strip_prefix(br#"{"type":""#)?;
    let rest = rest.strip_prefix(b"ADDED").or_else(|| rest.strip_prefix(b"MODIFIED"))?;
    let (object, rest) = F::from_plain_json(rest.strip_prefix(br#"","object":"#)?)?;
    (rest == b"}").then_some(object)
}

/// Splits a list into its objects as it arrives.
///
/// Tracks strings and nesting only, with a counter. The decoders of the objects and of the envelope
/// validate the JSON.
pub(super) struct JsonList {
    longest: usize,
    buffer: BytesMut,
    /// Number of bytes of the buffer that have been scanned.
    scanned: usize,
    place: JsonListPosition,
    /// Number of open braces and brackets since the start of the current position.
    depth: usize,
    text: InText,
    /// The data around the objects, decoded at the end.
    envelope: Vec<u8>,
    /// The position in the envelope of the last string of the outermost object.
    name_at: usize,
}

/// The position in a list.
#[derive(Clone, Copy, PartialEq, Eq)]
enum JsonListPosition {
    /// Around the objects.
    Envelope,
    /// After `"items":`, before its value.
    Items,
    /// Between two objects.
    Between,
    /// In an object, or another value instead of one.
    Object,
}

/// Whether the position is in a string.
#[derive(Clone, Copy, PartialEq, Eq)]
enum InText {
    No,
    Yes,
    /// After a backslash.
    Escaped,
}

impl JsonList {
    /// Creates a splitter for objects of at most `longest` bytes.
    pub(super) fn new(longest: usize) -> Self {
        Self {
            longest,
            buffer: BytesMut::new(),
            scanned: 0,
            place: JsonListPosition::Envelope,
            depth: 0,
            text: InText::No,
            envelope: Vec::new(),
            name_at: 0,
        }
    }

    /// Appends received bytes.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// Returns the number of buffered bytes.
    pub(super) fn buffered(&self) -> usize {
        self.buffer.len()
    }

    /// Returns the next complete object; `None` until it is received.
    pub(super) fn next(&mut self) -> Result<Option<Bytes>, CutError> {
        while let Some(&byte) = self.buffer.get(self.scanned) {
            // Most of an object is strings, and most bytes of strings are neither end nor escape.
            if self.place == JsonListPosition::Object && self.text == InText::Yes {
                let rest = self.buffer.get(self.scanned..).unwrap_or_default();
                let plain = memchr::memchr2(b'"', b'\\', rest).unwrap_or(rest.len());
                if plain > 0 {
                    self.scanned += plain;
                    if self.scanned >= self.longest {
                        return Err(CutError::TooLong);
                    }
                    continue;
                }
            }
            match self.place {
                JsonListPosition::Envelope | JsonListPosition::Items => {
                    self.envelope_byte(byte);
                    if self.envelope.len() > ENVELOPE_BYTES_MAX {
                        return Err(CutError::Malformed(
                            "its data besides the objects is too large".into(),
                        ));
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
                        // The bytes before the object have been processed.
                        drop(self.buffer.split_to(self.scanned));
                        (self.scanned, self.depth, self.place) = (0, 0, JsonListPosition::Object);
                        continue;
                    }
                },
                JsonListPosition::Object => {
                    if let Some(object) = self.object_byte(byte) {
                        return Ok(Some(object));
                    }
                    if self.scanned >= self.longest {
                        return Err(CutError::TooLong);
                    }
                }
            }
            self.scanned += 1;
        }
        if self.place != JsonListPosition::Object {
            self.buffer.clear();
            self.scanned = 0;
        }
        Ok(None)
    }

    /// Processes a byte around the objects.
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

    /// Processes a byte of an object. Returns the object if the byte ends it.
    fn object_byte(&mut self, byte: u8) -> Option<Bytes> {
        let was_in_text = self.text != InText::No;
        // A number or a literal instead of an object ends before the next token.
        if self.depth == 0 && !was_in_text && self.scanned > 0 && matches!(byte, b',' | b']') {
            self.place = JsonListPosition::Between;
            let object = self.buffer.split_to(self.scanned).freeze();
            self.scanned = 0;
            return Some(object);
        }
        self.step(byte);
        let ends = !was_in_text && self.depth == 0 && matches!(byte, b'}' | b']');
        ends.then(|| {
            self.place = JsonListPosition::Between;
            let object = self.buffer.split_to(self.scanned + 1).freeze();
            self.scanned = 0;
            object
        })
    }

    /// Tracks strings and nesting.
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

    /// Returns the list's own metadata, after everything has been received.
    pub(super) fn end(self) -> Result<ListEnd, String> {
        #[derive(Deserialize)]
        struct Envelope<'a> {
            #[serde(default, borrow)]
            kind: Option<Cow<'a, str>>,
            #[serde(borrow)]
            metadata: Metadata<'a>,
            // No default: JSON without items is not a list, and an empty list would withdraw
            // everything. Go encodes an empty list as null.
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
            return Err("its items are at an unexpected position".into());
        }
        let Metadata { resource_version, next } = envelope.metadata;
        Ok(ListEnd {
            version: resource_version.into_owned(),
            next: next.filter(|token| !token.is_empty()).map(Cow::into_owned),
            kind: envelope.kind.unwrap_or_default().into_owned(),
        })
    }
}
