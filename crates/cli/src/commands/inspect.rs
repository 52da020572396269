//! `lockstep inspect`: what a recipe's model consists of, before anything is allocated.

use crate::failure::Failure;
use crate::output;
use crate::recipe_args::RecipeArguments;
use lockstep_config::Recipe;
use lockstep_config::units::Bytes;
use lockstep_model::{Blueprint, Param, describe};
use lockstep_parallel::Footprint;
use lockstep_platform::World;
use serde::Serialize;
use std::fmt::Write;

/// Show a model's parameters, shapes, memory and FLOPs per token
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  lockstep inspect                        the default recipe
  lockstep inspect --preset gpt2          GPT-2 with 124 million parameters
  lockstep inspect my.toml --json")]
pub(crate) struct Arguments {
    #[command(flatten)]
    recipe: RecipeArguments,
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
    let report = report(&recipe, &blueprint);
    if arguments.json { output::json(&report) } else { output::text(&render(&report)) }
}

fn report(recipe: &Recipe, blueprint: &Blueprint) -> Report {
    let flops = blueprint.flops_per_token();
    Report {
        num_params: blueprint.num_params() as u64,
        params: blueprint.params().map(|(_, param)| tensor(param)).collect(),
        forward_flops_per_token: flops.forward,
        backward_flops_per_token: flops.backward,
        memory: memory(&lockstep_trainer::saved::footprint(recipe, blueprint, 0)),
    }
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
    text
}
