//! Tiny models, their batches, and ranks as threads.

use lockstep_comm::{Comm, CommError, Options};
use lockstep_config::{
    Family, GptNeox, LlamaVariant, Lora, LrSchedule, Model, Mup, Optim, OptimName, Problem, Recipe,
};
use lockstep_mesh::{Axis, Degrees, Mesh, Rank};
use lockstep_model::{
    Blueprint, Microbatch, MicrobatchShape, Recompute, TensorShards, describe, describe_shards,
};
use lockstep_optim::{ClipPlan, Optimizer, Phases, Update, UpdateInputs};
use lockstep_parallel::{Leaves, RecomputePlan, Replica, ReplicaPlan, Stages};
use lockstep_platform::{World, real};
use lockstep_tensor::Isa;
use lockstep_tensor::device::Compute;
use lockstep_tensor::device::View;
use lockstep_tensor::gemm::Precision;
use lockstep_tensor::random::Key;
use std::panic::resume_unwind;
use std::thread::ScopedJoinHandle;

/// A Llama with grouped queries, all of whose tensors are shorter than a chunk.
pub(crate) const SMALL: Model = Model {
    family: Family::Llama,
    layers: 2,
    width: 16,
    heads: 4,
    kv_heads: 2,
    ffn: 24,
    vocab: 19,
    context: 9,
    tied: false,
    dropout: 0.0,
    norm_eps: 1e-5,
    rope_theta: 10000.0,
    variant: LlamaVariant::PLAIN,
    gpt_neox: GptNeox::PYTHIA,
    mup: Mup::OFF,
    lora: Lora::NONE,
    problem: Problem::NONE,
};

/// Two chunks and a bit in each table, one and a bit in each matrix of a feed-forward.
pub(crate) const LARGE: Model = Model { width: 32, ffn: 160, vocab: 301, dropout: 0.1, ..SMALL };

/// So small that most ranks own nothing of it.
pub(crate) const TINY: Model =
    Model { layers: 1, width: 8, ffn: 8, vocab: 11, tied: true, ..SMALL };

pub(crate) const MICROBATCH: MicrobatchShape = MicrobatchShape { sequences: 2, tokens: 9 };

/// Micro-batches of one shape, of random tokens.
pub(crate) struct Batch {
    tokens: Vec<u32>,
    num_microbatches: usize,
}

impl Batch {
    pub(crate) fn new(model: &Model, num_microbatches: usize, seed: u64) -> Self {
        let key = Key::new(seed, "tokens");
        let draw = |i: usize| (key.uniform_f64(i as u64) * model.vocab as f64) as u32;
        Self {
            tokens: (0..=num_microbatches * MICROBATCH.rows()).map(draw).collect(),
            num_microbatches,
        }
    }

    pub(crate) fn num_targets(&self) -> usize {
        self.num_microbatches * MICROBATCH.rows()
    }

    pub(crate) fn microbatch(&self, index: usize) -> Microbatch<'_> {
        let rows = index * MICROBATCH.rows()..(index + 1) * MICROBATCH.rows();
        Microbatch {
            shape: MICROBATCH,
            inputs: View::of(&self.tokens[rows.clone()]),
            targets: View::of(&self.tokens[rows.start + 1..=rows.end]),
            first_sample: (index * MICROBATCH.sequences) as u64,
            num_targets: self.num_targets() as u64,
            documents: None,
            preferences: None,
        }
    }
}

pub(crate) fn settings(name: OptimName) -> Optim {
    Optim {
        name,
        lr: 0.01,
        warmup_steps: 0,
        schedule: LrSchedule::Constant,
        ..Recipe::default().optim
    }
}

/// Layout of a model across ranks.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    pub(crate) shares: Vec<usize>,
    pub(crate) zero: usize,
    pub(crate) recompute: RecomputePlan,
    pub(crate) bucket_len: usize,
    pub(crate) overlap: bool,
    pub(crate) stages: Stages,
    /// Number of tensor-parallel shards, and of ranks that hold them.
    pub(crate) shards: usize,
    pub(crate) tensor: usize,
    pub(crate) sequence: bool,
    pub(crate) offload_activations: bool,
}

pub(crate) const RECOMPUTE: [RecomputePlan; 4] = [
    RecomputePlan::NONE,
    RecomputePlan { policy: Recompute::Selective, every: 1 },
    RecomputePlan { policy: Recompute::Full, every: 1 },
    RecomputePlan { policy: Recompute::Full, every: 2 },
];

/// One bucket per block, some blocks together, all together.
pub(crate) const BUCKET_LENS: [usize; 3] = [0, 30_000, usize::MAX];

impl Layout {
    /// Even shares, and defaults for everything else.
    pub(crate) fn even(num_leaves: usize, num_workers: usize, zero: usize) -> Self {
        let (each, more) = (num_leaves / num_workers, num_leaves % num_workers);
        let shares = (0..num_workers).map(|worker| each + usize::from(worker < more)).collect();
        let (recompute, stages) = (RecomputePlan::NONE, Stages::whole());
        Self {
            shares,
            zero,
            recompute,
            bucket_len: 0,
            overlap: false,
            stages,
            shards: 1,
            tensor: 1,
            sequence: false,
            offload_activations: false,
        }
    }

    /// Number of ranks.
    pub(crate) fn num_workers(&self) -> usize {
        self.shares.len() * self.stages.num_devices() * self.tensor
    }

    /// Shards of a model that a rank holds.
    pub(crate) fn blueprint(&self, model: &Model, worker: usize) -> Blueprint {
        let index = self.plan(1).mesh.index(Axis::Tensor, Rank(worker));
        let shards = TensorShards::for_tp_rank(self.shards, self.tensor, index, self.sequence);
        describe_shards(model, &shards, lockstep_config::Dtype::F32)
    }

    pub(crate) fn plan(&self, microbatches_per_leaf: usize) -> ReplicaPlan {
        let leaves = Leaves { num_leaves: self.shares.iter().sum(), microbatches_per_leaf };
        let (pipeline, data) = (self.stages.num_devices(), self.shares.len());
        let degrees = Degrees { pipeline, data, tensor: self.tensor, ..Degrees::ONE };
        ReplicaPlan {
            microbatch: MICROBATCH,
            leaves,
            recompute: self.recompute,
            zero: self.zero,
            shares: self.shares.clone(),
            mesh: Mesh::new(degrees).expect("a valid mesh"),
            stages: self.stages.clone(),
            bucket_len: self.bucket_len,
            overlap: self.overlap,
            wire: lockstep_config::WireDtype::F32,
            offload: false,
            offload_activations: self.offload_activations,
            delay: 0,
            phases: Phases::default(),
            phase: 0,
            update_inputs: UpdateInputs::default(),
            matrix_precision: Precision::F32,
            loss_values: 1,
        }
    }
}

/// One rank of a run.
pub(crate) struct Worker<'a> {
    pub(crate) cpu: Compute,
    pub(crate) comm: &'a Comm,
    pub(crate) world: &'a World,
}

impl Worker<'_> {
    pub(crate) fn replica(&self, model: &Model, plan: ReplicaPlan) -> Result<Replica, CommError> {
        Replica::materialize(describe(model), 1, &self.cpu, plan, self.comm, self.world)
    }
}

/// Runs `body` on every rank of a world of threads and returns the results.
pub(crate) fn on_ranks<R: Send>(
    num_ranks: usize,
    body: impl Fn(&Worker<'_>) -> R + Sync,
) -> Vec<R> {
    let world = real();
    let options = Options { arena_bytes: 32 << 20, ..Options::default() };
    let ends = Comm::threads(&world, num_ranks, &options).expect("a world of threads");
    let run = |comm| body(&Worker { cpu: Compute::single(Isa::detect()), comm, world: &world });
    std::thread::scope(|scope| {
        let threads: Vec<_> = ends.iter().map(|comm| scope.spawn(move || run(comm))).collect();
        let join = |thread: ScopedJoinHandle<'_, R>| {
            thread.join().unwrap_or_else(|panic| resume_unwind(panic))
        };
        threads.into_iter().map(join).collect()
    })
}

/// Runs `body` on the only rank of a world.
pub(crate) fn alone<R: Send>(body: impl Fn(&Worker<'_>) -> R + Sync) -> R {
    on_ranks(1, body).pop().expect("one rank")
}

/// One step of a batch; returns the sum of its losses and the norm of its gradient.
pub(crate) fn train_step(
    worker: &Worker<'_>,
    replica: &mut Replica,
    optimizer: &mut Optimizer,
    batch: &Batch,
    step: u64,
) -> Result<(f64, f64), CommError> {
    let loss = replica
        .run_microbatches(&worker.cpu, 1, step, &|microbatch| batch.microbatch(microbatch))?;
    let sums = replica.finish_reduce(&worker.cpu)?;
    let sums = replica.unscale(&worker.cpu, sums).expect("memory");
    let clip = replica.clip(&worker.cpu, sums, &ClipPlan::global(1.0))?;
    let update = Update { count: step + 1, lr: 0.01, clip };
    replica.step(&worker.cpu, optimizer, &update)?;
    Ok((loss, clip.norm))
}

/// A tensor by name.
pub(crate) type Named = (String, Vec<f32>);

/// All parameters, gathered.
pub(crate) fn all_params(replica: &mut Replica) -> Result<Vec<Named>, CommError> {
    let mut all = Vec::new();
    replica.visit_params(|param, values| {
        all.push((param.name.clone(), values.to_vec()));
        Ok::<_, CommError>(())
    })?;
    Ok(all)
}

/// All optimizer state, gathered.
pub(crate) fn all_state(
    replica: &mut Replica,
    optimizer: &Optimizer,
) -> Result<Vec<Named>, CommError> {
    let mut all = Vec::new();
    replica.visit_state(optimizer, |param, kind, values| {
        all.push((format!("{kind} of {}", param.name), values.to_vec()));
        Ok::<_, CommError>(())
    })?;
    Ok(all)
}

pub(crate) fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// Bitwise equality; a failure names the first element that differs.
pub(crate) fn assert_same(left: &[f32], right: &[f32], what: &str) {
    assert_eq!(left.len(), right.len(), "{what}");
    let differs = left.iter().zip(right).position(|(l, r)| l.to_bits() != r.to_bits());
    assert!(differs.is_none(), "{what}: element {differs:?} differs");
}

/// Bitwise equality of lists of tensors.
pub(crate) fn assert_all_same(left: &[Named], right: &[Named], what: &str) {
    assert_eq!(left.len(), right.len(), "{what}");
    for ((name, left), (other, right)) in left.iter().zip(right) {
        assert_eq!(name, other, "{what}");
        assert_same(left, right, &format!("{what}: {name}"));
    }
}
