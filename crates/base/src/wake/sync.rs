//! The primitives of [`super::bits`]. The tests replace them with those of a model checker.

pub(super) use std::sync::Mutex;
pub(super) use std::sync::atomic::{AtomicU32, Ordering};
