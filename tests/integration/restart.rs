//! The cost of a restart of the control plane for a proxy: none.

use super::mesh::{
    Member, Proxy, SOON, Server, Setup, endpoints_until, from_nothing, holds, wait_until,
};
use strait_xds::resource::ResourceType;
use strait_xds::session::ProtocolForm;
use strait_xds_client::{ClientContents, Options as ClientOptions, XdsClient};

/// The resources of each type, without the counters of this stream.
pub(super) type Bodies = Vec<(String, Vec<u8>)>;

pub(super) fn substance(contents: &ClientContents) -> Vec<(ResourceType, Bodies)> {
    let bodies = |kind| {
        let names = contents.names(kind).map(str::to_owned);
        names
            .map(|name| (name.clone(), contents.body(kind, &name).unwrap_or_default().to_vec()))
            .collect()
    };
    ResourceType::ALL.into_iter().map(|kind| (kind, bodies(kind))).collect()
}

/// Waits until the server has nothing more for the proxy: the proxy has acknowledged the responses
/// of every type.
pub(super) async fn quiet(server: &Server, client: &XdsClient) -> ClientContents {
    wait_until(SOON, async || {
        let shown = server.admin.json("/debug/proxies").await;
        let types = shown[0]["types"].as_object().cloned().unwrap_or_default();
        let quiet = types.len() == 4
            && types.values().all(|one| one["sent"].is_string() && one["sent"] == one["acked"]);
        holds(quiet, shown)
    })
    .await;
    client.held()
}

/// Starts two members with some services each.
pub(super) async fn members() -> (Member, Member) {
    let east = Member::start("east", "n1", "198.18.0.1").await;
    let west = Member::start("west", "n2", "198.18.0.2").await;
    for name in ["cart", "pay", "web"] {
        east.serve(name, &["10.0.0.1", "10.0.0.2"]);
        west.serve(name, &["10.0.0.1", "10.0.0.3"]);
    }
    (east, west)
}

pub(super) const CART: &[(&str, u32)] =
    &[("10.0.0.1:8080", 1), ("10.0.0.2:8080", 1), ("198.18.0.2:15443", 2)];

#[tokio::test]
async fn proxy_that_reconnects_with_its_versions_receives_nothing() {
    for proxy in [Proxy::sidecar("east"), Proxy::gateway("west")] {
        let (east, west) = members().await;
        let setup = Setup::new();
        setup.join(&[&east, &west]);
        let first = setup.start_ready().await;
        let client = first.connect(&setup, &proxy).await;
        let before = wait_until(SOON, async || {
            let contents = client.held();
            let services = contents.names(ResourceType::Endpoint).count();
            holds(services >= 3, services)
        });
        before.await;
        // Routes are sent once clusters and their assignments are acknowledged.
        wait_until(SOON, async || {
            let shown = first.admin.json("/debug/proxies").await;
            let status = |kind: &str| &shown[0]["types"][kind];
            let is_acked = |kind| {
                status(kind)["sent"].is_string() && status(kind)["sent"] == status(kind)["acked"]
            };
            let wanted: &[&str] = match proxy.kind {
                "sidecar" => &["cds", "eds", "lds", "rds"],
                _ => &["cds", "eds", "lds"],
            };
            holds(wanted.iter().all(|kind| is_acked(kind)), &shown)
        })
        .await;
        let before = client.held();
        drop(client);
        first.shut_down().await;

        let second = setup.start_ready().await;
        let options = ClientOptions { held: before.clone(), ..ClientOptions::default() };
        let client = second.open(&setup, &proxy, options).await.expect("let in");
        // One change marks the end: it must be the only response.
        wait_until(SOON, async || {
            let shown = second.admin.json("/debug/proxies").await;
            holds(shown[0]["types"]["eds"].is_object(), shown)
        })
        .await;
        east.serve("cart", &["10.0.0.1", "10.0.0.2", "10.0.0.7"]);
        west.serve("cart", &["10.0.0.1", "10.0.0.3", "10.0.0.7"]);
        wait_until(SOON, async || holds(client.held().resources > 0, "nothing")).await;
        let after = client.held();
        assert!(after.resources <= 2, "{}: {} resources were sent", proxy.kind, after.resources);
        let changed: Vec<_> = ResourceType::ALL
            .into_iter()
            .flat_map(|kind| {
                after.versions(kind).into_iter().map(move |(name, version)| (kind, name, version))
            })
            .filter(|(kind, name, version)| before.versions(*kind).get(name) != Some(version))
            .map(|(_, name, _)| name)
            .collect();
        assert_eq!(changed.len(), 1, "{changed:?}");
        assert!(changed[0].contains("cart"), "{changed:?}");
        // Requests of the admin API nevertheless show all resources.
        let shown = second.admin.json("/debug/proxies").await;
        let key = shown[0]["key"].as_str().expect("a key");
        let dump = second.admin.json(&format!("/debug/config_dump?proxy={key}")).await;
        for kind in ResourceType::ALL {
            for row in dump[kind.short()].as_array().into_iter().flatten() {
                assert!(row["resource"].is_object(), "{row}");
            }
        }
    }
}

#[tokio::test]
async fn versions_are_equal_after_a_restart_in_both_variants() {
    let (east, west) = members().await;
    let setup = Setup::new();
    setup.join(&[&east, &west]);
    let mut snapshots = Vec::new();
    for _ in 0..2 {
        for form in [ProtocolForm::Delta, ProtocolForm::Sotw] {
            let server = setup.start_ready().await;
            let proxy = Proxy::sidecar("east");
            let client = server.open(&setup, &proxy, from_nothing(form)).await.expect("let in");
            endpoints_until(&client, "cart", CART).await;
            snapshots.push(quiet(&server, &client).await);
            drop(client);
            server.shut_down().await;
        }
    }
    let [delta, sotw, delta_again, sotw_again] =
        <[ClientContents; 4]>::try_from(snapshots).expect("four");
    assert_eq!(delta.type_versions, delta_again.type_versions);
    assert_eq!(sotw.type_versions, sotw_again.type_versions);
    for kind in ResourceType::ALL {
        assert_eq!(delta.versions(kind), delta_again.versions(kind));
        let is_requested = kind != ResourceType::NameTable;
        assert_eq!(!delta.versions(kind).is_empty(), is_requested, "{kind:?}");
    }
    assert_eq!(substance(&delta), substance(&sotw));
    assert_eq!(substance(&delta), substance(&delta_again));
    assert_eq!(substance(&sotw), substance(&sotw_again));
}
