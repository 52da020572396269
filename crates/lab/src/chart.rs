//! Charts of reports and timelines: SVG, or an HTML page with the explanation and the table.
//!
//! The form follows from the table: lines over a numeric parameter, bars over names, a heat map
//! where two parameters are swept. The title is the first finding.

use lockstep_plot::{
    Activity as PlotActivity, Axis, Bar, BarChart, Cell as HeatCell, Fill, HeatMap, LineChart,
    Point, Series, Span as PlotSpan, Timeline as PlotTimeline, Title, Track as PlotTrack, escape,
    page, palette,
};

use crate::description::{Column, Description, Unit};
use crate::study::Report;
use crate::table::{Cell, Table};
use crate::timeline::{Activity, Timeline};

/// Tracks of a timeline drawn at most.
const MAX_TRACKS: usize = 48;

/// The chart of a report.
pub fn svg(description: &Description, report: &Report) -> String {
    let finding = report.findings.first().map_or(description.title, String::as_str);
    let title =
        Title::new(headline(finding), description.title).setting(report.setting(description));
    let table = &report.rows;
    let is_numeric = |x: &usize| table.columns[*x].unit != Unit::Text && table.rows.len() > 1;
    if table.num_swept == 2 && description.chart.series.is_none() {
        heat_map(description, table, title).svg()
    } else if let Some(x) = x_column(description, table).filter(is_numeric) {
        line_chart(description, report, x, title).svg()
    } else {
        bar_chart(description, report, title).svg()
    }
}

/// The chart of a timeline.
pub fn timeline_svg(description: &Description, timeline: &Timeline) -> String {
    let activity = |activity: Activity| PlotActivity {
        name: activity.name().to_owned(),
        fill: fill(activity),
    };
    let span = |span: &crate::timeline::Span| PlotSpan {
        activity: Activity::ALL
            .iter()
            .position(|activity| *activity == span.activity)
            .expect("listed"),
        start: span.start.0,
        end: span.end.0,
        label: span.label.clone(),
        tooltip: format!(
            "{} {}: {} to {}",
            span.activity.name(),
            span.label,
            Unit::Seconds.show(span.start.0),
            Unit::Seconds.show(span.end.0)
        ),
        opacity: 1.0,
    };
    let track = |track: &crate::timeline::Track| PlotTrack {
        name: track.name.clone(),
        spans: track.spans.iter().map(span).collect(),
    };
    let drawn = timeline.drawn(MAX_TRACKS);
    PlotTimeline {
        title: Title::new(timeline.title.as_str(), description.title),
        axis: axis("time", Unit::Seconds, false),
        activities: Activity::ALL.into_iter().map(activity).collect(),
        tracks: drawn.iter().map(|index| track(&timeline.tracks[*index])).collect(),
        num_hidden: timeline.tracks.len() - drawn.len(),
        track_height: 20.0,
    }
    .svg()
}

const fn fill(activity: Activity) -> Fill {
    match activity {
        Activity::Compute | Activity::Forward => Fill::Dark(palette::task(0)),
        Activity::Backward => Fill::Light(palette::task(1)),
        Activity::WeightGrad => Fill::Dark(palette::task(3)),
        Activity::AllReduce => Fill::Hatched,
        Activity::Wait => Fill::Dotted,
    }
}

/// A page with a timeline.
pub fn timeline_html(description: &Description, timeline: &Timeline) -> String {
    let question = escape(description.question);
    let chart = timeline_svg(description, timeline);
    page(description.title, &format!("<p><b>{question}</b></p>\n{chart}\n"))
}

/// A page with the chart, the findings, the explanation and the table.
pub fn html(description: &Description, report: &Report) -> String {
    let item = |text: &String| format!("<li>{}</li>\n", escape(text));
    let findings: String = report.findings.iter().map(item).collect();
    let heading = |column: &Column| {
        format!("<th title=\"{}\">{}</th>", escape(column.meaning), escape(column.name))
    };
    let head: String = report.columns.iter().map(heading).collect();
    let row = |cells: Vec<String>| {
        let cells: Vec<String> = cells.iter().map(|cell| escape(cell)).collect();
        format!("<tr><td>{}</td></tr>\n", cells.join("</td><td>"))
    };
    let rows: String = report.rows.cells().into_iter().map(row).collect();
    page(
        description.title,
        &format!(
            "<p><b>{}</b></p>\n{}\n<ul>\n{findings}</ul>\n<p><b>Formula.</b> {}</p>\n\
             <p><b>Look at.</b> {}</p>\n<p><b>Common surprises.</b> {}</p>\n\
             <p><b>Setting.</b> lab {} with {}</p>\n\
             <table><tr>{head}</tr>\n{rows}</table>\n",
            escape(description.question),
            svg(description, report),
            escape(description.formula),
            escape(description.look),
            escape(description.surprise),
            description.name,
            escape(&report.setting(description)),
        ),
    )
}

/// A finding as a title: a capital letter, and parameters without underscores.
fn headline(finding: &str) -> String {
    let mut letters = finding.chars();
    let first = letters.next().map(|letter| letter.to_uppercase().to_string());
    (first.unwrap_or_default() + letters.as_str()).replace('_', " ")
}

/// Column along the horizontal axis: that of the experiment, or the first swept parameter; none
/// where nothing is swept.
fn x_column(description: &Description, table: &Table) -> Option<usize> {
    let first = (table.num_swept > 0).then_some(0);
    table.index(description.chart.x).or(first)
}

/// Whether the horizontal axis is logarithmic: as the experiment says of its own parameter; of
/// another one, where its values span more than an order of magnitude.
fn is_log_x(description: &Description, column: &Column, values: &[f64]) -> bool {
    if column.name == description.chart.x {
        return description.chart.log_x;
    }
    let low = values.iter().copied().fold(f64::INFINITY, f64::min);
    low > 0.0 && values.iter().any(|value| *value > 10.0 * low)
}

fn axis(label: impl Into<String>, unit: Unit, is_log: bool) -> Axis {
    let axis = Axis::new(label, move |value| tick_label(unit, value)).log_if(is_log);
    if unit == Unit::Seconds { axis.round_in(&[60.0, 3600.0, 86400.0]) } else { axis }
}

/// A value at a tick; a round value needs no zeros.
fn tick_label(unit: Unit, value: f64) -> String {
    let shown = unit.show(value);
    if unit == Unit::Share {
        return shown.replace(".0 %", " %");
    }
    shown.trim_end_matches(" 00 s").trim_end_matches(" 00 min").to_owned()
}

/// A meaning with its unit, where the tick labels do not carry one.
fn label(meaning: &str, unit: Unit) -> String {
    match unit {
        Unit::Share => format!("{meaning} (percent)"),
        Unit::Times => format!("{meaning} (times)"),
        // Seconds and bytes carry their units at the ticks.
        _ => meaning.to_owned(),
    }
}

fn number(table: &Table, row: usize, column: usize) -> f64 {
    match table.rows[row][column] {
        Cell::Number(number) => number,
        Cell::Text(_) => f64::NAN,
    }
}

fn line_chart(description: &Description, report: &Report, x: usize, title: Title) -> LineChart {
    let table = &report.rows;
    let x_unit = table.columns[x].unit;
    let mut columns = description.chart.y.iter().filter_map(|name| table.index(name));
    let first = columns.next().map(|index| table.columns[index]);
    let y_unit = first.map_or(Unit::Number, |column| column.unit);
    // With several columns the legend has their names and the experiment a common one.
    let y_name = description.chart.y_name.or(first.map(|column| column.meaning)).unwrap_or("");
    let swept: Vec<f64> = (0..table.rows.len()).map(|row| number(table, row, x)).collect();
    let is_log = is_log_x(description, &table.columns[x], &swept);
    let notes = if report.seeds > 1 {
        vec![format!("bands: 95 % confidence, {} seeds", report.seeds)]
    } else {
        Vec::new()
    };
    LineChart {
        title,
        x: axis(label(table.columns[x].meaning, x_unit), x_unit, is_log).ticks_at(swept),
        y: axis(label(y_name, y_unit), y_unit, description.chart.log_y),
        series: series(description, report, x),
        notes,
    }
}

/// One series for each column, name and value of a second swept parameter.
fn series(description: &Description, report: &Report, x: usize) -> Vec<Series> {
    let table = &report.rows;
    let mut keys: Vec<usize> = (0..report.sweep.len()).filter(|column| *column != x).collect();
    keys.extend(description.chart.series.and_then(|name| table.index(name)));
    let columns: Vec<usize> =
        description.chart.y.iter().filter_map(|name| table.index(name)).collect();
    let mut all: Vec<Series> = Vec::new();
    for row in 0..table.rows.len() {
        let key_text = |&key: &usize| match &table.rows[row][key] {
            Cell::Text(text) => text.clone(),
            Cell::Number(value) => {
                format!("{} {}", table.columns[key].name, table.columns[key].unit.show(*value))
            }
        };
        for &column in &columns {
            let mut parts: Vec<String> = keys.iter().map(key_text).collect();
            if columns.len() > 1 || parts.is_empty() {
                parts.push(table.columns[column].name.replace('_', " "));
            }
            let name = parts.join(", ");
            let (over, value) = (number(table, row, x), number(table, row, column));
            let at = table.columns[x].unit.show(over);
            let shown = table.columns[column].unit.show(value);
            let point = Point {
                half_width: table.spread[row][column],
                tooltip: format!("{name}: {shown} at {at}"),
                ..Point::new(over, value)
            };
            match all.iter_mut().find(|line| line.name == name) {
                Some(line) => line.points.push(point),
                None => all.push(Series::line(name, vec![point])),
            }
        }
    }
    all
}

fn bar_chart(description: &Description, report: &Report, title: Title) -> BarChart {
    let table = &report.rows;
    let y = description.chart.y.iter().find_map(|name| table.index(name)).unwrap_or(0);
    let column = table.columns[y];
    let bar = |(row, value): (usize, f64)| Bar {
        name: row_name(description, report, row, y),
        value,
        half_width: table.spread[row][y],
        text: column.unit.show(value),
    };
    let bars = table.numbers(column.name).into_iter().enumerate().map(bar).collect();
    BarChart { title, label: label(column.meaning, column.unit), bars }
}

/// Swept values and distinguishing names of a row.
fn row_name(description: &Description, report: &Report, row: usize, y: usize) -> String {
    let (table, num_swept) = (&report.rows, report.sweep.len());
    let series = description.chart.series.and_then(|name| table.index(name));
    let is_named = |column: &usize| {
        let is_text = matches!(table.rows[row][*column], Cell::Text(_));
        let distinguishes = series.map_or(is_text, |series| series == *column);
        *column != y && (*column < num_swept || distinguishes)
    };
    let parts = (0..table.columns.len()).filter(is_named).map(|column| {
        let (name, unit) = (table.columns[column].name, table.columns[column].unit);
        match &table.rows[row][column] {
            Cell::Text(text) => text.clone(),
            Cell::Number(value) => format!("{name} {}", unit.show(*value)),
        }
    });
    parts.collect::<Vec<_>>().join(", ")
}

fn heat_map(description: &Description, table: &Table, title: Title) -> HeatMap {
    let shade = table.index(description.chart.y[0]).expect("a column of the experiment is drawn");
    let [x_column, y_column, shown] = [0, 1, shade].map(|index| table.columns[index]);
    let texts = |column: &Column| table.texts(column.name);
    let distinct = |column: &Column| {
        let mut all: Vec<String> = Vec::new();
        for text in texts(column) {
            if !all.contains(&text) {
                all.push(text);
            }
        }
        all
    };
    let (columns, rows) = (distinct(&x_column), distinct(&y_column));
    let (xs, ys) = (texts(&x_column), texts(&y_column));
    let index = |all: &[String], text: &String| all.iter().position(|other| other == text);
    let cell = |(row, value): (usize, f64)| HeatCell {
        row: index(&rows, &ys[row]).unwrap_or(0),
        column: index(&columns, &xs[row]).unwrap_or(0),
        value,
        text: shown.unit.show(value),
    };
    let cells = table.numbers(shown.name).into_iter().enumerate().map(cell).collect();
    let x_label = label(x_column.meaning, x_column.unit);
    HeatMap {
        title,
        x_label: format!("{x_label}; in the cells: {}", shown.meaning),
        y_label: label(y_column.meaning, y_column.unit),
        columns,
        rows,
        cells,
    }
}
