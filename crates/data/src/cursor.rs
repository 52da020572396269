//! Where a run stands in its data, small enough to lie in every checkpoint.
//!
//! Because a sample is a function of its number, the position is one number: the step whose batch
//! comes next. The fingerprint of the text lies beside it, so that a run cannot be resumed on
//! another text by mistake. The checkpoint that stores a cursor carries the version of the format.

use serde::{Deserialize, Serialize};

use crate::error::DataError;

/// A position in the stream of batches.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cursor {
    /// The step whose batch is made next.
    pub next_step: u64,
    /// The [fingerprint](crate::Corpus::fingerprint) of the text; `None` for a run that has not
    /// begun.
    pub corpus: Option<String>,
}

impl Cursor {
    /// The beginning of a run, on any text.
    pub fn start() -> Self {
        Self::default()
    }

    /// The next step, proven to be meant for the text with this name and fingerprint.
    pub(crate) fn step_in(self, name: &str, fingerprint: &str) -> Result<u64, DataError> {
        match self.corpus {
            Some(saved) if saved != fingerprint => Err(DataError::OtherCorpus {
                name: name.to_owned(),
                found: fingerprint.to_owned(),
                saved,
            }),
            _ => Ok(self.next_step),
        }
    }
}
