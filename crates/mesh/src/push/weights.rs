//! Weights of gateways: splits the weights behind them, sums and rounds them, and fits all weights
//! into Envoy's range.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::assignment::{AssignmentGroup, AssignmentMember, EndpointSocket, Remote};
use strait_model::{Locality, TlsMode};

/// A priority and a locality.
type PriorityAndLocality<'a> = (u32, &'a Arc<Locality>);

/// Gateways with their weights, each with the group in which it is listed.
pub(super) struct WeightedGateways {
    gateways: BTreeMap<EndpointSocket, (usize, u64)>,
    /// Gateway weights are in units of 1/scale, so that splitting is exact.
    scale: u64,
}

/// Computes the weight of each gateway from the endpoints behind it.
pub(super) fn weigh(groups: &[AssignmentGroup], remote: &[Remote]) -> WeightedGateways {
    let scale = remote.iter().fold(1, |scale, one| lcm(scale, one.gateways.len() as u64));
    let mut through: BTreeMap<EndpointSocket, BTreeMap<PriorityAndLocality<'_>, (usize, u64)>> =
        BTreeMap::new();
    for Remote { group, weight, gateways } in remote {
        let share = weight.saturating_mul(scale) / gateways.len() as u64;
        let Some(AssignmentGroup { priority, locality, .. }) = groups.get(*group) else { continue };
        for gateway in gateways {
            let by_locality = through.entry(*gateway).or_default();
            let (_, sum) = by_locality.entry((*priority, locality)).or_insert((*group, 0));
            *sum = sum.saturating_add(share);
        }
    }
    let gateways = through.into_iter().filter_map(|(socket, mut by_locality)| {
        // Envoy accepts an address only once, in the first priority that has it.
        let first = by_locality.first_key_value().map(|((priority, _), _)| *priority);
        by_locality.retain(|(priority, _), _| Some(*priority) == first);
        let sum = by_locality.values().fold(0, |sum: u64, (_, share)| sum.saturating_add(*share));
        // The first of the greatest; max_by_key would return the last.
        let (home, _) = by_locality
            .into_values()
            .reduce(|best, next| if next.1 > best.1 { next } else { best })?;
        Some((socket, (home, rounded(sum))))
    });
    WeightedGateways { gateways: gateways.collect(), scale }
}

/// Rounds a weight to its seven leading binary digits; weights up to 128 are exact.
///
/// As a result, many changes behind a gateway of a large service do not change the gateway's
/// weight, and only proxies in that network are notified. The error is less than one part in 128.
/// (docs/contributing/decisions/0009-rounded-gateway-weights.md)
fn rounded(weight: u64) -> u64 {
    let spare = (u64::BITS - weight.leading_zeros()).saturating_sub(7);
    if spare == 0 {
        return weight;
    }
    let step = 1_u64 << spare;
    weight.saturating_add(step / 2) & !(step - 1)
}

/// Adds the gateways to their groups. Converts weights to whole endpoints if the split is exact,
/// otherwise to the largest common unit. Then scales all weights down, to at least 1, so that their
/// sum fits into 32 bits.
///
/// `origins` contains the [`AssignmentMember::origin`] of each gateway.
pub(super) fn fit(
    groups: &mut [AssignmentGroup],
    WeightedGateways { gateways, scale }: WeightedGateways,
    origins: &BTreeMap<EndpointSocket, u16>,
) {
    // A direct weight in units is a multiple of the scale.
    let common = gateways.values().fold(scale, |common, (_, weight)| gcd(common, *weight)).max(1);
    let factor = u128::from(scale / common);
    let direct = groups.iter().flat_map(|group| &group.members);
    let (count, direct) = direct.fold((gateways.len(), 0_u128), |(count, sum), member| {
        (count + 1, sum + u128::from(member.weight) * factor)
    });
    let total =
        gateways.values().fold(direct, |sum, (_, weight)| sum + u128::from(weight / common));
    // Rounding up to 1 may add one per member.
    let room = u128::from(u32::MAX) - (count as u128).min(u128::from(u32::MAX) / 2);
    let fitted = |weight: u128| -> u32 {
        let weight = if total > room { weight * room / total } else { weight };
        u32::try_from(weight.max(1)).unwrap_or(u32::MAX)
    };
    if factor != 1 || total > room {
        for member in groups.iter_mut().flat_map(|group| &mut group.members) {
            member.weight = fitted(u128::from(member.weight) * factor);
        }
    }
    for ((address, port), (home, weight)) in gateways {
        let weight = fitted(u128::from(weight / common));
        if let Some(group) = groups.get_mut(home) {
            let origin = origins.get(&(address, port)).copied().unwrap_or_default();
            group.members.push(AssignmentMember {
                address,
                additional: None,
                port,
                weight,
                tls_mode: TlsMode::Istio,
                is_gateway: true,
                origin,
            });
        }
    }
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

fn lcm(a: u64, b: u64) -> u64 {
    // Sets of gateways are few and small. If they are not, an inexact split is better than an
    // overflow.
    (a / gcd(a, b).max(1)).saturating_mul(b).min(1 << 24)
}

#[cfg(test)]
mod rounding {
    use super::rounded;

    #[test]
    fn weights_are_exact_up_to_128_and_close_above() {
        for weight in 0..=128 {
            assert_eq!(rounded(weight), weight);
        }
        for weight in [129, 1_000, 1_001, 123_456, u64::from(u32::MAX)] {
            assert!(rounded(weight).abs_diff(weight) * 128 < weight, "{weight}");
        }
    }
}
