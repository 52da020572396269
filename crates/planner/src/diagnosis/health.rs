//! Numeric health of a run: overflows, loss spikes, divergence, generalisation gap, staleness, and
//! signs of silent corruption.

use super::facts::{FailureKind, RunFacts, StepFacts};
use super::statistics::median_of;
use lockstep_plot::digits;
use serde::Serialize;

/// Overflow rate from which on the loss scale grows back too soon: a dynamic scale that doubles
/// every 2,000 steps overflows in 0.05 % of them (Micikevicius et al. 2018, section 3.2); twenty
/// times as many are a storm. The engine warns at the same rate.
pub const OVERFLOW_STORM: f64 = 0.01;
/// Steps at the start in which a dynamic loss scale looks for its level.
pub const SCALE_SEARCH_STEPS: u64 = 10;
/// Steps before a step with which it is compared.
pub const WINDOW: usize = 16;
/// Median absolute deviations above the median of the window from which on a loss is a spike: 5
/// deviations of normal noise, 1.4826 each.
pub const SPIKE_DEVIATIONS: f64 = 5.0 * 1.4826;
/// Rise of a spike relative to the loss, below which it changes nothing.
pub const SPIKE_RISE: f64 = 0.1;
/// Factor from which on a run diverged: of the final loss over the lowest one, or of the highest
/// one over the loss before the first update, where all but the last are medians of a tenth of the
/// steps. Losses of a sound run wander by some percent, and none exceeds that of random weights for
/// long.
pub const DIVERGED: f64 = 1.2;
/// Gradient norm over the median of its window from which on a single step is suspicious: clipping
/// and batches change norms by small factors, a flipped exponent bit by powers of two (Dixit et
/// al. 2021, "Silent Data Corruptions at Scale").
pub const CORRUPTED_NORM: f64 = 100.0;
/// Rise of the validation loss over its minimum from which on the model overfits.
pub const OVERFITTING: f64 = 0.02;
/// Missed updates that only a worker of another speed has.
pub const STALE: u64 = 50;
/// Share of gradients that are so stale from which on workers differ too much.
pub const STALE_SHARE: f64 = 0.1;

/// Numeric health. Step numbers count completed steps.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct Health {
    /// Share of steps that were skipped for an overflow, after the first ten.
    pub overflow_rate: f64,
    /// Steps skipped for other reasons.
    pub skipped_steps: u64,
    /// First steps of loss spikes.
    pub loss_spikes: Vec<u64>,
    /// Whether the loss rose or was not finite.
    pub diverged: bool,
    /// Validation loss minus the training loss of the last steps.
    pub generalization_gap: Option<f64>,
    /// Whether the validation loss rises while the training loss falls.
    pub overfitting: bool,
    /// Mean staleness over all workers.
    pub staleness_mean: Option<f64>,
    /// Maximum staleness.
    pub staleness_max: Option<u64>,
    /// Share of gradients with more than 50 missed updates.
    pub stale_share: Option<f64>,
    /// Steps whose gradient norm is far off between normal ones.
    pub suspicious_steps: Vec<u64>,
    /// Interval in steps at which the hashes of replicas were compared; 0 for never.
    pub replicas_checked_every: u64,
    /// Findings in sentences, the gravest first; empty for a sound run.
    pub warnings: Vec<String>,
}

impl Health {
    pub(super) fn of(facts: &RunFacts) -> Self {
        let steps = &facts.steps[..];
        let settled: Vec<&StepFacts> =
            steps.iter().filter(|step| step.step > SCALE_SEARCH_STEPS).collect();
        let overflows = settled.iter().filter(|step| step.has_overflowed).count();
        let skipped = steps.iter().filter(|step| step.is_skipped && !step.has_overflowed).count();
        let mut health = Self {
            overflow_rate: overflows as f64 / settled.len().max(1) as f64,
            skipped_steps: skipped as u64,
            loss_spikes: loss_spikes(steps),
            suspicious_steps: suspicious_steps(steps),
            replicas_checked_every: facts.recipe.run.check_replicas_every,
            ..Self::default()
        };
        health.diverged = has_diverged(facts);
        health.add_generalization(facts);
        health.add_staleness(facts);
        health.warnings = health.warnings(facts);
        health
    }

    fn add_generalization(&mut self, facts: &RunFacts) {
        let Some((_, last)) = facts.validation.last_key_value() else { return };
        let train = tail_loss(&facts.steps);
        if !last.is_finite() || facts.steps.is_empty() || facts.recipe.model.family.is_problem() {
            return;
        }
        self.generalization_gap = Some(last - train);
        let least = facts.validation.values().copied().fold(f64::INFINITY, f64::min);
        self.overfitting = *last > least * (1.0 + OVERFITTING) && train < *last && !self.diverged;
    }

    fn add_staleness(&mut self, facts: &RunFacts) {
        let counts = || facts.staleness.values().flatten();
        let all: u64 = counts().map(|(_, count)| count).sum();
        if all == 0 {
            return;
        }
        let sum: u64 = counts().map(|(missed, count)| missed * count).sum();
        let stale: u64 = counts().filter(|(missed, _)| *missed > STALE).map(|it| it.1).sum();
        self.staleness_mean = Some(sum as f64 / all as f64);
        self.staleness_max = counts().map(|(missed, _)| *missed).max();
        self.stale_share = Some(stale as f64 / all as f64);
    }

    fn warnings(&self, facts: &RunFacts) -> Vec<String> {
        let mut found = Vec::new();
        if let Some(failure) = &facts.failure {
            found.push(format!("the run failed: {}", failure.reason));
        }
        if self.diverged {
            found.push(format!(
                "the loss diverged: {} at first, {} at the lowest, {} at the highest, {} at the \
                 end, with a learning rate of {}",
                digits(first_loss(&facts.steps)),
                digits(losses_by_tenth(&facts.steps).fold(f64::INFINITY, f64::min)),
                digits(losses_by_tenth(&facts.steps).fold(f64::NEG_INFINITY, f64::max)),
                digits(tail_loss(&facts.steps)),
                facts.steps.iter().map(|step| step.lr).fold(0.0, f64::max)
            ));
        }
        if self.overflow_rate > OVERFLOW_STORM {
            found.push(format!(
                "overflow storm: {:.0} % of the steps were skipped because gradients overflowed at \
                 the loss scale",
                100.0 * self.overflow_rate
            ));
        }
        if let Some(first) = self.loss_spikes.first().filter(|_| !self.diverged) {
            let num = self.loss_spikes.len();
            found.push(format!("{num} loss spikes, the first at step {first}"));
        }
        if let Some(first) = self.suspicious_steps.first().filter(|_| !self.diverged) {
            found.push(format!(
                "the gradient norm of step {first} is over {CORRUPTED_NORM:.0} times that of the \
                 steps around it, a sign of silent corruption; compare replicas with \
                 run.check_replicas_every"
            ));
        }
        if self.overfitting {
            found.push("overfitting: the validation loss rises above its minimum".to_owned());
        }
        if self.stale_share.is_some_and(|share| share > STALE_SHARE) {
            found.push(format!(
                "{:.0} % of the gradients missed over {STALE} updates: workers differ in speed",
                100.0 * self.stale_share.unwrap_or(0.0)
            ));
        }
        found
    }
}

/// Length of a tenth of the steps.
fn tenth(steps: &[StepFacts]) -> usize {
    steps.len().div_ceil(10)
}

fn first_loss(steps: &[StepFacts]) -> f64 {
    steps.first().map_or(f64::NAN, |step| step.loss)
}

fn tail_loss(steps: &[StepFacts]) -> f64 {
    median_of(&steps[steps.len() - tenth(steps)..], |step| step.loss)
}

/// Median of each tenth of the steps.
fn losses_by_tenth(steps: &[StepFacts]) -> impl Iterator<Item = f64> + '_ {
    let windows = steps.chunks(tenth(steps).max(1));
    windows.map(|window| median_of(window, |step| step.loss))
}

/// Whether losses became non-finite or rose by the end.
fn has_diverged(facts: &RunFacts) -> bool {
    let steps = &facts.steps;
    if facts.failure.as_ref().is_some_and(|failure| failure.kind == FailureKind::Diverged) {
        return true;
    }
    let is_infinite = |step: &StepFacts| !step.loss.is_finite() && !step.has_overflowed;
    if steps.last().is_some_and(is_infinite) {
        return true;
    }
    let lowest = losses_by_tenth(steps).fold(f64::INFINITY, f64::min);
    let highest = losses_by_tenth(steps).fold(f64::NEG_INFINITY, f64::max);
    let has_risen = tail_loss(steps) > DIVERGED * lowest.max(0.0);
    let has_exploded = highest > DIVERGED * first_loss(steps).max(0.0);
    // Losses of preference optimization and of some small problems may be near 0 or below it.
    steps.len() >= WINDOW && lowest > 0.0 && (has_risen || has_exploded)
}

/// First steps of runs of losses far above those before them (Chowdhery et al. 2022, section 5.1,
/// describe such spikes).
fn loss_spikes(steps: &[StepFacts]) -> Vec<u64> {
    let mut spikes: Vec<u64> = Vec::new();
    let mut until = 0;
    for at in WINDOW..steps.len() {
        let (before, step) = (&steps[at - WINDOW..at], steps[at]);
        let median = median_of(before, |step| step.loss);
        let deviation = median_of(before, |step| (step.loss - median).abs());
        let rise = step.loss - median;
        if rise > SPIKE_DEVIATIONS * deviation && rise > SPIKE_RISE * median.abs() {
            if step.step > until {
                spikes.push(step.step);
            }
            until = step.step + WINDOW as u64;
        }
    }
    spikes
}

/// Steps whose gradient norm alone is far above those before and after.
fn suspicious_steps(steps: &[StepFacts]) -> Vec<u64> {
    let is_suspicious = |three: &&[StepFacts]| {
        let usual = three[0].grad_norm.max(three[2].grad_norm);
        let norm = three[1].grad_norm;
        norm.is_finite() && usual > 0.0 && norm > CORRUPTED_NORM * usual
    };
    steps.windows(3).filter(is_suspicious).map(|three| three[1].step).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diagnosis::tests::{facts, rank};

    fn step(step: u64, loss: f64) -> StepFacts {
        StepFacts {
            step,
            loss,
            lr: 0.1,
            grad_norm: 1.0,
            seconds: 1.0,
            data: 0.0,
            exposed: 0.0,
            waiting: 0.0,
            is_skipped: false,
            has_overflowed: false,
            loss_scale: None,
            zeroed_fraction: None,
        }
    }

    #[test]
    fn a_spike_counts_once_and_noise_does_not() {
        let noise = |at: u64| 3.0 + 0.02 * (at % 5) as f64;
        let mut steps: Vec<StepFacts> = (1..60).map(|at| step(at, noise(at))).collect();
        assert!(loss_spikes(&steps).is_empty());
        for step in &mut steps[30..33] {
            step.loss = 5.0;
        }
        assert_eq!(loss_spikes(&steps), [31]);
    }

    #[test]
    fn a_lone_outlier_of_the_gradient_norm_is_suspicious_and_a_rise_is_not() {
        let mut steps: Vec<StepFacts> = (1..10).map(|at| step(at, 3.0)).collect();
        steps[4].grad_norm = 500.0;
        assert_eq!(suspicious_steps(&steps), [5]);
        steps[5].grad_norm = 500.0;
        assert!(suspicious_steps(&steps).is_empty());
    }

    #[test]
    fn a_validation_loss_above_its_minimum_is_overfitting_and_its_gap_is_known() {
        let health = |validation: &[f64]| {
            let mut run = facts(&["run.workers=1"], 0.1, vec![rank(0.1, 0.0, 0.0)]);
            run.validation = (1..).map(|at| 10 * at).zip(validation.iter().copied()).collect();
            Health::of(&run)
        };
        // The training loss falls from 4.99 to 4.6; the median of its last tenth is 4.615.
        let sound = health(&[4.9, 4.8, 4.7, 4.65]);
        assert!(!sound.overfitting && sound.warnings.is_empty(), "{sound:?}");
        let gap = sound.generalization_gap.expect("there is a validation");
        assert!((gap - 0.035).abs() < 1e-9, "{gap}");
        assert!(!health(&[4.9, 4.7, 4.75]).overfitting, "one percent is noise");
        let worse = health(&[4.9, 4.7, 4.9, 5.2]);
        assert!(worse.overfitting && worse.warnings[0].starts_with("overfitting"), "{worse:?}");
        assert_eq!(health(&[]).generalization_gap, None);
    }

    #[test]
    fn a_tenth_of_very_stale_gradients_is_a_warning() {
        let health = |stale: u64| {
            let mut run = facts(&["run.workers=2"], 0.1, vec![rank(0.1, 0.0, 0.0); 2]);
            run.staleness.insert(0, vec![(0, 50), (1, 50)]);
            run.staleness.insert(1, vec![(2, 100 - stale), (STALE, 0), (STALE + 1, stale)]);
            Health::of(&run)
        };
        let [few, many] = [20, 24].map(health);
        assert_eq!((few.staleness_max, few.stale_share), (Some(STALE + 1), Some(0.1)));
        assert!(few.warnings.is_empty(), "exactly a tenth: {few:?}");
        assert_eq!(many.stale_share, Some(0.12));
        assert!(many.warnings[0].starts_with("12 % of the gradients missed"), "{many:?}");
        // 50 gradients that missed 1, 76 that missed 2, and 24 that missed 51.
        assert_eq!(many.staleness_mean, Some((50.0 + 2.0 * 76.0 + 51.0 * 24.0) / 200.0));
    }
}
