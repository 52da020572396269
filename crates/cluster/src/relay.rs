//! The words of many workers on one standard error, each line with its rank.
//!
//! Lines are passed on whole, so that two workers never share one. Two kinds of text get more care:
//! - a progress line that rewrites itself (it starts with a carriage return) stays one line on the
//!   terminal, with its rank, until another line needs the place;
//! - a line that starts with `error: ` is kept back, because when one worker fails the others do
//!   too, and only the end of the run shows whose words matter.

use std::io::Write;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// How the words of an error start.
pub const ERROR: &str = "error: ";

/// The longest line that is kept whole.
const MAX_LINE_BYTES: usize = 64 << 10;

/// The most lines that are kept back for each worker.
const MAX_KEPT: usize = 64;

/// Where all words come together; clones write to the same place.
#[derive(Clone)]
pub struct Relay {
    shared: Arc<Mutex<Shared>>,
}

struct Shared {
    out: Box<dyn Write + Send>,
    /// A progress line stands on the terminal and is not ended.
    is_open: bool,
    /// Errors that were kept back, by rank.
    kept: Vec<Vec<String>>,
}

impl Relay {
    /// Passes the words of so many workers on to `out`, usually standard error.
    pub fn new(out: Box<dyn Write + Send>, num_workers: usize) -> Self {
        let shared = Shared { out, is_open: false, kept: vec![Vec::new(); num_workers] };
        Self { shared: Arc::new(Mutex::new(shared)) }
    }

    /// What one worker writes.
    pub fn voice(&self, rank: usize) -> Voice {
        let relay = self.clone();
        Voice { relay, rank, line: Vec::new(), rewrites: false, is_drawn: true }
    }

    /// The errors that a worker reported so far, without `error: `.
    pub fn errors(&self, rank: usize) -> Vec<String> {
        self.lock().kept[rank].clone()
    }

    /// Writes a line as if the worker had written it just now.
    pub fn line(&self, rank: usize, text: &[u8]) {
        self.lock().line(rank, text);
    }

    /// Writes a line of nobody's.
    pub fn say(&self, text: &str) {
        self.lock().say(text);
    }

    /// Forgets the errors so far; other workers will speak for these ranks.
    pub fn forget(&self) {
        self.lock().kept.iter_mut().for_each(Vec::clear);
    }

    /// Ends a progress line that still stands open.
    pub fn close(&self) {
        self.lock().close();
    }

    fn lock(&self) -> MutexGuard<'_, Shared> {
        // Whatever a panic left behind is text.
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shared {
    // Where nobody reads any more, there is nobody to tell.

    fn line(&mut self, rank: usize, text: &[u8]) {
        self.close();
        let _ = self.out.write_all(&[format!("[{rank}] ").as_bytes(), text, b"\n"].concat());
        let _ = self.out.flush();
    }

    fn say(&mut self, text: &str) {
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

/// What one worker writes, put together to lines.
pub struct Voice {
    relay: Relay,
    rank: usize,
    /// The line so far.
    line: Vec<u8>,
    /// The line began with a carriage return.
    rewrites: bool,
    /// A line that rewrites itself is on the terminal as it is.
    is_drawn: bool,
}

impl Voice {
    /// Takes what has been read.
    pub fn hear(&mut self, bytes: &[u8]) {
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

    /// The worker will write no more.
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
            Some(text) if shared.kept[self.rank].len() < MAX_KEPT => {
                let text = String::from_utf8_lossy(text).into_owned();
                shared.kept[self.rank].push(text);
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
    struct Paper(Arc<Mutex<Vec<u8>>>);

    impl Write for Paper {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().expect("no panic").extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    impl Paper {
        fn text(&self) -> String {
            String::from_utf8(self.0.lock().expect("no panic").clone()).expect("text")
        }
    }

    fn relay() -> (Paper, Relay) {
        let paper = Paper::default();
        (paper.clone(), Relay::new(Box::new(paper), 2))
    }

    #[test]
    fn every_line_carries_its_rank_and_stays_whole() {
        let (paper, relay) = relay();
        let (mut zero, mut one) = (relay.voice(0), relay.voice(1));
        zero.hear(b"step 1");
        one.hear(b"hello\nand a ");
        zero.hear(b"/9\n\n");
        one.hear(b"rest without an end");
        one.finish();
        zero.finish();
        assert_eq!(paper.text(), "[1] hello\n[0] step 1/9\n[0] \n[1] and a rest without an end\n");
    }

    #[test]
    fn progress_is_rewritten_in_place_until_another_line_comes() {
        let (paper, relay) = relay();
        let (mut zero, mut one) = (relay.voice(0), relay.voice(1));
        zero.hear(b"\rstep 1");
        zero.hear(b"\rstep 2");
        one.hear(b"hello\n");
        zero.hear(b"\rstep 3\nfinished\n");
        zero.hear(b"\rstep 4");
        relay.close();
        let text =
            "\r[0] step 1\r[0] step 2\n[1] hello\n\r[0] step 3\n[0] finished\n\r[0] step 4\n";
        assert_eq!(paper.text(), text);
    }

    #[test]
    fn errors_are_kept_back() {
        let (paper, relay) = relay();
        let mut one = relay.voice(1);
        one.hear(b"error: it is broken\nstill here\nerror: it is late");
        one.finish();
        assert_eq!(paper.text(), "[1] still here\n");
        assert_eq!(relay.errors(1), ["it is broken", "it is late"]);
        assert!(relay.errors(0).is_empty());
    }

    #[test]
    fn a_line_without_an_end_is_cut_and_not_gathered_for_ever() {
        let (paper, relay) = relay();
        let mut zero = relay.voice(0);
        zero.hear(&vec![b'x'; MAX_LINE_BYTES + 10]);
        assert_eq!(paper.text().len(), MAX_LINE_BYTES + "[0] \n".len());
        zero.hear("\u{fffd}".as_bytes());
        zero.finish();
        assert_eq!(paper.text().lines().count(), 2);
    }
}
