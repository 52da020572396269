//! What a tensor of a Hugging Face folder is called in the engine.
//!
//! The engine uses the names of `GPT2LMHeadModel` and `LlamaForCausalLM`. A folder saved from the
//! bare `GPT2Model` or `LlamaModel` has the same names without their first word. Older writers also
//! stored tables that are computed, not learned; those are left out, by this list and no other.

use lockstep_config::Family;

/// The output projection, which stands beside the model and not inside it.
const HEAD: &str = "lm_head.weight";

/// Tables that follow from the configuration; `*` is the number of a layer.
const COMPUTED: &[&str] = &[
    // The causal mask, and what masked scores were set to.
    "transformer.h.*.attn.bias",
    "transformer.h.*.attn.masked_bias",
    // The speeds of the rotary angles.
    "model.layers.*.self_attn.rotary_emb.inv_freq",
    "model.rotary_emb.inv_freq",
];

/// The name in the engine of a stored tensor, or nothing for one that is no weight.
pub(super) fn name_of(family: Family, stored: &str) -> Option<String> {
    if stored == HEAD {
        return Some(HEAD.to_owned());
    }
    let first_word = match family {
        Family::Gpt2 => "transformer.",
        Family::Llama => "model.",
    };
    let rest = stored.strip_prefix(first_word).unwrap_or(stored);
    let name = format!("{first_word}{rest}");
    (!COMPUTED.contains(&pattern(&name).as_str())).then_some(name)
}

/// The name with `*` in place of numbers.
fn pattern(name: &str) -> String {
    let is_number = |word: &str| !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_digit());
    let words = name.split('.').map(|word| if is_number(word) { "*" } else { word });
    words.collect::<Vec<_>>().join(".")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_with_and_without_their_first_word() {
        for (family, stored, name) in [
            (Family::Gpt2, "h.0.ln_1.bias", "transformer.h.0.ln_1.bias"),
            (Family::Gpt2, "transformer.h.0.ln_1.bias", "transformer.h.0.ln_1.bias"),
            (Family::Gpt2, "lm_head.weight", "lm_head.weight"),
            (Family::Llama, "norm.weight", "model.norm.weight"),
            (Family::Llama, "model.norm.weight", "model.norm.weight"),
        ] {
            assert_eq!(name_of(family, stored).as_deref(), Some(name));
        }
    }

    #[test]
    fn masks_and_angles_are_no_weights_and_biases_are() {
        for (family, stored) in [
            (Family::Gpt2, "h.11.attn.bias"),
            (Family::Gpt2, "transformer.h.0.attn.masked_bias"),
            (Family::Llama, "model.layers.3.self_attn.rotary_emb.inv_freq"),
            (Family::Llama, "rotary_emb.inv_freq"),
        ] {
            assert_eq!(name_of(family, stored), None, "{stored}");
        }
        for (family, stored) in [
            (Family::Gpt2, "h.0.attn.c_attn.bias"),
            (Family::Gpt2, "h.x.attn.bias"),
            (Family::Llama, "model.layers.0.attn.bias"),
        ] {
            assert!(name_of(family, stored).is_some(), "{stored}");
        }
    }
}
