//! The subscriptions of one stream, by type.

use super::resource::ResourceType;
use super::subscription::TypeSubscription;

/// The subscriptions of one stream. There are few types, so each has its place: looking one up
/// takes no search, and going through all of them follows no nodes.
#[derive(Debug, Default)]
pub(super) struct Watches([Option<Box<TypeSubscription>>; ResourceType::SERVED.len()]);

impl Watches {
    pub(super) fn get(&self, kind: ResourceType) -> Option<&TypeSubscription> {
        self.0.get(kind as usize)?.as_deref()
    }

    pub(super) fn get_mut(&mut self, kind: ResourceType) -> Option<&mut TypeSubscription> {
        self.0.get_mut(kind as usize)?.as_deref_mut()
    }

    /// Returns the subscription of a type. A missing one is created.
    pub(super) fn entry(&mut self, kind: ResourceType) -> &mut TypeSubscription {
        let new = || Box::new(TypeSubscription::new(kind));
        self.0[kind as usize].get_or_insert_with(new)
    }

    /// All subscriptions, in the order of their types.
    pub(super) fn iter(&self) -> impl Iterator<Item = (ResourceType, &TypeSubscription)> {
        let all = ResourceType::SERVED.into_iter().zip(&self.0);
        all.filter_map(|(kind, watch)| Some((kind, watch.as_deref()?)))
    }

    /// Like [`Self::iter`], to change the subscriptions.
    pub(super) fn iter_mut(
        &mut self,
    ) -> impl Iterator<Item = (ResourceType, &mut TypeSubscription)> {
        let all = ResourceType::SERVED.into_iter().zip(&mut self.0);
        all.filter_map(|(kind, watch)| Some((kind, watch.as_deref_mut()?)))
    }

    /// All subscriptions, without their types.
    pub(super) fn values(&self) -> impl Iterator<Item = &TypeSubscription> {
        self.0.iter().filter_map(|watch| watch.as_deref())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_has_its_place() {
        let mut watches = Watches::default();
        for (place, kind) in ResourceType::SERVED.into_iter().enumerate() {
            assert_eq!(kind as usize, place);
            assert!(watches.get(kind).is_none());
            watches.entry(kind).subscribe_all();
            assert!(watches.get(kind).is_some_and(TypeSubscription::is_wildcard));
        }
        assert!(watches.iter().map(|(kind, _)| kind).eq(ResourceType::SERVED));
    }
}
