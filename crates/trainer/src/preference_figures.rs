//! Quality of the pairs of a step of direct preference optimization: how often and by how much the
//! chosen answer is rewarded more than the rejected one, before the update.

use serde::Serialize;

/// Accuracy and margin of the rewards of a step's pairs; none without preferences.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct PreferenceFigures {
    /// Fraction of the pairs whose chosen answer has gained more probability than the rejected
    /// one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preference_accuracy: Option<f64>,
    /// Mean of `finetune.beta` times how much more it has gained, in nats.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preference_margin: Option<f64>,
}

impl PreferenceFigures {
    /// Means from the sums over the pairs of all ranks.
    pub(crate) fn new(sums: Option<[f64; 2]>, num_pairs: f64) -> Self {
        let [preference_accuracy, preference_margin] =
            [0, 1].map(|of| sums.map(|sums| sums[of] / num_pairs));
        Self { preference_accuracy, preference_margin }
    }
}
