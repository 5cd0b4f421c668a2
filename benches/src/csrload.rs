//! `csrload`: simulates agents that request certificates at a fixed rate, each on its own
//! connection and with its pod's token.
//!
//! Prints one JSON object: the time of a certificate request, measured from the start of the
//! connection and from the start of the call. Rejected requests are counted and not retried.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Parser;
use rcgen::{CertificateParams, KeyPair};
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use serde_json::json;
use tokio::task::JoinSet;

use strait_identity::tls;
use strait_proto::istio::auth::IstioCertificateRequest;
use strait_proto::istio::auth::istio_certificate_service_client::IstioCertificateServiceClient;
use strait_xds_client::channel;

/// Simulates agents that request certificates
#[derive(Debug, Parser)]
#[command(name = "csrload", version)]
struct Options {
    /// Address of the certificate service
    #[arg(long, value_name = "HOST:PORT")]
    server: std::net::SocketAddr,
    /// The name the server must prove
    #[arg(long, value_name = "NAME", default_value = "localhost")]
    server_name: String,
    /// Roots of the server's certificate, PEM
    #[arg(long, value_name = "FILE")]
    roots: PathBuf,
    /// Callers, one per line: the cluster ID, a space, the token
    #[arg(long, value_name = "FILE")]
    tokens: PathBuf,
    /// Requests per second
    #[arg(long, value_name = "R", default_value = "100", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    rate: u32,
}

fn main() -> ExitCode {
    let options = Options::parse();
    match run(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("csrload: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> Result<(), Box<dyn std::error::Error>> {
    let text = std::fs::read_to_string(&options.tokens)?;
    let callers = text.lines().map(|line| {
        let (cluster, token) = line.split_once(' ').ok_or("a line is not a cluster and a token")?;
        Ok((cluster.to_owned(), format!("Bearer {token}")))
    });
    let callers: Vec<(String, String)> = callers.collect::<Result<_, &str>>()?;
    let tls = client(&std::fs::read(&options.roots)?)?;
    // The key type does not matter to the server, which verifies one signature.
    let key = KeyPair::generate()?;
    let csr = CertificateParams::default().serialize_request(&key)?.pem()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (mut whole, mut called, mut refused) = (Vec::new(), Vec::new(), 0_u32);
    runtime.block_on(async {
        let mut asking = JoinSet::new();
        let period = Duration::from_secs(1) / options.rate;
        let mut next = tokio::time::interval(period);
        // Late requests are not awaited. Otherwise a slow server would receive fewer requests.
        next.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Burst);
        for (cluster, bearer) in callers {
            next.tick().await;
            let (tls, csr) = (Arc::clone(&tls), csr.clone());
            let (server, name) = (options.server, options.server_name.clone());
            asking.spawn(async move {
                let began = Instant::now();
                let channel = channel(server, &name, tls).await.ok()?;
                let dialled = began.elapsed();
                let mut request = tonic::Request::new(IstioCertificateRequest {
                    csr,
                    validity_duration: 86_400,
                    metadata: None,
                });
                let metadata = request.metadata_mut();
                metadata.insert("authorization", bearer.parse().ok()?);
                metadata.insert("clusterid", cluster.parse().ok()?);
                let mut client = IstioCertificateServiceClient::new(channel);
                let answer = client.create_certificate(request).await.ok()?;
                (answer.get_ref().cert_chain.len() > 1).then(|| {
                    let whole = began.elapsed();
                    (whole, whole - dialled)
                })
            });
        }
        while let Some(done) = asking.join_next().await {
            match done {
                Ok(Some((all, call))) => {
                    whole.push(all);
                    called.push(call);
                }
                _ => refused += 1,
            }
        }
    });
    println!(
        "{}",
        json!({ "certificates": whole.len(), "refused": refused, "dialMs": quantiles(whole), "callMs": quantiles(called) })
    );
    Ok(())
}

/// Returns a TLS client configuration with these roots and without a certificate.
fn client(roots: &[u8]) -> Result<Arc<ClientConfig>, Box<dyn std::error::Error>> {
    let mut store = RootCertStore::empty();
    for root in CertificateDer::pem_slice_iter(roots) {
        store.add(root?)?;
    }
    let builder = ClientConfig::builder_with_provider(tls::provider());
    let builder = builder.with_protocol_versions(&[&rustls::version::TLS13])?;
    let mut config = builder.with_root_certificates(store).with_no_client_auth();
    config.alpn_protocols = vec![tls::ALPN.to_vec()];
    config.resumption = rustls::client::Resumption::disabled();
    Ok(Arc::new(config))
}

fn quantiles(mut all: Vec<Duration>) -> serde_json::Value {
    all.sort_unstable();
    let at = |share: f64| {
        let place = ((all.len() as f64 * share).ceil() as usize).saturating_sub(1);
        all.get(place).map(|took| took.as_secs_f64() * 1e3)
    };
    json!({ "p50": at(0.5), "p99": at(0.99), "last": at(1.0) })
}
