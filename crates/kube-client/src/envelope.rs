//! What is cut out of an answer, whichever encoding it has.

use super::error::one_line;
use super::object::{Form as _, InvalidField, Meta, ObjectKind};
use super::{ApiError, NamespacedName};

/// The form an answer is written in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Encoding {
    /// `application/json`.
    Json,
    /// `application/vnd.kubernetes.protobuf`.
    Protobuf,
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

/// What a list says of itself.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ListEnd {
    /// Its version.
    pub(super) version: String,
    /// Where the next page goes on; `None` after the last one.
    pub(super) next: Option<String>,
}

/// One event of a watch.
#[derive(Debug)]
pub(super) enum WatchLine<T> {
    /// This object is so now.
    Applied { object: T, version: String },
    /// This object is gone.
    Deleted { key: NamespacedName, version: String },
    /// This object makes no sense; it is taken for gone, as a fresh list would leave it out.
    Invalid { invalid: InvalidField, version: String },
    /// Nothing happened up to this version.
    Bookmark { version: String, initial_events_end: bool },
    /// The watch ends for this reason.
    Error(ApiError),
}

impl<T> WatchLine<T> {
    /// What an event of this type says. How its object is read, as a whole, as metadata or as a
    /// status, its form knows.
    ///
    /// # Errors
    /// There is no such type, or it needs what can't be read.
    pub(super) fn of_event<'a>(
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
        Self::Error(ApiError::of_status(code, message, None))
    }
}

/// Keeps what is needed of an object whose names make sense, and says which version it is of.
pub(super) fn keep<'a, K: ObjectKind>(
    kind: &K,
    form: K::ObjectForm<'a>,
) -> Result<(K::Kept, String), InvalidField> {
    let identity = form.identity();
    if !identity.makes_sense() {
        return Err(InvalidField { key: None, reason: "its name or namespace is no name".into() });
    }
    let version = identity.version.to_owned();
    Ok((kind.keep(form), version))
}
