//! Fuzz targets of this crate: see [`strait_base::testing::fuzz`].

use strait_base::testing::fuzz::Target;

/// The targets of this crate.
pub const TARGETS: &[Target] = &[("state_file", crate::files::fuzz)];

#[cfg(test)]
mod tests {
    #[test]
    fn targets_accept_their_corpora_and_mutations() {
        strait_base::testing::fuzz::check_targets(super::TARGETS);
    }

    #[test]
    fn seeds_exist() {
        strait_base::testing::fuzz::check_seeds("state_file", crate::tests::seeds());
    }
}
