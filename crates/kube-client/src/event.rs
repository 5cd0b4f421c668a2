//! What a reader of a kind is told, and the most that it takes.

use super::object::ObjectKind;
use super::{ApiError, InvalidField, NamespacedName};

/// What a reader of a kind is sent.
#[derive(Debug)]
pub enum WatchEvent<T, L = Vec<T>> {
    /// These are all there are: everything sent before is replaced.
    Restarted {
        /// The objects; of two with one key the later counts.
        objects: L,
        /// Those that make no sense and were left out.
        invalid: Vec<InvalidField>,
    },
    /// This object is so now.
    Applied(T),
    /// There is no such object any more, or never was.
    Deleted(NamespacedName),
    /// This object makes no sense now; it counts as gone, as a fresh list would leave it out.
    Invalid(InvalidField),
    /// The server answered as it should.
    Answered,
    /// It did not. What was sent before still holds; it will be asked again.
    Failed(ApiError),
}

/// What a reader of a kind is sent.
pub(super) type KindEvent<K> = WatchEvent<<K as ObjectKind>::Kept, <K as ObjectKind>::List>;

/// The most that one reader takes from one server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadLimits {
    /// Bytes of one object, in a list or in an event.
    pub object_bytes: usize,
    /// Bytes of one page of a list.
    pub page_bytes: usize,
    /// Objects of one kind.
    pub objects: usize,
    /// Pages of one list, however little is on them.
    pub pages: usize,
    /// Bytes of memory that all of a server takes, of all its kinds: what has come in part, lists that are not
    /// complete yet, and what is kept.
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
