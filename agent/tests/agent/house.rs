//! Checks that the codes of the agent have pages in the program `strait`.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

#[test]
fn codes_of_the_agent_match_their_pages() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut used = BTreeSet::new();
    for entry in fs::read_dir(root.join("src")).expect("sources") {
        used.extend(codes(&fs::read_to_string(entry.expect("an entry").path()).expect("readable")));
    }
    let pages =
        fs::read_to_string(root.join("../crates/base/src/codes/agent.rs")).expect("the pages");
    assert!(used.len() > 10, "{used:?}");
    assert_eq!(used, codes(&pages));
}

fn codes(text: &str) -> BTreeSet<String> {
    let found = text.match_indices("STR0").map(|(at, _)| text[at..].chars().take(7).collect());
    found.filter(|code: &String| code[3..].bytes().all(|byte| byte.is_ascii_digit())).collect()
}
