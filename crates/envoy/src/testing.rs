//! Checks for the tests of this crate and of dependent crates.

use std::sync::Arc;

use crate::{Cache, ProxyConfig};
use strait_mesh::push::PushContext;
use strait_model::{NetworkId, Proxy};
use strait_proto::rules;
use strait_xds::references::names_in;
use strait_xds::resource::{Resource, ResourceSource as _, ResourceType};

/// Checks every resource of a proxy against the validation rules of Envoy's API. Returns the number
/// of resources.
///
/// # Panics
/// Panics if a resource violates a rule or names a resource that does not exist.
pub fn check_given(context: &Arc<PushContext>, proxy: &Proxy) -> usize {
    let cache = Cache::default();
    let mut config = ProxyConfig::new(context, proxy, NetworkId::default(), &cache);
    let mut count = 0;
    let mut check = |kind: ResourceType, resource: &Resource| {
        let bytes = resource.body.to_bytes();
        let violation = rules::violation(kind.url(), &bytes);
        // A rule that this checker does not support is not a violation.
        let is_valid = match &violation {
            Ok(found) => found.as_ref().is_none_or(|fact| fact.ends_with(rules::UNCHECKED)),
            Err(_) => false,
        };
        assert!(is_valid, "{} {} of {}: {violation:?}", kind.short(), resource.name, proxy.id);
        count += 1;
        names_in(kind, &bytes)
    };
    for (kind, named) in [
        (ResourceType::Cluster, ResourceType::Endpoint),
        (ResourceType::Listener, ResourceType::Route),
    ] {
        let all = config.all(kind);
        let resources = all.shared.resources().iter().chain(&all.own);
        let names: Vec<_> = resources.flat_map(|resource| check(kind, resource)).collect();
        for name in names {
            let resource = config.one(named, &name);
            assert!(resource.is_some(), "no {name} for {}", proxy.id);
            resource.iter().for_each(|resource| drop(check(named, resource)));
        }
    }
    count
}
