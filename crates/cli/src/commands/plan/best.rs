//! The best layout as a recipe that `train` accepts, where this engine can run it.

use super::cluster::Asked;
use lockstep_config::{Recipe, Sources, resolve};
use lockstep_estimate::layout::{Layout, Recompute};
use lockstep_schedule::pipeline::Kind;
use std::fmt::Write;

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
    if let Some(own) = recipe {
        return with_layout(own, asked, layout);
    }
    let mut text = String::new();
    let family = if model.gated { "llama" } else { "gpt2" };
    let _ = writeln!(
        text,
        "# {} on {}, the best of the layouts that were searched.\n\n\
         [model]\nfamily = \"{family}\"\n\
         layers = {}\nwidth = {}\nheads = {}\nkv_heads = {}\nffn = {}\nvocab = {}\ncontext = {}\n\
         tied = {}\n",
        model.name,
        asked.cluster.name,
        model.layers,
        model.width,
        model.heads,
        model.kv_heads,
        model.ffn,
        model.vocab,
        model.context,
        model.tied,
    );
    let _ = writeln!(
        text,
        "[train]\nsteps = 1000\nbatch = {}\nmicrobatch = {}\n",
        asked.batch, layout.microbatch
    );
    let (recompute, schedule) = names(layout);
    let _ = writeln!(
        text,
        "[parallel]\ndata = {}\nzero = {}\ntensor = {}\nsequence = {}\npipeline = {}\n\
         schedule = \"{schedule}\"\nrecompute = \"{recompute}\"",
        layout.data, layout.zero, layout.tensor, layout.sequence, layout.pipeline,
    );
    if layout.chunks > 1 {
        let _ = writeln!(text, "virtual_stages = {}", layout.chunks);
    }
    if layout.offload {
        // Devices of this engine are hosts: what is not in memory lies on a disk.
        text += "\n[offload]\nstate = \"file\"\n";
    }
    // Every copy has a leaf of its own: more of them would ask for more microbatches.
    let _ = writeln!(text, "\n[numerics]\ninvariant_up_to = {}", layout.data);
    let _ = writeln!(text, "\n[run]\nworkers = {}", layout.devices());
    let file = Some(("best.toml".to_owned(), text.clone()));
    resolve(&Sources { file, ..Sources::default() }).map_err(|errors| {
        format!("--write: this engine cannot run {}: {errors}", layout.brief())
    })?;
    Ok(text)
}

/// The same recipe on other devices: everything that is not about the layout stays.
fn with_layout(own: &Recipe, asked: &Asked, layout: &Layout) -> Result<String, String> {
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
        sets.push("offload.state=file".to_owned());
    }
    let file = Some(("the recipe".to_owned(), own.to_toml()));
    let best = resolve(&Sources { file, sets, ..Sources::default() }).map_err(|errors| {
        format!("--write: this engine cannot run {}: {errors}", layout.brief())
    })?;
    Ok(best.to_toml())
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
