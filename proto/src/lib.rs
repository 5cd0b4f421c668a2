//! Wire types: Envoy's API, two services of Istio's agent, health checking, and their JSON form.
//!
//! `tests/generated.rs` generates the code in `generated` and `descriptors.bin` from the `.proto` files
//! of this crate. This crate rarely changes and contains nothing about Strait.

pub use envoy_types::pb as envoy;

pub mod json;
pub mod rules;

/// A binary `google.protobuf.FileDescriptorSet`: the files of this crate, the files of Envoy's API that
/// Strait sends or shows, and all their imports.
pub static DESCRIPTORS: &[u8] = include_bytes!("generated/descriptors.bin");

/// Health checking, `grpc.health.v1`.
#[allow(missing_docs, clippy::all, clippy::pedantic, unreachable_pub, unused_qualifications)]
pub mod health {
    include!("generated/grpc.health.v1.rs");
}

/// Services of Istio's agent and messages of Istio's API and filters.
#[allow(missing_docs, clippy::all, clippy::pedantic, unreachable_pub, unused_qualifications)]
pub mod istio {
    /// The certificate service, `istio.v1.auth`.
    pub mod auth {
        include!("generated/istio.v1.auth.rs");
    }

    /// Configuration of Istio's Envoy filters.
    pub mod filters {
        /// `istio.alpn`.
        pub mod alpn {
            include!("generated/istio.envoy.config.filter.http.alpn.v2alpha1.rs");
        }

        /// `istio.metadata_exchange` for TCP connections.
        pub mod metadata_exchange {
            include!("generated/envoy.tcp.metadataexchange.config.rs");
        }

        /// `istio.metadata_exchange` for HTTP requests.
        pub mod peer_metadata {
            include!("generated/io.istio.http.peer_metadata.rs");
        }

        /// `istio.stats`.
        pub mod stats {
            include!("generated/stats.rs");
        }
    }

    /// Configuration objects over xDS, `istio.mcp.v1alpha1`.
    pub mod mcp {
        include!("generated/istio.mcp.v1alpha1.rs");
    }

    /// Specs of networking objects that are read over xDS, `istio.networking.v1alpha3`.
    pub mod networking {
        include!("generated/istio.networking.v1alpha3.rs");
    }

    /// Specs of authorization and authentication policies, `istio.security.v1beta1`.
    pub mod security {
        include!("generated/istio.security.v1beta1.rs");
    }

    /// The name table for the agent's DNS proxy, `istio.networking.nds.v1`.
    pub mod nds {
        include!("generated/istio.networking.nds.v1.rs");
    }
}
