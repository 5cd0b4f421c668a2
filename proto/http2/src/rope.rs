//! A buffer for output that avoids copies: owned bytes, interleaved with byte buffers that many streams share.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::ops::Range;

use bytes::Bytes;

/// Shorter parts are copied, because a reference would cost as much, in bytes.
const SHARED_MIN: usize = 512;
/// The initial capacity for owned bytes: a typical response whose body is just too short to be shared.
const TEXT_BYTES: usize = 2 * SHARED_MIN;
/// The number of consumed bytes at which the remaining owned bytes are moved to the front.
const TAKEN_MAX: usize = 16 << 10;

/// Messages to be sent: owned bytes, interleaved with shared byte buffers.
#[derive(Debug, Default)]
pub struct Rope {
    text: Vec<u8>,
    /// The number of consumed bytes at the beginning of `text`.
    taken: usize,
    /// Shared buffers, each with the offset in `text` that it precedes.
    shared: VecDeque<(usize, Bytes)>,
    length: usize,
}

impl Rope {
    /// Returns the length in bytes.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Returns whether the rope is empty.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Appends a copy of the bytes.
    pub fn put_slice(&mut self, bytes: &[u8]) {
        self.write(|text| text.extend_from_slice(bytes));
    }

    /// Appends the bytes that `writer` produces. It must only append.
    pub fn write(&mut self, writer: impl FnOnce(&mut Vec<u8>)) {
        if self.text.capacity() == 0 {
            self.text.reserve_exact(TEXT_BYTES);
        }
        let before = self.text.len();
        writer(&mut self.text);
        self.length += self.text.len() - before;
    }

    /// Inserts a few bytes before all others.
    pub(crate) fn put_first(&mut self, bytes: &[u8]) {
        self.text.extend_from_slice(bytes);
        self.text[self.taken..].rotate_right(bytes.len());
        self.shared.iter_mut().for_each(|(at, _)| *at += bytes.len());
        self.length += bytes.len();
    }

    /// Appends shared bytes.
    pub fn put_shared(&mut self, bytes: &Bytes) {
        self.put_part(bytes, 0..bytes.len());
    }

    /// Appends a range of shared bytes.
    pub fn put_part(&mut self, bytes: &Bytes, range: Range<usize>) {
        if range.len() < SHARED_MIN {
            self.put_slice(&bytes[range]);
            return;
        }
        self.put_handle(bytes.slice(range));
    }

    /// Moves the first `count` bytes, or all if there are fewer, to the end of another rope.
    pub fn move_to(&mut self, count: usize, to: &mut Self) {
        self.take(count, |piece| match piece {
            RopePiece::Text(text) => to.put_slice(text),
            RopePiece::Shared(bytes) if bytes.len() < SHARED_MIN => to.put_slice(&bytes),
            RopePiece::Shared(bytes) => to.put_handle(bytes),
        });
    }

    /// Drops the first `count` bytes, or all if there are fewer. An empty rope keeps no memory.
    pub fn drop_first(&mut self, count: usize) {
        if count >= self.length {
            *self = Self::default();
        } else {
            self.take(count, |_| {});
        }
    }

    /// Fills `slices` with the first pieces, for one write. Returns how many were filled.
    pub fn pieces<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        let mut used = 0;
        for (slice, piece) in slices.iter_mut().zip(self.all()) {
            *slice = IoSlice::new(piece);
            used += 1;
        }
        used
    }

    /// Returns a limit for the number of pieces.
    pub(crate) fn pieces_max(&self) -> usize {
        2 * self.shared.len() + 1
    }

    /// Returns all bytes in one buffer.
    pub fn into_bytes(self) -> Bytes {
        let mut whole = Vec::with_capacity(self.length);
        self.all().for_each(|piece| whole.extend_from_slice(piece));
        whole.into()
    }

    /// Appends shared bytes by moving their handle. The reference count, which other threads use at the same time,
    /// does not change.
    fn put_handle(&mut self, bytes: Bytes) {
        self.length += bytes.len();
        self.shared.push_back((self.text.len(), bytes));
    }

    /// Returns all pieces in order. No piece is empty.
    fn all(&self) -> impl Iterator<Item = &[u8]> {
        let starts = std::iter::once(self.taken).chain(self.shared.iter().map(|(at, _)| *at));
        let ends = self.shared.iter().map(|(at, _)| *at).chain([self.text.len()]);
        let texts = starts.zip(ends).map(|(start, end)| self.text.get(start..end));
        let shared = self.shared.iter().map(|(_, bytes)| &**bytes).chain([&[][..]]);
        texts
            .zip(shared)
            .flat_map(|(text, shared)| [text.unwrap_or_default(), shared])
            .filter(|piece| !piece.is_empty())
    }

    /// Removes the first `count` bytes and passes them to `to`, piece by piece.
    fn take(&mut self, count: usize, mut to: impl FnMut(RopePiece<'_>)) {
        let mut count = count.min(self.length);
        self.length -= count;
        while count > 0 {
            let end = self.shared.front().map_or(self.text.len(), |(at, _)| *at);
            let text = self.text.get(self.taken..end).unwrap_or_default();
            let text = text.get(..count.min(text.len())).unwrap_or_default();
            if !text.is_empty() {
                self.taken += text.len();
                count -= text.len();
                to(RopePiece::Text(text));
                continue;
            }
            let Some((at, mut piece)) = self.shared.pop_front() else { break };
            if piece.len() > count {
                self.shared.push_front((at, piece.split_off(count)));
            }
            count -= piece.len();
            to(RopePiece::Shared(piece));
        }
        if self.length == 0 {
            *self = Self::default();
        } else if self.taken > TAKEN_MAX {
            self.text.drain(..self.taken);
            self.shared.iter_mut().for_each(|(at, _)| *at -= self.taken);
            self.taken = 0;
        }
    }
}

/// A piece that was removed from a [`Rope`].
enum RopePiece<'a> {
    Text(&'a [u8]),
    Shared(Bytes),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_is_independent_of_the_size_of_reads() {
        let shared = Bytes::from(vec![7; 3 * SHARED_MIN]);
        let rope = || {
            let mut rope = Rope::default();
            rope.put_slice(b"head");
            rope.put_shared(&shared);
            rope.put_shared(&shared.slice(..10));
            rope.put_slice(b"tail");
            rope.drop_first(2);
            rope.put_first(b"he");
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
    fn sent_bytes_are_released() {
        let shared = Bytes::from(vec![7; SHARED_MIN]);
        let (mut rope, mut read) = (Rope::default(), Vec::new());
        for round in 0..1000_u32 {
            rope.put_slice(&[round as u8; 100]);
            rope.put_shared(&shared);
            let mut taken = Rope::default();
            rope.move_to(if round == 0 { 50 } else { 100 + SHARED_MIN }, &mut taken);
            read.extend_from_slice(&taken.into_bytes());
            assert!(rope.text.len() <= TAKEN_MAX + 300, "{}", rope.text.len());
        }
        read.extend_from_slice(&rope.into_bytes());
        let whole = (0..1000_u32).flat_map(|round| [vec![round as u8; 100], shared.to_vec()]);
        assert!(read == whole.flatten().collect::<Vec<_>>());
    }

    #[test]
    fn large_bodies_are_not_copied() {
        let shared = Bytes::from(vec![7; 2 * SHARED_MIN]);
        let mut rope = Rope::default();
        rope.put_slice(b"head");
        rope.put_shared(&shared);
        rope.drop_first(4);
        let mut slices = [IoSlice::new(&[])];
        assert_eq!(rope.pieces(&mut slices), 1);
        assert_eq!(slices[0].as_ptr(), shared.as_ptr());
        // Moving copies nothing either, except for an end that is too short to be shared.
        let mut moved = Rope::default();
        rope.put_shared(&shared);
        rope.move_to(4 * SHARED_MIN - 1, &mut moved);
        assert_eq!(moved.text.len(), 0);
        assert!(moved.shared.iter().all(|(_, bytes)| bytes.as_ptr() == shared.as_ptr()));
        rope.move_to(1, &mut moved);
        assert!(rope.is_empty());
        assert_eq!((moved.len(), moved.text.len()), (4 * SHARED_MIN, 1));
    }
}
