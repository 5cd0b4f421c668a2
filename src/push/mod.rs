//! From what the sources say to what the proxies need to hear: one event loop owns the mesh, makes
//! an immutable context of each version, and wakes the streams that care about what changed.

pub mod interest;
