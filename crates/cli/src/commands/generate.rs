//! `lockstep generate`: text from a trained model.

use crate::failure::Failure;
use crate::output;
use lockstep_data::Tokenizer;
use lockstep_platform::World;
use lockstep_trainer::RunFolder;
use lockstep_trainer::generate::Generator;
use lockstep_trainer::pretrained::Pretrained;
use lockstep_trainer::sampling::Sampling;
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
    let generator = Generator::load(&pretrained, &recipe, world)?;
    let start = world.clock().now();
    let mut printed = if arguments.json { Ok(()) } else { output::text(&arguments.prompt) };
    let mut pending = Utf8Stream::default();
    let tokens = generator.generate(&arguments.prompt, arguments.tokens, sampling, |token| {
        if !arguments.json && printed.is_ok() {
            printed = output::text(&pending.push(token));
        }
        printed.is_ok()
    });
    printed?;
    let seconds = world.clock().since(start).as_secs_f64();
    if arguments.json {
        return output::json(&Report {
            prompt: arguments.prompt.clone(),
            text: Tokenizer.decode(&tokens),
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

/// Bytes come one by one, characters may need several: holds back what is not yet whole.
#[derive(Default)]
struct Utf8Stream {
    bytes: Vec<u8>,
}

impl Utf8Stream {
    fn push(&mut self, token: u32) -> String {
        self.bytes.push(u8::try_from(token).expect("a byte token"));
        match std::str::from_utf8(&self.bytes) {
            Err(error) if error.error_len().is_none() => String::new(),
            _ => self.finish(),
        }
    }

    fn finish(&mut self) -> String {
        String::from_utf8_lossy(&std::mem::take(&mut self.bytes)).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_come_out_whole_and_bad_bytes_are_replaced() {
        let mut stream = Utf8Stream::default();
        let pieces: Vec<String> = "aé".bytes().map(|byte| stream.push(byte.into())).collect();
        assert_eq!(pieces, ["a", "", "é"]);
        assert_eq!(stream.push(0xff), "\u{fffd}");
        assert_eq!(stream.push(0xe2), "");
        assert_eq!(stream.finish(), "\u{fffd}");
    }
}
