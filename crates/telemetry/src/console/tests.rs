//! Output on a terminal and in a file.

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
    fn new(surface: Surface, num_steps: u64) -> Self {
        let screen = Screen::default();
        let console = Console::new(Box::new(screen.clone()), surface);
        let mut fixture = Self { console, screen };
        fixture.give(
            0.0,
            Event::RunStarted {
                recipe_hash: "0123456789abcdef".to_owned(),
                kernel_class: "f32-fma".to_owned(),
                num_params: 3_145_728,
                tokens_per_step: 4096,
                num_steps,
                num_threads: 2,
                workers: 1,
            },
        );
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
            exposed_communication_seconds: 0.0,
            is_skipped: false,
            loss_scale: None,
            zeroed_fraction: None,
        };
        self.give(seconds, event);
    }

    fn text(&self) -> String {
        String::from_utf8(self.screen.0.lock().unwrap().clone()).unwrap()
    }

    /// Output after the lines of the run's start.
    fn progress(&self) -> String {
        self.text().split_inclusive('\n').skip(2).collect()
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
    let fixture = Fixture::new(Surface::Plain, 400);
    assert_eq!(
        fixture.text(),
        "3,145,728 parameters, 400 steps of 4,096 tokens\n\
         workers 1, threads 2, kernels f32-fma, recipe 0123456789ab\n"
    );
}

#[test]
fn a_file_gets_the_first_and_last_step_and_one_about_every_two_seconds() {
    let mut fixture = Fixture::new(Surface::Plain, 10);
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
fn a_terminal_line_is_rewritten_in_place_at_most_ten_times_a_second() {
    let mut fixture = Fixture::new(Surface::Terminal, 1000);
    for step in 1..=200 {
        fixture.step(0.01 * step as f64, step);
    }
    let progress = fixture.progress();
    let num_rewrites = progress.matches('\r').count();
    assert!((15..=21).contains(&num_rewrites), "{num_rewrites} rewrites in two seconds");
    assert!(!progress.contains('\n'));
}

#[test]
fn a_shorter_terminal_line_covers_the_longer_one() {
    let mut fixture = Fixture::new(Surface::Terminal, 20_000);
    fixture.step(1.0, 1);
    fixture.step(1.6, 2);
    let progress = fixture.progress();
    let mut lines = progress.split('\r').skip(1);
    let (long, short) = (lines.next().unwrap(), lines.next().unwrap());
    assert_eq!(long, "step     1/20000  loss 4.9900  12.3k tokens/s  ETA 2h 46m");
    assert_eq!(short, "step     2/20000  loss 4.9800  12.3k tokens/s  ETA 3h 19m");

    fixture.step(1.8, 10_000);
    let progress = fixture.progress();
    assert!(progress.ends_with("ETA 0.8s  "), "{progress:?}");
}

#[test]
fn other_lines_keep_the_latest_progress_line_above_them() {
    let mut fixture = Fixture::new(Surface::Terminal, 100);
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
    let expected = "\rstep   1/100  loss 4.9900  12.3k tokens/s  ETA 50s\
         \rstep   2/100  loss 4.9800  12.3k tokens/s  ETA 4.9s\n\
         step 2  validation loss 4.5000  perplexity 90.017\n\
         warning: slow disk\n\
         \rstep   3/100  loss 4.9700  12.3k tokens/s  ETA 9.7s";
    assert_eq!(fixture.progress(), expected);
}

#[test]
fn a_run_that_ends_early_still_shows_its_last_step() {
    let mut fixture = Fixture::new(Surface::Plain, 100);
    fixture.step(0.1, 1);
    fixture.step(0.2, 2);
    fixture.step(0.3, 3);
    fixture.give(0.4, finished(3));
    let progress = fixture.progress();
    let lines: Vec<&str> = progress.lines().collect();
    assert!(lines[0].starts_with("step   1/100"));
    assert!(lines[1].starts_with("step   3/100"));
    assert_eq!(lines[2], "finished 3 steps in 3m 20s  loss 1.0000  validation loss 2.0000");
    assert_eq!(lines[3..], ["losses  ab", "weights cd"]);
}

#[test]
fn a_flush_ends_the_line_on_a_terminal_once() {
    let mut fixture = Fixture::new(Surface::Terminal, 100);
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
    let mut console = Console::new(Box::new(Broken), Surface::Plain);
    let event = Event::Warning { message: "x".to_owned() };
    let error = console.write(&Stamped { v: VERSION, seconds: 0.0, rank: 0, event }).unwrap_err();
    assert_eq!(error.to_string(), "cannot write events to the console: broken pipe");
}
