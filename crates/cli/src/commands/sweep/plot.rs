//! What decides over each key, one panel a key, every run a point in every panel.
//!
//! Runs that differ in a panel's key alone are joined by a line, so that a grid shows what the key
//! does beside each choice of the others; with few such groups each has its own mark and dashes,
//! named below, so the picture can be read without colour. A ring is around the best; crosses above
//! the frame are runs that diverged; an open mark is a run that did not get all its steps.

use crate::svg::{COLOURS, escaped, path, rule, text};
use lockstep_sweep::ranking::{Ranking, Row};
use lockstep_sweep::scale::{Scale, Tick};
use std::fmt::Write as _;

const PANEL: (f64, f64) = (520.0, 400.0);
const LEFT: f64 = 96.0;
const RIGHT: f64 = 24.0;
const TOP: f64 = 56.0;
const BOTTOM: f64 = 64.0;
/// Above all panels.
const TITLE: f64 = 52.0;
/// Each line of a panel's legend.
const LINE: f64 = 18.0;
/// More groups than this have no marks of their own.
const MAX_GROUPS: usize = 6;
const PANELS_A_ROW: usize = 2;

const DASHES: [&str; MAX_GROUPS] = ["none", "8 4", "2 3", "8 3 2 3", "14 4", "1 5"];

/// The picture.
pub(super) fn draw(table: &Ranking<'_>) -> String {
    let plan = table.plan;
    let panels: Vec<Panel<'_>> = (0..plan.keys.len()).map(|key| Panel::new(table, key)).collect();
    let columns = panels.len().min(PANELS_A_ROW);
    let lines = panels.iter().map(|panel| panel.groups.len()).max().unwrap_or(0);
    let height = PANEL.1 + LINE * lines as f64;
    let size = (
        PANEL.0 * columns as f64,
        TITLE + height * panels.len().div_ceil(columns.max(1)) as f64 + 2.0 * LINE,
    );
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {w} {h}\" width=\"{w}\" \
         height=\"{h}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n",
        w = size.0,
        h = size.1,
    );
    let title = format!("{} of {} runs", plan.by.label(), table.rows.len());
    text(&mut svg, (24.0, 28.0), "font-size=\"17\" font-weight=\"bold\"", &title);
    for (index, panel) in panels.iter().enumerate() {
        let (column, row) = (index % columns, index / columns);
        let place = (PANEL.0 * column as f64, TITLE + height * row as f64);
        let _ = writeln!(svg, "<g transform=\"translate({} {})\">", place.0, place.1);
        panel.draw(&mut svg);
        svg += "</g>\n";
    }
    let note = "ring: the best run; cross: diverged; open mark: dropped before its last step";
    text(&mut svg, (24.0, size.1 - 12.0), "fill=\"#444444\" font-size=\"11\"", note);
    svg += "</svg>\n";
    svg
}

/// One key.
struct Panel<'a> {
    table: &'a Ranking<'a>,
    key: usize,
    x: Scale,
    y: Scale,
    /// The values of the other keys, if they are few enough to have a mark each.
    groups: Vec<String>,
}

impl<'a> Panel<'a> {
    fn new(table: &'a Ranking<'a>, key: usize) -> Self {
        let plan = table.plan;
        let values: Vec<&str> = plan.runs.iter().map(|run| run.values[key].as_str()).collect();
        let losses: Vec<f64> = table.rows.iter().filter_map(|row| figure(table, row)).collect();
        let mut panel =
            Self { table, key, x: Scale::of_texts(&values), y: Scale::of(&losses), groups: vec![] };
        for row in &table.rows {
            let group = panel.group(row);
            if !group.is_empty() && !panel.groups.contains(&group) {
                panel.groups.push(group);
            }
        }
        panel.groups.sort();
        if panel.groups.len() > MAX_GROUPS {
            panel.groups.clear();
        }
        panel
    }

    fn group(&self, row: &Row<'_>) -> String {
        let sets = row.run.sets(&self.table.plan.keys);
        let others = sets.iter().enumerate().filter(|(index, _)| *index != self.key);
        others.map(|(_, set)| set.as_str()).collect::<Vec<_>>().join(" ")
    }

    fn place(&self, row: &Row<'_>) -> (f64, f64) {
        let x = LEFT + self.x.share_of_text(&row.run.values[self.key]) * (PANEL.0 - LEFT - RIGHT);
        let share = figure(self.table, row).map(|value| self.y.share(value));
        let y = share.map_or(TOP - 16.0, |s| PANEL.1 - BOTTOM - s * (PANEL.1 - TOP - BOTTOM));
        (x, y)
    }

    fn draw(&self, svg: &mut String) {
        self.axes(svg);
        let mut all: Vec<(String, Vec<&Row<'_>>)> = Vec::new();
        for row in &self.table.rows {
            let group = self.group(row);
            match all.iter_mut().find(|(name, _)| *name == group) {
                Some((_, rows)) => rows.push(row),
                None => all.push((group, vec![row])),
            }
        }
        // Runs of different lengths are not to be compared along a line.
        let is_joined = self.table.plan.rungs.len() == 1;
        for (group, rows) in &all {
            let kind = self.groups.iter().position(|name| name == group).unwrap_or(0);
            let colour = COLOURS[kind];
            let mut line: Vec<(f64, f64)> =
                rows.iter().filter(|row| row.score.is_some()).map(|row| self.place(row)).collect();
            line.sort_by(|a, b| a.0.total_cmp(&b.0));
            if is_joined && line.len() > 1 {
                let dashes = DASHES[kind];
                let style = format!("stroke-width=\"1.5\" stroke-dasharray=\"{dashes}\"");
                path(svg, &line, colour, &style);
            }
            for row in rows {
                self.point(svg, row, kind);
            }
        }
        self.legend(svg);
    }

    fn axes(&self, svg: &mut String) {
        let (right, bottom) = (PANEL.0 - RIGHT, PANEL.1 - BOTTOM);
        for Tick { share, label } in self.x.ticks() {
            let x = LEFT + share * (right - LEFT);
            rule(svg, (x, TOP), (x, bottom), "#e4e4e4");
            text(svg, (x, bottom + 18.0), "text-anchor=\"middle\"", &label);
        }
        for Tick { share, label } in self.y.ticks() {
            let y = bottom - share * (bottom - TOP);
            rule(svg, (LEFT, y), (right, y), "#e4e4e4");
            text(svg, (LEFT - 8.0, y + 4.0), "text-anchor=\"end\"", &label);
        }
        rule(svg, (LEFT, bottom), (right, bottom), "#444444");
        rule(svg, (LEFT, TOP), (LEFT, bottom), "#444444");
        if self.table.rows.iter().any(|row| row.score.is_none()) {
            text(svg, (LEFT - 8.0, TOP - 12.0), "text-anchor=\"end\"", "diverged");
        }
        let plan = self.table.plan;
        let log = |scale: &Scale| if scale.is_log() { ", logarithmic" } else { "" };
        let name = format!("{}{}", plan.keys[self.key], log(&self.x));
        let centred = "text-anchor=\"middle\" font-size=\"13\"";
        text(svg, (f64::midpoint(LEFT, right), bottom + 40.0), centred, &name);
        let unit = plan.by.unit(plan.is_text);
        let name = format!("{} ({unit}{})", plan.by.label(), log(&self.y));
        let middle = f64::midpoint(TOP, bottom);
        let turned = format!("{centred} transform=\"rotate(-90 20 {middle:.0})\"");
        text(svg, (20.0, middle), &turned, &name);
    }

    fn point(&self, svg: &mut String, row: &Row<'_>, kind: usize) {
        let (x, y) = self.place(row);
        let plan = self.table.plan;
        let is_whole = row.rung + 1 == plan.rungs.len();
        let shown = figure(self.table, row).map_or("diverged".to_owned(), |v| plan.by.format(v));
        let words = format!("{}: {}, {shown}", row.run.name, row.run.sets(&plan.keys).join(" "));
        let _ = write!(svg, "<g><title>{}</title>", escaped(&words));
        if row.score.is_none() {
            mark(svg, (x, y), Mark::Cross, COLOURS[kind], true);
        } else {
            mark(svg, (x, y), MARKS[kind], COLOURS[kind], is_whole);
        }
        if self.table.best().is_some_and(|best| best.run == row.run) {
            let _ = write!(
                svg,
                "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"10\" fill=\"none\" stroke=\"black\" \
                 stroke-width=\"1.5\"/>"
            );
        }
        svg.push_str("</g>\n");
    }

    fn legend(&self, svg: &mut String) {
        for (kind, group) in self.groups.iter().enumerate() {
            let y = PANEL.1 + LINE * kind as f64;
            let style = format!("stroke-width=\"1.5\" stroke-dasharray=\"{}\"", DASHES[kind]);
            path(svg, &[(LEFT, y - 4.0), (LEFT + 44.0, y - 4.0)], COLOURS[kind], &style);
            mark(svg, (LEFT + 22.0, y - 4.0), MARKS[kind], COLOURS[kind], true);
            text(svg, (LEFT + 54.0, y), "", group);
        }
    }
}

fn figure(table: &Ranking<'_>, row: &Row<'_>) -> Option<f64> {
    row.score.and_then(|_| row.outcome.figures.get(table.plan.by.name()).copied())
}

/// The shape of a point.
#[derive(Clone, Copy)]
enum Mark {
    Circle,
    Polygon(&'static [(f64, f64)]),
    Cross,
}

const MARKS: [Mark; MAX_GROUPS] = [
    Mark::Circle,
    Mark::Polygon(&[(-4.5, -4.5), (4.5, -4.5), (4.5, 4.5), (-4.5, 4.5)]),
    Mark::Polygon(&[(0.0, -6.0), (5.5, 4.0), (-5.5, 4.0)]),
    Mark::Polygon(&[(0.0, -6.5), (6.5, 0.0), (0.0, 6.5), (-6.5, 0.0)]),
    Mark::Polygon(&[(0.0, 6.0), (5.5, -4.0), (-5.5, -4.0)]),
    Mark::Polygon(&[(-6.0, -2.5), (6.0, -2.5), (6.0, 2.5), (-6.0, 2.5)]),
];

fn mark(svg: &mut String, (x, y): (f64, f64), mark: Mark, colour: &str, is_filled: bool) {
    let fill = if is_filled { colour } else { "white" };
    let style = format!("fill=\"{fill}\" stroke=\"{colour}\" stroke-width=\"2\"");
    let _ = match mark {
        Mark::Circle => write!(svg, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4.5\" {style}/>"),
        Mark::Polygon(corners) => {
            let corners = corners.iter().map(|(dx, dy)| format!("{:.1},{:.1}", x + dx, y + dy));
            let corners: Vec<String> = corners.collect();
            write!(svg, "<polygon points=\"{}\" {style}/>", corners.join(" "))
        }
        Mark::Cross => {
            let (l, r, t, b) = (x - 5.0, x + 5.0, y - 5.0, y + 5.0);
            let way = format!("M{l:.1} {t:.1}L{r:.1} {b:.1}M{l:.1} {b:.1}L{r:.1} {t:.1}");
            write!(svg, "<path d=\"{way}\" stroke=\"{colour}\" stroke-width=\"2\"/>")
        }
    };
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
        for words in
            [">optim.lr<", ">optim.name<", ">validation loss (nats per token, logarithmic)<"]
        {
            assert!(svg.contains(words), "{words}: {svg}");
        }
        for run in 1..=4 {
            assert_eq!(svg.matches(&format!("<title>000{run}: ")).count(), 2, "{svg}");
        }
        assert_eq!(svg.matches("r=\"10\"").count(), 2, "a ring in each panel");
        assert_eq!(svg.matches(">diverged<").count(), 2);
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
