//! Text and maps of text that are borrowed from the received bytes.

use std::borrow::Cow;
use std::fmt;
use std::ops::Deref;

use serde::de::{Error as _, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::borrowed_text::{BorrowedText, ELEMENTS_MAX};
use super::wire::{FieldValue, MalformedMessage, ProtobufMessage};

/// Text that is compared or looked up rather than read, so that it need not be validated as UTF-8:
/// an EndpointSlice consists mostly of such text.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Raw<'a>(Cow<'a, [u8]>);

impl Raw<'_> {
    /// Truncates the text to this many bytes.
    pub fn cut(self, bytes: usize) -> Self {
        Self(match self.0 {
            Cow::Borrowed(text) => Cow::Borrowed(text.get(..bytes).unwrap_or(text)),
            Cow::Owned(mut text) => {
                text.truncate(bytes);
                Cow::Owned(text)
            }
        })
    }
}

impl<'a> From<&'a [u8]> for Raw<'a> {
    fn from(text: &'a [u8]) -> Self {
        Self(Cow::Borrowed(text))
    }
}

impl AsRef<[u8]> for Raw<'_> {
    #[inline]
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl Deref for Raw<'_> {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Raw<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&String::from_utf8_lossy(self), f)
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Raw<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Self(match BorrowedText::deserialize(deserializer)?.0 {
            Cow::Borrowed(text) => Cow::Borrowed(text.as_bytes()),
            Cow::Owned(text) => Cow::Owned(text.into_bytes()),
        }))
    }
}

/// A map of text in order of arrival.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pairs<'a>(Vec<(BorrowedText<'a>, BorrowedText<'a>)>);

impl<'a> Pairs<'a> {
    /// Returns the value of `name`.
    pub fn get(&self, name: &str) -> Option<&str> {
        // The last of two entries with the same name applies, as in a map.
        self.0.iter().rev().find(|(key, _)| **key == *name).map(|(_, value)| &**value)
    }

    /// Keeps only the entries whose name is `wanted`.
    pub fn only(mut self, wanted: impl Fn(&str) -> bool) -> Self {
        self.0.retain(|(name, _)| wanted(name));
        self
    }

    /// Returns the entries sorted by name, without duplicates.
    pub fn sorted(mut self) -> Vec<(BorrowedText<'a>, BorrowedText<'a>)> {
        self.0.sort_by(|(a, _), (b, _)| a.cmp(b));
        // The last entry applies; `dedup` keeps the first.
        self.0.reverse();
        self.0.dedup_by(|(a, _), (b, _)| a == b);
        self.0.reverse();
        self.0
    }

    /// Adds an entry of a protobuf map.
    ///
    /// # Errors
    /// Fails if the value is not an entry.
    pub fn take(&mut self, value: FieldValue<'a>) -> Result<(), MalformedMessage> {
        self.add_where(value, |_| true)
    }

    /// Adds an entry of a protobuf map if `is_wanted` accepts its name.
    pub(super) fn add_where(
        &mut self,
        value: FieldValue<'a>,
        is_wanted: impl Fn(&[u8]) -> bool,
    ) -> Result<(), MalformedMessage> {
        let mut entry = TextEntry::default();
        value.message(&mut entry)?;
        // Other entries are not validated.
        if !is_wanted(entry.name) {
            return Ok(());
        }
        let text = |bytes| FieldValue::Bytes(bytes).text();
        // An entry with an invalid name is ignored without checking its value.
        let Ok(name) = text(entry.name) else { return Ok(()) };
        if self.0.len() == ELEMENTS_MAX {
            return Err(MalformedMessage::TOO_MANY);
        }
        if self.0.capacity() == 0 {
            // Most objects have more labels than the initial capacity of a vector, and few have
            // more than this.
            self.0.reserve_exact(8);
        }
        self.0.push((name, text(entry.value)?));
        Ok(())
    }

    /// Decodes a JSON map without the entries whose name `is_wanted` rejects.
    pub(super) fn deserialize_where<D: Deserializer<'a>>(
        deserializer: D,
        is_wanted: impl Fn(&[u8]) -> bool,
    ) -> Result<Self, D::Error> {
        struct PairsVisitor<F>(F);
        impl<'de, F: Fn(&[u8]) -> bool> Visitor<'de> for PairsVisitor<F> {
            type Value = Pairs<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map of text")
            }

            fn visit_unit<E>(self) -> Result<Self::Value, E> {
                Ok(Pairs::default())
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut pairs = Vec::new();
                while let Some(name) = map.next_key::<BorrowedText<'de>>()? {
                    if pairs.len() == ELEMENTS_MAX {
                        return Err(A::Error::custom("a map of more than 10,000 entries"));
                    }
                    if self.0(name.as_bytes()) {
                        pairs.push((name, map.next_value::<BorrowedText<'de>>()?));
                    } else {
                        map.next_value::<IgnoredAny>()?;
                    }
                }
                Ok(Pairs(pairs))
            }
        }
        deserializer.deserialize_any(PairsVisitor(is_wanted))
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Pairs<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Pairs::deserialize_where(deserializer, |_| true)
    }
}

/// An entry of a map: a message of name and value.
#[derive(Default)]
struct TextEntry<'a> {
    name: &'a [u8],
    value: &'a [u8],
}

impl<'a> ProtobufMessage<'a> for TextEntry<'a> {
    fn field(&mut self, number: u32, value: FieldValue<'a>) -> Result<(), MalformedMessage> {
        match number {
            1 => self.name = value.bytes()?,
            2 => self.value = value.bytes()?,
            _ => {}
        }
        Ok(())
    }
}

/// A port as a number or by name (`IntOrString`).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NumberOrName<'a> {
    is_name: bool,
    number: i64,
    name: BorrowedText<'a>,
}

impl NumberOrName<'_> {
    /// Returns the name, if the value is a non-empty name.
    pub fn name(&self) -> Option<&str> {
        self.name.given().filter(|_| self.is_name)
    }

    /// Returns the number, if the value is a number; otherwise 0.
    pub fn number(&self) -> i64 {
        if self.is_name { 0 } else { self.number }
    }
}

impl<'a> ProtobufMessage<'a> for NumberOrName<'a> {
    fn field(&mut self, number: u32, value: FieldValue<'a>) -> Result<(), MalformedMessage> {
        match number {
            1 => self.is_name = value.flag()?,
            2 => self.number = value.number()?,
            3 => self.name = value.text()?,
            _ => {}
        }
        Ok(())
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for NumberOrName<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;
        impl<'de> Visitor<'de> for Either {
            type Value = NumberOrName<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number or a name")
            }

            fn visit_i64<E>(self, number: i64) -> Result<Self::Value, E> {
                Ok(NumberOrName { number, ..NumberOrName::default() })
            }

            fn visit_u64<E: serde::de::Error>(self, number: u64) -> Result<Self::Value, E> {
                i64::try_from(number).map_err(E::custom).and_then(|number| self.visit_i64(number))
            }

            fn visit_borrowed_str<E>(self, name: &'de str) -> Result<Self::Value, E> {
                let name = BorrowedText::from(name);
                Ok(NumberOrName { is_name: true, name, ..NumberOrName::default() })
            }

            fn visit_str<E>(self, name: &str) -> Result<Self::Value, E> {
                let name = BorrowedText(Cow::Owned(name.to_owned()));
                Ok(NumberOrName { is_name: true, name, ..NumberOrName::default() })
            }

            fn visit_unit<E>(self) -> Result<Self::Value, E> {
                Ok(NumberOrName::default())
            }
        }
        deserializer.deserialize_any(Either)
    }
}

/// The creation time of an object: RFC 3339 in JSON, seconds in protobuf.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Moment<'a> {
    text: BorrowedText<'a>,
    seconds: i64,
}

impl Moment<'_> {
    /// Returns seconds since 1970; 0 if unknown.
    pub fn seconds(&self) -> i64 {
        match self.text.given() {
            Some(text) => text.parse::<jiff::Timestamp>().map_or(0, jiff::Timestamp::as_second),
            None => self.seconds,
        }
    }
}

impl<'a> ProtobufMessage<'a> for Moment<'a> {
    fn field(&mut self, number: u32, value: FieldValue<'a>) -> Result<(), MalformedMessage> {
        if number == 1 {
            self.seconds = value.number()?;
        }
        Ok(())
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Moment<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = BorrowedText::deserialize(deserializer)?;
        // Limits the text that is parsed later.
        if text.len() > 64 {
            return Err(D::Error::custom("a time is longer than any"));
        }
        Ok(Self { text, seconds: 0 })
    }
}
