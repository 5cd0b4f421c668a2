//! Differences between two versions of the active VirtualServices.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use imbl::ordmap::DiffItem;

use super::{RoutedService, VirtualServices};
use crate::traffic::hosts::HostPattern;
use crate::traffic::object::ObjectMeta;
use crate::traffic::route::Destination;
use strait_model::{ExportTo, Namespace};

/// A host, and its objects in two versions.
type DifferingHost<'a> = (&'a HostPattern, [Option<&'a Arc<[Arc<RoutedService>]>>; 2]);

impl VirtualServices {
    /// Returns the hosts with different rules in `before`.
    pub fn differing_hosts(&self, before: &Self) -> BTreeSet<HostPattern> {
        self.differing(before).map(|(host, _)| host.clone()).collect()
    }

    /// Returns the namespaces whose proxies may have different rules than in `before`; `None` for
    /// all namespaces.
    pub fn differing_namespaces(&self, before: &Self) -> Option<BTreeSet<Namespace>> {
        if self.withheld != before.withheld {
            return None;
        }
        let mut namespaces = BTreeSet::new();
        for (_, versions) in self.differing(before) {
            let [old, new] = versions.map(|one| one.map_or(&[][..], |all| all));
            let is_in = |all: &[Arc<RoutedService>], routed: &Arc<RoutedService>| {
                all.iter().any(|other| Arc::ptr_eq(other, routed))
            };
            let gone = old.iter().filter(|one| !is_in(new, one));
            let come = new.iter().filter(|one| !is_in(old, one));
            for routed in gone.chain(come) {
                match &routed.service.export_to {
                    ExportTo::Public => return None,
                    ExportTo::Namespaces(all) => namespaces.extend(all.iter().cloned()),
                }
            }
        }
        Some(namespaces)
    }

    /// Returns whether `before` differs only in HTTP rules: all objects apply to the same proxies
    /// and route to the same services.
    pub fn differs_in_requests_alone(&self, before: &Self) -> bool {
        let is_same = |(old, new): (&Arc<RoutedService>, &Arc<RoutedService>)| {
            Arc::ptr_eq(old, new) || old.equals_except_requests(new)
        };
        self.destinations == before.destinations
            && self.withheld == before.withheld
            && self.special_namespaces == before.special_namespaces
            && self.differing(before).all(|(_, versions)| {
                let [Some(old), Some(new)] = versions else { return false };
                old.len() == new.len() && old.iter().zip(&**new).all(is_same)
            })
    }

    /// Iterates over the destinations with a subset in objects that `other` does not contain or
    /// that differ there. Subsets are left out if an object in `other` for the same host or gateway
    /// routes to them.
    pub(in crate::traffic) fn destinations_beyond<'a>(
        &'a self,
        other: &'a Self,
    ) -> impl Iterator<Item = &'a Destination> {
        let hosts = self.differing(other).map(|(_, versions)| {
            versions.map(|all| all.into_iter().flat_map(|all| all.iter()).collect::<Vec<_>>())
        });
        let gateways = other.by_gateway.diff(&self.by_gateway).map(|difference| match difference {
            DiffItem::Add(_, here) => [Vec::new(), here.values().collect()],
            DiffItem::Remove(_, there) => [there.values().collect(), Vec::new()],
            DiffItem::Update { old: (_, there), new: (_, here) } => {
                let mut versions = [Vec::new(), Vec::new()];
                for difference in there.diff(here) {
                    let [old, new] = match difference {
                        DiffItem::Add(_, new) => [None, Some(new)],
                        DiffItem::Remove(_, old) => [Some(old), None],
                        DiffItem::Update { old: (_, old), new: (_, new) } => [Some(old), Some(new)],
                    };
                    versions[0].extend(old);
                    versions[1].extend(new);
                }
                versions
            }
        });
        hosts.chain(gateways).flat_map(|[there, here]| {
            let is_there =
                |one: &&Arc<RoutedService>| there.iter().any(|other| Arc::ptr_eq(one, other));
            let routed_subsets = there.iter().flat_map(|one| one.destinations());
            let routed_subsets: BTreeSet<_> =
                routed_subsets.map(|to| (&to.host, &to.subset)).collect();
            let new: Vec<_> = here.into_iter().filter(|one| !is_there(one)).collect();
            let to = new.into_iter().flat_map(|one| one.destinations());
            to.filter(move |to| {
                !to.subset.is_empty() && !routed_subsets.contains(&(&to.host, &to.subset))
            })
        })
    }

    /// Returns the objects that differ from `before`, each in its current form; `None` if the
    /// object no longer exists.
    pub fn changed_objects<'a>(
        &'a self,
        before: &'a Self,
    ) -> BTreeMap<&'a ObjectMeta, Option<&'a Arc<RoutedService>>> {
        let mut changed = BTreeMap::new();
        let mut exchange = |old: Option<&'a Arc<RoutedService>>,
                            new: Option<&'a Arc<RoutedService>>| {
            if let Some(old) = old {
                changed.entry(&old.service.meta).or_insert(None);
            }
            if let Some(new) = new {
                changed.insert(&new.service.meta, Some(new));
            }
        };
        for (_, [old, new]) in self.differing_by_host(before) {
            let [old, new] = [old, new].map(|one| one.map_or(&[][..], |all| all));
            let is_in = |all: &[Arc<RoutedService>], routed: &Arc<RoutedService>| {
                all.iter().any(|other| Arc::ptr_eq(other, routed))
            };
            old.iter().filter(|one| !is_in(new, one)).for_each(|one| exchange(Some(one), None));
            new.iter().filter(|one| !is_in(old, one)).for_each(|one| exchange(None, Some(one)));
        }
        for difference in before.by_gateway.diff(&self.by_gateway) {
            match difference {
                DiffItem::Add(_, all) => all.values().for_each(|new| exchange(None, Some(new))),
                DiffItem::Remove(_, all) => all.values().for_each(|old| exchange(Some(old), None)),
                DiffItem::Update { old: (_, old), new: (_, new) } => {
                    for difference in old.diff(new) {
                        match difference {
                            DiffItem::Add(_, new) => exchange(None, Some(new)),
                            DiffItem::Remove(_, old) => exchange(Some(old), None),
                            DiffItem::Update { old: (_, old), new: (_, new) } => {
                                exchange(Some(old), Some(new));
                            }
                        }
                    }
                }
            }
        }
        changed
    }

    /// Iterates over the hosts with different objects, or with objects that apply to different
    /// proxies. Each result contains the previous and the current objects.
    fn differing<'a>(&'a self, before: &'a Self) -> impl Iterator<Item = DifferingHost<'a>> {
        let namespaces = match Arc::ptr_eq(&self.withheld, &before.withheld) {
            true => BTreeSet::new(),
            false => self.withheld.differing(&before.withheld),
        };
        let all = self.by_host.iter().take(if namespaces.is_empty() { 0 } else { usize::MAX });
        let withheld = all.filter_map(move |(host, all)| {
            let is_withheld =
                |one: &Arc<RoutedService>| namespaces.contains(&one.service.meta.namespace);
            let is_same = before.by_host.get(host).is_some_and(|old| Arc::ptr_eq(old, all));
            (is_same && all.iter().any(is_withheld)).then_some((host, [Some(all), Some(all)]))
        });
        self.differing_by_host(before).chain(withheld)
    }

    /// Iterates over the hosts with different objects. Each result contains the previous and the
    /// current objects.
    fn differing_by_host<'a>(
        &'a self,
        before: &'a Self,
    ) -> impl Iterator<Item = DifferingHost<'a>> {
        let is_same = |old: &Arc<_>, new: &Arc<_>| Arc::ptr_eq(old, new);
        before.by_host.diff(&self.by_host).filter_map(move |difference| match difference {
            DiffItem::Add(host, new) => Some((host, [None, Some(new)])),
            DiffItem::Remove(host, old) => Some((host, [Some(old), None])),
            DiffItem::Update { old: (host, old), new: (_, new) } => {
                (!is_same(old, new)).then_some((host, [Some(old), Some(new)]))
            }
        })
    }
}
