//! What is sent, put together without a copy: text of its own, and between it bytes that many streams send.

use std::collections::VecDeque;
use std::io::IoSlice;

use bytes::{Buf, Bytes, BytesMut};

/// A part that is shorter is copied: to point at it costs as much.
const SHARED_MIN: usize = 512;

/// Messages to be sent: text of their own, and between it bytes that are shared.
#[derive(Debug, Default)]
pub(super) struct Rope {
    parts: VecDeque<Bytes>,
    /// What is written behind the last of `parts`.
    text: BytesMut,
    length: usize,
}

impl Rope {
    /// How many bytes it holds.
    pub(super) fn len(&self) -> usize {
        self.length
    }

    /// Whether it holds nothing.
    pub(super) fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Writes bytes of its own.
    pub(super) fn put_slice(&mut self, bytes: &[u8]) {
        self.write(|text| text.extend_from_slice(bytes));
    }

    /// Has bytes of its own written by `writer`, which only appends.
    pub(super) fn write(&mut self, writer: impl FnOnce(&mut BytesMut)) {
        let before = self.text.len();
        writer(&mut self.text);
        self.length += self.text.len() - before;
    }

    /// Writes bytes that others have as well.
    pub(super) fn put_shared(&mut self, bytes: &Bytes) {
        if bytes.len() < SHARED_MIN {
            self.put_slice(bytes);
            return;
        }
        self.close_text();
        self.parts.push_back(bytes.clone());
        self.length += bytes.len();
    }

    /// Takes the first bytes out of it, `count` of them or all.
    pub(super) fn take(&mut self, count: usize) -> Chunk {
        self.close_text();
        let mut chunk = Chunk::default();
        let mut count = count.min(self.length);
        self.length -= count;
        while count > 0
            && let Some(part) = self.parts.front_mut()
        {
            if count < part.len() {
                chunk.push(part.split_to(count));
                break;
            }
            count -= part.len();
            chunk.push(self.parts.pop_front().unwrap_or_default());
        }
        chunk
    }

    fn close_text(&mut self) {
        if !self.text.is_empty() {
            self.parts.push_back(self.text.split().freeze());
        }
    }
}

/// A piece of what is sent: parts that are shared or not, none of them copied.
#[derive(Debug, Default)]
pub(super) struct Chunk {
    parts: VecDeque<Bytes>,
    length: usize,
}

impl Chunk {
    pub(super) fn push(&mut self, part: Bytes) {
        self.length += part.len();
        self.parts.push_back(part);
    }
}

impl From<Bytes> for Chunk {
    fn from(part: Bytes) -> Self {
        let mut chunk = Self::default();
        chunk.push(part);
        chunk
    }
}

impl Buf for Chunk {
    fn remaining(&self) -> usize {
        self.length
    }

    fn chunk(&self) -> &[u8] {
        self.parts.front().map_or(&[], |part| part)
    }

    fn chunks_vectored<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        let used = slices.len().min(self.parts.len());
        for (slice, part) in slices.iter_mut().zip(&self.parts) {
            *slice = IoSlice::new(part);
        }
        used
    }

    fn advance(&mut self, mut count: usize) {
        self.length = self.length.checked_sub(count).expect("no more than remains, as Buf demands");
        while count > 0
            && let Some(part) = self.parts.front_mut()
        {
            if count < part.len() {
                part.advance(count);
                return;
            }
            count -= part.len();
            self.parts.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_pieces_it_is_taken_in_it_reads_the_same() {
        let shared = Bytes::from(vec![7; 3 * SHARED_MIN]);
        let rope = || {
            let mut rope = Rope::default();
            rope.put_slice(b"head");
            rope.put_shared(&shared);
            rope.put_shared(&shared.slice(..10));
            rope.put_slice(b"tail");
            rope
        };
        let whole = rope().take(usize::MAX).copy_to_bytes(rope().len());
        assert_eq!(whole.len(), 4 + 3 * SHARED_MIN + 10 + 4);
        for size in [1, 3, 100, SHARED_MIN, 10_000] {
            let (mut rope, mut read) = (rope(), Vec::new());
            while !rope.is_empty() {
                let mut chunk = rope.take(size);
                assert!(chunk.remaining() <= size);
                while chunk.has_remaining() {
                    let mut slices = [IoSlice::new(&[]); 2];
                    assert!(chunk.chunks_vectored(&mut slices) > 0);
                    assert_eq!(&*slices[0], chunk.chunk());
                    let step = chunk.remaining().min(7);
                    read.extend_from_slice(&chunk.copy_to_bytes(step));
                }
            }
            assert_eq!(read, whole, "{size}");
        }
    }

    #[test]
    fn large_bodies_are_not_copied() {
        let shared = Bytes::from(vec![7; SHARED_MIN]);
        let mut rope = Rope::default();
        rope.put_slice(b"head");
        rope.put_shared(&shared);
        let mut chunk = rope.take(usize::MAX);
        chunk.advance(4);
        assert_eq!(chunk.chunk().as_ptr(), shared.as_ptr());
    }
}
