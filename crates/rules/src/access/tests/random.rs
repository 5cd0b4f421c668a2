//! Compares decisions about random policies and requests with the oracle.

use std::collections::BTreeMap;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::evaluator::Outcome;
use super::generator::{random_modes, random_token_rules};
use super::oracle::{PORTS, compare, issuer_keys, random_authorization, random_call_with_tokens};
use super::*;

#[test]
fn random_requests_are_decided_like_the_oracle() {
    let mut count = BTreeMap::<Outcome, usize>::new();
    for seed in 0..400 {
        let mut random = StdRng::seed_from_u64(seed);
        let some = random.random_range(1..5);
        let mut objects: Vec<_> =
            (0..some).map(|at| random_authorization(&mut random, &format!("p{at}"))).collect();
        objects.extend(random_token_rules(&mut random, issuer_keys));
        objects.extend(random_modes(&mut random, PORTS));
        let policies = index().hold(objects.clone());
        for (name, report) in policies.reports() {
            let state = report.state;
            assert_eq!(state, PolicyState::InForce, "{name}: {:?} in {objects:#?}", report.faults);
        }
        for _ in 0..50 {
            let call = random_call_with_tokens(&mut random);
            *count
                .entry(compare(format_args!("seed {seed}"), &objects, &policies, &call))
                .or_default() += 1;
        }
    }
    assert!(count.len() == 4 && count.values().all(|count| *count > 300), "{count:?}");
}
