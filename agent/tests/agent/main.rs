//! Tests of the program as a pod starts it, with a test double for the control plane's certificate service, and for
//! Envoy if a real one is not needed.

#![allow(clippy::panic, reason = "a test that cannot continue panics")]

mod authority;
mod harness;
mod house;
mod names;
mod pages;
mod real;
mod redirect;
mod restart;
mod run;
