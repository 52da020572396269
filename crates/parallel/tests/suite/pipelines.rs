//! Failures in pipelines and their reports.

use crate::support::{Batch, Layout, SMALL, all_params, on_ranks, settings, train_step};
use lockstep_config::{Model, OptimName};
use lockstep_model::describe;
use lockstep_optim::Optimizer;
use lockstep_parallel::{Replica, Stages, stages};
use lockstep_schedule::pipeline::Kind;
use std::time::Duration;

/// Two stages, and this many data-parallel replicas of them.
fn two_stages(model: &Model, replicas: usize, zero: usize) -> Layout {
    let costs = stages::costs(&describe(model));
    let stages = Stages::balanced(&costs, 2, 2, Kind::OneFOneB);
    Layout { stages, ..Layout::even(8, replicas, zero) }
}

#[test]
fn a_stuck_stage_is_reported_with_its_microbatch() {
    let layout = two_stages(&SMALL, 1, 0);
    let batch = Batch::new(&SMALL, 8, 2);
    let message = on_ranks(2, |worker| {
        let comm = worker.comm.within(Duration::from_millis(300));
        let (plan, blueprint) = (layout.plan(1), describe(&SMALL));
        let replica = Replica::materialize(blueprint, 1, &worker.cpu, plan, &comm, worker.world);
        let mut replica = replica.expect("room");
        let microbatch = |microbatch: usize| batch.microbatch(microbatch);
        let is_first = worker.comm.group_rank() == 0;
        is_first.then(|| {
            replica.run_microbatches(&worker.cpu, 1, 7, &microbatch).unwrap_err().to_string()
        })
    });
    let message = message[0].as_ref().expect("the first stage waits for the second");
    let parts = ["on the pipeline group waited 300 ms for rank 1", "microbatch 0 of step 7"];
    assert!(parts.iter().all(|word| message.contains(word)), "{message}");
}

#[test]
fn a_diverged_replica_is_found_on_any_stage() {
    let layout = two_stages(&SMALL, 2, 0);
    for (name, culprit) in [("model.embed_tokens.weight", 1), ("model.norm.weight", 3)] {
        let found = on_ranks(4, |worker| {
            let mut replica = worker.replica(&SMALL, layout.plan(1)).expect("room");
            assert_eq!(replica.find_difference().expect("collective"), None);
            let mut params = all_params(&mut replica).expect("collective");
            if worker.comm.group_rank() == culprit {
                let spoiled = params.iter_mut().find(|(other, _)| other == name);
                spoiled.expect("a parameter").1[3] += 1.0;
            }
            let find = |name_of: &str| {
                &params.iter().find(|(name, _)| name == name_of).expect("a parameter").1[..]
            };
            let restored = replica.restore(|p| Ok::<_, lockstep_comm::CommError>(find(&p.name)));
            restored.expect("collective");
            replica.find_difference().expect("collective").expect("they differ")
        });
        for found in found {
            assert_eq!((&found.name[..], found.worker), (name, culprit));
        }
    }
}

#[test]
fn the_first_bad_gradient_is_found_on_the_stage_that_met_it() {
    let batch = Batch::new(&SMALL, 8, 2);
    for (replicas, zero) in [(1, 0), (2, 3), (3, 2)] {
        let layout = two_stages(&SMALL, replicas, zero);
        let found = on_ranks(layout.num_workers(), |worker| {
            let mut replica = worker.replica(&SMALL, layout.plan(1)).expect("room");
            let mut optimizer = Optimizer::new(&settings(OptimName::Sgd), &replica.slots());
            let microbatch = |microbatch: usize| batch.microbatch(microbatch);
            assert_eq!(
                replica.find_non_finite(&worker.cpu, 1, 0, &microbatch).expect("collective"),
                None
            );
            train_step(worker, &mut replica, &mut optimizer, &batch, 0).expect("a step");
            let mut params = all_params(&mut replica).expect("collective");
            let name = "model.layers.0.mlp.up_proj.weight";
            let spoiled = params.iter_mut().find(|(other, _)| other == name);
            spoiled.expect("a parameter").1[7] = f32::NAN;
            let find = |name_of: &str| {
                &params.iter().find(|(name, _)| name == name_of).expect("a parameter").1[..]
            };
            let restored = replica.restore(|p| Ok::<_, lockstep_comm::CommError>(find(&p.name)));
            restored.expect("collective");
            let found =
                replica.find_non_finite(&worker.cpu, 1, 0, &microbatch).expect("collective");
            found.expect("a bad gradient")
        });
        for found in found {
            // Backward reaches the head first, on the last stage; micro-batch 0 belongs to the
            // first replica.
            assert_eq!((found.worker, found.microbatch), (replicas, 0), "{layout:?}");
            assert_eq!((&found.block[..], found.element), ("lm_head", 0), "{layout:?}");
        }
    }
}
