//! Lines over a parameter: one for each column, word and second parameter, with the confidence
//! interval of its points as a pale band.

use super::axis::{Axis, words};
use super::canvas::{Anchor, Canvas};
use crate::card::{Card, Unit};
use crate::study::Report;
use crate::table::{Cell, Table};

const WIDTH: f64 = 1080.0;
const HEIGHT: f64 = 600.0;
const LEFT: f64 = 96.0;
const RIGHT: f64 = 250.0;
const TOP: f64 = 76.0;
const BOTTOM: f64 = 64.0;

/// One line.
struct Series {
    name: String,
    /// Row and column of every point.
    points: Vec<(usize, usize)>,
}

/// The picture.
pub(super) fn draw(card: &Card, report: &Report, title: &str) -> String {
    let table = &report.rows;
    let x = super::x_column(card, table);
    let series = series(card, report, x);
    let mut canvas = Canvas::new(WIDTH, HEIGHT, title, card.title);
    canvas.setting(&report.setting(card));
    let drawn = || series.iter().flat_map(|line| line.points.iter().copied());
    let x_numbers = drawn().map(|(row, _)| number(table, row, x));
    let x_unit = table.columns[x].unit;
    let places = (LEFT, WIDTH - RIGHT);
    let horizontal = Axis::around(x_numbers, card.picture.log_x, x_unit, places);
    let y_numbers = drawn().flat_map(|(row, y)| {
        let (value, half) = (number(table, row, y), table.spread[row][y]);
        [value - half, value + half]
    });
    let first = series.first().and_then(|line| line.points.first());
    let y_unit = first.map_or(Unit::Number, |(_, column)| table.columns[*column].unit);
    let places = (HEIGHT - BOTTOM, TOP);
    let vertical = Axis::around(y_numbers, card.picture.log_y, y_unit, places);
    axes(&mut canvas, &x_ticks(&horizontal, table, x), &vertical);
    canvas.styled(
        (f64::midpoint(LEFT, WIDTH - RIGHT), HEIGHT - 16.0),
        Anchor::Middle,
        "font-size=\"13\"",
        &label(table.columns[x].meaning, x_unit),
    );
    canvas.turned((22.0, f64::midpoint(TOP, HEIGHT - BOTTOM)), &y_label(card, table));
    for (index, line) in series.iter().enumerate() {
        one(&mut canvas, table, line, index, (&horizontal, x), &vertical);
        let y = TOP + 14.0 + 20.0 * index as f64;
        let (left, right) = (WIDTH - RIGHT + 18.0, WIDTH - RIGHT + 48.0);
        canvas.path(&[(left, y - 4.0), (right, y - 4.0)], index);
        canvas.mark((f64::midpoint(left, right), y - 4.0), index, &line.name);
        canvas.text((right + 8.0, y), Anchor::Start, &line.name);
    }
    if report.seeds > 1 {
        let words = format!("bands: 95 % confidence, {} seeds", report.seeds);
        let place = (WIDTH - RIGHT + 18.0, TOP + 30.0 + 20.0 * series.len() as f64);
        canvas.styled(place, Anchor::Start, "fill=\"#444444\" font-size=\"11\"", &words);
    }
    canvas.finish()
}

/// A meaning with its unit, where the numbers do not say it.
pub(super) fn label(meaning: &str, unit: Unit) -> String {
    match unit {
        Unit::Share => format!("{meaning} (percent)"),
        Unit::Times => format!("{meaning} (times)"),
        // Times and bytes have their units at the marks: they go from us to days.
        _ => meaning.to_owned(),
    }
}

fn y_label(card: &Card, table: &Table) -> String {
    let mut columns = card.picture.y.iter().filter_map(|name| table.index(name));
    columns.next().map_or_else(String::new, |index| {
        let first = table.columns[index];
        // Of several columns the legend has the names, and the card a word for all of them.
        label(card.picture.y_name.unwrap_or(first.meaning), first.unit)
    })
}

fn number(table: &Table, row: usize, column: usize) -> f64 {
    match table.rows[row][column] {
        Cell::Number(number) => number,
        Cell::Word(_) => f64::NAN,
    }
}

/// Rows that belong together: the same words and the same values of other swept parameters.
fn series(card: &Card, report: &Report, x: usize) -> Vec<Series> {
    let table = &report.rows;
    let mut keys: Vec<usize> = (0..report.sweep.len()).filter(|column| *column != x).collect();
    keys.extend(card.picture.series.and_then(|name| table.index(name)));
    let columns: Vec<usize> = card.picture.y.iter().filter_map(|name| table.index(name)).collect();
    let mut all: Vec<Series> = Vec::new();
    for row in 0..table.rows.len() {
        let words = keys.iter().map(|&key| {
            let (name, cell) = (table.columns[key].name, &table.rows[row][key]);
            match cell {
                Cell::Word(word) => word.clone(),
                Cell::Number(value) => {
                    format!("{name} {}", table.columns[key].unit.show(*value))
                }
            }
        });
        let words: Vec<String> = words.collect();
        for &column in &columns {
            let mut parts = words.clone();
            if columns.len() > 1 || parts.is_empty() {
                parts.push(table.columns[column].name.replace('_', " "));
            }
            let name = parts.join(", ");
            match all.iter_mut().find(|line| line.name == name) {
                Some(line) => line.points.push((row, column)),
                None => all.push(Series { name, points: vec![(row, column)] }),
            }
        }
    }
    all
}

/// Pixels from an end of the axis within which words would stick out.
const EDGE: f64 = 50.0;

/// Pixels that a mark of the horizontal axis needs for its words.
const TICK: f64 = 62.0;

/// Marks where points are, as far as there is room for their words: what was swept is round.
fn x_ticks(horizontal: &Axis, table: &Table, x: usize) -> Vec<(f64, String)> {
    let mut values: Vec<f64> = (0..table.rows.len())
        .map(|row| number(table, row, x))
        .filter(|value| horizontal.has(*value))
        .collect();
    values.sort_by(f64::total_cmp);
    let mut ticks: Vec<(f64, String)> = Vec::new();
    for value in values {
        let place = horizontal.place(value);
        if ticks.last().is_none_or(|(last, _)| place - last >= TICK) {
            ticks.push((place, words(table.columns[x].unit, value)));
        }
    }
    ticks
}

fn axes(canvas: &mut Canvas, horizontal: &[(f64, String)], vertical: &Axis) {
    let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
    for (x, words) in horizontal {
        let x = *x;
        canvas.rule((x, TOP), (x, bottom), "#e6e6e6");
        canvas.text((x, bottom + 20.0), Anchor::Middle, words);
    }
    for (value, words) in vertical.ticks() {
        let y = vertical.place(value);
        canvas.rule((LEFT, y), (right, y), "#e6e6e6");
        canvas.text((LEFT - 8.0, y + 4.0), Anchor::End, &words);
    }
    canvas.rule((LEFT, bottom), (right, bottom), "#444444");
    canvas.rule((LEFT, TOP), (LEFT, bottom), "#444444");
}

/// What never happens has no place; words at the top say that it was tried, once for neighbours.
fn never(
    canvas: &mut Canvas,
    table: &Table,
    line: &Series,
    index: usize,
    (horizontal, x): (&Axis, usize),
) {
    let y = TOP + 14.0 + 13.0 * index as f64;
    let mut run: Vec<f64> = Vec::new();
    for (place, &(row, column)) in line.points.iter().enumerate() {
        let along = number(table, row, x);
        let is_lost = number(table, row, column).is_infinite() && horizontal.has(along);
        if is_lost {
            run.push(horizontal.place(along));
        }
        let is_over = !is_lost || place + 1 == line.points.len();
        let (Some(&first), Some(&last), true) = (run.first(), run.last(), is_over) else {
            continue;
        };
        if last > first {
            canvas.path(&[(first, y + 4.0), (last, y + 4.0)], index);
        }
        let middle = f64::midpoint(first, last);
        // Words at an end of the axis stay inside of it.
        let (middle, anchor) = match middle {
            middle if middle < LEFT + EDGE => (middle, Anchor::Start),
            middle if middle > WIDTH - RIGHT - EDGE => (middle, Anchor::End),
            middle => (middle, Anchor::Middle),
        };
        let words = format!("{}: never", line.name);
        canvas.styled((middle, y), anchor, "font-size=\"11\"", &words);
        run.clear();
    }
}

/// A line with its band; points that never happen break nothing, they are left out.
fn one(
    canvas: &mut Canvas,
    table: &Table,
    line: &Series,
    index: usize,
    (horizontal, x): (&Axis, usize),
    vertical: &Axis,
) {
    let usable: Vec<(usize, usize)> = line
        .points
        .iter()
        .copied()
        .filter(|&(row, y)| {
            horizontal.has(number(table, row, x)) && vertical.has(number(table, row, y))
        })
        .collect();
    let at =
        |row: usize, value: f64| (horizontal.place(number(table, row, x)), vertical.place(value));
    if usable.iter().any(|&(row, y)| table.spread[row][y] > 0.0) {
        let edge = |sign: f64| {
            let value = move |(row, y): &(usize, usize)| {
                let value = number(table, *row, *y);
                let edge = value + sign * table.spread[*row][*y];
                at(*row, if vertical.has(edge) { edge } else { value })
            };
            usable.iter().map(value).collect::<Vec<_>>()
        };
        let (mut points, mut back) = (edge(1.0), edge(-1.0));
        back.reverse();
        points.extend(back);
        canvas.band(&points, index);
    }
    never(canvas, table, line, index, (horizontal, x));
    let points: Vec<(f64, f64)> =
        usable.iter().map(|&(row, y)| at(row, number(table, row, y))).collect();
    canvas.path(&points, index);
    for (&(row, y), place) in usable.iter().zip(points) {
        let shown = table.columns[y].unit.show(number(table, row, y));
        let over = table.columns[x].unit.show(number(table, row, x));
        canvas.mark(place, index, &format!("{}: {shown} at {over}", line.name));
    }
}
