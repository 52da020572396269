//! Preferences of a data set: a prompt with a chosen and a rejected answer, one JSON object each.
//!
//! `prompt`, `chosen` and `rejected` are texts, or lists of messages in OpenAI's or ShareGPT's
//! fields. Without a `prompt`, `chosen` and `rejected` are whole conversations, whose last turns
//! are compared.

use super::Message;
use super::conversation::{Conversation, field, messages_of, others, parse_row, text};
use super::message::ASSISTANT;

/// Two conversations that differ in their answers.
#[derive(Debug, Clone)]
pub struct Preference {
    /// The chosen conversation, then the rejected one.
    pub conversations: [Conversation; 2],
    /// Number of turns of the assistant at the end of each that are compared.
    pub num_answers: [usize; 2],
}

impl Preference {
    /// Preference of a JSON object, or why it is none.
    pub fn parse(json: &str) -> Result<Self, String> {
        let row = parse_row(json)?;
        let system = text(&row, "system").filter(|system| !system.is_empty());
        let mut prompt: Vec<Message> =
            system.map(|system| Message::new("system", &system)).into_iter().collect();
        let has_prompt = field(&row, "prompt").is_some();
        if let Some(value) = field(&row, "prompt") {
            prompt
                .extend(messages_of(&value, "user").map_err(|reason| format!("prompt: {reason}"))?);
        }
        let others = others(&row);
        let mut num_answers = [0; 2];
        let mut conversation = |index: usize, name: &str| {
            let value = field(&row, name).ok_or_else(|| format!("it has no {name}"))?;
            let answer = messages_of(&value, ASSISTANT).map_err(|r| format!("{name}: {r}"))?;
            let is_answer = |message: &&Message| message.role() == ASSISTANT;
            let num = answer.iter().filter(is_answer).count();
            if num == 0 || answer.last().is_none_or(|last| last.role() != ASSISTANT) {
                return Err(format!("{name} does not end with a turn of the assistant"));
            }
            num_answers[index] = if has_prompt { num } else { 1 };
            let messages = prompt.iter().cloned().chain(answer).collect();
            Ok(Conversation { messages, others: others.clone() })
        };
        let conversations = [conversation(0, "chosen")?, conversation(1, "rejected")?];
        Ok(Self { conversations, num_answers })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(json: &str) -> ([Vec<String>; 2], [usize; 2]) {
        let Preference { conversations, num_answers } = Preference::parse(json).unwrap();
        let turns = conversations.map(|conversation| {
            let turn = |m: &Message| format!("{} {}", m.role(), m.content().unwrap());
            conversation.messages.iter().map(turn).collect()
        });
        (turns, num_answers)
    }

    #[test]
    fn texts_and_messages_give_the_same_pair() {
        let texts = of(r#"{"prompt": "q", "chosen": "a", "rejected": "b"}"#);
        let messages = of(r#"{"prompt": [{"role": "user", "content": "q"}],
            "chosen": [{"role": "assistant", "content": "a"}],
            "rejected": [{"from": "gpt", "value": "b"}]}"#);
        assert_eq!(texts, messages);
        assert_eq!(texts.0[1], ["user q", "assistant b"]);
        let whole = of(r#"{"chosen": [{"role": "user", "content": "q"},
            {"role": "assistant", "content": "a"}],
            "rejected": [{"role": "user", "content": "q"},
            {"role": "assistant", "content": "b"}]}"#);
        assert_eq!(whole, texts);
    }

    #[test]
    fn what_is_no_pair_is_refused_with_the_reason() {
        let reason = |json: &str| Preference::parse(json).unwrap_err();
        assert!(reason(r#"{"prompt": "q", "chosen": "a"}"#).contains("no rejected"));
        assert!(reason(r#"{"prompt": 3, "chosen": "a", "rejected": "b"}"#).starts_with("prompt: "));
        let turn = r#"{"role": "user", "content": "a"}"#;
        let user = &format!(r#"{{"prompt": "q", "chosen": [{turn}], "rejected": "b"}}"#);
        assert!(reason(user).contains("chosen does not end"));
    }
}
