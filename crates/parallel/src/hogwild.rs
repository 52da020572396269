//! Hogwild! (Niu et al. 2011): threads step shared weights without locks.
//!
//! A thread reads all weights one by one while others may change them, computes the gradient of its
//! part of the batch, and adds its step to every weight with a nonzero gradient, one at a time. The
//! weights it read may mix several versions, and its step may be stale: with sparse gradients
//! threads seldom touch the same weight and it does not matter; with dense ones it acts as
//! staleness does.
//!
//! Weights are `f32` bits in atomics, and an addition is a compare-and-swap loop, so there is no
//! data race and no addition is lost. All accesses are *relaxed*: no other memory depends on the
//! weights, and threads synchronize when they are joined.

use crate::federated::{read_weights, write_weights};
use crate::leaves::Leaves;
use crate::replica::Replica;
use crate::replica_plan::ReplicaPlan;
use lockstep_comm::{Comm, CommError, Options};
use lockstep_model::Blueprint;
use lockstep_optim::Clip;
use lockstep_platform::World;
use lockstep_tensor::Cpu;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// Weights shared by all threads.
pub struct SharedWeights {
    values: Vec<AtomicU32>,
    /// Number of steps so far.
    num_updates: AtomicU64,
    /// Range of each tensor in the flat weights.
    places: BTreeMap<String, Range<usize>>,
}

/// State of one thread.
pub struct HogwildThread {
    solo: Replica,
    weights: Vec<f32>,
    /// Number of steps at the time the weights were read.
    version: u64,
    /// Number of this thread's steps by staleness, the number of steps of other threads they
    /// missed.
    pub staleness: BTreeMap<u64, u64>,
}

impl SharedWeights {
    /// Starts from the weights of a replica.
    pub fn new(replica: &mut Replica) -> Result<Self, CommError> {
        let (mut places, mut len) = (BTreeMap::new(), 0);
        for (_, param) in replica.blueprint.tensors() {
            places.insert(param.name.clone(), len..len + param.len());
            len += param.len();
        }
        let mut values = vec![0.0; len];
        read_weights(replica, &places, &mut values)?;
        Ok(Self::of(&values, places))
    }

    fn of(values: &[f32], places: BTreeMap<String, Range<usize>>) -> Self {
        let values = values.iter().map(|value| AtomicU32::new(value.to_bits())).collect();
        Self { values, num_updates: AtomicU64::new(0), places }
    }

    /// Copies the current weights to a replica.
    pub fn show(&self, replica: &mut Replica) -> Result<(), CommError> {
        let mut values = vec![0.0; self.values.len()];
        self.load(&mut values);
        write_weights(replica, &self.places, &values)
    }

    /// Number of steps so far.
    pub fn num_updates(&self) -> u64 {
        self.num_updates.load(Relaxed)
    }

    fn load(&self, into: &mut [f32]) {
        for (into, value) in into.iter_mut().zip(&self.values) {
            *into = f32::from_bits(value.load(Relaxed));
        }
    }

    /// Adds to one weight atomically.
    fn add(&self, index: usize, change: f32) {
        let sum = |bits| Some((f32::from_bits(bits) + change).to_bits());
        let added = self.values[index].fetch_update(Relaxed, Relaxed, sum);
        debug_assert!(added.is_ok(), "the sum always exists");
    }
}

impl HogwildThread {
    /// A thread that computes the gradients of `num_microbatches` micro-batches per step.
    pub fn new(
        blueprint: Blueprint,
        seed: u64,
        cpu: &Cpu,
        plan: &ReplicaPlan,
        num_microbatches: usize,
        world: &World,
    ) -> Result<Self, CommError> {
        // The thread's replica is a group of one; threads share only the weights.
        let own = Comm::threads(world, 1, &Options::default())?.remove(0);
        let leaves = Leaves { num_leaves: 1, microbatches_per_leaf: num_microbatches };
        let recompute = plan.recompute;
        let alone = ReplicaPlan { recompute, ..ReplicaPlan::single_rank(plan.microbatch, leaves) };
        let solo = Replica::materialize(blueprint, seed, cpu, alone, &own, world)?;
        Ok(Self { solo, weights: Vec::new(), version: 0, staleness: BTreeMap::new() })
    }

    /// Reads all weights into the thread's replica and returns it.
    pub fn pull(&mut self, shared: &SharedWeights) -> Result<&mut Replica, CommError> {
        self.version = shared.num_updates();
        self.weights.resize(shared.values.len(), 0.0);
        shared.load(&mut self.weights);
        write_weights(&mut self.solo, &shared.places, &self.weights)?;
        Ok(&mut self.solo)
    }

    /// Steps the shared weights by the summed gradients.
    pub fn push(&mut self, shared: &SharedWeights, lr: f64, clip: &Clip) {
        let rate = -(lr as f32);
        for slot in self.solo.slots() {
            let scale = clip.scale(0).min(1.0);
            let grads = &self.solo.store.own_grads(slot.block)[slot.grads.clone()];
            let place = shared.places[&slot.name].start + slot.first;
            for (index, grad) in grads.iter().enumerate().filter(|(_, grad)| **grad != 0.0) {
                shared.add(place + index, rate * (grad * scale));
            }
        }
        let missed = shared.num_updates.fetch_add(1, Relaxed).saturating_sub(self.version);
        *self.staleness.entry(missed).or_default() += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn concurrent_additions_are_not_lost() {
        const THREADS: usize = 4;
        const ADDITIONS: usize = 20_000;
        let shared = Arc::new(SharedWeights::of(&[0.0, 0.5], BTreeMap::new()));
        let world = lockstep_platform::real();
        let spawn = |thread: usize| {
            let shared = Arc::clone(&shared);
            let body = move || {
                for _ in 0..ADDITIONS {
                    shared.add(0, 1.0);
                    // Sums and differences of powers of two are exact.
                    shared.add(1, if thread.is_multiple_of(2) { 0.25 } else { -0.25 });
                }
            };
            world.threads().spawn("hog", Box::new(body)).expect("a thread")
        };
        let threads: Vec<_> = (0..THREADS).map(spawn).collect();
        for thread in threads {
            thread.join().expect("ended");
        }
        let mut values = [0.0; 2];
        shared.load(&mut values);
        assert_eq!(values.map(f32::to_bits), [(THREADS * ADDITIONS) as f32, 0.5].map(f32::to_bits));
    }
}
