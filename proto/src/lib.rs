//! Wire types: Envoy's API, two services of Istio's agent, health checking, and their JSON form.
//!
//! The code in `generated` and `descriptors.bin` are made from the `.proto` files of this crate by
//! `tests/generated.rs`. This crate rarely changes and contains nothing about Strait.

pub use envoy_types::pb as envoy;

pub mod json;
pub mod rules;

/// A binary `google.protobuf.FileDescriptorSet`: our own files, the files of Envoy's API that we send or
/// show, and all they import.
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

        /// `istio.metadata_exchange`, of connections.
        pub mod metadata_exchange {
            include!("generated/envoy.tcp.metadataexchange.config.rs");
        }

        /// `istio.metadata_exchange`, of requests.
        pub mod peer_metadata {
            include!("generated/io.istio.http.peer_metadata.rs");
        }

        /// `istio.stats`.
        pub mod stats {
            include!("generated/stats.rs");
        }
    }

    /// Objects of the mesh's configuration over xDS, `istio.mcp.v1alpha1`.
    pub mod mcp {
        include!("generated/istio.mcp.v1alpha1.rs");
    }

    /// Specs of the objects that are read over xDS, `istio.networking.v1alpha3`.
    pub mod networking {
        include!("generated/istio.networking.v1alpha3.rs");
    }

    /// Specs of the objects that say who may call whom, `istio.security.v1beta1`.
    pub mod security {
        include!("generated/istio.security.v1beta1.rs");
    }

    /// The name table for the agent's DNS proxy, `istio.networking.nds.v1`.
    pub mod nds {
        include!("generated/istio.networking.nds.v1.rs");
    }
}
