//! Who may use whom. ARCHITECTURE.md says why; a change here is a change of design, to be argued for
//! in its commit.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Each module with the modules it may name. A module that isn't listed fails the test.
const MAY_USE: &[(&str, &[&str])] = &[
    ("model", &[]),
    ("task", &[]),
    ("codes", &[]),
    ("durable", &[]),
    ("folder", &[]),
    ("hash", &[]),
    // A leaf: whoever takes an address from others asks it.
    ("address", &[]),
    ("process", &[]),
    ("descriptors", &["codes", "process"]),
    ("mass_deletion", &[]),
    ("apiserver", &["address", "codes", "descriptors", "mass_deletion", "task"]),
    ("mesh", &["model", "address", "folder", "codes", "task"]),
    ("policy", &["model", "mesh", "address", "codes"]),
    ("memory", &[]),
    ("sources", &["codes"]),
    ("registry", &["model"]),
    (
        "registry::consul",
        &["model", "registry", "apiserver", "address", "sources", "task", "codes"],
    ),
    (
        "registry::kube",
        &["model", "mesh", "registry", "apiserver", "mass_deletion", "task", "codes"],
    ),
    ("registry::service_entry", &["model", "registry", "address"]),
    ("identity", &["model", "codes", "durable", "task"]),
    (
        "store",
        &["model", "apiserver", "identity", "sources", "folder", "mass_deletion", "task", "codes"],
    ),
    (
        "clusters",
        &[
            "model",
            "policy",
            "registry",
            "registry::kube",
            "apiserver",
            "address",
            "sources",
            "store",
            "task",
            "codes",
        ],
    ),
    ("aggregate", &["model", "registry"]),
    ("network", &["model", "mesh", "policy", "address", "codes", "task"]),
    (
        "push",
        &[
            "model",
            "mesh",
            "policy",
            "registry",
            "registry::service_entry",
            "aggregate",
            "network",
            "task",
        ],
    ),
    (
        "xds",
        &[
            "model",
            "mesh",
            "policy",
            "registry",
            "aggregate",
            "network",
            "push",
            "identity",
            "descriptors",
            "hash",
            "memory",
            "task",
            "codes",
        ],
    ),
    ("explain", &["model", "mesh", "policy", "registry", "aggregate", "network", "push", "codes"]),
    (
        "lkg",
        &[
            "model",
            "registry",
            "registry::kube",
            "aggregate",
            "push",
            "clusters",
            "sources",
            "codes",
            "durable",
            "hash",
            "task",
        ],
    ),
    (
        "admin",
        &[
            "model",
            "mesh",
            "policy",
            "registry",
            "aggregate",
            "network",
            "push",
            "xds",
            "clusters",
            "explain",
            "identity",
            "apiserver",
            "metrics",
            "sources",
            "descriptors",
            "codes",
            "durable",
            "task",
        ],
    ),
    (
        "metrics",
        &[
            "model",
            "push",
            "xds",
            "clusters",
            "identity",
            "lkg",
            "sources",
            "descriptors",
            "process",
            "task",
        ],
    ),
    ("fixtures", &["model", "push", "registry"]),
];

/// Modules that wire the program and may name anything.
const WIRING: &[&str] = &["server", "config", "cli", "fuzz"];

/// Crates that only some modules may name.
const ONLY: &[(&str, &[&str])] = &[
    ("kube", &["apiserver", "clusters", "store", "cli"]),
    ("k8s_openapi", &["apiserver", "clusters", "store", "cli"]),
    ("strait_proto", &["xds", "admin", "identity", "store", "cli"]),
    ("tokio_rustls", &["identity", "xds", "clusters", "store", "cli"]),
    ("rustls", &["identity", "xds", "apiserver", "clusters", "network", "store", "cli", "main"]),
    ("strait_sim", &["cli"]),
    ("hickory_resolver", &["network"]),
    ("notify", &["folder", "mesh", "store"]),
    ("axum", &["admin"]),
];

#[test]
fn modules_use_only_what_they_may() {
    let allowed: BTreeMap<&str, &[&str]> = MAY_USE.iter().copied().collect();
    let mut wrong = Vec::new();
    for (file, text) in sources() {
        let module = module_of(&file);
        if WIRING.contains(&root_of(&module)) || module == "lib" || module == "main" {
            continue;
        }
        let Some(may_use) = allowed.get(module.as_str()) else {
            wrong.push(format!("{}: module {module} has no place in MAY_USE", file.display()));
            continue;
        };
        for used in uses(&text) {
            let own = used == root_of(&module) || used == module;
            // Tests may build their inputs with the fixtures.
            if !own && !may_use.contains(&used.as_str()) && used != "fixtures" {
                wrong.push(format!("{}: {module} must not use {used}", file.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn no_two_modules_use_each_other() {
    let mut edges: BTreeSet<(String, String)> = BTreeSet::new();
    for (module, used) in MAY_USE {
        edges
            .extend(used.iter().map(|used| (root_of(module).to_owned(), root_of(used).to_owned())));
    }
    let mut reach = edges.clone();
    loop {
        let step: BTreeSet<_> = reach
            .iter()
            .flat_map(|(a, b)| {
                edges.iter().filter(move |(c, _)| c == b).map(move |(_, d)| (a.clone(), d.clone()))
            })
            .collect();
        let before = reach.len();
        reach.extend(step);
        if reach.len() == before {
            break;
        }
    }
    let cycles: Vec<_> =
        reach.iter().filter(|(a, b)| a != b && reach.contains(&(b.clone(), a.clone()))).collect();
    assert!(cycles.is_empty(), "{cycles:?}");
}

#[test]
fn crates_are_named_only_where_they_belong() {
    let mut wrong = Vec::new();
    for (file, text) in sources() {
        let module = module_of(&file);
        for (name, modules) in ONLY {
            let named = text.lines().any(|line| {
                let code = line.split("//").next().unwrap_or_default();
                code.match_indices(&format!("{name}::")).any(|(at, _)| {
                    let before = code[..at].chars().next_back();
                    before.is_none_or(|c| !c.is_alphanumeric() && c != '_' && c != ':')
                })
            });
            if named && !modules.contains(&root_of(&module)) && !is_test(&file) {
                wrong.push(format!("{}: only {modules:?} may name {name}", file.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

/// Tests, and what they and fuzzers hold code to.
fn is_test(file: &Path) -> bool {
    let of_tests = ["tests", "tests.rs", "oracle.rs"].map(std::ffi::OsStr::new);
    file.components().any(|part| of_tests.contains(&part.as_os_str()))
}

/// The modules that a file names, from `crate::…`; `registry::kube` counts as one of its own.
fn uses(text: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for line in text.lines() {
        let code = line.split("//").next().unwrap_or_default();
        for (at, _) in code.match_indices("crate::") {
            if code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_') {
                continue;
            }
            let path = &code[at + "crate::".len()..];
            let mut parts = path.split("::");
            let word = |part: Option<&str>| {
                let part = part.unwrap_or_default();
                let end = part.find(|c: char| !c.is_alphanumeric() && c != '_');
                part[..end.unwrap_or(part.len())].to_owned()
            };
            let first = word(parts.next());
            let second = word(parts.next());
            if first == "registry" && second == "kube" {
                found.insert("registry::kube".into());
            } else if !first.is_empty() && first.starts_with(char::is_lowercase) {
                found.insert(first);
            }
        }
    }
    found
}

fn root_of(module: &str) -> &str {
    module.split("::").next().unwrap_or(module)
}

/// The module a file belongs to, as far as the table tells modules apart.
fn module_of(file: &Path) -> String {
    let parts: Vec<String> = file
        .strip_prefix(source_root())
        .expect("below src")
        .iter()
        .map(|part| part.to_string_lossy().trim_end_matches(".rs").to_owned())
        .collect();
    match &parts[..] {
        [first, second, ..] if first == "registry" && second == "kube" => "registry::kube".into(),
        [first, second, ..] if first == "registry" && second == "consul" => {
            "registry::consul".into()
        }
        [first, second, ..] if first == "registry" && second == "service_entry" => {
            "registry::service_entry".into()
        }
        [first, ..] => first.clone(),
        [] => String::new(),
    }
}

fn source_root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

pub(crate) fn sources() -> Vec<(PathBuf, String)> {
    let mut files = Vec::new();
    collect(&source_root(), &mut files);
    files.sort();
    files
        .into_iter()
        .map(|file| {
            let text = std::fs::read_to_string(&file).expect("a readable source file");
            (file, text)
        })
        .collect()
}

fn collect(directory: &Path, files: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(directory).expect("a readable directory") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            collect(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
}
