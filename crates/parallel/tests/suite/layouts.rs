//! Every layout gives the bits of one rank: losses, norms, weights and optimizer state.
//!
//! A few steps of tiny models, with ranks as threads. The default run does not try every
//! combination of settings, but every value of each with every number of ranks and every ZeRO
//! stage; `LOCKSTEP_SOAK=1` tries all combinations.

use crate::support::{
    BUCKET_LENS, Batch, LARGE, Layout, Named, RECOMPUTE, TINY, Worker, all_params, all_state,
    alone, assert_all_same, on_ranks, settings, train_step,
};
use lockstep_config::{Family, Model, OptimName};
use lockstep_model::describe;
use lockstep_optim::Optimizer;
use lockstep_parallel::{ReplicaPlan, Stages, stages};
use lockstep_schedule::pipeline::Kind;
use lockstep_tensor::device::Compute;
use lockstep_tensor::{Cpu, Isa};
use std::sync::Arc;

const NUM_LEAVES: usize = 8;
const NUM_STEPS: u64 = 3;

/// Training task, independent of the layout.
#[derive(Clone, Debug)]
struct Task {
    model: Model,
    microbatches_per_leaf: usize,
    optim: OptimName,
}

/// Results of training.
struct Outcome {
    /// Losses and norms of steps, and losses of evaluations in between, as bits.
    numbers: Vec<u64>,
    weights: Vec<Named>,
    state: Vec<Named>,
}

impl Outcome {
    fn assert_same(&self, other: &Self, what: &str) {
        assert_eq!(self.numbers, other.numbers, "{what}: losses, norms and evaluations");
        assert_all_same(&self.weights, &other.weights, what);
        assert_all_same(&self.state, &other.state, what);
    }
}

/// One rank's part of a task.
fn train(worker: &Worker<'_>, task: &Task, layout: &Layout) -> Outcome {
    let num_microbatches = NUM_LEAVES * task.microbatches_per_leaf;
    let update_inputs = Optimizer::inputs_of(task.optim);
    let plan = ReplicaPlan { update_inputs, ..layout.plan(task.microbatches_per_leaf) };
    let mut replica = worker.replica(&task.model, plan).expect("room");
    let (slots, accelerator) = (replica.slots(), replica.accelerator());
    let mut optimizer =
        Optimizer::on_device(&settings(task.optim), &slots, 0, accelerator).expect("room");
    let held_out = Batch::new(&task.model, 11, 99);
    let mut numbers = Vec::new();
    for step in 0..NUM_STEPS {
        let batch = Batch::new(&task.model, num_microbatches, step);
        if step == 1 {
            // A skipped step leaves no trace.
            let microbatch = |microbatch: usize| held_out.microbatch(microbatch % 11);
            replica.run_microbatches(&worker.cpu, 1, 7, &microbatch).expect("micro-batches");
            replica.finish_reduce(&worker.cpu).expect("sums");
        }
        let (loss, norm) =
            train_step(worker, &mut replica, &mut optimizer, &batch, step).expect("a step");
        numbers.extend([loss, norm].map(f64::to_bits));
        // Fewer micro-batches than ranks, more, and none: prefetched weights of one must serve the
        // next.
        for num_microbatches in [[1, 5], [11, 0], [3, 8]][step as usize] {
            let microbatch = |microbatch: usize| held_out.microbatch(microbatch);
            let loss = replica
                .evaluate(&worker.cpu, num_microbatches, &microbatch)
                .expect("an evaluation");
            numbers.push(loss.to_bits());
        }
    }
    let weights = all_params(&mut replica).expect("weights");
    let state = all_state(&mut replica, &optimizer).expect("state");
    Outcome { numbers, weights, state }
}

/// Trains under each layout and compares every rank's outcome with that of one rank.
fn assert_layouts_agree(task: &Task, layouts: &[Layout]) {
    let expected = alone(|worker| train(worker, task, &Layout::even(NUM_LEAVES, 1, 0)));
    let losses: Vec<_> = expected.numbers.iter().map(|bits| f64::from_bits(*bits)).collect();
    assert!(losses.iter().all(|number| number.is_finite()), "{losses:?}");
    for layout in layouts {
        let outcomes = on_ranks(layout.num_workers(), |worker| train(worker, task, layout));
        for (rank, outcome) in outcomes.iter().enumerate() {
            outcome.assert_same(&expected, &format!("{task:?}, {layout:?}, rank {rank}"));
        }
    }
}

fn is_soak() -> bool {
    let value = lockstep_platform::real().host().env("LOCKSTEP_SOAK");
    value.is_some_and(|value| !value.is_empty() && value != "0")
}

/// Every ZeRO stage on every number of ranks; the other settings take turns, so that each value
/// comes up with every stage. `turn` is their offset.
fn layouts(turn: usize) -> Vec<Layout> {
    let mut list = Vec::new();
    for (row, num_workers) in [1, 2, 3, 4, 5, 8].into_iter().enumerate() {
        for zero in 0..4 {
            let turn = turn + row + zero;
            let every_day = [(turn % 4, (turn + zero) % 3, (turn / 2).is_multiple_of(2))];
            let all = (0..24).map(|i| (i % 4, i / 4 % 3, i < 12));
            let settings = if is_soak() { all.collect() } else { every_day.to_vec() };
            list.extend(settings.into_iter().map(|(recompute, bucket, overlap)| Layout {
                recompute: RECOMPUTE[recompute],
                bucket_len: BUCKET_LENS[bucket],
                overlap,
                ..Layout::even(NUM_LEAVES, num_workers, zero)
            }));
        }
    }
    list
}

fn llama(tied: bool) -> Model {
    Model { tied, ..LARGE }
}

fn gpt2(tied: bool) -> Model {
    Model { family: Family::Gpt2, kv_heads: LARGE.heads, tied, ..LARGE }
}

#[test]
fn llama_with_grouped_queries_gives_the_same_bits_under_every_layout() {
    let task = Task { model: llama(false), microbatches_per_leaf: 1, optim: OptimName::AdamW };
    assert_layouts_agree(&task, &layouts(0));
}

#[test]
fn tied_llama_with_three_microbatches_a_leaf_gives_the_same_bits_under_every_layout() {
    let task = Task { model: llama(true), microbatches_per_leaf: 3, optim: OptimName::Momentum };
    assert_layouts_agree(&task, &layouts(1));
}

#[test]
fn tied_gpt2_gives_the_same_bits_under_every_layout() {
    let task = Task { model: gpt2(true), microbatches_per_leaf: 1, optim: OptimName::AdamW };
    assert_layouts_agree(&task, &layouts(2));
}

#[test]
fn gpt2_with_three_microbatches_a_leaf_gives_the_same_bits_under_every_layout() {
    let task = Task { model: gpt2(false), microbatches_per_leaf: 3, optim: OptimName::Sgd };
    assert_layouts_agree(&task, &layouts(3));
}

#[test]
fn workers_that_own_nothing_do_not_change_a_bit() {
    let task = Task { model: TINY, microbatches_per_leaf: 1, optim: OptimName::AdamW };
    assert_layouts_agree(&task, &layouts(1));
}

#[test]
fn unequal_shares_give_the_same_bits() {
    let mut list = Vec::new();
    for shares in [&[5, 3][..], &[1, 7], &[7, 1], &[1, 2, 5], &[3, 1, 3, 1]] {
        for zero in 0..4 {
            let turn = list.len();
            list.push(Layout {
                shares: shares.to_vec(),
                recompute: RECOMPUTE[turn % 4],
                bucket_len: BUCKET_LENS[turn % 3],
                overlap: turn.is_multiple_of(2),
                ..Layout::even(NUM_LEAVES, shares.len(), zero)
            });
        }
    }
    let task = Task { model: llama(true), microbatches_per_leaf: 1, optim: OptimName::AdamW };
    assert_layouts_agree(&task, &list);
}

/// Pipelines of these numbers of ranks and chunks; the other settings take turns.
fn pipelines(task: &Task, kind: Kind, shapes: &[(usize, usize)]) -> Vec<Layout> {
    let costs = stages::costs(&describe(&task.model));
    let mut list = Vec::new();
    for &(num_devices, num_chunks) in shapes {
        for data in [1, 2, 3] {
            for zero in 0..4 {
                let turn = list.len();
                let num_stages = num_devices * num_chunks;
                list.push(Layout {
                    recompute: RECOMPUTE[turn % 4],
                    bucket_len: BUCKET_LENS[turn / 2 % 3],
                    overlap: (turn / 3).is_multiple_of(2),
                    stages: Stages::balanced(&costs, num_stages, num_devices, kind),
                    ..Layout::even(NUM_LEAVES, data, zero)
                });
            }
        }
    }
    list
}

#[test]
fn a_pipeline_of_two_gives_the_same_bits() {
    for (tied, microbatches_per_leaf) in [(false, 1), (true, 2)] {
        let task = Task { model: llama(tied), microbatches_per_leaf, optim: OptimName::AdamW };
        assert_layouts_agree(&task, &pipelines(&task, Kind::OneFOneB, &[(2, 1)]));
    }
}

#[test]
fn pipelines_of_three_and_four_with_unequal_stages_give_the_same_bits() {
    let model = Model { layers: 3, ..gpt2(true) };
    let task = Task { model, microbatches_per_leaf: 1, optim: OptimName::AdamW };
    assert_layouts_agree(&task, &pipelines(&task, Kind::GPipe, &[(3, 1)]));
    assert_layouts_agree(&task, &pipelines(&task, Kind::OneFOneB, &[(4, 1)]));
}

#[test]
fn virtual_stages_give_the_same_bits() {
    let model = Model { layers: 4, ..llama(true) };
    let task = Task { model, microbatches_per_leaf: 1, optim: OptimName::AdamW };
    assert_layouts_agree(&task, &pipelines(&task, Kind::Interleaved, &[(1, 2), (2, 2), (3, 2)]));
}

#[test]
fn backward_in_two_halves_gives_the_same_bits() {
    for model in [llama(false), gpt2(true)] {
        let task = Task { model, microbatches_per_leaf: 1, optim: OptimName::AdamW };
        assert_layouts_agree(&task, &pipelines(&task, Kind::ZeroBubble, &[(1, 1), (2, 1), (3, 1)]));
    }
}

/// A CPU with a second one in the place of an accelerator. Its memory is apart from the copies that
/// collectives and evaluations use, so a value that is used on the stale side shows in the bits.
fn accelerated() -> Compute {
    let cpu = || Cpu::single(Isa::detect());
    Compute::accelerated(cpu(), Arc::new(cpu()))
}

/// Seven layers: every buffer of the device serves several of them, and a stage has up to four.
#[test]
fn offloaded_activations_give_the_same_bits() {
    for (small, optim) in [(llama(true), OptimName::AdamW), (gpt2(false), OptimName::Sgd)] {
        let model = Model { layers: 7, ..small };
        let task = Task { model, microbatches_per_leaf: 2, optim };
        let expected = alone(|worker| train(worker, &task, &Layout::even(NUM_LEAVES, 1, 0)));
        let one_rank =
            RECOMPUTE.map(|recompute| Layout { recompute, ..Layout::even(NUM_LEAVES, 1, 0) });
        let two_ranks = [(1, 0), (3, 1)].map(|(zero, turn)| Layout {
            recompute: RECOMPUTE[2 * turn],
            bucket_len: BUCKET_LENS[turn],
            overlap: true,
            ..Layout::even(NUM_LEAVES, 2, zero)
        });
        let schedules = [
            (Kind::GPipe, (2, 1)),
            (Kind::OneFOneB, (2, 1)),
            (Kind::Interleaved, (2, 2)),
            (Kind::ZeroBubble, (2, 1)),
        ];
        let pipelines = schedules.into_iter().enumerate().flat_map(|(turn, (kind, shape))| {
            let all = pipelines(&task, kind, &[shape]).into_iter().take(2);
            all.map(move |layout| Layout { recompute: RECOMPUTE[turn], ..layout })
        });
        for layout in one_rank.into_iter().chain(two_ranks).chain(pipelines) {
            let layout = Layout { offload_activations: true, ..layout };
            let outcomes = on_ranks(layout.num_workers(), |worker| {
                let worker = Worker { cpu: accelerated(), ..*worker };
                train(&worker, &task, &layout)
            });
            for outcome in outcomes {
                outcome.assert_same(&expected, &format!("{task:?}, {layout:?}"));
            }
        }
        let on_cpu = Layout { offload_activations: true, ..Layout::even(NUM_LEAVES, 1, 0) };
        alone(|worker| train(worker, &task, &on_cpu)).assert_same(&expected, "offload on the CPU");
    }
}

#[test]
fn buffers_on_an_accelerator_give_the_bits_of_the_cpu() {
    for (model, optim) in [
        (llama(true), OptimName::AdamW),
        (gpt2(false), OptimName::Lamb),
        (llama(true), OptimName::Muon),
    ] {
        let task = Task { model, microbatches_per_leaf: 2, optim };
        let expected = alone(|worker| train(worker, &task, &Layout::even(NUM_LEAVES, 1, 0)));
        let one_rank = layouts(2).into_iter().filter(|layout| layout.num_workers() == 1);
        let two_ranks = (0..4).map(|zero| Layout {
            overlap: zero % 2 == 0,
            bucket_len: BUCKET_LENS[zero % 3],
            ..Layout::even(NUM_LEAVES, 2, zero)
        });
        let pipelines = pipelines(&task, Kind::ZeroBubble, &[(2, 1)]).into_iter().take(2);
        for layout in one_rank.chain(two_ranks).chain(pipelines) {
            let outcomes = on_ranks(layout.num_workers(), |worker| {
                let worker = Worker { cpu: accelerated(), ..*worker };
                train(&worker, &task, &layout)
            });
            for outcome in outcomes {
                outcome.assert_same(&expected, &format!("{task:?}, {layout:?}"));
            }
        }
    }
}
