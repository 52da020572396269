//! Locality-sensitive hashing by banding (Leskovec, Rajaraman and Ullman, *Mining of Massive
//! Datasets*, section 3.4).
//!
//! A signature is cut into `b` bands of `r` rows. Two documents of Jaccard similarity *s* have an
//! equal band with probability `1 - (1 - s^r)^b`, a step near the threshold. The shape minimises
//! the area of false positives below the threshold plus that of false negatives above it.

use super::hash_set::HashSet;
use crate::error::DataError;
use crate::permutation::mix;

/// Steps of the integrals over the similarity.
const STEPS: usize = 1_000;

/// Number of bands and of rows in a band.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BandShape {
    /// Number of bands.
    pub bands: usize,
    /// Number of hashes in a band.
    pub rows: usize,
}

impl BandShape {
    /// Best shape for a threshold within a number of permutations.
    pub fn best(threshold: f64, num_permutations: usize) -> Self {
        let rows_of = |bands| (1..=num_permutations / bands).map(move |rows| (bands, rows));
        let shapes = (1..=num_permutations).flat_map(rows_of);
        let shapes = shapes.map(|(bands, rows)| Self { bands, rows });
        shapes
            .map(|shape| (shape.error(threshold), shape))
            .min_by(|(left, _), (right, _)| left.total_cmp(right))
            .expect("there is a permutation")
            .1
    }

    /// Probability that two documents of this similarity have an equal band.
    pub fn probability(self, similarity: f64) -> f64 {
        1.0 - (1.0 - similarity.powf(self.rows as f64)).powf(self.bands as f64)
    }

    /// Area of false positives and false negatives, by the midpoint rule.
    fn error(self, threshold: f64) -> f64 {
        let area = |from: f64, to: f64, of: &dyn Fn(f64) -> f64| {
            let width = (to - from) / STEPS as f64;
            let height = |step: usize| of(from + (step as f64 + 0.5) * width);
            (0..STEPS).map(height).sum::<f64>() * width
        };
        let positive = area(0.0, threshold, &|s| self.probability(s));
        positive + area(threshold, 1.0, &|s| 1.0 - self.probability(s))
    }
}

/// Bands of all kept documents.
#[derive(Debug)]
pub struct Bands {
    shape: BandShape,
    set: HashSet<u64>,
    hashes: Vec<u64>,
}

impl Bands {
    /// No documents.
    pub fn new(shape: BandShape) -> Self {
        Self { shape, set: HashSet::default(), hashes: Vec::new() }
    }

    /// Makes room for another document within a limit of memory.
    pub fn reserve(&mut self, limit_bytes: u64) -> Result<(), DataError> {
        self.set.reserve(self.shape.bands, limit_bytes)
    }

    /// Adds a document by its signature, for which there must be room; false if it has a band of
    /// another one, and is not added.
    pub fn insert(&mut self, signature: &[u32]) -> bool {
        let bands = signature.chunks_exact(self.shape.rows).take(self.shape.bands);
        let hash = |(index, band): (usize, &[u32])| {
            band.iter().fold(index as u64, |state, &hash| mix(state, u64::from(hash))).max(1)
        };
        self.hashes.clear();
        self.hashes.extend(bands.enumerate().map(hash));
        if self.hashes.iter().any(|hash| self.set.contains(*hash)) {
            return false;
        }
        for hash in &self.hashes {
            self.set.insert(*hash);
        }
        true
    }

    /// Memory of the bands.
    pub fn memory_bytes(&self) -> u64 {
        self.set.memory_bytes()
    }
}
