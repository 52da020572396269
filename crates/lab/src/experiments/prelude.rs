//! Imports and helpers of every experiment.

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

/// Text of a cell.
pub(crate) fn cell(table: &Table, column: &str, row: usize) -> String {
    table.texts(column).get(row).cloned().unwrap_or_default()
}

/// Point of the sweep of a row: name and value of the first column.
pub(crate) fn place(table: &Table, row: usize) -> String {
    if table.num_swept == 0 {
        return "these settings".to_owned();
    }
    let name = table.columns[0].name;
    format!("{name} = {}", cell(table, name, row))
}

/// Index of the last row.
pub(crate) fn last(table: &Table) -> usize {
    table.rows.len().saturating_sub(1)
}
