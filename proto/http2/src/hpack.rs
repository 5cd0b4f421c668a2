//! Header compression of HTTP/2 (RFC 7541). Decodes every representation; encodes only in the simplest one.

use std::collections::VecDeque;

use http::HeaderMap;

use super::huffman;

/// The maximum size of the peer's dynamic table, in bytes, until the peer acknowledges our settings, which
/// may forbid the table.
const TABLE_MAX: usize = 4096;
/// The size of a table entry in addition to its name and value, in bytes (section 4.1).
const ENTRY_OVERHEAD: usize = 32;
/// Longer texts are truncated to this many bytes. A block is shorter, but its Huffman-coded texts may decode
/// to more.
const TEXT_MAX: usize = 32 << 10;

/// The error for a header block that can't be decoded. Later blocks can't be decoded either.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnreadableBlock;

/// A decoder for the header blocks of one connection, with the dynamic table.
#[derive(Debug)]
pub struct HeaderDecoder {
    /// The newest entry first.
    table: VecDeque<HeaderField>,
    size: usize,
    /// The table size that the peer uses, within `allowed`.
    size_max: usize,
    allowed: usize,
}

/// The name and the value of a header.
pub type HeaderField = (Box<[u8]>, Box<[u8]>);

impl Default for HeaderDecoder {
    /// Returns a decoder with an empty table of the default size limit.
    fn default() -> Self {
        Self { table: VecDeque::new(), size: 0, size_max: TABLE_MAX, allowed: TABLE_MAX }
    }
}

impl HeaderDecoder {
    /// Empties the dynamic table and forbids a new one, because the peer has acknowledged such settings.
    pub(super) fn forget_all(&mut self) {
        self.allowed = 0;
        self.resize(0);
        self.table = VecDeque::new();
    }

    /// Decodes a block and passes each field to `field`.
    ///
    /// # Errors
    /// The block is malformed, or refers to entries that the table does not contain.
    pub fn decode(
        &mut self,
        mut block: &[u8],
        mut field: impl FnMut(HeaderField),
    ) -> Result<(), UnreadableBlock> {
        let input = &mut block;
        while let Some(first) = input.first().copied() {
            match first {
                0x80.. => field(self.indexed(integer(input, 7)?)?),
                0x40.. => {
                    let read = self.literal(input, 6)?;
                    self.insert(read.clone());
                    field(read);
                }
                0x20.. => {
                    let size = integer(input, 5)?;
                    if size > self.allowed {
                        return Err(UnreadableBlock);
                    }
                    self.resize(size);
                }
                _ => field(self.literal(input, 4)?),
            }
        }
        Ok(())
    }

    fn literal(&self, input: &mut &[u8], prefix: u32) -> Result<HeaderField, UnreadableBlock> {
        let name = match integer(input, prefix)? {
            0 => text(input)?,
            index => self.indexed(index)?.0,
        };
        Ok((name, text(input)?))
    }

    fn indexed(&self, index: usize) -> Result<HeaderField, UnreadableBlock> {
        let index = index.checked_sub(1).ok_or(UnreadableBlock)?;
        if let Some((name, value)) = STATIC.get(index) {
            return Ok((name.as_bytes().into(), value.as_bytes().into()));
        }
        self.table.get(index - STATIC.len()).cloned().ok_or(UnreadableBlock)
    }

    fn insert(&mut self, field: HeaderField) {
        self.size += size(&field);
        self.table.push_front(field);
        self.resize(self.size_max);
    }

    fn resize(&mut self, size_max: usize) {
        self.size_max = size_max;
        while self.size > size_max
            && let Some(oldest) = self.table.pop_back()
        {
            self.size -= size(&oldest);
        }
    }
}

fn size((name, value): &HeaderField) -> usize {
    name.len() + value.len() + ENTRY_OVERHEAD
}

/// Reads a number that begins in the last `prefix` bits of a byte (section 5.1).
fn integer(input: &mut &[u8], prefix: u32) -> Result<usize, UnreadableBlock> {
    let mut byte = || {
        let (first, rest) = input.split_first().ok_or(UnreadableBlock)?;
        *input = rest;
        Ok(usize::from(*first))
    };
    let mask = (1 << prefix) - 1;
    let mut value = byte()? & mask;
    if value < mask {
        return Ok(value);
    }
    // No valid number exceeds the length of a block, so three more bytes suffice.
    for shift in [0, 7, 14] {
        let next = byte()?;
        value += (next & 0x7f) << shift;
        if next & 0x80 == 0 {
            return Ok(value);
        }
    }
    Err(UnreadableBlock)
}

/// Reads a string literal (section 5.2).
fn text(input: &mut &[u8]) -> Result<Box<[u8]>, UnreadableBlock> {
    let packed = input.first().ok_or(UnreadableBlock)? & 0x80 != 0;
    let length = integer(input, 7)?;
    let (text, rest) = input.split_at_checked(length).ok_or(UnreadableBlock)?;
    *input = rest;
    if packed {
        let text = huffman::decode(text, TEXT_MAX).ok_or(UnreadableBlock)?;
        return Ok(text.into());
    }
    Ok(text.into())
}

/// Encodes the headers of a response. Trailers have no `status`.
pub(super) fn encode(status: Option<u16>, headers: &HeaderMap) -> Vec<u8> {
    let mut block = Vec::with_capacity(64);
    match status {
        Some(200) => block.push(0x80 | 8),
        Some(status) => {
            block.push(8);
            put_text(status.to_string().as_bytes(), &mut block);
        }
        None => {}
    }
    for (name, value) in headers {
        // A literal field without indexing, with a new name.
        block.push(0);
        put_text(name.as_str().as_bytes(), &mut block);
        put_text(value.as_bytes(), &mut block);
    }
    block
}

fn put_text(text: &[u8], block: &mut Vec<u8>) {
    const MASK: usize = 0x7f;
    if let Some(mut rest) = text.len().checked_sub(MASK) {
        block.push(0x7f);
        while rest > MASK {
            block.push(0x80 | (rest & MASK) as u8);
            rest >>= 7;
        }
        block.push((rest & MASK) as u8);
    } else {
        block.push(text.len() as u8);
    }
    block.extend_from_slice(text);
}

/// The static table (appendix A). The first entry has index 1.
const STATIC: [(&str, &str); 61] = [
    (":authority", ""),
    (":method", "GET"),
    (":method", "POST"),
    (":path", "/"),
    (":path", "/index.html"),
    (":scheme", "http"),
    (":scheme", "https"),
    (":status", "200"),
    (":status", "204"),
    (":status", "206"),
    (":status", "304"),
    (":status", "400"),
    (":status", "404"),
    (":status", "500"),
    ("accept-charset", ""),
    ("accept-encoding", "gzip, deflate"),
    ("accept-language", ""),
    ("accept-ranges", ""),
    ("accept", ""),
    ("access-control-allow-origin", ""),
    ("age", ""),
    ("allow", ""),
    ("authorization", ""),
    ("cache-control", ""),
    ("content-disposition", ""),
    ("content-encoding", ""),
    ("content-language", ""),
    ("content-length", ""),
    ("content-location", ""),
    ("content-range", ""),
    ("content-type", ""),
    ("cookie", ""),
    ("date", ""),
    ("etag", ""),
    ("expect", ""),
    ("expires", ""),
    ("from", ""),
    ("host", ""),
    ("if-match", ""),
    ("if-modified-since", ""),
    ("if-none-match", ""),
    ("if-range", ""),
    ("if-unmodified-since", ""),
    ("last-modified", ""),
    ("link", ""),
    ("location", ""),
    ("max-forwards", ""),
    ("proxy-authenticate", ""),
    ("proxy-authorization", ""),
    ("range", ""),
    ("referer", ""),
    ("refresh", ""),
    ("retry-after", ""),
    ("server", ""),
    ("set-cookie", ""),
    ("strict-transport-security", ""),
    ("transfer-encoding", ""),
    ("user-agent", ""),
    ("vary", ""),
    ("via", ""),
    ("www-authenticate", ""),
];

#[cfg(test)]
mod tests {
    use super::*;

    fn read(
        decoder: &mut HeaderDecoder,
        block: &[u8],
    ) -> Result<Vec<(String, String)>, UnreadableBlock> {
        let mut fields = Vec::new();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        decoder.decode(block, |(name, value)| fields.push((text(&name), text(&value))))?;
        Ok(fields)
    }

    fn field(name: &str, value: &str) -> (String, String) {
        (name.to_owned(), value.to_owned())
    }

    #[test]
    fn encoded_headers_are_decoded() {
        let mut headers = HeaderMap::new();
        let long = "x".repeat(1000);
        for (name, value) in [("content-type", "application/grpc"), ("grpc-message", &long)] {
            headers.insert(name, value.parse().expect("a value"));
        }
        for (status, shown) in [(Some(200), Some("200")), (Some(415), Some("415")), (None, None)] {
            let read =
                read(&mut HeaderDecoder::default(), &encode(status, &headers)).expect("readable");
            let mut expected: Vec<_> =
                shown.map(|shown| field(":status", shown)).into_iter().collect();
            expected.push(field("content-type", "application/grpc"));
            expected.push(field("grpc-message", &long));
            assert_eq!(read, expected);
        }
    }

    #[test]
    fn dynamic_table_is_limited_in_size() {
        let mut decoder = HeaderDecoder::default();
        let entry = b"\x40\x01a\x01b";
        assert_eq!(read(&mut decoder, entry), Ok(vec![field("a", "b")]));
        assert_eq!(read(&mut decoder, &[0x80 | 62]), Ok(vec![field("a", "b")]));
        // The name of a dynamic entry, with another value.
        assert_eq!(read(&mut decoder, b"\x0f\x2f\x01c"), Ok(vec![field("a", "c")]));
        for _ in 0..1000 {
            assert!(read(&mut decoder, entry).is_ok());
        }
        assert!(decoder.size <= TABLE_MAX && decoder.table.len() == TABLE_MAX / 34);
        // The table is resized to one entry, then to none, then beyond the limit.
        assert_eq!(read(&mut decoder, &[0x3f, 3]), Ok(vec![]));
        assert_eq!((decoder.table.len(), decoder.size), (1, 34));
        decoder.forget_all();
        assert_eq!(read(&mut decoder, &[0x20]), Ok(vec![]));
        assert_eq!(read(&mut decoder, &[0x80 | 62]), Err(UnreadableBlock));
        assert_eq!(read(&mut decoder, &[0x3f, 3]), Err(UnreadableBlock));
        assert_eq!(read(&mut decoder, entry), Ok(vec![field("a", "b")]));
        assert_eq!(decoder.table.len(), 0);
    }

    #[test]
    fn truncated_or_invalid_blocks_are_refused() {
        for block in [
            &[0x80][..],
            &[0x80 | 62],
            &[0x40],
            &[0x40, 1],
            &[0x00, 5, b'a'],
            &[0xff, 0xff, 0xff, 0xff, 0xff, 0x7f],
            &[0x3f, 0xe2, 0x1f],
            &[0x00, 0x81, 0x00, 0],
        ] {
            assert_eq!(
                read(&mut HeaderDecoder::default(), block),
                Err(UnreadableBlock),
                "{block:?}"
            );
        }
    }
}
