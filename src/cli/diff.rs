//! `strait diff`: changes since an earlier version, and effects of objects before they are applied.

use std::path::PathBuf;

use clap::{ArgGroup, Args};
use serde_json::{Value, json};

use super::client::AdminClient;
use super::failure::{CommandFailure, CommandResult, Exit};
use super::list::QueryArgs;
use super::offline_mesh::read_files;
use super::output::{self, Cell, Format, OutputStyle, clean, text};
use strait_admin_api::{
    AffectedProxies, ChangePreview, ChangedResource, ObjectAction, ObjectState, PreviewedObject,
    TypeChanges,
};
use strait_base::codes;
use strait_sources::store::files::{ManifestContents, ManifestNamespaces, read_manifests};

/// Maximum number of listed proxies in a group.
const NAMED_MAX: usize = 3;
/// Maximum number of listed resources of one type and kind of change without `--show`.
const RESOURCES_MAX: usize = 10;

/// Show changes since an earlier version, or the effects of objects before they are applied.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("asked").required(true).multiple(true).args(["at", "files", "delete"]))]
pub(crate) struct DiffArgs {
    /// Earlier state to compare with: a version of 'history list', a time (2026-11-25T02:00:00Z),
    /// or an age (10m)
    #[arg(long, value_name = "TIME|VERSION", conflicts_with_all = ["files", "delete"])]
    at: Option<String>,
    /// With --at: only endpoints of this cluster
    #[arg(long, value_name = "ID", requires = "at")]
    cluster: Option<String>,
    /// Show the effects of the objects in these files and directories, or '-' for standard input,
    /// before they are applied: the affected proxies, and their changed resources. They replace
    /// objects of the same kind, namespace and name
    #[arg(long = "file", short = 'f', value_name = "FILE", num_args = 1..)]
    files: Vec<PathBuf>,
    /// Show the effects of deleting this object; repeatable
    #[arg(long, value_name = "KIND/NAMESPACE/NAME")]
    delete: Vec<String>,
    /// With -f and --delete: only for this proxy
    #[arg(long, value_name = "PROXY", conflicts_with = "at")]
    proxy: Option<String>,
    /// With -f and --delete: list all resources by name, and the changed fields of changed
    /// resources
    #[arg(long, conflicts_with = "at")]
    show: bool,
    /// Namespace of objects in files that name none
    #[arg(long, short, value_name = "NS", default_value = "default")]
    namespace: String,
    #[command(flatten)]
    common: QueryArgs,
}

impl DiffArgs {
    /// Returns the earlier state, the cluster whose endpoints are shown, and the query flags;
    /// `None` if the arguments contain files or names.
    pub(super) fn then(&self) -> Option<(&str, Option<&str>, &QueryArgs)> {
        Some((self.at.as_deref()?, self.cluster.as_deref(), &self.common))
    }
}

/// Runs `strait diff` with files or names of objects.
pub(crate) async fn run(args: &DiffArgs) -> CommandResult {
    let namespaces = ManifestNamespaces { of_objects: &args.namespace, system: None };
    let ManifestContents { objects, members, .. } =
        read_manifests(read_files(&args.files)?, namespaces);
    let others: Vec<Value> = objects.others.values().map(|one| one.to_value()).collect();
    let unread: Vec<_> = objects.warnings.iter().collect();
    for warning in &unread {
        eprint_line!("{}", clean(&warning.to_string()));
    }
    if unread.iter().any(|warning| warning.text.starts_with(codes::CONFIG_FILE.id)) {
        let text = "a file contains errors, so no effects were computed";
        return Err(CommandFailure::failed(text).documented(&codes::CONFIG_FILE));
    }
    if !members.is_empty() {
        eprint_line!("ignoring {} objects of member clusters (Services, Pods)", members.len());
    }
    if others.is_empty() && args.delete.is_empty() {
        let files: Vec<_> = args.files.iter().map(|file| file.display().to_string()).collect();
        let text = format!("no configuration objects of the mesh in {}", files.join(", "));
        return Err(CommandFailure::usage(text).next(
            "choose files with objects (for example VirtualServices), or objects to delete with --delete KIND/NAMESPACE/NAME",
        ));
    }
    let remove = args.delete.iter().map(|name| removed(name)).collect::<Result<Vec<_>, _>>()?;
    let question = json!({ "objects": others, "remove": remove });
    let mut query = vec![("fields", if args.show { "true" } else { "false" })];
    query.extend(args.proxy.as_deref().map(|proxy| ("proxy", proxy)));
    let answer =
        AdminClient::new(&args.common.connect).await?.post("/debug/diff", &query, &question).await;
    let answer = answer.map_err(|failure| failure.or_next("strait proxy list"))?;
    let preview: ChangePreview = answer.read()?;
    let look = OutputStyle::of_stdout();
    output::print(&match args.common.show.output {
        Format::Json => answer.raw,
        Format::Yaml => output::yaml(&answer.value),
        Format::Name => names(&preview),
        Format::Table | Format::Wide => render(&preview, args.show, &look),
    })?;
    Ok(exit(&preview))
}

/// Parses the name of an object to be deleted.
fn removed(name: &str) -> Result<Value, CommandFailure> {
    let parts: Vec<&str> = name.split('/').collect();
    match parts[..] {
        [kind, namespace, name] if ![kind, namespace, name].contains(&"") => {
            Ok(json!({ "kind": kind, "namespace": namespace, "name": name }))
        }
        _ => Err(CommandFailure::usage(format!("--delete {name:?} is not KIND/NAMESPACE/NAME"))
            .next("strait diff --delete VirtualService/shop/reviews")),
    }
}

/// Returns exit code 2 if an object of the change has a problem. Effects on proxies are the purpose
/// of the command and not a problem.
fn exit(answer: &ChangePreview) -> Exit {
    let is_bad = |one: &PreviewedObject| {
        let state = one.state.as_ref();
        state.is_some_and(|state| {
            matches!(state, ObjectState::Refused | ObjectState::Partly | ObjectState::Shadowed)
        })
    };
    match answer.objects.iter().any(is_bad) || answer.objects.iter().any(is_left_out) {
        true => Exit::Unhealthy,
        false => Exit::Fine,
    }
}

/// Returns whether the effects of an object were not computed.
fn is_left_out(one: &PreviewedObject) -> bool {
    one.action == ObjectAction::Left
}

/// Returns the affected proxies, one per line.
fn names(answer: &ChangePreview) -> String {
    let proxies = answer.affected.iter().flat_map(|group| &group.proxies);
    proxies.map(|proxy| format!("proxy/{}\n", text(&proxy.key))).collect()
}

pub(super) fn render(answer: &ChangePreview, is_long: bool, look: &OutputStyle) -> String {
    let mut out = String::new();
    for row in &answer.objects {
        out += &object(row, look);
    }
    for group in &answer.affected {
        out += &of_group(group, is_long, look);
    }
    let affected = answer.affected.iter().map(|one| one.proxies.len()).sum::<usize>();
    if answer.objects.iter().any(is_left_out) {
        out += "\neffects without the objects that were left out:";
    }
    out += &match (affected, answer.unaffected) {
        (0, 0) => "\nno proxy is connected\n".to_owned(),
        (0, unchanged) => {
            format!("\nthe configuration of {} would not change\n", proxies(unchanged))
        }
        (changed, unchanged) => {
            format!("\n{} would receive changes, {unchanged} would not\n", proxies(changed))
        }
    };
    if let skipped @ 1.. = answer.not_looked_at {
        out += &format!(
            "{} were not checked because of the time limit; select one with --proxy\n",
            proxies(skipped)
        );
    }
    out
}

fn proxies(count: usize) -> String {
    if count == 1 { "1 proxy".to_owned() } else { format!("{count} proxies") }
}

fn object(row: &PreviewedObject, look: &OutputStyle) -> String {
    let [kind, namespace, name] = [&row.kind, &row.namespace, &row.name].map(text);
    let state = match &row.state {
        Some(ObjectState::InForce) => Cell::good("active"),
        Some(state @ (ObjectState::Refused | ObjectState::Partly | ObjectState::Shadowed)) => {
            Cell::bad(state.as_str())
        }
        Some(state) => Cell::doubtful(text(state.as_str())),
        None => "".into(),
    };
    let action = match row.action {
        ObjectAction::New => "is new",
        ObjectAction::Changed => "is changed",
        ObjectAction::Same => "already exists",
        ObjectAction::Removed => "would be deleted",
        _ => "is left out: the effects of its kind are not computed",
    };
    let state = state.paint(look);
    let suffix = if state.is_empty() { String::new() } else { format!(": {state}") };
    let mut out = format!("{kind} {namespace}/{name} {action}{suffix}\n");
    for reason in &row.reasons {
        let [code, path, fact] = [&reason.code, &reason.path, &reason.text].map(text);
        out += &format!("    {code} {path}: {fact}\n");
    }
    out
}

fn of_group(group: &AffectedProxies, is_long: bool, look: &OutputStyle) -> String {
    let all = &group.proxies;
    let named: Vec<String> = all
        .iter()
        .take(if is_long { usize::MAX } else { NAMED_MAX })
        .map(|one| format!("{}@{}", text(&one.key), text(&one.cluster)))
        .collect();
    let more = match all.len() - named.len() {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let mut out = format!("\n{}{more} would be sent\n", named.join(", "));
    for (kind, TypeChanges { added, changed, removed }) in &group.types {
        let named = |names: &[String]| -> Vec<ChangedResource> {
            names.iter().map(|name| ChangedResource { name: name.clone(), fields: None }).collect()
        };
        let parts = [("+", named(added)), ("~", changed.clone()), ("-", named(removed))];
        for (sign, rows) in parts {
            let shown = if is_long { rows.len() } else { rows.len().min(RESOURCES_MAX) };
            for row in &rows[..shown] {
                out += &resource(sign, kind, row, look);
            }
            if let more @ 1.. = rows.len() - shown {
                out += &format!("    {sign} {kind} and {more} more (--show)\n");
            }
        }
    }
    out
}

fn resource(sign: &str, kind: &str, row: &ChangedResource, look: &OutputStyle) -> String {
    let line = format!("{sign} {kind} {}", text(&row.name));
    let cell = match sign {
        "+" => Cell::good(line),
        "-" => Cell::bad(line),
        _ => Cell::doubtful(line),
    };
    let mut out = format!("    {}\n", cell.paint(look).trim_end());
    for field in row.fields.iter().flatten() {
        let value = |value: &Option<String>| match value {
            Some(value) => clean(value),
            None => "<none>".to_owned(),
        };
        let (before, after) = (value(&field.before), value(&field.after));
        out += &format!("        {}: {before} -> {after}\n", text(&field.path));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::super::output::tests::{LOOK, typed};
    use super::*;

    fn answer() -> ChangePreview {
        let proxy = |name: &str| json!({ "key": name, "id": name, "cluster": "east" });
        let names: Vec<String> = (0..12).map(|at| format!("c{at:02}")).collect();
        typed(json!({
            "objects": [
                {
                    "kind": "VirtualService", "namespace": "shop", "name": "web", "action": "changed",
                    "state": "partly", "proxies": 4,
                    "reasons": [{ "code": "STR1044", "path": "spec.http[0]", "text": "no subset v1" }],
                },
                { "kind": "Sidecar", "namespace": "shop", "name": "old", "action": "removed", "state": null, "reasons": [] },
                { "kind": "ServiceEntry", "namespace": "shop", "name": "db", "action": "left", "state": null, "reasons": [] },
            ],
            "affected": [{
                "proxies": [proxy("a.shop-1"), proxy("b.shop-2"), proxy("c.shop-3"), proxy("d.shop-4")],
                "types": {
                    "cds": { "added": names, "changed": [], "removed": ["gone"] },
                    "rds": {
                        "added": [], "removed": [],
                        "changed": [{ "name": "80", "fields": [{ "path": "a[b]", "before": null, "after": "\"3s\"" }] }],
                    },
                },
            }],
            "unaffected": 7,
            "notLookedAt": 2,
        }))
    }

    #[test]
    fn proxies_with_equal_changes_share_a_group() {
        let expected = "\
VirtualService shop/web is changed: partly
    STR1044 spec.http[0]: no subset v1
Sidecar shop/old would be deleted
ServiceEntry shop/db is left out: the effects of its kind are not computed

a.shop-1@east, b.shop-2@east, c.shop-3@east and 1 more would be sent
    + cds c00
    + cds c01
    + cds c02
    + cds c03
    + cds c04
    + cds c05
    + cds c06
    + cds c07
    + cds c08
    + cds c09
    + cds and 2 more (--show)
    - cds gone
    ~ rds 80
        a[b]: <none> -> \"3s\"

effects without the objects that were left out:
4 proxies would receive changes, 7 would not
2 proxies were not checked because of the time limit; select one with --proxy
";
        assert_eq!(render(&answer(), false, &LOOK), expected);
        let long = render(&answer(), true, &LOOK);
        assert!(long.contains("d.shop-4@east") && long.contains("+ cds c11"), "{long}");
        assert_eq!(names(&answer()).lines().count(), 4);
        assert_eq!(exit(&answer()), Exit::Unhealthy);
    }

    #[test]
    fn deleted_objects_are_named_by_kind_namespace_and_name() {
        let expected = json!({ "kind": "Sidecar", "namespace": "shop", "name": "web" });
        assert_eq!(removed("Sidecar/shop/web").expect("a name"), expected);
        for name in ["Sidecar", "Sidecar/web", "Sidecar//web", "a/b/c/d"] {
            assert!(removed(name).is_err(), "{name}");
        }
    }
}
