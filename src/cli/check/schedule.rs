//! `strait check --traffic --every`: repeats the requests, reports changed results and counts all
//! of them.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fmt::{self, Write as _};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue};
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Semaphore;
use tokio::time::{MissedTickBehavior, interval, timeout};

use super::row::{failed, way};
use crate::cli::failure::{CommandFailure, CommandResult, Exit};
use crate::cli::output::{self, clean, text};
use strait_base::duration::HumanDuration;
use strait_base::lock::lock;
use strait_base::task::Supervisor;
use strait_base::time::rfc3339;
use strait_server::metrics::Family;

/// Path at which a probe serves the results of the last round, for `--probes`.
pub(super) const ROUND_PATH: &str = "/requests";
/// Content type of the metrics, which Prometheus reads.
const METRICS_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";
/// Minimum interval between rounds.
const EVERY_MIN: Duration = Duration::from_secs(1);
/// Maximum number of concurrent clients of the metrics, and the time limit of a connection.
const CONNECTIONS_MAX: usize = 16;
const CONNECTION_LIMIT: Duration = Duration::from_secs(10);
/// Fields that identify a request, used as metric labels.
const LABELS: [&str; 5] = ["from", "to", "network", "gateway", "service"];

/// Runs rounds until the process is terminated. A failed round, for example because the control
/// plane is unreachable, is reported and counted.
pub(super) async fn run<F>(
    every: Duration,
    address: Option<SocketAddr>,
    from: Option<&str>,
    mut request: F,
) -> CommandResult
where
    F: AsyncFnMut() -> Result<Vec<Value>, CommandFailure>,
{
    if every < EVERY_MIN {
        let text = format!("--every {}: at least 1s", HumanDuration(every));
        return Err(CommandFailure::usage(text));
    }
    let from = from.map(str::to_owned);
    let rounds = Arc::new(Mutex::new(Rounds { from, ..Rounds::default() }));
    let serving = async {
        match address {
            Some(address) => serve(address, Arc::clone(&rounds)).await,
            None => std::future::pending().await,
        }
    };
    let asking = async {
        let mut turns = interval(every);
        turns.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            turns.tick().await;
            let round = request().await;
            let news = lock(&rounds).take(round, SystemTime::now());
            output::print(&news)?;
        }
    };
    // As the first process of a container, it receives SIGTERM only if it installs a handler.
    let mut ended = signal(SignalKind::terminate()).map_err(|error| {
        CommandFailure::failed(format!("can't install a handler for SIGTERM: {error}"))
    })?;
    tokio::select! {
        outcome = asking => outcome,
        outcome = serving => outcome,
        _ = ended.recv() => Ok(Exit::Fine),
    }
}

async fn serve(address: SocketAddr, rounds: Arc<Mutex<Rounds>>) -> CommandResult {
    let failed = |error: std::io::Error| {
        let text = format!("--metrics-address {address}: {error}");
        CommandFailure::failed(text).next("choose an address of this machine and a free port")
    };
    let listener = TcpListener::bind(address).await.map_err(failed)?;
    let (tasks, places) = (Supervisor::new(), Arc::new(Semaphore::new(CONNECTIONS_MAX)));
    loop {
        let place = Arc::clone(&places).acquire_owned().await.expect("nobody closes it");
        let (stream, _) = listener.accept().await.map_err(failed)?;
        let rounds = Arc::clone(&rounds);
        tasks.spawn("metrics of traffic", async move {
            let answered = service_fn(|request| {
                let answer = answer(&request, &rounds);
                async move { Ok::<_, Infallible>(answer) }
            });
            let mut server = http1::Builder::new();
            server.timer(TokioTimer::new()).header_read_timeout(CONNECTION_LIMIT).keep_alive(false);
            // A client that disconnects or waits too long gets no response.
            let served = server.serve_connection(TokioIo::new(stream), answered);
            let _ = timeout(CONNECTION_LIMIT, served).await;
            drop(place);
        });
    }
}

fn answer(request: &Request<Incoming>, rounds: &Mutex<Rounds>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::default());
    if request.uri().path() == "/metrics" {
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(METRICS_TYPE));
        *response.body_mut() = Full::from(lock(rounds).metrics().unwrap_or_default());
    } else if request.uri().path() == ROUND_PATH {
        let json = HeaderValue::from_static("application/json");
        response.headers_mut().insert(CONTENT_TYPE, json);
        *response.body_mut() = Full::from(lock(rounds).last_round().to_string());
    } else {
        *response.status_mut() = StatusCode::NOT_FOUND;
        *response.body_mut() =
            Full::from(format!("not found; the paths are /metrics and {ROUND_PATH}\n"));
    }
    response
}

/// Results of all rounds.
#[derive(Debug, Default)]
struct Rounds {
    /// Cluster that the requests represent, from `--from`.
    from: Option<String>,
    /// Rows of the last successful round.
    rows: Vec<Value>,
    /// Counts by the values of [`LABELS`]. Contains only requests of the last round.
    requests: BTreeMap<[String; 5], ProbeCounts>,
    requested: u64,
    failed: u64,
    /// Reason why the last round failed, if it did.
    problem: Option<String>,
    last: Option<SystemTime>,
}

/// Results of one request in all rounds.
#[derive(Debug, Default)]
struct ProbeCounts {
    /// Number of results, by `ok` or the failed step.
    by_result: BTreeMap<String, u64>,
    /// The step that failed in the last round, and its detail.
    failing: Option<(String, String)>,
    seconds: Option<f64>,
}

impl Rounds {
    /// Counts a round and returns a line for each changed result. The first round reports all
    /// results.
    fn take(&mut self, round: Result<Vec<Value>, CommandFailure>, now: SystemTime) -> String {
        let mut news = String::new();
        let mut print_line = |line: String| {
            let _ = writeln!(news, "{} {}", rfc3339(now), clean(&line));
        };
        let rows = match round {
            Ok(rows) => rows,
            Err(failure) => {
                self.failed += 1;
                let problem = failure.to_string();
                let problem = problem.lines().map(str::trim).collect::<Vec<_>>().join("; ");
                if self.problem.as_ref() != Some(&problem) {
                    print_line(problem.clone());
                }
                self.problem = Some(problem);
                return news;
            }
        };
        if self.problem.take().is_some() {
            print_line("requests are sent again".to_owned());
        }
        self.requested += 1;
        self.last = Some(now);
        let mut before = std::mem::take(&mut self.requests);
        for row in &rows {
            let key = LABELS.map(|label| match label {
                "gateway" => way(row),
                label => text(&row[label]),
            });
            let [from, to, network, gateway, service] = &key;
            let whose = format!("{from} to {to} ({network}) by {gateway} for {service}");
            let old = before.remove(&key);
            let was = old.as_ref().map(|old| old.failing.clone());
            let mut counts = old.unwrap_or_default();
            let step = |step: &Value| (text(&step["step"]), text(&step["detail"]));
            counts.failing = failed(row).map(step);
            counts.seconds = row["ms"].as_f64().map(|ms| ms / 1e3);
            let result = counts.failing.as_ref().map_or("ok", |(step, _)| step);
            *counts.by_result.entry(result.to_owned()).or_default() += 1;
            // Details, for example ports and times, may differ each time. Therefore only steps are
            // compared.
            let step_of =
                |one: &Option<(String, String)>| one.as_ref().map(|(step, _)| step.clone());
            if was.as_ref().map(step_of) != Some(step_of(&counts.failing)) {
                print_line(match &counts.failing {
                    Some((step, detail)) => format!("{whose}: fails at {step}: {detail}"),
                    None => format!("{whose}: answers {}", text(&row["answer"])),
                });
            }
            self.requests.insert(key, counts);
        }
        for [from, to, network, gateway, service] in before.into_keys() {
            print_line(format!(
                "{from} to {to} ({network}) by {gateway} for {service}: no longer requested"
            ));
        }
        self.rows = rows;
        news
    }

    /// Returns the results of the last successful round, and the reason if a later round failed.
    fn last_round(&self) -> Value {
        json!({ "from": self.from, "at": self.last.map(rfc3339), "problem": self.problem, "requests": self.rows })
    }

    /// Returns the text of `/metrics`.
    fn metrics(&self) -> Result<String, fmt::Error> {
        let mut text = String::new();
        let out = &mut text;
        let help = "Requests to other clusters, by result: ok or the step that failed.";
        let mut family = Family::counter(out, "strait_traffic_requests_total", help)?;
        for (key, counts) in &self.requests {
            for (result, count) in &counts.by_result {
                family.sample(&[&labels(key)[..], &[("result", result)]].concat(), count)?;
            }
        }
        let help = "Whether the last request failed: 1 or 0.";
        let mut family = Family::gauge(out, "strait_traffic_failing", help)?;
        for (key, counts) in &self.requests {
            family.sample(&labels(key), u8::from(counts.failing.is_some()))?;
        }
        let help = "Duration of the last request, in seconds.";
        let mut family = Family::gauge(out, "strait_traffic_request_seconds", help)?;
        for (key, counts) in &self.requests {
            if let Some(seconds) = counts.seconds {
                family.sample(&labels(key), seconds)?;
            }
        }
        let help = "Rounds of requests, by result: asked or failed.";
        Family::counter(out, "strait_traffic_rounds_total", help)?
            .sample(&[("result", "asked")], self.requested)?
            .sample(&[("result", "failed")], self.failed)?;
        let help = "Time of the last round, in seconds since the Unix epoch.";
        let mut family = Family::gauge(out, "strait_traffic_last_round_timestamp_seconds", help)?;
        if let Some(last) = self.last {
            let since = last.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
            family.sample(&[], since.as_secs_f64())?;
        }
        Ok(text)
    }
}

fn labels(values: &[String; 5]) -> [(&'static str, &str); 5] {
    std::array::from_fn(|place| (LABELS[place], &*values[place]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(gateway: &str, fails_at: Option<&str>) -> Value {
        let steps = match fails_at {
            Some(step) => json!([{ "step": step, "ok": false, "detail": "refused\nhere" }]),
            None => json!([{ "step": "answer", "ok": true, "detail": "200" }]),
        };
        json!({ "from": "east", "to": "we\"st", "network": "n2", "gateway": gateway, "service": "web.shop:80",
            "answer": "200", "ms": 12.5, "steps": steps })
    }

    #[test]
    fn changes_are_reported_and_all_results_are_counted() {
        let mut rounds = Rounds::default();
        let mut take = |round| {
            let printed = rounds.take(round, SystemTime::UNIX_EPOCH);
            let printed =
                printed.lines().map(|line| line.split_once(' ').expect("a time").1.to_owned());
            (printed.collect::<Vec<_>>(), rounds.metrics().expect("a string takes it"))
        };
        let one = "east to we\"st (n2) by 10.0.0.1:15443 for web.shop:80";
        let (printed, _) = take(Ok(vec![row("10.0.0.1:15443", None)]));
        assert_eq!(printed, [format!("{one}: answers 200")]);
        let (printed, _) = take(Ok(vec![row("10.0.0.1:15443", None)]));
        assert!(printed.is_empty(), "the result is unchanged: {printed:?}");
        let (printed, metrics) = take(Ok(vec![row("10.0.0.1:15443", Some("gateway"))]));
        assert_eq!(printed.len(), 1);
        assert!(
            printed[0].starts_with(&format!("{one}: fails at gateway: refused")),
            "{printed:?}"
        );
        let labels = r#"from="east",to="we\"st",network="n2",gateway="10.0.0.1:15443",service="web.shop:80""#;
        for line in [
            format!("strait_traffic_requests_total{{{labels},result=\"ok\"}} 2"),
            format!("strait_traffic_requests_total{{{labels},result=\"gateway\"}} 1"),
            format!("strait_traffic_failing{{{labels}}} 1"),
            format!("strait_traffic_request_seconds{{{labels}}} 0.0125"),
            "strait_traffic_rounds_total{result=\"asked\"} 3".to_owned(),
        ] {
            assert!(metrics.lines().any(|one| one == line), "{line} is not in\n{metrics}");
        }

        let away = || Err(CommandFailure::failed("nobody listens").next("strait serve"));
        let (printed, _) = take(away());
        assert_eq!(printed, ["error: nobody listens; next: strait serve"]);
        let (printed, metrics) = take(away());
        assert!(printed.is_empty(), "{printed:?}");
        assert!(metrics.contains("strait_traffic_rounds_total{result=\"failed\"} 2"), "{metrics}");
        assert!(
            metrics.contains(&format!("strait_traffic_failing{{{labels}}} 1")),
            "earlier results stay"
        );
        let (printed, metrics) = take(Ok(vec![row("10.0.0.2:15443", None)]));
        let other = one.replace("0.1:", "0.2:");
        assert_eq!(
            printed,
            [
                "requests are sent again".to_owned(),
                format!("{other}: answers 200"),
                format!("{one}: no longer requested")
            ]
        );
        assert!(!metrics.contains("10.0.0.1:15443"), "{metrics}");
    }

    #[test]
    fn last_round_is_served_with_the_reason_of_a_later_failure() {
        let mut rounds = Rounds { from: Some("east".to_owned()), ..Rounds::default() };
        assert_eq!(
            rounds.last_round(),
            json!({ "from": "east", "at": null, "problem": null, "requests": [] })
        );
        let request = row("10.0.0.1:15443", Some("gateway"));
        rounds.take(Ok(vec![request.clone()]), SystemTime::UNIX_EPOCH);
        rounds.take(Err(CommandFailure::failed("nobody listens")), SystemTime::now());
        assert_eq!(
            rounds.last_round(),
            json!({ "from": "east", "at": "1970-01-01T00:00:00.000Z", "problem": "error: nobody listens", "requests": [request] })
        );
    }
}
