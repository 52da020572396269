//! `lockstep top`: the workers of a run in the terminal, live.

use crate::dashboard_runs::FolderRuns;
use crate::failure::Failure;
use crate::newest_run::newest_run;
use crate::output;
use crate::prediction;
use crate::quantity::{count, percent, si_bytes};
use lockstep_config::units::{Bytes, Seconds};
use lockstep_dashboard::columns::Column;
use lockstep_dashboard::ranks::Rank;
use lockstep_dashboard::{History, Runs, State, downsample};
use lockstep_platform::World;
use lockstep_telemetry::json_lines::{Change, Follower};
use lockstep_trainer::RunFolder;
use ratatui::Frame;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyModifiers};
use ratatui::layout::{Alignment, Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::symbols::Marker;
use ratatui::widgets::{
    Axis, Block, Chart, Dataset, Gauge, GraphType, Paragraph, Row, Table, TableState,
};
use std::fmt::Write as _;
use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Time between two pictures.
const REFRESH: Duration = Duration::from_millis(500);
/// Pictures between two looks at the state of the run, which read more than its new events.
const PICTURES_PER_STATE: u32 = 4;
/// Steps whose median is the speed.
const RECENT_STEPS: usize = 100;
/// Steps of the curve.
const CURVE_STEPS: u64 = 2000;
/// Bytes of events that are read between two pictures.
const MAX_BYTES: u64 = 16 << 20;

/// Titles of the columns.
const TITLES: [&str; 8] =
    ["rank", "busy", "exposed/step", "straggler/step", "sent", "memory", "clock", "missed"];

/// Show the workers of a run in the terminal, live
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  lockstep top                  the newest run
  lockstep top runs/0007        one run
  lockstep top | cat            a table of the moment, once

Keys: q, Escape or Ctrl-C quit, arrows and Page Up and Down move through the ranks. Counters of the
ranks are those of the last evaluation (eval.every). Columns: share of the time in which the threads
of a rank compute; exposed communication and wait for slow ranks in a step; bytes sent on all axes;
memory of its process or accelerator; clock of the host; steps without its gradients.")]
pub(crate) struct Arguments {
    /// Run directory (default: the newest run)
    #[arg(value_name = "RUN")]
    run: Option<PathBuf>,
}

pub(crate) fn run(arguments: &Arguments, world: &World) -> Result<(), Failure> {
    let folder = match &arguments.run {
        Some(path) => RunFolder::started(path, world)?,
        None => newest_run("top", world)?,
    };
    let mut watched = Watched::new(folder.path(), world);
    if !io::stdout().is_terminal() {
        while watched.poll() {}
        return output::text(&watched.text());
    }
    let failed = |error: io::Error| Failure::user(format!("the terminal: {error}"));
    let mut terminal = ratatui::try_init().map_err(failed)?;
    let outcome = watch(&mut terminal, &mut watched);
    ratatui::restore();
    outcome.map_err(failed)
}

/// Draws until a key ends it.
fn watch(terminal: &mut ratatui::DefaultTerminal, watched: &mut Watched) -> io::Result<()> {
    let mut table = TableState::default().with_selected(0);
    let mut pictures = 0_u32;
    loop {
        let is_more = watched.poll();
        if pictures.is_multiple_of(PICTURES_PER_STATE) {
            watched.look();
        }
        pictures = pictures.wrapping_add(1);
        terminal.draw(|frame| watched.draw(frame, &mut table))?;
        let wait = if is_more { Duration::ZERO } else { REFRESH };
        if event::poll(wait)?
            && let Event::Key(key) = event::read()?
            && press(key, &mut table)
        {
            return Ok(());
        }
    }
}

/// Obeys a key; true if it quits.
fn press(key: KeyEvent, table: &mut TableState) -> bool {
    match key.code {
        KeyCode::Char('q') | KeyCode::Esc => return true,
        KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return true,
        KeyCode::Down => table.select_next(),
        KeyCode::Up => table.select_previous(),
        KeyCode::PageDown => table.scroll_down_by(10),
        KeyCode::PageUp => table.scroll_up_by(10),
        KeyCode::Home => table.select_first(),
        KeyCode::End => table.select_last(),
        _ => {}
    }
    false
}

/// A run and its events so far.
struct Watched {
    world: World,
    folder: PathBuf,
    runs: FolderRuns,
    follower: Follower,
    history: History,
    state: State,
    layout: Option<String>,
}

impl Watched {
    fn new(folder: &Path, world: &World) -> Self {
        let process = prediction::measure_process(world);
        let runs = FolderRuns::new(world, vec![folder.to_owned()], process);
        Self {
            world: World::clone(world),
            folder: folder.to_owned(),
            follower: Follower::new(&runs.events(folder)),
            history: History::default(),
            state: runs.state(folder),
            layout: runs.layout(folder),
            runs,
        }
    }

    /// Reads what was appended; true if more is left.
    fn poll(&mut self) -> bool {
        let Self { world, follower, history, .. } = self;
        let polled = follower.poll(world, MAX_BYTES, |change| match change {
            Change::Replaced => *history = History::default(),
            Change::Event(stamped) => history.take(stamped.seconds, &stamped.event),
        });
        // A file that cannot be read now is read for the next picture.
        polled.unwrap_or(false)
    }

    fn look(&mut self) {
        self.state = self.runs.state(&self.folder);
    }

    fn title(&self) -> String {
        let layout = self.layout.as_ref().map_or_else(String::new, |it| format!(", {it}"));
        let reason = self.state.reason.as_ref().map_or_else(String::new, |it| format!(": {it}"));
        format!("{} {}{layout}{reason}", self.folder.display(), self.state.name)
    }

    fn num_steps(&self) -> u64 {
        self.history.started().map_or(0, |started| started.num_steps)
    }

    fn figures(&self) -> String {
        let history = &self.history;
        let median = |column| history.columns().recent_median(column, RECENT_STEPS);
        let mut text = format!("step {}/{}", history.step(), self.num_steps());
        if let Some((_, loss)) = history.columns().last(Column::Loss) {
            let _ = write!(text, "  loss {loss:.4}");
        }
        if let Some((_, loss)) = history.last_point("validation_loss") {
            let _ = write!(text, "  validation {loss:.4}");
        }
        if let Some(speed) = median(Column::TokensPerSecond) {
            let _ = write!(text, "  {} tokens/s", count(speed));
        }
        if let Some(seconds) = median(Column::StepSeconds) {
            let _ = write!(text, "  {} per step", Seconds(seconds));
        }
        if let Some(left) = history.remaining_seconds().filter(|_| self.state.name == "running") {
            let _ = write!(text, "  {} left", Seconds(left));
        }
        text
    }

    fn rows(&self) -> Vec<[String; 8]> {
        self.history.ranks().iter().map(cells).collect()
    }

    /// A table of the moment.
    fn text(&self) -> String {
        let rows = self.rows();
        let mut text = format!("{}\n{}\n", self.title(), self.figures());
        if rows.is_empty() {
            return text + "no counters yet: ranks exchange them at evaluations\n";
        }
        let titles = TITLES.map(str::to_owned);
        let width = |column: usize| {
            let all = rows.iter().chain([&titles]).map(|row| row[column].chars().count());
            all.max().unwrap_or(0)
        };
        let widths: [usize; 8] = std::array::from_fn(width);
        for row in [&titles].into_iter().chain(&rows) {
            let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:>width$}"));
            let _ = writeln!(text, "{}", cells.collect::<Vec<_>>().join("  "));
        }
        text
    }

    fn draw(&self, frame: &mut Frame<'_>, state: &mut TableState) {
        let parts = [
            Constraint::Length(1),
            Constraint::Length(1),
            Constraint::Length(1),
            Constraint::Percentage(40),
            Constraint::Min(4),
            Constraint::Length(1),
        ];
        let [title, gauge, figures, curve, table, keys] =
            Layout::vertical(parts).areas(frame.area());
        let bold = Style::new().add_modifier(Modifier::BOLD);
        frame.render_widget(Paragraph::new(self.title()).style(bold), title);
        let share = self.history.step() as f64 / self.num_steps().max(1) as f64;
        let share = share.clamp(0.0, 1.0);
        frame.render_widget(Gauge::default().ratio(share).label(percent(share)), gauge);
        frame.render_widget(Paragraph::new(self.figures()), figures);
        self.draw_curve(frame, curve);
        self.draw_table(frame, table, state);
        let text = "q quits, arrows move through the ranks";
        frame.render_widget(Paragraph::new(text).alignment(Alignment::Right), keys);
    }

    /// Loss of the newest steps.
    fn draw_curve(&self, frame: &mut Frame<'_>, area: Rect) {
        let last = self.history.step();
        let range = [last.saturating_sub(CURVE_STEPS), last];
        let points = self.history.columns().points(Column::Loss, range);
        let points = downsample(&points, usize::from(area.width));
        let block = Block::bordered().title("loss");
        let (Some(first), Some(end)) = (points.first(), points.last()) else {
            frame.render_widget(Paragraph::new("no step yet").block(block), area);
            return;
        };
        let losses = || points.iter().map(|point| point.1);
        let (low, high) = (losses().fold(f64::MAX, f64::min), losses().fold(f64::MIN, f64::max));
        let margin = (high - low).max(1e-3) * 0.05;
        let axis =
            |bounds: [f64; 2], labels: Vec<String>| Axis::default().bounds(bounds).labels(labels);
        let line =
            Dataset::default().marker(Marker::Braille).graph_type(GraphType::Line).data(&points);
        let steps = vec![format!("{:.0}", first.0), format!("{:.0}", end.0)];
        let values = vec![format!("{low:.3}"), format!("{high:.3}")];
        let chart = Chart::new(vec![line])
            .block(block)
            .x_axis(axis([first.0, end.0.max(first.0 + 1.0)], steps))
            .y_axis(axis([low - margin, high + margin], values));
        frame.render_widget(chart, area);
    }

    fn draw_table(&self, frame: &mut Frame<'_>, area: Rect, state: &mut TableState) {
        let rows = self.rows();
        let block = Block::bordered().title(format!("{} ranks", rows.len()));
        if rows.is_empty() {
            let text = "no counters yet: ranks exchange them at evaluations";
            frame.render_widget(Paragraph::new(text).block(block), area);
            return;
        }
        let widths = TITLES.map(|title| Constraint::Min(title.len().max(9) as u16));
        let head = Row::new(TITLES).style(Style::new().add_modifier(Modifier::BOLD));
        let table = Table::new(rows.into_iter().map(Row::new), widths)
            .header(head)
            .block(block)
            .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
        frame.render_stateful_widget(table, area, state);
    }
}

fn cells(rank: &Rank) -> [String; 8] {
    let optional = |value: Option<String>| value.unwrap_or_else(|| "-".to_owned());
    let [exposed, straggler] = rank.per_step.map(|time| Seconds(time.max(0.0)).to_string());
    let memory = rank.device_bytes.or(rank.resident_bytes);
    [
        rank.rank.to_string(),
        optional(rank.busy_share.map(percent)),
        exposed,
        straggler,
        si_bytes(rank.sent_bytes.iter().sum()),
        optional(memory.map(|bytes| Bytes(bytes).to_string())),
        optional(rank.clock_hertz.map(|hertz| format!("{:.2} GHz", hertz / 1e9))),
        rank.missed_steps.to_string(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockstep_platform::ScratchDir;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    #[test]
    fn a_picture_has_the_curve_and_the_ranks_and_fits_any_size() {
        let world = lockstep_platform::real();
        let scratch = ScratchDir::new(&world, "top").unwrap();
        let line = |event: &str| format!("{{\"v\":2,\"seconds\":1.0,\"rank\":0,{event}}}\n");
        let mut events = String::new();
        for step in 1..=50 {
            events += &line(&format!(
                "\"event\":\"step\",\"step\":{step},\"loss\":{:.2},\"lr\":0.1,\"grad_norm\":1.0,\
                 \"tokens_per_second\":10.0,\"step_seconds\":0.5,\"data_wait_seconds\":0.0,\
                 \"exposed_communication_seconds\":0.0,\"is_skipped\":false",
                5.0 - 0.05 * f64::from(step)
            ));
        }
        for worker in 0..3 {
            events += &line(&format!(
                "\"event\":\"rank_counters\",\"step\":50,\"worker\":{worker},\"restarts\":0,\
                 \"missed_steps\":0,\"data_bytes\":2000,\"pipeline_bytes\":0,\"tensor_bytes\":0,\
                 \"strategy_bytes\":0,\"exposed_communication_seconds\":5.0,\
                 \"straggler_wait_seconds\":0.0,\"busy_share\":0.75"
            ));
        }
        let path = scratch.path().join("events.jsonl");
        world.files().write_atomic(&path, events.as_bytes()).unwrap();
        let mut watched = Watched::new(scratch.path(), &world);
        assert!(!watched.poll());
        let text = watched.text();
        assert!(text.contains("step 50/0  loss 2.5000"), "{text}");
        assert!(text.contains("75.0 %        100 ms"), "{text}");
        for (width, height) in [(120, 40), (60, 12), (3, 2)] {
            let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
            let mut state = TableState::default().with_selected(0);
            terminal.draw(|frame| watched.draw(frame, &mut state)).unwrap();
            if width == 120 {
                let picture = terminal.backend().to_string();
                for part in ["3 ranks", "loss 2.5000", "75.0 %", "2.00 kB", "q quits"] {
                    assert!(picture.contains(part), "{part}: {picture}");
                }
            }
        }
    }
}
