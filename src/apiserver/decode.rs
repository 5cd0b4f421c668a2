//! What answers say, whatever the form they are written in: pages of a list, events of a watch.
//!
//! [`Encoding`] is told by the answer's content type. `json.rs` and `protobuf.rs` know one form each
//! and say the same of the same; tests hold them against each other.

use bytes::Bytes;

use super::error::one_line;
use super::lines::{Lines, TooLong};
use super::object::{Form, Gather, Kind, Meta, Odd};
use super::protobuf::Frames;
use super::watch::Told;
use super::{Error, Event, Key, Limits, json, protobuf};

/// The form an answer is written in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Encoding {
    /// `application/json`.
    Json,
    /// `application/vnd.kubernetes.protobuf`.
    Protobuf,
}

/// Reads a whole answer to a list, which arrives in pieces of so many bytes. For tests, benches and
/// fuzzers; a [`super::Client`] reads what arrives.
///
/// # Errors
/// It is no list.
pub fn read_list<K: Kind>(
    kind: &K,
    encoding: Encoding,
    bytes: &[u8],
    piece: usize,
) -> Result<Told<K>, String> {
    let mut list = List::new(encoding, Limits::default().object_bytes);
    let (mut objects, mut odd) = (K::List::default(), Vec::new());
    for piece in bytes.chunks(piece) {
        list.push(piece);
        while let Some(bytes) = list.next().map_err(|error| format!("{error:?}"))? {
            match object(kind, encoding, &bytes) {
                Ok(object) => objects.add(object),
                Err(error) => odd.push(error),
            }
        }
    }
    list.end().map(|_| Event::Restarted { objects, odd })
}

/// Reads a whole answer in JSON to a list of objects that are kept as they are: those of it, one by one, that make
/// sense. For fuzzers.
///
/// # Errors
/// It is no list.
#[cfg(any(test, fuzzing))]
pub(crate) fn read_objects<T: super::Object>(bytes: &[u8]) -> Result<Vec<T>, String> {
    match read_list(&super::object::AsIs::<T>::new(), Encoding::Json, bytes, 64)? {
        Event::Restarted { objects, .. } => Ok(objects),
        _ => Ok(Vec::new()),
    }
}

/// As [`read_list`], for a watch.
///
/// # Errors
/// It is no watch.
pub fn read_watch<K: Kind>(
    kind: &K,
    encoding: Encoding,
    bytes: &[u8],
    piece: usize,
) -> Result<Vec<Told<K>>, String> {
    let mut cut = Events::new(encoding, Limits::default().object_bytes);
    let mut events = Vec::new();
    for piece in bytes.chunks(piece) {
        cut.push(piece);
        while let Some(event) = cut.next().map_err(|error| format!("{error:?}"))? {
            match line(kind, encoding, &event)? {
                Line::Applied { object, .. } => events.push(Event::Applied(object)),
                Line::Deleted { key, .. } => events.push(Event::Deleted(key)),
                Line::Odd { odd, .. } => events.push(Event::Odd(odd)),
                Line::Bookmark { .. } => {}
                Line::Error(error) => events.push(Event::Failed(error)),
            }
        }
    }
    if cut.has_rest() { Err("it ended within an event".into()) } else { Ok(events) }
}

/// The most that is read of a list besides its objects.
pub(super) const ENVELOPE_BYTES_MAX: usize = 64 << 10;

/// Why bytes can't be cut into objects or events.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum CutError {
    /// One of them grew beyond the bound.
    TooLong,
    /// They are not what they should be.
    Malformed(String),
}

/// Cuts a list into its objects as it arrives; never holds more than one of them.
pub(super) enum List {
    Json(json::List),
    Protobuf(protobuf::List),
}

impl List {
    /// A list whose objects are at most `longest` bytes long.
    pub(super) fn new(encoding: Encoding, longest: usize) -> Self {
        match encoding {
            Encoding::Json => Self::Json(json::List::new(longest)),
            Encoding::Protobuf => Self::Protobuf(protobuf::List::new(longest)),
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
    pub(super) fn end(self) -> Result<End, String> {
        match self {
            Self::Json(list) => list.end(),
            Self::Protobuf(list) => list.end(),
        }
    }
}

/// Cuts a watch into its events as it arrives.
pub(super) enum Events {
    Lines(Lines),
    Frames(Frames),
}

impl Events {
    /// Events of at most `longest` bytes.
    pub(super) fn new(encoding: Encoding, longest: usize) -> Self {
        match encoding {
            Encoding::Json => Self::Lines(Lines::new(longest)),
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

/// What a list says of itself.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct End {
    /// Its version.
    pub(super) version: String,
    /// Where the next page goes on; `None` after the last one.
    pub(super) next: Option<String>,
}

/// One event of a watch.
#[derive(Debug)]
pub(super) enum Line<T> {
    /// This object is so now.
    Applied { object: T, version: String },
    /// This object is gone.
    Deleted { key: Key, version: String },
    /// This object makes no sense; it is taken for gone, as a fresh list would leave it out.
    Odd { odd: Odd, version: String },
    /// Nothing happened up to this version.
    Bookmark { version: String, initial_events_end: bool },
    /// The watch ends for this reason.
    Error(Error),
}

impl<T> Line<T> {
    /// What an event of this type says. How its object is read, as a whole, as metadata or as a
    /// status, its form knows.
    ///
    /// # Errors
    /// There is no such type, or it needs what can't be read.
    pub(super) fn of_event<'a>(
        kind: &str,
        object: impl FnOnce() -> Result<(T, String), Odd>,
        metadata: impl FnOnce() -> Result<Meta<'a>, String>,
        status: impl FnOnce() -> Result<Self, String>,
    ) -> Result<Self, String> {
        Ok(match kind {
            "ADDED" | "MODIFIED" => match object() {
                Ok((object, version)) => Self::Applied { object, version },
                Err(odd) => {
                    let version = metadata().map(|metadata| metadata.resource_version.to_string());
                    Self::Odd { odd, version: version.unwrap_or_default() }
                }
            },
            "DELETED" => {
                let metadata = metadata()?;
                let identity = metadata.identity();
                Self::Deleted { key: identity.key(), version: identity.version.to_owned() }
            }
            "BOOKMARK" => {
                let metadata = metadata()?;
                Self::Bookmark {
                    initial_events_end: metadata.ends_initial_events(),
                    version: metadata.resource_version.to_string(),
                }
            }
            "ERROR" => status()?,
            other => return Err(format!("{:?} is no type of event", one_line(other))),
        })
    }

    /// The end that a status object stands for.
    pub(super) fn of_status(code: i64, reason: &str, message: &str) -> Self {
        let code = match (u16::try_from(code).unwrap_or_default(), reason) {
            (_, "Expired" | "Gone") => 410,
            // A status without a code is a failure all the same.
            (0, _) => 500,
            (code, _) => code,
        };
        Self::Error(Error::of_status(code, message, None))
    }
}

/// Decodes an object of a list.
pub(super) fn object<K: Kind>(kind: &K, encoding: Encoding, bytes: &[u8]) -> Result<K::Kept, Odd> {
    let form = match encoding {
        Encoding::Json => json::form(bytes),
        Encoding::Protobuf => protobuf::form(bytes),
    };
    keep(kind, form?).map(|(kept, _)| kept)
}

/// Decodes an event of a watch. An error says that it is not one at all.
pub(super) fn line<K: Kind>(
    kind: &K,
    encoding: Encoding,
    bytes: &[u8],
) -> Result<Line<K::Kept>, String> {
    match encoding {
        Encoding::Json => json::line(kind, bytes),
        Encoding::Protobuf => protobuf::line(kind, bytes),
    }
}

/// Keeps what is needed of an object whose names make sense, and says which version it is of.
pub(super) fn keep<'a, K: Kind>(kind: &K, form: K::Form<'a>) -> Result<(K::Kept, String), Odd> {
    let identity = form.identity();
    if !identity.makes_sense() {
        return Err(Odd { key: None, reason: "its name or namespace is no name".into() });
    }
    let version = identity.version.to_owned();
    Ok((kind.keep(form), version))
}

#[cfg(test)]
mod tests;
