//! The events that a reader of a kind sends, and its limits.

use super::object::ObjectKind;
use super::{ApiError, InvalidField, NamespacedName};

/// An event from the reader of a kind.
#[derive(Debug)]
pub enum WatchEvent<T, L = Vec<T>> {
    /// A complete list, which replaces all previous objects.
    Restarted {
        /// The objects; the later of two with the same key applies.
        objects: L,
        /// The invalid objects, which were omitted.
        invalid: Vec<InvalidField>,
    },
    /// The current version of an object.
    Applied(T),
    /// The object does not exist (any more).
    Deleted(NamespacedName),
    /// The object is invalid now; it counts as deleted, because a fresh list would omit it.
    Invalid(InvalidField),
    /// The server sent a valid response.
    Answered,
    /// A request failed. Previously sent objects remain valid; the request will be repeated.
    Failed(ApiError),
}

/// An event from the reader of a kind.
pub(super) type KindEvent<K> = WatchEvent<<K as ObjectKind>::Stored, <K as ObjectKind>::List>;

/// The limits of one reader for one server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadLimits {
    /// Maximum size of one object in a list or an event, in bytes.
    pub object_bytes: usize,
    /// Maximum size of one page of a list, in bytes.
    pub page_bytes: usize,
    /// Maximum number of objects of one kind.
    pub objects: usize,
    /// Maximum number of pages of one list, even if they are small.
    pub pages: usize,
    /// Maximum memory of all kinds of a server, in bytes: undecoded data, incomplete lists, and
    /// stored objects.
    pub memory_bytes: usize,
}

impl Default for ReadLimits {
    fn default() -> Self {
        Self {
            object_bytes: 4 << 20,
            page_bytes: 256 << 20,
            objects: 500_000,
            pages: 4_000,
            memory_bytes: 64 << 20,
        }
    }
}
