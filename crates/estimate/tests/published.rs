//! Predictions beside published tables, where those are at hand.
//!
//! The tables are not part of the project; the tests look for them beside it, and say so where they
//! are absent. Bounds are what is reached, so that a change that loses accuracy is noticed.

#![expect(clippy::disallowed_methods, reason = "a test may look at files beside the project")]

use lockstep_estimate::hardware::named;
use lockstep_estimate::layout::{Habits, Layout};
use lockstep_estimate::model::preset;
use lockstep_estimate::search::Question;
use lockstep_estimate::time::pipeline::Pipelines;
use lockstep_estimate::validate::score::{Score, score};
use lockstep_estimate::{Calibration, bill};
use std::collections::BTreeMap;
use std::path::Path;

/// A table's errors; nothing where the table is absent.
fn of(file: &str) -> Option<Score> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/ground-truth");
    let Ok(text) = std::fs::read_to_string(folder.join(format!("{file}.csv"))) else {
        println!("skipped: {file}.csv is not beside the project");
        return None;
    };
    let calibrations: BTreeMap<String, Calibration> =
        Calibration::all().into_iter().map(|known| (known.name.clone(), known)).collect();
    Some(score(file, &text, &calibrations, &mut Pipelines::default()).0)
}

fn at_most(file: &str, what: &str, error: Option<f64>, bound: f64) {
    let error = error.unwrap_or_else(|| panic!("{file} has no {what}"));
    assert!(error <= bound, "{file}: {what} {error:.4} is above {bound}");
}

#[test]
fn step_times_on_a100_are_within_their_bounds() {
    for (file, mean) in [
        ("seqsel-2205.05198", 0.05),
        ("vtrain-single", 0.10),
        ("zero-bubble", 0.06),
        ("internevo", 0.08),
        ("megatron-2020-tp", 0.05),
    ] {
        if let Some(score) = of(file) {
            at_most(file, "mean error of step time", score.step_time_mape, mean);
        }
    }
}

#[test]
fn the_first_table_of_the_megatron_paper_is_within_five_percent() {
    if let Some(score) = of("megatron-sc21") {
        let table = score.tables.get("Table 1").copied();
        at_most("megatron-sc21", "mean error of Table 1", table, 0.05);
    }
}

#[test]
fn step_times_on_newer_devices_are_within_their_bounds() {
    if let Some(score) = of("simumax-b200") {
        at_most("simumax-b200", "mean error of step time", score.step_time_mape, 0.05);
        at_most("simumax-b200", "mean error of memory", score.memory_mape, 0.05);
    }
    if let Some(score) = of("ultrascale-sweep") {
        let median = score.step_time_median_error;
        at_most("ultrascale-sweep", "median error of step time", median, 0.35);
        at_most("ultrascale-sweep", "mean error of memory", score.memory_mape, 0.15);
        let wrong = score.oom_accuracy.map(|right| 1.0 - right);
        at_most("ultrascale-sweep", "share of wrong verdicts", wrong, 0.10);
    }
}

#[test]
fn every_row_is_predicted_or_skipped_with_a_reason() {
    for file in ["megatron-sc21", "ultrascale-sweep", "torchtitan", "reliability"] {
        if let Some(score) = of(file) {
            assert_eq!(score.rows, score.rows_predicted + score.rows_skipped, "{file}");
            assert_eq!(score.skipped.values().sum::<usize>(), score.rows_skipped, "{file}");
        }
    }
}

#[test]
fn llama_65b_takes_about_21_days_on_2048_a100() {
    // As published: 1.4 T tokens and batches of 4 M. The layout is not said; this one fits with
    // room to spare.
    let model = preset("llama-65b").expect("it is one");
    let cluster = named("2048xa100-80gb").expect("a cluster");
    let calibration = Calibration::of("a100").expect("it is there");
    let question = Question {
        model: &model,
        cluster: &cluster,
        batch: 2048,
        habits: Habits::MODERN,
        calibration: &calibration,
    };
    let layout = Layout { tensor: 4, sequence: true, pipeline: 8, data: 64, ..Layout::ONE };
    let layout = Layout { zero: 1, ..layout };
    let choice = question.price(layout, &mut Pipelines::default()).expect("it can be priced");
    assert!(choice.memory.needed(&calibration) <= cluster.device.memory_bytes());
    let step_tokens = (2048 * model.context) as f64;
    let costs = bill::bill(&model, &cluster, 1.4e12, step_tokens, choice.step.seconds);
    assert!((costs.days / 21.0 - 1.0).abs() < 0.15, "{} days", costs.days);
}
