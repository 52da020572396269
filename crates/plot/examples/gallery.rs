//! Every chart on one page, with long names, many series and wide ranges, to look at before a
//! release: cargo run -p lockstep-plot --example gallery > gallery.html

#![expect(clippy::print_stdout, reason = "a page for standard output")]

use lockstep_plot::palette::{self, COLOURS};
use lockstep_plot::{
    Activity, Axis, Bar, BarChart, Cell, Fill, HeatMap, LineChart, Panel, PanelGrid, Point, Series,
    Span, StackedBar, StackedBars, Timeline, Title, Track, page,
};

fn main() {
    let charts = [
        lines(),
        many_lines(),
        panels(),
        bars(),
        stacked_bars(),
        heat_map(),
        timeline(),
        single_point(),
    ];
    println!("{}", page("Every chart", &charts.concat()));
}

/// Without the digits that sums of fractions leave behind.
fn number(value: f64) -> String {
    format!("{}", (value * 1e6).round() / 1e6)
}

/// Two lines with a band, a reference and a note over a logarithmic axis.
fn lines() -> String {
    let workers = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0];
    let point = |x: f64| Point { half_width: 3.0 * x.sqrt(), ..Point::new(x, 90.0 * x.powf(0.9)) };
    let measured = workers.map(point).to_vec();
    let expected = workers.map(|x| Point::new(x, 95.0 * x.powf(0.92))).to_vec();
    let ideal = workers.map(|x| Point::new(x, 100.0 * x)).to_vec();
    LineChart {
        title: Title::new("Throughput grows with workers", "measured beside predicted")
            .setting("batch = 64, bandwidth = 1.25 GB/s, latency = 50 us"),
        x: Axis::new("workers", number).log().powers_of_two(),
        y: Axis::new("tokens per second", number).log(),
        series: vec![
            Series::line("measured", measured),
            Series::line("predicted", expected),
            Series::reference("ideal", ideal, 6),
        ],
        notes: vec!["The band is the 95 % confidence interval.".to_owned()],
    }
    .svg()
}

/// As many series as there are colours, with long names.
fn many_lines() -> String {
    let series = |index: usize| {
        let points: Vec<(f64, f64)> =
            (0..40).map(|x| (f64::from(x), (f64::from(x) / 6.0 + index as f64).sin())).collect();
        Series::curve(format!("rank {index} of a group with a long name"), &points)
    };
    LineChart {
        title: Title::new(
            "A title so long that it has to shrink, since it would leave the sheet on its right",
            "negative values, as many series as colours",
        ),
        x: Axis::new("step", number),
        y: Axis::new("difference", number),
        series: (0..COLOURS.len()).map(series).collect(),
        notes: Vec::new(),
    }
    .svg()
}

fn panels() -> String {
    let panel = |name: &str, slope: f64| {
        let points = [1.0, 2.0, 3.0, 4.0].map(|x| Point::new(x, 2.0 - slope * x)).to_vec();
        Panel {
            x: Axis::new(name, number),
            y: Axis::new("loss", number),
            series: vec![Series::line("loss", points)],
        }
    };
    PanelGrid {
        title: Title::new("Loss by parameter", "one panel a parameter"),
        panels: vec![panel("learning rate", 0.2), panel("warm-up", 0.05), panel("decay", -0.1)],
        note: "12 runs".to_owned(),
    }
    .svg()
}

fn bars() -> String {
    let bar = |(name, value, half_width): (&str, f64, f64)| Bar {
        name: name.to_owned(),
        value,
        half_width,
        text: format!("{value} ms"),
    };
    let bars = [("ring", 4.0, 0.3), ("tree", 6.5, 0.0), ("hierarchical, two levels", 2.5, 0.9)];
    BarChart {
        title: Title::new("Hierarchical is fastest", "all-reduce of 64 MB on 16 ranks"),
        label: "milliseconds".to_owned(),
        bars: bars.map(bar).to_vec(),
    }
    .svg()
}

fn stacked_bars() -> String {
    let parts = ["weights", "gradients", "optimizer", "activations", "buffers"];
    let bar = |(name, scale): (&str, f64)| StackedBar {
        name: name.to_owned(),
        values: vec![2.0 * scale, 2.0 * scale, 8.0 * scale, 5.0, 0.05],
    };
    let bars = [("DP8", 1.0), ("ZeRO-1 TP2 PP4 DP8 mbs 2 selective", 0.4), ("ZeRO-3", 0.12)];
    StackedBars {
        title: Title::new("Memory of the fullest device", "by layout and part"),
        axis: Axis::new("GiB", number),
        format: |value| format!("{value:.1} GiB"),
        parts: parts.into_iter().zip(COLOURS).collect(),
        bars: bars.map(bar).to_vec(),
        limit: Some((16.0, "capacity 16 GiB".to_owned())),
    }
    .svg()
}

fn heat_map() -> String {
    let cell = |index: usize| {
        let (row, column) = (index / 5, index % 5);
        let value = (row * column) as f64;
        Cell { row, column, value, text: number(value) }
    };
    HeatMap {
        title: Title::new("Waiting grows with both", "waiting time by workers and variation"),
        x_label: "workers".to_owned(),
        y_label: "variation".to_owned(),
        columns: ["2", "4", "8", "16", "32"].map(str::to_owned).to_vec(),
        rows: ["0 %", "10 %", "20 %", "30 %"].map(str::to_owned).to_vec(),
        cells: (0..20).map(cell).collect(),
    }
    .svg()
}

/// Each fill once, on tracks of different lengths.
fn timeline() -> String {
    let activity = |(name, fill): (&str, Fill)| Activity { name: name.to_owned(), fill };
    let activities = [
        ("forward", Fill::Dark(palette::task(0))),
        ("backward", Fill::Light(palette::task(1))),
        ("all-reduce", Fill::Hatched),
        ("wait", Fill::Dotted),
    ];
    let span = |start: f64, activity: usize| Span {
        activity,
        start,
        end: start + 1.0 + 0.5 * activity as f64,
        label: activity.to_string(),
        tooltip: format!("from {start} s"),
        opacity: 1.0,
    };
    let track = |rank: usize| Track {
        name: format!("rank {rank}"),
        spans: (0..=rank + 3).map(|at| span(2.6 * at as f64, (at + rank) % 4)).collect(),
    };
    Timeline {
        title: Title::new("A step on four ranks", "60 of 64 ranks are not drawn"),
        axis: Axis::new("time", |value| format!("{value} s")),
        activities: activities.map(activity).to_vec(),
        tracks: (0..4).map(track).collect(),
        num_hidden: 60,
        track_height: 20.0,
    }
    .svg()
}

/// A range of no width.
fn single_point() -> String {
    LineChart {
        title: Title::new("One point", "its axis has a range all the same"),
        x: Axis::new("x", number),
        y: Axis::new("y", number),
        series: vec![Series::line("only", vec![Point::new(3.0, 0.0)])],
        notes: Vec::new(),
    }
    .svg()
}
