//! Findings about a process of the control plane.

use super::MeshFinding;
use strait_admin_api::Descriptors;
use strait_base::codes;

/// Age up to which past events are reported, in seconds.
const RECENTLY: u64 = 600;

/// Returns the finding about the file descriptors of a process.
pub fn of_process(descriptors: &Descriptors, object: &str) -> Option<MeshFinding> {
    let limit = descriptors.limit?;
    let at_most = limit - limit / 10;
    let fact = match descriptors.exhausted_seconds_ago {
        Some(ago) if ago < RECENTLY => {
            format!(
                "all {limit} file descriptors were in use when a connection arrived {ago} s ago"
            )
        }
        _ => match (descriptors.open, descriptors.needed_by_members) {
            (Some(open), _) if open > at_most => {
                format!("{open} of {limit} file descriptors are in use")
            }
            (_, Some(needed)) if needed > at_most => format!(
                "the members need about {needed} of {limit} file descriptors, which leaves none for proxies"
            ),
            _ => return None,
        },
    };
    Some(MeshFinding::problem("process", &codes::DESCRIPTORS, object.to_owned(), fact))
}
