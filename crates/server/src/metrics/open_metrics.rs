//! Conversion of `/metrics` to OpenMetrics 1.0, for clients that request it: the same samples, and
//! for each bucket of the propagation time an exemplar with the version of the mesh that it
//! measured.

use strait_ads::Exemplar;

/// Content type of OpenMetrics.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Returns whether an `Accept` header requests OpenMetrics. Prometheus lists both formats and
/// accepts either.
pub fn is_asked_for(accept: &str) -> bool {
    accept.split(',').any(|kind| {
        let kind = kind.split(';').next().unwrap_or_default().trim();
        kind.eq_ignore_ascii_case("application/openmetrics-text")
    })
}

/// Converts the text format of Prometheus. `exemplars` are keyed by the beginning of their line.
pub(super) fn open_metrics(text: &str, exemplars: &[(String, Exemplar)]) -> String {
    let mut out = String::with_capacity(text.len() + 1024);
    for line in text.lines() {
        if let Some(text) = line.strip_prefix("# ") {
            out.push_str("# ");
            out.push_str(&head(text));
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

/// Converts a comment line. In OpenMetrics, the name of a counter's family lacks the suffix
/// `_total` of its samples, and quotes in help texts are escaped.
fn head(text: &str) -> String {
    let mut words = text.splitn(3, ' ');
    let mut word = || words.next().unwrap_or_default();
    let (what, name, rest) = (word(), word(), word());
    // A counter without this suffix is invalid in OpenMetrics.
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
    fn open_metrics_is_requested_by_its_content_type() {
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
    fn counter_families_lose_their_suffix_and_buckets_get_exemplars() {
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
