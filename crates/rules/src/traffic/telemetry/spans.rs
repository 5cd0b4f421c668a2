//! Tracing settings of Telemetries: providers, sampling and tags of spans (Istio, "Telemetry",
//! `tracing`).

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Deserialize;

use super::entry::{CallEnd, RawMatch, RawProvider};
use crate::traffic::object::Reason;
use strait_base::codes;
use strait_model::is_header_name;

/// Default sampling rate, in traced requests per million (Istio's default).
const SAMPLED_PER_MILLION: u32 = 10_000;

/// A rule for traces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TracingRule {
    /// End of the call; `None` for both ends.
    pub(super) end: Option<CallEnd>,
    /// Provider that receives the spans, if set.
    pub(super) provider: Option<Arc<str>>,
    disabled: Option<bool>,
    sampled_per_million: Option<u32>,
    tags: Option<Arc<[SpanTag]>>,
}

/// Tracing settings of a proxy for one end of calls.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct TracingChoice {
    /// Provider that receives the spans, by its name in the mesh config. The name may be unknown.
    pub provider: Arc<str>,
    /// Number of traced requests per million, if the caller has not decided.
    pub sampled_per_million: u32,
    /// Custom tags of spans by name, in addition to the tags of proxies.
    pub tags: Arc<[SpanTag]>,
}

/// A custom tag of spans.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct SpanTag {
    /// Name of the tag; never empty.
    pub name: Arc<str>,
    /// Value of the tag.
    pub value: SpanTagValue,
}

/// Value of a custom tag.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum SpanTagValue {
    /// A constant text; never empty.
    Literal(Arc<str>),
    /// Environment variable of the proxy, and the default. If both are empty, the tag is omitted.
    Environment(Arc<str>, Arc<str>),
    /// Header of the request, and the default. If both are empty, the tag is omitted.
    Header(Arc<str>, Arc<str>),
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct RawTracing {
    r#match: RawMatch,
    providers: Vec<RawProvider>,
    disable_span_reporting: Option<bool>,
    random_sampling_percentage: Option<f64>,
    custom_tags: Option<BTreeMap<Arc<str>, RawTag>>,
    use_request_id_for_trace_sampling: Option<bool>,
    enable_istio_tags: Option<bool>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct RawTag {
    literal: Option<RawLiteral>,
    environment: Option<RawNamed>,
    header: Option<RawNamed>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct RawLiteral {
    value: Arc<str>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct RawNamed {
    name: Arc<str>,
    default_value: Arc<str>,
}

impl RawTracing {
    /// Parses the rule, and adds reasons to report to its owner.
    pub(super) fn read(self, path: &str, reasons: &mut Vec<Reason>) -> TracingRule {
        for (field, is_set, text) in [
            (
                "useRequestIdForTraceSampling",
                self.use_request_id_for_trace_sampling == Some(false),
                "false has no effect: the request ID always decides whether a request is traced",
            ),
            (
                "enableIstioTags",
                self.enable_istio_tags == Some(true),
                "Istio's tags are not supported; use customTags",
            ),
        ] {
            if is_set {
                let path = format!("{path}.{field}");
                reasons.push(Reason::lost(&codes::TRAFFIC_UNSUPPORTED, path, text));
            }
        }
        if self.providers.len() > 1 {
            let path = format!("{path}.providers[1]");
            let text = "only one provider is supported: the first applies";
            reasons.push(Reason::lost(&codes::TRAFFIC_REPLACED, path, text));
        }
        let sampled_per_million = self.random_sampling_percentage.map(|share| {
            let per_million = (share * 10_000.0).round();
            if !(0.0..=1_000_000.0).contains(&per_million) {
                let path = format!("{path}.randomSamplingPercentage");
                let text = format!("{share} is not a percentage: the nearer of 0 and 100 applies");
                reasons.push(Reason::lost(&codes::TRAFFIC_VALUE, path, text));
            }
            // NaN becomes 0.
            per_million.clamp(0.0, 1_000_000.0) as u32
        });
        let tags = self.custom_tags.map(|tags| {
            let read = tags.into_iter().filter_map(|(name, raw)| {
                let path = format!("{path}.customTags[{name}]");
                let tag = raw.read(&name).map(|value| SpanTag { name, value });
                tag.map_err(|fact| {
                    let text = format!("{fact}; the tag is left out");
                    reasons.push(Reason::lost(&codes::TRAFFIC_VALUE, path, text));
                })
                .ok()
            });
            read.collect()
        });
        TracingRule {
            end: self.r#match.mode.end(),
            provider: self.providers.into_iter().next().map(|one| one.name),
            disabled: self.disable_span_reporting,
            sampled_per_million,
            tags,
        }
    }
}

impl RawTag {
    /// Parses a tag. Envoy rejects whole listeners for a tag without a name or a value.
    fn read(self, tag: &str) -> Result<SpanTagValue, &'static str> {
        if tag.is_empty() {
            return Err("it has no name");
        }
        match (self.literal, self.environment, self.header) {
            (Some(literal), None, None) if literal.value.is_empty() => Err("its value is empty"),
            (Some(literal), None, None) => Ok(SpanTagValue::Literal(literal.value)),
            (None, Some(variable), None) if variable.name.is_empty() => {
                Err("it has no name of an environment variable")
            }
            (None, Some(variable), None) => {
                Ok(SpanTagValue::Environment(variable.name, variable.default_value))
            }
            (None, None, Some(header)) => {
                if !is_header_name(header.name.strip_prefix(':').unwrap_or(&header.name)) {
                    return Err("it has no valid header name");
                }
                let name = header.name.to_ascii_lowercase().into();
                Ok(SpanTagValue::Header(name, header.default_value))
            }
            _ => Err("it must set exactly one of literal, environment and header"),
        }
    }
}

/// Returns the tracing settings for one end of calls. Each rule overrides the previous ones. `None`
/// if no spans are sent.
pub(super) fn choice<'a>(
    rules: impl Iterator<Item = &'a TracingRule>,
    by_default: Option<&Arc<str>>,
    end: CallEnd,
) -> Option<TracingChoice> {
    let (mut provider, mut disabled) = (by_default, false);
    let (mut sampled_per_million, mut tags) = (SAMPLED_PER_MILLION, None);
    for rule in rules.filter(|rule| rule.end.is_none_or(|rule_end| rule_end == end)) {
        provider = rule.provider.as_ref().or(provider);
        disabled = rule.disabled.unwrap_or(disabled);
        sampled_per_million = rule.sampled_per_million.unwrap_or(sampled_per_million);
        tags = rule.tags.as_ref().or(tags);
    }
    let provider = Arc::clone(provider.filter(|_| !disabled)?);
    Some(TracingChoice { provider, sampled_per_million, tags: tags.cloned().unwrap_or_default() })
}
