//! Groups of settings that most objects do not set.
//!
//! There may be tens of thousands of rules, each of a kind with dozens of fields. Rarely used
//! fields form a separate group, which takes only the size of a pointer if none of them is set.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::{Deref, DerefMut};

/// A group with a shared static default value.
pub trait StaticDefault: Default + Eq + 'static {
    /// Returns the default value.
    fn static_default() -> &'static Self;
}

/// Implements [`StaticDefault`] for groups, and `Deref` to the group for each owner that stores it
/// in the field `more`.
#[macro_export]
macro_rules! static_default {
    ($($owner:ty: $group:ty),+) => {
        $(impl $crate::StaticDefault for $group {
            fn static_default() -> &'static Self {
                static DEFAULT: std::sync::LazyLock<$group> = std::sync::LazyLock::new(Default::default);
                &DEFAULT
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

impl<T: StaticDefault> RareGroup<T> {
    /// Frees the allocation if the group has the default value.
    pub fn trim(&mut self) {
        if **self == *T::static_default() {
            self.0 = None;
        }
    }
}

impl<T> Default for RareGroup<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<T: StaticDefault> From<T> for RareGroup<T> {
    fn from(group: T) -> Self {
        Self((group != *T::static_default()).then(|| Box::new(group)))
    }
}

impl<T: StaticDefault> Deref for RareGroup<T> {
    type Target = T;

    fn deref(&self) -> &T {
        match &self.0 {
            Some(group) => group,
            None => T::static_default(),
        }
    }
}

impl<T: StaticDefault> DerefMut for RareGroup<T> {
    fn deref_mut(&mut self) -> &mut T {
        self.0.get_or_insert_default()
    }
}

impl<T: StaticDefault> PartialEq for RareGroup<T> {
    fn eq(&self, other: &Self) -> bool {
        (self.0.is_none() && other.0.is_none()) || **self == **other
    }
}

impl<T: StaticDefault> Eq for RareGroup<T> {}

impl<T: StaticDefault + Hash> Hash for RareGroup<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (**self).hash(state);
    }
}

impl<T: StaticDefault + fmt::Debug> fmt::Debug for RareGroup<T> {
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
    static_default!(Owner: Group);

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
