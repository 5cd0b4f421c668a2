//! The bytes of a resource: in one piece, or in runs that other resources have as well.
//!
//! A long resource, such as a route configuration of a thousand virtual hosts, is nearly the same in every
//! namespace and before and after a change. It is kept as runs of bytes that all versions of it share, and edits:
//! what stands in this one instead of some bytes of the runs. Neither keeping nor sending it copies what is shared.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;

use strait_http2::Rope;

/// Encoded bytes. A clone shares them.
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
    /// Sorted by place; none reaches into the next.
    edits: Box<[Edit]>,
    /// What the edits put in, one after the other.
    text: Box<[u8]>,
    length: usize,
}

/// Puts bytes in the place of others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Edit {
    /// Where, counted in bytes of all runs together.
    pub at: u32,
    /// How many bytes of the runs it drops.
    pub drops: u32,
    /// How many it puts there.
    pub puts: u32,
}

/// A part of a body that is in one piece.
enum BodyPart<'a> {
    Run(&'a Bytes, Range<usize>),
    Text(&'a [u8]),
}

impl ResourceBody {
    /// The runs one after the other, with edits, which put in the bytes of `text` one after the other.
    pub fn edited(runs: Arc<[Bytes]>, edits: Vec<Edit>, text: Vec<u8>) -> Self {
        let dropped: usize = edits.iter().map(|edit| edit.drops as usize).sum();
        let length = runs.iter().map(Bytes::len).sum::<usize>() + text.len() - dropped;
        let (edits, text) = (edits.into(), text.into());
        Self(BodyContent::Edited(Arc::new(Edited { runs, edits, text, length })))
    }

    /// How many bytes there are.
    pub fn len(&self) -> usize {
        match &self.0 {
            BodyContent::Whole(bytes) => bytes.len(),
            BodyContent::Edited(edited) => edited.length,
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All of them in one piece, copied unless they are.
    pub fn to_bytes(&self) -> Bytes {
        if let BodyContent::Whole(bytes) = &self.0 {
            return bytes.clone();
        }
        let mut whole = Vec::with_capacity(self.len());
        self.for_each(|part| whole.extend_from_slice(part.bytes()));
        whole.into()
    }

    /// Writes them without a copy of what is shared.
    pub(super) fn put(&self, out: &mut Rope) {
        self.for_each(|part| match part {
            BodyPart::Run(run, range) => out.put_part(run, range),
            BodyPart::Text(text) => out.put_slice(text),
        });
    }

    /// Its runs, each with the edits in it. No edit may reach from one run into the next.
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

/// One run of a body with the edits that lie in it, where none reaches from one run into the next.
#[derive(Debug, Clone, Copy)]
pub(super) struct BodySegment<'a> {
    run: &'a Bytes,
    /// The place of the run among the bytes of all.
    start: usize,
    edits: &'a [Edit],
    /// What the edits put in.
    text: &'a [u8],
}

impl BodySegment<'_> {
    /// The place of its run among the bytes of all.
    pub(super) fn start(&self) -> usize {
        self.start
    }

    /// Which memory its run is: where that is another, so may be what is in it.
    pub(super) fn memory(&self) -> (usize, usize) {
        (self.run.as_ptr() as usize, self.run.len())
    }

    /// Whether another is known to be the same without a look at its bytes.
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

    /// Its bytes, copied where there are edits.
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

/// Runs, of which the first bytes were taken.
struct Runs<'a> {
    rest: &'a [Bytes],
    /// The place of the first run that is left.
    start: usize,
    /// The place up to which bytes were taken.
    taken: usize,
}

impl<'a> Runs<'a> {
    /// Takes the bytes before a place, or all.
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
    fn edits_stand_where_they_say_and_the_runs_around_them() {
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
