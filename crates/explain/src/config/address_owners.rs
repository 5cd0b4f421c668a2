//! The services of the mesh by their addresses and ranges.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;

use strait_mesh::aggregate::MergedService;
use strait_mesh::push::PushContext;

/// The services by their addresses and ranges.
#[derive(Debug, Default)]
pub(super) struct AddressOwners<'a> {
    pub(super) addresses: BTreeMap<IpAddr, Vec<&'a MergedService>>,
    pub(super) ranges: BTreeMap<IpNet, Vec<&'a MergedService>>,
}

impl<'a> AddressOwners<'a> {
    /// Collects the services of a snapshot.
    pub(super) fn of(context: &'a PushContext) -> Self {
        let mut owners = Self::default();
        for service in context.all_services() {
            for one in service.by_cluster.values().chain([&service.primary]) {
                for address in &one.vips {
                    owners.addresses.entry(*address).or_default().push(service);
                }
                for range in &one.ranges {
                    owners.ranges.entry(*range).or_default().push(service);
                }
            }
        }
        owners
    }
}
