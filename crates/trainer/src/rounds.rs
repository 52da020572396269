//! Steps that workers take alone, and where they meet again; what each keeps for itself.
//!
//! Rounds follow from the recipe ([`Recipe::round_at`]). Weights are equal on all workers between
//! two rounds, and only then are they judged, compared and saved; what a worker keeps for itself
//! (its optimizer's state, what compression left out) is saved under the worker's number.

use crate::saved::Learner;
use crate::{TrainError, federated, gossip};
use lockstep_checkpoint::sharded::{Reader, Snapshot};
use lockstep_comm::CommError;
use lockstep_config::{Averaged, CompressMethod, Outer, Recipe, SyncMode};
use lockstep_data::Batch;
use lockstep_optim::Clip;
use lockstep_parallel::compress::Observed;
use lockstep_parallel::{Drift, OuterRule, Replica, RoundPlan, asked};
use lockstep_tensor::Cpu;

/// Makes room for rounds and for compression, where the recipe has any.
pub(crate) fn prepare(recipe: &Recipe, replica: &mut Replica) -> Result<(), CommError> {
    let sums_up = recipe.sync.mode == SyncMode::AllReduce;
    if let Some(plan) = asked::compression_of(recipe).filter(|_| sums_up) {
        replica.compress(plan, |param| asked::method_of_tensor(recipe, &plan, param))?;
    }
    match recipe.sync.mode {
        SyncMode::AllReduce
        | SyncMode::ParameterServer
        | SyncMode::Federated
        | SyncMode::Hogwild => return Ok(()),
        SyncMode::Gossip => return gossip::prepare(recipe, replica),
        SyncMode::LocalSgd => {}
    }
    let rule = match recipe.sync.outer {
        Outer::None => OuterRule::Average,
        Outer::Nesterov => OuterRule::Nesterov {
            lr: recipe.sync.outer_lr as f32,
            momentum: recipe.sync.outer_momentum as f32,
        },
    };
    let averages_state = recipe.sync.average == Averaged::State;
    replica.work_in_rounds(RoundPlan { rule, averages_state, group: recipe.sync.group_workers })
}

/// Brings the gradients of all workers together, where they are compressed.
pub(crate) fn exchange(
    recipe: &Recipe,
    step: u64,
    learner: &mut Learner,
) -> Result<Option<Observed>, CommError> {
    let (compress, Learner { replica, optimizer, .. }) = (&recipe.compress, learner);
    if !compress.is_on_in(step) {
        replica.follow_uncompressed();
        return Ok(None);
    }
    if compress.method == CompressMethod::OneBitAdam && step == compress.warmup_steps {
        optimizer.settle_second_moments(step);
    }
    replica.exchange_compressed(step).map(Some)
}

/// Where a run ends that is to stop early, or is not. It is only left where all workers hold the
/// same weights.
pub(crate) fn last_step(recipe: &Recipe, stop_after: Option<u64>) -> Result<u64, TrainError> {
    let last_step = stop_after.map_or(recipe.train.steps, |n| n.min(recipe.train.steps));
    if recipe.is_round_over(last_step) {
        return Ok(last_step);
    }
    let round = recipe.round_at(last_step);
    Err(TrainError::InsideRound { asked: last_step, before: round.start, after: round.end })
}

/// Whether the gradients of a step stay on their workers.
fn is_alone(recipe: &Recipe, step: u64) -> bool {
    let round = recipe.round_at(step);
    recipe.has_own_weights() || round.end - round.start > 1
}

/// A step begins, and perhaps a round.
pub(crate) fn begin_step(recipe: &Recipe, step: u64, replica: &mut Replica) {
    if recipe.compress.is_on() {
        replica.step_alone(recipe.compress.is_on_in(step));
    }
    if recipe.sync.mode == SyncMode::AllReduce {
        return;
    }
    if step >= recipe.first_round() && recipe.round_at(step).start == step {
        replica.begin_round();
    }
    replica.step_alone(is_alone(recipe, step));
}

/// What the gradients of a worker's micro-batches are divided by: the targets of all workers, of which
/// there are `all`, or of its own micro-batches where it steps alone.
pub(crate) fn num_targets(
    recipe: &Recipe,
    step: u64,
    batch: &Batch,
    all: u64,
    replica: &Replica,
) -> u64 {
    if is_alone(recipe, step) { own_targets(batch, replica) } else { all }
}

/// The targets of a worker's micro-batches.
pub(crate) fn own_targets(batch: &Batch, replica: &Replica) -> u64 {
    batch.targets_in(replica.own_microbatches().iter().copied()).max(1)
}

/// All workers step or none: a norm that is not finite on one of them is so on all.
pub(crate) fn agree(
    recipe: &Recipe,
    step: u64,
    mut clip: Clip,
    replica: &mut Replica,
) -> Result<Clip, CommError> {
    if is_alone(recipe, step) && !replica.holds_everywhere(clip.norm.is_finite())? {
        clip.norm = f64::NAN;
    }
    Ok(clip)
}

/// A step is done, and perhaps a round: says how far the workers were apart.
pub(crate) fn end_step(
    cpu: &Cpu,
    recipe: &Recipe,
    step: u64,
    learner: &mut Learner,
) -> Result<Option<Drift>, CommError> {
    learner.replica.mix(step)?;
    let Learner { replica, optimizer, .. } = learner;
    if recipe.is_group_meeting(step + 1) {
        replica.meet_in_group(optimizer)?;
    }
    for fragment in recipe.fragments_meeting(step + 1) {
        replica.meet_in_fragment(cpu, fragment, recipe.sync.fragments)?;
    }
    let is_part = recipe.sync.mode == SyncMode::LocalSgd && step >= recipe.first_round();
    if !is_part || !recipe.is_round_over(step + 1) {
        return Ok(None);
    }
    let factor = is_alone(recipe, step).then(|| factor(recipe, step, replica));
    replica.end_round(cpu, optimizer, factor)
}

/// What a worker's change is multiplied by at the end of a round: the mean number of steps by its
/// own (FedNova, Wang et al. 2020), so that its samples count for as much as if all had taken
/// equally many.
fn factor(recipe: &Recipe, step: u64, replica: &Replica) -> f32 {
    let round = recipe.round_at(step);
    let taken =
        |worker| recipe.steps_taken(worker, round.end) - recipe.steps_taken(worker, round.start);
    let mean: f64 = replica.parts().enumerate().map(|(n, part)| part * taken(n) as f64).sum();
    let own = taken(replica.groups().data().group_rank());
    if recipe.sync.worker_steps.is_empty() { 1.0 } else { (mean / own as f64) as f32 }
}

/// The number of this worker's step, where it takes it.
pub(crate) fn count(recipe: &Recipe, step: u64, learner: &Learner) -> Option<u64> {
    let worker = learner.replica.groups().data().group_rank();
    let count = recipe.steps_taken(worker, step) + 1;
    let count = count.saturating_sub(learner.num_skipped_in_phase).max(1);
    recipe.is_taken_by(worker, step).then_some(count)
}

/// The name of what one worker keeps of a tensor.
pub(crate) fn of_worker(worker: usize, name: &str, kind: &str) -> String {
    format!("worker.{worker}.{name}.{kind}")
}

fn name_of(worker: usize, name: &str, kind: &str, is_own: bool) -> String {
    if is_own { of_worker(worker, name, kind) } else { format!("{name}.{kind}") }
}

/// Copies what a checkpoint must hold besides the model and a state that all workers share.
pub(crate) fn save(recipe: &Recipe, room: &mut Snapshot, learner: &mut Learner) {
    if let Some(federation) = &mut learner.federation {
        federated::save(room, federation);
    }
    gossip::save(room, learner);
    let Learner { replica, optimizer, .. } = learner;
    let worker = replica.groups().rank();
    if recipe.has_own_state() {
        for slot in optimizer.slots() {
            for (kind, name) in optimizer.kinds().iter().enumerate() {
                let state = optimizer.state(&slot.name, slot.piece, kind).expect("its own");
                let name = of_worker(worker, &slot.name, name);
                room.add(&name, &[state.len()], 0, state);
            }
        }
    }
    let saved = replica.visit_compression(|name, kind, is_own, values| {
        if is_own || worker == 0 {
            room.add(&name_of(worker, name, kind, is_own), &[values.len()], 0, values);
        }
        Ok::<_, std::convert::Infallible>(())
    });
    saved.unwrap_or_else(|never| match never {});
    if worker == 0 {
        let saved = replica.visit_outer(|name, values| {
            room.add(&format!("{name}.outer"), &[values.len()], 0, values);
            Ok::<_, std::convert::Infallible>(())
        });
        saved.unwrap_or_else(|never| match never {});
    }
}

/// Reads it back, on as many workers as there were.
pub(crate) fn load(
    recipe: &Recipe,
    reader: &Reader,
    learner: &mut Learner,
) -> Result<(), TrainError> {
    federated::load(reader, learner)?;
    let Learner { replica, optimizer, .. } = learner;
    let (worker, workers) = (replica.groups().rank(), reader.manifest().position.workers);
    let compress = &recipe.compress;
    let keeps_own = compress.error_feedback || compress.momentum > 0.0;
    let has_residuals = compress.is_on() && keeps_own;
    if workers != recipe.run.workers && (recipe.has_own_state() || has_residuals) {
        return Err(TrainError::OtherWorkers { saved: workers, asked: recipe.run.workers });
    }
    // What had settled was saved as it was.
    let (done, compress) = (reader.manifest().position.step, &recipe.compress);
    if compress.method == CompressMethod::OneBitAdam && done > compress.warmup_steps {
        optimizer.settle_second_moments(compress.warmup_steps);
    }
    replica.visit_compression(|name, kind, is_own, values| {
        reader.read(&name_of(worker, name, kind, is_own), &[values.len()], 0, values)
    })?;
    if recipe.has_own_state() {
        for slot in optimizer.slots().to_vec() {
            for (kind, name) in optimizer.kinds().iter().enumerate() {
                let state = optimizer.state_mut(&slot.name, slot.piece, kind).expect("its own");
                let name = of_worker(worker, &slot.name, name);
                reader.read(&name, &[state.len()], 0, state)?;
            }
        }
    }
    replica.visit_outer(|name, values| {
        Ok::<_, TrainError>(reader.read(&format!("{name}.outer"), &[values.len()], 0, values)?)
    })?;
    gossip::load(reader, learner)
}
