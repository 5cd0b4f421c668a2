use super::raw::RawTrafficPolicy;
use super::*;
use crate::traffic::object::Reason;
use strait_base::codes;

#[test]
fn alternatives_in_a_hash_are_reported() {
    for (hash, lost) in [
        ("{httpHeaderName: x, useSourceIp: false, maglev: {}}", &[][..]),
        ("{useSourceIp: true, ringHash: {}, minimumRingSize: 9}", &[]),
        (
            "{httpHeaderName: x, useSourceIp: true, httpQueryParameterName: q}",
            &["useSourceIp", "httpQueryParameterName"],
        ),
        ("{httpCookie: {name: c}, useSourceIp: true}", &["useSourceIp"]),
        ("{useSourceIp: true, ringHash: {}, maglev: {tableSize: 101}}", &["maglev"]),
    ] {
        let text = format!("{{loadBalancer: {{consistentHash: {hash}}}}}");
        let raw: RawTrafficPolicy = serde_saphyr::from_str(&text).expect("it fits its schema");
        let mut reasons = Vec::new();
        TrafficPolicy::read(raw, "policy", RuleScope::AllWorkloads, &mut reasons);
        assert!(reasons.iter().all(|one| *one.code == codes::TRAFFIC_REPLACED && one.is_lost));
        let paths: Vec<_> = reasons.iter().map(|one: &Reason| one.path.as_str()).collect();
        let path = |field: &&str| format!("policy.loadBalancer.consistentHash.{field}");
        assert_eq!(paths, lost.iter().map(path).collect::<Vec<_>>(), "{hash}");
    }
}
