//! Relays the standard error of many workers to one screen, each line with its rank.
//!
//! Lines are written whole, so two workers never share one. Four kinds of lines are special:
//! - a line that starts with [`RECORD`] is a record of a worker's progress, which the screen draws;
//! - a line that starts with [`RUN_FOLDER`] names the run folder, which is kept for the end;
//! - the line [`LAST_STEP`] says that the last step begins, which changes the effect of Ctrl-C;
//! - a line that starts with `error: ` is held back, because the failure of one worker fails the
//!   others, and the root cause is known at the end of the run.

use std::io::Write;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Prefix of an error line.
pub const ERROR: &str = "error: ";

/// First byte of a record of progress: the ASCII record separator.
pub const RECORD: u8 = 0x1e;

/// Start of the line by which rank 0 names the run folder.
pub const RUN_FOLDER: &str = "\u{1e}run folder ";

/// Line by which rank 0 says that its last step begins.
pub const LAST_STEP: &str = "\u{1e}last step";

/// Longest line; longer ones are split.
const MAX_LINE_BYTES: usize = 64 << 10;

/// Largest number of error lines held back for a worker.
const MAX_ERRORS: usize = 64;

/// Destination of the relayed output. Write errors are ignored: a closed standard error has no
/// reader.
pub trait Screen: Send {
    /// Writes a line, which has no line end.
    fn line(&mut self, text: &[u8]);

    /// Shows a record of progress; an empty one ends the live line.
    fn progress(&mut self, record: &[u8]);

    /// Ends the live line.
    fn close(&mut self);
}

/// A file or a pipe, which shows no progress records.
pub struct PlainScreen(pub Box<dyn Write + Send>);

impl Screen for PlainScreen {
    fn line(&mut self, text: &[u8]) {
        let _ = self.0.write_all(&[text, b"\n"].concat());
        let _ = self.0.flush();
    }

    fn progress(&mut self, _record: &[u8]) {}

    fn close(&mut self) {}
}

/// Output of all workers; clones share it.
#[derive(Clone)]
pub struct Relay {
    shared: Arc<Mutex<Shared>>,
}

struct Shared {
    screen: Box<dyn Screen>,
    /// Error lines that were held back, indexed by rank.
    errors: Vec<Vec<String>>,
    /// Run folder, once a worker has named it.
    run_dir: Option<PathBuf>,
    /// Whether the last step has begun.
    is_last_step: bool,
}

impl Relay {
    /// Relays the output of `num_workers` to a screen, usually standard error.
    pub fn new(screen: Box<dyn Screen>, num_workers: usize) -> Self {
        let errors = vec![Vec::new(); num_workers];
        let shared = Shared { screen, errors, run_dir: None, is_last_step: false };
        Self { shared: Arc::new(Mutex::new(shared)) }
    }

    /// Output of one worker.
    pub fn worker_output(&self, rank: usize) -> WorkerOutput {
        let relay = self.clone();
        WorkerOutput { relay, rank, line: Vec::new(), has_returned: false }
    }

    /// Errors that a worker reported, without `error: `.
    pub fn errors(&self, rank: usize) -> Vec<String> {
        self.lock().errors[rank].clone()
    }

    /// Run folder, once rank 0 has created it.
    pub fn run_dir(&self) -> Option<PathBuf> {
        self.lock().run_dir.clone()
    }

    /// Whether the last step of this attempt has begun.
    pub fn is_last_step(&self) -> bool {
        self.lock().is_last_step
    }

    /// Writes a line with the rank of a worker.
    pub fn line(&self, rank: usize, text: &[u8]) {
        self.lock().line(rank, text);
    }

    /// Writes a line without a rank.
    pub fn write_line(&self, text: &str) {
        self.lock().screen.line(text.as_bytes());
    }

    /// Discards the errors and the announced end before the next attempt.
    pub fn clear_attempt(&self) {
        let mut shared = self.lock();
        shared.errors.iter_mut().for_each(Vec::clear);
        shared.is_last_step = false;
    }

    /// Ends the live line.
    pub fn close(&self) {
        self.lock().screen.close();
    }

    fn lock(&self) -> MutexGuard<'_, Shared> {
        // After a panic the state is still valid text.
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shared {
    fn line(&mut self, rank: usize, text: &[u8]) {
        self.screen.line(&[format!("[{rank}] ").as_bytes(), text].concat());
    }
}

/// Line buffer of one worker.
pub struct WorkerOutput {
    relay: Relay,
    rank: usize,
    /// Current line.
    line: Vec<u8>,
    /// Whether a carriage return came last: what follows on this line overwrites it.
    has_returned: bool,
}

impl WorkerOutput {
    /// Appends bytes that the worker wrote.
    pub fn push(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            match byte {
                b'\n' => self.end_line(),
                b'\r' => self.has_returned = true,
                _ => {
                    if std::mem::take(&mut self.has_returned) {
                        self.line.clear();
                    }
                    self.line.push(byte);
                    if self.line.len() == MAX_LINE_BYTES {
                        self.end_line();
                    }
                }
            }
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
        self.has_returned = false;
        let mut shared = self.relay.lock();
        if let Some(path) = line.strip_prefix(RUN_FOLDER.as_bytes()) {
            shared.run_dir = Some(PathBuf::from(String::from_utf8_lossy(path).into_owned()));
            return;
        }
        if line == LAST_STEP.as_bytes() {
            shared.is_last_step = true;
            return;
        }
        if let Some(record) = line.strip_prefix(&[RECORD]) {
            return shared.screen.progress(record);
        }
        match line.strip_prefix(ERROR.as_bytes()) {
            Some(text) if shared.errors[self.rank].len() < MAX_ERRORS => {
                let text = String::from_utf8_lossy(text).into_owned();
                shared.errors[self.rank].push(text);
            }
            _ => shared.line(self.rank, &line),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Everything that a screen got, as text.
    #[derive(Clone, Default)]
    struct Sink(Arc<Mutex<String>>);

    impl Sink {
        fn add(&self, text: &str) {
            self.0.lock().expect("no panic").push_str(text);
        }

        fn text(&self) -> String {
            self.0.lock().expect("no panic").clone()
        }
    }

    impl Screen for Sink {
        fn line(&mut self, text: &[u8]) {
            self.add(&format!("{}\n", String::from_utf8_lossy(text)));
        }

        fn progress(&mut self, record: &[u8]) {
            self.add(&format!("<{}>", String::from_utf8_lossy(record)));
        }

        fn close(&mut self) {
            self.add("<close>");
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
    fn records_of_progress_are_drawn_and_not_printed() {
        let (sink, relay) = relay();
        let (mut zero, mut one) = (relay.worker_output(0), relay.worker_output(1));
        zero.push(b"\x1e{\"step\"");
        one.push(b"hello\n");
        zero.push(b":1}\n\x1e\nfinished\n");
        relay.close();
        assert_eq!(sink.text(), "[1] hello\n<{\"step\":1}><>[0] finished\n<close>");
    }

    #[test]
    fn the_run_folder_is_kept_and_not_printed() {
        let (sink, relay) = relay();
        assert_eq!(relay.run_dir(), None);
        relay.worker_output(0).push(format!("{RUN_FOLDER}runs/0007\n").as_bytes());
        assert_eq!(relay.run_dir(), Some(PathBuf::from("runs/0007")));
        assert_eq!(sink.text(), "");
    }

    #[test]
    fn the_last_step_belongs_to_its_attempt_and_is_not_printed() {
        let (sink, relay) = relay();
        relay.worker_output(0).push(format!("{LAST_STEP}\n").as_bytes());
        assert!(relay.is_last_step());
        relay.clear_attempt();
        assert!(!relay.is_last_step(), "the next attempt has more steps");
        assert_eq!(sink.text(), "");
    }

    #[test]
    fn a_plain_screen_has_lines_only() {
        #[derive(Clone, Default)]
        struct Written(Arc<Mutex<Vec<u8>>>);
        impl Write for Written {
            fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
                self.0.lock().expect("no panic").extend_from_slice(bytes);
                Ok(bytes.len())
            }
            fn flush(&mut self) -> std::io::Result<()> {
                Ok(())
            }
        }
        let written = Written::default();
        let relay = Relay::new(Box::new(PlainScreen(Box::new(written.clone()))), 1);
        let mut zero = relay.worker_output(0);
        zero.push(b"one\n\x1e{}\ntwo\n");
        relay.close();
        assert_eq!(*written.0.lock().expect("no panic"), b"[0] one\n[0] two\n");
    }

    #[test]
    fn a_carriage_return_overwrites_its_line() {
        let (sink, relay) = relay();
        let mut zero = relay.worker_output(0);
        zero.push(b"10 %\r20 %\r");
        zero.push(b"30 %\nan end of another system\r\n");
        assert_eq!(sink.text(), "[0] 30 %\n[0] an end of another system\n");
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
