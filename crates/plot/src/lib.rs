//! Charts as text: SVG that needs nothing else, and HTML pages around it.
//!
//! The caller brings numbers, names and a way to print them; a chart is a plain value and `svg()`
//! draws it. Nothing is said by colour alone: lines differ in dashes and markers, bars carry their
//! numbers, and spans of a timeline are hatched or dotted.
//!
//! # Layout
//! - [`line_chart`]: series over a parameter, with confidence bands
//! - [`panels`]: several small charts of the same points, one a parameter
//! - [`bar_chart`], [`stacked_bars`]: one bar a row
//! - [`heat_map`]: a grid of shaded cells over two parameters
//! - [`timeline`]: spans of time on one track a rank or device
//! - [`fn@digits`]: numbers of three significant digits
//! - [`axis`]: scales, ticks and their labels
//! - [`canvas`]: the SVG shapes that charts are made of; [`palette`]: colours, dashes, markers
//! - [`mod@page`]: an HTML page around charts
//!
//! # Example
//! ```
//! use lockstep_plot::{Axis, LineChart, Point, Series, Title};
//!
//! let points = [(1.0, 10.0), (2.0, 19.0), (4.0, 35.0)].map(|(x, y)| Point::new(x, y));
//! let chart = LineChart {
//!     title: Title::new("Throughput", "tokens per second over workers"),
//!     x: Axis::new("workers", |value| format!("{value}")).log(),
//!     y: Axis::new("tokens per second", |value| format!("{value}")),
//!     series: vec![Series::line("measured", points.to_vec())],
//!     notes: vec![],
//! };
//! assert!(chart.svg().starts_with("<svg"));
//! ```

pub mod axis;
pub mod bar_chart;
pub mod canvas;
pub mod heat_map;
pub mod line_chart;
pub mod page;
pub mod palette;
pub mod panels;
pub mod stacked_bars;
pub mod timeline;

mod digits;
mod frame;

pub use axis::Axis;
pub use bar_chart::{Bar, BarChart};
pub use canvas::{Anchor, Canvas, Title, escape};
pub use digits::digits;
pub use frame::{Point, PointMark, Series};
pub use heat_map::{Cell, HeatMap};
pub use line_chart::LineChart;
pub use page::page;
pub use panels::{Panel, PanelGrid};
pub use stacked_bars::{StackedBar, StackedBars};
pub use timeline::{Activity, Fill, Span, Timeline, Track};
