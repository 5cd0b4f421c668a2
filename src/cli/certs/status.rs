//! `strait certs status`: the root certificates of a running control plane's CA, and the next step
//! of a rotation.

use crate::cli::failure::{CommandResult, Exit};
use crate::cli::list::QueryArgs;
use crate::cli::output::{
    self, Cell, Column, Format, OutputStyle, TableLayout, clean, text, until,
};
use strait_admin_api::{AuthorityRoot, CertificateStatus, MemberAuthority};

const ROOTS: TableLayout<AuthorityRoot> = TableLayout {
    kind: "root",
    name: |row| text(&row.fingerprint),
    columns: &[
        Column::new("ROOT", |row, _| short(&row.fingerprint).into()),
        Column::new("SUBJECT", |row, _| text(&row.subject).into()),
        Column::new("STEP", |row, _| step(row)),
        Column::new("LAST CERTIFICATE", last_certificate),
        Column::new("NOT KNOWN TO HAVE IT", |row, _| match row.lacks.len() {
            0 => "".into(),
            count => Cell::doubtful(count.to_string()),
        }),
        Column::new("ENDS", |row, look| until(&row.ends, look).into()),
        Column::wide("SHA-256", |row, _| text(&row.fingerprint).into()),
    ],
};

const MEMBERS: TableLayout<MemberAuthority> = TableLayout {
    kind: "member",
    name: |row| text(&row.member),
    columns: &[
        Column::new("MEMBER", |row, _| text(&row.member).into()),
        Column::new("ITS OWN CA", |row, _| match (row.expires.is_none(), row.problem.is_none()) {
            (false, true) => Cell::good("signs"),
            (false, false) => Cell::doubtful("signs, but cannot be renewed"),
            (true, _) => Cell::doubtful("nothing signs"),
        }),
        Column::new("BELOW ROOT", |row, _| {
            row.roots.first().map(|root| short(root)).unwrap_or_default().into()
        }),
        Column::new("ISSUED", |row, _| text(&row.issued).into()),
        Column::new("ENDS", |row, look| until(&row.expires, look).into()),
        Column::wide("DIRECTORY", |row, _| text(&row.directory).into()),
    ],
};

/// Runs `strait certs status`.
pub(crate) async fn run(common: &QueryArgs) -> CommandResult {
    let answer = common.request("/debug/certificates", &[]).await?;
    let look = OutputStyle::of_stdout();
    let certificates: CertificateStatus = answer.read()?;
    let roots = &certificates.rotation.roots;
    let shown = match common.show.output {
        Format::Json => answer.raw,
        Format::Yaml => output::yaml(&answer.value),
        Format::Table | Format::Wide if roots.is_empty() => {
            "This control plane has no CA.\n".to_owned()
        }
        _ => {
            let mut tables = ROOTS.shown(roots, &common.show, &look);
            if !certificates.members.is_empty() {
                let members = MEMBERS.shown(&certificates.members, &common.show, &look);
                tables += &format!("\n{members}");
            }
            tables
        }
    };
    output::print(&shown)?;
    if common.show.output.is_for_people() {
        output::print(&lines(&certificates))?;
    }
    Ok(Exit::Fine)
}

/// Returns the first 12 digits of a fingerprint: enough to distinguish roots and to find one in the
/// files.
fn short(fingerprint: &str) -> String {
    text(fingerprint).chars().take(12).collect()
}

fn step(row: &AuthorityRoot) -> Cell {
    match row.step.as_str() {
        "signs" => Cell::good("signs"),
        "sign" => "may sign".into(),
        "distribute" => Cell::doubtful("is being distributed"),
        "wait" => "no longer signs".into(),
        "kept" => Cell::doubtful("kept, but in no file"),
        "withdraw" => "may go".into(),
        _ => text(&row.step).into(),
    }
}

fn last_certificate(row: &AuthorityRoot, look: &OutputStyle) -> Cell {
    match (&row.last_certificate_ends, row.assumed) {
        (None, _) => "none".into(),
        (Some(ends), true) => format!("at most {}", until(ends, look)).into(),
        (Some(ends), false) => until(ends, look).into(),
    }
}

/// Returns the text below the table: which clients lack which root, the phase, the next step, and
/// the problems.
fn lines(answer: &CertificateStatus) -> String {
    let rotation = &answer.rotation;
    let mut out = String::new();
    for root in &rotation.roots {
        for lack in &root.lacks {
            let (who, fact) = (clean(&text(&lack.who)), clean(&text(&lack.fact)));
            out +=
                &format!("\nroot {} is not confirmed for {who}: {fact}", short(&root.fingerprint));
        }
    }
    if !out.is_empty() {
        out.push('\n');
    }
    if let Some(phase) = &rotation.phase {
        let (number, phase) = (text(&rotation.number), text(phase.as_str()));
        out += &format!("\nPhase {number} of 4: {phase}\nNext: {}\n", text(&rotation.next));
    }
    let members = answer.members.iter().map(|member| &member.problem);
    for problem in members.chain([&answer.problem]).flatten() {
        let (code, message) = (text(&problem.code), clean(&text(&problem.message)));
        out += &format!("\n{code}: {message}\nhelp: strait help {code}\n");
    }
    out
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::cli::output::Show;
    use crate::cli::output::tests::typed;

    #[test]
    fn missing_roots_and_next_step_follow_the_table() {
        let digits = |digit: &str| digit.repeat(64);
        let answer = json!({
            "problem": { "code": "STR0550", "message": "the root b may not sign yet", "since": "2026-01-01T00:00:00Z" },
            "rotation": {
                "phase": "distribute", "number": 1, "next": "distribute the root",
                "roots": [
                    { "fingerprint": digits("a"), "subject": "CN=old", "step": "signs", "ends": "2027-01-01T00:00:00Z",
                      "lastCertificateEnds": null, "lacks": [] },
                    { "fingerprint": digits("b"), "subject": "CN=new", "step": "distribute", "ends": "2027-01-01T00:00:00Z",
                      "lastCertificateEnds": null,
                      "lacks": [{ "who": "cluster east", "fact": "1 of its 3 namespaces lack it" }] },
                ],
            },
        });
        let (look, show) = (OutputStyle::of_stdout(), Show::default());
        let answer: CertificateStatus = typed(answer);
        let table = ROOTS.shown(&answer.rotation.roots, &show, &look);
        assert!(
            table.contains("aaaaaaaaaaaa   CN=old") && table.contains("is being distributed"),
            "{table}"
        );
        let under = lines(&answer);
        for expected in [
            "root bbbbbbbbbbbb is not confirmed for cluster east: 1 of its 3 namespaces",
            "Phase 1 of 4: distribute\nNext: distribute the root\n",
            "STR0550: the root b may not sign yet\nhelp: strait help STR0550\n",
        ] {
            assert!(under.contains(expected), "{expected} in {under}");
        }
    }
}
