//! All integration tests, in one binary: linking is what costs.

mod cli;
mod demo;
mod golden;
mod harness;
mod layering;
mod tidy;
mod traced;
