//! Pictures of tables: lines with confidence bands, bars, fields of shades; as SVG that stands for
//! itself, or as a page of HTML with the words and the table beside it.
//!
//! The title is what the table shows. Lines differ by dashes and marks as well as by colours, and
//! numbers stand in cells and at bars, so that nothing is lost in grey.

mod axis;
mod bars;
pub mod canvas;
mod heat;
mod lines;
mod timeline;

use crate::card::{Card, Column, Unit};
use crate::study::Report;
use crate::table::Table;
use crate::timeline::Timeline;
use canvas::escaped;

/// The picture of a report.
pub fn svg(card: &Card, report: &Report) -> String {
    let title = &headline(report.findings.first().map_or(card.title, String::as_str));
    let table = &report.rows;
    let num_swept = report.sweep.len();
    let has_numbers = table.columns[x_column(card, table)].unit != Unit::Word;
    if num_swept == 2 && card.picture.series.is_none() {
        heat::draw(card, report, title)
    } else if has_numbers && table.rows.len() > 1 {
        lines::draw(card, report, title)
    } else {
        bars::draw(card, report, title)
    }
}

/// A finding as a title: a capital, and parameters as words.
fn headline(finding: &str) -> String {
    let mut letters = finding.chars();
    let first = letters.next().map(|letter| letter.to_uppercase().to_string());
    (first.unwrap_or_default() + letters.as_str()).replace('_', " ")
}

/// The picture of a timeline.
pub fn timeline_svg(card: &Card, timeline: &Timeline) -> String {
    timeline::draw(card, timeline)
}

/// A page with a timeline and its words.
pub fn timeline_html(card: &Card, timeline: &Timeline) -> String {
    let question = escaped(card.question);
    let picture = timeline::draw(card, timeline);
    page(card.title, &format!("<p><b>{question}</b></p>\n{picture}\n"))
}

/// What goes along the horizontal axis: what the card says, or else what was swept.
fn x_column(card: &Card, table: &Table) -> usize {
    table.index(card.picture.x).unwrap_or(0)
}

/// A page that needs nothing from elsewhere.
pub fn html(card: &Card, report: &Report) -> String {
    let list = |words: &str| format!("<li>{}</li>\n", escaped(words));
    let findings: String = report.findings.iter().map(|words| list(words)).collect();
    let heading = |column: &Column| {
        format!("<th title=\"{}\">{}</th>", escaped(column.meaning), escaped(column.name))
    };
    let head = report.columns.iter().map(heading).collect::<Vec<_>>().concat();
    let row = |cells: Vec<String>| {
        let cells = cells.iter().map(|words| format!("<td>{}</td>", escaped(words)));
        format!("<tr>{}</tr>\n", cells.collect::<String>())
    };
    let rows: String = report.rows.cells().into_iter().map(row).collect();
    page(
        card.title,
        &format!(
            "<p><b>{}</b></p>\n{}\n<ul>\n{findings}</ul>\n<p><b>Formula.</b> {}</p>\n\
             <p><b>Look at.</b> {}</p>\n<p><b>What surprises people.</b> {}</p>\n\
             <p><b>Setting.</b> lab {} with {}</p>\n\
             <table><tr>{head}</tr>\n{rows}</table>\n",
            escaped(card.question),
            svg(card, report),
            escaped(card.formula),
            escaped(card.look),
            escaped(card.surprise),
            card.name,
            escaped(&report.setting(card)),
        ),
    )
}

/// A page of HTML around something.
pub(crate) fn page(title: &str, body: &str) -> String {
    let title = escaped(title);
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{title}</title>\n\
         <style>body{{font-family:sans-serif;max-width:1100px;margin:2em auto;padding:0 1em}}\
         svg{{width:100%;height:auto;border:1px solid #ddd}}\
         table{{border-collapse:collapse;font-size:13px}}\
         td,th{{padding:3px 10px;text-align:right;border-bottom:1px solid #ddd}}</style></head>\n\
         <body><h1>{title}</h1>\n{body}</body></html>\n"
    )
}
