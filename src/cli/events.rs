//! `strait events`: recent changes with the objects that caused them and the proxies that
//! acknowledged them.

use clap::Args;
use serde_json::Value;

use super::failure::{CommandResult, Exit};
use super::list::{QueryArgs, follow_pause};
use super::output::{
    self, Cell, Column, Format, OutputStyle, Sent, Show, TableLayout, clean, text,
};
use super::proxy::name_of_id;
use strait_admin_api::{ChangeCause, ChangeEvent, DeliveryAnswer, ProxyDelivery};

/// With `--watch`, a change is shown before all proxies have responded once this many newer changes
/// exist.
const LATE: usize = 8;

#[derive(Debug, Args)]
pub(crate) struct EventsArgs {
    /// Only this change, with its proxies: when each received it and responded, and the resources
    /// that it refused
    #[arg(value_name = "SEQ", conflicts_with_all = ["watch", "since", "last"])]
    seq: Option<u64>,
    /// Keep running and show each change once its proxies have responded
    #[arg(long, short)]
    watch: bool,
    /// Only changes after number N
    #[arg(long, value_name = "N", default_value_t = 0)]
    since: u64,
    /// Only the last N changes; 0: all stored changes
    #[arg(long, value_name = "N", default_value_t = 20)]
    last: usize,
    #[command(flatten)]
    common: QueryArgs,
}

const EVENTS: TableLayout<ChangeEvent> = TableLayout {
    kind: "change",
    name: |row| text(&row.seq),
    columns: &[
        Column::new("SEQ", |row, _| sequence(row).into()),
        Column::new("TIME", |row, look| time(&row.at, look).into()),
        Column::new("CAUSE", |row, _| cause(row).into()),
        Column::new("EFFECT", |row, _| text(&row.effect).into()),
        Column::new("PROXIES", |row, _| followed(row)),
        Column::new("TOOK", |row, _| milliseconds(Some(row.ms)).into()),
        Column::wide("REFUSED BY", |row, _| refusers(row).into()),
        Column::wide("WAITED", |row, _| milliseconds(Some(row.waited_ms)).into()),
        Column::wide("PUBLISHED", |row, _| milliseconds(Some(row.published_ms)).into()),
        Column::wide("VERSION", |row, _| text(&row.version).into()),
    ],
};

/// Returns the number of a change, with the replica if the number is that of another replica.
fn sequence(row: &ChangeEvent) -> String {
    let seq = row.seq;
    match &row.replica {
        Some(replica) => format!("{seq}/{}", clean(replica)),
        None => seq.to_string(),
    }
}

/// Table of the proxies of one change.
const STEPS: TableLayout<ProxyDelivery> = TableLayout {
    kind: "proxy",
    name: |row| name_of_id(&row.proxy),
    columns: &[
        Column::new("PROXY", |row, _| name_of_id(&row.proxy).into()),
        Column::new("CLUSTER", |row, _| text(&row.cluster).into()),
        Column::new("SENT AFTER", |row, _| milliseconds(row.sent_ms).into()),
        Column::new("ANSWERED AFTER", |row, _| milliseconds(row.answered_ms).into()),
        Column::new("ANSWER", |row, _| answer(row)),
        Column::wide("ID", |row, _| text(&row.proxy).into()),
    ],
};

/// Runs `strait events`.
pub(crate) async fn run(args: &EventsArgs) -> CommandResult {
    if let Some(seq) = args.seq {
        return one(seq, &args.common).await;
    }
    let mut since = args.since;
    let mut show = args.common.show.clone();
    let mut first = true;
    loop {
        let answer = args.common.request("/debug/events", &[("since", &since.to_string())]).await?;
        let all: Vec<Sent<ChangeEvent>> = answer.rows()?;
        let (from, to) = match (first, args.watch) {
            (true, false) => (all.len().saturating_sub(kept(args.last)), all.len()),
            (true, true) => (all.len().saturating_sub(kept(args.last)), answered(&all)),
            (false, _) => (0, answered(&all)),
        };
        let due = all.get(from.min(to)..to).unwrap_or_default();
        // The server continues after its own numbers.
        let own = due.iter().rev().filter(|row| row.replica.is_none());
        since = own.map(|row| row.seq).next().unwrap_or(since);
        if !due.is_empty() || !args.watch {
            let due: Value = due.iter().map(|row| row.value.clone()).collect();
            let raw = format!("{due:#}\n");
            output::print(&EVENTS.render(&raw, &due, &show, &OutputStyle::of_stdout())?)?;
            show.no_headers = true;
        }
        if !args.watch {
            if all.is_empty() && show.output.is_for_people() {
                match args.since {
                    0 => eprint_line!("Nothing has changed since the control plane was started."),
                    since => eprint_line!("Nothing has changed after number {since}."),
                }
            }
            return Ok(Exit::Fine);
        }
        first = false;
        follow_pause().await;
    }
}

/// Prints one change with the steps of the affected proxies.
async fn one(seq: u64, common: &QueryArgs) -> CommandResult {
    let found = common.request("/debug/events", &[("seq", &seq.to_string())]).await;
    let found = found.map_err(|failure| failure.or_next("strait events"))?;
    let look = OutputStyle::of_stdout();
    let change: ChangeEvent = found.read()?;
    output::print(&match common.show.output {
        Format::Json => found.raw,
        Format::Yaml => output::yaml(&found.value),
        Format::Name => {
            STEPS.shown(change.steps.as_deref().unwrap_or_default(), &common.show, &look)
        }
        Format::Table | Format::Wide => render(&change, &common.show, &look),
    })?;
    Ok(Exit::Fine)
}

/// Renders causes, effect and times of a change, and the steps of each proxy.
fn render(change: &ChangeEvent, show: &Show, look: &OutputStyle) -> String {
    let published = format!(
        "started after {}, published after {}, version {}",
        milliseconds(Some(change.waited_ms)),
        milliseconds(Some(change.published_ms)),
        text(&change.version)
    );
    let mut causes = vec![change.cause.as_ref().map_or("<none>".to_owned(), cause_name)];
    causes.extend(change.other_causes.iter().map(cause_name));
    if let more @ 1.. = change.more_causes {
        causes.push(format!("{more} more"));
    }
    let mut out = output::describe(
        vec![
            ("Change", text(&change.seq).into()),
            ("Heard", text(&change.at).into()),
            ("Cause", causes.join(", ").into()),
            ("Effect", text(&change.effect).into()),
            ("Published", published.into()),
            ("Proxies", followed(change)),
            ("Last answer", format!("after {}", milliseconds(Some(change.ms))).into()),
        ],
        look,
    );
    for refusal in change.refusals.iter().flatten() {
        let (proxy, error) = (name_of_id(&refusal.proxy), text(&refusal.error));
        out += &format!("{}\n", Cell::bad(format!("{proxy} refused it: {error}")).paint(look));
    }
    let steps = change.steps.as_deref().unwrap_or_default();
    if !steps.is_empty() {
        out.push('\n');
        out += &STEPS.shown(steps, show, look);
    }
    let proxies = usize::try_from(change.proxies).unwrap_or(usize::MAX);
    if let more @ 1.. = proxies.saturating_sub(steps.len()) {
        out += &format!(
            "{more} more: only the proxies that were sent the change first and the ones that responded last are stored\n"
        );
    }
    out
}

/// Formats a time in milliseconds for people.
fn milliseconds(value: Option<f64>) -> String {
    value.map_or_else(|| "<none>".to_owned(), |ms| format!("{ms:.1} ms"))
}

/// Returns the response of a proxy.
fn answer(row: &ProxyDelivery) -> Cell {
    let word = text(row.answer.as_str());
    match row.answer {
        DeliveryAnswer::Acknowledged => Cell::good(word),
        DeliveryAnswer::Refused => Cell::bad(word),
        _ => Cell::doubtful(word),
    }
}

fn kept(last: usize) -> usize {
    if last == 0 { usize::MAX } else { last }
}

/// Returns how many of the first rows to show: changes to which all proxies have responded, and
/// changes that would delay newer ones for too long.
fn answered(rows: &[Sent<ChangeEvent>]) -> usize {
    let is_waiting = |row: &Sent<ChangeEvent>| row.waiting > 0;
    let first = rows.iter().position(is_waiting).unwrap_or(rows.len());
    first.max(rows.len().saturating_sub(LATE))
}

/// Returns the time of day in UTC with milliseconds, and the date if it is not today.
fn time(at: &str, look: &OutputStyle) -> String {
    let (day, time) = at.split_once('T').unwrap_or(("", at));
    let time: String = time.trim_end_matches('Z').chars().take(12).collect();
    match look.now.to_string().starts_with(day) {
        true => time,
        false => format!("{} {time}", clean(day)),
    }
}

/// Returns the names of proxies that refused a change, as far as they are known.
fn refusers(row: &ChangeEvent) -> String {
    let names: Vec<_> = row.refused_by.iter().map(|id| name_of_id(id)).collect();
    if names.is_empty() { "<none>".to_owned() } else { names.join(", ") }
}

/// Returns the first object that caused a change, and the number of other causes.
fn cause(row: &ChangeEvent) -> String {
    let Some(cause) = &row.cause else { return "<none>".to_owned() };
    let words = cause_name(cause);
    match row.other_causes.len() + row.more_causes {
        0 => words,
        more => format!("{words}, {more} more"),
    }
}

/// Returns the name of an object that caused a change.
fn cause_name(cause: &ChangeCause) -> String {
    let ChangeCause { cluster, kind, namespace, name } = cause;
    let mut words = kind.clone();
    match (namespace.as_str(), name.as_str()) {
        (_, "") => {}
        ("", name) => words += &format!(" {name}"),
        (namespace, name) => words += &format!(" {namespace}/{name}"),
    }
    if !cluster.is_empty() {
        words += &format!(" in {cluster}");
    }
    words
}

/// Returns how many of the proxies that were sent the change have acknowledged it.
fn followed(row: &ChangeEvent) -> Cell {
    let (proxies, done) = (row.proxies, row.acknowledged);
    match (row.refused, row.waiting) {
        (0, 0) if proxies == done => format!("{proxies}").into(),
        (0, 0) => Cell::doubtful(format!("{done} of {proxies}")),
        (0, _) => format!("{done} of {proxies}").into(),
        (refused, _) => Cell::bad(format!("{done} of {proxies}, {refused} refused")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::output::Render as _;
    use super::super::output::tests::{LOOK, sent, typed};
    use super::*;

    #[test]
    fn change_is_one_line_with_cause_and_acknowledgements() {
        let row = json!([{
            "seq": 7, "at": "2026-11-23T12:00:01.250123Z",
            "cause": {"cluster": "east", "kind": "EndpointSlice", "namespace": "shop", "name": "web-x"},
            "otherCauses": [{"cluster": "east", "kind": "Pod", "namespace": "shop", "name": "web-2"}], "moreCauses": 2,
            "effect": "web.shop.svc.cluster.local: 3 -> 2 endpoints", "version": 12,
            "proxies": 4, "acknowledged": 3, "refused": 1, "waiting": 0, "publishedMs": 0.4, "ms": 2.31,
        }]);
        let today = "2026-11-23T23:00:00Z".parse().expect("a time");
        let look = OutputStyle { now: today, ..LOOK };
        let mut other = row.clone();
        other[0]["replica"] = json!("strait-b");
        let [other, row]: [Vec<ChangeEvent>; 2] = [typed(other), typed(row)];
        assert!(EVENTS.table(&other, false).render(false, &look).starts_with("7/strait-b "));
        let shown = EVENTS.table(&row, false).render(false, &look);
        let expected = "7   12:00:01.250   EndpointSlice shop/web-x in east, 3 more   web.shop.svc.cluster.local: 3 -> 2 endpoints   3 of 4, 1 refused   2.3 ms\n";
        assert_eq!(shown, expected);
        let later = EVENTS.table(&row, false).render(false, &LOOK);
        assert_eq!(later, expected.replace("12:00:01", "2026-11-23 12:00:01"));
    }

    #[test]
    fn single_change_lists_the_steps_of_its_proxies() {
        let id = |name: &str| format!("sidecar~10.0.0.1~{name}.shop~shop.svc.cluster.local");
        let step = |name: &str, sent: Value, answered: Value, answer: &str| json!({ "proxy": id(name), "cluster": "east", "sentMs": sent, "answeredMs": answered, "answer": answer });
        let change = json!({
            "seq": 7, "at": "2026-11-23T12:00:01.250123Z",
            "cause": {"cluster": "east", "kind": "EndpointSlice", "namespace": "shop", "name": "web-x"},
            "otherCauses": [{"cluster": "", "kind": "MeshConfig", "namespace": "", "name": ""}], "moreCauses": 2,
            "effect": "web: 3 -> 2 endpoints", "version": 12, "waitedMs": 1.04, "publishedMs": 1.4,
            "proxies": 5, "acknowledged": 3, "refused": 1, "waiting": 1, "ms": 2.31,
            "refusals": [{ "proxy": id("b"), "error": "no such\u{1b} filter" }],
            "steps": [
                step("a", json!(1.5), json!(2.3), "acknowledged"), step("b", json!(1.6), json!(2.0), "refused"),
                step("c", json!(1.7), Value::Null, "waiting"), step("d", Value::Null, json!(1.45), "acknowledged"),
            ],
        });
        let expected = "\
Change:        7
Heard:         2026-11-23T12:00:01.250123Z
Cause:         EndpointSlice shop/web-x in east, MeshConfig, 2 more
Effect:        web: 3 -> 2 endpoints
Published:     started after 1.0 ms, published after 1.4 ms, version 12
Proxies:       3 of 5, 1 refused
Last answer:   after 2.3 ms
b.shop refused it: no such\\u{1b} filter

PROXY    CLUSTER   SENT AFTER   ANSWERED AFTER   ANSWER
a.shop   east      1.5 ms       2.3 ms           acknowledged
b.shop   east      1.6 ms       2.0 ms           refused
c.shop   east      1.7 ms       <none>           waiting
d.shop   east      <none>       1.4 ms           acknowledged
1 more: only the proxies that were sent the change first and the ones that responded last are stored
";
        assert_eq!(render(&typed(change), &Show::default(), &LOOK), expected);
    }

    #[test]
    fn pending_change_delays_newer_changes_only_for_a_while() {
        let rows = |waiting: &[u32]| -> Vec<Sent<ChangeEvent>> {
            waiting.iter().map(|waiting| sent(json!({ "waiting": waiting }))).collect()
        };
        assert_eq!(answered(&rows(&[0, 0])), 2);
        assert_eq!(answered(&rows(&[0, 1, 0])), 1);
        let mut many = vec![0; 12];
        many[2] = 1;
        assert_eq!(answered(&rows(&many)), 12 - LATE);
    }
}
