//! `lockstep generate`: text from a trained model.

use crate::failure::Failure;
use crate::output;
use lockstep_data::Tokenizer;
use lockstep_platform::World;
use lockstep_trainer::generate::Generator;
use lockstep_trainer::pretrained::Pretrained;
use lockstep_trainer::sampling::Sampling;
use lockstep_trainer::{RunFolder, TrainError};
use serde::Serialize;
use std::path::PathBuf;

/// Write text with a trained model
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  lockstep generate --prompt \"In the beginning\"
  lockstep generate runs/0003 --tokens 1000 --temperature 0.7 --top-k 40 --seed 7
  lockstep generate my-llama --prompt \"Once\"     a folder of Hugging Face
  lockstep generate --temperature 0              always the most likely token")]
pub(crate) struct Arguments {
    /// The folder of a finished run or of a Hugging Face model; without one, the newest under runs
    run: Option<PathBuf>,
    /// Text to continue
    #[arg(long, default_value = "")]
    prompt: String,
    /// How many tokens to write
    #[arg(long, default_value_t = 400)]
    tokens: usize,
    /// 0 takes the most likely token, 1 samples from the model's own distribution
    #[arg(long, default_value_t = 0.8, allow_negative_numbers = true)]
    temperature: f64,
    /// Only this many of the most likely tokens; 0 means all
    #[arg(long, default_value_t = 0)]
    top_k: usize,
    /// Only the most likely tokens that together reach this probability
    #[arg(long, default_value_t = 0.95, allow_negative_numbers = true)]
    top_p: f64,
    /// The same seed gives the same text
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// One JSON value on standard output
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report {
    prompt: String,
    text: String,
    num_tokens: usize,
    seconds: f64,
    tokens_per_second: f64,
    run_dir: String,
}

pub(crate) fn run(arguments: &Arguments, world: &World) -> Result<(), Failure> {
    let sampling = sampling(arguments)?;
    let folder = match &arguments.run {
        Some(path) => path.clone(),
        None => RunFolder::newest(world)?.path().to_owned(),
    };
    let pretrained = Pretrained::open(&folder, world)?;
    let recipe = pretrained.recipe(world)?;
    let family = recipe.model.family;
    if family.is_problem() {
        let (dir, family) = (folder.display().to_string(), family.name());
        return Err(TrainError::NoText { dir, family }.into());
    }
    let generator = Generator::load(&pretrained, &recipe, world)?;
    let start = world.clock().now();
    let mut printed = if arguments.json { Ok(()) } else { output::text(&arguments.prompt) };
    let mut pending = TextStream::new(generator.tokenizer());
    let tokens = generator.generate(&arguments.prompt, arguments.tokens, sampling, |token| {
        if !arguments.json && printed.is_ok() {
            printed = output::text(&pending.push(token));
        }
        printed.is_ok()
    })?;
    printed?;
    let seconds = world.clock().since(start).as_secs_f64();
    if arguments.json {
        return output::json(&Report {
            prompt: arguments.prompt.clone(),
            text: generator.tokenizer().decode(&tokens),
            num_tokens: tokens.len(),
            seconds,
            tokens_per_second: tokens.len() as f64 / seconds,
            run_dir: folder.display().to_string(),
        });
    }
    output::text(&(pending.finish() + "\n"))
}

fn sampling(arguments: &Arguments) -> Result<Sampling, Failure> {
    let Arguments { temperature, top_k, top_p, seed, .. } = *arguments;
    if !(temperature >= 0.0 && temperature.is_finite()) {
        return Err(Failure::user(format!(
            "--temperature {temperature} must be 0 or more; try 0.8"
        )));
    }
    if !(top_p > 0.0 && top_p <= 1.0) {
        return Err(Failure::user(format!("--top-p {top_p} must be above 0 and at most 1")));
    }
    Ok(Sampling { temperature, top_k, top_p, seed })
}

/// Tokens come one by one, and a character may need several of them: holds back what is not yet
/// whole.
struct TextStream<'a> {
    tokenizer: &'a Tokenizer,
    /// Tokens whose text depends on each other: the last that were printed, and those behind.
    tokens: Vec<u32>,
    /// How many of them were printed.
    num_printed: usize,
}

/// Tokens that wait for a character to become whole; more than that will never be one.
const MAX_PENDING: usize = 8;

impl<'a> TextStream<'a> {
    fn new(tokenizer: &'a Tokenizer) -> Self {
        Self { tokenizer, tokens: Vec::new(), num_printed: 0 }
    }

    fn push(&mut self, token: u32) -> String {
        self.tokens.push(token);
        let is_whole = !self.tokenizer.decode(&self.tokens).ends_with('\u{fffd}');
        if is_whole || self.tokens.len() - self.num_printed >= MAX_PENDING {
            return self.finish();
        }
        String::new()
    }

    /// What the tokens that were not printed add to the text of those that were: decoding them
    /// alone could lose a space.
    fn finish(&mut self) -> String {
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
    fn characters_come_out_whole_and_bad_bytes_are_replaced() {
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
