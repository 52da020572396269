//! `lockstep generate`: samples text from a trained model.

use crate::common_flags::device_choice;
use crate::failure::Failure;
use crate::output;
use crate::sampling_flags::SamplingFlags;
use crate::text_stream::TextStream;
use lockstep_config::DeviceChoice;
use lockstep_platform::World;
use lockstep_trainer::generate::{Generated, Generator, Sampling, Step};
use lockstep_trainer::pretrained::Pretrained;
use lockstep_trainer::{RunFolder, TrainError};
use serde::Serialize;
use std::path::{Path, PathBuf};

/// Generate text with a trained model
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  lockstep generate --prompt \"In the beginning\"
  lockstep generate runs/0003 --tokens 1000 --temperature 0.7 --top-k 40 --seed 7
  lockstep generate my-llama --prompt \"Once\"     a Hugging Face folder
  lockstep generate --prompt \"In\" --prompt \"And\"   several together, each as by itself
  lockstep generate --temperature 0              greedy decoding")]
pub(crate) struct Arguments {
    /// Folder of a finished run or of a Hugging Face model (default: the newest run)
    run: Option<PathBuf>,
    /// Prompt; several are continued together
    #[arg(long = "prompt", value_name = "PROMPT", default_value = "")]
    prompts: Vec<String>,
    /// Number of tokens to generate
    #[arg(long, default_value_t = 400)]
    tokens: usize,
    #[command(flatten)]
    sampling: SamplingFlags,
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

/// Texts of several prompts.
#[derive(Serialize)]
struct BatchReport {
    texts: Vec<Continued>,
    num_tokens: usize,
    seconds: f64,
    tokens_per_second: f64,
    run_dir: String,
}

/// A prompt and its continuation.
#[derive(Serialize)]
struct Continued {
    prompt: String,
    text: String,
    num_tokens: usize,
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
    /// Seconds a token of its draw from the logits on the host.
    sampling_seconds: f64,
    /// Weights and cache that a token reads.
    bytes_per_token: usize,
    /// Predicted: these bytes at the measured bandwidth of a copy on the accelerator.
    bandwidth_tokens_per_second: Option<f64>,
    /// Measured by predicted.
    bandwidth_fraction: Option<f64>,
}

/// Seconds since the start at which one draw, of one or several tokens, came to each step.
#[derive(Clone, Copy, Default)]
struct Draw {
    queued: f64,
    computed: f64,
    drawn: f64,
    /// Tokens so far.
    num_tokens: usize,
}

impl Decode {
    /// Tokens of the prompt's pass and of the warm-up, which are not measured.
    const NUM_UNMEASURED: usize = 8;

    /// Rates of `draws`; `None` for too few.
    fn new(
        generator: &Generator,
        draws: &[Draw],
        prompt_len: usize,
        world: &World,
    ) -> Result<Option<Self>, Failure> {
        let is_measured = |draw: &Draw| draw.num_tokens >= Self::NUM_UNMEASURED;
        let first = draws.iter().position(is_measured).unwrap_or(draws.len());
        let measured = &draws[first..];
        let [first, .., last] = measured else { return Ok(None) };
        let num_tokens = last.num_tokens - first.num_tokens;
        let num = num_tokens as f64;
        let tokens_per_second = num / (last.drawn - first.drawn);
        let mean = |seconds: fn(&Draw, &Draw) -> f64| {
            measured.windows(2).map(|pair| seconds(&pair[0], &pair[1])).sum::<f64>() / num
        };
        let middle = prompt_len + last.num_tokens - num_tokens / 2;
        let bytes_per_token = generator.bytes_per_token(middle);
        let bandwidth = generator.copy_bytes_per_second(world)?;
        let limit = bandwidth.map(|bandwidth| bandwidth / bytes_per_token as f64);
        Ok(Some(Self {
            tokens_per_second,
            queue_seconds: mean(|before, draw| draw.queued - before.drawn),
            wait_seconds: mean(|_, draw| draw.computed - draw.queued),
            sampling_seconds: mean(|_, draw| draw.drawn - draw.computed),
            bytes_per_token,
            bandwidth_tokens_per_second: limit,
            bandwidth_fraction: limit.map(|limit| tokens_per_second / limit),
        }))
    }
}

pub(crate) fn run(arguments: &Arguments, world: &World) -> Result<(), Failure> {
    let sampling = arguments.sampling.resolve()?;
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
    match &arguments.prompts[..] {
        [prompt] => continue_one(arguments, prompt, &generator, sampling, &folder, world),
        prompts => continue_all(arguments, prompts, &generator, sampling, &folder, world),
    }
}

/// Continues several prompts; prints each text when all are there.
fn continue_all(
    arguments: &Arguments,
    prompts: &[String],
    generator: &Generator,
    sampling: Sampling,
    folder: &Path,
    world: &World,
) -> Result<(), Failure> {
    let start = world.clock().now();
    let generated = generator.generate_batch(prompts, arguments.tokens, sampling, &mut |_| {})?;
    let seconds = world.clock().since(start).as_secs_f64();
    let continued = |(prompt, generated): (&String, Generated)| Continued {
        prompt: prompt.clone(),
        text: generator.tokenizer().decode(&generated.tokens),
        num_tokens: generated.tokens.len(),
    };
    let texts: Vec<Continued> = prompts.iter().zip(generated).map(continued).collect();
    if !arguments.json {
        let mut lines =
            texts.iter().map(|Continued { prompt, text, .. }| format!("{prompt}{text}\n"));
        return lines.try_for_each(|text| output::generated(&(text + "\n")));
    }
    let num_tokens = texts.iter().map(|text| text.num_tokens).sum();
    output::json(&BatchReport {
        texts,
        num_tokens,
        seconds,
        tokens_per_second: num_tokens as f64 / seconds,
        run_dir: folder.display().to_string(),
    })
}

fn continue_one(
    arguments: &Arguments,
    prompt: &str,
    generator: &Generator,
    sampling: Sampling,
    folder: &Path,
    world: &World,
) -> Result<(), Failure> {
    let start = world.clock().now();
    let mut printed = if arguments.json { Ok(()) } else { output::text(prompt) };
    let mut pending = TextStream::new(generator.tokenizer());
    let (mut draws, mut draw) = (Vec::new(), Draw::default());
    let generated = generator.generate(prompt, arguments.tokens, sampling, |step| {
        let now = world.clock().since(start).as_secs_f64();
        match step {
            Step::Queued => draw.queued = now,
            Step::Computed => draw.computed = now,
            Step::Drawn(tokens) => {
                draw.drawn = now;
                draw.num_tokens += tokens.len();
                draws.push(draw);
                for token in tokens {
                    if !arguments.json && printed.is_ok() {
                        printed = output::generated(&pending.push(*token));
                    }
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
            decode: Decode::new(generator, &draws, generated.prompt_len, world)?,
            prompt: prompt.to_owned(),
            text: generator.tokenizer().decode(tokens),
            num_tokens: tokens.len(),
            seconds,
            tokens_per_second: tokens.len() as f64 / seconds,
            run_dir: folder.display().to_string(),
        });
    }
    output::generated(&(pending.finish() + "\n"))
}
