//! Hogwild (Recht et al. 2011): lock-free SGD threads reach the optimum and lose no step; one
//! thread is plain SGD.

use lockstep_config::{Recipe, Sources, resolve};
use lockstep_harness::Runs;
use lockstep_harness::recipes::LLAMA;
use lockstep_harness::runs::Outcome;
use lockstep_trainer::Options;

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
