//! The regions of a cluster's zones, according to its nodes. Slices name only the zone of an
//! endpoint.

use std::collections::BTreeMap;
use std::sync::Arc;

use strait_model::Locality;

/// The regions of zones.
#[derive(Debug, Default)]
pub(super) struct ZoneRegions(BTreeMap<Arc<str>, ZoneRecord>);

#[derive(Debug, Default)]
struct ZoneRecord {
    /// Number of nodes of the zone by region.
    regions: BTreeMap<Arc<str>, usize>,
    /// Region and zone, if all nodes of the zone name one region.
    place: Option<Arc<Locality>>,
}

impl ZoneRegions {
    /// Returns the zone with its region.
    pub(super) fn region_zone(&self, zone: &str) -> Option<&Arc<Locality>> {
        self.0.get(zone)?.place.as_ref()
    }

    /// Replaces the locality of a node. Returns the zones whose region changed.
    pub(super) fn replace(
        &mut self,
        before: Option<&Arc<Locality>>,
        after: Option<&Arc<Locality>>,
    ) -> Vec<Arc<str>> {
        let names = |place: &&Arc<Locality>| !place.zone.is_empty() && !place.region.is_empty();
        let (before, after) = (before.filter(names), after.filter(names));
        if before == after {
            return Vec::new();
        }
        if let Some(Locality { region, zone, .. }) = after.map(|place| &**place) {
            let record = self.0.entry(Arc::clone(zone)).or_default();
            *record.regions.entry(Arc::clone(region)).or_default() += 1;
        }
        if let Some(Locality { region, zone, .. }) = before.map(|place| &**place)
            && let Some(record) = self.0.get_mut(zone)
            && let Some(count) = record.regions.get_mut(region)
        {
            *count -= 1;
            if *count == 0 {
                record.regions.remove(region);
            }
        }
        let mut changed = Vec::new();
        for place in [before, after].into_iter().flatten() {
            let zone = &place.zone;
            let Some(record) = self.0.get_mut(zone) else { continue };
            let region = match record.regions.len() {
                1 => record.regions.keys().next(),
                _ => None,
            };
            if record.place.as_ref().map(|place| &place.region) != region {
                record.place = region.map(|region| {
                    let (region, zone) = (Arc::clone(region), Arc::clone(zone));
                    Arc::new(Locality { region, zone, ..Locality::default() })
                });
                changed.push(Arc::clone(zone));
            }
            if record.regions.is_empty() {
                self.0.remove(zone);
            }
        }
        changed
    }
}
