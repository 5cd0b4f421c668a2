//! The encoded bytes of a resource: a single buffer, or shared runs of bytes with edits.
//!
//! A long resource, such as a route configuration with a thousand virtual hosts, is almost equal in
//! every namespace and before and after a change. It is stored as runs of bytes that all its
//! variants share, and as edits that replace some bytes of the runs in one variant. Neither storing
//! nor sending it copies the shared bytes.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;

use strait_http2::Rope;

/// The encoded bytes of a resource. Clones share them.
#[derive(Clone)]
pub struct ResourceBody(BodyContent);

#[derive(Clone)]
enum BodyContent {
    Whole(Bytes),
    Edited(Arc<Edited>),
}

/// Runs of bytes with edits.
struct Edited {
    runs: Arc<[Bytes]>,
    /// The edits, sorted by position. They do not overlap.
    edits: Box<[Edit]>,
    /// The inserted bytes of all edits, concatenated.
    text: Box<[u8]>,
    length: usize,
}

/// An edit that replaces bytes of a body's runs by other bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Edit {
    /// The position, in bytes from the start of the concatenated runs.
    pub at: u32,
    /// The number of bytes of the runs that are removed.
    pub drops: u32,
    /// The number of bytes that are inserted.
    pub puts: u32,
}

/// A contiguous part of a body.
enum BodyPart<'a> {
    Run(&'a Bytes, Range<usize>),
    Text(&'a [u8]),
}

impl ResourceBody {
    /// Creates a body from concatenated runs and edits. `text` contains the inserted bytes of all
    /// edits, concatenated in order.
    pub fn edited(runs: Arc<[Bytes]>, edits: Vec<Edit>, text: Vec<u8>) -> Self {
        let dropped: usize = edits.iter().map(|edit| edit.drops as usize).sum();
        let length = runs.iter().map(Bytes::len).sum::<usize>() + text.len() - dropped;
        let (edits, text) = (edits.into(), text.into());
        Self(BodyContent::Edited(Arc::new(Edited { runs, edits, text, length })))
    }

    /// The length in bytes.
    pub fn len(&self) -> usize {
        match &self.0 {
            BodyContent::Whole(bytes) => bytes.len(),
            BodyContent::Edited(edited) => edited.length,
        }
    }

    /// Returns whether the body has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the bytes in a single buffer. They are copied unless they are already in one.
    pub fn to_bytes(&self) -> Bytes {
        if let BodyContent::Whole(bytes) = &self.0 {
            return bytes.clone();
        }
        let mut whole = Vec::with_capacity(self.len());
        self.for_each(|part| whole.extend_from_slice(part.bytes()));
        whole.into()
    }

    /// Writes the bytes without copying shared runs.
    pub(super) fn put(&self, out: &mut Rope) {
        self.for_each(|part| match part {
            BodyPart::Run(run, range) => out.put_part(run, range),
            BodyPart::Text(text) => out.put_slice(text),
        });
    }

    /// Returns the runs, each with its edits. No edit may extend from one run into the next.
    pub(super) fn segments(&self) -> Vec<BodySegment<'_>> {
        let edited = match &self.0 {
            BodyContent::Whole(run) => {
                return vec![BodySegment { run, start: 0, edits: &[], text: &[] }];
            }
            BodyContent::Edited(edited) => edited,
        };
        let (mut start, mut edits, mut text) = (0, &*edited.edits, &*edited.text);
        let mut segments = Vec::with_capacity(edited.runs.len());
        for (number, run) in edited.runs.iter().enumerate() {
            let end = start + run.len();
            let is_last = number + 1 == edited.runs.len();
            let count = if is_last {
                edits.len()
            } else {
                edits.partition_point(|edit| (edit.at as usize) < end)
            };
            let (here, later) = edits.split_at(count);
            let puts = here.iter().map(|edit| edit.puts as usize).sum();
            let (own, others) = text.split_at(puts);
            segments.push(BodySegment { run, start, edits: here, text: own });
            (start, edits, text) = (end, later, others);
        }
        segments
    }

    fn for_each(&self, mut to: impl FnMut(BodyPart<'_>)) {
        let edited = match &self.0 {
            BodyContent::Whole(bytes) => return to(BodyPart::Run(bytes, 0..bytes.len())),
            BodyContent::Edited(edited) => edited,
        };
        let mut runs = Runs { rest: &edited.runs, start: 0, taken: 0 };
        let mut text = &*edited.text;
        for Edit { at, drops, puts } in &edited.edits {
            runs.take(*at as usize, &mut to);
            let (put, rest) = text.split_at(*puts as usize);
            to(BodyPart::Text(put));
            text = rest;
            runs.take((at + drops) as usize, |_| {});
        }
        runs.take(usize::MAX, to);
    }
}

impl BodyPart<'_> {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Run(run, range) => &run[range.clone()],
            Self::Text(text) => text,
        }
    }
}

/// One run of a body with its edits. No edit extends from one run into the next.
#[derive(Debug, Clone, Copy)]
pub(super) struct BodySegment<'a> {
    run: &'a Bytes,
    /// The position of the run in the concatenated runs, in bytes.
    start: usize,
    edits: &'a [Edit],
    /// The inserted bytes of the edits.
    text: &'a [u8],
}

impl BodySegment<'_> {
    /// The position of the run in the concatenated runs, in bytes.
    pub(super) fn start(&self) -> usize {
        self.start
    }

    /// The address and length of the run. Runs at different addresses can have different contents.
    pub(super) fn memory(&self) -> (usize, usize) {
        (self.run.as_ptr() as usize, self.run.len())
    }

    /// Returns whether another segment is known to be equal without comparing the bytes of the
    /// runs.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        let place = |one: &Self, edit: &Edit| edit.at as usize - one.start;
        let is_same = |(a, b): (&Edit, &Edit)| {
            (place(self, a), a.drops, a.puts) == (place(other, b), b.drops, b.puts)
        };
        self.memory() == other.memory()
            && self.edits.len() == other.edits.len()
            && self.edits.iter().zip(other.edits).all(is_same)
            && self.text == other.text
    }

    /// Returns the bytes of the segment. They are copied only if there are edits.
    pub(super) fn bytes(&self) -> Bytes {
        if self.edits.is_empty() {
            return self.run.clone();
        }
        let mut bytes = Vec::with_capacity(self.run.len() + self.text.len());
        let (mut taken, mut text) = (0, self.text);
        for edit in self.edits {
            let at = edit.at as usize - self.start;
            let (put, rest) = text.split_at(edit.puts as usize);
            bytes.extend_from_slice(&self.run[taken..at]);
            bytes.extend_from_slice(put);
            (taken, text) = (at + edit.drops as usize, rest);
        }
        bytes.extend_from_slice(&self.run[taken..]);
        bytes.into()
    }
}

/// A reader over runs that consumes their bytes from the start.
struct Runs<'a> {
    rest: &'a [Bytes],
    /// The position of the first remaining run.
    start: usize,
    /// The position up to which bytes have been consumed.
    taken: usize,
}

impl<'a> Runs<'a> {
    /// Consumes the bytes before a position, or all remaining bytes.
    fn take(&mut self, end: usize, mut to: impl FnMut(BodyPart<'a>)) {
        while let Some((run, rest)) = self.rest.split_first()
            && self.taken < end
        {
            let until = end.min(self.start + run.len());
            if self.taken < until {
                to(BodyPart::Run(run, self.taken - self.start..until - self.start));
                self.taken = until;
            }
            if until == self.start + run.len() {
                (self.rest, self.start) = (rest, until);
            }
        }
    }
}

impl<T: Into<Bytes>> From<T> for ResourceBody {
    fn from(bytes: T) -> Self {
        Self(BodyContent::Whole(bytes.into()))
    }
}

impl PartialEq for ResourceBody {
    fn eq(&self, other: &Self) -> bool {
        if let (BodyContent::Edited(one), BodyContent::Edited(other)) = (&self.0, &other.0)
            && Arc::ptr_eq(&one.runs, &other.runs)
            && (&one.edits, &one.text) == (&other.edits, &other.text)
        {
            return true;
        }
        self.len() == other.len() && self.to_bytes() == other.to_bytes()
    }
}

impl Eq for ResourceBody {}

impl fmt::Debug for ResourceBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.to_bytes().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edits_are_applied_at_their_positions() {
        let runs: Arc<[Bytes]> = ["", "abc", "", "defg", "h"].map(Bytes::from).into();
        let edit = |at, drops, puts| Edit { at, drops, puts };
        for (edits, text, expected, edits_stay_in_runs) in [
            (vec![], "", "abcdefgh", true),
            (vec![edit(0, 0, 1)], "X", "Xabcdefgh", true),
            (vec![edit(0, 3, 1), edit(3, 0, 1), edit(7, 1, 0)], "XY", "XYdefg", true),
            (vec![edit(1, 4, 2)], "XY", "aXYfgh", false),
            (vec![edit(2, 1, 0), edit(8, 0, 3)], "end", "abdefghend", true),
        ] {
            let body = ResourceBody::edited(Arc::clone(&runs), edits, text.into());
            assert_eq!(body.to_bytes(), expected);
            assert_eq!(body.len(), expected.len());
            assert_eq!(body, ResourceBody::from(expected));
            if edits_stay_in_runs {
                let segments: Vec<_> = body.segments().iter().map(|one| one.bytes()).collect();
                assert_eq!(segments.concat(), expected.as_bytes());
            }
            let mut rope = Rope::default();
            body.put(&mut rope);
            assert_eq!(rope.into_bytes(), expected);
        }
    }
}
