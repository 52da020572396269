//! Text of a model as it is generated.

use lockstep_data::Tokenizer;

/// Streams text token by token. A character may span several tokens, so incomplete ones are held
/// back, and so is what may be the beginning of a text that ends it.
pub(crate) struct TextStream<'a> {
    tokenizer: &'a Tokenizer,
    /// Texts that end it; they are not printed.
    stops: &'a [String],
    /// Text that may begin one of them.
    held: String,
    is_over: bool,
    /// The last printed tokens and those not printed yet, which decode together.
    tokens: Vec<u32>,
    /// Number of printed tokens.
    num_printed: usize,
}

/// Largest number of tokens that a character may span.
const MAX_PENDING: usize = 8;

impl<'a> TextStream<'a> {
    pub(crate) fn new(tokenizer: &'a Tokenizer) -> Self {
        Self::until(tokenizer, &[])
    }

    /// Stream that ends where one of these texts begins.
    pub(crate) fn until(tokenizer: &'a Tokenizer, stops: &'a [String]) -> Self {
        let (held, is_over) = (String::new(), false);
        Self { tokenizer, stops, held, is_over, tokens: Vec::new(), num_printed: 0 }
    }

    pub(crate) fn push(&mut self, token: u32) -> String {
        let new = self.decoded(token);
        self.before_stop(&new)
    }

    /// Text that is not printed yet.
    pub(crate) fn finish(&mut self) -> String {
        let new = self.rest();
        let printed = self.before_stop(&new);
        printed + &std::mem::take(&mut self.held)
    }

    /// Text with what was held back before it, as far as no end may begin in it.
    fn before_stop(&mut self, new: &str) -> String {
        if self.is_over {
            return String::new();
        }
        let mut text = std::mem::take(&mut self.held) + new;
        if let Some(end) = self.stops.iter().filter_map(|stop| text.find(stop)).min() {
            self.is_over = true;
            text.truncate(end);
            return text;
        }
        let begins = |at: &usize| self.stops.iter().any(|stop| stop.starts_with(&text[*at..]));
        let held = text.char_indices().map(|(at, _)| at).find(begins).unwrap_or(text.len());
        self.held = text.split_off(held);
        text
    }

    fn decoded(&mut self, token: u32) -> String {
        self.tokens.push(token);
        let is_complete = !self.tokenizer.decode(&self.tokens).ends_with('\u{fffd}');
        if is_complete || self.tokens.len() - self.num_printed >= MAX_PENDING {
            return self.rest();
        }
        String::new()
    }

    /// Text of the tokens not printed yet, decoded after the printed ones: alone they could lose a
    /// space.
    fn rest(&mut self) -> String {
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

    #[test]
    fn nothing_of_a_stop_is_printed_and_what_only_begins_one_is() {
        let (bytes, stops) = (Tokenizer::bytes(), ["\nUser:".to_owned(), "</a>".to_owned()]);
        let all = |text: &str| {
            let mut stream = TextStream::until(&bytes, &stops);
            let printed: String = text.bytes().map(|byte| stream.push(byte.into())).collect();
            (printed, stream.finish())
        };
        let text = |printed: &str, rest: &str| (printed.to_owned(), rest.to_owned());
        assert_eq!(all("one\nUser: two</a>"), text("one", ""));
        assert_eq!(all("<</a>x"), text("<", ""));
        assert_eq!(all("one\nUse of </b>"), text("one\nUse of </b>", ""));
        assert_eq!(all("one\nUs"), text("one", "\nUs"));
    }
}
