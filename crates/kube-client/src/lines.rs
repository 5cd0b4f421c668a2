//! Splits a stream of bytes into lines of limited length.

use bytes::{Bytes, BytesMut};

/// A line exceeds the limit.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TooLong;

/// Received bytes that have not been returned as lines.
#[derive(Debug)]
pub(super) struct LineBuffer {
    buffer: BytesMut,
    /// Number of bytes of the buffer that are known to contain no line end.
    searched: usize,
    longest: usize,
}

impl LineBuffer {
    /// Creates a splitter for lines of at most `longest` bytes without their end.
    pub(super) fn new(longest: usize) -> Self {
        Self { buffer: BytesMut::new(), searched: 0, longest }
    }

    /// Appends received bytes.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// Returns the number of buffered bytes.
    pub(super) fn buffered(&self) -> usize {
        self.buffer.len()
    }

    /// Returns the next complete line without its end; `None` until it is received. Empty lines are
    /// skipped.
    pub(super) fn next(&mut self) -> Result<Option<Bytes>, TooLong> {
        loop {
            let unsearched = self.buffer.get(self.searched..).unwrap_or_default();
            let Some(found) = memchr::memchr(b'\n', unsearched) else {
                self.searched = self.buffer.len();
                release(&mut self.buffer);
                return if self.searched > self.longest { Err(TooLong) } else { Ok(None) };
            };
            let mut line = self.buffer.split_to(self.searched + found + 1);
            self.searched = 0;
            line.truncate(line.len() - 1);
            if line.len() > self.longest {
                return Err(TooLong);
            }
            if !line.trim_ascii().is_empty() {
                return Ok(Some(line.freeze()));
            }
        }
    }

    /// Whether an incomplete line is left over.
    pub(super) fn has_rest(&self) -> bool {
        !self.buffer.trim_ascii().is_empty()
    }
}

/// Releases an empty buffer after a burst: a watch is usually quiet.
pub(super) fn release(buffer: &mut BytesMut) {
    if buffer.is_empty() {
        *buffer = BytesMut::new();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split_chunks(chunks: &[&str]) -> (Vec<String>, bool) {
        let mut lines = LineBuffer::new(8);
        let mut found = Vec::new();
        for chunk in chunks {
            lines.push(chunk.as_bytes());
            while let Ok(Some(line)) = lines.next() {
                found.push(String::from_utf8_lossy(&line).into_owned());
            }
        }
        (found, lines.has_rest())
    }

    #[test]
    fn lines_are_complete_for_any_split_of_the_bytes() {
        assert_eq!(split_chunks(&["one\ntwo\n"]), (vec!["one".into(), "two".into()], false));
        assert_eq!(split_chunks(&["o", "n", "e\n\n\r\nt"]), (vec!["one".into()], true));
        assert_eq!(split_chunks(&["one\r\n"]), (vec!["one\r".into()], false));
        assert_eq!(split_chunks(&[]), (vec![], false));
    }

    #[test]
    fn line_without_an_end_fails_at_the_limit() {
        let mut lines = LineBuffer::new(8);
        lines.push(b"12345678");
        assert_eq!(lines.next(), Ok(None));
        lines.push(b"9");
        assert_eq!(lines.next(), Err(TooLong));
        let mut lines = LineBuffer::new(8);
        lines.push(b"123456789\n");
        assert_eq!(lines.next(), Err(TooLong));
    }
}
