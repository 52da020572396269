//! Byte tokenizer: 256 tokens, nothing to train or ship.
//!
//! Every text has exactly one encoding, and a token count is a byte count, which makes losses
//! comparable with byte entropies. English takes about four times as many byte tokens as sub-word
//! tokens. A model may generate invalid UTF-8, so decoding replaces it instead of failing.

/// Vocabulary size.
pub const VOCAB: usize = 256;

/// Appends the UTF-8 bytes of a text as tokens.
pub(super) fn encode(text: &str, tokens: &mut Vec<u32>) {
    tokens.extend(text.bytes().map(u32::from));
}

/// Decodes tokens. Invalid UTF-8 and tokens above 255 become U+FFFD.
pub(super) fn decode(tokens: &[u32]) -> String {
    // 0xff never occurs in UTF-8, so it marks a token that is not a byte.
    let bytes: Vec<u8> = tokens.iter().map(|&t| u8::try_from(t).unwrap_or(0xff)).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Token of exactly this text.
pub(super) fn token(text: &str) -> Option<u32> {
    let [byte] = text.as_bytes() else { return None };
    Some(u32::from(*byte))
}
