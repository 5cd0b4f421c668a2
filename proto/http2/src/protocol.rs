//! The server side of HTTP/2 (RFC 9113) as a state machine without I/O: it receives the peer's bytes, returns
//! calls, and collects frames in a rope until the socket accepts them.
//!
//! All memory that a peer can make us use is bounded: calls and headers by limits, bodies by their windows,
//! responses by the rope, whose length also stops further reads. Actions of the peer that cause load without
//! useful work are counted.

use std::collections::VecDeque;

use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Uri, uri::PathAndQuery};

use super::frame::{
    ErrorCode, FrameHead, PAYLOAD_MAX, PREFACE, flag, kind, number, setting, unpadded,
};
use super::hpack::{self, HeaderDecoder, HeaderField};
use crate::WRITE_MAX;
use crate::rope::Rope;

/// The maximum number of concurrent calls per connection.
const CALLS_MAX: u32 = 16;
/// The maximum size of an encoded header block, and of the decoded fields, in bytes.
const BLOCK_MAX: usize = PAYLOAD_MAX;
const HEADERS_MAX: usize = 8 << 10;
/// The maximum unread data that a peer may send, per call and per connection, in bytes.
const CALL_WINDOW: u32 = 256 << 10;
const WINDOW: u32 = 1 << 20;
/// The initial windows of both sides, in bytes (section 6.9.2).
const FIRST_WINDOW: u32 = 0xffff;
const WINDOW_MAX: i64 = i32::MAX as i64;
/// The length of the waiting output, in bytes, at which no more responses are accepted and nothing more is read:
/// [`WRITE_MAX`] minus the frame headers in it.
const OUTPUT_MAX: usize = WRITE_MAX - 4 * 9;
/// How often a peer may cause load without useful work, for example by opening and cancelling a call.
const STRIKES_MAX: u32 = 1000;
/// The maximum number of frames of a header block.
const PIECES_MAX: usize = 32;

/// The error for a call that has ended, by the peer or with the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CallOver;

/// A call that the peer has opened, with the stream number.
pub(super) type Opened = (Request<()>, u32);

/// The state of one connection. The module documentation describes it.
#[derive(Debug)]
pub(super) struct Http2Protocol {
    /// The beginning of an incomplete frame.
    rest: Vec<u8>,
    greeted: bool,
    settled: bool,
    /// Whether the peer has acknowledged our settings.
    agreed: bool,
    block: Option<HeaderBlock>,
    headers: HeaderDecoder,
    /// The highest stream number that the peer has opened.
    last: u32,
    calls: Vec<OpenCall>,
    opened: VecDeque<Opened>,
    /// What we may send, in bytes: in total, and initially per call.
    window: i64,
    first_window: i64,
    /// The receive window of the connection.
    intake: Intake,
    /// The output that waits for the socket.
    pub(super) output: Rope,
    /// Whether the stream has buffered data that the socket has not accepted. The stream gets more only after its
    /// buffer is empty.
    pub(super) held: bool,
    strikes: u32,
    /// Whether our last ping is unanswered.
    pinged: bool,
    leaving: bool,
}

/// An incomplete header block.
#[derive(Debug)]
struct HeaderBlock {
    head: FrameHead,
    bytes: Vec<u8>,
    pieces: usize,
}

/// A call, until its handle is dropped.
#[derive(Debug)]
struct OpenCall {
    stream: u32,
    window: i64,
    intake: Intake,
    /// The received part of the body that has not been read yet.
    inbox: Vec<u8>,
    /// Whether the peer has ended the request.
    heard: bool,
    /// Whether we have ended the response.
    said: bool,
    gone: bool,
}

/// The receive window of a call or of the connection, in bytes.
#[derive(Debug)]
struct Intake {
    left: i64,
    read: u32,
    whole: u32,
}

impl Intake {
    fn new(whole: u32) -> Self {
        Self { left: whole.into(), read: 0, whole }
    }

    fn take(&mut self, length: u32) -> Result<(), ErrorCode> {
        self.left -= i64::from(length);
        if self.left < 0 { Err(ErrorCode::FlowControl) } else { Ok(()) }
    }

    /// Records that `length` bytes were read. Returns the increment of a window update, once half of the window
    /// has been read.
    fn give_back(&mut self, length: usize) -> Option<u32> {
        self.read += u32::try_from(length).expect("no more than was taken");
        (self.read >= self.whole / 2).then(|| {
            self.left += i64::from(self.read);
            std::mem::take(&mut self.read)
        })
    }
}

impl Http2Protocol {
    /// Returns the state of a new connection. Our settings are in the output.
    pub(super) fn new() -> Self {
        let mut protocol = Self::narrow();
        protocol.widen();
        protocol
    }

    /// Returns the state of a connection whose peer may send at most 64 KiB of unread data in total.
    pub(super) fn narrow() -> Self {
        let mut output = Rope::default();
        let settings = [
            // A dynamic table would waste memory, because the peer sends few headers.
            (setting::HEADER_TABLE_SIZE, 0),
            (setting::MAX_CONCURRENT_STREAMS, CALLS_MAX),
            (setting::INITIAL_WINDOW_SIZE, CALL_WINDOW),
            (setting::MAX_HEADER_LIST_SIZE, HEADERS_MAX as u32),
        ];
        let payload: Vec<u8> = settings
            .into_iter()
            .flat_map(|(number, value): (u16, u32)| {
                number.to_be_bytes().into_iter().chain(value.to_be_bytes())
            })
            .collect();
        FrameHead::put_frame(kind::SETTINGS, 0, 0, &payload, &mut output);
        Self {
            rest: Vec::new(),
            greeted: false,
            settled: false,
            agreed: false,
            block: None,
            headers: HeaderDecoder::default(),
            last: 0,
            calls: Vec::new(),
            opened: VecDeque::new(),
            window: FIRST_WINDOW.into(),
            first_window: FIRST_WINDOW.into(),
            intake: Intake::new(FIRST_WINDOW),
            output,
            held: false,
            strikes: 0,
            pinged: false,
            leaving: false,
        }
    }

    /// Extends the window of the connection to its full size. Does nothing if it was already extended.
    pub(super) fn widen(&mut self) {
        if self.intake.whole == FIRST_WINDOW {
            let more = WINDOW - FIRST_WINDOW;
            put_update(0, more, &mut self.output);
            self.intake.whole = WINDOW;
            self.intake.left += i64::from(more);
        }
    }

    /// Receives bytes from the peer.
    ///
    /// # Errors
    /// The reason why the connection must end.
    pub(super) fn receive(&mut self, bytes: &[u8]) -> Result<(), ErrorCode> {
        if self.rest.is_empty() {
            let used = self.frames(bytes)?;
            self.rest = bytes.get(used..).unwrap_or_default().to_vec();
        } else {
            let mut input = std::mem::take(&mut self.rest);
            input.extend_from_slice(bytes);
            let used = self.frames(&input)?;
            input.drain(..used);
            if !input.is_empty() {
                self.rest = input;
            }
        }
        if self.strikes > STRIKES_MAX { Err(ErrorCode::Calm) } else { Ok(()) }
    }

    /// Returns the next call that the peer has opened.
    pub(super) fn accept(&mut self) -> Option<Opened> {
        let opened = self.opened.pop_front();
        if self.opened.is_empty() {
            self.opened = VecDeque::new();
        }
        opened
    }

    /// Returns whether the peer has sent the preface and its settings.
    pub(super) fn has_begun(&self) -> bool {
        self.settled
    }

    /// Returns whether one side is closing the connection and no call is left.
    pub(super) fn is_over(&self) -> bool {
        self.leaving && self.calls.is_empty()
    }

    /// Returns whether so much output is waiting that nothing more is read.
    pub(super) fn is_full(&self) -> bool {
        self.output.len() >= OUTPUT_MAX
    }

    /// Returns whether the socket has room for more of a response.
    pub(super) fn has_room(&self) -> bool {
        !self.held && !self.is_full()
    }

    /// Refuses new calls. Existing calls continue.
    pub(super) fn leave(&mut self) {
        if !self.leaving {
            self.leaving = true;
            self.go_away(i32::MAX.cast_unsigned(), ErrorCode::None);
        }
    }

    /// Sends the reason why the connection ends (GOAWAY).
    pub(super) fn fail(&mut self, reason: ErrorCode) {
        self.go_away(self.last, reason);
    }

    /// Sends a ping.
    pub(super) fn ping(&mut self) {
        self.pinged = true;
        FrameHead::put_frame(kind::PING, 0, 0, &[0; 8], &mut self.output);
    }

    /// Returns whether the last [`Self::ping`] was answered.
    pub(super) fn is_answered(&self) -> bool {
        !self.pinged
    }

    // Functions for one call.

    /// Returns the data received since the last call of this function; `None` at the end of the body.
    pub(super) fn take_body(&mut self, stream: u32) -> Result<Option<Vec<u8>>, CallOver> {
        let call = self.call(stream).ok_or(CallOver)?;
        if call.gone {
            return Err(CallOver);
        }
        if call.inbox.is_empty() && call.heard {
            return Ok(None);
        }
        let body = std::mem::take(&mut call.inbox);
        let update = call.intake.give_back(body.len()).filter(|_| !call.heard);
        self.give_back(body.len());
        if let Some(more) = update {
            put_update(stream, more, &mut self.output);
        }
        Ok(Some(body))
    }

    /// Returns whether the body is complete and has been read.
    pub(super) fn is_heard(&mut self, stream: u32) -> bool {
        self.call(stream).is_none_or(|call| call.heard && call.inbox.is_empty())
    }

    /// Returns the number of response bytes that can be sent now.
    pub(super) fn room(&mut self, stream: u32) -> Result<usize, CallOver> {
        let has_room = self.has_room();
        let call = self.call(stream).filter(|call| !call.gone).ok_or(CallOver)?;
        if !has_room {
            return Ok(0);
        }
        let room = usize::try_from(call.window.min(self.window)).unwrap_or(0);
        Ok(room.min(OUTPUT_MAX.saturating_sub(self.output.len())))
    }

    /// Sends the first `count` bytes of `messages`, for which there must be room.
    pub(super) fn send_data(
        &mut self,
        stream: u32,
        messages: &mut Rope,
        count: usize,
    ) -> Result<(), CallOver> {
        let call = self.calls.iter_mut().find(|call| call.stream == stream);
        let call = call.filter(|call| !call.gone && !call.said).ok_or(CallOver)?;
        call.window -= count as i64;
        self.window -= count as i64;
        let mut rest = count.min(messages.len());
        if self.output.is_empty() && rest == messages.len() && (1..=PAYLOAD_MAX).contains(&rest) {
            // All of it is one frame: it becomes the output without a copy.
            messages.put_first(&FrameHead::encode(rest, kind::DATA, 0, stream));
            self.output = std::mem::take(messages);
            return Ok(());
        }
        while rest > 0 {
            let length = rest.min(PAYLOAD_MAX);
            rest -= length;
            self.output.put_slice(&FrameHead::encode(length, kind::DATA, 0, stream));
            messages.move_to(length, &mut self.output);
        }
        Ok(())
    }

    /// Sends headers, or trailers if `status` is `None`.
    pub(super) fn send_headers(
        &mut self,
        stream: u32,
        status: Option<u16>,
        headers: &HeaderMap,
        end: bool,
    ) -> Result<(), CallOver> {
        let call = self.call(stream).filter(|call| !call.gone && !call.said).ok_or(CallOver)?;
        call.said = end;
        let block = hpack::encode(status, headers);
        let (mut kind, mut flags) = (kind::HEADERS, if end { flag::END_STREAM } else { 0 });
        let mut rest = block.as_slice();
        loop {
            let piece = rest.split_off(..rest.len().min(PAYLOAD_MAX)).unwrap_or_default();
            if rest.is_empty() {
                let flags = flags | flag::END_HEADERS;
                FrameHead::put_frame(kind, flags, stream, piece, &mut self.output);
                return Ok(());
            }
            FrameHead::put_frame(kind, flags, stream, piece, &mut self.output);
            (kind, flags) = (kind::CONTINUATION, 0);
        }
    }

    /// Removes a call, because its handle was dropped. Resets the stream unless both sides have ended.
    pub(super) fn drop_call(&mut self, stream: u32) {
        let Some(at) = self.calls.iter().position(|call| call.stream == stream) else { return };
        let call = self.calls.swap_remove(at);
        self.give_back(call.inbox.len());
        match (call.gone, call.said, call.heard) {
            (true, ..) | (_, true, true) => {}
            // The response is complete, and the rest of the request is not needed (section 8.1).
            (_, true, false) => self.reset(stream, ErrorCode::None),
            (_, false, _) => self.reset(stream, ErrorCode::Cancel),
        }
    }

    // Functions for received frames.

    /// Processes the complete frames in `input`. Returns their length in bytes.
    fn frames(&mut self, mut input: &[u8]) -> Result<usize, ErrorCode> {
        let length = input.len();
        if !self.greeted {
            match input.split_at_checked(PREFACE.len()) {
                Some((PREFACE, rest)) => input = rest,
                None if PREFACE.starts_with(input) => return Ok(0),
                _ => return Err(ErrorCode::Protocol),
            }
            self.greeted = true;
        }
        while let Some((head, rest)) = FrameHead::read(input) {
            if head.length > PAYLOAD_MAX {
                return Err(ErrorCode::FrameSize);
            }
            let Some((payload, rest)) = rest.split_at_checked(head.length) else { break };
            self.frame(head, payload)?;
            input = rest;
        }
        Ok(length - input.len())
    }

    fn frame(&mut self, head: FrameHead, payload: &[u8]) -> Result<(), ErrorCode> {
        let in_block = self.block.is_some();
        if in_block != (head.kind == kind::CONTINUATION) {
            return Err(ErrorCode::Protocol);
        }
        if !self.settled && head.kind != kind::SETTINGS {
            return Err(ErrorCode::Protocol);
        }
        match head.kind {
            kind::DATA => self.on_data(head, payload),
            kind::HEADERS => self.on_headers(head, payload),
            kind::CONTINUATION => self.on_continuation(head, payload),
            kind::RST_STREAM => self.on_reset(head, payload),
            kind::SETTINGS => self.on_settings(head, payload),
            kind::PING => self.on_ping(head, payload),
            kind::WINDOW_UPDATE => self.on_window_update(head, payload),
            kind::GOAWAY if head.stream == 0 => {
                self.leaving = true;
                Ok(())
            }
            kind::GOAWAY | kind::PUSH_PROMISE => Err(ErrorCode::Protocol),
            // PRIORITY has no effect here. Unknown frame types are ignored (section 5.5).
            kind::PRIORITY.. => Ok(()),
        }
    }

    fn on_data(&mut self, head: FrameHead, payload: &[u8]) -> Result<(), ErrorCode> {
        if head.stream == 0 || head.stream > self.last {
            return Err(ErrorCode::Protocol);
        }
        let length = u32::try_from(payload.len()).map_err(|_| ErrorCode::FrameSize)?;
        self.intake.take(length)?;
        let data = unpadded(&head, payload)?;
        let end = head.has(flag::END_STREAM);
        self.strikes += u32::from(data.is_empty() && !end);
        let call = self.calls.iter_mut().find(|call| call.stream == head.stream);
        let Some(call) = call.filter(|call| !call.gone) else {
            // The data was sent before the peer learned that the call has ended.
            self.give_back(payload.len());
            return Ok(());
        };
        if call.heard {
            return Err(ErrorCode::Protocol);
        }
        call.intake.take(length)?;
        call.heard = end;
        call.inbox.extend_from_slice(data);
        let padding = payload.len() - data.len();
        let update = call.intake.give_back(padding).filter(|_| !end);
        self.give_back(padding);
        if let Some(more) = update {
            put_update(head.stream, more, &mut self.output);
        }
        Ok(())
    }

    fn on_headers(&mut self, head: FrameHead, payload: &[u8]) -> Result<(), ErrorCode> {
        if head.stream.is_multiple_of(2) {
            return Err(ErrorCode::Protocol);
        }
        let mut fragment = unpadded(&head, payload)?;
        if head.has(flag::PRIORITY) {
            fragment = fragment.get(5..).ok_or(ErrorCode::FrameSize)?;
        }
        if head.has(flag::END_HEADERS) {
            return self.on_block(head, fragment);
        }
        self.block = Some(HeaderBlock { head, bytes: fragment.to_vec(), pieces: 1 });
        Ok(())
    }

    fn on_continuation(&mut self, head: FrameHead, payload: &[u8]) -> Result<(), ErrorCode> {
        let mut block = self.block.take().ok_or(ErrorCode::Protocol)?;
        if head.stream != block.head.stream {
            return Err(ErrorCode::Protocol);
        }
        block.bytes.extend_from_slice(payload);
        block.pieces += 1;
        if block.bytes.len() > BLOCK_MAX || block.pieces > PIECES_MAX {
            return Err(ErrorCode::Calm);
        }
        if head.has(flag::END_HEADERS) {
            return self.on_block(block.head, &block.bytes);
        }
        self.block = Some(block);
        Ok(())
    }

    /// Processes a complete header block: the headers of a new call, or the trailers of an existing one.
    fn on_block(&mut self, head: FrameHead, block: &[u8]) -> Result<(), ErrorCode> {
        let end = head.has(flag::END_STREAM);
        let mut fields = CallHeaders::default();
        // Always decoded, because later blocks may refer to its entries.
        let read = self.headers.decode(block, |field| fields.add(field));
        read.map_err(|hpack::UnreadableBlock| ErrorCode::Compression)?;
        if head.stream <= self.last {
            self.strikes += 1;
            if let Some(call) = self.call(head.stream).filter(|call| !call.gone) {
                if call.heard || !end {
                    return Err(ErrorCode::Protocol);
                }
                call.heard = true;
            }
            return Ok(());
        }
        self.last = head.stream;
        if self.leaving || self.calls.len() >= CALLS_MAX as usize {
            return self.refuse(head.stream, ErrorCode::Refused);
        }
        let too_large = fields.size > HEADERS_MAX;
        let Some(request) = fields.request().filter(|_| !too_large) else {
            return self.refuse(
                head.stream,
                if too_large { ErrorCode::Calm } else { ErrorCode::Protocol },
            );
        };
        self.calls.push(OpenCall {
            stream: head.stream,
            window: self.first_window,
            intake: Intake::new(CALL_WINDOW),
            inbox: Vec::new(),
            heard: end,
            said: false,
            gone: false,
        });
        self.opened.push_back((request, head.stream));
        Ok(())
    }

    fn refuse(&mut self, stream: u32, reason: ErrorCode) -> Result<(), ErrorCode> {
        self.strikes += 1;
        self.reset(stream, reason);
        Ok(())
    }

    fn on_reset(&mut self, head: FrameHead, payload: &[u8]) -> Result<(), ErrorCode> {
        number(payload)?;
        if head.stream == 0 || head.stream > self.last {
            return Err(ErrorCode::Protocol);
        }
        self.strikes += 1;
        if let Some(call) = self.call(head.stream) {
            call.gone = true;
            let unread = std::mem::take(&mut call.inbox).len();
            self.give_back(unread);
        }
        Ok(())
    }

    fn on_settings(&mut self, head: FrameHead, payload: &[u8]) -> Result<(), ErrorCode> {
        if head.stream != 0 {
            return Err(ErrorCode::Protocol);
        }
        if head.has(flag::ACK) {
            if !payload.is_empty() {
                return Err(ErrorCode::FrameSize);
            }
            if !self.agreed {
                self.agreed = true;
                self.headers.forget_all();
            }
            return Ok(());
        }
        let (settings, rest) = payload.as_chunks::<6>();
        if !rest.is_empty() {
            return Err(ErrorCode::FrameSize);
        }
        for [a, b, value @ ..] in settings {
            // Other settings limit features that this server does not use.
            if u16::from_be_bytes([*a, *b]) == setting::INITIAL_WINDOW_SIZE {
                self.set_first_window(i64::from(u32::from_be_bytes(*value)))?;
            }
        }
        self.settled = true;
        FrameHead::put_frame(kind::SETTINGS, flag::ACK, 0, &[], &mut self.output);
        Ok(())
    }

    fn set_first_window(&mut self, window: i64) -> Result<(), ErrorCode> {
        if window > WINDOW_MAX {
            return Err(ErrorCode::FlowControl);
        }
        let more = window - self.first_window;
        self.first_window = window;
        for call in &mut self.calls {
            call.window += more;
            if call.window > WINDOW_MAX {
                return Err(ErrorCode::FlowControl);
            }
        }
        Ok(())
    }

    fn on_ping(&mut self, head: FrameHead, payload: &[u8]) -> Result<(), ErrorCode> {
        if head.stream != 0 {
            return Err(ErrorCode::Protocol);
        }
        if payload.len() != 8 {
            return Err(ErrorCode::FrameSize);
        }
        if head.has(flag::ACK) {
            self.pinged = false;
        } else {
            FrameHead::put_frame(kind::PING, flag::ACK, 0, payload, &mut self.output);
        }
        Ok(())
    }

    fn on_window_update(&mut self, head: FrameHead, payload: &[u8]) -> Result<(), ErrorCode> {
        let more = i64::from(number(payload)? & i32::MAX.cast_unsigned());
        if more == 0 || head.stream > self.last {
            return Err(ErrorCode::Protocol);
        }
        let window = match head.stream {
            0 => Some(&mut self.window),
            stream => self.call(stream).map(|call| &mut call.window),
        };
        if let Some(window) = window {
            *window += more;
            if *window > WINDOW_MAX {
                return Err(ErrorCode::FlowControl);
            }
        }
        Ok(())
    }

    fn call(&mut self, stream: u32) -> Option<&mut OpenCall> {
        self.calls.iter_mut().find(|call| call.stream == stream)
    }

    fn give_back(&mut self, length: usize) {
        if let Some(more) = self.intake.give_back(length) {
            put_update(0, more, &mut self.output);
        }
    }

    fn reset(&mut self, stream: u32, reason: ErrorCode) {
        let payload = (reason as u32).to_be_bytes();
        FrameHead::put_frame(kind::RST_STREAM, 0, stream, &payload, &mut self.output);
    }

    fn go_away(&mut self, last: u32, reason: ErrorCode) {
        let mut payload = Vec::from(last.to_be_bytes());
        payload.extend((reason as u32).to_be_bytes());
        FrameHead::put_frame(kind::GOAWAY, 0, 0, &payload, &mut self.output);
    }
}

fn put_update(stream: u32, more: u32, output: &mut Rope) {
    FrameHead::put_frame(kind::WINDOW_UPDATE, 0, stream, &more.to_be_bytes(), output);
}

/// The headers of a call while its header block is decoded.
#[derive(Default)]
struct CallHeaders {
    method: Option<Method>,
    path: Option<PathAndQuery>,
    headers: HeaderMap,
    size: usize,
    malformed: bool,
}

impl CallHeaders {
    fn add(&mut self, (name, value): HeaderField) {
        self.size += name.len() + value.len() + 32;
        if self.size > HEADERS_MAX || self.malformed {
            return;
        }
        let sound = match &*name {
            b":method" => set(&mut self.method, Method::from_bytes(&value).ok()),
            b":path" => set(&mut self.path, PathAndQuery::try_from(&*value).ok()),
            // Scheme and authority are ignored: there is only one server with one scheme.
            b":scheme" | b":authority" => true,
            _ => {
                let name = HeaderName::from_lowercase(&name).ok();
                match (name, HeaderValue::from_bytes(&value)) {
                    (Some(name), Ok(value)) => self.headers.try_append(name, value).is_ok(),
                    _ => false,
                }
            }
        };
        self.malformed |= !sound;
    }

    fn request(self) -> Option<Request<()>> {
        let (Some(method), Some(path)) = (self.method, self.path) else { return None };
        if self.malformed {
            return None;
        }
        let mut request = Request::new(());
        *request.method_mut() = method;
        *request.uri_mut() = Uri::from(path);
        *request.version_mut() = http::Version::HTTP_2;
        *request.headers_mut() = self.headers;
        Some(request)
    }
}

/// Sets `place`. Returns `false` if it is already set or `value` is `None`.
fn set<T>(place: &mut Option<T>, value: Option<T>) -> bool {
    let sound = place.is_none() && value.is_some();
    if sound {
        *place = value;
    }
    sound
}

#[cfg(test)]
mod tests;
