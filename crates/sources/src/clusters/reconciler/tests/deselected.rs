//! Tests of members that the operator file no longer selects.

use super::*;

/// Sets the Secrets of source `capi` in namespace `capi`: name and host. All have the label `tier=prod`.
fn set_secrets(world: &World, secrets: &[(&str, &str)]) {
    let secret = |(name, host): &(&str, &str)| {
        Arc::new(WatchedSecret {
            name: ObjectName::new("capi", name),
            labels: [("tier".to_owned(), "prod".to_owned())].into(),
            annotations: BTreeMap::new(),
            created: None,
            uid: None,
            secret_type: String::new(),
            source: Some("capi".into()),
            profile: None,
            decision: None,
            data: [((*name).to_owned(), Redacted::new(kubeconfig(host).into_bytes()))].into(),
        })
    };
    let secrets = secrets.iter().map(secret).collect();
    world.objects.send_replace(Some(Arc::new(Objects { secrets, ..Objects::default() })));
}

fn set_file(world: &World, sources: &str) {
    let text = format!("{{apiVersion: strait.dev/v1, kind: MemberSources, sources: [{sources}]}}");
    let sources = MemberSources::parse(&text).expect("a valid file");
    world.sources.send_replace(Arc::new(sources));
}

const SELECTED: &str = "{name: capi, secrets: {namespace: capi, selector: tier=prod}, ids: ['*']}";

#[tokio::test]
async fn member_that_the_file_no_longer_selects_drains_with_the_fact() {
    for (file, fact) in [
        (
            "{name: capi, secrets: {namespace: capi, selector: tier=test}, ids: ['*']}",
            "STR0243: source capi of the --members file no longer selects Secret capi/east; ",
        ),
        (
            "{name: capi, secrets: {namespace: other}, ids: ['*']}",
            "STR0243: source capi of the --members file no longer selects Secret capi/east; ",
        ),
        (
            "",
            "STR0243: the --members file no longer has source capi, which selected Secret capi/east; ",
        ),
    ] {
        let mut world = World::new(Setup::default());
        set_file(&world, SELECTED);
        set_secrets(&world, &[("east", "good")]);
        world.until(&["east live"]).await;
        set_file(&world, file);
        // Until its source has been read again, the object still exists.
        world.until(&["east live: the new definition is not used: STR0224"]).await;
        set_secrets(&world, &[]);
        world.until(&[&format!("east draining: {fact}")]).await;
        world.until(&["east draining: its 0 endpoints are withdrawn in "]).await;
        // A corrected file ends it.
        set_file(&world, SELECTED);
        set_secrets(&world, &[("east", "good")]);
        world.until(&["east live"]).await;
        assert_eq!(world.outputs.statuses.borrow()[0].reason, None);
        // A deletion is not the file's effect.
        set_secrets(&world, &[]);
        world.until(&["east draining: its Secret was deleted"]).await;
        assert!(!world.received().contains(&"-east".to_owned()));
    }
}
