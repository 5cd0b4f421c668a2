//! Tests of the limits of sources.

use super::*;
use crate::store::ObjectName;
use strait_base::task::Supervisor;
use strait_kube_client::{Loopback, Redacted};

const KUBECONFIG: &str = "clusters: [{name: a, cluster: {server: 'https://a.example.org'}}]
users: [{name: a, user: {token: canary}}]
contexts: [{name: a, context: {cluster: a, user: a}}]";

fn file(rest: &str) -> MemberSources {
    let text = format!("apiVersion: strait.dev/v1\nkind: MemberSources\n{rest}");
    MemberSources::parse(&text).expect("a valid file")
}

/// Returns the refusal of cluster `east` in a Secret of the source `capi` under this file.
fn refusal(source: Option<&str>, rest: &str) -> Option<String> {
    let secret = WatchedSecret {
        name: ObjectName::new("capi", "east"),
        labels: [("tier".to_owned(), "prod".to_owned())].into(),
        source: source.map(Into::into),
        data: [("east".to_owned(), Redacted::new(KUBECONFIG.as_bytes().to_vec()))].into(),
        ..WatchedSecret::default()
    };
    let read = MemberSecret::read(&secret, Loopback::Refused);
    let book = TokenBook::new(None, &Supervisor::new());
    let resolved = resolve(&secret, &read, &file(rest), &book);
    let member = resolved.clusters[&ClusterId::from("east")].as_ref();
    member.err().map(|refusal| {
        assert_eq!(refusal.code.id, "STR0224");
        refusal.fact.clone()
    })
}

#[tokio::test]
async fn secret_of_a_source_defines_only_what_the_current_file_permits() {
    assert_eq!(refusal(None, ""), None, "a Secret of the system namespace");
    let source = |name: &str, namespace: &str, selector: &str, ids: &str| {
        let secrets = format!("{{namespace: {namespace}, selector: {selector}}}");
        format!("sources: [{{name: {name}, secrets: {secrets}, ids: ['{ids}']}}]")
    };
    for (file, fact) in [
        (source("capi", "capi", "tier=prod", "*"), None),
        (source("capi", "capi", "tier=prod", "west"), Some("may define west, not east")),
        (String::new(), Some("the --members file no longer has source capi")),
        (source("other", "capi", "tier=prod", "*"), Some("no longer has source capi")),
        (source("capi", "other", "tier=prod", "*"), Some("no longer selects the Secret")),
        (source("capi", "capi", "tier=test", "*"), Some("no longer selects the Secret")),
        (
            "sources: [{name: capi, clusterProfiles: {namespace: capi}, ids: ['*']}]".to_owned(),
            Some("no longer selects the Secret"),
        ),
    ] {
        let found = refusal(Some("capi"), &file);
        match fact {
            None => assert_eq!(found, None, "{file}"),
            Some(fact) => assert!(found.as_ref().is_some_and(|f| f.contains(fact)), "{found:?}"),
        }
    }
}
