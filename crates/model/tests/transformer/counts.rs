//! Parameter counts, names and FLOPs against closed forms.

use super::tiny::{GPT2, LLAMA};
use lockstep_config::Model;
use lockstep_model::{Blueprint, describe};

/// Parameters of both families from their published formulas.
fn by_hand(model: &Model) -> usize {
    let Model { layers, width: c, ffn: f, vocab: v, context: s, .. } = *model;
    let kv = model.kv_heads * model.head_dim();
    let head = if model.tied { 0 } else { v * c };
    if model.family == lockstep_config::Family::Llama {
        layers * (2 * c * c + 2 * c * kv + 3 * c * f + 2 * c) + v * c + c + head
    } else {
        let attention = c * (c + 2 * kv) + (c + 2 * kv) + c * c + c;
        layers * (attention + 2 * c * f + f + c + 4 * c) + (v + s) * c + 2 * c + head
    }
}

#[test]
fn parameter_counts_follow_the_formulas_and_tied_tables_count_once() {
    for family in [LLAMA, GPT2] {
        for tied in [false, true] {
            let model = Model { tied, ..family.clone() };
            assert_eq!(describe(&model).num_params(), by_hand(&model), "{model:?}");
        }
    }
}

#[test]
fn gpt2_small_and_llama_7b_have_their_published_sizes() {
    let gpt2 = Model {
        layers: 12,
        width: 768,
        heads: 12,
        kv_heads: 12,
        ffn: 3072,
        vocab: 50257,
        context: 1024,
        tied: true,
        ..GPT2
    };
    assert_eq!(describe(&gpt2).num_params(), 124_439_808);
    let llama = Model {
        layers: 32,
        width: 4096,
        heads: 32,
        kv_heads: 32,
        ffn: 11008,
        vocab: 32000,
        context: 2048,
        ..LLAMA
    };
    assert_eq!(describe(&llama).num_params(), 6_738_415_616);
}

#[test]
fn every_block_is_laid_out_without_gaps_and_names_are_unique() {
    for model in [LLAMA, GPT2] {
        let blueprint = describe(&Model { tied: true, ..model });
        for block in &blueprint.blocks {
            let mut end = 0;
            for param in block.params() {
                assert_eq!(param.offset, end, "{}", param.name);
                end = param.range().end;
            }
            assert_eq!(block.num_params(), end);
        }
        let mut names: Vec<_> = blueprint.params().map(|(_, param)| &param.name).collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), blueprint.params().count());
    }
}

fn names(blueprint: &Blueprint, block: usize) -> Vec<&str> {
    blueprint.blocks[block].params().iter().map(|param| &param.name[..]).collect()
}

#[test]
fn names_are_those_of_hugging_face() {
    let llama = describe(&LLAMA);
    assert_eq!(names(&llama, 0), ["model.embed_tokens.weight"]);
    assert_eq!(
        names(&llama, 2),
        [
            "model.layers.1.input_layernorm.weight",
            "model.layers.1.self_attn.q_proj.weight",
            "model.layers.1.self_attn.k_proj.weight",
            "model.layers.1.self_attn.v_proj.weight",
            "model.layers.1.self_attn.o_proj.weight",
            "model.layers.1.post_attention_layernorm.weight",
            "model.layers.1.mlp.gate_proj.weight",
            "model.layers.1.mlp.up_proj.weight",
            "model.layers.1.mlp.down_proj.weight",
        ]
    );
    assert_eq!(names(&llama, 3), ["model.norm.weight", "lm_head.weight"]);
    let gpt2 = describe(&GPT2);
    assert_eq!(names(&gpt2, 0), ["transformer.wte.weight", "transformer.wpe.weight"]);
    assert_eq!(
        names(&gpt2, 1),
        [
            "transformer.h.0.ln_1.weight",
            "transformer.h.0.ln_1.bias",
            "transformer.h.0.attn.c_attn.weight",
            "transformer.h.0.attn.c_attn.bias",
            "transformer.h.0.attn.c_proj.weight",
            "transformer.h.0.attn.c_proj.bias",
            "transformer.h.0.ln_2.weight",
            "transformer.h.0.ln_2.bias",
            "transformer.h.0.mlp.c_fc.weight",
            "transformer.h.0.mlp.c_fc.bias",
            "transformer.h.0.mlp.c_proj.weight",
            "transformer.h.0.mlp.c_proj.bias",
        ]
    );
    assert_eq!(
        names(&gpt2, 3),
        ["transformer.ln_f.weight", "transformer.ln_f.bias", "lm_head.weight"]
    );
}

#[test]
fn flops_are_six_per_weight_in_a_product_plus_attention() {
    for model in [LLAMA, GPT2] {
        let blueprint = describe(&model);
        let products: usize = blueprint
            .params()
            .filter(|(block, param)| *block > 0 && param.shape.len() == 2)
            .map(|(_, param)| param.len())
            .sum();
        let attention = 2 * model.layers * model.width * (model.context + 1);
        let flops = blueprint.flops_per_token();
        assert_eq!(flops.forward, (2 * products + attention) as u64);
        assert_eq!(flops.backward, 2 * flops.forward);
    }
}
