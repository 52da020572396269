//! Relays the standard error of many workers to one stream, each line with its rank.
//!
//! Lines are written whole, so two workers never share one. Two kinds of lines are special:
//! - a progress line that starts with a carriage return is redrawn in place until another line
//!   follows;
//! - a line that starts with `error: ` is held back, because the failure of one worker fails the
//!   others, and the root cause is known at the end of the run.

use std::io::Write;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Prefix of an error line.
pub const ERROR: &str = "error: ";

/// Longest line; longer ones are split.
const MAX_LINE_BYTES: usize = 64 << 10;

/// Largest number of error lines held back for a worker.
const MAX_ERRORS: usize = 64;

/// Output of all workers; clones share it.
#[derive(Clone)]
pub struct Relay {
    shared: Arc<Mutex<Shared>>,
}

struct Shared {
    out: Box<dyn Write + Send>,
    /// Whether the terminal shows an unfinished progress line.
    is_open: bool,
    /// Error lines that were held back, indexed by rank.
    errors: Vec<Vec<String>>,
}

impl Relay {
    /// Relays the output of `num_workers` to `out`, usually standard error.
    pub fn new(out: Box<dyn Write + Send>, num_workers: usize) -> Self {
        let shared = Shared { out, is_open: false, errors: vec![Vec::new(); num_workers] };
        Self { shared: Arc::new(Mutex::new(shared)) }
    }

    /// Output of one worker.
    pub fn worker_output(&self, rank: usize) -> WorkerOutput {
        let relay = self.clone();
        WorkerOutput { relay, rank, line: Vec::new(), rewrites: false, is_drawn: true }
    }

    /// Errors that a worker reported, without `error: `.
    pub fn errors(&self, rank: usize) -> Vec<String> {
        self.lock().errors[rank].clone()
    }

    /// Writes a line with the rank of a worker.
    pub fn line(&self, rank: usize, text: &[u8]) {
        self.lock().line(rank, text);
    }

    /// Writes a line without a rank.
    pub fn write_line(&self, text: &str) {
        self.lock().write_line(text);
    }

    /// Discards the errors before the next attempt.
    pub fn clear_errors(&self) {
        self.lock().errors.iter_mut().for_each(Vec::clear);
    }

    /// Ends an unfinished progress line.
    pub fn close(&self) {
        self.lock().close();
    }

    fn lock(&self) -> MutexGuard<'_, Shared> {
        // After a panic the state is still valid text.
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shared {
    // Write errors are ignored: a closed standard error has no reader.

    fn line(&mut self, rank: usize, text: &[u8]) {
        self.close();
        let _ = self.out.write_all(&[format!("[{rank}] ").as_bytes(), text, b"\n"].concat());
        let _ = self.out.flush();
    }

    fn write_line(&mut self, text: &str) {
        self.close();
        let _ = self.out.write_all(&[text.as_bytes(), b"\n"].concat());
        let _ = self.out.flush();
    }

    fn draw(&mut self, rank: usize, text: &[u8]) {
        self.is_open = true;
        let _ = self.out.write_all(&[format!("\r[{rank}] ").as_bytes(), text].concat());
        let _ = self.out.flush();
    }

    fn close(&mut self) {
        if std::mem::take(&mut self.is_open) {
            let _ = self.out.write_all(b"\n");
        }
    }
}

/// Line buffer of one worker.
pub struct WorkerOutput {
    relay: Relay,
    rank: usize,
    /// Current line.
    line: Vec<u8>,
    /// Whether the line started with a carriage return.
    rewrites: bool,
    /// Whether the terminal shows the current progress line.
    is_drawn: bool,
}

impl WorkerOutput {
    /// Appends bytes that the worker wrote.
    pub fn push(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            match byte {
                b'\n' => self.end_line(),
                b'\r' => {
                    self.line.clear();
                    self.rewrites = true;
                }
                _ => {
                    self.line.push(byte);
                    self.is_drawn = false;
                    if self.line.len() == MAX_LINE_BYTES {
                        self.end_line();
                    }
                }
            }
        }
        if self.rewrites && !self.is_drawn {
            self.relay.lock().draw(self.rank, &self.line);
            self.is_drawn = true;
        }
    }

    /// Writes the last line of a worker that exited.
    pub fn finish(&mut self) {
        if !self.line.is_empty() {
            self.end_line();
        }
    }

    fn end_line(&mut self) {
        let line = std::mem::take(&mut self.line);
        let mut shared = self.relay.lock();
        let error = line.strip_prefix(ERROR.as_bytes());
        match error {
            Some(text) if shared.errors[self.rank].len() < MAX_ERRORS => {
                let text = String::from_utf8_lossy(text).into_owned();
                shared.errors[self.rank].push(text);
            }
            _ if self.rewrites => {
                shared.draw(self.rank, &line);
                shared.close();
            }
            _ => shared.line(self.rank, &line),
        }
        drop(shared);
        self.rewrites = false;
        self.is_drawn = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Default)]
    struct Sink(Arc<Mutex<Vec<u8>>>);

    impl Write for Sink {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().expect("no panic").extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    impl Sink {
        fn text(&self) -> String {
            String::from_utf8(self.0.lock().expect("no panic").clone()).expect("text")
        }
    }

    fn relay() -> (Sink, Relay) {
        let sink = Sink::default();
        (sink.clone(), Relay::new(Box::new(sink), 2))
    }

    #[test]
    fn every_line_carries_its_rank_and_stays_whole() {
        let (sink, relay) = relay();
        let (mut zero, mut one) = (relay.worker_output(0), relay.worker_output(1));
        zero.push(b"step 1");
        one.push(b"hello\nand a ");
        zero.push(b"/9\n\n");
        one.push(b"rest without an end");
        one.finish();
        zero.finish();
        assert_eq!(sink.text(), "[1] hello\n[0] step 1/9\n[0] \n[1] and a rest without an end\n");
    }

    #[test]
    fn progress_is_redrawn_in_place_until_another_line_follows() {
        let (sink, relay) = relay();
        let (mut zero, mut one) = (relay.worker_output(0), relay.worker_output(1));
        zero.push(b"\rstep 1");
        zero.push(b"\rstep 2");
        one.push(b"hello\n");
        zero.push(b"\rstep 3\nfinished\n");
        zero.push(b"\rstep 4");
        relay.close();
        let text =
            "\r[0] step 1\r[0] step 2\n[1] hello\n\r[0] step 3\n[0] finished\n\r[0] step 4\n";
        assert_eq!(sink.text(), text);
    }

    #[test]
    fn errors_are_held_back() {
        let (sink, relay) = relay();
        let mut one = relay.worker_output(1);
        one.push(b"error: it is broken\nstill here\nerror: it is late");
        one.finish();
        assert_eq!(sink.text(), "[1] still here\n");
        assert_eq!(relay.errors(1), ["it is broken", "it is late"]);
        assert!(relay.errors(0).is_empty());
    }

    #[test]
    fn an_endless_line_is_split() {
        let (sink, relay) = relay();
        let mut zero = relay.worker_output(0);
        zero.push(&vec![b'x'; MAX_LINE_BYTES + 10]);
        assert_eq!(sink.text().len(), MAX_LINE_BYTES + "[0] \n".len());
        zero.push("\u{fffd}".as_bytes());
        zero.finish();
        assert_eq!(sink.text().lines().count(), 2);
    }
}
