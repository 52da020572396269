//! Positions of the streams of a mixture, as plain numbers for checkpoints.
//!
//! A run's position is a list of numbers: the streams of leaf 0, one after another by source, then
//! those of leaf 1, and so on. A worker fills in those of its own leaves and leaves the others 0,
//! so that the maximum over all workers is the position of the run.

use lockstep_config::Recipe;

use super::reader::RowPosition;

/// Position of the next token of a stream.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct StreamPosition {
    /// Number of windows drawn.
    pub(super) windows: u64,
    /// First row of the block that the token's document belongs to.
    pub(super) block: RowPosition,
    /// Index of the document in the shuffled block.
    pub(super) document: u64,
    /// Index of the token in the document.
    pub(super) token: u64,
}

impl StreamPosition {
    /// Numbers of a position.
    pub(super) const LEN: usize = 7;

    pub(super) fn to_numbers(self) -> [u64; Self::LEN] {
        let RowPosition { epoch, file, row, number } = self.block;
        [self.windows, epoch, file, row, number, self.document, self.token]
    }

    pub(super) fn from_numbers(numbers: [u64; Self::LEN]) -> Self {
        let [windows, epoch, file, row, number, document, token] = numbers;
        Self { windows, block: RowPosition { epoch, file, row, number }, document, token }
    }
}

/// Number of numbers in the position of a run.
pub(super) fn num_numbers(recipe: &Recipe) -> usize {
    recipe.num_leaves() * recipe.data.mixture.sources.len() * StreamPosition::LEN
}

/// Progress of one source of a mixture.
#[derive(Debug, Clone, PartialEq)]
pub struct SourceProgress {
    /// Source as in the recipe.
    pub source: String,
    /// Number of training tokens so far.
    pub tokens: u64,
    /// Number of passes that every leaf has finished.
    pub epochs: u64,
}

/// Progress of all sources at the position of a run; empty without a mixture.
pub fn progress(recipe: &Recipe, positions: &[u64]) -> Vec<SourceProgress> {
    let sources = &recipe.data.mixture.sources;
    let (streams, _) = positions.as_chunks::<{ StreamPosition::LEN }>();
    let of = |(index, entry): (usize, &lockstep_config::MixtureSource)| {
        let own = streams.iter().skip(index).step_by(sources.len());
        let own = own.map(|numbers| StreamPosition::from_numbers(*numbers));
        SourceProgress {
            source: entry.source.clone(),
            tokens: own.clone().map(|stream| stream.windows).sum::<u64>()
                * recipe.model.context as u64,
            epochs: own.map(|stream| stream.block.epoch).min().unwrap_or(0),
        }
    };
    sources.iter().enumerate().map(of).collect()
}
