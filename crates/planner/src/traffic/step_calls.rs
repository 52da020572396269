//! Calls of a step, by group: a walk over the step programs that the engine runs
//! ([`lockstep_parallel::step_program`]).

use super::call::{Call, GroupCalls, Message, StepCalls};
use super::{TrafficCounts, exactness};
use crate::shorter_steps::ShorterSteps;
use lockstep_config::units::Bytes;
use lockstep_config::{Recipe, WireDtype};
use lockstep_mesh::{Axis, Rank};
use lockstep_model::Blueprint;
use lockstep_parallel::step_program::{RankPlan, StepKind, rank_at};
use lockstep_parallel::strategies::programs;
use lockstep_parallel::{ReplicaPlan, bucket_tuning, from_recipe};
use lockstep_schedule::Contributions;
use lockstep_schedule::step::{
    self, Averaged, CommGroup, Contents, MessageKind, Program, Queue, Task, TaskId, TaskOp, Use,
};
use std::collections::BTreeMap;

/// Groups that every program has: data-parallel ranks, tensor-parallel ranks, all ranks.
const NUM_MESH_GROUPS: usize = 3;

/// Number of the buffer for gathered matrices, behind the two windows.
const MATRIX_TURN: usize = 2;

/// Inputs of a step beyond its plan.
#[derive(Debug, Clone, Copy, Default)]
pub struct StepInputs<'a> {
    /// Number of embedding rows that micro-batches select, by rank; vocabulary shards count their
    /// own rows. `None` counts the dense exchange.
    pub rows_by_rank: Option<&'a [usize]>,
    /// Whether the update is skipped, because gradients are not finite.
    pub is_skipped: bool,
    /// Leaves of each worker, where they are not those of the plan.
    pub leaves_by_worker: Option<&'a [usize]>,
}

/// Candidate plans of a step, most likely first: they differ in the bucket length where it is tuned
/// at start-up.
pub fn plans_at(recipe: &Recipe, blueprint: &Blueprint, step: u64) -> Vec<ReplicaPlan> {
    let plan = from_recipe::plan_at(recipe, blueprint, step);
    // Servers hold shards of buckets that all ranks know.
    if recipe.num_servers() > 0 || recipe.parallel.bucket_bytes != Bytes(0) {
        return vec![plan];
    }
    let lens = bucket_tuning::candidate_bucket_lens(plan.shares.len(), blueprint.num_params());
    lens.into_iter().map(|bucket_len| ReplicaPlan { bucket_len, ..plan.clone() }).collect()
}

/// Most likely plan of a step.
pub fn plan_at(recipe: &Recipe, blueprint: &Blueprint, step: u64) -> ReplicaPlan {
    plans_at(recipe, blueprint, step).swap_remove(0)
}

/// Programs of all ranks in a step, under the most likely plan: workers, then parameter servers.
pub fn programs_at(recipe: &Recipe, step: u64) -> Vec<Program> {
    let blueprint = from_recipe::blueprint_of_rank(recipe, 0);
    let plan = plan_at(recipe, &blueprint, step);
    programs(recipe, &plan, &blueprint, &StepKind::at(recipe, step))
}

/// Calls of a step of some kind under a plan.
pub fn of_plan(
    recipe: &Recipe,
    plan: &ReplicaPlan,
    blueprint: &Blueprint,
    kind: &StepKind,
    known: StepInputs<'_>,
) -> StepCalls {
    let program = |recipe: &Recipe, place: RankPlan<'_>| {
        let place = place.with_rows(known.rows_by_rank);
        let program = place.training_of(recipe, kind);
        if known.is_skipped { program.without_guarded() } else { program }
    };
    let calls = of_any_length(recipe, plan, blueprint, &program, kind.federated.is_none());
    let devices = 0..plan.mesh.degree(Axis::Pipeline);
    let has_rows = kind.is_reduced()
        && plan.zero == 0
        && devices.into_iter().any(|device| has_rows(plan, blueprint, device));
    let has_known_rows =
        !has_rows || known.rows_by_rank.is_some() && exactness::has_known_rows(recipe);
    StepCalls { has_rows, is_exact: has_known_rows && exactness::is_exact(recipe), ..calls }
}

/// [`of_programs`] of a step with any number of micro-batches.
fn of_any_length(
    recipe: &Recipe,
    plan: &ReplicaPlan,
    blueprint: &Blueprint,
    program: &dyn Fn(&Recipe, RankPlan<'_>) -> Program,
    is_canonical: bool,
) -> StepCalls {
    let walk = |recipe: &Recipe, plan: &ReplicaPlan| {
        of_programs(plan, blueprint, &|place| program(recipe, place), is_canonical)
    };
    match ShorterSteps::of(recipe, plan) {
        Some(shorter) => {
            let both = shorter.steps.each_ref().map(|(recipe, plan)| walk(recipe, plan));
            StepCalls::extrapolated(both, &shorter)
        }
        None => walk(recipe, plan),
    }
}

/// Calls of programs that `program` builds for each place of the mesh. Calls after the step sum in
/// the canonical order, or in any.
pub(super) fn of_programs(
    plan: &ReplicaPlan,
    blueprint: &Blueprint,
    program: &dyn Fn(RankPlan<'_>) -> Program,
    is_canonical: bool,
) -> StepCalls {
    let mesh = plan.mesh;
    let (num_devices, num_parts) = (mesh.degree(Axis::Pipeline), plan.shares.len());
    let num_tp_ranks = mesh.degree(Axis::Tensor);
    let program = |device: usize, part: usize, tp_rank: usize| {
        program(RankPlan::new(plan, blueprint, rank_at(&mesh, device, part, tp_rank)))
    };
    // Ranks of a data-parallel group make the same calls, and tensor-parallel ranks differ only in
    // the embedding rows that they exchange.
    let by_place: Vec<Vec<Program>> = (0..num_devices)
        .map(|device| (0..num_parts).map(|part| program(device, part, 0)).collect())
        .collect();
    let data = |device: usize| {
        let of_tp_rank = |tp_rank: usize| match tp_rank {
            0 => data_calls(plan, &by_place[device][0]),
            _ => data_calls(plan, &program(device, 0, tp_rank)),
        };
        (0..num_tp_ranks).map(of_tp_rank).collect()
    };
    let tensor = |program: &Program| GroupCalls {
        contributions: Contributions::one_each(num_tp_ranks),
        list: count(program, Queue::Link(Axis::Tensor), |_, _| Some((0, Vec::new()))),
    };
    let device_of = |rank: u32| mesh.index(Axis::Pipeline, Rank(rank as usize));
    StepCalls {
        mesh,
        data: (0..num_devices).map(data).collect(),
        tensor: by_place.iter().map(|parts| parts.iter().map(tensor).collect()).collect(),
        messages: by_place
            .iter()
            .map(|parts| parts.iter().map(|program| messages(program, &device_of)).collect())
            .collect(),
        after_step: by_place
            .iter()
            .flatten()
            .flat_map(|program| after_step(program, is_canonical))
            .collect(),
        neighbor_messages: neighbor_messages(&by_place, mesh.num_ranks()),
        server_messages: server_messages(&by_place, mesh.num_ranks()),
        has_rows: false,
        is_exact: true,
    }
}

/// Whether a pipeline rank exchanges embedding rows sparsely.
fn has_rows(plan: &ReplicaPlan, blueprint: &Blueprint, device: usize) -> bool {
    RankPlan::new(plan, blueprint, rank_at(&plan.mesh, device, 0, 0)).has_sparse_rows()
}

/// Data-parallel calls of a program.
fn data_calls(plan: &ReplicaPlan, program: &Program) -> GroupCalls {
    let group = program.groups.iter().find(|group| group.axis == Axis::Data);
    let contributions = group.expect("every rank has a data-parallel group").contributions.clone();
    let is_pooled = plan.leaves.microbatches_per_leaf == 1 || plan.wire != WireDtype::F32;
    let is_data = |group: &CommGroup| group.axis == Axis::Data;
    let data = program.groups.iter().position(is_data);
    let place = |id: TaskId, task: &Task| {
        let (call, _) = program.call(task)?;
        let bucket = match task.op {
            _ if Some(call.group as usize) != data => return None,
            TaskOp::GatherParams { bucket }
            | TaskOp::GatherUpdated { bucket }
            | TaskOp::Reduce { bucket } => bucket as usize,
            // All matrices are gathered into one buffer.
            TaskOp::GatherMatrix { .. } => return Some((0, vec![MATRIX_TURN])),
            _ => return None,
        };
        // Buffers that several buckets share: windows, pooled leaves and rounded ones.
        let shared = program.contents(id, &[Use::Read, Use::Write]).filter_map(|it| match it {
            Contents::Window { window: number } => Some(number as usize),
            Contents::Leaf { number } | Contents::Encoded { number } if is_pooled => {
                Some(number as usize)
            }
            _ => None,
        });
        Some((bucket, shared.collect()))
    };
    GroupCalls { contributions, list: count(program, Queue::Link(Axis::Data), place) }
}

/// Calls of a program among workers that average weights, exchange compressed gradients or share a
/// host, by the first of them, if that is this rank. Only federated ranks sum in any order: each
/// number comes from one of them.
fn after_step(program: &Program, is_canonical: bool) -> Vec<(Vec<usize>, GroupCalls)> {
    // The first groups are those of the mesh.
    let groups = program.groups.iter().enumerate().skip(NUM_MESH_GROUPS);
    let own = groups.filter(|(_, group)| group.ranks[0] == program.rank);
    let of_group = |(number, group): (usize, &CommGroup)| {
        let place = |_: TaskId, task: &Task| {
            let (call, _) = program.call(task)?;
            let is_here = call.group as usize == number;
            let bucket = match task.op {
                TaskOp::Average(
                    Averaged::Bucket(number)
                    | Averaged::BucketInGroup(number)
                    | Averaged::Fragment(number)
                    | Averaged::State(number)
                    | Averaged::StateInGroup(number),
                )
                | TaskOp::Reduce { bucket: number }
                | TaskOp::Exchange { bucket: number, .. }
                | TaskOp::ReduceInGroup { bucket: number }
                | TaskOp::BroadcastInGroup { bucket: number } => number as usize,
                TaskOp::Broadcast { .. } | TaskOp::Report { .. } => 0,
                _ => return None,
            };
            is_here.then(|| (bucket, Vec::new()))
        };
        let mut list = count(program, Queue::Link(Axis::Data), place);
        for call in &mut list {
            call.is_canonical = is_canonical;
        }
        let contributions = group.contributions.clone();
        let ranks = group.ranks.clone();
        (!list.is_empty()).then_some((ranks, GroupCalls { contributions, list }))
    };
    own.filter_map(of_group).collect()
}

/// Messages to neighbours on a gossip graph, by sending rank.
fn neighbor_messages(by_place: &[Vec<Program>], num_ranks: usize) -> Vec<Vec<Message>> {
    let mut all = vec![Vec::new(); num_ranks];
    for program in by_place.iter().flatten() {
        for task in &program.tasks {
            if let TaskOp::Send(step::Message { kind, peer, len, .. }) = task.op
                && matches!(
                    kind,
                    MessageKind::Weights { .. }
                        | MessageKind::PushSumWeight
                        | MessageKind::Custom { .. }
                )
            {
                let message = Message { to: peer as usize, len: len as usize, times: 1 };
                all[program.rank].push(message);
            }
        }
    }
    all
}

/// Messages between workers and parameter servers, by worker, in both directions; updates of
/// federated clients, by sender.
fn server_messages(by_place: &[Vec<Program>], num_ranks: usize) -> Vec<TrafficCounts> {
    let mut all = vec![TrafficCounts::default(); num_ranks];
    for program in by_place.iter().flatten() {
        for task in &program.tasks {
            let (TaskOp::Send(message) | TaskOp::Recv(message)) = task.op else { continue };
            let is_sent = matches!(task.op, TaskOp::Send(_));
            let counts = match message.kind {
                MessageKind::Request(_) | MessageKind::Reply(_) | MessageKind::Values { .. } => {
                    true
                }
                MessageKind::ClientUpdate { .. } => is_sent,
                _ => false,
            };
            if counts {
                let sent = Bytes(message.len * u64::from(message.element));
                let one = TrafficCounts { calls: 1, messages: 1, sent, ..TrafficCounts::default() };
                all[program.rank] += one;
            }
        }
    }
    all
}

/// Calls on a queue with their numbers; `place` returns the bucket of a call and the shared buffers
/// that it uses, or nothing for a call that does not count.
fn count(
    program: &Program,
    queue: Queue,
    place: impl Fn(TaskId, &Task) -> Option<(usize, Vec<usize>)>,
) -> Vec<Call> {
    let mut list: Vec<Call> = Vec::new();
    for (id, task) in program.iter().filter(|(_, task)| task.queue == queue) {
        let Some((call, _)) = program.call(task) else { continue };
        let Some((bucket, turns)) = place(id, task) else { continue };
        let is_equal = |other: &&mut Call| {
            (other.op, other.bucket, other.element) == (call.op, bucket, call.element)
                && other.lengths == call.lengths
        };
        // Runs of one bucket are gathered one by one, even if they are equally long.
        let is_run = matches!(task.op, TaskOp::GatherUpdated { .. });
        match list.iter_mut().find(is_equal).filter(|_| !is_run) {
            Some(known) => {
                known.times += 1;
                let new = turns.into_iter().filter(|turn| !known.turns.contains(turn));
                let new: Vec<usize> = new.collect();
                known.turns.extend(new);
                known.turns.sort_unstable();
            }
            None => list.push(Call {
                op: call.op,
                bucket,
                lengths: call.lengths.clone(),
                element: call.element,
                times: 1,
                turns,
                is_canonical: true,
            }),
        }
    }
    list
}

/// Messages of a program to other pipeline ranks.
fn messages(program: &Program, device_of: &dyn Fn(u32) -> usize) -> Vec<Message> {
    let mut counts: BTreeMap<(usize, usize), u64> = BTreeMap::new();
    for task in &program.tasks {
        if let TaskOp::Send(message) = task.op
            && task.queue == Queue::Link(Axis::Pipeline)
        {
            let to = device_of(message.peer);
            *counts.entry((to, message.len as usize)).or_default() += 1;
        }
    }
    counts.into_iter().map(|((to, len), times)| Message { to, len, times }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockstep_config::{Sources, resolve};
    use lockstep_parallel::Footprint;
    use std::cell::Cell;

    /// A small model with this many micro-batches per leaf, of which there are four.
    fn recipe(microbatches_per_leaf: usize, sets: &[&str]) -> Recipe {
        let batch = format!("train.batch={}", 4 * microbatches_per_leaf);
        let base = ["run.workers=4", "numerics.invariant_up_to=4", "train.microbatch=1", &batch];
        let sets = base.iter().chain(sets).map(|set| (*set).to_owned()).collect();
        let sources = Sources { preset: Some("tiny".to_owned()), sets, ..Sources::default() };
        resolve(&sources).unwrap_or_else(|errors| panic!("{errors}"))
    }

    /// Calls of a recipe's first step, and the number of tasks that were walked to count them.
    fn counted(recipe: &Recipe, is_short: bool) -> (StepCalls, usize) {
        let blueprint = from_recipe::blueprint_of_rank(recipe, 0);
        let (plan, kind) = (plan_at(recipe, &blueprint, 0), StepKind::all_of(recipe));
        let num_tasks = Cell::new(0);
        let program = |recipe: &Recipe, place: RankPlan<'_>| {
            let program = place.training_of(recipe, &kind);
            num_tasks.update(|num| num + program.tasks.len());
            program
        };
        let calls = if is_short {
            of_any_length(recipe, &plan, &blueprint, &program, true)
        } else {
            of_programs(&plan, &blueprint, &|place| program(recipe, place), true)
        };
        (calls, num_tasks.get())
    }

    const LAYOUTS: &[&[&str]] = &[
        &[],
        &["parallel.zero=2", "precision.wire=bf16"],
        &["parallel.zero=3", "parallel.recompute=full"],
        &["parallel.tensor=2", "parallel.zero=1"],
        &["parallel.pipeline=2"],
        &["parallel.pipeline=2", "parallel.schedule=gpipe"],
        &["parallel.pipeline=2", "parallel.zero=2"],
        &["parallel.pipeline=2", "parallel.virtual_stages=2"],
    ];

    const STRATEGIES: &[&[&str]] = &[
        &["compress.method=top-k"],
        &["sync.mode=local-sgd", "sync.local_steps=3"],
        &["sync.mode=gossip"],
        &["sync.mode=parameter-server"],
        &["sync.mode=federated", "federated.clients=8", "federated.sampled=4"],
        &[
            "sync.mode=hogwild",
            "sync.threads=2",
            "run.workers=1",
            "optim.name=sgd",
            "optim.weight_decay=0",
        ],
    ];

    #[test]
    fn calls_of_many_micro_batches_are_those_of_a_walk_over_all() {
        for sets in LAYOUTS.iter().chain(STRATEGIES) {
            // Four cycles, and a part of one.
            let recipe = recipe(4 * 64 + 5 * 4, sets);
            let ((short, few), (all, many)) = (counted(&recipe, true), counted(&recipe, false));
            assert!(few < many, "{sets:?}: {few} of {many} tasks");
            assert_eq!(short, all, "{sets:?}");
        }
    }

    #[test]
    fn no_more_tasks_are_walked_for_a_million_micro_batches_than_for_a_thousand() {
        for sets in LAYOUTS {
            let [thousand, million] =
                [1 << 8, 1 << 18].map(|num| counted(&recipe(num, sets), true).1);
            assert!(thousand > 0 && million <= thousand, "{sets:?}: {thousand}, {million}");
        }
    }

    #[test]
    fn memory_with_many_micro_batches_is_that_of_the_whole_plan() {
        for sets in LAYOUTS {
            let recipe = recipe(4 * 64 + 5 * 4, sets);
            let blueprint = from_recipe::blueprint_of_rank(&recipe, 0);
            let plan = plan_at(&recipe, &blueprint, 0);
            let memory = crate::memory::Memory::of(&recipe, &blueprint);
            for (rank, found) in memory.ranks.iter().enumerate() {
                let held = Footprint::plan(&blueprint, &plan, recipe.optim.name, rank);
                assert_eq!(found.own(), Bytes(4 * held.total() as u64), "{sets:?}, {rank}");
            }
        }
    }
}
