//! A field of shades over two parameters; the number stands in every cell, so no colour is needed.

use super::canvas::{Anchor, Canvas};
use super::lines::label;
use crate::card::Card;
use crate::study::Report;

const WIDTH: f64 = 1080.0;
const LEFT: f64 = 130.0;
const TOP: f64 = 76.0;
const CELL: f64 = 40.0;
/// Pixels of a letter of the axis, about.
const LETTER: f64 = 7.0;

/// The picture: the two swept parameters are the axes, the first drawn column is the shade.
pub(super) fn draw(card: &Card, report: &Report, title: &str) -> String {
    let table = &report.rows;
    let (x, y) = (0, 1);
    let shade = table.index(card.picture.y[0]).expect("a column of the card is drawn");
    let distinct = |column: usize| {
        let mut all: Vec<String> = Vec::new();
        for word in table.words(table.columns[column].name) {
            if !all.contains(&word) {
                all.push(word);
            }
        }
        all
    };
    let (across, down) = (distinct(x), distinct(y));
    let width = ((WIDTH - LEFT - 24.0) / across.len() as f64).min(120.0);
    let (x_is, y_is, is) = (table.columns[x], table.columns[y], table.columns[shade]);
    // The axis has its name beside the cells, upright: few rows must be as high as it is long.
    let upright = label(y_is.meaning, y_is.unit);
    let needed = LETTER * upright.chars().count() as f64 + 16.0;
    let cell = CELL.max(needed / down.len() as f64);
    let height = TOP + cell * down.len() as f64 + 70.0;
    let mut canvas = Canvas::new(WIDTH, height, title, card.title);
    canvas.setting(&report.setting(card));
    let numbers = table.numbers(table.columns[shade].name);
    let finite = || numbers.iter().copied().filter(|number| number.is_finite());
    let (low, high) = (finite().fold(f64::MAX, f64::min), finite().fold(f64::MIN, f64::max));
    let (xs, ys) = (table.words(table.columns[x].name), table.words(table.columns[y].name));
    for (row, number) in numbers.iter().enumerate() {
        let column = across.iter().position(|word| *word == xs[row]).unwrap_or(0) as f64;
        let line = down.iter().position(|word| *word == ys[row]).unwrap_or(0) as f64;
        let share = if high > low { ((number - low) / (high - low)).clamp(0.0, 1.0) } else { 0.5 };
        let share = if share.is_finite() { share } else { 1.0 };
        let level = |from: f64, to: f64| (from + share * (to - from)) as u8;
        let (red, green, blue) = (level(247.0, 8.0), level(251.0, 64.0), level(255.0, 129.0));
        let fill = format!("#{red:02x}{green:02x}{blue:02x}");
        let place = (LEFT + width * column, TOP + cell * line);
        let words = table.columns[shade].unit.show(*number);
        canvas.bar(place, (width, cell), &fill, &format!("{}, {}: {words}", xs[row], ys[row]));
        let ink = if share > 0.55 { "fill=\"white\"" } else { "" };
        let middle = (place.0 + width / 2.0, place.1 + cell / 2.0 + 4.0);
        canvas.styled(middle, Anchor::Middle, ink, &words);
    }
    for (index, word) in down.iter().enumerate() {
        let y = TOP + cell * (index as f64 + 0.5) + 4.0;
        canvas.text((LEFT - 8.0, y), Anchor::End, word);
    }
    let bottom = TOP + cell * down.len() as f64;
    for (index, word) in across.iter().enumerate() {
        let x = LEFT + width * (index as f64 + 0.5);
        canvas.text((x, bottom + 18.0), Anchor::Middle, word);
    }
    let words = format!("{}; in the cells: {}", label(x_is.meaning, x_is.unit), is.meaning);
    canvas.styled((LEFT, height - 16.0), Anchor::Start, "font-size=\"13\"", &words);
    canvas.turned((22.0, f64::midpoint(TOP, bottom)), &upright);
    canvas.finish()
}
