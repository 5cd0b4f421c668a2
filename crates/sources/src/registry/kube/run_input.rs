//! The inputs of a run: the events of its readers.

use super::endpoint_slice::Slice;
use super::index::IndexEvent;
use super::mcs::{Export, Import};
use super::namespace::NamespaceFacts;
use super::node::NodeRecord;
use super::pod::PodRecord;
use super::service::KubeService;
use super::workload_entry::WorkloadEntryRecord;
use strait_kube_client::Probed;
use strait_model::DeclaredGateway;

/// The inputs of a run. They are boxed, because a channel allocates space for 32 at its creation.
pub(super) enum RunInput {
    Service(Box<IndexEvent<KubeService>>),
    Slice(Box<IndexEvent<Slice>>),
    Pod(Box<IndexEvent<PodRecord>>),
    Node(Box<IndexEvent<NodeRecord>>),
    Namespace(Box<IndexEvent<NamespaceFacts>>),
    Gateway(Box<IndexEvent<DeclaredGateway>>),
    Entry(Box<IndexEvent<WorkloadEntryRecord>>),
    Export(Box<IndexEvent<Export>>),
    Import(Box<IndexEvent<Import>>),
    Probed(Box<Probed>),
    /// The UID of the cluster, read by itself because namespaces may not be listed.
    Uid(Box<Option<Box<str>>>),
    /// The input of a reader that is limited to the namespace at this position.
    Within(u8, Box<RunInput>),
}

macro_rules! inputs {
    ($($input:ty => $variant:ident,)*) => {
        $(impl From<$input> for RunInput {
            fn from(input: $input) -> Self {
                Self::$variant(Box::new(input))
            }
        })*
    };
}

inputs! {
    IndexEvent<KubeService> => Service,
    IndexEvent<Slice> => Slice,
    IndexEvent<PodRecord> => Pod,
    IndexEvent<NodeRecord> => Node,
    IndexEvent<NamespaceFacts> => Namespace,
    IndexEvent<DeclaredGateway> => Gateway,
    IndexEvent<WorkloadEntryRecord> => Entry,
    IndexEvent<Export> => Export,
    IndexEvent<Import> => Import,
    Probed => Probed,
}
