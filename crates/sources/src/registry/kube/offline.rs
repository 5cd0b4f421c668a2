//! The registry of a cluster without its API server: interprets the bytes of responses.
//!
//! For files of manifests, tests, benches and fuzzers. Everything except the connection is the code
//! of [`super::run`].

use std::sync::Arc;

use super::Skipped;
use super::endpoint_slice::Slice;
use super::index::{IndexChanges, Indexed, KubeIndex, ReadAs};
use super::mcs::{Export, Import};
use super::namespace::NamespaceFacts;
use super::node::NodeRecord;
use super::pod::PodRecord;
use super::scope::{COMMON, ReadSettings, Scope};
use super::service::KubeService;
use super::workload_entry::WorkloadEntryRecord;
use strait_kube_client::{Encoding, read_list, read_watch};
use strait_model::registry::Contents;
use strait_model::{DeclaredGateway, EndpointMetadata};

/// The state of a cluster according to the given responses.
pub struct Offline {
    scope: Arc<Scope>,
    index: KubeIndex,
    touched: IndexChanges,
    piece: usize,
}

impl Offline {
    /// Creates an empty state with the domain and trust domain `cluster.local`. Responses are split
    /// into pieces of this many bytes.
    pub fn new(piece: usize) -> Self {
        Self::with(piece, EndpointMetadata::Lean)
    }

    /// Creates an empty state with this DNS domain, trust domain and system namespace.
    pub fn in_mesh(domain: &str, trust_domain: &str, system_namespace: &str) -> Self {
        Self::with_settings(
            ReadSettings {
                domain: domain.into(),
                trust_domain: trust_domain.into(),
                system_namespace: system_namespace.into(),
                metadata: EndpointMetadata::Lean,
                clusterset: "default".into(),
            },
            usize::MAX,
        )
    }

    /// Replaces the endpoint metadata.
    pub fn with_metadata(self, metadata: EndpointMetadata) -> Self {
        Self::with(self.piece, metadata)
    }

    fn with(piece: usize, metadata: EndpointMetadata) -> Self {
        let settings = ReadSettings {
            domain: "cluster.local".into(),
            trust_domain: "cluster.local".into(),
            system_namespace: "strait-system".into(),
            metadata,
            clusterset: "default".into(),
        };
        Self::with_settings(settings, piece)
    }

    fn with_settings(settings: ReadSettings, piece: usize) -> Self {
        let scope = Arc::new(Scope::new(settings, Arc::clone(&COMMON)));
        Self {
            index: KubeIndex::new(Arc::clone(&scope)),
            scope,
            touched: IndexChanges::default(),
            piece: piece.max(1),
        }
    }

    /// Applies the response to a list or a watch of a kind, such as `pods`. Returns the number of
    /// objects and events; zero for an unsupported kind.
    ///
    /// # Errors
    /// Fails if the response is not valid.
    pub fn take(
        &mut self,
        plural: &str,
        response: OfflineResponse,
        encoding: Encoding,
        bytes: &[u8],
    ) -> Result<usize, String> {
        match plural {
            "services" => self.apply_as::<KubeService>(response, encoding, bytes),
            "endpointslices" => self.apply_as::<Slice>(response, encoding, bytes),
            "pods" => self.apply_as::<PodRecord>(response, encoding, bytes),
            "nodes" => self.apply_as::<NodeRecord>(response, encoding, bytes),
            "namespaces" => self.apply_as::<NamespaceFacts>(response, encoding, bytes),
            "serviceexports" => self.apply_as::<Export>(response, encoding, bytes),
            "serviceimports" => self.apply_as::<Import>(response, encoding, bytes),
            "gateways" => self.apply_as::<DeclaredGateway>(response, encoding, bytes),
            "workloadentries" => self.apply_as::<WorkloadEntryRecord>(response, encoding, bytes),
            _ => Ok(0),
        }
    }

    fn apply_as<T: Indexed>(
        &mut self,
        response: OfflineResponse,
        encoding: Encoding,
        bytes: &[u8],
    ) -> Result<usize, String> {
        let kind = ReadAs::<T>::with(&self.scope);
        match response {
            OfflineResponse::List => {
                let event = read_list(&kind, encoding, bytes, self.piece)?;
                self.touched.merge(self.index.apply(event));
                Ok(self.index.object_count())
            }
            OfflineResponse::Watch => {
                let events = read_watch(&kind, encoding, bytes, self.piece)?;
                let count = events.len();
                for event in events {
                    self.touched.merge(self.index.apply(event));
                }
                Ok(count)
            }
        }
    }

    /// Returns the changes by the responses since the last call, as the registry's run would report
    /// them; `None` if nothing changed.
    pub fn changes(&mut self) -> Option<Contents> {
        self.index.contents(&std::mem::take(&mut self.touched))
    }

    /// Returns the complete contents.
    pub fn everything(&mut self) -> Contents {
        self.index.everything()
    }

    /// Returns the invalid objects.
    pub fn skipped(&self) -> Skipped {
        self.index.skipped()
    }
}

/// The type of a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OfflineResponse {
    /// A list.
    List,
    /// A watch.
    Watch,
}
