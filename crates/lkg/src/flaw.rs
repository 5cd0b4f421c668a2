//! The limits of a state file, and the reasons why one is refused.

use super::codec::MalformedValue;

/// The format that this version writes.
pub(super) const VERSION: u32 = 7;

/// The oldest format that is read. After an upgrade, the files have the format of the previous version.
pub(super) const OLDEST: u32 = 5;

/// The size limit of a file, in bytes. For comparison, 100,000 endpoints with their pods take 8 MiB.
pub(super) const BYTES_MAX: u64 = 512 * 1024 * 1024;

/// The reason why a file is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Flaw {
    /// The file can't be opened or read.
    #[error("can't be read: {0}")]
    Unreadable(String),
    /// The file does not begin with the magic bytes.
    #[error("is not a file of last-known-good state")]
    Foreign,
    /// The length of the file differs from the length in its head.
    #[error("has {is} bytes, not the {wanted} it should have")]
    Length {
        /// The length of the file, in bytes.
        is: u64,
        /// The expected length, in bytes. It is the length of the head if the head is incomplete.
        wanted: u64,
    },
    /// The file exceeds the size limit.
    #[error("has {is} bytes; none is written with more than {BYTES_MAX}")]
    TooLarge {
        /// The length of the file, in bytes.
        is: u64,
    },
    /// A record of a journal is incomplete, for example because the machine stopped while it was written.
    #[error("has an incomplete record between byte {at} and its end at byte {is}")]
    Torn {
        /// The offset at which the record begins, in bytes.
        at: u64,
        /// The length of the journal, in bytes.
        is: u64,
    },
    /// The file has a format that this version does not read.
    #[error("has format {0}; this version reads formats {OLDEST} to {VERSION}")]
    Version(u32),
    /// The checksum does not match the content.
    #[error("is damaged: its checksum is wrong")]
    Damaged,
    /// The checksum matches, but the content can't be decoded.
    #[error("is complete but invalid: {0}")]
    Malformed(#[from] MalformedValue),
    /// The file belongs to a source with another name.
    #[error("holds {0}")]
    Other(String),
    /// The file was written with another value of a flag.
    #[error("was written with another --{0}")]
    Origin(&'static str),
}
