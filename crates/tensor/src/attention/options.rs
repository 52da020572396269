//! Options of attention beside its shape: the keys that a query sees, and changes of its scores.
//!
//! The visible keys of a query stay contiguous and end with its own position. They begin with the
//! first of its sliding window (Beltagy et al. 2020) or of its document, whichever is later; tiles
//! that no query sees are skipped. With `z = score * scale`, scores are then
//! - capped: `z = cap * tanh(score * (scale / cap))` (Bello et al. 2017, Gemma 2), and
//! - biased: `z + slope * (key - query)`, with a slope of each head (ALiBi, Press et al. 2022).
//!
//! Hidden scores become minus infinity, so that their probabilities are exactly zero. Without an
//! option, nothing here runs, and visible scores keep their bits where keys are only hidden.

use super::dropout::{Dropout, Heads};
use super::tile::{Tile, element_indices};
use super::{PER_ROW, Shape, TILE};
use crate::math::{self, scalar::powf};
use crate::simd::{Simd, VECTOR_LEN};

/// Options of an attention call. `D` holds the documents: memory of the host, or of a device.
#[derive(Clone, Copy, Debug)]
pub struct Options<'a, D = &'a [u32]> {
    /// Factor on the scores, where it is not one over the root of the head size.
    pub scale: Option<f32>,
    /// Bound of scores.
    pub soft_cap: Option<f32>,
    /// Number of last keys that a query sees, itself included.
    pub window: Option<usize>,
    /// Heads of the call among those of the model, with a bias by distance each.
    pub alibi: Option<Heads>,
    /// First position of the document of each query, by sequence: queries of packed documents see
    /// only their own. Ascending; sequences of further shards have those of the first.
    pub documents: Option<D>,
    /// Dropout of the probabilities.
    pub dropout: Option<&'a Dropout>,
}

impl<D> Options<'_, D> {
    /// Causal attention and nothing else.
    pub const CAUSAL: Self = Self {
        scale: None,
        soft_cap: None,
        window: None,
        alibi: None,
        documents: None,
        dropout: None,
    };

    /// Whether only dropout is added to causal attention.
    pub const fn is_plain(&self) -> bool {
        let changes_scores =
            self.scale.is_some() || self.soft_cap.is_some() || self.alibi.is_some();
        !changes_scores && self.window.is_none() && self.documents.is_none()
    }
}

impl<'a, D> Options<'a, D> {
    /// These options with documents in other memory.
    pub fn with_documents<E>(self, documents: Option<E>) -> Options<'a, E> {
        let Self { scale, soft_cap, window, alibi, dropout, .. } = self;
        Options { scale, soft_cap, window, alibi, documents, dropout }
    }
}

impl Options<'_> {
    /// Checks the documents of a call.
    pub(super) fn check(&self, shape: &Shape, first_query: usize) {
        assert!(self.window != Some(0), "a window of no keys");
        let Some(documents) = self.documents else { return };
        let num = documents.len() / shape.tokens;
        let fits = num > 0 && documents.len() == num * shape.tokens;
        assert!(fits && shape.sequences.is_multiple_of(num), "documents for {shape:?}");
        for starts in documents.chunks_exact(shape.tokens) {
            let is_past = |(i, start): (usize, &u32)| *start as usize <= first_query + i;
            let is_valid = starts.is_sorted() && starts.iter().enumerate().all(is_past);
            assert!(is_valid, "documents start in ascending order, before their queries");
        }
    }

    /// The options of one head of one sequence.
    pub(super) fn of_head(
        &self,
        shape: &Shape,
        first_query: usize,
        sequence: usize,
        head: usize,
    ) -> HeadOptions<'_> {
        let starts = self.documents.map(|documents| {
            let sequence = sequence % (documents.len() / shape.tokens);
            &documents[sequence * shape.tokens..][..shape.tokens]
        });
        let slope = self.alibi.map(|Heads { num, first, sequences }| {
            alibi_slope(num, first + sequence / sequences * shape.heads + head)
        });
        let scale = self.scale(shape);
        HeadOptions {
            scale,
            soft_cap: self.soft_cap,
            window: self.window,
            slope,
            starts,
            first_query,
        }
    }

    /// Factor on the scores.
    pub(crate) fn scale(&self, shape: &Shape) -> f32 {
        self.scale.unwrap_or(shape.scale())
    }
}

/// Slope of a head of a model: powers of `2^(-8 / num)`, and, where the number of heads is no power
/// of two, every second one of twice the largest power of two below it for the rest.
pub fn alibi_slope(num_heads: usize, head: usize) -> f32 {
    let whole = 1 << num_heads.ilog2();
    let exponent = |index: usize, num: usize| -8.0 * (index + 1) as f64 / num as f64;
    let exponent =
        if head < whole { exponent(head, whole) } else { exponent(2 * (head - whole), 2 * whole) };
    powf(2.0, exponent) as f32
}

/// The options of one head of one sequence.
#[derive(Clone, Copy)]
pub(super) struct HeadOptions<'a> {
    pub(super) scale: f32,
    soft_cap: Option<f32>,
    window: Option<usize>,
    slope: Option<f32>,
    /// By query.
    starts: Option<&'a [u32]>,
    first_query: usize,
}

impl HeadOptions<'_> {
    /// First key that the query at this position sees.
    fn first_key(&self, query: usize) -> usize {
        let of_window = self.window.map_or(0, |window| (query + 1).saturating_sub(window));
        let of_document = self.starts.map_or(0, |starts| starts[query - self.first_query] as usize);
        of_window.max(of_document)
    }

    /// First key of the first tile that the query at this position sees.
    pub(super) fn first_tile(&self, query: usize) -> usize {
        self.first_key(query) / TILE * TILE
    }

    /// Factor on scores after [`Self::apply`].
    pub(super) fn scale_after(&self) -> f32 {
        if self.soft_cap.is_some() || self.slope.is_some() { 1.0 } else { self.scale }
    }

    /// Whether scores are capped: their gradients have a factor then.
    pub(super) const fn is_capped(&self) -> bool {
        self.soft_cap.is_some()
    }

    /// The maximum of a query's scores before its first tile, which may be hidden as a whole: below
    /// every score, and finite, so that differences of maxima are numbers.
    pub(super) const fn lowest(&self) -> f32 {
        if self.window.is_some() || self.starts.is_some() { f32::MIN } else { f32::NEG_INFINITY }
    }

    /// Changes the scores of a tile, given the positions of its first query and key; `slopes`,
    /// where it is not empty, becomes the derivatives of capped scores by scaled ones.
    #[inline(always)]
    pub(super) fn apply<S: Simd>(
        &self,
        s: S,
        first: (usize, usize),
        tile: &Tile,
        scores: &mut [f32],
        slopes: &mut [f32],
    ) {
        if let Some(cap) = self.soft_cap {
            self.cap(s, tile, cap, scores, slopes);
        }
        if let Some(slope) = self.slope {
            let scale = if self.soft_cap.is_some() { 1.0 } else { self.scale };
            add_distances(s, first, tile, (slope, scale), scores);
        }
        let (base, first_key) = first;
        if self.first_key(base + tile.queries.end - 1) > first_key {
            self.hide(s, first, tile, scores);
        }
    }

    #[inline(always)]
    fn cap<S: Simd>(&self, s: S, tile: &Tile, cap: f32, scores: &mut [f32], slopes: &mut [f32]) {
        let (scores, _) = scores.as_chunks_mut::<VECTOR_LEN>();
        let (slopes, _) = slopes.as_chunks_mut::<VECTOR_LEN>();
        let (factor, one) = (s.splat(self.scale / cap), s.splat(1.0));
        for column in tile.vectors() {
            let [_, visible] = tile.rows(column);
            for at in (0..visible).map(|row| row * PER_ROW + column / VECTOR_LEN) {
                let t = math::tanh(s, s.mul(s.load(&scores[at]), factor));
                s.store(s.mul(s.splat(cap), t), &mut scores[at]);
                if let Some(slope) = slopes.get_mut(at) {
                    s.store(s.fma(s.neg(t), t, one), slope);
                }
            }
        }
    }

    /// Hides the keys before the first of each query.
    #[inline(always)]
    fn hide<S: Simd>(
        &self,
        s: S,
        (base, first_key): (usize, usize),
        tile: &Tile,
        scores: &mut [f32],
    ) {
        let (scores, _) = scores.as_chunks_mut::<VECTOR_LEN>();
        let hidden = s.splat(f32::NEG_INFINITY);
        for column in tile.vectors() {
            let [_, visible] = tile.rows(column);
            // Columns without a query hide nothing: they are not read.
            let first_rows: [f32; VECTOR_LEN] = std::array::from_fn(|i| {
                let is_query = tile.queries.contains(&(column + i));
                let first = if is_query { self.first_key(base + column + i) } else { 0 };
                first.saturating_sub(first_key) as f32
            });
            let first_rows = s.load(&first_rows);
            for row in 0..visible {
                let score = &mut scores[row * PER_ROW + column / VECTOR_LEN];
                s.store(s.select_lt(s.splat(row as f32), first_rows, hidden, s.load(score)), score);
            }
        }
    }
}

/// Scales the scores and adds the slope times the distance of keys to their queries.
#[inline(always)]
fn add_distances<S: Simd>(
    s: S,
    (base, first_key): (usize, usize),
    tile: &Tile,
    (slope, scale): (f32, f32),
    scores: &mut [f32],
) {
    let (scores, _) = scores.as_chunks_mut::<VECTOR_LEN>();
    let (slope, scale, indices) = (s.splat(slope), s.splat(scale), element_indices(s));
    for column in tile.vectors() {
        let [_, visible] = tile.rows(column);
        // Positions are exact in `f32`.
        let queries = s.add(s.splat((base - first_key + column) as f32), indices);
        for row in 0..visible {
            let score = &mut scores[row * PER_ROW + column / VECTOR_LEN];
            let distance = s.sub(s.splat(row as f32), queries);
            s.store(s.fma(distance, slope, s.mul(s.load(score), scale)), score);
        }
    }
}
