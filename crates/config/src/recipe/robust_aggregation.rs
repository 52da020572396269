//! Aggregation rules that tolerate Byzantine workers, and the attacks that test them.

use std::fmt;

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
}

choices! {
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
