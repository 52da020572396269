//! What runs are judged by.

use super::halving::Score;
use super::store::Outcome;
use lockstep_config::{Family, Recipe};

/// A figure of a run's summary, by the name that it has there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
#[value(rename_all = "snake_case")]
pub(super) enum Figure {
    /// The loss on what was held out, after the last step
    ValidationLoss,
    /// The loss of the last steps on what is learned from
    FinalLoss,
    /// How far the loss is above the optimum (convex problems)
    Suboptimality,
    /// How far the solution is from the optimum (convex problems)
    Distance,
    /// The share of right guesses (mlp); more is better
    Accuracy,
}

impl Figure {
    /// Its name in JSON and CSV.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::ValidationLoss => "validation_loss",
            Self::FinalLoss => "final_loss",
            Self::Suboptimality => "suboptimality",
            Self::Distance => "distance",
            Self::Accuracy => "accuracy",
        }
    }

    /// Its name for people.
    pub(super) fn words(self) -> String {
        self.name().replace('_', " ")
    }

    /// What it is counted in.
    pub(super) const fn unit(self, is_text: bool) -> &'static str {
        match self {
            Self::ValidationLoss | Self::FinalLoss if is_text => "nats a token",
            Self::Accuracy => "share of the samples that were held out",
            Self::Distance => "Euclidean norm",
            _ => "loss of a sample",
        }
    }

    /// Refuses a figure that this recipe's summary lacks.
    pub(super) fn check(self, recipe: &Recipe) -> Result<(), String> {
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
        Err(format!("--by {name} is not known of model.family = \"{family}\"; try validation_loss"))
    }

    /// How good an outcome is by this figure.
    pub(super) fn score(self, outcome: &Outcome) -> Score {
        let value = outcome.figures.get(self.name()).copied()?;
        Some(if self == Self::Accuracy { -value } else { value })
    }

    /// As tables have it.
    pub(super) fn shown(self, value: f64) -> String {
        match self {
            Self::Suboptimality | Self::Distance => format!("{value:.4e}"),
            Self::Accuracy => format!("{value:.4}"),
            _ if value.abs() >= 1e5 => format!("{value:.4e}"),
            _ => format!("{value:.6}"),
        }
    }
}
