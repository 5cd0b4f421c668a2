//! `list` and `get` for every kind of object that the admin API lists.

use std::collections::BTreeMap;
use std::time::Duration;

use clap::Args;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::time::{Instant, sleep};

use super::client::{AdminClient, AdminResponse, Connect};
use super::failure::{CommandFailure, CommandResult, Exit};
use super::output::{self, Format, OutputStyle, Sent, Show, TableLayout, items};
use strait_base::duration::HumanDuration;

/// Flags of every command that shows objects: the control plane to query, and the output format.
#[derive(Debug, Args)]
pub(crate) struct QueryArgs {
    #[command(flatten)]
    pub(super) connect: Connect,
    #[command(flatten)]
    pub(crate) show: Show,
}

/// Interval between requests while waiting or watching.
const PACE: Duration = Duration::from_millis(500);

/// Flag of commands that can wait for a healthy result.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct WaitFor {
    /// Wait until the result is healthy, for at most D [without D: 60s]
    #[arg(long, value_name = "D", num_args = 0..=1, require_equals = true, default_missing_value = "60s")]
    wait: Option<HumanDuration>,
}

/// Flags of commands that can wait for a healthy result or watch it.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct Follow {
    #[command(flatten)]
    pub(super) wait: WaitFor,
    /// Keep running and show changes
    #[arg(long, short, conflicts_with = "wait")]
    pub(super) watch: bool,
}

/// Time until which a command waits; `None` if it does not wait.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Deadline(Option<Instant>);

impl WaitFor {
    pub(super) fn deadline(&self) -> Deadline {
        Deadline(self.wait.map(|wait| Instant::now() + wait.0))
    }
}

impl Deadline {
    /// Waits before the next request. Returns `false` if the deadline has passed.
    pub(super) async fn pause(self) -> bool {
        let left = self.0.is_some_and(|at| at > Instant::now());
        if left {
            sleep(PACE).await;
        }
        left
    }
}

/// Waits between two requests of a watched result.
pub(super) async fn watch_pause() {
    sleep(2 * PACE).await;
}

/// Waits between two requests of a followed result.
pub(super) async fn follow_pause() {
    sleep(PACE).await;
}

/// The last result of a watch, so that an unchanged result is not shown again.
#[derive(Debug, Default)]
pub(super) struct LastShown {
    whole: Option<Value>,
    /// The rows by name, and by number among the rows with the same name.
    rows: BTreeMap<(String, usize), Value>,
}

impl LastShown {
    /// Prints `text`, the rendered form of `value`, unless the same value was printed last.
    pub(super) fn whole(&mut self, value: &Value, text: &str) -> Result<(), CommandFailure> {
        let lasting = lasting(value);
        if self.whole.as_ref() == Some(&lasting) {
            return Ok(());
        }
        let gap = if self.whole.is_some() { "\n" } else { "" };
        self.whole = Some(lasting);
        output::print(&format!("{gap}{text}"))
    }

    /// Prints `text`, unless the same text was printed last. The text must not contain ages.
    pub(super) fn text(&mut self, text: &str) -> Result<(), CommandFailure> {
        self.whole(&Value::from(text), text)
    }

    /// Returns the rows that are new or changed.
    fn changed<T>(&mut self, rows: &[Sent<T>], name: fn(&T) -> String) -> Vec<Value> {
        let mut changed = Vec::new();
        let mut now = BTreeMap::new();
        for row in rows {
            let lasting = lasting(&row.value);
            // Entries with the same name, for example an entry on standby, are distinguished by
            // their order.
            let name = name(row);
            let same_name = (name.clone(), 0)..=(name.clone(), usize::MAX);
            let key = (name, now.range(same_name).count());
            if self.rows.get(&key) != Some(&lasting) {
                changed.push(row.value.clone());
            }
            now.insert(key, lasting);
        }
        self.rows = now;
        changed
    }
}

/// Returns a value without the fields that change by themselves, which are not reported as changes.
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

/// Finds the object with a name in a list.
type FindObject<T> = for<'a> fn(&'a [Sent<T>], &str) -> Result<Option<&'a Sent<T>>, CommandFailure>;

/// A kind of object that the admin API lists.
pub(crate) struct ListedKind<T: 'static> {
    /// Path of the list in the admin API.
    pub(crate) path: &'static str,
    /// Layout of the list.
    pub(crate) listing: TableLayout<T>,
    /// Finds the object with a name. A name that matches several objects is an error.
    pub(crate) find: FindObject<T>,
    /// Verb phrase for the error that no object has this name, for example "is connected".
    pub(crate) does: &'static str,
    /// Next step if no object has a name.
    pub(crate) next: &'static str,
    /// Describes one object for people.
    pub(crate) describe: fn(&T, &Show, &OutputStyle) -> String,
}

impl QueryArgs {
    /// Sends one request to the control plane.
    pub(crate) async fn request(
        &self,
        path: &str,
        query: &[(&str, &str)],
    ) -> Result<AdminResponse, CommandFailure> {
        AdminClient::new(&self.connect).await?.get(path, query).await
    }

    /// Prints the objects at `path`.
    async fn list<T: DeserializeOwned>(
        &self,
        path: &str,
        listing: &TableLayout<T>,
    ) -> CommandResult {
        let answer = self.request(path, &[]).await?;
        let look = OutputStyle::of_stdout();
        output::print(&listing.render(&answer.raw, &answer.value, &self.show, &look)?)?;
        if items(&answer.value).is_empty() && self.show.output.is_for_people() {
            eprint_line!("No {} exists yet.", listing.kind);
        }
        Ok(Exit::Fine)
    }

    /// Prints the objects at `path` and then each change, until terminated.
    async fn watch_list<T: DeserializeOwned>(
        &self,
        path: &str,
        listing: &TableLayout<T>,
    ) -> CommandResult {
        let mut shown = LastShown::default();
        let mut show = self.show.clone();
        loop {
            let answer = self.request(path, &[]).await?;
            let changed = shown.changed(&answer.rows::<T>()?, listing.name);
            if !changed.is_empty() {
                let changed = Value::Array(changed);
                let raw = format!("{changed:#}\n");
                let look = OutputStyle::of_stdout();
                output::print(&listing.render(&raw, &changed, &show, &look)?)?;
                show.no_headers = true;
            }
            watch_pause().await;
        }
    }
}

/// Flags of `list`.
#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    /// Keep running and show changes
    #[arg(long, short)]
    watch: bool,
    #[command(flatten)]
    common: QueryArgs,
}

impl ListArgs {
    /// Prints the objects at `path`, and with `--watch` their changes.
    pub(crate) async fn run<T: DeserializeOwned>(
        &self,
        path: &str,
        listing: &TableLayout<T>,
    ) -> CommandResult {
        match self.watch {
            true => self.common.watch_list(path, listing).await,
            false => self.common.list(path, listing).await,
        }
    }
}

/// Flags of `get` in addition to the name.
#[derive(Debug, Args)]
pub(crate) struct GetOne {
    #[command(flatten)]
    follow: Follow,
    #[command(flatten)]
    common: QueryArgs,
}

impl GetOne {
    /// Prints the object called `name` and returns it: at once, when it `is_well`, or repeatedly.
    ///
    /// # Errors
    /// If no object has that name, or waiting for it timed out.
    pub(crate) async fn run<T: DeserializeOwned + Clone>(
        &self,
        kind: &ListedKind<T>,
        name: &str,
        is_well: fn(&T) -> bool,
    ) -> Result<T, CommandFailure> {
        let deadline = self.follow.wait.deadline();
        let mut shown = LastShown::default();
        loop {
            let rows = self.common.request(kind.path, &[]).await?.rows()?;
            let row = kind.named(&rows, name);
            // The object may not exist yet.
            if !row.as_ref().is_ok_and(|row| is_well(row)) && deadline.pause().await {
                continue;
            }
            let row = row?;
            shown
                .whole(&row.value, &kind.one(row, &self.common.show, &OutputStyle::of_stdout()))?;
            if !self.follow.watch {
                return match deadline.0 {
                    Some(_) if !is_well(row) => Err(self.in_vain(kind, name)),
                    _ => Ok(T::clone(row)),
                };
            }
            watch_pause().await;
        }
    }

    fn in_vain<T>(&self, kind: &ListedKind<T>, name: &str) -> CommandFailure {
        let limit = self.follow.wait.wait.map(|wait| wait.to_string()).unwrap_or_default();
        let fact = format!("{} {name:?} is still not healthy after {limit}", kind.listing.kind);
        CommandFailure::new(Exit::TimedOut, fact)
    }
}

impl<T> ListedKind<T> {
    /// Returns the object with that name.
    pub(crate) fn named<'a>(
        &self,
        rows: &'a [Sent<T>],
        name: &str,
    ) -> Result<&'a Sent<T>, CommandFailure> {
        (self.find)(rows, name)?.ok_or_else(|| {
            CommandFailure::failed(format!("no {} {name:?} {}", self.listing.kind, self.does))
                .next(self.next)
        })
    }

    /// Renders one object in the requested format.
    pub(crate) fn one(&self, row: &Sent<T>, show: &Show, look: &OutputStyle) -> String {
        match show.output {
            Format::Table | Format::Wide => (self.describe)(row, show, look),
            Format::Json => format!("{:#}\n", row.value),
            Format::Yaml => output::yaml(&row.value),
            Format::Name => format!("{}/{}\n", self.listing.kind, (self.listing.name)(row)),
        }
    }
}
