//! What a file must be like, and what can be wrong with it.

use super::codec::MalformedValue;

/// The format written here.
pub(super) const VERSION: u32 = 7;

/// The oldest format that is read: an upgrade finds the files of the version before.
pub(super) const OLDEST: u32 = 5;

/// The most bytes that are read of any file: 100,000 endpoints with their pods take 8 MiB.
pub(super) const BYTES_MAX: u64 = 512 * 1024 * 1024;

/// What is wrong with a file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Flaw {
    /// The system doesn't let us read it.
    #[error("can't be read: {0}")]
    Unreadable(String),
    /// It doesn't begin as these files do.
    #[error("is not a file of last-known-good state")]
    Foreign,
    /// It is shorter or longer than it says.
    #[error("has {is} bytes, not the {wanted} it should have")]
    Length {
        /// What it has.
        is: u64,
        /// What it says; the least there can be where it says nothing.
        wanted: u64,
    },
    /// It is larger than any that is written.
    #[error("has {is} bytes; none is written with more than {BYTES_MAX}")]
    TooLarge {
        /// What it has.
        is: u64,
    },
    /// A journal has a record that is not whole, as one has that was being written when the machine stopped.
    #[error("has no whole record between byte {at} and its end at byte {is}")]
    Torn {
        /// Where it begins.
        at: u64,
        /// Where the journal ends.
        is: u64,
    },
    /// Another version wrote it.
    #[error("has format {0}; this version reads formats {OLDEST} to {VERSION}")]
    Version(u32),
    /// Something in it is not as it was written.
    #[error("is damaged: its checksum is wrong")]
    Damaged,
    /// It is whole, and makes no sense.
    #[error("is whole but makes no sense: {0}")]
    Malformed(#[from] MalformedValue),
    /// It was written under another name.
    #[error("holds {0}")]
    Other(String),
    /// It was written with other flags.
    #[error("was written with another --{0}")]
    Origin(&'static str),
}
