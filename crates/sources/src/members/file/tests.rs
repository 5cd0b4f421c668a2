//! Tests of the schema of the operator file.

use super::*;

/// Every field of the schema.
const COMPLETE: &str = r#"
apiVersion: strait.dev/v1
kind: MemberSources
sources:
- {name: capi, secrets: {namespace: capi-prod, selector: strait.dev/cluster=true}, ids: ["prod-*"]}
- {name: all, secrets: {namespace: all}, ids: ["*"]}
- {name: fleet, clusterProfiles: {namespace: fleet, selector: tier=prod}, placement: {namespace: fleet, decisionKey: k}, ids: ["*"]}
access:
- {provider: open-cluster-management, secretReader: {namespace: fleet, name: "{clusterName}-x", key: token}}
- {provider: b, kubeconfigSecretReader: {namespaces: [fleet]}}
- {provider: c, identity: gke}
- {provider: d, program: {command: /plugins/d, args: [a], env: [{name: A, value: b}]}, servers: ["*.corp.example"], profileArguments: {allow: [--region]}}
identities:
- {name: eks, aws: {region: eu-north-1, podIdentity: {url: "http://169.254.170.23/v1/credentials", tokenFile: /t}, assumeRole: "arn:aws:iam::1:role/r", endpoint: "https://sts.corp.example", roots: /r}}
- {name: irsa, servers: ["*.eks.amazonaws.com"], aws: {region: eu-north-1, webIdentity: {roleArn: "arn:aws:iam::1:role/r", tokenFile: /t, durationSeconds: 900}}}
- {name: bare, aws: {region: eu-north-1}}
- {name: gke, google: {}}
- {name: gke2, google: {metadata: {endpoint: "http://127.0.0.1:80"}, roots: /r}}
- {name: gke3, google: {workloadIdentityFederation: {audience: a, tokenFile: /t, endpoint: "https://sts.example", serviceAccount: s}}}
- {name: aks, azure: {tenant: t, clientId: c, tokenFile: /t, authority: "https://login.example", roots: /r}}
- {name: ex, servers: [a.example], exchange: {endpoint: "https://e.example", tokenFile: /t, audience: "a-{id}", scope: s, roots: /r}}
- {name: hub, servers: ["10.0.0.0/8"], kubernetes: {serviceAccount: strait-system/reader, audience: "strait-member-{id}"}}
- {name: file, servers: [10.0.0.1], tokenFile: /t}
proxies:
- {name: corp, url: "https://proxy.corp.example:3129", roots: /r, cert: /c, key: /k, authorizationFile: /a, servers: ["10.8.0.0/16"]}
- {name: plain, url: "http://127.0.0.1:3128", servers: [a.example]}
- {name: socks, url: "socks5://10.0.0.1:1080", servers: [a.example]}
publishProfiles: {namespace: fleet}
"#;

#[test]
fn complete_file_is_valid() {
    let sources = MemberSources::parse(COMPLETE).expect("valid");
    assert_eq!(sources.sources.len(), 3);
    assert_eq!(sources.secret_sources().count(), 2);
    let (order, capi) = sources.source("capi").expect("it exists");
    assert_eq!(order, 1);
    assert!(capi.may_define("prod-eu") && !capi.may_define("test"));
    let eks = sources.identity("eks").expect("it exists");
    assert!(eks.may_reach("A.gr7.eu-north-1.eks.amazonaws.com") && !eks.may_reach("evil.example"));
    let hub = sources.identity("hub").expect("it exists");
    assert!(hub.may_reach("10.1.2.3") && !hub.may_reach("11.1.2.3"));
    let corp = sources.proxy("corp").expect("it exists");
    assert!(corp.may_reach("10.8.1.1") && !corp.may_reach("10.9.1.1"));
    assert!(corp.has_url("https://proxy.corp.example:3129/"));
    assert!(!corp.has_url("http://proxy.corp.example:3129"));
    assert_eq!(sources.publish_profiles.as_deref(), Some("fleet"));
    assert_eq!(sources.unused, [""; 0]);
    let minimal = "apiVersion: strait.dev/v1\nkind: MemberSources\n";
    assert_eq!(MemberSources::parse(minimal), Ok(MemberSources::default()));
}

/// Returns the error of a file with this text after the header.
fn error(text: &str) -> String {
    let text = format!("apiVersion: strait.dev/v1\nkind: MemberSources\n{text}\n");
    MemberSources::parse(&text).expect_err(&text).to_string()
}

#[test]
fn invalid_field_is_named() {
    for (text, field) in [
        ("extra: 1", "extra"),
        (
            "sources: [{name: a, secrets: {namespace: a}, ids: [a], other: 1}]",
            "sources[0]: unknown field `other`",
        ),
        (
            "sources: [{name: a, secrets: {namespace: a, labels: x}, ids: [a]}]",
            "sources[0].secrets: unknown field `labels`",
        ),
        ("sources: [{name: a, secrets: {namespace: a}}]", "sources[0]: missing field `ids`"),
        ("sources: [{name: a, secrets: {namespace: a}, ids: []}]", "sources[0].ids"),
        ("sources: [{name: a, secrets: {namespace: a}, ids: [A]}]", "sources[0].ids[0]"),
        ("sources: [{name: a, secrets: {namespace: A}, ids: [a]}]", "sources[0].secrets.namespace"),
        (
            "sources: [{name: a, secrets: {namespace: a, selector: 'a b'}, ids: [a]}]",
            "sources[0].secrets.selector",
        ),
        ("sources: [{name: a, ids: [a]}]", "sources[0]: needs exactly one"),
        (
            "sources: [{name: a, secrets: {namespace: a}, clusterProfiles: {namespace: a}, ids: [a]}]",
            "sources[0]: needs exactly one",
        ),
        (
            "sources: [{name: a, secrets: {namespace: a}, placement: {namespace: a, decisionKey: k}, ids: [a]}]",
            "sources[0].placement",
        ),
        ("sources: [{name: system, secrets: {namespace: a}, ids: [a]}]", "sources[0].name"),
        ("sources: [{name: '', secrets: {namespace: a}, ids: [a]}]", "sources[0].name"),
        (
            "sources: [{name: a, secrets: {namespace: a}, ids: [a]}, {name: a, secrets: {namespace: b}, ids: [a]}]",
            "sources[1].name",
        ),
        ("access: [{provider: a, identity: b}]", "access[0].identity"),
        ("access: [{provider: a}]", "access[0]: needs exactly one"),
        ("access: [{provider: a, program: {command: /a}}]", "access[0].servers"),
        ("access: [{provider: a, program: {command: a}, servers: ['*']}]", "access[0].servers[0]"),
        (
            "access: [{provider: a, secretReader: {namespace: a, name: '{other}'}}]",
            "access[0].secretReader.name",
        ),
        ("identities: [{name: a, servers: [a.b]}]", "identities[0]: needs exactly one"),
        (
            "identities: [{name: a, servers: [a.b], tokenFile: /t, aws: {region: r}}]",
            "identities[0]: needs exactly one",
        ),
        ("identities: [{name: a, tokenFile: /t}]", "identities[0].servers"),
        ("identities: [{name: a, kubernetes: {serviceAccount: a/b}}]", "identities[0].servers"),
        (
            "identities: [{name: a, exchange: {endpoint: 'https://e.example', tokenFile: /t}}]",
            "identities[0].servers",
        ),
        ("identities: [{name: a, servers: ['*'], tokenFile: /t}]", "identities[0].servers[0]"),
        (
            "identities: [{name: a, servers: ['a.b:443'], tokenFile: /t}]",
            "identities[0].servers[0]",
        ),
        ("identities: [{name: a, servers: [], tokenFile: /t}]", "identities[0].servers"),
        (
            "identities: [{name: a, servers: [a.b], kubernetes: {serviceAccount: b}}]",
            "identities[0].kubernetes.serviceAccount",
        ),
        (
            "identities: [{name: a, servers: [a.b], kubernetes: {serviceAccount: a/b, audience: '{x}'}}]",
            "identities[0].kubernetes.audience",
        ),
        (
            "identities: [{name: a, aws: {region: r, profile: p}}]",
            "identities[0].aws: unknown field `profile`",
        ),
        (
            "identities: [{name: a, aws: {region: r, endpoint: 'http://sts.example'}}]",
            "identities[0].aws.endpoint",
        ),
        (
            "identities: [{name: a, aws: {region: r, podIdentity: {url: 'http://10.0.0.1', tokenFile: /t}}}]",
            "identities[0].aws.podIdentity.url",
        ),
        (
            "identities: [{name: a, aws: {region: r, webIdentity: {roleArn: 'arn:a', tokenFile: /t, durationSeconds: 60}}}]",
            "identities[0].aws.webIdentity.durationSeconds",
        ),
        (
            "identities: [{name: a, tokenFile: /t, servers: [a.b]}, {name: a, tokenFile: /t, servers: [a.b]}]",
            "identities[1].name",
        ),
        ("proxies: [{name: a, url: 'http://p', servers: [a.b]}]", "proxies[0].url"),
        ("proxies: [{name: a, url: 'ftp://p:1', servers: [a.b]}]", "proxies[0].url"),
        ("proxies: [{name: a, url: 'http://u@p:1', servers: [a.b]}]", "proxies[0].url"),
        ("proxies: [{name: a, url: 'http://p:1'}]", "proxies[0]: missing field `servers`"),
        ("proxies: [{name: a, url: 'https://p:1', cert: /c, servers: [a.b]}]", "proxies[0]"),
        ("publishProfiles: {}", "publishProfiles: missing field `namespace`"),
    ] {
        let error = error(text);
        assert!(error.contains(field), "{text}: {error}");
    }
    for text in [
        "",
        "apiVersion: strait.dev/v2\nkind: MemberSources",
        "apiVersion: strait.dev/v1\nkind: Policy",
        "[]",
        "a: b: c",
    ] {
        assert!(MemberSources::parse(text).is_err(), "{text}");
    }
}
