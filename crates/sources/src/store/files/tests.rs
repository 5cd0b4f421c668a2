use notify::Watcher as _;

use super::*;
use crate::store::ObjectName;
use strait_base::mass_deletion::CONFIRM_AFTER;
use strait_model::ObjectJson;

/// A directory, and the objects read from it.
struct Fixture {
    directory: tempfile::TempDir,
    files: DirectoryFiles,
    objects: Objects,
}

impl Fixture {
    fn new() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        Self {
            directory,
            files: DirectoryFiles::new("strait-system".to_owned()),
            objects: Objects::default(),
        }
    }

    fn with(files: &[(&str, &str)]) -> Self {
        let mut fixture = Self::new();
        for (name, text) in files {
            fixture.write(name, text);
        }
        fixture.look();
        fixture
    }

    /// Writes a file atomically: a new file, then a rename.
    fn write(&self, name: &str, text: &str) {
        let hidden = self.directory.path().join(".new");
        fs::write(&hidden, text).expect("written");
        fs::rename(hidden, self.directory.path().join(name)).expect("renamed");
    }

    fn look(&mut self) -> bool {
        self.look_as_of(Instant::now())
    }

    /// Scans long after the last scan.
    fn look_later(&mut self) -> bool {
        self.look_as_of(Instant::now() + CONFIRM_AFTER)
    }

    fn look_as_of(&mut self, now: Instant) -> bool {
        let changed = self.files.look(self.directory.path(), now);
        let news = changed.is_some();
        self.objects = changed.unwrap_or_else(|| self.objects.clone());
        news
    }

    fn secrets(&self) -> Vec<String> {
        self.objects.secrets.iter().map(|secret| secret.name.to_string()).collect()
    }

    fn warnings(&self) -> Vec<String> {
        self.objects.warnings.iter().map(Warning::to_string).collect()
    }
}

fn secret(name: &str, data: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Secret\nmetadata:\n  name: {name}\n  labels: {{istio/multiCluster: \"true\"}}\n{data}\n"
    )
}

#[test]
fn an_empty_directory_is_read() {
    let fixture = Fixture::with(&[]);
    assert!(fixture.files.read_once);
    assert_eq!(fixture.objects, Objects::default());
}

#[test]
fn objects_of_all_files_and_documents_are_read() {
    let two = format!("{}---\n{}---\n# nothing\n", secret("a", ""), secret("b", ""));
    let json = r#"{"apiVersion": "v1", "kind": "List", "items": [
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "strait"}, "data": {"mesh": "x"}},
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop", "labels": {"a": "b"}}},
        {"apiVersion": "networking.istio.io/v1", "kind": "ServiceEntry", "metadata": {"name": "out"}}]}"#;
    let typed = r#"{"apiVersion": "v1", "kind": "SecretList", "items": [
        {"metadata": {"name": "d", "labels": {"strait.dev/cluster": "true"}}}]}"#;
    let fixture = Fixture::with(&[
        ("two.yaml", &two),
        ("c.yml", &secret("c", "")),
        ("list.json", json),
        ("typed.json", typed),
        (".hidden.yaml", "not: [read"),
        ("notes.txt", "not read"),
    ]);
    assert_eq!(fixture.warnings(), Vec::<String>::new());
    assert_eq!(
        fixture.secrets(),
        ["strait-system/a", "strait-system/b", "strait-system/c", "strait-system/d"]
    );
    assert_eq!(fixture.objects.config_maps[0].name.to_string(), "strait-system/strait");
    assert_eq!(fixture.objects.namespaces[0].labels["a"], "b");
    assert_eq!(
        fixture.objects.others.values().next().expect("one").to_value()["metadata"]["namespace"],
        "strait-system"
    );
}

#[test]
fn all_objects_of_a_cluster_may_be_in_one_file() {
    let all: Vec<String> = (0..1_100).map(|number| secret(&format!("s{number}"), "")).collect();
    let fixture = Fixture::with(&[("all.yaml", &all.join("---\n"))]);
    assert_eq!(fixture.warnings(), Vec::<String>::new());
    assert_eq!(fixture.secrets().len(), 1_100);
}

#[test]
fn string_data_wins_over_data() {
    let data = "data: {east: b2xk, west: b2xk}\nstringData: {east: new}";
    let fixture = Fixture::with(&[("a.yaml", &secret("a", data))]);
    let data = &fixture.objects.secrets[0].data;
    assert_eq!(data["east"].reveal(), b"new");
    assert_eq!(data["west"].reveal(), b"old");
}

#[test]
fn invalid_file_keeps_its_last_valid_objects() {
    let valid = secret("a", "");
    let mut fixture = Fixture::with(&[("a.yaml", &valid), ("b.yaml", &secret("b", ""))]);
    for (invalid, warning) in [
        ("kind: [", "a.yaml, document 1, line 1"),
        (
            "kind: ConfigMap\napiVersion: v1\nmetadata: {name: x}\n---\n- 1\n",
            "a.yaml, document 2, line 5",
        ),
        ("# one\n---\napiVersion: v1\nmetadata: {name: x}\n", "a.yaml, document 1, line 3"),
        ("kind: Secret\napiVersion: v1\nmetadata: {}\n", "has no metadata.name"),
        (&secret("a", "data: {east: '%'}"), "data.east is not base64"),
        ("\u{0}", "a.yaml"),
    ] {
        fixture.write("a.yaml", invalid);
        assert!(fixture.look(), "{invalid}");
        assert_eq!(fixture.secrets(), ["strait-system/a", "strait-system/b"], "{invalid}");
        let warnings = fixture.warnings().join("\n");
        assert!(warnings.contains(warning), "{invalid}: {warnings}");
        assert!(warnings.contains("STR0219") && warnings.contains("stay in use"), "{warnings}");
    }
    fixture.write("a.yaml", &secret("c", ""));
    fixture.look();
    assert_eq!(fixture.secrets(), ["strait-system/b", "strait-system/c"]);
    assert_eq!(fixture.warnings(), Vec::<String>::new());
}

#[test]
fn file_that_was_never_valid_contributes_its_valid_objects() {
    let (a, b) = (secret("a", ""), secret("b", ""));
    for invalid in ["kind: [\n", "kind: Secret\napiVersion: v1\nmetadata: {}\n", "\tx: {\n"] {
        for text in [
            format!("{a}---\n{invalid}---\n{b}"),
            format!("# one\n---\n{invalid}--- \n{b}---\n{a}"),
        ] {
            let mut fixture = Fixture::with(&[("x.yaml", &text)]);
            assert_eq!(fixture.secrets(), ["strait-system/a", "strait-system/b"], "{text}");
            let warnings = fixture.warnings().join("\n");
            assert!(
                warnings.contains("STR0219") && warnings.contains("valid objects (2)"),
                "{warnings}"
            );
            assert_eq!(fixture.objects.partial.as_deref(), Some("x.yaml"));
            fixture.write("x.yaml", &a);
            assert!(fixture.look());
            assert_eq!(fixture.secrets(), ["strait-system/a"], "missing objects are removed");
            assert_eq!(fixture.objects.partial, None);
            // From now on, all valid objects stay.
            fixture.write("x.yaml", &format!("{b}---\n{invalid}"));
            assert!(fixture.look());
            assert_eq!(
                (fixture.secrets(), &fixture.objects.partial),
                (vec!["strait-system/a".into()], &None)
            );
        }
    }
    assert_eq!(Fixture::with(&[("x.json", "{")]).objects.partial.as_deref(), Some("x.json"));
}

#[test]
fn pipe_in_the_directory_is_ignored_with_a_warning() {
    let mut fixture = Fixture::with(&[("a.yaml", &secret("a", "data: {}"))]);
    let pipe = fixture.directory.path().join("b.yaml");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status().expect("it runs");
    assert!(made.success() && fixture.look());
    let text = "STR0219: is ignored: it is a pipe, a socket or a device, not a file";
    assert_eq!(fixture.warnings(), [format!("b.yaml: {text}")]);
    assert!(!fixture.look(), "nothing new");
    fs::remove_file(pipe).expect("removed");
    assert!(fixture.look() && fixture.warnings().is_empty());
}

#[test]
fn warnings_never_quote_the_file() {
    for text in [
        "token: canary: x",
        "canary",
        "kind: Secret\napiVersion: v1\nmetadata: {name: a}\ndata: {a: canary!}",
    ] {
        let fixture = Fixture::with(&[("a.yaml", text)]);
        let warnings = fixture.warnings().join("\n");
        assert!(!warnings.is_empty() && !warnings.contains("canary"), "{warnings}");
    }
}

#[test]
fn duplicate_key_is_reported() {
    let text = "apiVersion: v1\nkind: Namespace\nmetadata:\n  name: a\n  name: b\n";
    let wrong = parse_text("a.yaml", text, "strait-system").err().expect("which one is meant?");
    assert!(wrong.to_string().contains("line 5: has a duplicate key there"), "{wrong}");
}

#[test]
fn the_first_file_by_name_wins() {
    let first = secret("a", "stringData: {east: one}");
    let second = secret("a", "stringData: {east: two}");
    let mut fixture = Fixture::with(&[("2.yaml", &second), ("1.yaml", &first)]);
    let east = |fixture: &Fixture| fixture.objects.secrets[0].data["east"].reveal().clone();
    assert_eq!(east(&fixture), b"one");
    assert_eq!(
        fixture.warnings(),
        ["1.yaml: Secret strait-system/a is in 2.yaml as well; the one here is used"]
    );
    fs::remove_file(fixture.directory.path().join("1.yaml")).expect("removed");
    assert!(fixture.look());
    assert_eq!(east(&fixture), b"two");
}

#[test]
fn variants_of_one_object_are_one_warning() {
    let text = secret("a", "stringData: {east: one}");
    let names: Vec<String> = (1..=8).map(|at| format!("{at}.yaml")).collect();
    let files: Vec<(&str, &str)> = names.iter().map(|name| (&**name, &*text)).collect();
    let expected = "1.yaml: Secret strait-system/a is in 2.yaml, 3.yaml, 4.yaml, 5.yaml, 6.yaml and 2 more as well; \
                    the one here is used";
    assert_eq!(Fixture::with(&files).warnings(), [expected]);
}

#[test]
fn objects_without_a_namespace_are_placed_and_named() {
    let text = "apiVersion: v1\nkind: List\nitems:\n\
        - {apiVersion: networking.istio.io/v1, kind: Sidecar, metadata: {name: a}}\n\
        - {apiVersion: networking.istio.io/v1, kind: Sidecar, metadata: {name: b, namespace: shop}}\n\
        - {apiVersion: gateway.networking.k8s.io/v1, kind: GatewayClass, metadata: {name: c}}\n";
    let namespaces = ManifestNamespaces { of_objects: "default", system: Some("strait-system") };
    let contents = read_manifests([("a.yaml".to_owned(), text.into())], namespaces);
    let place = |key: &ObjectKey| format!("{}/{}", key.namespace, key.name);
    let all: Vec<_> = contents.objects.others.iter().map(|(key, _)| place(key)).collect();
    assert_eq!(all, ["/c", "default/a", "shop/b"]);
    assert_eq!(contents.unnamed.iter().map(place).collect::<Vec<_>>(), ["default/a"]);
}

#[test]
fn services_and_pods_and_secrets_elsewhere_are_ignored_with_a_warning() {
    let service = "apiVersion: v1\nkind: Service\nmetadata: {name: s, namespace: shop}\n";
    let elsewhere = secret("a", "").replace("  name: a\n", "  name: a\n  namespace: shop\n");
    let unlabelled = "apiVersion: v1\nkind: Secret\nmetadata: {name: mine}\n";
    let fixture =
        Fixture::with(&[("a.yaml", &elsewhere), ("s.yaml", service), ("u.yaml", unlabelled)]);
    assert_eq!(fixture.secrets(), Vec::<String>::new());
    assert_eq!(
        fixture.warnings(),
        [
            "a.yaml: Secret shop/a is outside namespace strait-system: it defines members only if a source of --members selects it",
            "s.yaml, document 1, line 1: Service shop/s is ignored: services come from member clusters",
        ]
    );
}

#[test]
fn unchanged_directory_is_not_reported() {
    let mut fixture = Fixture::with(&[("a.yaml", &secret("a", "")), ("bad.yaml", "[")]);
    assert!(!fixture.look());
    fixture.write("a.yaml", &secret("b", ""));
    assert!(fixture.look());
    assert!(!fixture.look());
}

#[test]
fn unchanged_file_is_not_opened() {
    let mut fixture = Fixture::with(&[("a.yaml", &secret("a", ""))]);
    let (sender, events) = std::sync::mpsc::channel();
    let mut watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
        let _ = sender.send(event.expect("an event"));
    })
    .expect("a watcher");
    let folder = fixture.directory.path().to_owned();
    watcher.watch(&folder, notify::RecursiveMode::NonRecursive).expect("watched");
    // Events arrive in order: those before the event of `mark` are caused by the scan.
    let is_touched = |fixture: &mut Fixture, mark: &str| {
        let news = fixture.look();
        fs::write(folder.join(mark), "").expect("written");
        let mut touched = false;
        loop {
            let event = events.recv_timeout(Duration::from_secs(20)).expect("an event in time");
            let concerns = |name: &str| event.paths.iter().any(|path| path.ends_with(name));
            if concerns(mark) {
                return (news, touched);
            }
            touched |= concerns("a.yaml") && event.kind.is_access();
        }
    };
    assert_eq!(is_touched(&mut fixture, "mark-1"), (false, false));
    fixture.write("a.yaml", &secret("b", ""));
    assert_eq!(is_touched(&mut fixture, "mark-2"), (true, true));
    assert_eq!(is_touched(&mut fixture, "mark-3"), (false, false));
}

#[test]
fn missing_directory_keeps_its_last_objects() {
    let mut fixture = Fixture::with(&[("a.yaml", &secret("a", ""))]);
    let elsewhere = fixture.directory.path().with_extension("moved");
    fs::rename(fixture.directory.path(), &elsewhere).expect("renamed");
    assert!(fixture.look());
    assert_eq!(fixture.secrets(), ["strait-system/a"]);
    assert!(fixture.warnings()[0].contains("STR0219"));
    fs::rename(&elsewhere, fixture.directory.path()).expect("renamed back");
    assert!(fixture.look());
    assert_eq!(fixture.warnings(), Vec::<String>::new());
}

#[test]
fn directory_that_never_existed_is_not_an_empty_one() {
    let mut fixture = Fixture::new();
    assert_eq!(fixture.files.look(&fixture.directory.path().join("nowhere"), Instant::now()), None);
    assert!(!fixture.files.read_once);
}

#[test]
fn swapped_data_link_is_detected() {
    let mut fixture = Fixture::new();
    let root = fixture.directory.path().to_owned();
    let version = |name: &str, secret_name: &str| {
        fs::create_dir(root.join(name)).expect("a folder");
        fs::write(root.join(name).join("a.yaml"), secret(secret_name, "")).expect("written");
        let link = root.join("..data_tmp");
        std::os::unix::fs::symlink(name, &link).expect("linked");
        fs::rename(link, root.join("..data")).expect("swapped");
    };
    version("..2026_1", "one");
    std::os::unix::fs::symlink("..data/a.yaml", root.join("a.yaml")).expect("linked");
    fixture.look();
    assert_eq!(fixture.secrets(), ["strait-system/one"]);
    version("..2026_2", "two");
    assert!(fixture.look());
    assert_eq!(fixture.secrets(), ["strait-system/two"]);
}

#[test]
fn link_without_a_target_keeps_the_objects_of_the_file() {
    let mut fixture = Fixture::new();
    let root = fixture.directory.path().to_owned();
    let target = root.join("target");
    fs::write(&target, secret("one", "")).expect("written");
    std::os::unix::fs::symlink("target", root.join("a.yaml")).expect("linked");
    fixture.look();
    fs::remove_file(&target).expect("removed");
    assert!(fixture.look());
    assert_eq!(fixture.secrets(), ["strait-system/one"]);
    let warnings = fixture.warnings();
    assert!(warnings.len() == 1 && warnings[0].contains("STR0219"), "{warnings:?}");
    assert!(!fixture.look(), "nothing new");
    fs::write(&target, secret("two", "")).expect("written");
    assert!(fixture.look());
    assert_eq!(fixture.secrets(), ["strait-system/two"]);
    assert!(fixture.warnings().is_empty());
}

#[tokio::test]
async fn changes_are_detected_by_the_watch() {
    let fixture = Fixture::new();
    let tasks = Supervisor::new();
    let path = fixture.directory.path().to_owned();
    let mut objects = watch(path, "strait-system".to_owned(), RememberedStore::default(), &tasks);
    let mut names = async |wanted: &[&str]| {
        let both_objects = objects.wait_for(|objects| {
            objects.as_deref().is_some_and(|objects| {
                objects
                    .secrets
                    .iter()
                    .map(|secret| secret.name.name.as_ref())
                    .eq(wanted.iter().copied())
            })
        });
        tokio::time::timeout(Duration::from_secs(10), both_objects)
            .await
            .expect("in time")
            .expect("alive");
    };
    names(&[]).await;
    fixture.write("a.yaml", &secret("a", ""));
    names(&["a"]).await;
    fixture.write("b.yaml", &secret("b", ""));
    names(&["a", "b"]).await;
    fs::remove_file(fixture.directory.path().join("a.yaml")).expect("removed");
    names(&["b"]).await;
    assert!(tasks.shut_down(Duration::from_secs(5)).await);
}

#[test]
fn directory_that_suddenly_lacks_most_objects_is_read_again() {
    let all = format!("{}---\n{}---\n{}", secret("a", ""), secret("b", ""), secret("c", ""));
    let mut fixture = Fixture::with(&[("all.yaml", &all)]);
    let before = fixture.secrets();
    let file = fixture.directory.path().join("all.yaml");
    // For example, because a volume is not mounted or a writer has just started.
    for step in [
        |file: &Path, _: &str| fs::remove_file(file).expect("gone"),
        |file: &Path, all: &str| {
            fs::write(file, &all[..all.find("---").expect("a marker")]).expect("written");
        },
    ] {
        step(&file, &all);
        assert!(fixture.look(), "it is reported");
        assert_eq!(fixture.secrets(), before);
        assert!(fixture.warnings()[0].contains("STR0606"), "{:?}", fixture.warnings());
        assert!(!fixture.look(), "once");
        fixture.write("all.yaml", &all);
        assert!(fixture.look());
        assert_eq!((fixture.secrets(), fixture.warnings().len()), (before.clone(), 0));
    }
    fs::remove_file(&file).expect("gone");
    fixture.look();
    assert!(fixture.look_later());
    assert_eq!((fixture.secrets().len(), fixture.warnings().len()), (0, 0));
}

#[test]
fn directory_that_lacks_most_remembered_objects_is_read_again() {
    let secrets: BTreeSet<_> = [ObjectName::new("strait-system", "a")].into();
    let remembered = RememberedStore { secrets, ..RememberedStore::default() };
    let mut fixture = Fixture::new();
    fixture.files.remembered = RememberedFiles::new(&remembered);
    assert!(!fixture.look() && !fixture.files.read_once, "it is not read yet");
    fixture.write("a.yaml", &secret("a", ""));
    assert!(fixture.look());
    let mut empty = Fixture::new();
    empty.files.remembered = RememberedFiles::new(&remembered);
    assert!(!empty.look() && empty.look_later() && empty.files.read_once);
}

fn policy(name: &str, action: &str) -> String {
    format!(
        "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {{name: {name}, namespace: shop}}\nspec: {{action: {action}, rules: [{{}}]}}\n"
    )
}

fn entry(name: &str) -> String {
    format!(
        "apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {{name: {name}, namespace: shop}}\n"
    )
}

/// Returns the contents of a directory that the next process would remember.
fn remembered(fixture: &Fixture) -> RememberedStore {
    let files = Arc::clone(&fixture.objects.files);
    RememberedStore { files, is_persisted: true, ..RememberedStore::from_objects(&fixture.objects) }
}

impl Fixture {
    /// Restarts with the same directory. `remembered` is the remembered content.
    fn restarted(self, remembered: &RememberedStore) -> Self {
        let mut files = DirectoryFiles::new("strait-system".to_owned());
        files.remembered = RememberedFiles::new(remembered);
        Self { files, objects: Objects::default(), ..self }
    }

    /// Returns the objects of the mesh, each with its action if it has one.
    fn others(&self) -> Vec<String> {
        let text = |object: &ObjectJson| {
            let object = object.to_value();
            let [name, action] = [&object["metadata"]["name"], &object["spec"]["action"]];
            [name, action].map(|one| one.as_str().unwrap_or_default()).join(" ")
        };
        self.objects.others.values().map(text).collect()
    }

    /// Returns the objects whose current stored version cannot be read.
    fn unread(&self) -> Vec<&str> {
        self.objects.unread.keys().map(|key| &*key.name).collect()
    }
}

#[test]
fn file_that_is_invalid_at_start_keeps_its_remembered_objects() {
    let [deny, allow, narrow] =
        [policy("deny", "DENY"), policy("allow", "ALLOW"), policy("allow", "AUDIT")];
    let config = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: strait}\ndata: {mesh: 'rootNamespace: root'}\n";
    let files = [
        ("all.yaml", format!("{deny}---\n{config}---\n{allow}")),
        ("gone.yaml", policy("gone", "DENY")),
        ("less.yaml", format!("{}---\n{}", policy("less", "DENY"), policy("more", "DENY"))),
    ];
    let fixture = Fixture::with(&files.each_ref().map(|(name, text)| (*name, &**text)));
    assert_eq!(
        fixture.others(),
        ["allow ALLOW", "deny DENY", "gone DENY", "less DENY", "more DENY"]
    );
    let remembered = RememberedStore {
        config_map: fixture.objects.config_maps.first().cloned(),
        ..remembered(&fixture)
    };
    // One file is invalid, one was deleted, and one lacks an object.
    fixture.write("all.yaml", &format!("kind: [\n---\n{narrow}"));
    fs::remove_file(fixture.directory.path().join("gone.yaml")).expect("removed");
    fixture.write("less.yaml", &policy("more", "DENY"));
    let mut second = fixture.restarted(&remembered);
    second.look();
    assert_eq!(second.others(), ["allow AUDIT", "deny DENY", "more DENY"]);
    assert_eq!(second.unread(), ["deny"]);
    assert_eq!(second.objects.config_maps.len(), 1, "the mesh config is not replaced by mistake");
    assert!(
        second.warnings()[0].contains("other objects that it contained before (2) stay in use")
    );
    // The next start has the same result.
    let next = RememberedStore { config_map: remembered.config_map, ..self::remembered(&second) };
    let mut third = second.restarted(&next);
    third.look();
    assert_eq!((third.others().len(), third.unread()), (3, vec!["deny"]));
    // A further invalid edit removes nothing either; a valid one does.
    third.write("all.yaml", "kind: [\n");
    third.look();
    assert_eq!(third.others(), ["allow AUDIT", "deny DENY", "more DENY"]);
    third.write("all.yaml", &narrow);
    third.look();
    assert_eq!(
        (third.others(), third.unread().len()),
        (vec!["allow AUDIT".into(), "more DENY".into()], 0)
    );
    assert!(third.objects.config_maps.is_empty());
}

#[test]
fn changed_objects_of_a_file_that_becomes_invalid_are_reported_as_unread() {
    let [a, b] = [policy("a", "DENY"), policy("b", "DENY")];
    let mut fixture = Fixture::with(&[("x.yaml", &format!("{a}---\n{b}"))]);
    fixture.write("x.yaml", &format!("{a}---\nkind: [\n---\n{}", policy("b", "ALLOW")));
    fixture.look();
    assert_eq!(
        (fixture.others(), fixture.unread()),
        (vec!["a DENY".into(), "b DENY".into()], vec!["b"])
    );
}

/// As after an upgrade, or if the process ended between the writes of the two files that store it.
#[test]
fn remembered_objects_of_an_unknown_file_may_be_in_an_unreadable_file() {
    let fixture =
        Fixture::with(&[("a.yaml", &policy("a", "DENY")), ("b.yaml", &policy("b", "DENY"))]);
    let remembered = RememberedStore { files: Arc::default(), ..remembered(&fixture) };
    fixture.write("a.yaml", "kind: [\n");
    let mut second = fixture.restarted(&remembered);
    second.look();
    assert_eq!(
        (second.others(), second.unread()),
        (vec!["a DENY".into(), "b DENY".into()], vec!["a"])
    );
}

#[test]
fn warning_states_that_nothing_is_remembered_without_a_state_directory() {
    let broken = format!("kind: [\n---\n{}", policy("a", "DENY"));
    let fixture = Fixture::with(&[("a.yaml", &broken)]);
    assert!(fixture.warnings()[0].ends_with(
        "its valid objects (1) apply, and other objects that it contained before the start do not: without --state-dir nothing is remembered"
    ), "{:?}", fixture.warnings());
    let mut persisted =
        fixture.restarted(&RememberedStore { is_persisted: true, ..RememberedStore::default() });
    persisted.look();
    assert!(
        persisted.warnings()[0].ends_with("and no earlier content of it is known"),
        "{:?}",
        persisted.warnings()
    );
}

#[test]
fn missing_restrictive_policies_are_detected_among_other_objects() {
    let many = |name: &str, count: usize, text: &dyn Fn(&str) -> String| {
        let all = (0..count).map(|number| text(&format!("{name}-{number:02}")));
        all.collect::<Vec<_>>().join("---\n")
    };
    let denying = |count| many("deny", count, &|name| policy(name, "DENY"));
    let allowing = many("allow", 60, &|name| policy(name, "ALLOW"));
    let entries = many("entry", 200, &entry);
    let files = [("deny.yaml", denying(40)), ("allow.yaml", allowing), ("entries.yaml", entries)];
    let mut fixture = Fixture::with(&files.each_ref().map(|(name, text)| (*name, &**text)));
    assert_eq!(fixture.others().len(), 300);
    fixture.write("deny.yaml", "");
    assert!(fixture.look(), "it is reported");
    assert_eq!(fixture.others().len(), 300);
    assert_eq!(
        fixture.warnings(),
        [
            "the directory: STR0606: for policies that restrict access, it has 0 of 40 known objects (lacking AuthorizationPolicy shop/deny-00, AuthorizationPolicy shop/deny-01, AuthorizationPolicy shop/deny-02 and 37 more); waiting for confirmation, the previous version stays in use"
        ]
    );
    assert!(fixture.look_later());
    assert_eq!((fixture.others().len(), fixture.warnings().len()), (260, 0));
    // All policies, of any kind.
    fixture.write("allow.yaml", "");
    fixture.look();
    assert!(fixture.warnings()[0].contains("for access policies, it has 0 of 60 known objects"));
    assert!(fixture.look_later());
    assert_eq!(fixture.others().len(), 200);
    // The only one was deleted, and half of them were deleted.
    fixture.write("deny.yaml", &denying(1));
    fixture.look();
    fixture.write("deny.yaml", "");
    assert!(fixture.look());
    assert_eq!((fixture.others().len(), fixture.warnings().len()), (200, 0));
    fixture.write("deny.yaml", &denying(4));
    fixture.look();
    fixture.write("deny.yaml", &denying(2));
    assert!(fixture.look());
    assert_eq!((fixture.others().len(), fixture.warnings().len()), (202, 0));
    // The same applies to contents from before the start.
    let remembered = remembered(&fixture);
    fixture.write("deny.yaml", "");
    let mut second = fixture.restarted(&remembered);
    assert!(!second.look() && !second.files.read_once);
    assert!(second.look_later());
    assert_eq!(second.others().len(), 200);
}
