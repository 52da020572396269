//! What every experiment needs.

pub(crate) use crate::card::{Card, Column, Param, Picture, Unit};
pub(crate) use crate::error::LabError;
pub(crate) use crate::random::Random;
pub(crate) use crate::row;
pub(crate) use crate::settings::Settings;
pub(crate) use crate::study::Experiment;
pub(crate) use crate::table::{Row, Table};
pub(crate) use crate::timeline::{Doing, Span, Timeline, Track};

/// An experiment from the `CARD`, the `run` and the `findings` of its file, and where it can be
/// drawn what everybody does when.
macro_rules! experiment {
    ($name:ident $(, $timeline:ident)?) => {
        /// The experiment of this file.
        pub(super) struct $name;

        impl Experiment for $name {
            fn card(&self) -> &'static Card {
                &CARD
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

/// A cell as it is printed.
pub(crate) fn cell(table: &Table, column: &str, row: usize) -> String {
    table.words(column).get(row).cloned().unwrap_or_default()
}

/// What stands in the first column, with its name: where on the sweep a row is.
pub(crate) fn place(table: &Table, row: usize) -> String {
    if table.num_swept == 0 {
        return "these settings".to_owned();
    }
    let name = table.columns[0].name;
    format!("{name} = {}", cell(table, name, row))
}

/// The number of the last row.
pub(crate) fn last(table: &Table) -> usize {
    table.rows.len().saturating_sub(1)
}
