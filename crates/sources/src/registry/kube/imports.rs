//! The objects that Strait writes into a cluster for exported services: ServiceImports, a derived
//! Service for each, which has their addresses, and EndpointSlices with the endpoints.
//!
//! [`plan`] decides what to write, and is pure.

mod bodies;
mod plan;
mod recreation;
#[cfg(test)]
mod slice_tests;
mod slices;
#[cfg(test)]
mod tests;

pub(super) use self::bodies::{RestoredFields, import_status};
pub(super) use self::plan::{
    ImportPlan, ImportPlanInputs, ImportWrite, RESTORATIONS_MAX, SettledImports, WriteMode, plan,
};
pub(super) use self::recreation::Recreation;
