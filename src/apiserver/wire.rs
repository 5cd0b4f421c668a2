//! Protobuf field by field, as a visitor wants it: no schema, no allocation, nothing kept.
//!
//! A [`Message`] is told of each field and takes those it knows; all others are stepped over by their
//! length, however deep they go. So hostile bytes cost what they are long, and never recursion.

use super::text::{ELEMENTS_MAX, Text};

/// Bytes that are no protobuf, or not of the message expected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("malformed protobuf: {0}")]
pub struct Malformed(pub(super) &'static str);

impl Malformed {
    /// Of a kind that is never written in this way.
    pub const NO_FORM: Self = Self("no object of this kind is written in protobuf");
    /// Of a list within an object.
    pub(super) const TOO_MANY: Self = Self("a list of more than 10,000 elements");
}

/// What a field holds.
#[derive(Debug, Clone, Copy)]
pub enum Value<'a> {
    /// A varint.
    Number(u64),
    /// Text, bytes or a message.
    Bytes(&'a [u8]),
    /// A number of fixed width, which no field read here is.
    Fixed,
}

/// A message that takes its fields one by one. Of a field that comes twice the last one counts, and
/// messages are merged, as protobuf has it.
pub trait Message<'a> {
    /// Takes a field; one it doesn't know is nothing to it.
    ///
    /// # Errors
    /// The field is not of the type it should be.
    fn field(&mut self, number: u32, value: Value<'a>) -> Result<(), Malformed>;

    /// Takes all fields of `bytes`.
    ///
    /// # Errors
    /// Bytes that are no protobuf, or a field that is not of its type.
    fn merge(&mut self, bytes: &'a [u8]) -> Result<(), Malformed> {
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

impl<'a> Value<'a> {
    /// An `int32`, `int64` or enum.
    ///
    /// # Errors
    /// It is none.
    #[inline]
    pub fn number(self) -> Result<i64, Malformed> {
        match self {
            // Two's complement, as protobuf writes negative numbers.
            Self::Number(number) => Ok(number.cast_signed()),
            _ => Err(Malformed("a field that should be a number is none")),
        }
    }

    /// A `bool`.
    ///
    /// # Errors
    /// It is none.
    #[inline]
    pub fn flag(self) -> Result<bool, Malformed> {
        self.number().map(|number| number != 0)
    }

    /// Bytes.
    ///
    /// # Errors
    /// It is none.
    #[inline]
    pub fn bytes(self) -> Result<&'a [u8], Malformed> {
        match self {
            Self::Bytes(bytes) => Ok(bytes),
            _ => Err(Malformed("a field that should have a length has none")),
        }
    }

    /// Text.
    ///
    /// # Errors
    /// It is none, or not in UTF-8.
    #[inline]
    pub fn text(self) -> Result<Text<'a>, Malformed> {
        let text = std::str::from_utf8(self.bytes()?);
        text.map(Text::from).map_err(|_| Malformed("text that is not UTF-8"))
    }

    /// A message, merged into what is known of it.
    ///
    /// # Errors
    /// It is none.
    #[inline]
    pub fn message(self, message: &mut impl Message<'a>) -> Result<(), Malformed> {
        message.merge(self.bytes()?)
    }

    /// One more of a repeated message.
    ///
    /// # Errors
    /// It is none.
    #[inline]
    pub fn push<M: Message<'a> + Default>(self, messages: &mut Vec<M>) -> Result<(), Malformed> {
        let bytes = self.bytes()?;
        if messages.len() == ELEMENTS_MAX {
            return Err(Malformed::TOO_MANY);
        }
        messages.push(M::default());
        // Filled where it stays.
        messages.last_mut().map_or(Ok(()), |message| message.merge(bytes))
    }
}

impl<'a> Value<'a> {
    /// A text, added to others.
    ///
    /// # Errors
    /// It is none, or one too many.
    pub fn push_text(self, texts: &mut Vec<Text<'a>>) -> Result<(), Malformed> {
        if texts.len() == ELEMENTS_MAX {
            return Err(Malformed::TOO_MANY);
        }
        texts.push(self.text()?);
        Ok(())
    }
}

/// The field at the beginning of `bytes` and what follows, where its key, and its length or value, are two bytes
/// each at most.
#[inline(always)]
fn take_short(bytes: &[u8]) -> Option<(u32, Value<'_>, &[u8])> {
    let (key, rest) = short_varint(bytes)?;
    let (number, kind) = (key >> 3, key & 7);
    let (second, after) = short_varint(rest)?;
    match kind {
        _ if number == 0 => None,
        0 => Some((number, Value::Number(u64::from(second)), after)),
        2 => {
            let (value, after) = after.split_at_checked(usize::try_from(second).ok()?)?;
            Some((number, Value::Bytes(value), after))
        }
        _ => None,
    }
}

/// A varint of one or two bytes and what follows.
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

/// Takes the next field off `rest`, whatever it is.
#[inline(never)]
fn take_field<'a>(rest: &mut &'a [u8]) -> Result<(u32, Value<'a>), Malformed> {
    let (number, kind) = key(take_varint(rest)?)?;
    let value = match kind {
        0 => Value::Number(take_varint(rest)?),
        1 => take(rest, 8).map(|_| Value::Fixed)?,
        2 => {
            let length = take_varint(rest)?;
            Value::Bytes(take(rest, usize::try_from(length).unwrap_or(usize::MAX))?)
        }
        5 => take(rest, 4).map(|_| Value::Fixed)?,
        // Groups are older than Kubernetes.
        _ => return Err(Malformed("a field of no known type")),
    };
    Ok((number, value))
}

/// The number and the wire type that a field begins with.
pub(super) fn key(key: u64) -> Result<(u32, u8), Malformed> {
    let number = u32::try_from(key >> 3).ok().filter(|number| *number > 0);
    // Three bits.
    let kind = u8::try_from(key & 7).unwrap_or_default();
    Ok((number.ok_or(Malformed("a field without a number"))?, kind))
}

fn take_varint(rest: &mut &[u8]) -> Result<u64, Malformed> {
    // Nearly all are one byte long.
    if let [first @ 0..0x80, after @ ..] = *rest {
        *rest = after;
        return Ok(u64::from(*first));
    }
    let (number, length) = varint(rest)?.ok_or(Malformed("a number is cut off"))?;
    *rest = rest.get(length..).unwrap_or_default();
    Ok(number)
}

/// The varint at the beginning of `bytes` and how long it is; `None` where it goes on after them.
pub(super) fn varint(bytes: &[u8]) -> Result<Option<(u64, usize)>, Malformed> {
    let mut number = 0;
    for (at, byte) in bytes.iter().take(10).enumerate() {
        // The tenth byte has room for one bit.
        if at == 9 && *byte > 1 {
            return Err(Malformed("a number is too long"));
        }
        number |= u64::from(byte & 0x7f) << (7 * at);
        if byte & 0x80 == 0 {
            return Ok(Some((number, at + 1)));
        }
    }
    Ok(None)
}

fn take<'a>(rest: &mut &'a [u8], length: usize) -> Result<&'a [u8], Malformed> {
    let (taken, after) =
        rest.split_at_checked(length).ok_or(Malformed("a field is longer than its message"))?;
    *rest = after;
    Ok(taken)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Says what it is told.
    #[derive(Default)]
    struct Told(Vec<String>);

    impl<'a> Message<'a> for Told {
        fn field(&mut self, number: u32, value: Value<'a>) -> Result<(), Malformed> {
            self.0.push(match value {
                Value::Number(value) => format!("{number}={value}"),
                Value::Bytes(bytes) => format!("{number}:{}", bytes.escape_ascii()),
                Value::Fixed => format!("{number}!"),
            });
            Ok(())
        }
    }

    fn told(bytes: &[u8]) -> Result<String, Malformed> {
        let mut told = Told::default();
        told.merge(bytes).map(|()| told.0.join(" "))
    }

    #[test]
    fn fields_are_told_apart() {
        assert_eq!(told(b"").as_deref(), Ok(""));
        assert_eq!(told(b"\x08\x96\x01\x12\x02hi").as_deref(), Ok("1=150 2:hi"));
        assert_eq!(told(b"\x09........\x15....\x18\x01").as_deref(), Ok("1! 2! 3=1"));
        assert_eq!(told(b"\x82\x01\x02hi\xf8\x7f\x05").as_deref(), Ok("16:hi 2047=5"));
        assert_eq!(told(b"\x88\x00\x85\x00").as_deref(), Ok("1=5"), "longer than need be");
        let long = [&b"\x0a\xc8\x01"[..], &[b'a'; 200], b"\x10\x01"].concat();
        assert_eq!(told(&long), Ok(format!("1:{} 2=1", "a".repeat(200))));
        let most = b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01";
        assert_eq!(told(most).as_deref(), Ok("1=18446744073709551615"));
        assert_eq!(Value::Number(u64::MAX).number(), Ok(-1));
    }

    #[test]
    fn what_is_no_protobuf_is_an_error() {
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
            assert!(told(bytes).is_err(), "{}", bytes.escape_ascii());
        }
    }
}
