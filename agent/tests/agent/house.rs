//! What the agent tells has its page in the control plane's program.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

#[test]
fn every_code_that_is_told_has_a_page_and_every_page_is_told() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut told = BTreeSet::new();
    for entry in fs::read_dir(root.join("src")).expect("sources") {
        told.extend(codes(&fs::read_to_string(entry.expect("an entry").path()).expect("readable")));
    }
    let pages =
        fs::read_to_string(root.join("../crates/base/src/codes/agent.rs")).expect("the pages");
    assert!(told.len() > 10, "{told:?}");
    assert_eq!(told, codes(&pages));
}

fn codes(text: &str) -> BTreeSet<String> {
    let found = text.match_indices("STR0").map(|(at, _)| text[at..].chars().take(7).collect());
    found.filter(|code: &String| code[3..].bytes().all(|byte| byte.is_ascii_digit())).collect()
}
