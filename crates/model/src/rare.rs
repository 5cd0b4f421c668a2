//! Groups of settings of which most objects say nothing.
//!
//! There may be tens of thousands of rules, each of a kind that has dozens of fields. What few of them say is a group of its
//! own, and takes the room of a pointer where nothing of it is said.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::{Deref, DerefMut};

/// A group with one value that says nothing, which all share.
pub trait Unsaid: Default + Eq + 'static {
    /// The default value.
    fn unsaid() -> &'static Self;
}

/// Implements [`Unsaid`] for groups, and has each owner that keeps one as its `more` read as that as well.
#[macro_export]
macro_rules! unsaid {
    ($($owner:ty: $group:ty),+) => {
        $(impl $crate::Unsaid for $group {
            fn unsaid() -> &'static Self {
                static UNSAID: std::sync::LazyLock<$group> = std::sync::LazyLock::new(Default::default);
                &UNSAID
            }
        }

        impl std::ops::Deref for $owner {
            type Target = $group;

            fn deref(&self) -> &$group {
                &self.more
            }
        })+
    };
}

/// A group, of which nothing is kept where it says nothing. It reads as the group.
#[derive(Clone)]
pub struct RareGroup<T>(Option<Box<T>>);

impl<T: Unsaid> RareGroup<T> {
    /// Keeps nothing of it where it says nothing any more.
    pub fn trim(&mut self) {
        if **self == *T::unsaid() {
            self.0 = None;
        }
    }
}

impl<T> Default for RareGroup<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<T: Unsaid> From<T> for RareGroup<T> {
    fn from(group: T) -> Self {
        Self((group != *T::unsaid()).then(|| Box::new(group)))
    }
}

impl<T: Unsaid> Deref for RareGroup<T> {
    type Target = T;

    fn deref(&self) -> &T {
        match &self.0 {
            Some(group) => group,
            None => T::unsaid(),
        }
    }
}

impl<T: Unsaid> DerefMut for RareGroup<T> {
    fn deref_mut(&mut self) -> &mut T {
        self.0.get_or_insert_default()
    }
}

impl<T: Unsaid> PartialEq for RareGroup<T> {
    fn eq(&self, other: &Self) -> bool {
        (self.0.is_none() && other.0.is_none()) || **self == **other
    }
}

impl<T: Unsaid> Eq for RareGroup<T> {}

impl<T: Unsaid + Hash> Hash for RareGroup<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (**self).hash(state);
    }
}

impl<T: Unsaid + fmt::Debug> fmt::Debug for RareGroup<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
    struct Group(u8);

    struct Owner {
        more: RareGroup<Group>,
    }
    unsaid!(Owner: Group);

    #[test]
    fn nothing_is_kept_of_a_group_that_says_nothing() {
        assert!(RareGroup::from(Group(0)).0.is_none() && RareGroup::from(Group(1)).0.is_some());
        let mut group = RareGroup::from(Group(1));
        group.0 = Some(Box::new(Group(0)));
        assert_eq!(group, RareGroup::default());
        group.trim();
        assert!(group.0.is_none() && group.deref().0 == 0);
        (*group).0 = 2;
        assert_eq!((group.deref().0, group == RareGroup::from(Group(2))), (2, true));
        assert_eq!(*Owner { more: group }, Group(2));
    }
}
