//! Workers that compute more slowly than they could, so that stragglers and devices of their own
//! can be tried on a laptop.
//!
//! Before every micro-batch a slow worker stands still for a multiple of what a micro-batch takes it to compute.
//! The multiple is drawn from the recipe's distribution, by seed, worker, step and micro-batch, so it is
//! the same in every run; what it is a multiple of is measured, so that a factor means the same for
//! a small model and a large one. Nothing is computed otherwise, and no bit changes.
//!
//! Where the recipe says what a micro-batch takes (`emulate.microbatch_ms`), workers that share a core play
//! devices of their own: each waits for what computing leaves of that time. Two thirds of it pass
//! before the micro-batch is computed and the rest behind it, as if gradients left for the others halfway
//! through the backward pass, which takes twice as long as the forward pass. Computing that takes
//! longer than that is late, and is counted: then times are partly those of the machine.

use lockstep_config::{Distribution, Recipe, SlowWorker, Stragglers};
use lockstep_platform::World;
use lockstep_tensor::math::scalar;
use lockstep_tensor::random::Key;
use std::cell::Cell;
use std::time::Duration;

/// The most that a worker stands still at once, whatever a heavy tail says.
const MAX_PAUSE: Duration = Duration::from_mins(1);

/// The longest sleep without a look at whether it is still wanted.
const SLICE: Duration = Duration::from_millis(2);
/// The part of a micro-batch's time that passes before it is computed.
const BEFORE: f64 = 2.0 / 3.0;

/// How slow this worker is.
pub struct Slow {
    slowness: Option<SlowWorker>,
    /// What the recipe says that a micro-batch takes, if it does.
    asked: Option<Duration>,
    key: Key,
    world: World,
    /// When the micro-batch began that is being computed.
    began: Cell<Option<Duration>>,
    /// What a micro-batch takes.
    microbatch: Cell<Option<Duration>>,
    /// When the micro-batch is to end that is being computed.
    due: Cell<Option<Duration>>,
    late: Cell<Duration>,
    /// Whether all workers have as much to do, so that none of them waits for another's micro-batches.
    is_even: bool,
    /// Whether the times of micro-batches decide something, so that all of a micro-batch's time must be over when
    /// it is computed.
    is_watched: bool,
}

impl Slow {
    /// The slowness that the recipe gives a worker, if any.
    pub fn new(recipe: &Recipe, world: &World, worker: usize) -> Self {
        let asked = Duration::from_secs_f64(recipe.emulate.microbatch.0);
        let shares = recipe.leaf_shares();
        let is_even = shares.iter().all(|share| *share == shares[0]);
        Self {
            slowness: recipe.emulate.slowness(worker).copied(),
            asked: (!asked.is_zero()).then_some(asked),
            key: Key::new(recipe.emulate.seed, "emulate.slow").with(worker as u64),
            world: World::clone(world),
            began: Cell::new(None),
            microbatch: Cell::new(None),
            due: Cell::new(None),
            late: Cell::new(Duration::ZERO),
            is_even: is_even && recipe.emulate.slow.is_empty(),
            is_watched: recipe.sync.uneven.stragglers != Stragglers::Wait,
        }
    }

    /// Stands still before a micro-batch, as long as that micro-batch's turn is or until `is_over`.
    pub fn before_microbatch(&self, step: u64, microbatch: usize, is_over: &dyn Fn() -> bool) {
        let extra = |slowness| extra(slowness, self.key.with(step), microbatch as u64);
        let (clock, extra) = (self.world.clock(), self.slowness.as_ref().map_or(0.0, extra));
        if let Some(asked) = self.asked {
            self.wait_until_due(true);
            let (began, whole) = (clock.now(), scaled(asked, 1.0 + extra));
            if self.is_watched {
                self.stand_still(whole, is_over);
            } else {
                clock.sleep(whole.mul_f64(BEFORE));
                self.due.set(Some(began + whole));
            }
            return;
        }
        if self.slowness.is_none() {
            return;
        }
        if let Some(began) = self.began.take() {
            self.microbatch.set(Some(clock.since(began)));
        }
        self.stand_still(scaled(self.microbatch.get().unwrap_or_default(), extra), is_over);
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

    /// The micro-batches of a step are done. The last one was followed by a word with the others, so it
    /// tells the time of a micro-batch only where nothing better does.
    pub fn after_microbatches(&self) {
        self.wait_until_due(self.is_even);
        let Some(began) = self.began.take() else { return };
        let took = self.world.clock().since(began);
        self.microbatch.set(Some(self.microbatch.get().map_or(took, |known| known.min(took))));
    }

    /// By how much micro-batches took longer than the recipe says, all of them together.
    pub fn late(&self) -> Duration {
        self.late.get()
    }

    fn wait_until_due(&self, counts: bool) {
        let (clock, Some(due)) = (self.world.clock(), self.due.take()) else { return };
        let now = clock.now();
        clock.sleep(due.saturating_sub(now));
        if counts {
            self.late.set(self.late.get() + now.saturating_sub(due));
        }
    }
}

/// So many times as long, and no longer than anybody waits.
fn scaled(time: Duration, factor: f64) -> Duration {
    let scaled = Duration::try_from_secs_f64(time.as_secs_f64() * factor);
    scaled.unwrap_or(MAX_PAUSE).min(MAX_PAUSE)
}

/// How many times as long as it takes a micro-batch is waited for; its mean is one less than the factor.
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
    fn a_microbatch_takes_what_the_recipe_says_and_what_takes_longer_is_counted() {
        let mut recipe = Recipe::default();
        recipe.emulate.microbatch.0 = 0.004;
        let world = lockstep_platform::real();
        let slow = Slow::new(&recipe, &world, 0);
        let start = world.clock().now();
        for microbatch in 0..3 {
            slow.before_microbatch(0, microbatch, &|| false);
        }
        slow.after_microbatches();
        assert!(world.clock().since(start) >= Duration::from_millis(12));
        slow.before_microbatch(1, 0, &|| false);
        let before = slow.late();
        world.clock().sleep(Duration::from_millis(10));
        slow.after_microbatches();
        assert!(slow.late() > before, "it was not done in time");
    }

    #[test]
    fn a_worker_that_is_not_slow_never_stands_still() {
        let world = lockstep_platform::real();
        let slow = Slow::new(&Recipe::default(), &world, 0);
        slow.before_microbatch(0, 0, &|| false);
        assert!(slow.began.get().is_none() && slow.microbatch.get().is_none());
    }
}
