//! Tensor parallelism combined with every other axis gives the bits of one rank that computes the
//! same shards.

use crate::support::{
    Batch, LARGE, Layout, Named, RECOMPUTE, Worker, all_params, all_state, alone, assert_all_same,
    on_ranks, settings, train_step,
};
use lockstep_config::{Family, Model, OptimName};
use lockstep_model::describe;
use lockstep_optim::Optimizer;
use lockstep_parallel::{Replica, ReplicaPlan, Stages, stages};
use lockstep_schedule::pipeline::Kind;

const NUM_LEAVES: usize = 4;

/// Dimensions divisible by four.
const CUT: Model = Model { heads: 8, kv_heads: 4, vocab: 300, ..LARGE };

/// Losses, norms and the loss of an evaluation; weights; optimizer state.
struct Outcome {
    numbers: Vec<u64>,
    weights: Vec<Named>,
    state: Vec<Named>,
}

fn train(worker: &Worker<'_>, model: &Model, optim: OptimName, layout: &Layout) -> Outcome {
    let blueprint = layout.blueprint(model, worker.comm.group_rank());
    let cpu = &worker.cpu;
    let plan = ReplicaPlan { update_inputs: Optimizer::inputs_of(optim), ..layout.plan(2) };
    let mut replica =
        Replica::materialize(blueprint, 1, cpu, plan, worker.comm, worker.world).expect("room");
    let mut optimizer = Optimizer::new(&settings(optim), &replica.slots());
    let mut numbers = Vec::new();
    for step in 0..3 {
        let batch = Batch::new(model, 2 * NUM_LEAVES, step);
        let (loss, norm) =
            train_step(worker, &mut replica, &mut optimizer, &batch, step).expect("a step");
        numbers.extend([loss, norm].map(f64::to_bits));
    }
    let held_out = Batch::new(model, 5, 99);
    let loss = replica
        .evaluate(cpu, 5, &|microbatch| held_out.microbatch(microbatch))
        .expect("an evaluation");
    numbers.push(loss.to_bits());
    assert_eq!(replica.find_difference().expect("a comparison"), None);
    let weights = all_params(&mut replica).expect("weights");
    let state = all_state(&mut replica, &optimizer).expect("state");
    Outcome { numbers, weights, state }
}

fn assert_agree(model: &Model, optim: OptimName, shards: usize, layouts: &[Layout]) {
    let one = Layout { shards, ..Layout::even(NUM_LEAVES, 1, 0) };
    let expected = alone(|worker| train(worker, model, optim, &one));
    for layout in layouts {
        let layout = Layout { shards, ..layout.clone() };
        let outcomes =
            on_ranks(layout.num_workers(), |worker| train(worker, model, optim, &layout));
        for (rank, outcome) in outcomes.iter().enumerate() {
            let what = format!("{model:?}, {layout:?}, rank {rank}");
            assert_eq!(outcome.numbers, expected.numbers, "{what}: losses and norms");
            assert_all_same(&outcome.weights, &expected.weights, &what);
            assert_all_same(&outcome.state, &expected.state, &what);
        }
    }
}

fn layout(data: usize, zero: usize, tensor: usize, sequence: bool) -> Layout {
    Layout { tensor, sequence, ..Layout::even(NUM_LEAVES, data, zero) }
}

fn gpt2() -> Model {
    Model { family: Family::Gpt2, kv_heads: CUT.heads, tied: true, ..CUT }
}

#[test]
fn tensor_ranks_with_every_zero_stage_give_the_bits_of_one_worker() {
    let layouts: Vec<_> = (0..4)
        .map(|zero| Layout {
            recompute: RECOMPUTE[zero],
            overlap: zero % 2 == 1,
            ..layout(2, zero, 2, zero % 2 == 0)
        })
        .collect();
    assert_agree(&CUT, OptimName::AdamW, 2, &layouts);
    assert_agree(&gpt2(), OptimName::Lamb, 2, &layouts);
    assert_agree(&CUT, OptimName::Muon, 2, &layouts);
    assert_agree(&CUT, OptimName::Adafactor, 2, &layouts);
    assert_agree(&CUT, OptimName::AdamW8Bit, 2, &layouts[1..2]);
    assert_agree(&gpt2(), OptimName::Muon, 2, &layouts[3..]);
}

#[test]
fn four_shards_on_one_two_or_four_ranks_give_the_same_bits() {
    let tied = Model { tied: true, ..CUT };
    let layouts = [layout(1, 0, 1, false), layout(1, 0, 2, false), layout(1, 0, 4, false)];
    assert_agree(&tied, OptimName::AdamW, 4, &layouts);
    assert_agree(&gpt2(), OptimName::AdamW, 4, &layouts[1..]);
}

#[test]
fn tensor_parallel_pipelines_give_the_bits_of_one_worker() {
    for model in [Model { tied: true, ..CUT }, gpt2()] {
        let costs = stages::costs(&describe(&model));
        let pipelined = |kind, layout: Layout| Layout {
            stages: Stages::balanced(&costs, 2, 2, kind),
            ..layout
        };
        let layouts = [
            pipelined(Kind::OneFOneB, layout(1, 0, 2, true)),
            pipelined(Kind::ZeroBubble, layout(2, 1, 2, false)),
        ];
        assert_agree(&model, OptimName::AdamW, 2, &layouts);
    }
}
