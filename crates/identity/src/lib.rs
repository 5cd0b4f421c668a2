//! Identities: the certificate of the control plane, the peers that it trusts, and the certificates
//! that it signs.
//!
//! Owns the serving certificate, the set of trust roots and the CA. Other crates see them as one immutable
//! [`ServerIdentity`] in a watch channel, and an authenticated peer as a [`Caller`]. Invariants:
//!
//! - Trust roots are a set, never a single value.
//! - An invalid file never replaces a valid one.
//! - A name in a certificate comes from an authenticated identity, never from a request or from node metadata.
//! - This crate knows cluster IDs and the CAs of single members ([`MemberAuthority`]). It uses neither xDS nor the
//!   Kubernetes API. The program passes an [`AuthorityStore`] to store the CA.

#![forbid(unsafe_code)]

pub mod authority;
pub mod caller;
pub mod credential;
pub mod csr;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
pub mod mesh_client;
pub mod peer;
pub mod replica;
pub mod rotation;
pub mod service;
pub mod tls;
pub mod token;
pub mod token_signer;

mod der_integer;
mod error;
mod files;
mod limits;
mod member_authority;
mod member_mark;
mod own_extension;
mod pem;
mod proof_time;
mod relay_identity;
mod replica_id;
mod root_life;
mod root_records;
mod root_rotation;
mod shared_key;
#[cfg(test)]
mod testing;

pub use self::error::{CertificateProblem, IdentityError, StoreTrouble};
pub use authority::{Authority, AuthorityForm, AuthorityPem, AuthorityStore, DirectoryStore};
pub use caller::{Caller, CallerProof, CallerRegistry};
pub use member_authority::{MemberAuthorities, MemberAuthority};
pub use peer::{PeerIdentity, SpiffeId, SpiffeIdError};
pub use relay_identity::RelayIdentity;
pub use replica::{ReplicaAuthenticator, ReplicaStream};
pub use replica_id::ReplicaId;
pub use root_life::{RootLife, RootStage, certificate_lifetime};
pub use root_records::{
    RootConflict, RootFingerprint, RootLedger, RootRecord, RootRecords, assumed_records,
};
pub use root_rotation::{APPROVED, RootEvidence, RootLack, RootStanding, RootStep, RootWitness};
pub use rotation::{
    AuthorityFrom, CertificateSettings, FollowedAuthority, ServerIdentity, Serving,
};
pub use service::{CertificateService, IssueStats};
pub use shared_key::SharedKey;
pub use tls::{ConnectionPeer, NamedRoots, TrustRoots};
