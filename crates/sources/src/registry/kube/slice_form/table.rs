//! Tables of names that rows share. Each name is stored once.

use strait_kube_client::Raw;

/// A table of shared values in the order of insertion. A duplicate entry costs only its own size.
#[derive(Debug, PartialEq)]
pub(in crate::registry::kube) struct SharedTable<T> {
    pub(in crate::registry::kube) entries: Vec<T>,
    /// The position of the previous entry in the same slot, for each entry.
    before: Vec<u16>,
    /// The position of the latest entry of each slot.
    latest: [u16; SLOTS],
}

const SLOTS: usize = 64;
/// Initial capacity.
const FEW: usize = 16;
/// Maximum number of entries of a slot that are compared before a name counts as new: names that
/// were chosen to share a slot must not cost more.
const LOOKS: usize = 16;

impl<T> Default for SharedTable<T> {
    fn default() -> Self {
        Self { entries: Vec::new(), before: Vec::new(), latest: [0; SLOTS] }
    }
}

impl<T> SharedTable<T> {
    /// Returns the entry at a position, from 1.
    #[inline]
    pub(super) fn get(&self, place: u16) -> Option<&T> {
        self.entries.get(usize::from(place).checked_sub(1)?)
    }

    /// Returns the position, from 1, of the entry in this slot that matches `is_it`.
    #[inline(never)]
    pub(super) fn find(&self, slot: usize, is_it: impl Fn(&T) -> bool) -> Option<u16> {
        let mut place = self.latest(slot);
        for _ in 0..LOOKS {
            let at = usize::from(place.checked_sub(1)?);
            if is_it(self.entries.get(at)?) {
                return Some(place);
            }
            place = *self.before.get(at)?;
        }
        None
    }

    /// Returns the position of the latest entry of a slot.
    #[inline]
    fn latest(&self, slot: usize) -> u16 {
        self.latest.get(slot).copied().unwrap_or_default()
    }

    /// Adds an entry. Returns its position. There are at most as many entries as endpoints, so it
    /// fits.
    #[inline(never)]
    pub(super) fn add(&mut self, slot: usize, entry: T) -> u16 {
        if self.entries.is_empty() {
            self.entries.reserve(FEW);
            self.before.reserve(FEW);
        }
        self.entries.push(entry);
        let place = u16::try_from(self.entries.len()).unwrap_or_default();
        let latest = self.latest.get_mut(slot).map(|latest| std::mem::replace(latest, place));
        self.before.push(latest.unwrap_or_default());
        place
    }
}

impl<'a> SharedTable<Raw<'a>> {
    /// Returns the position of a name, which is added if it is new; 0 for an empty name.
    #[inline(always)]
    pub(super) fn intern<N: AsRef<[u8]> + Into<Raw<'a>>>(&mut self, name: N) -> u16 {
        let text = name.as_ref();
        if text.is_empty() {
            return 0;
        }
        let slot = slot(text);
        // Nearly always it is the latest entry in the slot, which needs no call.
        let latest = self.latest(slot);
        if let Some(stored) = self.get(latest)
            && same(stored, text)
        {
            return latest;
        }
        let found = self.find(slot, |stored| **stored == *text);
        found.unwrap_or_else(|| self.add(slot, name.into()))
    }
}

/// Returns the slot of a name: a hash of the whole name by multiplication, eight bytes at a time.
/// Names are short, and names that are chosen to share a slot have little effect ([`LOOKS`]).
#[inline(always)]
pub(super) fn slot(name: &[u8]) -> usize {
    let mix =
        |hash: u64, chunk: u64| (hash.rotate_left(5) ^ chunk).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let (chunks, rest) = name.as_chunks();
    let hash = chunks.iter().fold(0, |hash, chunk| mix(hash, u64::from_le_bytes(*chunk)));
    let half = |bytes: &[u8; 4]| u64::from(u32::from_le_bytes(*bytes));
    let last = match (name.last_chunk(), ends(name)) {
        (Some(last), _) => u64::from_le_bytes(*last),
        (None, (Some(first), Some(last))) => half(first) << 32 | half(last),
        _ => rest.iter().fold(0, |last, byte| last << 8 | u64::from(*byte)),
    };
    // The highest bits of a product depend on all other bits.
    (mix(hash, last) >> (u64::BITS - SLOTS.ilog2())) as usize
}

/// Whether two names are equal. Short names are compared inline, which is faster than calling
/// `memcmp`.
#[inline(always)]
pub(super) fn same(left: &[u8], right: &[u8]) -> bool {
    left.len() == right.len()
        && match left.len() {
            4..8 => ends::<4>(left) == ends::<4>(right),
            8..=16 => ends::<8>(left) == ends::<8>(right),
            _ => left == right,
        }
}

/// Returns the first and the last `N` bytes, which cover a name of up to twice that length.
#[inline]
fn ends<const N: usize>(name: &[u8]) -> (Option<&[u8; N]>, Option<&[u8; N]>) {
    (name.first_chunk(), name.last_chunk())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_names_are_stored_once() {
        let names: Vec<String> =
            (0..200).map(|number| format!("ip-10-0-{number}.internal")).collect();
        let mut table = SharedTable::default();
        for _ in 0..2 {
            for (number, name) in (1..).zip(&names) {
                assert_eq!(table.intern(name.as_bytes()), number);
            }
        }
        assert_eq!(table.intern(&b""[..]), 0);
        assert_eq!(table.entries.len(), names.len());

        let mut table = SharedTable::default();
        // Names with equal ends, names shorter than a machine word, and repetitions after others.
        let names: [&[u8]; 7] =
            [b"a-12345678", b"b-12345678", b"n", b"", b"a-12345678", b"b-12345678", b"n"];
        let places = names.map(|name| table.intern(name));
        assert_eq!(places, [1, 2, 3, 0, 1, 2, 3]);
        assert_eq!(table.entries.len(), 3);
    }

    #[test]
    fn names_that_differ_in_one_byte_are_not_equal() {
        let name = b"ip-10-0-12-34.eu-west-1.compute.internal";
        for length in 0..name.len() {
            let (name, longer) = (&name[..length], &name[..=length]);
            let copy = name.to_vec();
            assert!(same(name, &copy));
            assert!(!same(name, longer));
            for at in 0..length {
                let mut other = name.to_vec();
                other[at] ^= 1;
                assert!(!same(name, &other), "{at} of {length}");
            }
        }
    }

    #[test]
    fn crowded_slot_causes_duplicate_names_only() {
        let mut table = SharedTable::default();
        let many = u16::try_from(LOOKS).expect("a few") + 1;
        for number in 0..many {
            assert_eq!(table.find(0, |stored| *stored == number), None);
            assert_eq!(table.add(0, number), number + 1);
        }
        assert_eq!(table.find(0, |stored| *stored == 1), Some(2));
        assert_eq!(table.find(0, |stored| *stored == 0), None, "it is too far back");
        assert_eq!(table.find(1, |stored| *stored == 1), None, "it is in another slot");
    }
}
