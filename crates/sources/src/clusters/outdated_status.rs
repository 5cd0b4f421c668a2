//! A kind of objects that an API server no longer lists or watches, as shown in `/debug/clusters`.

use std::fmt;

use jiff::Timestamp;

/// A kind whose objects are no longer updated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutdatedStatus {
    /// The kind in plural, such as `endpointslices`.
    pub kind: &'static str,
    /// When updates stopped.
    pub since: Timestamp,
}

impl fmt::Display for OutdatedStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} since {:.0}", self.kind, self.since)
    }
}
