//! Result of one run of a sweep.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;

/// Figures of a run's summary that an outcome keeps.
const FIGURES: &[&str] = &[
    "validation_loss",
    "final_loss",
    "suboptimality",
    "distance",
    "accuracy",
    "tokens",
    "wire_bytes",
    "seconds",
    "step_seconds_median",
    "tokens_per_second",
    "peak_rss_bytes",
    "train_seconds",
    "total_wire_bytes",
    "emulated_overrun_seconds",
    "slow_rank",
    "slow_factor",
];

/// Result of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// Whether the run finished or diverged.
    pub status: Status,
    /// Completed steps.
    pub steps: u64,
    /// Error message of a run that diverged.
    pub message: String,
    /// Figures of the run's summary by name.
    pub figures: BTreeMap<String, f64>,
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// It completed its steps, or reached its target loss.
    Done,
    /// Its loss became infinite or NaN.
    Diverged,
}

impl Outcome {
    /// Outcome of a run that diverged; the message names the step.
    pub fn diverged(message: &str) -> Self {
        let number = message.split("at step ").nth(1).unwrap_or_default();
        let digits: String = number.chars().take_while(char::is_ascii_digit).collect();
        let (steps, message) = (digits.parse().unwrap_or(0), message.to_owned());
        Self { status: Status::Diverged, steps, message, figures: BTreeMap::new() }
    }

    /// Outcome of a run that finished, from its `summary.json`.
    pub fn from_summary(summary: &Value) -> Self {
        let figure = |name: &&str| Some(((*name).to_owned(), summary.get(*name)?.as_f64()?));
        Self {
            status: Status::Done,
            steps: summary["steps"].as_u64().unwrap_or(0),
            message: String::new(),
            figures: FIGURES.iter().filter_map(figure).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_step_of_a_divergence_is_read_from_its_message() {
        let outcome = Outcome::diverged("loss became inf at step 17 (rank 0); lower optim.lr");
        assert_eq!((outcome.steps, outcome.status), (17, Status::Diverged));
        assert_eq!(Outcome::diverged("no number").steps, 0);
    }
}
