//! A chart of a sweep: one panel a key, every run a point in every panel.
//!
//! Runs that differ in a panel's key alone are joined by a line, so that a grid shows the effect of
//! the key beside each choice of the others. A ring marks the best run, a cross above the frame a
//! run that diverged, a hollow marker a run that was dropped before its last step.

use lockstep_plot::{Axis, Panel, PanelGrid, Point, PointMark, Series, Title};
use lockstep_sweep::ranking::{Ranking, Row};

/// More groups than this have no style of their own.
const MAX_GROUPS: usize = 6;
/// Ratio of largest to smallest value from which an axis is logarithmic.
const LOG_RATIO: f64 = 15.0;

/// Draws the panels of all keys.
pub(super) fn draw(ranking: &Ranking<'_>) -> String {
    let plan = ranking.plan;
    let title = format!("{} of {} runs", plan.by.label(), ranking.rows.len());
    let panels = (0..plan.keys.len()).map(|key| panel(ranking, key)).collect();
    let note = "ring: best run; cross: diverged; hollow marker: dropped before its last step";
    PanelGrid { title: Title::new(title, ""), panels, note: note.to_owned() }.svg()
}

fn panel(ranking: &Ranking<'_>, key: usize) -> Panel {
    let plan = ranking.plan;
    let values: Vec<&str> = plan.runs.iter().map(|run| run.values[key].as_str()).collect();
    let (x, position) = key_axis(&plan.keys[key], &values);
    let losses: Vec<f64> = ranking.rows.iter().filter_map(|row| figure(ranking, row)).collect();
    let is_log = is_log(&losses);
    let scale = if is_log { ", logarithmic" } else { "" };
    let label = format!("{} ({}{scale})", plan.by.label(), plan.by.unit(plan.is_text));
    Panel {
        x,
        y: Axis::new(label, number_text).log_if(is_log),
        series: series(ranking, key, &position),
    }
}

/// Position of a key's value on its axis.
type Position = Box<dyn Fn(&str) -> f64>;

/// The axis of a key: numeric if all values are, else categorical.
fn key_axis(key: &str, values: &[&str]) -> (Axis, Position) {
    let mut distinct: Vec<String> = Vec::new();
    for value in values {
        if !distinct.iter().any(|other| other == value) {
            distinct.push((*value).to_owned());
        }
    }
    let number = |text: &String| text.parse().ok().filter(|number: &f64| number.is_finite());
    let numbers: Option<Vec<f64>> = distinct.iter().map(number).collect();
    if let Some(numbers) = numbers {
        let is_log = is_log(&numbers);
        let label = if is_log { format!("{key}, logarithmic") } else { key.to_owned() };
        let axis = Axis::new(label, number_text).log_if(is_log).ticks_at(numbers);
        return (axis, Box::new(|value| value.parse().unwrap_or(f64::NAN)));
    }
    let axis = Axis::categories(key, distinct.clone());
    let index = move |value: &str| distinct.iter().position(|other| other == value);
    (axis, Box::new(move |value| index(value).map_or(f64::NAN, |index| index as f64)))
}

fn is_log(values: &[f64]) -> bool {
    let (low, high) =
        values.iter().fold((f64::MAX, f64::MIN), |(low, high), v| (low.min(*v), high.max(*v)));
    low > 0.0 && high / low > LOG_RATIO
}

/// A number with four significant digits at most.
fn number_text(value: f64) -> String {
    let rounded: f64 = format!("{value:.3e}").parse().unwrap_or(value);
    let is_plain = rounded == 0.0 || (1e-3..1e5).contains(&rounded.abs());
    if is_plain { format!("{rounded}") } else { format!("{rounded:e}") }
}

/// One series for each combination of the other keys.
fn series(ranking: &Ranking<'_>, key: usize, position: &dyn Fn(&str) -> f64) -> Vec<Series> {
    let plan = ranking.plan;
    let mut all: Vec<Series> = Vec::new();
    for row in &ranking.rows {
        let sets = row.run.sets(&plan.keys);
        let others = sets.iter().enumerate().filter(|(index, _)| *index != key);
        let group = others.map(|(_, set)| set.as_str()).collect::<Vec<_>>().join(" ");
        let point = point(ranking, row, position(&row.run.values[key]));
        match all.iter_mut().find(|series| series.name == group) {
            Some(series) => series.points.push(point),
            None => all.push(Series::line(group, vec![point])),
        }
    }
    all.sort_by(|a, b| a.name.cmp(&b.name));
    let is_styled = all.len() <= MAX_GROUPS;
    for (index, series) in all.iter_mut().enumerate() {
        series.points.sort_by(|a, b| a.x.total_cmp(&b.x));
        // Runs of different lengths are not comparable along a line.
        series.is_joined = plan.rungs.len() == 1;
        series.style = if is_styled { index } else { 0 };
        if !is_styled {
            series.name.clear();
        }
    }
    all
}

fn point(ranking: &Ranking<'_>, row: &Row<'_>, x: f64) -> Point {
    let plan = ranking.plan;
    let value = figure(ranking, row);
    let shown = value.map_or("diverged".to_owned(), |value| plan.by.format(value));
    let mark = if value.is_none() {
        PointMark::Failed
    } else if ranking.best().is_some_and(|best| best.run == row.run) {
        PointMark::Best
    } else if row.rung + 1 < plan.rungs.len() {
        PointMark::Hollow
    } else {
        PointMark::Filled
    };
    let tooltip = format!("{}: {}, {shown}", row.run.name, row.run.sets(&plan.keys).join(" "));
    Point { tooltip, mark, ..Point::new(x, value.unwrap_or(f64::NAN)) }
}

fn figure(ranking: &Ranking<'_>, row: &Row<'_>) -> Option<f64> {
    row.score.and_then(|_| row.outcome.figures.get(ranking.plan.by.name()).copied())
}

#[cfg(test)]
mod tests {
    use super::super::table::tests::{plan, row};
    use super::*;

    #[test]
    fn every_run_is_a_point_in_every_panel_and_axes_have_names_and_units() {
        let plan = plan(&[("0.1", "sgd"), ("1", "sgd"), ("0.1", "a<b"), ("1", "a<b")], 1);
        let losses = [Some(3.0), None, Some(1.5), Some(300.0)];
        let rows = losses.into_iter().enumerate().map(|(run, loss)| row(&plan, run, 0, loss));
        let svg = draw(&Ranking::new(&plan, rows.collect()));
        for label in
            [">optim.lr<", ">optim.name<", ">validation loss (nats per token, logarithmic)<"]
        {
            assert!(svg.contains(label), "{label}: {svg}");
        }
        for run in 1..=4 {
            assert_eq!(svg.matches(&format!("<title>000{run}: ")).count(), 2, "{svg}");
        }
        assert_eq!(svg.matches("r=\"10\"").count(), 2, "a ring in each panel");
        assert_eq!(svg.matches("<path").count(), 2, "a cross for the diverged run");
        assert!(svg.contains("a&lt;b") && !svg.contains("a<b"));
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    }

    #[test]
    fn a_single_run_and_runs_that_all_diverged_can_be_drawn() {
        let plan = plan(&[("0.1", "sgd")], 1);
        for loss in [Some(2.0), Some(0.0), None] {
            let svg = draw(&Ranking::new(&plan, vec![row(&plan, 0, 0, loss)]));
            assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        }
    }
}
