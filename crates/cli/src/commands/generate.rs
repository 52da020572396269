//! `lockstep generate`: samples text from a trained model.

use crate::common_flags::device_choice;
use crate::failure::Failure;
use crate::output;
use crate::sampling_flags::SamplingFlags;
use crate::text_stream::TextStream;
use lockstep_config::DeviceChoice;
use lockstep_platform::World;
use lockstep_trainer::adapter_folder::ModelPath;
use lockstep_trainer::generate::{Ending, Ends, Generated, Generator, Sampling, Step};
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
  lockstep generate my-adapter --base my-llama    a folder of PEFT with adapters alone
  lockstep generate --prompt \"In\" --prompt \"And\"   several together, each as by itself
  lockstep generate my-llama --prompt \"Q: Why?\" --stop Q:    end before another question
  lockstep generate --temperature 0              greedy decoding")]
pub(crate) struct Arguments {
    /// Folder of a finished run, of a Hugging Face model or of a PEFT adapter (default: the newest
    /// run)
    run: Option<PathBuf>,
    /// Folder of the model beside a PEFT adapter (default: the one that the adapter names)
    #[arg(long, value_name = "DIR", requires = "run")]
    base: Option<PathBuf>,
    /// Prompt; several are continued together
    #[arg(long = "prompt", value_name = "PROMPT", default_value = "")]
    prompts: Vec<String>,
    /// Most tokens to generate
    #[arg(long, default_value_t = 400)]
    tokens: usize,
    /// End where the model writes this text, which is not printed; may be given several times
    #[arg(long, value_name = "TEXT")]
    stop: Vec<String>,
    /// Generate all tokens, also after the model's end token (eos_token_id)
    #[arg(long)]
    ignore_eos: bool,
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
    /// `end`, `stop` or `limit`.
    stop: &'static str,
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
    /// `end`, `stop` or `limit`.
    stop: &'static str,
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
    let path = ModelPath { folder: &folder, base: arguments.base.as_deref() };
    let pretrained = Pretrained::open(path, world)?;
    let mut recipe = pretrained.recipe(world)?;
    recipe.run.device = arguments.device;
    let family = recipe.model.family;
    if family.is_problem() {
        let (dir, family) = (folder.display().to_string(), family.name());
        return Err(TrainError::NoText { dir, family }.into());
    }
    if arguments.stop.iter().any(String::is_empty) {
        return Err(Failure::user("--stop needs a text, such as --stop \"###\"".to_owned()));
    }
    let generator = Generator::load(&pretrained, &recipe, world)?;
    let stops = if arguments.ignore_eos { &[] } else { generator.stops() };
    let ends = Ends {
        num_tokens: arguments.tokens,
        tokens: stops.to_vec(),
        texts: arguments.stop.clone(),
    };
    let run = Run { generator: &generator, ends, sampling, folder: &folder };
    match &arguments.prompts[..] {
        [prompt] => continue_one(arguments, prompt, &run, world),
        prompts => continue_all(arguments, prompts, &run, world),
    }
}

/// Model, ends and sampling of a generation.
struct Run<'a> {
    generator: &'a Generator,
    ends: Ends,
    sampling: Sampling,
    folder: &'a Path,
}

/// Name of the end of a text.
const fn name_of(ending: Ending) -> &'static str {
    match ending {
        Ending::Token => "end",
        Ending::Text { .. } => "stop",
        Ending::Limit => "limit",
    }
}

/// Continues several prompts; prints each text when all are there.
fn continue_all(
    arguments: &Arguments,
    prompts: &[String],
    run: &Run<'_>,
    world: &World,
) -> Result<(), Failure> {
    let Run { generator, ends, sampling, folder } = run;
    let start = world.clock().now();
    let generated = generator.generate_batch(prompts, ends, *sampling, &mut |_| {})?;
    let seconds = world.clock().since(start).as_secs_f64();
    let continued = |(prompt, generated): (&String, Generated)| Continued {
        prompt: prompt.clone(),
        num_tokens: generated.tokens.len(),
        stop: name_of(generated.ending),
        text: generated.text,
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
    run: &Run<'_>,
    world: &World,
) -> Result<(), Failure> {
    let Run { generator, ends, sampling, folder } = run;
    let start = world.clock().now();
    let mut printed = if arguments.json { Ok(()) } else { output::text(prompt) };
    let mut pending = TextStream::until(generator.tokenizer(), &arguments.stop);
    let (mut draws, mut draw) = (Vec::new(), Draw::default());
    let generated = generator.generate(prompt, ends, *sampling, |step| {
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
            text: generated.text,
            num_tokens: tokens.len(),
            stop: name_of(generated.ending),
            seconds,
            tokens_per_second: tokens.len() as f64 / seconds,
            run_dir: folder.display().to_string(),
        });
    }
    output::generated(&(pending.finish() + "\n"))
}
