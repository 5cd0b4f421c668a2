//! Sidecar injection: one pure function, [`inject`], which the webhook and `strait proxy inject` share.
//!
//! docs/how-to/inject-sidecars.md lists the additions to a pod. Invariants:
//!
//! - The input is the pod, its cluster and namespace, and the settings. The same input gives the same bytes.
//! - It changes only two parts of the pod's own specification: probes and the metrics port, which
//!   the sidecar serves.
//! - A pod whose traffic would bypass the sidecar is refused, with the reason and the next step.

#![forbid(unsafe_code)]

mod annotations;
mod counts;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod metrics;
mod names;
mod object;
mod patch;
mod pod;
mod probes;
mod refusal;
mod requirements;
mod review;
mod selection;
pub mod server;
mod settings;
mod user_volumes;
pub mod webhook;
pub mod workload;

pub use self::counts::{InjectionCounts, InjectionResult};
pub use self::pod::inject;
pub use self::refusal::{InjectRefusal, Injection, SkipReason};
pub use self::selection::{INJECT_LABEL, NEVER_INJECTED};
pub use self::settings::{
    FindPodDefaults, InjectSettings, PodDefaults, PodPlace, Redirection, default_image,
};

#[cfg(test)]
mod tests;
