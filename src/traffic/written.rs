//! Values as objects write them, where serde needs help.

use std::time::Duration;

use serde::Deserialize;
use serde::de::{Deserializer, Error as _};

use crate::mesh::parse_duration;

/// A duration as text. One that is none makes the object one that can't be read.
#[derive(Clone, Copy)]
pub(super) struct WrittenDuration(pub(super) Duration);

impl<'de> Deserialize<'de> for WrittenDuration {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        parse_duration(&text).map(Self).map_err(D::Error::custom)
    }
}
