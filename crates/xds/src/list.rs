//! A list of resources that many clients hold. It is built once and sent in pieces whose bytes all
//! streams share.
//!
//! A mesh of a thousand services has a thousand upstream clusters, and nearly all of them are equal
//! for every proxy. A stream whose client holds the whole list unchanged stores only a pointer to
//! it.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::form::ProtocolForm;
use super::resource::{Resource, ResourceType, Version};
use super::resource_wire::{delta, sotw};
use strait_base::hash::SecretHasher;
use strait_http2::Rope;

/// Resources sorted by name, without duplicate names, divided into pieces for responses.
#[derive(Debug)]
pub struct SharedList {
    resources: Arc<[Arc<Resource>]>,
    pieces: Box<[Arc<ListPiece>]>,
    /// The index of each name. Built when first needed, which is when clients reconnect and list
    /// their resources.
    places: OnceLock<HashMap<Arc<str>, usize, SecretHasher>>,
}

/// A part of a [`SharedList`] that is sent as a unit.
#[derive(Debug)]
pub struct ListPiece {
    kind: ResourceType,
    list: Arc<[Arc<Resource>]>,
    /// The part of the list that this piece contains.
    range: Range<usize>,
    names: Arc<[Arc<str>]>,
    digest: u64,
    /// The encoded bytes in each protocol form, built when first sent. Never built for a piece with
    /// one resource.
    encoded: [OnceLock<Bytes>; 2],
}

impl SharedList {
    /// Creates a list of `kind`, divided into pieces of about `piece_bytes` bytes. The resources
    /// must be sorted by name, without duplicate names.
    pub fn new(
        kind: ResourceType,
        resources: Arc<[Arc<Resource>]>,
        piece_bytes: usize,
    ) -> Arc<Self> {
        let mut pieces = Vec::new();
        let (mut start, mut bytes) = (0, 0);
        for (at, resource) in resources.iter().enumerate() {
            bytes += resource.encoded_len();
            if bytes >= piece_bytes || at + 1 == resources.len() {
                pieces.push(Arc::new(ListPiece::new(kind, &resources, start..at + 1)));
                (start, bytes) = (at + 1, 0);
            }
        }
        Arc::new(Self { resources, pieces: pieces.into(), places: OnceLock::new() })
    }

    /// The resources of the list.
    pub fn resources(&self) -> &Arc<[Arc<Resource>]> {
        &self.resources
    }

    /// Returns the index of a name in [`Self::resources`].
    pub(super) fn place(&self, name: &str) -> Option<usize> {
        let places = self.places.get_or_init(|| {
            let names = self.resources.iter().map(|one| Arc::clone(&one.name));
            names.enumerate().map(|(place, name)| (name, place)).collect()
        });
        places.get(name).copied()
    }

    /// All pieces of the list.
    pub(super) fn pieces(&self) -> &[Arc<ListPiece>] {
        &self.pieces
    }

    /// Returns the resources in the first `count` pieces.
    pub(super) fn beginning(&self, count: usize) -> &[Arc<Resource>] {
        let last = count.checked_sub(1).and_then(|last| self.pieces.get(last));
        let end = last.map_or(0, |piece| piece.range.end);
        self.resources.get(..end).unwrap_or_default()
    }
}

impl PartialEq for SharedList {
    fn eq(&self, other: &Self) -> bool {
        self.pieces == other.pieces
    }
}

impl Eq for SharedList {}

impl ListPiece {
    fn new(kind: ResourceType, list: &Arc<[Arc<Resource>]>, range: Range<usize>) -> Self {
        let resources = list.get(range.clone()).unwrap_or_default();
        let digests = resources.iter().map(|one| digest(&one.name, Some(one.version)));
        Self {
            kind,
            list: Arc::clone(list),
            range,
            names: resources.iter().map(|one| Arc::clone(&one.name)).collect(),
            digest: digests.fold(0, u64::wrapping_add),
            encoded: Default::default(),
        }
    }

    /// The resources of the piece, sorted by name.
    pub fn resources(&self) -> &[Arc<Resource>] {
        self.list.get(self.range.clone()).unwrap_or_default()
    }

    /// The names of the resources, without their bytes.
    pub(super) fn names(&self) -> &Arc<[Arc<str>]> {
        &self.names
    }

    /// The sum of the resources' [`digest`]s.
    pub(super) fn digest(&self) -> u64 {
        self.digest
    }

    /// Writes the fields of a response that contain the resources.
    pub(super) fn put(&self, form: ProtocolForm, out: &mut Rope) {
        match self.resources() {
            // A single resource is already shared; joining fields would only copy it.
            [one] => self.put_one(one, form, out),
            _ => out.put_shared(self.fields(form)),
        }
    }

    /// The number of bytes that [`Self::put`] writes.
    pub(super) fn encoded_len(&self, form: ProtocolForm) -> usize {
        match (self.resources(), form) {
            ([one], ProtocolForm::Delta) => delta::resource_field_len(self.kind, one),
            ([one], ProtocolForm::Sotw) => sotw::resource_field_len(self.kind, one),
            _ => self.fields(form).len(),
        }
    }

    fn put_one(&self, one: &Resource, form: ProtocolForm, out: &mut Rope) {
        match form {
            ProtocolForm::Delta => delta::put_resource(self.kind, one, one.version, out),
            ProtocolForm::Sotw => sotw::put_resource(self.kind, one, out),
        }
    }

    fn fields(&self, form: ProtocolForm) -> &Bytes {
        let [as_delta, as_sotw] = &self.encoded;
        let encoded = match form {
            ProtocolForm::Delta => as_delta,
            ProtocolForm::Sotw => as_sotw,
        };
        encoded.get_or_init(|| {
            let mut out = Rope::default();
            self.resources().iter().for_each(|one| self.put_one(one, form, &mut out));
            out.into_bytes()
        })
    }
}

impl PartialEq for ListPiece {
    fn eq(&self, other: &Self) -> bool {
        self.kind == other.kind && self.resources() == other.resources()
    }
}

impl Eq for ListPiece {}

/// Returns the contribution of a name and its version to the digest of all resources that a client
/// holds.
///
/// The digest is the sum of these contributions. It is equal for equal contents, regardless of how
/// they were reached.
pub(super) fn digest(name: &str, version: Option<Version>) -> u64 {
    xxh3_64_with_seed(name.as_bytes(), version.map_or(0, |version| version.0))
}
