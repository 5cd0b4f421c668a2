//! Resource types that clients request but that are not served.
//!
//! A client waits for the resources that it requested: Envoy delays the listener or upstream
//! cluster that needs them. Therefore each request receives one response stating that no resource
//! with that name exists. This module stores only the responses that are still to be sent, not the
//! names. It never ends a stream because a client supports more types than this server.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use prost::Message;
use xxhash_rust::xxh3::xxh3_64;

use super::form::ProtocolForm;
use super::request::AdsRequest;
use super::request_limits::{
    EVERYTHING, Handled, TYPES_MAX, Violation, check_names, take_everything,
};
use super::resource::Version;
use strait_http2::Rope;
use strait_proto::envoy::envoy::config::core::v3::ControlPlane;
use strait_proto::envoy::envoy::service::discovery::v3::{
    DeltaDiscoveryResponse, DiscoveryResponse, Resource,
};
use strait_proto::envoy::google::protobuf::Any;

/// The type with which an agent reports its workload's health.
pub(super) const HEALTH_REPORT: &str = "type.googleapis.com/istio.v1.HealthInformation";
/// The type with which agents receive trust roots; see [`super::agent_roots`].
pub(super) const PROXY_CONFIG: &str = "type.googleapis.com/istio.mesh.v1alpha1.ProxyConfig";
/// The type of an extension configuration. Envoy breaks when one is removed (Envoy issue 32823).
const EXTENSION: &str = "type.googleapis.com/envoy.config.core.v3.TypedExtensionConfig";
/// Types that are requested only by name: a request without names requests nothing.
const NAMED: [&str; 4] = [
    EXTENSION,
    "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret",
    "type.googleapis.com/envoy.config.route.v3.VirtualHost",
    "type.googleapis.com/envoy.service.runtime.v3.Runtime",
];

/// The unserved types that a stream has requested.
#[derive(Debug, Default)]
pub(super) struct UnknownTypes {
    types: BTreeMap<Arc<str>, UnknownTypeRequest>,
}

/// The requests of a stream for one unserved type.
#[derive(Debug, Default)]
struct UnknownTypeRequest {
    /// A digest of the subscribed names (SotW).
    names: u64,
    /// The nonce of the last response, until it is answered.
    nonce: Option<u64>,
    /// The names for the next response, which states that they do not exist. `None` if no response
    /// is due.
    due: Option<BTreeSet<Arc<str>>>,
}

/// A response for a type that is not part of the mesh configuration: an unserved type, secrets,
/// trust roots or a debug type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SideResponse {
    form: ProtocolForm,
    /// The type URL.
    pub type_url: Arc<str>,
    /// The nonce that the client repeats in its answer.
    pub nonce: String,
    /// Names that do not exist (Delta only).
    pub removed: Vec<Arc<str>>,
    /// The resources.
    pub resources: Vec<SideResource>,
    /// The identifier of the control plane, for types whose responses state it.
    pub control_plane: Option<String>,
}

/// An encoded resource in a [`SideResponse`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SideResource {
    /// The name; empty if the type has only one resource.
    pub name: String,
    /// The type of the encoded message, which can differ from the requested type.
    pub type_url: String,
    /// The encoded message.
    pub body: Vec<u8>,
}

impl UnknownTypes {
    /// Handles a request for a type that is not served.
    ///
    /// # Errors
    /// The request exceeds the limits for names or types.
    pub(super) fn on_request(
        &mut self,
        form: ProtocolForm,
        request: AdsRequest<'_>,
    ) -> Result<Handled, Violation> {
        let AdsRequest { type_url, mut names, mut dropped, listed, nonce, .. } = request;
        if type_url == HEALTH_REPORT {
            return Ok(Handled::Request);
        }
        check_names(names.iter().chain(listed.iter().map(|(name, _)| name)), 0)?;
        let first = !self.types.contains_key(type_url);
        if first && self.types.len() == TYPES_MAX {
            return Err(Violation::TooManyTypes);
        }
        let requested = self.types.entry(type_url.into()).or_default();
        let answered = u64::from_str_radix(nonce, 16).ok();
        // Each response is answered once. A later request with the same nonce is a new request.
        let is_answer = requested.nonce.take_if(|nonce| Some(*nonce) == answered).is_some();
        let no_names = names.is_empty() && !NAMED.contains(&type_url);
        let everything = take_everything(&mut names);
        let waits = match form {
            ProtocolForm::Delta => {
                if let Some(due) = &mut requested.due {
                    dropped.iter().for_each(|name| _ = due.remove(*name));
                }
                if first {
                    // As for all types: the client subscribes to the resources that it lists.
                    dropped.sort_unstable();
                    let of_list = listed.iter().map(|(name, _)| *name);
                    let of_list = of_list.filter(|name| dropped.binary_search(name).is_err());
                    names.extend(of_list.filter(|name| *name != EVERYTHING));
                }
                !names.is_empty() || everything || (first && no_names)
            }
            ProtocolForm::Sotw => {
                names.sort_unstable();
                let digest = xxh3_64(names.join("\0").as_bytes());
                let others = std::mem::replace(&mut requested.names, digest) != digest;
                let asks = !names.is_empty() || everything || no_names;
                asks && (first || nonce.is_empty() || others)
            }
        };
        if waits {
            let due = requested.due.get_or_insert_default();
            if form == ProtocolForm::Delta && type_url != EXTENSION {
                due.extend(names.into_iter().map(Arc::from));
            }
        }
        Ok(if is_answer { Handled::Answer } else { Handled::Request })
    }

    /// Returns whether a response is due.
    pub(super) fn is_due(&self) -> bool {
        self.types.values().any(|requested| requested.due.is_some())
    }

    /// Returns the next response, with the given nonce.
    pub(super) fn take(&mut self, form: ProtocolForm, nonce: u64) -> Option<SideResponse> {
        self.types.iter_mut().find_map(|(type_url, requested)| {
            let removed = requested.due.take()?.into_iter().collect();
            requested.nonce = Some(nonce);
            let nonce = format!("{nonce:x}");
            let type_url = Arc::clone(type_url);
            let (resources, control_plane) = (Vec::new(), None);
            Some(SideResponse { form, type_url, nonce, removed, resources, control_plane })
        })
    }
}

impl SideResponse {
    /// Creates a response with these resources. `nonce` is encoded in hexadecimal.
    pub fn of(
        form: ProtocolForm,
        type_url: &str,
        nonce: u64,
        resources: Vec<SideResource>,
    ) -> Self {
        let (type_url, nonce) = (type_url.into(), format!("{nonce:x}"));
        Self { form, type_url, nonce, removed: Vec::new(), resources, control_plane: None }
    }

    /// Writes the response as a gRPC message, with the length prefix.
    pub fn encode_message(&self, out: &mut Rope) {
        let bytes = self.to_bytes();
        let length = u32::try_from(bytes.len()).expect("less than 4 GiB");
        out.put_slice(&[0]);
        out.put_slice(&length.to_be_bytes());
        out.put_slice(&bytes);
    }

    /// Encodes the response as a message of the stream's protocol form.
    pub fn to_bytes(&self) -> Vec<u8> {
        // A digest of the resources; 0 if there are no resources.
        let digest = self.resources.iter().fold(0, |sum, one| sum ^ xxh3_64(&one.body));
        let (version, nonce) = (Version(digest).to_string(), self.nonce.clone());
        let type_url = self.type_url.to_string();
        let any =
            |one: &SideResource| Any { type_url: one.type_url.clone(), value: one.body.clone() };
        let control_plane =
            self.control_plane.clone().map(|identifier| ControlPlane { identifier });
        match self.form {
            ProtocolForm::Delta => DeltaDiscoveryResponse {
                control_plane,
                system_version_info: version.clone(),
                type_url,
                nonce,
                resources: self
                    .resources
                    .iter()
                    .map(|one| Resource {
                        name: one.name.clone(),
                        version: version.clone(),
                        resource: Some(any(one)),
                        ..Default::default()
                    })
                    .collect(),
                removed_resources: self.removed.iter().map(ToString::to_string).collect(),
                ..Default::default()
            }
            .encode_to_vec(),
            ProtocolForm::Sotw => {
                let resources = self.resources.iter().map(any).collect();
                let version_info = version;
                DiscoveryResponse {
                    version_info,
                    type_url,
                    nonce,
                    resources,
                    control_plane,
                    ..Default::default()
                }
                .encode_to_vec()
            }
        }
    }
}
