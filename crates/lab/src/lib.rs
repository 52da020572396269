//! Experiments on distributed training, simulated in virtual time, with sweeps and charts.
//!
//! An experiment is a [`Description`] (question, formula, parameters, columns, chart) and a
//! function from settings and random numbers to rows. Sweeps, seeds, confidence intervals, help,
//! JSON, CSV and charts are common to all experiments. Collectives and pipelines are the engine's
//! own schedules, run by a simulator ([`sim`]); the table shows closed forms next to them.
//!
//! # Layout
//! - `description`, `settings`, `table`, `study`: definition and execution of an experiment
//! - `timeline`: activities of ranks and links over time
//! - [`experiments`]: one file each
//! - [`claims`]: common claims with the measured evidence
//! - [`walk`]: schedules round by round
//! - [`chart`]: charts as SVG and HTML
//! - [`sim`]: the simulator; `random`: seeded random numbers; [`math`]: statistics
//! - [`problem`]: problems with known optima, solved by the engine's optimizers
//! - [`real`]: measurements on this machine, with ranks as threads over emulated links
//!
//! # Example
//! ```
//! use lockstep_lab::{Study, experiments};
//!
//! let experiment = experiments::find("all-reduce")?;
//! let description = experiment.description();
//! let study = Study::with(description, &["ranks=8".into()], &["bytes=1KB,100MB".into()])?;
//! let report = study.run(experiment)?;
//! let fastest = "butterfly is fastest at bytes = 1 kB, rabenseifner at bytes = 100 MB";
//! assert_eq!(report.findings[0], fastest);
//! # Ok::<(), lockstep_lab::LabError>(())
//! ```

mod description;
mod error;
mod renamed_params;
mod settings;
mod study;
mod table;
mod timeline;

pub mod chart;
pub mod claims;
pub mod experiments;

pub mod math;
pub mod problem;
mod random;
pub mod real;
pub mod sim;
pub mod walk;

pub use description::{ChartSpec, Column, Description, Domain, Param, Unit};
pub use error::LabError;
pub use random::{Jitter, Random};
pub use settings::{Settings, Value, sweep};
pub use study::{Experiment, Report, Study, confidence};
pub use table::{Cell, Row, Table};
pub use timeline::{Activity, Span, Timeline, Track};
