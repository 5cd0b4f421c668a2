//! Results of requests between clusters as a table FROM × TO: the time of the slowest gateway, or
//! the first failed step.

use std::collections::BTreeSet;

use serde_json::Value;

use super::row::{failed, sign};
use crate::cli::output::{self, Cell, OutputStyle, text};

/// Renders the table. Returns an empty text if no request was sent.
pub(super) fn matrix(rows: &[Value], look: &OutputStyle) -> String {
    let from: BTreeSet<String> = rows.iter().map(|row| text(&row["from"])).collect();
    let requests = rows.iter().filter(|row| row["to"].is_string());
    let to: BTreeSet<String> = requests.map(|row| text(&row["to"])).collect();
    if to.is_empty() {
        return String::new();
    }
    let headers: Vec<&str> =
        std::iter::once("FROM \\ TO").chain(to.iter().map(String::as_str)).collect();
    let line = |from: &String| {
        let cell_to = |to: &String| {
            let pair: Vec<&Value> = rows
                .iter()
                .filter(|row| text(&row["from"]) == *from && text(&row["to"]) == *to)
                .collect();
            cell(&pair, look)
        };
        std::iter::once(Cell::from(from.as_str())).chain(to.iter().map(cell_to)).collect()
    };
    output::table(&headers, from.iter().map(line).collect(), look)
}

/// Returns the cell for all requests from one cluster to another.
fn cell(pair: &[&Value], look: &OutputStyle) -> Cell {
    let failures: Vec<&Value> = pair.iter().filter_map(|row| failed(row)).collect();
    let slowest = pair.iter().filter_map(|row| row["ms"].as_f64()).fold(0.0, f64::max);
    match failures.first() {
        None if pair.is_empty() => if look.unicode { "–" } else { "-" }.into(),
        None => Cell::good(format!("{} {slowest:.1} ms", sign(true, look))),
        Some(step) => {
            let sign_text = format!("{} {}", sign(false, look), text(&step["step"]));
            match (failures.len(), pair.len()) {
                (some, all) if some < all => {
                    Cell::doubtful(sign_text).with(&format!(" ({some} of {all})"))
                }
                _ => Cell::bad(sign_text),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::cli::output::tests::LOOK;

    fn row(from: &str, to: Option<&str>, ms: f64, fails: Option<&str>) -> Value {
        let step = fails.unwrap_or("answer");
        json!({ "from": from, "to": to, "ms": ms, "steps": [{ "step": step, "ok": fails.is_none(), "detail": "" }] })
    }

    #[test]
    fn cells_show_the_time_or_the_first_failed_step() {
        let rows = [
            row("east", Some("west"), 1.25, None),
            row("east", Some("west"), 80.0, None),
            row("east", Some("far"), 2.0, Some("mtls")),
            row("east", Some("far"), 1.0, None),
            row("west", Some("east"), 0.5, None),
            row("west", Some("far"), 5000.0, Some("gateway")),
            row("lab", None, 0.0, Some("probe")),
        ];
        let output = matrix(&rows, &LOOK);
        let lines: Vec<String> = output
            .lines()
            .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
            .collect();
        assert_eq!(
            lines,
            [
                "FROM \\ TO east far west",
                "east – ✗ mtls (1 of 2) ✓ 80.0 ms",
                "lab – – –",
                "west ✓ 0.5 ms ✗ gateway –",
            ]
        );
        assert_eq!(matrix(&rows[6..], &LOOK), "");
    }
}
