//! Console sink: progress lines on a terminal or in a log.
//!
//! A terminal shows one line that is rewritten in place, at most ten times per second, because each
//! rewrite costs a system call. A file or pipe gets a line about every two seconds, and always the
//! first and the last step. The ETA is the mean step time so far, validation included, times the
//! remaining steps.

mod text;

use std::fmt::Write as _;
use std::io::Write;

use self::text::{Duration, Rate, Sanitized, Thousands};
use crate::{Event, Sink, Stamped, TelemetryError};

/// Destination of the console.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Surface {
    /// A terminal, where a carriage return moves to the start of the line.
    Terminal,
    /// A file or a pipe, where every line remains.
    Plain,
}

impl Surface {
    /// Minimum time between two progress lines.
    fn interval_seconds(self) -> f64 {
        match self {
            Self::Terminal => 0.1,
            Self::Plain => 2.0,
        }
    }
}

/// A sink that renders events as lines of text.
pub struct Console {
    out: Box<dyn Write + Send>,
    surface: Surface,
    /// Reused buffer of the output.
    text: String,
    /// Columns of the progress line on the terminal that may be rewritten.
    open_columns: usize,
    num_steps: u64,
    /// Step and time of the first recorded step, from which the mean step time follows.
    first: Option<(u64, f64)>,
    last_drawn_seconds: Option<f64>,
    /// The latest step, if it is not drawn yet.
    undrawn: Option<Progress>,
}

#[derive(Clone, Copy)]
struct Progress {
    step: u64,
    loss: f64,
    tokens_per_second: f64,
    seconds_left: f64,
}

impl Console {
    /// Renders to `out`, usually standard error.
    pub fn new(out: Box<dyn Write + Send>, surface: Surface) -> Self {
        Self {
            out,
            surface,
            text: String::with_capacity(512),
            open_columns: 0,
            num_steps: 0,
            first: None,
            last_drawn_seconds: None,
            undrawn: None,
        }
    }

    fn step(&mut self, now_seconds: f64, progress: Progress) -> Result<(), TelemetryError> {
        let is_due = self
            .last_drawn_seconds
            .is_none_or(|last| now_seconds - last >= self.surface.interval_seconds());
        if !is_due && progress.step < self.num_steps {
            self.undrawn = Some(progress);
            return Ok(());
        }
        self.last_drawn_seconds = Some(now_seconds);
        self.draw(progress);
        self.put()
    }

    /// Appends the progress line: over the old one on a terminal, else on a line of its own.
    fn draw(&mut self, progress: Progress) {
        self.undrawn = None;
        if self.surface == Surface::Terminal {
            self.text.push('\r');
        }
        let start = self.text.len();
        let Progress { step, loss, tokens_per_second, seconds_left } = progress;
        let width = text::num_digits(self.num_steps);
        add(&mut self.text, format_args!("step {step:>width$}/{}", self.num_steps));
        add(&mut self.text, format_args!("  loss {loss:.4}  {} tokens/s", Rate(tokens_per_second)));
        add(&mut self.text, format_args!("  ETA {}", Duration(seconds_left)));
        let columns = self.text.len() - start;
        match self.surface {
            Surface::Plain => self.text.push('\n'),
            Surface::Terminal => {
                // Spaces clear the rest of a longer line.
                for _ in columns..self.open_columns {
                    self.text.push(' ');
                }
                self.open_columns = columns;
            }
        }
    }

    /// Completes the progress line before any other line.
    fn close_progress(&mut self) {
        if self.surface == Surface::Terminal {
            if let Some(progress) = self.undrawn {
                self.draw(progress);
            }
            if self.open_columns > 0 {
                self.text.push('\n');
                self.open_columns = 0;
            }
        }
    }

    /// Writes the buffer in one call and clears it.
    fn put(&mut self) -> Result<(), TelemetryError> {
        let written = self.out.write_all(self.text.as_bytes()).and_then(|()| self.out.flush());
        self.text.clear();
        written.map_err(|error| TelemetryError::Write {
            sink: "the console".to_owned(),
            reason: error.to_string(),
        })
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
            } => {
                let (params, tokens) = (Thousands(*num_params), Thousands(*tokens_per_step));
                let steps = Thousands(*num_steps);
                add(text, format_args!("{params} parameters, {steps} steps of {tokens} tokens\n"));
                add(text, format_args!("workers {workers}, threads {num_threads}, "));
                add(text, format_args!("kernels {kernel_class}, recipe {recipe_hash:.12}\n"));
            }
            Event::Evaluated { step, validation_loss, perplexity, .. } => {
                add(text, format_args!("step {step}  validation loss {validation_loss:.4}"));
                add(text, format_args!("  perplexity {perplexity:.3}\n"));
            }
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
            Event::RunFinished {
                steps,
                final_loss,
                validation_loss,
                losses_hash,
                weights_hash,
                run_seconds,
            } => {
                let steps = Thousands(*steps);
                add(text, format_args!("finished {steps} steps in {}", Duration(*run_seconds)));
                add(text, format_args!("  loss {final_loss:.4}"));
                if let Some(loss) = validation_loss {
                    add(text, format_args!("  validation loss {loss:.4}"));
                }
                add(text, format_args!("\nlosses  {losses_hash}\nweights {weights_hash}\n"));
            }
            _ => describe_asynchronous(text, event),
        }
    }
}

impl Sink for Console {
    fn write(&mut self, stamped: &Stamped) -> Result<(), TelemetryError> {
        let now_seconds = stamped.seconds;
        match &stamped.event {
            &Event::Step { step, loss, tokens_per_second, step_seconds, .. } => {
                let seconds_left = self.seconds_left(now_seconds, step, step_seconds);
                return self
                    .step(now_seconds, Progress { step, loss, tokens_per_second, seconds_left });
            }
            event if event.is_detail() => return Ok(()),
            Event::RunStarted { num_steps, .. } => {
                self.num_steps = *num_steps;
                (self.first, self.last_drawn_seconds, self.undrawn) = (None, None, None);
            }
            Event::RunFinished { .. } => {
                // A run that ends early has not drawn its last step.
                if let Some(progress) = self.undrawn {
                    self.draw(progress);
                }
            }
            _ => {}
        }
        self.close_progress();
        self.describe(&stamped.event);
        self.put()
    }

    fn flush(&mut self) -> Result<(), TelemetryError> {
        self.close_progress();
        self.put()
    }
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
        Event::ServerLost { step, rank, process, successor } => {
            let step = Thousands(*step);
            add(
                text,
                format_args!("step {step}  server rank {rank} (process {process}) is lost; "),
            );
            add(text, format_args!("its replica rank {successor} takes over\n"));
        }
        Event::ServerRequests { step, pull_p50_seconds, push_p50_seconds, .. } => {
            let (step, pull) = (Thousands(*step), Duration(*pull_p50_seconds));
            add(text, format_args!("step {step}  median pull {pull}, "));
            add(text, format_args!("push {}\n", Duration(*push_p50_seconds)));
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
