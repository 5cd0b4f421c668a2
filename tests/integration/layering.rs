//! The allowed dependencies between crates, and between the modules of a crate. Cargo rejects
//! cycles of crates; the tables here enforce the layers of ARCHITECTURE.md. A change to a table is
//! a change of the design, and its commit states the reason.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Each crate of the product, and the crates on which it may depend, in the order of the data flow.
const MAY_DEPEND_ON: &[(&str, &[&str])] = &[
    ("admin-api", &[]),
    ("base", &[]),
    ("model", &["base"]),
    ("identity", &["base", "model", "proto"]),
    ("kube-client", &["base"]),
    // A relay forwards requests and does not know what they read.
    ("relay", &["base", "model", "kube-client"]),
    ("sources", &["base", "model", "identity", "kube-client", "relay", "proto"]),
    // EnvoyFilters contain parts of Envoy's API, which are checked against its schema.
    ("rules", &["base", "model", "proto"]),
    ("mesh", &["base", "model", "rules"]),
    ("lkg", &["base", "model", "identity", "sources", "mesh"]),
    ("xds", &["base", "model", "http2", "proto"]),
    ("xds-client", &["base", "xds", "proto"]),
    ("envoy", &["base", "model", "rules", "mesh", "xds", "proto"]),
    (
        "ads",
        &[
            "admin-api",
            "base",
            "model",
            "identity",
            "rules",
            "mesh",
            "xds",
            "envoy",
            "http2",
            "proto",
        ],
    ),
    ("injection", &["base", "model", "identity"]),
    ("explain", &["admin-api", "base", "model", "rules", "mesh"]),
    (
        "server",
        &[
            "admin-api",
            "base",
            "model",
            "identity",
            "kube-client",
            "relay",
            "sources",
            "rules",
            "mesh",
            "lkg",
            "xds",
            "envoy",
            "ads",
            "injection",
            "explain",
            "heap",
            "proto",
        ],
    ),
];

/// Modules of one crate that must not use each other: the crate, the module, and the modules that
/// it must not name.
const MUST_NOT_USE: &[(&str, &str, &[&str])] = &[
    ("sources", "registry/kube", &["registry::consul", "clusters", "store"]),
    ("sources", "registry/consul", &["registry::kube", "clusters", "store"]),
    ("sources", "store", &["clusters", "registry"]),
    ("model", "mesh_config", &["policy", "registry"]),
    ("model", "registry", &["policy"]),
    ("rules", "access", &["traffic", "service_entry"]),
    ("rules", "traffic", &["access", "service_entry"]),
    ("rules", "service_entry", &["access", "traffic"]),
    ("mesh", "aggregate", &["network", "push", "history", "hold", "rollout"]),
    ("mesh", "network", &["aggregate", "push", "history", "hold", "rollout"]),
    ("mesh", "timeline", &["aggregate", "network", "push", "hold", "rollout"]),
    ("mesh", "hold", &["aggregate", "network", "push", "rollout"]),
];

/// External crates that only some crates may name. `strait` is the program in `src/`.
const ONLY: &[(&str, &[&str])] = &[
    ("kube", &["kube-client", "sources", "strait"]),
    // The command that forwards a port names the type of pods.
    ("k8s_openapi", &["kube-client", "strait"]),
    ("tokio_rustls", &["identity", "relay", "sources", "ads", "injection", "xds-client", "strait"]),
    (
        "rustls",
        &[
            "identity",
            "kube-client",
            "relay",
            "sources",
            "mesh",
            "ads",
            "injection",
            "xds-client",
            "strait",
        ],
    ),
    ("strait_sim", &["strait"]),
    ("hickory_resolver", &["mesh"]),
    ("notify", &["base", "sources"]),
    ("axum", &["server"]),
];

#[test]
fn crates_depend_only_on_allowed_crates() {
    let allowed: BTreeMap<&str, &[&str]> = MAY_DEPEND_ON.iter().copied().collect();
    let found = crate_dependencies();
    assert_eq!(
        found.keys().map(String::as_str).collect::<BTreeSet<_>>(),
        allowed.keys().copied().collect(),
        "each crate has its row in MAY_DEPEND_ON"
    );
    let wrong: Vec<_> = found
        .iter()
        .flat_map(|(name, on)| on.iter().map(move |on| (name.as_str(), on.as_str())))
        .filter(|(name, on)| !allowed[name].contains(on))
        .collect();
    assert!(wrong.is_empty(), "forbidden dependencies of crates: {wrong:?}");
}

#[test]
fn modules_use_only_allowed_modules() {
    let mut wrong = Vec::new();
    for (name, module, forbidden) in MUST_NOT_USE {
        let below = package_root(name).join(module);
        let files = sources()
            .into_iter()
            .filter(|(file, _)| file.starts_with(&below) || *file == below.with_extension("rs"));
        let mut count = 0;
        for (file, text) in files.filter(|(file, _)| !is_test(file)) {
            count += 1;
            let code = production_code(&text);
            let named = |used: &&&str| code.contains(&format!("crate::{used}::"));
            wrong.extend(forbidden.iter().filter(named).map(|used| (file.clone(), *used)));
        }
        assert!(count > 0, "no file of {name}: {module}");
    }
    assert!(wrong.is_empty(), "forbidden uses of modules: {wrong:#?}");
}

/// The diagram in ARCHITECTURE.md shows the direct dependencies of crates, without transitive ones.
/// `BLESS=1` updates it.
#[test]
fn diagram_shows_the_dependencies_of_crates() {
    const BEGIN: &str = "```mermaid\nflowchart BT\n";
    let edges = crate_dependencies();
    let reaches = |from: &str, to: &str| {
        let mut pending: Vec<&str> = edges[from].iter().map(String::as_str).collect();
        let mut visited = BTreeSet::new();
        while let Some(next) = pending.pop() {
            if visited.insert(next) {
                pending.extend(edges.get(next).into_iter().flatten().map(String::as_str));
            }
        }
        visited.contains(to)
    };
    let mut drawn = String::new();
    for (name, _) in MAY_DEPEND_ON {
        for on in edges[*name].iter().filter(|on| edges.contains_key(*on)) {
            let follows = edges[*name]
                .iter()
                .any(|other| other != on && edges.contains_key(other) && reaches(other, on));
            if !follows {
                drawn += &format!("  {name} --> {on}\n");
            }
        }
    }
    let path = root().join("ARCHITECTURE.md");
    let text = fs::read_to_string(&path).expect("the file");
    let (before, rest) = text.split_once(BEGIN).expect("a drawing");
    let (current, after) = rest.split_once("```").expect("an end of the drawing");
    if std::env::var_os("BLESS").is_some() {
        fs::write(&path, format!("{before}{BEGIN}{drawn}```{after}")).expect("a file");
        return;
    }
    assert_eq!(current, drawn, "the crates have changed: run with BLESS=1 to update the diagram");
}

#[test]
fn external_crates_are_named_only_by_allowed_crates() {
    let mut wrong = Vec::new();
    for (file, text) in sources().into_iter().filter(|(file, _)| !is_test(file)) {
        let package = owning_package(&file);
        let code = production_code(&text);
        for (name, packages) in ONLY {
            let is_named = code.match_indices(&format!("{name}::")).any(|(at, _)| {
                let before = code[..at].chars().next_back();
                before.is_none_or(|c| !c.is_alphanumeric() && c != '_' && c != ':')
            });
            if is_named && !packages.contains(&package.as_str()) {
                wrong.push(format!("{}: only {packages:?} may name {name}", file.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

/// Returns the crates of the product, each with the workspace crates on which its code depends.
fn crate_dependencies() -> BTreeMap<String, BTreeSet<String>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(root().join("crates")).expect("the crates") {
        let folder = entry.expect("an entry").path();
        let manifest = fs::read_to_string(folder.join("Cargo.toml")).expect("a manifest");
        let (_, rest) = manifest.split_once("[dependencies]\n").expect("dependencies");
        let on = rest.lines().take_while(|line| !line.starts_with('['));
        let on = on.filter_map(|line| line.strip_prefix("strait-")?.split('.').next());
        let name = folder.file_name().expect("a name").to_string_lossy().into_owned();
        found.insert(name, on.map(str::to_owned).collect());
    }
    found
}

#[test]
fn files_of_a_crate_do_not_use_each_other_in_a_cycle() {
    let mut found = BTreeSet::new();
    let mut count = 0;
    for package in packages() {
        let files = FileModules::read(&package);
        count += files.code.len();
        found.extend(rings(&files.edges()).into_iter().map(|ring| (package.clone(), ring)));
    }
    assert!(count > 300, "the search found too few files: {count}");
    assert!(
        found.is_empty(),
        "files that use each other in a circle; move what all use down: {found:#?}"
    );
}

#[test]
fn dependencies_are_found_in_groups_and_behind_reexports() {
    let code = [
        ("a", "pub use self::b::Leaf;\nmod b;\nmod c;\nuse c::d;"),
        ("a/b", "pub struct Leaf; // super::c"),
        ("a/c", "pub(super) use super::{Leaf, e::{self, Other as One}};\nfn f() { \"super::b\" }"),
        ("a/e", "pub(in crate::a) fn f() { crate::a::c::f::<u8>() }"),
    ];
    let code = code.map(|(file, text)| (split(file), production_code(text)));
    let edges = FileModules { code: code.into() }.edges();
    let found = |from: &str| -> Vec<String> {
        edges.get(&split(from)).into_iter().flatten().map(|to| to.join("/")).collect()
    };
    assert_eq!(found("a"), ["a/c"]);
    assert_eq!(
        found("a/c"),
        Vec::<String>::new(),
        "a re-exported item is used by the importing file"
    );
    assert_eq!(found("a/e"), ["a/c"]);
    assert_eq!(rings(&edges), BTreeSet::new());
}

/// The path of a module or of an item, as a list of names.
type ModulePath = Vec<String>;

/// The source files of a crate. Each file is a module, without tests, comments and string literals.
struct FileModules {
    code: BTreeMap<ModulePath, String>,
}

impl FileModules {
    fn read(package: &str) -> Self {
        let source = package_root(package);
        let mut files = Vec::new();
        collect_sources(&source, &mut files);
        let mut code = BTreeMap::new();
        for (file, text) in files {
            let relative = file.strip_prefix(&source).expect("below src").with_extension("");
            let mut path = split(&relative.to_string_lossy());
            let test_names = ["tests", "oracle", "joining", "testing", "fixtures"];
            if path.iter().any(|part| test_names.contains(&part.as_str()) || part == "fuzz") {
                continue;
            }
            path.pop_if(|last| last == "mod" || last == "lib" || last == "main");
            code.insert(path, production_code(&text));
        }
        Self { code }
    }

    /// Returns the files that each file uses. An item that is re-exported (`pub use`) counts as
    /// used by the importing file, not by the re-exporting one.
    fn edges(&self) -> BTreeMap<ModulePath, BTreeSet<ModulePath>> {
        let mut passed_on = BTreeMap::new();
        let mut used = Vec::new();
        for (file, code) in &self.code {
            let (statements, rest) = use_statements(code);
            for (is_passed_on, tree) in statements {
                for path in
                    tree_paths(tree).into_iter().filter_map(|path| self.absolute(file, path))
                {
                    match path.last() {
                        Some(name) if is_passed_on => {
                            passed_on.insert((file.clone(), name.clone()), path);
                        }
                        _ => used.push((file, path)),
                    }
                }
            }
            let paths = paths(&rest).into_iter().filter_map(|path| self.absolute(file, path));
            used.extend(paths.map(|path| (file, path)));
        }
        let mut edges: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
        for (file, path) in used {
            let home = self.home(path, &passed_on);
            if home != *file {
                edges.entry(file.clone()).or_default().insert(home);
            }
        }
        edges
    }

    /// Returns the path relative to the root of the crate; `None` for paths outside of the crate.
    fn absolute(&self, file: &ModulePath, path: ModulePath) -> Option<ModulePath> {
        let mut from = file.clone();
        let mut rest = path.into_iter().peekable();
        match rest.peek()?.as_str() {
            "crate" => from.clear(),
            "self" | "super" => {}
            child => {
                from.push(child.to_owned());
                if !self.code.contains_key(&from) {
                    return None;
                }
                from.pop();
            }
        }
        rest.next_if(|segment| segment == "crate" || segment == "self");
        while rest.next_if(|segment| segment == "super").is_some() {
            from.pop();
        }
        from.extend(rest.filter(|segment| segment != "self"));
        Some(from)
    }

    /// Returns the file that defines the item at a path, following re-exports.
    fn home(
        &self,
        mut path: ModulePath,
        passed_on: &BTreeMap<(ModulePath, String), ModulePath>,
    ) -> ModulePath {
        // More re-exports in a row than any real path has; the limit ends a cycle of re-exports.
        for _ in 0..8 {
            let length = (0..=path.len()).rev().find(|n| self.code.contains_key(&path[..*n]));
            let rest = path.split_off(length.unwrap_or_default());
            let Some((name, rest)) = rest.split_first() else { break };
            let Some(next) = passed_on.get(&(path.clone(), name.clone())) else { break };
            path = next.iter().chain(rest).cloned().collect();
        }
        path
    }
}

fn split(path: &str) -> ModulePath {
    path.split('/').map(str::to_owned).collect()
}

/// Returns a file without tests, comments and string literals.
fn production_code(text: &str) -> String {
    let mut tests = text.match_indices("#[cfg(test)]\n").filter_map(|(at, found)| {
        let line = text[at + found.len()..].lines().next()?;
        line.trim_start_matches("pub(super) ").starts_with("mod ").then_some((at, line))
    });
    let end = tests.find(|(_, line)| line.ends_with('{')).map_or(text.len(), |(at, _)| at);
    let without_comments: String = text[..end]
        .lines()
        .flat_map(|line| [line.split("//").next().unwrap_or_default(), "\n"])
        .collect();
    let mut code = String::new();
    let mut in_text = false;
    let mut before = ' ';
    for c in without_comments.replace("'\"'", "").replace("\\\\", "").chars() {
        if c == '"' && before != '\\' {
            in_text = !in_text;
        } else if !in_text {
            code.push(c);
        }
        before = c;
    }
    without_scopes(&code)
}

/// Returns the code without the paths of `pub(in …)`, which are not dependencies.
fn without_scopes(code: &str) -> String {
    let mut parts = code.split("pub(in ");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |code, part| code + "pub(" + part.find(')').map_or(part, |end| &part[end..]))
}

/// Returns the trees of the `use` statements, each with whether it is a re-export, and the rest of
/// the code.
fn use_statements(code: &str) -> (Vec<(bool, &str)>, String) {
    let (mut found, mut rest) = (Vec::new(), String::new());
    let mut unread = code;
    while let Some(line) = unread.split_inclusive('\n').next() {
        let statement = line.trim_start();
        let tree = match statement.strip_prefix("pub") {
            Some(public) => public.split_once("use ").filter(|(scope, _)| {
                let scope = scope.trim();
                scope.is_empty() || (scope.starts_with('(') && scope.ends_with(')'))
            }),
            None => statement.strip_prefix("use ").map(|tree| ("", tree)),
        };
        let start = tree.map(|(_, tree)| unread.len().min(line.len() - tree.len()));
        let end = start.and_then(|start| Some((start, start + unread[start..].find(';')?)));
        match end {
            Some((start, end)) => {
                found.push((statement.starts_with("pub"), &unread[start..end]));
                unread = &unread[end + 1..];
            }
            None => {
                rest.push_str(line);
                unread = &unread[line.len()..];
            }
        }
    }
    (found, rest)
}

/// Returns the paths in the tree of a `use` statement.
fn tree_paths(tree: &str) -> Vec<ModulePath> {
    let mut found = Vec::new();
    let mut groups: Vec<ModulePath> = vec![Vec::new()];
    let mut text = String::new();
    for c in tree.chars().chain([',']) {
        match c {
            '{' => {
                let outer = groups.last().cloned().unwrap_or_default();
                groups.push(outer.into_iter().chain(split_path(&text)).collect());
                text.clear();
            }
            ',' | '}' => {
                let name = text.split(" as ").next().unwrap_or_default();
                if !name.trim().is_empty() {
                    let outer = groups.last().cloned().unwrap_or_default();
                    found.push(outer.into_iter().chain(split_path(name)).collect());
                }
                text.clear();
                if c == '}' {
                    groups.pop();
                }
            }
            c => text.push(c),
        }
    }
    found
}

/// Returns the paths with more than one name in the code.
fn paths(code: &str) -> Vec<ModulePath> {
    let is_in_path = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
    let runs = code.split(|c: char| !is_in_path(c));
    runs.filter(|run| run.contains("::")).map(split_path).collect()
}

fn split_path(path: &str) -> ModulePath {
    path.split("::")
        .map(str::trim)
        .filter(|segment| !segment.is_empty())
        .map(str::to_owned)
        .collect()
}

/// Returns the cycles: sets of files that use each other, directly or indirectly.
fn rings(edges: &BTreeMap<ModulePath, BTreeSet<ModulePath>>) -> BTreeSet<Vec<String>> {
    let reached: BTreeMap<_, _> =
        edges.keys().map(|file| (file, reached_from(file, edges))).collect();
    let is_mutual = |file: &ModulePath, other: &ModulePath| {
        reached.get(other).is_some_and(|reached| reached.contains(file))
    };
    let ring = |(file, reached): (&&ModulePath, &BTreeSet<&ModulePath>)| -> Vec<String> {
        let ring = reached.iter().filter(|other| is_mutual(file, other));
        ring.map(|file| file.join("/")).collect()
    };
    reached.iter().map(ring).filter(|ring| ring.len() > 1).collect()
}

/// Returns all files that a file uses, directly or indirectly.
fn reached_from<'a>(
    file: &'a ModulePath,
    edges: &'a BTreeMap<ModulePath, BTreeSet<ModulePath>>,
) -> BTreeSet<&'a ModulePath> {
    let mut reached = BTreeSet::new();
    let mut pending = vec![file];
    while let Some(file) = pending.pop() {
        pending.extend(edges.get(file).into_iter().flatten().filter(|next| reached.insert(*next)));
    }
    reached
}

/// Returns whether a file contains only tests, or references for tests and fuzzers.
fn is_test(file: &Path) -> bool {
    let test_names = ["tests", "tests.rs", "oracle.rs"].map(std::ffi::OsStr::new);
    file.components().any(|part| test_names.contains(&part.as_os_str()))
}

/// Returns the packages of the product: its crates, and the program in `src/`.
fn packages() -> Vec<String> {
    let crates = MAY_DEPEND_ON.iter().map(|(name, _)| (*name).to_owned());
    crates.chain(["strait".to_owned()]).collect()
}

/// Returns the source folder of a package.
fn package_root(name: &str) -> PathBuf {
    match name {
        "strait" => root().join("src"),
        name => root().join("crates").join(name).join("src"),
    }
}

/// Returns the package of a file.
fn owning_package(file: &Path) -> String {
    let found = packages().into_iter().find(|name| file.starts_with(package_root(name)));
    found.unwrap_or_else(|| panic!("{} belongs to no package", file.display()))
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Returns the path and text of each source file of the product.
pub(crate) fn sources() -> Vec<(PathBuf, String)> {
    let mut sources = Vec::new();
    for package in packages() {
        collect_sources(&package_root(&package), &mut sources);
    }
    sources
}

/// Adds all source files below a folder.
pub(crate) fn collect_sources(folder: &Path, sources: &mut Vec<(PathBuf, String)>) {
    let mut files = Vec::new();
    collect(folder, &mut files);
    files.sort();
    sources.extend(files.into_iter().map(|file| {
        let text = fs::read_to_string(&file).expect("a readable source file");
        (file, text)
    }));
}

fn collect(directory: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).expect("a readable directory") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            collect(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
}
