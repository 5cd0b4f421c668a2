//! Adds a sidecar to a pod, as described in `docs/how-to/inject-sidecars.md`.

use serde_json::{Value, json};

use super::annotations::SidecarOptions;
use super::names::{CANONICAL_NAME, CANONICAL_REVISION, WorkloadNames, own_labels};
use super::object::{Fields, items, list, misshapen, object, text};
use super::refusal::{InjectRefusal, Injection, SkipReason};
use super::requirements::{self, PROXY_USER, containers};
use super::settings::{InjectSettings, PodPlace, Redirection};
use super::user_volumes::UserVolumes;
use super::{metrics, probes, selection};
use strait_model::{NETWORK_LABEL, TLS_MODE_LABEL};

const INJECTED: &str = "strait.dev/injected";
const REDIRECT: &str = "strait-redirect";
/// Istio's name for the container that checks whether the CNI plugin has redirected the traffic.
const TRIAL: &str = "istio-validation";
const DEFAULT_CONTAINER: &str = "kubectl.kubernetes.io/default-container";
/// The annotation by which Istio's CNI plugin recognizes pods to redirect.
const ISTIO_STATUS: &str = "sidecar.istio.io/status";

/// Volumes of the sidecar: name, mount path, and whether the mount is read-only.
const VOLUMES: [(&str, &str, bool); 3] = [
    ("strait-token", "/var/run/secrets/tokens", true),
    ("strait-roots", "/var/run/secrets/istio", true),
    ("strait-run", "/var/run/strait", false),
];

/// Adds a sidecar to a pod or a pod template.
///
/// Labels, annotations and containers of the pod stay unchanged, except for the probes and the metrics annotations,
/// which point to the sidecar afterwards. Injecting twice changes nothing.
pub fn inject(pod: &Value, place: PodPlace<'_>, settings: &InjectSettings) -> Injection {
    match try_inject(pod, place, settings) {
        Ok(injection) => injection,
        Err(refusal) => Injection::Refused(refusal),
    }
}

fn try_inject(
    pod: &Value,
    place: PodPlace<'_>,
    settings: &InjectSettings,
) -> Result<Injection, InjectRefusal> {
    if let Some(reason) = selection::skipped(pod, place, settings)? {
        return Ok(Injection::Skipped(reason));
    }
    if is_injected(pod, settings) {
        return Ok(Injection::Skipped(SkipReason::Already));
    }
    requirements::check(pod, &VOLUMES.map(|(name, ..)| name))?;
    let options = SidecarOptions::read(&pod["metadata"]["annotations"], settings)?;
    let user_volumes = UserVolumes::read(&pod["metadata"]["annotations"])?;
    user_volumes.check(pod, &VOLUMES.map(|(name, path, _)| (name, path)))?;
    let warnings = warnings(pod, &options);

    let mut pod = pod.clone();
    let first = items(&pod["spec"], "containers").first();
    let first = first.and_then(|container| text(container, "name")).map(str::to_owned);
    let identity = WorkloadNames::from_pod(&pod, place);
    let own = settings.service_metrics.then(|| own_labels(&pod["metadata"], place, &identity));
    let network = text(&pod["metadata"]["labels"], NETWORK_LABEL).map(str::to_owned);
    let scraped = metrics::application_metrics(&pod["metadata"]["annotations"]);
    let fields = pod.as_object_mut().ok_or_else(|| misshapen("pod", "an object"))?;
    let spec = object(fields, "spec")?;
    let mut probes = Fields::new();
    if options.rewrites_probes {
        let is_sidecar = |container: &&mut Value| container["restartPolicy"] == "Always";
        if spec.contains_key("initContainers") {
            let own = list(spec, "initContainers")?.iter_mut().filter(is_sidecar);
            own.for_each(|container| probes::redirect(container, &mut probes));
        }
        let own = list(spec, "containers")?.iter_mut();
        own.for_each(|container| probes::redirect(container, &mut probes));
    }
    let network = network.or_else(|| settings.network.clone());
    let mut variables = Vec::new();
    if !probes.is_empty() {
        variables.push(("STRAIT_APP_PROBES", Value::Object(probes).to_string()));
    }
    if let Some(scraped) = &scraped {
        variables.push(("STRAIT_PROMETHEUS_SCRAPE", scraped.to_string()));
    }
    variables.extend(own.into_iter().flatten());
    let sidecar = sidecar(settings, &options, network, variables, &user_volumes.mounts);
    let redirect = match settings.redirection {
        Redirection::InitContainer => redirect(settings, &options),
        Redirection::IstioCni => trial(settings, &options),
    };
    place_containers(spec, sidecar, redirect, &options)?;
    let pod_volumes = list(spec, "volumes")?;
    pod_volumes.extend(volumes());
    pod_volumes.extend(user_volumes.volumes);

    let metadata = object(fields, "metadata")?;
    let labels = object(metadata, "labels")?;
    set(labels, TLS_MODE_LABEL, "istio");
    set(labels, CANONICAL_NAME, &identity.name);
    set(labels, CANONICAL_REVISION, &identity.revision);
    let annotations = object(metadata, "annotations")?;
    annotations.insert(INJECTED.into(), json!(settings.version));
    if let Some(first) = first {
        set(annotations, DEFAULT_CONTAINER, &first);
    }
    if scraped.is_some() {
        metrics::redirect(annotations);
    }
    if settings.redirection == Redirection::IstioCni {
        annotations.insert(ISTIO_STATUS.into(), json!(istio_status(settings, options.native)));
    }
    Ok(Injection::Injected { pod, warnings })
}

fn is_injected(pod: &Value, settings: &InjectSettings) -> bool {
    let is_sidecar =
        |container: &Value| text(container, "name") == Some(settings.redirection.sidecar());
    text(&pod["metadata"]["annotations"], INJECTED).is_some()
        && containers(&pod["spec"]).any(is_sidecar)
}

fn warnings(pod: &Value, options: &SidecarOptions) -> Vec<String> {
    let ends = matches!(text(&pod["spec"], "restartPolicy"), Some("Never" | "OnFailure"));
    let mut warnings = options.unsupported.clone();
    if options.holds_application && !options.native {
        warnings.push(
            "holdApplicationUntilProxyStarts has no effect: an application waits only for native sidecars".to_owned(),
        );
    }
    if ends && !options.native {
        warnings.push(
            "the pod ends, but its sidecar runs until it is stopped: let the application send POST \
             http://127.0.0.1:15020/quitquitquit when it is done, or use native sidecars"
                .to_owned(),
        );
    }
    warnings
}

/// Inserts the containers in the order in which they must start.
///
/// A native sidecar runs before the pod's own init containers, so these are in the mesh too. Without a native sidecar,
/// the pod's init containers run before traffic is redirected, because no proxy would serve their connections.
fn place_containers(
    spec: &mut Fields,
    mut sidecar: Value,
    redirect: Value,
    options: &SidecarOptions,
) -> Result<(), InjectRefusal> {
    if options.native {
        sidecar["restartPolicy"] = json!("Always");
        list(spec, "initContainers")?.splice(0..0, [redirect, sidecar]);
        return Ok(());
    }
    list(spec, "initContainers")?.push(redirect);
    list(spec, "containers")?.push(sidecar);
    Ok(())
}

/// Returns the container of the sidecar, with additional environment variables.
fn sidecar(
    settings: &InjectSettings,
    options: &SidecarOptions,
    network: Option<String>,
    variables: Vec<(&str, String)>,
    user_mounts: &[Value],
) -> Value {
    let field = |name: &str, path: &str| json!({ "name": name, "valueFrom": { "fieldRef": { "fieldPath": path } } });
    let value = |name: &str, value: String| json!({ "name": name, "value": value });
    let mut environment = vec![
        value("STRAIT_DISCOVERY", settings.discovery.clone()),
        value("STRAIT_CLUSTER_ID", settings.cluster.clone()),
    ];
    environment.extend(network.map(|network| value("STRAIT_NETWORK", network)));
    environment.extend([
        value("STRAIT_DOMAIN", settings.domain.clone()),
        field("POD_NAME", "metadata.name"),
        field("POD_NAMESPACE", "metadata.namespace"),
        // All addresses, separated by commas.
        field("POD_IP", "status.podIPs"),
        field("SERVICE_ACCOUNT", "spec.serviceAccountName"),
        field("NODE_NAME", "spec.nodeName"),
    ]);
    if options.dns {
        environment.push(value("STRAIT_DNS", "true".to_owned()));
        if settings.redirection == Redirection::IstioCni {
            // Tells the CNI plugin to redirect DNS queries as well.
            environment.push(value("ISTIO_META_DNS_CAPTURE", "true".to_owned()));
        }
    }
    environment.extend(variables.into_iter().map(|(name, text)| value(name, text)));
    let more = settings.defaults.environment.iter();
    environment.extend(more.map(|(name, text)| value(name, text.clone())));
    let mut arguments = vec!["run".to_owned()];
    if let Some(drain) = &options.drain {
        arguments.push(format!("--drain={drain}"));
    }
    arguments.extend(options.stats.iter().cloned());
    arguments.extend(["--".to_owned(), "envoy".to_owned()]);
    arguments.extend(options.envoy_arguments.iter().cloned());
    let ready = json!({ "path": "/healthz/ready", "port": 15021 });
    let mounts = VOLUMES.map(|(name, path, is_read_only)| match is_read_only {
        true => json!({ "name": name, "mountPath": path, "readOnly": true }),
        false => json!({ "name": name, "mountPath": path }),
    });
    let mounts: Vec<Value> = mounts.iter().chain(user_mounts).cloned().collect();
    json!({
        "name": settings.redirection.sidecar(),
        "image": options.image,
        "command": ["strait-agent"],
        "args": arguments,
        "env": environment,
        "ports": [
            { "name": "proxy-health", "containerPort": 15021, "protocol": "TCP" },
            { "name": "proxy-metrics", "containerPort": 15090, "protocol": "TCP" },
        ],
        // The application waits for a native sidecar to have a certificate and its configuration, for up to ten
        // minutes.
        "startupProbe": { "httpGet": ready, "periodSeconds": 1, "timeoutSeconds": 3, "failureThreshold": 600 },
        "readinessProbe": { "httpGet": ready, "periodSeconds": 15, "timeoutSeconds": 3, "failureThreshold": 4 },
        "resources": options.resources,
        "securityContext": {
            "allowPrivilegeEscalation": false,
            "capabilities": { "drop": ["ALL"] },
            "privileged": false,
            "readOnlyRootFilesystem": true,
            "runAsGroup": PROXY_USER,
            "runAsNonRoot": true,
            "runAsUser": PROXY_USER,
        },
        "volumeMounts": mounts,
    })
}

fn redirect(settings: &InjectSettings, options: &SidecarOptions) -> Value {
    let mut arguments = vec!["redirect".to_owned()];
    arguments.extend(options.redirect_flags.iter().cloned());
    if options.dns {
        arguments.push("--dns".to_owned());
    }
    json!({
        "name": REDIRECT,
        "image": settings.redirect_image,
        "command": ["strait-agent"],
        "args": arguments,
        "resources": options.resources,
        "securityContext": {
            "allowPrivilegeEscalation": false,
            "capabilities": { "add": ["NET_ADMIN", "NET_RAW"], "drop": ["ALL"] },
            "privileged": false,
            // iptables needs a lock file.
            "readOnlyRootFilesystem": false,
            "runAsGroup": 0,
            "runAsNonRoot": false,
            "runAsUser": 0,
        },
    })
}

/// Returns a container that stops the start of a pod if the CNI plugin did not redirect its connections. Without it,
/// the pod would run outside of the mesh unnoticed. The plugin finds such pods by the container's name and exit code,
/// and sets their rules or recreates the pods.
fn trial(settings: &InjectSettings, options: &SidecarOptions) -> Value {
    json!({
        "name": TRIAL,
        "image": settings.redirect_image,
        "command": ["strait-agent"],
        "args": ["redirect", "--try"],
        "env": [{ "name": "POD_IP", "valueFrom": { "fieldRef": { "fieldPath": "status.podIPs" } } }],
        "resources": options.resources,
        "securityContext": {
            "allowPrivilegeEscalation": false,
            "capabilities": { "drop": ["ALL"] },
            "privileged": false,
            "readOnlyRootFilesystem": true,
            "runAsGroup": PROXY_USER,
            "runAsNonRoot": true,
            "runAsUser": PROXY_USER,
        },
    })
}

fn volumes() -> [Value; 3] {
    let [token, roots, run] = VOLUMES.map(|(name, ..)| name);
    let source = json!({
        "serviceAccountToken": {
            "audience": "istio-ca", "expirationSeconds": 43200, "path": "istio-token",
        },
    });
    [
        json!({ "name": token, "projected": { "sources": [source] } }),
        json!({ "name": roots, "configMap": { "name": "istio-ca-root-cert" } }),
        json!({ "name": run, "emptyDir": { "medium": "Memory" } }),
    ]
}

/// Returns the list of added containers, in the format that Istio's tools and its CNI plugin read.
fn istio_status(settings: &InjectSettings, native: bool) -> String {
    let sidecar = settings.redirection.sidecar();
    let (init, ordinary) =
        if native { (vec![TRIAL, sidecar], vec![]) } else { (vec![TRIAL], vec![sidecar]) };
    json!({
        "containers": ordinary,
        "initContainers": init,
        "imagePullSecrets": null,
        "revision": "strait",
        "volumes": VOLUMES.map(|(name, ..)| name),
    })
    .to_string()
}

/// Sets a field that does not exist yet.
fn set(fields: &mut Fields, key: &str, value: &str) {
    fields.entry(key).or_insert_with(|| json!(value));
}
