//! The memory use of a stored object of each kind.

use std::mem::size_of;

use super::endpoint_slice::Slice;
use super::import_objects::DerivedService;
use super::mcs::{Export, Import};
use super::namespace::NamespaceFacts;
use super::node::NodeRecord;
use super::pod::PodRecord;
use super::service::KubeService;
use super::weight::{
    ENDPOINT, MemoryWeight, NODE, entry, labels, port, service, shared_labels, workload,
};
use super::workload_entry::WorkloadEntryRecord;
use strait_model::{DeclaredGateway, GatewayHost};

impl MemoryWeight for KubeService {
    fn weight(&self) -> usize {
        let nodes = self.node_selector.as_ref().map_or(0, labels);
        let derived = self.derived.as_ref().map_or(0, |derived| derived.weight());
        size_of::<Self>() + service(&self.service) + shared_labels(&self.labels) + nodes + derived
    }
}

impl MemoryWeight for Slice {
    fn weight(&self) -> usize {
        let (rows, ports, names) = self.sizes();
        size_of::<Self>() + NODE + names + rows * (ENDPOINT + ENDPOINT * ports.max(1))
    }
}

impl MemoryWeight for PodRecord {
    fn weight(&self) -> usize {
        workload(&self.workload) + NODE
    }
}

impl MemoryWeight for NodeRecord {
    fn weight(&self) -> usize {
        size_of::<Self>() + NODE + labels(&self.labels)
    }
}

impl MemoryWeight for NamespaceFacts {
    fn weight(&self) -> usize {
        size_of::<Self>() + labels(&self.labels) + self.uid.len()
    }
}

impl MemoryWeight for DeclaredGateway {
    fn weight(&self) -> usize {
        let address = |host: &GatewayHost| match host {
            GatewayHost::Address(_) => 0,
            GatewayHost::Name(name) => name.len(),
        };
        let addresses: usize = self.addresses.iter().map(|one| NODE + address(one)).sum();
        2 * (size_of::<Self>() + addresses + self.entrances.len() * NODE)
    }
}

impl MemoryWeight for WorkloadEntryRecord {
    fn weight(&self) -> usize {
        entry(self.value())
    }
}

impl MemoryWeight for Export {
    fn weight(&self) -> usize {
        let texts = self.conditions.iter().map(|one| {
            let texts = [&one.kind, &one.status, &one.reason, &one.message, &one.since];
            NODE + texts.into_iter().map(|text| text.len() + 16).sum::<usize>()
        });
        size_of::<Self>() + texts.sum::<usize>() + labels(&self.labels) + labels(&self.annotations)
    }
}

impl MemoryWeight for DerivedService {
    fn weight(&self) -> usize {
        let texts = [&self.uid, &self.version, &self.applied];
        size_of::<Self>() + texts.into_iter().map(|text| text.len() + 16).sum::<usize>() + 2 * 17
    }
}

impl MemoryWeight for Import {
    fn weight(&self) -> usize {
        let clusters = self.clusters.iter().map(|name| name.len() + 16).sum::<usize>();
        let ports = self.ports.iter().map(port).sum::<usize>();
        let own = self.own.as_ref().map_or(0, |own| size_of_val(&**own) + own.applied.len() + 256);
        2 * (size_of::<Self>() + self.vips.len() * 17 + ports + clusters) + own
    }
}
