//! Traffic of clusters and services, read from a Prometheus that scrapes the proxies.
//!
//! Read-only and bounded: a fixed set of queries, a limit for the time and the size of each response,
//! and at most one reading at a time. A result is used for [`FRESH`]. Without `--prometheus`, the
//! server sends no request.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::http::{Request, StatusCode, Uri, header};
use serde::Deserialize;
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout};
use tower::ServiceExt as _;

use crate::config::{PrometheusFlags, bearer};
use strait_admin_api::{ClusterTraffic, MeasuredTraffic, ServiceTraffic};
use strait_base::durable;
use strait_kube_client::{ApiError, Transport, percent_encode, transport_to};

/// Time for which a result is used.
const FRESH: Duration = Duration::from_secs(10);
/// Maximum time of all queries together.
const LIMIT: Duration = Duration::from_secs(5);
/// Maximum size of one response in bytes.
const ANSWER_BYTES_MAX: usize = 4 << 20;
/// Maximum size of the file of root certificates in bytes.
const CA_BYTES_MAX: u64 = 4 << 20;
/// Maximum number of rows of each kind. Rows with more requests have priority.
const ROWS_MAX: usize = 2000;
/// Time over which rates are computed.
const WINDOW: &str = "2m";
/// Metrics of the clients' proxies: they see requests that no server has received.
const REPORTER: &str = r#"reporter="source""#;

const CLUSTERS: [&str; 2] = ["source_cluster", "destination_cluster"];
const SERVICES: [&str; 1] = ["destination_service"];

/// The traffic with one value of each label.
struct MeasuredRow<const N: usize> {
    values: [String; N],
    rate: f64,
    errors: f64,
    p95: Option<f64>,
}

/// Reads traffic from Prometheus.
#[derive(Debug)]
pub struct TrafficReader {
    flags: PrometheusFlags,
    last: Mutex<Option<(Instant, MeasuredTraffic)>>,
}

impl TrafficReader {
    /// Creates the reader of a Prometheus, if the flags name one.
    pub fn new(flags: PrometheusFlags) -> Self {
        Self { flags, last: Mutex::default() }
    }

    /// Returns the traffic, at most [`FRESH`] old, or why it cannot be read.
    pub(super) async fn read(&self) -> MeasuredTraffic {
        let Some(url) = &self.flags.prometheus else { return MeasuredTraffic::default() };
        let mut last = self.last.lock().await;
        if let Some((at, value)) = &*last
            && at.elapsed() < FRESH
        {
            return value.clone();
        }
        let read = async {
            let client = PrometheusClient::new(url, &self.flags)?;
            Ok::<_, String>((client.rows(CLUSTERS).await?, client.rows(SERVICES).await?))
        };
        let read = timeout(LIMIT, read).await;
        let read = read.unwrap_or_else(|_| Err(format!("no answer within {} s", LIMIT.as_secs())));
        let mut value = MeasuredTraffic {
            enabled: true,
            window: Some(WINDOW.to_owned()),
            ..Default::default()
        };
        match read {
            Ok((clusters, services)) => {
                value.clusters = Some(clusters.into_iter().map(between_clusters).collect());
                value.services = Some(services.into_iter().map(of_service).collect());
            }
            Err(fact) => value.problem = Some(format!("Prometheus at {url}: {fact}")),
        }
        *last = Some((Instant::now(), value.clone()));
        value
    }
}

fn between_clusters(row: MeasuredRow<2>) -> ClusterTraffic {
    let MeasuredRow { values: [source, destination], rate, errors, p95 } = row;
    ClusterTraffic { destination, errors, p95, rate, source }
}

fn of_service(row: MeasuredRow<1>) -> ServiceTraffic {
    let MeasuredRow { values: [hostname], rate, errors, p95 } = row;
    ServiceTraffic { errors, hostname, p95, rate }
}

/// A client for one reading.
struct PrometheusClient<'a> {
    url: &'a Uri,
    token_file: Option<&'a Path>,
    transport: Transport,
}

impl<'a> PrometheusClient<'a> {
    /// Reads the root certificates, so that replaced ones apply to the next reading.
    fn new(url: &'a Uri, flags: &'a PrometheusFlags) -> Result<Self, String> {
        let ca = flags.prometheus_ca.as_deref();
        let pem = ca.map(|path| durable::read_at_most(path, CA_BYTES_MAX)).transpose();
        let transport = pem
            .map_err(|error| error.to_string())
            .and_then(|pem| transport_to(url, pem.as_deref()).map_err(|error| error.to_string()));
        let transport = transport.map_err(|fact| match ca {
            Some(path) => format!("--prometheus-ca {}: {fact}", path.display()),
            None => format!("{fact}; set --prometheus-ca"),
        })?;
        Ok(Self { url, token_file: flags.prometheus_token_file.as_deref(), transport })
    }

    /// Returns the traffic by these labels, the rows with the most requests first.
    async fn rows<const N: usize>(&self, labels: [&str; N]) -> Result<Vec<MeasuredRow<N>>, String> {
        let by = labels.join(", ");
        let rate = |more: &str| {
            format!("sum by ({by}) (rate(istio_requests_total{{{REPORTER}{more}}}[{WINDOW}]))")
        };
        let latency = format!(
            "histogram_quantile(0.95, sum by (le, {by}) (rate(istio_request_duration_milliseconds_bucket{{{REPORTER}}}[{WINDOW}])))"
        );
        let rates = self.query(&format!("topk({ROWS_MAX}, {})", rate("")), labels).await?;
        let errors = self.query(&rate(r#",response_code=~"5..|0""#), labels).await?;
        let latencies = self.query(&latency, labels).await?;
        let mut rates: Vec<_> = rates.into_iter().collect();
        rates.sort_by(|(a, x), (b, y)| y.total_cmp(x).then_with(|| a.cmp(b)));
        let row = |(values, rate)| MeasuredRow {
            errors: errors.get(&values).copied().unwrap_or(0.0),
            p95: latencies.get(&values).copied(),
            rate,
            values,
        };
        Ok(rates.into_iter().take(ROWS_MAX).map(row).collect())
    }

    /// Returns the values of an instant query, by the values of `labels`. Values that are not finite
    /// are left out.
    async fn query<const N: usize>(
        &self,
        query: &str,
        labels: [&str; N],
    ) -> Result<BTreeMap<[String; N], f64>, String> {
        let base = self.url.to_string();
        let base = base.trim_end_matches('/');
        let mut request =
            Request::get(format!("{base}/api/v1/query?query={}", percent_encode(query)))
                .body(Default::default())
                .map_err(|error| error.to_string())?;
        if let Some(file) = self.token_file {
            let token = bearer(file)
                .map_err(|error| format!("--prometheus-token-file {}: {error}", file.display()))?;
            request.headers_mut().insert(header::AUTHORIZATION, token);
        }
        let sent = self.transport.clone().oneshot(request).await;
        let response =
            sent.map_err(|error| ApiError::from_exchange("a query", &*error).to_string())?;
        let status = response.status();
        let body = to_bytes(Body::new(response.into_body()), ANSWER_BYTES_MAX).await;
        let body = body.map_err(|error| error.to_string())?;
        if matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) {
            return Err(format!("it answered {status}; check --prometheus-token-file"));
        }
        let Ok(response) = serde_json::from_slice::<PrometheusResponse>(&body) else {
            return Err(format!("it answered {status}, which is not a response of Prometheus"));
        };
        let data =
            response.data.ok_or_else(|| format!("it answered {status}: {}", response.error))?;
        let samples = data.result.into_iter().filter_map(|sample| {
            let value_of = |label: &str| sample.metric.get(label).cloned().unwrap_or_default();
            let value = sample.value.1.parse::<f64>().ok().filter(|value| value.is_finite())?;
            Some((labels.map(value_of), value))
        });
        Ok(samples.collect())
    }
}

/// The decoded part of a response of Prometheus.
#[derive(Deserialize)]
struct PrometheusResponse {
    #[serde(default)]
    error: String,
    data: Option<PrometheusData>,
}

#[derive(Deserialize)]
struct PrometheusData {
    result: Vec<PrometheusSample>,
}

#[derive(Deserialize)]
struct PrometheusSample {
    metric: BTreeMap<String, String>,
    value: (f64, String),
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::{Arc, Mutex};

    use axum::Router;
    use axum::extract::Query;
    use axum::http::HeaderMap;
    use axum::routing::get;
    use axum::serve::Listener;
    use rustls::ServerConfig;
    use rustls::pki_types::PrivateKeyDer;
    use serde_json::{Value, json};
    use tokio::net::{TcpListener, TcpStream};
    use tokio_rustls::TlsAcceptor;
    use tokio_rustls::server::TlsStream;

    use super::*;
    use strait_base::lock::lock;
    use strait_base::task::Supervisor;

    fn reader(url: Option<Uri>) -> TrafficReader {
        TrafficReader::new(PrometheusFlags { prometheus: url, ..Default::default() })
    }

    /// Starts a server that answers each query, and returns its URL.
    async fn prometheus(answer: impl Fn(&str) -> String + Clone + Send + Sync + 'static) -> Uri {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("bound");
        let answer = move |Query(query): Query<BTreeMap<String, String>>| {
            let body = answer(query.get("query").map(String::as_str).unwrap_or_default());
            async move { body }
        };
        let router = Router::new().route("/base/api/v1/query", get(answer));
        Supervisor::new().spawn("prometheus", async move {
            let _ = axum::serve(listener, router).await;
        });
        format!("http://{address}/base/").parse().expect("a URL")
    }

    fn sample(labels: Value, value: &str) -> Value {
        json!({ "metric": labels, "value": [1.5, value] })
    }

    fn result(samples: &[Value]) -> String {
        json!({ "status": "success", "data": { "resultType": "vector", "result": samples } })
            .to_string()
    }

    #[tokio::test]
    async fn traffic_has_rates_errors_and_latency_of_clusters_and_services() {
        let queries = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&queries);
        let url = prometheus(move |query| {
            counted.fetch_add(1, Ordering::Relaxed);
            assert!(query.contains(REPORTER) && query.contains("[2m]"), "{query}");
            let labels = match query.contains("destination_service") {
                true => json!({ "destination_service": "web.shop.svc.cluster.local" }),
                false => json!({ "source_cluster": "east", "destination_cluster": "west" }),
            };
            let value = match query {
                _ if query.contains("histogram_quantile") => "12.5",
                _ if query.contains("5..|0") => "0.5",
                _ => "4",
            };
            result(&[sample(labels, value), sample(json!({ "source_cluster": "idle" }), "NaN")])
        })
        .await;
        let reader = reader(Some(url));
        let traffic = json!(reader.read().await);
        assert_eq!(
            traffic["clusters"],
            json!([{ "source": "east", "destination": "west", "rate": 4.0, "errors": 0.5, "p95": 12.5 }])
        );
        assert_eq!(
            traffic["services"],
            json!([{ "hostname": "web.shop.svc.cluster.local", "rate": 4.0, "errors": 0.5, "p95": 12.5 }])
        );
        assert_eq!(json!(reader.read().await), traffic);
        assert_eq!(
            queries.load(Ordering::Relaxed),
            6,
            "the second result is that of the first reading"
        );
    }

    #[tokio::test]
    async fn prometheus_failure_is_reported_and_no_query_is_sent_without_an_address() {
        assert_eq!(json!(reader(None).read().await), json!({ "enabled": false }));
        let refused = json!({ "status": "error", "error": "query too large" }).to_string();
        let cases = [
            (refused, "query too large"),
            ("<html>sign in</html>".to_owned(), "not a response of Prometheus"),
            (" ".repeat(ANSWER_BYTES_MAX + 1), "length limit exceeded"),
        ];
        for (answer, fact) in cases {
            let url = prometheus(move |_| answer.clone()).await;
            let traffic = json!(reader(Some(url)).read().await);
            let problem = traffic["problem"].as_str().unwrap_or_default();
            assert!(problem.contains(fact), "{traffic}");
        }
        let url = "http://127.0.0.1:1".parse().expect("a URL");
        let traffic = json!(reader(Some(url)).read().await);
        assert!(
            traffic["problem"].as_str().is_some_and(|text| text.contains("refused")),
            "{traffic}"
        );
    }

    struct TlsListener(TcpListener, TlsAcceptor);

    impl Listener for TlsListener {
        type Io = TlsStream<TcpStream>;
        type Addr = SocketAddr;

        async fn accept(&mut self) -> (Self::Io, Self::Addr) {
            loop {
                let (stream, address) = self.0.accept().await.expect("a connection");
                if let Ok(stream) = self.1.accept(stream).await {
                    return (stream, address);
                }
            }
        }

        fn local_addr(&self) -> std::io::Result<SocketAddr> {
            self.0.local_addr()
        }
    }

    /// Starts a server over TLS that accepts every token except `wrong`. Returns its URL, its
    /// certificate and the received headers.
    async fn secure_prometheus() -> (Uri, String, Arc<Mutex<Vec<String>>>) {
        let own = certificate();
        let key = PrivateKeyDer::try_from(own.signing_key.serialize_der()).expect("a key");
        let config = ServerConfig::builder_with_provider(strait_identity::tls::provider())
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_no_client_auth()
            .with_single_cert(vec![own.cert.der().clone()], key)
            .expect("a pair");
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("bound");
        let received = Arc::<Mutex<Vec<String>>>::default();
        let seen = Arc::clone(&received);
        let answer = move |headers: HeaderMap| {
            let header = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
            let header = header.unwrap_or_default().to_owned();
            let is_wrong = header == "Bearer wrong";
            lock(&seen).push(header);
            let status = if is_wrong { StatusCode::UNAUTHORIZED } else { StatusCode::OK };
            async move { (status, result(&[])) }
        };
        let router = Router::new().route("/api/v1/query", get(answer));
        let listener = TlsListener(listener, TlsAcceptor::from(Arc::new(config)));
        Supervisor::new().spawn("prometheus", async move {
            let _ = axum::serve(listener, router).await;
        });
        (format!("https://{address}").parse().expect("a URL"), own.cert.pem(), received)
    }

    fn certificate() -> rcgen::CertifiedKey<rcgen::KeyPair> {
        rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).expect("a certificate")
    }

    #[tokio::test]
    async fn current_token_is_sent_to_servers_whose_certificate_chains_to_the_current_roots() {
        let folder = tempfile::tempdir().expect("a folder");
        let [roots, token] = ["roots.pem", "token"].map(|name| folder.path().join(name));
        let (url, pem, received) = secure_prometheus().await;
        let reader = TrafficReader::new(PrometheusFlags {
            prometheus: Some(url),
            prometheus_ca: Some(roots.clone()),
            prometheus_token_file: Some(token.clone()),
        });
        let problem = async |is_sent: Option<&str>| {
            *reader.last.lock().await = None;
            let problem = reader.read().await.problem.unwrap_or_default();
            let sent = std::mem::take(&mut *lock(&received));
            assert!(sent.iter().all(|header| Some(&**header) == is_sent), "{sent:?}");
            assert_eq!(sent.is_empty(), is_sent.is_none(), "{problem}");
            problem
        };
        std::fs::write(&token, "first\n").expect("written");
        std::fs::write(&roots, certificate().cert.pem()).expect("written");
        let untrusted = problem(None).await;
        assert!(untrusted.contains("certificate"), "{untrusted}");
        std::fs::write(&roots, pem).expect("written");
        assert_eq!(problem(Some("Bearer first")).await, "");
        std::fs::write(&token, "second\n").expect("written");
        assert_eq!(problem(Some("Bearer second")).await, "");
        std::fs::write(&token, "wrong").expect("written");
        let refused = problem(Some("Bearer wrong")).await;
        assert!(refused.contains("401 Unauthorized; check --prometheus-token-file"), "{refused}");
        for (file, flag) in [(&token, "--prometheus-token-file"), (&roots, "--prometheus-ca")] {
            std::fs::remove_file(file).expect("removed");
            let absent = problem(None).await;
            let text = format!("{flag} {}: No such file", file.display());
            assert!(absent.contains(&text), "{absent}");
        }
    }
}
