//! Multiple choice: the results of lm-evaluation-harness, and the same ones on every layout.
//!
//! scripts/interop/tasks.py makes the folder, and compares more tasks and models with the library
//! itself.

use lockstep_config::DeviceChoice;
use lockstep_data::tasks::TaskOptions;
use lockstep_harness::Runs;
use lockstep_harness::golden;
use lockstep_harness::recipes::LLAMA;
use lockstep_telemetry::{Event, load_events};
use lockstep_trainer::task_evaluation::{TaskEvaluation, evaluate_tasks};
use serde_json::Value;
use std::path::PathBuf;

/// Agreement that lm-evaluation-harness and we promise.
const LIMIT: f64 = 1e-4;

fn file(name: &str) -> PathBuf {
    golden::folder().join("tasks").join(name)
}

#[test]
fn log_likelihoods_and_scores_are_those_of_the_harness() {
    let world = lockstep_platform::real();
    let text = world.files().read(&file("results.json")).expect("it is committed");
    let expected: Value = serde_json::from_slice(&text).expect("results are JSON");
    let names: Vec<&String> = expected.as_object().expect("results by task").keys().collect();
    let tasks: Vec<PathBuf> = names.iter().map(|name| file(&format!("{name}.yaml"))).collect();
    let options = TaskOptions::default();
    let device = DeviceChoice::Cpu;
    let mut num_done = 0;
    let progress = &mut |done, _| num_done = done;
    let found = evaluate_tasks(&file("model"), device, &tasks, options, &world, progress);
    let found = found.expect("the tasks are valid");
    assert_eq!(found.len(), names.len());
    for TaskEvaluation { task, scores, log_likelihoods, .. } in &found {
        let of_task = &expected[task];
        for (metric, score) in of_task["scores"].as_object().expect("scores by metric") {
            let (found, expected) = (scores[metric], score.as_f64().expect("a number"));
            assert!((found - expected).abs() < LIMIT, "{task} {metric}: {found}, not {expected}");
        }
        let lists: Vec<Vec<f64>> =
            serde_json::from_value(of_task["log_likelihoods"].clone()).expect("lists of numbers");
        let found = log_likelihoods.as_ref().expect("they are kept");
        assert_eq!(found.len(), lists.len(), "{task}: questions");
        for (question, (found, expected)) in found.iter().zip(&lists).enumerate() {
            assert_eq!(found.len(), expected.len(), "{task}: choices of question {question}");
            let off = found.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
            assert!(off < LIMIT, "{task} {question}: {found:?}, not {expected:?}");
        }
    }
    assert!(num_done > 0, "progress is reported");
}

#[test]
fn every_layout_answers_tasks_with_the_same_bits_during_training() {
    let mut runs = Runs::new("tasks");
    let task = format!("eval.tasks=[\"{}\"]", file("winogrande.yaml").display());
    let mut answers = |sets: &[&str]| {
        let all = [&["train.steps=4", "train.eval_every=0", "eval.every=2", &task], sets].concat();
        let outcome = runs.finish(&LLAMA.with(&all));
        let events = load_events(runs.world(), &outcome.dir.join("events.jsonl")).expect("events");
        let found = events.into_iter().filter_map(|stamped| match stamped.event {
            Event::TaskEvaluated { step, scores, log_likelihood, .. } => {
                Some((step, scores["acc"].to_bits(), log_likelihood.map(f64::to_bits)))
            }
            _ => None,
        });
        (found.collect::<Vec<_>>(), outcome.summary.recipe_hash)
    };
    let alone = answers(&["run.workers=1"]);
    let steps: Vec<u64> = alone.0.iter().map(|(step, ..)| *step).collect();
    assert_eq!(steps, [2, 4]);
    assert!(alone.0[0].2.is_some() && alone.0[0].2 != alone.0[1].2, "the model learns");
    for layout in [
        &["run.workers=2", "parallel.zero=3"][..],
        &["run.workers=2", "parallel.pipeline=2"],
        &["run.workers=4", "run.threads=1"],
    ] {
        assert_eq!(answers(layout), alone, "{layout:?}");
    }
    let without = runs.finish(&LLAMA.with(&["train.steps=4", "train.eval_every=0"]));
    assert_eq!(without.summary.recipe_hash, alone.1, "tasks are no part of the recipe's identity");
    assert!(without.summary.tasks.is_empty());
}
