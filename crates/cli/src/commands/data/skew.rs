//! `lockstep data skew`: label skew between the parts of a partitioned data set.

use crate::failure::Failure;
use crate::output;
use crate::recipe_args::RecipeArguments;
use lockstep_data::partition::Skew;
use lockstep_data::{DataRank, Feed};
use lockstep_model::problem::classes;
use lockstep_platform::World;
use serde::Serialize;
use std::fmt::Write as _;

/// Largest number of listed parts.
const MAX_ROWS: usize = 20;

/// Measure label skew between clients, or between reduction leaves
#[derive(clap::Args)]
#[command(after_help = "\
A class is a digit, the sign of a target, or the tenth of the corpus that a window of text is in.
The variation is the total variation distance between a part's class shares and the overall ones:
0 is equal, near 1 is disjoint.

Examples:
  lockstep data skew --preset federated
  lockstep data skew --preset digits --set sync.partition=by-class
  lockstep data skew --set sync.partition=dirichlet --set sync.dirichlet_alpha=0.1 --json")]
pub(crate) struct Arguments {
    #[command(flatten)]
    recipe: RecipeArguments,
    /// One JSON value on standard output
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report {
    partition: String,
    mean_variation: f64,
    max_variation: f64,
    parts: Vec<Part>,
}

#[derive(Serialize)]
struct Part {
    number: usize,
    num_samples: usize,
    variation: f64,
    top_class: usize,
    top_share: f64,
}

pub(crate) fn run(arguments: &Arguments, world: &World) -> Result<(), Failure> {
    let recipe = arguments.recipe.resolve(world)?;
    let mut feed = Feed::open(&recipe, world, &DataRank::alone(&recipe))?;
    if recipe.model.family.is_problem() {
        feed.classify(classes(&recipe.model));
    }
    let Some(partition) = feed.partition() else {
        return Err(Failure::user(
            "sync.partition = \"shared\" has no parts; try --set sync.partition=dirichlet",
        ));
    };
    let skew = partition.skew();
    let report = Report {
        partition: recipe.sync.partition.to_string(),
        mean_variation: skew.iter().map(|part| part.variation).sum::<f64>() / skew.len() as f64,
        max_variation: skew.iter().map(|part| part.variation).fold(0.0, f64::max),
        parts: skew.iter().enumerate().map(part).collect(),
    };
    if arguments.json { output::json(&report) } else { output::text(&render(&report)) }
}

fn part((number, skew): (usize, &Skew)) -> Part {
    let Skew { num_samples, variation, top_class, top_share } = *skew;
    Part { number, num_samples, variation, top_class, top_share }
}

fn render(report: &Report) -> String {
    let mut text = String::from("part   samples  variation  most frequent class\n");
    for part in report.parts.iter().take(MAX_ROWS) {
        let _ = writeln!(
            text,
            "{:<5} {:>8} {:>10.2}  {} ({:.0} %)",
            part.number,
            part.num_samples,
            part.variation,
            part.top_class,
            100.0 * part.top_share
        );
    }
    if report.parts.len() > MAX_ROWS {
        let _ = writeln!(text, "... and {} more", report.parts.len() - MAX_ROWS);
    }
    let (mean, max) = (report.mean_variation, report.max_variation);
    let _ = writeln!(
        text,
        "\n{} parts by sync.partition = \"{}\": mean variation {mean:.2}, largest {max:.2}",
        report.parts.len(),
        report.partition
    );
    text
}
