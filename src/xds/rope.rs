//! What is sent, put together without a copy: text of its own, and between it bytes that many streams send.

use std::collections::VecDeque;
use std::io::IoSlice;

use bytes::{Buf, Bytes, BytesMut};

/// A part that is shorter is copied: to point at it costs as much.
const SHARED_MIN: usize = 512;
/// Room for text is made for this many bytes at once: heads and ends of a usual response.
const TEXT_BYTES: usize = 512;

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
        if self.text.capacity() == 0 {
            self.text.reserve(TEXT_BYTES);
        }
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

    /// Moves its first bytes, `count` of them or all, to the end of another.
    pub(super) fn move_to(&mut self, count: usize, to: &mut Self) {
        self.close_text();
        let mut count = count.min(self.length);
        self.length -= count;
        while count > 0
            && let Some(part) = self.parts.front_mut()
        {
            let piece = part.split_to(count.min(part.len()));
            count -= piece.len();
            if part.is_empty() {
                self.parts.pop_front();
            }
            to.put_shared(&piece);
        }
    }

    /// Its first pieces, for one write; returns how many.
    pub(super) fn pieces<'a>(&'a mut self, slices: &mut [IoSlice<'a>]) -> usize {
        self.close_text();
        let used = slices.len().min(self.parts.len());
        for (slice, part) in slices.iter_mut().zip(&self.parts) {
            *slice = IoSlice::new(part);
        }
        used
    }

    /// Drops its first bytes, `count` of them or all. An empty rope keeps no memory.
    pub(super) fn drop_first(&mut self, count: usize) {
        self.close_text();
        let mut count = count.min(self.length);
        self.length -= count;
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
        if self.length == 0 {
            *self = Self::default();
        }
    }

    /// All of it in one piece.
    pub(super) fn into_bytes(mut self) -> Bytes {
        self.close_text();
        if self.parts.len() == 1 {
            return self.parts.pop_front().unwrap_or_default();
        }
        let mut whole = BytesMut::with_capacity(self.length);
        self.parts.iter().for_each(|part| whole.extend_from_slice(part));
        whole.freeze()
    }

    fn close_text(&mut self) {
        if !self.text.is_empty() {
            // What is left of the room is for the text behind the next part.
            self.parts.push_back(self.text.split().freeze());
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
        let whole = rope().into_bytes();
        assert_eq!(whole.len(), 4 + 3 * SHARED_MIN + 10 + 4);
        for size in [1, 3, 100, SHARED_MIN, 10_000] {
            let (mut rope, mut read) = (rope(), Vec::new());
            while !rope.is_empty() {
                let mut piece = Rope::default();
                rope.move_to(size, &mut piece);
                assert!(piece.len() <= size);
                while !piece.is_empty() {
                    let mut slices = [IoSlice::new(&[]); 2];
                    assert!(piece.pieces(&mut slices) > 0);
                    let step = slices[0].len().min(7);
                    read.extend_from_slice(&slices[0][..step]);
                    piece.drop_first(step);
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
        rope.drop_first(4);
        let mut slices = [IoSlice::new(&[])];
        assert_eq!(rope.pieces(&mut slices), 1);
        assert_eq!(slices[0].as_ptr(), shared.as_ptr());
    }
}
