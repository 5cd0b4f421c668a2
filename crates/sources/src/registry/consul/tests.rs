mod fake;
mod faults;
mod values;
