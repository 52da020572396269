//! `lockstep data skew`: how different the workers' samples are.

use crate::failure::Failure;
use crate::output;
use crate::recipe_args::RecipeArguments;
use lockstep_platform::World;
use lockstep_trainer::skew::{self, Skew};
use std::fmt::Write;

/// Show how different the samples of workers are: distance from the whole, and what stands out
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  lockstep data skew --preset digits --set problem.partition=by-class --set run.workers=4
  lockstep data skew --preset digits --set problem.partition=dirichlet --set problem.alpha=0.1
  lockstep data skew --set data.placement=partitioned --set run.workers=4 --json")]
pub(crate) struct Arguments {
    #[command(flatten)]
    recipe: RecipeArguments,
    /// One JSON value on standard output
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Arguments, world: &World) -> Result<(), Failure> {
    let recipe = arguments.recipe.resolve(world)?;
    let Some(skew) = skew::of(&recipe, world)? else {
        let line = "the samples of this recipe have no kinds to count here; try a text that is not \
                    served, or model.family = mlp, ridge or logistic";
        return Err(Failure::user(line));
    };
    if arguments.json { output::json(&skew) } else { output::text(&render(&skew)) }
}

fn render(skew: &Skew) -> String {
    let mut text = String::new();
    let heading = ["worker", "samples", "variation", "nats"];
    let [worker, samples, variation, nats] = heading;
    let _ = writeln!(text, "{worker:>6} {samples:>12} {variation:>10} {nats:>9}  more than others");
    for worker in &skew.workers {
        let top = worker.top.iter().map(|kind| {
            let (share, all) = (100.0 * kind.share, 100.0 * kind.share_of_all);
            format!("{} {} ({share:.1} % against {all:.1} %)", skew.of, kind.kind)
        });
        let top = top.collect::<Vec<_>>().join(", ");
        let (variation, nats) = (worker.total_variation, worker.divergence);
        let (rank, count) = (worker.rank, worker.count);
        let _ = writeln!(text, "{rank:>6} {count:>12} {variation:>10.4} {nats:>9.4}  {top}");
    }
    text
}
