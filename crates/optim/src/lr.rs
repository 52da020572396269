//! The learning rate of each step: a warm-up, then a course.
//!
//! All of it is `f64` and our own cosine, so that every machine steps by the same bits.

use lockstep_config::{LrSchedule, Optim};
use lockstep_tensor::math::scalar;
use std::f64::consts::PI;

/// The learning rate as a function of the step.
///
/// ```
/// use lockstep_config::LrSchedule;
/// use lockstep_optim::LearningRate;
///
/// let lr = LearningRate {
///     highest: 1.0,
///     warmup_steps: 4,
///     num_steps: 9,
///     schedule: LrSchedule::Linear,
///     final_fraction: 0.5,
/// };
/// let course: Vec<f64> = (0..9).map(|step| lr.at(step)).collect();
/// assert_eq!(course, [0.25, 0.5, 0.75, 1.0, 1.0, 0.875, 0.75, 0.625, 0.5]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LearningRate {
    /// Reached at the end of the warm-up.
    pub highest: f64,
    /// Steps of the warm-up; step 0 already moves, by `highest / warmup_steps`.
    pub warmup_steps: u64,
    /// Steps of the whole run.
    pub num_steps: u64,
    /// The course after the warm-up.
    pub schedule: LrSchedule,
    /// The rate of the last step, as a fraction of `highest`.
    pub final_fraction: f64,
}

impl LearningRate {
    /// The course of a run of `num_steps`.
    pub fn new(optim: &Optim, num_steps: u64) -> Self {
        Self {
            highest: optim.lr,
            warmup_steps: optim.warmup_steps,
            num_steps,
            schedule: optim.schedule,
            final_fraction: optim.final_lr_fraction,
        }
    }

    /// The rate of a step, counted from 0. After the last step it stays.
    pub fn at(&self, step: u64) -> f64 {
        if step < self.warmup_steps {
            return self.highest * (step + 1) as f64 / self.warmup_steps as f64;
        }
        let last = self.num_steps.saturating_sub(1);
        let num_falling = last.saturating_sub(self.warmup_steps);
        let progress = match num_falling {
            0 => 0.0,
            _ => (step.min(last) - self.warmup_steps) as f64 / num_falling as f64,
        };
        let height = match self.schedule {
            LrSchedule::Constant => 1.0,
            LrSchedule::Linear => 1.0 - progress,
            LrSchedule::Cosine => 0.5 * (1.0 + scalar::cos(PI * progress)),
        };
        let floor = match self.schedule {
            LrSchedule::Constant => 0.0,
            LrSchedule::Linear | LrSchedule::Cosine => self.final_fraction,
        };
        self.highest * (floor + (1.0 - floor) * height)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: LearningRate = LearningRate {
        highest: 2e-3,
        warmup_steps: 3,
        num_steps: 11,
        schedule: LrSchedule::Cosine,
        final_fraction: 0.1,
    };

    fn near(a: f64, b: f64) -> bool {
        (a - b).abs() < 1e-15
    }

    #[test]
    fn warm_up_rises_in_equal_steps_to_the_highest_rate() {
        for step in 0..3 {
            assert!(near(BASE.at(step), 2e-3 * (step + 1) as f64 / 3.0));
        }
        assert!(near(BASE.at(3), 2e-3));
    }

    #[test]
    fn cosine_passes_the_middle_and_ends_at_its_fraction_on_the_last_step() {
        // Steps 3 to 10 fall; a course of one more step has its middle on a step.
        let lr = LearningRate { num_steps: 12, ..BASE };
        assert!(near(lr.at(7), 2e-3 * 0.55));
        assert!(near(lr.at(11), 2e-4));
        assert!(near(lr.at(100), 2e-4));
    }

    #[test]
    fn constant_ignores_the_final_fraction() {
        let lr = LearningRate { schedule: LrSchedule::Constant, ..BASE };
        assert!((3..20).all(|step| near(lr.at(step), 2e-3)));
    }

    #[test]
    fn a_run_that_is_all_warm_up_or_one_step_long_has_a_rate() {
        for num_steps in [0, 1, 3, 4] {
            let lr = LearningRate { num_steps, ..BASE };
            assert!(near(lr.at(3), 2e-3), "{num_steps} steps");
        }
        let lr = LearningRate { num_steps: 1, warmup_steps: 0, ..BASE };
        assert!(near(lr.at(0), 2e-3));
    }
}
