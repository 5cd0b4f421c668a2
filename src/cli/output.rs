//! What commands print: tables as kubectl prints them, JSON as the server sent it, YAML.
//!
//! Text from outside passes [`clean`], so that no name can move a terminal's cursor. Colour never shows what the text
//! doesn't say.

use std::fmt;
use std::io::{self, IsTerminal, Write};

use clap::{Args, ValueEnum};
use jiff::Timestamp;
use serde_json::Value;
use tokio::sync::Notify;

use super::failure::CommandFailure;

/// How objects are shown.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// Columns for people
    #[default]
    Table,
    /// More columns
    Wide,
    /// The server's answer as it is
    Json,
    /// The same as YAML
    Yaml,
    /// KIND/NAME, one a line
    Name,
}

impl Format {
    /// Whether it is read by people rather than by programs.
    pub(crate) fn is_for_people(self) -> bool {
        matches!(self, Self::Table | Self::Wide)
    }
}

/// The flags of every command that shows objects.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct Show {
    /// Output format
    #[arg(long, short, value_enum, default_value_t)]
    pub(crate) output: Format,
    /// Leave out the line of headers
    #[arg(long)]
    pub(crate) no_headers: bool,
}

/// What rendering depends on beside the data.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OutputStyle {
    /// Ages are counted up to here.
    pub(crate) now: Timestamp,
    /// Whether to colour.
    pub(crate) colour: bool,
    /// Whether signs outside ASCII can be shown.
    pub(crate) unicode: bool,
}

impl OutputStyle {
    /// As this process's standard output and environment have it.
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

    /// The sign of a step that passed, or of one that did not.
    pub(crate) fn sign(&self, ok: bool) -> Cell {
        match (ok, self.unicode) {
            (true, true) => Cell::good("✓"),
            (true, false) => Cell::good("+"),
            (false, true) => Cell::bad("✗"),
            (false, false) => Cell::bad("x"),
        }
    }
}

/// Good, bad or in between, for those who see colours.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Tone {
    #[default]
    Plain,
    Good,
    Doubtful,
    Bad,
}

/// One field of a table.
#[derive(Debug, Clone, Default)]
pub(crate) struct Cell {
    text: String,
    tone: Tone,
}

impl Cell {
    /// What is as it should be.
    pub(crate) fn good(text: impl Into<String>) -> Self {
        Self { text: text.into(), tone: Tone::Good }
    }

    /// What may want a look.
    pub(crate) fn doubtful(text: impl Into<String>) -> Self {
        Self { text: text.into(), tone: Tone::Doubtful }
    }

    /// What needs a person.
    pub(crate) fn bad(text: impl Into<String>) -> Self {
        Self { text: text.into(), tone: Tone::Bad }
    }

    /// The same with more behind it.
    pub(crate) fn with(mut self, more: &str) -> Self {
        self.text += more;
        self
    }

    /// The text, coloured where `look` says so.
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
pub(crate) struct Column {
    header: &'static str,
    wide: bool,
    cell: fn(&Value, &OutputStyle) -> Cell,
}

impl Column {
    /// A column that is always shown.
    pub(crate) const fn new(header: &'static str, cell: fn(&Value, &OutputStyle) -> Cell) -> Self {
        Self { header, wide: false, cell }
    }

    /// A column of `-o wide`.
    pub(crate) const fn wide(header: &'static str, cell: fn(&Value, &OutputStyle) -> Cell) -> Self {
        Self { header, wide: true, cell }
    }
}

/// How a kind of object is listed.
pub(crate) struct TableLayout {
    /// What `-o name` puts before the slash.
    pub(crate) kind: &'static str,
    /// An object's name.
    pub(crate) name: fn(&Value) -> String,
    /// Its columns.
    pub(crate) columns: &'static [Column],
}

impl TableLayout {
    /// The objects of `answer`, in the format asked for. `raw` is the answer as it came.
    pub(crate) fn render(
        &self,
        raw: &str,
        answer: &Value,
        show: &Show,
        look: &OutputStyle,
    ) -> String {
        let rows = items(answer);
        match show.output {
            Format::Json => raw.to_owned(),
            Format::Yaml => yaml(answer),
            Format::Name => {
                rows.iter().map(|row| format!("{}/{}\n", self.kind, (self.name)(row))).collect()
            }
            Format::Table | Format::Wide => {
                self.table(rows, show.output == Format::Wide).render(!show.no_headers, look)
            }
        }
    }

    /// The table of `rows`.
    pub(crate) fn table<'a>(
        &'a self,
        rows: impl IntoIterator<Item = &'a Value>,
        wide: bool,
    ) -> impl Render {
        let columns: Vec<&Column> =
            self.columns.iter().filter(|column| wide || !column.wide).collect();
        let rows: Vec<&Value> = rows.into_iter().collect();
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

/// Something that becomes text once it is known how it should look.
pub(crate) trait Render {
    /// The text, with headers or without.
    fn render(&self, headers: bool, look: &OutputStyle) -> String;
}

impl<F: Fn(bool, &OutputStyle) -> String> Render for F {
    fn render(&self, headers: bool, look: &OutputStyle) -> String {
        self(headers, look)
    }
}

/// Columns as wide as their widest field, three spaces apart; no headers where there are none.
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

/// `Name:  value` lines, the values below each other.
pub(crate) fn describe(fields: Vec<(&str, Cell)>, look: &OutputStyle) -> String {
    let rows = fields.into_iter().map(|(name, cell)| vec![format!("{name}:").into(), cell]);
    table(&[], rows.collect(), look)
}

/// A list's items; what is no list has none.
pub(crate) fn items(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// A value as a field: strings bare, lists with commas, what is missing or empty as `<none>`.
pub(crate) fn text(value: &Value) -> String {
    let shown = match value {
        Value::Null => String::new(),
        Value::String(text) => clean(text),
        Value::Array(items) => items.iter().map(text).collect::<Vec<_>>().join(","),
        other => clean(&other.to_string()),
    };
    if shown.is_empty() { "<none>".into() } else { shown }
}

/// Who says something of a service: clusters, or the entries that belong to none.
pub(crate) fn speakers(value: &Value) -> String {
    let one = |one: &Value| if one == "" { "entries".to_owned() } else { text(one) };
    match value {
        Value::Array(all) => all.iter().map(one).collect::<Vec<_>>().join(", "),
        value => one(value),
    }
}

/// `text` with control characters, and those that turn the writing around, made visible.
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

/// How long ago an RFC 3339 time was: `3m12s`, `5d`; `<none>` for no time.
pub(crate) fn age(time: &Value, look: &OutputStyle) -> String {
    let Some(then) = time.as_str().and_then(|text| text.parse::<Timestamp>().ok()) else {
        return text(time);
    };
    seconds(look.now.as_second().saturating_sub(then.as_second()).max(0).unsigned_abs())
}

/// In how long an RFC 3339 time is: `3m12s`; `0s` for one that has passed, `<none>` for no time.
pub(crate) fn until(time: &Value, look: &OutputStyle) -> String {
    let Some(then) = time.as_str().and_then(|text| text.parse::<Timestamp>().ok()) else {
        return text(time);
    };
    seconds(then.as_second().saturating_sub(look.now.as_second()).max(0).unsigned_abs())
}

/// Seconds in at most two units, the second one only while it matters.
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

/// A value as YAML.
pub(crate) fn yaml(value: &Value) -> String {
    // What came from JSON can always be written.
    serde_saphyr::to_string(value).unwrap_or_default()
}

/// Told when nobody reads standard output any more.
static UNREAD: Notify = Notify::const_new();

/// Writes to standard output. A reader that went away (`| head`) has had enough: that is no failure, and a command that would go
/// on printing is ended by it ([`unread`]).
pub(crate) fn print(text: &str) -> Result<(), CommandFailure> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
            UNREAD.notify_one();
            Ok(())
        }
        Err(error) => {
            Err(CommandFailure::failed(format!("standard output can't be written: {error}")))
        }
        Ok(()) => Ok(()),
    }
}

/// Until something was printed that nobody reads any more.
pub(super) async fn unread() {
    UNREAD.notified().await;
}

/// Writes to standard error. Whether anybody reads that changes nothing of what a command does: half a rotated token helps nobody.
pub(crate) fn say(text: fmt::Arguments<'_>) {
    let _ = io::stderr().lock().write_fmt(text);
}

/// A line for people, on standard error: what `format!` makes of this. `eprintln!` panics where nobody reads it.
macro_rules! tell {
    ($($text:tt)*) => {
        $crate::cli::output::say(format_args!("{}\n", format_args!($($text)*)))
    };
}

#[cfg(test)]
pub(super) mod tests {
    use serde_json::json;

    use super::*;

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
    fn colour_does_not_move_columns() {
        let colour = OutputStyle { colour: true, ..LOOK };
        let drawn = table(&["A", "B"], vec![vec![Cell::good("x"), "y".into()]], &colour);
        assert_eq!(drawn, "A   B\n\u{1b}[32mx\u{1b}[0m   y\n");
    }

    #[test]
    fn text_from_outside_can_not_move_the_cursor() {
        assert_eq!(text(&json!("a\u{1b}[2Jb\u{202e}\n")), "a\\u{1b}[2Jb\\u{202e}\\u{a}");
        assert_eq!(text(&json!(["a", 1, null])), "a,1,<none>");
        assert_eq!(text(&json!("")), "<none>");
        assert_eq!(speakers(&json!(["east", ""])), "east, entries");
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
        // A clock that is ahead of ours.
        assert_eq!(age(&json!("2100-01-01T00:00:00Z"), &LOOK), "0s");
        assert_eq!(age(&json!(null), &LOOK), "<none>");
        assert_eq!(until(&json!("1970-01-03T00:00:00Z"), &LOOK), "2d");
        assert_eq!(until(&json!("1969-01-01T00:00:00Z"), &LOOK), "0s");
    }

    #[test]
    fn yaml_reads_back_as_what_was_written() {
        let value = json!({"a": ["yes", "1.0", "null", "", "x: y", "a\nb\n", "#", "~", "0x1f", "2026-01-01", "1e3", "- a", "\t"], "b": {"c.d/e": true}, "n": [], "1": 1});
        let read: Value = serde_saphyr::from_str(&yaml(&value)).expect("YAML");
        assert_eq!(read, value);
    }
}
