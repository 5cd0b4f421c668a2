//! Tests of the registry of one cluster: the interpretation of objects, and the handling of a
//! faulty API server.

mod about;
mod faults;
mod forms;
mod namespaces;
mod sharing;
mod values;
mod write_back;
