//! Failing ranks, non-finite weights, diverged replicas, and weights moved from one layout to
//! another.

use crate::support::{
    BUCKET_LENS, Batch, LARGE, Layout, Named, SMALL, all_params, all_state, alone, assert_all_same,
    on_ranks, settings, train_step,
};
use lockstep_comm::CommError;
use lockstep_config::{Family, Model, OptimName};
use lockstep_optim::{ClipPlan, Optimizer};
use lockstep_parallel::Replica;
use lockstep_tensor::device::View;

fn find<'a>(all: &'a [Named], name: &str) -> &'a [f32] {
    &all.iter().find(|(other, _)| other == name).expect("a tensor of this name").1
}

fn restore(replica: &mut Replica, params: &[Named]) {
    let restored = replica.restore(|param| Ok::<_, CommError>(find(params, &param.name)));
    restored.expect("collective");
}

/// Layouts of this file: every ZeRO stage, one and several ranks, with and without overlap.
fn layouts() -> Vec<Layout> {
    let shapes = [(1, 0), (2, 3), (3, 1), (3, 2), (3, 3), (4, 0), (5, 2), (8, 3)];
    let layout = |(turn, (num_workers, zero)): (usize, (usize, usize))| Layout {
        bucket_len: BUCKET_LENS[turn % 3],
        overlap: turn.is_multiple_of(2),
        ..Layout::even(8, num_workers, zero)
    };
    shapes.into_iter().enumerate().map(layout).collect()
}

#[test]
fn the_first_bad_gradient_is_found_wherever_it_was_computed() {
    let batch = Batch::new(&SMALL, 8, 2);
    for layout in layouts() {
        let found = on_ranks(layout.shares.len(), |worker| {
            let mut replica = worker.replica(&SMALL, layout.plan(1)).expect("room");
            let microbatch = |microbatch: usize| batch.microbatch(microbatch);
            let find = |replica: &mut Replica| {
                replica.find_non_finite(&worker.cpu, 1, 0, &microbatch).expect("collective")
            };
            assert_eq!(find(&mut replica), None, "{layout:?}");
            let mut params = all_params(&mut replica).expect("collective");
            let name = "model.layers.1.mlp.up_proj.weight";
            let spoiled = params.iter_mut().find(|(other, _)| other == name);
            spoiled.expect("a parameter").1[7] = f32::NAN;
            restore(&mut replica, &params);
            let loss = replica.run_microbatches(&worker.cpu, 1, 0, &microbatch).expect("a step");
            assert!(!loss.is_finite(), "{layout:?}");
            let sums = replica.finish_reduce(&worker.cpu).expect("a step");
            let sums = replica.unscale(&worker.cpu, sums).expect("memory");
            assert!(
                !replica
                    .clip(&worker.cpu, sums, &ClipPlan::global(1.0))
                    .expect("a norm")
                    .norm
                    .is_finite()
            );
            find(&mut replica).expect("a bad gradient")
        });
        for found in found {
            // Backward reaches the head first, and micro-batch 0 is rank 0's under every layout.
            assert_eq!((found.worker, found.microbatch), (0, 0), "{layout:?}");
            assert_eq!((&found.block[..], found.element), ("lm_head", 0), "{layout:?}");
        }
    }
}

#[test]
fn an_overflowing_microbatch_is_reported_with_its_worker() {
    // A token of its own for micro-batch 5, with an embedding row that overflows.
    let model = Model { vocab: 20, ..SMALL };
    let batch = Batch::new(&SMALL, 8, 2);
    let marked = vec![19_u32; batch.microbatch(5).inputs.len()];
    for layout in layouts() {
        let found = on_ranks(layout.shares.len(), |worker| {
            let mut replica = worker.replica(&model, layout.plan(1)).expect("room");
            let mut params = all_params(&mut replica).expect("collective");
            let table = params.iter_mut().find(|(name, _)| name == "model.embed_tokens.weight");
            table.expect("the table").1[19 * model.width..].fill(f32::INFINITY);
            restore(&mut replica, &params);
            let microbatch = |microbatch: usize| {
                let mut given = batch.microbatch(microbatch);
                given.inputs = if microbatch == 5 { View::of(&marked) } else { given.inputs };
                given
            };
            let found = replica.find_non_finite(&worker.cpu, 1, 0, &microbatch);
            found.expect("collective").expect("a bad gradient")
        });
        let has_microbatch = |shares: &lockstep_parallel::LeafAssignment, worker: usize| {
            shares.leaves_of(worker, 8).contains(&5)
        };
        let shares = layout.plan(1).leaf_assignment();
        let worker = (0..layout.shares.len()).find(|worker| has_microbatch(&shares, *worker));
        for found in found {
            assert_eq!((Some(found.worker), found.microbatch), (worker, 5), "{layout:?}");
        }
    }
}

#[test]
fn a_diverged_replica_is_found() {
    for layout in layouts().into_iter().filter(|layout| layout.shares.len() > 1) {
        let found = on_ranks(layout.shares.len(), |worker| {
            let mut replica = worker.replica(&SMALL, layout.plan(1)).expect("room");
            assert_eq!(replica.find_difference().expect("collective"), None);
            let mut params = all_params(&mut replica).expect("collective");
            let name = "model.layers.0.mlp.up_proj.weight";
            if worker.comm.group_rank() == 1 {
                let spoiled = params.iter_mut().find(|(other, _)| other == name);
                spoiled.expect("a parameter").1[7] += 1.0;
            }
            restore(&mut replica, &params);
            replica.find_difference().expect("collective")
        });
        // From stage 1 on a rank publishes what it owns, and all have the same.
        for found in found {
            let worker = found.map(|differs| differs.worker);
            assert_eq!(worker, (layout.zero == 0).then_some(1), "{layout:?}");
        }
    }
}

#[test]
fn weights_and_state_of_one_layout_resume_under_another() {
    let model = Model { family: Family::Gpt2, kv_heads: 4, tied: true, ..LARGE };
    let batches: Vec<_> = (0..4).map(|step| Batch::new(&model, 8, step)).collect();
    let rule = settings(OptimName::AdamW);
    // Trains the steps from saved state, and saves.
    let train = |layout: &Layout, steps: std::ops::Range<usize>, from: Option<&[Vec<Named>; 2]>| {
        let saved = on_ranks(layout.shares.len(), |worker| {
            let mut replica = worker.replica(&model, layout.plan(1)).expect("room");
            let mut optimizer = Optimizer::new(&rule, &replica.slots());
            if let Some([params, state]) = from {
                restore(&mut replica, params);
                let slots = optimizer.slots().to_vec();
                for slot in slots {
                    for (index, kind) in optimizer.state_names().iter().enumerate() {
                        let whole = find(state, &format!("{kind} of {}", slot.name));
                        let own =
                            optimizer.state_mut(&slot.name, slot.piece, index).expect("its own");
                        own.copy_from_slice(&whole[slot.first..][..slot.range.len()]);
                    }
                }
            }
            for step in steps.clone() {
                let batch = &batches[step];
                train_step(worker, &mut replica, &mut optimizer, batch, step as u64)
                    .expect("a step");
            }
            let params = all_params(&mut replica).expect("collective");
            [params, all_state(&mut replica, &optimizer).expect("collective")]
        });
        saved.into_iter().next().expect("a rank")
    };
    let one = Layout::even(8, 1, 0);
    let expected = train(&one, 0..4, None);
    let [params, state] = &expected;
    assert_eq!(2 * params.len(), state.len(), "two kinds of state for every parameter");
    let first = train(&one, 0..1, None);
    for chain in layouts().windows(3) {
        let mut saved = first.clone();
        for (step, layout) in (1..4).zip(chain) {
            saved = train(layout, step..step + 1, Some(&saved));
        }
        for (saved, expected) in saved.iter().zip(&expected) {
            assert_all_same(saved, expected, &format!("{chain:?}"));
        }
    }
}

#[test]
fn a_mismatched_collective_fails_the_step_on_all_ranks() {
    let batch = Batch::new(&SMALL, 8, 2);
    for (num_workers, zero) in [(2, 0), (3, 1), (2, 2), (3, 3)] {
        for overlap in [false, true] {
            let layout = Layout { overlap, ..Layout::even(8, num_workers, zero) };
            let have_failed = on_ranks(num_workers, |worker| {
                let mut replica = worker.replica(&SMALL, layout.plan(1)).expect("room");
                let mut optimizer = Optimizer::new(&settings(OptimName::Sgd), &replica.slots());
                let mut step =
                    |number: u64| train_step(worker, &mut replica, &mut optimizer, &batch, number);
                step(0).expect("the first step goes well");
                if worker.comm.group_rank() == 1 {
                    return replica.comm().all_gather(&[1], &mut vec![0; num_workers]).is_err();
                }
                step(1).is_err()
            });
            assert!(have_failed.iter().all(|failed| *failed), "{have_failed:?}, {layout:?}");
        }
    }
}

#[test]
fn one_rank_gives_the_same_bits_at_every_zero_stage() {
    let batch = Batch::new(&SMALL, 8, 2);
    let numbers = [0, 1, 2, 3].map(|zero| {
        alone(|worker| {
            let layout = Layout { overlap: true, ..Layout::even(8, 1, zero) };
            let mut replica = worker.replica(&SMALL, layout.plan(1)).expect("room");
            let mut optimizer = Optimizer::new(&settings(OptimName::Sgd), &replica.slots());
            let step = train_step(worker, &mut replica, &mut optimizer, &batch, 0);
            assert_eq!(replica.traffic().read_bytes, 0, "a group of one reads nothing");
            step.expect("a step")
        })
    });
    assert!(numbers.iter().all(|number| *number == numbers[0]), "{numbers:?}");
}
