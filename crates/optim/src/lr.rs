//! The learning rate of each step: a warm-up, then a course, in proportion to the batch if asked.
//!
//! All of it is `f64` and our own cosine, so that every machine steps by the same bits. The rate
//! never depends on the number of workers: they share a batch of a given size, and a rate that grew
//! with them while the batch did not would diverge.

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
    /// Reached at the end of the warm-up.
    highest: f64,
    /// Steps of the warm-up; step 0 already moves, by `highest / warmup_steps`.
    warmup_steps: u64,
    num_steps: u64,
    course: Course,
    scaling: LrScaling,
    base_batch: usize,
}

/// What follows the warm-up; fractions are of the highest rate.
#[derive(Clone, Debug, PartialEq)]
enum Course {
    Constant,
    Cosine { last: f64 },
    Linear { last: f64 },
    Step { drops: Vec<u64>, factor: f64 },
    Wsd { num_falling: u64, shape: DecayShape, last: f64 },
}

impl LearningRate {
    /// The course of a run of `num_steps`.
    pub fn new(optim: &Optim, num_steps: u64) -> Self {
        let last = optim.final_lr_fraction;
        let course = match optim.schedule {
            LrSchedule::Constant => Course::Constant,
            LrSchedule::Cosine => Course::Cosine { last },
            LrSchedule::Linear => Course::Linear { last },
            LrSchedule::Step => Course::Step {
                drops: optim.drop_at.iter().map(|moment| moment.step_of(num_steps)).collect(),
                factor: optim.drop_factor,
            },
            LrSchedule::Wsd => Course::Wsd {
                num_falling: (optim.decay_fraction * num_steps as f64).round() as u64,
                shape: optim.decay_shape,
                last,
            },
        };
        Self {
            highest: optim.lr,
            warmup_steps: optim.warmup_steps,
            num_steps,
            course,
            scaling: optim.lr_scaling,
            base_batch: optim.lr_base_batch,
        }
    }

    /// The rate of a step, counted from 0, on a batch of so many sequences. After the last step it
    /// stays.
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
            return self.highest * (step + 1) as f64 / self.warmup_steps as f64;
        }
        let from_to = |last: f64, height: f64| self.highest * (last + (1.0 - last) * height);
        match &self.course {
            Course::Constant => self.highest,
            Course::Linear { last } => from_to(*last, 1.0 - self.progress(step, self.warmup_steps)),
            Course::Cosine { last } => {
                from_to(*last, half_wave(self.progress(step, self.warmup_steps)))
            }
            Course::Step { drops, factor } => {
                let num_drops = drops.iter().filter(|drop| **drop <= step).count();
                self.highest * scalar::powi(*factor, i32::try_from(num_drops).unwrap_or(i32::MAX))
            }
            Course::Wsd { num_falling, shape, last } => {
                // The step before the fall is the last at the highest rate.
                let top = (self.num_steps - num_falling.min(&self.num_steps)).saturating_sub(1);
                let progress = self.progress(step.max(top), top);
                from_to(
                    *last,
                    match shape {
                        DecayShape::Linear => 1.0 - progress,
                        DecayShape::Sqrt => 1.0 - progress.sqrt(),
                        DecayShape::Cosine => half_wave(progress),
                    },
                )
            }
        }
    }

    /// How much of the way from step `first` to the last step is done.
    fn progress(&self, step: u64, first: u64) -> f64 {
        let last = self.num_steps.saturating_sub(1);
        match last.saturating_sub(first) {
            0 => 0.0,
            num_falling => (step.min(last) - first) as f64 / num_falling as f64,
        }
    }
}

/// From one to zero along half a cosine wave.
fn half_wave(progress: f64) -> f64 {
    0.5 * (1.0 + scalar::cos(PI * progress))
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockstep_config::{Moment, Recipe};

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

    fn near(a: f64, b: f64) -> bool {
        (a - b).abs() < 1e-15
    }

    #[test]
    fn warm_up_rises_in_equal_steps_to_the_highest_rate() {
        for step in 0..3 {
            assert!(near(at(&base(), 11, step), 2e-3 * (step + 1) as f64 / 3.0));
        }
        assert!(near(at(&base(), 11, 3), 2e-3));
    }

    #[test]
    fn cosine_passes_the_middle_and_ends_at_its_fraction_on_the_last_step() {
        // Steps 3 to 10 fall; a course of one more step has its middle on a step.
        assert!(near(at(&base(), 12, 7), 2e-3 * 0.55));
        assert!(near(at(&base(), 12, 11), 2e-4));
        assert!(near(at(&base(), 12, 100), 2e-4));
    }

    #[test]
    fn constant_ignores_the_final_fraction() {
        let optim = Optim { schedule: LrSchedule::Constant, ..base() };
        assert!((3..20).all(|step| near(at(&optim, 11, step), 2e-3)));
    }

    #[test]
    fn a_run_that_is_all_warm_up_or_one_step_long_has_a_rate() {
        for num_steps in [0, 1, 3, 4] {
            assert!(near(at(&base(), num_steps, 3), 2e-3), "{num_steps} steps");
        }
        let optim = Optim { warmup_steps: 0, ..base() };
        assert!(near(at(&optim, 1, 0), 2e-3));
    }

    #[test]
    fn steps_drop_at_their_moments() {
        let drop_at = vec![Moment::Fraction(0.5), Moment::Step(8)];
        let optim = Optim { schedule: LrSchedule::Step, drop_at, drop_factor: 0.1, ..base() };
        for (step, rate) in [(3, 2e-3), (4, 2e-3), (5, 2e-4), (7, 2e-4), (8, 2e-5), (30, 2e-5)] {
            assert!(near(at(&optim, 10, step), rate), "step {step}");
        }
    }

    #[test]
    fn warm_up_stable_decay_stays_and_then_falls_in_its_shape() {
        let wsd = |decay_shape| Optim {
            schedule: LrSchedule::Wsd,
            decay_fraction: 0.4,
            decay_shape,
            final_lr_fraction: 0.0,
            ..base()
        };
        // Ten steps: three of warm-up, then the highest up to step 5, then four that fall.
        for shape in [DecayShape::Linear, DecayShape::Sqrt, DecayShape::Cosine] {
            let optim = wsd(shape);
            assert!((3..6).all(|step| near(at(&optim, 10, step), 2e-3)), "{shape}");
            assert!(near(at(&optim, 10, 9), 0.0), "{shape}");
        }
        assert!(near(at(&wsd(DecayShape::Linear), 10, 6), 2e-3 * 0.75));
        assert!(near(at(&wsd(DecayShape::Sqrt), 10, 6), 2e-3 * 0.5));
        assert!(near(at(&wsd(DecayShape::Cosine), 10, 7), 2e-3 * 0.5));
        let all = Optim { decay_fraction: 1.0, warmup_steps: 0, ..wsd(DecayShape::Linear) };
        assert!(near(at(&all, 11, 5), 1e-3), "a run that falls from its first step on");
    }

    #[test]
    fn the_rate_follows_the_batch_as_asked_and_nothing_else() {
        let scaled = |lr_scaling, batch| {
            let optim = Optim { lr_scaling, lr_base_batch: 16, ..base() };
            LearningRate::new(&optim, 11).at(3, batch)
        };
        assert!(near(scaled(LrScaling::None, 64), 2e-3));
        assert!(near(scaled(LrScaling::Linear, 64), 8e-3));
        assert!(near(scaled(LrScaling::Sqrt, 64), 4e-3));
        assert!(near(scaled(LrScaling::Linear, 8), 1e-3));
        assert!(near(scaled(LrScaling::Linear, 16), 2e-3), "an equal batch has an equal rate");
    }
}
