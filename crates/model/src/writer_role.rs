//! What one of several control planes beside each other may write into clusters.

/// How far a control plane may write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriterRole {
    /// Another one writes, or it is not known yet.
    Waits,
    /// It wrote last, and another may have taken over since: it makes what is missing, which an API server takes once, and
    /// changes nothing that is there.
    Creates,
    /// It is the one that writes.
    Writes,
}
