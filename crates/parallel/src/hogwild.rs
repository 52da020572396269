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
//! weights, and threads synchronize when they are joined. `threads` has the threads of a run.

mod threads;

pub(crate) use threads::ThreadPool;

use crate::flat_weights::{places_of, read_weights, write_weights};
use crate::from_recipe::{blueprint_of_rank, plan_at};
use crate::leaves::Leaves;
use crate::replica::Replica;
use crate::replica_plan::ReplicaPlan;
use crate::step_program::{RankPlan, StepKind, StepTasks, thread_program};
use crate::strategy::{StateLayout, Strategy, StrategyContext, StrategyPlan, StrategyStart};
use lockstep_comm::{Comm, CommError, Counters, Options};
use lockstep_config::Recipe;
use lockstep_model::Blueprint;
use lockstep_optim::Update;
use lockstep_platform::World;
use lockstep_schedule::step::{Program, TaskOp};
use lockstep_tensor::Cpu;
use lockstep_tensor::device::Compute;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// Threads of a run, or one of them.
pub struct HogwildThreads {
    recipe: Recipe,
    thread: usize,
    /// Weights of a thread that runs.
    shared: Option<Arc<SharedWeights>>,
}

impl HogwildThreads {
    /// Threads of a recipe.
    pub fn new(recipe: &Recipe) -> Self {
        Self { recipe: recipe.clone(), thread: 0, shared: None }
    }
}

impl StepTasks for HogwildThreads {
    fn program(&self, at: &RankPlan<'_>, _kind: &StepKind) -> Option<Program> {
        Some(thread_program(&self.recipe, at.plan(), at.blueprint(), self.thread))
    }
}

impl StrategyPlan for HogwildThreads {
    fn kind_at(&self, _step: u64) -> StepKind {
        StepKind::local()
    }

    fn step_counts(&self, steps: u64) -> BTreeMap<StepKind, u64> {
        BTreeMap::from([(StepKind::local(), steps)])
    }

    fn other_programs(
        &self,
        plan: &ReplicaPlan,
        blueprint: &Blueprint,
        _kind: &StepKind,
    ) -> Vec<Program> {
        let program = |thread| thread_program(&self.recipe, plan, blueprint, thread);
        (1..self.recipe.sync.threads).map(program).collect()
    }

    fn steps_together(&self) -> bool {
        false
    }

    fn start(&self, _at: &StrategyStart<'_>) -> Result<Option<Box<dyn Strategy>>, CommError> {
        let Some(shared) = self.shared.clone() else { return Ok(None) };
        let weights = vec![0.0; shared.values.len()];
        let staleness = BTreeMap::new();
        Ok(Some(Box::new(HogwildThread { shared, weights, version: 0, staleness })))
    }
}

/// Weights shared by all threads.
pub struct SharedWeights {
    values: Vec<AtomicU32>,
    /// Number of steps so far.
    num_updates: AtomicU64,
    /// Range of each tensor in the flat weights.
    places: BTreeMap<String, Range<usize>>,
}

/// State of one thread.
struct HogwildThread {
    shared: Arc<SharedWeights>,
    weights: Vec<f32>,
    /// Number of steps at the time the weights were read.
    version: u64,
    /// Number of this thread's steps by staleness, the number of steps of other threads they
    /// missed.
    staleness: BTreeMap<u64, u64>,
}

impl SharedWeights {
    /// Starts from the weights of a replica.
    pub fn new(replica: &mut Replica) -> Result<Self, CommError> {
        let (places, len) = places_of(&replica.blueprint);
        let mut values = vec![0.0; len];
        read_weights(replica, &places, &mut values)?;
        Ok(Self::of(&values, places))
    }

    fn of(values: &[f32], places: BTreeMap<String, Range<usize>>) -> Self {
        let values = values.iter().map(|value| AtomicU32::new(value.to_bits())).collect();
        Self { values, num_updates: AtomicU64::new(0), places }
    }

    /// Replica of a thread, which computes the gradients of its micro-batches of each batch.
    pub fn replica_of_thread(
        self: &Arc<Self>,
        recipe: &Recipe,
        thread: usize,
        cpu: &Cpu,
        world: &World,
    ) -> Result<Replica, CommError> {
        let blueprint = blueprint_of_rank(recipe, 0);
        let plan = plan_at(recipe, &blueprint, 0);
        // The thread's replica is a group of one; threads share only the weights.
        let own = Comm::threads(world, 1, &Options::default())?.remove(0);
        let microbatches_per_leaf = recipe.num_microbatches() / recipe.sync.threads;
        let leaves = Leaves { num_leaves: 1, microbatches_per_leaf };
        let recompute = plan.recompute;
        let alone = ReplicaPlan { recompute, ..ReplicaPlan::single_rank(plan.microbatch, leaves) };
        let seed = recipe.train.seed;
        // Threads share weights in host memory.
        let compute = Compute::single(cpu.isa());
        let mut replica = Replica::materialize(blueprint, seed, &compute, alone, &own, world)?;
        let (recipe, shared) = (recipe.clone(), Some(Arc::clone(self)));
        replica.adopt(Box::new(HogwildThreads { recipe, thread, shared }))?;
        Ok(replica)
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
    /// Reads all weights into the thread's replica.
    fn read(&mut self, at: &mut StrategyContext<'_>) {
        self.version = self.shared.num_updates();
        self.shared.load(&mut self.weights);
        at.set_params(&self.shared.places, &self.weights);
    }

    /// Steps the shared weights by the summed gradients.
    fn add(&mut self, at: &StrategyContext<'_>, update: &Update) {
        let (shared, rate) = (&self.shared, -(update.lr as f32));
        let scale = update.clip.scale(0).min(1.0);
        for slot in at.slots() {
            let grads = &at.store.own_grads(slot.block)[slot.grads.clone()];
            let place = shared.places[&slot.name].start + slot.first;
            for (index, grad) in grads.iter().enumerate().filter(|(_, grad)| **grad != 0.0) {
                shared.add(place + index, rate * (grad * scale));
            }
        }
        let missed = shared.num_updates.fetch_add(1, Relaxed).saturating_sub(self.version);
        *self.staleness.entry(missed).or_default() += 1;
    }
}

impl Strategy for HogwildThread {
    fn run(
        &mut self,
        _cpu: &Cpu,
        op: TaskOp,
        at: &mut StrategyContext<'_>,
    ) -> Result<(), CommError> {
        match (op, at.update) {
            (TaskOp::ReadShared, _) => self.read(at),
            (TaskOp::AddToShared, Some(update)) => self.add(at, &update),
            (TaskOp::AddToShared, None) => {}
            (op, _) => unreachable!("{op} is not a task of a thread"),
        }
        Ok(())
    }

    fn visit(&mut self, _: &StateLayout<'_>, _: &mut dyn FnMut(&str, bool, &mut [f32]) -> bool) {}

    fn counters(&self) -> Counters {
        Counters::default()
    }

    fn num_elements(&self) -> [usize; 2] {
        [0, self.weights.len()]
    }

    fn staleness(&self) -> Option<&BTreeMap<u64, u64>> {
        Some(&self.staleness)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
