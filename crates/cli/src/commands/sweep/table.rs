//! What came of all runs, best first: for people, for programs and for spreadsheets.
//!
//! Everything here is made from what the files of the sweep say and has no times in it unless they
//! are asked for, so that a sweep that was killed and went on ends with the same text, byte by
//! byte.

use super::figure::Figure;
use super::halving::{Score, order};
use super::plan::{Plan, Run};
use super::store::{Outcome, Status};
use serde::Serialize;
use serde_json::{Map, Value, json};
use std::fmt::Write as _;

/// Figures that the machine has a part in.
const MEASURED: &[&str] =
    &["seconds", "step_seconds_median", "tokens_per_second", "wire_bytes", "slow_rank"];

/// The figures of every table after the one that runs are judged by.
const OTHERS: &[Figure] =
    &[Figure::ValidationLoss, Figure::FinalLoss, Figure::Suboptimality, Figure::Accuracy];

/// One run and what came of it, with the last rung that it took part in.
pub(super) struct Row<'a> {
    pub(super) run: &'a Run,
    pub(super) rung: usize,
    pub(super) outcome: Outcome,
    pub(super) score: Score,
}

/// All of them.
pub(super) struct Table<'a> {
    pub(super) plan: &'a Plan,
    /// Best first.
    pub(super) rows: Vec<Row<'a>>,
    is_measured: bool,
}

/// For programs. Names are stable: scripts rely on them.
#[derive(Serialize)]
pub(super) struct Report {
    by: &'static str,
    runs: Vec<Value>,
    best: Option<Value>,
    out: String,
}

impl<'a> Table<'a> {
    /// Puts the rows in order: those of later rungs first, the better of a rung first.
    pub(super) fn new(plan: &'a Plan, mut rows: Vec<Row<'a>>, is_measured: bool) -> Self {
        let place = |row: &Row<'a>| plan.runs.iter().position(|run| run == row.run).unwrap_or(0);
        rows.sort_by(|a, b| {
            let by_score = order((place(a), a.score), (place(b), b.score));
            b.rung.cmp(&a.rung).then(by_score)
        });
        Self { plan, rows, is_measured }
    }

    /// The best run, unless all have diverged.
    pub(super) fn best(&self) -> Option<&Row<'a>> {
        self.rows.first().filter(|row| row.score.is_some())
    }

    /// The figures that some run has, the one that decides first.
    fn figures(&self) -> Vec<Figure> {
        let by = self.plan.by;
        let is_known = |figure: &&Figure| {
            self.rows.iter().any(|row| row.outcome.figures.contains_key(figure.name()))
        };
        let others = OTHERS.iter().filter(|figure| **figure != by).filter(is_known);
        [by].into_iter().chain(others.copied()).collect()
    }

    fn measured(&self) -> &'static [&'static str] {
        if self.is_measured { MEASURED } else { &[] }
    }

    /// Rows of cells, the heading first.
    fn cells(&self, shown: impl Fn(Figure, f64) -> String) -> Vec<Vec<String>> {
        let figures = self.figures();
        let mut heading = vec!["run".to_owned()];
        heading.extend(self.plan.keys.iter().cloned());
        heading.push("steps".to_owned());
        heading.push("status".to_owned());
        heading.extend(figures.iter().map(|figure| figure.name().to_owned()));
        heading.extend(self.measured().iter().map(|name| (*name).to_owned()));
        let mut cells = vec![heading];
        for row in &self.rows {
            let mut line = vec![row.run.name.clone()];
            line.extend(row.run.values.iter().cloned());
            line.push(row.outcome.steps.to_string());
            line.push(self.status(row).to_owned());
            let value = |name: &str| row.outcome.figures.get(name).copied();
            line.extend(figures.iter().map(|figure| {
                value(figure.name()).map_or(String::new(), |value| shown(*figure, value))
            }));
            let is_whole = |value: f64| value.fract().abs() < f64::EPSILON;
            let three = |value: f64| format!("{value:.*}", if is_whole(value) { 0 } else { 3 });
            line.extend(self.measured().iter().map(|n| value(n).map_or(String::new(), three)));
            cells.push(line);
        }
        cells
    }

    fn status(&self, row: &Row<'_>) -> &'static str {
        match row.outcome.status {
            Status::Diverged => "diverged",
            Status::Done if row.rung + 1 < self.plan.rungs.len() => "dropped",
            Status::Done => "done",
        }
    }

    /// For people: columns of one width, numbers to the right.
    pub(super) fn text(&self) -> String {
        let cells = self.cells(Figure::shown);
        let words = |cell: &String| cell.replace('_', " ");
        let width = |column: usize| cells.iter().map(|line| line[column].chars().count()).max();
        let widths: Vec<usize> =
            (0..cells[0].len()).map(|column| width(column).unwrap_or(0)).collect();
        let mut text = String::new();
        for (index, line) in cells.iter().enumerate() {
            let is_best = index == 1 && self.best().is_some();
            text += if is_best { "*" } else { " " };
            for (column, cell) in line.iter().enumerate() {
                // The names of figures are for people here; those of keys are to be typed.
                let is_key = (1..=self.plan.keys.len()).contains(&column);
                let cell = if index == 0 && !is_key { words(cell) } else { cell.clone() };
                let _ = write!(text, " {cell:>width$} ", width = widths[column]);
            }
            text.truncate(text.trim_end().len());
            text.push('\n');
        }
        text
    }

    /// For spreadsheets (RFC 4180, lines end with a line feed alone).
    pub(super) fn csv(&self) -> String {
        let quoted = |cell: &String| {
            let is_plain = !cell.contains([',', '"', '\n', '\r']);
            if is_plain { cell.clone() } else { format!("\"{}\"", cell.replace('"', "\"\"")) }
        };
        let cells = self.cells(|_, value| value.to_string());
        let lines = cells.iter().map(|line| line.iter().map(quoted).collect::<Vec<_>>().join(","));
        lines.collect::<Vec<_>>().join("\n") + "\n"
    }

    /// For programs. `command` trains a run.
    pub(super) fn report(&self, out: &str, command: impl Fn(&Run) -> String) -> Report {
        let row = |row: &Row<'_>| {
            let keys = self.plan.keys.iter().zip(&row.run.values);
            let set: Map<String, Value> =
                keys.map(|(key, value)| (key.clone(), json!(value))).collect();
            let mut object = json!({
                "run": row.run.name,
                "set": set,
                "status": self.status(row),
                "rung": row.rung + 1,
                "steps": row.outcome.steps,
                "words": row.outcome.words,
                "command": command(row.run),
            });
            let object_map = object.as_object_mut().expect("it is an object");
            object_map.extend(row.outcome.figures.iter().map(|(k, v)| (k.clone(), json!(v))));
            object
        };
        Report {
            by: self.plan.by.name(),
            runs: self.rows.iter().map(row).collect(),
            best: self.best().map(row),
            out: out.to_owned(),
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::commands::sweep::halving::rungs;
    use std::collections::BTreeMap;

    /// A plan of runs with these values of two keys.
    pub(crate) fn plan(values: &[(&str, &str)], eta: u64) -> Plan {
        let run = |(index, (a, b)): (usize, &(&str, &str))| Run {
            name: format!("{:04}", index + 1),
            values: vec![(*a).to_owned(), (*b).to_owned()],
            also: Vec::new(),
            steps: 100,
            recipe_hash: String::new(),
        };
        Plan {
            keys: vec!["optim.lr".to_owned(), "optim.name".to_owned()],
            runs: values.iter().enumerate().map(run).collect(),
            rungs: rungs(values.len(), eta, 100),
            by: Figure::ValidationLoss,
            eta,
            jobs: 1,
            threads: vec![None; values.len()],
            is_text: true,
            seconds: None,
        }
    }

    /// A row with this loss, or one that diverged.
    pub(crate) fn row(plan: &Plan, run: usize, rung: usize, loss: Option<f64>) -> Row<'_> {
        let run = &plan.runs[run];
        let Some(loss) = loss else {
            let outcome = Outcome::diverged("loss became NaN at step 12");
            return Row { run, rung, outcome, score: None };
        };
        let figures = [("validation_loss", loss), ("final_loss", loss / 2.0), ("seconds", 1.5)];
        let figures: BTreeMap<_, _> =
            figures.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        let (steps, words) = (plan.rungs[rung].steps(100), String::new());
        let outcome = Outcome { status: Status::Done, steps, words, figures };
        let score = plan.by.score(&outcome);
        Row { run, rung, outcome, score }
    }

    #[test]
    fn the_best_is_first_and_marked_and_what_diverged_is_last() {
        let plan = plan(&[("0.1", "sgd"), ("1", "sgd"), ("0.1", "adam"), ("1", "adam")], 1);
        let losses = [Some(3.0), None, Some(1.5), Some(3.0)];
        let rows = losses.into_iter().enumerate().map(|(run, loss)| row(&plan, run, 0, loss));
        let table = Table::new(&plan, rows.collect(), false);
        assert_eq!(
            table.text(),
            "\x20  run  optim.lr  optim.name  steps    status  validation loss  final loss\n\
             * 0003       0.1        adam    100      done         1.500000    0.750000\n\
             \x20 0001       0.1         sgd    100      done         3.000000    1.500000\n\
             \x20 0004         1        adam    100      done         3.000000    1.500000\n\
             \x20 0002         1         sgd     12  diverged\n"
        );
        assert_eq!(table.best().map(|row| row.run.name.as_str()), Some("0003"));
    }

    #[test]
    fn who_came_further_stands_above_who_was_dropped() {
        let values = [("1", "a"), ("2", "a"), ("3", "a"), ("4", "a")];
        let plan = plan(&values, 2);
        let rows = vec![
            row(&plan, 0, 0, Some(2.0)),
            row(&plan, 1, 2, Some(1.9)),
            row(&plan, 2, 0, None),
            row(&plan, 3, 1, Some(1.0)),
        ];
        let table = Table::new(&plan, rows, false);
        let names: Vec<_> = table.rows.iter().map(|row| row.run.name.as_str()).collect();
        assert_eq!(names, ["0002", "0004", "0001", "0003"]);
        assert!(table.text().contains("dropped"));
    }

    #[test]
    fn a_comma_in_a_value_stays_in_its_cell() {
        let plan = plan(&[("{a=1,b=\"x\"}", "sgd")], 1);
        let table = Table::new(&plan, vec![row(&plan, 0, 0, Some(0.25))], true);
        assert_eq!(
            table.csv(),
            "run,optim.lr,optim.name,steps,status,validation_loss,final_loss,seconds,\
             step_seconds_median,tokens_per_second,wire_bytes,slow_rank\n\
             0001,\"{a=1,b=\"\"x\"\"}\",sgd,100,done,0.25,0.125,1.500,,,,\n"
        );
    }

    #[test]
    fn nothing_is_best_where_all_diverged() {
        let plan = plan(&[("1", "sgd"), ("2", "sgd")], 1);
        let rows = vec![row(&plan, 0, 0, None), row(&plan, 1, 0, None)];
        let table = Table::new(&plan, rows, false);
        assert!(table.best().is_none() && !table.text().contains('*'));
        assert!(table.report("sweep", |_| String::new()).best.is_none());
    }
}
