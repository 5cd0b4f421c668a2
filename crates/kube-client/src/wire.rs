//! Decodes protobuf field by field with a visitor: no schema, no allocation, nothing stored.
//!
//! A [`ProtobufMessage`] receives each field and processes the known ones; all others are skipped
//! by their length, whatever their depth. The cost of hostile bytes is limited by their length,
//! without recursion.

use super::borrowed_text::{BorrowedText, ELEMENTS_MAX};

/// Bytes that are not protobuf, or not the expected message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("malformed protobuf: {0}")]
pub struct MalformedMessage(pub(super) &'static str);

impl MalformedMessage {
    /// The kind has no protobuf form.
    pub const NO_FORM: Self = Self("no object of this kind is written in protobuf");
    /// A list within an object is too long.
    pub(super) const TOO_MANY: Self = Self("a list of more than 10,000 elements");
}

/// The value of a field.
#[derive(Debug, Clone, Copy)]
pub enum FieldValue<'a> {
    /// A varint.
    Number(u64),
    /// Text, bytes or a message.
    Bytes(&'a [u8]),
    /// A number of fixed width, which no known field is.
    Fixed,
}

/// A message that processes its fields one by one. The last of two values of a field applies, and
/// messages are merged, as in protobuf.
pub trait ProtobufMessage<'a> {
    /// Processes a field; unknown fields are ignored.
    ///
    /// # Errors
    /// Fails if the field has the wrong type.
    fn field(&mut self, number: u32, value: FieldValue<'a>) -> Result<(), MalformedMessage>;

    /// Processes all fields of `bytes`.
    ///
    /// # Errors
    /// Fails if the bytes are not protobuf, or a field has the wrong type.
    fn merge(&mut self, bytes: &'a [u8]) -> Result<(), MalformedMessage> {
        let mut rest = bytes;
        while !rest.is_empty() {
            // Nearly all fields are short.
            let (number, value) = match take_short(rest) {
                Some((number, value, after)) => {
                    rest = after;
                    (number, value)
                }
                None => take_field(&mut rest)?,
            };
            self.field(number, value)?;
        }
        Ok(())
    }
}

impl<'a> FieldValue<'a> {
    /// Returns an `int32`, `int64` or enum.
    ///
    /// # Errors
    /// Fails if the value is not a number.
    #[inline]
    pub fn number(self) -> Result<i64, MalformedMessage> {
        match self {
            // Two's complement, as protobuf encodes negative numbers.
            Self::Number(number) => Ok(number.cast_signed()),
            _ => Err(MalformedMessage("a field that should be a number is not one")),
        }
    }

    /// Returns a `bool`.
    ///
    /// # Errors
    /// Fails if the value is not a number.
    #[inline]
    pub fn flag(self) -> Result<bool, MalformedMessage> {
        self.number().map(|number| number != 0)
    }

    /// Returns bytes.
    ///
    /// # Errors
    /// Fails if the value is a number.
    #[inline]
    pub fn bytes(self) -> Result<&'a [u8], MalformedMessage> {
        match self {
            Self::Bytes(bytes) => Ok(bytes),
            _ => Err(MalformedMessage("a field that should have a length has none")),
        }
    }

    /// Returns text.
    ///
    /// # Errors
    /// Fails if the value is a number or not valid UTF-8.
    #[inline]
    pub fn text(self) -> Result<BorrowedText<'a>, MalformedMessage> {
        let text = std::str::from_utf8(self.bytes()?);
        text.map(BorrowedText::from).map_err(|_| MalformedMessage("text that is not UTF-8"))
    }

    /// Merges the value into `message`.
    ///
    /// # Errors
    /// Fails if the value is not a valid message.
    #[inline]
    pub fn message(self, message: &mut impl ProtobufMessage<'a>) -> Result<(), MalformedMessage> {
        message.merge(self.bytes()?)
    }

    /// Adds an element of a repeated message.
    ///
    /// # Errors
    /// Fails if the value is not a valid message, or there are too many.
    #[inline]
    pub fn push<M: ProtobufMessage<'a> + Default>(
        self,
        messages: &mut Vec<M>,
    ) -> Result<(), MalformedMessage> {
        let bytes = self.bytes()?;
        if messages.len() == ELEMENTS_MAX {
            return Err(MalformedMessage::TOO_MANY);
        }
        messages.push(M::default());
        // Decoded in place.
        messages.last_mut().map_or(Ok(()), |message| message.merge(bytes))
    }
}

impl<'a> FieldValue<'a> {
    /// Adds a text.
    ///
    /// # Errors
    /// Fails if the value is not text, or there are too many.
    pub fn push_text(self, texts: &mut Vec<BorrowedText<'a>>) -> Result<(), MalformedMessage> {
        if texts.len() == ELEMENTS_MAX {
            return Err(MalformedMessage::TOO_MANY);
        }
        texts.push(self.text()?);
        Ok(())
    }
}

/// Returns the field at the beginning of `bytes` and the remaining bytes, if its key and its length
/// or value take at most two bytes each.
#[inline(always)]
fn take_short(bytes: &[u8]) -> Option<(u32, FieldValue<'_>, &[u8])> {
    let (key, rest) = short_varint(bytes)?;
    let (number, kind) = (key >> 3, key & 7);
    let (second, after) = short_varint(rest)?;
    match kind {
        _ if number == 0 => None,
        0 => Some((number, FieldValue::Number(u64::from(second)), after)),
        2 => {
            let (value, after) = after.split_at_checked(usize::try_from(second).ok()?)?;
            Some((number, FieldValue::Bytes(value), after))
        }
        _ => None,
    }
}

/// Decodes a varint of one or two bytes. Returns it with the remaining bytes.
#[inline(always)]
fn short_varint(bytes: &[u8]) -> Option<(u32, &[u8])> {
    match bytes {
        [one @ 0..0x80, after @ ..] => Some((u32::from(*one), after)),
        [low, high @ 0..0x80, after @ ..] => {
            Some((u32::from(low & 0x7f) | u32::from(*high) << 7, after))
        }
        _ => None,
    }
}

/// Removes the next field from `rest`.
#[inline(never)]
fn take_field<'a>(rest: &mut &'a [u8]) -> Result<(u32, FieldValue<'a>), MalformedMessage> {
    let (number, kind) = key(take_varint(rest)?)?;
    let value = match kind {
        0 => FieldValue::Number(take_varint(rest)?),
        1 => take(rest, 8).map(|_| FieldValue::Fixed)?,
        2 => {
            let length = take_varint(rest)?;
            FieldValue::Bytes(take(rest, usize::try_from(length).unwrap_or(usize::MAX))?)
        }
        5 => take(rest, 4).map(|_| FieldValue::Fixed)?,
        // Groups are older than Kubernetes.
        _ => return Err(MalformedMessage("a field of an unknown type")),
    };
    Ok((number, value))
}

/// Returns the number and the wire type in a field's key.
pub(super) fn key(key: u64) -> Result<(u32, u8), MalformedMessage> {
    let number = u32::try_from(key >> 3).ok().filter(|number| *number > 0);
    // Three bits.
    let kind = u8::try_from(key & 7).unwrap_or_default();
    Ok((number.ok_or(MalformedMessage("a field without a number"))?, kind))
}

fn take_varint(rest: &mut &[u8]) -> Result<u64, MalformedMessage> {
    // Nearly all are one byte long.
    if let [first @ 0..0x80, after @ ..] = *rest {
        *rest = after;
        return Ok(u64::from(*first));
    }
    let (number, length) = varint(rest)?.ok_or(MalformedMessage("a number is cut off"))?;
    *rest = rest.get(length..).unwrap_or_default();
    Ok(number)
}

/// Decodes the varint at the beginning of `bytes`. Returns it with its length; `None` if it is
/// incomplete.
pub(super) fn varint(bytes: &[u8]) -> Result<Option<(u64, usize)>, MalformedMessage> {
    let mut number = 0;
    for (at, byte) in bytes.iter().take(10).enumerate() {
        // The tenth byte has room for one bit.
        if at == 9 && *byte > 1 {
            return Err(MalformedMessage("a number is too long"));
        }
        number |= u64::from(byte & 0x7f) << (7 * at);
        if byte & 0x80 == 0 {
            return Ok(Some((number, at + 1)));
        }
    }
    Ok(None)
}

fn take<'a>(rest: &mut &'a [u8], length: usize) -> Result<&'a [u8], MalformedMessage> {
    let (field, after) = rest
        .split_at_checked(length)
        .ok_or(MalformedMessage("a field is longer than its message"))?;
    *rest = after;
    Ok(field)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Records its fields.
    #[derive(Default)]
    struct Recorded(Vec<String>);

    impl<'a> ProtobufMessage<'a> for Recorded {
        fn field(&mut self, number: u32, value: FieldValue<'a>) -> Result<(), MalformedMessage> {
            self.0.push(match value {
                FieldValue::Number(value) => format!("{number}={value}"),
                FieldValue::Bytes(bytes) => format!("{number}:{}", bytes.escape_ascii()),
                FieldValue::Fixed => format!("{number}!"),
            });
            Ok(())
        }
    }

    fn recorded(bytes: &[u8]) -> Result<String, MalformedMessage> {
        let mut recorded = Recorded::default();
        recorded.merge(bytes).map(|()| recorded.0.join(" "))
    }

    #[test]
    fn fields_are_distinguished() {
        assert_eq!(recorded(b"").as_deref(), Ok(""));
        assert_eq!(recorded(b"\x08\x96\x01\x12\x02hi").as_deref(), Ok("1=150 2:hi"));
        assert_eq!(recorded(b"\x09........\x15....\x18\x01").as_deref(), Ok("1! 2! 3=1"));
        assert_eq!(recorded(b"\x82\x01\x02hi\xf8\x7f\x05").as_deref(), Ok("16:hi 2047=5"));
        assert_eq!(recorded(b"\x88\x00\x85\x00").as_deref(), Ok("1=5"), "longer than necessary");
        let long = [&b"\x0a\xc8\x01"[..], &[b'a'; 200], b"\x10\x01"].concat();
        assert_eq!(recorded(&long), Ok(format!("1:{} 2=1", "a".repeat(200))));
        let most = b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01";
        assert_eq!(recorded(most).as_deref(), Ok("1=18446744073709551615"));
        assert_eq!(FieldValue::Number(u64::MAX).number(), Ok(-1));
    }

    #[test]
    fn invalid_protobuf_is_an_error() {
        let bad: [&[u8]; 12] = [
            b"\x08",
            b"\x80\x00\x01",
            b"\x82\x01",
            b"\x0a\xc8\x01hi",
            b"\x08\x80",
            b"\x12\x05hi",
            b"\x12\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01hi",
            b"\x09...",
            b"\x0b\x0c",
            b"\x00\x01",
            b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02",
            b"\xf8\xff\xff\xff\xff\xff\xff\xff\xff\x01\x01",
        ];
        for bytes in bad {
            assert!(recorded(bytes).is_err(), "{}", bytes.escape_ascii());
        }
    }
}
