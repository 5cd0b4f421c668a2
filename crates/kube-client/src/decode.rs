//! Decodes responses in any encoding: pages of a list, events of a watch.
//!
//! [`Encoding`] follows from the response's content type. `json.rs` and `protobuf.rs` each decode
//! one encoding, with equal results; tests compare them.

use bytes::Bytes;

use super::envelope::{CutError, Encoding, ListEnd, WatchLine, convert};
use super::event::KindEvent;
use super::lines::{LineBuffer, TooLong};
use super::object::{Gather, InvalidField, ObjectKind};
use super::protobuf::Frames;
use super::{ReadLimits, WatchEvent, json, protobuf};

/// Decodes a complete response to a list, split into pieces of this many bytes. For tests, benches
/// and fuzzers; a [`super::ApiClient`] decodes pieces as they arrive.
///
/// # Errors
/// Fails if the response is not a list.
pub fn read_list<K: ObjectKind>(
    kind: &K,
    encoding: Encoding,
    bytes: &[u8],
    piece: usize,
) -> Result<KindEvent<K>, String> {
    let mut list = ListDecoder::new(encoding, ReadLimits::default().object_bytes);
    let (mut objects, mut invalid) = (K::List::default(), Vec::new());
    for piece in bytes.chunks(piece) {
        list.push(piece);
        while let Some(bytes) = list.next().map_err(|error| format!("{error:?}"))? {
            match object(kind, encoding, &bytes) {
                Ok(object) => objects.add(object),
                Err(error) => invalid.push(error),
            }
        }
    }
    list.end().map(|_| WatchEvent::Restarted { objects, invalid })
}

/// Decodes a complete JSON response to a list of objects that are stored unchanged, and returns the
/// valid ones. For fuzzers.
///
/// # Errors
/// Fails if the response is not a list.
pub fn read_objects<T: super::OwnedObject>(bytes: &[u8]) -> Result<Vec<T>, String> {
    match read_list(&super::object::AsIs::<T>::new(), Encoding::Json, bytes, 64)? {
        WatchEvent::Restarted { objects, .. } => Ok(objects),
        _ => Ok(Vec::new()),
    }
}

/// Decodes a complete response to a watch, like [`read_list`] does for a list.
///
/// # Errors
/// Fails if the response is not a watch.
pub fn read_watch<K: ObjectKind>(
    kind: &K,
    encoding: Encoding,
    bytes: &[u8],
    piece: usize,
) -> Result<Vec<KindEvent<K>>, String> {
    let mut cut = Events::new(encoding, ReadLimits::default().object_bytes);
    let mut events = Vec::new();
    for piece in bytes.chunks(piece) {
        cut.push(piece);
        while let Some(event) = cut.next().map_err(|error| format!("{error:?}"))? {
            match line(kind, encoding, &event)? {
                WatchLine::Applied { object, .. } => events.push(WatchEvent::Applied(object)),
                WatchLine::Deleted { key, .. } => events.push(WatchEvent::Deleted(key)),
                WatchLine::Invalid { invalid, .. } => events.push(WatchEvent::Invalid(invalid)),
                WatchLine::Bookmark { .. } => {}
                WatchLine::Error(error) => events.push(WatchEvent::Failed(error)),
            }
        }
    }
    if cut.has_rest() { Err("it ended within an event".into()) } else { Ok(events) }
}

/// Splits a list into its objects as it arrives; never stores more than one object.
pub(super) enum ListDecoder {
    Json(json::JsonList),
    Protobuf(protobuf::ProtobufList),
}

impl ListDecoder {
    /// Creates a decoder for objects of at most `longest` bytes.
    pub(super) fn new(encoding: Encoding, longest: usize) -> Self {
        match encoding {
            Encoding::Json => Self::Json(json::JsonList::new(longest)),
            Encoding::Protobuf => Self::Protobuf(protobuf::ProtobufList::new(longest)),
        }
    }

    /// Appends received bytes.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        match self {
            Self::Json(list) => list.push(bytes),
            Self::Protobuf(list) => list.push(bytes),
        }
    }

    /// Returns the number of bytes that are not a complete object yet.
    pub(super) fn buffered(&self) -> usize {
        match self {
            Self::Json(list) => list.buffered(),
            Self::Protobuf(list) => list.buffered(),
        }
    }

    /// Returns the next complete object; `None` until it is received.
    pub(super) fn next(&mut self) -> Result<Option<Bytes>, CutError> {
        match self {
            Self::Json(list) => list.next(),
            Self::Protobuf(list) => list.next(),
        }
    }

    /// Returns the list's own metadata, after everything has been received.
    pub(super) fn end(self) -> Result<ListEnd, String> {
        match self {
            Self::Json(list) => list.end(),
            Self::Protobuf(list) => list.end(),
        }
    }
}

/// Splits a watch into its events as it arrives.
pub(super) enum Events {
    Lines(LineBuffer),
    Frames(Frames),
}

impl Events {
    /// Creates a splitter for events of at most `longest` bytes.
    pub(super) fn new(encoding: Encoding, longest: usize) -> Self {
        match encoding {
            Encoding::Json => Self::Lines(LineBuffer::new(longest)),
            Encoding::Protobuf => Self::Frames(Frames::new(longest)),
        }
    }

    /// Appends received bytes.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        match self {
            Self::Lines(lines) => lines.push(bytes),
            Self::Frames(frames) => frames.push(bytes),
        }
    }

    /// Returns the number of bytes that are not a complete event yet.
    pub(super) fn buffered(&self) -> usize {
        match self {
            Self::Lines(lines) => lines.buffered(),
            Self::Frames(frames) => frames.buffered(),
        }
    }

    /// Returns the next complete event; `None` until it is received.
    pub(super) fn next(&mut self) -> Result<Option<Bytes>, TooLong> {
        match self {
            Self::Lines(lines) => lines.next(),
            Self::Frames(frames) => frames.next(),
        }
    }

    /// Whether an incomplete event is left over.
    pub(super) fn has_rest(&self) -> bool {
        match self {
            Self::Lines(lines) => lines.has_rest(),
            Self::Frames(frames) => frames.has_rest(),
        }
    }
}

/// Decodes an object of a list.
pub(super) fn object<K: ObjectKind>(
    kind: &K,
    encoding: Encoding,
    bytes: &[u8],
) -> Result<K::Stored, InvalidField> {
    let form = match encoding {
        Encoding::Json => json::form(bytes),
        Encoding::Protobuf => protobuf::form(bytes),
    };
    convert(kind, form?).map(|(object, _)| object)
}

/// Decodes an event of a watch. An error means that the bytes are not an event.
pub(super) fn line<K: ObjectKind>(
    kind: &K,
    encoding: Encoding,
    bytes: &[u8],
) -> Result<WatchLine<K::Stored>, String> {
    match encoding {
        Encoding::Json => json::line(kind, bytes),
        Encoding::Protobuf => protobuf::line(kind, bytes),
    }
}

#[cfg(test)]
mod tests;
