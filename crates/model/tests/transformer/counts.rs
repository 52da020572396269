//! Parameter counts, names and FLOPs against closed forms.

use super::tiny::{BLOOM, GPT2, LLAMA, LORA, NEOX, VARIED};
use lockstep_config::{LlamaVariant, Model};
use lockstep_model::{Blueprint, Init, describe, lora};

/// Parameters of a layer's adapters: rank times inputs and outputs of all seven linear layers.
fn adapters_by_hand(model: &Model) -> usize {
    let (c, f, r) = (model.width, model.ffn, model.lora.rank);
    let (q, kv) = (model.heads * model.head_dim(), model.kv_heads * model.head_dim());
    r * (2 * (c + q) + 2 * (c + kv) + 3 * (c + f))
}

/// Parameters of the families from their published formulas.
fn by_hand(model: &Model) -> usize {
    let Model { layers, width: c, ffn: f, vocab: v, context: s, .. } = *model;
    let (q, kv) = (model.heads * model.head_dim(), model.kv_heads * model.head_dim());
    let head = if model.tied { 0 } else { v * c };
    if model.family == lockstep_config::Family::Llama {
        let biases = if model.variant.qkv_bias { q + 2 * kv } else { 0 };
        let norms = if model.variant.qk_norm { 2 * model.head_dim() } else { 0 };
        let adapters = adapters_by_hand(model);
        let layer = 2 * c * q + 2 * c * kv + 3 * c * f + 2 * c + biases + norms + adapters;
        layers * layer + v * c + c + head
    } else {
        let attention = c * (c + 2 * kv) + (c + 2 * kv) + c * c + c;
        let positions = match model.family {
            lockstep_config::Family::Gpt2 => s,
            // Weight and bias of the embedding's norm.
            lockstep_config::Family::Bloom => 2,
            _ => 0,
        };
        layers * (attention + 2 * c * f + f + c + 4 * c) + (v + positions) * c + 2 * c + head
    }
}

#[test]
fn parameter_counts_follow_the_formulas_and_tied_tables_count_once() {
    for family in [LLAMA, GPT2, NEOX, BLOOM, VARIED, Model { lora: LORA, ..VARIED }] {
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
fn bloom_has_its_published_size() {
    let sized = Model { layers: 24, width: 1024, heads: 16, kv_heads: 16, ffn: 4096, ..BLOOM };
    let bloom_560m = Model { vocab: 250_880, tied: true, ..sized };
    assert_eq!(describe(&bloom_560m).num_params(), 559_214_592);
}

#[test]
fn pythia_has_its_published_sizes() {
    for (layers, width, heads, params) in
        [(6, 512, 8, 70_426_624), (12, 768, 12, 162_322_944), (32, 4096, 32, 6_857_302_016)]
    {
        let vocab = if width == 4096 { 50_432 } else { 50_304 };
        let sized = Model { layers, width, heads, kv_heads: heads, ffn: 4 * width, ..NEOX };
        assert_eq!(describe(&Model { vocab, ..sized }).num_params(), params);
    }
}

#[test]
fn descendants_of_llama_have_their_published_sizes() {
    let sized = |[layers, width, heads, kv_heads]: [usize; 4], ffn, vocab| Model {
        layers,
        width,
        heads,
        kv_heads,
        ffn,
        vocab,
        ..LLAMA
    };
    let llama_3_2_1b = Model { tied: true, ..sized([16, 2048, 32, 8], 8192, 128_256) };
    assert_eq!(describe(&llama_3_2_1b).num_params(), 1_235_814_400);
    let mut qwen2_5_7b = sized([28, 3584, 28, 4], 18_944, 152_064);
    qwen2_5_7b.variant = LlamaVariant { qkv_bias: true, ..LlamaVariant::PLAIN };
    assert_eq!(describe(&qwen2_5_7b).num_params(), 7_615_616_512);
    let mut qwen3_0_6b = Model { tied: true, ..sized([28, 1024, 16, 8], 3072, 151_936) };
    qwen3_0_6b.variant =
        LlamaVariant { head_size: Some(128), qk_norm: true, ..LlamaVariant::PLAIN };
    assert_eq!(describe(&qwen3_0_6b).num_params(), 596_049_920);
    let mistral_7b = sized([32, 4096, 32, 8], 14_336, 32_000);
    assert_eq!(describe(&mistral_7b).num_params(), 7_241_732_096);
}

#[test]
fn every_block_is_laid_out_without_gaps_and_names_are_unique() {
    for model in [LLAMA, GPT2, NEOX, BLOOM, VARIED, Model { lora: LORA, ..VARIED }] {
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
    let qwen = describe(&VARIED);
    assert_eq!(
        names(&qwen, 1)[4..10],
        [
            "model.layers.0.self_attn.q_proj.bias",
            "model.layers.0.self_attn.k_proj.bias",
            "model.layers.0.self_attn.v_proj.bias",
            "model.layers.0.self_attn.q_norm.weight",
            "model.layers.0.self_attn.k_norm.weight",
            "model.layers.0.self_attn.o_proj.weight",
        ]
    );
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
    let neox = describe(&NEOX);
    assert_eq!(names(&neox, 0), ["gpt_neox.embed_in.weight"]);
    assert_eq!(
        names(&neox, 2)[2..6],
        [
            "gpt_neox.layers.1.attention.query_key_value.weight",
            "gpt_neox.layers.1.attention.query_key_value.bias",
            "gpt_neox.layers.1.attention.dense.weight",
            "gpt_neox.layers.1.attention.dense.bias",
        ]
    );
    assert_eq!(names(&neox, 3)[2], "embed_out.weight");
    let bloom = describe(&BLOOM);
    assert_eq!(
        names(&bloom, 0),
        [
            "transformer.word_embeddings.weight",
            "transformer.word_embeddings_layernorm.weight",
            "transformer.word_embeddings_layernorm.bias",
        ]
    );
    assert_eq!(names(&bloom, 1)[2], "transformer.h.0.self_attention.query_key_value.weight");
}

#[test]
fn flops_are_six_per_weight_in_a_product_plus_attention() {
    for model in [LLAMA, GPT2, NEOX, BLOOM, VARIED] {
        let blueprint = describe(&model);
        let products: usize = blueprint
            .params()
            .filter(|(block, param)| *block > 0 && param.shape.len() == 2)
            .map(|(_, param)| param.len())
            .sum();
        let width = model.heads * model.head_dim();
        let attention = 2 * model.layers * width * (model.context + 1);
        let flops = blueprint.flops_per_token();
        assert_eq!(flops.forward, (2 * products + attention) as u64);
        assert_eq!(flops.backward, 2 * flops.forward);
    }
}

#[test]
fn frozen_weights_have_no_weight_gradient_and_adapters_add_their_products() {
    let (plain, adapted) = (describe(&LLAMA), describe(&Model { lora: LORA, ..LLAMA }));
    let (before, after) = (plain.flops_per_token(), adapted.flops_per_token());
    let adapters = 2 * (LLAMA.layers * adapters_by_hand(&Model { lora: LORA, ..LLAMA })) as u64;
    assert_eq!(after.forward, before.forward + adapters);
    let attention = 2 * LLAMA.layers * LLAMA.width * (LLAMA.context + 1);
    // Input gradients of the weights, both gradients of attention and of adapters.
    assert_eq!(after.backward, before.forward + attention as u64 + 2 * adapters);
}

#[test]
fn adapters_are_named_as_peft_names_them_and_start_as_there() {
    let adapted = describe(&Model { lora: LORA, ..LLAMA });
    let params = adapted.blocks[1].params();
    let first = params.iter().position(|param| lora::is_adapter(&param.name)).unwrap();
    assert!(params[first..].iter().all(|param| lora::is_adapter(&param.name)), "one run");
    let of = |name: &str| {
        let found = params.iter().find(|param| param.name == format!("model.layers.0.{name}"));
        found.map(|param| (param.shape.clone(), param.init)).unwrap()
    };
    let (a, b) = (of("mlp.down_proj.lora_A.weight"), of("mlp.down_proj.lora_B.weight"));
    let bound = (1.0 / (LLAMA.ffn as f64).sqrt()) as f32;
    assert_eq!(a, (vec![3, LLAMA.ffn], Init::Uniform { bound }));
    assert_eq!(b, (vec![LLAMA.width, 3], Init::Zeros));
    assert_eq!(of("self_attn.k_proj.lora_B.weight").0, [LLAMA.width / 2, 3]);
}
