//! Telemetry: typed, versioned events of a run, written to any number of sinks.
//!
//! The engine records an [`Event`]; [`Telemetry`] adds time and rank and writes it to every
//! [`Sink`]. A failing sink is reported once through the others and disabled: telemetry never stops
//! a run. Recording a step allocates no memory.
//!
//! # Layout
//!
//! - [`event`]: the events, timestamps and ranks, which are the file format
//! - `number`: floats in JSON, with NaN and infinities
//! - [`histogram`]: distributions of tensors
//! - [`sink`]: the sink trait and the errors
//! - [`recorder`]: [`Telemetry`], the fan-out of events to sinks
//! - [`json_lines`]: JSON Lines files of events, written and read
//! - [`metric`]: the numbers of the events, for exporters
//! - [`tensor_board`], [`csv`], [`prometheus`], [`otlp`]: exporters of metrics
//! - [`trace`]: trace events of Chrome and Perfetto
//! - [`console`]: live line of a terminal, progress lines of a log
//!
//! # Example
//!
//! ```
//! use lockstep_platform::ScratchDir;
//! use lockstep_telemetry::{Event, JsonLines, Telemetry, load_events};
//!
//! let world = lockstep_platform::real();
//! let scratch = ScratchDir::new(&world, "telemetry")?;
//! let path = scratch.path().join("events.jsonl");
//!
//! let file = JsonLines::open(&world, &path)?;
//! let mut telemetry = Telemetry::start(world.clone(), 0, vec![Box::new(file)]);
//! telemetry.record(&Event::Warning { message: "the disk is nearly full".to_owned() });
//!
//! let events = load_events(&world, &path)?;
//! assert_eq!(events[0].rank, 0);
//! assert_eq!(events[0].event, Event::Warning { message: "the disk is nearly full".to_owned() });
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod event;

mod number;

pub mod histogram;

pub mod sink;

pub mod recorder;

pub mod json_lines;

pub mod metric;

pub mod csv;
pub mod otlp;
pub mod prometheus;
pub mod tensor_board;

pub mod trace;

pub mod console;

pub use console::{Console, Surface};
pub use csv::Csv;
pub use event::{
    AlgorithmBytes, Event, MemoryByPart, RepeatedRequest, RowRequests, SourceTokens, Stamped,
    VERSION,
};
pub use json_lines::{JsonLines, load_events, read_events};
pub use metric::{Label, LabelValue, Metric, Scalar, visit_scalars};
pub use otlp::Otlp;
pub use prometheus::Prometheus;
pub use recorder::Telemetry;
pub use sink::{Sink, TelemetryError};
pub use tensor_board::TensorBoard;
