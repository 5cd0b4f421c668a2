//! What Telemetries say of traces: where spans go, of how many requests, and what they hold. (Istio, "Telemetry", `tracing`.)

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Deserialize;

use super::entry::{CallEnd, RawMatch, RawProvider};
use crate::traffic::object::Reason;
use strait_base::codes;
use strait_model::is_header_name;

/// The share of requests that are traced where nobody says more. (Istio's default.)
const SAMPLED_PER_MILLION: u32 = 10_000;

/// What is said of traces at some ends of calls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TracingRule {
    /// At which end of a call; `None` for both.
    pub(super) end: Option<CallEnd>,
    /// To whom spans are sent, where it says that.
    pub(super) provider: Option<Arc<str>>,
    disabled: Option<bool>,
    sampled_per_million: Option<u32>,
    tags: Option<Arc<[SpanTag]>>,
}

/// What a proxy does of traces at one end of calls.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct TracingChoice {
    /// To whom it sends spans: a provider of the mesh config, or the name of none.
    pub provider: Arc<str>,
    /// Of how many requests of a million, where whoever calls has not decided it.
    pub sampled_per_million: u32,
    /// What spans hold beside what proxies put there, by name.
    pub tags: Arc<[SpanTag]>,
}

/// A tag of spans.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct SpanTag {
    /// Its name; never empty.
    pub name: Arc<str>,
    /// What it says.
    pub value: SpanTagValue,
}

/// What a tag of a span says.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum SpanTagValue {
    /// This text; never empty.
    Literal(Arc<str>),
    /// A variable of the proxy's environment, else the second text, else there is no tag.
    Environment(Arc<str>, Arc<str>),
    /// A header of the request, else the second text, else there is no tag.
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
    /// What is meant, with what its owner should know.
    pub(super) fn read(self, path: &str, reasons: &mut Vec<Reason>) -> TracingRule {
        for (field, is_said, text) in [
            (
                "useRequestIdForTraceSampling",
                self.use_request_id_for_trace_sampling == Some(false),
                "false has no effect: the id of a request says at every proxy whether it is traced",
            ),
            (
                "enableIstioTags",
                self.enable_istio_tags == Some(true),
                "spans hold no tags of Istio's; say them as customTags",
            ),
        ] {
            if is_said {
                let path = format!("{path}.{field}");
                reasons.push(Reason::lost(&codes::TRAFFIC_UNSUPPORTED, path, text));
            }
        }
        if self.providers.len() > 1 {
            let path = format!("{path}.providers[1]");
            let text = "spans go to one provider: the first counts";
            reasons.push(Reason::lost(&codes::TRAFFIC_REPLACED, path, text));
        }
        let sampled_per_million = self.random_sampling_percentage.map(|share| {
            let per_million = (share * 10_000.0).round();
            if !(0.0..=1_000_000.0).contains(&per_million) {
                let path = format!("{path}.randomSamplingPercentage");
                let text = format!("{share} is no percentage: the nearer of 0 and 100 counts");
                reasons.push(Reason::lost(&codes::TRAFFIC_VALUE, path, text));
            }
            // Not a number counts as 0.
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
    /// A tag as Envoy takes it: it refuses whole listeners for one without a name or a value.
    fn read(self, tag: &str) -> Result<SpanTagValue, &'static str> {
        if tag.is_empty() {
            return Err("it has no name");
        }
        match (self.literal, self.environment, self.header) {
            (Some(literal), None, None) if literal.value.is_empty() => Err("its value is empty"),
            (Some(literal), None, None) => Ok(SpanTagValue::Literal(literal.value)),
            (None, Some(variable), None) if variable.name.is_empty() => {
                Err("it names no variable of the environment")
            }
            (None, Some(variable), None) => {
                Ok(SpanTagValue::Environment(variable.name, variable.default_value))
            }
            (None, None, Some(header)) => {
                if !is_header_name(header.name.strip_prefix(':').unwrap_or(&header.name)) {
                    return Err("it names no header");
                }
                let name = header.name.to_ascii_lowercase().into();
                Ok(SpanTagValue::Header(name, header.default_value))
            }
            _ => Err("it is not one of literal, environment and header"),
        }
    }
}

/// What is done of traces at an end of calls by these rules, each over the one before; `None` for nothing.
pub(super) fn choice<'a>(
    rules: impl Iterator<Item = &'a TracingRule>,
    by_default: Option<&Arc<str>>,
    end: CallEnd,
) -> Option<TracingChoice> {
    let (mut provider, mut disabled) = (by_default, false);
    let (mut sampled_per_million, mut tags) = (SAMPLED_PER_MILLION, None);
    for rule in rules.filter(|rule| rule.end.is_none_or(|of| of == end)) {
        provider = rule.provider.as_ref().or(provider);
        disabled = rule.disabled.unwrap_or(disabled);
        sampled_per_million = rule.sampled_per_million.unwrap_or(sampled_per_million);
        tags = rule.tags.as_ref().or(tags);
    }
    let provider = Arc::clone(provider.filter(|_| !disabled)?);
    Some(TracingChoice { provider, sampled_per_million, tags: tags.cloned().unwrap_or_default() })
}
