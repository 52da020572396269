//! Output on a terminal, through a launcher and in a file.

use std::io;
use std::sync::{Arc, Mutex};

use super::*;
use crate::VERSION;

#[derive(Clone, Default)]
struct Screen(Arc<Mutex<Vec<u8>>>);

impl Write for Screen {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A console, what it has written, and a way to give it events.
struct Fixture {
    console: Console,
    screen: Screen,
}

impl Fixture {
    fn plain(num_steps: u64) -> Self {
        Self::new(|screen| Surface::Plain(Box::new(screen), false), num_steps)
    }

    fn launcher(num_steps: u64) -> Self {
        Self::new(|screen| Surface::Launcher(Box::new(screen)), num_steps)
    }

    fn terminal(num_steps: u64, has_colors: bool) -> Self {
        let world = lockstep_platform::real();
        let terminal =
            |screen| Terminal::new(&world, Box::new(screen), Arc::new(|| 60), has_colors);
        Self::new(|screen| Surface::Terminal(terminal(screen)), num_steps)
    }

    fn new(surface: impl FnOnce(Screen) -> Surface, num_steps: u64) -> Self {
        let screen = Screen::default();
        let console = Console::new(surface(screen.clone()), "a line before\n".to_owned());
        let mut fixture = Self { console, screen };
        fixture.give(0.0, started(num_steps, None));
        fixture
    }

    fn give(&mut self, seconds: f64, event: Event) {
        self.console.write(&Stamped { v: VERSION, seconds, rank: 0, event }).unwrap();
    }

    fn step(&mut self, seconds: f64, step: u64) {
        let event = Event::Step {
            step,
            loss: 5.0 - (step % 100) as f64 / 100.0,
            lr: 1e-3,
            grad_norm: 1.0,
            tokens_per_second: 12_345.0,
            step_seconds: 0.5,
            data_wait_seconds: 0.0,
            exposed_communication_seconds: 0.125,
            straggler_wait_seconds: 0.25,
            is_skipped: false,
            loss_scale: None,
            zeroed_fraction: None,
            preference_accuracy: None,
            preference_margin: None,
            seqlen: None,
        };
        self.give(seconds, event);
    }

    fn text(&self) -> String {
        String::from_utf8(self.screen.0.lock().unwrap().clone()).unwrap()
    }

    /// Output after the lines of the run's start.
    fn progress(&self) -> String {
        self.text().split_inclusive('\n').skip(3).collect()
    }
}

fn started(num_steps: u64, device: Option<&str>) -> Event {
    Event::RunStarted {
        recipe_hash: "0123456789abcdef".to_owned(),
        kernel_class: "f32-fma".to_owned(),
        num_params: 3_145_728,
        tokens_per_step: 4096,
        num_steps,
        num_threads: 2,
        workers: 2,
        device: device.map(str::to_owned),
        microbatch: Some(1),
        recompute: None,
        flops_per_token: Some(2e6),
        peak_flops_per_second: Some(1e11),
    }
}

fn finished(steps: u64) -> Event {
    Event::RunFinished {
        steps,
        final_loss: 1.0,
        validation_loss: Some(2.0),
        losses_hash: "ab".to_owned(),
        weights_hash: "cd".to_owned(),
        run_seconds: 200.0,
    }
}

#[test]
fn the_first_lines_describe_the_run() {
    let mut fixture = Fixture::plain(400);
    assert_eq!(
        fixture.text(),
        "a line before\n\
         3,145,728 parameters, 400 steps of 4,096 tokens\n\
         workers 2, threads 2, kernels f32-fma, recipe 0123456789ab\n"
    );
    fixture.give(0.0, started(400, Some("NVIDIA H200 (cuda:0)")));
    let named = "workers 2, threads 2, device NVIDIA H200 (cuda:0), kernels f32-fma, recipe";
    assert!(fixture.text().contains(named), "{}", fixture.text());
}

#[test]
fn a_file_gets_the_first_and_last_step_and_one_about_every_two_seconds() {
    let mut fixture = Fixture::plain(10);
    for step in 1..=10 {
        fixture.step(0.5 * step as f64, step);
    }
    assert_eq!(
        fixture.progress(),
        "step  1/10  loss 4.9900  12.3k tokens/s  ETA 4.5s\n\
         step  5/10  loss 4.9500  12.3k tokens/s  ETA 2.5s\n\
         step  9/10  loss 4.9100  12.3k tokens/s  ETA 0.5s\n\
         step 10/10  loss 4.9000  12.3k tokens/s  ETA 0s\n"
    );
}

#[test]
fn conversations_are_counted_and_losses_of_pairs_are_named() {
    let text = |pairs, truncated, dropped| {
        let mut fixture = Fixture::plain(10);
        let read = Event::ConversationsRead {
            conversations: 1170,
            train: 1161,
            tokens: 9120,
            answered: 1400,
            truncated,
            dropped,
            pairs,
        };
        fixture.give(0.0, read);
        let evaluated = Event::Evaluated {
            step: 5,
            validation_loss: 0.5,
            perplexity: 1.649,
            train_seconds: 1.0,
            wire_bytes: 0,
        };
        fixture.give(1.0, evaluated);
        fixture.progress()
    };
    assert_eq!(
        text(false, 30, 0),
        "1,170 conversations (1,161 train), 9,120 tokens, 1,400 answered; 30 truncated to \
         model.context\nstep 5  validation loss 0.5000  perplexity 1.649\n"
    );
    assert_eq!(
        text(true, 0, 7),
        "1,170 pairs (1,161 train), 9,120 tokens, 1,400 answered; 7 without an answer in \
         model.context dropped\nstep 5  validation loss 0.5000 per pair\n"
    );
}

#[test]
fn a_launcher_gets_records_at_most_ten_times_a_second() {
    let mut fixture = Fixture::launcher(1000);
    for step in 1..=200 {
        fixture.step(0.01 * step as f64, step);
    }
    fixture.give(2.5, Event::Warning { message: "slow disk".to_owned() });
    fixture.console.flush().unwrap();
    let text = fixture.progress();
    let (records, lines): (Vec<&str>, Vec<&str>) =
        text.lines().partition(|line| line.as_bytes()[0] == RECORD);
    assert!((15..=22).contains(&records.len()), "{} records in two seconds", records.len());
    assert_eq!(lines, ["warning: slow disk"]);
    let (last, records) = records.split_last().unwrap();
    assert_eq!(last.len(), 1, "the flush ends the live line");
    let progress: Progress = serde_json::from_str(&records.last().unwrap()[1..]).unwrap();
    assert_eq!((progress.step, progress.num_steps, progress.loss), (200, 1000, 5.0));
    assert_eq!(progress.recent_losses.len(), progress::MAX_CELLS);
    assert_eq!(progress.exposed_communication, Some(0.25));
    let mfu = progress.mfu.expect("the peak is known");
    assert!((mfu - 12_345.0 * 2e6 / 1e11).abs() < 1e-12, "{mfu}");
}

#[test]
fn a_terminal_has_lines_above_the_live_line() {
    let mut fixture = Fixture::terminal(100, false);
    fixture.step(1.0, 1);
    fixture.step(1.05, 2);
    let evaluated = Event::Evaluated {
        step: 2,
        validation_loss: 4.5,
        perplexity: 90.017,
        train_seconds: 1.0,
        wire_bytes: 0,
    };
    fixture.give(1.06, evaluated);
    fixture.give(1.07, Event::Warning { message: "slow disk".to_owned() });
    fixture.step(1.2, 3);
    fixture.give(1.3, finished(3));
    // The thread may have drawn any number of steps between the lines.
    let text = fixture.progress();
    let lines: Vec<&str> = text.lines().map(|line| line.rsplit("\x1b[K").next().unwrap()).collect();
    assert_eq!(
        lines,
        [
            "step 2  validation loss 4.5000  perplexity 90.017",
            "warning: slow disk",
            "step   3/100  loss 4.9700  12.3k tokens/s  ETA 9.7s",
            "finished 3 steps in 3m 20s  loss 1.0000  validation loss",
            "  2.0000",
        ]
    );
}

#[test]
fn colours_are_where_they_are_requested() {
    let output = |mut fixture: Fixture| {
        fixture.step(1.0, 1);
        fixture.give(1.1, Event::Warning { message: "slow disk".to_owned() });
        fixture.console.flush().unwrap();
        fixture.text()
    };
    let painted = output(Fixture::terminal(100, true));
    assert!(painted.contains("\x1b[1;33mwarning:\x1b[0m slow disk\n"), "{painted:?}");
    assert!(painted.contains("\x1b[2mloss \x1b[0m\x1b[1m4.9900\x1b[0m"), "{painted:?}");
    let plain = output(Fixture::terminal(100, false));
    assert_eq!(plain.matches('\x1b').count(), plain.matches("\x1b[K").count(), "{plain:?}");
    let forced = output(Fixture::new(|screen| Surface::Plain(Box::new(screen), true), 100));
    assert!(forced.contains("\x1b[1;33mwarning:\x1b[0m slow disk\n"), "{forced:?}");
    assert!(forced.contains("step   1/100  loss 4.9900"), "{forced:?}");
    assert!(!output(Fixture::plain(100)).contains('\x1b'));
}

#[test]
fn a_run_that_ends_early_still_shows_its_last_step() {
    let mut fixture = Fixture::plain(100);
    fixture.step(0.1, 1);
    fixture.step(0.2, 2);
    fixture.step(0.3, 3);
    fixture.give(0.4, finished(3));
    let progress = fixture.progress();
    let lines: Vec<&str> = progress.lines().collect();
    assert!(lines[0].starts_with("step   1/100"));
    assert!(lines[1].starts_with("step   3/100"));
    assert_eq!(lines[2], "finished 3 steps in 3m 20s  loss 1.0000  validation loss 2.0000");
    assert_eq!(lines.len(), 3, "the summary prints the hashes, once");
}

#[test]
fn a_flush_ends_the_line_on_a_terminal_once() {
    let mut fixture = Fixture::terminal(100, false);
    fixture.step(0.1, 1);
    fixture.console.flush().unwrap();
    fixture.console.flush().unwrap();
    assert_eq!(fixture.progress().matches('\n').count(), 1);
}

#[test]
fn a_broken_pipe_is_an_error_and_not_a_panic() {
    struct Broken;
    impl Write for Broken {
        fn write(&mut self, _bytes: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::BrokenPipe.into())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let surface = Surface::Plain(Box::new(Broken), false);
    let mut console = Console::new(surface, String::new());
    let event = Event::Warning { message: "x".to_owned() };
    let error = console.write(&Stamped { v: VERSION, seconds: 0.0, rank: 0, event }).unwrap_err();
    assert_eq!(error.to_string(), "cannot write events to the console: broken pipe");
}
