//! Parsing of the operator file.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;

use super::access_text::access;
use super::checked::{Checked, Entry, filled, invalid, namespace, read, server_list};
use super::endpoint::{OperatorUrl, parse_proxy_url};
use super::selector::{SelectorExpression, is_plain};
use super::servers::ServerPattern;
use super::{
    AwsCredentials, AwsIdentity, AzureIdentity, ExchangeIdentity, GoogleCredentials,
    GoogleFederation, GoogleIdentity, IdentityKind, MemberIdentity, MemberProxy, MemberSources,
    ObjectSelection, PlacementSelection, SYSTEM_SOURCE, Source, SourceObjects,
};
use strait_kube_client::ConnectProxy;
use strait_model::policy::InvalidPolicy;

/// Maximum size of the file in bytes.
const BYTES_MAX: usize = 1 << 20;
const API_VERSION: &str = "strait.dev/v1";
const KIND: &str = "MemberSources";
/// The audience of the tokens for a member.
const AUDIENCE: &str = "strait-member-{id}";
/// The lifetime of AWS credentials in seconds: the default, and the range that STS accepts.
const WEB_IDENTITY_SECONDS: u64 = 3600;
const WEB_IDENTITY_RANGE: std::ops::RangeInclusive<u64> = 900..=43_200;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct FileText {
    api_version: String,
    kind: String,
    #[serde(default)]
    sources: Vec<Entry>,
    #[serde(default)]
    access: Vec<Entry>,
    #[serde(default)]
    identities: Vec<Entry>,
    #[serde(default)]
    proxies: Vec<Entry>,
    publish_profiles: Option<Entry>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct MemberSourceText {
    name: String,
    secrets: Option<SelectionText>,
    cluster_profiles: Option<SelectionText>,
    placement: Option<PlacementText>,
    ids: Vec<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct SelectionText {
    namespace: String,
    #[serde(default)]
    selector: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct PlacementText {
    namespace: String,
    decision_key: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct IdentityText {
    name: String,
    servers: Option<Vec<String>>,
    aws: Option<Entry>,
    google: Option<Entry>,
    azure: Option<Entry>,
    exchange: Option<Entry>,
    kubernetes: Option<Entry>,
    token_file: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct AwsText {
    region: String,
    pod_identity: Option<PodIdentityText>,
    web_identity: Option<WebIdentityText>,
    assume_role: Option<String>,
    endpoint: Option<String>,
    roots: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct PodIdentityText {
    url: String,
    token_file: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct WebIdentityText {
    role_arn: String,
    token_file: String,
    duration_seconds: Option<u64>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct GoogleText {
    metadata: Option<MetadataText>,
    workload_identity_federation: Option<FederationText>,
    roots: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct MetadataText {
    endpoint: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct FederationText {
    audience: String,
    token_file: String,
    endpoint: Option<String>,
    service_account: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct AzureText {
    tenant: String,
    client_id: String,
    token_file: String,
    authority: Option<String>,
    roots: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ExchangeText {
    endpoint: String,
    token_file: String,
    audience: Option<String>,
    scope: Option<String>,
    roots: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct KubernetesIdentityText {
    service_account: String,
    audience: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ProxyText {
    name: String,
    url: String,
    roots: Option<String>,
    cert: Option<String>,
    key: Option<String>,
    authorization_file: Option<String>,
    servers: Vec<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct PublishText {
    namespace: String,
}

impl MemberSources {
    /// Parses the text of an operator file. Reads no other file.
    ///
    /// # Errors
    /// Returns the first problem, with the field.
    pub fn parse(text: &str) -> Result<Self, InvalidPolicy> {
        if text.len() > BYTES_MAX {
            return invalid("", format!("the file is larger than {} MiB", BYTES_MAX >> 20));
        }
        let file: FileText = InvalidPolicy::parse(text)?;
        if file.api_version != API_VERSION {
            return invalid("apiVersion", format!("is {:?}, not {API_VERSION}", file.api_version));
        }
        if file.kind != KIND {
            return invalid("kind", format!("is {:?}, not {KIND}", file.kind));
        }
        let sources = list(file.sources, "sources", source)?;
        distinct("sources", sources.iter().map(|source| &*source.name))?;
        let identities = list(file.identities, "identities", identity)?;
        distinct("identities", identities.iter().map(|identity| &*identity.name))?;
        let proxies = list(file.proxies, "proxies", proxy)?;
        distinct("proxies", proxies.iter().map(|proxy| &*proxy.name))?;
        let is_identity = |name: &str| identities.iter().any(|one| *one.name == *name);
        let access = list(file.access, "access", |field, text| access(field, text, &is_identity))?;
        let publish_profiles = match file.publish_profiles {
            None => None,
            Some(entry) => {
                let text: PublishText = read("publishProfiles", entry)?;
                namespace("publishProfiles.namespace", &text.namespace)?;
                Some(text.namespace.into())
            }
        };
        let unused = Vec::new();
        Ok(Self { sources, identities, proxies, access, publish_profiles, unused })
    }
}

/// Checks each entry of a list.
fn list<T>(
    entries: Vec<Entry>,
    name: &str,
    check: impl Fn(&str, Entry) -> Checked<T>,
) -> Checked<Vec<T>> {
    let check = |(at, entry)| check(&format!("{name}[{at}]"), entry);
    entries.into_iter().enumerate().map(check).collect()
}

fn distinct<'a>(list: &str, names: impl Iterator<Item = &'a str>) -> Checked<()> {
    let mut seen = BTreeSet::new();
    for (at, name) in names.enumerate() {
        if !seen.insert(name) {
            return invalid(format!("{list}[{at}].name"), format!("{name:?} is used twice"));
        }
    }
    Ok(())
}

fn name(field: &str, text: String) -> Checked<Arc<str>> {
    match (1..=63).contains(&text.len()) && text.bytes().all(is_plain) {
        true => Ok(text.into()),
        false => invalid(
            format!("{field}.name"),
            "is not a name of 1 to 63 letters, digits, '-', '_' and '.'",
        ),
    }
}

/// Whether a text contains only lower-case letters, digits and `also`.
fn is_lower(text: &str, also: &[u8]) -> bool {
    let is_allowed =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || also.contains(&byte);
    text.bytes().all(is_allowed)
}

fn selection(field: &str, text: SelectionText) -> Checked<ObjectSelection> {
    namespace(&format!("{field}.namespace"), &text.namespace)?;
    let selector = SelectorExpression::parse(&text.selector)
        .or_else(|fact| invalid(format!("{field}.selector"), fact))?;
    Ok(ObjectSelection { namespace: text.namespace.into(), selector })
}

fn source(field: &str, entry: Entry) -> Checked<Source> {
    let text: MemberSourceText = read(field, entry)?;
    let name = name(field, text.name)?;
    if *name == *SYSTEM_SOURCE {
        let fact = "\"system\" is the name of the system namespace as a source";
        return invalid(format!("{field}.name"), fact);
    }
    if text.ids.is_empty() {
        return invalid(format!("{field}.ids"), "is empty, so no cluster could be defined");
    }
    for (at, pattern) in text.ids.iter().enumerate() {
        if pattern.is_empty() || !is_lower(pattern, b"-.*") {
            let fact = format!("{pattern:?} can match no cluster ID");
            return invalid(format!("{field}.ids[{at}]"), fact);
        }
    }
    let objects = match (text.secrets, text.cluster_profiles) {
        (Some(secrets), None) => {
            if text.placement.is_some() {
                let fact = "is only possible with clusterProfiles";
                return invalid(format!("{field}.placement"), fact);
            }
            SourceObjects::Secrets(selection(&format!("{field}.secrets"), secrets)?)
        }
        (None, Some(profiles)) => {
            let placement = match text.placement {
                None => None,
                Some(PlacementText { namespace: place, decision_key }) => {
                    namespace(&format!("{field}.placement.namespace"), &place)?;
                    let is_value = (1..=63).contains(&decision_key.len())
                        && decision_key.bytes().all(is_plain);
                    if !is_value {
                        let fact = format!("{decision_key:?} is not the value of a label");
                        return invalid(format!("{field}.placement.decisionKey"), fact);
                    }
                    Some(PlacementSelection { namespace: place.into(), decision_key })
                }
            };
            let selection = selection(&format!("{field}.clusterProfiles"), profiles)?;
            SourceObjects::ClusterProfiles { selection, placement }
        }
        _ => return invalid(field, "needs exactly one selection: secrets or clusterProfiles"),
    };
    Ok(Source { name, objects, ids: text.ids })
}

fn identity(field: &str, entry: Entry) -> Checked<MemberIdentity> {
    let text: IdentityText = read(field, entry)?;
    let name = name(field, text.name)?;
    let at = |kind: &str| format!("{field}.{kind}");
    let mut kinds = Vec::new();
    if let Some(entry) = text.aws {
        kinds.push(("aws", aws(&at("aws"), entry)?));
    }
    if let Some(entry) = text.google {
        kinds.push(("google", google(&at("google"), entry)?));
    }
    if let Some(entry) = text.azure {
        kinds.push(("azure", azure(&at("azure"), entry)?));
    }
    if let Some(entry) = text.exchange {
        kinds.push(("exchange", exchange(&at("exchange"), entry)?));
    }
    if let Some(entry) = text.kubernetes {
        kinds.push(("kubernetes", kubernetes(&at("kubernetes"), entry)?));
    }
    if let Some(path) = text.token_file {
        filled(at("tokenFile"), &path)?;
        kinds.push(("tokenFile", IdentityKind::TokenFile(path.into())));
    }
    let count = kinds.len();
    let Some((kind_name, kind)) = kinds.pop().filter(|_| count == 1) else {
        let fact = "needs exactly one type: aws, google, azure, exchange, kubernetes or tokenFile";
        return invalid(field, fact);
    };
    let servers = match (text.servers, kind_name) {
        (Some(servers), _) => server_list(field, servers)?,
        (None, "aws") => vec![
            ServerPattern::Below("eks.amazonaws.com".to_owned()),
            ServerPattern::Below("eks.amazonaws.com.cn".to_owned()),
        ],
        (None, "google") => vec![
            ServerPattern::Below("gke.goog".to_owned()),
            ServerPattern::EndsWith("connectgateway.googleapis.com"),
        ],
        (None, "azure") => vec![ServerPattern::Below("azmk8s.io".to_owned())],
        (None, kind) => {
            let fact = format!(
                "is missing: a token of type {kind} is sent only to the servers that it lists"
            );
            return invalid(format!("{field}.servers"), fact);
        }
    };
    Ok(MemberIdentity { name, servers, kind })
}

fn endpoint(field: String, text: Option<String>) -> Checked<Option<OperatorUrl>> {
    let parse = |text: String| OperatorUrl::parse(&text).or_else(|fact| invalid(&field, fact));
    text.map(parse).transpose()
}

fn aws(field: &str, entry: Entry) -> Checked<IdentityKind> {
    let text: AwsText = read(field, entry)?;
    if text.region.is_empty() || !is_lower(&text.region, b"-") {
        let fact = format!("{:?} is not a region (example: eu-north-1)", text.region);
        return invalid(format!("{field}.region"), fact);
    }
    let role = |field: String, text: String| match text.starts_with("arn:") {
        true => Ok(text),
        false => invalid(field, "is not the ARN of a role"),
    };
    let credentials = match (text.pod_identity, text.web_identity) {
        (Some(_), Some(_)) => {
            return invalid(field, "has podIdentity and webIdentity; remove one");
        }
        (Some(agent), None) => {
            let url = format!("{field}.podIdentity.url");
            filled(format!("{field}.podIdentity.tokenFile"), &agent.token_file)?;
            Some(AwsCredentials::PodIdentity {
                url: OperatorUrl::parse(&agent.url).or_else(|fact| invalid(url, fact))?,
                token_file: agent.token_file.into(),
            })
        }
        (None, Some(web)) => {
            let seconds = web.duration_seconds.unwrap_or(WEB_IDENTITY_SECONDS);
            if !WEB_IDENTITY_RANGE.contains(&seconds) {
                let fact = format!("is {seconds}; STS accepts 900 to 43200");
                return invalid(format!("{field}.webIdentity.durationSeconds"), fact);
            }
            filled(format!("{field}.webIdentity.tokenFile"), &web.token_file)?;
            Some(AwsCredentials::WebIdentity {
                role: role(format!("{field}.webIdentity.roleArn"), web.role_arn)?,
                token_file: web.token_file.into(),
                lifetime: Duration::from_secs(seconds),
            })
        }
        (None, None) => None,
    };
    let assumed = text.assume_role.map(|arn| role(format!("{field}.assumeRole"), arn));
    Ok(IdentityKind::Aws(AwsIdentity {
        region: text.region,
        credentials,
        assume_role: assumed.transpose()?,
        endpoint: endpoint(format!("{field}.endpoint"), text.endpoint)?,
        roots: text.roots.map(Into::into),
    }))
}

fn google(field: &str, entry: Entry) -> Checked<IdentityKind> {
    let text: GoogleText = read(field, entry)?;
    if text.metadata.is_some() && text.workload_identity_federation.is_some() {
        let fact = "has metadata and workloadIdentityFederation; remove one";
        return invalid(field, fact);
    }
    optional(format!("{field}.roots"), text.roots.as_deref())?;
    let credentials = match text.workload_identity_federation {
        None => GoogleCredentials::Metadata {
            endpoint: endpoint(
                format!("{field}.metadata.endpoint"),
                text.metadata.and_then(|metadata| metadata.endpoint),
            )?,
        },
        Some(federation) => {
            let field = format!("{field}.workloadIdentityFederation");
            filled(format!("{field}.audience"), &federation.audience)?;
            filled(format!("{field}.tokenFile"), &federation.token_file)?;
            if let Some(account) = &federation.service_account {
                path_segment(format!("{field}.serviceAccount"), account)?;
            }
            GoogleCredentials::Federation(GoogleFederation {
                audience: federation.audience,
                token_file: federation.token_file.into(),
                endpoint: endpoint(format!("{field}.endpoint"), federation.endpoint)?,
                service_account: federation.service_account,
            })
        }
    };
    Ok(IdentityKind::Google(GoogleIdentity { credentials, roots: text.roots.map(Into::into) }))
}

fn azure(field: &str, entry: Entry) -> Checked<IdentityKind> {
    let text: AzureText = read(field, entry)?;
    path_segment(format!("{field}.tenant"), &text.tenant)?;
    filled(format!("{field}.clientId"), &text.client_id)?;
    filled(format!("{field}.tokenFile"), &text.token_file)?;
    optional(format!("{field}.roots"), text.roots.as_deref())?;
    Ok(IdentityKind::Azure(AzureIdentity {
        tenant: text.tenant,
        client_id: text.client_id,
        token_file: text.token_file.into(),
        authority: endpoint(format!("{field}.authority"), text.authority)?,
        roots: text.roots.map(Into::into),
    }))
}

fn exchange(field: &str, entry: Entry) -> Checked<IdentityKind> {
    let text: ExchangeText = read(field, entry)?;
    let url = OperatorUrl::parse(&text.endpoint);
    filled(format!("{field}.tokenFile"), &text.token_file)?;
    optional(format!("{field}.scope"), text.scope.as_deref())?;
    optional(format!("{field}.roots"), text.roots.as_deref())?;
    Ok(IdentityKind::Exchange(ExchangeIdentity {
        endpoint: url.or_else(|fact| invalid(format!("{field}.endpoint"), fact))?,
        token_file: text.token_file.into(),
        audience: audience(&format!("{field}.audience"), text.audience)?,
        scope: text.scope,
        roots: text.roots.map(Into::into),
    }))
}

/// Checks a text that becomes one segment of a URL's path.
fn path_segment(field: String, text: &str) -> Checked<()> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.@".contains(&byte);
    match !text.is_empty() && text.bytes().all(is_plain) && !text.starts_with('.') {
        true => Ok(()),
        false => invalid(field, format!("{text:?} has a character that no such name has")),
    }
}

fn kubernetes(field: &str, entry: Entry) -> Checked<IdentityKind> {
    let text: KubernetesIdentityText = read(field, entry)?;
    let account = format!("{field}.serviceAccount");
    let Some((in_namespace, name)) = text.service_account.split_once('/') else {
        return invalid(account, "is not NAMESPACE/NAME");
    };
    namespace(&account, in_namespace)?;
    if name.is_empty() || !is_lower(name, b"-.") || name.starts_with('.') {
        return invalid(account, "is not NAMESPACE/NAME");
    }
    Ok(IdentityKind::Kubernetes {
        namespace: in_namespace.to_owned(),
        account: name.to_owned(),
        audience: audience(&format!("{field}.audience"), text.audience)?,
    })
}

/// Returns an audience, in which `{id}` is the only placeholder.
fn audience(field: &str, text: Option<String>) -> Checked<String> {
    let text = text.unwrap_or_else(|| AUDIENCE.to_owned());
    filled(field.to_owned(), &text)?;
    match text.replace("{id}", "").contains(['{', '}']) {
        true => invalid(field, "may only contain the placeholder {id}"),
        false => Ok(text),
    }
}

fn optional(field: String, text: Option<&str>) -> Checked<()> {
    text.map_or(Ok(()), |text| filled(field, text))
}

fn proxy(field: &str, entry: Entry) -> Checked<MemberProxy> {
    let text: ProxyText = read(field, entry)?;
    let name = name(field, text.name)?;
    let url = parse_proxy_url(&text.url).or_else(|fact| invalid(format!("{field}.url"), fact))?;
    let scheme = url.scheme_str();
    let certificate = match (&text.cert, &text.key) {
        (Some(certificate), Some(key)) => Some((certificate.into(), key.into())),
        (None, None) => None,
        _ => return invalid(field, "has cert without key, or key without cert"),
    };
    if scheme != Some("https") && (text.roots.is_some() || text.cert.is_some()) {
        return invalid(field, "has roots or cert, which only an https proxy uses");
    }
    for (key, path) in [
        ("roots", &text.roots),
        ("cert", &text.cert),
        ("key", &text.key),
        ("authorizationFile", &text.authorization_file),
    ] {
        optional(format!("{field}.{key}"), path.as_deref())?;
    }
    let servers = server_list(field, text.servers)?;
    let connect = Arc::new(ConnectProxy {
        name: Arc::clone(&name),
        url: url.clone(),
        roots: text.roots.map(Into::into),
        certificate,
        authorization: text.authorization_file.map(Into::into),
    });
    Ok(MemberProxy { name, url, servers, connect })
}

#[cfg(test)]
mod tests;
