//! Rules about the source code and the documents that the compiler does not check.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use super::layering::sources;

/// The maximum number of lines of a source file. A longer file has more than one purpose.
const LINES_MAX: usize = 800;

#[test]
fn every_file_starts_with_a_module_comment() {
    let silent: Vec<_> = sources()
        .into_iter()
        .filter(|(file, text)| !text.starts_with("//!") && !is_tests(file))
        .map(|(file, _)| file)
        .collect();
    assert!(silent.is_empty(), "no //! at the top of {silent:?}");
}

/// A doc comment is read without its neighbors, for example in a hover: its first line names its subject.
#[test]
fn first_line_of_a_doc_comment_names_its_subject() {
    const BEGINNINGS: [&str; 6] = ["What ", "Who ", "Whose ", "Those ", "The same", "One that "];
    let doc_text = |line: &str| {
        let line = line.trim_start();
        let text = line.strip_prefix("///").or_else(|| line.strip_prefix("//!"));
        text.map(|text| text.trim_start().to_owned())
    };
    let mut found = Vec::new();
    for (file, text) in sources() {
        let mut is_within = false;
        for line in text.lines() {
            let doc = doc_text(line);
            let begins = |doc: &String| BEGINNINGS.iter().any(|word| doc.starts_with(word));
            if !is_within && doc.as_ref().is_some_and(begins) {
                found.push(format!("{}: {}", file.display(), line.trim()));
            }
            is_within = doc.is_some();
        }
    }
    assert!(found.is_empty(), "name the subject in the first line: {found:#?}");
}

#[test]
fn no_file_is_longer_than_the_limit() {
    let long: Vec<_> = sources()
        .into_iter()
        .filter(|(file, _)| !is_tests(file))
        .map(|(file, text)| (file, text.lines().count()))
        .filter(|(_, lines)| *lines > LINES_MAX)
        .collect();
    assert!(long.is_empty(), "more than {LINES_MAX} lines: {long:?}");
}

/// The JSON format writes these fields itself. An object with a name twice has no defined meaning.
#[test]
fn no_log_line_has_a_field_of_the_json_format() {
    const RESERVED: [&str; 6] = ["message", "timestamp", "level", "target", "span", "spans"];
    let mut found = Vec::new();
    for (file, text) in sources() {
        for name in ["error!(", "warn!(", "info!(", "debug!(", "trace!("] {
            for (at, _) in text.match_indices(name) {
                let call = text.get(at + name.len()..).unwrap_or_default();
                // The fields come before the text.
                let fields = call.split(" \"").next().unwrap_or_default();
                let fields = fields.split(");").next().unwrap_or_default().split(',');
                let names = fields.map(|field| field.split(" =").next().unwrap_or_default().trim());
                let names = names.map(|name| name.trim_start_matches(['%', '?']));
                let reserved = names.filter(|name| RESERVED.contains(name));
                found.extend(reserved.map(|name| format!("{}: {name}", file.display())));
            }
        }
    }
    assert!(found.is_empty(), "rename the field: {found:#?}");
}

/// `println!` and `print!` panic if nothing reads the output any more, as with `| head`.
#[test]
fn no_code_uses_print_macros_that_panic_on_closed_output() {
    let mut files = sources();
    for other in ["agent/src", "sim/src"] {
        super::layering::collect_sources(&root().join(other), &mut files);
    }
    let code = files.iter().filter(|(file, _)| !is_tests(file));
    let lines = code.flat_map(|(file, text)| {
        let text = text.split("#[cfg(test)]\nmod ").next().unwrap_or_default();
        let prints = |line: &&str| {
            let line = line.trim_start();
            let macros = ["println!(", "print!("];
            !line.starts_with("//") && macros.iter().any(|word| line.contains(word))
        };
        text.lines().filter(prints).map(move |line| (file, line))
    });
    let found: Vec<_> = lines.collect();
    assert!(
        found.is_empty(),
        "use eprint_line! or output::print, or writeln! in other programs: {found:#?}"
    );
}

/// A comparison compiles with a new kind of proxy or registry and is silently wrong for it. A match
/// lists all kinds, and so do the properties of a kind (`ProxyType::is_gateway`).
#[test]
fn no_code_compares_a_kind_of_proxy_or_registry() {
    let kinds = ["ProxyType::", "Provider::"];
    let compares = |line: &str| {
        kinds
            .iter()
            .any(|kind| ["== ", "!= "].iter().any(|op| line.contains(&format!("{op}{kind}"))))
    };
    let files = sources();
    let files = files.iter().filter(|(file, _)| !is_tests(file));
    let lines = files.flat_map(|(file, text)| text.lines().map(move |line| (file, line)));
    let found: Vec<_> = lines.filter(|(_, line)| compares(line)).collect();
    assert!(found.is_empty(), "use a match or a property of the kind: {found:#?}");
}

#[test]
fn each_type_name_is_defined_once() {
    let mut defined: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (file, text) in sources().into_iter().filter(|(file, _)| !is_tests(file)) {
        let code = text.split("#[cfg(test)]\nmod ").next().unwrap_or_default();
        for name in code.lines().filter_map(defined_type) {
            defined.entry(name.to_owned()).or_default().push(file.display().to_string());
        }
    }
    assert!(defined.len() > 500, "the search found too few types: {}", defined.len());
    // A response may have the name of the type that it shows. The server names it `api::X`.
    let is_of_api = |file: &&String| file.contains("/crates/admin-api/");
    defined.retain(|_, files| {
        let of_api = files.iter().filter(is_of_api).count();
        of_api > 1 || files.len() - of_api > 1
    });
    assert!(
        defined.is_empty(),
        "rename these types: several files define the same name: {defined:#?}"
    );
}

#[test]
fn no_type_name_contains_a_word_that_the_glossary_excludes() {
    let glossary = std::fs::read_to_string(root().join("docs/contributing/glossary.md"))
        .expect("the glossary");
    let (_, table) = glossary.split_once("## Words that no type has").expect("a table");
    let rows = table.lines().filter(|line| line.starts_with("| ")).skip(1);
    let excluded = rows.filter_map(|row| row.split('|').nth(1)).flat_map(|cell| cell.split(','));
    let excluded: BTreeSet<&str> = excluded.map(str::trim).collect();
    assert!(excluded.len() > 20 && excluded.contains("told"), "{excluded:?}");
    let mut found = Vec::new();
    for (file, text) in sources().into_iter().filter(|(file, _)| !is_tests(file)) {
        let code = text.split("#[cfg(test)]\nmod ").next().unwrap_or_default();
        for name in code.lines().filter_map(defined_type) {
            let is_excluded = |part: &String| {
                excluded.contains(part.as_str()) || excluded.contains(part.trim_end_matches('s'))
            };
            if split_name(name).iter().any(is_excluded) {
                found.push((file.clone(), name.to_owned()));
            }
        }
    }
    assert!(found.is_empty(), "rename these types with words from the glossary: {found:#?}");
}

/// Splits a type name into words: `HttpRouteTable` into `http`, `route` and `table`.
fn split_name(name: &str) -> Vec<String> {
    let mut parts: Vec<String> = Vec::new();
    for letter in name.chars() {
        match parts.last_mut() {
            Some(part) if !letter.is_uppercase() => part.push(letter),
            _ => parts.push(letter.to_lowercase().collect()),
        }
    }
    parts
}

/// Returns the name of the type that a line of code defines at the top level of a module.
fn defined_type(line: &str) -> Option<&str> {
    let mut rest = line.strip_prefix("pub").map_or(line, |rest| {
        let end = rest.starts_with('(').then(|| rest.find(')').map_or(0, |at| at + 1));
        &rest[end.unwrap_or_default()..]
    });
    rest = rest.strip_prefix(' ').unwrap_or(rest);
    let kinds = ["struct ", "enum ", "trait ", "type "];
    let name = kinds.iter().find_map(|kind| rest.strip_prefix(kind))?;
    let end = name.find(|c: char| !c.is_alphanumeric() && c != '_');
    Some(&name[..end.unwrap_or(name.len())])
}

#[test]
fn no_unfinished_code_or_ignored_test_is_committed() {
    let markers = ["todo!(", "unimplemented!(", "FIXME", "XXX", "#[ignore"];
    let mut found = Vec::new();
    for (file, text) in sources() {
        for (number, line) in text.lines().enumerate() {
            if markers.iter().any(|marker| line.contains(marker)) {
                found.push(format!("{}:{}", file.display(), number + 1));
            }
        }
    }
    assert!(found.is_empty(), "{found:?}");
}

#[test]
fn every_error_code_has_a_page() {
    let mut missing = BTreeSet::new();
    for (file, text) in sources() {
        for (at, _) in text.match_indices("STR") {
            let code: String = text[at..].chars().take(7).collect();
            let numbered = code.len() == 7 && code[3..].bytes().all(|b| b.is_ascii_digit());
            if numbered && strait_base::codes::find(&code).is_none() && code != "STR9999" {
                missing.insert((code, file.clone()));
            }
        }
    }
    assert!(missing.is_empty(), "error codes without a page for `strait help CODE`: {missing:?}");
}

#[test]
fn only_one_crypto_provider_is_a_dependency() {
    let lock = std::fs::read_to_string(root().join("Cargo.lock")).expect("a lock file");
    assert!(
        !lock.contains("name = \"aws-lc-sys\""),
        "two crypto providers in one process make every client panic: use only ring"
    );
}

/// A chart installs images whose version equals the chart version. `deploy/release` writes all of
/// these places.
#[test]
fn charts_and_guide_name_the_current_version() {
    let version = env!("CARGO_PKG_VERSION");
    for chart in ["strait", "strait-member"] {
        let path = root().join("deploy/charts").join(chart).join("Chart.yaml");
        let text = std::fs::read_to_string(&path).expect("a chart");
        for field in ["version", "appVersion"] {
            let line = format!("{field}: {version}");
            assert!(text.lines().any(|one| one == line), "{}: no {line}", path.display());
        }
    }
    let guide = std::fs::read_to_string(root().join("docs/how-to/install.md")).expect("the guide");
    assert!(guide.contains(&format!("strait-agent:{version}")), "docs/how-to/install.md");
}

#[test]
fn pages_refer_only_to_existing_files() {
    let pages = pages();
    assert!(pages.len() > 60, "the search found too few pages: {}", pages.len());
    let mut missing = Vec::new();
    for page in &pages {
        let text = std::fs::read_to_string(page).expect("a page");
        let named = code_spans(&text).filter_map(path_named).map(|path| root().join(path));
        let linked = text.split("](").skip(1).filter_map(|rest| rest.split([')', '#']).next());
        let is_page = |link: &&str| !link.is_empty() && !link.contains("://");
        let folder = page.parent().expect("in a folder");
        let linked = linked.filter(is_page).map(|link| folder.join(link));
        missing.extend(named.chain(linked).filter(|path| !path.exists()).map(|path| (page, path)));
    }
    assert!(missing.is_empty(), "pages refer to missing files: {missing:#?}");
}

/// Each step of a recipe names files, and identifiers that these files contain.
#[test]
fn identifiers_in_recipes_exist_in_the_named_files() {
    let mut missing = Vec::new();
    let mut looked_for = 0;
    for page in below(&root().join("docs/contributing/recipes"), "md") {
        let text = std::fs::read_to_string(&page).expect("a recipe");
        let is_step = |text: &str| text.starts_with(|c: char| c.is_ascii_digit());
        let mut steps: Vec<String> = Vec::new();
        for line in text.lines() {
            match steps.last_mut() {
                Some(step) if !is_step(line) => step.push_str(line),
                _ if is_step(line) => steps.push(line.to_owned()),
                _ => {}
            }
        }
        for step in steps {
            let files: Vec<_> = code_spans(&step).filter_map(path_named).collect();
            let there: String = files.iter().map(|path| read_text(&root().join(path))).collect();
            let is_identifier_part = |c: char| c.is_alphanumeric() || c == '_';
            let identifiers: BTreeSet<&str> = there.split(|c| !is_identifier_part(c)).collect();
            for name in code_spans(&step).filter(|_| !files.is_empty()) {
                let last = name.rsplit("::").next().unwrap_or_default();
                if !last.is_empty() && last.chars().all(is_identifier_part) {
                    looked_for += 1;
                    if !identifiers.contains(last) {
                        missing.push((page.clone(), name.to_owned(), step.clone()));
                    }
                }
            }
        }
    }
    assert!(looked_for > 20, "the search found too few identifiers: {looked_for}");
    assert!(
        missing.is_empty(),
        "identifiers that the files of the step do not contain: {missing:#?}"
    );
}

/// Returns the pages for users and developers.
fn pages() -> Vec<PathBuf> {
    let top = ["README.md", "CONTRIBUTING.md", "SECURITY.md", "ARCHITECTURE.md"];
    let top = top.into_iter().map(|name| root().join(name));
    top.chain(below(&root().join("docs"), "md")).collect()
}

/// Returns the code spans of a page.
fn code_spans(text: &str) -> impl Iterator<Item = &str> {
    text.lines().flat_map(|line| line.split('`').skip(1).step_by(2))
}

/// Returns the path in the repository with which a code span begins, if any.
fn path_named(code: &str) -> Option<&str> {
    const PLACES: [&str; 11] = [
        "src/", "crates/", "tests/", "docs/", "benches/", "deploy/", ".ci/", "proto/", "agent/",
        "sim/", "fuzz/",
    ];
    let path = code.split(' ').next()?.trim_end_matches('/');
    // A path with a placeholder names no single file.
    let is_single_file = !path.contains(['*', '<', '{']) && !path.contains("NAME");
    (PLACES.iter().any(|place| code.starts_with(place)) && is_single_file).then_some(path)
}

/// Returns the text of a file, or of all files below a folder.
fn read_text(path: &Path) -> String {
    if path.is_dir() {
        return files_below(path).iter().map(|file| read_text(file)).collect();
    }
    std::fs::read_to_string(path).unwrap_or_default()
}

fn below(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let files = files_below(folder).into_iter();
    files.filter(|file| file.extension().is_some_and(|end| end == extension)).collect()
}

fn files_below(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).expect("a folder");
    let paths = entries.map(|entry| entry.expect("readable").path());
    let mut files: Vec<_> = paths
        .flat_map(|path| if path.is_dir() { files_below(&path) } else { vec![path] })
        .collect();
    files.sort();
    files
}

#[test]
fn each_feature_in_the_traffic_guides_names_a_golden_case_or_a_test() {
    let guides = [
        "reference/traffic-support.md",
        "how-to/expose-a-service.md",
        "reference/gateway-api-support.md",
    ];
    let cases: Vec<_> = guides.into_iter().flat_map(table_cases).collect();
    assert!(cases.len() > 40, "the search found too few rows: {cases:?}");
    let is_test = among_tests();
    let has_cases = |row: &&String| row.split(", ").all(|case| is_golden(case) || is_test(case));
    let missing: Vec<_> = cases.iter().filter(|row| !has_cases(row)).collect();
    assert!(missing.is_empty(), "rows without a case: {missing:?}");
    let distinct: BTreeSet<_> = cases.iter().collect();
    assert_eq!(distinct.len(), cases.len(), "several rows name the same case");
}

#[test]
fn each_difference_from_istio_names_a_golden_case_or_a_test() {
    let cases = table_cases("how-to/migrate-from-istio.md");
    assert!(cases.len() > 30, "the search found too few rows: {cases:?}");
    let is_test = among_tests();
    let missing: Vec<_> = cases.iter().filter(|case| !is_golden(case) && !is_test(case)).collect();
    assert!(missing.is_empty(), "rows without a case or test: {missing:?}");
}

#[test]
fn guide_lists_all_examples_that_real_envoys_test() {
    let text = std::fs::read_to_string(root().join("docs/how-to/migrate-from-istio.md"));
    let text = text.expect("the guide");
    let rows = text.lines().skip_while(|line| !line.ends_with("| tried by |")).skip(2);
    let rows = rows.take_while(|line| line.starts_with('|'));
    let names = rows.flat_map(|row| row.rsplit('|').nth(1).unwrap_or_default().split(','));
    let listed: BTreeSet<_> = names.map(|name| name.trim().trim_matches('`').to_owned()).collect();
    let files = below(&root().join("tests/real/examples"), "yaml");
    let stem = |file: &PathBuf| file.file_stem().expect("a name").to_string_lossy().into_owned();
    assert_eq!(listed, files.iter().map(stem).collect::<BTreeSet<_>>());
}

#[test]
fn each_known_flaw_of_other_control_planes_names_its_tests() {
    let is_test = among_tests();
    check_flaw_rows("reference/access-support.md", "F", 26, &is_test);
    check_flaw_rows("reference/traffic-support.md", "T", 40, &is_test);
}

/// Checks that a guide has one row for each known flaw of other control planes, in order, and that
/// the row ends with the tests that cover it.
fn check_flaw_rows(guide: &str, letter: &str, count: usize, is_test: impl Fn(&str) -> bool) {
    let text = std::fs::read_to_string(root().join("docs").join(guide)).expect("the guide");
    let start = format!("| {letter}-");
    let rows: Vec<_> = text.lines().filter(|line| line.starts_with(&start)).collect();
    let numbers = rows.iter().map(|row| row.split(' ').nth(1).unwrap_or_default().to_owned());
    let all: Vec<_> = (1..=count).map(|number| format!("{letter}-{number}")).collect();
    assert_eq!(numbers.collect::<Vec<_>>(), all, "each once, in order");
    for (row, flaw) in rows.iter().zip(&all) {
        let cases = row.rsplit('|').nth(1).unwrap_or_default().trim();
        let unknown: Vec<_> =
            cases.split(", ").filter(|case| !is_golden(case) && !is_test(case)).collect();
        assert!(unknown.is_empty(), "{flaw} names unknown tests: {unknown:?}");
    }
}

#[test]
fn each_known_vulnerability_of_other_control_planes_names_its_tests() {
    let text = std::fs::read_to_string(root().join("docs/reference/access-support.md"))
        .expect("the guide");
    let rows: Vec<_> = text.lines().filter(|line| line.starts_with("| CVE-")).collect();
    assert!(rows.len() > 10, "the search found too few rows: {rows:?}");
    let is_test = among_tests();
    for row in rows {
        let cases = row.rsplit('|').nth(1).unwrap_or_default().trim();
        let unknown: Vec<_> = cases.split(", ").filter(|case| !is_test(case)).collect();
        assert!(unknown.is_empty(), "unknown tests {unknown:?} in {row}");
    }
}

/// Returns a function that checks whether a code span is the name of a test or of a real scenario.
fn among_tests() -> impl Fn(&str) -> bool {
    let real = std::fs::read_to_string(root().join("tests/real/main.rs")).expect("the scenarios");
    let integration = std::fs::read_dir(root().join("tests/integration")).expect("the tests");
    let files = integration.map(|entry| entry.expect("readable").path());
    let files = files.filter(|file| file.extension().is_some_and(|end| end == "rs"));
    let texts = files.map(|file| std::fs::read_to_string(file).expect("readable"));
    let tests: Vec<_> = sources().into_iter().map(|(_, text)| text).chain(texts).collect();
    move |case| {
        let name = case.trim_matches('`');
        let (function, scenario) = (format!("fn {name}("), format!("(\"{name}\", "));
        let attribute = |text: &String| {
            let place = text.find(&function).unwrap_or_default();
            // The attribute of a test is a few lines above the test's name.
            text[..place].lines().rev().take(6).any(|line| line.trim().contains("test"))
        };
        case.starts_with('`') && (real.contains(&scenario) || tests.iter().any(attribute))
    }
}

/// Returns the last column of the tables of supported features in a guide: the test of each
/// feature.
fn table_cases(guide: &str) -> Vec<String> {
    let text = std::fs::read_to_string(root().join("docs").join(guide)).expect("the guide");
    // Only tables whose last column is `case` list features.
    let mut in_case_table = false;
    let mut cases = Vec::new();
    for line in text.lines() {
        if !line.starts_with('|') {
            in_case_table = false;
        } else if line.ends_with("| case |") {
            // Tables of flaws have an empty first heading, and several tests per row.
            in_case_table = !line.starts_with("| |");
        } else if in_case_table && line.starts_with("| ") {
            cases.push(line.rsplit('|').nth(1).unwrap_or_default().trim().to_owned());
        }
    }
    cases
}

/// Returns whether a code span is the name of a golden case.
fn is_golden(case: &str) -> bool {
    let name = case.trim_matches('`');
    case.starts_with('`') && root().join(format!("tests/golden/{name}.txtar")).exists()
}

fn is_tests(file: &Path) -> bool {
    file.file_name().is_some_and(|name| name == "tests.rs")
        || file.components().any(|part| part.as_os_str() == "tests")
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn pages_named_in_code_exist() {
    let mut missing = BTreeSet::new();
    for (file, text) in sources() {
        for (end, _) in text.match_indices(".md") {
            let start =
                text[..end].rfind(|c: char| !(c.is_ascii_alphanumeric() || "/._-".contains(c)));
            let cited = &text[start.map_or(0, |at| at + 1)..end + 3];
            // The end of a path that is composed of several strings.
            if cited.starts_with(['.', '/']) || cited.contains('*') {
                continue;
            }
            if !root().join(cited).exists() {
                missing.insert((cited.to_owned(), file.clone()));
            }
        }
    }
    assert!(missing.is_empty(), "code names missing pages: {missing:?}");
}

#[test]
fn interface_reference_names_every_path_of_the_admin_api() {
    let contract = std::fs::read_to_string(root().join("docs/reference/interface.md"));
    let contract = contract.expect("docs/reference/interface.md");
    let admin = std::fs::read_to_string(root().join("crates/server/src/admin/mod.rs"))
        .expect("the routes of the admin port");
    let routes = admin.split(".route(\"").skip(1).filter_map(|rest| rest.split('"').next());
    let routes: Vec<&str> = routes.filter(|path| !path.ends_with(['/', '}'])).collect();
    assert!(routes.contains(&"/debug/clusters"), "{routes:?}");
    let missing: Vec<_> =
        routes.into_iter().filter(|path| !contract.contains(&format!("`{path}"))).collect();
    assert!(missing.is_empty(), "paths missing in docs/reference/interface.md: {missing:?}");
}
