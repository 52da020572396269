//! The best layout as a recipe that `train` accepts, where this engine can run it.

use super::cluster::Asked;
use lockstep_config::{Recipe, Sources, resolve};
use lockstep_estimate::layout::{Layout, Recompute};
use lockstep_schedule::pipeline::Kind;

/// A recipe's text, or why there is none.
pub(super) fn recipe(
    recipe: Option<&Recipe>,
    asked: &Asked,
    layout: &Layout,
) -> Result<String, String> {
    let model = &asked.model;
    if model.experts.is_some() || model.latent.is_some() || layout.context > 1 {
        return Err(format!(
            "--write: this engine has no experts, latent attention or parts of sequences, and the \
             best layout of {} is {}; try a dense model and --batch for whole sequences",
            model.name,
            layout.brief()
        ));
    }
    let base = recipe.map_or_else(|| model_alone(asked), Recipe::to_toml);
    let file = Some(("the recipe".to_owned(), base));
    let best = resolve(&Sources { file, sets: sets(asked, layout), ..Sources::default() });
    let best = best.map_err(|errors| {
        format!("--write: this engine cannot run {}: {errors}", layout.brief())
    })?;
    let (model, cluster) = (&model.name, &asked.cluster.name);
    let rest = match recipe {
        Some(_) => "",
        None => "# Data, steps, rates and precision are this engine's defaults, not the plan's.\n",
    };
    let about =
        format!("# {model} on {cluster}, the best of the layouts that were searched.\n{rest}\n");
    Ok(about + &best.to_toml())
}

/// A recipe that says nothing but which model.
fn model_alone(asked: &Asked) -> String {
    let model = &asked.model;
    let family = if model.gated { "llama" } else { "gpt2" };
    format!(
        "[model]\nfamily = \"{family}\"\n\
         layers = {}\nwidth = {}\nheads = {}\nkv_heads = {}\nffn = {}\nvocab = {}\ncontext = {}\n\
         tied = {}\n\n[train]\nsteps = 1000\n",
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

/// The keys of a layout; everything else of a recipe stays.
fn sets(asked: &Asked, layout: &Layout) -> Vec<String> {
    let (recompute, schedule) = names(layout);
    let mut sets = vec![
        format!("train.batch={}", asked.batch),
        format!("train.microbatch={}", layout.microbatch),
        format!("parallel.data={}", layout.data),
        format!("parallel.zero={}", layout.zero),
        format!("parallel.tensor={}", layout.tensor),
        format!("parallel.sequence={}", layout.sequence),
        format!("parallel.pipeline={}", layout.pipeline),
        format!("parallel.virtual_stages={}", layout.chunks),
        format!("parallel.schedule={schedule}"),
        format!("parallel.recompute={recompute}"),
        // Every copy has a leaf of its own: more of them would ask for more microbatches.
        format!("numerics.invariant_up_to={}", layout.data),
        format!("run.workers={}", layout.devices()),
    ];
    if layout.offload {
        // Devices of this engine are hosts: what is not in memory lies on a disk.
        sets.push("offload.state=file".to_owned());
    }
    sets
}

/// What a layout computes again and when, as recipes call it.
fn names(layout: &Layout) -> (&'static str, &'static str) {
    let recompute = match layout.recompute {
        Recompute::None => "none",
        Recompute::Selective => "selective",
        Recompute::Full => "full",
    };
    let schedule = match layout.schedule {
        Kind::Interleaved => "interleaved",
        Kind::ZeroBubble => "zero-bubble",
        Kind::GPipe => "gpipe",
        _ => "1f1b",
    };
    (recompute, schedule)
}
