//! All integration tests, in one binary: linking is what costs.

#![allow(
    clippy::panic,
    clippy::unwrap_used,
    clippy::large_futures,
    reason = "a test fails by a panic"
)]

mod access;
mod admin_types;
mod agent;
mod archive;
mod bundle;
mod checked;
mod cli;
mod config_kinds;
mod demo;
mod dns;
mod docs;
mod events;
mod faults;
mod fenced;
mod files;
mod frozen;
mod generated;
mod golden;
mod harness;
mod history;
mod hold;
mod hostile;
mod identity;
mod imports;
mod intermediates;
mod large_objects;
mod layering;
mod member_sources;
mod member_traffic;
mod members;
#[allow(dead_code, reason = "what all tests share is not used by each")]
mod mesh;
mod naive;
mod namespaced;
mod networks;
mod operator;
mod order;
mod outside;
mod page;
mod plots;
mod port_forward;
mod previewed;
mod probed;
mod purge;
mod relay;
mod relayed;
mod remote_pods;
mod replicas;
mod restart;
mod restored;
mod rollout;
mod roots;
mod routes;
mod secrets;
mod serve;
mod simulation;
mod soak;
mod sources;
mod statuses;
mod steering;
mod storage;
mod story;
mod tenants;
mod tidy;
mod tokens;
mod traced;
mod validation;
mod verdicts;
mod webhook;
