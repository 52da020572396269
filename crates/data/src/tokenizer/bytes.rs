//! The byte tokenizer: a token is a byte, so there are 256 of them and nothing to learn or ship.
//!
//! Every text has exactly one encoding, no text is out of vocabulary, and a token count is a byte
//! count, which makes losses comparable with byte entropies. The price is length: English takes
//! about four times as many byte tokens as sub-word tokens. A model may generate bytes that are not
//! UTF-8 (half of a character, say), so decoding replaces what cannot be read instead of failing.

/// How many different tokens there are.
pub const VOCAB: usize = 256;

/// Appends the tokens of a text: its UTF-8 bytes.
pub(super) fn encode(text: &str, tokens: &mut Vec<u32>) {
    tokens.extend(text.bytes().map(u32::from));
}

/// The text of some tokens. Bytes that are not UTF-8, and tokens of a larger vocabulary that no
/// byte stands for, read as U+FFFD.
pub(super) fn decode(tokens: &[u32]) -> String {
    // 0xff never occurs in UTF-8, so it stands for a token that is no byte.
    let bytes: Vec<u8> = tokens.iter().map(|&t| u8::try_from(t).unwrap_or(0xff)).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The token that is exactly this text.
pub(super) fn token(text: &str) -> Option<u32> {
    let [byte] = text.as_bytes() else { return None };
    Some(u32::from(*byte))
}
