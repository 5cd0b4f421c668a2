//! Documentation: links between pages resolve, and generated pages are current.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

/// Pages at the top of the repository.
const TOP: [&str; 6] =
    ["README.md", "ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "STYLE.md"];

/// Folders whose pages are checked.
const FOLDERS: [&str; 6] = ["docs", "changelog.d", "deploy", "certs", "sim", "tests"];

#[test]
fn links_and_anchors_of_pages_resolve() {
    let top = TOP.iter().map(|name| root().join(name)).filter(|page| page.exists());
    let folders = FOLDERS.iter().map(|name| root().join(name)).filter(|folder| folder.exists());
    let pages: Vec<_> = top.chain(folders.flat_map(|folder| pages_below(&folder))).collect();
    assert!(pages.len() > 100, "only {} pages found", pages.len());
    let broken: Vec<_> = pages.iter().flat_map(|page| broken_links(page)).collect();
    assert!(broken.is_empty(), "{} broken links:\n{}", broken.len(), broken.join("\n"));
}

#[test]
fn link_to_a_missing_file_or_heading_is_reported() {
    let folder = tempfile::tempdir().expect("a folder");
    let page = folder.path().join("page.md");
    let text = "# A `strait serve` page\n\n## Steps\n\n[a](page.md#steps) [b](#a-strait-serve-page) \
        [c](https://example.com/none) `[d](none.md)` [e](other.md) [f](page.md#none)\n\n\
        ```\n# no heading\n[g](none.md)\n```\n\n    [h](none.md)\n\n[i](#no-heading) [j](#steps-1)\n\n## Steps\n\n\
        <img src=\"none.png\">\n";
    std::fs::write(&page, text).expect("written");
    let broken = broken_links(&page);
    let links: Vec<_> =
        broken.iter().filter_map(|line| line.rsplit_once(": ").map(|(_, link)| link)).collect();
    assert_eq!(links, ["other.md", "page.md#none", "#no-heading", "none.png"], "{broken:?}");
}

#[test]
fn every_page_is_reachable_from_the_map_by_two_clicks() {
    let mut reached = BTreeSet::from([root().join("docs/README.md")]);
    for _ in 0..2 {
        let linked: Vec<_> = reached.iter().flat_map(|page| pages_linked_by(page)).collect();
        reached.extend(linked);
    }
    let lost: Vec<_> = pages_below(&root().join("docs"))
        .into_iter()
        .filter(|page| !reached.contains(page) && !is_stub(page))
        .collect();
    assert!(lost.is_empty(), "not within two clicks of docs/README.md: {lost:#?}");
}

/// Returns whether a page only points to the page that replaced it.
fn is_stub(page: &Path) -> bool {
    std::fs::read_to_string(page).expect("a page").starts_with("Moved to [")
}

fn pages_linked_by(page: &Path) -> Vec<PathBuf> {
    let text = std::fs::read_to_string(page).expect("a page");
    let linked = page_links(&text).into_iter().filter_map(|link| link_target(page, &link));
    linked.filter(|path| path.extension().is_some_and(|end| end == "md") && path.exists()).collect()
}

/// Returns `PAGE: LINK` for each relative link without a target.
fn broken_links(page: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(page).expect("a page");
    let is_broken = |link: &String| {
        let Some(target) = link_target(page, link) else { return false };
        let anchor = link.split_once('#').map(|(_, anchor)| anchor).filter(|it| !it.is_empty());
        let has_anchor = |anchor: &str| {
            let text = std::fs::read_to_string(&target).unwrap_or_default();
            page_anchors(&text).contains(anchor)
        };
        let is_page = target.extension().is_some_and(|end| end == "md");
        !target.exists() || is_page && anchor.is_some_and(|anchor| !has_anchor(anchor))
    };
    let broken = page_links(&text).into_iter().filter(is_broken);
    broken.map(|link| format!("{}: {link}", page.display())).collect()
}

/// Returns the file that a relative link names, or `None` for a link to another site.
fn link_target(page: &Path, link: &str) -> Option<PathBuf> {
    let path = link.split('#').next().unwrap_or_default();
    if link.contains("://") || link.starts_with("mailto:") {
        return None;
    }
    if path.is_empty() {
        return Some(page.to_owned());
    }
    let mut target = page.parent()?.to_owned();
    for part in Path::new(path).components() {
        match part {
            Component::ParentDir => _ = target.pop(),
            Component::CurDir => {}
            other => target.push(other),
        }
    }
    Some(target)
}

/// Returns the targets of links and images outside of code.
fn page_links(text: &str) -> Vec<String> {
    let mut links = Vec::new();
    for line in prose_lines(text) {
        // Every second part is in backticks.
        let prose = line.split('`').step_by(2).collect::<Vec<_>>().join("`");
        for (opening, closing) in [("](", ")"), ("src=\"", "\""), ("href=\"", "\"")] {
            let targets =
                prose.split(opening).skip(1).filter_map(|rest| rest.split(closing).next());
            links.extend(targets.map(str::to_owned));
        }
    }
    links
}

/// Returns the anchors of the headings of a page, as GitHub derives them.
fn page_anchors(text: &str) -> BTreeSet<String> {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    let mut anchors = BTreeSet::new();
    for line in prose_lines(text) {
        let level = line.chars().take_while(|c| *c == '#').count();
        let Some(heading) = line.get(level..).and_then(|rest| rest.strip_prefix(' ')) else {
            continue;
        };
        if level == 0 || level > 6 {
            continue;
        }
        let anchor = slug(heading);
        let count = counts.entry(anchor.clone()).or_default();
        anchors.insert(if *count == 0 { anchor } else { format!("{anchor}-{count}") });
        *count += 1;
    }
    anchors
}

pub(crate) fn slug(heading: &str) -> String {
    // Of a link, only the text is part of the anchor.
    let mut text = String::new();
    let mut rest = heading.trim();
    while let Some((before, after)) = rest.split_once("](") {
        text.push_str(before);
        rest = after.split_once(')').map_or("", |(_, after)| after);
    }
    text.push_str(rest);
    let anchor_character = |c: char| match c {
        ' ' => Some('-'),
        '-' | '_' => Some(c),
        _ => c.is_alphanumeric().then_some(c),
    };
    text.to_lowercase().chars().filter_map(anchor_character).collect()
}

/// Returns the lines outside of code blocks.
fn prose_lines(text: &str) -> impl Iterator<Item = &str> {
    let mut is_fenced = false;
    let mut is_after_blank = true;
    let mut is_indented = false;
    text.lines().filter(move |line| {
        if line.trim_start().starts_with("```") {
            is_fenced = !is_fenced;
            return false;
        }
        // An indented block begins after an empty line; in a list, it may be a paragraph of an item.
        is_indented = line.starts_with("    ") && (is_after_blank || is_indented);
        is_after_blank = line.trim().is_empty();
        !is_fenced && !is_indented
    })
}

fn pages_below(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).expect("a folder");
    let mut paths: Vec<_> = entries.map(|entry| entry.expect("readable").path()).collect();
    paths.sort();
    let mut pages = Vec::new();
    for path in paths {
        if path.is_dir() && !path.ends_with("node_modules") {
            pages.extend(pages_below(&path));
        } else if path.extension().is_some_and(|end| end == "md") {
            pages.push(path);
        }
    }
    pages
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn every_decision_has_a_row_in_the_index() {
    let folder = root().join("docs/contributing/decisions");
    let index = std::fs::read_to_string(folder.join("README.md")).expect("the index");
    let rows: Vec<_> = index.lines().filter(|line| line.starts_with("| [0")).collect();
    let mut listed = BTreeSet::new();
    for row in &rows {
        let cells: Vec<_> = row.split('|').map(str::trim).collect();
        assert!(
            cells.len() == 6 && cells.iter().skip(1).take(4).all(|cell| !cell.is_empty()),
            "{row}"
        );
        let link = page_links(row).into_iter().next().expect("a link");
        assert!(listed.insert(folder.join(link)), "two rows for one decision: {row}");
    }
    let pages = pages_below(&folder).into_iter().filter(|page| !page.ends_with("README.md"));
    assert_eq!(listed, pages.collect(), "rows and pages differ");
}

#[test]
fn changelog_fragments_are_one_line_each() {
    let fragments = pages_below(&root().join("changelog.d"));
    for fragment in fragments.iter().filter(|page| !page.ends_with("README.md")) {
        let name = fragment.file_stem().expect("a name").to_string_lossy().into_owned();
        let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        assert!(name.contains('-') && name.chars().all(is_plain), "{name}: use AREA-TOPIC.md");
        let text = std::fs::read_to_string(fragment).expect("a fragment");
        let is_single_line = text.ends_with('\n') && text.lines().count() == 1;
        assert!(
            is_single_line && !text.starts_with(['-', '#', '*']),
            "{name}: one line of plain text"
        );
    }
}
