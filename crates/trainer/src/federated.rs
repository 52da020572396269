//! Steps of clients and the end of their rounds, where the recipe is federated; see
//! [`lockstep_parallel::federated`].

use crate::TrainError;
use crate::health::Verdict;
use crate::journal::{Journal, StepRecord};
use crate::saved::{Learner, blueprint_on};
use crate::train::microbatch_of;
use lockstep_checkpoint::sharded::{Reader, Snapshot};
use lockstep_comm::CommError;
use lockstep_config::{FederatedCombine, FederatedMethod, Recipe};
use lockstep_data::Loader;
use lockstep_data::clients::clients_at;
use lockstep_optim::{Clip, ClipPlan};
use lockstep_parallel::Replica;
use lockstep_parallel::federated::arrival::Arrivals;
use lockstep_parallel::federated::server::ServerStep;
use lockstep_parallel::federated::{Correction, FederatedPlan, Federation};
use lockstep_parallel::robust::Combine;
use lockstep_platform::World;
use lockstep_tensor::Cpu;

/// Makes room for clients, where there are any.
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
    let blueprint = blueprint_on(recipe, 0);
    Federation::new(plan_of(recipe), blueprint, replica, clip.clone(), cpu, world).map(Some)
}

/// A recipe in the words of the engine.
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
        least_steps: federated.least_steps,
        server: ServerStep {
            rule: federated.server,
            lr: federated.server_lr as f32,
            momentum: federated.server_momentum as f32,
            second: federated.server_second as f32,
            tau: federated.server_tau as f32,
        },
        combine: match federated.combine {
            // The coordinator trusts nobody to have shortened what is too long.
            FederatedCombine::Mean if federated.clip > 0.0 => {
                Combine::ClippedMean { most: federated.clip }
            }
            FederatedCombine::Mean => Combine::Mean,
            FederatedCombine::Median => Combine::Median,
            FederatedCombine::TrimmedMean => Combine::TrimmedMean { trim: federated.liars },
            FederatedCombine::Krum => Combine::Krum { liars: federated.liars },
        },
        clip: (federated.clip > 0.0).then_some(federated.clip),
        noise: federated.noise,
        delta: federated.delta,
        secure: federated.secure,
        arrivals: Arrivals {
            dropout: federated.dropout,
            late: federated.late,
            window: federated.window,
            byzantine: federated.byzantine,
            attack: federated.attack,
        },
        seed: recipe.train.seed,
        optim: recipe.optim.clone(),
    }
}

/// Every client of the round takes a step, and perhaps the round is over.
pub(crate) fn one_step(
    cpu: &Cpu,
    recipe: &Recipe,
    step: u64,
    learner: &mut Learner,
    loader: &mut Loader,
    journal: &mut Journal,
) -> Result<(), TrainError> {
    journal.begin_step();
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
    let slow = &journal.slow;
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
    federation.tell_traffic(replica);
    let record = StepRecord {
        step,
        loss,
        lr,
        clip: Clip::unclipped(local.norm),
        num_tokens: batch.num_microbatches() * crate::train::microbatch_shape(recipe).rows(),
        data_wait_seconds: loader.wait_seconds(),
        verdict: Verdict::Step,
        loss_scale: None,
    };
    journal.finish_step(&record, replica);
    journal.aggregated(step + 1, found);
    Ok(())
}

/// Copies what a checkpoint must hold of clients and the coordinator.
pub(crate) fn save(room: &mut Snapshot, federation: &mut Federation) {
    let saved = federation.visit(|name, is_mine, values| {
        if is_mine {
            room.add(name, &[values.len()], 0, values);
        }
        Ok::<_, std::convert::Infallible>(())
    });
    saved.unwrap_or_else(|never| match never {});
}

/// Reads it back, wherever clients live now.
pub(crate) fn load(reader: &Reader, learner: &mut Learner) -> Result<(), TrainError> {
    let Learner { federation: Some(federation), replica, .. } = learner else { return Ok(()) };
    federation.restart(replica)?;
    federation.visit(|name, _, values| Ok(reader.read(name, &[values.len()], 0, values)?))
}
