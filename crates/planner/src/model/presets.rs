//! Published models by name.

use super::{Attention, Experts, Latent, Model};

/// Families that differ in size alone: name, layers, width, heads.
const GPT2: [(&str, u64, u64, u64); 4] = [
    ("gpt2", 12, 768, 12),
    ("gpt2-medium", 24, 1024, 16),
    ("gpt2-large", 36, 1280, 20),
    ("gpt2-xl", 48, 1600, 25),
];
const GPT3: [(&str, u64, u64, u64); 8] = [
    ("gpt3-125m", 12, 768, 12),
    ("gpt3-350m", 24, 1024, 16),
    ("gpt3-760m", 24, 1536, 16),
    ("gpt3-1.3b", 24, 2048, 16),
    ("gpt3-2.7b", 32, 2560, 32),
    ("gpt3-6.7b", 32, 4096, 32),
    ("gpt3-13b", 40, 5120, 40),
    ("gpt3-175b", 96, 12_288, 96),
];
const OPT: [(&str, u64, u64, u64); 7] = [
    ("opt-1.3b", 24, 2048, 32),
    ("opt-2.7b", 32, 2560, 32),
    ("opt-6.7b", 32, 4096, 32),
    ("opt-13b", 40, 5120, 40),
    ("opt-30b", 48, 7168, 56),
    ("opt-66b", 64, 9216, 72),
    ("opt-175b", 96, 12_288, 96),
];
const BLOOM: [(&str, u64, u64, u64); 6] = [
    ("bloom-560m", 24, 1024, 16),
    ("bloom-1.1b", 24, 1536, 16),
    ("bloom-1.7b", 24, 2048, 16),
    ("bloom-3b", 30, 2560, 32),
    ("bloom-7.1b", 30, 4096, 32),
    ("bloom-176b", 70, 14_336, 112),
];
/// Megatron-LM (Shoeybi et al. 2019, context 1024), and Table 1 of Narayanan et al. 2021 with
/// MT-NLG (context 2048).
const MEGATRON_2019: [(&str, u64, u64, u64); 4] = [
    ("megatron-1.2b", 40, 1536, 16),
    ("megatron-2.5b", 54, 1920, 20),
    ("megatron-4.2b", 64, 2304, 24),
    ("megatron-8.3b", 72, 3072, 32),
];
const MEGATRON_2021: [(&str, u64, u64, u64); 13] = [
    ("megatron-1.7b", 24, 2304, 24),
    ("megatron-3.6b", 30, 3072, 32),
    ("megatron-7.5b", 36, 4096, 32),
    ("megatron-18.4b", 40, 6144, 48),
    ("megatron-22b", 48, 6144, 64),
    ("megatron-39.1b", 48, 8192, 64),
    ("megatron-76.1b", 60, 10_240, 80),
    ("megatron-145.6b", 80, 12_288, 96),
    ("megatron-175b", 96, 12_288, 96),
    ("megatron-310.1b", 96, 16_384, 128),
    ("megatron-529.6b", 105, 20_480, 128),
    ("megatron-1t", 128, 25_600, 160),
    ("mt-nlg-530b", 105, 20_480, 128),
];
/// Llamas: name, layers, width, heads, key-value heads, ffn, vocabulary, context.
type LlamaRow = (&'static str, u64, u64, u64, u64, u64, u64, u64);
const LLAMA: [LlamaRow; 14] = [
    ("llama-7b", 32, 4096, 32, 32, 11_008, 32_000, 2048),
    ("llama-13b", 40, 5120, 40, 40, 13_824, 32_000, 2048),
    ("llama-33b", 60, 6656, 52, 52, 17_920, 32_000, 2048),
    ("llama-65b", 80, 8192, 64, 64, 22_016, 32_000, 2048),
    ("llama2-7b", 32, 4096, 32, 32, 11_008, 32_000, 4096),
    ("llama2-13b", 40, 5120, 40, 40, 13_824, 32_000, 4096),
    ("llama2-70b", 80, 8192, 64, 8, 28_672, 32_000, 4096),
    ("llama3-8b", 32, 4096, 32, 8, 14_336, 128_256, 8192),
    ("llama3-70b", 80, 8192, 64, 8, 28_672, 128_256, 8192),
    ("llama3-405b", 126, 16_384, 128, 8, 53_248, 128_256, 8192),
    ("llama3.2-1b", 16, 2048, 32, 8, 8192, 128_256, 8192),
    ("llama3.2-3b", 28, 3072, 24, 8, 8192, 128_256, 8192),
    ("mistral-7b", 32, 4096, 32, 8, 14_336, 32_000, 8192),
    ("llama-1.34b", 16, 2048, 32, 32, 8192, 131_072, 4096),
];

/// All presets.
pub fn presets() -> Vec<Model> {
    let gpt = |(name, layers, width, heads): (&str, u64, u64, u64), vocab, context| {
        Model::gpt(name, layers, width, heads, vocab, context)
    };
    let mut models: Vec<Model> = GPT2.map(|row| gpt(row, 50_257, 1024)).into();
    models.extend(GPT3.map(|row| gpt(row, 50_257, 2048)));
    models.extend(OPT.map(|row| Model { positions: 2050, ..gpt(row, 50_272, 2048) }));
    // ALiBi positions have no table, and the embedding has a norm.
    models.extend(BLOOM.map(|row| Model {
        positions: 0,
        extra_norms: 1,
        ..gpt(row, 250_880, 2048)
    }));
    models.extend(MEGATRON_2019.map(|row| gpt(row, 51_200, 1024)));
    models.extend(MEGATRON_2021.map(|row| gpt(row, 51_200, 2048)));
    models.extend(LLAMA.map(|(name, layers, width, heads, kv_heads, ffn, vocab, context)| {
        let model = Model::llama(name, layers, width, heads, kv_heads, ffn).reading(vocab, context);
        // In small models the embedding is a fifth of the parameters, so it is tied.
        Model { tied: name.starts_with("llama3.2") || name == "llama-1.34b", ..model }
    }));
    models.push(palm("palm-8b", 32, 4096, 16));
    models.push(palm("palm-62b", 64, 8192, 32));
    models.push(palm("palm-540b", 118, 18_432, 48));
    models.push(mixtral("mixtral-8x7b", 32, 4096, 32, 14_336, 32_000));
    models.push(mixtral("mixtral-8x22b", 56, 6144, 48, 16_384, 32_768));
    models.push(deepseek_v2());
    models.push(deepseek_v3());
    models
}

/// Preset of this name.
pub fn preset(name: &str) -> Option<Model> {
    presets().into_iter().find(|model| model.name == name)
}

/// Multi-query attention with heads of 256, parallel attention and feed-forward, no biases.
fn palm(name: &str, layers: u64, width: u64, heads: u64) -> Model {
    let llama = Model::llama(name, layers, width, heads, 1, 4 * width).reading(256_000, 2048);
    Model { head_dim: 256, tied: true, layer_norms: 1, attention: Attention::Materialised, ..llama }
}

/// Eight experts of which a token passes two.
fn mixtral(name: &str, layers: u64, width: u64, heads: u64, ffn: u64, vocab: u64) -> Model {
    let llama = Model::llama(name, layers, width, heads, 8, ffn).reading(vocab, 4096);
    Model { experts: Some(Experts::routed(8, 2, ffn)), ..llama }
}

fn deepseek_v2() -> Model {
    let experts = Experts { shared_ffn: 3072, dense_layers: 1, ..Experts::routed(160, 6, 1536) };
    let llama = Model::llama("deepseek-v2", 60, 5120, 128, 128, 12_288).reading(102_400, 4096);
    Model { head_dim: 128, experts: Some(experts), latent: Some(Latent::DEEPSEEK), ..llama }
}

fn deepseek_v3() -> Model {
    let routed = Experts::routed(256, 8, 2048);
    let experts = Experts { shared_ffn: 2048, dense_layers: 3, router_bias: true, ..routed };
    let llama = Model::llama("deepseek-v3", 61, 7168, 128, 128, 18_432).reading(129_280, 4096);
    Model { head_dim: 128, experts: Some(experts), latent: Some(Latent::DEEPSEEK), ..llama }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_exactly_those_of_the_published_weights() {
        for (name, params) in [
            ("gpt2", 124_439_808),
            ("gpt2-medium", 354_823_168),
            ("gpt2-large", 774_030_080),
            ("gpt2-xl", 1_557_611_200),
            ("opt-1.3b", 1_315_758_080),
            ("opt-6.7b", 6_658_473_984),
            ("bloom-560m", 559_214_592),
            ("bloom-7.1b", 7_069_016_064),
            ("bloom-176b", 176_247_271_424),
            ("llama-7b", 6_738_415_616),
            ("llama-13b", 13_015_864_320),
            ("llama-33b", 32_528_943_616),
            ("llama-65b", 65_285_660_672),
            ("llama2-70b", 68_976_648_192),
            ("llama3-8b", 8_030_261_248),
            ("llama3-70b", 70_553_706_496),
            ("llama3-405b", 405_853_388_800),
            ("llama3.2-1b", 1_235_814_400),
            ("mistral-7b", 7_241_732_096),
            ("mixtral-8x7b", 46_702_792_704),
            ("mixtral-8x22b", 140_630_071_296),
            ("deepseek-v2", 235_741_434_880),
            ("deepseek-v3", 671_026_419_200),
        ] {
            assert_eq!(preset(name).expect(name).num_params(), params, "{name}");
        }
    }

    #[test]
    fn parameters_round_to_what_papers_call_their_models() {
        for (name, billions) in [
            ("gpt3-175b", 174.6),
            ("opt-175b", 174.6),
            ("megatron-1.2b", 1.2),
            ("megatron-2.5b", 2.5),
            ("megatron-4.2b", 4.2),
            ("megatron-8.3b", 8.3),
            ("megatron-1.7b", 1.7),
            ("megatron-3.6b", 3.6),
            ("megatron-7.5b", 7.5),
            ("megatron-18.4b", 18.4),
            ("megatron-39.1b", 39.1),
            ("megatron-76.1b", 76.1),
            ("megatron-145.6b", 145.6),
            ("megatron-310.1b", 310.1),
            ("megatron-529.6b", 529.6),
            ("megatron-1t", 1008.0),
            ("palm-8b", 8.6),
            ("palm-62b", 62.5),
            ("palm-540b", 540.4),
        ] {
            let params = preset(name).expect(name).num_params() as f64 / 1e9;
            assert!((params - billions).abs() <= 0.051, "{name}: {params}");
        }
    }

    #[test]
    fn a_token_passes_only_the_experts_it_is_sent_to() {
        let active = |name| preset(name).expect("it is one").num_active_params() as f64 / 1e9;
        assert!((active("mixtral-8x7b") - 12.9).abs() < 0.05, "{}", active("mixtral-8x7b"));
        assert!((active("deepseek-v3") - 37.5).abs() < 0.2, "{}", active("deepseek-v3"));
    }

    #[test]
    fn names_are_unique() {
        let mut names: Vec<String> = presets().into_iter().map(|model| model.name).collect();
        names.sort();
        let num = names.len();
        names.dedup();
        assert_eq!(names.len(), num);
    }
}
