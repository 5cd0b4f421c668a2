//! What an operator says about the mesh as a whole: mesh config and mesh networks, in Istio's YAML.
//!
//! Owns the meaning of both texts and the last good value of each. Knows no cluster, service or proxy, and never lets a
//! bad text take effect: it is reported as a [`SourceProblem`], and what was read before stays.

mod config;
mod discovery;
mod duration;
mod networks;
mod sources;
pub mod watch;
mod yaml;

pub use config::{
    Defaults, MeshConfig, OutboundTrafficPolicy, PathNormalization, TcpKeepalive, own_trust_domain,
};
pub use duration::{format_duration, parse_duration};
pub use networks::{GatewayConfig, GatewayTarget, MeshNetworks, Network};
pub use sources::{SourceTls, StoreAddress, StoreSource};
pub use watch::{ConfigTextSource, MeshSettings, MeshWatcher, SourceProblem};
pub use yaml::InvalidYaml;
pub(crate) use yaml::plain;
