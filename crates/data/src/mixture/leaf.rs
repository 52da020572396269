//! Windows of one leaf from all sources.

use std::sync::Arc;

use super::Mixture;
use super::blend::Blend;
use super::position::StreamPosition;
use super::reader::Share;
use super::stream::TokenStream;
use crate::error::DataError;

/// Streams of a leaf, and the choice among them.
pub(super) struct LeafStreams {
    pub(super) leaf: usize,
    blend: Blend,
    streams: Vec<TokenStream>,
}

impl LeafStreams {
    /// Streams of a leaf, from the positions of a run on.
    pub(super) fn at(mixture: &Mixture, seed: u64, share: Share, positions: &[u64]) -> Self {
        let (all, _) = positions.as_chunks::<{ StreamPosition::LEN }>();
        let num_sources = mixture.sources.len();
        let stream = |(index, source): (usize, &Arc<_>)| {
            let numbers = all[share.leaf * num_sources + index];
            TokenStream::at(Arc::clone(source), share, StreamPosition::from_numbers(numbers))
        };
        Self {
            leaf: share.leaf,
            blend: Blend::new(seed, share.leaf, &mixture.weights),
            streams: mixture.sources.iter().enumerate().map(stream).collect(),
        }
    }

    /// Fills a sequence of the leaf. A source that ends leaves its share to the others.
    pub(super) fn fill(
        &mut self,
        number: u64,
        (inputs, targets): (&mut [u32], &mut [u32]),
        documents: Option<&mut [u32]>,
    ) -> Result<(), DataError> {
        let documents = documents.unwrap_or_default();
        loop {
            let source = self.blend.source(number);
            if self.streams[source].fill(inputs, targets, documents)? {
                return Ok(());
            }
            // A source without a number of epochs never ends, and resolve proved that there is one.
            self.blend.end(source);
        }
    }

    /// Positions of the streams.
    pub(super) fn positions(&self) -> impl Iterator<Item = u64> {
        self.streams.iter().flat_map(|stream| stream.position().to_numbers())
    }
}
