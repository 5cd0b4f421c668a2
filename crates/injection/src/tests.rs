//! Compares injected manifests with the files in `tests/inject/`. `BLESS=1` rewrites these files.
//!
//! A file is one case: `-- settings.yaml --` (differences from the default settings), `-- given.yaml --`, `--
//! report.txt --` and `-- expected.yaml --`, which is omitted if only the report matters.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::Deserialize;
use serde_json::{Value, json};

use super::workload::{InjectedWorkload, inject_manifest};
use super::{
    InjectSettings, Injection, PodDefaults, PodPlace, Redirection, SkipReason, inject, review,
};
use strait_model::Labels;

fn settings() -> InjectSettings {
    InjectSettings {
        version: "1.2.3".into(),
        cluster: "east".into(),
        network: None,
        discovery: "strait.strait-system.svc:15012".into(),
        domain: "cluster.local".into(),
        image: "strait-agent:1.2.3".into(),
        redirect_image: "strait-agent:1.2.3".into(),
        redirection: Redirection::InitContainer,
        native_sidecars: true,
        dns: false,
        service_metrics: false,
        istio_labels: false,
        system_namespace: "strait-system".into(),
        defaults: PodDefaults::default(),
    }
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
struct Differences {
    network: Option<String>,
    ordinary_sidecars: bool,
    istio_cni: bool,
    istio_labels: bool,
    dns: bool,
    service_metrics: bool,
}

impl Differences {
    fn applied(self) -> InjectSettings {
        let redirection = Redirection::for_cni(self.istio_cni);
        let Self { network, istio_labels, dns, service_metrics, .. } = self;
        let native_sidecars = !self.ordinary_sidecars;
        InjectSettings {
            network,
            istio_labels,
            native_sidecars,
            dns,
            service_metrics,
            redirection,
            ..settings()
        }
    }
}

/// Returns the text before the first part, and the parts of a case by name.
fn parts(text: &str) -> (String, BTreeMap<String, String>) {
    let mut opening = String::new();
    let mut parts: BTreeMap<String, String> = BTreeMap::new();
    let mut name = None;
    for line in text.split_inclusive('\n') {
        match line.trim_end().strip_prefix("-- ").and_then(|rest| rest.strip_suffix(" --")) {
            Some(part) => {
                parts.entry(part.to_owned()).or_default();
                name = Some(part.to_owned());
            }
            None => match &name {
                Some(name) => parts.entry(name.clone()).or_default().push_str(line),
                None => opening.push_str(line),
            },
        }
    }
    (opening, parts)
}

fn documents(text: &str) -> Vec<Value> {
    serde_saphyr::from_multiple(text).expect("YAML")
}

fn yaml(documents: &[Value]) -> String {
    let texts: Vec<_> =
        documents.iter().map(|one| serde_saphyr::to_string(one).expect("YAML")).collect();
    texts.join("---\n")
}

fn report(workloads: &[InjectedWorkload]) -> String {
    workloads.iter().fold(String::new(), |mut text, workload| {
        let InjectedWorkload { kind, namespace, name, injection } = workload;
        let _ = match injection {
            Injection::Injected { warnings, .. } => {
                let warnings = warnings.iter().map(|warning| format!("; warning: {warning}"));
                writeln!(
                    text,
                    "{kind} {namespace}/{name}: injected{}",
                    warnings.collect::<String>()
                )
            }
            Injection::Skipped(reason) => {
                writeln!(text, "{kind} {namespace}/{name}: skipped: {reason}")
            }
            Injection::Refused(refusal) => {
                writeln!(
                    text,
                    "{kind} {namespace}/{name}: refused: {} {}",
                    refusal.code, refusal.fact
                )
            }
        };
        text
    })
}

#[test]
fn manifests_match_the_expected_files() {
    let folder = strait_base::testing::repository().join("tests/inject");
    let mut files: Vec<_> = std::fs::read_dir(&folder)
        .expect("the folder of cases")
        .map(|entry| entry.expect("readable").path())
        .collect();
    files.sort();
    assert!(files.len() > 10, "the search found too few cases: {}", files.len());
    let mut differ = Vec::new();
    for file in files {
        let text = std::fs::read_to_string(&file).expect("a case");
        let (opening, mut parts) = parts(&text);
        assert!(opening.starts_with("# why: "), "{} says why", file.display());
        let differences = parts.get("settings.yaml").map(String::as_str).unwrap_or("{}");
        let settings =
            serde_saphyr::from_str::<Differences>(differences).expect("settings").applied();
        let mut manifests = documents(&parts["given.yaml"]);
        let inject_all = |manifests: &mut Vec<Value>| -> Vec<InjectedWorkload> {
            let each = manifests.iter_mut();
            each.flat_map(|one| inject_manifest(one, "default", &settings)).collect()
        };
        let report_text = report(&inject_all(&mut manifests));
        let once = manifests.clone();
        inject_all(&mut manifests);
        assert_eq!(once, manifests, "{}: twice is once", file.display());
        let mut found = parts.clone();
        found.insert("report.txt".into(), report_text);
        found.entry("expected.yaml".into()).and_modify(|text| *text = yaml(&once));
        if found == parts {
            continue;
        }
        if std::env::var_os("BLESS").is_some() {
            parts = found;
            let order = ["settings.yaml", "given.yaml", "report.txt", "expected.yaml"];
            let named = order.into_iter().filter_map(|name| Some((name, parts.get(name)?)));
            let written =
                named.fold(opening, |text, (name, part)| format!("{text}-- {name} --\n{part}"));
            std::fs::write(&file, written).expect("written");
            continue;
        }
        let wrong = found.into_iter().filter(|(name, part)| parts.get(name) != Some(part));
        let wrong: String = wrong.map(|(name, part)| format!("-- {name} --\n{part}")).collect();
        differ.push(format!("=== {}\n{wrong}", file.display()));
    }
    assert!(
        differ.is_empty(),
        "run with BLESS=1 to update the differing files:\n{}",
        differ.join("\n")
    );
}

#[test]
fn malformed_pod_is_refused_without_a_panic() {
    let place = PodPlace { namespace: "shop", workload: None };
    for pod in [
        json!(null),
        json!("pod"),
        json!([]),
        json!({ "metadata": [], "spec": {} }),
        json!({ "metadata": { "labels": "x" }, "spec": {} }),
        json!({ "metadata": { "annotations": 1 } }),
        json!({ "spec": { "containers": {} } }),
        json!({ "spec": { "containers": [1], "initContainers": "x" } }),
        json!({ "spec": { "containers": [{ "name": "a" }], "volumes": 7 } }),
    ] {
        let injection = inject(&pod, place, &settings());
        assert!(matches!(injection, Injection::Refused(_)), "{pod}: {injection:?}");
    }
}

#[test]
fn annotations_of_a_pod_override_the_defaults_of_its_namespace() {
    let sidecar = |annotations: Value| {
        let pod = json!({
            "metadata": { "name": "web-0", "labels": { "app": "web" }, "annotations": annotations },
            "spec": { "containers": [{ "name": "app", "image": "app" }] },
        });
        let request = json!({
            "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
            "request": {
                "uid": "1", "kind": { "group": "", "version": "v1", "kind": "Pod" },
                "namespace": "shop", "operation": "CREATE", "object": pod,
            },
        });
        let find = |namespace: &str, labels: &Labels| {
            assert_eq!((namespace, labels.get("app").map(|app| &**app)), ("shop", Some("web")));
            let environment = [("OTEL_RESOURCE_ATTRIBUTES".into(), "service.name=web".into())];
            PodDefaults { concurrency: Some(7), environment: environment.into() }
        };
        let (answer, _) = review::answer(request.to_string().as_bytes(), &settings(), find)
            .expect("it is a review");
        let patch = answer["response"]["patch"].as_str().expect("it is injected");
        let patch = base64::Engine::decode(&base64::engine::general_purpose::STANDARD, patch);
        String::from_utf8(patch.expect("Base64")).expect("JSON")
    };
    let plain = sidecar(json!({}));
    assert!(plain.contains(r#""--concurrency","7""#), "{plain}");
    let variable = r#"{"name":"OTEL_RESOURCE_ATTRIBUTES","value":"service.name=web"}"#;
    assert!(plain.contains(variable), "{plain}");
    let own = sidecar(json!({ "proxy.istio.io/config": "concurrency: 4" }));
    assert!(own.contains(r#""--concurrency","4""#) && own.contains(variable), "{own}");
}

#[test]
fn pod_with_only_the_injected_annotation_still_receives_a_sidecar() {
    let place = PodPlace { namespace: "shop", workload: None };
    let marked = json!({
        "metadata": { "annotations": { "strait.dev/injected": "1.2.3" } },
        "spec": { "containers": [{ "name": "app", "image": "app" }] },
    });
    let Injection::Injected { pod, .. } = inject(&marked, place, &settings()) else {
        unreachable!("it has no sidecar yet")
    };
    assert_eq!(inject(&pod, place, &settings()), Injection::Skipped(SkipReason::Already));
}

#[test]
fn warnings_about_annotations_are_bounded() {
    let annotations: serde_json::Map<String, Value> =
        (0..3000).map(|at| (format!("a{at:04}.istio.io/{}", "x".repeat(400)), json!(""))).collect();
    let pod = json!({
        "metadata": { "annotations": annotations },
        "spec": { "containers": [{ "name": "app", "image": "app" }] },
    });
    let place = PodPlace { namespace: "shop", workload: None };
    let Injection::Injected { warnings, .. } = inject(&pod, place, &settings()) else {
        unreachable!("annotations without effect refuse no pod")
    };
    assert_eq!(warnings.len(), 17);
    assert!(warnings.iter().all(|warning| warning.len() <= 256), "{warnings:?}");
    assert!(warnings[16].starts_with("2984 more annotations"), "{}", warnings[16]);
}
