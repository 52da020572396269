//! Definition of one measured experiment, and one point of its sweep.

use crate::error::LabError;
use crate::random::Random;
use crate::settings::Settings;
use lockstep_config::units::{BytesPerSecond, Seconds};
use lockstep_platform::World;
use lockstep_schedule::Link;

/// An experiment that can be measured on this machine.
pub(super) struct Measurement {
    pub(super) name: &'static str,
    /// Column of the simulation that is measured.
    pub(super) column: &'static str,
    /// Text column that distinguishes the rows of a point, if a point has several.
    pub(super) row_column: Option<&'static str>,
    /// Parameters that replace the defaults of the simulation.
    pub(super) params: &'static [&'static str],
    /// Default sweep.
    pub(super) sweep: &'static str,
    /// Measures a row; NaN for a row that cannot be measured here.
    pub(super) measure: fn(&Point<'_>) -> Result<f64, LabError>,
}

/// One row to measure.
pub(super) struct Point<'a> {
    pub(super) at: &'a Settings,
    /// Text of the row's distinguishing column; empty where a point has one row.
    pub(super) row: &'a str,
    pub(super) seed: u64,
    pub(super) name: &'static str,
    pub(super) world: &'a World,
}

impl Point<'_> {
    /// The random stream of the simulation.
    pub(super) fn random(&self) -> Random {
        Random::named(self.seed, self.name)
    }

    /// The link that the settings describe.
    pub(super) fn link(&self) -> Link {
        Link { latency: self.at.seconds("latency"), bandwidth: self.at.bandwidth("bandwidth") }
    }
}

/// A link without emulated latency or bandwidth limit.
pub(super) const UNLIMITED: Link = Link { latency: Seconds(0.0), bandwidth: BytesPerSecond(0.0) };
