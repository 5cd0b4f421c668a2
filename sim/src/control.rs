//! The control port of `strait-sim`, for scripts and load clients: `POST /v1/VERB` with a JSON object,
//! and `GET /v1/stamps` for the changes.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Method, Response, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::cluster::SimCluster;
use crate::fault::{Fault, Gone};
use crate::task;
use crate::world::{RATES, World, WorldError};

const REQUEST_BYTES_MAX: usize = 64 * 1024;
/// The maximum number of stamps per response. Clients request the rest in further requests.
const STAMPS_MAX: usize = 100_000;

/// The HTTP status and reason of a failed request.
type Refusal = (StatusCode, String);

/// Answers requests on `listener` until it is dropped.
pub async fn serve(world: Arc<World>, listener: TcpListener) {
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            // Probably out of file descriptors: wait until some connections end.
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        let world = world.clone();
        task::spawn(async move {
            let service = service_fn(|request| answer(world.clone(), request));
            let mut server = hyper::server::conn::http1::Builder::new();
            // Errors are ignored: the client disconnected or sent invalid data.
            let _ = server
                .timer(TokioTimer::new())
                .serve_connection(TokioIo::new(stream), service)
                .await;
        });
    }
}

async fn answer(
    world: Arc<World>,
    request: http::Request<Incoming>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let (parts, body) = request.into_parts();
    if parts.method == Method::GET && parts.uri.path() == "/v1/stamps" {
        return Ok(stamps(&world, parts.uri.query().unwrap_or_default()));
    }
    let outcome = match Limited::new(body, REQUEST_BYTES_MAX).collect().await {
        Ok(body) => run(&world, &parts.method, parts.uri.path(), &body.to_bytes()).await,
        Err(_) => Err((StatusCode::PAYLOAD_TOO_LARGE, "the body is larger than 64 KiB".to_owned())),
    };
    Ok(match outcome {
        Ok(value) => reply(StatusCode::OK, "application/json", format!("{value}\n")),
        Err(refusal) => refuse(refusal),
    })
}

fn reply(status: StatusCode, content_type: &'static str, body: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from(body));
    *response.status_mut() = status;
    let content_type = HeaderValue::from_static(content_type);
    response.headers_mut().insert(http::header::CONTENT_TYPE, content_type);
    response
}

fn refuse((status, error): Refusal) -> Response<Full<Bytes>> {
    reply(status, "application/json", format!("{}\n", json!({"error": error})))
}

/// Returns the stamps after number `since`, as one JSON object per line.
fn stamps(world: &World, query: &str) -> Response<Full<Bytes>> {
    let since = form_urlencoded::parse(query.as_bytes()).find(|(key, _)| key == "since");
    let since = since.map_or(Ok(0), |(_, value)| value.parse());
    let Ok(since) = since else {
        return refuse((StatusCode::BAD_REQUEST, "since is the seq of a stamp".to_owned()));
    };
    let lines: String =
        world.stamps(since, STAMPS_MAX).iter().map(|stamp| format!("{}\n", json!(stamp))).collect();
    reply(StatusCode::OK, "application/x-ndjson", lines)
}

async fn run(
    world: &Arc<World>,
    method: &Method,
    path: &str,
    body: &[u8],
) -> Result<Value, Refusal> {
    let verb = path.strip_prefix("/v1/").unwrap_or_default();
    if !VERBS.contains(&verb) {
        let known = VERBS.join(" ");
        let error = format!("no verb at {path:?}: POST /v1/VERB, where VERB is one of {known}");
        return Err((StatusCode::NOT_FOUND, error));
    }
    if *method != Method::POST {
        return Err((StatusCode::METHOD_NOT_ALLOWED, format!("{path} takes POST only")));
    }
    let mut body: Value = serde_json::from_slice(body)
        .map_err(|error| bad(format!("the body is not JSON: {error}")))?;
    let id = match body.as_object_mut().and_then(|body| body.remove("cluster")) {
        Some(Value::String(id)) => id,
        _ => return Err(bad("the body needs \"cluster\": the ID of a cluster".to_owned())),
    };
    let cluster = world.cluster(&id).map_err(refusal)?;
    perform(world, verb, cluster, body).await
}

const VERBS: [&str; 16] = [
    "change",
    "service",
    "gateway",
    "rollout",
    "scale",
    "kill",
    "start",
    "hang",
    "slow",
    "flap",
    "gone",
    "unauthorized",
    "resync",
    "fault",
    "heal",
    "requests",
];

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Nothing {}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Change {
    service: Option<String>,
}

/// A change to a Service.
#[derive(Deserialize)]
#[serde(tag = "do", rename_all = "camelCase", deny_unknown_fields)]
enum ServiceChange {
    Create {
        #[serde(default = "one")]
        endpoints: usize,
    },
    Delete {
        service: Option<String>,
    },
    TargetPort {
        service: Option<String>,
    },
    Label {
        service: Option<String>,
        key: String,
        value: String,
    },
}

fn one() -> usize {
    1
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Rollout {
    service: Option<String>,
    #[serde(default = "ten")]
    per_second: f64,
    #[serde(default)]
    wait: bool,
}

fn ten() -> f64 {
    10.0
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Scale {
    service: Option<String>,
    endpoints: usize,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Switch {
    #[serde(default = "on")]
    on: bool,
}

fn on() -> bool {
    true
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Slow {
    #[serde(default)]
    latency_ms: u64,
    bytes_per_second: Option<u64>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Flap {
    #[serde(default = "ten_seconds")]
    up_ms: u64,
    #[serde(default = "ten_seconds")]
    down_ms: u64,
    #[serde(default = "on")]
    on: bool,
}

fn ten_seconds() -> u64 {
    10_000
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct GoneBody {
    #[serde(default)]
    how: GoneHow,
    times: Option<u32>,
    #[serde(default = "on")]
    on: bool,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase")]
enum GoneHow {
    #[default]
    Status,
    Event,
    Continue,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Requests {
    verb: String,
    resource: String,
}

async fn perform(
    world: &Arc<World>,
    verb: &str,
    cluster: &SimCluster,
    body: Value,
) -> Result<Value, Refusal> {
    let id = cluster.id();
    match verb {
        "change" => {
            let Change { service } = read(body)?;
            let stamp = world.change(id, service.as_deref()).map_err(refusal)?;
            return Ok(json!(stamp));
        }
        "service" => return change_service(world, id, read(body)?).map_err(refusal),
        "gateway" => {
            let Switch { on } = read(body)?;
            world.set_gateway(id, on).map_err(refusal)?;
        }
        "rollout" => return rollout(world, id, read(body)?).await,
        "scale" => {
            let Scale { service, endpoints } = read(body)?;
            let stamps = world.scale(id, service.as_deref(), endpoints).map_err(refusal)?;
            return Ok(json!({"endpoints": endpoints, "stamps": stamps}));
        }
        "requests" => {
            let Requests { verb, resource } = read(body)?;
            return Ok(json!({"count": cluster.request_count(&verb, &resource)}));
        }
        "kill" => {
            let Nothing {} = read(body)?;
            cluster.stop().await;
        }
        "start" => {
            let Nothing {} = read(body)?;
            cluster.restart().await;
        }
        "hang" => switch(cluster, Fault::Hang, read(body)?)?,
        "unauthorized" => switch(cluster, Fault::Unauthorized, read(body)?)?,
        "slow" => {
            let Slow { latency_ms, bytes_per_second } = read(body)?;
            let on = latency_ms > 0 || bytes_per_second.is_some();
            switch(cluster, Fault::Slow { latency_ms, bytes_per_second }, Switch { on })?;
        }
        "flap" => {
            let Flap { up_ms, down_ms, on } = read(body)?;
            switch(cluster, Fault::Flap { up_ms, down_ms }, Switch { on })?;
        }
        "gone" => {
            let GoneBody { how, times, on } = read(body)?;
            let fault = match how {
                GoneHow::Status => Fault::Gone { how: Gone::Status, times: times.or(Some(1)) },
                GoneHow::Event => Fault::Gone { how: Gone::Event, times: times.or(Some(1)) },
                GoneHow::Continue if times.is_some() => {
                    let error = "times is set: `continue` does not support it and lasts until `on` is false";
                    return Err(bad(error.to_owned()));
                }
                GoneHow::Continue => Fault::ContinueExpired,
            };
            switch(cluster, fault, Switch { on })?;
        }
        "resync" => {
            let Nothing {} = read(body)?;
            cluster.store().compact();
        }
        "fault" => switch(cluster, Fault::read(body).map_err(bad)?, Switch { on: true })?,
        _ => {
            let Nothing {} = read(body)?;
            cluster.heal();
        }
    }
    Ok(json!({"cluster": id, "serving": cluster.is_serving(), "faults": cluster.faults()}))
}

fn change_service(world: &World, id: &str, change: ServiceChange) -> Result<Value, WorldError> {
    match change {
        ServiceChange::Create { endpoints } => {
            let stamps = world.add_service(id, endpoints)?;
            Ok(json!({"service": stamps.first().map(|stamp| &stamp.service), "stamps": stamps}))
        }
        ServiceChange::Delete { service } => {
            let stamp = world.remove_service(id, service.as_deref())?;
            Ok(json!({"service": stamp.service, "stamps": [stamp]}))
        }
        ServiceChange::TargetPort { service } => world
            .change_target_port(id, service.as_deref())
            .map(|service| json!({"service": service})),
        ServiceChange::Label { service, key, value } => {
            let labelled = world.label_service(id, service.as_deref(), (&key, &value));
            labelled.map(|service| json!({"service": service}))
        }
    }
}

async fn rollout(world: &Arc<World>, id: &str, body: Rollout) -> Result<Value, Refusal> {
    let Rollout { service, per_second, wait } = body;
    if !RATES.contains(&per_second) {
        let (least, most) = (RATES.start(), RATES.end());
        return Err(bad(format!("perSecond is {per_second:?}: it must be from {least} to {most}")));
    }
    // Errors are reported now, because the result of a rollout in the background is not returned.
    let service = world.choose(id, service.as_deref()).map_err(refusal)?;
    let rolled = {
        let (world, id) = (world.clone(), id.to_owned());
        async move { world.rollout(&id, Some(&service), per_second).await }
    };
    if wait {
        return rolled.await.map(|stamps| json!({"stamps": stamps})).map_err(refusal);
    }
    task::spawn(rolled);
    Ok(json!({"started": true}))
}

fn switch(cluster: &SimCluster, fault: Fault, Switch { on }: Switch) -> Result<(), Refusal> {
    if on {
        fault.check().map_err(bad)?;
        cluster.fault(fault);
    } else {
        cluster.end_fault(&fault);
    }
    Ok(())
}

fn read<T: DeserializeOwned>(body: Value) -> Result<T, Refusal> {
    serde_json::from_value(body).map_err(|error| bad(error.to_string()))
}

fn bad(error: String) -> Refusal {
    (StatusCode::BAD_REQUEST, error)
}

fn refusal(error: WorldError) -> Refusal {
    let status = match error {
        WorldError::NoSuchCluster(_) | WorldError::NoSuchService(_) => StatusCode::NOT_FOUND,
        WorldError::NoEndpoints(_) | WorldError::NoNamedPort(_) | WorldError::OneNetwork => {
            StatusCode::CONFLICT
        }
        WorldError::NoAddresses(_) | WorldError::NoLabel(_) => StatusCode::BAD_REQUEST,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    };
    (status, error.to_string())
}
