//! Traffic configuration: the routing and policies for traffic between services.
//!
//! Pure. [`TrafficIndex`] parses objects, keeps the last valid version of each, and indexes them by
//! host, so that the cost of a change depends only on the hosts of the changed object. The result
//! is a [`Traffic`]. Generators derive the configuration of proxies from it with the lookup
//! functions in this module. Each question has exactly one lookup function.

mod addressed;
pub mod changes;
pub mod config;
pub mod destination_rule;
pub mod earlier_matches;
pub mod edition;
pub mod envoy_filter;
pub mod foreign;
pub mod gateway;
pub mod gateway_route;
mod gateway_route_merge;
pub mod gateway_servers;
pub mod hosts;
pub mod index;
pub mod ingress;
pub mod ingress_merge;
pub mod kind;
pub mod object;
pub mod policy;
pub mod proxy_config;
pub mod proxy_config_selection;
pub mod proxy_match;
pub mod proxyless;
pub mod re2;
pub mod report;
pub mod retained_subsets;
pub mod route;
mod scoped;
pub mod selection;
mod shared;
pub mod sidecar;
pub mod telemetry;
pub mod virtual_service;
pub mod virtual_service_selection;
pub mod withheld;

pub use self::addressed::AddressedServices;
pub use self::changes::TrafficChanges;
pub use self::config::Traffic;
pub use self::edition::EditionIndex;
pub use self::hosts::HostPattern;
pub use self::index::{TrafficIndex, TrafficUpdate};
pub use self::kind::KindSettings;
pub use self::object::{ObjectMeta, ObjectState, Reason};
pub use self::report::{TrafficObject, TrafficReport, TrafficReports};
pub use self::selection::Selection;
pub use self::withheld::Withheld;
