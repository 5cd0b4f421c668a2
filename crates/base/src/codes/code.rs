//! The type of an error code, and the macro that defines a group of codes.

use std::fmt;
use std::hash::{Hash, Hasher};

/// A kind of problem.
#[derive(PartialEq, Eq)]
pub struct Code {
    /// `STR` and four digits.
    pub id: &'static str,
    /// The problem in one line, without names of objects.
    pub title: &'static str,
    /// The next step in one or two lines, which end messages and the page.
    pub next: &'static str,
    /// The cause, and the effects.
    pub page: &'static str,
}

impl Hash for Code {
    /// Hashes the ID only, which is unique.
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.id.hash(state);
    }
}

impl Code {
    /// Returns the page that `strait help STRnnnn` prints.
    pub fn help(&self) -> String {
        format!("{}: {}\n\n{}\n\n{}\n", self.id, self.title, self.page, self.next)
    }

    /// Returns the next step. In commands, the cluster's ID replaces `ID`.
    pub fn next_for(&self, cluster: Option<&str>) -> String {
        let Some(cluster) = cluster else { return self.next.to_owned() };
        let filled = |word: &'static str| format!("{word}{cluster}");
        // Replaced only in commands; elsewhere it is an ordinary word.
        [
            "cluster get ",
            "cluster rotate ",
            "cluster resume ",
            "cluster invite ",
            "cluster mcs-purge ",
            "--name ",
            "--from-file=",
        ]
        .into_iter()
        .fold(self.next.to_owned(), |text, word| text.replace(&format!("{word}ID"), &filled(word)))
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

/// Defines the codes of a group as constants, and all of them in order as `CODES`.
macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $id:literal, $title:literal, $next:literal, $page:literal;)*) => {
        $($(#[$doc])* pub static $name: Code =
            Code { id: $id, title: $title, next: $next, page: $page };)*

        /// Every code of the group, in order.
        pub(super) static CODES: &[&Code] = &[$(&$name),*];
    };
}
