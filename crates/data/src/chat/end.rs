//! End of an answer: what a template writes after the assistant's text.
//!
//! A model that learns answers learns to write this token last, so text generation stops there.

use super::message::ASSISTANT;
use super::{ChatTemplate, Message};
use crate::tokenizer::Tokenizer;

/// Answer of the conversation that shows the end.
const ANSWER: &str = "lockstep";

/// Special token that a template writes right after an answer, if the tokenizer has one for it.
pub fn end_of_answer(template: &ChatTemplate, tokenizer: &Tokenizer) -> Option<u32> {
    let messages = [Message::new("user", "Hello"), Message::new(ASSISTANT, ANSWER)];
    let text = template.render(&messages, false).ok()?;
    let (_, end) = text.rsplit_once(ANSWER)?;
    let mut tokens = Vec::new();
    tokenizer.encode(end.trim_start(), &mut tokens).ok()?;
    tokens.first().copied().filter(|&token| tokenizer.is_added(token))
}

#[cfg(test)]
mod tests {
    use lockstep_platform::ScratchDir;

    use super::*;
    use crate::chat::Date;
    use crate::tokenizer::tests::SMALL;

    #[test]
    fn the_end_is_the_special_token_after_the_answer() {
        let world = lockstep_platform::real();
        let scratch = ScratchDir::new(&world, "end-of-answer").unwrap();
        let path = scratch.path().join("tokenizer.json");
        world.files().write_atomic(&path, SMALL.as_bytes()).unwrap();
        let tokenizer = Tokenizer::open(&path.display().to_string(), world.files()).unwrap();
        let end = tokenizer.encode_with_special_tokens("<|endoftext|>").unwrap()[0];
        let found = |tail: &str, tokenizer: &Tokenizer| {
            let source =
                format!("{{% for m in messages %}}{{{{ m.content }}}}{tail}{{% endfor %}}");
            let template = ChatTemplate::parse("t", &source, Vec::new(), Date::FIXED).unwrap();
            end_of_answer(&template, tokenizer)
        };
        assert_eq!(found("<|endoftext|>\n", &tokenizer), Some(end));
        assert_eq!(found(" <|endoftext|>\n<|endoftext|>", &tokenizer), Some(end));
        for tail in ["", "\n", "<|im_end|>\n", "e<|endoftext|>"] {
            assert_eq!(found(tail, &tokenizer), None, "{tail:?}");
        }
        assert_eq!(found("<|endoftext|>\n", &Tokenizer::bytes()), None);
    }
}
