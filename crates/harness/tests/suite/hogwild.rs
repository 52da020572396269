//! Hogwild (Recht et al. 2011): lock-free SGD threads reach the optimum and lose no step; one
//! thread is plain SGD.

use crate::step_host::Host;
use lockstep_comm::{Comm, CommError};
use lockstep_config::{Recipe, Sources, resolve};
use lockstep_harness::Runs;
use lockstep_harness::recipes::LLAMA;
use lockstep_harness::runs::Outcome;
use lockstep_model::Microbatch;
use lockstep_optim::{Clip, ClipPlan, Optimizer, Update};
use lockstep_parallel::from_recipe::{blueprint_of_rank, plan_at};
use lockstep_parallel::hogwild::SharedWeights;
use lockstep_parallel::{Replica, StepHost};
use lockstep_tensor::Isa;
use lockstep_tensor::device::Compute;
use lockstep_trainer::{Options, TrainError};
use std::sync::Arc;

fn problem(preset: &str, sets: &[&str]) -> Recipe {
    let usual = ["optim.name=sgd", "run.workers=1", "optim.schedule=constant"];
    let sets = usual.iter().chain(sets).map(|set| (*set).to_owned()).collect();
    let preset = Some(preset.to_owned());
    resolve(&Sources { preset, sets, ..Sources::default() })
        .unwrap_or_else(|errors| panic!("{errors}"))
}

/// Number of steps of all threads.
fn num_steps(outcome: &Outcome) -> u64 {
    let by_thread =
        outcome.summary.asynchronous.staleness_by_rank.as_ref().expect("threads report it");
    by_thread.iter().flat_map(|counts| counts.values()).sum()
}

#[test]
fn threads_reach_the_optimum_and_lose_no_step() {
    let mut runs = Runs::new("hogwild");
    let bowl = &["optim.lr=0.2", "problem.condition=4", "train.steps=300"][..];
    let dense = &["optim.lr=1", "train.steps=400", "train.microbatch=64"][..];
    let sparse = &["problem.density=0.1", "optim.lr=1", "train.steps=400", "train.microbatch=64"];
    for (preset, sets) in [("quadratic", bowl), ("logistic", dense), ("logistic", sparse)] {
        for threads in [1, 4] {
            let set = format!("sync.threads={threads}");
            let outcome =
                runs.finish(&problem(preset, &[&["sync.mode=hogwild", &set], sets].concat()));
            let verdict = outcome.summary.solution;
            let start = outcome.summary.first_loss - verdict.optimum_loss.expect("known");
            let surplus = verdict.suboptimality.expect("known");
            assert!(surplus < 2e-3 * start, "{preset}, {threads}: {surplus} of {start}");
            assert_eq!(num_steps(&outcome), threads * outcome.summary.steps, "{preset}");
        }
    }
}

#[test]
fn one_thread_is_plain_sgd() {
    let mut runs = Runs::new("hogwild");
    let sets = ["train.steps=60", "optim.lr=1", "train.microbatch=64"];
    let usual = runs.finish(&problem("logistic", &sets));
    let alone = ["sync.mode=hogwild", "sync.threads=1"];
    let alone = runs.finish(&problem("logistic", &[&sets[..], &alone].concat()));
    for (ours, theirs) in alone.losses.iter().zip(&usual.losses) {
        assert!((ours - theirs).abs() < 1e-5 * theirs.abs(), "{ours} {theirs}");
    }
    assert_eq!(alone.summary.staleness_max, 0);
}

#[test]
fn transformers_learn_and_resume_where_they_stopped() {
    let mut runs = Runs::new("hogwild");
    let sets = ["sync.mode=hogwild", "sync.threads=4", "optim.name=sgd", "optim.lr=0.2"];
    let more = ["train.steps=16", "checkpoint.every=5", "optim.weight_decay=0", "run.workers=1"];
    let recipe = LLAMA.with(&[&sets[..], &more].concat());
    let whole = runs.finish(&recipe);
    assert!(whole.losses[15] < whole.losses[0], "{:?}", whole.losses);
    assert_eq!(num_steps(&whole), 4 * 16);
    let options = Options { stop_after: Some(9), ..Options::default() };
    let part = runs.run(&recipe, options).expect("the first part");
    let resume = Some(part.dir.join("checkpoints"));
    let rest = runs.run(&recipe, Options { resume, ..Options::default() }).expect("the rest");
    assert_eq!(rest.losses.len(), 11, "from step 5 on");
}

/// Host of a step that updates in every second step.
struct EverySecond<'a>(&'a Host);

impl<'a> StepHost<'a> for EverySecond<'a> {
    type Error = CommError;

    fn microbatch(&self, index: usize) -> Microbatch<'a> {
        self.0.microbatch(index)
    }

    fn num_targets(&self, microbatches: Option<&[u32]>) -> u64 {
        self.0.num_targets(microbatches)
    }

    fn decide(&mut self, _: &mut Replica, clip: &Clip) -> Result<Option<Update>, CommError> {
        let update = Update { count: self.0.step + 1, lr: 1e-2, clip: *clip };
        Ok(self.0.step.is_multiple_of(2).then_some(update))
    }
}

#[test]
fn a_gradient_that_is_thrown_away_counts_as_no_step() {
    let sets = ["sync.mode=hogwild", "sync.threads=1", "run.workers=1", "optim.name=sgd"];
    let recipe = LLAMA.with(&[&sets[..], &["optim.weight_decay=0"]].concat());
    let (world, compute) = (lockstep_platform::real(), &Compute::single(Isa::detect()));
    let comm = &Comm::threads(&world, 1, &lockstep_comm::Options::default()).expect("a rank")[0];
    let blueprint = blueprint_of_rank(&recipe, 0);
    let plan = plan_at(&recipe, &blueprint, 0);
    let shape = plan.microbatch;
    let replica = Replica::materialize(blueprint, 1, compute, plan, comm, &world);
    let shared = Arc::new(SharedWeights::new(&mut replica.expect("memory")).expect("weights"));
    let mut thread = shared.replica_of_thread(&recipe, 0, compute, &world).expect("memory");
    let tokens = (0..=shape.rows()).map(|at| (at % recipe.model.vocab) as u32);
    let mut host = Host { shape, tokens: tokens.collect(), step: 0 };
    let (mut optimizer, clip) = (Optimizer::new(&recipe.optim, &[]), ClipPlan::global(0.0));
    for step in 0..4 {
        host.step = step;
        let every_second = &mut EverySecond(&host);
        thread.run_step(compute, 1, step, &mut optimizer, &clip, every_second).expect("a step");
        assert_eq!(shared.num_updates(), step / 2 + 1, "step {step}");
    }
    assert_eq!(thread.staleness().expect("it is counted").values().sum::<u64>(), 2);
}

#[test]
fn a_thread_that_diverges_ends_the_run() {
    // Every step multiplies the distance from the optimum, until the loss overflows.
    let optim = ["optim.lr=1000", "optim.clip=0", "train.max_skipped=9", "train.steps=200"];
    let threads = ["sync.mode=hogwild", "sync.threads=1"];
    let recipe = problem("quadratic", &[&threads[..], &optim].concat());
    let found = Runs::new("hogwild").run(&recipe, Options::default());
    match found.map(|outcome| outcome.losses) {
        Err(TrainError::Diverged { source_of, step, .. }) => {
            assert!(source_of == " (on thread 0)" && step > 0, "{source_of}, step {step}");
        }
        found => panic!("{found:?}"),
    }
}
