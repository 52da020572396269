//! The metric that ranks runs.

use crate::halving::Score;
use crate::outcome::Outcome;
use lockstep_config::{Family, Recipe};

/// A figure of a run's summary that ranks runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Metric {
    /// Loss on the validation set after the last step.
    ValidationLoss,
    /// Training loss of the last steps.
    FinalLoss,
    /// Loss above the optimum (convex problems).
    Suboptimality,
    /// Distance of the solution from the optimum (convex problems).
    Distance,
    /// Validation accuracy (MLP); larger is better.
    Accuracy,
}

impl Metric {
    /// Every metric.
    pub const ALL: [Self; 5] = [
        Self::ValidationLoss,
        Self::FinalLoss,
        Self::Suboptimality,
        Self::Distance,
        Self::Accuracy,
    ];

    /// Its name in JSON and CSV.
    pub const fn name(self) -> &'static str {
        match self {
            Self::ValidationLoss => "validation_loss",
            Self::FinalLoss => "final_loss",
            Self::Suboptimality => "suboptimality",
            Self::Distance => "distance",
            Self::Accuracy => "accuracy",
        }
    }

    /// Its name in text.
    pub fn label(self) -> String {
        self.name().replace('_', " ")
    }

    /// Its unit.
    pub const fn unit(self, is_text: bool) -> &'static str {
        match self {
            Self::ValidationLoss | Self::FinalLoss if is_text => "nats per token",
            Self::Accuracy => "share of the validation samples",
            Self::Distance => "Euclidean norm",
            _ => "loss per sample",
        }
    }

    /// Refuses a metric that the recipe's summary lacks.
    pub fn check(self, recipe: &Recipe) -> Result<(), String> {
        let family = recipe.model.family;
        let is_convex = family.is_problem() && family != Family::Mlp;
        let has = match self {
            Self::ValidationLoss | Self::FinalLoss => true,
            Self::Suboptimality | Self::Distance => is_convex,
            Self::Accuracy => family == Family::Mlp,
        };
        if has {
            return Ok(());
        }
        let name = self.name();
        Err(format!(
            "--by {name} is not available for model.family = \"{family}\"; try validation_loss"
        ))
    }

    /// Score of an outcome by this metric.
    pub fn score(self, outcome: &Outcome) -> Score {
        let value = outcome.figures.get(self.name()).copied()?;
        Some(if self == Self::Accuracy { -value } else { value })
    }

    /// A value as tables print it.
    pub fn format(self, value: f64) -> String {
        match self {
            Self::Suboptimality | Self::Distance => format!("{value:.4e}"),
            Self::Accuracy => format!("{value:.4}"),
            _ if value.abs() >= 1e5 => format!("{value:.4e}"),
            _ => format!("{value:.6}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accuracy_ranks_the_larger_value_first() {
        let outcome = |value: f64| Outcome {
            status: crate::outcome::Status::Done,
            steps: 1,
            message: String::new(),
            figures: [("accuracy".to_owned(), value), ("final_loss".to_owned(), value)].into(),
        };
        let better = |metric: Metric| metric.score(&outcome(0.9)) < metric.score(&outcome(0.5));
        assert!(better(Metric::Accuracy) && !better(Metric::FinalLoss));
        assert_eq!(Metric::Distance.score(&outcome(1.0)), None);
    }
}
