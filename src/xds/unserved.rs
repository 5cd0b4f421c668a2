//! Types that clients ask for and of which nothing is here.
//!
//! A client waits for what it asked for, Envoy with the listener or the upstream cluster that needs it. So
//! it is told that there is nothing of that name, once for each time it asks. Owns what is still to be
//! said; remembers no names, and never ends a stream because a client knows more types than we do.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use prost::Message;
use strait_proto::envoy::envoy::service::discovery::v3::{
    DeltaDiscoveryResponse, DiscoveryResponse,
};
use xxhash_rust::xxh3::xxh3_64;

use super::delta::{EVERYTHING, take_everything};
use super::request::Request;
use super::resource::Version;
use super::rope::Rope;
use super::session::{Form, Handled, Violation, check_names};

/// The most types of which there is nothing that a stream may ask for: Envoy knows some ten.
pub(super) const TYPES_MAX: usize = 32;

/// The agent's reports on its workload's health.
pub(super) const HEALTH_REPORT: &str = "type.googleapis.com/istio.v1.HealthInformation";
/// The agent takes silence for "nothing", and never answers an empty response.
const PROXY_CONFIG: &str = "type.googleapis.com/istio.mesh.v1alpha1.ProxyConfig";
/// Envoy breaks when a filter's configuration is taken back (Envoy issue 32823).
const EXTENSION: &str = "type.googleapis.com/envoy.config.core.v3.TypedExtensionConfig";
/// Asked for by name only: to name nothing is to ask for nothing.
const NAMED: [&str; 4] = [
    EXTENSION,
    "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret",
    "type.googleapis.com/envoy.config.route.v3.VirtualHost",
    "type.googleapis.com/envoy.service.runtime.v3.Runtime",
];

/// What a stream asked for of such types.
#[derive(Debug, Default)]
pub(super) struct Unserved {
    types: BTreeMap<Arc<str>, Asked>,
}

/// What it asked for of one type.
#[derive(Debug, Default)]
struct Asked {
    /// A digest of the names that it watches (SotW).
    names: u64,
    /// Of the last response.
    nonce: Option<u64>,
    /// What to say: these names are not there.
    due: Option<BTreeSet<Arc<str>>>,
}

/// A response without resources.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Nothing {
    form: Form,
    /// Of what.
    pub type_url: Arc<str>,
    /// What the client will answer with.
    pub nonce: String,
    /// Names that are not there (Delta only).
    pub removed: Vec<Arc<str>>,
}

impl Unserved {
    /// Takes a request for a type of which there is nothing.
    ///
    /// # Errors
    /// It asks for too much.
    pub(super) fn on_request(
        &mut self,
        form: Form,
        request: Request<'_>,
    ) -> Result<Handled, Violation> {
        let Request { type_url, mut names, mut dropped, listed, nonce, .. } = request;
        let is_debug = type_url.starts_with("istio.io/debug");
        if is_debug || [HEALTH_REPORT, PROXY_CONFIG].contains(&type_url) {
            return Ok(Handled::Request);
        }
        check_names(names.iter().chain(listed.iter().map(|(name, _)| name)), 0)?;
        let first = !self.types.contains_key(type_url);
        if first && self.types.len() == TYPES_MAX {
            return Err(Violation::TooManyTypes);
        }
        let asked = self.types.entry(type_url.into()).or_default();
        let answered = u64::from_str_radix(nonce, 16).ok();
        // Each response is answered once: what comes after that counts as a question.
        let is_answer = asked.nonce.take_if(|nonce| Some(*nonce) == answered).is_some();
        let no_names = names.is_empty() && !NAMED.contains(&type_url);
        let everything = take_everything(&mut names);
        let waits = match form {
            Form::Delta => {
                if let Some(due) = &mut asked.due {
                    dropped.iter().for_each(|name| _ = due.remove(*name));
                }
                if first {
                    // As of all types: what a client lists it goes on to watch.
                    dropped.sort_unstable();
                    let of_list = listed.iter().map(|(name, _)| *name);
                    let of_list = of_list.filter(|name| dropped.binary_search(name).is_err());
                    names.extend(of_list.filter(|name| *name != EVERYTHING));
                }
                !names.is_empty() || everything || (first && no_names)
            }
            Form::Sotw => {
                names.sort_unstable();
                let digest = xxh3_64(names.join("\0").as_bytes());
                let others = std::mem::replace(&mut asked.names, digest) != digest;
                let asks = !names.is_empty() || everything || no_names;
                asks && (first || nonce.is_empty() || others)
            }
        };
        if waits {
            let due = asked.due.get_or_insert_default();
            if form == Form::Delta && type_url != EXTENSION {
                due.extend(names.into_iter().map(Arc::from));
            }
        }
        Ok(if is_answer { Handled::Answer } else { Handled::Request })
    }

    /// Whether something is to be said.
    pub(super) fn is_due(&self) -> bool {
        self.types.values().any(|asked| asked.due.is_some())
    }

    /// The next that is to be said, under a nonce.
    pub(super) fn take(&mut self, form: Form, nonce: u64) -> Option<Nothing> {
        self.types.iter_mut().find_map(|(type_url, asked)| {
            let removed = asked.due.take()?.into_iter().collect();
            asked.nonce = Some(nonce);
            let nonce = format!("{nonce:x}");
            Some(Nothing { form, type_url: Arc::clone(type_url), nonce, removed })
        })
    }
}

impl Nothing {
    /// Writes it as a gRPC message.
    pub(super) fn encode_message(&self, out: &mut Rope) {
        let bytes = self.to_bytes();
        let length = u32::try_from(bytes.len()).expect("shorter than the request that it answers");
        out.put_slice(&[0]);
        out.put_slice(&length.to_be_bytes());
        out.put_slice(&bytes);
    }

    /// The message of its form.
    pub fn to_bytes(&self) -> Vec<u8> {
        let (version, nonce) = (Version(0).to_string(), self.nonce.clone());
        let type_url = self.type_url.to_string();
        match self.form {
            Form::Delta => DeltaDiscoveryResponse {
                system_version_info: version,
                type_url,
                nonce,
                removed_resources: self.removed.iter().map(ToString::to_string).collect(),
                ..Default::default()
            }
            .encode_to_vec(),
            Form::Sotw => {
                DiscoveryResponse { version_info: version, type_url, nonce, ..Default::default() }
                    .encode_to_vec()
            }
        }
    }
}
