//! Traffic of clusters and services, read from a Prometheus that scrapes the proxies.
//!
//! Read-only and bounded: a fixed set of queries, a limit for the time and the size of each response,
//! and at most one reading at a time. A result is used for [`FRESH`]. Without `--prometheus`, the
//! server sends no request.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::http::{Request, Uri, header};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use tokio::net::TcpStream;
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout};

use strait_admin_api::{ClusterTraffic, MeasuredTraffic, ServiceTraffic};
use strait_kube_client::percent_encode;

/// Time for which a result is used.
const FRESH: Duration = Duration::from_secs(10);
/// Maximum time of all queries together.
const LIMIT: Duration = Duration::from_secs(5);
/// Maximum size of one response in bytes.
const ANSWER_BYTES_MAX: usize = 4 << 20;
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
    url: Option<Uri>,
    last: Mutex<Option<(Instant, MeasuredTraffic)>>,
}

impl TrafficReader {
    /// Creates the reader. `url` is the address of Prometheus, if there is one.
    pub fn new(url: Option<Uri>) -> Self {
        Self { url, last: Mutex::default() }
    }

    /// Returns the traffic, at most [`FRESH`] old, or why it cannot be read.
    pub(super) async fn read(&self) -> MeasuredTraffic {
        let Some(url) = &self.url else { return MeasuredTraffic::default() };
        let mut last = self.last.lock().await;
        if let Some((at, value)) = &*last
            && at.elapsed() < FRESH
        {
            return value.clone();
        }
        let read = async {
            let clusters = rows(url, CLUSTERS).await?;
            Ok::<_, String>((clusters, rows(url, SERVICES).await?))
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

/// Returns the traffic by these labels, the rows with the most requests first.
async fn rows<const N: usize>(url: &Uri, labels: [&str; N]) -> Result<Vec<MeasuredRow<N>>, String> {
    let by = labels.join(", ");
    let rate = |more: &str| {
        format!("sum by ({by}) (rate(istio_requests_total{{{REPORTER}{more}}}[{WINDOW}]))")
    };
    let latency = format!(
        "histogram_quantile(0.95, sum by (le, {by}) (rate(istio_request_duration_milliseconds_bucket{{{REPORTER}}}[{WINDOW}])))"
    );
    let rates = query(url, &format!("topk({ROWS_MAX}, {})", rate("")), labels).await?;
    let errors = query(url, &rate(r#",response_code=~"5..|0""#), labels).await?;
    let latencies = query(url, &latency, labels).await?;
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

/// Returns the values of an instant query, by the values of `labels`. Values that are not finite are
/// left out.
async fn query<const N: usize>(
    url: &Uri,
    query: &str,
    labels: [&str; N],
) -> Result<BTreeMap<[String; N], f64>, String> {
    let text = |error: &dyn std::fmt::Display| error.to_string();
    let host = url.host().unwrap_or_default().trim_matches(['[', ']']);
    let stream = TcpStream::connect((host, url.port_u16().unwrap_or(80)));
    let stream = stream.await.map_err(|error| text(&error))?;
    let (mut sender, connection) =
        http1::handshake(TokioIo::new(stream)).await.map_err(|error| text(&error))?;
    let path = url.path().trim_end_matches('/');
    let request = Request::get(format!("{path}/api/v1/query?query={}", percent_encode(query)))
        .header(header::HOST, url.authority().map_or("prometheus", |authority| authority.as_str()))
        .body(Body::empty())
        .map_err(|error| text(&error))?;
    // Its end drops the sender, which ends the connection.
    let answer = async move {
        let response = sender.send_request(request).await.map_err(|error| text(&error))?;
        let status = response.status();
        let body = to_bytes(Body::new(response.into_body()), ANSWER_BYTES_MAX).await;
        Ok::<_, String>((status, body.map_err(|error| text(&error))?))
    };
    // The connection only makes progress while it is polled.
    let (answer, _) = futures::join!(answer, connection);
    let (status, body) = answer?;
    let Ok(response) = serde_json::from_slice::<PrometheusResponse>(&body) else {
        return Err(format!("it answered {status}, which is not a response of Prometheus"));
    };
    let data = response.data.ok_or_else(|| format!("it answered {status}: {}", response.error))?;
    let samples = data.result.into_iter().filter_map(|sample| {
        let value_of = |label: &str| sample.metric.get(label).cloned().unwrap_or_default();
        let value = sample.value.1.parse::<f64>().ok().filter(|value| value.is_finite())?;
        Some((labels.map(value_of), value))
    });
    Ok(samples.collect())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use axum::Router;
    use axum::extract::Query;
    use axum::routing::get;
    use serde_json::{Value, json};
    use tokio::net::TcpListener;

    use super::*;

    /// Starts a server that answers each query, and returns its URL.
    async fn prometheus(answer: impl Fn(&str) -> String + Clone + Send + Sync + 'static) -> Uri {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("bound");
        let answer = move |Query(query): Query<BTreeMap<String, String>>| {
            let body = answer(query.get("query").map(String::as_str).unwrap_or_default());
            async move { body }
        };
        let router = Router::new().route("/base/api/v1/query", get(answer));
        strait_base::task::Supervisor::new().spawn("prometheus", async move {
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
        let reader = TrafficReader::new(Some(url));
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
        assert_eq!(json!(TrafficReader::new(None).read().await), json!({ "enabled": false }));
        let refused = json!({ "status": "error", "error": "query too large" }).to_string();
        let cases = [
            (refused, "query too large"),
            ("<html>sign in</html>".to_owned(), "not a response of Prometheus"),
            (" ".repeat(ANSWER_BYTES_MAX + 1), "length limit exceeded"),
        ];
        for (answer, fact) in cases {
            let url = prometheus(move |_| answer.clone()).await;
            let traffic = json!(TrafficReader::new(Some(url)).read().await);
            let problem = traffic["problem"].as_str().unwrap_or_default();
            assert!(problem.contains(fact), "{traffic}");
        }
        let url = "http://127.0.0.1:1".parse().expect("a URL");
        let traffic = json!(TrafficReader::new(Some(url)).read().await);
        assert!(
            traffic["problem"].as_str().is_some_and(|text| text.contains("refused")),
            "{traffic}"
        );
    }
}
