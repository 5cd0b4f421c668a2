//! The parts of a response, independent of the encoding.

use super::error::one_line;
use super::object::{Form as _, InvalidField, Meta, ObjectKind};
use super::{ApiError, NamespacedName};

/// The encoding of a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Encoding {
    /// `application/json`.
    Json,
    /// `application/vnd.kubernetes.protobuf`.
    Protobuf,
}

/// Maximum size of a list's data besides its objects, in bytes.
pub(super) const ENVELOPE_BYTES_MAX: usize = 64 << 10;

/// The reason why bytes cannot be split into objects or events.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum CutError {
    /// An object or event exceeds the limit.
    TooLong,
    /// The bytes are malformed.
    Malformed(String),
}

/// The metadata of a list.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct ListEnd {
    /// Its version.
    pub(super) version: String,
    /// The token of the next page; `None` after the last one.
    pub(super) next: Option<String>,
    /// Its kind, for example `PodList`; empty if it states none.
    pub(super) kind: String,
}

impl ListEnd {
    /// Checks that the list contains objects of the requested kind, given as the plural in its path:
    /// an empty list of another kind would remove everything. `List` and a missing kind fit any
    /// request.
    ///
    /// # Errors
    /// Fails with the kind of the list.
    pub(super) fn check_kind(&self, plural: &str) -> Result<(), String> {
        if self.kind.is_empty() {
            return Ok(());
        }
        let singular = self.kind.strip_suffix("List").map(str::to_ascii_lowercase);
        // A plural may end in `ies` instead of `y`.
        let mut stem = singular.clone().unwrap_or_default();
        stem.pop();
        match singular.is_some() && plural.starts_with(&stem) {
            true => Ok(()),
            false => Err(format!("it is a {}, not a list of {plural}", one_line(&self.kind))),
        }
    }
}

/// One event of a watch.
#[derive(Debug)]
pub(super) enum WatchLine<T> {
    /// The current version of an object.
    Applied { object: T, version: String },
    /// The object was deleted.
    Deleted { key: NamespacedName, version: String },
    /// The object is invalid; it counts as deleted, because a fresh list would omit it.
    Invalid { invalid: InvalidField, version: String },
    /// No further change up to this version.
    Bookmark { version: String, initial_events_end: bool },
    /// The watch ends with this error.
    Error(ApiError),
}

impl<T> WatchLine<T> {
    /// Creates a line from an event of this type. The closures decode its object completely, as
    /// metadata, or as a status.
    ///
    /// # Errors
    /// Fails if the type is unknown, or a required part is unreadable.
    pub(super) fn from_event<'a>(
        kind: &str,
        object: impl FnOnce() -> Result<(T, String), InvalidField>,
        metadata: impl FnOnce() -> Result<Meta<'a>, String>,
        status: impl FnOnce() -> Result<Self, String>,
    ) -> Result<Self, String> {
        Ok(match kind {
            "ADDED" | "MODIFIED" => match object() {
                Ok((object, version)) => Self::Applied { object, version },
                Err(invalid) => {
                    let version = metadata().map(|metadata| metadata.resource_version.to_string());
                    Self::Invalid { invalid, version: version.unwrap_or_default() }
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
            other => return Err(format!("{:?} is not a type of event", one_line(other))),
        })
    }

    /// Creates the end of a watch from a status object.
    pub(super) fn from_status(code: i64, reason: &str, message: &str) -> Self {
        let code = match (u16::try_from(code).unwrap_or_default(), reason) {
            (_, "Expired" | "Gone") => 410,
            // A status without a code is still a failure.
            (0, _) => 500,
            (code, _) => code,
        };
        Self::Error(ApiError::from_status(code, message, None))
    }
}

/// Converts a valid object for storage, and returns its version.
pub(super) fn convert<'a, K: ObjectKind>(
    kind: &K,
    form: K::ObjectForm<'a>,
) -> Result<(K::Stored, String), InvalidField> {
    let identity = form.identity();
    if !identity.makes_sense() {
        return Err(InvalidField {
            key: None,
            reason: "its name or namespace is not valid".into(),
        });
    }
    let version = identity.version.to_owned();
    Ok((kind.convert(form), version))
}
