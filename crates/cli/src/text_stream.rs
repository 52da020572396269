//! Text of a model as it is generated.

use lockstep_data::Tokenizer;

/// Streams text token by token. A character may span several tokens, so incomplete ones are held
/// back.
pub(crate) struct TextStream<'a> {
    tokenizer: &'a Tokenizer,
    /// The last printed tokens and those not printed yet, which decode together.
    tokens: Vec<u32>,
    /// Number of printed tokens.
    num_printed: usize,
}

/// Largest number of tokens that a character may span.
const MAX_PENDING: usize = 8;

impl<'a> TextStream<'a> {
    pub(crate) fn new(tokenizer: &'a Tokenizer) -> Self {
        Self { tokenizer, tokens: Vec::new(), num_printed: 0 }
    }

    pub(crate) fn push(&mut self, token: u32) -> String {
        self.tokens.push(token);
        let is_complete = !self.tokenizer.decode(&self.tokens).ends_with('\u{fffd}');
        if is_complete || self.tokens.len() - self.num_printed >= MAX_PENDING {
            return self.finish();
        }
        String::new()
    }

    /// Text of the tokens not printed yet, decoded after the printed ones: alone they could lose a
    /// space.
    pub(crate) fn finish(&mut self) -> String {
        let text = self.tokenizer.decode(&self.tokens);
        let printed = self.tokenizer.decode(&self.tokens[..self.num_printed]);
        let new = text.strip_prefix(&printed).unwrap_or(&text).to_owned();
        self.tokens.drain(..self.num_printed);
        self.num_printed = self.tokens.len();
        new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_are_complete_and_invalid_bytes_are_replaced() {
        let bytes = Tokenizer::bytes();
        let mut stream = TextStream::new(&bytes);
        let pieces: Vec<String> = "aé".bytes().map(|byte| stream.push(byte.into())).collect();
        assert_eq!(pieces, ["a", "", "é"]);
        assert_eq!(stream.push(0xe2), "");
        assert_eq!(stream.push(0x82), "");
        assert_eq!(stream.push(0xac), "€");
        assert_eq!(stream.push(0xff), "");
        assert_eq!(stream.push(u32::from(b'b')), "\u{fffd}b");
        assert_eq!(stream.push(0xe2), "");
        assert_eq!(stream.finish(), "\u{fffd}");
    }
}
