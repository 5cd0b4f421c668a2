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
    for (of, patch) in settings.filters.iter() {
        if let PlacedPatch::Manager(patch) = &**patch
            && (of.is_none() || *of == port)
            && let Ok(said) = HttpConnectionManager::decode(&*patch.config)
        {
            merge(&mut manager, said);
        }
    }
    manager
}

/// Merges the supported fields (`strait_rules::traffic::envoy_filter`) as protobuf does, except
/// that durations and booleans are replaced.
fn merge(into: &mut HttpConnectionManager, said: HttpConnectionManager) {
    put(&mut into.add_user_agent, said.add_user_agent);
    put(&mut into.delayed_close_timeout, said.delayed_close_timeout);
    put(&mut into.drain_timeout, said.drain_timeout);
    put(&mut into.generate_request_id, said.generate_request_id);
    put(&mut into.max_request_headers_kb, said.max_request_headers_kb);
    put(&mut into.request_headers_timeout, said.request_headers_timeout);
    put(&mut into.request_timeout, said.request_timeout);
    put(&mut into.stream_idle_timeout, said.stream_idle_timeout);
    put(&mut into.use_remote_address, said.use_remote_address);
    set(&mut into.server_header_transformation, said.server_header_transformation);
    set(&mut into.server_name, said.server_name);
    set(&mut into.stat_prefix, said.stat_prefix);
    set(&mut into.via, said.via);
    set(&mut into.xff_num_trusted_hops, said.xff_num_trusted_hops);
    into.always_set_request_id_in_response |= said.always_set_request_id_in_response;
    into.preserve_external_request_id |= said.preserve_external_request_id;
    into.skip_xff_append |= said.skip_xff_append;
    if let Some(said) = said.common_http_protocol_options {
        let into = into.common_http_protocol_options.get_or_insert_default();
        common(into, said);
    }
    if let Some(said) = said.http_protocol_options {
        let into = into.http_protocol_options.get_or_insert_default();
        into.accept_http_10 |= said.accept_http_10;
        set(&mut into.default_host_for_http_10, said.default_host_for_http_10);
        put(&mut into.header_key_format, said.header_key_format);
    }
    if let Some(said) = said.http2_protocol_options {
        let into = into.http2_protocol_options.get_or_insert_default();
        put(&mut into.max_concurrent_streams, said.max_concurrent_streams);
        put(&mut into.initial_stream_window_size, said.initial_stream_window_size);
        put(&mut into.initial_connection_window_size, said.initial_connection_window_size);
    }
}

fn common(into: &mut core::HttpProtocolOptions, said: core::HttpProtocolOptions) {
    put(&mut into.idle_timeout, said.idle_timeout);
    put(&mut into.max_connection_duration, said.max_connection_duration);
    put(&mut into.max_headers_count, said.max_headers_count);
    put(&mut into.max_stream_duration, said.max_stream_duration);
    put(&mut into.max_requests_per_connection, said.max_requests_per_connection);
    set(&mut into.headers_with_underscores_action, said.headers_with_underscores_action);
}

fn put<T>(into: &mut Option<T>, said: Option<T>) {
    if said.is_some() {
        *into = said;
    }
}

fn set<T: Default + PartialEq>(into: &mut T, said: T) {
    if said != T::default() {
        *into = said;
    }
}
