//! Hogwild (Niu et al. 2011): threads read shared weights, compute, and add their steps without
//! locks. They share memory, so a thread's program has no link task and nothing joins threads.

use super::{RankPlan, Replay};
use crate::{Leaves, ReplicaPlan};
use lockstep_config::Recipe;
use lockstep_model::Blueprint;
use lockstep_schedule::step::{Contents, Program, Queue, TaskOp};

/// Program of a thread's step.
pub(crate) fn thread_program(
    recipe: &Recipe,
    plan: &ReplicaPlan,
    blueprint: &Blueprint,
    thread: usize,
) -> Program {
    let microbatches_per_leaf = recipe.num_microbatches() / recipe.sync.threads;
    let leaves = Leaves { num_leaves: 1, microbatches_per_leaf };
    let recompute = plan.recompute;
    let alone = ReplicaPlan { recompute, ..ReplicaPlan::single_rank(plan.microbatch, leaves) };
    let at = RankPlan::new(&alone, blueprint, 0);
    let passes = at.passes();
    let first = passes.position(|op| matches!(op, TaskOp::Forward(_)));
    let mut replay = Replay::new(&passes, thread);
    let numbers = thread * microbatches_per_leaf..(thread + 1) * microbatches_per_leaf;
    replay.tasks.microbatches(numbers);
    let shared = replay.tasks.persistent(Contents::GlobalWeights, blueprint.num_params());
    let stale = replay.tasks.persistent(Contents::StaleWeights, 0);
    let params: Vec<_> =
        (0..at.buckets.list.len()).map(|bucket| replay.params(&at, bucket)).collect();
    for (id, _) in passes.iter() {
        if Some(id) == first {
            let mut read =
                replay.tasks.task(TaskOp::ReadShared, Queue::Compute).reads(shared).takes(stale);
            for params in &params {
                read = read.updates(*params);
            }
        }
        replay.repeat(id, false);
    }
    let added = replay.add_mirrors(&at);
    let grads: Vec<_> = at.grad_buckets().collect();
    let grads: Vec<_> = grads.into_iter().filter_map(|bucket| replay.grads(&at, bucket)).collect();
    let norm = replay.tasks.buffer(Contents::Norm, 1);
    let mut measure = replay.tasks.task(TaskOp::GradNorm, Queue::Compute).writes(norm);
    for grads in &grads {
        measure = measure.reads(*grads);
    }
    let add = replay.tasks.task(TaskOp::AddToShared, Queue::Compute).takes(norm);
    let mut add = add.updates(shared).writes(stale);
    for buffer in grads.into_iter().chain(added) {
        add = add.takes(buffer);
    }
    replay.tasks.finish()
}
