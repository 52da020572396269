//! Emulates slow workers and dedicated devices on one machine.
//!
//! A slow worker sleeps before each micro-batch for a multiple of its measured compute time. The
//! multiple is drawn from the recipe's distribution by seed, worker, step and micro-batch, so every
//! run draws the same ones; relative times make a factor mean the same for small and large models.
//! No result bit changes.
//!
//! With a fixed time per micro-batch (`emulate.microbatch_ms`), workers that share a core act as
//! dedicated devices: each one sleeps for the rest of that time. Two thirds of it pass before the
//! computation and one third after, as if gradients left halfway through a backward pass that takes
//! twice as long as the forward pass. Computation beyond the fixed time counts as overrun: the
//! measured times then partly reflect this machine.

use lockstep_config::{Distribution, Recipe, SlowWorker, StragglerPolicy};
use lockstep_platform::World;
use lockstep_tensor::math::scalar;
use lockstep_tensor::random::Key;
use std::cell::Cell;
use std::time::Duration;

/// Longest single pause, which bounds heavy-tailed distributions.
const MAX_PAUSE: Duration = Duration::from_mins(1);

/// Interval at which a pause checks whether it is still needed.
const CHECK_INTERVAL: Duration = Duration::from_millis(2);
/// Fraction of a micro-batch's time that passes before its computation.
const FRACTION_BEFORE: f64 = 2.0 / 3.0;

/// Emulated speed of this worker.
pub struct Emulation {
    slowness: Option<SlowWorker>,
    /// Fixed time of a micro-batch, if the recipe sets one.
    fixed_time: Option<Duration>,
    key: Key,
    world: World,
    /// Start of the running micro-batch.
    began: Cell<Option<Duration>>,
    /// Measured compute time of a micro-batch.
    microbatch: Cell<Option<Duration>>,
    /// End of the running micro-batch by the fixed time.
    due: Cell<Option<Duration>>,
    overrun: Cell<Duration>,
    /// Fixed times of the micro-batches since the last report.
    emulated: Cell<Duration>,
    /// Whether all workers have equal work, so that none waits for another's micro-batches.
    is_even: bool,
    /// Whether a straggler policy reads micro-batch times; then all of the time passes before the
    /// computation.
    is_timed: bool,
}

impl Emulation {
    /// Emulation of a worker as the recipe sets it.
    pub fn new(recipe: &Recipe, world: &World, worker: usize) -> Self {
        let fixed_time = Duration::from_secs_f64(recipe.emulate.microbatch.0);
        let shares = recipe.leaf_shares();
        let is_even = shares.iter().all(|share| *share == shares[0]);
        Self {
            slowness: recipe.emulate.slowness(worker).copied(),
            fixed_time: (!fixed_time.is_zero()).then_some(fixed_time),
            key: Key::new(recipe.emulate.seed, "emulate.slow").with(worker as u64),
            world: World::clone(world),
            began: Cell::new(None),
            microbatch: Cell::new(None),
            due: Cell::new(None),
            overrun: Cell::new(Duration::ZERO),
            emulated: Cell::new(Duration::ZERO),
            is_even: is_even && recipe.emulate.slow.is_empty(),
            is_timed: recipe.sync.stragglers.policy != StragglerPolicy::Wait,
        }
    }

    /// Pauses before a micro-batch, at most until `is_over`.
    pub fn before_microbatch(&self, step: u64, microbatch: usize, is_over: &dyn Fn() -> bool) {
        let extra = |slowness| extra(slowness, self.key.with(step), microbatch as u64);
        let (clock, extra) = (self.world.clock(), self.slowness.as_ref().map_or(0.0, extra));
        if let Some(fixed_time) = self.fixed_time {
            self.wait_until_due(true);
            let (began, whole) = (clock.now(), scaled(fixed_time, 1.0 + extra));
            if self.is_timed {
                self.pause_for(whole, is_over);
            } else {
                clock.sleep(whole.mul_f64(FRACTION_BEFORE));
                self.due.set(Some(began + whole));
                self.emulated.set(self.emulated.get() + whole);
            }
            return;
        }
        if self.slowness.is_none() {
            return;
        }
        if let Some(began) = self.began.take() {
            self.microbatch.set(Some(clock.since(began)));
        }
        self.pause_for(scaled(self.microbatch.get().unwrap_or_default(), extra), is_over);
        self.began.set(Some(clock.now()));
    }

    fn pause_for(&self, pause: Duration, is_over: &dyn Fn() -> bool) {
        let clock = self.world.clock();
        let start = clock.now();
        loop {
            let left = pause.saturating_sub(clock.since(start));
            if left.is_zero() || is_over() {
                return;
            }
            clock.sleep(left.min(CHECK_INTERVAL));
        }
    }

    /// Ends the micro-batches of a step. The last one includes communication, so its time counts
    /// only if it is the shortest known.
    pub fn after_microbatches(&self) {
        self.wait_until_due(self.is_even);
        let Some(began) = self.began.take() else { return };
        let took = self.world.clock().since(began);
        self.microbatch.set(Some(self.microbatch.get().map_or(took, |known| known.min(took))));
    }

    /// Fixed times of the micro-batches since the last call: an emulated device is busy as long,
    /// although this worker waits for others in the last third of the last one.
    pub fn take_emulated_time(&self) -> Duration {
        self.emulated.take()
    }

    /// Total time by which micro-batches exceeded the fixed time.
    pub fn overrun(&self) -> Duration {
        self.overrun.get()
    }

    fn wait_until_due(&self, counts: bool) {
        let (clock, Some(due)) = (self.world.clock(), self.due.take()) else { return };
        let now = clock.now();
        clock.sleep(due.saturating_sub(now));
        if counts {
            self.overrun.set(self.overrun.get() + now.saturating_sub(due));
        }
    }
}

/// `time` multiplied by `factor`, at most [`MAX_PAUSE`].
fn scaled(time: Duration, factor: f64) -> Duration {
    let scaled = Duration::try_from_secs_f64(time.as_secs_f64() * factor);
    scaled.unwrap_or(MAX_PAUSE).min(MAX_PAUSE)
}

/// Extra time of a micro-batch, as a multiple of its compute time, with mean `factor - 1`.
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
        // Pareto of shape 2: at least half the mean.
        Distribution::Pareto => 0.5 / uniform.sqrt(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_distribution_has_the_requested_mean() {
        for name in Distribution::NAMES {
            let distribution = Distribution::from_name(name).expect("it is one of them");
            let slowness = SlowWorker { rank: 0, factor: 3.0, distribution };
            let key = Key::new(5, "test");
            let count = 200_000;
            let sum: f64 = (0..count).map(|index| extra(&slowness, key, index)).sum();
            let mean = sum / count as f64;
            // A Pareto distribution of shape 2 has infinite variance.
            assert!((mean - 2.0).abs() < 0.06, "{name}: {mean}");
            assert!((0..1000).all(|index| extra(&slowness, key, index) >= 0.0));
        }
    }

    #[test]
    fn a_microbatch_takes_the_fixed_time_and_overruns_are_counted() {
        let mut recipe = Recipe::default();
        recipe.emulate.microbatch.0 = 0.004;
        let world = lockstep_platform::real();
        let slow = Emulation::new(&recipe, &world, 0);
        let start = world.clock().now();
        for microbatch in 0..3 {
            slow.before_microbatch(0, microbatch, &|| false);
        }
        slow.after_microbatches();
        assert!(world.clock().since(start) >= Duration::from_millis(12));
        slow.before_microbatch(1, 0, &|| false);
        let before = slow.overrun();
        world.clock().sleep(Duration::from_millis(10));
        slow.after_microbatches();
        assert!(slow.overrun() > before, "it was not done in time");
    }

    #[test]
    fn a_worker_of_full_speed_never_pauses() {
        let world = lockstep_platform::real();
        let slow = Emulation::new(&Recipe::default(), &world, 0);
        slow.before_microbatch(0, 0, &|| false);
        assert!(slow.began.get().is_none() && slow.microbatch.get().is_none());
    }
}
