//! Frames of HTTP/2 (RFC 9113, sections 4 and 6): their headers and constants.

use crate::rope::Rope;

/// The connection preface, which a client sends first (section 3.4).
pub(super) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Length of a frame header, in bytes.
const HEAD: usize = 9;
/// The maximum payload in both directions, in bytes: the minimum that every peer must accept.
pub(super) const PAYLOAD_MAX: usize = 16 << 10;

/// Frame types.
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

/// Frame flags. The meaning of a bit depends on the frame type.
pub(super) mod flag {
    pub(crate) const ACK: u8 = 1;
    pub(crate) const END_STREAM: u8 = 1;
    pub(crate) const END_HEADERS: u8 = 4;
    pub(crate) const PADDED: u8 = 8;
    pub(crate) const PRIORITY: u8 = 32;
}

/// Identifiers of settings (section 6.5.2).
pub(super) mod setting {
    pub(crate) const HEADER_TABLE_SIZE: u16 = 1;
    pub(crate) const MAX_CONCURRENT_STREAMS: u16 = 3;
    pub(crate) const INITIAL_WINDOW_SIZE: u16 = 4;
    pub(crate) const MAX_HEADER_LIST_SIZE: u16 = 6;
}

/// The reason why a stream or a connection ends (section 7).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum ErrorCode {
    /// No error: the stream or connection is no longer needed (NO_ERROR).
    None = 0,
    /// The peer violated the protocol (PROTOCOL_ERROR).
    Protocol = 1,
    /// The peer sent more than the window allows (FLOW_CONTROL_ERROR).
    FlowControl = 3,
    /// A frame has an invalid size (FRAME_SIZE_ERROR).
    FrameSize = 6,
    /// The call was not processed and can be retried safely (REFUSED_STREAM).
    Refused = 7,
    /// The response is no longer needed (CANCEL).
    Cancel = 8,
    /// A header block can't be decoded, so later blocks can't be either (COMPRESSION_ERROR).
    Compression = 9,
    /// The peer causes too much load without useful work (ENHANCE_YOUR_CALM).
    Calm = 11,
}

/// The header of a frame.
#[derive(Debug, Clone, Copy)]
pub(super) struct FrameHead {
    pub(super) length: usize,
    pub(super) kind: u8,
    pub(super) flags: u8,
    pub(super) stream: u32,
}

impl FrameHead {
    /// Reads a frame header. Returns it with the bytes after it, or `None` if it is incomplete.
    pub(super) fn read(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let (&[a, b, c, kind, flags, ref stream @ ..], rest) = bytes.split_first_chunk::<HEAD>()?;
        let length = u32::from_be_bytes([0, a, b, c]) as usize;
        let stream = u32::from_be_bytes(*stream) & i32::MAX.cast_unsigned();
        Some((Self { length, kind, flags, stream }, rest))
    }

    pub(super) fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// Encodes a frame header. `length` bytes of payload must follow it.
    pub(super) fn encode(length: usize, kind: u8, flags: u8, stream: u32) -> [u8; HEAD] {
        let [_, a, b, c] = u32::try_from(length).expect("at most PAYLOAD_MAX").to_be_bytes();
        let [d, e, f, g] = stream.to_be_bytes();
        [a, b, c, kind, flags, d, e, f, g]
    }

    /// Writes a frame with its payload.
    pub(super) fn put_frame(kind: u8, flags: u8, stream: u32, payload: &[u8], out: &mut Rope) {
        out.put_slice(&Self::encode(payload.len(), kind, flags, stream));
        out.put_slice(payload);
    }
}

/// Parses a payload that consists of one 32-bit number.
pub(super) fn number(payload: &[u8]) -> Result<u32, ErrorCode> {
    payload.try_into().map(u32::from_be_bytes).map_err(|_| ErrorCode::FrameSize)
}

/// Returns the payload of a frame without its padding.
pub(super) fn unpadded<'a>(head: &FrameHead, payload: &'a [u8]) -> Result<&'a [u8], ErrorCode> {
    if !head.has(flag::PADDED) {
        return Ok(payload);
    }
    let (padding, rest) = payload.split_first().ok_or(ErrorCode::FrameSize)?;
    let length = rest.len().checked_sub(usize::from(*padding)).ok_or(ErrorCode::Protocol)?;
    Ok(rest.get(..length).unwrap_or_default())
}
