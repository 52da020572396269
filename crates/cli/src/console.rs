//! Standard error of a run: a live line on a terminal, records for the launcher that owns the
//! terminal, or plain lines.

use crate::failure::Failure;
use crate::output;
use lockstep_cluster::relay::{PlainScreen, RECORD, Screen};
use lockstep_cluster::role::{TERMINAL, has_launcher};
use lockstep_platform::World;
use lockstep_telemetry::console::{self, Columns, Progress, Terminal};
use lockstep_telemetry::{Console, Surface};
use std::io::{IsTerminal, Write};
use std::sync::Arc;

/// Width where the terminal does not tell it.
const DEFAULT_COLUMNS: usize = 80;

/// Start of a record with a line of the result.
const RESULT: &str = "result ";

const _: () = assert!(RECORD == console::RECORD, "the launcher reads what the worker writes");

/// Console of a run, which prints `header` first.
pub(crate) fn console(world: &World, header: String) -> Console {
    let stderr = Box::new(std::io::stderr());
    let surface = if is_drawn_by_launcher(world) {
        Surface::Launcher(stderr)
    } else if is_terminal(world) {
        Surface::Terminal(terminal(world))
    } else {
        Surface::Plain(stderr, has_colors(world, false))
    };
    Console::new(surface, header)
}

/// Screen of a launcher.
pub(crate) fn screen(world: &World) -> Box<dyn Screen> {
    if is_terminal(world) {
        Box::new(TerminalScreen(terminal(world)))
    } else {
        Box::new(PlainScreen(Box::new(std::io::stderr())))
    }
}

/// Whether standard error is a terminal that can redraw a line.
pub(crate) fn is_terminal(world: &World) -> bool {
    std::io::stderr().is_terminal() && !console::is_dumb(|name| world.host().env(name))
}

/// Prints the result of a run on standard output. On a terminal the launcher prints it for the
/// worker, after the live line that it draws there.
pub(crate) fn print_result(world: &World, text: &str) -> Result<(), Failure> {
    if !(is_drawn_by_launcher(world) && std::io::stdout().is_terminal()) {
        return output::text(text);
    }
    let mark = char::from(RECORD).to_string() + RESULT;
    let records: Vec<String> = text.lines().map(|line| format!("{mark}{line}\n")).collect();
    // A closed standard error has no reader.
    let _ = std::io::stderr().write_all(records.concat().as_bytes());
    Ok(())
}

/// A report for standard output: on a terminal, lines are wrapped under their values.
pub(crate) fn wrap_report(world: &World, report: &str, label_columns: usize) -> String {
    if !std::io::stdout().is_terminal() {
        return report.to_owned();
    }
    let columns = columns(world);
    // A narrow terminal has no room beside the labels.
    wrap_lines(report, columns, if columns < 60 { 2 } else { label_columns })
}

/// A line for standard error before a run: wrapped on a terminal.
pub(crate) fn wrap_status(world: &World, line: &str) -> String {
    if is_terminal(world) { wrap_lines(line, columns(world), 2) } else { line.to_owned() + "\n" }
}

fn wrap_lines(text: &str, columns: usize, indent: usize) -> String {
    text.lines().map(|line| console::wrap(line, columns, indent).join("\n") + "\n").collect()
}

/// Whether the launcher of this worker draws the live line.
fn is_drawn_by_launcher(world: &World) -> bool {
    has_launcher(world) && world.host().env(TERMINAL).is_some()
}

fn terminal(world: &World) -> Terminal {
    let own_world = World::clone(world);
    let width: Columns = Arc::new(move || columns(&own_world));
    Terminal::new(world, Box::new(std::io::stderr()), width, has_colors(world, true))
}

fn has_colors(world: &World, is_terminal: bool) -> bool {
    console::has_colors(is_terminal, |name| world.host().env(name))
}

/// Width of the terminal now.
fn columns(world: &World) -> usize {
    let from_env = || world.host().env("COLUMNS").and_then(|text| text.parse().ok());
    let columns = world.host().terminal_columns().or_else(from_env);
    columns.filter(|columns| *columns > 0).unwrap_or(DEFAULT_COLUMNS)
}

/// The launcher's terminal, which draws the progress of rank 0.
struct TerminalScreen(Terminal);

impl Screen for TerminalScreen {
    fn line(&mut self, text: &[u8]) {
        let _ = self.0.print(&String::from_utf8_lossy(text));
    }

    fn progress(&mut self, record: &[u8]) {
        if let Some(line) = record.strip_prefix(RESULT.as_bytes()) {
            let _ = self.0.close();
            let _ = std::io::stdout().write_all(&[line, b"\n"].concat());
            return;
        }
        let _ = match serde_json::from_slice::<Progress>(record) {
            Ok(progress) => self.0.draw(&progress),
            Err(_) => self.0.close(),
        };
    }

    fn close(&mut self) {
        let _ = self.0.close();
    }
}
