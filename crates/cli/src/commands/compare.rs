//! `lockstep compare`: are two runs the same to the bit, and if not, where do they part?

use crate::failure::Failure;
use crate::output;
use lockstep_config::Blame;
use lockstep_platform::World;
use lockstep_trainer::compare::{Comparison, Setting, TensorDifference, Tensors, compare};
use std::fmt::Write;
use std::path::PathBuf;

/// Worst tensors that people get to see; programs get all.
const WORST_MAX: usize = 5;

/// Tell whether two runs are the same to the bit, and where they part
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  lockstep compare runs/0001 runs/0002               a few lines for people
  lockstep compare runs/0001 runs/0002 --json        .equal .first_step .weights.first and more
  lockstep compare --exit-code good bad || echo no   for scripts: 5 unless they are the same

Steps are counted from one. An ulp is one step from a float to the next.
Keys under layout (run.*, parallel.*) must not change a bit; the recipe's other keys may.")]
pub(crate) struct Arguments {
    /// The folder of run A, finished or not
    run_a: PathBuf,
    /// The folder of run B
    run_b: PathBuf,
    /// Exit with 5 unless the runs are the same to the bit
    #[arg(long)]
    exit_code: bool,
    /// One JSON value on standard output
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Arguments, world: &World) -> Result<(), Failure> {
    let comparison = compare(&arguments.run_a, &arguments.run_b, world)?;
    if arguments.json {
        output::json(&comparison)?;
    } else {
        output::text(&render(&comparison))?;
    }
    if arguments.exit_code && !comparison.equal {
        return Err(Failure::new(Blame::Diverged, String::new()));
    }
    Ok(())
}

fn render(comparison: &Comparison) -> String {
    let Comparison { equal, run_a, run_b, steps_a, steps_b, .. } = comparison;
    let verdict = if *equal { "the same to the bit" } else { "not the same" };
    let mut text = format!("{verdict}: {run_a} (A, {steps_a} steps) and {run_b} (B, {steps_b})\n");
    settings(&mut text, "recipe", &comparison.recipe);
    settings(&mut text, "layout", &comparison.layout);
    losses(&mut text, comparison);
    let files = [("weights", &comparison.weights), ("optimizer", &comparison.optimizer)];
    for (label, tensors) in files {
        if let Some(tensors) = tensors {
            summary(&mut text, label, tensors);
        }
    }
    let mut files = files.into_iter().filter_map(|(_, tensors)| tensors.as_ref());
    if let Some(tensors) = files.find(|tensors| !tensors.worst.is_empty()) {
        table(&mut text, &tensors.worst);
    }
    for note in &comparison.notes {
        line(&mut text, "note", note);
    }
    text
}

/// A line with its label in front.
fn line(text: &mut String, label: &str, words: &str) {
    let _ = writeln!(text, "{label:<10} {words}");
}

fn settings(text: &mut String, label: &str, settings: &[Setting]) {
    for Setting { key, a, b } in settings {
        line(text, label, &format!("{key}: A {a}, B {b}"));
    }
}

fn losses(text: &mut String, comparison: &Comparison) {
    let Comparison { equal_steps, common_steps, .. } = comparison;
    let words = match &comparison.first_step {
        None if *common_steps == 0 => "no step is known of both".to_owned(),
        None => format!("equal for all {common_steps} steps that both have"),
        Some(first) => format!(
            "equal for {equal_steps} steps; at step {} A {:?}, B {:?}: {}, relative {:.2e}",
            first.step,
            first.a,
            first.b,
            ulps(first.ulps),
            first.relative
        ),
    };
    line(text, "losses", &words);
}

fn summary(text: &mut String, label: &str, tensors: &Tensors) {
    let Tensors { num_compared, unmatched, first, worst } = tensors;
    if let Some(tensor) = unmatched.first() {
        let shape = |shape: &Option<Vec<usize>>| match shape {
            Some(shape) => format!("{shape:?}"),
            None => "lacks it".to_owned(),
        };
        let (num_unmatched, name) = (unmatched.len(), &tensor.tensor);
        let (a, b) = (shape(&tensor.shape_a), shape(&tensor.shape_b));
        let words = format!("{num_unmatched} tensors do not match; first {name}: A {a}, B {b}");
        line(text, label, &words);
    }
    let words = match first {
        None => format!("equal in all {num_compared} tensors that both have"),
        Some(first) => format!(
            "{} of {num_compared} tensors differ; first {}, element {}: A {:?}, B {:?}: {}",
            worst.len(),
            first.tensor,
            first.element,
            first.a,
            first.b,
            ulps(first.ulps.into())
        ),
    };
    line(text, label, &words);
}

/// The worst tensors of the first file that differs: it is the cause, or near it.
fn table(text: &mut String, worst: &[TensorDifference]) {
    let heads = ["max ulps", "elements that differ", "relative l2"];
    let _ = writeln!(text, "  {:>10}  {:>22}  {:>11}  worst tensors", heads[0], heads[1], heads[2]);
    for difference in worst.iter().take(WORST_MAX) {
        let TensorDifference { tensor, max_ulps, relative_l2, .. } = difference;
        let differ = format!("{} of {}", difference.num_differing, difference.num_elements);
        let _ = writeln!(text, "  {max_ulps:>10}  {differ:>22}  {relative_l2:>11.2e}  {tensor}");
    }
    if worst.len() > WORST_MAX {
        let _ = writeln!(text, "  and {} more (--json has all)", worst.len() - WORST_MAX);
    }
}

fn ulps(ulps: u64) -> String {
    if ulps == 1 { "1 ulp".to_owned() } else { format!("{ulps} ulps") }
}
