//! `lockstep train`: train as a recipe says.

use crate::failure::Failure;
use crate::output;
use crate::recipe_args::RecipeArguments;
use lockstep_config::Recipe;
use lockstep_config::units::Bytes;
use lockstep_data::Tokenizer;
use lockstep_platform::World;
use lockstep_telemetry::{Console, Sink, Surface};
use lockstep_trainer::generate::Generator;
use lockstep_trainer::sampling::Sampling;
use lockstep_trainer::{Options, RunFolder, Summary};
use std::fmt::Write;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};

/// Characters of sample text after a run.
const SAMPLE_TOKENS: usize = 400;

/// Train a model as a recipe says
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  lockstep train                                       the default recipe on the bundled corpus
  lockstep train --preset tiny --set train.steps=20    a quick look
  lockstep train my.toml --set data.source=book.txt    your own text
  lockstep train my.toml --stop-after 100              stop early, then go on where it stopped:
  lockstep train my.toml --resume runs/0001
  lockstep train --json > run.json                     figures for a program")]
pub(crate) struct Arguments {
    #[command(flatten)]
    recipe: RecipeArguments,
    /// Go on from where the run in this folder stopped (same recipe; run.* may differ)
    #[arg(long, value_name = "RUN")]
    resume: Option<PathBuf>,
    /// Stop after this many steps of the recipe
    #[arg(long, value_name = "STEPS")]
    stop_after: Option<u64>,
    /// No progress on standard error
    #[arg(long)]
    quiet: bool,
    /// One JSON value on standard output
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Arguments, world: &World) -> Result<(), Failure> {
    let recipe = arguments.recipe.resolve(world)?;
    let mut sinks: Vec<Box<dyn Sink>> = Vec::new();
    if !arguments.quiet {
        let stderr = std::io::stderr();
        let surface = if stderr.is_terminal() { Surface::Terminal } else { Surface::Plain };
        sinks.push(Box::new(Console::new(Box::new(stderr), surface)));
    }
    let options =
        Options { resume: arguments.resume.clone(), stop_after: arguments.stop_after, sinks };
    let summary = lockstep_trainer::train(&recipe, world, options)?;
    if arguments.json {
        return output::json(&summary);
    }
    output::text(&report(&summary))?;
    output::text(&sample(&summary, &recipe, world)?)
}

/// The last lines of a run: what came out.
fn report(summary: &Summary) -> String {
    let mut text = String::new();
    let Summary { steps, first_loss, final_loss, baseline_loss, .. } = summary;
    let _ = writeln!(text, "loss         {first_loss:.4} -> {final_loss:.4} in {steps} steps");
    if let Some(loss) = summary.validation_loss {
        let _ = writeln!(
            text,
            "validation   {loss:.4} nats a byte; the corpus' byte bigrams alone: {baseline_loss:.4}"
        );
    }
    let _ = writeln!(
        text,
        "speed        {:.0} tokens/s, median step {:.3} s, waited {:.3} s for data",
        summary.tokens_per_second, summary.step_seconds_median, summary.data_wait_seconds
    );
    let _ = writeln!(text, "peak memory  {}", Bytes(summary.peak_rss_bytes));
    let _ = writeln!(text, "losses_hash  {}", summary.losses_hash);
    let _ = writeln!(text, "weights_hash {}", summary.weights_hash);
    let _ = writeln!(text, "run folder   {}", summary.run_dir);
    text
}

/// A taste of what the model writes.
fn sample(summary: &Summary, recipe: &Recipe, world: &World) -> Result<String, Failure> {
    let folder = RunFolder::finished(Path::new(&summary.run_dir), world)?;
    let generator = Generator::open(&folder, recipe, world)?;
    let sampling = Sampling { temperature: 0.7, top_k: 0, top_p: 0.95, seed: recipe.train.seed };
    let tokens = generator.generate("\n", SAMPLE_TOKENS, sampling, |_| true);
    Ok(format!("\nA sample (lockstep generate makes more):\n\n{}\n", Tokenizer.decode(&tokens)))
}
