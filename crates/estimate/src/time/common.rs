//! What layouts of one question have in common.
//!
//! A search prices many thousands of layouts, and most of them differ in how layers are dealt out
//! to stages and copies, not in what a layer takes. So layers are priced once for each way to cut
//! one.

use super::layer::{Passes, Prices};
use super::{embedding, head};
use crate::layout::{Job, Recompute};
use std::collections::BTreeMap;

/// Passes of one microbatch, by what they are of.
#[derive(Debug)]
pub(super) struct Parts {
    /// A layer without experts.
    pub(super) dense: Passes,
    /// A layer with them.
    pub(super) routed: Passes,
    /// In front of the first.
    pub(super) embedding: Passes,
    /// Behind the last.
    pub(super) head: Passes,
}

impl Parts {
    pub(super) fn new(prices: &Prices<'_>) -> Self {
        Self {
            dense: prices.layer(false),
            routed: prices.layer(true),
            embedding: embedding(prices),
            head: head(prices),
        }
    }
}

/// Everything in a layout that a layer's passes depend on.
type Cut = ([u64; 5], [bool; 2], Recompute);

fn cut(job: &Job<'_>) -> Cut {
    let (layout, habits) = (&job.layout, &job.habits);
    // Some programs add gradients up apart, and some wait for each other where there are stages.
    let adds = if habits.adding_bytes > 0 { job.num_microbatches() } else { 0 };
    let waits = habits.waits_in_stages && layout.pipeline > 1;
    (
        [layout.tensor, layout.context, layout.expert, layout.microbatch, adds],
        [layout.sequence, waits],
        layout.recompute,
    )
}

/// Layers of one question (model, cluster, batch, habits, constants) that were priced already.
#[derive(Debug, Default)]
pub struct Common {
    parts: BTreeMap<Cut, Parts>,
}

impl Common {
    pub(super) fn parts(&mut self, prices: &Prices<'_>) -> &Parts {
        self.parts.entry(cut(prices.job)).or_insert_with(|| Parts::new(prices))
    }
}
