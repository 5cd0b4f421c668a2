//! Parsing of policy files. Parsing is strict, so that a misspelt rule is an error instead of a
//! missing rule.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use serde::Deserialize;
use serde_json::Value;

use super::invalid::{InvalidPolicy, bytes, duration, invalid};
use super::names::{ServiceNames, cluster};
use super::preference::{Preference, Tier};
use super::rollout::{self, RolloutText};
use super::rules::{MassWithdrawal, OwnedNames, ReadBudget, RelayTrust, Rules, WhenDark};
use super::sharing::{self, SharingText};
use super::traffic::{self, TrafficText};
use super::{Policy, RemoteEjection};
use crate::mesh_config::discovery::{StrictSelector, read_strict};
use crate::{ClusterId, ImportMode, Mode, NetworkId, ReadNamespaces, is_trust_domain};

/// The maximum size of a policy file, in bytes; much more than people write.
const BYTES_MAX: usize = 1 << 20;
/// The maximum of `darkTokenGrace`: the holder of an expired token keeps its rights for that time.
const DARK_TOKEN_GRACE_MAX: Duration = Duration::from_secs(7 * 86_400);
/// The only supported version.
const API_VERSION: &str = "strait.dev/v1";
const KIND: &str = "Policy";

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct PolicyFile {
    api_version: String,
    kind: String,
    #[serde(default)]
    mesh: RulesText,
    #[serde(default)]
    clusters: BTreeMap<String, RulesText>,
    #[serde(default)]
    owners: Vec<OwnerText>,
    #[serde(default)]
    preferences: Vec<PreferenceText>,
    rollout: Option<RolloutText>,
    #[serde(default)]
    traffic_from: Vec<String>,
    #[serde(default)]
    traffic: TrafficText,
    gateway_namespaces: Option<Vec<String>>,
    remote_ejection: Option<String>,
    #[serde(default)]
    sharing: SharingText,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct RulesText {
    mode: Option<String>,
    when_dark: Option<String>,
    mass_withdrawal: Option<GuardText>,
    budget: Option<BudgetText>,
    exports: Option<NamesText>,
    networks: Option<Vec<String>>,
    trust_domains: Option<Vec<String>>,
    addresses: Option<Vec<String>>,
    identities: Option<Vec<String>>,
    dark_token_grace: Option<String>,
    mcs: Option<McsText>,
    discovery_selectors: Option<Vec<StrictSelector>>,
    read_namespaces: Option<Vec<String>>,
    identity: Option<String>,
    relay: Option<RelayTrustText>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct McsText {
    /// A text; `off` is read as a boolean by some YAML parsers.
    imports: Option<Value>,
    adopt: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct RelayTrustText {
    issuer: String,
    subject: String,
    audience: String,
    keys: Option<Value>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct GuardText {
    above: Option<String>,
    at_least: Option<usize>,
    hold: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct BudgetText {
    objects: Option<usize>,
    pages: Option<usize>,
    object_bytes: Option<Value>,
    page_bytes: Option<Value>,
    memory_bytes: Option<Value>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct NamesText {
    namespaces: Vec<String>,
    hosts: Vec<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct OwnerText {
    #[serde(default)]
    namespaces: Vec<String>,
    #[serde(default)]
    hosts: Vec<String>,
    clusters: Vec<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct PreferenceText {
    name: String,
    services: NamesText,
    proxies: Option<Vec<String>>,
    order: Vec<Value>,
}

impl Policy {
    /// Parses the text of a policy file.
    ///
    /// # Errors
    /// Returns the first problem, with the field and the line if they are known.
    pub fn parse(text: &str) -> Result<Self, InvalidPolicy> {
        if text.len() > BYTES_MAX {
            return invalid("", format!("the file is larger than {} MiB", BYTES_MAX >> 20));
        }
        let file: PolicyFile = InvalidPolicy::parse(text)?;
        if file.api_version != API_VERSION {
            return invalid("apiVersion", format!("is {:?}, not {API_VERSION}", file.api_version));
        }
        if file.kind != KIND {
            return invalid("kind", format!("is {:?}, not {KIND}", file.kind));
        }
        let mut policy = Policy { mesh: rules("mesh", file.mesh)?, ..Policy::default() };
        if policy.mesh.discovery_selectors.is_some() {
            let fact =
                "is only possible for a cluster; those of all clusters are in the mesh config";
            return invalid("mesh.discoverySelectors", fact);
        }
        if policy.mesh.read_namespaces.is_some() {
            return invalid("mesh.readNamespaces", "is only possible for a cluster: move it there");
        }
        if policy.mesh.follows_source.is_some() {
            return invalid("mesh.identity", "is only possible for a cluster: move it there");
        }
        if policy.mesh.relay.is_some() {
            return invalid("mesh.relay", "is only possible for a cluster");
        }
        for (id, text) in file.clusters {
            let field = format!("clusters.{id}");
            let id = cluster(&field, &id)?;
            policy.clusters.insert(id, rules(&field, text)?);
        }
        check_relays(&policy)?;
        for (at, text) in file.owners.into_iter().enumerate() {
            let field = format!("owners[{at}]");
            if text.clusters.is_empty() {
                return invalid(field, "names no cluster, so no cluster could own its names");
            }
            let names = NamesText { namespaces: text.namespaces, hosts: text.hosts };
            policy.owners.push(OwnedNames {
                names: some_names(&field, names)?,
                clusters: clusters(&format!("{field}.clusters"), &text.clusters)?,
            });
        }
        for (at, text) in file.preferences.into_iter().enumerate() {
            policy.preferences.push(preference(&format!("preferences[{at}]"), text)?);
        }
        policy.rollout =
            file.rollout.map(|text| rollout::plan("rollout", &text)).transpose()?.map(Arc::new);
        for (at, id) in file.traffic_from.iter().enumerate() {
            let field = format!("trafficFrom[{at}]");
            if !policy.traffic_from.insert(cluster(&field, id)?) {
                return invalid(field, format!("{id} is listed twice"));
            }
        }
        policy.traffic = traffic::limits(file.traffic)?;
        policy.sharing = sharing::sharing(file.sharing)?;
        let gateways = file.gateway_namespaces;
        policy.gateway_namespaces =
            gateways.map(|list| namespaces("gatewayNamespaces", list)).transpose()?;
        policy.remote_ejection =
            file.remote_ejection.as_deref().map(remote_ejection).transpose()?.unwrap_or_default();
        Ok(policy)
    }
}

fn rules(field: &str, text: RulesText) -> Result<Rules, InvalidPolicy> {
    let path_of = |name: &str| format!("{field}.{name}");
    if text.read_namespaces.is_some() && text.discovery_selectors.is_some() {
        let fact = "also lists namespaces: remove readNamespaces or discoverySelectors";
        return invalid(path_of("discoverySelectors"), fact);
    }
    let mcs = text.mcs.map(|text| mcs(&path_of("mcs"), &text)).transpose()?;
    let (imports, adopt_status) = mcs.unwrap_or_default();
    Ok(Rules {
        imports,
        adopt_status,
        mode: text.mode.map(|text| mode(&path_of("mode"), &text)).transpose()?,
        when_dark: text.when_dark.map(|text| when_dark(&path_of("whenDark"), &text)).transpose()?,
        mass_withdrawal: text
            .mass_withdrawal
            .map(|text| guard(&path_of("massWithdrawal"), &text))
            .transpose()?,
        budget: text
            .budget
            .map(|text| budget(&path_of("budget"), &text))
            .transpose()?
            .unwrap_or_default(),
        exports: text.exports.map(|text| names(&path_of("exports"), text)).transpose()?,
        networks: text
            .networks
            .map(|list| list.into_iter().map(NetworkId::from).collect::<BTreeSet<_>>()),
        trust_domains: text
            .trust_domains
            .map(|list| trust_domains(&path_of("trustDomains"), list))
            .transpose()?,
        addresses: text.addresses.map(|list| ranges(&path_of("addresses"), &list)).transpose()?,
        identities: text
            .identities
            .map(|list| namespaces(&path_of("identities"), list))
            .transpose()?,
        dark_token_grace: text
            .dark_token_grace
            .map(|text| dark_token_grace(&path_of("darkTokenGrace"), &text))
            .transpose()?,
        discovery_selectors: text
            .discovery_selectors
            .map(|list| {
                read_strict(list).or_else(|fact| invalid(path_of("discoverySelectors"), fact))
            })
            .transpose()?
            .map(Arc::new),
        read_namespaces: text
            .read_namespaces
            .map(|list| {
                ReadNamespaces::of(list).or_else(|fact| invalid(path_of("readNamespaces"), fact))
            })
            .transpose()?,
        follows_source: text
            .identity
            .map(|text| follows_source(&path_of("identity"), &text))
            .transpose()?,
        relay: text.relay.map(|text| relay_trust(&path_of("relay"), text)).transpose()?,
    })
}

fn relay_trust(field: &str, text: RelayTrustText) -> Result<RelayTrust, InvalidPolicy> {
    let RelayTrustText { issuer, subject, audience, keys } = text;
    for (name, text) in [("issuer", &issuer), ("audience", &audience)] {
        if text.is_empty() {
            return invalid(format!("{field}.{name}"), "is empty");
        }
    }
    if !subject.starts_with("system:serviceaccount:") {
        let fact = format!("{subject:?} is not system:serviceaccount:NAMESPACE:NAME");
        return invalid(format!("{field}.subject"), fact);
    }
    // A text contains the key set as JSON.
    let keys = match keys {
        None if publishes_keys(&issuer) => None,
        None => {
            let fact = format!(
                "{issuer:?} is not https://HOST, from which the hub could read the keys: set keys"
            );
            return invalid(format!("{field}.issuer"), fact);
        }
        Some(Value::String(text)) => Some(text.into()),
        Some(set @ Value::Object(_)) => Some(set.to_string().into()),
        Some(_) => {
            let fact =
                "is not the JSON Web Key Set of the issuer (kubectl get --raw /openid/v1/jwks)";
            return invalid(format!("{field}.keys"), fact);
        }
    };
    Ok(RelayTrust { issuer, subject, audience, keys })
}

/// Returns whether an issuer can publish keys: it is an https URL without user and query (OpenID
/// Connect Discovery 1.0, 3).
fn publishes_keys(issuer: &str) -> bool {
    issuer.parse::<http::Uri>().is_ok_and(|uri| {
        uri.scheme_str() == Some("https")
            && uri.query().is_none()
            && uri.authority().is_some_and(|authority| !authority.as_str().contains('@'))
    })
}

/// Checks that the token of a relay determines its cluster. Keys in the file differ between
/// clusters; published keys of one issuer do not.
fn check_relays(policy: &Policy) -> Result<(), InvalidPolicy> {
    let mut known = BTreeMap::new();
    for (id, trust) in policy.relay_trusts() {
        let token = (&trust.issuer, &trust.subject, &trust.audience);
        let (other, first) = *known.entry(token).or_insert((id, trust));
        if other != id && (trust.keys.is_none() || first.keys.is_none()) {
            let fact = format!(
                "has the issuer, subject and audience of clusters.{other}.relay, so a token of \
                 either cluster would enrol the other: set keys for both, or another audience"
            );
            return invalid(format!("clusters.{id}.relay"), fact);
        }
    }
    Ok(())
}

fn mcs(field: &str, text: &McsText) -> Result<(Option<ImportMode>, Option<bool>), InvalidPolicy> {
    let imports = match &text.imports {
        None => None,
        Some(Value::Bool(false)) => Some(ImportMode::Off),
        Some(value) => match ImportMode::named(value.as_str().unwrap_or_default()) {
            Ok(mode) => Some(mode),
            Err(fact) => return invalid(format!("{field}.imports"), format!("{value}: {fact}")),
        },
    };
    let adopt = match text.adopt.as_deref() {
        None => None,
        Some("none") => Some(false),
        Some("status") => Some(true),
        Some(other) => {
            let fact = format!("{other:?} is not one of none, status");
            return invalid(format!("{field}.adopt"), fact);
        }
    };
    Ok((imports, adopt))
}

fn dark_token_grace(field: &str, text: &str) -> Result<Duration, InvalidPolicy> {
    let grace = duration(field, text)?;
    if grace > DARK_TOKEN_GRACE_MAX {
        let days = DARK_TOKEN_GRACE_MAX.as_secs() / 86_400;
        return invalid(field, format!("{text:?} is more than {days} days (168h)"));
    }
    Ok(grace)
}

fn mode(field: &str, text: &str) -> Result<Mode, InvalidPolicy> {
    match text {
        "normal" => Ok(Mode::Normal),
        "drain" => Ok(Mode::Drain),
        "pause" => Ok(Mode::Pause),
        _ => invalid(field, format!("{text:?} is not one of normal, drain, pause")),
    }
}

fn follows_source(field: &str, text: &str) -> Result<bool, InvalidPolicy> {
    match text {
        "pinned" => Ok(false),
        "follow-source" => Ok(true),
        _ => invalid(field, format!("{text:?} is neither pinned nor follow-source")),
    }
}

fn remote_ejection(text: &str) -> Result<RemoteEjection, InvalidPolicy> {
    match text {
        "perNetwork" => Ok(RemoteEjection::PerNetwork),
        "perHost" => Ok(RemoteEjection::PerHost),
        _ => invalid("remoteEjection", format!("{text:?} is neither perNetwork nor perHost")),
    }
}

fn when_dark(field: &str, text: &str) -> Result<WhenDark, InvalidPolicy> {
    if text == "keep" {
        return Ok(WhenDark::Keep);
    }
    match text.strip_prefix("withdraw after ") {
        Some(after) => duration(field, after).map(WhenDark::WithdrawAfter),
        None => invalid(field, format!("{text:?} is neither 'keep' nor 'withdraw after 15m'")),
    }
}

fn guard(field: &str, text: &GuardText) -> Result<MassWithdrawal, InvalidPolicy> {
    let usual = MassWithdrawal::default();
    let percent = match &text.above {
        None => usual.percent,
        Some(text) => {
            let number = text.strip_suffix('%').and_then(|number| number.trim().parse::<u8>().ok());
            match number.filter(|number| *number < 100) {
                Some(number) => number,
                None => {
                    let fact = format!("{text:?} is not a percentage from 0% to 99%");
                    return invalid(format!("{field}.above"), fact);
                }
            }
        }
    };
    let hold = match &text.hold {
        None => usual.hold,
        Some(text) => duration(&format!("{field}.hold"), text)?,
    };
    Ok(MassWithdrawal { percent, at_least: text.at_least.unwrap_or(usual.at_least), hold })
}

fn budget(field: &str, text: &BudgetText) -> Result<ReadBudget, InvalidPolicy> {
    let size = |name: &str, value: &Option<Value>| -> Result<Option<usize>, InvalidPolicy> {
        value.as_ref().map(|value| bytes(&format!("{field}.{name}"), value)).transpose()
    };
    let budget = ReadBudget {
        objects: text.objects,
        pages: text.pages,
        object_bytes: size("objectBytes", &text.object_bytes)?,
        page_bytes: size("pageBytes", &text.page_bytes)?,
        memory_bytes: size("memoryBytes", &text.memory_bytes)?,
    };
    let all =
        [budget.objects, budget.pages, budget.object_bytes, budget.page_bytes, budget.memory_bytes];
    if all.contains(&Some(0)) {
        return invalid(field, "contains 0, with which nothing could be read");
    }
    Ok(budget)
}

fn ranges(field: &str, list: &[String]) -> Result<Vec<IpNet>, InvalidPolicy> {
    let ranges = list.iter().enumerate().map(|(at, text)| {
        let one =
            text.parse::<IpNet>().or_else(|_| text.parse().map(|one: std::net::IpAddr| one.into()));
        one.or_else(|_| {
            let fact = format!("{text:?} is not a range such as 10.0.0.0/8");
            invalid(format!("{field}[{at}]"), fact)
        })
    });
    ranges.collect()
}

fn namespaces(field: &str, list: Vec<String>) -> Result<BTreeSet<String>, InvalidPolicy> {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let is_name = |name: &str| name == "*" || (!name.is_empty() && name.bytes().all(plain));
    match list.iter().find(|name| !is_name(name)) {
        Some(name) => invalid(field, format!("{name:?} is neither a namespace nor \"*\"")),
        None => Ok(list.into_iter().collect()),
    }
}

fn trust_domains(field: &str, list: Vec<String>) -> Result<BTreeSet<String>, InvalidPolicy> {
    match list.iter().position(|name| !is_trust_domain(name)) {
        Some(at) => invalid(
            format!("{field}[{at}]"),
            format!("{:?} is not a valid trust domain", list.get(at)),
        ),
        None => Ok(list.into_iter().collect()),
    }
}

fn names(field: &str, text: NamesText) -> Result<ServiceNames, InvalidPolicy> {
    for (at, host) in text.hosts.iter().enumerate() {
        let rest = host.strip_prefix("*.").unwrap_or(host);
        let is_valid = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-._".contains(c);
        if rest.is_empty() || !rest.chars().all(is_valid) {
            let fact = format!("{host:?} is neither a hostname nor '*.' followed by a suffix");
            return invalid(format!("{field}.hosts[{at}]"), fact);
        }
    }
    for (at, namespace) in text.namespaces.iter().enumerate() {
        let is_valid = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        if namespace != "*" && (namespace.is_empty() || !namespace.chars().all(is_valid)) {
            let fact = format!("{namespace:?} is neither a namespace nor '*'");
            return invalid(format!("{field}.namespaces[{at}]"), fact);
        }
    }
    Ok(ServiceNames { namespaces: text.namespaces.into_iter().collect(), hosts: text.hosts })
}

fn some_names(field: &str, text: NamesText) -> Result<ServiceNames, InvalidPolicy> {
    if text.namespaces.is_empty() && text.hosts.is_empty() {
        return invalid(field, "names neither namespaces nor hosts");
    }
    names(field, text)
}

fn clusters(field: &str, list: &[String]) -> Result<BTreeSet<ClusterId>, InvalidPolicy> {
    list.iter().map(|text| cluster(field, text)).collect()
}

fn preference(field: &str, text: PreferenceText) -> Result<Preference, InvalidPolicy> {
    let path_of = |part: &str| format!("{field}.{part}");
    let proxies = text.proxies.map(|list| clusters(&path_of("proxies"), &list)).transpose()?;
    let mut order = Vec::new();
    for (place, value) in text.order.iter().enumerate() {
        let tier = tier(&path_of(&format!("order[{place}]")), value)?;
        if order.contains(&tier) {
            return invalid(path_of(&format!("order[{place}]")), format!("{tier} is listed twice"));
        }
        order.push(tier);
    }
    if order.is_empty() {
        return invalid(path_of("order"), "is empty");
    }
    let services = some_names(&path_of("services"), text.services)?;
    Ok(Preference { name: text.name, services, proxies, order })
}

/// Parses `own cluster`, `own network`, `any other`, a cluster, a list of clusters, or clusters
/// with weights.
fn tier(field: &str, value: &Value) -> Result<Tier, InvalidPolicy> {
    let one = |text: &str| Ok(Tier::Clusters([(cluster(field, text)?, None)].into()));
    match value {
        Value::String(text) => match text.as_str() {
            "own cluster" => Ok(Tier::OwnCluster),
            "own network" => Ok(Tier::OwnNetwork),
            "any other" => Ok(Tier::Others),
            id => one(id),
        },
        Value::Array(list) if !list.is_empty() => {
            let mut clusters = BTreeMap::new();
            for value in list {
                let Some(text) = value.as_str() else {
                    return invalid(field, format!("{value} is not a cluster ID"));
                };
                clusters.insert(cluster(field, text)?, None);
            }
            Ok(Tier::Clusters(clusters))
        }
        Value::Object(shares) if !shares.is_empty() => {
            let mut clusters = BTreeMap::new();
            for (id, share) in shares {
                let number = share.as_u64().and_then(|share| u32::try_from(share).ok());
                let Some(share) = number.filter(|share| (1..=1_000_000).contains(share)) else {
                    let fact =
                        format!("the weight of {id}, {share}, is not a number from 1 to 1000000");
                    return invalid(field, fact);
                };
                clusters.insert(cluster(field, id)?, Some(share));
            }
            Ok(Tier::Clusters(clusters))
        }
        other => invalid(
            field,
            format!("{other} is neither 'own cluster', 'own network', 'any other' nor clusters"),
        ),
    }
}
