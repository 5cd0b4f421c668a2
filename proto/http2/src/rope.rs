//! What is sent, put together without a copy: text of its own, and between it bytes that many streams send.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::ops::Range;

use bytes::Bytes;

/// A part that is shorter is copied: to point at it costs as much.
const SHARED_MIN: usize = 512;
/// Room for text is made for this many bytes at once: heads and ends of a usual response.
const TEXT_BYTES: usize = 512;
/// So much text that was taken is kept before the rest is moved to its place.
const TAKEN_MAX: usize = 16 << 10;

/// Messages to be sent: text of their own, and between it bytes that are shared.
#[derive(Debug, Default)]
pub struct Rope {
    text: Vec<u8>,
    /// How much of `text` was taken.
    taken: usize,
    /// What stands within the text, each before the byte of `text` at its place.
    shared: VecDeque<(usize, Bytes)>,
    length: usize,
}

impl Rope {
    /// How many bytes it holds.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether it holds nothing.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Writes bytes of its own.
    pub fn put_slice(&mut self, bytes: &[u8]) {
        self.write(|text| text.extend_from_slice(bytes));
    }

    /// Has bytes of its own written by `writer`, which only appends.
    pub fn write(&mut self, writer: impl FnOnce(&mut Vec<u8>)) {
        if self.text.capacity() == 0 {
            self.text.reserve_exact(TEXT_BYTES);
        }
        let before = self.text.len();
        writer(&mut self.text);
        self.length += self.text.len() - before;
    }

    /// Writes bytes that others have as well.
    pub fn put_shared(&mut self, bytes: &Bytes) {
        self.put_part(bytes, 0..bytes.len());
    }

    /// Writes some of the bytes that others have as well.
    pub fn put_part(&mut self, bytes: &Bytes, range: Range<usize>) {
        if range.len() < SHARED_MIN {
            self.put_slice(&bytes[range]);
            return;
        }
        self.put_handle(bytes.slice(range));
    }

    /// Moves its first bytes, `count` of them or all, to the end of another.
    pub fn move_to(&mut self, count: usize, to: &mut Self) {
        self.take(count, |piece| match piece {
            RopePiece::Text(text) => to.put_slice(text),
            RopePiece::Shared(bytes) if bytes.len() < SHARED_MIN => to.put_slice(&bytes),
            RopePiece::Shared(bytes) => to.put_handle(bytes),
        });
    }

    /// Drops its first bytes, `count` of them or all. An empty rope keeps no memory.
    pub fn drop_first(&mut self, count: usize) {
        if count >= self.length {
            *self = Self::default();
        } else {
            self.take(count, |_| {});
        }
    }

    /// Its first pieces, for one write; returns how many.
    pub fn pieces<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        let mut used = 0;
        for (slice, piece) in slices.iter_mut().zip(self.all()) {
            *slice = IoSlice::new(piece);
            used += 1;
        }
        used
    }

    /// All of it in one piece.
    pub fn into_bytes(self) -> Bytes {
        let mut whole = Vec::with_capacity(self.length);
        self.all().for_each(|piece| whole.extend_from_slice(piece));
        whole.into()
    }

    /// Writes bytes that others have as well, by a handle of its own: how many there are of these, which other threads
    /// count at the same time, stays as it is.
    fn put_handle(&mut self, bytes: Bytes) {
        self.length += bytes.len();
        self.shared.push_back((self.text.len(), bytes));
    }

    /// What it holds, in order; no piece is empty.
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

    /// Takes its first bytes out, piece by piece.
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

/// What is taken out of a [`Rope`].
enum RopePiece<'a> {
    Text(&'a [u8]),
    Shared(Bytes),
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
    fn what_was_sent_is_not_kept_however_long_it_goes_on() {
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
        // Nor when they are moved, but for an end that is too short to be pointed at.
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
