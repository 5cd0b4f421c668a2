//! HTTP/2 (RFC 9113) for a client with one stream: received bytes go in, stream data and bytes to
//! send come out, without I/O.
//!
//! Data is passed on in place. A load client receives a megabyte for each connecting proxy. Copying
//! it into one buffer would cost as much as all other processing.

use percent_encoding::percent_decode_str;

use crate::tokens::Token;
use strait_http2::hpack::HeaderDecoder;

/// The connection preface of a client (section 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// The length of a frame header.
const HEAD: usize = 9;
/// The maximum payload unless the peer allows more (section 4.2). This client does not.
const PAYLOAD_MAX: usize = 16 << 10;
/// The initial window unless settings change it (section 6.9.2).
const WINDOW: u32 = 65_535;
/// The ID of the only stream.
const STREAM: u32 = 1;

mod kind {
    pub(super) const DATA: u8 = 0;
    pub(super) const HEADERS: u8 = 1;
    pub(super) const RST_STREAM: u8 = 3;
    pub(super) const SETTINGS: u8 = 4;
    pub(super) const PUSH_PROMISE: u8 = 5;
    pub(super) const PING: u8 = 6;
    pub(super) const GOAWAY: u8 = 7;
    pub(super) const WINDOW_UPDATE: u8 = 8;
    pub(super) const CONTINUATION: u8 = 9;
}

mod flag {
    pub(super) const ACK: u8 = 1;
    pub(super) const END_STREAM: u8 = 1;
    pub(super) const END_HEADERS: u8 = 4;
    pub(super) const PADDED: u8 = 8;
    pub(super) const PRIORITY: u8 = 32;
}

mod setting {
    pub(super) const ENABLE_PUSH: u16 = 2;
    pub(super) const INITIAL_WINDOW_SIZE: u16 = 4;
    pub(super) const MAX_FRAME_SIZE: u16 = 5;
}

/// A frame header.
#[derive(Debug, Clone, Copy)]
struct Head {
    length: usize,
    kind: u8,
    flags: u8,
    stream: u32,
}

impl Head {
    fn read(bytes: &[u8]) -> Option<Self> {
        let &[a, b, c, kind, flags, ref stream @ ..] = bytes.first_chunk::<HEAD>()?;
        let length = u32::from_be_bytes([0, a, b, c]) as usize;
        let stream = u32::from_be_bytes(*stream) & i32::MAX.cast_unsigned();
        Some(Self { length, kind, flags, stream })
    }

    fn has(self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// Returns the number of bytes to buffer before the frame is processed: the whole frame. For
    /// DATA frames, only the padding length is buffered.
    fn gathered(self) -> usize {
        HEAD + match self.kind {
            kind::DATA => usize::from(self.has(flag::PADDED)),
            _ => self.length,
        }
    }
}

/// One connection with one stream.
#[derive(Debug)]
pub(crate) struct Http2 {
    /// Bytes to send. The sender clears it.
    pub(crate) out: Vec<u8>,
    headers: HeaderDecoder,
    /// The beginning of an incomplete frame.
    partial: Vec<u8>,
    /// The beginning of a header block that continues in the next frame.
    block: Vec<u8>,
    ends_with_block: bool,
    /// The remaining data of a DATA frame, its remaining padding, and whether the stream ends with
    /// it.
    data: usize,
    padding: usize,
    ends_with_data: bool,
    /// The receive window of the stream, and the part of it that the server has used.
    window: usize,
    used: usize,
    /// The send windows of the stream and the connection, and the initial window from the settings.
    stream_window: i64,
    connection_window: i64,
    initial_window: u32,
    payload_max: usize,
    /// Data that exceeds the send window.
    waiting: Vec<u8>,
}

impl Http2 {
    /// Starts a connection and a call. The server may send `window` bytes before an update. A
    /// caller without a certificate passes its token and the token's cluster.
    pub(crate) fn new(authority: &str, path: &str, window: u32, caller: Option<&Token>) -> Self {
        let mut this = Self {
            out: PREFACE.to_vec(),
            headers: HeaderDecoder::default(),
            partial: Vec::new(),
            block: Vec::new(),
            ends_with_block: false,
            data: 0,
            padding: 0,
            ends_with_data: false,
            window: window as usize,
            used: 0,
            stream_window: WINDOW.into(),
            connection_window: WINDOW.into(),
            initial_window: WINDOW,
            payload_max: PAYLOAD_MAX,
            waiting: Vec::new(),
        };
        let mut settings = Vec::new();
        for (setting, value) in [(setting::ENABLE_PUSH, 0), (setting::INITIAL_WINDOW_SIZE, window)]
        {
            settings.extend_from_slice(&setting.to_be_bytes());
            settings.extend_from_slice(&value.to_be_bytes());
        }
        this.put(kind::SETTINGS, 0, 0, &settings);
        if let Some(more) = window.checked_sub(WINDOW).filter(|more| *more > 0) {
            this.put(kind::WINDOW_UPDATE, 0, 0, &more.to_be_bytes());
        }
        let block = request(authority, path, caller);
        this.put(kind::HEADERS, flag::END_HEADERS, STREAM, &block);
        this
    }

    /// Sends data as far as the send window allows. The rest is sent after a window update.
    pub(crate) fn send(&mut self, data: &[u8]) {
        self.waiting.extend_from_slice(data);
        self.send_waiting();
    }

    fn send_waiting(&mut self) {
        let window = usize::try_from(self.stream_window.min(self.connection_window)).unwrap_or(0);
        let now = window.min(self.waiting.len());
        let mut waiting = std::mem::take(&mut self.waiting);
        for data in waiting[..now].chunks(self.payload_max) {
            self.put(kind::DATA, 0, STREAM, data);
        }
        waiting.drain(..now);
        self.waiting = waiting;
        // A window is less than 2 GiB.
        let now = i64::try_from(now).unwrap_or(i64::MAX);
        self.stream_window -= now;
        self.connection_window -= now;
    }

    /// Processes received bytes and calls `data` with each piece of stream data.
    ///
    /// # Errors
    /// The reason why the stream has ended.
    pub(crate) fn receive(
        &mut self,
        mut bytes: &[u8],
        mut data: impl FnMut(&[u8]) -> Result<(), String>,
    ) -> Result<(), String> {
        while !bytes.is_empty() {
            if self.data > 0 {
                data(part(&mut bytes, &mut self.data))?;
            } else if self.padding > 0 {
                part(&mut bytes, &mut self.padding);
            } else {
                let head = Head::read(&self.partial);
                let mut missing = head.map_or(HEAD, Head::gathered) - self.partial.len();
                self.partial.extend_from_slice(part(&mut bytes, &mut missing));
                // The frame header determines how many bytes follow.
                match Head::read(&self.partial).filter(|_| missing == 0) {
                    Some(head) if self.partial.len() == head.gathered() => self.frame(head)?,
                    Some(head) if head.length > PAYLOAD_MAX => return Err(too_long(head)),
                    _ => continue,
                }
            }
            if self.ends_with_data && self.data == 0 && self.padding == 0 {
                return Err("the server ended the stream without a status".to_owned());
            }
        }
        Ok(())
    }

    /// Processes the complete frame in `partial`.
    fn frame(&mut self, head: Head) -> Result<(), String> {
        if head.length > PAYLOAD_MAX {
            return Err(too_long(head));
        }
        let frame = std::mem::take(&mut self.partial);
        let payload = &frame[HEAD..];
        if !self.block.is_empty() && head.kind != kind::CONTINUATION {
            return Err(broken("incomplete headers"));
        }
        match head.kind {
            kind::DATA if head.stream == STREAM => self.data(head, payload)?,
            kind::HEADERS if head.stream == STREAM => {
                let padded = usize::from(head.has(flag::PADDED));
                let padding = payload.iter().take(padded).copied().map(usize::from).sum();
                let before = padded + if head.has(flag::PRIORITY) { 5 } else { 0 };
                let after = payload.len().checked_sub(padding);
                let block = after.and_then(|after| payload.get(before..after));
                self.block
                    .extend_from_slice(block.ok_or_else(|| broken("padding that is too long"))?);
                self.ends_with_block = head.has(flag::END_STREAM);
                self.headers(head)?;
            }
            kind::CONTINUATION if head.stream == STREAM => {
                self.block.extend_from_slice(payload);
                self.headers(head)?;
            }
            kind::RST_STREAM if head.stream == STREAM => {
                let reason = number(payload)?;
                return Err(format!("HTTP/2: the server reset the stream: reason {reason}"));
            }
            kind::SETTINGS if !head.has(flag::ACK) => self.settings(payload)?,
            kind::PING if !head.has(flag::ACK) => self.put(kind::PING, flag::ACK, 0, payload),
            kind::GOAWAY => {
                let last = number(payload.get(..4).unwrap_or_default())?;
                let reason = number(payload.get(4..8).unwrap_or_default())?;
                // A server that only refuses new streams continues this one.
                if reason != 0 || last & i32::MAX.cast_unsigned() < STREAM {
                    let says = String::from_utf8_lossy(payload.get(8..).unwrap_or_default());
                    return Err(format!("HTTP/2: the server goes away: reason {reason} {says}"));
                }
            }
            kind::WINDOW_UPDATE => {
                let more = i64::from(number(payload)? & i32::MAX.cast_unsigned());
                match head.stream {
                    0 => self.connection_window += more,
                    _ => self.stream_window += more,
                }
                self.send_waiting();
            }
            kind::PUSH_PROMISE => return Err(broken("PUSH_PROMISE, which is disabled")),
            kind::DATA | kind::HEADERS | kind::CONTINUATION => {
                return Err(broken("a frame for an unknown stream"));
            }
            // PRIORITY, acknowledgements, and unknown types.
            _ => {}
        }
        self.partial = frame;
        self.partial.clear();
        Ok(())
    }

    fn data(&mut self, head: Head, padding: &[u8]) -> Result<(), String> {
        let padded = padding.len();
        self.padding = padding.first().copied().map_or(0, usize::from);
        let data = head.length.checked_sub(padded + self.padding);
        self.data = data.ok_or_else(|| broken("padding that is too long"))?;
        self.ends_with_data = head.has(flag::END_STREAM);
        self.used += head.length;
        if self.used > self.window {
            return Err(broken("more data than the window allows"));
        }
        // Received data counts as processed. An update per half window keeps the server sending.
        if self.used >= self.window / 2 {
            let more = u32::try_from(self.used).unwrap_or(u32::MAX).to_be_bytes();
            self.put(kind::WINDOW_UPDATE, 0, 0, &more);
            self.put(kind::WINDOW_UPDATE, 0, STREAM, &more);
            self.used = 0;
        }
        Ok(())
    }

    fn headers(&mut self, head: Head) -> Result<(), String> {
        if !head.has(flag::END_HEADERS) {
            return Ok(());
        }
        let (mut status, mut code, mut says) = (None, None, None);
        let block = std::mem::take(&mut self.block);
        let read = self.headers.decode(&block, |(name, value)| {
            let value = String::from_utf8_lossy(&value).into_owned();
            match &*name {
                b":status" => status = Some(value),
                b"grpc-status" => code = Some(value),
                b"grpc-message" => says = Some(value),
                _ => {}
            }
        });
        read.map_err(|_| broken("unreadable headers"))?;
        if let Some(code) = code.filter(|code| code != "0") {
            let says = says.unwrap_or_else(|| "-".to_owned());
            let says = percent_decode_str(&says).decode_utf8_lossy();
            return Err(format!("gRPC status {code}: {says}"));
        }
        if let Some(status) = status.filter(|status| status != "200") {
            return Err(format!("HTTP {status}"));
        }
        if self.ends_with_block { Err("the server ended the stream".to_owned()) } else { Ok(()) }
    }

    fn settings(&mut self, payload: &[u8]) -> Result<(), String> {
        let (settings, rest) = payload.as_chunks::<6>();
        if !rest.is_empty() {
            return Err(broken("unreadable settings"));
        }
        for &[a, b, ref value @ ..] in settings {
            let value = u32::from_be_bytes(*value);
            match u16::from_be_bytes([a, b]) {
                setting::INITIAL_WINDOW_SIZE => {
                    self.stream_window += i64::from(value) - i64::from(self.initial_window);
                    self.initial_window = value;
                }
                setting::MAX_FRAME_SIZE => self.payload_max = (value as usize).max(PAYLOAD_MAX),
                _ => {}
            }
        }
        self.put(kind::SETTINGS, flag::ACK, 0, &[]);
        self.send_waiting();
        Ok(())
    }

    fn put(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        // The length is limited by a window or by the server's settings, and fits into three bytes.
        let length = u32::try_from(payload.len()).unwrap_or(u32::MAX).to_be_bytes();
        self.out.extend_from_slice(&length[1..]);
        self.out.extend_from_slice(&[kind, flags]);
        self.out.extend_from_slice(&stream.to_be_bytes());
        self.out.extend_from_slice(payload);
    }
}

/// Splits off the part of `bytes` that belongs to the `missing` bytes.
fn part<'a>(bytes: &mut &'a [u8], missing: &mut usize) -> &'a [u8] {
    let (part, rest) = bytes.split_at(bytes.len().min(*missing));
    *missing -= part.len();
    *bytes = rest;
    part
}

fn broken(what: &str) -> String {
    format!("HTTP/2: the server sent {what}")
}

fn too_long(head: Head) -> String {
    broken(&format!("a frame of {} bytes, above the maximum of {PAYLOAD_MAX}", head.length))
}

fn number(payload: &[u8]) -> Result<u32, String> {
    let bytes = payload.try_into().map_err(|_| broken("a frame with an invalid length"))?;
    Ok(u32::from_be_bytes(bytes))
}

/// Returns the encoded headers of a gRPC call, without entries for the dynamic table (RFC 7541, 6.1
/// and 6.2.2).
fn request(authority: &str, path: &str, caller: Option<&Token>) -> Vec<u8> {
    /// `:method: POST` and `:scheme: https` by their static indexes.
    const INDEXED: [u8; 2] = [0x83, 0x87];
    /// Names by their static indexes, in the four available bits and an additional byte.
    const AUTHORITY: &[u8] = &[1];
    const PATH: &[u8] = &[4];
    const CONTENT_TYPE: &[u8] = &[0x0f, 31 - 15];
    const USER_AGENT: &[u8] = &[0x0f, 58 - 15];
    const TE: &[u8] = &[0, 2, b't', b'e'];
    const AUTHORIZATION: &[u8] = &[0x0f, 23 - 15];
    const CLUSTER: &[u8] = b"\x00\x09clusterid";
    let mut block = INDEXED.to_vec();
    let fields = [
        (AUTHORITY, authority),
        (PATH, path),
        (CONTENT_TYPE, "application/grpc"),
        (TE, "trailers"),
        (USER_AGENT, "xdsload"),
    ];
    let bearer = caller.map(|token| format!("Bearer {}", token.text));
    let of_caller = caller
        .zip(bearer.as_deref())
        .map(|(token, bearer)| [(AUTHORIZATION, bearer), (CLUSTER, &*token.cluster)]);
    for (name, value) in fields.into_iter().chain(of_caller.into_iter().flatten()) {
        block.extend_from_slice(name);
        match value.len().checked_sub(0x7f) {
            None => block.push(value.len() as u8),
            Some(rest) => {
                block.push(0x7f);
                prost::encoding::encode_varint(rest as u64, &mut block);
            }
        }
        block.extend_from_slice(value.as_bytes());
    }
    block
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
        let mut to = Http2::new("a", "/", WINDOW, None);
        to.out.clear();
        to.put(kind, flags, stream, payload);
        to.out
    }

    /// Returns a new connection whose preface has been sent.
    fn begun(window: u32) -> Http2 {
        let mut http = Http2::new("strait:15012", "/a", window, None);
        http.out.clear();
        http
    }

    /// Receives `bytes` in pieces of `size` and returns the stream data.
    fn receive(http: &mut Http2, bytes: &[u8], size: usize) -> Result<Vec<u8>, String> {
        let mut came = Vec::new();
        for piece in bytes.chunks(size) {
            http.receive(piece, |data| {
                came.extend_from_slice(data);
                Ok(())
            })?;
        }
        Ok(came)
    }

    /// The encoded `grpc-status: 14`, `grpc-message: not%20yet`.
    const REFUSED: &[u8] = b"\x00\x0bgrpc-status\x0214\x00\x0cgrpc-message\x09not%20yet";

    #[test]
    fn first_bytes_of_a_call_are_decodable_by_a_server() {
        let long = format!("{}:15012", "a".repeat(200));
        let token = Token { text: "t".repeat(900), cluster: "c1".to_owned() };
        let bearer = format!("Bearer {}", token.text);
        for caller in [None, Some(&token)] {
            let mut fields = Vec::new();
            let block = request(&long, "/s/m", caller);
            let read = HeaderDecoder::default().decode(&block, |(name, value)| {
                let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
                fields.push((text(&name), text(&value)));
            });
            read.expect("a block");
            let expected = [
                (":method", "POST"),
                (":scheme", "https"),
                (":authority", &long),
                (":path", "/s/m"),
                ("content-type", "application/grpc"),
                ("te", "trailers"),
                ("user-agent", "xdsload"),
            ];
            let of_caller = caller.map(|_| [("authorization", &*bearer), ("clusterid", "c1")]);
            let expected = expected.into_iter().chain(of_caller.into_iter().flatten());
            assert!(fields.iter().map(|(a, b)| (&**a, &**b)).eq(expected), "{fields:?}");
        }
    }

    #[test]
    fn data_is_independent_of_the_piece_size() {
        let stream = [
            frame(kind::SETTINGS, 0, 0, &[]),
            frame(kind::HEADERS, flag::END_HEADERS, STREAM, &[0x88]),
            frame(kind::DATA, 0, STREAM, b"some"),
            frame(kind::PING, 0, 0, b"12345678"),
            frame(kind::DATA, flag::PADDED, STREAM, b"\x03 thing___"),
            frame(kind::GOAWAY, 0, 0, &[0x7f, 0xff, 0xff, 0xff, 0, 0, 0, 0]),
            frame(99, 0, 7, b"what is to come"),
            frame(kind::DATA, 0, STREAM, b" else"),
        ]
        .concat();
        for size in 1..=stream.len() {
            let mut http = begun(WINDOW);
            assert_eq!(receive(&mut http, &stream, size).as_deref(), Ok(&b"some thing else"[..]));
            let answers = [
                frame(kind::SETTINGS, flag::ACK, 0, &[]),
                frame(kind::PING, flag::ACK, 0, b"12345678"),
            ];
            assert_eq!(http.out, answers.concat());
        }
    }

    #[test]
    fn window_update_is_sent_after_half_a_window() {
        let mut http = begun(1000);
        let data = frame(kind::DATA, 0, STREAM, &[0; 499]);
        receive(&mut http, &data, data.len()).expect("data");
        assert!(http.out.is_empty());
        let more = frame(kind::DATA, 0, STREAM, &[0; 1]);
        receive(&mut http, &more, 3).expect("data");
        let update = |stream| frame(kind::WINDOW_UPDATE, 0, stream, &500_u32.to_be_bytes());
        assert_eq!(http.out, [update(0), update(STREAM)].concat());
        let too_much = frame(kind::DATA, 0, STREAM, &[0; 1001]);
        let error = receive(&mut http, &too_much, 2000).expect_err("beyond the window");
        assert_eq!(error, "HTTP/2: the server sent more data than the window allows");
    }

    #[test]
    fn data_beyond_the_send_window_waits() {
        let mut http = begun(WINDOW);
        // 10 bytes for the stream, in an existing window and after an update.
        http.stream_window = 4;
        http.send(b"abcdefghij");
        assert_eq!(http.out, frame(kind::DATA, 0, STREAM, b"abcd"));
        http.out.clear();
        let update = frame(kind::WINDOW_UPDATE, 0, STREAM, &3_u32.to_be_bytes());
        receive(&mut http, &update, 1).expect("a window");
        assert_eq!(http.out, frame(kind::DATA, 0, STREAM, b"efg"));
        http.out.clear();
        // Settings change the windows of existing streams (section 6.9.2).
        let settings = [&[0, 4], &(WINDOW + 100).to_be_bytes()[..]].concat();
        receive(&mut http, &frame(kind::SETTINGS, 0, 0, &settings), 1).expect("settings");
        let ack = frame(kind::SETTINGS, flag::ACK, 0, &[]);
        assert_eq!(http.out, [ack, frame(kind::DATA, 0, STREAM, b"hij")].concat());
    }

    #[test]
    fn end_of_stream_reports_the_reason() {
        let over = flag::END_HEADERS | flag::END_STREAM;
        let split = [
            frame(kind::HEADERS, flag::END_STREAM, STREAM, &REFUSED[..9]),
            frame(kind::CONTINUATION, flag::END_HEADERS, STREAM, &REFUSED[9..]),
        ];
        let padded = [b"\x02\0\0\0\0\x10", REFUSED, b"__"].concat();
        let invalid = over | flag::PADDED | flag::PRIORITY;
        let cases = [
            (frame(kind::HEADERS, over, STREAM, REFUSED), "gRPC status 14: not yet"),
            (split.concat(), "gRPC status 14: not yet"),
            (frame(kind::HEADERS, invalid, STREAM, &padded), "gRPC status 14: not yet"),
            // :status 404
            (frame(kind::HEADERS, over, STREAM, &[0x8d]), "HTTP 404"),
            (frame(kind::HEADERS, over, STREAM, &[0x88]), "the server ended the stream"),
            (
                frame(kind::DATA, flag::END_STREAM, STREAM, b"a"),
                "the server ended the stream without a status",
            ),
            (
                frame(kind::RST_STREAM, 0, STREAM, &7_u32.to_be_bytes()),
                "HTTP/2: the server reset the stream: reason 7",
            ),
            (
                frame(kind::GOAWAY, 0, 0, b"\0\0\0\x01\0\0\0\x0bcalm"),
                "HTTP/2: the server goes away: reason 11 calm",
            ),
            (
                frame(kind::DATA, 0, STREAM, &[0; PAYLOAD_MAX + 1]),
                "HTTP/2: the server sent a frame of 16385 bytes, above the maximum of 16384",
            ),
            (
                frame(kind::HEADERS, over | flag::PADDED, STREAM, &[9]),
                "HTTP/2: the server sent padding that is too long",
            ),
            (
                frame(kind::DATA, 0, 3, b"a"),
                "HTTP/2: the server sent a frame for an unknown stream",
            ),
        ];
        for (bytes, error) in cases {
            for size in [1, bytes.len()] {
                assert_eq!(receive(&mut begun(1 << 20), &bytes, size), Err(error.to_owned()));
            }
        }
    }
}
