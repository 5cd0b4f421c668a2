//! Messages as they are sent: as resources, within others, and their durations.

use std::sync::Arc;
use std::time::Duration;

use prost::{Message, Name};
use strait_proto::envoy::google::protobuf::{Any, Duration as ProtoDuration};

use crate::xds::resource::Resource;

/// Encodes a message as the resource `name`.
pub(super) fn encode(name: impl Into<Arc<str>>, message: &impl Message) -> Resource {
    Resource::new(name, message.encode_to_vec())
}

/// Wraps a message with its type.
pub(super) fn any<M: Message + Name>(message: &M) -> Any {
    Any {
        type_url: format!("type.googleapis.com/{}", M::full_name()),
        value: message.encode_to_vec(),
    }
}

pub(super) fn duration(duration: Duration) -> ProtoDuration {
    ProtoDuration {
        seconds: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        nanos: i32::try_from(duration.subsec_nanos()).unwrap_or_default(),
    }
}

pub(super) fn seconds(seconds: u64) -> ProtoDuration {
    duration(Duration::from_secs(seconds))
}
