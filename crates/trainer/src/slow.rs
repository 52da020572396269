//! Workers that compute more slowly than they could, so that stragglers can be tried on a laptop.
//!
//! Before every lane a slow worker stands still for a multiple of what a lane takes it to compute.
//! The multiple is drawn from the recipe's distribution, by seed, worker, step and lane, so it is
//! the same in every run; what it is a multiple of is measured, so that a factor means the same for
//! a small model and a large one. Nothing is computed otherwise, and no bit changes.
//!
//! All workers can be made to take some time for a lane at least, so that many of them can be
//! played by few cores.

use lockstep_config::{Distribution, Recipe, SlowWorker};
use lockstep_platform::World;
use lockstep_tensor::math::scalar;
use lockstep_tensor::random::Key;
use std::cell::Cell;
use std::time::Duration;

/// The most that a worker stands still at once, whatever a heavy tail says.
const MAX_PAUSE: Duration = Duration::from_mins(1);

/// The longest sleep without a look at whether it is still wanted.
const SLICE: Duration = Duration::from_millis(2);

/// How slow this worker is.
pub struct Slow {
    /// What a lane takes at least.
    least: Duration,
    slowness: Option<SlowWorker>,
    key: Key,
    world: World,
    /// When the lane began that is being computed.
    began: Cell<Option<Duration>>,
    /// What a lane takes.
    lane: Cell<Option<Duration>>,
}

impl Slow {
    /// The slowness that the recipe gives a worker, if any.
    pub fn new(recipe: &Recipe, world: &World, worker: usize) -> Self {
        Self {
            least: Duration::from_secs_f64(recipe.emulate.lane.0),
            slowness: recipe.emulate.slowness(worker).copied(),
            key: Key::new(recipe.emulate.seed, "emulate.slow").with(worker as u64),
            world: World::clone(world),
            began: Cell::new(None),
            lane: Cell::new(None),
        }
    }

    /// Stands still before a lane, as long as that lane's turn is or until `is_over`.
    pub fn before_lane(&self, step: u64, lane: usize, is_over: &dyn Fn() -> bool) {
        if self.slowness.is_none() && self.least.is_zero() {
            return;
        }
        let clock = self.world.clock();
        if let Some(began) = self.began.take() {
            self.lane.set(Some(clock.since(began)));
        }
        let computes = self.lane.get().unwrap_or_default();
        let rest = self.least.saturating_sub(computes);
        let seconds = computes.max(self.least).as_secs_f64();
        let times = |slowness| extra(slowness, self.key.with(step), lane as u64);
        let extra = self.slowness.as_ref().map_or(0.0, times) * seconds;
        let extra = Duration::try_from_secs_f64(extra).unwrap_or(MAX_PAUSE).min(MAX_PAUSE);
        self.stand_still(rest + extra, is_over);
        self.began.set(Some(clock.now()));
    }

    fn stand_still(&self, pause: Duration, is_over: &dyn Fn() -> bool) {
        let clock = self.world.clock();
        let start = clock.now();
        loop {
            let left = pause.saturating_sub(clock.since(start));
            if left.is_zero() || is_over() {
                return;
            }
            clock.sleep(left.min(SLICE));
        }
    }

    /// The lanes of a step are done. The last one was followed by a word with the others, so it
    /// tells the time of a lane only where nothing better does.
    pub fn after_lanes(&self) {
        let Some(began) = self.began.take() else { return };
        let took = self.world.clock().since(began);
        self.lane.set(Some(self.lane.get().map_or(took, |known| known.min(took))));
    }
}

/// How many times as long as it takes a lane is waited for; its mean is one less than the factor.
fn extra(slowness: &SlowWorker, key: Key, index: u64) -> f64 {
    let mean = slowness.factor - 1.0;
    // Above 0, so that logarithms and quotients are finite.
    let uniform = 1.0 - key.uniform_f64(index);
    mean * match slowness.distribution {
        Distribution::Constant => 1.0,
        Distribution::Uniform => 2.0 * uniform,
        Distribution::Exponential => -scalar::ln(uniform),
        // The mean of exp(x) for a normal x is exp(1/2).
        Distribution::Lognormal => scalar::exp(f64::from(key.normal(index)) - 0.5),
        // Half the mean at least; the tail falls with the square.
        Distribution::Pareto => 0.5 / uniform.sqrt(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_distribution_has_the_mean_that_was_asked_for() {
        for name in Distribution::NAMES {
            let distribution = Distribution::from_name(name).expect("it is one of them");
            let slowness = SlowWorker { rank: 0, factor: 3.0, distribution };
            let key = Key::new(5, "test");
            let count = 200_000;
            let sum: f64 = (0..count).map(|index| extra(&slowness, key, index)).sum();
            let mean = sum / count as f64;
            // The tail of a Pareto distribution of shape two has no variance to speak of.
            assert!((mean - 2.0).abs() < 0.06, "{name}: {mean}");
            assert!((0..1000).all(|index| extra(&slowness, key, index) >= 0.0));
        }
    }

    #[test]
    fn a_worker_that_is_not_slow_never_stands_still() {
        let world = lockstep_platform::real();
        let slow = Slow::new(&Recipe::default(), &world, 0);
        slow.before_lane(0, 0, &|| false);
        assert!(slow.began.get().is_none() && slow.lane.get().is_none());
    }
}
