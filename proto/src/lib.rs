//! Wire types: Envoy's API, two services of Istio's agent, health checking, and their JSON form.
//!
//! A crate of its own because it never changes while the product does. It holds generated code and the
//! means to show it; it knows nothing of Strait.

pub use envoy_types::pb as envoy;

pub mod json;
pub mod rules;

/// A binary `google.protobuf.FileDescriptorSet`: our own files, the files of Envoy's API that we send or
/// show, and all they import.
pub static DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));

/// Health checking, `grpc.health.v1`.
#[allow(missing_docs, clippy::all, clippy::pedantic, unreachable_pub, unused_qualifications)]
pub mod health {
    tonic::include_proto!("grpc.health.v1");
}

/// What Istio's agent speaks beside Envoy's API.
#[allow(missing_docs, clippy::all, clippy::pedantic, unreachable_pub, unused_qualifications)]
pub mod istio {
    /// The certificate service, `istio.v1.auth`.
    pub mod auth {
        tonic::include_proto!("istio.v1.auth");
    }

    /// What Istio's own Envoy filters are told.
    pub mod filters {
        /// `istio.alpn`.
        pub mod alpn {
            tonic::include_proto!("istio.envoy.config.filter.http.alpn.v2alpha1");
        }

        /// `istio.metadata_exchange`, of connections.
        pub mod metadata_exchange {
            tonic::include_proto!("envoy.tcp.metadataexchange.config");
        }

        /// `istio.metadata_exchange`, of requests.
        pub mod peer_metadata {
            tonic::include_proto!("io.istio.http.peer_metadata");
        }

        /// `istio.stats`.
        pub mod stats {
            tonic::include_proto!("stats");
        }
    }

    /// Objects of the mesh's configuration over xDS, `istio.mcp.v1alpha1`.
    pub mod mcp {
        tonic::include_proto!("istio.mcp.v1alpha1");
    }

    /// Specs of the objects that are read over xDS, `istio.networking.v1alpha3`.
    pub mod networking {
        tonic::include_proto!("istio.networking.v1alpha3");
    }

    /// Specs of the objects that say who may call whom, `istio.security.v1beta1`.
    pub mod security {
        tonic::include_proto!("istio.security.v1beta1");
    }

    /// The name table for the agent's DNS proxy, `istio.networking.nds.v1`.
    pub mod nds {
        tonic::include_proto!("istio.networking.nds.v1");
    }
}
