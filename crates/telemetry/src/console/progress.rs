//! Progress of a run as one line: fields are chosen by priority, so that the line fits any width.
//!
//! Fields are taken in the order of their priority until one does not fit; no field is cut, and
//! each has its place in the line. Every field reserves the columns of its usual widest number, so
//! that the choice does not change from one redraw to the next. Room that is left widens the
//! sparkline of recent losses, then the bar.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

use super::color::{Paint, push_painted};
use super::text::{Duration, Rate, Significant};
use crate::number;

/// Most cells of the sparkline.
pub(super) const MAX_CELLS: usize = 24;

/// Fewest cells of the sparkline.
const MIN_CELLS: usize = 8;

/// Columns of the bar.
const BAR_COLUMNS: std::ops::RangeInclusive<usize> = 10..=30;

/// Columns between two fields.
const GAP: usize = 2;

const BLOCKS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// Progress after a step, as the console draws it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    /// Number of completed steps.
    pub step: u64,
    /// Number of steps of the run.
    pub num_steps: u64,
    /// Loss of the step.
    #[serde(with = "number")]
    pub loss: f64,
    /// Means of consecutive recent losses, oldest first; none where a loss is not finite.
    pub recent_losses: Vec<Option<f64>>,
    /// Length of the segments of sequences, during a sequence-length warm-up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seqlen: Option<usize>,
    /// Fraction of the step's pairs with a positive margin; none without preferences.
    #[serde(default, with = "number::option", skip_serializing_if = "Option::is_none")]
    pub preference_accuracy: Option<f64>,
    /// Mean margin of the step's pairs; none without preferences.
    #[serde(default, with = "number::option", skip_serializing_if = "Option::is_none")]
    pub preference_margin: Option<f64>,
    /// Throughput of the step.
    #[serde(with = "number")]
    pub tokens_per_second: f64,
    /// Learning rate.
    #[serde(with = "number")]
    pub lr: f64,
    /// Gradient norm before clipping.
    #[serde(with = "number")]
    pub grad_norm: f64,
    /// Model FLOP/s over the peak (MFU); none where the peak is unknown.
    #[serde(with = "number::option")]
    pub mfu: Option<f64>,
    /// Exposed communication over the step time; none with one worker.
    #[serde(with = "number::option")]
    pub exposed_communication: Option<f64>,
    /// Estimated time until the last step.
    #[serde(with = "number")]
    pub seconds_left: f64,
}

impl Progress {
    /// No progress yet, with room for all losses.
    pub(super) fn start() -> Self {
        Self { recent_losses: Vec::with_capacity(MAX_CELLS), ..Self::default() }
    }

    /// Copies another progress, without an allocation where there is room for its losses.
    pub(super) fn copy_from(&mut self, other: &Self) {
        let mut recent_losses = std::mem::take(&mut self.recent_losses);
        recent_losses.clone_from(&other.recent_losses);
        *self = Self { recent_losses, ..*other };
    }

    /// The line, at most `columns` wide.
    pub(super) fn render(&self, columns: usize, has_colors: bool) -> String {
        let (fields, num_columns) = choose(self.fields(), columns);
        let mut left = columns.saturating_sub(num_columns);
        let has_trend = fields.iter().any(|field| field.kind == Kind::Trend);
        let more_cells = if has_trend { left.min(MAX_CELLS - MIN_CELLS) } else { 0 };
        left -= more_cells;
        let more_bar = left.min(BAR_COLUMNS.end() - BAR_COLUMNS.start());
        let mut line = String::new();
        for field in &fields {
            if !line.is_empty() {
                line.push_str(&" ".repeat(field.gap()));
            }
            match field.kind {
                Kind::Trend => {
                    let cells = sparkline(&self.recent_losses, MIN_CELLS + more_cells);
                    push_painted(&mut line, &cells, Paint::Trend, has_colors);
                }
                Kind::Bar => self.push_bar(&mut line, BAR_COLUMNS.start() + more_bar, has_colors),
                Kind::Text => field.push(&mut line, has_colors),
            }
        }
        line.truncate(line.trim_end_matches(' ').len());
        line
    }

    /// Fields in the order of the line, with their priorities.
    fn fields(&self) -> Vec<Field> {
        let Self { step, num_steps, .. } = *self;
        let digits = super::text::num_digits(num_steps);
        let count = format!("{step:>digits$}/{num_steps}");
        let loss = if self.loss.is_finite() { Paint::Strong } else { Paint::Error };
        let percent = |share: f64| format!("{:.1} %", 100.0 * share);
        let rate = Rate(self.tokens_per_second).to_string();
        let mut fields = vec![
            Field::text(0, 0, &[("step ", Paint::Dim), (&count, Paint::Plain)]),
            Field { kind: Kind::Bar, priority: 9, reserved: *BAR_COLUMNS.start(), pieces: vec![] },
            Field::text(1, 0, &[("loss ", Paint::Dim), (&format!("{:.4}", self.loss), loss)]),
            Field { kind: Kind::Trend, priority: 4, reserved: MIN_CELLS, pieces: vec![] },
            Field::text(
                3,
                "99.9k tokens/s".len(),
                &[(&format!("{rate:>5}"), Paint::Plain), (" tokens/s", Paint::Dim)],
            ),
            Field::text(5, 0, &[("lr ", Paint::Dim), (&format!("{:.2e}", self.lr), Paint::Plain)]),
            Field::text(
                6,
                "grad norm 0.123".len(),
                &[
                    ("grad norm ", Paint::Dim),
                    (&format!("{:<5}", Significant(self.grad_norm).to_string()), Paint::Plain),
                ],
            ),
        ];
        if let Some(accuracy) = self.preference_accuracy {
            let pieces = [("accuracy ", Paint::Dim), (&*percent(accuracy), Paint::Plain)];
            fields.push(Field::text(5, "accuracy 99.9 %".len(), &pieces));
        }
        if let Some(margin) = self.preference_margin {
            let pieces = [("margin ", Paint::Dim), (&*format!("{margin:.3}"), Paint::Plain)];
            fields.push(Field::text(5, "margin -0.123".len(), &pieces));
        }
        if let Some(length) = self.seqlen {
            let pieces = [("length ", Paint::Dim), (&*length.to_string(), Paint::Plain)];
            fields.push(Field::text(7, "length 128".len(), &pieces));
        }
        if let Some(mfu) = self.mfu {
            let pieces = [("MFU ", Paint::Dim), (&*percent(mfu), Paint::Plain)];
            fields.push(Field::text(7, "MFU 99.9 %".len(), &pieces));
        }
        if let Some(exposed) = self.exposed_communication {
            let pieces = [("exposed comm ", Paint::Dim), (&*percent(exposed), Paint::Plain)];
            fields.push(Field::text(8, "exposed comm 99.9 %".len(), &pieces));
        }
        let left = Duration(self.seconds_left).to_string();
        let pieces = [("ETA ", Paint::Dim), (&*left, Paint::Plain)];
        fields.push(Field::text(2, "ETA 59m 59s".len(), &pieces));
        fields
    }

    fn push_bar(&self, line: &mut String, columns: usize, has_colors: bool) {
        let share = self.step as f64 / self.num_steps.max(1) as f64;
        let num_done = ((share.clamp(0.0, 1.0) * columns as f64) as usize).min(columns);
        push_painted(line, &"━".repeat(num_done), Paint::Done, has_colors);
        push_painted(line, &"┄".repeat(columns - num_done), Paint::Dim, has_colors);
    }
}

/// The fields that fit into `columns`, and the columns that they need.
fn choose(mut fields: Vec<Field>, columns: usize) -> (Vec<Field>, usize) {
    let mut order: Vec<usize> = (0..fields.len()).collect();
    order.sort_by_key(|&index| fields[index].priority);
    let mut is_chosen = vec![false; fields.len()];
    let mut num_columns = 0;
    for index in order {
        let field = &fields[index];
        let gap = if num_columns == 0 { 0 } else { field.gap() };
        if num_columns + gap + field.num_columns() > columns {
            break;
        }
        is_chosen[index] = true;
        num_columns += gap + field.num_columns();
    }
    let mut chosen = is_chosen.into_iter();
    fields.retain(|_| chosen.next().unwrap_or(false));
    (fields, num_columns)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Text,
    Trend,
    Bar,
}

/// A field of the line.
struct Field {
    kind: Kind,
    /// The lowest is chosen first.
    priority: u8,
    /// Columns that the field takes at least.
    reserved: usize,
    pieces: Vec<(String, Paint)>,
}

impl Field {
    fn text(priority: u8, reserved: usize, pieces: &[(&str, Paint)]) -> Self {
        let pieces = pieces.iter().map(|(piece, paint)| ((*piece).to_owned(), *paint)).collect();
        Self { kind: Kind::Text, priority, reserved, pieces }
    }

    /// Columns before the field.
    fn gap(&self) -> usize {
        if self.kind == Kind::Trend { 1 } else { GAP }
    }

    fn num_columns(&self) -> usize {
        let own: usize = self.pieces.iter().map(|(piece, _)| piece.chars().count()).sum();
        own.max(self.reserved)
    }

    fn push(&self, line: &mut String, has_colors: bool) {
        let mut own = 0;
        for (piece, paint) in &self.pieces {
            push_painted(line, piece, *paint, has_colors);
            own += piece.chars().count();
        }
        let _ = write!(line, "{:1$}", "", self.reserved.saturating_sub(own));
    }
}

/// Recent losses as blocks between their minimum and maximum; `×` is a loss that is not finite.
fn sparkline(losses: &[Option<f64>], num_cells: usize) -> String {
    let losses = &losses[losses.len().saturating_sub(num_cells)..];
    let finite = losses.iter().flatten().copied();
    let (low, high) = finite.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), loss| {
        (loss.min(low), loss.max(high))
    });
    let block = |loss: f64| {
        let share = if high > low { (loss - low) / (high - low) } else { 0.5 };
        BLOCKS[((share * 8.0) as usize).min(7)]
    };
    let cells = losses.iter().map(|loss| loss.map_or('×', block));
    let rest = std::iter::repeat_n(' ', num_cells - losses.len());
    cells.chain(rest).collect()
}

/// The losses of the latest steps.
#[derive(Debug)]
pub(super) struct History {
    /// A ring; `next` is the oldest once it is full.
    losses: Vec<f64>,
    next: usize,
}

impl History {
    /// Steps that are remembered.
    const LEN: usize = 10 * MAX_CELLS;

    pub(super) fn new() -> Self {
        Self { losses: Vec::with_capacity(Self::LEN), next: 0 }
    }

    pub(super) fn clear(&mut self) {
        self.losses.clear();
        self.next = 0;
    }

    pub(super) fn push(&mut self, loss: f64) {
        if self.losses.len() < Self::LEN {
            self.losses.push(loss);
        } else {
            self.losses[self.next] = loss;
            self.next = (self.next + 1) % Self::LEN;
        }
    }

    /// Writes the means of at most [`MAX_CELLS`] groups of consecutive losses, oldest first.
    pub(super) fn summarize(&self, cells: &mut Vec<Option<f64>>) {
        let num_losses = self.losses.len();
        let num_cells = num_losses.min(MAX_CELLS);
        cells.clear();
        cells.extend((0..num_cells).map(|cell| {
            let group = cell * num_losses / num_cells..(cell + 1) * num_losses / num_cells;
            let len = group.len() as f64;
            let sum: f64 = group.map(|index| self.losses[(self.next + index) % num_losses]).sum();
            Some(sum / len).filter(|mean| mean.is_finite())
        }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn progress() -> Progress {
        Progress {
            step: 120,
            num_steps: 400,
            loss: 2.3456,
            recent_losses: (0..24).map(|index| Some(5.0 - 0.1 * f64::from(index))).collect(),
            seqlen: None,
            preference_accuracy: None,
            preference_margin: None,
            tokens_per_second: 12_345.0,
            lr: 3e-4,
            grad_norm: 0.512_3,
            mfu: Some(0.3412),
            exposed_communication: Some(0.052),
            seconds_left: 65.0,
        }
    }

    #[test]
    fn narrow_terminals_drop_fields_by_priority() {
        let line = |columns: usize| progress().render(columns, false);
        assert_eq!(line(39), "step 120/400  loss 2.3456  ETA 1m 05s");
        assert_eq!(line(24), "step 120/400");
        assert_eq!(line(25), "step 120/400  loss 2.3456");
        assert_eq!(
            line(79),
            "step 120/400  loss 2.3456 ██▇▆▆▅▄▃▃▂▁▁  12.3k tokens/s  lr 3.00e-4  ETA 1m 05s"
        );
        assert_eq!(
            line(125),
            "step 120/400  loss 2.3456 █▇▆▅▄▃▂▁  12.3k tokens/s  lr 3.00e-4  grad norm 0.512  \
             MFU 34.1 %  exposed comm 5.2 %   ETA 1m 05s"
        );
    }

    #[test]
    fn a_warm_up_shows_the_length_of_its_sequences() {
        let line = Progress { seqlen: Some(64), ..progress() }.render(125, false);
        assert!(line.contains("grad norm 0.512  length 64   MFU 34.1 %"), "{line}");
    }

    #[test]
    fn a_wide_terminal_has_every_field_and_a_bar() {
        let line = progress().render(199, false);
        let bar = "━".repeat(9) + &"┄".repeat(21);
        let start = format!("step 120/400  {bar}  loss 2.3456 ");
        let end = "  12.3k tokens/s  lr 3.00e-4  grad norm 0.512  MFU 34.1 %  \
                   exposed comm 5.2 %   ETA 1m 05s";
        let trend = line.strip_prefix(&start).and_then(|rest| rest.strip_suffix(end));
        assert_eq!(trend.map(|cells| cells.chars().count()), Some(MAX_CELLS), "{line}");
    }

    #[test]
    fn no_width_and_no_number_makes_the_line_too_long_or_cuts_a_field() {
        let extremes = Progress {
            step: 9_999_999,
            num_steps: 10_000_000,
            loss: -12_345.678_9,
            tokens_per_second: 1.23e9,
            lr: 1.234e-12,
            grad_norm: 1.23e30,
            mfu: Some(12.345),
            exposed_communication: Some(1.0),
            seconds_left: 1e12,
            ..progress()
        };
        let broken = Progress {
            loss: f64::NAN,
            recent_losses: vec![Some(1.0), None],
            grad_norm: f64::INFINITY,
            seconds_left: f64::NAN,
            ..progress()
        };
        for progress in [progress(), Progress::default(), extremes, broken] {
            let whole = progress.render(1000, false);
            let parts: Vec<&str> = whole.split_whitespace().collect();
            for columns in 0..220 {
                let line = progress.render(columns, false);
                let width = line.chars().count();
                assert!(width <= columns, "{columns} columns: {line:?}");
                let is_drawing = |word: &str| !word.is_ascii();
                for word in line.split_whitespace().filter(|word| !is_drawing(word)) {
                    assert!(parts.contains(&word), "{columns} columns cut {word:?} of {whole:?}");
                }
                let painted = progress.render(columns, true);
                assert_eq!(strip(&painted).trim_end(), line, "colours change no character");
            }
        }
    }

    #[test]
    fn the_chosen_fields_do_not_change_with_the_usual_numbers() {
        let shown = |progress: &Progress| {
            let line = progress.render(119, false);
            let labels = ["step", "loss", "tokens/s", "lr", "grad", "MFU", "exposed", "ETA"];
            labels.map(|label| line.contains(label))
        };
        let one = progress();
        let other = Progress {
            tokens_per_second: 950.0,
            grad_norm: 12.0,
            mfu: Some(0.02),
            exposed_communication: Some(0.0),
            seconds_left: 3.0,
            ..progress()
        };
        assert_eq!(shown(&one), shown(&other));
    }

    #[test]
    fn a_sparkline_spans_its_minimum_and_maximum() {
        let losses = [Some(4.0), Some(3.0), None, Some(2.0), Some(1.0)];
        assert_eq!(sparkline(&losses, 5), "█▆×▃▁");
        assert_eq!(sparkline(&losses, 3), "×█▁");
        assert_eq!(sparkline(&[Some(2.0); 2], 4), "▅▅  ");
        assert_eq!(sparkline(&[], 2), "  ");
    }

    #[test]
    fn the_history_groups_the_latest_losses() {
        let (mut history, mut cells) = (History::new(), Vec::new());
        history.summarize(&mut cells);
        assert_eq!(cells, []);
        for step in 0..3 {
            history.push(f64::from(step));
        }
        history.summarize(&mut cells);
        assert_eq!(cells, [Some(0.0), Some(1.0), Some(2.0)]);
        for step in 0..1000 {
            history.push(if step == 999 { f64::NAN } else { f64::from(step) });
        }
        history.summarize(&mut cells);
        assert_eq!(cells.len(), MAX_CELLS);
        assert_eq!(cells[0], Some(760.0 + 4.5), "ten losses a cell, the oldest of the last 240");
        assert_eq!(cells[MAX_CELLS - 1], None);
    }

    #[test]
    fn a_record_survives_json() {
        let broken = Progress { loss: f64::INFINITY, recent_losses: vec![None], ..progress() };
        for progress in [progress(), broken] {
            let text = serde_json::to_string(&progress).unwrap();
            assert_eq!(serde_json::from_str::<Progress>(&text).unwrap(), progress);
        }
    }

    /// Text without ANSI codes.
    fn strip(text: &str) -> String {
        let mut parts = text.split("\x1b[");
        let first = parts.next().unwrap_or_default().to_owned();
        parts.fold(first, |text, part| text + part.split_once('m').map_or("", |(_, rest)| rest))
    }
}
