//! `lockstep eval`: loss, perplexity and bits per byte of a trained model on any text, or its
//! scores in tasks of multiple choice.

use crate::common_flags::device_choice;
use crate::failure::Failure;
use crate::output;
use lockstep_config::DeviceChoice;
use lockstep_data::tasks::TaskOptions;
use lockstep_platform::World;
use lockstep_trainer::RunFolder;
use lockstep_trainer::adapter_folder::ModelPath;
use lockstep_trainer::conversation_evaluation::{
    ConversationEvaluation, evaluate_conversations, is_run_on_conversations,
};
use lockstep_trainer::task_evaluation::{TaskEvaluation, evaluate_tasks};
use lockstep_trainer::text_evaluation::{TextEvaluation, TextEvaluator};
use serde::Serialize;
use std::fmt::Write as _;
use std::io::{IsTerminal, Write as _};
use std::path::PathBuf;

/// Evaluate a trained model: loss of text or conversations, or multiple-choice tasks
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  lockstep eval                                 the newest run on its validation set: of
                                                conversations the answers, or the preferences
  lockstep eval runs/0003 --data book.txt       any text, folder, glob or shard folder
  lockstep eval my-llama --data a.txt b.jsonl   a Hugging Face folder, on several texts
  lockstep eval my-adapter --base my-llama --data a.txt
  lockstep eval --data book.txt --stride 64     at least context - 64 tokens before each
  lockstep eval my-llama --task arc.yaml        multiple choice, a task of lm-evaluation-harness
  lockstep eval --task arc.yaml --num-fewshot 5 --limit 100 --json")]
pub(crate) struct Arguments {
    /// Folder of a finished run, of a Hugging Face model or of a PEFT adapter (default: the newest
    /// run)
    model: Option<PathBuf>,
    /// Folder of the model beside a PEFT adapter (default: the one that the adapter names)
    #[arg(long, value_name = "DIR", requires = "model")]
    base: Option<PathBuf>,
    /// Texts: files, folders, globs or shard folders (default: the run's validation set)
    #[arg(long, value_name = "FILE", num_args = 1..)]
    data: Vec<String>,
    /// Tokens between the starts of two windows (default: the model's context)
    #[arg(long, value_name = "TOKENS")]
    stride: Option<usize>,
    /// Task files of lm-evaluation-harness with local data: multiple choice by log-likelihood
    #[arg(long = "task", value_name = "FILE", num_args = 1..)]
    #[arg(conflicts_with_all = ["data", "stride"])]
    tasks: Vec<PathBuf>,
    /// Answered examples in front of each question, in place of the task's own number
    #[arg(long, value_name = "N", requires = "tasks")]
    #[arg(value_parser = clap::value_parser!(u16).range(0..=1000))]
    num_fewshot: Option<u16>,
    /// Questions of each task, from the first on
    #[arg(long, value_name = "N", requires = "tasks")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    limit: Option<u32>,
    /// With --json: log-likelihoods of all choices
    #[arg(long, requires = "tasks", requires = "json")]
    samples: bool,
    /// No progress on standard error
    #[arg(long)]
    quiet: bool,
    /// Device of the model: auto, cpu, cuda or cuda:N
    #[arg(long, default_value = "auto", value_parser = device_choice)]
    device: DeviceChoice,
    /// One JSON value on standard output
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct ConversationReport {
    model: String,
    seconds: f64,
    #[serde(flatten)]
    found: ConversationEvaluation,
}

#[derive(Serialize)]
struct Report {
    model: String,
    context: usize,
    stride: usize,
    seconds: f64,
    tokens_per_second: f64,
    #[serde(flatten)]
    total: TextEvaluation,
    texts: Vec<TextEvaluation>,
}

#[derive(Serialize)]
struct TaskReport {
    model: String,
    seconds: f64,
    tasks: Vec<TaskEvaluation>,
}

pub(crate) fn run(arguments: &Arguments, world: &World) -> Result<(), Failure> {
    let folder = match &arguments.model {
        Some(path) => path.clone(),
        None => RunFolder::newest(world)?.path().to_owned(),
    };
    let path = ModelPath { folder: &folder, base: arguments.base.as_deref() };
    if !arguments.tasks.is_empty() {
        return answer_tasks(arguments, path, world);
    }
    if arguments.data.is_empty() && is_run_on_conversations(path, world)? {
        return answer_conversations(arguments, path, world);
    }
    evaluate_texts(arguments, path, world)
}

fn answer_conversations(
    arguments: &Arguments,
    path: ModelPath<'_>,
    world: &World,
) -> Result<(), Failure> {
    if arguments.stride.is_some() {
        return Err(Failure::user(
            "--stride is for text, and this run learns conversations; drop it".to_owned(),
        ));
    }
    let start = world.clock().now();
    let found = evaluate_conversations(path, arguments.device, world)?;
    let seconds = world.clock().since(start).as_secs_f64();
    let report = ConversationReport { model: name_of(path), seconds, found };
    if arguments.json {
        output::json(&report)
    } else {
        output::text(&render_conversations(&report))
    }
}

fn answer_tasks(arguments: &Arguments, path: ModelPath<'_>, world: &World) -> Result<(), Failure> {
    let Arguments { num_fewshot, limit, .. } = *arguments;
    let options = TaskOptions {
        num_examples: num_fewshot.map(usize::from),
        limit: limit.map(|limit| limit as usize),
    };
    let start = world.clock().now();
    let mut progress = Progress::new(!arguments.quiet && std::io::stderr().is_terminal());
    let show = &mut |done, all| progress.show(done, all);
    let found = evaluate_tasks(path, arguments.device, &arguments.tasks, options, world, show);
    progress.clear();
    let mut tasks = found?;
    if !arguments.samples {
        for task in &mut tasks {
            task.log_likelihoods = None;
        }
    }
    let seconds = world.clock().since(start).as_secs_f64();
    let report = TaskReport { model: name_of(path), seconds, tasks };
    if arguments.json { output::json(&report) } else { output::text(&render_tasks(&report)) }
}

fn evaluate_texts(
    arguments: &Arguments,
    path: ModelPath<'_>,
    world: &World,
) -> Result<(), Failure> {
    let mut evaluator = TextEvaluator::open(path, arguments.device, world)?;
    let context = evaluator.context();
    let stride = arguments.stride.unwrap_or(context);
    if !(1..=context).contains(&stride) {
        return Err(Failure::user(format!(
            "--stride {stride} must be from 1 to the model's context, {context}"
        )));
    }
    let passages = if arguments.data.is_empty() {
        let held_out = evaluator.held_out(world)?;
        vec![held_out.ok_or_else(|| {
            let folder = name_of(path);
            Failure::user(format!(
                "{folder} is not a run, so it has no validation set; give --data FILE"
            ))
        })?]
    } else {
        let open = |source: &String| evaluator.passage(source, world);
        arguments.data.iter().map(open).collect::<Result<Vec<_>, _>>()?
    };
    let start = world.clock().now();
    let mut progress = Progress::new(!arguments.quiet && std::io::stderr().is_terminal());
    let mut texts = Vec::new();
    for passage in &passages {
        let evaluation =
            evaluator.evaluate(passage, stride, &mut |done, all| progress.show(done, all));
        progress.clear();
        texts.push(evaluation?);
    }
    let seconds = world.clock().since(start).as_secs_f64();
    let total = TextEvaluation::together(&texts);
    let tokens_per_second = total.num_targets as f64 / seconds;
    let model = name_of(path);
    let report = Report { model, context, stride, seconds, tokens_per_second, total, texts };
    if arguments.json { output::json(&report) } else { output::text(&render(&report)) }
}

fn render_conversations(report: &ConversationReport) -> String {
    let ConversationEvaluation { data, loss, num_conversations, num_targets, .. } = &report.found;
    let mut text = format!("data          {data}\n");
    match (report.found.perplexity, report.found.accuracy, report.found.margin) {
        (_, Some(accuracy), Some(margin)) => {
            let _ = writeln!(text, "loss          {loss:.4} per pair over {num_targets} pairs");
            let _ = writeln!(text, "accuracy      {:.2} % of pairs", 100.0 * accuracy);
            let _ = writeln!(text, "margin        {margin:.4} nats");
        }
        (perplexity, ..) => {
            let _ = writeln!(
                text,
                "loss          {loss:.4} nats per answered token over {num_targets} tokens of \
                 {num_conversations} conversations"
            );
            let perplexity = perplexity.unwrap_or(f64::NAN);
            let _ = writeln!(text, "perplexity    {perplexity:.2}");
        }
    }
    let _ = writeln!(text, "{:.1} s", report.seconds);
    text
}

/// Name of a model in a report.
fn name_of(path: ModelPath<'_>) -> String {
    path.folder.display().to_string()
}

/// A progress line on a terminal.
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
            // A closed standard error is not a failure of the command.
            let _ = write!(std::io::stderr(), "\revaluating {percent:>3} %");
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
    let mut render_text = |evaluation: &TextEvaluation| {
        let TextEvaluation { data, loss, perplexity, bits_per_byte, num_tokens, .. } = evaluation;
        let _ = writeln!(text, "data          {data}");
        let _ = writeln!(text, "loss          {loss:.4} nats per token over {num_tokens} tokens");
        let _ = writeln!(text, "perplexity    {perplexity:.2}");
        let _ = writeln!(text, "bits per byte {bits_per_byte:.4}\n");
    };
    if report.texts.len() > 1 {
        report.texts.iter().for_each(&mut render_text);
    }
    render_text(&report.total);
    let Report { context, stride, seconds, tokens_per_second, .. } = report;
    let _ = writeln!(
        text,
        "windows of {context} tokens, {stride} apart; {seconds:.1} s, {tokens_per_second:.0} \
         tokens/s"
    );
    text
}

fn render_tasks(report: &TaskReport) -> String {
    let mut text = String::new();
    for TaskEvaluation { task, num_questions, num_fewshot, scores, log_likelihood, .. } in
        &report.tasks
    {
        let _ = writeln!(text, "{task}: {num_questions} questions, {num_fewshot} examples each");
        for (metric, score) in scores.iter().filter(|(name, _)| !name.ends_with("_stderr")) {
            let _ = write!(text, "  {metric:<10} {:>6.2} %", 100.0 * score);
            if let Some(error) = scores.get(&format!("{metric}_stderr")) {
                let _ = write!(text, " ± {:.2} %", 100.0 * error);
            }
            text.push('\n');
        }
        if let Some(log_likelihood) = log_likelihood {
            let _ = writeln!(text, "  right choices: {log_likelihood:.4} nats");
        }
    }
    let _ = writeln!(text, "{:.1} s", report.seconds);
    text
}
