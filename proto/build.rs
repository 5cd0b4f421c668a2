//! Compiles our own .proto files, and a descriptor set of everything we may have to show as JSON.
//!
//! Nothing here needs protoc, and no file of Envoy's is copied: the `envoy-types` package carries the
//! .proto files its code was made from, and Cargo knows where it unpacked that package.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

/// Our own files: they become Rust code.
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

/// Our own files that are read by their descriptors alone.
const OURS_DESCRIBED: [&str; 4] = [
    "istio/proxy_config.proto",
    "istio/request_authentication.proto",
    "istio/telemetry.proto",
    "istio/traffic.proto",
];

/// Envoy's files that no other file leads to: resources, admin answers, and what travels in an `Any`.
/// `envoy-types` holds the Rust code of all; listed here is what JSON must be able to show.
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
    "envoy/extensions/filters/http/header_to_metadata/v3/header_to_metadata.proto",
    "envoy/extensions/filters/http/jwt_authn/v3/config.proto",
    "envoy/extensions/filters/http/lua/v3/lua.proto",
    "envoy/extensions/filters/http/rbac/v3/rbac.proto",
    "envoy/extensions/filters/http/router/v3/router.proto",
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

/// The same, of files that are compiled by themselves: `common` in one of these is `envoy.extensions.common`, and the compiler takes
/// it for `envoy.extensions.filters.common` where a file beside it has that package.
const ENVOY_ALONE: &[&str] =
    &["envoy/extensions/filters/http/local_ratelimit/v3/local_rate_limit.proto"];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=grpc");
    println!("cargo::rerun-if-changed=istio");
    // The lock file names the version of envoy-types, and so the folder to read.
    println!("cargo::rerun-if-changed=../Cargo.lock");

    let manifest_dir = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?);
    let out_dir = PathBuf::from(env::var("OUT_DIR")?);

    tonic_prost_build::configure()
        // Google's own messages are those that Envoy's API is written with: one `Struct`, not two.
        .compile_well_known_types(true)
        .extern_path(".google.protobuf", "::envoy_types::pb::google::protobuf")
        // What is made of these has one order.
        .btree_map(".istio.mcp")
        .btree_map(".istio.networking.v1alpha3")
        .btree_map(".istio.security.v1beta1")
        .compile_fds(protox::compile(OURS, [&manifest_dir])?)?;

    let mut includes = vec![manifest_dir.clone()];
    for folder in fs::read_dir(envoy_types(&manifest_dir, &out_dir)?.join("proto"))? {
        includes.push(folder?.path());
    }
    includes.sort();
    let mut compiler = protox::Compiler::new(&includes)?;
    compiler.include_imports(true).open_files(OURS.iter().chain(&OURS_DESCRIBED).chain(ENVOY))?;
    let mut all = compiler.encode_file_descriptor_set();
    let mut compiler = protox::Compiler::new(&includes)?;
    compiler.include_imports(true).open_files(ENVOY_ALONE)?;
    add_files(&mut all, &compiler.encode_file_descriptor_set());
    fs::write(out_dir.join("descriptors.bin"), all)?;
    Ok(())
}

/// Adds to an encoded `FileDescriptorSet` the files of another that it lacks. They stay the bytes that they are: options that are
/// extensions would be lost in between.
fn add_files(set: &mut Vec<u8>, more: &[u8]) {
    let names: Vec<Vec<u8>> = files(set).iter().map(|(name, _)| name.to_vec()).collect();
    for (_, file) in files(more).into_iter().filter(|(name, _)| !names.contains(&name.to_vec())) {
        set.extend_from_slice(file);
    }
}

/// The files of an encoded set, each with its name and its tag before it: both are the first field of their message.
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

/// What the first field of a message holds, which is of bytes, and where it ends.
fn first_field(message: &[u8]) -> (&[u8], usize) {
    assert_eq!(message[0], 0x0a, "field 1, of bytes");
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

/// The folder Cargo unpacked `envoy-types` into.
///
/// Asking for the metadata of this workspace would fail in a fresh clone without network: it wants
/// packages this build never needed (of tests, of other members). So we ask for a package that depends on
/// `envoy-types` alone, with our lock file beside it.
fn envoy_types(manifest_dir: &Path, out_dir: &Path) -> Result<PathBuf, Box<dyn Error>> {
    const NAME: &str = "envoy-types";
    let probe = out_dir.join("where-is-envoy-types");
    fs::create_dir_all(&probe)?;
    fs::write(
        probe.join("Cargo.toml"),
        "[package]\nname = \"probe\"\nedition = \"2024\"\n[lib]\npath = \"lib.rs\"\n\
         [dependencies]\nenvoy-types = \"*\"\n[workspace]\n",
    )?;
    fs::write(probe.join("lib.rs"), "")?;
    fs::copy(manifest_dir.join("../Cargo.lock"), probe.join("Cargo.lock"))?;

    let output = Command::new(env::var("CARGO")?)
        .args(["metadata", "--offline", "--format-version=1", "--filter-platform"])
        .arg(env::var("TARGET")?)
        .arg("--manifest-path")
        .arg(probe.join("Cargo.toml"))
        // Cargo's own configuration (a mirror, a vendored folder) is looked up from here.
        .current_dir(manifest_dir)
        .output()?;
    if !output.status.success() {
        let why = String::from_utf8_lossy(&output.stderr);
        return Err(format!("cargo metadata can't tell where {NAME} is:\n{why}").into());
    }
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    metadata["packages"]
        .as_array()
        .and_then(|packages| packages.iter().find(|package| package["name"] == NAME))
        .and_then(|package| Path::new(package["manifest_path"].as_str()?).parent())
        .map(Path::to_owned)
        .ok_or_else(|| format!("cargo metadata lists no package {NAME}").into())
}
