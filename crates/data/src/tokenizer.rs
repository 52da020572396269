//! The byte tokenizer: a token is a byte, so there are 256 of them and nothing to learn or ship.
//!
//! Every text has exactly one encoding, no text is out of vocabulary, and a token count is a byte
//! count, which makes losses comparable with byte entropies. The price is length: English takes
//! about four times as many byte tokens as sub-word tokens. A model may generate bytes that are not
//! UTF-8 (half of a character, say), so decoding replaces what cannot be read instead of failing.

/// Turns text into tokens and tokens into text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tokenizer;

impl Tokenizer {
    /// How many different tokens there are; every token is smaller than this.
    pub const VOCAB: usize = 256;

    /// The tokens of a text: its UTF-8 bytes.
    pub fn encode(self, text: &str) -> Vec<u32> {
        text.bytes().map(u32::from).collect()
    }

    /// The text of some tokens. Bytes that are not UTF-8, and tokens of a larger vocabulary that no
    /// byte stands for, read as U+FFFD.
    pub fn decode(self, tokens: &[u32]) -> String {
        // 0xff never occurs in UTF-8, so it stands for a token that is no byte.
        let bytes: Vec<u8> = tokens.iter().map(|&t| u8::try_from(t).unwrap_or(0xff)).collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_survives_a_round_trip() {
        for text in ["", "In the beginning", "naïve café\n", "日本語 🙂"] {
            let tokens = Tokenizer.encode(text);
            assert_eq!(tokens.len(), text.len());
            assert!(tokens.iter().all(|&t| (t as usize) < Tokenizer::VOCAB));
            assert_eq!(Tokenizer.decode(&tokens), text);
        }
    }

    #[test]
    fn unreadable_bytes_and_foreign_tokens_are_replaced() {
        assert_eq!(Tokenizer.decode(&[0x61, 0xc3]), "a\u{fffd}");
        assert_eq!(Tokenizer.decode(&[0x61, 50_256, 0x62]), "a\u{fffd}b");
    }
}
