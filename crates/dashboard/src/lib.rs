//! The dashboard: a local web page of runs, live, behind a token.
//!
//! A thread follows the event files of the runs into histories in memory; another serves them to
//! browsers. A request never opens a file: runs are named by their number in a table.
//!
//! # Layout
//! - [`history`]: the events of a run, bounded in memory; [`columns`]: its steps; [`ranks`]: its
//!   ranks
//! - [`mod@downsample`]: curves as few points as a screen has pixels
//! - [`tools`]: what the pages of the planner and the lab ask
//! - [`runs`]: the table of runs, and what the caller knows about each; [`watch`]: the thread that
//!   follows their event files
//! - [`token`], [`guard`]: rules for requests; [`api`]: targets and answers; `overview`: all runs;
//!   [`live`]: pushed changes
//! - [`server`]: connections with their deadlines; [`connections`]: which makes room for one more;
//!   `stall`: an end for those that do not read
//! - [`page`]: the page's files
//!
//! # Example
//!
//! ```
//! use lockstep_dashboard::{History, downsample};
//! use lockstep_telemetry::Event;
//!
//! let mut history = History::default();
//! history.take(0.5, &Event::Warning { message: "the disk is nearly full".to_owned() });
//! assert_eq!(history.log().count(), 1);
//! let points = [(0.0, 1.0), (1.0, 5.0), (2.0, 2.0)];
//! assert_eq!(downsample(&points, 100), points);
//! ```

pub mod columns;
pub mod ranks;

pub mod history;

pub mod downsample;

pub mod runs;
pub mod watch;

pub mod tools;

pub mod guard;
pub mod token;

pub mod connections;
mod overview;

pub mod api;
pub mod live;
pub mod page;

mod stall;

pub mod server;

pub use columns::{Column, Columns};
pub use downsample::downsample;
pub use history::History;
pub use runs::{RunInfo, Runs, State};
pub use server::{ServeError, Server};
pub use tools::{Query, Sources, Tools};
