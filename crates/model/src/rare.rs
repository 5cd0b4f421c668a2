//! Groups of settings that most objects do not set.
//!
//! There may be tens of thousands of rules, each of a kind with dozens of fields. Rarely used
//! fields form a separate group, which takes only the size of a pointer if none of them is set.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::{Deref, DerefMut};

/// A group with a shared static default value.
pub trait Unsaid: Default + Eq + 'static {
    /// Returns the default value.
    fn unsaid() -> &'static Self;
}

/// Implements [`Unsaid`] for groups, and `Deref` to the group for each owner that stores it in the
/// field `more`.
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

/// A group that allocates nothing if it has the default value. It dereferences to the group.
#[derive(Clone)]
pub struct RareGroup<T>(Option<Box<T>>);

impl<T: Unsaid> RareGroup<T> {
    /// Frees the allocation if the group has the default value.
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
    fn group_with_the_default_value_allocates_nothing() {
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
