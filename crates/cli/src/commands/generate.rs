//! `lockstep generate`: samples text from a trained model.

use crate::common_flags::device_choice;
use crate::failure::Failure;
use crate::output;
use lockstep_config::DeviceChoice;
use lockstep_data::Tokenizer;
use lockstep_platform::World;
use lockstep_trainer::generate::Generator;
use lockstep_trainer::pretrained::Pretrained;
use lockstep_trainer::sampling::Sampling;
use lockstep_trainer::{RunFolder, TrainError};
use serde::Serialize;
use std::path::PathBuf;

/// Generate text with a trained model
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  lockstep generate --prompt \"In the beginning\"
  lockstep generate runs/0003 --tokens 1000 --temperature 0.7 --top-k 40 --seed 7
  lockstep generate my-llama --prompt \"Once\"     a Hugging Face folder
  lockstep generate --temperature 0              greedy decoding")]
pub(crate) struct Arguments {
    /// Folder of a finished run or of a Hugging Face model (default: the newest run)
    run: Option<PathBuf>,
    /// Prompt
    #[arg(long, default_value = "")]
    prompt: String,
    /// Number of tokens to generate
    #[arg(long, default_value_t = 400)]
    tokens: usize,
    /// Sampling temperature; 0 is greedy, 1 is the model's distribution
    #[arg(long, default_value_t = 0.8, allow_negative_numbers = true)]
    temperature: f64,
    /// Sample from the K most likely tokens; 0 means all
    #[arg(long, default_value_t = 0)]
    top_k: usize,
    /// Nucleus sampling: the most likely tokens with this total probability
    #[arg(long, default_value_t = 0.95, allow_negative_numbers = true)]
    top_p: f64,
    /// Random seed; the same seed gives the same text
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Device of the model: auto, cpu, cuda or cuda:N
    #[arg(long, default_value = "auto", value_parser = device_choice)]
    device: DeviceChoice,
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
    let mut recipe = pretrained.recipe(world)?;
    recipe.run.device = arguments.device;
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
            printed = output::generated(&pending.push(token));
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
    output::generated(&(pending.finish() + "\n"))
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

/// Streams text token by token. A character may span several tokens, so incomplete ones are held
/// back.
struct TextStream<'a> {
    tokenizer: &'a Tokenizer,
    /// The last printed tokens and those not printed yet, which decode together.
    tokens: Vec<u32>,
    /// Number of printed tokens.
    num_printed: usize,
}

/// Largest number of tokens that a character may span.
const MAX_PENDING: usize = 8;

impl<'a> TextStream<'a> {
    fn new(tokenizer: &'a Tokenizer) -> Self {
        Self { tokenizer, tokens: Vec::new(), num_printed: 0 }
    }

    fn push(&mut self, token: u32) -> String {
        self.tokens.push(token);
        let is_complete = !self.tokenizer.decode(&self.tokens).ends_with('\u{fffd}');
        if is_complete || self.tokens.len() - self.num_printed >= MAX_PENDING {
            return self.finish();
        }
        String::new()
    }

    /// Text of the tokens not printed yet, decoded after the printed ones: alone they could lose a
    /// space.
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
