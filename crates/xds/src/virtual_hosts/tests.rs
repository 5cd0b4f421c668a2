//! Compares the computed changes between two routes with a comparison of every host.

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::*;

type Values = BTreeMap<String, String>;

fn host(name: &str, value: &str) -> route::VirtualHost {
    route::VirtualHost { name: name.into(), domains: vec![value.into()], ..Default::default() }
}

fn encoded(hosts: &Values) -> Bytes {
    let virtual_hosts = hosts.iter().map(|(name, value)| host(name, value)).collect();
    route::RouteConfiguration { virtual_hosts, ..Default::default() }.encode_to_vec().into()
}

fn head() -> Bytes {
    route::RouteConfiguration { name: "80".into(), ..Default::default() }.encode_to_vec().into()
}

fn read(resource: &Resource) -> Values {
    let hosts = route::RouteConfiguration::decode(resource.body.to_bytes()).expect("a route");
    hosts.virtual_hosts.into_iter().map(|host| (host.name, host.domains.concat())).collect()
}

/// Generates a route from shared and separate runs, and edits.
fn any_route(random: &mut StdRng, shared: &[Bytes]) -> Resource {
    let mut runs = vec![head()];
    runs.extend(shared.iter().filter(|_| random.random_ratio(3, 4)).cloned());
    let own: Values = (0..random.random_range(0..3))
        .map(|at| (format!("own{at}"), random.random_range(0..2).to_string()))
        .collect();
    runs.push(encoded(&own));
    // Some edits replace a value by another of the same length. One edit appends a host after the
    // last run.
    let (mut edits, mut text, mut start) = (Vec::new(), Vec::new(), 0);
    for (number, run) in runs.iter().enumerate() {
        let end = start + run.len();
        if number > 0 && !run.is_empty() && random.random_ratio(1, 3) {
            let at = u32::try_from(end - 1).expect("short");
            edits.push(Edit { at, drops: 1, puts: 1 });
            text.extend_from_slice(b"5");
        }
        start = end;
    }
    if random.random() {
        let added = encoded(&[("last".to_owned(), "1".to_owned())].into());
        let puts = u32::try_from(added.len()).expect("short");
        edits.push(Edit { at: u32::try_from(start).expect("short"), drops: 0, puts });
        text.extend_from_slice(&added);
    }
    let body = ResourceBody::edited(runs.into(), edits, text);
    Resource { name: "80".into(), version: Version(xxh3_64(&body.to_bytes())), body }
}

#[test]
fn changes_between_any_two_routes_turn_the_first_into_the_second() {
    let mut random = StdRng::seed_from_u64(1);
    let shared: Vec<_> = (0..4)
        .map(|run| encoded(&(0..3).map(|at| (format!("r{run}h{at}"), "1".to_owned())).collect()))
        .collect();
    let mut empty = 0;
    for _ in 0..2_000 {
        let before = if random.random_ratio(1, 10) {
            any_route(&mut random.clone(), &shared)
        } else {
            any_route(&mut random, &shared)
        };
        let now = any_route(&mut random, &shared);
        let (mut values, after) = (read(&before), read(&now));
        let listed = values.iter().map(|(name, value)| {
            let version = Version(xxh3_64(&host(name, value).encode_to_vec()));
            (name.as_str().into(), Some(version))
        });
        let listed = changes(&HeldHosts::Listed(listed.collect()), &now);
        let HostChanges { changed, removed } = changes(&HeldHosts::Of(Arc::new(before)), &now);
        assert_eq!((&listed.changed, &listed.removed), (&changed, &removed));
        empty += usize::from(changed.is_empty() && removed.is_empty());
        for one in &changed {
            let host = route::VirtualHost::decode(one.body.to_bytes()).expect("a host");
            assert_eq!(host.name, *one.name);
            let name = host.name.strip_prefix("80/").expect("that of the route");
            let was = values.insert(name.to_owned(), host.domains.concat());
            assert_ne!(was.as_ref(), after.get(name), "{name} is the same");
        }
        for name in &removed {
            let name = name.strip_prefix("80/").expect("that of the route");
            assert!(values.remove(name).is_some(), "{name}");
        }
        assert_eq!(values, after);
        let all = changes(&HeldHosts::Nothing, &now);
        assert_eq!((all.changed.len(), all.removed.len()), (after.len(), 0));
    }
    assert!((100..1000).contains(&empty), "{empty}");
}

#[test]
fn route_without_hosts_keeps_other_fields_and_refers_to_vhds() {
    let config = route::RouteConfiguration {
        name: "80".into(),
        virtual_hosts: vec![host("a", "1"), host("b", "2")],
        ignore_port_in_host_matching: true,
        ..Default::default()
    };
    let whole = Resource::new("80", config.encode_to_vec());
    let apart = without_hosts(&whole);
    let read = route::RouteConfiguration::decode(apart.body.to_bytes()).expect("a route");
    assert!(read.virtual_hosts.is_empty() && read.ignore_port_in_host_matching);
    let source = read.vhds.expect("vhds").config_source.expect("a source");
    let ads = core::AggregatedConfigSource {};
    assert_eq!(
        source.config_source_specifier,
        Some(core::config_source::ConfigSourceSpecifier::Ads(ads))
    );
    // The result does not depend on the hosts.
    let other = route::RouteConfiguration { virtual_hosts: vec![host("c", "1")], ..config };
    assert_eq!(without_hosts(&Resource::new("80", other.encode_to_vec())), apart);
}
