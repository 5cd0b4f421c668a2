//! Converts one object from its protobuf message to the form in manifests. Pure.

use prost::Message;
use serde_json::{Value, json};

use crate::store::spec;
use strait_model::{ConfigKind, ObjectKey};
use strait_proto::envoy::google::protobuf::{Any, Timestamp};
use strait_proto::istio::mcp::Resource;

/// The message that contains an object.
const RESOURCE: &str = "istio.mcp.v1alpha1.Resource";

/// An object that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct UnusableDocument {
    /// Its key, if known.
    pub(super) key: Option<ObjectKey>,
    /// The reason.
    pub(super) fact: String,
}

/// Converts one object of `kind`.
pub(super) fn object(kind: &ConfigKind, any: &Any) -> Result<(ObjectKey, Value), UnusableDocument> {
    let nameless = |fact: &str| UnusableDocument { key: None, fact: fact.to_owned() };
    if message_name(&any.type_url) != RESOURCE {
        return Err(nameless(&format!("{:?} is not {RESOURCE}", any.type_url)));
    }
    let resource = Resource::decode(&*any.value);
    let resource = resource.map_err(|_| nameless("a resource can't be decoded"))?;
    let metadata = resource.metadata.ok_or_else(|| nameless("a resource has no metadata"))?;
    let key = key(kind, &metadata.name)
        .ok_or_else(|| nameless(&format!("{:?} is not NAMESPACE/NAME", metadata.name)))?;
    let unusable = |fact: &str| UnusableDocument { key: Some(key.clone()), fact: fact.to_owned() };
    let body = resource.body.ok_or_else(|| unusable("it has no body"))?;
    // The version in the message name has no effect: all versions have one form.
    let message = message_name(&body.type_url);
    let package = kind.group.split('.').next().unwrap_or_default();
    let is_in_package = message.strip_prefix("istio.").and_then(|rest| rest.strip_prefix(package));
    let fits = is_in_package.is_some_and(|rest| rest.starts_with('.'))
        && message.rsplit('.').next() == Some(kind.kind);
    if !fits {
        return Err(unusable(&format!("its body is {message:?}, not a {}", kind.kind)));
    }
    let message =
        kind.message.ok_or_else(|| unusable("its kind is not requested from MCP servers"))?;
    let spec = spec::read(message, &body.value);
    let spec = spec.map_err(|_| unusable("its body can't be decoded"))?;
    let mut object = json!({
        "metadata": {
            "namespace": key.namespace,
            "name": key.name,
            "labels": metadata.labels,
            "annotations": metadata.annotations,
            "creationTimestamp": metadata.create_time.and_then(time),
        },
        "spec": spec,
    });
    kind.stamp(&mut object);
    Ok((key, object))
}

/// Returns the message name in a type URL.
fn message_name(url: &str) -> &str {
    url.rsplit('/').next().unwrap_or(url)
}

fn key(kind: &ConfigKind, name: &str) -> Option<ObjectKey> {
    let (namespace, name) = name.trim_start_matches('/').split_once('/')?;
    let fits = |text: &str| !text.is_empty() && text.len() <= 253 && !text.contains('/');
    (fits(namespace) && fits(name)).then(|| kind.key(namespace, name))
}

fn time(Timestamp { seconds, .. }: Timestamp) -> Option<String> {
    Some(jiff::Timestamp::from_second(seconds).ok()?.to_string())
}
