//! The registry of one cluster: what objects mean, and what it makes of a faulty API server.

mod about;
mod faults;
mod forms;
mod values;
mod write_back;
