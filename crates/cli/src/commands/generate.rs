//! `lockstep generate`: samples text from a trained model.

use crate::common_flags::device_choice;
use crate::failure::Failure;
use crate::output;
use lockstep_config::DeviceChoice;
use lockstep_data::Tokenizer;
use lockstep_platform::World;
use lockstep_trainer::generate::{Generator, Sampling, Step};
use lockstep_trainer::pretrained::Pretrained;
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
    decode: Option<Decode>,
    run_dir: String,
}

/// Speed of one token at a time, after the prompt and a warm-up.
#[derive(Serialize)]
struct Decode {
    tokens_per_second: f64,
    /// Seconds a token in which the host queues its work; the device may work meanwhile. On a CPU
    /// this is all of the model.
    queue_seconds: f64,
    /// Seconds a token in which the host waits for the device; about none where the host is slower.
    wait_seconds: f64,
    /// Seconds a token of its draw from the logits.
    sampling_seconds: f64,
    /// Weights and cache that a token reads.
    bytes_per_token: usize,
    /// Predicted: these bytes at the measured bandwidth of a copy on the accelerator.
    bandwidth_tokens_per_second: Option<f64>,
    /// Measured by predicted.
    bandwidth_fraction: Option<f64>,
}

impl Decode {
    /// Tokens of the prompt's pass and of the warm-up, which are not measured.
    const NUM_UNMEASURED: usize = 8;

    /// Rates of `times`, at which each token was queued, computed and drawn; `None` for too few.
    fn new(
        generator: &Generator,
        times: &[[f64; 3]],
        prompt_len: usize,
        world: &World,
    ) -> Result<Option<Self>, Failure> {
        let measured = times.get(Self::NUM_UNMEASURED - 1..).unwrap_or_default();
        let [[.., first], .., [.., last]] = measured else { return Ok(None) };
        let num = (measured.len() - 1) as f64;
        let tokens_per_second = num / (last - first);
        let mean =
            |seconds: fn(&[[f64; 3]]) -> f64| measured.windows(2).map(seconds).sum::<f64>() / num;
        let middle = prompt_len + times.len() - measured.len() / 2;
        let bytes_per_token = generator.bytes_per_token(middle);
        let bandwidth = generator.copy_bytes_per_second(world)?;
        let limit = bandwidth.map(|bandwidth| bandwidth / bytes_per_token as f64);
        Ok(Some(Self {
            tokens_per_second,
            queue_seconds: mean(|pair| pair[1][0] - pair[0][2]),
            wait_seconds: mean(|pair| pair[1][1] - pair[1][0]),
            sampling_seconds: mean(|pair| pair[1][2] - pair[1][1]),
            bytes_per_token,
            bandwidth_tokens_per_second: limit,
            bandwidth_fraction: limit.map(|limit| tokens_per_second / limit),
        }))
    }
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
    let (mut times, mut of_token) = (Vec::new(), [0.0; 3]);
    let generated = generator.generate(&arguments.prompt, arguments.tokens, sampling, |step| {
        let now = world.clock().since(start).as_secs_f64();
        match step {
            Step::Queued => of_token[0] = now,
            Step::Computed => of_token[1] = now,
            Step::Drawn(token) => {
                of_token[2] = now;
                times.push(of_token);
                if !arguments.json && printed.is_ok() {
                    printed = output::generated(&pending.push(token));
                }
            }
        }
        printed.is_ok()
    })?;
    printed?;
    let seconds = world.clock().since(start).as_secs_f64();
    if arguments.json {
        let tokens = &generated.tokens;
        return output::json(&Report {
            decode: Decode::new(&generator, &times, generated.prompt_len, world)?,
            prompt: arguments.prompt.clone(),
            text: generator.tokenizer().decode(tokens),
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
