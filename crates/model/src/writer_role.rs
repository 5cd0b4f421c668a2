//! The role of a control plane if several may write into clusters.

/// The permission of a control plane to write into clusters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriterRole {
    /// Nothing: another one writes, or the writer is not known yet.
    Standby,
    /// It was the last writer, but another one may have taken over. It creates missing objects,
    /// which an API server accepts only once, and does not change existing ones.
    Creates,
    /// Everything: it is the writer.
    Writes,
}
