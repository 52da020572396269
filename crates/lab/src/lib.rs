//! The lab: the experiments of distributed training, simulated in virtual time, swept and drawn.
//!
//! An experiment is a [`Card`] (question, formula, parameters, columns, picture) and a function
//! from settings and random numbers to rows. Sweeps, seeds, confidence intervals, help, JSON, CSV
//! and pictures are made once, for all of them. Whatever has a schedule plays the engine's own
//! ([`sim`]); what has a closed form stands beside it in the table.
//!
//! # Layout
//! - `card`, `settings`, `table`, `study`: what an experiment is, and how it is run
//! - `timeline`: who does what when
//! - [`experiments`]: one a file
//! - [`claims`]: what is often said, with the number that settles it
//! - [`walk`]: schedules round by round
//! - [`chart`]: charts as SVG and HTML
//! - [`sim`]: the simulator; `random`: seeded numbers; [`math`]: a little statistics
//! - [`problem`]: problems with known optima, stepped by the engine's optimizers
//!
//! # Example
//! ```
//! use lockstep_lab::{Study, experiments};
//!
//! let experiment = experiments::find("all-reduce")?;
//! let card = experiment.card();
//! let study = Study::with(card, &["ranks=8".into()], &["bytes=1KB,100MB".into()])?;
//! let report = study.run(experiment)?;
//! assert_eq!(report.findings[0], "butterfly wins at 1 kB, rabenseifner at 100 MB");
//! # Ok::<(), lockstep_lab::LabError>(())
//! ```

mod card;
mod error;
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
pub mod sim;
pub mod walk;

pub use card::{Card, Column, Domain, Param, Picture, Unit};
pub use error::LabError;
pub use random::{Jitter, Random};
pub use settings::{Settings, Value, sweep};
pub use study::{Experiment, Report, Study, confidence};
pub use table::{Cell, Row, Table};
pub use timeline::{Doing, Span, Timeline, Track};
