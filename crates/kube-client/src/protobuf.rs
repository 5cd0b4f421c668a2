//! Lists and events of a watch in the protobuf encoding of Kubernetes.
//!
//! Every object has a wrapper: the four bytes `k8s\0`, then a `runtime.Unknown` {1: type, 2: the
//! object}. An event is a frame of four bytes length and a `WatchEvent` {1: type, 2: {1: a wrapped
//! object}}, which has no wrapper itself. A list is {1: its metadata, 2: each object}, in one
//! wrapper. (k8s.io/apimachinery: pkg/runtime/serializer/protobuf, pkg/runtime/generated.proto,
//! pkg/apis/meta/v1/generated.proto)

use bytes::{Buf, Bytes, BytesMut};

use super::borrowed_text::BorrowedText;
use super::envelope::{CutError, ENVELOPE_BYTES_MAX, ListEnd, WatchLine, convert};
use super::lines::{TooLong, release};
use super::object::{Form, InvalidField, ObjectKind, OnlyMeta};
use super::wire::{FieldValue, MalformedMessage, ProtobufMessage, key, varint};

/// The first bytes of every wrapped object.
const MAGIC: &[u8] = b"k8s\0";

/// Decodes an object of a list.
pub(super) fn form<'a, F: Form<'a>>(bytes: &'a [u8]) -> Result<F, InvalidField> {
    F::from_protobuf(bytes).map_err(|error| {
        let mut only = OnlyMeta::default();
        let named = only.merge(bytes).is_ok();
        let identity = only.metadata.identity();
        InvalidField {
            key: (named && identity.makes_sense()).then(|| identity.key()),
            reason: error.to_string(),
        }
    })
}

/// Decodes an event.
pub(super) fn line<K: ObjectKind>(kind: &K, frame: &[u8]) -> Result<WatchLine<K::Stored>, String> {
    let mut event = ProtobufEvent::default();
    let text = |error: MalformedMessage| error.to_string();
    // kube-apiserver does not wrap events. A wrapped one cannot be mistaken for a bare one, because
    // no field begins with `k`.
    let bare = if frame.starts_with(MAGIC) { unwrap(frame)?.raw } else { frame };
    event.merge(bare).map_err(text)?;
    let wrapped = unwrap(event.object)?;
    let object = wrapped.raw;
    WatchLine::from_event(
        &event.kind,
        || form(object).and_then(|form| convert(kind, form)),
        || {
            let mut only = OnlyMeta::default();
            only.merge(object).map_err(text)?;
            Ok(only.metadata)
        },
        || {
            let mut status = ProtobufStatus::default();
            status.merge(object).map_err(text)?;
            Ok(WatchLine::from_status(status.code, &status.reason, &status.message))
        },
    )
}

/// Returns the message of an error response.
pub(super) fn status_message(bytes: &[u8]) -> Option<String> {
    let wrapped = unwrap(bytes).ok()?;
    let mut status = ProtobufStatus::default();
    status.merge(wrapped.raw).ok()?;
    (wrapped.kind.kind == BorrowedText::from("Status")).then(|| status.message.to_string())
}

/// Removes the wrapper.
fn unwrap(bytes: &[u8]) -> Result<Unknown<'_>, String> {
    let wrapped = bytes.strip_prefix(MAGIC).ok_or("it does not begin like Kubernetes protobuf")?;
    let mut unknown = Unknown::default();
    unknown.merge(wrapped).map_err(|error| error.to_string())?;
    if unknown.encoding.is_empty() {
        Ok(unknown)
    } else {
        Err("it has a content encoding, which was not requested".into())
    }
}

/// `runtime.Unknown`.
#[derive(Default)]
struct Unknown<'a> {
    kind: TypeMeta<'a>,
    raw: &'a [u8],
    encoding: BorrowedText<'a>,
}

impl<'a> ProtobufMessage<'a> for Unknown<'a> {
    fn field(&mut self, number: u32, value: FieldValue<'a>) -> Result<(), MalformedMessage> {
        match number {
            1 => value.message(&mut self.kind)?,
            2 => self.raw = value.bytes()?,
            3 => self.encoding = value.text()?,
            _ => {}
        }
        Ok(())
    }
}

/// `runtime.TypeMeta`.
#[derive(Default)]
struct TypeMeta<'a> {
    kind: BorrowedText<'a>,
}

impl<'a> ProtobufMessage<'a> for TypeMeta<'a> {
    fn field(&mut self, number: u32, value: FieldValue<'a>) -> Result<(), MalformedMessage> {
        if number == 2 {
            self.kind = value.text()?;
        }
        Ok(())
    }
}

/// `metav1.WatchEvent`.
#[derive(Default)]
struct ProtobufEvent<'a> {
    kind: BorrowedText<'a>,
    object: &'a [u8],
}

impl<'a> ProtobufMessage<'a> for ProtobufEvent<'a> {
    fn field(&mut self, number: u32, value: FieldValue<'a>) -> Result<(), MalformedMessage> {
        match number {
            1 => self.kind = value.text()?,
            2 => {
                let mut extension = RawExtension::default();
                value.message(&mut extension)?;
                self.object = extension.0;
            }
            _ => {}
        }
        Ok(())
    }
}

/// `runtime.RawExtension`.
#[derive(Default)]
struct RawExtension<'a>(&'a [u8]);

impl<'a> ProtobufMessage<'a> for RawExtension<'a> {
    fn field(&mut self, number: u32, value: FieldValue<'a>) -> Result<(), MalformedMessage> {
        if number == 1 {
            self.0 = value.bytes()?;
        }
        Ok(())
    }
}

/// `metav1.Status`.
#[derive(Default)]
struct ProtobufStatus<'a> {
    message: BorrowedText<'a>,
    reason: BorrowedText<'a>,
    code: i64,
}

impl<'a> ProtobufMessage<'a> for ProtobufStatus<'a> {
    fn field(&mut self, number: u32, value: FieldValue<'a>) -> Result<(), MalformedMessage> {
        match number {
            3 => self.message = value.text()?,
            4 => self.reason = value.text()?,
            6 => self.code = value.number()?,
            _ => {}
        }
        Ok(())
    }
}

/// `metav1.ListMeta`.
#[derive(Default)]
struct ListMeta<'a> {
    version: BorrowedText<'a>,
    next: BorrowedText<'a>,
}

impl<'a> ProtobufMessage<'a> for ListMeta<'a> {
    fn field(&mut self, number: u32, value: FieldValue<'a>) -> Result<(), MalformedMessage> {
        match number {
            2 => self.version = value.text()?,
            3 => self.next = value.text()?,
            _ => {}
        }
        Ok(())
    }
}

/// Received frames that have not been returned: each has four bytes length, big-endian, and as many
/// bytes of content.
#[derive(Debug)]
pub(super) struct Frames {
    buffer: BytesMut,
    longest: usize,
}

impl Frames {
    /// Creates a splitter for frames of at most `longest` bytes.
    pub(super) fn new(longest: usize) -> Self {
        Self { buffer: BytesMut::new(), longest }
    }

    /// Appends received bytes.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// Returns the number of buffered bytes.
    pub(super) fn buffered(&self) -> usize {
        self.buffer.len()
    }

    /// Returns the next complete frame; `None` until it is received.
    pub(super) fn next(&mut self) -> Result<Option<Bytes>, TooLong> {
        let Some(length) = self.buffer.first_chunk() else {
            release(&mut self.buffer);
            return Ok(None);
        };
        let length = usize::try_from(u32::from_be_bytes(*length)).unwrap_or(usize::MAX);
        if length > self.longest {
            return Err(TooLong);
        }
        if self.buffer.len() < 4 + length {
            return Ok(None);
        }
        self.buffer.advance(4);
        Ok(Some(self.buffer.split_to(length).freeze()))
    }

    /// Whether an incomplete frame is left over.
    pub(super) fn has_rest(&self) -> bool {
        !self.buffer.is_empty()
    }
}

/// Splits a list into its objects as it arrives.
pub(super) struct ProtobufList {
    longest: usize,
    buffer: BytesMut,
    place: ListPosition,
    /// Its kind, which is that of a list.
    kind: Option<String>,
    end: Option<ListEnd>,
}

/// The position in a list.
#[derive(Clone, Copy)]
enum ListPosition {
    /// Before the wrapper.
    Magic,
    /// In the wrapper.
    Wrapper,
    /// In the list, with the number of remaining bytes.
    List { remaining: u64 },
}

impl ProtobufList {
    /// Creates a splitter for objects of at most `longest` bytes.
    pub(super) fn new(longest: usize) -> Self {
        let place = ListPosition::Magic;
        Self { longest, buffer: BytesMut::new(), place, kind: None, end: None }
    }

    /// Appends received bytes.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// Returns the number of buffered bytes.
    pub(super) fn buffered(&self) -> usize {
        self.buffer.len()
    }

    /// Returns the next complete object; `None` until it is received.
    pub(super) fn next(&mut self) -> Result<Option<Bytes>, CutError> {
        loop {
            if let ListPosition::Magic = self.place {
                let Some(magic) = self.buffer.first_chunk::<4>() else { return Ok(None) };
                if magic != MAGIC {
                    return malformed("it does not begin like Kubernetes protobuf");
                }
                self.buffer.advance(MAGIC.len());
                self.place = ListPosition::Wrapper;
            }
            if let ListPosition::List { remaining: 0 } = self.place {
                self.place = ListPosition::Wrapper;
            }
            let Some(head) = head(&self.buffer)? else { return Ok(None) };
            // The list field is entered, not buffered.
            if let (ListPosition::Wrapper, 2) = (self.place, head.number) {
                self.buffer.advance(head.length);
                self.place = ListPosition::List { remaining: head.value };
                self.end.get_or_insert_default();
                continue;
            }
            let is_object = matches!((self.place, head.number), (ListPosition::List { .. }, 2));
            let longest = if is_object { self.longest } else { ENVELOPE_BYTES_MAX };
            let value = usize::try_from(head.value).unwrap_or(usize::MAX);
            if value > longest {
                return Err(CutError::TooLong);
            }
            if let ListPosition::List { remaining } = &mut self.place {
                // Below the limits above, so the sum does not overflow.
                let whole = u64::try_from(head.length + value).unwrap_or(u64::MAX);
                match remaining.checked_sub(whole) {
                    Some(after) if self.buffer.len() >= head.length + value => *remaining = after,
                    Some(_) => {}
                    None => return malformed("an object is longer than its list"),
                }
            }
            if self.buffer.len() < head.length + value {
                return Ok(None);
            }
            self.buffer.advance(head.length);
            let bytes = self.buffer.split_to(value).freeze();
            if is_object {
                return Ok(Some(bytes));
            }
            self.take(head.number, &bytes)
                .map_err(|MalformedMessage(fact)| CutError::Malformed(fact.into()))?;
        }
    }

    /// Processes a field of the wrapper or of the list's metadata.
    fn take(&mut self, number: u32, bytes: &[u8]) -> Result<(), MalformedMessage> {
        let value = FieldValue::Bytes(bytes);
        match (self.place, number) {
            (ListPosition::List { .. }, 1) => {
                let mut metadata = ListMeta::default();
                value.message(&mut metadata)?;
                self.end = Some(ListEnd {
                    version: metadata.version.to_string(),
                    next: metadata.next.given().map(str::to_owned),
                    kind: String::new(),
                });
            }
            (ListPosition::Wrapper, 1) => {
                let mut kind = TypeMeta::default();
                value.message(&mut kind)?;
                self.kind = kind.kind.ends_with("List").then(|| kind.kind.to_string());
            }
            (ListPosition::Wrapper, 3) if !bytes.is_empty() => {
                return Err(MalformedMessage("it has a content encoding, which was not requested"));
            }
            _ => {}
        }
        Ok(())
    }

    /// Returns the list's own metadata, after everything has been received.
    pub(super) fn end(self) -> Result<ListEnd, String> {
        let Some(kind) = self.kind else { return Err("it is not a list".into()) };
        let whole =
            matches!(self.place, ListPosition::Wrapper | ListPosition::List { remaining: 0 });
        if !whole || !self.buffer.is_empty() {
            return Err("it ended within its objects".into());
        }
        let end = self.end.filter(|end| !end.version.is_empty());
        let end = end.ok_or_else(|| "it has no version".to_owned())?;
        Ok(ListEnd { kind, ..end })
    }
}

/// The head of a field.
struct FieldHead {
    number: u32,
    /// Length of the head in bytes.
    length: usize,
    /// Length of the value in bytes.
    value: u64,
}

/// Decodes the head of the field at the beginning of `bytes`; `None` if it is incomplete. Numbers
/// between objects have no effect: their value is part of the head.
fn head(bytes: &[u8]) -> Result<Option<FieldHead>, CutError> {
    let fact = |MalformedMessage(fact)| CutError::Malformed(fact.into());
    let Some((tag, first)) = varint(bytes).map_err(fact)? else { return Ok(None) };
    let (number, kind) = key(tag).map_err(fact)?;
    let rest = bytes.get(first..).unwrap_or_default();
    let Some((value, second)) = varint(rest).map_err(fact)? else { return Ok(None) };
    match kind {
        2 => Ok(Some(FieldHead { number, length: first + second, value })),
        0 if number > 2 => Ok(Some(FieldHead { number, length: first + second, value: 0 })),
        _ => malformed("a field of a type that is not valid in a list"),
    }
}

fn malformed<T>(fact: &str) -> Result<T, CutError> {
    Err(CutError::Malformed(fact.into()))
}
