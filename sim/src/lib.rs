//! Simulated Kubernetes API servers that work with kube-rs, kubectl and client-go.
//!
//! [`SimCluster`] is one API server on a loopback port over HTTPS: a [`Store`] of objects, lists with
//! pages, watches with bookmarks and 410, and [`Fault`]s that can be injected. [`objects`] creates the
//! objects that a test needs. [`World`] fills many clusters from one seed, and the binary `strait-sim`
//! serves this world to any client. Only the API is simulated, not the controllers: no pod is
//! scheduled and no EndpointSlice is filled by itself.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use strait_sim::{Fault, Options, SimCluster, objects};
//!
//! let east = SimCluster::start("east", Options::default()).await?;
//! east.store().apply(objects::service("shop", "cart", "10.96.0.10", &[objects::HTTP]))?;
//! east.fault(Fault::Slow { latency_ms: 100, bytes_per_second: None });
//! println!("{}", east.kubeconfig());
//! # Ok(())
//! # }
//! ```

mod accept;
mod admit;
mod body;
pub mod cloud;
mod cluster;
pub mod control;
mod discovery;
mod encode;
mod fault;
mod http;
mod kubeconfig;
mod object;
pub mod objects;
mod paging;
mod patch;
mod port_forward;
mod protobuf;
mod reply;
mod requests;
mod resource;
mod route;
mod select;
mod stamps;
mod status;
mod stencil;
mod store;
mod task;
mod tls;
mod tokens;
mod watch;
mod weight;
mod world;

pub use cluster::{Options, SimCluster};
pub use fault::{Fault, Gone, Refusal};
pub use kubeconfig::member_secret;
pub use object::{Name, Object};
pub use requests::Request;
pub use resource::{Family, RESOURCES, Resource};
pub use stamps::{Stamp, StampKind};
pub use status::ApiError;
pub use store::{DEFAULT_HISTORY, Snapshot, Store};
pub use tls::Certificate;
pub use world::{RATES, World, WorldError, WorldOptions};
