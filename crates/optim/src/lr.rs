//! Learning-rate schedule: linear warm-up, then constant, cosine (Loshchilov and Hutter 2017),
//! linear, step or warm-up-stable-decay (Hu et al. 2024), optionally scaled with the batch (Goyal
//! et al. 2017).
//!
//! Everything is computed in `f64` with our own cosine, so that every machine gets the same bits.
//! The rate never depends on the number of workers: the global batch does not grow with them, and a
//! rate that did would diverge.

use lockstep_config::{DecayShape, LrScaling, LrSchedule, Optim};
use lockstep_tensor::math::scalar;
use std::f64::consts::PI;

/// The learning rate as a function of the step.
///
/// ```
/// use lockstep_config::{LrSchedule, Optim, Recipe};
/// use lockstep_optim::LearningRate;
///
/// let optim = Optim {
///     lr: 1.0,
///     warmup_steps: 4,
///     schedule: LrSchedule::Linear,
///     final_lr_fraction: 0.5,
///     ..Recipe::default().optim
/// };
/// let lr = LearningRate::new(&optim, 9);
/// let course: Vec<f64> = (0..9).map(|step| lr.at(step, 16)).collect();
/// assert_eq!(course, [0.25, 0.5, 0.75, 1.0, 1.0, 0.875, 0.75, 0.625, 0.5]);
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct LearningRate {
    /// Rate at the end of the warm-up.
    peak: f64,
    /// Steps of the warm-up; step 0 already moves, by `peak / warmup_steps`.
    warmup_steps: u64,
    num_steps: u64,
    schedule: Schedule,
    scaling: LrScaling,
    base_batch: usize,
}

/// Schedule after the warm-up; fractions are of the peak rate.
#[derive(Clone, Debug, PartialEq)]
enum Schedule {
    Constant,
    Cosine { last: f64 },
    Linear { last: f64 },
    Step { drops: Vec<u64>, factor: f64 },
    Wsd { num_decay_steps: u64, shape: DecayShape, last: f64 },
}

impl LearningRate {
    /// Schedule of a run of `num_steps`.
    pub fn new(optim: &Optim, num_steps: u64) -> Self {
        let last = optim.final_lr_fraction;
        let schedule = match optim.schedule {
            LrSchedule::Constant => Schedule::Constant,
            LrSchedule::Cosine => Schedule::Cosine { last },
            LrSchedule::Linear => Schedule::Linear { last },
            LrSchedule::Step => Schedule::Step {
                drops: optim.drop_at.iter().map(|moment| moment.step_of(num_steps)).collect(),
                factor: optim.drop_factor,
            },
            LrSchedule::Wsd => Schedule::Wsd {
                num_decay_steps: (optim.decay_fraction * num_steps as f64).round() as u64,
                shape: optim.decay_shape,
                last,
            },
        };
        Self {
            peak: optim.lr,
            warmup_steps: optim.warmup_steps,
            num_steps,
            schedule,
            scaling: optim.lr_scaling,
            base_batch: optim.lr_base_batch,
        }
    }

    /// Rate of a step, counted from 0, on a global batch of `batch` sequences. It is constant after
    /// the last step.
    pub fn at(&self, step: u64, batch: usize) -> f64 {
        let relative = batch as f64 / self.base_batch as f64;
        match self.scaling {
            LrScaling::None => self.unscaled(step),
            LrScaling::Linear => self.unscaled(step) * relative,
            LrScaling::Sqrt => self.unscaled(step) * relative.sqrt(),
        }
    }

    fn unscaled(&self, step: u64) -> f64 {
        if step < self.warmup_steps {
            return self.peak * (step + 1) as f64 / self.warmup_steps as f64;
        }
        let decay_to = |last: f64, height: f64| self.peak * (last + (1.0 - last) * height);
        match &self.schedule {
            Schedule::Constant => self.peak,
            Schedule::Linear { last } => {
                decay_to(*last, 1.0 - self.progress(step, self.warmup_steps))
            }
            Schedule::Cosine { last } => {
                decay_to(*last, cosine_decay(self.progress(step, self.warmup_steps)))
            }
            Schedule::Step { drops, factor } => {
                let num_drops = drops.iter().filter(|drop| **drop <= step).count();
                self.peak * scalar::powi(*factor, i32::try_from(num_drops).unwrap_or(i32::MAX))
            }
            Schedule::Wsd { num_decay_steps, shape, last } => {
                // The step before the decay is the last at the peak rate.
                let top = (self.num_steps - num_decay_steps.min(&self.num_steps)).saturating_sub(1);
                let progress = self.progress(step.max(top), top);
                decay_to(
                    *last,
                    match shape {
                        DecayShape::Linear => 1.0 - progress,
                        DecayShape::Sqrt => 1.0 - progress.sqrt(),
                        DecayShape::Cosine => cosine_decay(progress),
                    },
                )
            }
        }
    }

    /// Fraction of the steps from `first` to the last that are done.
    fn progress(&self, step: u64, first: u64) -> f64 {
        let last = self.num_steps.saturating_sub(1);
        match last.saturating_sub(first) {
            0 => 0.0,
            num_decay_steps => (step.min(last) - first) as f64 / num_decay_steps as f64,
        }
    }
}

/// Cosine decay from one to zero.
fn cosine_decay(progress: f64) -> f64 {
    0.5 * (1.0 + scalar::cos(PI * progress))
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockstep_config::{Milestone, Recipe};

    fn base() -> Optim {
        Optim {
            lr: 2e-3,
            warmup_steps: 3,
            schedule: LrSchedule::Cosine,
            final_lr_fraction: 0.1,
            ..Recipe::default().optim
        }
    }

    fn at(optim: &Optim, num_steps: u64, step: u64) -> f64 {
        LearningRate::new(optim, num_steps).at(step, 16)
    }

    fn is_close(a: f64, b: f64) -> bool {
        (a - b).abs() < 1e-15
    }

    #[test]
    fn warm_up_rises_in_equal_steps_to_the_peak_rate() {
        for step in 0..3 {
            assert!(is_close(at(&base(), 11, step), 2e-3 * (step + 1) as f64 / 3.0));
        }
        assert!(is_close(at(&base(), 11, 3), 2e-3));
    }

    #[test]
    fn cosine_passes_the_middle_and_ends_at_its_fraction_on_the_last_step() {
        // Steps 3 to 10 fall; a schedule of one more step has its middle on a step.
        assert!(is_close(at(&base(), 12, 7), 2e-3 * 0.55));
        assert!(is_close(at(&base(), 12, 11), 2e-4));
        assert!(is_close(at(&base(), 12, 100), 2e-4));
    }

    #[test]
    fn constant_ignores_the_final_fraction() {
        let optim = Optim { schedule: LrSchedule::Constant, ..base() };
        assert!((3..20).all(|step| is_close(at(&optim, 11, step), 2e-3)));
    }

    #[test]
    fn runs_of_warm_up_only_or_of_one_step_have_a_rate() {
        for num_steps in [0, 1, 3, 4] {
            assert!(is_close(at(&base(), num_steps, 3), 2e-3), "{num_steps} steps");
        }
        let optim = Optim { warmup_steps: 0, ..base() };
        assert!(is_close(at(&optim, 1, 0), 2e-3));
    }

    #[test]
    fn steps_drop_at_their_moments() {
        let drop_at = vec![Milestone::Fraction(0.5), Milestone::Step(8)];
        let optim = Optim { schedule: LrSchedule::Step, drop_at, drop_factor: 0.1, ..base() };
        for (step, rate) in [(3, 2e-3), (4, 2e-3), (5, 2e-4), (7, 2e-4), (8, 2e-5), (30, 2e-5)] {
            assert!(is_close(at(&optim, 10, step), rate), "step {step}");
        }
    }

    #[test]
    fn warm_up_stable_decay_is_constant_and_then_decays_in_its_shape() {
        let wsd = |decay_shape| Optim {
            schedule: LrSchedule::Wsd,
            decay_fraction: 0.4,
            decay_shape,
            final_lr_fraction: 0.0,
            ..base()
        };
        // Ten steps: three of warm-up, then the peak up to step 5, then four that decay.
        for shape in [DecayShape::Linear, DecayShape::Sqrt, DecayShape::Cosine] {
            let optim = wsd(shape);
            assert!((3..6).all(|step| is_close(at(&optim, 10, step), 2e-3)), "{shape}");
            assert!(is_close(at(&optim, 10, 9), 0.0), "{shape}");
        }
        assert!(is_close(at(&wsd(DecayShape::Linear), 10, 6), 2e-3 * 0.75));
        assert!(is_close(at(&wsd(DecayShape::Sqrt), 10, 6), 2e-3 * 0.5));
        assert!(is_close(at(&wsd(DecayShape::Cosine), 10, 7), 2e-3 * 0.5));
        let all = Optim { decay_fraction: 1.0, warmup_steps: 0, ..wsd(DecayShape::Linear) };
        assert!(is_close(at(&all, 11, 5), 1e-3), "a run that decays from its first step on");
    }

    #[test]
    fn the_rate_scales_with_the_batch_as_configured() {
        let scaled = |lr_scaling, batch| {
            let optim = Optim { lr_scaling, lr_base_batch: 16, ..base() };
            LearningRate::new(&optim, 11).at(3, batch)
        };
        assert!(is_close(scaled(LrScaling::None, 64), 2e-3));
        assert!(is_close(scaled(LrScaling::Linear, 64), 8e-3));
        assert!(is_close(scaled(LrScaling::Sqrt, 64), 4e-3));
        assert!(is_close(scaled(LrScaling::Linear, 8), 1e-3));
        assert!(is_close(scaled(LrScaling::Linear, 16), 2e-3), "an equal batch has an equal rate");
    }
}
