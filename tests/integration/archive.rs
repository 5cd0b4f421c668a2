//! Several text files in one, so that a case can be read from top to bottom: the txtar format of
//! Go's tools (golang.org/x/tools/txtar). A line `-- PATH --` begins each file; the text before the
//! first such line is a comment.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Component, Path};

/// A comment, and text files by their relative path.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Archive {
    pub(crate) comment: String,
    pub(crate) files: BTreeMap<String, String>,
}

impl Archive {
    pub(crate) fn parse(text: &str) -> Self {
        let mut archive = Self::default();
        let mut path: Option<&str> = None;
        for line in text.split_inclusive('\n') {
            if let Some(next) = marker(line) {
                archive.files.insert(next.to_owned(), String::new());
                path = Some(next);
            } else {
                match path.and_then(|path| archive.files.get_mut(path)) {
                    Some(content) => content.push_str(line),
                    None => archive.comment.push_str(line),
                }
            }
        }
        archive
    }

    /// Returns the text, with files in the order in which a reader needs them: the proxies, then
    /// the mesh, then the expected results.
    pub(crate) fn to_text(&self) -> String {
        let rank = |path: &str| (path.contains('/'), !path.starts_with("proxy"));
        let mut files: Vec<_> = self.files.iter().collect();
        files.sort_by_key(|(path, _)| rank(path));
        let mut text = self.comment.clone();
        for (path, content) in files {
            text += &format!("-- {path} --\n{content}");
            if !content.is_empty() && !content.ends_with('\n') {
                text.push('\n');
            }
        }
        text
    }

    /// Writes the files below the existing folder `folder`.
    pub(crate) fn unpack(&self, folder: &Path) {
        for (path, content) in &self.files {
            let path = Path::new(path);
            let below = path.components().all(|part| matches!(part, Component::Normal(_)));
            assert!(below, "{} would leave the folder", path.display());
            let file = folder.join(path);
            fs::create_dir_all(file.parent().expect("below a folder")).expect("a folder");
            fs::write(file, content).expect("written");
        }
    }

    /// Replaces the contents with the files below `folder`.
    pub(crate) fn pack_again(&mut self, folder: &Path) {
        for (path, content) in &mut self.files {
            *content = fs::read_to_string(folder.join(path)).expect("unpacked before");
        }
    }
}

/// Returns the path in a line that begins a file.
fn marker(line: &str) -> Option<&str> {
    let path = line.trim_end().strip_prefix("-- ")?.strip_suffix(" --")?.trim();
    (!path.is_empty()).then_some(path)
}

#[test]
fn archive_round_trips() {
    let text = "why\n-- proxy.yaml --\na: 1\n-- east.yaml --\n-- expected/cds.yaml --\nb:\n- 2\n";
    let archive = Archive::parse(text);
    assert_eq!(archive.comment, "why\n");
    assert_eq!(archive.files["expected/cds.yaml"], "b:\n- 2\n");
    assert_eq!(archive.files["east.yaml"], "");
    assert_eq!(archive.to_text(), text);
    let folder = tempfile::tempdir().expect("a folder");
    archive.unpack(folder.path());
    fs::write(folder.path().join("east.yaml"), "c: 3").expect("written");
    let mut changed = archive;
    changed.pack_again(folder.path());
    assert_eq!(changed.files["east.yaml"], "c: 3");
    assert_eq!(Archive::parse(&changed.to_text()).files["east.yaml"], "c: 3\n");
}
