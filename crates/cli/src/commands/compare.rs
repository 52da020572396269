//! `lockstep compare`: compares two runs bit for bit.

use crate::failure::Failure;
use crate::output;
use lockstep_config::Blame;
use lockstep_platform::World;
use lockstep_trainer::compare::{Comparison, Setting, TensorDifference, Tensors, compare};
use std::fmt::Write;
use std::path::PathBuf;

/// Number of tensors that text output lists; JSON has all.
const MAX_LISTED: usize = 5;

/// Compare two runs bit for bit and report the first difference
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  lockstep compare runs/0001 runs/0002               a summary
  lockstep compare runs/0001 runs/0002 --json        .equal .first_step .weights.first and more
  lockstep compare --exit-code good bad || echo no   exit code 5 unless bit-identical

Steps count from one. An ulp is the distance from one float to the next. Keys under layout (run.*,
parallel.*) must not change the result; other keys of the recipe may.")]
pub(crate) struct Arguments {
    /// Run directory A, finished or not
    run_a: PathBuf,
    /// Run directory B
    run_b: PathBuf,
    /// Exit with 5 unless the runs are bit-identical
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
    let verdict = if *equal { "bit-identical" } else { "different" };
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

/// A labelled line.
fn line(text: &mut String, label: &str, content: &str) {
    let _ = writeln!(text, "{label:<10} {content}");
}

fn settings(text: &mut String, label: &str, settings: &[Setting]) {
    for Setting { key, a, b } in settings {
        line(text, label, &format!("{key}: A {a}, B {b}"));
    }
}

fn losses(text: &mut String, comparison: &Comparison) {
    let Comparison { equal_steps, common_steps, .. } = comparison;
    let content = match &comparison.first_step {
        None if *common_steps == 0 => "the runs have no step in common".to_owned(),
        None => format!("equal for all {common_steps} common steps"),
        Some(first) => format!(
            "equal for {equal_steps} steps; at step {} A {:?}, B {:?}: {}, relative {:.2e}",
            first.step,
            first.a,
            first.b,
            ulps(first.ulps),
            first.relative
        ),
    };
    line(text, "losses", &content);
}

fn summary(text: &mut String, label: &str, tensors: &Tensors) {
    let Tensors { num_compared, unmatched, first, worst } = tensors;
    if let Some(tensor) = unmatched.first() {
        let shape = |shape: &Option<Vec<usize>>| match shape {
            Some(shape) => format!("{shape:?}"),
            None => "absent".to_owned(),
        };
        let (num_unmatched, name) = (unmatched.len(), &tensor.tensor);
        let (a, b) = (shape(&tensor.shape_a), shape(&tensor.shape_b));
        let content = format!("{num_unmatched} tensors do not match; first {name}: A {a}, B {b}");
        line(text, label, &content);
    }
    let content = match first {
        None => format!("equal in all {num_compared} common tensors"),
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
    line(text, label, &content);
}

/// The tensors that differ most, of the first file with a difference.
fn table(text: &mut String, worst: &[TensorDifference]) {
    let heads = ["max ulps", "differing elements", "relative l2"];
    let _ = writeln!(text, "  {:>10}  {:>22}  {:>11}  tensor", heads[0], heads[1], heads[2]);
    for difference in worst.iter().take(MAX_LISTED) {
        let TensorDifference { tensor, max_ulps, relative_l2, .. } = difference;
        let differ = format!("{} of {}", difference.num_differing, difference.num_elements);
        let _ = writeln!(text, "  {max_ulps:>10}  {differ:>22}  {relative_l2:>11.2e}  {tensor}");
    }
    if worst.len() > MAX_LISTED {
        let _ = writeln!(text, "  and {} more (--json has all)", worst.len() - MAX_LISTED);
    }
}

fn ulps(ulps: u64) -> String {
    if ulps == 1 { "1 ulp".to_owned() } else { format!("{ulps} ulps") }
}
