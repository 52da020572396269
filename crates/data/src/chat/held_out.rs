//! Prompt of a run's validation data: the last conversation without its last answer.

use std::path::Path;

use lockstep_config::{Recipe, ValidationSource};
use lockstep_platform::World;

use super::Message;
use super::conversation::Conversation;
use super::message::ASSISTANT;
use super::preference::Preference;
use crate::documents::{Documents, ReadOptions};
use crate::error::DataError;

/// Messages in front of the last answer of the last conversation, which validation holds out; none
/// if it has no answer or nothing in front of it.
pub fn last_prompt(recipe: &Recipe, world: &World) -> Result<Option<Vec<Message>>, DataError> {
    let source = match &recipe.data.validation {
        ValidationSource::Path(path) => path.clone(),
        ValidationSource::Fraction(_) => recipe.data.source.to_string(),
    };
    let options = ReadOptions { whole_rows: true, ..ReadOptions::default() };
    let mut rows = Documents::open(Path::new(&source), &options, world)?;
    let (mut row, mut last) = (String::new(), String::new());
    while rows.next_document(&mut row)? {
        std::mem::swap(&mut row, &mut last);
    }
    let conversation = if recipe.finetune.has_pairs() {
        Preference::parse(&last).map(|Preference { conversations: [chosen, _], .. }| chosen)
    } else {
        Conversation::parse(&last)
    };
    let Ok(Conversation { mut messages, .. }) = conversation else { return Ok(None) };
    let answer = messages.iter().rposition(|message| message.role() == ASSISTANT);
    messages.truncate(answer.unwrap_or(0));
    Ok(Some(messages).filter(|messages| !messages.is_empty()))
}

#[cfg(test)]
mod tests {
    use lockstep_config::{Sources, resolve};
    use lockstep_platform::ScratchDir;

    use super::*;

    #[test]
    fn the_prompt_is_the_last_conversation_up_to_its_last_answer() {
        let world = lockstep_platform::real();
        let scratch = ScratchDir::new(&world, "last-prompt").unwrap();
        let path = scratch.path().join("chat.jsonl");
        let last = |lines: &str, sets: &[&str]| {
            world.files().write_atomic(&path, lines.as_bytes()).unwrap();
            let source = format!("data.source={}", path.display());
            let own = ["data.format=chat", &source];
            let sets = own.iter().chain(sets).map(|set| (*set).to_owned());
            let recipe = resolve(&Sources { sets: sets.collect(), ..Sources::default() }).unwrap();
            let text = |message: &Message| format!("{}:{:?}", message.role(), message.content());
            let prompt = last_prompt(&recipe, &world).unwrap();
            prompt.map(|prompt| prompt.iter().map(text).collect::<Vec<_>>().join(" "))
        };
        let two = "{\"instruction\": \"a\", \"output\": \"b\"}\n{\"prompt\": \"c\", \
                   \"completion\": \"d\"}\n";
        assert_eq!(last(two, &[]).as_deref(), Some("user:Some(\"c\")"));
        let pair = "{\"prompt\": \"e\", \"chosen\": \"f\", \"rejected\": \"g\"}";
        assert_eq!(last(pair, &["finetune.method=dpo"]).as_deref(), Some("user:Some(\"e\")"));
        let unanswered = "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}]}";
        assert_eq!(last(unanswered, &[]), None);
    }
}
