//! Imports and definition of every experiment.

pub(crate) use super::axes::{
    across, at, best_is, cell, each_point, extent, last, last_point, last_with, lowest, rows_with,
    winners,
};
pub(crate) use crate::description::{ChartSpec, Column, Description, Param, Unit};
pub(crate) use crate::error::LabError;
pub(crate) use crate::random::Random;
pub(crate) use crate::row;
pub(crate) use crate::settings::Settings;
pub(crate) use crate::study::Experiment;
pub(crate) use crate::table::{Row, Table};
pub(crate) use crate::timeline::{Activity, Span, Timeline, Track};

/// Defines an experiment from the `DESCRIPTION`, `run` and `findings` of its file, and optionally
/// its timeline.
macro_rules! experiment {
    ($name:ident $(, $timeline:ident)?) => {
        /// The experiment of this file.
        pub(super) struct $name;

        impl Experiment for $name {
            fn description(&self) -> &'static Description {
                &DESCRIPTION
            }

            fn run(&self, at: &Settings, random: &mut Random) -> Result<Vec<Row>, LabError> {
                run(at, random)
            }

            fn findings(&self, table: &Table) -> Vec<String> {
                findings(table)
            }

            $(fn timeline(
                &self,
                at: &Settings,
                random: &mut Random,
            ) -> Result<Option<Timeline>, LabError> {
                $timeline(at, random).map(Some)
            })?
        }
    };
}

pub(crate) use experiment;
