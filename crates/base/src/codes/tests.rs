use super::*;

#[test]
fn codes_are_ordered_unique_and_explained() {
    for pair in all().windows(2) {
        assert!(pair[0].id < pair[1].id, "{} before {}", pair[0], pair[1]);
    }
    for code in all() {
        let digits = code.id.strip_prefix("STR").expect("codes begin with STR");
        assert!(digits.len() == 4 && digits.bytes().all(|b| b.is_ascii_digit()), "{code}");
        assert!(code.page.len() > 80, "{code} has a page");
        assert!(!code.next.is_empty(), "{code} has a next step");
        assert!(code.help().lines().all(|line| line.chars().count() <= 110), "{code}");
        assert!(!code.title.ends_with('.'), "{code}");
    }
    assert_eq!(find("str0203"), Some(&RUNS_PROGRAM));
    assert_eq!(find("STR9999"), None);
    assert_eq!(named("x STRange: STR0203: y; STR0204"), Some(&RUNS_PROGRAM));
    assert_eq!(leading("STR0203: a: b"), Some((&RUNS_PROGRAM, "a: b")));
    assert_eq!(leading("x: STR0203: y"), None);
    assert!(AUTH_FAILED.next_for(Some("east")).ends_with("strait cluster rotate east"));
    assert_eq!(AUTH_FAILED.next_for(None), AUTH_FAILED.next);
    assert!(POLICY_UNKNOWN_CLUSTER.next_for(Some("x")).contains("the ID"), "no placeholder");
}
