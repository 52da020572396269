//! The length of a run, where `train.epochs` decides it.
//!
//! Of `train.epochs` and `train.steps` the stronger source counts: `--steps 100` shortens a recipe
//! file of two epochs. Two arguments contradict each other. A file may have both, as the recipe of
//! a run folder does, with the number of steps that the epochs are.

use super::MergedSources;
use crate::error::{ConfigError, Origin};
use crate::key::Setting;
use crate::value::Value;

const EPOCHS: &str = "train.epochs";
const STEPS: &str = "train.steps";

/// Number of steps that stands for an unknown one: more than any run has.
const MANY_STEPS: i64 = 1 << 39;

/// Number of steps of the epochs of a recipe.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum EpochSteps {
    /// The data have not been counted. A recorded recipe has its number of steps; others with
    /// `train.epochs` are refused.
    #[default]
    NotCounted,
    /// The recipe serves only to open the data and count them.
    ToCount,
    /// Counted in the data.
    Counted(u64),
}

impl MergedSources {
    /// Whether the number of steps follows from the data.
    pub(crate) fn has_epochs(&self) -> bool {
        self.settings.contains_key(EPOCHS)
    }

    /// Sets the number of steps of the epochs.
    pub(super) fn take_epochs(&mut self, counted: EpochSteps) {
        let Some(epochs) = self.settings.get(EPOCHS).cloned() else { return };
        let steps = self.settings.get(STEPS).cloned();
        let is_weaker = |steps: &Setting| steps.origin.strength() < epochs.origin.strength();
        let steps = steps.filter(|steps| !is_weaker(steps));
        if steps.as_ref().is_some_and(|own| own.origin.strength() > epochs.origin.strength()) {
            self.settings.remove(EPOCHS);
            return;
        }
        let counted = match counted {
            EpochSteps::NotCounted => None,
            EpochSteps::ToCount => Some(MANY_STEPS),
            EpochSteps::Counted(steps) => i64::try_from(steps).ok(),
        };
        let (rule, fix) = match (steps, counted) {
            (Some(Setting { value, origin: Origin::Set }), _) => (
                format!("is the length of the run, and {STEPS} = {value} is another one"),
                "keep one of them".to_owned(),
            ),
            (None | Some(_), Some(MANY_STEPS)) => return self.take_steps(MANY_STEPS),
            (Some(Setting { value, .. }), Some(counted)) if value != Value::Integer(counted) => (
                format!("makes {counted} steps of this data, and {STEPS} = {value}"),
                format!("keep one of them: {EPOCHS}, or {STEPS}"),
            ),
            (Some(_), _) => return,
            (None, Some(counted)) => return self.take_steps(counted),
            (None, None) => (
                "needs the length of the data, which is not open here".to_owned(),
                format!("set {STEPS} instead"),
            ),
        };
        let value = epochs.value.to_string();
        self.report(None, ConfigError::new(EPOCHS, value, rule, fix, epochs.origin));
    }

    fn take_steps(&mut self, steps: i64) {
        let origin = self.settings[EPOCHS].origin.clone();
        self.settings.insert(STEPS, Setting { value: Value::Integer(steps), origin });
    }
}
