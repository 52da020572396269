//! `lockstep eval`: what a trained model makes of a text.

use crate::failure::Failure;
use crate::output;
use lockstep_platform::World;
use lockstep_trainer::RunFolder;
use lockstep_trainer::judge::{Judge, Judgement};
use serde::Serialize;
use std::fmt::Write as _;
use std::io::{IsTerminal, Write as _};
use std::path::PathBuf;

/// Judge a trained model by a text: loss, perplexity, bits per byte
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  lockstep eval                                 the newest run, on what it held out
  lockstep eval runs/0003 --data book.txt       any text, folder, glob or shard folder
  lockstep eval my-llama --data a.txt b.jsonl   a folder of Hugging Face, on several texts
  lockstep eval --data book.txt --stride 64     every token sees at least context - 64 before it")]
pub(crate) struct Arguments {
    /// The folder of a finished run or of a Hugging Face model; without one, the newest under runs
    model: Option<PathBuf>,
    /// Texts: files, folders, globs or shard folders; without any, what the run held out
    #[arg(long, value_name = "FILE", num_args = 1..)]
    data: Vec<String>,
    /// Tokens from the start of one window to that of the next; without it, the model's context
    #[arg(long, value_name = "TOKENS")]
    stride: Option<usize>,
    /// No progress on standard error
    #[arg(long)]
    quiet: bool,
    /// One JSON value on standard output
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report {
    model: String,
    context: usize,
    stride: usize,
    seconds: f64,
    tokens_per_second: f64,
    #[serde(flatten)]
    total: Judgement,
    texts: Vec<Judgement>,
}

pub(crate) fn run(arguments: &Arguments, world: &World) -> Result<(), Failure> {
    let folder = match &arguments.model {
        Some(path) => path.clone(),
        None => RunFolder::newest(world)?.path().to_owned(),
    };
    let mut judge = Judge::open(&folder, world)?;
    let context = judge.context();
    let stride = arguments.stride.unwrap_or(context);
    if !(1..=context).contains(&stride) {
        return Err(Failure::user(format!(
            "--stride {stride} must be from 1 to the model's context, {context}"
        )));
    }
    let passages = if arguments.data.is_empty() {
        let held_out = judge.held_out(world)?;
        vec![held_out.ok_or_else(|| {
            let folder = folder.display();
            Failure::user(format!("{folder} is no run and has held nothing out; give --data FILE"))
        })?]
    } else {
        let open = |source: &String| judge.passage(source, world);
        arguments.data.iter().map(open).collect::<Result<Vec<_>, _>>()?
    };
    let start = world.clock().now();
    let mut progress = Progress::new(!arguments.quiet && std::io::stderr().is_terminal());
    let mut texts = Vec::new();
    for passage in &passages {
        let judged = judge.judge(passage, stride, &mut |done, all| progress.show(done, all));
        progress.clear();
        texts.push(judged?);
    }
    let seconds = world.clock().since(start).as_secs_f64();
    let total = Judgement::together(&texts);
    let tokens_per_second = total.num_targets as f64 / seconds;
    let model = folder.display().to_string();
    let report = Report { model, context, stride, seconds, tokens_per_second, total, texts };
    if arguments.json { output::json(&report) } else { output::text(&render(&report)) }
}

/// A line that is drawn over itself.
struct Progress {
    shown: bool,
    percent: Option<usize>,
}

impl Progress {
    fn new(shown: bool) -> Self {
        Self { shown, percent: None }
    }

    fn show(&mut self, done: usize, total: usize) {
        let percent = done * 100 / total.max(1);
        if self.shown && self.percent != Some(percent) {
            self.percent = Some(percent);
            // Nobody is left to tell when standard error is closed.
            let _ = write!(std::io::stderr(), "\rjudging {percent:>3} %");
        }
    }

    fn clear(&mut self) {
        if self.percent.take().is_some() {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}

fn render(report: &Report) -> String {
    let mut text = String::new();
    let mut judged = |judgement: &Judgement| {
        let Judgement { data, loss, perplexity, bits_per_byte, num_tokens, .. } = judgement;
        let _ = writeln!(text, "data          {data}");
        let _ = writeln!(text, "loss          {loss:.4} nats a token over {num_tokens} tokens");
        let _ = writeln!(text, "perplexity    {perplexity:.2}");
        let _ = writeln!(text, "bits per byte {bits_per_byte:.4}\n");
    };
    if report.texts.len() > 1 {
        report.texts.iter().for_each(&mut judged);
    }
    judged(&report.total);
    let Report { context, stride, seconds, tokens_per_second, .. } = report;
    let _ = writeln!(
        text,
        "windows of {context} tokens, {stride} apart; {seconds:.1} s, {tokens_per_second:.0} \
         tokens/s"
    );
    text
}
