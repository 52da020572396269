//! Position of a run in its data, small enough for every checkpoint.
//!
//! A sample is a function of its number, so the position is one number: the step of the next batch.
//! Of a mixture, which is read during training, it also has the position of every stream.
//! The fingerprint of the corpus prevents resuming on another corpus by mistake. The checkpoint
//! that stores a cursor carries the format version.

use serde::{Deserialize, Serialize};

use crate::error::DataError;

/// Position in the stream of batches.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cursor {
    /// Step of the next batch.
    pub next_step: u64,
    /// [Fingerprint](crate::Corpus::fingerprint) of the corpus; none before the run has started.
    pub corpus: Option<String>,
    /// Positions of the streams of a mixture; empty for other data and at the start.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub positions: Vec<u64>,
}

impl Cursor {
    /// Start of a run, on any corpus.
    pub fn start() -> Self {
        Self::default()
    }

    /// Next step, after checking that the cursor belongs to this corpus.
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
