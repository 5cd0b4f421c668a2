//! The wire format of protobuf: tags, varints and fields.

/// Wire type of numbers and booleans.
pub(super) const VARINT: u8 = 0;
/// Wire type of text, bytes and messages.
pub(super) const LENGTH_DELIMITED: u8 = 2;

/// The error for bytes that are not valid protobuf or not of the expected type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Malformed;

/// Appends a number, seven bits per byte, the lowest first.
pub(crate) fn write_varint(mut value: u64, out: &mut Vec<u8>) {
    loop {
        let low = (value & 0x7f) as u8;
        value >>= 7;
        if value == 0 {
            return out.push(low);
        }
        out.push(low | 0x80);
    }
}

pub(super) fn write_tag(number: u32, wire_type: u8, out: &mut Vec<u8>) {
    write_varint(u64::from(number) << 3 | u64::from(wire_type), out);
}

/// The content of one field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Payload<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

impl<'a> Payload<'a> {
    pub(super) fn number(&self) -> Result<u64, Malformed> {
        match self {
            Payload::Number(number) => Ok(*number),
            Payload::Bytes(_) => Err(Malformed),
        }
    }

    pub(super) fn bytes(&self) -> Result<&'a [u8], Malformed> {
        match self {
            Payload::Bytes(bytes) => Ok(bytes),
            Payload::Number(_) => Err(Malformed),
        }
    }

    pub(super) fn text(&self) -> Result<&'a str, Malformed> {
        std::str::from_utf8(self.bytes()?).map_err(|_| Malformed)
    }
}

/// A reader for the fields of one message.
#[derive(Debug)]
pub(super) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader { rest: bytes }
    }

    /// Returns the number and content of the next field; `None` at the end.
    pub(super) fn field(&mut self) -> Result<Option<(u32, Payload<'a>)>, Malformed> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        let tag = self.varint()?;
        let number = u32::try_from(tag >> 3).map_err(|_| Malformed)?;
        let payload = match tag & 7 {
            0 => Payload::Number(self.varint()?),
            1 => Payload::Bytes(self.take(8)?),
            2 => {
                let length = usize::try_from(self.varint()?).map_err(|_| Malformed)?;
                Payload::Bytes(self.take(length)?)
            }
            5 => Payload::Bytes(self.take(4)?),
            _ => return Err(Malformed),
        };
        Ok(Some((number, payload)))
    }

    fn varint(&mut self) -> Result<u64, Malformed> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let (&byte, rest) = self.rest.split_first().ok_or(Malformed)?;
            self.rest = rest;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(Malformed)
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self.rest.split_at_checked(length).ok_or(Malformed)?;
        self.rest = rest;
        Ok(taken)
    }
}
