//! What a code is, and how a group of them is written down.

use std::fmt;
use std::hash::{Hash, Hasher};

/// One kind of trouble.
#[derive(PartialEq, Eq)]
pub struct Code {
    /// `STR` and four digits.
    pub id: &'static str,
    /// What is wrong, in a line, without names.
    pub title: &'static str,
    /// What to do about it: one or two lines, which end messages and the page.
    pub next: &'static str,
    /// Why it is so, and what it touches and what not.
    pub page: &'static str,
}

impl Hash for Code {
    /// By its name alone: no two have one.
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.id.hash(state);
    }
}

impl Code {
    /// The page that `strait help STRnnnn` prints.
    pub fn help(&self) -> String {
        format!("{}: {}\n\n{}\n\n{}\n", self.id, self.title, self.page, self.next)
    }

    /// What to do about it for a cluster: with its ID where the page has ID.
    pub fn next_for(&self, cluster: Option<&str>) -> String {
        let Some(cluster) = cluster else { return self.next.to_owned() };
        let filled = |word: &'static str| format!("{word}{cluster}");
        // Only where a command takes it: elsewhere it is an ordinary word.
        ["cluster get ", "cluster rotate ", "--name ", "--from-file="]
            .into_iter()
            .fold(self.next.to_owned(), |text, word| {
                text.replace(&format!("{word}ID"), &filled(word))
            })
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.id)
    }
}

impl fmt::Debug for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.id)
    }
}

/// Codes of one group, each a constant, and all of them in order as `CODES`.
macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $id:literal, $title:literal, $next:literal, $page:literal;)*) => {
        $($(#[$doc])* pub static $name: Code =
            Code { id: $id, title: $title, next: $next, page: $page };)*

        /// Every code of the group, in order.
        pub(super) static CODES: &[&Code] = &[$(&$name),*];
    };
}
