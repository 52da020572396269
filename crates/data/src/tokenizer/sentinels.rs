//! Sentinel tokens of fill-in-the-middle.

/// Tokens of prefix, middle and suffix in known vocabularies: Qwen2.5-Coder and CodeGemma,
/// StarCoder, SantaCoder, CodeLlama, DeepSeek-Coder.
pub(super) const SENTINELS: [[&str; 3]; 5] = [
    ["<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>"],
    ["<fim_prefix>", "<fim_middle>", "<fim_suffix>"],
    ["<fim-prefix>", "<fim-middle>", "<fim-suffix>"],
    ["▁<PRE>", "▁<MID>", "▁<SUF>"],
    ["<｜fim▁begin｜>", "<｜fim▁end｜>", "<｜fim▁hole｜>"],
];

/// Tokens of the first vocabulary of which all three exist.
pub(super) fn find(token: impl Fn(&str) -> Option<u32>) -> Option<[u32; 3]> {
    SENTINELS.iter().find_map(|names| {
        let [prefix, middle, suffix] = names.map(&token);
        Some([prefix?, middle?, suffix?])
    })
}
