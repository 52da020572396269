//! `lockstep inspect`: what a recipe's model consists of, before anything is allocated.

use crate::failure::Failure;
use crate::output;
use crate::recipe_args::RecipeArguments;
use lockstep_config::Recipe;
use lockstep_config::units::Bytes;
use lockstep_model::{Blueprint, Param, describe};
use lockstep_parallel::Footprint;
use lockstep_platform::World;
use lockstep_trainer::generate::Generator;
use lockstep_trainer::pretrained::Pretrained;
use lockstep_trainer::saved::{blueprint_on, footprint};
use serde::Serialize;
use std::fmt::Write;
use std::path::Path;

/// Most likely tokens that people get to see; programs get all.
const LOGITS_SHOWN: usize = 5;

/// Show a model's parameters, shapes, memory and FLOPs per token
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  lockstep inspect                        the default recipe
  lockstep inspect --preset gpt2          GPT-2 with 124 million parameters
  lockstep inspect my.toml --json
  lockstep inspect my-llama               a folder of Hugging Face, or of a run
  lockstep inspect my-llama --logits 1,15,7 --json   what it computes after each of these tokens")]
pub(crate) struct Arguments {
    #[command(flatten)]
    recipe: RecipeArguments,
    /// Run these tokens through the model of a folder and show the logits after each
    #[arg(long, value_name = "TOKENS", value_delimiter = ',')]
    logits: Vec<u32>,
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
    /// One row for each token of `--logits`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    logits: Vec<Vec<f32>>,
}

#[derive(Serialize)]
struct Tensor {
    name: String,
    shape: Vec<usize>,
    num_params: u64,
    mirror_of: Option<String>,
}

#[derive(Serialize)]
#[expect(clippy::struct_field_names, reason = "names that scripts rely on carry their unit")]
struct Memory {
    weights_bytes: u64,
    gradients_bytes: u64,
    optimizer_bytes: u64,
    activations_bytes: u64,
    buffers_bytes: u64,
    total_bytes: u64,
}

pub(crate) fn run(arguments: &Arguments, world: &World) -> Result<(), Failure> {
    let recipe = arguments.recipe.resolve(world)?;
    let blueprint = describe(&recipe.model);
    let mut report = report(&recipe, &blueprint);
    report.logits = logits(&arguments.logits, &recipe, world)?;
    if arguments.json { output::json(&report) } else { output::text(&render(&report)) }
}

fn report(recipe: &Recipe, blueprint: &Blueprint) -> Report {
    let flops = blueprint.flops_per_token();
    Report {
        num_params: blueprint.num_params() as u64,
        params: blueprint.params().map(|(_, param)| tensor(param)).collect(),
        forward_flops_per_token: flops.forward,
        backward_flops_per_token: flops.backward,
        memory: memory(&footprint(recipe, &blueprint_on(recipe, 0), 0)),
        logits: Vec::new(),
    }
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

fn memory(footprint: &Footprint) -> Memory {
    let bytes = |elements: usize| (elements * size_of::<f32>()) as u64;
    Memory {
        weights_bytes: bytes(footprint.weights),
        gradients_bytes: bytes(footprint.gradients),
        optimizer_bytes: bytes(footprint.optimizer),
        activations_bytes: bytes(footprint.activations),
        buffers_bytes: bytes(footprint.buffers),
        total_bytes: bytes(footprint.total()),
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
    for (index, row) in report.logits.iter().enumerate() {
        let mut best: Vec<usize> = (0..row.len()).collect();
        best.sort_by(|a, b| row[*b].total_cmp(&row[*a]));
        let best = best.iter().take(LOGITS_SHOWN);
        let best: Vec<_> = best.map(|token| format!("{token} ({:.4})", row[*token])).collect();
        let _ = writeln!(text, "after token {:<8} {}", index + 1, best.join(", "));
    }
    text
}
