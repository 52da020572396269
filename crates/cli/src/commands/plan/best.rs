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
    let steps = recipe.map_or(1000, |recipe| recipe.train.steps);
    let _ = writeln!(
        text,
        "[train]\nsteps = {steps}\nbatch = {}\nmicrobatch = {}\n",
        asked.batch, layout.microbatch
    );
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
