//! Text that is borrowed from an answer where it stands there as it is.

use std::borrow::Cow;
use std::fmt;
use std::ops::Deref;

use serde::de::Visitor;
use serde::{Deserialize, Deserializer};

/// The most elements of a list within an object, and entries of a map: three bytes each may become a hundred
/// when they are decoded, so that an object within its bound would cost a multiple of it.
pub(super) const ELEMENTS_MAX: usize = 10_000;

/// Text in the bytes it came in; a copy only where JSON has escapes in it. Text that is missing or
/// null is empty: no field read here means something else by that.
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BorrowedText<'a>(pub(super) Cow<'a, str>);

impl BorrowedText<'_> {
    /// The text, `None` where it is empty.
    pub fn given(&self) -> Option<&str> {
        Some(&**self).filter(|text| !text.is_empty())
    }
}

impl<'a> From<&'a str> for BorrowedText<'a> {
    fn from(text: &'a str) -> Self {
        Self(Cow::Borrowed(text))
    }
}

impl Deref for BorrowedText<'_> {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for BorrowedText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for BorrowedText<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Borrowed;
        impl<'de> Visitor<'de> for Borrowed {
            type Value = BorrowedText<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("text")
            }

            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
                Ok(BorrowedText(Cow::Borrowed(text)))
            }

            fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
                Ok(BorrowedText(Cow::Owned(text.to_owned())))
            }

            fn visit_unit<E>(self) -> Result<Self::Value, E> {
                Ok(BorrowedText::default())
            }
        }
        // What it is decides how it is read: text or null.
        deserializer.deserialize_any(Borrowed)
    }
}
