//! Fuzz targets of this crate: see [`strait_base::testing::fuzz`].

use strait_base::testing::fuzz::{Numbers, Target};

/// All fuzz targets of this crate.
pub const TARGETS: &[Target] = &[
    ("access_policies", crate::access::fuzz::policies),
    ("access_oracle", access_oracle),
    ("service_entries", crate::service_entry::fuzz::service_entries),
];

/// Compares the decisions of random access policies with the decisions of an independent evaluator.
pub fn access_oracle(bytes: &[u8]) -> bool {
    crate::access::oracle::fuzz(&mut Numbers(bytes));
    !bytes.is_empty()
}

#[cfg(test)]
mod tests {
    #[test]
    fn targets_accept_their_corpora_and_mutations() {
        strait_base::testing::fuzz::check_targets(super::TARGETS);
    }
}
