//! The text of `/metrics` in the form of OpenMetrics 1.0, for those who ask for it: the same samples, and of each bucket of how long
//! changes took one that fell into it, with the version of the mesh that it was (an exemplar). Counts nothing.

use strait_ads::Exemplar;

/// What that form is called.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Whether a header `Accept` asks for it. Prometheus names both forms, and takes either.
pub fn is_asked_for(accept: &str) -> bool {
    accept.split(',').any(|kind| {
        let kind = kind.split(';').next().unwrap_or_default().trim();
        kind.eq_ignore_ascii_case("application/openmetrics-text")
    })
}

/// Makes it of Prometheus' text; `exemplars` by the beginning of the line that each belongs to.
pub(super) fn open_metrics(text: &str, exemplars: &[(String, Exemplar)]) -> String {
    let mut out = String::with_capacity(text.len() + 1024);
    for line in text.lines() {
        if let Some(said) = line.strip_prefix("# ") {
            out.push_str("# ");
            out.push_str(&head(said));
        } else {
            out.push_str(line);
            let its = exemplars.iter().find(|(of, _)| line.starts_with(of.as_str()));
            if let Some((_, Exemplar { version, seconds })) = its {
                out.push_str(&format!(" # {{version=\"{version}\"}} {seconds}"));
            }
        }
        out.push('\n');
    }
    out.push_str("# EOF\n");
    out
}

/// A line about a family. Of a counter the family's name is without `_total`, which its samples have; help texts have quotes escaped.
fn head(said: &str) -> String {
    let mut words = said.splitn(3, ' ');
    let mut word = || words.next().unwrap_or_default();
    let (what, name, rest) = (word(), word(), word());
    // What isn't called so is no counter there.
    let kind = match (rest, name.ends_with("_total")) {
        ("counter", false) => "unknown",
        (kind, _) => kind,
    };
    match what {
        "TYPE" => format!("TYPE {} {kind}", family(name)),
        _ => format!("{what} {} {}", family(name), rest.replace('"', "\\\"")),
    }
}

fn family(name: &str) -> &str {
    name.strip_suffix("_total").unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_asked_for_by_its_name() {
        let prometheus = "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3,*/*;q=0.1";
        assert!(is_asked_for(prometheus) && is_asked_for("Application/OpenMetrics-Text"));
        for other in [
            "",
            "*/*",
            "text/plain",
            "application/openmetrics",
            "text/plain;x=application/openmetrics-text",
        ] {
            assert!(!is_asked_for(other), "{other}");
        }
    }

    #[test]
    fn families_of_counters_lose_their_end_and_buckets_get_what_fell_into_them() {
        let text = "# HELP a_total How \"many\".\n# TYPE a_total counter\na_total{of=\"x\"} 3\n\
            # HELP b Seconds.\n# TYPE b histogram\nb_bucket{le=\"0.001\"} 1\nb_bucket{le=\"0.01\"} 2\nb_bucket{le=\"+Inf\"} 2\nb_sum 1\nb_count 2\n\
            # HELP c Odd.\n# TYPE c counter\nc 1\n";
        let exemplar = Exemplar { version: 41, seconds: 0.0042 };
        let exemplars = [("b_bucket{le=\"0.01\"} ".to_owned(), exemplar)];
        let wanted = "# HELP a How \\\"many\\\".\n# TYPE a counter\na_total{of=\"x\"} 3\n\
            # HELP b Seconds.\n# TYPE b histogram\nb_bucket{le=\"0.001\"} 1\nb_bucket{le=\"0.01\"} 2 # {version=\"41\"} 0.0042\nb_bucket{le=\"+Inf\"} 2\nb_sum 1\nb_count 2\n\
            # HELP c Odd.\n# TYPE c unknown\nc 1\n# EOF\n";
        assert_eq!(open_metrics(text, &exemplars), wanted);
    }
}
