//! Formats lists of names for messages, shortened after a few names.

/// Joins the first `most` names with commas, and adds the number of the other names.
pub fn list_first<S: AsRef<str>>(names: impl ExactSizeIterator<Item = S>, most: usize) -> String {
    let more = match names.len().saturating_sub(most) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let first: Vec<S> = names.take(most).collect();
    let first: Vec<&str> = first.iter().map(AsRef::as_ref).collect();
    first.join(", ") + &more
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn further_names_are_counted() {
        assert_eq!(list_first(["a", "b"].iter(), 2), "a, b");
        assert_eq!(list_first(["a", "b", "c", "d"].iter(), 2), "a, b and 2 more");
        assert_eq!(list_first([""; 0].iter(), 2), "");
    }
}
