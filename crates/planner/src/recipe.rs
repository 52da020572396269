//! Recipes and plans: model and layout of a recipe, and a planned layout as a recipe for `train`.

use crate::layout::Layout;
use crate::model::{Model, QueryKeyNorms};
use crate::scenario::Scenario;
use lockstep_config::{
    ConfigErrors, Family, ModelType, PipelineSchedule, Recipe, Sources, resolve,
};
use lockstep_schedule::pipeline::Kind;

/// The model of a recipe, as plans describe it.
pub fn model_from_recipe(model: &lockstep_config::Model) -> Model {
    let name = format!("{} layers of {}", model.layers, model.width);
    let whole = |number: usize| number as u64;
    let (layers, width, heads) = (whole(model.layers), whole(model.width), whole(model.heads));
    let (ffn, kv_heads) = (whole(model.ffn), whole(model.kv_heads));
    let numbers = if model.family == Family::Llama {
        let llama = Model::llama(&name, layers, width, heads, kv_heads, ffn)
            .reading(whole(model.vocab), whole(model.context));
        Model {
            head_dim: whole(model.head_dim()),
            query_key_value_biases: model.variant.qkv_bias,
            query_key_norms: match model.variant.model_type {
                Some(ModelType::Olmo2) => QueryKeyNorms::Whole,
                _ if model.variant.qk_norm => QueryKeyNorms::Heads,
                _ => QueryKeyNorms::None,
            },
            layer_norms: match model.variant.model_type {
                Some(ModelType::Gemma2) => 4,
                _ => llama.layer_norms,
            },
            ..llama
        }
    } else {
        let gpt = Model::gpt(&name, layers, width, heads, whole(model.vocab), whole(model.context));
        let positions = if model.family == Family::Gpt2 { gpt.positions } else { 0 };
        let extra_norms = u64::from(model.family == Family::Bloom);
        Model { kv_heads, ffn, positions, extra_norms, ..gpt }
    };
    Model { tied: model.tied, dropout: model.dropout > 0.0, ..numbers }
}

/// The layout of a recipe.
pub fn layout_from_recipe(recipe: &Recipe) -> Layout {
    let parallel = &recipe.parallel;
    let whole = |number: usize| number as u64;
    Layout {
        tensor: whole(parallel.tensor),
        sequence: parallel.sequence,
        pipeline: whole(parallel.pipeline),
        chunks: whole(parallel.virtual_stages),
        data: whole(parallel.data),
        zero: parallel.zero,
        microbatch: whole(recipe.train.microbatch_size),
        recompute: parallel.recompute,
        schedule: parallel.schedule.name().parse().unwrap_or(Kind::OneFOneB),
        ..Layout::ONE
    }
}

/// A planned layout as recipe text, or the reason why this engine cannot train it.
pub fn recipe_from_layout(
    recipe: Option<&Recipe>,
    scenario: &Scenario,
    layout: &Layout,
) -> Result<String, String> {
    let (model, mut missing) = (&scenario.model, layout.unsupported());
    missing.extend(model.unsupported());
    if !missing.is_empty() {
        return Err(format!(
            "this engine has no {}, and the best layout of {} is {layout}; try a Llama or GPT-2 \
             model and --layout without them",
            missing.join(" and no "),
            model.name
        ));
    }
    let best = resolve_layout(recipe, scenario, layout)
        .map_err(|errors| format!("this engine cannot run {layout}: {errors}"))?;
    let (model, cluster) = (&model.name, &scenario.cluster.name);
    let rest = match recipe {
        Some(_) => "",
        None => "# Data, steps, learning rate and precision are defaults, not part of the plan.\n",
    };
    let about = format!("# {model} on {cluster}, the best layout of the search.\n{rest}\n");
    Ok(about + &best.to_toml())
}

/// Reasons why this engine cannot train a plan: the parts it does not have, and the rules that the
/// layout breaks as a recipe. Empty where it can.
pub fn not_runnable(recipe: Option<&Recipe>, scenario: &Scenario, layout: &Layout) -> Vec<String> {
    let mut reasons = scenario.workload().with(*layout).job.unsupported();
    if layout.unsupported().is_empty()
        && scenario.model.unsupported().is_empty()
        && let Err(errors) = resolve_layout(recipe, scenario, layout)
    {
        reasons.extend(errors.to_string().lines().map(str::to_owned));
    }
    reasons
}

/// The recipe of a layout, for the model of a recipe or of the scenario.
fn resolve_layout(
    recipe: Option<&Recipe>,
    scenario: &Scenario,
    layout: &Layout,
) -> Result<Recipe, ConfigErrors> {
    let base = recipe.map_or_else(|| model_toml(scenario), Recipe::to_toml);
    let file = Some(("the recipe".to_owned(), base));
    resolve(&Sources { file, sets: settings(scenario, layout), ..Sources::default() })
}

/// Recipe text with the model alone.
fn model_toml(scenario: &Scenario) -> String {
    let model = &scenario.model;
    let family = match (model.gated, model.positions, model.extra_norms) {
        (true, _, _) => "llama",
        (false, 0, 0) => "gpt_neox",
        (false, 0, _) => "bloom",
        (false, _, _) => "gpt2",
    };
    let mut variant = if model.head_dim * model.heads == model.width {
        String::new()
    } else {
        format!("head_dim = {}\n", model.head_dim)
    };
    if model.query_key_value_biases {
        variant += "qkv_bias = true\n";
    }
    variant += match model.query_key_norms {
        QueryKeyNorms::None => "",
        QueryKeyNorms::Heads => "qk_norm = true\n",
        QueryKeyNorms::Whole => "model_type = \"olmo2\"\n",
    };
    if model.layer_norms == 4 {
        // Its numbers that no plan depends on, as published.
        variant += "model_type = \"gemma2\"\nattention_soft_cap = 50.0\nfinal_soft_cap = 30.0\n\
                    sliding_window = 4096\n";
    }
    format!(
        "[model]\nfamily = \"{family}\"\n\
         layers = {}\nwidth = {}\nheads = {}\nkv_heads = {}\nffn = {}\nvocab = {}\ncontext = {}\n\
         tied = {}\n{variant}\n[train]\nsteps = 1000\n",
        model.layers,
        model.width,
        model.heads,
        model.kv_heads,
        model.ffn,
        model.vocab,
        model.context,
        model.tied,
    )
}

/// Settings of a layout over the recipe.
fn settings(scenario: &Scenario, layout: &Layout) -> Vec<String> {
    // A single stage has no schedule to choose.
    let schedule = PipelineSchedule::from_name(&layout.schedule.to_string());
    let schedule = schedule.unwrap_or(PipelineSchedule::OneFOneB);
    let mut sets = vec![
        format!("train.batch={}", scenario.batch),
        format!("train.microbatch={}", layout.microbatch),
        format!("parallel.data={}", layout.data),
        format!("parallel.zero={}", layout.zero),
        format!("parallel.tensor={}", layout.tensor),
        format!("parallel.sequence={}", layout.sequence),
        format!("parallel.pipeline={}", layout.pipeline),
        format!("parallel.virtual_stages={}", layout.chunks),
        format!("parallel.schedule={schedule}"),
        format!("parallel.recompute={}", layout.recompute),
        // One reduction leaf per data-parallel replica; more leaves would need more micro-batches.
        format!("numerics.invariant_up_to={}", layout.data),
        format!("run.workers={}", layout.devices()),
    ];
    if layout.offload.is_on() {
        // The CPU engine computes in host memory, so offloaded state goes to a file.
        sets.push("offload.state=file".to_owned());
    }
    sets
}
