//! Frames of HTTP/2 (RFC 9113, sections 4 and 6): their heads and their numbers.

use crate::rope::Rope;

/// What a client says first (section 3.4).
pub(super) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// The length of a head.
const HEAD: usize = 9;
/// The longest payload, in both directions: the least that everybody must take.
pub(super) const PAYLOAD_MAX: usize = 16 << 10;

/// The kinds of frames.
pub(super) mod kind {
    pub(crate) const DATA: u8 = 0;
    pub(crate) const HEADERS: u8 = 1;
    pub(crate) const PRIORITY: u8 = 2;
    pub(crate) const RST_STREAM: u8 = 3;
    pub(crate) const SETTINGS: u8 = 4;
    pub(crate) const PUSH_PROMISE: u8 = 5;
    pub(crate) const PING: u8 = 6;
    pub(crate) const GOAWAY: u8 = 7;
    pub(crate) const WINDOW_UPDATE: u8 = 8;
    pub(crate) const CONTINUATION: u8 = 9;
}

/// Flags; what a bit means depends on the kind.
pub(super) mod flag {
    pub(crate) const ACK: u8 = 1;
    pub(crate) const END_STREAM: u8 = 1;
    pub(crate) const END_HEADERS: u8 = 4;
    pub(crate) const PADDED: u8 = 8;
    pub(crate) const PRIORITY: u8 = 32;
}

/// Settings by number (section 6.5.2).
pub(super) mod setting {
    pub(crate) const HEADER_TABLE_SIZE: u16 = 1;
    pub(crate) const MAX_CONCURRENT_STREAMS: u16 = 3;
    pub(crate) const INITIAL_WINDOW_SIZE: u16 = 4;
    pub(crate) const MAX_HEADER_LIST_SIZE: u16 = 6;
}

/// Why a stream or a connection ends (section 7).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum ErrorCode {
    /// It has served its purpose.
    None = 0,
    /// What came isn't HTTP/2.
    Protocol = 1,
    /// More came than there was room for.
    FlowControl = 3,
    /// A frame is longer than agreed.
    FrameSize = 6,
    /// Nothing was done for this call: it may be tried again elsewhere.
    Refused = 7,
    /// The answer is not wanted any more.
    Cancel = 8,
    /// A block of headers can't be read, nor any after it.
    Compression = 9,
    /// Too much that costs us and says nothing.
    Calm = 11,
}

/// What a frame begins with.
#[derive(Debug, Clone, Copy)]
pub(super) struct FrameHead {
    pub(super) length: usize,
    pub(super) kind: u8,
    pub(super) flags: u8,
    pub(super) stream: u32,
}

impl FrameHead {
    /// Reads a head; returns what comes behind it. `None` where it isn't all there.
    pub(super) fn read(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let (&[a, b, c, kind, flags, ref stream @ ..], rest) = bytes.split_first_chunk::<HEAD>()?;
        let length = u32::from_be_bytes([0, a, b, c]) as usize;
        let stream = u32::from_be_bytes(*stream) & i32::MAX.cast_unsigned();
        Some((Self { length, kind, flags, stream }, rest))
    }

    pub(super) fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// Writes a head; `length` bytes must follow.
    pub(super) fn put(length: usize, kind: u8, flags: u8, stream: u32, out: &mut Rope) {
        let length = u32::try_from(length).expect("at most PAYLOAD_MAX").to_be_bytes();
        out.put_slice(&length[1..]);
        out.put_slice(&[kind, flags]);
        out.put_slice(&stream.to_be_bytes());
    }

    /// Writes a whole frame.
    pub(super) fn put_frame(kind: u8, flags: u8, stream: u32, payload: &[u8], out: &mut Rope) {
        Self::put(payload.len(), kind, flags, stream, out);
        out.put_slice(payload);
    }
}

/// The four bytes that are all of a payload.
pub(super) fn number(payload: &[u8]) -> Result<u32, ErrorCode> {
    payload.try_into().map(u32::from_be_bytes).map_err(|_| ErrorCode::FrameSize)
}

/// The payload of `head` without its padding.
pub(super) fn unpadded<'a>(head: &FrameHead, payload: &'a [u8]) -> Result<&'a [u8], ErrorCode> {
    if !head.has(flag::PADDED) {
        return Ok(payload);
    }
    let (padding, rest) = payload.split_first().ok_or(ErrorCode::FrameSize)?;
    let length = rest.len().checked_sub(usize::from(*padding)).ok_or(ErrorCode::Protocol)?;
    Ok(rest.get(..length).unwrap_or_default())
}
