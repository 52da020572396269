//! Spans of a sampled step name the tasks of the program that was proven, each of them once.

use crate::step_host::Host;
use lockstep_comm::{Comm, Options};
use lockstep_config::Recipe;
use lockstep_harness::recipes::LLAMA;
use lockstep_optim::{ClipPlan, Optimizer};
use lockstep_parallel::from_recipe::{arena_bytes, blueprint_of_rank, plan_at};
use lockstep_parallel::step_program::StepKind;
use lockstep_parallel::strategies::{plan_of, programs};
use lockstep_parallel::{Replica, TaskSpan};
use lockstep_platform::{World, real};
use lockstep_schedule::step::verify;
use lockstep_tensor::Isa;
use lockstep_tensor::device::Compute;

const NUM_RANKS: usize = 2;

/// Spans of each of two steps, of which the second is sampled.
fn spans_of_rank(comm: &Comm, world: &World, recipe: &Recipe) -> [Vec<(TaskSpan, String)>; 2] {
    let cpu = &Compute::single(Isa::detect());
    let blueprint = blueprint_of_rank(recipe, 0);
    let plan = plan_at(recipe, &blueprint, 0);
    let shape = plan.microbatch;
    let mut replica = Replica::materialize(blueprint, 1, cpu, plan, comm, world).expect("memory");
    replica.adopt(plan_of(recipe)).expect("all ranks adopt it");
    let mut optimizer = Optimizer::new(&recipe.optim, &replica.slots());
    let tokens = (0..=shape.rows()).map(|at| (at % recipe.model.vocab) as u32).collect();
    let mut host = Host { shape, tokens, step: 0 };
    let clip = ClipPlan::global(1.0);
    [0, 1].map(|step| {
        host.step = step;
        replica.set_sampled(step == 1);
        replica.run_step(cpu, 1, step, &mut optimizer, &clip, &mut &host).expect("a step");
        replica.take_spans()
    })
}

#[test]
fn every_task_of_a_sampled_step_has_one_span() {
    let clients = ["federated.clients=4", "federated.sampled=4", "sync.local_steps=2"];
    let variants: &[&[&str]] = &[
        &["parallel.zero=0", "model.tied=true"],
        &["parallel.zero=1", "precision.wire=bf16"],
        &["parallel.zero=3"],
        &["parallel.zero=1", "optim.name=muon"],
        &["parallel.zero=2", "optim.name=lamb"],
        &["sync.mode=gossip"],
        &["sync.mode=local-sgd", "sync.local_steps=2"],
        &[&["sync.mode=federated"], &clients[..]].concat(),
    ];
    let common = ["run.workers=2", "train.batch=4", "train.microbatch=1", "optim.name=sgd"];
    let common = [&common[..], &["numerics.invariant_up_to=4"]].concat();
    for variant in variants {
        let recipe = LLAMA.with(&[&common[..], variant].concat());
        let world = real();
        let options = Options { arena_bytes: arena_bytes(&recipe), ..Options::default() };
        let ends = Comm::threads(&world, NUM_RANKS, &options).expect("threads");
        let ranks: Vec<_> = std::thread::scope(|scope| {
            let (world, recipe) = (&world, &recipe);
            let start = |end| scope.spawn(move || spans_of_rank(end, world, recipe));
            let threads: Vec<_> = ends.iter().map(start).collect();
            threads.into_iter().map(|thread| thread.join().expect("no rank panics")).collect()
        });
        let blueprint = blueprint_of_rank(&recipe, 0);
        let plan = plan_at(&recipe, &blueprint, 0);
        let programs = programs(&recipe, &plan, &blueprint, &StepKind::at(&recipe, 1));
        verify(&programs).expect("the programs are proven");
        for (program, [unsampled, spans]) in programs.iter().zip(&ranks) {
            assert!(unsampled.is_empty(), "{variant:?}");
            let mut found: Vec<u32> = spans.iter().map(|(span, _)| span.task.0).collect();
            found.sort_unstable();
            let all: Vec<u32> = (0..program.tasks.len() as u32).collect();
            assert_eq!(found, all, "{variant:?}: every task once\n{program}");
            for (span, action) in spans {
                assert_eq!(*action, program.tasks[span.task.0 as usize].op.to_string());
                assert!(span.start <= span.end);
            }
            let is_in_order = spans.windows(2).all(|pair| pair[0].0.end == pair[1].0.start);
            assert!(is_in_order, "{variant:?}: a span begins where the one before ends");
        }
    }
}
