//! Replica plans, footprints and strategies resolved from a recipe.
//!
//! All functions are pure, so a plan can be made, priced and rejected before any worker starts; the
//! engine runs the same plan.

use crate::byzantine::ByzantineWorker;
use crate::compress::{CompressionPlan, Method};
use crate::footprint::Footprint;
use crate::gossip::Graph;
use crate::leaves::Leaves;
use crate::microbatch_losses::values_per_microbatch;
use crate::recompute::RecomputePlan;
use crate::replica_plan::ReplicaPlan;
use crate::robust_aggregation::Aggregator;
use crate::stages::Stages;
use lockstep_config::units::Bytes;
use lockstep_config::{self as config, DeviceChoice, OptimName, Recipe, SyncMode};
use lockstep_mesh::{Axis, Degrees, Mesh, Rank};
use lockstep_model::teacher::Teacher;
use lockstep_model::{
    Blueprint, Formats, MicrobatchShape, Recompute, TensorShards, describe_in, describe_student,
    lora, precision_of,
};
use lockstep_optim::{Optimizer, Phases};
use lockstep_tensor::device::open::{Choice, activations};
use lockstep_tensor::distillation::Settings;
use lockstep_tensor::gemm::Precision;

/// Bucket size without tuning.
const DEFAULT_BUCKET_BYTES: u64 = 4 << 20;

/// Arena space for the collectives' own buffers.
const ARENA_MARGIN_BYTES: usize = 64 << 20;

/// Shape of every micro-batch of a recipe, in training and evaluation.
pub fn microbatch_shape(recipe: &Recipe) -> MicrobatchShape {
    MicrobatchShape { sequences: recipe.train.microbatch_size, tokens: recipe.model.context }
}

/// Mesh of a recipe's ranks.
pub fn mesh_of(recipe: &Recipe) -> Mesh {
    let config::Parallel { pipeline, data, tensor, .. } = recipe.parallel;
    Mesh::new(Degrees { pipeline, data, tensor, ..Degrees::ONE }).expect("config has proven it")
}

/// Device that runs the blocks of a recipe: that of `run.device`. Small problems, and threads that
/// share one model, run on the CPU; the error is the reason that an accelerator cannot.
pub fn device_of(recipe: &Recipe) -> Result<Choice, &'static str> {
    let reason = match (recipe.sync.mode, recipe.model.cpu_only()) {
        _ if recipe.model.family.is_problem() => {
            "a problem of a few thousand numbers is computed in host memory"
        }
        (_, Some(reason)) => reason,
        _ if recipe.data.documents == config::Documents::Masked => {
            "CUDA has no kernel for the mask of data.documents = masked"
        }
        _ if recipe.train.seqlen.is_on() => {
            "CUDA has no kernel for the segments of train.seqlen_warmup_steps"
        }
        _ if recipe.finetune.distills() => {
            "CUDA has no kernel for the loss of finetune.method = distill"
        }
        _ if recipe.model.lora.is_quantised() => {
            "CUDA has no kernel for the weights of finetune.quant_type = nf4"
        }
        _ if recipe.optim.name == OptimName::Adafactor => {
            "CUDA has no kernel for optim.name = adafactor"
        }
        _ if recipe.optim.name == OptimName::AdamW8Bit => {
            "CUDA has no kernel for optim.name = adamw-8bit"
        }
        (SyncMode::Hogwild, None) => "threads of sync.mode = hogwild share weights in host memory",
        _ => {
            return Ok(match recipe.run.device {
                DeviceChoice::Auto => Choice::Auto,
                DeviceChoice::Cpu => Choice::Cpu,
                DeviceChoice::Cuda(index) => Choice::Cuda(index),
            });
        }
    };
    match recipe.run.device {
        DeviceChoice::Auto | DeviceChoice::Cpu => Ok(Choice::Cpu),
        DeviceChoice::Cuda(_) => Err(reason),
    }
}

/// Number formats of a recipe on its device.
fn formats_of(recipe: &Recipe) -> Formats {
    let products = precision_of(recipe.precision.compute);
    let choice = device_of(recipe).unwrap_or(Choice::Cpu);
    Formats { products, activations: activations(choice, products) }
}

/// Whole model of a recipe, in the tensor-parallel shards that its bits depend on.
pub fn blueprint_of(recipe: &Recipe) -> Blueprint {
    describe_shards_of(recipe, &TensorShards::all(recipe.num_tensor_shards()))
}

/// Shards of the model that a rank holds.
pub fn blueprint_of_rank(recipe: &Recipe, worker: usize) -> Blueprint {
    let config::Parallel { tensor, sequence, .. } = recipe.parallel;
    let index = mesh_of(recipe).index(Axis::Tensor, Rank(worker));
    let shards = TensorShards::for_tp_rank(recipe.num_tensor_shards(), tensor, index, sequence);
    describe_shards_of(recipe, &shards)
}

fn describe_shards_of(recipe: &Recipe, shards: &TensorShards) -> Blueprint {
    let formats = formats_of(recipe);
    let Some(model) = recipe.teacher() else {
        return describe_in(&recipe.model, shards, formats);
    };
    let config::Finetune { temperature, hard_weight, .. } = recipe.finetune;
    let settings = Settings { temperature: temperature as f32, weight: (1.0 - hard_weight) as f32 };
    let blocks = describe_in(&model, &TensorShards::WHOLE, formats).blocks;
    let teacher = Teacher::new(blocks, model.vocab, settings);
    describe_student(&recipe.model, shards, formats, teacher)
}

/// Freezing schedule of a recipe's parameters: beside adapters, all others are frozen.
pub fn phases_of(recipe: &Recipe, blueprint: &Blueprint) -> Phases {
    let tensors = blueprint.tensors();
    let names: Vec<_> = tensors.iter().map(|(_, param)| param.name.as_str()).collect();
    let phases = Phases::new(&recipe.optim, &names);
    let has_adapters = recipe.model.lora.is_on();
    phases.without(names.into_iter().filter(|name| has_adapters && !lora::is_adapter(name)))
}

/// Precision of products of matrix updates: that of the model's, but no narrower than bf16, which
/// the authors of Muon use.
fn matrix_precision(recipe: &Recipe) -> Precision {
    match recipe.precision.compute {
        config::Dtype::F32 => Precision::F32,
        _ => Precision::Bf16,
    }
}

/// Replica plan of a recipe in a step.
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
    ReplicaPlan {
        microbatch: microbatch_shape(recipe),
        leaves: Leaves { num_leaves, microbatches_per_leaf },
        recompute: RecomputePlan { policy, every },
        zero: usize::from(recipe.parallel.zero),
        shares: recipe.leaf_shares(),
        mesh: mesh_of(recipe),
        stages: Stages::of(recipe, blueprint),
        bucket_len: bucket_len(recipe),
        overlap: recipe.parallel.overlap,
        wire: recipe.precision.wire,
        offload: recipe.offload.state == config::OffloadState::File,
        offload_activations: recipe.offload.activations == config::OffloadActivations::Host,
        phase: phases.at(step),
        phases,
        delay: recipe.sync.gradient_delay,
        update_inputs: Optimizer::inputs_of(recipe.optim.name),
        matrix_precision: matrix_precision(recipe),
        loss_values: values_per_microbatch(recipe.finetune.has_pairs()),
    }
}

/// Least number of parameters of a bucket, without tuning.
///
/// Parameter servers compress, corrupt and compare their shards of a whole model, so that results
/// of these do not depend on the bucket size.
pub fn bucket_len(recipe: &Recipe) -> usize {
    let is_elementwise = method_of(recipe).is_none()
        && aggregation_rule(recipe) == Aggregator::Mean
        && recipe.sync.server.byzantine == 0;
    if recipe.num_servers() > 0 && !is_elementwise {
        return usize::MAX;
    }
    let bucket_bytes = match recipe.parallel.bucket_bytes {
        Bytes(0) => DEFAULT_BUCKET_BYTES,
        Bytes(requested) => requested,
    };
    bucket_bytes as usize / size_of::<f32>()
}

/// First steps of the intervals with constant memory: where the batch size or the frozen set
/// changes.
pub fn phase_boundaries(recipe: &Recipe, blueprint: &Blueprint) -> Vec<u64> {
    let phases = phases_of(recipe, blueprint);
    let starts = (0..phases.len()).map(|phase| phases.first_step(phase));
    let steps = recipe.batch_plan().stages.into_iter().map(|stage| stage.first_step).chain(starts);
    steps.filter(|step| *step < recipe.train.steps).collect()
}

/// Largest memory of a rank over the whole run.
pub fn footprint(recipe: &Recipe, blueprint: &Blueprint, worker: usize) -> Footprint {
    let footprint_at = |step| {
        Footprint::plan(blueprint, &plan_at(recipe, blueprint, step), recipe.optim.name, worker)
    };
    let steps = phase_boundaries(recipe, blueprint).into_iter();
    steps.map(footprint_at).max_by_key(Footprint::total).expect("a run has a first step")
}

/// Address space that a rank needs in the shared arena. Only touched pages use memory, so the size
/// is generous.
pub fn arena_bytes(recipe: &Recipe) -> usize {
    let blueprint = blueprint_of_rank(recipe, 0);
    // Pipeline stages differ; data-parallel ranks hardly do, and the first has most.
    let each = recipe.run.workers / recipe.parallel.pipeline;
    let firsts = (0..recipe.parallel.pipeline).map(|device| device * each);
    let exchanged = firsts.map(|worker| {
        let footprint = footprint(recipe, &blueprint, worker);
        footprint.weights + footprint.gradients + footprint.buffers
    });
    // Before profiling, the largest stage is unknown.
    let exchanged = match recipe.parallel.partition {
        config::Partition::Flops => exchanged.max().unwrap_or(0),
        config::Partition::Measured => exchanged.sum::<usize>(),
    };
    2 * exchanged * size_of::<f32>() + ARENA_MARGIN_BYTES
}

/// Gossip graph of a recipe.
pub fn graph_from_recipe(recipe: &Recipe) -> Graph {
    let gossip = &recipe.sync.gossip;
    Graph::new(gossip.graph, recipe.run.workers, gossip.degree, recipe.train.seed)
}

/// Attack of a worker, if the recipe makes it Byzantine.
pub fn attack_of(recipe: &Recipe, worker: usize) -> Option<ByzantineWorker> {
    let config::Server { byzantine, attack, .. } = recipe.sync.server;
    let is_byzantine = worker + byzantine >= recipe.run.workers;
    is_byzantine.then(|| ByzantineWorker::new(recipe.train.seed, attack, worker))
}

/// Rule that aggregates the contributions of several workers.
pub fn aggregation_rule(recipe: &Recipe) -> Aggregator {
    let config::Server { aggregation, assumed_byzantine, gradient_clip: clip, .. } =
        recipe.sync.server;
    match aggregation {
        config::AggregationRule::Mean if clip > 0.0 => Aggregator::ClippedMean { max_norm: clip },
        config::AggregationRule::Mean => Aggregator::Mean,
        config::AggregationRule::Median => Aggregator::Median,
        config::AggregationRule::TrimmedMean => Aggregator::TrimmedMean { trim: assumed_byzantine },
        config::AggregationRule::Krum => Aggregator::Krum { assumed_byzantine },
    }
}

/// Compression method of a recipe.
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

/// Compression settings of a recipe, if any.
pub fn compression_from_recipe(recipe: &Recipe) -> Option<CompressionPlan> {
    let (method, seed) = (method_of(recipe)?, recipe.train.seed);
    let (error_feedback, group) = (recipe.compress.error_feedback, recipe.compress.group_workers);
    Some(CompressionPlan { method, error_feedback, seed, group })
}

/// Compression method of one tensor; `None` where it is sent uncompressed.
pub fn tensor_method(recipe: &Recipe, plan: &CompressionPlan, param: &str) -> Option<Method> {
    at_level(plan.method, recipe.compress.override_for(param))
}

/// Method with the overrides of one tensor.
fn at_level(method: Method, level: Option<&config::CompressOverride>) -> Option<Method> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use lockstep_config::{Sources, resolve};

    #[test]
    fn weights_in_four_bits_are_refused_on_a_gpu_alone() {
        let device = |device: &str| {
            let sets = ["finetune.lora_rank=2", "finetune.quant_type=nf4"].map(str::to_owned);
            let sets = sets.into_iter().chain([format!("run.device={device}")]).collect();
            device_of(&resolve(&Sources { sets, ..Sources::default() }).unwrap())
        };
        assert_eq!([device("auto"), device("cpu")], [Ok(Choice::Cpu), Ok(Choice::Cpu)]);
        let refusal = device("cuda:0").err().unwrap_or_default();
        assert!(refusal.contains("finetune.quant_type = nf4"), "{refusal}");
    }

    #[test]
    fn optimizers_without_kernels_are_refused_on_a_gpu_alone() {
        for (name, has_kernel) in [("adamw", true), ("adafactor", false), ("adamw-8bit", false)] {
            let device = |device: &str| {
                let sets = [format!("optim.name={name}"), format!("run.device={device}")];
                device_of(&resolve(&Sources { sets: sets.to_vec(), ..Sources::default() }).unwrap())
            };
            assert_eq!(device("cpu"), Ok(Choice::Cpu));
            assert_eq!(device("auto").unwrap() == Choice::Cpu, !has_kernel);
            let refusal = device("cuda:1").err().unwrap_or_default();
            assert_eq!(refusal.contains(name), !has_kernel, "{name}: {refusal}");
        }
    }
}
