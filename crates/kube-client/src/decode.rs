//! What answers say, whatever the form they are written in: pages of a list, events of a watch.
//!
//! [`Encoding`] follows from the answer's content type. `json.rs` and `protobuf.rs` know one form each and decode the
//! same to the same; tests hold them against each other.

use bytes::Bytes;

use super::envelope::{CutError, Encoding, ListEnd, WatchLine, keep};
use super::event::KindEvent;
use super::lines::{LineBuffer, TooLong};
use super::object::{Gather, InvalidField, ObjectKind};
use super::protobuf::Frames;
use super::{ReadLimits, WatchEvent, json, protobuf};

/// Reads a whole answer to a list, which arrives in pieces of so many bytes. For tests, benches and
/// fuzzers; a [`super::ApiClient`] reads what arrives.
///
/// # Errors
/// It is no list.
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

/// Reads a whole answer in JSON to a list of objects that are kept as they are: those of it, one by one, that make
/// sense. For fuzzers.
///
/// # Errors
/// It is no list.
pub fn read_objects<T: super::OwnedObject>(bytes: &[u8]) -> Result<Vec<T>, String> {
    match read_list(&super::object::AsIs::<T>::new(), Encoding::Json, bytes, 64)? {
        WatchEvent::Restarted { objects, .. } => Ok(objects),
        _ => Ok(Vec::new()),
    }
}

/// As [`read_list`], for a watch.
///
/// # Errors
/// It is no watch.
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

/// Cuts a list into its objects as it arrives; never holds more than one of them.
pub(super) enum ListDecoder {
    Json(json::JsonList),
    Protobuf(protobuf::ProtobufList),
}

impl ListDecoder {
    /// A list whose objects are at most `longest` bytes long.
    pub(super) fn new(encoding: Encoding, longest: usize) -> Self {
        match encoding {
            Encoding::Json => Self::Json(json::JsonList::new(longest)),
            Encoding::Protobuf => Self::Protobuf(protobuf::ProtobufList::new(longest)),
        }
    }

    /// Adds what was received.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        match self {
            Self::Json(list) => list.push(bytes),
            Self::Protobuf(list) => list.push(bytes),
        }
    }

    /// How many bytes are no object yet.
    pub(super) fn buffered(&self) -> usize {
        match self {
            Self::Json(list) => list.buffered(),
            Self::Protobuf(list) => list.buffered(),
        }
    }

    /// Takes the next whole object; `None` until there is one.
    pub(super) fn next(&mut self) -> Result<Option<Bytes>, CutError> {
        match self {
            Self::Json(list) => list.next(),
            Self::Protobuf(list) => list.next(),
        }
    }

    /// What the list says of itself, once all has been received.
    pub(super) fn end(self) -> Result<ListEnd, String> {
        match self {
            Self::Json(list) => list.end(),
            Self::Protobuf(list) => list.end(),
        }
    }
}

/// Cuts a watch into its events as it arrives.
pub(super) enum Events {
    Lines(LineBuffer),
    Frames(Frames),
}

impl Events {
    /// Events of at most `longest` bytes.
    pub(super) fn new(encoding: Encoding, longest: usize) -> Self {
        match encoding {
            Encoding::Json => Self::Lines(LineBuffer::new(longest)),
            Encoding::Protobuf => Self::Frames(Frames::new(longest)),
        }
    }

    /// Adds what was received.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        match self {
            Self::Lines(lines) => lines.push(bytes),
            Self::Frames(frames) => frames.push(bytes),
        }
    }

    /// How many bytes are no event yet.
    pub(super) fn buffered(&self) -> usize {
        match self {
            Self::Lines(lines) => lines.buffered(),
            Self::Frames(frames) => frames.buffered(),
        }
    }

    /// Takes the next whole event; `None` until there is one.
    pub(super) fn next(&mut self) -> Result<Option<Bytes>, TooLong> {
        match self {
            Self::Lines(lines) => lines.next(),
            Self::Frames(frames) => frames.next(),
        }
    }

    /// Whether half an event is left over.
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
) -> Result<K::Kept, InvalidField> {
    let form = match encoding {
        Encoding::Json => json::form(bytes),
        Encoding::Protobuf => protobuf::form(bytes),
    };
    keep(kind, form?).map(|(kept, _)| kept)
}

/// Decodes an event of a watch. An error says that it is not one at all.
pub(super) fn line<K: ObjectKind>(
    kind: &K,
    encoding: Encoding,
    bytes: &[u8],
) -> Result<WatchLine<K::Kept>, String> {
    match encoding {
        Encoding::Json => json::line(kind, bytes),
        Encoding::Protobuf => protobuf::line(kind, bytes),
    }
}

#[cfg(test)]
mod tests;
