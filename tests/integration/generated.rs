//! Reference pages that are generated from code. A test holds them current;
//! `BLESS=1 cargo test --workspace --test integration generated_pages` writes them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use super::admin_types;
use super::docs::slug;
use super::harness::{Estate, Setup, Trust};
use strait_base::codes;

const HOW: &str =
    "<!-- Generated: BLESS=1 cargo test --workspace --test integration generated_pages -->";

#[test]
fn generated_pages_are_current() {
    for (name, text) in [
        ("docs/reference/cli.md", command_page()),
        ("docs/reference/error-codes.md", code_page()),
        ("docs/reference/metrics.md", metric_page()),
        ("docs/reference/admin-api.md", admin_page()),
        ("docs/reference/admin-api.schema.json", admin_types::schema_file()),
        ("crates/server/src/admin/page/admin-api.d.ts", admin_types::declarations()),
    ] {
        let path = root().join(name);
        let mut stored = std::fs::read_to_string(&path).unwrap_or_default();
        if stored != text && std::env::var_os("BLESS").is_some() {
            // Replaced in one step, because other tests read the pages at the same time.
            let new = path.with_extension("new");
            std::fs::write(&new, &text).expect("written");
            std::fs::rename(&new, &path).expect("replaced");
            stored.clone_from(&text);
        }
        let differing = stored.lines().zip(text.lines()).find(|(stored, made)| stored != made);
        assert!(
            stored == text,
            "{name} is out of date: run the tests generated_pages with BLESS=1; first difference: {differing:?}"
        );
    }
}

/// The page of metrics is derived from source text. A running server shows metrics that are missing
/// there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn page_of_metrics_lists_every_family_that_a_server_exposes() {
    let documented: BTreeMap<_, _> =
        metric_sources().into_values().flatten().map(|one| (one.name.clone(), one)).collect();
    let trust = Trust::new();
    let mut setup = Setup::default();
    setup.clusters.insert("east".to_owned(), Vec::new());
    let estate = Estate::start(&setup, &trust).await;
    let text = estate.text("/metrics").await;
    estate.stop().await;
    let mut count = 0;
    for line in text.lines().filter_map(|line| line.strip_prefix("# TYPE ")) {
        let (name, kind) = line.split_once(' ').expect("a name and a type");
        let metric = documented.get(name).unwrap_or_else(|| panic!("{name} is not documented"));
        assert_eq!(metric.kind, kind, "{name}");
        assert!(text.contains(&format!("# HELP {name} {}\n", metric.help)), "{name}");
        count += 1;
    }
    assert!(count > 60, "only {count} families");
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let Some((name, rest)) = line.split_once('{') else { continue };
        let family = ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end));
        let family = documented.get(name).or_else(|| documented.get(family?)).expect("a family");
        let labels = rest.split_once('}').map_or("", |(labels, _)| labels);
        for label in labels.split("\",").filter_map(|pair| pair.split_once("=\"")) {
            assert!(family.labels.contains(label.0), "label {} of {name}", label.0);
        }
    }
}

/// Examples are responses that were recorded once. Their fields must equal the fields of a current
/// response.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn examples_of_the_admin_api_have_the_fields_of_responses() {
    let trust = Trust::new();
    let mut setup = Setup::default();
    setup.clusters.insert("east".to_owned(), Vec::new());
    let estate = Estate::start(&setup, &trust).await;
    let (mut compared, mut wrong) = (0, Vec::new());
    for route in admin_routes() {
        // Other requests need parameters.
        let is_optional =
            |query: &String| query.contains("no query") || query.starts_with("any of");
        let is_simple = route.method == "GET" && route.query.as_ref().is_none_or(is_optional);
        let Some(example) = route.example.filter(|_| is_simple) else { continue };
        let example: Value = serde_json::from_str(&example).expect("JSON");
        let (response, fields) = (estate.get(&route.path).await, object_fields(&example));
        // A list may be empty here.
        if response.as_array().is_none_or(|rows| !rows.is_empty()) {
            let now = object_fields(&response);
            let differs = fields.symmetric_difference(&now).cloned().collect::<Vec<_>>();
            if !differs.is_empty() {
                wrong.push(format!("{}: {}", route.path, differs.join(", ")));
            }
            compared += 1;
        }
    }
    estate.stop().await;
    assert!(wrong.is_empty(), "examples with other fields than the response: {wrong:#?}");
    assert!(compared > 3, "only {compared} examples were compared");
}

/// Returns the fields of an object, or of the first object of a list.
fn object_fields(value: &Value) -> BTreeSet<String> {
    let value = value.as_array().and_then(|rows| rows.first()).unwrap_or(value);
    value.as_object().into_iter().flat_map(|object| object.keys().cloned()).collect()
}

// Commands

fn command_page() -> String {
    let mut command = strait::cli::command();
    command.build();
    let mut page = format!(
        "# Command line\n\n{HOW}\n\n\
        `strait help COMMAND` prints the text of a command, `strait help STRnnnn` the page of an [error code](error-codes.md).\n\
        An environment variable that is set to the empty string has no effect. [The contract](interface.md#commands) lists the\n\
        parts of commands and outputs that stay stable.\n\n"
    );
    let mut leaves = Vec::new();
    collect_commands(&command, &mut leaves);
    page.push_str("| command | |\n|---|---|\n");
    for leaf in &leaves {
        let path = command_path(leaf);
        let about = leaf.get_about().map(ToString::to_string).unwrap_or_default();
        let _ = writeln!(page, "| [`{path}`](#{}) | {} |", slug(&path), cell(&about));
    }
    let codes = Command::new(env!("CARGO_BIN_EXE_strait")).args(["help", "exit-codes"]).output();
    let codes = String::from_utf8(codes.expect("it runs").stdout).expect("UTF-8");
    let _ = write!(page, "\n## Exit codes\n\n```text\n{}\n```\n", codes.trim_end());
    for leaf in leaves {
        let _ = write!(page, "\n## `{}`\n\n{}", command_path(leaf), described(leaf));
    }
    page
}

fn collect_commands<'a>(command: &'a clap::Command, leaves: &mut Vec<&'a clap::Command>) {
    let mut children = command.get_subcommands().filter(|child| !child.is_hide_set()).peekable();
    // A command with subcommands may run without one, as `explain` does.
    if children.peek().is_none() || arguments_shown(command).next().is_some() {
        leaves.push(command);
    }
    children.for_each(|child| collect_commands(child, leaves));
}

fn arguments_shown(command: &clap::Command) -> impl Iterator<Item = &clap::Arg> {
    let is_common =
        |argument: &clap::Arg| ["help", "version"].contains(&argument.get_id().as_str());
    command.get_arguments().filter(move |argument| !argument.is_hide_set() && !is_common(argument))
}

fn command_path(command: &clap::Command) -> String {
    command.get_bin_name().unwrap_or_else(|| command.get_name()).to_owned()
}

fn described(command: &clap::Command) -> String {
    let about = command.get_long_about().or_else(|| command.get_about());
    let mut text = format!("{}\n\n", prose(&about.map(ToString::to_string).unwrap_or_default()));
    let usage = command.clone().render_usage().to_string();
    let _ = writeln!(text, "    {}", usage.trim_start_matches("Usage: ").trim());
    if arguments_shown(command).next().is_some() {
        text.push_str("\n| argument | default | environment | meaning |\n|---|---|---|---|\n");
    }
    for argument in arguments_shown(command) {
        let default: Vec<_> =
            argument.get_default_values().iter().map(|value| value.to_string_lossy()).collect();
        let default = if argument.get_action().takes_values() {
            code(&default.join(","))
        } else {
            String::new()
        };
        let environment = argument.get_env().map(|name| code(&name.to_string_lossy()));
        let _ = writeln!(
            text,
            "| {} | {default} | {} | {} |",
            spelled(argument),
            environment.unwrap_or_default(),
            meaning(argument)
        );
    }
    if let Some(after) = command.get_after_long_help().or_else(|| command.get_after_help()) {
        let _ = write!(text, "\n```text\n{}\n```\n", after.to_string().trim());
    }
    text
}

/// Returns an argument as users write it.
fn spelled(argument: &clap::Arg) -> String {
    let values = argument.get_value_names().unwrap_or_default();
    let values = values.iter().map(|name| format!("<{name}>")).collect::<Vec<_>>().join(" ");
    let mut names = Vec::new();
    names.extend(argument.get_short().map(|short| format!("-{short}")));
    names.extend(argument.get_long().map(|long| format!("--{long}")));
    let text = names.join(", ");
    match (argument.get_action().takes_values(), text.is_empty()) {
        (true, true) => code(&values),
        (true, false) => code(&format!("{text} {values}")),
        (false, _) => code(&text),
    }
}

fn meaning(argument: &clap::Arg) -> String {
    let help = argument.get_long_help().or_else(|| argument.get_help());
    let mut text = cell(&help.map(ToString::to_string).unwrap_or_default());
    let choices: Vec<_> = argument
        .get_possible_values()
        .iter()
        .filter(|value| !value.is_hide_set())
        .map(|value| code(value.get_name()))
        .collect();
    if argument.get_action().takes_values() && !choices.is_empty() {
        let _ = write!(text, ". Values: {}", choices.join(", "));
    }
    if matches!(argument.get_action(), clap::ArgAction::Append) {
        text.push_str(". Repeatable");
    }
    text
}

// Error codes

fn code_page() -> String {
    let mut page = format!(
        "# Error codes\n\n{HOW}\n\n\
        Messages, statuses and metrics name these codes. `strait help STRnnnn` prints the same text. A code never changes its\n\
        meaning.\n\n| code | title |\n|---|---|\n"
    );
    for code in codes::all() {
        let _ = writeln!(
            page,
            "| [{0}](#{1}) | {2} |",
            code.id,
            code.id.to_lowercase(),
            cell(code.title)
        );
    }
    for entry in codes::all() {
        let paragraphs: Vec<_> = entry.page.split("\n\n").map(prose).collect();
        // Indented lines are commands.
        let next = match entry.next.lines().any(|line| line.starts_with(' ')) {
            true => format!("\n\n```text\n{}\n```", entry.next),
            false => format!(" {}", entry.next.lines().map(prose).collect::<Vec<_>>().join("  \n")),
        };
        let _ = write!(
            page,
            "\n## {}\n\n**{}.** {}\n\n**Next step:**{next}\n",
            entry.id,
            prose(&first_upper(entry.title)),
            paragraphs.join("\n\n")
        );
    }
    page
}

// Metrics

struct Metric {
    name: String,
    kind: &'static str,
    labels: BTreeSet<String>,
    help: String,
}

fn metric_page() -> String {
    let mut page = format!(
        "# Metrics\n\n{HOW}\n\n\
        `GET /metrics` on the admin port returns them in the text format of Prometheus, or in OpenMetrics if the client requests\n\
        it. No credentials are needed. A family without a sample exists, but has no value yet. Metrics of `strait check --traffic`\n\
        are described in [test gateways](../how-to/test-gateways.md), those of the agent in\n\
        [the agent](agent.md).\n"
    );
    for (title, metrics) in metric_sources() {
        let _ =
            write!(page, "\n## {title}\n\n| name | type | labels | meaning |\n|---|---|---|---|\n");
        for metric in metrics {
            let labels: Vec<_> = metric.labels.iter().map(|label| code(label)).collect();
            let _ = writeln!(
                page,
                "| `{}` | {} | {} | {} |",
                metric.name,
                metric.kind,
                labels.join(", "),
                cell(&metric.help)
            );
        }
    }
    page
}

/// Returns the metrics by section of the page, in the order of their names.
fn metric_sources() -> BTreeMap<&'static str, Vec<Metric>> {
    let server = ["metrics.rs", "metrics/imports.rs"];
    let server = server.map(|file| read(&format!("crates/server/src/{file}")));
    let mut found = metrics_in(&server.concat());
    found.extend(metrics_in(&read("crates/ads/src/stats.rs")));
    found.sort_by(|a, b| a.name.cmp(&b.name));
    let mut sections: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for metric in found {
        let section = match metric.name.split('_').collect::<Vec<_>>()[..] {
            ["citadel", ..] => {
                "Names of Istio's metrics, some of which differ from the conventions of Prometheus (promtool check metrics)"
            }
            ["process", ..] => "Process",
            ["strait", "cluster" | "secrets" | "mcs", ..] => "Member clusters",
            ["strait", "source" | "jwks", ..] => "Other sources",
            ["strait", "xds" | "audit" | "propagation" | "streams", ..] => "Streams of proxies",
            [
                "strait",
                "ca" | "cert" | "certificate" | "certificates" | "callers" | "member",
                ..,
            ] => "Certificates and callers",
            [
                "strait",
                "configuration" | "config" | "rollout" | "rollouts" | "injections" | "validations",
                ..,
            ] => "Configuration",
            [
                "strait",
                "services" | "endpoints" | "network" | "context" | "snapshot" | "events",
                ..,
            ] => "The mesh",
            _ => "Other metrics of the process",
        };
        sections.entry(section).or_default().push(metric);
    }
    sections
}

/// Returns the metrics that a source file defines.
fn metrics_in(source: &str) -> Vec<Metric> {
    // The call, its type, and the place of the name among its arguments. The help text follows the name.
    const CALLS: [(&str, &str, usize); 7] = [
        ("Family::gauge(", "gauge", 1),
        ("Family::counter(", "counter", 1),
        (" histogram(", "histogram", 1),
        (" single(", "counter", 0),
        (" typed(", "counter", 0),
        (" labelled(", "counter", 0),
        (" reasons(", "counter", 0),
    ];
    let mut calls: Vec<(usize, &str, &str, usize)> = Vec::new();
    for (call, kind, place) in CALLS {
        let found = source.match_indices(call);
        calls.extend(found.map(|(at, _)| (at, call, kind, place)));
    }
    calls.retain(|(at, ..)| !source[..*at].ends_with("fn"));
    calls.sort_unstable();
    let ends = calls.iter().skip(1).map(|(at, ..)| *at).chain([source.len()]);
    let mut metrics = Vec::new();
    for ((at, call, kind, place), end) in calls.iter().zip(ends) {
        let arguments = call_arguments(&source[at + call.len()..]);
        // Renders the counters of another file.
        if arguments[*place].contains('.') {
            continue;
        }
        let text = |place: usize| literal_text(arguments.get(place)?, &source[..*at], source);
        let (Some(name), Some(help)) = (text(*place), text(*place + 1)) else {
            panic!("the name or the help text of a metric is not a literal: {arguments:?}");
        };
        let samples = source[*at..end].split(".sample(").skip(1);
        let samples = samples.flat_map(|rest| call_arguments(rest).into_iter().next());
        let mut labels: BTreeSet<String> = samples.flat_map(|one| labels_in(&one)).collect();
        labels.extend(match *call {
            " histogram(" => Some("le".to_owned()),
            " typed(" => Some("type".to_owned()),
            " reasons(" => Some("reason".to_owned()),
            " labelled(" => text(2),
            _ => None,
        });
        metrics.push(Metric { name, kind, labels, help });
    }
    assert!(metrics.len() > 10, "only {} metrics found", metrics.len());
    metrics
}

/// Returns the keys of `&[("key", value), …]`.
fn labels_in(argument: &str) -> Vec<String> {
    let keys = argument.split("(\"").skip(1).filter_map(|rest| rest.split('"').next());
    keys.map(str::to_owned).collect()
}

/// Returns the arguments of a call, from the text behind its opening parenthesis.
fn call_arguments(text: &str) -> Vec<String> {
    let (mut depth, mut is_text, mut is_escaped) = (1, false, false);
    let mut arguments = vec![String::new()];
    for c in text.chars() {
        let was_escaped = std::mem::take(&mut is_escaped);
        match c {
            '\\' if is_text && !was_escaped => is_escaped = true,
            '"' if !was_escaped => is_text = !is_text,
            '(' | '[' | '{' if !is_text => depth += 1,
            ')' | ']' | '}' if !is_text => depth -= 1,
            ',' if !is_text && depth == 1 => {
                arguments.push(String::new());
                continue;
            }
            _ => {}
        }
        if depth == 0 {
            break;
        }
        arguments.last_mut().expect("one at least").push(c);
    }
    arguments.into_iter().map(|argument| argument.trim().to_owned()).collect()
}

/// Returns the text of a literal, or of the last variable or constant with that name.
fn literal_text(argument: &str, before: &str, source: &str) -> Option<String> {
    let literal = |text: &str| {
        let text = text.trim_start().strip_prefix('"')?;
        let end = text.match_indices('"').find(|(at, _)| !text[..*at].ends_with('\\'))?.0;
        Some(text[..end].replace("\\\"", "\""))
    };
    let name_is = format!("let {argument} =");
    let constant = format!("const {argument}: &str =");
    literal(argument)
        .or_else(|| literal(&before[before.rfind(&name_is)? + name_is.len()..]))
        .or_else(|| literal(&source[source.find(&constant)? + constant.len()..]))
}

// Admin API

struct Route {
    method: &'static str,
    path: String,
    access: &'static str,
    about: String,
    query: Option<String>,
    example: Option<String>,
}

fn admin_page() -> String {
    let mut page = format!(
        "# Admin API\n\n{HOW}\n\n\
        The admin port (`--admin-address`, by default `127.0.0.1:15014`) serves HTTP. Responses are JSON unless stated otherwise.\n\
        [The contract](interface.md#admin-api) lists the fields of each response, and tokens and sessions in detail.\n\n\
        | access | how |\n|---|---|\n\
        | none | no credentials |\n\
        | read | `Authorization: Bearer TOKEN` with the admin token, the token of `--admin-reader-token-file` or a token of the service account `strait-viewer`, or the session of a browser |\n\
        | admin | the admin token, or a token of the service account `strait-admin` |\n\n\
        `export STRAIT_TOKEN_FILE=FILE`, then for example:\n\n\
        \x20   curl -H \"Authorization: Bearer $(cat $STRAIT_TOKEN_FILE)\" http://127.0.0.1:15014/debug/clusters\n\n\
        `/` is [the page](../how-to/use-the-page.md), `/page/FILE` are its files, and `/login` opens a session in a browser.\n\n\
        | request | access | |\n|---|---|---|\n"
    );
    let routes = admin_routes();
    for route in &routes {
        let request = format!("{} {}", route.method, route.path);
        let about = cell(&route.about);
        let _ =
            writeln!(page, "| [`{request}`](#{}) | {} | {about} |", slug(&request), route.access);
    }
    for route in &routes {
        let _ = write!(page, "\n## `{} {}`\n\n{}\n", route.method, route.path, prose(&route.about));
        if let Some(query) = &route.query {
            let _ = write!(page, "\nQuery: {}\n", query.trim());
        }
        if let Some(example) = &route.example {
            let _ = write!(page, "\n```json\n{}\n```\n", example.trim_end());
        }
    }
    page
}

/// Returns the routes of the admin port, in the order of their paths.
fn admin_routes() -> Vec<Route> {
    let folder = "crates/server/src/admin";
    let module = read(&format!("{folder}/mod.rs"));
    let mut routes = Vec::new();
    // The reading routes are a function of their own, because other replicas use them too.
    for (function, default) in [("fn debug_routes(", "read"), ("fn router(", "none")] {
        let (_, router) = module.split_once(function).expect("the routes");
        let (router, _) = router.split_once("\n}\n").expect("its end");
        // Layers apply to the routes above them in the same router.
        for (at, _) in router.match_indices(".route(") {
            let arguments = call_arguments(&router[at + ".route(".len()..]);
            let path = arguments[0].trim_matches('"').to_owned();
            let scope = router[at..].split("let ").next().unwrap_or_default();
            let access = match scope {
                scope if scope.contains("authorize)") => "read",
                scope if scope.contains("holds_token)") => "admin",
                _ => default,
            };
            for (method, name) in handlers_in(&arguments[1]) {
                let (file, function) = name.rsplit_once("::").unwrap_or(("mod", name));
                let source = read(&format!("{folder}/{}.rs", file.replace("::", "/")));
                let (about, query) = documented(&source, function);
                let file =
                    format!("docs/reference/examples/{method}{}.json", path.replace('/', "-"));
                let example = std::fs::read_to_string(root().join(file.to_lowercase())).ok();
                routes.push(Route { method, path: path.clone(), access, about, query, example });
            }
        }
    }
    assert!(routes.len() > 30, "only {} routes found", routes.len());
    routes.sort_by(|a, b| (&a.path, a.method).cmp(&(&b.path, b.method)));
    routes
}

/// Returns `(METHOD, function)` for each handler. Handlers of unknown paths have no method.
fn handlers_in(argument: &str) -> Vec<(&'static str, &str)> {
    let mut handlers = Vec::new();
    for (call, method) in [("get(", "GET"), ("post(", "POST")] {
        for (at, _) in argument.match_indices(call) {
            let name = argument[at + call.len()..].split(')').next().unwrap_or_default();
            handlers.push((method, name));
        }
    }
    handlers
}

/// Returns the doc comment of a handler, and the form of the handler's query.
fn documented(source: &str, function: &str) -> (String, Option<String>) {
    let at = source.find(&format!("async fn {function}(")).expect("a handler");
    let head: Vec<_> = source[..at].lines().rev().collect();
    // The line of the function itself may begin with `pub(super)`.
    let skipped = usize::from(!source[..at].ends_with('\n'));
    let mut lines: Vec<_> = head
        .iter()
        .skip(skipped)
        .map_while(|line| line.strip_prefix("///"))
        .map(str::trim)
        .collect();
    lines.reverse();
    assert!(!lines.is_empty(), "the handler {function} has no doc comment");
    let body = source[at..].split("\n}\n").next().unwrap_or_default();
    let usage = match body.contains("bad(USAGE)") {
        true => source.split("const USAGE: &str = \"").nth(1),
        false => body.split("Query<").nth(1).and_then(|rest| rest.split("bad(").nth(1)),
    };
    let usage = usage.and_then(|rest| rest.trim_start().trim_start_matches('"').split('"').next());
    let usage = usage.and_then(|text| text.strip_prefix("expected "));
    let query = usage.map(|text| {
        let parts = text.split(' ');
        let parts = parts.map(|part| match part.strip_suffix(',') {
            Some(name) if name.starts_with('?') => format!("{},", code(name)),
            _ if part.starts_with('?') => code(part),
            _ => part.to_owned(),
        });
        parts.collect::<Vec<_>>().join(" ")
    });
    (lines.join(" "), query)
}

// Markdown

fn code(text: &str) -> String {
    if text.is_empty() { String::new() } else { format!("`{}`", text.replace('|', "\\|")) }
}

/// Returns text as the cell of a table.
fn cell(text: &str) -> String {
    prose(text).replace('|', "\\|")
}

/// Returns text in one paragraph, without markup by accident.
fn prose(text: &str) -> String {
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    // Text between backticks is code already.
    let parts = text.split('`').enumerate().map(|(index, part)| match index % 2 {
        0 => part.replace('<', "\\<").replace('*', "\\*").replace('_', "\\_").replace("[", "\\["),
        _ => part.to_owned(),
    });
    parts.collect::<Vec<_>>().join("`")
}

fn first_upper(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

fn read(path: &str) -> String {
    let text = std::fs::read_to_string(root().join(path)).expect("a source file");
    text.split("#[cfg(test)]\nmod ").next().unwrap_or_default().to_owned()
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}
