//! A response and its encoding.

use std::ops::Deref;
use std::sync::Arc;

use bytes::Bytes;

use super::form::ProtocolForm;
use super::list::ListPiece;
use super::resource::{Resource, ResourceType, Version};
use strait_http2::Rope;

/// A response that is ready to be encoded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Response {
    /// The protocol form of the encoding.
    pub form: ProtocolForm,
    /// The resource type.
    pub kind: ResourceType,
    /// The digest of all resources of the type that the client holds after accepting this response.
    pub version: Version,
    /// The nonce that the client repeats in its answer.
    pub nonce: String,
    /// Pieces of lists that many clients receive.
    pub pieces: Vec<Arc<ListPiece>>,
    /// The remaining resources, sorted by name.
    pub resources: Vec<Versioned>,
    /// Names of removed resources (Delta only).
    pub removed: Vec<Arc<str>>,
}

/// A resource and the version under which it is sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Versioned {
    /// The resource.
    pub resource: Arc<Resource>,
    /// The version of the resource. For an endpoint assignment in Delta, it is combined with the
    /// version of the upstream cluster.
    ///
    /// Envoy waits for the assignment of a changed cluster, even if the assignment is unchanged. If
    /// the stream breaks in between, the client reconnects and lists both. The combined version
    /// then shows that the cluster still waits for its assignment.
    pub version: Version,
}

impl Deref for Versioned {
    type Target = Resource;

    fn deref(&self) -> &Resource {
        &self.resource
    }
}

/// Returns the nonce of a response with this number: its hexadecimal digits.
pub(super) fn nonce_of(number: u64) -> String {
    let digits = Version(number).text();
    let zeros = digits.iter().take(Version::LENGTH - 1).take_while(|digit| **digit == b'0').count();
    digits.iter().skip(zeros).map(|digit| char::from(*digit)).collect()
}

impl Response {
    /// Returns the number of resources.
    pub fn count(&self) -> usize {
        self.pieces.iter().map(|piece| piece.resources().len()).sum::<usize>()
            + self.resources.len()
    }

    /// Returns all resources in any order, each with the version under which it is sent.
    pub fn all(&self) -> impl Iterator<Item = (&Arc<Resource>, Version)> {
        let in_pieces = self.pieces.iter().flat_map(|piece| piece.resources());
        let others = self.resources.iter().map(|one| (&one.resource, one.version));
        in_pieces.map(|one| (one, one.version)).chain(others)
    }

    /// Writes the response as a message of the stream's protocol form.
    pub(super) fn encode(&self, out: &mut Rope) {
        match self.form {
            ProtocolForm::Delta => delta::encode(self, out),
            ProtocolForm::Sotw => sotw::encode(self, out),
        }
    }

    /// Encodes the response as a message of the stream's protocol form, in a single buffer.
    pub fn to_bytes(&self) -> Bytes {
        let mut rope = Rope::default();
        self.encode(&mut rope);
        rope.into_bytes()
    }

    /// Writes the response as a gRPC message, with the length prefix.
    pub fn encode_message(&self, out: &mut Rope) {
        let length = u32::try_from(self.encoded_len()).expect("less than 4 GiB fit into memory");
        out.put_slice(&[0]);
        out.put_slice(&length.to_be_bytes());
        self.encode(out);
    }

    /// The number of bytes that `encode` writes.
    pub fn encoded_len(&self) -> usize {
        match self.form {
            ProtocolForm::Delta => delta::encoded_len(self),
            ProtocolForm::Sotw => sotw::encoded_len(self),
        }
    }
}

/// Encodes a response as a `DeltaDiscoveryResponse`.
mod delta {
    use crate::form::ProtocolForm;
    use crate::resource::Version;
    use crate::resource_wire::delta::{put_resource, resource_field_len};
    use crate::response::Response;
    use crate::wire::{bytes_len, message_len, put_bytes, put_head};
    use strait_http2::Rope;

    /// Field numbers of `DeltaDiscoveryResponse`.
    mod field {
        pub(super) const SYSTEM_VERSION_INFO: u32 = 1;
        pub(super) const TYPE_URL: u32 = 4;
        pub(super) const NONCE: u32 = 5;
        pub(super) const REMOVED_RESOURCES: u32 = 6;
    }

    /// Writes a response as a `DeltaDiscoveryResponse`.
    pub(super) fn encode(response: &Response, out: &mut Rope) {
        put_bytes(field::SYSTEM_VERSION_INFO, &response.version.text(), out);
        response.pieces.iter().for_each(|piece| piece.put(ProtocolForm::Delta, out));
        for one in &response.resources {
            put_resource(response.kind, one, one.version, out);
        }
        put_bytes(field::TYPE_URL, response.kind.url().as_bytes(), out);
        put_bytes(field::NONCE, response.nonce.as_bytes(), out);
        for name in &response.removed {
            put_head(field::REMOVED_RESOURCES, name.len(), out);
            out.put_slice(name.as_bytes());
        }
    }

    /// The number of bytes that [`encode`] writes.
    pub(super) fn encoded_len(response: &Response) -> usize {
        let resources =
            response.resources.iter().map(|resource| resource_field_len(response.kind, resource));
        let pieces = response.pieces.iter().map(|piece| piece.encoded_len(ProtocolForm::Delta));
        // An empty name is written too: proto3 does not omit elements of a repeated field.
        let removed =
            response.removed.iter().map(|name| message_len(field::REMOVED_RESOURCES, name.len()));
        message_len(field::SYSTEM_VERSION_INFO, Version::LENGTH)
            + pieces.sum::<usize>()
            + resources.sum::<usize>()
            + bytes_len(field::TYPE_URL, response.kind.url().as_bytes())
            + bytes_len(field::NONCE, response.nonce.as_bytes())
            + removed.sum::<usize>()
    }
}

/// Encodes a response as a `DiscoveryResponse`.
mod sotw {
    use crate::form::ProtocolForm;
    use crate::resource_wire::sotw::{put_resource, resource_field_len};
    use crate::response::Response;
    use crate::wire::{bytes_len, put_bytes};
    use strait_http2::Rope;

    /// Field numbers of `DiscoveryResponse`.
    mod field {
        pub(super) const VERSION_INFO: u32 = 1;
        pub(super) const TYPE_URL: u32 = 4;
        pub(super) const NONCE: u32 = 5;
    }

    /// Writes a response as a `DiscoveryResponse`.
    pub(super) fn encode(response: &Response, out: &mut Rope) {
        put_bytes(field::VERSION_INFO, &response.version.text(), out);
        response.pieces.iter().for_each(|piece| piece.put(ProtocolForm::Sotw, out));
        response.resources.iter().for_each(|one| put_resource(response.kind, one, out));
        put_bytes(field::TYPE_URL, response.kind.url().as_bytes(), out);
        put_bytes(field::NONCE, response.nonce.as_bytes(), out);
    }

    /// The number of bytes that [`encode`] writes.
    pub(super) fn encoded_len(response: &Response) -> usize {
        let resources = response.resources.iter().map(|one| resource_field_len(response.kind, one));
        let pieces = response.pieces.iter().map(|piece| piece.encoded_len(ProtocolForm::Sotw));
        bytes_len(field::VERSION_INFO, &response.version.text())
            + pieces.sum::<usize>()
            + resources.sum::<usize>()
            + bytes_len(field::TYPE_URL, response.kind.url().as_bytes())
            + bytes_len(field::NONCE, response.nonce.as_bytes())
    }
}
