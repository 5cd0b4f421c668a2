//! Handles the requests of a simulated API server.
//!
//! First, active faults may replace the response. Then the token is checked, and the request is
//! handled as discovery, as a list or watch, or as an access to one object. All objects are in the
//! [`Store`].

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::header::{
    ACCEPT, AUTHORIZATION, CONTENT_ENCODING, CONTENT_TYPE, DATE, LOCATION, USER_AGENT,
};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use serde_json::{Value, json};

use crate::accept::{
    accepted, accepted_status, accepts_page, header, media_type, parse, wants_aggregated,
};
use crate::admit::{self, Part};
use crate::body::Answer;
use crate::discovery;
use crate::encode::{View, Wire};
use crate::fault::{Fault, Faults, Gone, Refusal};
use crate::object::{Name, Object};
use crate::paging::{continue_token, moment, read_continue_token};
use crate::patch::PatchForm;
use crate::port_forward::PodPorts;
use crate::reply::{
    bytes_answer, json_answer, list_answer, object_answer, refuse, respond, with_type,
};
use crate::requests::{Request, RequestLog};
use crate::resource::{Family, RESOURCES};
use crate::route::{Query, Target};
use crate::select::Selector;
use crate::status::ApiError;
use crate::store::{At, Page, Store, text};
use crate::task;
use crate::tokens::{ISSUER, Token, Tokens};
use crate::watch::{Start, Watch};

/// The maximum size of a request body, as on a real server: 3 MiB.
const REQUEST_BYTES_MAX: usize = 3 * 1024 * 1024;
const DEFAULT_WATCH_TIMEOUT: Duration = Duration::from_secs(30 * 60);

/// The state of a simulated API server. It remains while the server is stopped and restarted.
#[derive(Debug)]
pub(crate) struct ApiServer {
    pub(crate) store: Arc<Store>,
    pub(crate) faults: Faults,
    pub(crate) requests: RequestLog,
    pub(crate) bookmark_interval: Duration,
    pub(crate) families: Mutex<BTreeSet<Family>>,
    pub(crate) tokens: Tokens,
    pub(crate) pod_ports: PodPorts,
}

type Outcome = Result<Response<Answer>, ApiError>;

impl ApiServer {
    pub(crate) fn new(
        store: Arc<Store>,
        families: BTreeSet<Family>,
        bookmark_interval: Duration,
        admin_token: Option<&str>,
    ) -> ApiServer {
        ApiServer {
            store,
            faults: Faults::default(),
            requests: RequestLog::default(),
            bookmark_interval,
            families: Mutex::new(families),
            tokens: Tokens::new(admin_token),
            pod_ports: PodPorts::default(),
        }
    }

    /// Responds to a request. Active faults may delay, replace or damage the response.
    pub(crate) async fn answer(
        self: Arc<Self>,
        request: http::Request<Incoming>,
    ) -> Response<Answer> {
        let (parts, body) = request.into_parts();
        let query = Query::parse(parts.uri.query().unwrap_or_default());
        let target = self.target(parts.uri.path());
        self.requests.record(describe(&parts, target.as_ref(), &query));

        self.faults.wait_without(&Fault::Hang).await;
        if let Some(latency) = self.faults.find(|fault| match fault {
            Fault::Slow { latency_ms, .. } => Some(Duration::from_millis(*latency_ms)),
            _ => None,
        }) {
            tokio::time::sleep(latency).await;
        }
        let outcome = match self.fault_answer(&parts, target.as_ref(), &query) {
            Some(outcome) => outcome,
            None => self.route(&parts, target, &query, body).await,
        };
        self.disturb(
            outcome.unwrap_or_else(|error| refuse(accepted_status(&parts.headers), &error)),
        )
    }

    /// Returns the response of an active fault that replaces the regular response.
    fn fault_answer(
        &self,
        Parts { method, headers, .. }: &Parts,
        target: Option<&Target>,
        query: &Query,
    ) -> Option<Outcome> {
        if let Some(code) = self.faults.take_error() {
            return Some(Err(ApiError::server_error(code)));
        }
        self.faults.find(|fault| match fault {
            Fault::Html => {
                let page = "<!doctype html><title>Sign in</title><h1>Please sign in</h1>\n";
                Some(Ok(respond(StatusCode::OK, "text/html; charset=utf-8", page)))
            }
            Fault::Redirect { location } => {
                let mut answer = respond(StatusCode::FOUND, "text/plain", "Found\n");
                if let Ok(location) = HeaderValue::from_str(location) {
                    answer.headers_mut().insert(LOCATION, location);
                }
                Some(Ok(answer))
            }
            Fault::TooManyRequests { retry_after_seconds } => {
                Some(Err(ApiError::too_many_requests(*retry_after_seconds)))
            }
            Fault::Unauthorized => Some(Err(ApiError::unauthorized())),
            Fault::Forbidden { resource } => {
                let target = target.filter(|t| t.view.resource.plural == resource)?;
                // A request without a valid token gets 401 instead, as on a real server.
                self.user(headers)?;
                let verb = if query.watch { "watch" } else { "list" };
                Some(Err(ApiError::forbidden(target.view.resource, verb, &target.namespace)))
            }
            Fault::ListForbidden { resource } => {
                let target =
                    target.filter(|t| t.view.resource.plural == resource && t.name.is_none())?;
                self.user(headers)?;
                let verb = if query.watch { "watch" } else { "list" };
                Some(Err(ApiError::forbidden(target.view.resource, verb, &target.namespace)))
            }
            Fault::OnlyNamespaces { namespaces } => {
                let target = target.filter(|target| !grants(namespaces, target))?;
                self.user(headers)?;
                let verb = if query.watch { "watch" } else { "list" };
                Some(Err(ApiError::forbidden(target.view.resource, verb, &target.namespace)))
            }
            Fault::KindFails { resource, body } => {
                target.filter(|t| t.view.resource.plural == resource)?;
                Some(match body {
                    Some(body) => {
                        Ok(bytes_answer(StatusCode::OK, Wire::Json, body.clone().into_bytes()))
                    }
                    None => Err(ApiError::server_error(500)),
                })
            }
            Fault::ReadOnly => {
                let target = target.filter(|_| *method != Method::GET)?;
                self.user(headers)?;
                let verb = method.as_str().to_lowercase();
                Some(Err(ApiError::forbidden(target.view.resource, &verb, &target.namespace)))
            }
            _ => None,
        })
    }

    /// Applies the faults that damage or slow down a response.
    fn disturb(&self, mut answer: Response<Answer>) -> Response<Answer> {
        for fault in self.faults.list() {
            match fault {
                Fault::Truncate => answer = answer.map(Answer::cut),
                Fault::Compressed => {
                    let coding = HeaderValue::from_static("gzip");
                    answer.headers_mut().insert(CONTENT_ENCODING, coding);
                }
                Fault::Slow { bytes_per_second: Some(rate), .. } => {
                    answer = answer.map(|body| body.throttled(rate));
                }
                Fault::ClockSkew { seconds } => {
                    let now = jiff::Timestamp::now();
                    let skew = jiff::SignedDuration::from_secs(seconds);
                    // A time outside of the representable range is clamped to it.
                    let time = now.saturating_add(skew).unwrap_or(now);
                    let time = time.strftime("%a, %d %b %Y %H:%M:%S GMT").to_string();
                    if let Ok(time) = HeaderValue::from_str(&time) {
                        answer.headers_mut().insert(DATE, time);
                    }
                }
                _ => {}
            }
        }
        answer
    }

    async fn route(
        self: &Arc<Self>,
        parts: &Parts,
        target: Option<Target>,
        query: &Query,
        body: Incoming,
    ) -> Outcome {
        let path = parts.uri.path();
        let reading = matches!(parts.method, Method::GET | Method::HEAD);
        // Health and version need no token, as on a real server.
        match path {
            "/healthz" | "/livez" | "/readyz" => {
                return Ok(respond(StatusCode::OK, "text/plain; charset=utf-8", "ok"));
            }
            "/version" => return Ok(json_answer(StatusCode::OK, &discovery_of(self, path)?)),
            _ => {}
        }
        let user = self.user(&parts.headers).ok_or_else(ApiError::unauthorized)?;
        if reading && wants_aggregated(&parts.headers) {
            let families = self.families.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(document) = discovery::aggregated(path, &families) {
                let body = Answer::Whole(Some(document.to_string().into()));
                return Ok(with_type(StatusCode::OK, discovery::AGGREGATED, body));
            }
        }
        if reading && let Some((content_type, page)) = self.tokens.page(path) {
            if !accepts_page(&parts.headers, content_type) {
                return Err(ApiError::not_acceptable());
            }
            let body = Answer::Whole(Some(page.to_string().into()));
            return Ok(with_type(StatusCode::OK, content_type, body));
        }
        if reading && let Ok(document) = discovery_of(self, path) {
            return Ok(json_answer(StatusCode::OK, &document));
        }
        if reading
            && let Some(target) = &target
            && target.subresource.as_deref() == Some("portforward")
            && let Some(name) = target.object_name()
        {
            let pod = self.store.find(target.view.resource, &name);
            pod.ok_or_else(|| ApiError::not_found(target.view.resource, &name.name))?;
            return self.pod_ports.forward(parts, format!("{}/{}", name.namespace, name.name));
        }
        let body = Limited::new(body, REQUEST_BYTES_MAX)
            .collect()
            .await
            .map_err(|_| ApiError::new(413, "RequestEntityTooLarge", "limit is 3145728 bytes"))?;
        let body = body.to_bytes();
        let content_type = header(&parts.headers, CONTENT_TYPE);
        if let Some(review) = self.review(&parts.method, path, &user, content_type, &body)? {
            return Ok(json_answer(StatusCode::CREATED, &review));
        }
        let Some(mut target) = target else { return self.nothing_at(path) };
        let protobuf = !self.faults.has(&Fault::JsonOnly);
        let (form, wire) =
            accepted(&parts.headers, &target, protobuf).ok_or_else(ApiError::not_acceptable)?;
        (target.view.form, target.view.wire) = (form, wire);
        let object = || parse(content_type, &body);
        match (&parts.method, target.object_name()) {
            (&Method::GET, None) if query.watch => self.watch(&target, query),
            (&Method::GET, None) => self.list(&target, query),
            (&Method::POST, None) => self.create(&target, query, object()?),
            (&Method::DELETE, None) => self.delete_collection(&target, query),
            (&Method::GET, Some(name)) if query.watch => {
                let one = Query {
                    field_selector: format!("metadata.name={}", name.name),
                    watch: true,
                    label_selector: String::new(),
                    ..Query::parse(parts.uri.query().unwrap_or_default())
                };
                self.watch(&target, &one)
            }
            (&Method::GET, Some(name)) => {
                part(&target)?;
                let object = self.store.find(target.view.resource, &name);
                let object =
                    object.ok_or_else(|| ApiError::not_found(target.view.resource, &name.name))?;
                Ok(object_answer(StatusCode::OK, target.view, &object))
            }
            (&Method::POST, Some(name)) => self.create_token(&target, &name, object()?),
            (&Method::PUT, Some(name)) => self.replace(&target, &name, query, object()?),
            (&Method::PATCH, Some(name)) => {
                let form = PatchForm::of_media_type(media_type(content_type))
                    .ok_or_else(|| ApiError::unsupported_media_type(content_type))?;
                self.patch(&target, &name, query, form, parse("", &body)?)
            }
            (&Method::DELETE, Some(name)) => {
                self.delete(&target, &name, query, parse(content_type, &body).unwrap_or_default())
            }
            _ => Err(ApiError::method_not_allowed()),
        }
    }

    /// Responds to an unknown path. In a served API group, the response is a `Status`; outside of
    /// it, plain text, as on a real server.
    fn nothing_at(&self, path: &str) -> Outcome {
        let mut segments = path.trim_matches('/').split('/');
        let served = match (segments.next(), segments.next()) {
            (Some("api"), Some(_)) => true,
            (Some("apis"), Some(group)) => discovery_of(self, &format!("/apis/{group}")).is_ok(),
            _ => false,
        };
        if served {
            return Err(ApiError::no_such_path());
        }
        let text = "404 page not found\n";
        Ok(respond(StatusCode::NOT_FOUND, "text/plain; charset=utf-8", text))
    }

    fn list(&self, target: &Target, query: &Query) -> Outcome {
        let resource = target.view.resource;
        let selector = selector(target, query)?;
        // `timeoutSeconds` applies only to watches, but a real server validates it for lists too.
        query.timeout()?;
        if self.faults.find(|fault| empties(fault, resource.plural)).is_some() {
            let metadata = json!({"resourceVersion": self.store.version().to_string()});
            return Ok(list_answer(target.view, Vec::new(), &metadata));
        }
        let endless = self.faults.has(&Fault::EndlessPages);
        let page = match &query.continue_token {
            Some(token) if !endless => self.continue_list(target, query, &selector, token)?,
            _ => {
                let (at, limit) = moment(query)?;
                let limit = limit.or(endless.then_some(500));
                self.store.list(resource, &selector, at, None, limit)?
            }
        };
        let mut metadata = json!({"resourceVersion": page.version.to_string()});
        let last = page.objects.last().map(|object| &object.name).filter(|_| endless);
        if let Some(after) = page.after.as_ref().or(last) {
            metadata["continue"] = json!(continue_token(Some(page.version), after));
        }
        if let Some(remaining) = page.remaining {
            metadata["remainingItemCount"] = json!(remaining);
        }
        Ok(list_answer(target.view, page.objects, &metadata))
    }

    fn continue_list(
        &self,
        target: &Target,
        query: &Query,
        selector: &Selector,
        token: &str,
    ) -> Result<Page, ApiError> {
        if query.version()?.is_some_and(|version| version != 0) {
            let why = "specifying resource version is not allowed when using continue";
            return Err(ApiError::bad_request(why));
        }
        let (version, after) = read_continue_token(token)
            .ok_or_else(|| ApiError::bad_request("continue key is not valid"))?;
        let expired = || ApiError::continue_expired(continue_token(None, &after));
        if self.faults.has(&Fault::ContinueExpired) {
            return Err(expired());
        }
        let at = version.map_or(At::Now, At::Exact);
        let page =
            self.store.list(target.view.resource, selector, at, Some(&after), query.limit()?);
        page.map_err(|error| if error.code == 410 { expired() } else { error })
    }

    fn watch(self: &Arc<Self>, target: &Target, query: &Query) -> Outcome {
        let view = target.view;
        let selector = selector(target, query)?;
        query.limit()?;
        let timeout = query.timeout()?;
        if let Some(gone) = self.faults.take_gone() {
            let error =
                ApiError::too_old(query.version()?.unwrap_or_default(), self.store.version());
            return match gone {
                Gone::Status => Err(error),
                Gone::Event => Ok(ends_at_once(view, &error)),
            };
        }
        let mut streaming = query.send_initial_events;
        if streaming.is_some() {
            let refusal = self.faults.find(|fault| match fault {
                Fault::NoStreamingLists { how } => Some(*how),
                _ => None,
            });
            match refusal {
                Some(Refusal::Invalid) => {
                    let why = "Forbidden: sendInitialEvents is forbidden for watch unless the \
                               WatchList feature gate is enabled";
                    return Err(ApiError::invalid_options("sendInitialEvents", why));
                }
                Some(Refusal::Event) => {
                    let why = "the WatchList feature is not supported by the storage";
                    let error = ApiError::new(500, "InternalError", why);
                    return Ok(ends_at_once(view, &error));
                }
                Some(Refusal::Ignored) => streaming = None,
                None if query.resource_version_match.as_deref() != Some("NotOlderThan") => {
                    let why = "Forbidden: sendInitialEvents requires setting \
                               resourceVersionMatch to NotOlderThan";
                    return Err(ApiError::invalid_options("resourceVersionMatch", why));
                }
                None => {}
            }
        }
        let version = query.version()?;
        let current = self.store.version();
        let start = match (streaming, version) {
            (Some(true), Some(version)) if version > current => {
                let error = ApiError::too_large_version(version, current);
                return Ok(ends_at_once(view, &error));
            }
            (Some(true), _) => Start::Initial { marked: true },
            (Some(false), None | Some(0)) => Start::Now,
            (None, None | Some(0)) => Start::Initial { marked: false },
            (_, Some(version)) => Start::After(version),
        };
        let watch = Watch {
            view,
            selector,
            start,
            bookmarks: query.bookmarks,
            timeout: timeout.unwrap_or(DEFAULT_WATCH_TIMEOUT),
        };
        let (sender, answer) = Answer::flowing();
        if self.faults.has(&Fault::EndlessLine) {
            task::spawn(send_endless_line(sender));
        } else {
            task::spawn(watch.run(self.clone(), sender));
        }
        Ok(with_type(StatusCode::OK, view.wire.stream_type(), answer))
    }

    fn create(&self, target: &Target, query: &Query, mut object: Value) -> Outcome {
        let resource = target.view.resource;
        check_kind(target, &object)?;
        settle_name(target, None, &mut object)?;
        if object.pointer("/metadata/resourceVersion").is_some_and(|v| *v != json!("")) {
            return Err(ApiError::bad_request(
                "resourceVersion should not be set on objects to be created",
            ));
        }
        let object = admit::restrict(resource, Part::Main, &Value::Null, object);
        let created = self.store.create(resource, object, query.dry_run)?;
        Ok(object_answer(StatusCode::CREATED, target.view, &created))
    }

    fn replace(&self, target: &Target, name: &Name, query: &Query, mut object: Value) -> Outcome {
        let resource = target.view.resource;
        let part = part(target)?;
        check_kind(target, &object)?;
        settle_name(target, Some(&name.name), &mut object)?;
        let updated = self.store.update(resource, name, query.dry_run, |current| {
            check_version(target, &name.name, &current, &object)?;
            Ok(admit::restrict(resource, part, &current, object))
        })?;
        Ok(object_answer(StatusCode::OK, target.view, &updated))
    }

    fn patch(
        &self,
        target: &Target,
        name: &Name,
        query: &Query,
        form: PatchForm,
        mut patch: Value,
    ) -> Outcome {
        let resource = target.view.resource;
        let part = part(target)?;
        if let Some(fields) = patch.as_object_mut() {
            fields.remove("kind");
            fields.remove("apiVersion");
        }
        let patched = self.store.update(resource, name, query.dry_run, |current| {
            check_version(target, &name.name, &current, &patch)?;
            let wanted = form.patch(current.clone(), patch.clone());
            Ok(admit::restrict(resource, part, &current, wanted))
        });
        match patched {
            Err(error) if error.code == 404 && form == PatchForm::Apply && part == Part::Main => {
                settle_name(target, Some(&name.name), &mut patch)?;
                let object = admit::restrict(resource, Part::Main, &Value::Null, patch);
                let created = self.store.create(resource, object, query.dry_run)?;
                Ok(object_answer(StatusCode::CREATED, target.view, &created))
            }
            patched => Ok(object_answer(StatusCode::OK, target.view, &*patched?)),
        }
    }

    fn delete(&self, target: &Target, name: &Name, query: &Query, options: Value) -> Outcome {
        let resource = target.view.resource;
        let check = |object: &Object| {
            let value = object.value();
            let conditions = [
                ("uid", &value["metadata"]["uid"]),
                ("resourceVersion", &value["metadata"]["resourceVersion"]),
            ];
            for (field, actual) in conditions {
                let wanted = &options["preconditions"][field];
                if !wanted.is_null() && wanted != actual {
                    return Err(ApiError::conflict(resource, &name.name));
                }
            }
            Ok(())
        };
        let dry_run = query.dry_run || options["dryRun"] == json!(["All"]);
        let deleted = if dry_run {
            let object = self.store.find(resource, name);
            let object = object.ok_or_else(|| ApiError::not_found(resource, &name.name))?;
            check(&object)?;
            object
        } else {
            self.store.delete_if(resource, name, check)?
        };
        let status = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success",
            "details": {
                "name": name.name, "group": resource.group, "kind": resource.plural,
                "uid": deleted.value()["metadata"]["uid"],
            },
        });
        Ok(json_answer(StatusCode::OK, &status))
    }

    fn delete_collection(&self, target: &Target, query: &Query) -> Outcome {
        let resource = target.view.resource;
        let selector = selector(target, query)?;
        query.limit()?;
        query.timeout()?;
        let page = self.store.list(resource, &selector, At::Now, None, None)?;
        for object in &page.objects {
            // Another client may have deleted the object already.
            let _ = self.store.delete_if(resource, &object.name, |_| Ok(()));
        }
        let metadata = json!({"resourceVersion": self.store.version().to_string()});
        Ok(list_answer(target.view, page.objects, &metadata))
    }

    /// Responds to a TokenRequest: issues a token for a service account.
    fn create_token(&self, target: &Target, name: &Name, mut request: Value) -> Outcome {
        let resource = target.view.resource;
        if resource.plural != "serviceaccounts" || target.subresource.as_deref() != Some("token") {
            return Err(ApiError::method_not_allowed());
        }
        let account = self.store.find(resource, name);
        account.ok_or_else(|| ApiError::not_found(resource, &name.name))?;
        let seconds = request["spec"]["expirationSeconds"].as_u64().unwrap_or(3600);
        let lifetime = Duration::from_secs(seconds.min(u64::from(u32::MAX)));
        let expires_at = jiff::Timestamp::now() + lifetime;
        let bound = text(&request, "/spec/boundObjectRef/name").map(str::to_owned);
        let audiences = request["spec"]["audiences"].clone();
        let token = self.account_token(name, bound.as_deref(), audiences, lifetime)?;
        request["kind"] = json!("TokenRequest");
        request["apiVersion"] = json!("authentication.k8s.io/v1");
        request["metadata"]["name"] = json!(name.name);
        request["metadata"]["namespace"] = json!(name.namespace);
        request["spec"]["expirationSeconds"] = json!(seconds);
        let expires_at = expires_at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        request["status"] = json!({"token": token, "expirationTimestamp": expires_at});
        Ok(json_answer(StatusCode::CREATED, &request))
    }

    /// Issues a token for a service account, bound to the pod if one is named.
    pub(crate) fn account_token(
        &self,
        account: &Name,
        pod: Option<&str>,
        audiences: Value,
        lifetime: Duration,
    ) -> Result<String, ApiError> {
        let uid_of = |kind: &str, namespace: &str, name: &str| {
            Some(self.store.get(kind, namespace, name)?.value()["metadata"]["uid"].clone())
        };
        let namespace = &account.namespace;
        let user = format!("system:serviceaccount:{namespace}:{}", account.name);
        let now = jiff::Timestamp::now();
        let uid = uid_of("ServiceAccount", namespace, &account.name).unwrap_or(json!("unknown"));
        let mut claims = json!({
            "iss": ISSUER,
            "sub": user,
            "aud": if audiences.is_null() { json!([ISSUER]) } else { audiences },
            "iat": now.as_second(),
            "nbf": now.as_second(),
            "exp": (now + lifetime).as_second(),
            "kubernetes.io": {
                "namespace": namespace,
                "serviceaccount": {"name": account.name, "uid": uid},
            },
        });
        if let Some(pod) = pod {
            let why = || ApiError::bad_request(format!("there is no pod {pod:?} to bind it to"));
            let uid = uid_of("Pod", namespace, pod).ok_or_else(why)?;
            claims["kubernetes.io"]["pod"] = json!({"name": pod, "uid": uid});
        }
        Ok(self.tokens.issue(user, &claims, lifetime))
    }

    /// Returns the status of a TokenReview. The token must be valid for a requested audience, and
    /// its pod must exist.
    fn review_token(&self, review: &Value) -> Value {
        let none = json!({"authenticated": false});
        let found = text(review, "/spec/token").and_then(|token| self.tokens.find(token));
        let Some(Token { user, claims, .. }) = found else { return none };
        let listed = |value: &Value| value.as_array().cloned().unwrap_or_default();
        let (wanted, given) = (listed(&review["spec"]["audiences"]), listed(&claims["aud"]));
        let granted: Vec<_> = match wanted.is_empty() {
            true => given,
            false => wanted.into_iter().filter(|one| given.contains(one)).collect(),
        };
        let kubernetes = &claims["kubernetes.io"];
        let pod = &kubernetes["pod"];
        let is_there = |name: &str| {
            let namespace = text(kubernetes, "/namespace").unwrap_or_default();
            let object = self.store.get("Pod", namespace, name)?;
            (object.value()["metadata"]["uid"] == pod["uid"]).then_some(())
        };
        let gone = text(pod, "/name").is_some_and(|name| is_there(name).is_none());
        if gone || (!claims.is_null() && granted.is_empty()) {
            return none;
        }
        let mut groups = vec!["system:authenticated"];
        let mut extra = json!({});
        if user.starts_with("system:serviceaccount:") {
            groups.push("system:serviceaccounts");
            if !pod.is_null() {
                extra["authentication.kubernetes.io/pod-name"] = json!([pod["name"]]);
                extra["authentication.kubernetes.io/pod-uid"] = json!([pod["uid"]]);
            }
        }
        json!({
            "authenticated": true, "user": {"username": user, "groups": groups, "extra": extra},
            "audiences": granted,
        })
    }

    /// Responds to a POST of a review. Reviews are evaluated and not stored. `None` if the path is
    /// not that of a review.
    fn review(
        &self,
        method: &Method,
        path: &str,
        user: &str,
        content_type: &str,
        body: &Bytes,
    ) -> Result<Option<Value>, ApiError> {
        let kind = match path {
            "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews" => "SelfSubjectAccessReview",
            "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews" => "SelfSubjectRulesReview",
            "/apis/authorization.k8s.io/v1/subjectaccessreviews" => "SubjectAccessReview",
            "/apis/authentication.k8s.io/v1/selfsubjectreviews" => "SelfSubjectReview",
            "/apis/authentication.k8s.io/v1/tokenreviews" => "TokenReview",
            _ => return Ok(None),
        };
        if *method != Method::POST {
            return Err(ApiError::method_not_allowed());
        }
        let mut review = parse(content_type, body)?;
        review["status"] = match kind {
            "SelfSubjectAccessReview" | "SubjectAccessReview" => {
                let asked = text(&review, "/spec/resourceAttributes/resource").unwrap_or_default();
                let forbidden = Fault::Forbidden { resource: asked.to_owned() };
                json!({"allowed": !self.faults.has(&forbidden)})
            }
            "SelfSubjectRulesReview" => {
                let plurals = RESOURCES.iter().map(|resource| resource.plural);
                let namespace = text(&review, "/spec/namespace").unwrap_or_default();
                let is_outside = self.faults.find(|fault| match fault {
                    Fault::OnlyNamespaces { namespaces } => {
                        Some(namespaces.iter().all(|granted| granted != namespace))
                    }
                    _ => None,
                });
                let is_allowed = |plural: &&str| {
                    let resource = || (*plural).to_owned();
                    is_outside != Some(true)
                        && !self.faults.has(&Fault::Forbidden { resource: resource() })
                        && !self.faults.has(&Fault::ListForbidden { resource: resource() })
                };
                let resources: Vec<_> = plurals.filter(is_allowed).collect();
                json!({
                    "resourceRules": [{"verbs": ["*"], "apiGroups": ["*"], "resources": resources}],
                    "nonResourceRules": [], "incomplete": false,
                })
            }
            "SelfSubjectReview" => json!({"userInfo": {"username": user}}),
            _ => self.review_token(&review),
        };
        Ok(Some(review))
    }

    fn target(&self, path: &str) -> Option<Target> {
        let families = self.families.lock().unwrap_or_else(PoisonError::into_inner);
        Target::parse(path).filter(|Target { view, .. }| {
            families.contains(&view.resource.family)
                && !self.faults.hides(view.resource.group, view.version)
        })
    }

    /// Returns the user whose token is in these headers; `None` if the token is unknown.
    fn user(&self, headers: &HeaderMap) -> Option<String> {
        self.tokens.user_of_header(header(headers, AUTHORIZATION))
    }
}

/// Whether Roles in these namespaces, and the right to read `kube-system`, grant a request.
fn grants(namespaces: &[String], target: &Target) -> bool {
    let is_kube_system = target.view.resource.plural == "namespaces"
        && target.name.as_deref() == Some("kube-system");
    is_kube_system || namespaces.contains(&target.namespace)
}

fn discovery_of(server: &ApiServer, path: &str) -> Result<Value, ApiError> {
    let families = server.families.lock().unwrap_or_else(PoisonError::into_inner);
    let hidden = |group: &str, version: &str| server.faults.hides(group, version);
    let mut document =
        discovery::answer(path, &families, &hidden).ok_or_else(ApiError::no_such_path)?;
    for row in document["resources"].as_array_mut().into_iter().flatten() {
        let removed = |fault: &Fault| match fault {
            Fault::RemovedKind { resource } if row["name"] == resource.as_str() => Some(()),
            _ => None,
        };
        if server.faults.find(removed).is_some() {
            row["verbs"] = json!(["delete", "deletecollection", "get", "list", "watch"]);
        }
    }
    Ok(document)
}

fn describe(parts: &Parts, target: Option<&Target>, query: &Query) -> Request {
    let named = target.is_some_and(|target| target.name.is_some());
    let verb = match (parts.method.as_str(), named) {
        ("GET", _) if query.watch => "watch",
        ("GET", false) if target.is_some() => "list",
        ("GET" | "HEAD", _) => "get",
        ("POST", _) => "create",
        ("PUT", _) => "update",
        ("PATCH", _) => "patch",
        ("DELETE", true) => "delete",
        ("DELETE", false) => "deletecollection",
        _ => "other",
    };
    Request {
        verb,
        resource: target.map_or("", |target| target.view.resource.plural),
        path: parts.uri.path().to_owned(),
        query: parts.uri.query().unwrap_or_default().to_owned(),
        user_agent: header(&parts.headers, USER_AGENT).to_owned(),
        accept: header(&parts.headers, ACCEPT).to_owned(),
    }
}

/// Returns a watch that ends immediately, with an ERROR event.
fn ends_at_once(view: View, error: &ApiError) -> Response<Answer> {
    let event = Answer::Whole(Some(view.error_event(error).into()));
    with_type(StatusCode::OK, view.wire.stream_type(), event)
}

fn selector(target: &Target, query: &Query) -> Result<Selector, ApiError> {
    Selector::parse(
        target.view.resource,
        target.selected_namespace(),
        &query.label_selector,
        &query.field_selector,
    )
}

fn empties(fault: &Fault, plural: &str) -> Option<()> {
    let Fault::EmptyLists { resource } = fault else { return None };
    resource.as_ref().is_none_or(|resource| resource == plural).then_some(())
}

fn part(target: &Target) -> Result<Part, ApiError> {
    match target.subresource.as_deref() {
        None => Ok(Part::Main),
        Some("status") if target.view.resource.has_status => Ok(Part::Status),
        Some(_) => Err(ApiError::no_such_path()),
    }
}

fn check_kind(target: &Target, object: &Value) -> Result<(), ApiError> {
    let expected = target.view.resource.kind;
    match text(object, "/kind") {
        Some(kind) if kind != expected => Err(ApiError::bad_request(format!(
            "the kind in the data ({kind}) does not match the expected kind ({expected})"
        ))),
        _ => Ok(()),
    }
}

/// Sets the namespace and name from the path. An object with a different namespace or name is
/// refused.
fn settle_name(target: &Target, name: Option<&str>, object: &mut Value) -> Result<(), ApiError> {
    let resource = target.view.resource;
    let namespace = Some(target.namespace.as_str()).filter(|_| resource.namespaced);
    if namespace == Some("") {
        let why = "an empty namespace may not be set during creation";
        return Err(ApiError::bad_request(why));
    }
    for (field, wanted) in [("namespace", namespace), ("name", name)] {
        let Some(wanted) = wanted else { continue };
        match text(object, &format!("/metadata/{field}")) {
            Some(given) if given != wanted => {
                return Err(ApiError::bad_request(format!(
                    "the {field} of the object ({given}) does not match the {field} on the URL ({wanted})"
                )));
            }
            _ => object["metadata"][field] = json!(wanted),
        }
    }
    Ok(())
}

/// Refuses a change with a resource version that is not the current one (409).
fn check_version(
    target: &Target,
    name: &str,
    current: &Value,
    wanted: &Value,
) -> Result<(), ApiError> {
    match text(wanted, "/metadata/resourceVersion") {
        Some(version) if Some(version) != text(current, "/metadata/resourceVersion") => {
            Err(ApiError::conflict(target.view.resource, name))
        }
        _ => Ok(()),
    }
}

/// Sends a line without an end, until the client disconnects.
async fn send_endless_line(out: tokio::sync::mpsc::Sender<Bytes>) {
    let start = r#"{"type":"ADDED","object":{"metadata":{"annotations":{"a":""#;
    let more = Bytes::from_static(&[b'a'; 64 * 1024]);
    let mut chunk = Bytes::from_static(start.as_bytes());
    while out.send(chunk).await.is_ok() {
        chunk = more.clone();
    }
}
