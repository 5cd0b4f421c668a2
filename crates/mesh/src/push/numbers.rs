//! Numbers for streams and watched names, which save memory, and sorted lists of them.

use prost::encoding::{decode_varint, encode_varint};

/// Sorted numbers, stored as the differences between neighbours in protobuf's varint encoding. A
/// list of all numbers takes one byte per number.
#[derive(Debug, Default)]
pub(super) struct SortedNumbers(Box<[u8]>);

impl SortedNumbers {
    pub(super) fn iter(&self) -> impl Iterator<Item = u32> {
        let (mut bytes, mut number) = (&*self.0, 0);
        std::iter::from_fn(move || {
            // Decoding fails at the end.
            number += u32::try_from(decode_varint(&mut bytes).ok()?).ok()?;
            Some(number)
        })
    }
}

impl FromIterator<u32> for SortedNumbers {
    /// The numbers must be sorted.
    fn from_iter<I: IntoIterator<Item = u32>>(sorted: I) -> Self {
        let (mut bytes, mut before) = (Vec::new(), 0);
        for number in sorted {
            let more = number - std::mem::replace(&mut before, number);
            encode_varint(more.into(), &mut bytes);
        }
        Self(bytes.into())
    }
}

/// Values by number; free numbers are reused.
#[derive(Debug)]
pub(super) struct Numbered<T> {
    values: Vec<Option<T>>,
    free: Vec<u32>,
}

impl<T> Default for Numbered<T> {
    fn default() -> Self {
        Self { values: Vec::new(), free: Vec::new() }
    }
}

impl<T> Numbered<T> {
    /// Returns the number of slots: the greatest number used so far plus one.
    pub(super) fn room(&self) -> usize {
        self.values.len()
    }

    pub(super) fn enter(&mut self, value: T) -> u32 {
        if let Some(number) = self.free.pop()
            && let Some(slot) = self.values.get_mut(number as usize)
        {
            *slot = Some(value);
            return number;
        }
        self.values.push(Some(value));
        u32::try_from(self.values.len() - 1).expect("memory ends before there are 2^32")
    }

    pub(super) fn leave(&mut self, number: u32) -> Option<T> {
        let value = self.values.get_mut(number as usize)?.take()?;
        self.free.push(number);
        Some(value)
    }

    pub(super) fn get(&self, number: u32) -> Option<&T> {
        self.values.get(number as usize)?.as_ref()
    }

    pub(super) fn get_mut(&mut self, number: u32) -> Option<&mut T> {
        self.values.get_mut(number as usize)?.as_mut()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        (0..).zip(&self.values).filter_map(|(number, value)| Some((number, value.as_ref()?)))
    }
}

pub(super) fn insert(sorted: &mut Vec<u32>, number: u32) {
    if let Err(place) = sorted.binary_search(&number) {
        sorted.insert(place, number);
    }
}

pub(super) fn remove(sorted: &mut Vec<u32>, number: u32) {
    if let Ok(place) = sorted.binary_search(&number) {
        sorted.remove(place);
        // Release memory that was needed only temporarily.
        if sorted.capacity() > 16 && sorted.len() < sorted.capacity() / 2 {
            sorted.shrink_to(sorted.len() + sorted.len() / 8);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_round_trip() {
        for numbers in
            [vec![], vec![0], vec![0, 1, 127, 128, 16_383, 16_384, u32::MAX], vec![u32::MAX]]
        {
            let stored: SortedNumbers = numbers.iter().copied().collect();
            assert_eq!(stored.iter().collect::<Vec<_>>(), numbers);
        }
        assert_eq!((0..1000).collect::<SortedNumbers>().0.len(), 1000);
    }
}
