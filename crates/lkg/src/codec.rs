//! Conversion of values to bytes and back: compact, in one pass, and with equal bytes for equal values.
//!
//! Texts, localities and pod profiles are written once and referred to by number afterwards, so decoding restores the
//! sharing. Decoding any bytes ends with a value or with [`MalformedValue`], and allocates at most a small multiple of
//! their length.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use strait_base::hash::SecretHasher;
use strait_model::{Locality, Profile, SortedMap};

/// The error for bytes that can't be decoded. Its text names the expected value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("an expected {0} is missing or invalid")]
pub struct MalformedValue(pub &'static str);

/// A value that can be written to a state file.
pub(super) trait Encode: Sized {
    /// Appends the value.
    fn write<'a>(&'a self, to: &mut Encoder<'a>);
    /// Reads a value from the front of the remaining bytes.
    fn read(from: &mut StateDecoder<'_>) -> Result<Self, MalformedValue>;
}

/// A value that does not use the tables of the encoder, so a copy of it can be written.
pub(super) trait EncodePlain: Copy {
    /// Appends the value.
    fn append(self, bytes: &mut Vec<u8>);
}

/// An encoder with the tables of values that were already written.
#[derive(Default)]
pub(super) struct Encoder<'a> {
    pub(super) bytes: Vec<u8>,
    texts: HashMap<&'a str, u64, SecretHasher>,
    localities: HashMap<&'a Locality, u64, SecretHasher>,
    /// By address: a shared profile is written once. Equal profiles at different addresses may be written twice.
    profiles: HashMap<*const Profile, u64, SecretHasher>,
    last_name: String,
}

impl<'a> Encoder<'a> {
    /// Appends a number in groups of seven bits, the lowest first.
    pub(super) fn number(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.bytes.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.bytes.push(number as u8);
    }

    /// Appends a text that is unlikely to recur.
    pub(super) fn raw(&mut self, text: &str) {
        self.number(text.len() as u64);
        self.bytes.extend_from_slice(text.as_bytes());
    }

    /// Appends a text of `length` bytes that `write` produces.
    pub(super) fn raw_by(&mut self, length: usize, write: impl FnOnce(&mut Vec<u8>)) {
        self.number(length as u64);
        write(&mut self.bytes);
    }

    /// Appends a text that is likely to recur: in full the first time, as a number afterwards.
    pub(super) fn text(&mut self, text: &'a str) {
        let next = self.texts.len() as u64;
        let at = *self.texts.entry(text).or_insert(next);
        self.number(at);
        if at == next {
            self.raw(text);
        }
    }

    /// Appends a text without the prefix that it shares with the previous text written by this function.
    pub(super) fn name(&mut self, name: &str) {
        let both = self.last_name.bytes().zip(name.bytes());
        let mut shared = both.take_while(|(a, b)| a == b).count();
        while !name.is_char_boundary(shared) {
            shared -= 1;
        }
        self.number(shared as u64);
        let (_, rest) = name.split_at(shared);
        self.raw(rest);
        self.last_name.truncate(shared);
        self.last_name.push_str(rest);
    }

    /// Appends a plain value, which need not live as long as the encoder's borrows.
    pub(super) fn put(&mut self, value: impl EncodePlain) {
        value.append(&mut self.bytes);
    }

    /// Appends an optional value.
    pub(super) fn option<T: Encode>(&mut self, value: Option<&'a T>) {
        self.bytes.push(u8::from(value.is_some()));
        if let Some(value) = value {
            value.write(self);
        }
    }
}

/// A decoder with the tables of values that were already read.
pub(super) struct StateDecoder<'a> {
    rest: &'a [u8],
    texts: Vec<Arc<str>>,
    localities: Vec<Arc<Locality>>,
    profiles: Vec<Arc<Profile>>,
    nodes: HashMap<Arc<str>, Arc<Arc<str>>>,
    last_name: String,
}

impl<'a> StateDecoder<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self {
            rest: bytes,
            texts: Vec::new(),
            localities: Vec::new(),
            profiles: Vec::new(),
            nodes: HashMap::new(),
            last_name: String::new(),
        }
    }

    /// Returns whether all bytes have been read.
    pub(super) fn is_done(&self) -> bool {
        self.rest.is_empty()
    }

    /// Returns the next byte without consuming it.
    pub(super) fn peek(&self) -> Option<u8> {
        self.rest.first().copied()
    }

    pub(super) fn bytes<const N: usize>(&mut self) -> Result<[u8; N], MalformedValue> {
        let (bytes, rest) = self.rest.split_first_chunk().ok_or(MalformedValue("value"))?;
        self.rest = rest;
        Ok(*bytes)
    }

    pub(super) fn byte(&mut self) -> Result<u8, MalformedValue> {
        self.bytes::<1>().map(|[byte]| byte)
    }

    pub(super) fn number(&mut self) -> Result<u64, MalformedValue> {
        let mut number = 0;
        for shift in (0..u64::BITS).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if bits << shift >> shift != bits {
                break;
            }
            number |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err(MalformedValue("number"))
    }

    /// Reads the number of following values. Every value takes at least one byte, so a count above the remaining length
    /// is refused before anything is allocated.
    pub(super) fn count(&mut self) -> Result<usize, MalformedValue> {
        let count = usize::try_from(self.number()?).ok();
        count.filter(|count| *count <= self.rest.len()).ok_or(MalformedValue("count"))
    }

    pub(super) fn raw(&mut self) -> Result<&'a str, MalformedValue> {
        let length = self.count()?;
        let (text, rest) = self.rest.split_at_checked(length).ok_or(MalformedValue("text"))?;
        self.rest = rest;
        str::from_utf8(text).map_err(|_| MalformedValue("text"))
    }

    pub(super) fn text(&mut self) -> Result<Arc<str>, MalformedValue> {
        match self.known(|one| one.texts.len())? {
            Some(at) => self.texts.get(at).cloned().ok_or(MalformedValue("text")),
            None => {
                let text: Arc<str> = self.raw()?.into();
                self.texts.push(Arc::clone(&text));
                Ok(text)
            }
        }
    }

    pub(super) fn name(&mut self) -> Result<&str, MalformedValue> {
        let shared = usize::try_from(self.number()?).unwrap_or(usize::MAX);
        let rest = self.raw()?;
        if !self.last_name.is_char_boundary(shared) {
            return Err(MalformedValue("name"));
        }
        self.last_name.truncate(shared);
        self.last_name.push_str(rest);
        Ok(&self.last_name)
    }

    /// Reads an index into a table of `held` entries. `None` announces a new entry, which follows.
    fn known(&mut self, held: impl Fn(&Self) -> usize) -> Result<Option<usize>, MalformedValue> {
        let at = usize::try_from(self.number()?).map_err(|_| MalformedValue("place"))?;
        match held(self) {
            held if at == held => Ok(None),
            held if at < held => Ok(Some(at)),
            _ => Err(MalformedValue("place")),
        }
    }
}

/// Encodes a struct as its fields, one after the other. Fields after the semicolon are not written, and are read as
/// their default. All fields must be named, so a new field is a compile error here.
macro_rules! fields {
    ($type:ty { $($field:ident),* $(,)? $(; $($left_out:ident),*)? }) => {
        impl Encode for $type {
            fn write<'a>(&'a self, to: &mut Encoder<'a>) {
                let Self { $($field,)* $($($left_out: _,)*)? } = self;
                $($field.write(to);)*
            }

            fn read(from: &mut StateDecoder<'_>) -> Result<Self, MalformedValue> {
                Ok(Self {
                    $($field: Encode::read(from)?,)*
                    $($($left_out: Default::default(),)*)?
                })
            }
        }
    };
}

/// Encodes an enum without data as a number. A number, once assigned, keeps its meaning.
macro_rules! numbers {
    ($type:ident { $($number:literal => $variant:ident),* $(,)? }) => {
        impl EncodePlain for $type {
            fn append(self, bytes: &mut Vec<u8>) {
                bytes.push(match self { $(Self::$variant => $number),* });
            }
        }

        impl Encode for $type {
            fn write<'a>(&'a self, to: &mut Encoder<'a>) {
                to.put(*self);
            }

            fn read(from: &mut StateDecoder<'_>) -> Result<Self, MalformedValue> {
                match from.byte()? {
                    $($number => Ok(Self::$variant),)*
                    _ => Err(MalformedValue(stringify!($type))),
                }
            }
        }
    };
}

pub(super) use {fields, numbers};

macro_rules! integers {
    ($($type:ty),*) => {
        $(impl Encode for $type {
            fn write<'a>(&'a self, to: &mut Encoder<'a>) {
                to.number(u64::from(*self));
            }

            fn read(from: &mut StateDecoder<'_>) -> Result<Self, MalformedValue> {
                from.number()?.try_into().map_err(|_| MalformedValue("number"))
            }
        })*
    };
}

integers!(u16, u32, u64);

impl Encode for i64 {
    fn write<'a>(&'a self, to: &mut Encoder<'a>) {
        to.bytes.extend_from_slice(&self.to_le_bytes());
    }

    fn read(from: &mut StateDecoder<'_>) -> Result<Self, MalformedValue> {
        from.bytes().map(Self::from_le_bytes)
    }
}

impl Encode for bool {
    fn write<'a>(&'a self, to: &mut Encoder<'a>) {
        to.bytes.push(u8::from(*self));
    }

    fn read(from: &mut StateDecoder<'_>) -> Result<Self, MalformedValue> {
        match from.byte()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(MalformedValue("flag")),
        }
    }
}

impl<T: Encode> Encode for Option<T> {
    fn write<'a>(&'a self, to: &mut Encoder<'a>) {
        to.option(self.as_ref());
    }

    fn read(from: &mut StateDecoder<'_>) -> Result<Self, MalformedValue> {
        Ok(if bool::read(from)? { Some(T::read(from)?) } else { None })
    }
}

impl<T: Encode> Encode for Vec<T> {
    fn write<'a>(&'a self, to: &mut Encoder<'a>) {
        to.number(self.len() as u64);
        self.iter().for_each(|one| one.write(to));
    }

    fn read(from: &mut StateDecoder<'_>) -> Result<Self, MalformedValue> {
        let count = from.count()?;
        (0..count).map(|_| T::read(from)).collect()
    }
}

macro_rules! maps {
    ($($map:ident),*) => {
        $(impl<K: Encode + Ord, V: Encode> Encode for $map<K, V> {
            fn write<'a>(&'a self, to: &mut Encoder<'a>) {
                to.number(self.len() as u64);
                for (key, value) in self.iter() {
                    key.write(to);
                    value.write(to);
                }
            }

            fn read(from: &mut StateDecoder<'_>) -> Result<Self, MalformedValue> {
                let count = from.count()?;
                (0..count).map(|_| Ok((K::read(from)?, V::read(from)?))).collect()
            }
        })*
    };
}

maps!(BTreeMap, SortedMap);

impl EncodePlain for IpAddr {
    fn append(self, bytes: &mut Vec<u8>) {
        match self {
            Self::V4(address) => {
                bytes.push(4);
                bytes.extend_from_slice(&address.octets());
            }
            Self::V6(address) => {
                bytes.push(6);
                bytes.extend_from_slice(&address.octets());
            }
        }
    }
}

impl Encode for IpAddr {
    fn write<'a>(&'a self, to: &mut Encoder<'a>) {
        to.put(*self);
    }

    fn read(from: &mut StateDecoder<'_>) -> Result<Self, MalformedValue> {
        match from.byte()? {
            4 => Ok(Ipv4Addr::from(from.bytes::<4>()?).into()),
            6 => Ok(Ipv6Addr::from(from.bytes::<16>()?).into()),
            _ => Err(MalformedValue("address")),
        }
    }
}

impl Encode for String {
    fn write<'a>(&'a self, to: &mut Encoder<'a>) {
        to.raw(self);
    }

    fn read(from: &mut StateDecoder<'_>) -> Result<Self, MalformedValue> {
        from.raw().map(str::to_owned)
    }
}

impl Encode for Arc<str> {
    fn write<'a>(&'a self, to: &mut Encoder<'a>) {
        to.text(self);
    }

    fn read(from: &mut StateDecoder<'_>) -> Result<Self, MalformedValue> {
        from.text()
    }
}

/// The name of a node, shared by all pods on the node.
impl Encode for Arc<Arc<str>> {
    fn write<'a>(&'a self, to: &mut Encoder<'a>) {
        to.text(self);
    }

    fn read(from: &mut StateDecoder<'_>) -> Result<Self, MalformedValue> {
        let name = from.text()?;
        let shared = from.nodes.entry(name).or_insert_with_key(|name| Self::new(Arc::clone(name)));
        Ok(Self::clone(shared))
    }
}

fields!(Locality { region, zone, subzone });

impl Encode for Arc<Locality> {
    fn write<'a>(&'a self, to: &mut Encoder<'a>) {
        let next = to.localities.len() as u64;
        let at = *to.localities.entry(self).or_insert(next);
        to.number(at);
        if at == next {
            Locality::write(self, to);
        }
    }

    fn read(from: &mut StateDecoder<'_>) -> Result<Self, MalformedValue> {
        match from.known(|one| one.localities.len())? {
            Some(at) => from.localities.get(at).cloned().ok_or(MalformedValue("locality")),
            None => {
                let locality = Self::new(Locality::read(from)?);
                from.localities.push(Self::clone(&locality));
                Ok(locality)
            }
        }
    }
}

impl Encode for Arc<Profile> {
    fn write<'a>(&'a self, to: &mut Encoder<'a>) {
        let next = to.profiles.len() as u64;
        let at = *to.profiles.entry(Self::as_ptr(self)).or_insert(next);
        to.number(at);
        if at == next {
            Profile::write(self, to);
        }
    }

    fn read(from: &mut StateDecoder<'_>) -> Result<Self, MalformedValue> {
        match from.known(|one| one.profiles.len())? {
            Some(at) => from.profiles.get(at).cloned().ok_or(MalformedValue("profile")),
            None => {
                let profile = Self::new(Profile::read(from)?);
                from.profiles.push(Self::clone(&profile));
                Ok(profile)
            }
        }
    }
}
