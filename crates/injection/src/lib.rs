//! Puts a sidecar into pods: one pure function, [`inject`], which the webhook and `strait proxy inject` share.
//!
//! What it adds is told by `docs/guide/injection.md`. The function owns no state and asks nobody: a pod, where it is, and
//! the settings are all its input, and the same input gives the same bytes. It never changes what the pod says itself, but
//! for its probes and the place of its metrics, for which the sidecar answers; and a pod whose traffic would pass the sidecar
//! by is refused, with the reason and the next step.

mod annotations;
mod counts;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
mod metrics;
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
