//! `list` and `get`: the same for every kind of object that the admin API lists.

use clap::Args;
use serde_json::Value;

use super::client::{Answer, Client, Connect};
use super::failure::{Exit, Failure, Outcome};
use super::output::{self, Format, Listing, Look, Show, items};

/// What every command that shows objects takes: whom to ask, and how to show the answer.
#[derive(Debug, Args)]
pub(crate) struct Ask {
    #[command(flatten)]
    pub(super) connect: Connect,
    #[command(flatten)]
    pub(crate) show: Show,
}

/// A kind of object of which one can be shown.
pub(crate) struct Kind {
    /// Where the admin API lists them.
    pub(crate) path: &'static str,
    /// How they are listed.
    pub(crate) listing: Listing,
    /// The object that a name means; a name that fits several is an error.
    pub(crate) find: for<'a> fn(&'a [Value], &str) -> Result<Option<&'a Value>, Failure>,
    /// What no object of that name does: "is connected".
    pub(crate) does: &'static str,
    /// What to do when there is no object of a name.
    pub(crate) next: &'static str,
    /// One of them for people.
    pub(crate) describe: fn(&Value, &Show, &Look) -> String,
}

impl Ask {
    /// One question to the control plane.
    pub(crate) async fn ask(&self, path: &str, query: &[(&str, &str)]) -> Result<Answer, Failure> {
        Client::new(&self.connect)?.get(path, query).await
    }

    /// Prints the objects at `path`.
    pub(crate) async fn list(&self, path: &str, listing: &Listing) -> Outcome {
        let answer = self.ask(path, &[]).await?;
        let look = Look::of_stdout();
        output::print(&listing.render(&answer.raw, &answer.value, &self.show, &look))?;
        if items(&answer.value).is_empty() && self.show.output.is_for_people() {
            eprintln!("There is no {} yet.", listing.kind);
        }
        Ok(Exit::Fine)
    }

    /// Prints the object called `name`, and returns it.
    pub(crate) async fn get(&self, kind: &Kind, name: &str) -> Result<Value, Failure> {
        let answer = self.ask(kind.path, &[]).await?;
        let row = kind.named(items(&answer.value), name)?;
        output::print(&kind.one(row, &self.show, &Look::of_stdout()))?;
        Ok(row.clone())
    }
}

impl Kind {
    /// The one object of that name.
    pub(crate) fn named<'a>(&self, rows: &'a [Value], name: &str) -> Result<&'a Value, Failure> {
        (self.find)(rows, name)?.ok_or_else(|| {
            Failure::failed(format!("no {} {name:?} {}", self.listing.kind, self.does))
                .next(self.next)
        })
    }

    /// One object, in the format asked for.
    pub(crate) fn one(&self, row: &Value, show: &Show, look: &Look) -> String {
        match show.output {
            Format::Table | Format::Wide => (self.describe)(row, show, look),
            Format::Json => format!("{row:#}\n"),
            Format::Yaml => output::yaml(row),
            Format::Name => self.listing.render("", &Value::Array(vec![row.clone()]), show, look),
        }
    }
}
