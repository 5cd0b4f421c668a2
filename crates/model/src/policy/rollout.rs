//! Plans for rollouts: the percentages of proxies, the duration of steps, and the limits at which a
//! rollout stops.

use std::time::Duration;

use serde::Deserialize;

use super::invalid::{InvalidPolicy, duration, invalid};

/// The maximum duration of a step.
const EVERY_MAX: Duration = Duration::from_secs(7 * 24 * 3600);
/// The maximum of `stopAt.refused`: every proxy that rejects a change is remembered by name.
const REFUSED_MAX: usize = 1000;

/// The plan for rolling out a change of configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RolloutPlan {
    /// The percentage of proxies at each step: at least 1, ascending, the last one 100.
    pub steps: Vec<u8>,
    /// The duration of each step except the last, which completes the rollout.
    pub every: Duration,
    /// The limits at which a rollout stops.
    pub stop_at: RolloutLimits,
}

/// The limits at which a rollout stops.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RolloutLimits {
    /// The number of proxies that reject the change; at least 1.
    pub refused: usize,
    /// The percentage of endpoints of a service that proxies with the change lose; a larger loss
    /// stops the rollout. 100 disables the check.
    pub lost_endpoints: u8,
}

impl Default for RolloutPlan {
    fn default() -> Self {
        Self {
            steps: vec![5, 25, 100],
            every: Duration::from_secs(600),
            stop_at: RolloutLimits { refused: 1, lost_endpoints: 20 },
        }
    }
}

/// The plan as written.
#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(super) struct RolloutText {
    steps: Option<Vec<String>>,
    every: Option<String>,
    stop_at: LimitsText,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct LimitsText {
    refused: Option<usize>,
    lost_endpoints: Option<String>,
}

/// Parses the plan in a policy file.
pub(super) fn plan(field: &str, text: &RolloutText) -> Result<RolloutPlan, InvalidPolicy> {
    let usual = RolloutPlan::default();
    let steps = text.steps.as_ref().map(|steps| shares(&format!("{field}.steps"), steps));
    let every = text.every.as_ref().map(|text| interval(&format!("{field}.every"), text));
    let limits = &text.stop_at;
    let refused = limits.refused.unwrap_or(usual.stop_at.refused);
    if !(1..=REFUSED_MAX).contains(&refused) {
        let fact = format!("{refused} is not a number of proxies from 1 to {REFUSED_MAX}");
        return invalid(format!("{field}.stopAt.refused"), fact);
    }
    let lost_endpoints = match &limits.lost_endpoints {
        None => usual.stop_at.lost_endpoints,
        Some(text) => match percent(text) {
            Some(percent) => percent,
            None => {
                let fact = format!("{text:?} is not a percentage from 0% to 100%");
                return invalid(format!("{field}.stopAt.lostEndpoints"), fact);
            }
        },
    };
    Ok(RolloutPlan {
        steps: steps.transpose()?.unwrap_or(usual.steps),
        every: every.transpose()?.unwrap_or(usual.every),
        stop_at: RolloutLimits { refused, lost_endpoints },
    })
}

fn shares(field: &str, list: &[String]) -> Result<Vec<u8>, InvalidPolicy> {
    let mut steps = Vec::new();
    for (at, text) in list.iter().enumerate() {
        let field = || format!("{field}[{at}]");
        let Some(share) = percent(text).filter(|share| *share > 0) else {
            return invalid(field(), format!("{text:?} is not a percentage from 1% to 100%"));
        };
        if let Some(before) = steps.last().filter(|before| **before >= share) {
            return invalid(field(), format!("{share}% is not more than the previous {before}%"));
        }
        steps.push(share);
    }
    match steps.as_slice() {
        [.., last] if *last != 100 => {
            let fact = format!(
                "ends with {last}%, so the other proxies would never receive a change; add 100%"
            );
            invalid(field, fact)
        }
        [] | [_] => {
            let fact =
                "has no step before 100%; omit rollout to send changes to all proxies at once";
            invalid(field, fact)
        }
        _ => Ok(steps),
    }
}

fn interval(field: &str, text: &str) -> Result<Duration, InvalidPolicy> {
    let every = duration(field, text)?;
    if every < Duration::from_secs(1) || every > EVERY_MAX {
        return invalid(field, format!("{text:?} is not between 1s and 7 days"));
    }
    Ok(every)
}

/// Parses a percentage like `5%`, from 0 to 100.
fn percent(text: &str) -> Option<u8> {
    let number = text.trim().strip_suffix('%')?.trim().parse::<u8>().ok()?;
    (number <= 100).then_some(number)
}
