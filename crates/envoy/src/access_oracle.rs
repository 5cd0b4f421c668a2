//! The independent evaluator of access policies and its random inputs, which the tests of `strait-rules` use too.
#![allow(dead_code, reason = "the tests of `strait-rules` use the rest")]

#[path = "../../../tests/access/evaluator.rs"]
pub(crate) mod evaluator;
#[path = "../../../tests/access/generator.rs"]
pub(crate) mod generator;
