//! Who may use whom. ARCHITECTURE.md says why; a change here is a change of design, to be argued for
//! in its commit.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Each module with the modules it may name. A module that isn't listed fails the test.
const MAY_USE: &[(&str, &[&str])] = &[
    ("model", &[]),
    ("task", &[]),
    ("codes", &[]),
    ("durable", &[]),
    // A leaf: flags and what they set are read with it.
    ("duration", &[]),
    ("folder", &[]),
    ("hash", &[]),
    // A leaf: whoever shares a value between tasks takes it with this.
    ("lock", &[]),
    ("unread", &[]),
    ("admission", &[]),
    // A leaf: whoever takes an address from others asks it.
    ("address", &[]),
    ("process", &[]),
    ("descriptors", &["codes", "process"]),
    ("mass_deletion", &[]),
    ("timeline", &["model", "codes", "durable"]),
    ("history", &["model", "aggregate", "push", "codes", "durable"]),
    // What is held is a value; who reads objects holds it.
    ("hold", &["model", "durable"]),
    // What a plan is the policy says; what counts for all is kept as what is held.
    ("rollout", &["model", "durable", "hold", "policy"]),
    ("apiserver", &["address", "codes", "descriptors", "lock", "mass_deletion", "task"]),
    ("mesh", &["model", "address", "folder", "codes", "task"]),
    ("policy", &["model", "mesh", "address", "codes"]),
    ("traffic", &["model", "mesh", "codes", "unread"]),
    ("access", &["model", "mesh", "codes"]),
    ("jwks", &["access", "address", "codes", "durable", "model", "sources"]),
    ("memory", &[]),
    ("sources", &["codes"]),
    ("registry", &["model"]),
    (
        "registry::consul",
        &["model", "registry", "apiserver", "address", "sources", "mass_deletion", "task", "codes"],
    ),
    (
        "registry::kube",
        &["model", "mesh", "registry", "apiserver", "mass_deletion", "task", "codes"],
    ),
    ("registry::service_entry", &["model", "registry", "address", "unread"]),
    ("identity", &["model", "codes", "durable", "lock", "task"]),
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
            // Who calls is proven by what members sign.
            "identity",
            "sources",
            "store",
            "task",
            "codes",
            "lock",
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
            "access",
            "registry",
            "registry::service_entry",
            "aggregate",
            "network",
            "traffic",
            "task",
            "timeline",
            // What a version was published with can be gone back to.
            "hold",
            "lock",
        ],
    ),
    (
        "xds",
        &[
            "model",
            "mesh",
            "policy",
            "access",
            "registry",
            "aggregate",
            "network",
            "push",
            "traffic",
            "identity",
            "descriptors",
            "hash",
            // Who is in the share that is served the next configuration.
            "rollout",
            "memory",
            "task",
            "timeline",
            "codes",
            "lock",
        ],
    ),
    (
        "explain",
        &[
            "model",
            "mesh",
            "policy",
            "access",
            "registry",
            "registry::service_entry",
            "aggregate",
            "network",
            "push",
            // Of what waits it says that it does.
            "hold",
            "traffic",
            "codes",
        ],
    ),
    (
        "lkg",
        &[
            "model",
            "registry",
            "registry::kube",
            "aggregate",
            "push",
            "clusters",
            "identity",
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
            "access",
            "registry",
            "aggregate",
            "network",
            "push",
            "traffic",
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
            "history",
            "hold",
            "rollout",
            "timeline",
        ],
    ),
    (
        "metrics",
        &[
            "model",
            "push",
            "hold",
            "rollout",
            "xds",
            "clusters",
            "identity",
            "lkg",
            "inject",
            "validation",
            "sources",
            "descriptors",
            "process",
            "task",
        ],
    ),
    // Judges by what tells of stored objects.
    ("validation", &["access", "admission", "explain", "push"]),
    ("inject", &["admission", "model", "identity", "descriptors", "task", "codes"]),
    ("fixtures", &["model", "push", "registry", "traffic"]),
];

/// Modules that wire the program and may name anything.
const WIRING: &[&str] = &["server", "config", "cli", "fuzz"];

/// Crates that only some modules may name.
const ONLY: &[(&str, &[&str])] = &[
    ("kube", &["apiserver", "clusters", "store", "cli"]),
    ("k8s_openapi", &["apiserver", "clusters", "store", "cli"]),
    ("strait_proto", &["xds", "admin", "identity", "store", "cli", "traffic"]),
    ("tokio_rustls", &["identity", "xds", "clusters", "store", "inject", "jwks", "cli"]),
    (
        "rustls",
        &["identity", "xds", "apiserver", "clusters", "network", "store", "jwks", "cli", "main"],
    ),
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
fn nothing_below_the_commands_uses_them() {
    let above = ["cli", "fuzz", "main", "lib"];
    let wrong: Vec<_> = sources()
        .into_iter()
        .filter(|(file, _)| !above.contains(&root_of(&module_of(file))))
        .filter(|(_, text)| uses(text).iter().any(|used| *used == "cli"))
        .map(|(file, _)| file)
        .collect();
    assert!(wrong.is_empty(), "what a command and {wrong:?} need goes below both");
}

/// Who may use whom, whole folders taken as one.
fn edges() -> BTreeSet<(String, String)> {
    let of = |(module, used): &(&str, &[&str])| {
        let module = root_of(module).to_owned();
        let used: Vec<_> = used.iter().map(|used| root_of(used).to_owned()).collect();
        used.into_iter().map(move |used| (module.clone(), used))
    };
    MAY_USE.iter().flat_map(of).filter(|(module, used)| module != used).collect()
}

/// The same with all that are reached through others.
fn reach() -> BTreeSet<(String, String)> {
    let edges = edges();
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
            return reach;
        }
    }
}

/// The drawing of ARCHITECTURE.md: of who uses whom what doesn't follow from the rest. `BLESS=1` draws it anew.
#[test]
fn the_drawing_shows_the_modules_as_they_are() {
    const BEGIN: &str = "```mermaid\nflowchart TD\n";
    let reach = reach();
    let follows = |(from, to): &&(String, String)| {
        let between = |(a, b): &&(String, String)| a == from && b != to;
        reach.iter().filter(between).any(|(_, b)| reach.contains(&(b.clone(), to.clone())))
    };
    let drawn = reach.iter().filter(|edge| !follows(edge) && edge.0 != "fixtures");
    let drawn: String = drawn.map(|(from, to)| format!("  {from} --> {to}\n")).collect();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("ARCHITECTURE.md");
    let text = fs::read_to_string(&path).expect("the file");
    let (before, rest) = text.split_once(BEGIN).expect("a drawing");
    let (held, after) = rest.split_once("```").expect("an end of the drawing");
    if std::env::var_os("BLESS").is_some() {
        fs::write(&path, format!("{before}{BEGIN}{drawn}```{after}")).expect("a file");
        return;
    }
    assert_eq!(held, drawn, "the modules are others now: BLESS=1 draws them anew");
}

#[test]
fn no_two_modules_use_each_other() {
    let reach = reach();
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

#[test]
fn no_files_of_a_module_use_each_other_in_a_circle() {
    let files = FileModules::read();
    assert!(files.code.len() > 300, "files are looked for where none are: {}", files.code.len());
    let rings = rings(&files.edges());
    assert!(
        rings.is_empty(),
        "files that use each other in a circle; move what all use down: {rings:#?}"
    );
}

#[test]
fn uses_of_files_are_found_in_groups_and_behind_names_that_are_passed_on() {
    let code = [
        ("a", "pub use self::b::Leaf;\nmod b;\nmod c;\nuse c::d;"),
        ("a/b", "pub struct Leaf; // super::c"),
        ("a/c", "pub(super) use super::{Leaf, e::{self, Other as One}};\nfn f() { \"super::b\" }"),
        ("a/e", "pub(in crate::a) fn f() { crate::a::c::f::<u8>() }"),
    ];
    let code = code.map(|(file, text)| (split(file), code_of(text)));
    let edges = FileModules { code: code.into() }.edges();
    let found = |from: &str| -> Vec<String> {
        edges.get(&split(from)).into_iter().flatten().map(|to| to.join("/")).collect()
    };
    assert_eq!(found("a"), ["a/c"]);
    assert_eq!(found("a/c"), Vec::<String>::new(), "what is passed on is used by who takes it");
    assert_eq!(found("a/e"), ["a/c"]);
    assert_eq!(rings(&edges), BTreeSet::new());
}

/// The names on the way to a module or to what is in it.
type ModulePath = Vec<String>;

/// The files of the crate, each a module, with what they say but for tests, comments and texts.
struct FileModules {
    code: BTreeMap<ModulePath, String>,
}

impl FileModules {
    fn read() -> Self {
        let mut code = BTreeMap::new();
        for (file, text) in sources() {
            let relative = file.strip_prefix(source_root()).expect("below src").with_extension("");
            let mut path = split(&relative.to_string_lossy());
            let of_tests = ["tests", "oracle", "joining", "testing", "fixtures"];
            if path.iter().any(|part| of_tests.contains(&part.as_str()) || part == "fuzz") {
                continue;
            }
            path.pop_if(|last| last == "mod" || last == "lib");
            code.insert(path, code_of(&text));
        }
        Self { code }
    }

    /// Which file uses what of which others. What a file passes on (`pub use`) is used by who takes it there.
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

    /// A path as from the root of the crate; `None` of what is not the crate's.
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
        rest.next_if(|word| word == "crate" || word == "self");
        while rest.next_if(|word| word == "super").is_some() {
            from.pop();
        }
        from.extend(rest.filter(|word| word != "self"));
        Some(from)
    }

    /// The file in which what a path names stands, behind all that only pass it on.
    fn home(
        &self,
        mut path: ModulePath,
        passed_on: &BTreeMap<(ModulePath, String), ModulePath>,
    ) -> ModulePath {
        // More than are ever passed through; a name that is passed on to itself ends.
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

/// A file without its tests, comments and texts.
fn code_of(text: &str) -> String {
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

/// Code without the paths of `pub(in …)`: who may use a thing is not used by it.
fn without_scopes(code: &str) -> String {
    let mut parts = code.split("pub(in ");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |code, part| code + "pub(" + part.find(')').map_or(part, |end| &part[end..]))
}

/// The trees of the `use` statements of code, each with whether it passes on what it names, and the rest of the code.
fn use_statements(code: &str) -> (Vec<(bool, &str)>, String) {
    let (mut found, mut rest) = (Vec::new(), String::new());
    let mut left = code;
    while let Some(line) = left.split_inclusive('\n').next() {
        let statement = line.trim_start();
        let tree = match statement.strip_prefix("pub") {
            Some(public) => public.split_once("use ").filter(|(scope, _)| {
                let scope = scope.trim();
                scope.is_empty() || (scope.starts_with('(') && scope.ends_with(')'))
            }),
            None => statement.strip_prefix("use ").map(|tree| ("", tree)),
        };
        let start = tree.map(|(_, tree)| left.len().min(line.len() - tree.len()));
        let end = start.and_then(|start| Some((start, start + left[start..].find(';')?)));
        match end {
            Some((start, end)) => {
                found.push((statement.starts_with("pub"), &left[start..end]));
                left = &left[end + 1..];
            }
            None => {
                rest.push_str(line);
                left = &left[line.len()..];
            }
        }
    }
    (found, rest)
}

/// The paths in the tree of a `use`.
fn tree_paths(tree: &str) -> Vec<ModulePath> {
    let mut found = Vec::new();
    let mut groups: Vec<ModulePath> = vec![Vec::new()];
    let mut word = String::new();
    for c in tree.chars().chain([',']) {
        match c {
            '{' => {
                let outer = groups.last().cloned().unwrap_or_default();
                groups.push(outer.into_iter().chain(words(&word)).collect());
                word.clear();
            }
            ',' | '}' => {
                let name = word.split(" as ").next().unwrap_or_default();
                if !name.trim().is_empty() {
                    let outer = groups.last().cloned().unwrap_or_default();
                    found.push(outer.into_iter().chain(words(name)).collect());
                }
                word.clear();
                if c == '}' {
                    groups.pop();
                }
            }
            c => word.push(c),
        }
    }
    found
}

/// The paths of more than one name in code.
fn paths(code: &str) -> Vec<ModulePath> {
    let is_of_path = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
    let runs = code.split(|c: char| !is_of_path(c));
    runs.filter(|run| run.contains("::")).map(words).collect()
}

fn words(path: &str) -> ModulePath {
    path.split("::").map(str::trim).filter(|word| !word.is_empty()).map(str::to_owned).collect()
}

/// The sets of files that reach each other.
fn rings(edges: &BTreeMap<ModulePath, BTreeSet<ModulePath>>) -> BTreeSet<Vec<String>> {
    let reached: BTreeMap<_, _> =
        edges.keys().map(|file| (file, reached_from(file, edges))).collect();
    let is_mutual = |one: &ModulePath, other: &ModulePath| {
        reached.get(other).is_some_and(|reached| reached.contains(one))
    };
    let ring = |(file, reached): (&&ModulePath, &BTreeSet<&ModulePath>)| -> Vec<String> {
        let ring = reached.iter().filter(|other| is_mutual(file, other));
        ring.map(|file| file.join("/")).collect()
    };
    reached.iter().map(ring).filter(|ring| ring.len() > 1).collect()
}

/// All that a file uses, and what that uses, and so on.
fn reached_from<'a>(
    file: &'a ModulePath,
    edges: &'a BTreeMap<ModulePath, BTreeSet<ModulePath>>,
) -> BTreeSet<&'a ModulePath> {
    let mut reached = BTreeSet::new();
    let mut left = vec![file];
    while let Some(file) = left.pop() {
        left.extend(edges.get(file).into_iter().flatten().filter(|next| reached.insert(*next)));
    }
    reached
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
    let mut sources = Vec::new();
    collect_sources(&source_root(), &mut sources);
    sources
}

/// Adds those below a folder.
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
