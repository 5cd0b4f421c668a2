//! Retries of requests: as a VirtualService sets them, and the mesh-wide default. (Istio, "Virtual
//! Service", `HTTPRetry`, and `MeshConfig.defaultHttpRetryPolicy`.)

use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Value, json};

use super::duration::{WrittenDuration, at_least_a_millisecond, format_duration};
use crate::{RareGroup, static_default};

/// A retry policy.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct RetryRule {
    /// The maximum number of retries; 0 disables retries.
    pub attempts: u32,
    /// The timeout of one try.
    pub per_try_timeout: Option<Duration>,
    /// The conditions for a retry, in the syntax of Envoy's `x-envoy-retry-on`; if empty, those of
    /// the mesh apply.
    pub on: Arc<str>,
    /// Whether a retry should use an endpoint in another locality.
    pub other_localities: bool,
    /// Whether endpoints that were already tried are skipped; `None` lets the load-balancing
    /// algorithm decide.
    pub ignore_previous: Option<bool>,
    /// Rarely used settings.
    pub more: RareGroup<RareRetrySettings>,
}

/// Rarely used settings of a retry policy.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct RareRetrySettings {
    /// Additional HTTP status codes that cause a retry.
    pub statuses: Box<[u16]>,
    /// The pause before the first retry; above zero.
    pub backoff: Option<Duration>,
}

static_default!(RetryRule: RareRetrySettings);

impl RetryRule {
    /// Returns the policy in Istio's terms.
    pub(super) fn to_json(&self) -> Value {
        let conditions = Some(&*self.on).filter(|on| !on.is_empty()).map(str::to_owned);
        let statuses = self.statuses.iter().map(ToString::to_string);
        json!({
            "attempts": self.attempts,
            "backoff": self.backoff.map(format_duration),
            "perTryTimeout": self.per_try_timeout.map(format_duration),
            "retryIgnorePreviousHosts": self.ignore_previous,
            "retryOn": conditions.into_iter().chain(statuses).collect::<Vec<_>>().join(","),
            "retryRemoteLocalities": self.other_localities,
        })
    }
}

/// The policy as written.
#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
pub struct WrittenRetries {
    attempts: i64,
    per_try_timeout: Option<WrittenDuration>,
    retry_on: String,
    retry_remote_localities: Option<bool>,
    retry_ignore_previous_hosts: Option<bool>,
    backoff: Option<WrittenDuration>,
}

/// A field that cannot be applied.
#[derive(Debug, PartialEq, Eq)]
pub struct RetryFault {
    /// The name of the field.
    pub field: &'static str,
    /// The problem, as text.
    pub text: String,
    /// Whether the whole policy is invalid.
    pub is_fatal: bool,
}

/// Envoy's conditions for a retry (Envoy, `x-envoy-retry-on` and `x-envoy-retry-grpc-on`).
const RETRY_ON: [&str; 18] = [
    "5xx",
    "gateway-error",
    "reset",
    "reset-before-request",
    "connect-failure",
    "envoy-ratelimited",
    "retriable-4xx",
    "refused-stream",
    "retriable-status-codes",
    "retriable-headers",
    "http3-post-connect-failure",
    "cancelled",
    "deadline-exceeded",
    "internal",
    "resource-exhausted",
    "unavailable",
    "safe_or_idempotent",
    "aborted",
];

impl WrittenRetries {
    /// Returns the policy, and the fields without effect.
    pub fn read(self) -> (RetryRule, Vec<RetryFault>) {
        let mut faults = Vec::new();
        let attempts = u32::try_from(self.attempts).unwrap_or_else(|_| {
            let text = format!("{} is not a valid number of attempts", self.attempts);
            faults.push(RetryFault { field: "attempts", text, is_fatal: true });
            0
        });
        let (mut conditions, mut statuses) = (Vec::new(), Vec::new());
        for condition in
            self.retry_on.split(',').map(str::trim).filter(|condition| !condition.is_empty())
        {
            match condition.parse::<u16>() {
                Ok(status) if (100..600).contains(&status) => statuses.push(status),
                _ => conditions.push(condition),
            }
        }
        if !statuses.is_empty() && !conditions.contains(&"retriable-status-codes") {
            conditions.push("retriable-status-codes");
        }
        if let Some(condition) = conditions.iter().find(|condition| !RETRY_ON.contains(*condition))
        {
            let text = format!("{condition:?} is not a condition that Envoy supports");
            faults.push(RetryFault { field: "retryOn", text, is_fatal: false });
        }
        let conditions = conditions.join(",");
        let conditions =
            if conditions.contains(|c: char| c.is_control()) { String::new() } else { conditions };
        let backoff = self.backoff.map(|backoff| backoff.0).filter(|backoff| {
            if backoff.is_zero() {
                let text = "0s is not a valid pause; Envoy's default applies".to_owned();
                faults.push(RetryFault { field: "backoff", text, is_fatal: false });
            }
            !backoff.is_zero()
        });
        let rule = RetryRule {
            attempts,
            per_try_timeout: self.per_try_timeout.map(|timeout| at_least_a_millisecond(timeout.0)),
            on: if conditions.is_empty() { Arc::default() } else { conditions.into() },
            other_localities: self.retry_remote_localities.unwrap_or_default(),
            ignore_previous: self.retry_ignore_previous_hosts,
            more: RareRetrySettings { statuses: statuses.into(), backoff }.into(),
        };
        (rule, faults)
    }
}
