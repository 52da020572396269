//! Federated rounds in training: client steps, aggregation and checkpoints.
//! [`lockstep_parallel::federated`] implements the algorithms.

use crate::TrainError;
use crate::health::Verdict;
use crate::learner::Learner;
use crate::microbatch::{microbatch_of, microbatch_shape};
use crate::step_log::{StepLog, StepRecord};
use lockstep_checkpoint::sharded::{Reader, Snapshot};
use lockstep_comm::CommError;
use lockstep_config::{AggregationRule, FederatedMethod, Recipe};
use lockstep_data::Loader;
use lockstep_data::clients::clients_at;
use lockstep_optim::{Clip, ClipPlan};
use lockstep_parallel::Replica;
use lockstep_parallel::federated::arrival::ArrivalModel;
use lockstep_parallel::federated::server_optimizer::ServerOptimizer;
use lockstep_parallel::federated::{Correction, FederatedPlan, Federation};
use lockstep_parallel::from_recipe::blueprint_of_rank;
use lockstep_parallel::robust_aggregation::Aggregator;
use lockstep_platform::World;
use lockstep_tensor::Cpu;

/// Allocates the federation of a federated recipe.
pub(crate) fn prepare(
    recipe: &Recipe,
    replica: &mut Replica,
    clip: &ClipPlan,
    cpu: &Cpu,
    world: &World,
) -> Result<Option<Federation>, CommError> {
    if !recipe.is_federated() {
        return Ok(None);
    }
    let blueprint = blueprint_of_rank(recipe, 0);
    Federation::new(plan_of(recipe), blueprint, replica, clip.clone(), cpu, world).map(Some)
}

/// Federation settings of a recipe.
fn plan_of(recipe: &Recipe) -> FederatedPlan {
    let federated = &recipe.federated;
    FederatedPlan {
        by_worker: recipe.clients_by_worker(),
        sampled: federated.sampled,
        microbatches_per_client: recipe.num_microbatches() / federated.sampled,
        correction: match federated.method {
            FederatedMethod::FedAvg => Correction::None,
            FederatedMethod::FedProx => Correction::Prox { mu: federated.mu as f32 },
            FederatedMethod::Scaffold => Correction::Scaffold,
        },
        least_steps: federated.min_steps_fraction,
        server: ServerOptimizer {
            rule: federated.server,
            lr: federated.server_lr as f32,
            momentum: federated.server_momentum as f32,
            second: federated.server_beta2 as f32,
            tau: federated.server_tau as f32,
        },
        aggregator: match federated.aggregation {
            // The coordinator clips again, since a Byzantine client may not have clipped.
            AggregationRule::Mean if federated.clip > 0.0 => {
                Aggregator::ClippedMean { max_norm: federated.clip }
            }
            AggregationRule::Mean => Aggregator::Mean,
            AggregationRule::Median => Aggregator::Median,
            AggregationRule::TrimmedMean => {
                Aggregator::TrimmedMean { trim: federated.assumed_byzantine }
            }
            AggregationRule::Krum => {
                Aggregator::Krum { assumed_byzantine: federated.assumed_byzantine }
            }
        },
        clip: (federated.clip > 0.0).then_some(federated.clip),
        noise: federated.noise_multiplier,
        delta: federated.delta,
        secure: federated.secure_aggregation,
        arrivals: ArrivalModel::from_recipe(recipe),
        seed: recipe.train.seed,
        optim: recipe.optim.clone(),
    }
}

/// Runs one step of every client in the round and aggregates at the end of the round.
pub(crate) fn one_step(
    cpu: &Cpu,
    recipe: &Recipe,
    step: u64,
    learner: &mut Learner,
    loader: &mut Loader,
    step_log: &mut StepLog,
) -> Result<(), TrainError> {
    step_log.begin_step();
    let lr = learner.lr(step);
    let Learner { federation: Some(federation), replica, .. } = learner else {
        unreachable!("a federated recipe has clients")
    };
    let (round, clients) = (recipe.round_at(step), clients_at(recipe, step));
    let batch = loader.next_batch()?;
    if step == round.start {
        federation.begin_round(round.start, &clients, round.end - round.start);
    }
    let microbatches = batch.num_microbatches() / clients.len();
    let of_client = |index: usize| index * microbatches..(index + 1) * microbatches;
    let targets: Vec<u64> =
        (0..clients.len()).map(|index| batch.targets_in(of_client(index)).max(1)).collect();
    let slow = &step_log.emulation;
    let microbatch = |index: usize, number: usize| {
        let microbatch = index * microbatches + number;
        slow.before_microbatch(step, microbatch, &|| false);
        microbatch_of(recipe, batch, microbatch, targets[index])
    };
    let local = federation.step(cpu, step, lr, &microbatch)?;
    slow.after_microbatches();
    let loss = local.sum / local.targets;
    if local.targets == 0.0 {
        let (what, source_of) = ("the loss of every client".to_owned(), String::new());
        return Err(TrainError::Diverged { step, what, value: loss, source_of });
    }
    let mut found = None;
    if step + 1 == round.end {
        let num_rounds = || recipe.num_rounds(step + 1);
        found = federation.end_round(round.start, num_rounds, &clients, replica)?;
    }
    federation.report_traffic(replica);
    let record = StepRecord {
        step,
        loss,
        lr,
        clip: Clip::unclipped(local.norm),
        num_tokens: batch.num_microbatches() * microbatch_shape(recipe).rows(),
        data_wait_seconds: loader.wait_seconds(),
        verdict: Verdict::Step,
        loss_scale: None,
    };
    step_log.finish_step(&record, replica);
    step_log.record_aggregation(step + 1, found);
    Ok(())
}

/// Adds the state of clients and coordinator to a checkpoint.
pub(crate) fn save(snapshot: &mut Snapshot, federation: &mut Federation) {
    let saved = federation.visit(|name, is_mine, values| {
        if is_mine {
            snapshot.add(name, &[values.len()], 0, values);
        }
        Ok::<_, std::convert::Infallible>(())
    });
    saved.unwrap_or_else(|never| match never {});
}

/// Restores the state of clients and coordinator; clients may have moved to other workers.
pub(crate) fn load(reader: &Reader, learner: &mut Learner) -> Result<(), TrainError> {
    let Learner { federation: Some(federation), replica, .. } = learner else { return Ok(()) };
    federation.restart(replica)?;
    federation.visit(|name, _, values| Ok(reader.read(name, &[values.len()], 0, values)?))
}
