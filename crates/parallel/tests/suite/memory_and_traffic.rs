//! Memory and bytes sent of a layout equal the counts made in advance.

use crate::support::{
    BUCKET_LENS, Batch, LARGE, Layout, MICROBATCH, RECOMPUTE, TINY, on_ranks, settings, train_step,
};
use lockstep_comm::Count;
use lockstep_config::{Group, Model, OptimName};
use lockstep_model::{MicrobatchShape, describe};
use lockstep_optim::{Optimizer, Phases};
use lockstep_parallel::{Buckets, Footprint, LeafAssignment, Replica, ReplicaPlan, Stages, stages};
use lockstep_schedule::pipeline::{Kind, Task, goes_to};
use std::collections::BTreeMap;

#[test]
fn memory_matches_the_planned_footprint() {
    let rules = [
        OptimName::Sgd,
        OptimName::Lars,
        OptimName::Lamb,
        OptimName::Muon,
        OptimName::ScheduleFreeAdamW,
        OptimName::Adafactor,
        OptimName::AdamW8Bit,
    ];
    let mut turn: usize = 0;
    for model in [LARGE, Model { tied: true, ..LARGE }, TINY] {
        for num_workers in [1, 2, 3, 8] {
            for zero in 0..4 {
                turn += 1;
                let (microbatches_per_leaf, rule) = ([1, 3][turn % 2], rules[turn % 7]);
                let layout = Layout {
                    recompute: RECOMPUTE[turn % 4],
                    bucket_len: BUCKET_LENS[turn % 3],
                    overlap: turn.is_multiple_of(2),
                    offload_activations: turn.is_multiple_of(3),
                    ..Layout::even(8, num_workers, zero)
                };
                let plan = ReplicaPlan {
                    update_inputs: Optimizer::inputs_of(rule),
                    ..layout.plan(microbatches_per_leaf)
                };
                let held = on_ranks(num_workers, |worker| {
                    let replica = worker.replica(&model, plan.clone()).expect("room");
                    replica.footprint(&Optimizer::new(&settings(rule), &replica.slots()))
                });
                for (worker, held) in held.into_iter().enumerate() {
                    let counted = Footprint::plan(&describe(&model), &plan, rule, worker);
                    assert_eq!(
                        held, counted,
                        "worker {worker} of {layout:?}, {microbatches_per_leaf}"
                    );
                }
            }
        }
    }
}

#[test]
fn offloaded_state_keeps_one_piece_in_memory() {
    // A layer has more parameters than a piece has numbers.
    let model = Model { layers: 1, width: 384, ffn: 512, ..LARGE };
    for (num_workers, zero) in [(1, 0), (2, 1), (2, 3)] {
        let layout = Layout::even(8, num_workers, zero);
        let plan = ReplicaPlan { offload: true, ..layout.plan(1) };
        let held = on_ranks(num_workers, |worker| {
            let replica = worker.replica(&model, plan.clone()).expect("room");
            let folder = worker.world.host().temp_dir();
            let make = |lens: &[usize]| worker.world.files().paged(&folder, lens);
            let rule = settings(OptimName::AdamW);
            let optimizer = Optimizer::in_file(&rule, &replica.slots(), 0, make).expect("a disk");
            replica.footprint(&optimizer)
        });
        for (worker, held) in held.into_iter().enumerate() {
            let counted = Footprint::plan(&describe(&model), &plan, OptimName::AdamW, worker);
            assert_eq!(held, counted, "worker {worker} of {layout:?}");
            assert!(held.optimizer <= 2 * lockstep_optim::state::PIECE_LEN, "{held:?}");
        }
    }
}

#[test]
fn memory_of_every_freezing_phase_matches_the_planned_footprint() {
    let mut rule = settings(OptimName::AdamW);
    let group = |pattern: &str| Group {
        pattern: pattern.to_owned(),
        lr_scale: 1.0,
        weight_decay: None,
        clip: None,
        frozen: false,
        freeze_after: None,
        unfreeze_at: None,
    };
    rule.groups = vec![
        Group { unfreeze_at: Some(1), ..group("model.embed_tokens.*") },
        Group { freeze_after: Some(2), ..group("model.layers.*.mlp.*") },
        Group { freeze_after: Some(1), ..group("model.layers.0.*") },
    ];
    let blueprint = describe(&LARGE);
    let names: Vec<_> = blueprint.owned_params().map(|(_, p)| p.name.as_str()).collect();
    let phases = Phases::new(&rule, &names);
    assert_eq!(phases.len(), 3);
    for (num_workers, zero) in [(1, 0), (2, 0), (3, 1), (2, 2), (3, 3)] {
        let layout = Layout { bucket_len: 30_000, ..Layout::even(8, num_workers, zero) };
        let plan = |phase, microbatches| {
            let phases = phases.clone();
            ReplicaPlan { phases, phase, ..layout.plan(microbatches) }
        };
        let held = on_ranks(num_workers, |worker| {
            let mut replica = worker.replica(&LARGE, plan(0, 1)).expect("room");
            [0, 1, 2].map(|phase| {
                replica.enter_phase(phase, 1 + phase).expect("room");
                let first_step = phases.first_step(phase);
                replica.footprint(&Optimizer::at_step(&rule, &replica.slots(), first_step))
            })
        });
        for (worker, held) in held.into_iter().enumerate() {
            for (phase, held) in held.into_iter().enumerate() {
                let plan = plan(phase, 1 + phase);
                let counted = Footprint::plan(&blueprint, &plan, rule.name, worker);
                assert_eq!(held, counted, "worker {worker} of {layout:?}, phase {phase}");
            }
        }
    }
}

/// Activations of the first rank, where blocks compute and offloaded.
fn activations(layers: usize, layout: &Layout) -> [usize; 2] {
    let (blueprint, plan) = (describe(&Model { layers, ..LARGE }), layout.plan(2));
    let held = Footprint::plan(&blueprint, &plan, OptimName::Sgd, 0).activations;
    let plan_on_host = |plan: &ReplicaPlan| Footprint::plan_on_host(&blueprint, plan, 0);
    let without = ReplicaPlan { offload_activations: false, ..plan.clone() };
    let offloaded = plan_on_host(&plan) - plan_on_host(&without);
    [held - offloaded, offloaded]
}

#[test]
fn offloaded_activations_do_not_grow_with_the_layers_of_the_device() {
    for recompute in RECOMPUTE {
        let own = Layout { recompute, ..Layout::even(8, 1, 0) };
        let layout = Layout { offload_activations: true, ..own.clone() };
        let [four, twelve] = [4, 12].map(|layers| activations(layers, &layout));
        assert_eq!(four[0], twelve[0], "{recompute:?}");
        assert_eq!(3 * four[1], twelve[1], "{recompute:?}");
        let [held, none] = activations(12, &own);
        assert!(none == 0 && held > twelve[0], "{recompute:?}: {held} and {twelve:?}");
        // What leaves is what a layer would hold.
        let per_layer = (held - activations(4, &own)[0]) / 8;
        assert_eq!(twelve[1], 12 * per_layer, "{recompute:?}");
    }
}

/// A pipeline of the model.
fn cut(model: &Model, num_devices: usize, num_chunks: usize, kind: Kind) -> Stages {
    let costs = stages::costs(&describe(model));
    Stages::balanced(&costs, num_devices * num_chunks, num_devices, kind)
}

const PIPELINES: [(usize, usize, Kind); 7] = [
    (2, 1, Kind::OneFOneB),
    (3, 1, Kind::GPipe),
    (2, 2, Kind::Interleaved),
    (4, 1, Kind::OneFOneB),
    (2, 1, Kind::ZeroBubble),
    (3, 1, Kind::ZeroBubble),
    (1, 2, Kind::Interleaved),
];

#[test]
fn memory_of_a_stage_matches_the_planned_footprint() {
    let mut turn = 0;
    for model in [LARGE, Model { tied: true, ..LARGE }] {
        for (num_devices, num_chunks, kind) in PIPELINES {
            for zero in 0..4 {
                turn += 1;
                let layout = Layout {
                    recompute: RECOMPUTE[turn % 4],
                    bucket_len: BUCKET_LENS[turn % 3],
                    stages: cut(&model, num_devices, num_chunks, kind),
                    offload_activations: turn % 5 < 2,
                    ..Layout::even(8, [1, 2, 3][turn % 3], zero)
                };
                let plan = layout.plan([1, 3][turn % 2]);
                let held = on_ranks(layout.num_workers(), |worker| {
                    let replica = worker.replica(&model, plan.clone()).expect("room");
                    let settings = settings(OptimName::AdamW);
                    replica.footprint(&Optimizer::new(&settings, &replica.slots()))
                });
                for (worker, held) in held.into_iter().enumerate() {
                    let counted =
                        Footprint::plan(&describe(&model), &plan, OptimName::AdamW, worker);
                    assert_eq!(held, counted, "worker {worker} of {layout:?}");
                }
            }
        }
    }
}

/// Bytes that a pipeline rank should send in a step: an activation or a gradient for every pass
/// whose output another rank takes, and the gradients or values of a tied table.
fn sent_by_hand(model: &Model, layout: &Layout, device: usize, num_microbatches: usize) -> u64 {
    let pipeline = layout.stages.pipeline(num_microbatches);
    let leaves = |task: &&Task| {
        let stage = pipeline.stage(device, task.chunk);
        let to = goes_to(pipeline.shape, stage, task.pass);
        to.is_some_and(|to| pipeline.shape.device(to) != device)
    };
    let num_messages = pipeline.programs[device].iter().filter(leaves).count();
    let last = layout.stages.num_devices() - 1;
    let has_table = model.tied && last > 0 && (device == 0 || device == last);
    let table = if has_table { model.vocab * model.width } else { 0 };
    4 * (num_messages * MICROBATCH.rows() * model.width + table) as u64
}

#[test]
fn a_pipeline_follows_its_schedule_and_sends_no_more() {
    for tied in [false, true] {
        let model = Model { tied, ..LARGE };
        for (num_devices, num_chunks, kind) in PIPELINES {
            let layout = Layout {
                stages: cut(&model, num_devices, num_chunks, kind),
                ..Layout::even(8, 1, 0)
            };
            let pipeline = layout.stages.pipeline(8);
            let found = on_ranks(num_devices, |worker| {
                let mut replica = worker.replica(&model, layout.plan(1)).expect("room");
                let mut optimizer = Optimizer::new(&settings(OptimName::Sgd), &replica.slots());
                let batch = Batch::new(&model, 8, 1);
                let before = replica.traffic();
                train_step(worker, &mut replica, &mut optimizer, &batch, 0).expect("a step");
                let device = replica.device();
                let sent = replica.traffic().sent_bytes - before.sent_bytes;
                (device.executed().to_vec(), device.most_live().to_vec(), sent)
            });
            for (device, (executed, most_live, sent)) in found.into_iter().enumerate() {
                assert_eq!(executed, pipeline.programs[device], "{kind}, device {device}");
                assert_eq!(most_live, pipeline.live(device), "{kind}, device {device}");
                let by_hand = sent_by_hand(&model, &layout, device, 8);
                assert_eq!(sent, by_hand, "{kind}, device {device}");
            }
        }
    }
}

/// Mostly layers: the undivided part is small.
const LAYERS: Model =
    Model { layers: 16, heads: 8, kv_heads: 4, vocab: 60, width: 64, ffn: 256, ..LARGE };

/// Footprint of each rank of a layout, measured and planned.
fn held(model: &Model, layout: &Layout) -> Vec<Footprint> {
    // Four ranks can divide these rows.
    let microbatch = MicrobatchShape { tokens: 8, ..MICROBATCH };
    let plan = ReplicaPlan { microbatch, ..layout.plan(1) };
    let held = on_ranks(layout.num_workers(), |worker| {
        let rank = worker.comm.group_rank();
        let blueprint = layout.blueprint(model, rank);
        let planned = Footprint::plan(&blueprint, &plan, OptimName::AdamW, rank);
        let (cpu, plan) = (&worker.cpu, plan.clone());
        let replica =
            Replica::materialize(blueprint, 1, cpu, plan, worker.comm, worker.world).expect("room");
        let settings = settings(OptimName::AdamW);
        let held = replica.footprint(&Optimizer::new(&settings, &replica.slots()));
        (held, planned)
    });
    let same = |(rank, (held, planned)): (usize, (Footprint, Footprint))| {
        assert_eq!(held, planned, "worker {rank} of {layout:?}");
        held
    };
    held.into_iter().enumerate().map(same).collect()
}

/// Weights, gradients and optimizer state of the rank with the most.
fn most_state(held: &[Footprint]) -> usize {
    held.iter().map(|held| held.weights + held.gradients + held.optimizer).max().expect("a worker")
}

#[test]
fn doubling_the_stages_or_tensor_ranks_halves_the_state_they_divide() {
    let one = held(&LAYERS, &Layout::even(8, 1, 0));
    let stages =
        |num| Layout { stages: cut(&LAYERS, num, 1, Kind::OneFOneB), ..Layout::even(8, 1, 0) };
    let shards = |tensor, sequence| Layout { shards: 4, tensor, sequence, ..Layout::even(8, 1, 0) };
    for num in [2, 4] {
        for layout in [stages(num), shards(num, false), shards(num, true)] {
            let (most, alone) = (most_state(&held(&LAYERS, &layout)), most_state(&one));
            assert!(20 * num * most <= 21 * alone, "{most} of {alone}: {layout:?}");
        }
    }
}

#[test]
fn activations_shrink_with_tensor_and_sequence_parallelism_and_grow_with_live_microbatches() {
    let activations =
        |layout: &Layout| held(&LAYERS, layout).iter().map(|held| held.activations).max().unwrap();
    let alone = Layout::even(8, 1, 0);
    let one = activations(&alone);
    for tensor in [2, 4] {
        let shards = |sequence| Layout { shards: 4, tensor, sequence, ..alone.clone() };
        let (some, rows) = (activations(&shards(false)), activations(&shards(true)));
        assert!(rows < some && some < one, "{rows}, {some}, {one}");
        assert!(20 * tensor * rows <= 21 * one, "{rows} of {one} by {tensor}");
        // The first stage keeps as many micro-batches as there are stages, each smaller by that
        // factor.
        let stages = Layout { stages: cut(&LAYERS, tensor, 1, Kind::OneFOneB), ..alone.clone() };
        let first = activations(&stages);
        assert!(20 * first <= 21 * one && 20 * one <= 21 * first, "{first}, {one} by {tensor}");
    }
}

#[test]
fn every_stage_holds_less_of_what_it_divides() {
    let blueprint = describe(&LARGE);
    let footprints = [0, 1, 2, 3].map(|zero| {
        Footprint::plan(&blueprint, &Layout::even(8, 4, zero).plan(1), OptimName::AdamW, 1)
    });
    let [none, optimizer, gradients, weights] = footprints;
    assert!(optimizer.optimizer < none.optimizer / 3);
    assert!(gradients.gradients < optimizer.gradients / 3);
    assert!(weights.weights < gradients.weights / 3);
    assert_eq!(weights.activations, none.activations);
}

/// Traffic of a rank in one step, by operation: calls, bytes read, bytes written.
type Moved = BTreeMap<&'static str, (u64, u64, u64)>;

/// Counts calls by hand.
struct Account {
    num_workers: usize,
    worker: usize,
    moved: Moved,
}

impl Account {
    fn add(&mut self, op: &'static str, read: usize, written: usize) {
        let (calls, all_read, all_written) = self.moved.entry(op).or_default();
        *calls += 1;
        *all_read += read as u64;
        *all_written += written as u64;
    }

    /// Every rank reads the other ranks' parts.
    fn all_gather(&mut self, lens: &[usize]) {
        let elsewhere = lens.iter().sum::<usize>() - lens[self.worker];
        self.add("all-gather", elsewhere * 4, 0);
    }

    /// Every rank reads its part of all addends of the others; `addends` gives their number per
    /// rank.
    fn reduce(&mut self, op: &'static str, part_len: usize, addends: &[usize]) {
        let num_others = self.num_workers - 1;
        let read = (addends.iter().sum::<usize>() - addends[self.worker]) * part_len * 4;
        let written = if op == "all-reduce" { num_others * part_len * 4 } else { 0 };
        self.add(op, read, written);
    }

    /// Every rank reads its part of every other rank's leaf in a pass.
    fn all_to_all(&mut self, part_len: usize, num_leaves: usize) {
        let num_others = num_leaves - usize::from(self.worker < num_leaves);
        self.add("all-to-all", num_others * part_len * 4, 0);
    }
}

/// Expected traffic of a step.
fn by_hand(model: &Model, layout: &Layout, microbatches_per_leaf: usize, worker: usize) -> Moved {
    let plan = layout.plan(microbatches_per_leaf);
    let num_workers = layout.shares.len();
    let buckets = Buckets::new(&describe(model), layout.bucket_len, num_workers);
    let shares = plan.leaf_assignment();
    let mut account = Account { num_workers, worker, moved: Moved::new() };
    let num_buckets = buckets.list.len();
    let num_passes = 8usize.div_ceil(num_workers);
    let num_microbatches = num_passes * microbatches_per_leaf;
    for (index, bucket) in buckets.list.iter().enumerate() {
        let part_len = bucket.part(worker).len();
        match &shares {
            LeafAssignment::Contiguous(shares) => {
                let addends: Vec<_> = shares.iter().map(|mine| num_addends(mine.clone())).collect();
                if layout.zero == 0 {
                    let even =
                        bucket.len * (worker + 1) / num_workers - bucket.len * worker / num_workers;
                    account.reduce("all-reduce", even, &addends);
                } else {
                    account.reduce("reduce-scatter", part_len, &addends);
                }
            }
            LeafAssignment::Cyclic { .. } => {
                for pass in 0..num_passes {
                    account.all_to_all(part_len, num_workers.min(8 - pass * num_workers));
                }
            }
        }
        let num_gathers = match layout.zero {
            0 => 0,
            1 | 2 => 1,
            // The last two buckets of forward are the first two of backward, and the reverse for
            // the next micro-batch; a step drops both.
            _ => {
                let forward = if index < 2 { 1 } else { num_microbatches };
                forward + if index + 2 < num_buckets { num_microbatches } else { 0 }
            }
        };
        (0..num_gathers).for_each(|_| account.all_gather(&bucket.part_lens()));
    }
    account.moved
}

/// Number of maximal aligned groups in a range of leaves.
fn num_addends(mine: std::ops::Range<usize>) -> usize {
    let (mut start, mut num) = (mine.start, 0);
    while start < mine.end {
        let fits = |size: &usize| start.is_multiple_of(*size) && start + size <= mine.end;
        start += [8, 4, 2, 1].into_iter().find(fits).expect("one fits");
        num += 1;
    }
    num
}

fn wire_layouts() -> Vec<Layout> {
    let mut list = Vec::new();
    for shares in [&[4, 4][..], &[2; 4], &[3, 3, 2], &[5, 3], &[2, 2, 2, 1, 1]] {
        for zero in 0..4 {
            let (bucket_len, overlap) = (BUCKET_LENS[list.len() % 3], zero % 2 == 0);
            let even = Layout::even(8, shares.len(), zero);
            list.push(Layout { shares: shares.to_vec(), bucket_len, overlap, ..even });
        }
    }
    list
}

/// Traffic of every rank in its second step.
fn measured(model: &Model, layout: &Layout, microbatches_per_leaf: usize) -> Vec<Moved> {
    on_ranks(layout.shares.len(), |worker| {
        let mut replica = worker.replica(model, layout.plan(microbatches_per_leaf)).expect("room");
        let mut optimizer = Optimizer::new(&settings(OptimName::Sgd), &replica.slots());
        let batch = Batch::new(model, 8 * microbatches_per_leaf, 1);
        let mut counts = [0, 1].map(|step| {
            train_step(worker, &mut replica, &mut optimizer, &batch, step).expect("a step");
            // Parameters in flight are counted once they have arrived.
            replica.comm().barrier().expect("all ranks join");
            let counters = replica.comm().counters();
            assert_eq!(replica.traffic(), counters.total().traffic);
            let moved = counters.iter().map(|(op, Count { calls, traffic })| {
                assert_eq!(traffic.messages, 0, "threads see each other's memory");
                (op, (calls, traffic.read_bytes, traffic.written_bytes))
            });
            moved.filter(|(op, _)| *op != "barrier").collect::<Moved>()
        });
        let [before, after] = &mut counts;
        for (op, (calls, read, written)) in after.iter_mut() {
            let before = before[op];
            *calls -= before.0;
            *read -= before.1;
            *written -= before.2;
        }
        after.retain(|_, moved| *moved != (0, 0, 0));
        std::mem::take(after)
    })
}

#[test]
fn a_step_sends_the_bytes_of_its_schedules() {
    for (index, layout) in wire_layouts().into_iter().enumerate() {
        // With so few tokens every step has most of them, and all rows are sent.
        let model = Model { tied: index % 2 == 0, vocab: 130, ..LARGE };
        let microbatches_per_leaf = [1, 1, 2][index % 3];
        let measured = measured(&model, &layout, microbatches_per_leaf);
        for (worker, moved) in measured.iter().enumerate() {
            let expected = by_hand(&model, &layout, microbatches_per_leaf, worker);
            assert_eq!(*moved, expected, "worker {worker}, {layout:?}");
        }
        let total: u64 = measured.iter().flat_map(Moved::values).map(|(_, r, w)| r + w).sum();
        let limit = limit(&model, &layout, microbatches_per_leaf);
        assert!(total <= limit, "{total} bytes are more than {limit}: {layout:?}");
    }
}

/// Upper limit on the bytes of all ranks together: each rank 2(n-1)/n of the model, the extra
/// addends of ranks with unaligned leaves, passes at stages 2 and 3, gathered weights at stage 3.
fn limit(model: &Model, layout: &Layout, microbatches_per_leaf: usize) -> u64 {
    let num_workers = layout.shares.len();
    let buckets = Buckets::new(&describe(model), layout.bucket_len, num_workers);
    let num_params = buckets.num_params();
    let num_passes = 8usize.div_ceil(num_workers);
    let once = (num_workers - 1) * num_params * 4;
    let (gradients, weights) = match layout.plan(microbatches_per_leaf).leaf_assignment() {
        LeafAssignment::Contiguous(shares) => {
            let num_addends: usize = shares.into_iter().map(num_addends).sum();
            (once + (num_addends - num_workers) * num_params * 4, once)
        }
        LeafAssignment::Cyclic { .. } if layout.zero == 2 => (once * num_passes, once),
        LeafAssignment::Cyclic { .. } => {
            (once * num_passes, once * 2 * num_passes * microbatches_per_leaf)
        }
    };
    (gradients + weights) as u64
}
