//! What a recipe asks of its workers: how the model is divided, and how much memory that takes.
//!
//! Pure, so that a plan can be made, priced and refused before any worker starts; the engine then
//! goes by the same plan.

use crate::compress::{CompressionPlan, Method};
use crate::footprint::Footprint;
use crate::gossip::Graph;
use crate::leaves::Leaves;
use crate::recompute::RecomputePlan;
use crate::replica::ReplicaPlan;
use crate::stages::Stages;
use lockstep_config::units::Bytes;
use lockstep_config::{self as config, Recipe};
use lockstep_mesh::{Axis, Degrees, Mesh, Rank};
use lockstep_model::{Blueprint, MicrobatchShape, Recompute, Slices, describe_slices};
use lockstep_optim::Phases;

/// Gradients that travel together, as long as nobody has measured what is best.
const DEFAULT_BUCKET_BYTES: u64 = 4 << 20;

/// Room in the arena for calls' own needs.
const ARENA_MARGIN_BYTES: usize = 64 << 20;

/// The shape of every micro-batch of a recipe, in training and evaluation.
pub fn microbatch_shape(recipe: &Recipe) -> MicrobatchShape {
    MicrobatchShape { sequences: recipe.train.microbatch_size, tokens: recipe.model.context }
}

/// How the workers of a recipe stand.
pub fn mesh_of(recipe: &Recipe) -> Mesh {
    let config::Parallel { pipeline, data, tensor, .. } = recipe.parallel;
    Mesh::new(Degrees { pipeline, data, tensor, ..Degrees::ONE }).expect("config has proven it")
}

/// The whole model of a recipe, in the slices that its bits depend on.
pub fn blueprint_of(recipe: &Recipe) -> Blueprint {
    describe_slices(&recipe.model, &Slices::all(recipe.num_slices()), recipe.precision.compute)
}

/// The slices of it that a worker holds.
pub fn blueprint_on(recipe: &Recipe, worker: usize) -> Blueprint {
    let config::Parallel { tensor, sequence, .. } = recipe.parallel;
    let index = mesh_of(recipe).index(Axis::Tensor, Rank(worker));
    let slices = Slices::part(recipe.num_slices(), tensor, index, sequence);
    describe_slices(&recipe.model, &slices, recipe.precision.compute)
}

/// When which parameters of a model are frozen.
pub fn phases_of(recipe: &Recipe, blueprint: &Blueprint) -> Phases {
    let tensors = blueprint.tensors();
    let names: Vec<_> = tensors.iter().map(|(_, param)| param.name.as_str()).collect();
    Phases::new(&recipe.optim, &names)
}

/// How a recipe divides its model among workers, and the sizes it asks for, in a step.
pub fn plan_at(recipe: &Recipe, blueprint: &Blueprint, step: u64) -> ReplicaPlan {
    let num_leaves = recipe.num_leaves();
    let microbatches_per_leaf =
        recipe.batch_plan().at(step).batch / recipe.train.microbatch_size / num_leaves;
    let phases = phases_of(recipe, blueprint);
    let (policy, every) = match recipe.parallel.recompute {
        config::Recompute::None => (Recompute::None, 1),
        config::Recompute::Selective => (Recompute::Selective, 1),
        config::Recompute::Full => (Recompute::Full, 1),
        config::Recompute::Every(layers) => (Recompute::Full, layers),
    };
    let bucket_bytes = match recipe.parallel.bucket_bytes {
        Bytes(0) => DEFAULT_BUCKET_BYTES,
        Bytes(asked) => asked,
    };
    ReplicaPlan {
        microbatch: microbatch_shape(recipe),
        leaves: Leaves { num_leaves, microbatches_per_leaf },
        recompute: RecomputePlan { policy, every },
        zero: usize::from(recipe.parallel.zero),
        shares: recipe.leaf_shares(),
        mesh: mesh_of(recipe),
        stages: Stages::of(recipe, blueprint),
        bucket_len: bucket_bytes as usize / size_of::<f32>(),
        overlap: recipe.parallel.overlap,
        wire: recipe.precision.wire,
        offload: recipe.offload.state == config::OffloadState::File,
        phase: phases.at(step),
        phases,
        delay: recipe.sync.uneven.delay,
    }
}

/// The steps of a run in which what is held may change: where batches do, and what is frozen.
pub fn turning_points(recipe: &Recipe, blueprint: &Blueprint) -> Vec<u64> {
    let phases = phases_of(recipe, blueprint);
    let starts = (0..phases.len()).map(|phase| phases.first_step(phase));
    let steps = recipe.batch_plan().stages.into_iter().map(|stage| stage.first_step).chain(starts);
    steps.filter(|step| *step < recipe.train.steps).collect()
}

/// The most memory that training will take on a worker, before any of it is allocated.
pub fn footprint(recipe: &Recipe, blueprint: &Blueprint, worker: usize) -> Footprint {
    let footprint_at = |step| {
        Footprint::plan(blueprint, &plan_at(recipe, blueprint, step), recipe.optim.name, worker)
    };
    let steps = turning_points(recipe, blueprint).into_iter();
    steps.map(footprint_at).max_by_key(Footprint::total).expect("a run has a first step")
}

/// Address space that a worker needs for what it exchanges with the others of its host. Memory is
/// used only where it is touched, so there is room to spare.
pub fn arena_bytes(recipe: &Recipe) -> usize {
    let blueprint = blueprint_on(recipe, 0);
    // Stages of a pipeline differ; those who share the batch hardly do, and the first has most.
    let each = recipe.run.workers / recipe.parallel.pipeline;
    let firsts = (0..recipe.parallel.pipeline).map(|device| device * each);
    let exchanged = firsts.map(|worker| {
        let footprint = footprint(recipe, &blueprint, worker);
        footprint.weights + footprint.gradients + footprint.buffers
    });
    // Where stages are measured nobody knows which of them will have most.
    let exchanged = match recipe.parallel.partition {
        config::Partition::Flops => exchanged.max().unwrap_or(0),
        config::Partition::Measured => exchanged.sum::<usize>(),
    };
    2 * exchanged * size_of::<f32>() + ARENA_MARGIN_BYTES
}

/// Who averages with whom, where workers gossip.
pub fn graph_of(recipe: &Recipe) -> Graph {
    let gossip = &recipe.sync.gossip;
    Graph::new(gossip.graph, recipe.run.workers, gossip.degree, recipe.train.seed)
}

/// How a recipe's gradients are written.
pub fn method_of(recipe: &Recipe) -> Option<Method> {
    let compress = &recipe.compress;
    Some(match compress.method {
        config::CompressMethod::None => return None,
        config::CompressMethod::Bf16 => Method::Bf16,
        config::CompressMethod::Fp16 => Method::F16,
        config::CompressMethod::Int8 => Method::Int8,
        config::CompressMethod::Qsgd => Method::Qsgd { bits: compress.bits },
        config::CompressMethod::TopK => Method::TopK { ratio: compress.ratio },
        config::CompressMethod::RandomK => Method::RandomK { ratio: compress.ratio },
        config::CompressMethod::Dgc => Method::Dgc {
            ratio: compress.ratio,
            warmup_steps: compress.ratio_warmup_steps,
            momentum: compress.momentum as f32,
        },
        config::CompressMethod::Sign => Method::Sign,
        config::CompressMethod::OneBitAdam => {
            Method::OneBitAdam { beta1: recipe.optim.beta1 as f32 }
        }
        config::CompressMethod::PowerSgd => Method::PowerSgd { rank: compress.rank },
    })
}

/// What a recipe asks of compression, where it asks for any.
pub fn compression_of(recipe: &Recipe) -> Option<CompressionPlan> {
    let (method, seed) = (method_of(recipe)?, recipe.train.seed);
    let (error_feedback, group) = (recipe.compress.error_feedback, recipe.compress.group_workers);
    Some(CompressionPlan { method, error_feedback, seed, group })
}

/// How one of its tensors is written; nothing where it travels as it is.
pub fn method_of_tensor(recipe: &Recipe, plan: &CompressionPlan, param: &str) -> Option<Method> {
    at_level(plan.method, recipe.compress.level_of(param))
}

/// A method for a tensor that is written in a way of its own.
fn at_level(method: Method, level: Option<&config::Level>) -> Option<Method> {
    let Some(level) = level else { return Some(method) };
    Some(match method {
        _ if level.dense => return None,
        Method::TopK { ratio } => Method::TopK { ratio: level.ratio.unwrap_or(ratio) },
        Method::RandomK { ratio } => Method::RandomK { ratio: level.ratio.unwrap_or(ratio) },
        Method::Dgc { ratio, warmup_steps, momentum } => {
            Method::Dgc { ratio: level.ratio.unwrap_or(ratio), warmup_steps, momentum }
        }
        Method::Qsgd { bits } => Method::Qsgd { bits: level.bits.unwrap_or(bits) },
        Method::PowerSgd { rank } => Method::PowerSgd { rank: level.rank.unwrap_or(rank) },
        method => method,
    })
}
