//! Text that is borrowed from a response if it is unescaped there.

use std::borrow::Cow;
use std::fmt;
use std::ops::Deref;

use serde::de::Visitor;
use serde::{Deserialize, Deserializer};

/// Maximum number of elements of a list within an object, and of entries of a map. Three bytes each
/// may expand to a hundred when decoded, so that an object within its size limit would cost a
/// multiple of it.
pub(super) const ELEMENTS_MAX: usize = 10_000;

/// Text in the bytes of the response; copied only if JSON contains escapes. Missing text and null
/// are empty: for the fields read here, this makes no difference.
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BorrowedText<'a>(pub(super) Cow<'a, str>);

impl BorrowedText<'_> {
    /// Returns the text, or `None` if it is empty.
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
        // The type of the value decides: text or null.
        deserializer.deserialize_any(Borrowed)
    }
}
