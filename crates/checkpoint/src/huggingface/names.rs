//! Mapping of tensor names of a Hugging Face folder to the engine's names.
//!
//! The engine uses the names of `GPT2LMHeadModel`, `LlamaForCausalLM` and the other classes with a
//! head. A folder of the bare `GPT2Model` or `LlamaModel` has the same names without their prefix.
//! Buffers that older writers stored are skipped by an explicit list.

use super::architecture::Architecture;

/// Buffers that follow from the configuration; `*` is a layer index.
const COMPUTED: &[&str] = &[
    // Causal mask and fill value.
    "transformer.h.*.attn.bias",
    "transformer.h.*.attn.masked_bias",
    // Rotary frequencies.
    "model.layers.*.self_attn.rotary_emb.inv_freq",
    "model.rotary_emb.inv_freq",
    "gpt_neox.layers.*.attention.rotary_emb.inv_freq",
    "gpt_neox.layers.*.attention.bias",
    "gpt_neox.layers.*.attention.masked_bias",
];

/// Engine name of a stored tensor; none for a buffer.
pub(super) fn name_of(architecture: &Architecture, stored: &str) -> Option<String> {
    if stored == architecture.ends[1] {
        return Some(stored.to_owned());
    }
    let prefix = architecture.prefix;
    let rest = stored.strip_prefix(prefix).unwrap_or(stored);
    let name = format!("{prefix}{rest}");
    (!COMPUTED.contains(&pattern(&name).as_str())).then_some(name)
}

/// The name with `*` in place of integers.
fn pattern(name: &str) -> String {
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    let parts = name.split('.').map(|part| if is_number(part) { "*" } else { part });
    parts.collect::<Vec<_>>().join(".")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::huggingface::architecture::{BLOOM, GPT_NEOX, GPT2, LLAMA};

    #[test]
    fn names_come_with_and_without_their_prefix() {
        for (architecture, stored, name) in [
            (&GPT2, "h.0.ln_1.bias", "transformer.h.0.ln_1.bias"),
            (&GPT2, "transformer.h.0.ln_1.bias", "transformer.h.0.ln_1.bias"),
            (&GPT2, "lm_head.weight", "lm_head.weight"),
            (&BLOOM, "ln_f.bias", "transformer.ln_f.bias"),
            (&GPT_NEOX, "embed_out.weight", "embed_out.weight"),
            (&GPT_NEOX, "embed_in.weight", "gpt_neox.embed_in.weight"),
            (&LLAMA, "norm.weight", "model.norm.weight"),
            (&LLAMA, "model.norm.weight", "model.norm.weight"),
        ] {
            assert_eq!(name_of(architecture, stored).as_deref(), Some(name));
        }
    }

    #[test]
    fn masks_and_angles_are_no_weights_and_biases_are() {
        for (architecture, stored) in [
            (&GPT2, "h.11.attn.bias"),
            (&GPT2, "transformer.h.0.attn.masked_bias"),
            (&LLAMA, "model.layers.3.self_attn.rotary_emb.inv_freq"),
            (&LLAMA, "rotary_emb.inv_freq"),
            (&GPT_NEOX, "gpt_neox.layers.0.attention.masked_bias"),
            (&GPT_NEOX, "layers.0.attention.rotary_emb.inv_freq"),
        ] {
            assert_eq!(name_of(architecture, stored), None, "{stored}");
        }
        for (architecture, stored) in [
            (&GPT2, "h.0.attn.c_attn.bias"),
            (&GPT_NEOX, "gpt_neox.layers.0.attention.dense.bias"),
            (&GPT2, "h.x.attn.bias"),
            (&LLAMA, "model.layers.0.attn.bias"),
        ] {
            assert!(name_of(architecture, stored).is_some(), "{stored}");
        }
    }
}
