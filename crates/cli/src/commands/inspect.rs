//! `lockstep inspect`: parameters, shapes, memory and FLOPs of a model, without allocating it.

use crate::failure::Failure;
use crate::memory_report::{Memory, ProcessReport};
use crate::output;
use crate::prediction;
use crate::recipe_args::RecipeArguments;
use crate::workers::print_status;
use lockstep_config::units::Bytes;
use lockstep_config::{OptimName, Recipe};
use lockstep_model::problem::ProblemEvaluator;
use lockstep_model::{Blueprint, Param, describe};
use lockstep_planner::Forecast;
use lockstep_planner::memory::Process;
use lockstep_planner::stability::Descent;
use lockstep_platform::World;
use lockstep_trainer::curvature::largest_curvature;
use lockstep_trainer::generate::Generator;
use lockstep_trainer::pretrained::Pretrained;
use serde::Serialize;
use std::fmt::Write;
use std::path::Path;

/// Number of tokens that text output lists; JSON has all.
const NUM_TOP_TOKENS: usize = 5;

/// Gradient delays in steps for which the learning-rate limit is reported.
const DELAYS: &[u32] = &[0, 1, 2, 4, 8];

/// Show a model's parameters, shapes, memory and FLOPs per token
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  lockstep inspect                        default recipe
  lockstep inspect --preset gpt2          GPT-2 with 124 million parameters
  lockstep inspect my.toml --json
  lockstep inspect my-llama               folder of a run or of a Hugging Face model
  lockstep inspect --preset tiny --curvature         largest eigenvalue of the Hessian at the start
  lockstep inspect my-llama --logits 1,15,7 --json   logits after each token")]
pub(crate) struct Arguments {
    #[command(flatten)]
    recipe: RecipeArguments,
    /// Print the logits after each of these tokens (needs the folder of a model)
    #[arg(long, value_name = "TOKENS", value_delimiter = ',')]
    logits: Vec<u32>,
    /// Estimate the largest Hessian eigenvalue of the first batch's loss, and the learning-rate
    /// limits, in at most this many passes over it
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
    /// Of the first rank.
    memory: Memory,
    /// Of the largest process, whose total `lockstep train` predicts.
    peak_process: ProcessReport,
    /// Of convex problems, or with `--curvature`.
    #[serde(skip_serializing_if = "Option::is_none")]
    curvature: Option<Curvature>,
    /// One row per token of `--logits`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    logits: Vec<Vec<f32>>,
}

/// Curvature of the loss and the learning rates that it allows.
#[derive(Serialize)]
struct Curvature {
    largest_curvature: f64,
    /// Learning rates above which SGD, with the recipe's momentum, diverges, by gradient delay;
    /// empty for other optimizers.
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
    let process = prediction::measure_process(world);
    let recipe = arguments.recipe.resolve(world)?;
    let blueprint = describe(&recipe.model);
    let process = Process { text: prediction::text_bytes(&recipe, world), ..process };
    let forecast = prediction::predict_unchecked(&recipe, world, process);
    let mut report = report(&recipe, &blueprint, &forecast);
    report.logits = logits(&arguments.logits, &recipe, world)?;
    if let (Some(passes), None) = (arguments.curvature, &report.curvature) {
        let mut progress = |done: usize| {
            print_status(&format!("\rHessian-vector product {done} of {}", passes / 2));
        };
        let found = largest_curvature(&recipe, world, (passes / 2).max(1), &mut progress)?;
        print_status("\n");
        report.curvature = Some(curvature_of(&recipe, found.value.abs()));
    }
    if arguments.json { output::json(&report) } else { output::text(&render(&report)) }
}

fn report(recipe: &Recipe, blueprint: &Blueprint, forecast: &Forecast) -> Report {
    let flops = blueprint.flops_per_token();
    Report {
        num_params: blueprint.num_params() as u64,
        params: blueprint.params().map(|(_, param)| tensor(param)).collect(),
        forward_flops_per_token: flops.forward,
        backward_flops_per_token: flops.backward,
        memory: Memory::from(&forecast.memory.ranks[0]),
        peak_process: ProcessReport::from(forecast.largest_process().1),
        curvature: problem_curvature(recipe),
        logits: Vec::new(),
    }
}

/// Curvature of a convex problem by power iteration on its Hessian.
fn problem_curvature(recipe: &Recipe) -> Option<Curvature> {
    let largest_curvature = ProblemEvaluator::new(&recipe.model)?.largest_curvature()?.value;
    Some(curvature_of(recipe, largest_curvature))
}

fn curvature_of(recipe: &Recipe, largest_curvature: f64) -> Curvature {
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
    Curvature { largest_curvature, lr_limits: lr_limits.unwrap_or_default() }
}

/// Logits after each token, with the weights of the recipe's folder.
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
            "--logits has {num_tokens} tokens; model.context = {context} is the limit"
        )));
    }
    let pretrained = Pretrained::open(Path::new(&recipe.from), world)?;
    Ok(Generator::load(&pretrained, recipe, world)?.logits(tokens)?)
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
            Some(owner) => format!("  tied to {owner}"),
            None => String::new(),
        };
        let _ = writeln!(text, "{:<52} {shape:>16} {:>12}{note}", tensor.name, tensor.num_params);
    }
    let _ = writeln!(text, "\nparameters          {:>14}", report.num_params);
    let _ = writeln!(text, "FLOPs per token     {:>14} forward", report.forward_flops_per_token);
    let _ = writeln!(text, "                    {:>14} backward", report.backward_flops_per_token);
    let memory = &report.memory;
    let parts = [
        ("weights", memory.weights_bytes),
        ("gradients", memory.gradients_bytes),
        ("optimizer", memory.optimizer_bytes),
        ("activations", memory.activations_bytes),
        ("buffers", memory.buffers_bytes),
        ("checkpoint", memory.checkpoint_bytes),
    ];
    for (part, bytes) in parts {
        let _ = writeln!(text, "memory {part:<13} {:>13}", Bytes(bytes).to_string());
    }
    let ProcessReport { mapped_bytes, overhead_bytes, total_bytes, .. } = report.peak_process;
    let totals = [
        ("total", memory.total_bytes, "allocated by rank 0".to_owned()),
        (
            "process",
            total_bytes,
            format!(
                "of the largest process, as train predicts: with {} mapped and {} of code, corpus \
                 and buffers",
                Bytes(mapped_bytes),
                Bytes(overhead_bytes)
            ),
        ),
    ];
    for (part, bytes, cover) in totals {
        let _ = writeln!(text, "memory {part:<13} {:>13} {cover}", Bytes(bytes).to_string());
    }
    if let Some(Curvature { largest_curvature, lr_limits }) = &report.curvature {
        let _ = writeln!(text, "largest curvature   {largest_curvature:>14.6}");
        for LrLimit { delay, lr } in lr_limits {
            let _ =
                writeln!(text, "optim.lr below      {lr:>14.6} with a gradient delay of {delay}");
        }
    }
    for (index, row) in report.logits.iter().enumerate() {
        let mut best: Vec<usize> = (0..row.len()).collect();
        best.sort_by(|a, b| row[*b].total_cmp(&row[*a]));
        let best = best.iter().take(NUM_TOP_TOKENS);
        let best: Vec<_> = best.map(|token| format!("{token} ({:.4})", row[*token])).collect();
        let _ = writeln!(text, "after token {:<8} {}", index + 1, best.join(", "));
    }
    text
}
