//! Fuzz targets for requests to the webhook: see [`strait_base::testing::fuzz`].

use serde_json::Value;

use super::refusal::{Injection, SkipReason};
use super::{InjectSettings, PodDefaults, PodPlace, Redirection, inject, review};
use strait_base::testing::fuzz::Target;

/// The targets of this crate.
pub const TARGETS: &[Target] = &[("admission", admission)];

/// Answers an AdmissionReview. The response has the UID of the request, and a pod with a sidecar receives no second one.
pub(crate) fn admission(bytes: &[u8]) -> bool {
    let settings = InjectSettings {
        version: "1.2.3".into(),
        cluster: "east".into(),
        network: Some("n1".into()),
        discovery: "strait.strait-system.svc:15012".into(),
        domain: "cluster.local".into(),
        image: "strait-agent".into(),
        redirect_image: "strait-agent".into(),
        redirection: Redirection::for_cni(bytes.len().is_multiple_of(2)),
        native_sidecars: !bytes.len().is_multiple_of(3),
        dns: bytes.len().is_multiple_of(5),
        service_metrics: bytes.len().is_multiple_of(7),
        istio_labels: true,
        system_namespace: "strait-system".into(),
        defaults: PodDefaults::default(),
    };
    let Ok((answer, _)) = review::answer(bytes, &settings, |_, _| PodDefaults::default()) else {
        return false;
    };
    // The reader skips fields that it does not need, so the whole text need not be valid JSON.
    let Ok(review) = serde_json::from_slice::<Value>(bytes) else { return true };
    assert_eq!(answer["response"]["uid"], review["request"]["uid"]);
    let place = PodPlace { namespace: "shop", workload: None };
    let pod = &review["request"]["object"];
    if let Injection::Injected { pod, .. } = inject(pod, place, &settings) {
        let again = inject(&pod, place, &settings);
        assert_eq!(again, Injection::Skipped(SkipReason::Already), "{pod}");
    }
    true
}

#[cfg(test)]
mod tests {
    #[test]
    fn targets_accept_their_corpora_and_mutations() {
        strait_base::testing::fuzz::check_targets(super::TARGETS);
    }
}
