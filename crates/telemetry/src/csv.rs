//! CSV export: one number per row, in long form, for spreadsheets and data frames.
//!
//! The columns are `step`, `seconds` since the start of the rank, `metric` and `value`. Rows are
//! long and not wide, because metrics appear at different steps; a pivot table makes them wide.
//! Non-finite numbers are `NaN`, `inf` and `-inf`, as pandas and NumPy read them.

use std::fmt::Write as _;
use std::io::Write;
use std::path::{Path, PathBuf};

use lockstep_platform::{FileWriter, World};

use crate::{Scalar, Sink, Stamped, TelemetryError, visit_scalars};

/// First line of the file.
const HEADER: &str = "step,seconds,metric,value\n";

/// Capacity for the rows of any step, so that the buffer does not grow during training.
const ROWS_BYTES: usize = 4096;

/// A CSV file, open for writing.
pub struct Csv {
    path: PathBuf,
    file: Box<dyn FileWriter>,
    rows: String,
    tag: String,
}

impl Csv {
    /// Creates or empties the file and writes its header.
    pub fn create(world: &World, path: &Path) -> Result<Self, TelemetryError> {
        let mut sink = Self {
            path: path.to_owned(),
            file: world.files().create(path)?,
            rows: String::with_capacity(ROWS_BYTES),
            tag: String::with_capacity(64),
        };
        sink.rows.push_str(HEADER);
        sink.write_rows()?;
        Ok(sink)
    }

    fn write_rows(&mut self) -> Result<(), TelemetryError> {
        let written = self.file.write_all(self.rows.as_bytes());
        self.rows.clear();
        written.map_err(|error| TelemetryError::Write {
            sink: self.path.display().to_string(),
            reason: error.to_string(),
        })
    }
}

impl Sink for Csv {
    fn write(&mut self, stamped: &Stamped) -> Result<(), TelemetryError> {
        let Self { rows, tag, .. } = self;
        visit_scalars(&stamped.event, &mut |scalar| push_row(rows, tag, stamped.seconds, &scalar));
        if self.rows.is_empty() { Ok(()) } else { self.write_rows() }
    }

    fn flush(&mut self) -> Result<(), TelemetryError> {
        Ok(self.file.sync()?)
    }
}

fn push_row(rows: &mut String, tag: &mut String, seconds: f64, scalar: &Scalar<'_>) {
    tag.clear();
    scalar.write_tag(tag);
    let _ = write!(rows, "{},{seconds},", scalar.step);
    // Names of tasks come from files, so they may hold anything (RFC 4180).
    if tag.contains([',', '"', '\n', '\r']) {
        rows.push('"');
        for letter in tag.chars() {
            rows.push_str(if letter == '"' { "\"" } else { "" });
            rows.push(letter);
        }
        rows.push('"');
    } else {
        rows.push_str(tag);
    }
    let _ = writeln!(rows, ",{}", scalar.value);
}

#[cfg(test)]
mod tests {
    use lockstep_platform::ScratchDir;

    use super::*;
    use crate::{Event, VERSION};

    #[test]
    fn a_row_has_a_number() {
        let world = lockstep_platform::real();
        let scratch = ScratchDir::new(&world, "csv").unwrap();
        let path = scratch.path().join("metrics.csv");
        let mut sink = Csv::create(&world, &path).unwrap();
        let scores = [("a,\"b\"".to_owned(), f64::NAN)].into();
        let task = Event::TaskEvaluated {
            step: 4,
            task: "t".to_owned(),
            questions: 1,
            scores,
            log_likelihood: None,
        };
        let compressed = Event::Compressed {
            step: 3,
            delta: 0.5,
            residual_norm: f64::INFINITY,
            message_bytes: 9,
            dense_bytes: 18,
        };
        for (seconds, event) in [(1.5, compressed), (2.0, task)] {
            sink.write(&Stamped { v: VERSION, seconds, rank: 0, event }).unwrap();
        }
        sink.flush().unwrap();
        assert_eq!(
            world.files().read_to_string(&path).unwrap(),
            "step,seconds,metric,value\n\
             3,1.5,compression/delta,0.5\n\
             3,1.5,compression/residual_norm,inf\n\
             3,1.5,compression/message_bytes,9\n\
             4,2,\"tasks/score/t/a,\"\"b\"\"\",NaN\n"
        );
    }
}
