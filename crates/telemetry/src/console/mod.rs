//! Console sink: progress and events on a terminal, through a launcher, or in a log.
//!
//! A terminal has one live line that is redrawn in place, at most ten times per second, with other
//! lines above it ([`Terminal`]). A worker whose launcher owns the terminal sends it records of its
//! progress, which the launcher draws. A file or pipe gets a line about every two seconds, and
//! always the first and the last step. The ETA is the mean step time so far, validation included,
//! times the remaining steps.

mod color;
mod progress;
mod terminal;
mod text;

pub use self::color::{has_colors, is_dumb};
pub use self::progress::Progress;
pub use self::terminal::{Columns, Terminal};
pub use self::text::{Sanitized, wrap};

use std::fmt::Write as _;
use std::io::{self, Write};

use self::color::push_line;
use self::progress::History;
use self::text::{Duration, Rate, Thousands};
use crate::{Event, Sink, SourceTokens, Stamped, TelemetryError};

/// First byte of a line with a record of progress: a JSON [`Progress`], or nothing once the live
/// line has ended.
pub const RECORD: u8 = 0x1e;

/// Destination of the console.
pub enum Surface {
    /// A terminal of this process.
    Terminal(Terminal),
    /// Standard error of a worker whose launcher draws the records.
    Launcher(Box<dyn Write + Send>),
    /// A file or a pipe, where every line remains; lines may have colours.
    Plain(Box<dyn Write + Send>, bool),
}

impl Surface {
    /// Minimum time between two progress lines.
    fn interval_seconds(&self) -> f64 {
        match self {
            Self::Terminal(_) | Self::Launcher(_) => 0.1,
            Self::Plain(..) => 2.0,
        }
    }
}

/// A sink that renders events as lines of text.
pub struct Console {
    surface: Surface,
    /// Lines about the run that its events do not have.
    header: String,
    /// Reused buffers of the output.
    text: String,
    record: Vec<u8>,
    /// Model FLOPs of a token over the peak per second, where it is known.
    peak_seconds_per_token: Option<f64>,
    num_workers: usize,
    num_steps: u64,
    /// Whether losses are those of pairs, and not of tokens.
    has_pairs: bool,
    /// Step and time of the first recorded step, from which the mean step time follows.
    first: Option<(u64, f64)>,
    last_drawn_seconds: Option<f64>,
    history: History,
    /// The latest step.
    progress: Progress,
    /// Whether the latest step is drawn.
    is_drawn: bool,
}

impl Console {
    /// Renders to a surface. The lines of `header` come before those of the run's start.
    pub fn new(surface: Surface, header: String) -> Self {
        Self {
            surface,
            header,
            text: String::with_capacity(512),
            record: Vec::with_capacity(1024),
            peak_seconds_per_token: None,
            num_workers: 1,
            num_steps: 0,
            has_pairs: false,
            first: None,
            last_drawn_seconds: None,
            history: History::new(),
            progress: Progress::start(),
            is_drawn: true,
        }
    }

    /// Prepares for a run, which may be the second of this console.
    fn start(&mut self, event: &Event) {
        let Event::RunStarted {
            num_steps, workers, flops_per_token, peak_flops_per_second, ..
        } = event
        else {
            return;
        };
        (self.num_steps, self.num_workers) = (*num_steps, *workers);
        let share = flops_per_token.zip(*peak_flops_per_second).map(|(flops, peak)| flops / peak);
        self.peak_seconds_per_token = share.filter(|share| share.is_finite());
        (self.first, self.last_drawn_seconds, self.is_drawn) = (None, None, true);
        self.history.clear();
    }

    fn step(&mut self, now_seconds: f64, event: &Event) -> Result<(), TelemetryError> {
        let &Event::Step {
            step,
            loss,
            lr,
            grad_norm,
            tokens_per_second,
            step_seconds,
            exposed_communication_seconds,
            preference_accuracy,
            preference_margin,
            seqlen,
            ..
        } = event
        else {
            return Ok(());
        };
        let exposed = exposed_communication_seconds / step_seconds;
        let seconds_left = self.seconds_left(now_seconds, step, step_seconds);
        self.history.push(loss);
        let progress = &mut self.progress;
        (progress.step, progress.num_steps, progress.loss) = (step, self.num_steps, loss);
        (progress.lr, progress.grad_norm, progress.seqlen) = (lr, grad_norm, seqlen);
        (progress.tokens_per_second, progress.seconds_left) = (tokens_per_second, seconds_left);
        (progress.preference_accuracy, progress.preference_margin) =
            (preference_accuracy, preference_margin);
        progress.mfu = self.peak_seconds_per_token.map(|seconds| seconds * tokens_per_second);
        progress.exposed_communication =
            Some(exposed).filter(|share| self.num_workers > 1 && share.is_finite());
        self.is_drawn = false;
        let is_due = self
            .last_drawn_seconds
            .is_none_or(|last| now_seconds - last >= self.surface.interval_seconds());
        if !is_due && step < self.num_steps {
            return Ok(());
        }
        self.last_drawn_seconds = Some(now_seconds);
        self.draw()
    }

    /// Draws the latest step, once.
    fn draw(&mut self) -> Result<(), TelemetryError> {
        if std::mem::replace(&mut self.is_drawn, true) {
            return Ok(());
        }
        self.history.summarize(&mut self.progress.recent_losses);
        let progress = &self.progress;
        match &mut self.surface {
            Surface::Terminal(terminal) => return written(terminal.draw(progress)),
            Surface::Launcher(out) => {
                let record = &mut self.record;
                record.clear();
                record.push(RECORD);
                serde_json::to_writer(&mut *record, progress).expect("a record is JSON");
                record.push(b'\n');
                return written(out.write_all(record).and_then(|()| out.flush()));
            }
            Surface::Plain(..) => describe_progress(&mut self.text, progress),
        }
        self.put()
    }

    /// Ends the live line.
    fn close(&mut self) -> Result<(), TelemetryError> {
        match &mut self.surface {
            Surface::Terminal(terminal) => written(terminal.close()),
            Surface::Launcher(_) => {
                add(&mut self.text, format_args!("{}\n", char::from(RECORD)));
                self.put()
            }
            Surface::Plain(..) => Ok(()),
        }
    }

    /// Writes the buffer in one call and clears it.
    fn put(&mut self) -> Result<(), TelemetryError> {
        let text = &mut self.text;
        if text.is_empty() {
            return Ok(());
        }
        let result = match &mut self.surface {
            Surface::Terminal(terminal) => terminal.print(text),
            Surface::Plain(out, true) => {
                let mut painted = String::with_capacity(text.len());
                for line in text.lines() {
                    push_line(&mut painted, line, true);
                    painted.push('\n');
                }
                write_all(out, &painted)
            }
            Surface::Plain(out, false) | Surface::Launcher(out) => write_all(out, text),
        };
        text.clear();
        written(result)
    }

    fn seconds_left(&mut self, now_seconds: f64, step: u64, step_seconds: f64) -> f64 {
        let (first_step, first_seconds) = *self.first.get_or_insert((step, now_seconds));
        let mean_step_seconds = match step.saturating_sub(first_step) {
            0 => step_seconds,
            num_steps => (now_seconds - first_seconds) / num_steps as f64,
        };
        mean_step_seconds * self.num_steps.saturating_sub(step) as f64
    }

    /// Appends the lines of every event except steps and details.
    fn describe(&mut self, event: &Event) {
        let text = &mut self.text;
        match event {
            Event::RunStarted {
                recipe_hash,
                kernel_class,
                num_params,
                tokens_per_step,
                num_steps,
                num_threads,
                workers,
                device,
                ..
            } => {
                text.push_str(&self.header);
                let (params, tokens) = (Thousands(*num_params), Thousands(*tokens_per_step));
                let steps = Thousands(*num_steps);
                add(text, format_args!("{params} parameters, {steps} steps of {tokens} tokens\n"));
                add(text, format_args!("workers {workers}, threads {num_threads}, "));
                if let Some(device) = device {
                    add(text, format_args!("device {device}, "));
                }
                add(text, format_args!("kernels {kernel_class}, recipe {recipe_hash:.12}\n"));
            }
            Event::Evaluated { step, validation_loss, perplexity, .. } => {
                add(text, format_args!("step {step}  validation loss {validation_loss:.4}"));
                if self.has_pairs {
                    text.push_str(" per pair\n");
                } else {
                    add(text, format_args!("  perplexity {perplexity:.3}\n"));
                }
            }
            Event::TaskEvaluated { step, task, questions, scores, .. } => {
                add(text, format_args!("step {step}  {task}"));
                let metrics = scores.iter().filter(|(name, _)| !name.ends_with("_stderr"));
                for (metric, score) in metrics {
                    add(text, format_args!("  {metric} {:.2} %", 100.0 * score));
                }
                add(text, format_args!("  of {} questions\n", Thousands(*questions)));
            }
            Event::SourcesRead { step, sources } => describe_sources(text, *step, sources),
            Event::TargetReached {
                step, validation_loss, tokens, wire_bytes, run_seconds, ..
            } => {
                let (step, tokens) = (Thousands(*step), Thousands(*tokens));
                let (bytes, time) = (Thousands(*wire_bytes), Duration(*run_seconds));
                add(
                    text,
                    format_args!("reached validation loss {validation_loss:.4} with {step} "),
                );
                add(text, format_args!("steps, {tokens} tokens, {bytes} bytes sent, {time}\n"));
            }
            Event::Assessed { step, accuracy, suboptimality, distance, .. } => {
                add(text, format_args!("step {step}"));
                if let Some(accuracy) = accuracy {
                    add(text, format_args!("  accuracy {:.2} %", 100.0 * accuracy));
                }
                if let (Some(excess), Some(distance)) = (suboptimality, distance) {
                    add(text, format_args!("  suboptimality {excess:.3e}"));
                    add(text, format_args!("  distance {distance:.3e}"));
                }
                text.push('\n');
            }
            Event::CheckpointSaved { .. } | Event::Restored { .. } => {
                describe_checkpoint(text, event);
            }
            Event::Sample { text: sample } => {
                add(text, format_args!("sample:\n{}\n", Sanitized(sample)));
            }
            Event::Warning { message } => {
                add(text, format_args!("warning: {}\n", Sanitized(message)));
            }
            Event::RunFinished { steps, final_loss, validation_loss, run_seconds, .. } => {
                // The command prints the hashes once, in its summary.
                let steps = Thousands(*steps);
                add(text, format_args!("finished {steps} steps in {}", Duration(*run_seconds)));
                add(text, format_args!("  loss {final_loss:.4}"));
                if let Some(loss) = validation_loss {
                    add(text, format_args!("  validation loss {loss:.4}"));
                }
                text.push('\n');
            }
            Event::ConversationsRead { .. } => describe_conversations(text, event),
            _ => describe_asynchronous(text, event),
        }
    }
}

/// Appends the tokens read from each source of a mixture.
fn describe_sources(text: &mut String, step: u64, sources: &[SourceTokens]) {
    let all: u64 = sources.iter().map(|source| source.tokens).sum();
    add(text, format_args!("step {step}  tokens by source:"));
    for SourceTokens { source, tokens, .. } in sources {
        let percent = 100.0 * *tokens as f64 / all.max(1) as f64;
        let tokens = Thousands(*tokens);
        add(text, format_args!("  {source} {tokens} ({percent:.1} %)"));
    }
    add(text, format_args!("\n"));
}

impl Sink for Console {
    fn write(&mut self, stamped: &Stamped) -> Result<(), TelemetryError> {
        match &stamped.event {
            event @ Event::Step { .. } => return self.step(stamped.seconds, event),
            event if event.is_detail() => return Ok(()),
            event @ Event::RunStarted { .. } => self.start(event),
            Event::ConversationsRead { pairs, .. } => self.has_pairs = *pairs,
            Event::RunFinished { .. } => {
                // A run that ends early has not drawn its last step.
                self.draw()?;
                self.close()?;
            }
            _ => {}
        }
        self.describe(&stamped.event);
        self.put()
    }

    fn flush(&mut self) -> Result<(), TelemetryError> {
        if !matches!(self.surface, Surface::Plain(..)) {
            self.draw()?;
        }
        self.close()
    }
}

/// Appends what a run has read of its conversations.
fn describe_conversations(text: &mut String, event: &Event) {
    let &Event::ConversationsRead {
        conversations,
        train,
        tokens,
        answered,
        truncated,
        dropped,
        pairs,
    } = event
    else {
        return;
    };
    let unit = if pairs { "pairs" } else { "conversations" };
    let [all, train] = [conversations, train].map(Thousands);
    let [tokens, answered] = [tokens, answered].map(Thousands);
    add(text, format_args!("{all} {unit} ({train} train), {tokens} tokens, {answered} answered"));
    if truncated > 0 {
        let truncated = Thousands(truncated);
        add(text, format_args!("; {truncated} truncated to model.context"));
    }
    if dropped > 0 {
        let dropped = Thousands(dropped);
        add(text, format_args!("; {dropped} without an answer in model.context dropped"));
    }
    text.push('\n');
}

/// Appends a step as a plain line.
fn describe_progress(text: &mut String, progress: &Progress) {
    let &Progress { step, num_steps, loss, seqlen, tokens_per_second, seconds_left, .. } = progress;
    let preference = progress.preference_accuracy.zip(progress.preference_margin);
    let width = text::num_digits(num_steps);
    add(text, format_args!("step {step:>width$}/{num_steps}"));
    add(text, format_args!("  loss {loss:.4}  {} tokens/s", Rate(tokens_per_second)));
    if let Some((accuracy, margin)) = preference {
        add(text, format_args!("  accuracy {:.1} %  margin {margin:.3}", 100.0 * accuracy));
    }
    if let Some(length) = seqlen {
        add(text, format_args!("  length {length}"));
    }
    add(text, format_args!("  ETA {}\n", Duration(seconds_left)));
}

fn write_all(out: &mut dyn Write, text: &str) -> io::Result<()> {
    out.write_all(text.as_bytes()).and_then(|()| out.flush())
}

fn written(result: io::Result<()>) -> Result<(), TelemetryError> {
    result.map_err(|error| TelemetryError::Write {
        sink: "the console".to_owned(),
        reason: error.to_string(),
    })
}

/// Appends the lines of gossip and parameter-server events; details have none.
fn describe_asynchronous(text: &mut String, event: &Event) {
    match event {
        Event::GraphFormed { graph, max_degree, spectral_gap } => {
            add(text, format_args!("gossip graph {}, ", Sanitized(graph)));
            let plural = if *max_degree == 1 { "" } else { "s" };
            add(text, format_args!("at most {max_degree} neighbour{plural} per worker, "));
            add(text, format_args!("spectral gap {spectral_gap:.4}\n"));
        }
        Event::Consensus { step, distance, .. } => {
            let step = Thousands(*step);
            add(text, format_args!("step {step}  consensus distance {distance:.3e}\n"));
        }
        Event::ServersJoined { server_processes, params_by_server, consistency, .. } => {
            let num = server_processes.len();
            add(text, format_args!("{num} server{}, ", if num == 1 { "" } else { "s" }));
            add(text, format_args!("{}: ", Sanitized(consistency)));
            let each = server_processes.iter().zip(params_by_server).enumerate();
            for (index, (process, params)) in each {
                let comma = if index == 0 { "" } else { ", " };
                let params = Thousands(*params);
                add(text, format_args!("{comma}process {process} with {params}"));
            }
            text.push_str(" parameters\n");
        }
        Event::ServerLost { step, server, process, successor } => {
            let step = Thousands(*step);
            add(
                text,
                format_args!("step {step}  server rank {server} (process {process}) is lost; "),
            );
            add(text, format_args!("its replica rank {successor} takes over\n"));
        }
        Event::ServerRequests { step, pull_p50_seconds, push_p50_seconds, .. } => {
            let (step, pull) = (Thousands(*step), Duration(*pull_p50_seconds));
            add(text, format_args!("step {step}  median pull {pull}, "));
            add(text, format_args!("push {}\n", Duration(*push_p50_seconds)));
        }
        Event::ServerPushes { step, discarded_by_server, skipped_by_server, .. } => {
            let discarded = discarded_by_server.iter().flatten().sum();
            // A step is skipped at all servers.
            let skipped = skipped_by_server.first().into_iter().flatten().sum();
            if (discarded, skipped) != (0, 0) {
                let counts = [*step, discarded, skipped].map(Thousands);
                let [step, discarded, skipped] = counts;
                add(text, format_args!("step {step}  servers discarded {discarded} gradient "));
                add(text, format_args!("shards, workers skipped {skipped} steps\n"));
            }
        }
        Event::Staleness { step, worker, mean, max, .. } => {
            let step = Thousands(*step);
            add(text, format_args!("step {step}  staleness of worker {worker}: "));
            add(text, format_args!("mean {mean:.2}, max {max}\n"));
        }
        Event::SparseRows { step, pulled, pushed, cached, replicated, bytes_by_server, .. } => {
            let counts = [step, pulled, cached, replicated, pushed].map(|count| Thousands(*count));
            let ([step, pulled, cached, replicated, pushed], bytes) =
                (counts, Thousands(bytes_by_server.iter().sum()));
            add(text, format_args!("step {step}  {pulled} rows pulled, {cached} cached, "));
            add(text, format_args!("{replicated} replicated, {pushed} pushed: {bytes} bytes\n"));
        }
        _ => {}
    }
}

/// Appends the lines of checkpoint events.
fn describe_checkpoint(text: &mut String, event: &Event) {
    match event {
        Event::CheckpointSaved { step, write_seconds, interval_seconds, .. } => {
            add(
                text,
                format_args!("step {step}  checkpoint saved in {}", Duration(*write_seconds)),
            );
            if let Some(interval) = interval_seconds {
                add(text, format_args!(", next in {}", Duration(*interval)));
            }
            text.push('\n');
        }
        Event::Restored { step, path } => {
            add(text, format_args!("resumed after step {step} from {}\n", Sanitized(path)));
        }
        _ => {}
    }
}

fn add(text: &mut String, piece: std::fmt::Arguments<'_>) {
    text.write_fmt(piece).expect("a string accepts any text");
}

#[cfg(test)]
mod tests;
