//! The role of a control plane among several ones that may write into clusters.

/// What a control plane may write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriterRole {
    /// Nothing: another one writes, or the writer is not known yet.
    Waits,
    /// It was the last writer, but another one may have taken over. It creates missing objects,
    /// which an API server accepts only once, and does not change existing ones.
    Creates,
    /// Everything: it is the writer.
    Writes,
}
