//! `lockstep inspect`: what a recipe's model consists of, before anything is allocated.

use crate::failure::Failure;
use crate::memory_report::Memory;
use crate::output;
use crate::recipe_args::RecipeArguments;
use crate::workers;
use lockstep_config::units::Bytes;
use lockstep_config::{OptimName, Recipe};
use lockstep_model::problem::Judge;
use lockstep_model::{Blueprint, Param, describe};
use lockstep_planner::memory::RankMemory;
use lockstep_planner::stability::Descent;
use lockstep_platform::World;
use lockstep_trainer::curvature::largest_curvature;
use lockstep_trainer::generate::Generator;
use lockstep_trainer::pretrained::Pretrained;
use lockstep_trainer::saved::{blueprint_on, footprint};
use serde::Serialize;
use std::fmt::Write;
use std::path::Path;

/// Most likely tokens that people get to see; programs get all.
const LOGITS_SHOWN: usize = 5;

/// Ages of gradients, in steps, for which people want to know how large a step may be.
const DELAYS: &[u32] = &[0, 1, 2, 4, 8];

/// Show a model's parameters, shapes, memory and FLOPs per token
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  lockstep inspect                        the default recipe
  lockstep inspect --preset gpt2          GPT-2 with 124 million parameters
  lockstep inspect my.toml --json
  lockstep inspect my-llama               a folder of Hugging Face, or of a run
  lockstep inspect --preset tiny --curvature         the largest curvature of the loss at the start
  lockstep inspect my-llama --logits 1,15,7 --json   what it computes after each of these tokens")]
pub(crate) struct Arguments {
    #[command(flatten)]
    recipe: RecipeArguments,
    /// Run these tokens through the model of a folder and show the logits after each
    #[arg(long, value_name = "TOKENS", value_delimiter = ',')]
    logits: Vec<u32>,
    /// Find the largest curvature of the loss of the first batch, and the steps it allows, in at
    /// most so many passes over it
    #[arg(long, value_name = "PASSES", num_args = 0..=1, default_missing_value = "60")]
    curvature: Option<usize>,
    /// One JSON value on standard output
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report {
    num_params: u64,
    params: Vec<Tensor>,
    forward_flops_per_token: u64,
    backward_flops_per_token: u64,
    memory: Memory,
    /// Of a convex problem, or of any where asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    steepness: Option<Steepness>,
    /// One row for each token of `--logits`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    logits: Vec<Vec<f32>>,
}

/// How large a step may be.
#[derive(Serialize)]
struct Steepness {
    largest_curvature: f64,
    /// From which `optim.lr` on plain descent, or that with the recipe's momentum, diverges, for
    /// gradients of some ages; empty for other optimizers.
    lr_limits: Vec<LrLimit>,
}

#[derive(Serialize)]
struct LrLimit {
    delay: u32,
    lr: f64,
}

#[derive(Serialize)]
struct Tensor {
    name: String,
    shape: Vec<usize>,
    num_params: u64,
    mirror_of: Option<String>,
}

pub(crate) fn run(arguments: &Arguments, world: &World) -> Result<(), Failure> {
    let recipe = arguments.recipe.resolve(world)?;
    let blueprint = describe(&recipe.model);
    let mut report = report(&recipe, &blueprint);
    report.logits = logits(&arguments.logits, &recipe, world)?;
    if let (Some(passes), None) = (arguments.curvature, &report.steepness) {
        let mut told = |made: usize| workers::tell(&format!("\rproduct {made} of {}", passes / 2));
        let found = largest_curvature(&recipe, world, (passes / 2).max(1), &mut told)?;
        workers::tell("\n");
        report.steepness = Some(steepness_of(&recipe, found.value.abs()));
    }
    if arguments.json { output::json(&report) } else { output::text(&render(&report)) }
}

fn report(recipe: &Recipe, blueprint: &Blueprint) -> Report {
    let flops = blueprint.flops_per_token();
    Report {
        num_params: blueprint.num_params() as u64,
        params: blueprint.params().map(|(_, param)| tensor(param)).collect(),
        forward_flops_per_token: flops.forward,
        backward_flops_per_token: flops.backward,
        memory: Memory::from(&RankMemory::from(&footprint(recipe, &blueprint_on(recipe, 0), 0))),
        steepness: steepness(recipe),
        logits: Vec::new(),
    }
}

/// By power iteration on the problem's own second derivatives, and the roots that decide.
fn steepness(recipe: &Recipe) -> Option<Steepness> {
    let largest_curvature = Judge::of(&recipe.model)?.largest_curvature()?.value;
    Some(steepness_of(recipe, largest_curvature))
}

fn steepness_of(recipe: &Recipe, largest_curvature: f64) -> Steepness {
    let momentum = match recipe.optim.name {
        OptimName::Sgd => Some(0.0),
        OptimName::Momentum => Some(recipe.optim.momentum),
        _ => None,
    };
    let limit = |momentum: f64| {
        move |delay: &u32| {
            let descent = Descent { lr: recipe.optim.lr, momentum, delay: *delay };
            LrLimit { delay: *delay, lr: descent.lr_limit(largest_curvature) }
        }
    };
    let lr_limits = momentum.map(|momentum| DELAYS.iter().map(limit(momentum)).collect());
    Steepness { largest_curvature, lr_limits: lr_limits.unwrap_or_default() }
}

/// What the weights of the recipe's folder make of these tokens.
fn logits(tokens: &[u32], recipe: &Recipe, world: &World) -> Result<Vec<Vec<f32>>, Failure> {
    if tokens.is_empty() {
        return Ok(Vec::new());
    }
    if recipe.from.is_empty() {
        let fix = "name the folder of a model, as in lockstep inspect runs/0001 --logits 1,2";
        return Err(Failure::user(format!("--logits needs weights; {fix}")));
    }
    let (vocab, context) = (recipe.model.vocab, recipe.model.context);
    if let Some(token) = tokens.iter().find(|token| **token as usize >= vocab) {
        return Err(Failure::user(format!(
            "--logits {token} is not a token; model.vocab = {vocab}, so try 0 to {}",
            vocab - 1
        )));
    }
    if tokens.len() > context {
        let num_tokens = tokens.len();
        return Err(Failure::user(format!(
            "--logits has {num_tokens} tokens; model.context = {context} is the most"
        )));
    }
    let pretrained = Pretrained::open(Path::new(&recipe.from), world)?;
    Ok(Generator::load(&pretrained, recipe, world)?.logits(tokens))
}

fn tensor(param: &Param) -> Tensor {
    Tensor {
        name: param.name.clone(),
        shape: param.shape.clone(),
        num_params: param.len() as u64,
        mirror_of: param.mirror_of.clone(),
    }
}

fn render(report: &Report) -> String {
    let mut text = String::new();
    for tensor in &report.params {
        let shape = tensor.shape.iter().map(ToString::to_string).collect::<Vec<_>>().join(" x ");
        let note = match &tensor.mirror_of {
            Some(owner) => format!("  copy of {owner}"),
            None => String::new(),
        };
        let _ = writeln!(text, "{:<52} {shape:>16} {:>12}{note}", tensor.name, tensor.num_params);
    }
    let _ = writeln!(text, "\nparameters          {:>14}", report.num_params);
    let _ = writeln!(text, "FLOPs a token       {:>14} forward", report.forward_flops_per_token);
    let _ = writeln!(text, "                    {:>14} backward", report.backward_flops_per_token);
    let memory = &report.memory;
    let parts = [
        ("weights", memory.weights_bytes),
        ("gradients", memory.gradients_bytes),
        ("optimizer", memory.optimizer_bytes),
        ("activations", memory.activations_bytes),
        ("buffers", memory.buffers_bytes),
        ("all of it", memory.total_bytes),
    ];
    for (part, bytes) in parts {
        let _ = writeln!(text, "memory {part:<13} {:>13}", Bytes(bytes).to_string());
    }
    if let Some(Steepness { largest_curvature, lr_limits }) = &report.steepness {
        let _ = writeln!(text, "largest curvature   {largest_curvature:>14.6}");
        for LrLimit { delay, lr } in lr_limits {
            let _ =
                writeln!(text, "optim.lr below      {lr:>14.6} for gradients {delay} steps old");
        }
    }
    for (index, row) in report.logits.iter().enumerate() {
        let mut best: Vec<usize> = (0..row.len()).collect();
        best.sort_by(|a, b| row[*b].total_cmp(&row[*a]));
        let best = best.iter().take(LOGITS_SHOWN);
        let best: Vec<_> = best.map(|token| format!("{token} ({:.4})", row[*token])).collect();
        let _ = writeln!(text, "after token {:<8} {}", index + 1, best.join(", "));
    }
    text
}
