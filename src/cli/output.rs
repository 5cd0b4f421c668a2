//! Output of commands: tables like kubectl's, JSON as the server sent it, and YAML.
//!
//! Text from outside passes through [`clean`], so that no name can move a terminal's cursor. Colors
//! never carry information that the text lacks.

use std::fmt;
use std::io::{self, IsTerminal, Write};

use clap::{Args, ValueEnum};
use jiff::Timestamp;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::sync::Notify;

use super::failure::CommandFailure;

/// Output format of objects.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// Columns for people
    #[default]
    Table,
    /// More columns
    Wide,
    /// The server's response, unchanged
    Json,
    /// The server's response as YAML
    Yaml,
    /// KIND/NAME, one per line
    Name,
}

impl Format {
    /// Returns whether people rather than programs read the format.
    pub(crate) fn is_for_people(self) -> bool {
        matches!(self, Self::Table | Self::Wide)
    }
}

/// Flags of every command that shows objects.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct Show {
    /// Output format
    #[arg(long, short, value_enum, default_value_t)]
    pub(crate) output: Format,
    /// Omit the header line
    #[arg(long)]
    pub(crate) no_headers: bool,
}

/// Settings that rendering depends on, in addition to the data.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OutputStyle {
    /// Time relative to which ages are computed.
    pub(crate) now: Timestamp,
    /// Whether to use colors.
    pub(crate) colour: bool,
    /// Whether the output can contain characters outside ASCII.
    pub(crate) unicode: bool,
}

impl OutputStyle {
    /// Returns the style for this process's standard output and environment.
    pub(crate) fn of_stdout() -> Self {
        let set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let forced = set("CLICOLOR_FORCE");
        let locale = ["LC_ALL", "LC_CTYPE", "LANG"]
            .iter()
            .find_map(|name| std::env::var(name).ok().filter(|value| !value.is_empty()))
            .unwrap_or_default()
            .to_lowercase();
        Self {
            now: Timestamp::now(),
            colour: !set("NO_COLOR") && (forced || io::stdout().is_terminal()),
            unicode: !set("STRAIT_ASCII") && (locale.contains("utf-8") || locale.contains("utf8")),
        }
    }

    /// Returns the sign of a passed or a failed step.
    pub(crate) fn sign(&self, ok: bool) -> Cell {
        match (ok, self.unicode) {
            (true, true) => Cell::good("✓"),
            (true, false) => Cell::good("+"),
            (false, true) => Cell::bad("✗"),
            (false, false) => Cell::bad("x"),
        }
    }
}

/// Tone of a cell, shown as its color.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Tone {
    #[default]
    Plain,
    Good,
    Doubtful,
    Bad,
}

/// One cell of a table.
#[derive(Debug, Clone, Default)]
pub(crate) struct Cell {
    text: String,
    tone: Tone,
}

impl Cell {
    /// Creates a cell for a healthy value.
    pub(crate) fn good(text: impl Into<String>) -> Self {
        Self { text: text.into(), tone: Tone::Good }
    }

    /// Creates a cell for a value that may need attention.
    pub(crate) fn doubtful(text: impl Into<String>) -> Self {
        Self { text: text.into(), tone: Tone::Doubtful }
    }

    /// Creates a cell for a value that requires action.
    pub(crate) fn bad(text: impl Into<String>) -> Self {
        Self { text: text.into(), tone: Tone::Bad }
    }

    /// Appends text to the cell.
    pub(crate) fn with(mut self, more: &str) -> Self {
        self.text += more;
        self
    }

    /// Returns the text, with a color if the style uses colors.
    pub(crate) fn paint(&self, look: &OutputStyle) -> String {
        let colour = match self.tone {
            Tone::Good => "32",
            Tone::Doubtful => "33",
            Tone::Bad => "31",
            Tone::Plain => "",
        };
        if look.colour && !colour.is_empty() {
            format!("\u{1b}[{colour}m{}\u{1b}[0m", self.text)
        } else {
            self.text.clone()
        }
    }
}

impl<T: Into<String>> From<T> for Cell {
    fn from(text: T) -> Self {
        Self { text: text.into(), tone: Tone::Plain }
    }
}

/// One column of a kind of object.
pub(crate) struct Column<T> {
    header: &'static str,
    wide: bool,
    cell: fn(&T, &OutputStyle) -> Cell,
}

impl<T> Column<T> {
    /// Creates a column that is always shown.
    pub(crate) const fn new(header: &'static str, cell: fn(&T, &OutputStyle) -> Cell) -> Self {
        Self { header, wide: false, cell }
    }

    /// Creates a column that is shown only by `-o wide`.
    pub(crate) const fn wide(header: &'static str, cell: fn(&T, &OutputStyle) -> Cell) -> Self {
        Self { header, wide: true, cell }
    }
}

/// Layout of a list of objects.
pub(crate) struct TableLayout<T: 'static> {
    /// Prefix of names in `-o name`.
    pub(crate) kind: &'static str,
    /// Returns the name of an object.
    pub(crate) name: fn(&T) -> String,
    /// Columns of the table.
    pub(crate) columns: &'static [Column<T>],
}

impl<T: DeserializeOwned> TableLayout<T> {
    /// Renders the objects of `answer` in the requested format. `raw` is the unchanged response.
    ///
    /// # Errors
    /// If the objects do not have the form that this release expects.
    pub(crate) fn render(
        &self,
        raw: &str,
        answer: &Value,
        show: &Show,
        look: &OutputStyle,
    ) -> Result<String, CommandFailure> {
        Ok(match show.output {
            Format::Json => raw.to_owned(),
            Format::Yaml => yaml(answer),
            _ => self.shown(&read::<Vec<T>>(answer)?, show, look),
        })
    }
}

impl<T> TableLayout<T> {
    /// Renders rows for people, or their names.
    pub(crate) fn shown(&self, rows: &[T], show: &Show, look: &OutputStyle) -> String {
        match show.output {
            Format::Name => {
                rows.iter().map(|row| format!("{}/{}\n", self.kind, (self.name)(row))).collect()
            }
            _ => self.table(rows, show.output == Format::Wide).render(!show.no_headers, look),
        }
    }

    /// Returns the table of `rows`.
    pub(crate) fn table<'a>(
        &'a self,
        rows: impl IntoIterator<Item = &'a T>,
        wide: bool,
    ) -> impl Render {
        let columns: Vec<&Column<T>> =
            self.columns.iter().filter(|column| wide || !column.wide).collect();
        let rows: Vec<&T> = rows.into_iter().collect();
        move |headers: bool, look: &OutputStyle| {
            let cells = rows
                .iter()
                .map(|row| columns.iter().map(|column| (column.cell)(row, look)).collect())
                .collect();
            let names: Vec<_> = columns.iter().map(|column| column.header).collect();
            table(if headers { &names } else { &[] }, cells, look)
        }
    }
}

/// Reads a response, or a part of it.
///
/// # Errors
/// If it does not have the form that this release expects.
pub(crate) fn read<T: DeserializeOwned>(value: &Value) -> Result<T, CommandFailure> {
    T::deserialize(value).map_err(|error| {
        CommandFailure::failed(format!(
            "the response of the control plane can't be read: {}",
            clean(&error.to_string())
        ))
        .next("use the strait command of the control plane's release: strait version")
    })
}

/// A response, or a part of it, as the control plane sent it and in typed form. The text keeps
/// fields that this release does not know.
#[derive(Debug, Clone, Default)]
pub(crate) struct Sent<T> {
    /// The JSON value.
    pub(crate) value: Value,
    typed: T,
}

impl<T> Sent<T> {
    /// Returns only the typed form.
    pub(crate) fn into_typed(self) -> T {
        self.typed
    }
}

impl<T: DeserializeOwned> Sent<T> {
    /// Reads a response.
    ///
    /// # Errors
    /// The errors of [`read`].
    pub(crate) fn of(value: Value) -> Result<Self, CommandFailure> {
        let typed = read(&value)?;
        Ok(Self { value, typed })
    }
}

impl<T> std::ops::Deref for Sent<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.typed
    }
}

/// A table that can be rendered in a style.
pub(crate) trait Render {
    /// Renders the table, with or without headers.
    fn render(&self, headers: bool, look: &OutputStyle) -> String;
}

impl<F: Fn(bool, &OutputStyle) -> String> Render for F {
    fn render(&self, headers: bool, look: &OutputStyle) -> String {
        self(headers, look)
    }
}

/// Renders columns as wide as their widest cell, three spaces apart. Without headers, the header
/// line is omitted.
pub(crate) fn table(headers: &[&str], rows: Vec<Vec<Cell>>, look: &OutputStyle) -> String {
    let first = headers.iter().map(|header| Cell::from(*header)).collect::<Vec<_>>();
    let lines: Vec<Vec<Cell>> =
        std::iter::once(first).filter(|line| !line.is_empty()).chain(rows).collect();
    let columns = lines.iter().map(Vec::len).max().unwrap_or_default();
    let width = |cell: &Cell| cell.text.chars().count();
    let widths: Vec<usize> = (0..columns)
        .map(|at| lines.iter().filter_map(|line| line.get(at)).map(width).max().unwrap_or_default())
        .collect();
    let mut out = String::new();
    for line in &lines {
        let mut text = String::new();
        for (cell, column) in line.iter().zip(&widths) {
            text += &cell.paint(look);
            text += &" ".repeat(column - width(cell) + 3);
        }
        out += text.trim_end();
        out.push('\n');
    }
    out
}

/// Renders `Name:  value` lines with aligned values.
pub(crate) fn describe(fields: Vec<(&str, Cell)>, look: &OutputStyle) -> String {
    let rows = fields.into_iter().map(|(name, cell)| vec![format!("{name}:").into(), cell]);
    table(&[], rows.collect(), look)
}

/// Returns the items of a list, or none if the value is not a list.
pub(crate) fn items(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// A value that a cell shows.
pub(crate) trait Shown {
    /// Formats the value; empty for a missing value.
    fn shown(&self) -> String;

    /// Returns the value if it is text.
    fn as_text(&self) -> Option<&str> {
        None
    }
}

impl Shown for Value {
    fn shown(&self) -> String {
        match self {
            Self::Null => String::new(),
            Self::String(text) => text.shown(),
            Self::Array(items) => items.shown(),
            other => clean(&other.to_string()),
        }
    }

    fn as_text(&self) -> Option<&str> {
        self.as_str()
    }
}

impl Shown for str {
    fn shown(&self) -> String {
        clean(self)
    }

    fn as_text(&self) -> Option<&str> {
        Some(self)
    }
}

impl Shown for String {
    fn shown(&self) -> String {
        clean(self)
    }

    fn as_text(&self) -> Option<&str> {
        Some(self)
    }
}

impl<T: Shown> Shown for Option<T> {
    fn shown(&self) -> String {
        self.as_ref().map(T::shown).unwrap_or_default()
    }

    fn as_text(&self) -> Option<&str> {
        self.as_ref()?.as_text()
    }
}

impl<T: Shown> Shown for Vec<T> {
    fn shown(&self) -> String {
        self.iter().map(text).collect::<Vec<_>>().join(",")
    }
}

macro_rules! show_with_display {
    ($($kind:ty)+) => {
        $(impl Shown for $kind {
            fn shown(&self) -> String {
                self.to_string()
            }
        })+
    };
}

show_with_display!(bool u8 u16 u32 u64 usize);

/// Formats a value as a cell: text without quotes, lists with commas, missing and empty values as
/// `<none>`.
pub(crate) fn text<T: Shown + ?Sized>(value: &T) -> String {
    let shown = value.shown();
    if shown.is_empty() { "<none>".into() } else { shown }
}

/// Returns the names of the sources of a service: clusters, or `entries` for sources without a
/// cluster.
pub(crate) fn source_names<'a>(names: impl IntoIterator<Item = &'a String>) -> String {
    let name = |name: &String| if name.is_empty() { "entries".to_owned() } else { text(name) };
    names.into_iter().map(name).collect::<Vec<_>>().join(", ")
}

/// Escapes control characters and characters that change the writing direction.
pub(crate) fn clean(text: &str) -> String {
    let hidden = |c: char| {
        c.is_control()
            || matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if hidden(c) { out.extend(c.escape_unicode()) } else { out.push(c) }
    }
    out
}

/// Returns the innermost error: the outer ones only state that something failed.
pub(crate) fn root_cause(error: &(dyn std::error::Error + 'static)) -> String {
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    clean(&cause.to_string())
}

/// Returns the age of an RFC 3339 time, for example `3m12s` or `5d`; `<none>` for no time.
pub(crate) fn age<T: Shown>(time: &T, look: &OutputStyle) -> String {
    let Some(then) = time.as_text().and_then(|text| text.parse::<Timestamp>().ok()) else {
        return text(time);
    };
    seconds(look.now.as_second().saturating_sub(then.as_second()).max(0).unsigned_abs())
}

/// Returns the duration until an RFC 3339 time, for example `3m12s`; `0s` if it has passed,
/// `<none>` for no time.
pub(crate) fn until<T: Shown>(time: &T, look: &OutputStyle) -> String {
    let Some(then) = time.as_text().and_then(|text| text.parse::<Timestamp>().ok()) else {
        return text(time);
    };
    seconds(then.as_second().saturating_sub(look.now.as_second()).max(0).unsigned_abs())
}

/// Formats seconds in at most two units. The second unit is omitted if the first value is 10 or
/// more.
fn seconds(total: u64) -> String {
    let units = [(86_400, 'd'), (3_600, 'h'), (60, 'm'), (1, 's')];
    let mut rest = units.iter().skip_while(|(size, _)| total < *size);
    let Some((size, unit)) = rest.next() else { return "0s".into() };
    let count = total / size;
    match rest.next().map(|(next, unit)| (total % size / next, unit)) {
        Some((more, smaller)) if more > 0 && count < 10 => format!("{count}{unit}{more}{smaller}"),
        _ => format!("{count}{unit}"),
    }
}

/// Formats a value as YAML.
pub(crate) fn yaml(value: &Value) -> String {
    // A value from JSON can always be serialized.
    serde_saphyr::to_string(value).unwrap_or_default()
}

/// Notified when the reader of standard output has closed it.
static UNREAD: Notify = Notify::const_new();

/// Writes to standard output. If the reader has closed it (for example `| head`), this is not an
/// error, and commands that would keep printing end ([`unread`]).
pub(crate) fn print(text: &str) -> Result<(), CommandFailure> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
            UNREAD.notify_one();
            Ok(())
        }
        Err(error) => {
            Err(CommandFailure::failed(format!("can't write to standard output: {error}")))
        }
        Ok(()) => Ok(()),
    }
}

/// Waits until a write finds that standard output is closed.
pub(super) async fn unread() {
    UNREAD.notified().await;
}

/// Writes to standard error. A failure is ignored, because it must not interrupt a command halfway,
/// for example a token rotation.
pub(crate) fn eprint(text: fmt::Arguments<'_>) {
    let _ = io::stderr().lock().write_fmt(text);
}

/// Prints a line for people to standard error, formatted like `format!`. Unlike `eprintln!`, it
/// does not panic if standard error is closed.
macro_rules! eprint_line {
    ($($text:tt)*) => {
        $crate::cli::output::eprint(format_args!("{}\n", format_args!($($text)*)))
    };
}

#[cfg(test)]
pub(super) mod tests {
    use serde_json::json;

    use super::*;

    /// Reads a response in typed form.
    pub(in crate::cli) fn typed<T: DeserializeOwned>(value: Value) -> T {
        serde_json::from_value(value).expect("a response")
    }

    /// Reads a response as sent and in typed form.
    pub(in crate::cli) fn sent<T: DeserializeOwned>(value: Value) -> Sent<T> {
        Sent::of(value).expect("a response")
    }

    pub(in crate::cli) const LOOK: OutputStyle =
        OutputStyle { now: Timestamp::UNIX_EPOCH, colour: false, unicode: true };

    #[test]
    fn columns_are_three_spaces_apart_and_end_without_spaces() {
        let rows = vec![vec!["a".into(), Cell::bad("stale"), "".into()], vec!["longer".into()]];
        assert_eq!(
            table(&["NAME", "STATE", "REASON"], rows.clone(), &LOOK),
            "NAME     STATE   REASON\na        stale\nlonger\n"
        );
        assert_eq!(table(&[], rows, &LOOK), "a        stale\nlonger\n");
    }

    #[test]
    fn colors_do_not_move_columns() {
        let colour = OutputStyle { colour: true, ..LOOK };
        let drawn = table(&["A", "B"], vec![vec![Cell::good("x"), "y".into()]], &colour);
        assert_eq!(drawn, "A   B\n\u{1b}[32mx\u{1b}[0m   y\n");
    }

    #[test]
    fn control_characters_in_external_text_are_escaped() {
        assert_eq!(text(&json!("a\u{1b}[2Jb\u{202e}\n")), "a\\u{1b}[2Jb\\u{202e}\\u{a}");
        assert_eq!(text(&json!(["a", 1, null])), "a,1,<none>");
        assert_eq!(text(&json!("")), "<none>");
        assert_eq!(source_names(&["east".to_owned(), String::new()]), "east, entries");
    }

    #[test]
    fn ages_have_at_most_two_units() {
        for (total, shown) in [
            (0, "0s"),
            (59, "59s"),
            (192, "3m12s"),
            (14 * 60 + 5, "14m"),
            (3_600, "1h"),
            (5 * 86_400, "5d"),
            (5 * 86_400 + 7_200, "5d2h"),
            (40 * 86_400 + 7_200, "40d"),
        ] {
            assert_eq!(seconds(total), shown);
        }
        // A time in the future, from a clock that is ahead.
        assert_eq!(age(&json!("2100-01-01T00:00:00Z"), &LOOK), "0s");
        assert_eq!(age(&json!(null), &LOOK), "<none>");
        assert_eq!(until(&json!("1970-01-03T00:00:00Z"), &LOOK), "2d");
        assert_eq!(until(&json!("1969-01-01T00:00:00Z"), &LOOK), "0s");
    }

    #[test]
    fn yaml_round_trips() {
        let value = json!({"a": ["yes", "1.0", "null", "", "x: y", "a\nb\n", "#", "~", "0x1f", "2026-01-01", "1e3", "- a", "\t"], "b": {"c.d/e": true}, "n": [], "1": 1});
        let read: Value = serde_saphyr::from_str(&yaml(&value)).expect("YAML");
        assert_eq!(read, value);
    }
}
