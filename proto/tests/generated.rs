//! Keeps the generated code and descriptors in `src/generated` up to date with the `.proto` files.
//!
//! They are committed, so that no build of the product needs a compiler for `.proto` files. After an edit of a
//! `.proto` file or an update of `envoy-types`, run `BLESS=1 cargo test -p strait-proto --test generated`.
//! Envoy's `.proto` files are not copied: the `envoy-types` package contains them.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

/// Our own files that become Rust code.
const OURS: [&str; 10] = [
    "grpc/health.proto",
    "istio/ca.proto",
    "istio/filters/alpn.proto",
    "istio/filters/metadata_exchange.proto",
    "istio/filters/peer_metadata.proto",
    "istio/filters/stats.proto",
    "istio/mcp.proto",
    "istio/nds.proto",
    "istio/networking.proto",
    "istio/security.proto",
];

/// Our own files that are used only by their descriptors.
const OURS_DESCRIBED: [&str; 4] = [
    "istio/proxy_config.proto",
    "istio/request_authentication.proto",
    "istio/telemetry.proto",
    "istio/traffic.proto",
];

/// Roots of Envoy's API: resources, responses of the admin interface, and messages that travel in an `Any`.
/// `envoy-types` has Rust code for all of Envoy's API; JSON conversion covers these files and their imports.
const ENVOY: &[&str] = &[
    "envoy/admin/v3/clusters.proto",
    "envoy/admin/v3/config_dump.proto",
    "envoy/admin/v3/server_info.proto",
    "envoy/config/bootstrap/v3/bootstrap.proto",
    "envoy/config/cluster/v3/cluster.proto",
    "envoy/config/core/v3/extension.proto",
    "envoy/config/endpoint/v3/endpoint.proto",
    "envoy/config/listener/v3/listener.proto",
    "envoy/config/route/v3/route.proto",
    "envoy/config/trace/v3/opentelemetry.proto",
    "envoy/config/trace/v3/zipkin.proto",
    "envoy/extensions/access_loggers/file/v3/file.proto",
    "envoy/extensions/access_loggers/filters/cel/v3/cel.proto",
    "envoy/extensions/access_loggers/stats/v3/stats.proto",
    "envoy/extensions/access_loggers/stream/v3/stream.proto",
    "envoy/extensions/clusters/aggregate/v3/cluster.proto",
    "envoy/extensions/clusters/dns/v3/dns_cluster.proto",
    "envoy/extensions/compression/brotli/compressor/v3/brotli.proto",
    "envoy/extensions/compression/gzip/compressor/v3/gzip.proto",
    "envoy/extensions/compression/zstd/compressor/v3/zstd.proto",
    "envoy/extensions/filters/http/buffer/v3/buffer.proto",
    "envoy/extensions/filters/http/compressor/v3/compressor.proto",
    "envoy/extensions/filters/http/cors/v3/cors.proto",
    "envoy/extensions/filters/http/ext_authz/v3/ext_authz.proto",
    "envoy/extensions/filters/http/fault/v3/fault.proto",
    "envoy/extensions/filters/http/grpc_stats/v3/config.proto",
    "envoy/extensions/filters/http/grpc_web/v3/grpc_web.proto",
    "envoy/extensions/filters/http/header_mutation/v3/header_mutation.proto",
    "envoy/extensions/filters/http/header_to_metadata/v3/header_to_metadata.proto",
    "envoy/extensions/filters/http/jwt_authn/v3/config.proto",
    "envoy/extensions/filters/http/lua/v3/lua.proto",
    "envoy/extensions/filters/http/rbac/v3/rbac.proto",
    "envoy/extensions/filters/http/router/v3/router.proto",
    "envoy/extensions/filters/http/upstream_codec/v3/upstream_codec.proto",
    "envoy/extensions/filters/listener/http_inspector/v3/http_inspector.proto",
    "envoy/extensions/filters/listener/original_dst/v3/original_dst.proto",
    "envoy/extensions/filters/listener/original_src/v3/original_src.proto",
    "envoy/extensions/filters/listener/proxy_protocol/v3/proxy_protocol.proto",
    "envoy/extensions/filters/listener/tls_inspector/v3/tls_inspector.proto",
    "envoy/extensions/filters/network/ext_authz/v3/ext_authz.proto",
    "envoy/extensions/filters/network/http_connection_manager/v3/http_connection_manager.proto",
    "envoy/extensions/filters/network/rbac/v3/rbac.proto",
    "envoy/extensions/filters/network/sni_cluster/v3/sni_cluster.proto",
    "envoy/extensions/filters/network/tcp_proxy/v3/tcp_proxy.proto",
    "envoy/extensions/load_balancing_policies/client_side_weighted_round_robin/v3/client_side_weighted_round_robin.proto",
    "envoy/extensions/load_balancing_policies/cluster_provided/v3/cluster_provided.proto",
    "envoy/extensions/load_balancing_policies/least_request/v3/least_request.proto",
    "envoy/extensions/load_balancing_policies/maglev/v3/maglev.proto",
    "envoy/extensions/load_balancing_policies/pick_first/v3/pick_first.proto",
    "envoy/extensions/load_balancing_policies/random/v3/random.proto",
    "envoy/extensions/load_balancing_policies/ring_hash/v3/ring_hash.proto",
    "envoy/extensions/load_balancing_policies/round_robin/v3/round_robin.proto",
    "envoy/extensions/load_balancing_policies/subset/v3/subset.proto",
    "envoy/extensions/load_balancing_policies/wrr_locality/v3/wrr_locality.proto",
    "envoy/extensions/network/dns_resolver/getaddrinfo/v3/getaddrinfo_dns_resolver.proto",
    "envoy/extensions/path/match/uri_template/v3/uri_template_match.proto",
    "envoy/extensions/retry/host/previous_hosts/v3/previous_hosts.proto",
    "envoy/extensions/retry/priority/previous_priorities/v3/previous_priorities_config.proto",
    "envoy/extensions/tracers/opentelemetry/resource_detectors/v3/environment_resource_detector.proto",
    "envoy/extensions/transport_sockets/internal_upstream/v3/internal_upstream.proto",
    "envoy/extensions/transport_sockets/proxy_protocol/v3/upstream_proxy_protocol.proto",
    "envoy/extensions/transport_sockets/raw_buffer/v3/raw_buffer.proto",
    "envoy/extensions/transport_sockets/tls/v3/tls.proto",
    "envoy/extensions/upstreams/http/v3/http_protocol_options.proto",
    "envoy/extensions/upstreams/tcp/v3/tcp_protocol_options.proto",
    "envoy/service/discovery/v3/ads.proto",
    "envoy/service/discovery/v3/discovery.proto",
    "google/protobuf/wrappers.proto",
];

/// Envoy's files that are compiled separately, one by one. In the first file, `common` means `envoy.extensions.common`,
/// but protox resolves it to `envoy.extensions.filters.common` if a file with that package is in the same set. The
/// second file has that package.
const ENVOY_ALONE: &[&str] = &[
    "envoy/extensions/filters/http/local_ratelimit/v3/local_rate_limit.proto",
    "envoy/extensions/filters/network/set_filter_state/v3/set_filter_state.proto",
];

#[test]
fn generated_files_match_the_proto_files() {
    let manifest_dir = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder = manifest_dir.join("src/generated");
    let generated = generate(manifest_dir);
    if env::var_os("BLESS").is_some() {
        fs::remove_dir_all(&folder).unwrap();
        fs::create_dir_all(&folder).unwrap();
        for (name, content) in &generated {
            fs::write(folder.join(name), content).unwrap();
        }
        return;
    }
    let stored = read_folder(&folder);
    let differing: Vec<&String> = generated
        .keys()
        .chain(stored.keys())
        .filter(|name| generated.get(*name) != stored.get(*name))
        .collect();
    assert!(
        differing.is_empty(),
        "{differing:?} in {} differ from the .proto files: run\n  \
         BLESS=1 cargo test -p strait-proto --test generated",
        folder.display(),
    );
}

/// Returns the generated files by name: one Rust file per package, and `descriptors.bin`.
fn generate(manifest_dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let scratch = tempfile::tempdir().unwrap();
    tonic_prost_build::configure()
        .out_dir(scratch.path())
        // Use the well-known types of envoy-types, so that there is only one `Struct`.
        .compile_well_known_types(true)
        .extern_path(".google.protobuf", "::envoy_types::pb::google::protobuf")
        // Configuration that is generated from these messages must have a stable order.
        .btree_map(".istio.mcp")
        .btree_map(".istio.networking.v1alpha3")
        .btree_map(".istio.security.v1beta1")
        .compile_fds(protox::compile(OURS, [manifest_dir]).unwrap())
        .unwrap();
    let mut files = read_folder(scratch.path());

    let mut includes = vec![manifest_dir.to_owned()];
    for folder in fs::read_dir(envoy_types(manifest_dir).join("proto")).unwrap() {
        includes.push(folder.unwrap().path());
    }
    includes.sort();
    let mut compiler = protox::Compiler::new(&includes).unwrap();
    compiler
        .include_imports(true)
        .open_files(OURS.iter().chain(&OURS_DESCRIBED).chain(ENVOY))
        .unwrap();
    let mut descriptors = compiler.encode_file_descriptor_set();
    for file in ENVOY_ALONE {
        let mut compiler = protox::Compiler::new(&includes).unwrap();
        compiler.include_imports(true).open_files([file]).unwrap();
        add_files(&mut descriptors, &compiler.encode_file_descriptor_set());
    }
    files.insert("descriptors.bin".to_owned(), descriptors);
    files
}

/// Reads all files of a folder, by name.
fn read_folder(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    fs::read_dir(folder)
        .unwrap()
        .map(|entry| {
            let entry = entry.unwrap();
            (entry.file_name().into_string().unwrap(), fs::read(entry.path()).unwrap())
        })
        .collect()
}

/// Appends the files that an encoded `FileDescriptorSet` lacks from another. The files are copied as bytes,
/// because decoding would drop options that are extensions.
fn add_files(set: &mut Vec<u8>, more: &[u8]) {
    let names: Vec<Vec<u8>> = files(set).iter().map(|(name, _)| name.to_vec()).collect();
    for (_, file) in files(more).into_iter().filter(|(name, _)| !names.contains(&name.to_vec())) {
        set.extend_from_slice(file);
    }
}

/// Returns the files of an encoded `FileDescriptorSet`: the name, and the encoded field with its tag.
fn files(mut set: &[u8]) -> Vec<(&[u8], &[u8])> {
    let mut all = Vec::new();
    while !set.is_empty() {
        let (file, whole) = first_field(set);
        let (name, _) = first_field(file);
        all.push((name, &set[..whole]));
        set = &set[whole..];
    }
    all
}

/// Returns the content of the first field of a message, which must be length-delimited with number 1, and
/// the offset at which the field ends.
fn first_field(message: &[u8]) -> (&[u8], usize) {
    assert_eq!(message[0], 0x0a, "field 1, length-delimited");
    let (mut length, mut at) = (0, 1);
    loop {
        let byte = message[at];
        length |= usize::from(byte & 0x7f) << (7 * (at - 1));
        at += 1;
        if byte & 0x80 == 0 {
            return (&message[at..at + length], at + length);
        }
    }
}

/// Returns the standard output of a command, which must succeed.
fn output_of(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Returns the folder into which Cargo unpacked `envoy-types`.
fn envoy_types(manifest_dir: &Path) -> PathBuf {
    let versions = output_of(Command::new("rustc").arg("-vV"));
    let host = versions.lines().find_map(|line| line.strip_prefix("host: ")).unwrap();
    let metadata = output_of(
        Command::new(env!("CARGO"))
            .args(["metadata", "--locked", "--format-version=1", "--filter-platform", host])
            .current_dir(manifest_dir),
    );
    let metadata: serde_json::Value = serde_json::from_str(&metadata).unwrap();
    let packages = metadata["packages"].as_array().unwrap();
    let package = packages.iter().find(|package| package["name"] == "envoy-types").unwrap();
    let manifest = Path::new(package["manifest_path"].as_str().unwrap());
    manifest.parent().unwrap().to_owned()
}
