//! Bars, one for each row: what it is to the left, how much at the end.

use super::canvas::{Anchor, Canvas};
use super::lines::label;
use crate::card::Card;
use crate::study::Report;
use crate::table::Cell;

const WIDTH: f64 = 1080.0;
const TOP: f64 = 76.0;
const ROW: f64 = 26.0;
const LEFT: f64 = 300.0;
const RIGHT: f64 = 150.0;

/// The picture: the first column that is drawn, over the words of swept parameters and rows.
pub(super) fn draw(card: &Card, report: &Report, title: &str) -> String {
    let table = &report.rows;
    let y = card.picture.y.iter().find_map(|name| table.index(name)).unwrap_or(0);
    let numbers = table.numbers(table.columns[y].name);
    let shown: Vec<usize> = (0..numbers.len()).take(60).collect();
    let height = TOP + ROW * shown.len() as f64 + 50.0;
    let mut canvas = Canvas::new(WIDTH, height, title, card.title);
    canvas.setting(&report.setting(card));
    let finite = numbers.iter().copied().filter(|number| number.is_finite());
    let most = finite.fold(0.0_f64, |most, number| most.max(number.abs())).max(1e-300);
    for row in shown {
        let y_place = TOP + ROW * row as f64;
        canvas.text((LEFT - 10.0, y_place + 16.0), Anchor::End, &name(card, report, row, y));
        let length = if numbers[row].is_finite() { numbers[row].abs() / most } else { 0.0 };
        let length = length * (WIDTH - LEFT - RIGHT);
        let words = table.columns[y].unit.show(numbers[row]);
        // Grey by turns: neighbours are told apart without colours.
        let fill = if row % 2 == 0 { "#4477aa" } else { "#99bbdd" };
        canvas.bar((LEFT, y_place), (length, ROW - 7.0), fill, &words);
        let half = table.spread[row][y] / most * (WIDTH - LEFT - RIGHT);
        if half > 0.0 {
            let middle = y_place + (ROW - 7.0) / 2.0;
            canvas.rule((LEFT + length - half, middle), (LEFT + length + half, middle), "#000000");
        }
        canvas.text((LEFT + length + half + 8.0, y_place + 16.0), Anchor::Start, &words);
    }
    let column = table.columns[y];
    let place = (f64::midpoint(LEFT, WIDTH - RIGHT), height - 18.0);
    let words = label(column.meaning, column.unit);
    canvas.styled(place, Anchor::Middle, "font-size=\"13\"", &words);
    canvas.finish()
}

/// Swept values and words of a row.
fn name(card: &Card, report: &Report, row: usize, y: usize) -> String {
    let (table, num_swept) = (&report.rows, report.sweep.len());
    let series = card.picture.series.and_then(|name| table.index(name));
    let is_named = |column: &usize| {
        let is_word = matches!(table.rows[row][*column], Cell::Word(_));
        let tells_apart = series.map_or(is_word, |series| series == *column);
        *column != y && (*column < num_swept || tells_apart)
    };
    let words = (0..table.columns.len()).filter(is_named).map(|column| {
        let (name, unit) = (table.columns[column].name, table.columns[column].unit);
        match &table.rows[row][column] {
            Cell::Word(word) => word.clone(),
            Cell::Number(number) => format!("{name} {}", unit.show(*number)),
        }
    });
    words.collect::<Vec<_>>().join(", ")
}
