//! Argo CD's cluster Secrets: `server`, `config` (the JSON of `ClusterConfig`), `namespaces`.

use std::collections::BTreeSet;

use serde::Deserialize;
use serde_json::Value;

use super::object::{IdentityChoice, MemberObject, MemberReach, ambiguous};
use crate::clusters::kubeconfig::{
    BYTES_MAX, CredentialText, KubeconfigRefusal, ProxyUrl, authority, program_fact, server_name,
    server_uri,
};
use strait_base::codes;
use strait_kube_client::{Access, ApiCredential};
use strait_model::ReadNamespaces;

/// The host under which Argo CD registers the cluster that it runs in.
const OWN_CLUSTER: &str = "kubernetes.default.svc";

/// The fields of `config`. Other fields are refused, so that no future feature is silently ignored.
#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct ClusterConfig {
    username: String,
    password: String,
    bearer_token: String,
    tls_client_config: Option<TlsClientConfig>,
    aws_auth_config: Option<AwsAuthConfig>,
    exec_provider_config: Option<Value>,
    proxy_url: String,
    #[serde(rename = "disableCompression")]
    _disable_compression: bool,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct TlsClientConfig {
    insecure: bool,
    server_name: Option<String>,
    ca_data: Option<String>,
    cert_data: Option<String>,
    key_data: Option<String>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct AwsAuthConfig {
    cluster_name: Option<String>,
    #[serde(rename = "roleARN")]
    role_arn: Option<String>,
    profile: Option<String>,
}

/// Reads how to reach the cluster of a Secret.
pub(super) fn read(object: &MemberObject<'_>) -> Result<(Access, MemberReach), KubeconfigRefusal> {
    let refused = |field: &str, fact: &str| KubeconfigRefusal::new(&codes::ARGO_CD, field, fact);
    let config = config(object)?;
    if let Some(exec) = &config.exec_provider_config {
        let field = "config.execProviderConfig";
        return Err(KubeconfigRefusal::new(&codes::RUNS_PROGRAM, field, program_fact(exec)));
    }
    let tls = config.tls_client_config.unwrap_or_default();
    if tls.insecure {
        let field = "config.tlsClientConfig.insecure";
        return Err(KubeconfigRefusal::new(
            &codes::SKIPS_VERIFICATION,
            field,
            "skips TLS verification",
        ));
    }
    let proxy_url = (!config.proxy_url.is_empty())
        .then(|| ProxyUrl { url: config.proxy_url, field: "config.proxyUrl".to_owned() });
    let other = object.server_override();
    let server = match (other.server, text(object, "server")?) {
        (Some((field, url)), _) => server_uri(url, object.loopback, field)?,
        (None, Some(url)) => server_uri(url.trim(), object.loopback, "server")?,
        (None, None) => return Err(refused("server", "is missing")),
    };
    let host = server.host().unwrap_or_default().trim_end_matches('.').to_ascii_lowercase();
    if host == OWN_CLUSTER || host.starts_with(&format!("{OWN_CLUSTER}.")) {
        let fact = "is the cluster that Argo CD runs in, which is the config cluster";
        return Err(refused("server", fact));
    }
    let named = |text: Option<String>| text.filter(|text| !text.is_empty());
    let [ca, certificate, key] = [tls.ca_data, tls.cert_data, tls.key_data].map(named);
    let [token, username] = [config.bearer_token, config.username].map(|text| named(Some(text)));
    let kinds = [
        token.is_some(),
        username.is_some(),
        certificate.is_some(),
        config.aws_auth_config.is_some(),
    ];
    if kinds.into_iter().filter(|is_set| *is_set).count() > 1 {
        let fact = "contains more than one of bearerToken, username, certData and awsAuthConfig";
        return Err(refused("config", fact));
    }
    let credential = CredentialText {
        token: token.as_deref(),
        username: username.as_deref(),
        password: Some(config.password.as_str()),
        certificate_data: certificate.as_deref(),
        key_data: key.as_deref(),
    };
    let credential = credential.read(|name| format!("config.{}", field_name(name)))?;
    let mut reach = object.reach(&credential)?.with_proxy_url(proxy_url);
    if let Some(aws) = config.aws_auth_config {
        if named(aws.profile).is_some() {
            let fact = "names a profile, which is a file; use an identity of type aws";
            return Err(refused("config.awsAuthConfig.profile", fact));
        }
        let role = named(aws.role_arn).map(Into::into);
        // An identity that the annotation names takes precedence over a search for one.
        reach.identity.get_or_insert(IdentityChoice::Aws { role });
        let cluster = named(aws.cluster_name).map(Into::into);
        reach.identity_cluster = reach.identity_cluster.or(cluster);
    }
    if reach.identity.is_some() && credential != ApiCredential::None {
        return Err(ambiguous("config".to_owned()));
    }
    let is_wide = text(object, "clusterResources")?.is_some_and(|text| text.trim() == "true");
    let listed = text(object, "namespaces")?.filter(|_| !is_wide).unwrap_or_default();
    let listed: BTreeSet<&str> =
        listed.split(',').map(str::trim).filter(|name| !name.is_empty()).collect();
    if !listed.is_empty() && reach.namespaces.is_whole() {
        reach.namespaces =
            ReadNamespaces::of(listed).map_err(|fact| refused("namespaces", &fact))?;
    }
    let server_name = match (other.tls_server_name, named(tls.server_name)) {
        (Some((field, name)), _) => Some(server_name(name, field)?),
        (None, Some(name)) => Some(server_name(&name, "config.tlsClientConfig.serverName")?),
        (None, None) => None,
    };
    let access = Access {
        server,
        ca_pem: ca.map(|ca| authority(&ca, "config.tlsClientConfig.caData")).transpose()?,
        tls_server_name: server_name,
        credential,
        loopback: object.loopback,
        proxy: None,
    };
    Ok((access, reach))
}

/// Converts the name of a credential's field from a kubeconfig to Argo CD's JSON.
fn field_name(name: &str) -> &str {
    match name {
        "token" => "bearerToken",
        "client-certificate-data" => "tlsClientConfig.certData",
        "client-key-data" => "tlsClientConfig.keyData",
        other => other,
    }
}

fn config(object: &MemberObject<'_>) -> Result<ClusterConfig, KubeconfigRefusal> {
    let refused = |fact: String| KubeconfigRefusal::new(&codes::ARGO_CD, "config", fact);
    let Some(text) = text(object, "config")?.filter(|text| !text.trim().is_empty()) else {
        return Ok(ClusterConfig::default());
    };
    if text.len() > BYTES_MAX {
        return Err(refused(format!("has {} bytes, at most {BYTES_MAX} are read", text.len())));
    }
    // The parser's text may quote a credential: only the line of the error is shown.
    let parsed: Value = serde_json::from_str(text)
        .map_err(|error| refused(format!("is not JSON (line {})", error.line())))?;
    // A list would be parsed as the values of the fields in their order.
    if !parsed.is_object() {
        return Err(refused("is not a map".to_owned()));
    }
    let parsed = without_nulls(parsed);
    if let Some((field, expected)) = wrong_type(&parsed) {
        let fact = format!("has the wrong type; it must be {expected}");
        return Err(KubeconfigRefusal::new(&codes::ARGO_CD, format!("config.{field}"), fact));
    }
    serde_json::from_value(parsed).map_err(|error| {
        refused(format!("has an unusable field: {}", field_of(&error.to_string())))
    })
}

/// The types of the fields of `config`.
const FIELD_TYPES: [(&str, &[&str]); 3] = [
    ("a JSON object", &["tlsClientConfig", "awsAuthConfig", "execProviderConfig"]),
    ("true or false, without quotes", &["disableCompression", "tlsClientConfig.insecure"]),
    (
        "a string",
        &[
            "username",
            "password",
            "bearerToken",
            "proxyUrl",
            "tlsClientConfig.serverName",
            "tlsClientConfig.caData",
            "tlsClientConfig.certData",
            "tlsClientConfig.keyData",
            "awsAuthConfig.clusterName",
            "awsAuthConfig.roleARN",
            "awsAuthConfig.profile",
        ],
    ),
];

/// Returns the first field with a value of the wrong type, and the expected type. The value may be a
/// credential, and is not shown.
fn wrong_type(config: &Value) -> Option<(&'static str, &'static str)> {
    FIELD_TYPES.iter().find_map(|(expected, fields)| {
        let is_wrong = |field: &&&str| {
            let value = field.split('.').try_fold(config, |value, name| value.get(name));
            value.is_some_and(|value| match *expected {
                "a string" => !value.is_string(),
                "a JSON object" => !value.is_object(),
                _ => !value.is_boolean(),
            })
        };
        fields.iter().find(is_wrong).map(|field| (*field, *expected))
    })
}

/// Removes fields that are null: in Go, a null field and an absent field have the same meaning.
fn without_nulls(value: Value) -> Value {
    match value {
        Value::Object(map) => map
            .into_iter()
            .filter(|(_, value)| !value.is_null())
            .map(|(key, value)| (key, without_nulls(value)))
            .collect(),
        other => other,
    }
}

/// Returns the part of a parser's message that names fields and types. A message about a value of
/// the wrong type quotes it.
fn field_of(message: &str) -> &str {
    match message.starts_with("unknown field") {
        true => message,
        false => "a value has the wrong type",
    }
}

fn text<'a>(object: &MemberObject<'a>, key: &str) -> Result<Option<&'a str>, KubeconfigRefusal> {
    let Some(bytes) = object.secret.data.get(key) else { return Ok(None) };
    let text = std::str::from_utf8(bytes.reveal())
        .map_err(|_| KubeconfigRefusal::new(&codes::ARGO_CD, key, "is not UTF-8"))?;
    Ok(Some(text))
}
