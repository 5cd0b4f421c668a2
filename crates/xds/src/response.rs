//! A response, and the message that it is encoded as.

use std::ops::Deref;
use std::sync::Arc;

use bytes::Bytes;

use super::form::ProtocolForm;
use super::list::ListPiece;
use super::resource::{Resource, ResourceType, Version};
use strait_http2::Rope;

/// A response, ready to be encoded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Response {
    /// The form to encode it in.
    pub form: ProtocolForm,
    /// Of what.
    pub kind: ResourceType,
    /// A digest of all the client holds of the type once it has this.
    pub version: Version,
    /// What the client will answer with.
    pub nonce: String,
    /// Parts of lists that many clients are sent.
    pub pieces: Vec<Arc<ListPiece>>,
    /// The other resources, sorted by name.
    pub resources: Vec<Versioned>,
    /// Names that are gone (Delta only).
    pub removed: Vec<Arc<str>>,
}

/// A resource, and the version to send it under.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Versioned {
    /// What is sent.
    pub resource: Arc<Resource>,
    /// That of the resource; of an assignment in Delta, joined with that of its upstream cluster.
    ///
    /// A changed cluster waits for its assignment even if that is the same as before. Should the
    /// stream break between the two, the client comes back and lists both: by this version it shows
    /// that the cluster still waits.
    pub version: Version,
}

impl Deref for Versioned {
    type Target = Resource;

    fn deref(&self) -> &Resource {
        &self.resource
    }
}

impl Response {
    /// How many resources it holds.
    pub fn count(&self) -> usize {
        self.pieces.iter().map(|piece| piece.resources().len()).sum::<usize>()
            + self.resources.len()
    }

    /// All its resources, each with the version it is sent under, in no order.
    pub fn all(&self) -> impl Iterator<Item = (&Arc<Resource>, Version)> {
        let in_pieces = self.pieces.iter().flat_map(|piece| piece.resources());
        let others = self.resources.iter().map(|one| (&one.resource, one.version));
        in_pieces.map(|one| (one, one.version)).chain(others)
    }

    /// Writes it as a message of its form.
    pub(super) fn encode(&self, out: &mut Rope) {
        match self.form {
            ProtocolForm::Delta => delta::encode(self, out),
            ProtocolForm::Sotw => sotw::encode(self, out),
        }
    }

    /// The message of its form in one piece.
    pub fn to_bytes(&self) -> Bytes {
        let mut rope = Rope::default();
        self.encode(&mut rope);
        rope.into_bytes()
    }

    /// Writes it as a gRPC message.
    pub fn encode_message(&self, out: &mut Rope) {
        let length = u32::try_from(self.encoded_len()).expect("less than 4 GiB fit into memory");
        out.put_slice(&[0]);
        out.put_slice(&length.to_be_bytes());
        self.encode(out);
    }

    /// The length of what `encode` writes, in bytes.
    pub fn encoded_len(&self) -> usize {
        match self.form {
            ProtocolForm::Delta => delta::encoded_len(self),
            ProtocolForm::Sotw => sotw::encoded_len(self),
        }
    }
}

/// As a `DeltaDiscoveryResponse`.
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

    /// The length of what [`encode`] writes.
    pub(super) fn encoded_len(response: &Response) -> usize {
        let resources =
            response.resources.iter().map(|resource| resource_field_len(response.kind, resource));
        let pieces = response.pieces.iter().map(|piece| piece.encoded_len(ProtocolForm::Delta));
        // An empty name is written as well: of a list, proto3 leaves out nothing.
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

/// As a `DiscoveryResponse`.
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

    /// The length of what [`encode`] writes.
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
