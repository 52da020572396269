//! A terminal with one live line at its bottom, drawn with `indicatif`.
//!
//! A thread draws the live line: the step loop neither waits for a slow terminal nor allocates.
//! Other lines are printed above it at once. The width is read at every redraw, and four times
//! per second between steps, so a resized terminal gets a line that fits. A terminal that became
//! narrower has wrapped the old line; the rows that it takes now are cleared with it.

use std::fmt;
use std::io::{self, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle, TermLike};
use lockstep_platform::{JoinHandle, Signal, World};

use super::color::push_line;
use super::progress::Progress;
use super::text::wrap;

/// Time between two looks at the width.
const RESIZE_INTERVAL: Duration = Duration::from_millis(250);

/// Width of the terminal now.
pub type Columns = Arc<dyn Fn() -> usize + Send + Sync>;

/// A terminal with a live line.
pub struct Terminal {
    shared: Arc<Shared>,
    /// The drawing thread; none if it could not start.
    thread: Option<Box<dyn JoinHandle>>,
}

struct Shared {
    latest: Mutex<Latest>,
    painter: Mutex<Painter>,
    changed: Arc<dyn Signal>,
}

/// The latest progress, which the thread draws.
struct Latest {
    progress: Progress,
    is_new: bool,
    is_over: bool,
    /// First error of the thread.
    error: Option<io::Error>,
}

impl Terminal {
    /// A terminal that is written by `out`.
    pub fn new(
        world: &World,
        out: Box<dyn Write + Send>,
        columns: Columns,
        has_colors: bool,
    ) -> Self {
        let latest =
            Latest { progress: Progress::start(), is_new: false, is_over: false, error: None };
        let (latest, changed) = (Mutex::new(latest), world.threads().signal());
        let painter = Mutex::new(Painter::new(out, columns, has_colors));
        let shared = Arc::new(Shared { latest, painter, changed });
        let drawn = Arc::clone(&shared);
        let thread = world.threads().spawn("console", Box::new(move || drawn.run())).ok();
        Self { shared, thread }
    }

    /// Draws the live line soon, over the old one.
    pub fn draw(&mut self, progress: &Progress) -> io::Result<()> {
        let mut latest = lock(&self.shared.latest);
        latest.progress.copy_from(progress);
        latest.is_new = true;
        let error = latest.error.take();
        drop(latest);
        self.shared.changed.notify_all();
        error.map_or(Ok(()), Err)
    }

    /// Prints lines above the live line, wrapped between words.
    pub fn print(&mut self, lines: &str) -> io::Result<()> {
        lock(&self.shared.painter).print(lines)
    }

    /// Ends the live line, which stays as it was drawn last.
    pub fn close(&mut self) -> io::Result<()> {
        let mut painter = lock(&self.shared.painter);
        self.shared.draw_latest(&mut painter)?;
        painter.close()
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        lock(&self.shared.latest).is_over = true;
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread leaves a line unfinished, and nothing else.
            let _ = thread.join();
        }
    }
}

impl Shared {
    /// Draws until the terminal is dropped.
    fn run(&self) {
        loop {
            let epoch = self.changed.epoch();
            if lock(&self.latest).is_over {
                return;
            }
            let mut painter = lock(&self.painter);
            let result = self.draw_latest(&mut painter).and_then(|()| painter.follow_width());
            drop(painter);
            if let Err(error) = result {
                lock(&self.latest).error.get_or_insert(error);
            }
            self.changed.wait(epoch, RESIZE_INTERVAL);
        }
    }

    /// Draws the latest progress, once.
    fn draw_latest(&self, painter: &mut Painter) -> io::Result<()> {
        let mut latest = lock(&self.latest);
        if !std::mem::take(&mut latest.is_new) {
            return Ok(());
        }
        painter.progress.copy_from(&latest.progress);
        drop(latest);
        painter.draw()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // After a panic the state is still valid text.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Writes the terminal.
struct Painter {
    screen: Screen,
    has_colors: bool,
    /// Progress of the live line.
    progress: Progress,
    live: Option<ProgressBar>,
    /// Width for which the live line was drawn.
    columns: usize,
}

impl Painter {
    fn new(out: Box<dyn Write + Send>, columns: Columns, has_colors: bool) -> Self {
        let state = State { out, text: String::new(), num_drawn: 0, error: None };
        let screen = Screen { columns, state: Arc::new(Mutex::new(state)) };
        Self { screen, has_colors, progress: Progress::default(), live: None, columns: 0 }
    }

    fn draw(&mut self) -> io::Result<()> {
        self.columns = self.screen.usable_columns();
        let line = self.progress.render(self.columns, self.has_colors);
        self.live.get_or_insert_with(|| open_bar(&self.screen)).set_message(line);
        self.screen.take_error()
    }

    /// Draws the live line again if the terminal has another width.
    fn follow_width(&mut self) -> io::Result<()> {
        let is_resized = self.live.is_some() && self.screen.usable_columns() != self.columns;
        if is_resized { self.draw() } else { Ok(()) }
    }

    fn print(&mut self, lines: &str) -> io::Result<()> {
        let columns = self.screen.usable_columns();
        let mut text = String::new();
        for line in lines.lines() {
            for part in wrap(line, columns, 2) {
                push_line(&mut text, &part, self.has_colors);
                text.push('\n');
            }
        }
        match &self.live {
            Some(bar) => bar.suspend(|| self.screen.print(&text)),
            None => self.screen.print(&text),
        }
        self.screen.take_error()
    }

    fn close(&mut self) -> io::Result<()> {
        if let Some(bar) = self.live.take() {
            bar.finish_and_clear();
            let line = self.progress.render(self.screen.usable_columns(), self.has_colors);
            self.screen.print(&(line + "\n"));
        }
        self.screen.take_error()
    }
}

fn open_bar(screen: &Screen) -> ProgressBar {
    let target = ProgressDrawTarget::term_like(Box::new(screen.clone()));
    let style = ProgressStyle::with_template("{msg}").expect("the template is sound");
    ProgressBar::with_draw_target(None, target).with_style(style)
}

/// The terminal as `indicatif` needs it; clones share it.
#[derive(Clone)]
struct Screen {
    columns: Columns,
    state: Arc<Mutex<State>>,
}

struct State {
    out: Box<dyn Write + Send>,
    /// Output that is not written yet.
    text: String,
    /// Columns of the live line on the terminal.
    num_drawn: usize,
    /// First error since the last call of `take_error`, as `indicatif` drops those of drawing.
    error: Option<io::Error>,
}

impl Screen {
    /// The last column stays free: some terminals wrap once it is written.
    fn usable_columns(&self) -> usize {
        (self.columns)().max(2) - 1
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    fn print(&self, text: &str) {
        let mut state = self.state();
        state.text.push_str(text);
        state.put();
    }

    fn take_error(&self) -> io::Result<()> {
        self.state().error.take().map_or(Ok(()), Err)
    }
}

impl State {
    /// Writes the buffer in one call.
    fn put(&mut self) {
        let written = self.out.write_all(self.text.as_bytes()).and_then(|()| self.out.flush());
        self.text.clear();
        if let Err(error) = written {
            self.error.get_or_insert(error);
        }
    }
}

impl fmt::Debug for Screen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Screen")
    }
}

impl TermLike for Screen {
    fn width(&self) -> u16 {
        u16::try_from((self.columns)()).unwrap_or(u16::MAX).max(2)
    }

    fn move_cursor_up(&self, _num_lines: usize) -> io::Result<()> {
        // The live line is one line; `clear_line` knows its rows.
        Ok(())
    }

    fn move_cursor_down(&self, _num_lines: usize) -> io::Result<()> {
        Ok(())
    }

    fn move_cursor_right(&self, _num_columns: usize) -> io::Result<()> {
        Ok(())
    }

    fn move_cursor_left(&self, _num_columns: usize) -> io::Result<()> {
        Ok(())
    }

    fn write_line(&self, text: &str) -> io::Result<()> {
        let mut state = self.state();
        state.text.push_str(text);
        state.text.push('\n');
        Ok(())
    }

    fn write_str(&self, text: &str) -> io::Result<()> {
        let mut state = self.state();
        // `indicatif` fills the row with spaces, which a narrower terminal would wrap.
        if text.bytes().any(|byte| byte != b' ') {
            state.text.push_str(text);
            state.num_drawn = num_columns(text);
        }
        Ok(())
    }

    fn clear_line(&self) -> io::Result<()> {
        let columns = usize::from(self.width());
        let mut state = self.state();
        let num_rows = state.num_drawn.div_ceil(columns).max(1);
        state.text.push('\r');
        for _ in 1..num_rows {
            state.text.push_str("\x1b[A");
        }
        state.text.push_str(if num_rows > 1 { "\x1b[J" } else { "\x1b[K" });
        state.num_drawn = 0;
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        self.state().put();
        Ok(())
    }
}

/// Columns of a text, without its colour codes.
fn num_columns(text: &str) -> usize {
    let mut parts = text.split("\x1b[");
    let first = parts.next().map_or(0, |part| part.chars().count());
    let rest = parts.map(|part| part.split_once('m').map_or(0, |(_, rest)| rest.chars().count()));
    first + rest.sum::<usize>()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[derive(Clone, Default)]
    struct Written(Arc<Mutex<Vec<u8>>>);

    impl Write for Written {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Written {
        fn take(&self) -> String {
            String::from_utf8(std::mem::take(&mut *self.0.lock().unwrap())).unwrap()
        }
    }

    /// A painter, what it has written, and the width of its terminal.
    fn painter(columns: usize) -> (Painter, Written, Arc<AtomicUsize>) {
        let (columns, width) = resizable(columns);
        let written = Written::default();
        (Painter::new(Box::new(written.clone()), columns, false), written, width)
    }

    fn resizable(columns: usize) -> (Columns, Arc<AtomicUsize>) {
        let width = Arc::new(AtomicUsize::new(columns));
        let shared = Arc::clone(&width);
        (Arc::new(move || shared.load(Ordering::Relaxed)), width)
    }

    fn at(step: u64) -> Progress {
        Progress { step, num_steps: 100, loss: 2.5, seconds_left: 3.0, ..Progress::default() }
    }

    fn draw(painter: &mut Painter, step: u64) {
        painter.progress = at(step);
        painter.draw().unwrap();
    }

    #[test]
    fn the_live_line_is_redrawn_in_place_below_other_lines() {
        let (mut painter, written, _) = painter(30);
        painter.print("started\n").unwrap();
        assert_eq!(written.take(), "started\n");
        draw(&mut painter, 1);
        assert_eq!(written.take(), "step   1/100  loss 2.5000");
        draw(&mut painter, 2);
        assert_eq!(written.take(), "\r\x1b[Kstep   2/100  loss 2.5000");
        painter.print("warning: slow disk\n").unwrap();
        assert_eq!(
            written.take(),
            "\r\x1b[Kwarning: slow disk\nstep   2/100  loss 2.5000",
            "the line moves down"
        );
        painter.close().unwrap();
        assert_eq!(written.take(), "\r\x1b[Kstep   2/100  loss 2.5000\n");
        painter.close().unwrap();
        assert_eq!(written.take(), "", "it is closed once");
        draw(&mut painter, 3);
        assert_eq!(written.take(), "step   3/100  loss 2.5000", "another attempt opens it again");
    }

    #[test]
    fn a_narrower_terminal_clears_every_row_of_the_wrapped_line() {
        let (mut painter, written, width) = painter(60);
        draw(&mut painter, 1);
        assert_eq!(num_columns(&written.take()), 51);
        painter.follow_width().unwrap();
        assert_eq!(written.take(), "", "the width is that of the line");
        width.store(20, Ordering::Relaxed);
        painter.follow_width().unwrap();
        assert_eq!(written.take(), "\r\x1b[A\x1b[A\x1b[Jstep   1/100");
        width.store(60, Ordering::Relaxed);
        draw(&mut painter, 3);
        assert!(written.take().starts_with("\r\x1b[Kstep   3/100  loss"));
    }

    #[test]
    fn long_lines_are_wrapped_at_spaces() {
        let (mut painter, written, _) = painter(21);
        painter.print("[0] warning: the disk is nearly full\n").unwrap();
        assert_eq!(written.take(), "[0] warning: the\n  disk is nearly\n  full\n");
    }

    #[test]
    fn the_last_progress_is_drawn_before_the_line_ends() {
        let (columns, _) = resizable(30);
        let written = Written::default();
        let world = lockstep_platform::real();
        let mut terminal = Terminal::new(&world, Box::new(written.clone()), columns, false);
        for step in 1..=100 {
            terminal.draw(&at(step)).unwrap();
        }
        terminal.print("half way\n").unwrap();
        terminal.close().unwrap();
        drop(terminal);
        let text = written.take();
        assert!(text.ends_with("\r\x1b[Kstep 100/100  loss 2.5000\n"), "{text:?}");
        assert!(text.contains("half way\n"));
    }

    #[test]
    fn errors_of_drawing_are_reported() {
        struct Broken;
        impl Write for Broken {
            fn write(&mut self, _bytes: &[u8]) -> io::Result<usize> {
                Err(io::ErrorKind::BrokenPipe.into())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let mut painter = Painter::new(Box::new(Broken), Arc::new(|| 80), true);
        assert_eq!(painter.draw().unwrap_err().kind(), io::ErrorKind::BrokenPipe);
        assert!(painter.print("x").is_err());
    }
}
