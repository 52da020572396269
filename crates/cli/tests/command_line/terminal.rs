//! Output on a pseudo-terminal: one live line at the bottom that fits, colours where they are
//! wanted, and a whole summary; and the common flags of `train`.

use crate::process::Folder;
use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcsetwinsize};
use std::process::{Child, Stdio};

/// Steps of the runs; the live line shows them as `/60`.
const STEPS: &str = "train.steps=60";

/// A command on a pseudo-terminal.
struct Session {
    controller: OwnedFd,
    child: Child,
    /// Everything that the command wrote.
    output: Vec<u8>,
}

impl Session {
    /// Trains.
    fn start(folder: &Folder, columns: u16, sets: &[&str], env: &[(&str, &str)]) -> Self {
        let mut arguments = vec!["train", "--preset", "tiny"];
        arguments.extend(sets.iter().flat_map(|set| ["--set", set]));
        Self::of_command(folder, columns, &arguments, env)
    }

    fn of_command(folder: &Folder, columns: u16, arguments: &[&str], env: &[(&str, &str)]) -> Self {
        let controller =
            openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("there are pseudo-terminals");
        grantpt(&controller).expect("it is ours");
        unlockpt(&controller).expect("it is ours");
        resize(&controller, columns);
        let name = ptsname(&controller, Vec::new()).expect("it has a name");
        let flags = OFlags::RDWR | OFlags::NOCTTY;
        let user = rustix::fs::open(name.as_c_str(), flags, Mode::empty()).expect("it opens");
        let mut command = folder.command(arguments);
        for name in ["NO_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "COLUMNS", "LOCKSTEP_CALIBRATION"] {
            command.env_remove(name);
        }
        // Without a calibration the peak is measured.
        command.env("TERM", "xterm-256color").env("XDG_CACHE_HOME", folder.path());
        command.envs(env.iter().copied());
        if arguments[0] == "top" {
            command.stdin(Stdio::from(user.try_clone().expect("a second handle")));
        }
        command.stdout(Stdio::from(user.try_clone().expect("a second handle")));
        command.stderr(Stdio::from(user));
        let child = command.spawn().expect("the binary starts");
        // Dropping the command closes our ends of the terminal, so that reading ends with the run.
        drop(command);
        Self { controller, child, output: Vec::new() }
    }

    /// Reads once; false at the end.
    fn read(&mut self) -> bool {
        let mut buffer = [0; 4096];
        loop {
            match rustix::io::read(&self.controller, &mut buffer) {
                Err(rustix::io::Errno::INTR) => {}
                // The system reports the end as an error, once the other side is closed.
                Ok(0) | Err(_) => return false,
                Ok(count) => {
                    self.output.extend_from_slice(&buffer[..count]);
                    return true;
                }
            }
        }
    }

    fn press(&self, keys: &[u8]) {
        rustix::io::write(&self.controller, keys).expect("the terminal takes keys");
    }

    /// Reads until the output after `from` contains `text`.
    fn read_until(&mut self, from: usize, text: &str) {
        let has_text = |output: &[u8]| String::from_utf8_lossy(output).contains(text);
        while !has_text(&self.output[from..]) {
            assert!(self.read(), "{text:?} is missing: {:?}", self.text());
        }
    }

    /// Output of a run that succeeded.
    fn finish(mut self) -> String {
        while self.read() {}
        let status = self.child.wait().expect("it was started");
        assert!(status.success(), "{status}: {}", self.text());
        self.text()
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.output).into_owned()
    }
}

fn resize(controller: &OwnedFd, columns: u16) {
    let size = Winsize { ws_row: 50, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(controller, size).expect("the size can be set");
}

/// Rows of a terminal after all output.
struct Screen {
    columns: usize,
    rows: Vec<Row>,
    row: usize,
    column: usize,
    num_clears: usize,
}

#[derive(Default)]
struct Row {
    text: Vec<char>,
    /// Whether the terminal wrapped the row above into this one.
    is_wrapped: bool,
}

impl Screen {
    /// Plays the output on an endless screen. Every code that the command uses is known here.
    fn of(output: &str, columns: usize) -> Self {
        let rows = vec![Row::default()];
        let mut screen = Self { columns, rows, row: 0, column: 0, num_clears: 0 };
        let mut characters = output.chars();
        while let Some(character) = characters.next() {
            match character {
                '\r' => screen.column = 0,
                '\n' => screen.move_down(false),
                '\x1b' => {
                    assert_eq!(characters.next(), Some('['), "{output:?}");
                    let mut code = String::new();
                    while !code.ends_with(|c: char| c.is_ascii_alphabetic()) {
                        code.push(characters.next().expect("a code has an end"));
                    }
                    screen.control(&code);
                }
                _ => screen.put(character),
            }
        }
        screen
    }

    fn control(&mut self, code: &str) {
        let row = &mut self.rows[self.row].text;
        match code {
            "A" => self.row -= 1,
            "K" => {
                row.truncate(self.column);
                self.num_clears += 1;
            }
            "J" => {
                row.truncate(self.column);
                self.rows.truncate(self.row + 1);
                self.num_clears += 1;
            }
            _ => assert!(code.ends_with('m'), "unknown code {code:?}"),
        }
    }

    fn put(&mut self, character: char) {
        if self.column == self.columns {
            self.move_down(true);
            self.column = 0;
        }
        let (row, column) = (&mut self.rows[self.row].text, self.column);
        if row.len() <= column {
            row.resize(column + 1, ' ');
        }
        row[column] = character;
        self.column += 1;
    }

    /// The terminal sends a carriage return with each line end of the command.
    fn move_down(&mut self, is_wrapped: bool) {
        self.row += 1;
        if self.row == self.rows.len() {
            self.rows.push(Row { text: Vec::new(), is_wrapped });
        }
    }

    /// Lines as they were written, without the wraps of the terminal.
    fn lines(&self) -> Vec<String> {
        let mut lines: Vec<String> = Vec::new();
        for row in &self.rows {
            let text: String = row.text.iter().collect();
            match lines.last_mut() {
                Some(line) if row.is_wrapped => line.push_str(&text),
                _ => lines.push(text),
            }
        }
        lines.iter().map(|line| line.trim_end().to_owned()).collect()
    }
}

/// Checks what holds at every width, and returns the lines before the sample.
fn check(output: &str, columns: usize) -> Vec<String> {
    let screen = Screen::of(output, columns);
    let lines = screen.lines();
    let sample = lines.iter().position(|line| line.starts_with("Sample (")).expect("a sample");
    let end = lines.iter().rposition(|line| line.starts_with("loss  ")).expect("a summary");
    let (progress, summary) = (lines[..sample].to_vec(), lines[end..].to_vec());
    for line in progress.iter().chain(&summary) {
        // Paths and hashes stay whole, so that they can be copied.
        let is_one_word = line.split_whitespace().count() <= 1;
        assert!(is_one_word || line.chars().count() <= columns, "{columns} columns: {line:?}");
    }
    let live: Vec<&String> = progress.iter().filter(|line| line.contains("/60")).collect();
    assert_eq!(live.len(), 1, "one live line, redrawn in place: {progress:#?}");
    assert!(live[0].starts_with("step 60/60  "), "{live:?}");
    assert!(screen.num_clears > 0, "the live line is redrawn");
    assert!(progress.iter().any(|line| line.contains("validation loss")), "{progress:#?}");

    let mut joined: Vec<String> = Vec::new();
    for line in &summary {
        match joined.last_mut() {
            Some(last) if line.starts_with("  ") => *last = format!("{last} {}", line.trim_start()),
            _ => joined.push(line.clone()),
        }
    }
    joined.retain(|line| !line.is_empty());
    let labels: Vec<&str> =
        joined.iter().filter_map(|line| line.split_whitespace().next()).collect();
    for label in ["loss", "validation", "speed", "MFU", "peak", "run"] {
        assert!(labels.contains(&label), "{label} is missing: {joined:#?}");
    }
    assert_eq!(labels[labels.len() - 2..], ["losses_hash", "weights_hash"], "{joined:#?}");
    for hash in &joined[joined.len() - 2..] {
        let hash = hash.split_whitespace().nth(1).expect("a hash");
        assert_eq!((hash.len(), output.matches(hash).count()), (64, 1), "{hash}");
    }
    progress
}

/// The live line as it was left.
fn live_line(progress: &[String]) -> &str {
    progress.iter().find(|line| line.contains("/60")).expect("it was checked")
}

#[test]
fn the_live_line_fits_into_40_80_and_200_columns() {
    for (columns, shown, dropped) in [
        (40, "loss ETA", "tokens/s lr grad MFU ━"),
        (80, "loss ETA tokens/s lr", "grad MFU ━"),
        (200, "loss ETA tokens/s lr grad MFU ━", "exposed"),
    ] {
        let folder = Folder::new();
        let sets = [STEPS, "train.eval_every=30", "run.workers=1"];
        let output = Session::start(&folder, columns, &sets, &[]).finish();
        let progress = check(&output, usize::from(columns));
        let live = live_line(&progress);
        for field in shown.split(' ') {
            assert!(live.contains(field), "{columns} columns without {field}: {live}");
        }
        for field in dropped.split(' ') {
            assert!(!live.contains(field), "{columns} columns with {field}: {live}");
        }
        assert!(output.contains("\x1b[2mloss \x1b[0m"), "colours on a terminal");
    }
}

#[test]
fn the_launcher_draws_the_live_line_of_its_workers() {
    for columns in [40, 200] {
        let folder = Folder::new();
        let sets = [STEPS, "train.eval_every=30", "run.workers=2"];
        let output = Session::start(&folder, columns, &sets, &[]).finish();
        let progress = check(&output, usize::from(columns));
        assert!(!output.contains('\x1e'), "records are drawn, not printed");
        assert!(progress.iter().any(|line| line.starts_with("[0] ")), "other lines have ranks");
        let has_exposed = live_line(&progress).contains("exposed comm");
        assert_eq!(has_exposed, columns == 200, "{}", live_line(&progress));
    }
}

#[test]
fn colours_follow_the_environment() {
    let folder = Folder::new();
    let sets = [STEPS, "train.eval_every=30", "run.workers=1"];
    let plain = Session::start(&folder, 80, &sets, &[("NO_COLOR", "1")]).finish();
    check(&plain, 80);
    let codes: Vec<&str> = plain.split("\x1b[").skip(1).collect();
    assert!(!codes.is_empty(), "the live line is still redrawn");
    assert!(codes.iter().all(|rest| rest.starts_with(['K', 'J', 'A'])), "{codes:?}");

    let dumb = Session::start(&folder, 80, &sets, &[("TERM", "dumb")]).finish();
    assert!(!dumb.contains('\x1b'), "{dumb:?}");
    assert!(dumb.contains("\r\nstep 60/60  loss "), "plain lines: {dumb:?}");
}

#[test]
fn a_resized_terminal_gets_a_line_that_fits() {
    let folder = Folder::new();
    let sets = ["train.steps=100000000", "run.workers=1", "checkpoint.every=0"];
    let mut session = Session::start(&folder, 200, &sets, &[("NO_COLOR", "1")]);
    session.read_until(0, "grad norm");
    resize(&session.controller, 40);
    let from = session.output.len();
    // The rows into which the terminal has wrapped the old line are cleared with it.
    session.read_until(from, "\x1b[A\x1b[J");
    let from = session.output.len();
    session.read_until(from, "\r\x1b[K");
    let from = session.output.len();
    session.read_until(from, "\r\x1b[K");
    let text = session.text();
    session.child.kill().expect("it runs");
    session.child.wait().expect("it was started");
    let drawn: Vec<&str> = text.split("\x1b[K").collect();
    let last = drawn[drawn.len() - 2].trim_end_matches('\r');
    assert!(last.starts_with("step "), "{last:?}");
    assert!(last.chars().count() < 40, "{last:?}");
}

/// Lines of an event file: steps in a range, and counters of three ranks.
fn events(steps: std::ops::RangeInclusive<u32>) -> String {
    let line = |event: &str| format!("{{\"v\":2,\"seconds\":1.0,\"rank\":0,{event}}}\n");
    let last = *steps.end();
    let step = |step: u32| {
        line(&format!(
            "\"event\":\"step\",\"step\":{step},\"loss\":{}.5,\"lr\":0.1,\"grad_norm\":1.0,\
             \"tokens_per_second\":10.0,\"step_seconds\":0.5,\"data_wait_seconds\":0.0,\
             \"exposed_communication_seconds\":0.0,\"is_skipped\":false",
            1000 - step
        ))
    };
    let counters = |worker: u32| {
        line(&format!(
            "\"event\":\"rank_counters\",\"step\":{last},\"worker\":{worker},\"restarts\":0,\
             \"missed_steps\":0,\"data_bytes\":2000,\"pipeline_bytes\":0,\"tensor_bytes\":0,\
             \"strategy_bytes\":0,\"exposed_communication_seconds\":5.0,\
             \"straggler_wait_seconds\":0.0"
        ))
    };
    steps.map(step).chain((0..3).map(counters)).collect()
}

#[test]
fn top_follows_a_growing_run_obeys_keys_and_restores_the_terminal() {
    let folder = Folder::new();
    folder.succeed(&["train", "--preset", "tiny", "--steps", "2", "--quiet"]);
    folder.write("runs/0001/events.jsonl", events(3..=40).as_bytes());
    let mut session = Session::of_command(&folder, 100, &["top", "runs/0001"], &[]);
    let controller = session.controller.try_clone().expect("a second handle");
    let is_line_by_line = || {
        let modes = rustix::termios::tcgetattr(&controller).expect("a terminal").local_modes;
        modes.contains(LocalModes::ICANON | LocalModes::ECHO)
    };
    session.read_until(0, "straggler/step");
    session.read_until(0, "960.5");
    assert!(session.text().contains("\x1b[?1049h"), "a screen of its own");
    assert!(!is_line_by_line(), "keys come one by one");

    // The picture follows the file. Only cells that change are drawn, and all at a new size.
    folder.append("runs/0001/events.jsonl", events(41..=77).as_bytes());
    resize(&controller, 90);
    session.read_until(0, "923.5");

    // The selected rank is drawn in reverse, and an arrow selects the next one.
    let from = session.output.len();
    session.press(b"\x1b[B");
    session.read_until(from, "\x1b[7m");
    session.press(b"q");
    let output = session.finish();
    assert!(output.contains("\x1b[?1049l"), "the former screen is back: {output:?}");
    assert!(output.rfind("\x1b[?25h") > output.rfind("\x1b[?25l"), "so is the cursor");
    assert!(is_line_by_line(), "the terminal is as before");
}

#[test]
fn a_pipe_gets_plain_lines_and_the_hashes_once_and_last() {
    let folder = Folder::new();
    let run = folder.succeed(&["train", "--preset", "tiny"]);
    assert!(!run.stderr.contains(['\x1b', '\r', '\x1e']), "{}", run.stderr);
    assert!(run.stderr.contains("step 20/20  loss "), "{}", run.stderr);
    let lines: Vec<&str> = run.stdout.lines().collect();
    let (losses, weights) = (lines[lines.len() - 2], lines[lines.len() - 1]);
    for (line, label) in [(losses, "losses_hash  "), (weights, "weights_hash ")] {
        let hash = line.strip_prefix(label).unwrap_or_else(|| panic!("{line}"));
        assert_eq!(hash.len(), 64);
        assert_eq!(run.stdout.matches(hash).count() + run.stderr.matches(hash).count(), 1);
    }
    let sample = run.stdout.find("No sample:").expect("a sample");
    assert!(sample < run.stdout.find("\nloss  ").expect("a summary"), "the sample comes first");
    let controls = run.stdout.chars().filter(|c| c.is_control() && *c != '\n' && *c != '\t');
    assert_eq!(controls.count(), 0, "the report is printable");
}

#[test]
fn common_flags_equal_their_settings() {
    let folder = Folder::new();
    let flags =
        "train --preset tiny --steps 4 --lr 1e-3 --batch 16 --workers 2 --device cpu --json";
    let by_flags = folder.json(&flags.split(' ').collect::<Vec<_>>());
    let sets = "train --preset tiny --set train.steps=4 --set optim.lr=0.001 \
                --set train.batch=16 --set run.workers=2 --json";
    let by_sets = folder.json(&sets.split(' ').collect::<Vec<_>>());
    for key in ["recipe_hash", "weights_hash", "losses_hash", "steps", "workers"] {
        assert_eq!(by_flags[key], by_sets[key], "{key}");
    }
    let mfu = by_flags["mfu"].as_f64().expect("the peak is measured");
    assert!(mfu > 0.0 && mfu < 1.5, "{mfu}");
    let quiet = folder.json(&["train", "--preset", "tiny", "--steps", "2", "--quiet", "--json"]);
    assert!(quiet.get("mfu").is_some(), "the name is there, with or without a number");

    let refused =
        folder.run(&["train", "--preset", "tiny", "--steps", "3", "--set", "train.steps=4"]);
    assert_eq!(refused.code, Some(2));
    assert_eq!(
        refused.stderr,
        "error: --steps 3 and --set train.steps=4 are two values of train.steps; keep one\n"
    );
    // Without CUDA the driver is missing, and no machine has so many devices.
    let gpu = folder.run(&["train", "--device", "cuda:999"]);
    assert_eq!(gpu.code, Some(2));
    let causes =
        ["error: libcuda.so.1 cannot be loaded", "error: CUDA device 999: ", "error: cuInit"];
    assert!(causes.iter().any(|cause| gpu.stderr.starts_with(cause)), "{}", gpu.stderr);
    assert_eq!(gpu.stderr.lines().count(), 1, "{}", gpu.stderr);
}
