//! Merges EnvoyFilter patches into HTTP connection managers. This is the last step of their
//! generation.

use prost::Message;

use super::TrafficSettings;
use strait_proto::envoy::envoy::config::core::v3 as core;
use strait_proto::envoy::envoy::extensions::filters::network::http_connection_manager::v3::HttpConnectionManager;
use strait_rules::traffic::envoy_filter::PlacedPatch;

/// Merges users' patches for this port into a manager. Merging twice has no further effect.
pub(super) fn merged(
    settings: &TrafficSettings,
    port: Option<u16>,
    mut manager: HttpConnectionManager,
) -> HttpConnectionManager {
    for (patch_port, patch) in settings.filters.iter() {
        if let PlacedPatch::Manager(patch) = &**patch
            && (patch_port.is_none() || *patch_port == port)
            && let Ok(changes) = HttpConnectionManager::decode(&*patch.config)
        {
            merge(&mut manager, changes);
        }
    }
    manager
}

/// Merges the supported fields (`strait_rules::traffic::envoy_filter`) as protobuf does, except
/// that durations and booleans are replaced.
fn merge(into: &mut HttpConnectionManager, changes: HttpConnectionManager) {
    put(&mut into.add_user_agent, changes.add_user_agent);
    put(&mut into.delayed_close_timeout, changes.delayed_close_timeout);
    put(&mut into.drain_timeout, changes.drain_timeout);
    put(&mut into.generate_request_id, changes.generate_request_id);
    put(&mut into.max_request_headers_kb, changes.max_request_headers_kb);
    put(&mut into.request_headers_timeout, changes.request_headers_timeout);
    put(&mut into.request_timeout, changes.request_timeout);
    put(&mut into.stream_idle_timeout, changes.stream_idle_timeout);
    put(&mut into.use_remote_address, changes.use_remote_address);
    set(&mut into.server_header_transformation, changes.server_header_transformation);
    set(&mut into.server_name, changes.server_name);
    set(&mut into.stat_prefix, changes.stat_prefix);
    set(&mut into.via, changes.via);
    set(&mut into.xff_num_trusted_hops, changes.xff_num_trusted_hops);
    into.always_set_request_id_in_response |= changes.always_set_request_id_in_response;
    into.preserve_external_request_id |= changes.preserve_external_request_id;
    into.skip_xff_append |= changes.skip_xff_append;
    if let Some(options) = changes.common_http_protocol_options {
        let into = into.common_http_protocol_options.get_or_insert_default();
        common(into, options);
    }
    if let Some(options) = changes.http_protocol_options {
        let into = into.http_protocol_options.get_or_insert_default();
        into.accept_http_10 |= options.accept_http_10;
        set(&mut into.default_host_for_http_10, options.default_host_for_http_10);
        put(&mut into.header_key_format, options.header_key_format);
    }
    if let Some(options) = changes.http2_protocol_options {
        let into = into.http2_protocol_options.get_or_insert_default();
        put(&mut into.max_concurrent_streams, options.max_concurrent_streams);
        put(&mut into.initial_stream_window_size, options.initial_stream_window_size);
        put(&mut into.initial_connection_window_size, options.initial_connection_window_size);
    }
}

fn common(into: &mut core::HttpProtocolOptions, changes: core::HttpProtocolOptions) {
    put(&mut into.idle_timeout, changes.idle_timeout);
    put(&mut into.max_connection_duration, changes.max_connection_duration);
    put(&mut into.max_headers_count, changes.max_headers_count);
    put(&mut into.max_stream_duration, changes.max_stream_duration);
    put(&mut into.max_requests_per_connection, changes.max_requests_per_connection);
    set(&mut into.headers_with_underscores_action, changes.headers_with_underscores_action);
}

fn put<T>(into: &mut Option<T>, value: Option<T>) {
    if value.is_some() {
        *into = value;
    }
}

fn set<T: Default + PartialEq>(into: &mut T, value: T) {
    if value != T::default() {
        *into = value;
    }
}
