//! Sample at the end of a run: text that the model generates, or its answer to a held-out prompt.

use crate::failure::Failure;
use lockstep_config::{DataFormat, Recipe};
use lockstep_data::chat::held_out::last_prompt;
use lockstep_data::chat::{Date, Message};
use lockstep_platform::World;
use lockstep_telemetry::console::Sanitized;
use lockstep_trainer::conversation::{chat_template, ends_of_answer};
use lockstep_trainer::generate::{Ends, Generator, Sampling};
use lockstep_trainer::pretrained::Pretrained;
use lockstep_trainer::{RunFolder, Summary};
use std::fmt::Write as _;
use std::path::Path;

/// Tokens of the sample after a run.
const SAMPLE_TOKENS: usize = 400;

/// Fewest characters of a sample for each one that is no text: text in a language that needs
/// several bytes a character may have a few.
const MIN_CHARACTERS_PER_REPLACED: usize = 20;

/// Heading of generated text.
const OF_TEXT: &str = "Sample (lockstep generate prints more)";

/// Heading of an answer.
const OF_CHAT: &str = "Sample (lockstep chat answers more), a held-out prompt and the answer";

/// A sample of generated text.
pub(crate) fn sample(summary: &Summary, recipe: &Recipe, world: &World) -> Result<String, Failure> {
    let folder = RunFolder::finished(Path::new(&summary.run_dir), world)?;
    let generator = Generator::open(&folder, recipe, world)?;
    let sampling = Sampling { temperature: 0.7, top_k: 0, top_p: 0.95, seed: recipe.train.seed };
    let mut ends = Ends::after(SAMPLE_TOKENS);
    if recipe.data.format == DataFormat::Text {
        let text = generator.generate("\n", &ends, sampling, |_| true)?.text;
        return Ok(render_sample(OF_TEXT, "", &text));
    }
    let pretrained = Pretrained::open(folder.path(), world)?;
    let template = chat_template(&pretrained, None, Date::FIXED, world)?;
    // The data may have gone since the run has read them.
    let Ok(Some(prompt)) = last_prompt(recipe, world) else { return Ok(String::new()) };
    let Ok(text) = template.render(&prompt, true) else { return Ok(String::new()) };
    ends.tokens = ends_of_answer(&generator, &template);
    let answer = generator.generate(&text, &ends, sampling, |_| true)?.text;
    Ok(render_sample(OF_CHAT, &render_prompt(&prompt), &answer))
}

/// A prompt for the terminal, up to the role that answers.
fn render_prompt(prompt: &[Message]) -> String {
    let mut text = String::new();
    for message in prompt {
        let _ = writeln!(text, "{}: {}", message.role(), message.content().unwrap_or_default());
    }
    text + "assistant: "
}

/// Generated text for the terminal. A model that has learned nothing generates bytes, not text, and
/// they are not printed.
fn render_sample(heading: &str, prompt: &str, text: &str) -> String {
    let text = Sanitized(text).to_string();
    let num_replaced = text.chars().filter(|c| *c == char::REPLACEMENT_CHARACTER).count();
    if num_replaced * MIN_CHARACTERS_PER_REPLACED > text.chars().count() {
        return "\nNo sample: what the model generates is not text yet; train it for more steps\n\n"
            .to_owned();
    }
    format!("\n{heading}:\n\n{}{text}\n\n", Sanitized(prompt))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_of_bytes_that_are_no_text_is_not_printed() {
        let key = lockstep_tensor::random::Key::new(1, "bytes");
        let bytes: Vec<u8> = (0..400).map(|index| (256.0 * key.uniform_f64(index)) as u8).collect();
        let random = render_sample(OF_TEXT, "", &String::from_utf8_lossy(&bytes));
        assert!(random.starts_with("\nNo sample: "), "{random}");
        assert!(!random.contains(char::REPLACEMENT_CHARACTER), "{random}");
        let text = "In the beginning\u{fffd} God created the heaven and the earth.";
        assert!(render_sample(OF_TEXT, "", text).contains(text), "one broken character is printed");
        assert!(
            render_sample(OF_TEXT, "", "").starts_with("\nSample"),
            "there is nothing wrong with no text"
        );
    }

    #[test]
    fn a_prompt_comes_before_its_answer() {
        let prompt = [Message::new("system", "Be brief."), Message::new("user", "1 + 2?")];
        let text = render_sample(OF_CHAT, &render_prompt(&prompt), "3");
        assert!(text.ends_with("system: Be brief.\nuser: 1 + 2?\nassistant: 3\n\n"), "{text}");
    }
}
