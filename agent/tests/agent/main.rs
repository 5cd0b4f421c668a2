//! The program as a pod starts it, with a stand-in for the control plane's certificate service, and for Envoy where none is
//! needed.

#![allow(clippy::panic, reason = "a test that can't go on says so")]

mod authority;
mod harness;
mod house;
mod names;
mod pages;
mod real;
mod redirect;
mod restart;
mod run;
