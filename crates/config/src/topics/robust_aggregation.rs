//! Aggregation rules that tolerate Byzantine workers, and the attacks that test them.

use crate::topic::choices;

choices! {
    /// How the gradients or updates of several workers become one.
    AggregationRule {
        /// Mean.
        Mean = "mean",
        /// Coordinate-wise median (Yin et al. 2018).
        Median = "median",
        /// Coordinate-wise trimmed mean (Yin et al. 2018).
        TrimmedMean = "trimmed-mean",
        /// Krum: the vector closest to its nearest neighbours (Blanchard et al. 2017).
        Krum = "krum",
    }

    /// Attack of a simulated Byzantine worker.
    ByzantineAttack {
        /// The negated vector, scaled by ten.
        SignFlip = "sign-flip",
        /// Gaussian noise with ten times the norm of the vector.
        Noise = "noise",
        /// The first vector in every round.
        Stale = "stale",
    }
}

impl AggregationRule {
    /// Largest number of Byzantine vectors among `count` that the rule tolerates, if it assumes
    /// one.
    pub(super) const fn max_byzantine(self, count: usize) -> Option<usize> {
        match self {
            Self::Mean | Self::Median => None,
            Self::TrimmedMean => Some(count.saturating_sub(1) / 2),
            Self::Krum => Some(count.saturating_sub(3) / 2),
        }
    }

    /// Smallest number of vectors with which the rule tolerates `byzantine` ones, if it assumes
    /// any.
    pub(super) const fn min_vectors(self, byzantine: usize) -> Option<usize> {
        match self {
            Self::Mean | Self::Median => None,
            Self::TrimmedMean => Some(2 * byzantine + 1),
            Self::Krum => Some(2 * byzantine + 3),
        }
    }
}
