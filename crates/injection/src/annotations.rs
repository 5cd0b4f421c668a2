//! Parsing of a pod's annotations: Istio's names, as far as this sidecar supports them.
//!
//! A pod with an invalid value is refused. Otherwise only an outage would reveal that the sidecar ignores a port or a
//! range that the pod's owner configured.

use std::collections::BTreeMap;

use ipnet::IpNet;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Value, json};

use super::object::text;
use super::refusal::InjectRefusal;
use super::settings::InjectSettings;
use strait_base::bounded::head;
use strait_base::codes;

const LOG_LEVELS: [&str; 7] = ["trace", "debug", "info", "warning", "error", "critical", "off"];

/// Annotations for the redirection of traffic: their name, the flag of the agent, and the kind of list in their value.
const TRAFFIC: [(&str, &str, AnnotatedList); 7] = [
    ("includeOutboundIPRanges", "--include-outbound-ranges", AnnotatedList::RangesOrAll),
    ("excludeOutboundIPRanges", "--exclude-outbound-ranges", AnnotatedList::Ranges),
    ("includeOutboundPorts", "--include-outbound-ports", AnnotatedList::Ports),
    ("excludeOutboundPorts", "--exclude-outbound-ports", AnnotatedList::Ports),
    ("includeInboundPorts", "--include-inbound-ports", AnnotatedList::PortsOrAll),
    ("excludeInboundPorts", "--exclude-inbound-ports", AnnotatedList::Ports),
    ("excludeInterfaces", "--exclude-interfaces", AnnotatedList::Interfaces),
];

/// Annotations for the resources of a sidecar: their name, `requests` or `limits`, and the resource.
const RESOURCES: [(&str, &str, &str); 4] = [
    ("proxyCPU", "requests", "cpu"),
    ("proxyMemory", "requests", "memory"),
    ("proxyCPULimit", "limits", "cpu"),
    ("proxyMemoryLimit", "limits", "memory"),
];

/// Further supported annotations with the prefix `sidecar.istio.io/`. Injection writes `status`. It
/// reads `inject` if Istio's labels request injection.
const SIDECAR: [&str; 12] = [
    "componentLogLevel",
    "interceptionMode",
    "logLevel",
    "nativeSidecar",
    "proxyImage",
    "rewriteAppHTTPProbers",
    "statsInclusionPrefixes",
    "statsInclusionRegexps",
    "statsInclusionSuffixes",
    "status",
    "userVolume",
    "userVolumeMount",
];
const INJECT: &str = "sidecar.istio.io/inject";
const CONFIG: &str = "proxy.istio.io/config";

/// Maximum number of unsupported annotations and fields with separate warnings.
const WARNED_MAX: usize = 16;
/// Maximum length of a name in a warning, in bytes. API servers cut warnings at 256 bytes.
const WARNED_BYTES_MAX: usize = 200;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AnnotatedList {
    Ranges,
    RangesOrAll,
    Ports,
    PortsOrAll,
    Interfaces,
}

/// The sidecar options of one pod, from its annotations and the settings.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct SidecarOptions {
    pub(super) image: String,
    pub(super) native: bool,
    /// Whether the application starts only after its sidecar is ready.
    pub(super) holds_application: bool,
    pub(super) rewrites_probes: bool,
    /// Whether the agent answers the pod's DNS queries.
    pub(super) dns: bool,
    pub(super) redirect_flags: Vec<String>,
    /// Flags of the agent for the statistics that Envoy keeps.
    pub(super) stats: Vec<String>,
    pub(super) resources: Value,
    pub(super) envoy_arguments: Vec<String>,
    /// How long connections may take to drain, in the syntax of the agent.
    pub(super) drain: Option<String>,
    /// Warnings about Istio's annotations that have no effect here.
    pub(super) unsupported: Vec<String>,
}

/// The supported fields of `proxy.istio.io/config`, and the names of the other fields, which only
/// Istio's agent uses.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ProxyConfigText {
    hold_application_until_proxy_starts: Option<bool>,
    concurrency: Option<u16>,
    termination_drain_duration: Option<String>,
    proxy_metadata: ProxyMetadataText,
    proxy_stats_matcher: StatsMatcherText,
    #[serde(flatten)]
    others: BTreeMap<String, IgnoredAny>,
}

/// Statistics that Envoy keeps in addition to the default ones.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct StatsMatcherText {
    inclusion_prefixes: Vec<String>,
    inclusion_suffixes: Vec<String>,
    inclusion_regexps: Vec<String>,
}

/// The supported entries of `proxyMetadata`.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ProxyMetadataText {
    /// A string in Istio's schema, but often written as a boolean.
    #[serde(rename = "ISTIO_META_DNS_CAPTURE", deserialize_with = "boolean_text")]
    dns_capture: Option<bool>,
    #[serde(flatten)]
    others: BTreeMap<String, IgnoredAny>,
}

impl ProxyConfigText {
    /// Returns the names of fields that are not supported.
    fn unsupported(&self) -> impl Iterator<Item = String> {
        let fields = self.others.keys().cloned();
        let entries = self.proxy_metadata.others.keys();
        fields.chain(entries.map(|name| format!("proxyMetadata.{name}")))
    }
}

fn boolean_text<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<bool>, D::Error> {
    match Value::deserialize(from)? {
        Value::Bool(value) => Ok(Some(value)),
        Value::String(text) => text.parse().map(Some).map_err(serde::de::Error::custom),
        _ => Err(serde::de::Error::custom("neither true nor false")),
    }
}

impl SidecarOptions {
    /// Reads a pod's annotations.
    pub(super) fn read(
        annotations: &Value,
        settings: &InjectSettings,
    ) -> Result<Self, InjectRefusal> {
        let ours = |name: &str| Annotation::find(annotations, "sidecar.istio.io/", name);
        let config = match Annotation::find(annotations, CONFIG, "") {
            Some(found) => found.proxy_config()?,
            None => ProxyConfigText::default(),
        };
        let flag = |name: &str, default: bool| ours(name).map_or(Ok(default), |it| it.boolean());
        if let Some(mode) = ours("interceptionMode").filter(|it| it.value != "REDIRECT") {
            return Err(mode.wrong("REDIRECT, the only supported mode"));
        }
        Ok(Self {
            unsupported: unsupported(annotations, &config, settings.istio_labels),
            image: ours("proxyImage").map_or(settings.image.clone(), |it| it.value.to_owned()),
            native: flag("nativeSidecar", settings.native_sidecars)?,
            holds_application: config.hold_application_until_proxy_starts.unwrap_or(false),
            rewrites_probes: flag("rewriteAppHTTPProbers", true)?,
            dns: config.proxy_metadata.dns_capture.unwrap_or(settings.dns),
            redirect_flags: redirect_flags(annotations)?,
            stats: stats_flags(annotations, &config.proxy_stats_matcher)?,
            resources: resources(annotations)?,
            envoy_arguments: envoy_arguments(
                annotations,
                config.concurrency.or(settings.defaults.concurrency),
            )?,
            drain: config.termination_drain_duration,
        })
    }
}

/// Returns a warning for each annotation of Istio and each field of `proxy.istio.io/config` that has
/// no effect here.
fn unsupported(annotations: &Value, config: &ProxyConfigText, istio_labels: bool) -> Vec<String> {
    let names = annotations.as_object().into_iter().flat_map(|annotations| annotations.keys());
    let names = names.filter(|name| is_istio_name(name) && !is_supported(name, istio_labels));
    let names = names.map(|name| format!("annotation {name}"));
    let fields = config.unsupported().map(|field| format!("{field} of annotation {CONFIG}"));
    let all: Vec<String> = names.chain(fields).collect();
    let first = all.iter().take(WARNED_MAX);
    let mut warnings: Vec<String> = first
        .map(|name| format!("{} is not supported and has no effect", head(name, WARNED_BYTES_MAX)))
        .collect();
    if let more @ 1.. = all.len().saturating_sub(WARNED_MAX) {
        warnings.push(format!("{more} more annotations of Istio or fields of them have no effect"));
    }
    warnings
}

fn is_istio_name(name: &str) -> bool {
    let domain = name.split_once('/').map_or("", |(domain, _)| domain);
    domain == "istio.io" || domain.ends_with(".istio.io")
}

fn is_supported(name: &str, istio_labels: bool) -> bool {
    let is_traffic = |name: &str| TRAFFIC.iter().any(|(supported, ..)| *supported == name);
    let is_resource = |name: &str| RESOURCES.iter().any(|(supported, ..)| *supported == name);
    match name.split_once('/') {
        _ if name == INJECT => istio_labels,
        _ if name == CONFIG || name == super::metrics::MERGE => true,
        Some(("traffic.sidecar.istio.io", name)) => is_traffic(name),
        Some(("sidecar.istio.io", name)) => SIDECAR.contains(&name) || is_resource(name),
        _ => false,
    }
}

fn redirect_flags(annotations: &Value) -> Result<Vec<String>, InjectRefusal> {
    let mut flags = Vec::new();
    for (name, flag, kind) in TRAFFIC {
        let Some(found) = Annotation::find(annotations, "traffic.sidecar.istio.io/", name) else {
            continue;
        };
        flags.push(format!("{flag}={}", found.list(kind)?));
    }
    Ok(flags)
}

/// Returns the agent's flags for the statistics that Envoy keeps. An annotation overrides the field of
/// `proxyStatsMatcher`.
fn stats_flags(
    annotations: &Value,
    config: &StatsMatcherText,
) -> Result<Vec<String>, InjectRefusal> {
    let mut flags = Vec::new();
    for (name, flag, configured) in [
        ("statsInclusionPrefixes", "prefix", &config.inclusion_prefixes),
        ("statsInclusionSuffixes", "suffix", &config.inclusion_suffixes),
        ("statsInclusionRegexps", "regexp", &config.inclusion_regexps),
    ] {
        let found = Annotation::find(annotations, "sidecar.istio.io/", name);
        let values: Vec<&str> = match &found {
            Some(found) => found.value.split(',').map(str::trim).collect(),
            None => configured.iter().map(String::as_str).collect(),
        };
        // Envoy does not start with an invalid expression.
        let is_valid = |value: &&str| flag != "regexp" || regex::Regex::new(value).is_ok();
        let values: Vec<&str> = values.into_iter().filter(|value| !value.is_empty()).collect();
        if !values.iter().all(is_valid) {
            let config = Annotation { name: CONFIG.to_owned(), value: "proxyStatsMatcher" };
            let wanted = "a comma-separated list of regular expressions";
            return Err(found.unwrap_or(config).wrong(wanted));
        }
        flags.extend(values.iter().map(|value| format!("--stats-inclusion-{flag}={value}")));
    }
    Ok(flags)
}

/// Returns the resources of the sidecar. If any annotation sets one, the defaults are not used, because a default limit
/// could be below an annotated request.
fn resources(annotations: &Value) -> Result<Value, InjectRefusal> {
    let mut annotated = json!({});
    for (name, kind, resource) in RESOURCES {
        if let Some(found) = Annotation::find(annotations, "sidecar.istio.io/", name) {
            annotated[kind][resource] = json!(found.quantity()?);
        }
    }
    if annotated != json!({}) {
        return Ok(annotated);
    }
    Ok(json!({
        "requests": { "cpu": "100m", "memory": "128Mi" },
        "limits": { "cpu": "2", "memory": "1Gi" },
    }))
}

fn envoy_arguments(
    annotations: &Value,
    concurrency: Option<u16>,
) -> Result<Vec<String>, InjectRefusal> {
    let ours = |name: &str| Annotation::find(annotations, "sidecar.istio.io/", name);
    let level = match ours("logLevel") {
        Some(found) => found.log_level()?,
        None => "warning",
    };
    let mut arguments = vec!["--log-level".to_owned(), level.to_owned()];
    if let Some(found) = ours("componentLogLevel") {
        arguments.extend(["--component-log-level".to_owned(), found.component_levels()?]);
    }
    // Without `--concurrency`, Envoy starts one thread per CPU of the node. The value 0 selects that.
    let concurrency = concurrency.unwrap_or(2);
    if concurrency > 0 {
        arguments.extend(["--concurrency".to_owned(), concurrency.to_string()]);
    }
    Ok(arguments)
}

/// An existing annotation.
pub(super) struct Annotation<'a> {
    name: String,
    pub(super) value: &'a str,
}

impl<'a> Annotation<'a> {
    pub(super) fn find(annotations: &'a Value, prefix: &str, name: &str) -> Option<Self> {
        let name = format!("{prefix}{name}");
        let value = text(annotations, &name)?.trim();
        Some(Self { name, value })
    }

    pub(super) fn wrong(&self, wanted: &str) -> InjectRefusal {
        let fact = format!("annotation {}: {:?} is not {wanted}", self.name, self.value);
        InjectRefusal::new(&codes::INJECT_ANNOTATION, fact)
    }

    fn boolean(&self) -> Result<bool, InjectRefusal> {
        self.value.parse().map_err(|_| self.wrong("true or false"))
    }

    fn log_level(&self) -> Result<&'a str, InjectRefusal> {
        let is_level = LOG_LEVELS.contains(&self.value);
        is_level.then_some(self.value).ok_or_else(|| self.wrong(&LOG_LEVELS.join(", ")))
    }

    fn component_levels(&self) -> Result<String, InjectRefusal> {
        let is_pair = |pair: &str| {
            pair.split_once(':').is_some_and(|(component, level)| {
                let is_name = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
                component.bytes().all(is_name) && LOG_LEVELS.contains(&level)
            })
        };
        match self.value.split(',').all(is_pair) {
            true => Ok(self.value.to_owned()),
            false => Err(self.wrong("a comma-separated list of COMPONENT:LEVEL")),
        }
    }

    /// Parses a Kubernetes quantity, for example 250m or 1.5Gi.
    fn quantity(&self) -> Result<&'a str, InjectRefusal> {
        let end = self.value.find(|c: char| !c.is_ascii_digit() && c != '.');
        let (number, unit) = self.value.split_at(end.unwrap_or(self.value.len()));
        let units = ["", "m", "k", "M", "G", "T", "Ki", "Mi", "Gi", "Ti"];
        let is_number = number.parse::<f64>().is_ok_and(|number| number > 0.0);
        let good = is_number && units.contains(&unit);
        good.then_some(self.value).ok_or_else(|| self.wrong("a quantity such as 250m or 128Mi"))
    }

    fn list(&self, kind: AnnotatedList) -> Result<String, InjectRefusal> {
        let takes_all = matches!(kind, AnnotatedList::RangesOrAll | AnnotatedList::PortsOrAll);
        if self.value == "*" && takes_all {
            return Ok("*".to_owned());
        }
        let parts = self.value.split(',').map(str::trim).filter(|part| !part.is_empty());
        let parts: Vec<&str> = parts.collect();
        let is_interface = |part: &str| {
            let is_name_byte = |byte: u8| byte.is_ascii_alphanumeric() || b"._-@".contains(&byte);
            part.len() <= 15 && part.bytes().all(is_name_byte)
        };
        let (good, wanted) = match kind {
            AnnotatedList::Ranges | AnnotatedList::RangesOrAll => (
                parts.iter().all(|part| part.parse::<IpNet>().is_ok()),
                "a list of ranges such as 10.0.0.0/8",
            ),
            AnnotatedList::Ports | AnnotatedList::PortsOrAll => (
                parts.iter().all(|part| part.parse::<u16>().is_ok_and(|port| port > 0)),
                "a list of ports",
            ),
            AnnotatedList::Interfaces => {
                (parts.iter().all(|part| is_interface(part)), "a list of network interfaces")
            }
        };
        let or_all = if takes_all { ", or *" } else { "" };
        good.then(|| parts.join(",")).ok_or_else(|| self.wrong(&format!("{wanted}{or_all}")))
    }

    fn proxy_config(&self) -> Result<ProxyConfigText, InjectRefusal> {
        const WANTED: &str = "YAML in which holdApplicationUntilProxyStarts is a boolean, concurrency a number, terminationDrainDuration a duration (for example 5s) and ISTIO_META_DNS_CAPTURE in proxyMetadata \"true\" or \"false\"";
        if self.value.is_empty() {
            return Ok(ProxyConfigText::default());
        }
        let options = serde_saphyr::options! {
            budget: serde_saphyr::budget! { max_depth: 16 },
            with_snippet: false,
        };
        let config: ProxyConfigText = serde_saphyr::from_str_with_options(self.value, options)
            .map_err(|_| self.wrong(WANTED))?;
        let is_duration = |text: &String| {
            let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
            end > 0 && ["ms", "s", "m", "h"].contains(&&text[end..])
        };
        let good = config.termination_drain_duration.as_ref().is_none_or(is_duration);
        good.then_some(config).ok_or_else(|| self.wrong(WANTED))
    }
}
