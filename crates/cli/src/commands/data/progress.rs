//! A progress line on standard error: share, throughput and remaining time.
//!
//! A thread redraws it, so it moves while a library without callbacks is running. Without a
//! terminal a line is printed every ten seconds.

use crate::failure::Failure;
use crate::quantity::si_bytes;
use lockstep_config::units::BytesPerSecond;
use lockstep_platform::{JoinHandle, Signal, World};
use std::io::{IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const REDRAW: Duration = Duration::from_millis(200);
const REPEAT: Duration = Duration::from_secs(10);
const BAR_CELLS: usize = 24;

/// Progress counters, updated by the work.
#[derive(Default)]
pub(crate) struct Gauge {
    /// Bytes done of `total`.
    pub(crate) done: AtomicU64,
    /// Total bytes; 0 if unknown.
    pub(crate) total: AtomicU64,
    /// Bytes of text done, for the throughput.
    pub(crate) text: AtomicU64,
}

impl Gauge {
    /// Sets all counters.
    pub(crate) fn set(&self, done: u64, total: u64, text: u64) {
        self.total.store(total, Ordering::Relaxed);
        self.text.store(text, Ordering::Relaxed);
        self.done.store(done, Ordering::Relaxed);
    }
}

/// Prints a gauge until it is dropped.
pub(crate) struct Meter {
    over: Arc<dyn Signal>,
    thread: Option<Box<dyn JoinHandle>>,
}

impl Meter {
    /// Starts printing; with `--json` only on a terminal.
    pub(crate) fn start(
        what: &'static str,
        gauge: &Arc<Gauge>,
        is_json: bool,
        world: &World,
    ) -> Result<Self, Failure> {
        let over = world.threads().signal();
        let is_terminal = std::io::stderr().is_terminal();
        if is_json && !is_terminal {
            return Ok(Self { over, thread: None });
        }
        let (gauge, signal, clock) = (Arc::clone(gauge), Arc::clone(&over), Arc::clone(world));
        let body = move || {
            let start = clock.clock().now();
            let pause = if is_terminal { REDRAW } else { REPEAT };
            while !signal.wait(0, pause) {
                let seconds = clock.clock().since(start).as_secs_f64();
                draw(&line(what, &gauge, seconds), is_terminal);
            }
            if is_terminal {
                let _ = write!(std::io::stderr(), "\r\x1b[K");
            }
        };
        let thread = world.threads().spawn("progress", Box::new(body));
        let thread = thread.map_err(|error| Failure::bug(error.to_string()))?;
        Ok(Self { over, thread: Some(thread) })
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        self.over.notify_all();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Prints a line; a closed standard error is not a failure.
fn draw(line: &str, is_terminal: bool) {
    let mut stderr = std::io::stderr();
    let _ = if is_terminal {
        write!(stderr, "\r\x1b[K{line}").and_then(|()| stderr.flush())
    } else {
        writeln!(stderr, "{line}")
    };
}

fn line(what: &str, gauge: &Gauge, seconds: f64) -> String {
    let read = |number: &AtomicU64| number.load(Ordering::Relaxed);
    let (done, total, text) = (read(&gauge.done), read(&gauge.total), read(&gauge.text));
    let share = if total == 0 { 0.0 } else { (done as f64 / total as f64).min(1.0) };
    let num_full = (share * BAR_CELLS as f64) as usize;
    let bar = "=".repeat(num_full) + &" ".repeat(BAR_CELLS - num_full);
    let rate = BytesPerSecond(text as f64 / seconds.max(1e-9));
    let left = if share > 0.0 && share < 1.0 {
        format!(", {} left", clock_time(seconds * (1.0 - share) / share))
    } else {
        format!(", {} so far", clock_time(seconds))
    };
    let percent = share * 100.0;
    format!("{what} [{bar}] {percent:3.0} % {} at {rate}{left}", si_bytes(text))
}

fn clock_time(seconds: f64) -> String {
    let seconds = seconds.round() as u64;
    let (minutes, hours) = (seconds / 60 % 60, seconds / 3600);
    if hours > 0 {
        format!("{hours}:{minutes:02}:{:02}", seconds % 60)
    } else {
        format!("{minutes}:{:02}", seconds % 60)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_share_throughput_and_remaining_time() {
        let gauge = Gauge::default();
        gauge.set(250, 1000, 5_000_000);
        assert_eq!(
            line("tokenizing", &gauge, 2.0),
            "tokenizing [======                  ]  25 % 5.00 MB at 2.50 MB/s, 0:06 left"
        );
        gauge.set(1000, 1000, 0);
        assert!(line("merging", &gauge, 3_671.0).ends_with(", 1:01:11 so far"));
    }
}
