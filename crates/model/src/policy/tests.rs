use std::time::Duration;

use super::*;
use crate::{SharingDecision, SharingFacts, SharingRule};

const HEAD: &str = "apiVersion: strait.dev/v1\nkind: Policy\n";

fn policy(text: &str) -> Policy {
    Policy::parse(&format!("{HEAD}{text}")).expect(text)
}

fn id(text: &str) -> ClusterId {
    ClusterId::from(text)
}

#[test]
fn policy_decides_in_which_clusters_imports_are_written() {
    let policy = policy(
        "mesh: {mcs: {imports: names}}
clusters:
  east: {mcs: {imports: off, adopt: status}}
  west: {mcs: {imports: false}}
  south: {mcs: {imports: full}}",
    );
    let imports = ["north", "east", "west", "south"].map(|name| policy.imports(&id(name)));
    let modes = [ImportMode::Names, ImportMode::Off, ImportMode::Off, ImportMode::Full];
    assert_eq!(imports, modes.map(Some));
    assert!(policy.writes_imports_in(ImportMode::Full));
    assert_eq!(["north", "east"].map(|name| policy.adopts_import_status(&id(name))), [false, true]);
    assert!(policy.writes_imports() && !Policy::default().writes_imports());
    assert_eq!(Policy::default().imports(&id("east")), None);
}

#[test]
fn empty_policy_allows_everything_except_special_addresses() {
    for policy in [Policy::default(), policy("")] {
        assert_eq!(policy.may_export(&id("east"), "a.b.svc.cluster.local", "b"), Ok(()));
        assert_eq!(policy.may_claim(&id("east"), &"n9".into()), Ok(()));
        assert_eq!((policy.mode(&id("east")), policy.when_dark(&id("east"))), (None, None));
        assert_eq!(policy.may_use(&id("east"), "10.0.0.1".parse().expect("an address")), Ok(()));
        assert!(!policy.limits_exports() && !policy.limits_addresses(&id("east")));
        for never in [
            "127.0.0.1",
            "127.9.9.9",
            "::1",
            "169.254.169.254",
            "fe80::1",
            "224.0.0.1",
            "ff02::1",
            "0.0.0.0",
            "::",
            "255.255.255.255",
            "::ffff:127.0.0.1",
            "::ffff:169.254.1.1",
            "64:ff9b::169.254.169.254",
            "64:ff9b:1::127.0.0.1",
            "2002:7f00:1::1",
            "fd00:ec2::254",
        ] {
            let refused = policy.may_use(&id("east"), never.parse().expect("an address"));
            assert_eq!(refused.expect_err(never).rule, "built in", "{never}");
        }
    }
}

#[test]
fn rule_of_a_cluster_overrides_the_rule_of_the_mesh() {
    let policy = policy(
        "mesh: {whenDark: withdraw after 15m, mode: drain, networks: [n1], budget: {objects: 7, pages: 9}}
clusters:
  east: {whenDark: keep, networks: [n2, ''], budget: {objects: 5, objectBytes: 64Ki, memoryBytes: 128Mi}}
",
    );
    let after = WhenDark::WithdrawAfter(Duration::from_secs(900));
    assert_eq!(policy.when_dark(&id("west")), Some((after, "mesh.whenDark".into())));
    let expected = Some((WhenDark::Keep, "clusters.east.whenDark".into()));
    assert_eq!(policy.when_dark(&id("east")), expected);
    assert_eq!(policy.mode(&id("east")), Some((Mode::Drain, "mesh.mode".into())));
    assert_eq!(policy.may_claim(&id("east"), &"n2".into()), Ok(()));
    assert_eq!(policy.may_claim(&id("east"), &"".into()), Ok(()));
    let refused = policy.may_claim(&id("east"), &"n1".into()).expect_err("a claim");
    assert_eq!(
        refused.to_string(),
        "cluster east may claim \"\" or n2, not network \"n1\" (policy clusters.east.networks)"
    );
    let budget = policy.budget(&id("east"));
    let expected = (Some(5), Some(9), Some(65_536), None);
    assert_eq!((budget.objects, budget.pages, budget.object_bytes, budget.page_bytes), expected);
    assert_eq!(budget.memory_bytes, Some(128 << 20));
}

#[test]
fn names_belong_to_their_owners_and_exports_are_limited() {
    let policy = policy(
        "owners:
  - {namespaces: [payments], clusters: [west, config]}
  - {hosts: ['*.edge.svc.cluster.local'], clusters: [east]}
clusters:
  north: {exports: {namespaces: [shop], hosts: [cart.prod.svc.cluster.local]}}
  south: {exports: {}}
",
    );
    let host = |name: &str| format!("{name}.svc.cluster.local");
    for (cluster, name, rule) in [
        ("west", "bank.payments", None),
        ("config", "bank.payments", None),
        ("east", "bank.payments", Some("owners[0]")),
        ("east", "gate.edge", None),
        ("west", "gate.edge", Some("owners[1]")),
        ("north", "web.shop", None),
        ("north", "cart.prod", None),
        ("north", "other.prod", Some("clusters.north.exports")),
        ("south", "web.shop", Some("clusters.south.exports")),
        ("east", "web.shop", None),
    ] {
        let namespace = name.split_once('.').expect("name.namespace").1;
        let found = policy.may_export(&id(cluster), &host(name), namespace).err();
        assert_eq!(found.map(|refused| refused.rule).as_deref(), rule, "{cluster} {name}");
    }
}

#[test]
fn cluster_may_declare_only_the_trust_domains_of_its_rule() {
    let policy =
        policy("mesh: {trustDomains: []}\nclusters: {east: {trustDomains: [old.example]}}");
    let refusing_rule = |cluster: &str, domain: &str| {
        policy.may_name(&id(cluster), domain).expect("a rule").map_err(|one| one.rule)
    };
    assert_eq!(refusing_rule("east", "old.example"), Ok(()));
    assert_eq!(refusing_rule("east", "new.example"), Err("clusters.east.trustDomains".to_owned()));
    assert_eq!(refusing_rule("west", "old.example"), Err("mesh.trustDomains".to_owned()));
    assert_eq!(Policy::default().may_name(&id("east"), "any.example"), None);
}

#[test]
fn endpoints_stay_within_the_ranges_of_their_cluster() {
    let policy = policy("clusters: {east: {addresses: [10.1.0.0/16, 'fd00::/8', 192.0.2.7]}}");
    for (address, is_allowed) in [
        ("10.1.2.3", true),
        ("10.2.2.3", false),
        ("fd12::1", true),
        ("2001:db8::1", false),
        ("192.0.2.7", true),
        ("192.0.2.8", false),
        ("::ffff:10.1.0.9", true),
        ("127.0.0.1", false),
    ] {
        let found = policy.may_use(&id("east"), address.parse().expect("an address"));
        assert_eq!(found.is_ok(), is_allowed, "{address}");
    }
    assert!(policy.limits_addresses(&id("east")) && !policy.limits_addresses(&id("west")));
}

#[test]
fn preference_ranks_every_cluster() {
    let policy = policy(
        "preferences:
  - name: home
    services: {namespaces: [shop]}
    proxies: [east, west]
    order: [own cluster, own network, {north: 90, south: 10}, any other, last]
  - name: rest
    services: {namespaces: ['*']}
    order: [[west, east]]
",
    );
    let find = |namespace: &str, proxy_cluster: &str| {
        policy.preference("web", namespace, &id(proxy_cluster))
    };
    let home = find("shop", "east").expect("it is about them");
    assert_eq!(
        home.to_string(),
        "home: own cluster, then own network, then north 90 and south 10, then any other, then last"
    );
    let network = |text: &str| NetworkId::from(text);
    let (east, n1) = (id("east"), network("n1"));
    let rank = |cluster: &str, proxy_cluster: &str| {
        let rank = home.rank((&east, &n1), (&id(cluster), &network(proxy_cluster)));
        (rank.tier, rank.share)
    };
    assert_eq!(rank("east", "n1"), (0, None));
    assert_eq!(rank("west", "n1"), (1, None));
    assert_eq!(rank("north", "n2"), (2, Some(90)));
    assert_eq!(rank("south", "n3"), (2, Some(10)));
    assert_eq!(rank("else", "n3"), (3, None));
    assert_eq!(rank("last", "n3"), (4, None));
    let rest = find("shop", "north").expect("the next one");
    assert_eq!(rest.to_string(), "rest: east and west, then any other");
    let own = (&id("north"), &n1);
    assert_eq!(rest.rank(own, (&id("north"), &n1)).tier, 1, "nobody is left out");
}

#[test]
fn misspelt_rule_is_reported_with_its_location() {
    for (text, field, fact) in [
        ("mesh: {whendark: keep}", "mesh", "unknown field"),
        ("mesh: {}\nmesh: {}", "", "column 1: duplicate mapping key: mesh"),
        ("mesh: {whenDark: never}", "mesh.whenDark", "neither 'keep' nor"),
        ("mesh: {whenDark: withdraw after soon}", "mesh.whenDark", "soon"),
        ("mesh: {mode: off}", "mesh.mode", "not one of normal"),
        ("clusters: {East: {}}", "clusters.East", "can't be a cluster ID"),
        ("clusters: {east: {addresses: [a]}}", "clusters.east.addresses[0]", "not a range"),
        ("mesh: {discoverySelectors: []}", "mesh.discoverySelectors", "in the mesh config"),
        (
            "clusters: {east: {discoverySelectors: [{matchLabel: {}}]}}",
            "clusters.east.discoverySelectors[0]",
            "unknown field",
        ),
        ("owners: [{namespaces: a, clusters: [b]}]", "owners[0].namespaces", "line 3"),
        ("owners: [{namespaces: [a]}]", "owners[0]", "clusters"),
        ("mesh: {readNamespaces: [shop]}", "mesh.readNamespaces", "only possible for a cluster"),
        ("clusters: {east: {readNamespaces: []}}", "clusters.east.readNamespaces", "list 1 to 32"),
        ("mesh: {identity: pinned}", "mesh.identity", "only possible for a cluster"),
        (
            "clusters: {east: {identity: follow}}",
            "clusters.east.identity",
            "\"follow\" is neither pinned nor follow-source",
        ),
        (
            "clusters: {east: {readNamespaces: [shop, shop]}}",
            "clusters.east.readNamespaces",
            "shop is listed twice; remove one",
        ),
        (
            "clusters: {east: {readNamespaces: [shop], discoverySelectors: []}}",
            "clusters.east.discoverySelectors",
            "remove readNamespaces or discoverySelectors",
        ),
        (
            "clusters: {east: {discoverySelectors: [{matchExpressions: [{key: a, operator: In}]}]}}",
            "clusters.east.discoverySelectors",
            "In on a needs values",
        ),
        (
            "clusters: {east: {relay: {issuer: a, subject: b, audience: c, keys: {}}}}",
            "clusters.east.relay.subject",
            "system:serviceaccount",
        ),
        (
            "clusters: {east: {relay: {issuer: a, subject: 'system:serviceaccount:a:b', audience: c, keys: []}}}",
            "clusters.east.relay.keys",
            "JSON Web Key Set",
        ),
        ("mesh: {mcs: {imports: all}}", "mesh.mcs.imports", "not one of off, names, full"),
        ("clusters: {east: {mcs: {imports: true}}}", "clusters.east.mcs.imports", "not one of off"),
        ("mesh: {mcs: {adopt: all}}", "mesh.mcs.adopt", "not one of none, status"),
        ("mesh: {massWithdrawal: {above: 100%}}", "mesh.massWithdrawal.above", "0% to 99%"),
        ("mesh: {massWithdrawal: {hold: x}}", "mesh.massWithdrawal.hold", "x"),
        ("mesh: {budget: {objects: 0}}", "mesh.budget", "nothing could be read"),
        ("mesh: {budget: {pageBytes: 1MB}}", "mesh.budget.pageBytes", "64Ki"),
        ("mesh: {exports: {hosts: ['a b']}}", "mesh.exports.hosts[0]", "hostname"),
        ("mesh: {exports: {namespaces: [A]}}", "mesh.exports.namespaces[0]", "namespace"),
        ("owners: [{namespaces: [a], clusters: []}]", "owners[0]", "no cluster"),
        ("owners: [{clusters: [a]}]", "owners[0]", "neither namespaces nor hosts"),
        (
            "preferences: [{name: a, services: {hosts: [a]}, order: []}]",
            "preferences[0].order",
            "empty",
        ),
        (
            "preferences: [{name: a, services: {hosts: [a]}, order: [{east: 0}]}]",
            "preferences[0].order[0]",
            "weight of east",
        ),
        (
            "preferences: [{name: a, services: {hosts: [a]}, order: [east, east]}]",
            "preferences[0].order[1]",
            "twice",
        ),
    ] {
        let found = Policy::parse(&format!("{HEAD}{text}")).expect_err(text);
        assert_eq!(found.field, field, "{text}: {found}");
        assert!(found.fact.contains(fact), "{text}: {found}");
        assert!(!found.fact.contains("Policy in Options"), "{found}");
    }
    assert_eq!(Policy::parse("kind: Policy\napiVersion: v1").expect_err("v1").field, "apiVersion");
    assert!(Policy::parse("").is_err(), "a file that is empty by mistake allows nothing silently");
}

#[test]
fn reader_of_a_cluster_is_limited_to_the_listed_namespaces() {
    let policy = policy("clusters: {east: {readNamespaces: [shop, edge]}}");
    let limited = ReadNamespaces::of(["edge", "shop"]).expect("valid");
    assert_eq!(policy.read_namespaces(&id("east")), Some(&limited));
    assert_eq!(policy.read_namespaces(&id("west")), None);
}

#[test]
fn cluster_follows_its_source_only_if_its_own_rule_says_so() {
    let policy =
        policy("clusters: {east: {identity: follow-source}, west: {identity: pinned}, north: {}}");
    let following = ["east", "west", "north", "south"].map(|one| policy.follows_source(&id(one)));
    assert_eq!(following, [true, false, false, false]);
}

#[test]
fn relay_without_keys_needs_an_issuer_that_publishes_them() {
    let relay = |issuer: &str, rest: &str| {
        format!("{{issuer: '{issuer}', subject: 'system:serviceaccount:a:b', audience: c{rest}}}")
    };
    let parse = |clusters: &[(&str, String)]| {
        let lines = clusters.iter().map(|(id, relay)| format!("  {id}: {{relay: {relay}}}\n"));
        Policy::parse(&format!("{HEAD}clusters:\n{}", lines.collect::<String>()))
    };
    let found = parse(&[("east", relay("https://idp.example/east", ""))]).expect("valid");
    let (cluster, trust) = found.relay_trusts().next().expect("east");
    assert_eq!((cluster, trust.keys.as_deref()), (&id("east"), None));
    let inside = "https://kubernetes.default.svc.cluster.local";
    let keys = ", keys: {keys: []}";
    parse(&[("east", relay(inside, keys)), ("west", relay(inside, keys))]).expect("keys decide");
    for issuer in ["http://idp.example", "idp", "https://a@idp.example", "https://idp.example/?a=b"]
    {
        let found = parse(&[("east", relay(issuer, ""))]).expect_err(issuer);
        assert_eq!(found.field, "clusters.east.relay.issuer", "{issuer}");
        assert!(found.fact.contains("set keys"), "{found}");
        parse(&[("east", relay(issuer, keys))]).expect("its keys are in the file");
    }
    for rest in ["", keys] {
        let found = parse(&[("east", relay(inside, rest)), ("west", relay(inside, ""))]);
        let found = found.expect_err("a token of either cluster could be of the other");
        assert_eq!(found.field, "clusters.west.relay");
        assert!(found.fact.contains("clusters.east.relay"), "{found}");
    }
}

#[test]
fn changes_are_rolled_out_gradually_if_the_policy_requires_it() {
    assert_eq!(policy("").rollout(), None, "off when absent");
    let usual = policy("rollout: {}").rollout().cloned().expect("a plan");
    assert_eq!(*usual, RolloutPlan::default());
    assert_eq!((&usual.steps[..], usual.every), (&[5, 25, 100][..], Duration::from_secs(600)));
    let own = policy(
        "rollout: {steps: [1%, 10%, 50%, 100%], every: 90s, stopAt: {refused: 3, lostEndpoints: 100%}}",
    );
    let own = own.rollout().expect("a plan");
    assert_eq!((&own.steps[..], own.every), (&[1, 10, 50, 100][..], Duration::from_secs(90)));
    assert_eq!(own.stop_at, RolloutLimits { refused: 3, lost_endpoints: 100 });
    for (text, field, fact) in [
        ("steps: [5%, 25%]", "steps", "add 100%"),
        ("steps: [100%]", "steps", "omit rollout"),
        ("steps: []", "steps", "omit rollout"),
        ("steps: [25%, 5%, 100%]", "steps[1]", "5% is not more than the previous 25%"),
        ("steps: [5%, 5%, 100%]", "steps[1]", "5% is not more than the previous 5%"),
        ("steps: [0%, 100%]", "steps[0]", "from 1% to 100%"),
        ("steps: ['5', 100%]", "steps[0]", "from 1% to 100%"),
        ("steps: [5%, 101%]", "steps[1]", "from 1% to 100%"),
        ("every: soon", "every", ""),
        ("every: 10ms", "every", "between 1s and 7 days"),
        ("every: 200h", "every", "between 1s and 7 days"),
        ("stopAt: {refused: 0}", "stopAt.refused", "from 1 to 1000"),
        ("stopAt: {refused: 1001}", "stopAt.refused", "from 1 to 1000"),
        ("stopAt: {lostEndpoints: 20}", "", ""),
        ("stopAt: {lostEndpoints: 120%}", "stopAt.lostEndpoints", "from 0% to 100%"),
        ("share: 5%", "", "share"),
    ] {
        let found = Policy::parse(&format!("{HEAD}rollout: {{{text}}}")).expect_err(text);
        let field = if field.is_empty() { String::new() } else { format!("rollout.{field}") };
        assert!(found.field.contains(&field) && found.fact.contains(fact), "{text}: {found}");
    }
}

#[test]
fn expired_tokens_are_accepted_for_the_configured_time() {
    let policy = policy("mesh: {darkTokenGrace: 24h}\nclusters: {east: {darkTokenGrace: 0s}}\n");
    let day = Duration::from_secs(86_400);
    assert_eq!(policy.dark_token_grace(&id("west")), Some((day, "mesh.darkTokenGrace".into())));
    assert_eq!(policy.dark_token_grace(&id("east")), None);
    let refused = Policy::parse(&format!("{HEAD}mesh: {{darkTokenGrace: 169h}}\n"));
    let refused = refused.expect_err("too long").to_string();
    assert_eq!(refused, "mesh.darkTokenGrace: \"169h\" is more than 7 days (168h)");
}

#[test]
fn traffic_objects_of_listed_clusters_apply() {
    assert!(!policy("").applies_traffic_from(&id("east")), "off when absent");
    let policy = policy("trafficFrom: [east, west]\n");
    let applied = ["east", "west", "north"].map(|one| policy.applies_traffic_from(&id(one)));
    assert_eq!(applied, [true, true, false]);
    assert_eq!(policy.clusters_named()[&id("west")], "trafficFrom");
    for (text, fact) in [
        ("trafficFrom: [east, east]", "trafficFrom[1]: east is listed twice"),
        ("trafficFrom: ['*']", "trafficFrom[0]: \"*\" can't be a cluster ID"),
    ] {
        let found = Policy::parse(&format!("{HEAD}{text}\n")).expect_err(text).to_string();
        assert!(found.contains(fact), "{text}: {found}");
    }
}

#[test]
fn limits_for_proxies_of_other_namespaces_have_defaults() {
    let usual = Policy::default().traffic();
    assert_eq!(usual.foreign_bytes, ForeignBytes { namespace: 2 << 20, total: 16 << 20 });
    assert_eq!(usual.default_visibility, DefaultVisibility::Mesh);
    let set = policy("traffic: {foreignBytes: {namespace: 4Mi}, defaultVisibility: namespace}\n");
    let set = set.traffic();
    assert_eq!(set.foreign_bytes, ForeignBytes { namespace: 4 << 20, total: 16 << 20 });
    assert_eq!(set.default_visibility, DefaultVisibility::Namespace);
    let large = policy("traffic: {foreignBytes: {namespace: 64Mi}}\n").traffic();
    assert_eq!(large.foreign_bytes.total, 64 << 20, "the total is at least the limit of one");
    for (text, error) in [
        ("{foreignBytes: {namespace: x}}", "traffic.foreignBytes.namespace: \"x\" is not a size"),
        ("{foreignBytes: {namespace: 2Mi, total: 1Mi}}", "traffic.foreignBytes.total: is less"),
        ("{defaultVisibility: all}", "traffic.defaultVisibility: \"all\" is neither"),
        ("{foreignHosts: never}", "traffic.foreignHosts: \"never\" is none of allow, note, deny"),
        ("{foreign: 1}", ""),
    ] {
        let text = format!("{HEAD}traffic: {text}\n");
        let refused = Policy::parse(&text).expect_err("it is refused").to_string();
        assert!(refused.starts_with(error), "{refused}");
    }
}

#[test]
fn foreign_hosts_are_noted_by_default() {
    assert_eq!(Policy::default().traffic().foreign_hosts, ForeignHostsMode::Note);
    for (text, mode) in [
        ("allow", ForeignHostsMode::Allow),
        ("note", ForeignHostsMode::Note),
        ("deny", ForeignHostsMode::Deny),
    ] {
        let set = policy(&format!("traffic: {{foreignHosts: {text}}}\n"));
        assert_eq!(set.traffic().foreign_hosts, mode);
    }
}

#[test]
fn gateways_are_ejected_as_networks_unless_the_policy_says_per_host() {
    assert_eq!(Policy::default().remote_ejection(), RemoteEjection::PerNetwork);
    assert_eq!(policy("mesh: {}\n").remote_ejection(), RemoteEjection::PerNetwork);
    let per_host = policy("remoteEjection: perHost\n");
    assert_eq!(per_host.remote_ejection(), RemoteEjection::PerHost);
    let per_network = policy("remoteEjection: perNetwork\n");
    assert_eq!(per_network.remote_ejection(), RemoteEjection::PerNetwork);
    let text = format!("{HEAD}remoteEjection: perCluster\n");
    assert_eq!(
        Policy::parse(&text).expect_err("no such value").to_string(),
        "remoteEjection: \"perCluster\" is neither perNetwork nor perHost"
    );
}

#[test]
fn only_listed_namespaces_may_have_gateways_of_networks() {
    assert!(Policy::default().may_be_gateway("shop").is_ok(), "in any by default");
    let set = policy("gatewayNamespaces: [istio-system, edge]\n");
    assert!(set.may_be_gateway("edge").is_ok() && set.gateway_namespaces().is_some());
    let refused = set.may_be_gateway("shop").expect_err("it is not listed").to_string();
    assert_eq!(
        refused,
        "gateways may be in edge or istio-system, not in shop (policy gatewayNamespaces)"
    );
    assert!(policy("gatewayNamespaces: ['*']\n").may_be_gateway("shop").is_ok());
    assert!(policy("gatewayNamespaces: []\n").may_be_gateway("shop").is_err());
}

/// Returns the statements: the export, the labels of the Service and the Namespace, Istio's label,
/// and the mesh config. `+` shares, `-` keeps local, `.` states nothing.
fn facts(text: &str) -> SharingFacts {
    let fact = |at: usize| match text.as_bytes()[at] {
        b'+' => Some(true),
        b'-' => Some(false),
        _ => None,
    };
    let [export, label, namespace_label, istio_label, scope] = [0, 1, 2, 3, 4].map(fact);
    SharingFacts { export, label, namespace_label, istio_label, scope }
}

#[test]
fn first_statement_in_the_order_of_precedence_decides_whether_a_service_is_shared() {
    use SharingRule::{
        ClusterDefault, Default, Export, IstioLabel, Label, NamespaceLabel, ServiceScope, Unset,
    };
    let none = "";
    let local = "sharing: {default: local}";
    let ignored = "sharing: {default: shared, istioGlobal: ignore}";
    let honoured = "sharing: {default: local, istioGlobal: honour}";
    let own = "sharing: {default: shared, clusters: {east: {default: local}}}";
    let other = "sharing: {clusters: {west: {default: local}}}";
    for (rules, stated, is_local, rule) in [
        (none, ".....", false, Unset),
        (none, "...--", false, Unset),
        (none, "...++", false, Unset),
        (none, "-++++", true, Export),
        (none, "+----", false, Export),
        (none, ".-+++", true, Label),
        (none, ".+---", false, Label),
        (none, "..-++", true, NamespaceLabel),
        (none, "..+--", false, NamespaceLabel),
        (local, ".....", true, Default),
        (local, "...++", true, Default),
        (local, "+....", false, Export),
        (local, ".+...", false, Label),
        (local, "..+..", false, NamespaceLabel),
        (ignored, "...--", false, Default),
        (honoured, "...+-", false, IstioLabel),
        (honoured, "...-+", true, IstioLabel),
        (honoured, "....+", false, ServiceScope),
        (honoured, "....-", true, ServiceScope),
        (honoured, ".....", true, Default),
        (honoured, "..-+.", true, NamespaceLabel),
        (honoured, ".+.--", false, Label),
        (own, ".....", true, ClusterDefault),
        (own, "..+..", false, NamespaceLabel),
        (other, ".....", false, Unset),
    ] {
        let decided = policy(rules).sharing().decide(&id("east"), facts(stated));
        assert_eq!(decided, SharingDecision { is_local, rule }, "{rules} {stated}");
    }
    assert_eq!(policy(own).clusters_named()[&id("east")], "sharing.clusters.east");
}

#[test]
fn invalid_values_of_the_section_sharing_are_reported() {
    for (rules, field) in [
        ("sharing: {default: global}", "sharing.default"),
        ("sharing: {istioGlobal: yes}", "sharing.istioGlobal"),
        ("sharing: {clusters: {east: {default: no}}}", "sharing.clusters.east.default"),
        ("sharing: {clusters: {'a b': {default: local}}}", "sharing.clusters.a b"),
    ] {
        let error = Policy::parse(&format!("{HEAD}{rules}")).expect_err(rules);
        assert_eq!(error.field, field, "{error}");
    }
    Policy::parse(&format!("{HEAD}sharing: {{defaults: local}}")).expect_err("unknown field");
}
