//! `list` and `get`: the same for every kind of object that the admin API lists.

use std::collections::BTreeMap;
use std::time::Duration;

use clap::Args;
use serde_json::Value;
use tokio::time::{Instant, sleep};

use super::client::{AdminClient, AdminResponse, Connect};
use super::failure::{CommandFailure, CommandResult, Exit};
use super::output::{self, Format, OutputStyle, Show, TableLayout, items};
use strait_base::duration::HumanDuration;

/// What every command that shows objects takes: whom to ask, and how to show the answer.
#[derive(Debug, Args)]
pub(crate) struct QueryArgs {
    #[command(flatten)]
    pub(super) connect: Connect,
    #[command(flatten)]
    pub(crate) show: Show,
}

/// How often is asked what is waited for, or watched.
const PACE: Duration = Duration::from_millis(500);

/// The flag of commands whose answer may be waited for.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct WaitFor {
    /// Wait until it is as it should be, for at most D [without D: 60s]
    #[arg(long, value_name = "D", num_args = 0..=1, require_equals = true, default_missing_value = "60s")]
    wait: Option<HumanDuration>,
}

/// The flags of commands whose answer may be waited for, and watched.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct Follow {
    #[command(flatten)]
    pub(super) wait: WaitFor,
    /// Go on, and show what changes
    #[arg(long, short, conflicts_with = "wait")]
    pub(super) watch: bool,
}

/// Until when is waited; none for not at all.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Deadline(Option<Instant>);

impl WaitFor {
    pub(super) fn deadline(&self) -> Deadline {
        Deadline(self.wait.map(|wait| Instant::now() + wait.0))
    }
}

impl Deadline {
    /// Waits before the next look; `false` where there is to be none.
    pub(super) async fn pause(self) -> bool {
        let left = self.0.is_some_and(|at| at > Instant::now());
        if left {
            sleep(PACE).await;
        }
        left
    }
}

/// The pause between two looks at what is watched.
pub(super) async fn watch_pause() {
    sleep(2 * PACE).await;
}

/// The pause between two looks at what is followed.
pub(super) async fn follow_pause() {
    sleep(PACE).await;
}

/// What was shown last of what is watched: the same is not shown again.
#[derive(Debug, Default)]
pub(super) struct LastShown {
    whole: Option<Value>,
    rows: BTreeMap<String, Value>,
}

impl LastShown {
    /// Prints `text`, which shows `value`, unless that has been shown.
    pub(super) fn whole(&mut self, value: &Value, text: &str) -> Result<(), CommandFailure> {
        let lasting = lasting(value);
        if self.whole.as_ref() == Some(&lasting) {
            return Ok(());
        }
        let gap = if self.whole.is_some() { "\n" } else { "" };
        self.whole = Some(lasting);
        output::print(&format!("{gap}{text}"))
    }

    /// Prints `text`, which holds nothing that moves on by itself, unless that has been shown.
    pub(super) fn text(&mut self, text: &str) -> Result<(), CommandFailure> {
        self.whole(&Value::from(text), text)
    }

    /// Those of `rows` that are new, or not what they were.
    fn changed(&mut self, rows: &[Value], name: fn(&Value) -> String) -> Vec<Value> {
        let mut changed = Vec::new();
        let mut now = BTreeMap::new();
        for row in rows {
            let lasting = lasting(row);
            // Entries of one name, such as a standby's, are distinguished by their Secrets.
            let key = format!("{} {}", name(row), row["secret"]);
            if self.rows.get(&key) != Some(&lasting) {
                changed.push(row.clone());
            }
            now.insert(key, lasting);
        }
        self.rows = now;
        changed
    }
}

/// A value without what moves on by itself: that is no change.
fn lasting(value: &Value) -> Value {
    const MOVING: [&str; 4] = ["lastContact", "lastSent", "lastAcked", "relists"];
    match value {
        Value::Object(fields) => {
            let lasting = fields.iter().filter(|(name, _)| !MOVING.contains(&name.as_str()));
            lasting.map(|(name, value)| (name.clone(), self::lasting(value))).collect()
        }
        Value::Array(items) => items.iter().map(lasting).collect(),
        other => other.clone(),
    }
}

/// A kind of object of which one can be shown.
pub(crate) struct ListedKind {
    /// Where the admin API lists them.
    pub(crate) path: &'static str,
    /// How they are listed.
    pub(crate) listing: TableLayout,
    /// The object that a name means; a name that fits several is an error.
    pub(crate) find: for<'a> fn(&'a [Value], &str) -> Result<Option<&'a Value>, CommandFailure>,
    /// What no object of that name does: "is connected".
    pub(crate) does: &'static str,
    /// What to do when there is no object of a name.
    pub(crate) next: &'static str,
    /// One of them for people.
    pub(crate) describe: fn(&Value, &Show, &OutputStyle) -> String,
}

impl QueryArgs {
    /// One question to the control plane.
    pub(crate) async fn ask(
        &self,
        path: &str,
        query: &[(&str, &str)],
    ) -> Result<AdminResponse, CommandFailure> {
        AdminClient::new(&self.connect)?.get(path, query).await
    }

    /// Prints the objects at `path`.
    async fn list(&self, path: &str, listing: &TableLayout) -> CommandResult {
        let answer = self.ask(path, &[]).await?;
        let look = OutputStyle::of_stdout();
        output::print(&listing.render(&answer.raw, &answer.value, &self.show, &look))?;
        if items(&answer.value).is_empty() && self.show.output.is_for_people() {
            tell!("There is no {} yet.", listing.kind);
        }
        Ok(Exit::Fine)
    }

    /// The same, and then what changes, until somebody ends it.
    async fn watch_list(&self, path: &str, listing: &TableLayout) -> CommandResult {
        let mut shown = LastShown::default();
        let mut show = self.show.clone();
        loop {
            let answer = self.ask(path, &[]).await?;
            let changed = shown.changed(items(&answer.value), listing.name);
            if !changed.is_empty() {
                let changed = Value::Array(changed);
                let raw = format!("{changed:#}\n");
                output::print(&listing.render(&raw, &changed, &show, &OutputStyle::of_stdout()))?;
                show.no_headers = true;
            }
            watch_pause().await;
        }
    }
}

/// What `list` takes.
#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    /// Go on, and show what changes
    #[arg(long, short)]
    watch: bool,
    #[command(flatten)]
    ask: QueryArgs,
}

impl ListArgs {
    /// Prints the objects at `path`, and what changes of them where that is asked for.
    pub(crate) async fn run(&self, path: &str, listing: &TableLayout) -> CommandResult {
        match self.watch {
            true => self.ask.watch_list(path, listing).await,
            false => self.ask.list(path, listing).await,
        }
    }
}

/// What `get` takes beside the name.
#[derive(Debug, Args)]
pub(crate) struct GetOne {
    #[command(flatten)]
    follow: Follow,
    #[command(flatten)]
    ask: QueryArgs,
}

impl GetOne {
    /// Prints the object called `name` and returns it: at once, when it `is_well`, or again and again.
    ///
    /// # Errors
    /// Where there is none of that name, or it is waited for in vain.
    pub(crate) async fn run(
        &self,
        kind: &ListedKind,
        name: &str,
        is_well: fn(&Value) -> bool,
    ) -> Result<Value, CommandFailure> {
        let deadline = self.follow.wait.deadline();
        let mut shown = LastShown::default();
        loop {
            let answer = self.ask.ask(kind.path, &[]).await?;
            let row = kind.named(items(&answer.value), name);
            // What is waited for may be still to come.
            if !row.as_ref().is_ok_and(|row| is_well(row)) && deadline.pause().await {
                continue;
            }
            let row = row?;
            shown.whole(row, &kind.one(row, &self.ask.show, &OutputStyle::of_stdout()))?;
            if !self.follow.watch {
                return match deadline.0 {
                    Some(_) if !is_well(row) => Err(self.in_vain(kind, name)),
                    _ => Ok(row.clone()),
                };
            }
            watch_pause().await;
        }
    }

    fn in_vain(&self, kind: &ListedKind, name: &str) -> CommandFailure {
        let limit = self.follow.wait.wait.map(|wait| wait.to_string()).unwrap_or_default();
        let fact = format!("{} {name:?} is not as it should be after {limit}", kind.listing.kind);
        CommandFailure::new(Exit::TimedOut, fact)
    }
}

impl ListedKind {
    /// The one object of that name.
    pub(crate) fn named<'a>(
        &self,
        rows: &'a [Value],
        name: &str,
    ) -> Result<&'a Value, CommandFailure> {
        (self.find)(rows, name)?.ok_or_else(|| {
            CommandFailure::failed(format!("no {} {name:?} {}", self.listing.kind, self.does))
                .next(self.next)
        })
    }

    /// One object, in the format asked for.
    pub(crate) fn one(&self, row: &Value, show: &Show, look: &OutputStyle) -> String {
        match show.output {
            Format::Table | Format::Wide => (self.describe)(row, show, look),
            Format::Json => format!("{row:#}\n"),
            Format::Yaml => output::yaml(row),
            Format::Name => self.listing.render("", &Value::Array(vec![row.clone()]), show, look),
        }
    }
}
