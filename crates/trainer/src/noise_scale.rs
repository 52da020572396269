//! Gradient-noise scale of the run (McCandlish et al. 2018, "An Empirical Model of Large-Batch
//! Training", appendix A.1): the squared norm of a gradient over b sequences has the expectation
//! |G|² + tr(Σ) / b, so its values over a reduction leaf and over the whole batch give both terms.
//!
//! Every rank keeps the sums of squares of what it holds ([`SquaredNorms`]); they are added over
//! the ranks at evaluations, where ranks meet anyway. Leaves may have different numbers of targets:
//! each leaf's gradient is divided by its own number, and the small batch is the harmonic mean of
//! the leaves' shares of the targets, in sequences. So the estimate has no bias where targets
//! contribute equal noise.

use lockstep_comm::{Comm, CommError, Reduction};
use lockstep_config::{Recipe, Reduction as LossReduction};
use lockstep_data::Batch;
use lockstep_parallel::{Replica, SquaredNorms};
use lockstep_telemetry::Event;
use lockstep_tensor::Cpu;

/// Measured steps that wait for the next exchange, at most: more exchange without an evaluation.
const MAX_PENDING: usize = 1024;

/// Measured steps that one call exchanges; calls of one length are planned once.
const STEPS_PER_CALL: usize = 64;

/// Sums of one measured step over ranks.
const NUM_SUMS: usize = 4;

/// Measures the gradient noise on this rank.
#[derive(Default)]
pub(crate) struct NoiseMeter {
    is_on: bool,
    /// Targets of this rank's leaves.
    targets: Vec<u64>,
    pending: Vec<MeasuredStep>,
    /// Sums in exchange.
    exchanged: Vec<f64>,
}

/// A step that this rank has measured.
#[derive(Clone, Copy, Debug, PartialEq)]
struct MeasuredStep {
    /// Number of completed steps.
    step: u64,
    /// Sequences of the batch.
    batch: f64,
    /// Addends of this rank to the sums over ranks.
    sums: [f64; NUM_SUMS],
}

/// Targets of a batch, and the number by which the engine has divided gradients.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Divisors {
    pub(crate) targets: u64,
    pub(crate) divisor: u64,
}

impl NoiseMeter {
    /// Starts to measure, if the recipe says so. Collective.
    pub(crate) fn start(
        recipe: &Recipe,
        replica: &mut Replica,
        comm: &Comm,
    ) -> Result<Self, CommError> {
        if !recipe.measures_gradient_noise() {
            return Ok(Self::default());
        }
        replica.allocate_leaf_norms()?;
        let mut exchanged = vec![0.0; STEPS_PER_CALL * NUM_SUMS];
        // A collective is planned on its first call; do that before the run starts.
        comm.all_reduce(&mut exchanged, Reduction::Sum)?;
        let (targets, pending) =
            (Vec::with_capacity(recipe.num_leaves()), Vec::with_capacity(MAX_PENDING));
        Ok(Self { is_on: true, targets, pending, exchanged })
    }

    /// Records the norms of a step whose gradients are reduced, if it is measured.
    pub(crate) fn measure(
        &mut self,
        cpu: &Cpu,
        recipe: &Recipe,
        num_steps: u64,
        batch: &Batch,
        divisors: Divisors,
        replica: &mut Replica,
    ) -> Result<(), CommError> {
        if !self.is_on || !recipe.is_noise_measured(num_steps) {
            return Ok(());
        }
        let microbatches_per_leaf = batch.num_microbatches() / recipe.num_leaves();
        let leaves = replica.own_microbatches().chunks_exact(microbatches_per_leaf);
        self.targets.clear();
        self.targets.extend(leaves.map(|leaf| samples_in(batch, leaf)));
        let divisor = match recipe.train.reduction {
            LossReduction::Mean => divisors.divisor,
            LossReduction::Sum => 1,
        };
        let divisors = Divisors { divisor, ..divisors };
        let reports = replica.reports_for_its_part();
        // All ranks exchange equally many steps, so one that has nothing says so.
        let mut sums = [f64::NAN; NUM_SUMS];
        if let Some(norms) = replica.leaf_norms(cpu)? {
            sums = own_sums(norms, &self.targets, divisors, reports);
        }
        let sequences = batch.num_microbatches() * recipe.train.microbatch_size;
        self.pending.push(MeasuredStep { step: num_steps, batch: sequences as f64, sums });
        Ok(())
    }

    /// Whether measured steps must be exchanged; equal on all ranks.
    pub(crate) fn is_full(&self) -> bool {
        self.pending.len() == MAX_PENDING
    }

    /// Adds the sums of all ranks and visits the events of the measured steps. Collective.
    pub(crate) fn exchange(
        &mut self,
        comm: &Comm,
        mut visit: impl FnMut(&Event),
    ) -> Result<(), CommError> {
        for steps in self.pending.chunks(STEPS_PER_CALL) {
            self.exchanged.fill(0.0);
            let (sums, _) = self.exchanged.as_chunks_mut::<NUM_SUMS>();
            for (sums, step) in sums.iter_mut().zip(steps) {
                *sums = step.sums;
            }
            comm.all_reduce(&mut self.exchanged, Reduction::Sum)?;
            let (sums, _) = self.exchanged.as_chunks::<NUM_SUMS>();
            for (step, sums) in steps.iter().zip(sums) {
                if let Some(event) = event_of(step, *sums) {
                    visit(&event);
                }
            }
        }
        self.pending.clear();
        Ok(())
    }
}

/// Samples of a leaf that the loss counts: its targets, or its pairs.
fn samples_in(batch: &Batch, microbatches: &[usize]) -> u64 {
    let pairs = |microbatch: usize| Some(batch.references(microbatch)?.len() as u64 / 2);
    let of_pairs: Option<u64> = microbatches.iter().map(|index| pairs(*index)).sum();
    of_pairs.unwrap_or_else(|| batch.targets_in(microbatches.iter().copied()))
}

/// Addends of a rank to the sums of a step: over leaves, of the squared norm of the mean gradient;
/// the squared norm of the batch's mean gradient; and, if it reports for its part of the batch,
/// over leaves, of the batch's targets per target of the leaf, and of one.
fn own_sums(
    norms: SquaredNorms<'_>,
    targets: &[u64],
    Divisors { targets: of_batch, divisor }: Divisors,
    reports: bool,
) -> [f64; NUM_SUMS] {
    let mean_of = |norm: f64, targets: u64| norm * (divisor as f64 / targets as f64).powi(2);
    let mut sums = [0.0, mean_of(norms.total, of_batch), 0.0, 0.0];
    // A leaf without targets has no gradient.
    let leaves = norms.by_leaf.iter().zip(targets).filter(|(_, targets)| **targets > 0);
    for (norm, targets) in leaves {
        sums[0] += mean_of(*norm, *targets);
        if reports {
            sums[2] += of_batch as f64 / *targets as f64;
            sums[3] += 1.0;
        }
    }
    sums
}

/// Event of a measured step with the sums over all ranks; none where gradients were not finite or
/// fewer than two leaves had any.
fn event_of(step: &MeasuredStep, sums: [f64; NUM_SUMS]) -> Option<Event> {
    let [small, large_norm_squared, batch_per_leaf, leaves] = sums;
    let is_known = sums.iter().all(|sum| sum.is_finite()) && leaves > 1.5;
    is_known.then(|| Event::GradientNoise {
        step: step.step,
        small_batch: step.batch * leaves / batch_per_leaf,
        large_batch: step.batch,
        small_norm_squared: small / leaves,
        large_norm_squared,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(found: f64, expected: f64) {
        assert!((found - expected).abs() <= 1e-12 * expected.abs(), "{found} is not {expected}");
    }

    #[test]
    fn unequal_leaves_give_the_exact_terms_where_every_target_has_equal_noise() {
        // Expectations of leaves whose targets have the gradient g and the variance v: the engine
        // has divided by the 12 targets of the batch.
        let (g_squared, variance, targets) = (3.0, 7.0, [2_u64, 6, 4, 0]);
        let mean = |targets: u64| g_squared + variance / targets.max(1) as f64;
        let as_divided = |targets: u64| mean(targets) * (targets as f64 / 12.0).powi(2);
        let by_leaf = targets.map(as_divided);
        let divisors = Divisors { targets: 12, divisor: 12 };
        // Two ranks with two leaves and a half of the total each.
        let mut sums = [0.0; NUM_SUMS];
        for rank in 0..2 {
            let own = 2 * rank..2 * rank + 2;
            let norms = SquaredNorms { by_leaf: &by_leaf[own.clone()], total: mean(12) / 2.0 };
            for (sum, own) in sums.iter_mut().zip(own_sums(norms, &targets[own], divisors, true)) {
                *sum += own;
            }
        }
        let step = MeasuredStep { step: 5, batch: 6.0, sums };
        let Some(Event::GradientNoise {
            step: 5,
            small_batch,
            large_batch,
            small_norm_squared,
            large_norm_squared,
        }) = event_of(&step, sums)
        else {
            panic!("the norms are finite")
        };
        // Two targets a sequence.
        let per_sequence = variance / 2.0;
        let found =
            (small_norm_squared - large_norm_squared) / (1.0 / small_batch - 1.0 / large_batch);
        close(found, per_sequence);
        close(large_norm_squared - found / large_batch, g_squared);
    }

    #[test]
    fn steps_without_finite_norms_or_a_second_leaf_are_left_out() {
        let step = MeasuredStep { step: 1, batch: 8.0, sums: [0.0; NUM_SUMS] };
        assert!(event_of(&step, [1.0, 1.0, 2.0, 2.0]).is_some());
        assert!(event_of(&step, [f64::NAN; NUM_SUMS]).is_none());
        assert!(event_of(&step, [f64::INFINITY, 1.0, 2.0, 2.0]).is_none());
        assert!(event_of(&step, [1.0, 1.0, 1.0, 1.0]).is_none());
    }
}
