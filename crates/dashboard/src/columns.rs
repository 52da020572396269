//! Figures of every step of a run, one column a figure.

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

/// Steps that are kept. A run with more keeps every second of them, then every fourth, and so on.
const MAX_STEPS: usize = 1 << 19;

/// A figure of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Column {
    /// Training loss.
    Loss,
    /// Learning rate.
    Lr,
    /// Gradient norm before clipping.
    GradNorm,
    /// Throughput.
    TokensPerSecond,
    /// Duration.
    StepSeconds,
    /// Wait for data.
    DataSeconds,
    /// Exposed communication.
    ExposedSeconds,
    /// Wait for ranks that were still busy.
    StragglerSeconds,
}

impl Column {
    /// All columns, in the order of their storage.
    pub const ALL: [Self; 8] = [
        Self::Loss,
        Self::Lr,
        Self::GradNorm,
        Self::TokensPerSecond,
        Self::StepSeconds,
        Self::DataSeconds,
        Self::ExposedSeconds,
        Self::StragglerSeconds,
    ];

    /// Name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Loss => "loss",
            Self::Lr => "lr",
            Self::GradNorm => "grad_norm",
            Self::TokensPerSecond => "tokens_per_second",
            Self::StepSeconds => "step_seconds",
            Self::DataSeconds => "data_seconds",
            Self::ExposedSeconds => "exposed_seconds",
            Self::StragglerSeconds => "straggler_seconds",
        }
    }
}

/// A step with its figures: an object of JSON with `step` and the name of each column. A figure
/// that is not finite is null.
#[derive(Clone, Copy, Debug)]
pub struct StepFigures<'a> {
    columns: &'a Columns,
    index: usize,
}

impl Serialize for StepFigures<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(1 + Column::ALL.len()))?;
        map.serialize_entry("step", &self.columns.steps[self.index])?;
        for column in Column::ALL {
            let figures = &self.columns.figures[column as usize];
            map.serialize_entry(column.name(), &figures[self.index])?;
        }
        map.end()
    }
}

/// Steps in ascending order with their figures.
#[derive(Clone, Debug, Default)]
pub struct Columns {
    steps: Vec<u64>,
    /// In single precision, which is finer than any screen.
    figures: [Vec<f32>; Column::ALL.len()],
    /// Every how many steps one is kept; 0 stands for 1.
    stride: u64,
    /// Newest step, kept or not.
    last: Option<(u64, [f64; Column::ALL.len()])>,
}

impl Columns {
    /// Appends a step. One that is not behind the last one is run again, after a restart: it and
    /// all later ones are removed first.
    pub fn push(&mut self, step: u64, figures: [f64; Column::ALL.len()]) {
        self.truncate(step.saturating_sub(1));
        if self.steps.len() == MAX_STEPS {
            self.stride = 2 * self.stride.max(1);
            self.thin_out();
        }
        self.last = Some((step, figures));
        if step.is_multiple_of(self.stride.max(1)) {
            self.steps.push(step);
            for (column, figure) in self.figures.iter_mut().zip(figures) {
                column.push(figure as f32);
            }
        }
    }

    /// Removes all steps after this one.
    pub fn truncate(&mut self, last_step: u64) {
        if self.last.is_none_or(|(step, _)| step <= last_step) {
            return;
        }
        let len = self.steps.partition_point(|step| *step <= last_step);
        self.steps.truncate(len);
        self.figures.iter_mut().for_each(|column| column.truncate(len));
        let figures = |index: usize| std::array::from_fn(|at| f64::from(self.figures[at][index]));
        self.last = len.checked_sub(1).map(|index| (self.steps[index], figures(index)));
    }

    fn thin_out(&mut self) {
        let keeps: Vec<bool> =
            self.steps.iter().map(|step| step.is_multiple_of(self.stride)).collect();
        for column in &mut self.figures {
            let mut keeps = keeps.iter();
            column.retain(|_| *keeps.next().expect("columns have equal lengths"));
        }
        let mut keeps = keeps.iter();
        self.steps.retain(|_| *keeps.next().expect("columns have equal lengths"));
    }

    /// Number of kept steps.
    pub fn len(&self) -> usize {
        self.steps.len()
    }

    /// Whether there is no step.
    pub fn is_empty(&self) -> bool {
        self.last.is_none()
    }

    /// Newest step with its figure.
    pub fn last(&self, column: Column) -> Option<(u64, f64)> {
        self.last.map(|(step, figures)| (step, figures[column as usize]))
    }

    /// Points of a column with steps in a range, as positions for a curve.
    pub fn points(&self, column: Column, [first, last]: [u64; 2]) -> Vec<(f64, f64)> {
        let range = self.steps.partition_point(|step| *step < first)
            ..self.steps.partition_point(|step| *step <= last);
        let figures = &self.figures[column as usize];
        // An empty range may be reversed: the limits come from a request.
        let range = range.start..range.end.max(range.start);
        let point = |index: usize| (self.steps[index] as f64, f64::from(figures[index]));
        range.map(point).collect()
    }

    /// Kept steps in a range with their figures, by name.
    pub fn steps(&self, [first, last]: [u64; 2]) -> impl Iterator<Item = StepFigures<'_>> {
        let start = self.steps.partition_point(|step| *step < first);
        let indices = (start..self.steps.len()).take_while(move |at| self.steps[*at] <= last);
        indices.map(|index| StepFigures { columns: self, index })
    }

    /// Median of the last `num_steps` steps of a column; `None` without steps.
    pub fn recent_median(&self, column: Column, num_steps: usize) -> Option<f64> {
        let figures = &self.figures[column as usize];
        let mut recent = figures[figures.len().saturating_sub(num_steps)..].to_vec();
        recent.sort_by(f32::total_cmp);
        recent.get(recent.len() / 2).map(|figure| f64::from(*figure))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(loss: f64) -> [f64; 8] {
        let mut figures = [0.0; 8];
        figures[Column::Loss as usize] = loss;
        figures
    }

    #[test]
    fn steps_of_a_restart_replace_those_that_were_lost() {
        let mut columns = Columns::default();
        for step in 1..=6 {
            columns.push(step, figures(step as f64));
        }
        for step in 4..=5 {
            columns.push(step, figures(0.5));
        }
        let expected = [(1.0, 1.0), (2.0, 2.0), (3.0, 3.0), (4.0, 0.5), (5.0, 0.5)];
        assert_eq!(columns.points(Column::Loss, [0, u64::MAX]), expected);
        assert_eq!(columns.points(Column::Loss, [2, 3]), expected[1..3]);
        assert!(columns.points(Column::Loss, [9, 3]).is_empty());
        assert_eq!(columns.last(Column::Loss), Some((5, 0.5)));
        assert_eq!(columns.recent_median(Column::Loss, 3), Some(0.5));
        columns.truncate(0);
        assert_eq!((columns.last(Column::Loss), columns.len()), (None, 0));
    }

    #[test]
    fn a_very_long_run_keeps_every_second_step() {
        let mut columns = Columns::default();
        let num_steps = MAX_STEPS as u64 + 10;
        for step in 1..=num_steps {
            columns.push(step, figures(step as f64));
        }
        assert_eq!(columns.len(), MAX_STEPS / 2 + 5);
        assert_eq!(columns.last(Column::Loss), Some((num_steps, num_steps as f64)));
        let points = columns.points(Column::Loss, [0, 7]);
        assert_eq!(points, [(2.0, 2.0), (4.0, 4.0), (6.0, 6.0)]);
    }
}
