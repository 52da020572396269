//! Results of a sweep as a text table, as CSV and as JSON.
//!
//! Everything is made from the files of the sweep and has no measured times unless requested, so an
//! interrupted sweep ends with the same bytes.

use lockstep_sweep::metric::Metric;
use lockstep_sweep::plan::Run;
use lockstep_sweep::ranking::{Ranking, Row};
use serde::Serialize;
use serde_json::{Map, Value, json};
use std::fmt::Write as _;

/// Figures that depend on the machine.
const MEASURED: &[&str] =
    &["seconds", "step_seconds_median", "tokens_per_second", "wire_bytes", "slow_rank"];

/// A ranking to print.
pub(super) struct Table<'a> {
    ranking: &'a Ranking<'a>,
    /// Whether to add [`MEASURED`].
    is_measured: bool,
}

/// A sweep as JSON. Field names are stable: scripts rely on them.
#[derive(Serialize)]
pub(super) struct Report {
    by: &'static str,
    runs: Vec<Value>,
    best: Option<Value>,
    out: String,
}

impl<'a> Table<'a> {
    pub(super) const fn new(ranking: &'a Ranking<'a>, is_measured: bool) -> Self {
        Self { ranking, is_measured }
    }

    const fn measured(&self) -> &'static [&'static str] {
        if self.is_measured { MEASURED } else { &[] }
    }

    /// Rows of cells; the heading is the first.
    fn cells(&self, format: impl Fn(Metric, f64) -> String) -> Vec<Vec<String>> {
        let metrics = self.ranking.metrics();
        let mut heading = vec!["run".to_owned()];
        heading.extend(self.ranking.plan.keys.iter().cloned());
        heading.push("steps".to_owned());
        heading.push("status".to_owned());
        heading.extend(metrics.iter().map(|metric| metric.name().to_owned()));
        heading.extend(self.measured().iter().map(|name| (*name).to_owned()));
        let mut cells = vec![heading];
        for row in &self.ranking.rows {
            let mut line = vec![row.run.name.clone()];
            line.extend(row.run.values.iter().cloned());
            line.push(row.outcome.steps.to_string());
            line.push(self.ranking.status(row).to_owned());
            let value = |name: &str| row.outcome.figures.get(name).copied();
            line.extend(metrics.iter().map(|metric| {
                value(metric.name()).map_or(String::new(), |value| format(*metric, value))
            }));
            let is_whole = |value: f64| value.fract().abs() < f64::EPSILON;
            let three = |value: f64| format!("{value:.*}", if is_whole(value) { 0 } else { 3 });
            line.extend(self.measured().iter().map(|n| value(n).map_or(String::new(), three)));
            cells.push(line);
        }
        cells
    }

    /// Aligned columns.
    pub(super) fn text(&self) -> String {
        let cells = self.cells(Metric::format);
        let spaced = |cell: &String| cell.replace('_', " ");
        let width = |column: usize| cells.iter().map(|line| line[column].chars().count()).max();
        let widths: Vec<usize> =
            (0..cells[0].len()).map(|column| width(column).unwrap_or(0)).collect();
        let mut text = String::new();
        for (index, line) in cells.iter().enumerate() {
            let is_best = index == 1 && self.ranking.best().is_some();
            text += if is_best { "*" } else { " " };
            for (column, cell) in line.iter().enumerate() {
                // Names of figures are prose here; names of keys are typed as they are.
                let is_key = (1..=self.ranking.plan.keys.len()).contains(&column);
                let cell = if index == 0 && !is_key { spaced(cell) } else { cell.clone() };
                let _ = write!(text, " {cell:>width$} ", width = widths[column]);
            }
            text.truncate(text.trim_end().len());
            text.push('\n');
        }
        text
    }

    /// CSV (RFC 4180, with line feeds alone).
    pub(super) fn csv(&self) -> String {
        let quoted = |cell: &String| {
            let is_plain = !cell.contains([',', '"', '\n', '\r']);
            if is_plain { cell.clone() } else { format!("\"{}\"", cell.replace('"', "\"\"")) }
        };
        let cells = self.cells(|_, value| value.to_string());
        let lines = cells.iter().map(|line| line.iter().map(quoted).collect::<Vec<_>>().join(","));
        lines.collect::<Vec<_>>().join("\n") + "\n"
    }

    /// JSON; `command` is the command line that trains a run.
    pub(super) fn report(&self, out: &str, command: impl Fn(&Run) -> String) -> Report {
        let row = |row: &Row<'_>| {
            let keys = self.ranking.plan.keys.iter().zip(&row.run.values);
            let set: Map<String, Value> =
                keys.map(|(key, value)| (key.clone(), json!(value))).collect();
            let mut object = json!({
                "run": row.run.name,
                "set": set,
                "status": self.ranking.status(row),
                "rung": row.rung + 1,
                "steps": row.outcome.steps,
                "message": row.outcome.message,
                "command": command(row.run),
            });
            let object_map = object.as_object_mut().expect("it is an object");
            object_map.extend(row.outcome.figures.iter().map(|(k, v)| (k.clone(), json!(v))));
            object
        };
        Report {
            by: self.ranking.plan.by.name(),
            runs: self.ranking.rows.iter().map(row).collect(),
            best: self.ranking.best().map(row),
            out: out.to_owned(),
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use lockstep_sweep::halving::rungs;
    use lockstep_sweep::outcome::{Outcome, Status};
    use lockstep_sweep::plan::Plan;
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
            by: Metric::ValidationLoss,
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
        let (steps, message) = (plan.rungs[rung].steps(100), String::new());
        let outcome = Outcome { status: Status::Done, steps, message, figures };
        let score = plan.by.score(&outcome);
        Row { run, rung, outcome, score }
    }

    #[test]
    fn the_best_run_is_first_and_marked_and_diverged_runs_are_last() {
        let plan = plan(&[("0.1", "sgd"), ("1", "sgd"), ("0.1", "adam"), ("1", "adam")], 1);
        let losses = [Some(3.0), None, Some(1.5), Some(3.0)];
        let rows = losses.into_iter().enumerate().map(|(run, loss)| row(&plan, run, 0, loss));
        let ranking = Ranking::new(&plan, rows.collect());
        let table = Table::new(&ranking, false);
        assert_eq!(
            table.text(),
            "\x20  run  optim.lr  optim.name  steps    status  validation loss  final loss\n\
             * 0003       0.1        adam    100      done         1.500000    0.750000\n\
             \x20 0001       0.1         sgd    100      done         3.000000    1.500000\n\
             \x20 0004         1        adam    100      done         3.000000    1.500000\n\
             \x20 0002         1         sgd     12  diverged\n"
        );
        assert_eq!(ranking.best().map(|row| row.run.name.as_str()), Some("0003"));
    }

    #[test]
    fn runs_of_later_rungs_rank_above_dropped_ones() {
        let values = [("1", "a"), ("2", "a"), ("3", "a"), ("4", "a")];
        let plan = plan(&values, 2);
        let rows = vec![
            row(&plan, 0, 0, Some(2.0)),
            row(&plan, 1, 2, Some(1.9)),
            row(&plan, 2, 0, None),
            row(&plan, 3, 1, Some(1.0)),
        ];
        let ranking = Ranking::new(&plan, rows);
        let names: Vec<_> = ranking.rows.iter().map(|row| row.run.name.as_str()).collect();
        assert_eq!(names, ["0002", "0004", "0001", "0003"]);
        assert!(Table::new(&ranking, false).text().contains("dropped"));
    }

    #[test]
    fn a_comma_in_a_value_stays_in_its_cell() {
        let plan = plan(&[("{a=1,b=\"x\"}", "sgd")], 1);
        let ranking = Ranking::new(&plan, vec![row(&plan, 0, 0, Some(0.25))]);
        let table = Table::new(&ranking, true);
        assert_eq!(
            table.csv(),
            "run,optim.lr,optim.name,steps,status,validation_loss,final_loss,seconds,\
             step_seconds_median,tokens_per_second,wire_bytes,slow_rank\n\
             0001,\"{a=1,b=\"\"x\"\"}\",sgd,100,done,0.25,0.125,1.500,,,,\n"
        );
    }

    #[test]
    fn there_is_no_best_run_where_all_diverged() {
        let plan = plan(&[("1", "sgd"), ("2", "sgd")], 1);
        let rows = vec![row(&plan, 0, 0, None), row(&plan, 1, 0, None)];
        let ranking = Ranking::new(&plan, rows);
        let table = Table::new(&ranking, false);
        assert!(ranking.best().is_none() && !table.text().contains('*'));
        assert!(table.report("sweep", |_| String::new()).best.is_none());
    }
}
