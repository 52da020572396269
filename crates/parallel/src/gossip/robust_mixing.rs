//! Byzantine-robust gossip.
//!
//! A rank trusts itself. It aggregates the differences of its neighbors' weights from its own, and
//! its own difference of zero, by a rule of [`crate::robust_aggregation`], and adds the result to
//! its weights. With norm clipping that is clipped gossip (He, Karimireddy and Jaggi 2022); with a
//! coordinate-wise trimmed mean or median it is BRIDGE (Fang, Yang and Bajwa 2022). A rule sees one
//! neighborhood only, so honest ranks must be a majority in each, and connected without the others.
//!
//! Rules on whole vectors need all buckets of all neighbors at once, so memory holds one model per
//! neighbor.

use super::mixer::Mixer;
use crate::byzantine::ByzantineWorker;
use crate::robust_aggregation::{Aggregator, aggregate};
use lockstep_comm::CommError;

/// Robust mixing state, and this rank's attack if it is Byzantine.
pub struct RobustMixer {
    rule: Aggregator,
    byzantine: Option<ByzantineWorker>,
    /// All weights after the last exchange, and as sent.
    before: Vec<f32>,
    sent: Vec<f32>,
    changes: Vec<Vec<f32>>,
}

impl RobustMixer {
    /// Aggregates by `rule`; `byzantine` corrupts the weights this rank sends.
    pub fn new(rule: Aggregator, byzantine: Option<ByzantineWorker>) -> Self {
        Self { rule, byzantine, before: Vec::new(), sent: Vec::new(), changes: Vec::new() }
    }

    /// Saves the weights before the first step.
    pub fn begin(&mut self, weights: &[f32]) {
        weights.clone_into(&mut self.before);
    }

    /// Sends this rank's weights, corrupted if it is Byzantine, to its neighbors and aggregates
    /// theirs.
    pub fn mix(
        &mut self,
        mixer: &mut Mixer,
        step: u64,
        weights: &mut [f32],
    ) -> Result<(), CommError> {
        weights.clone_into(&mut self.sent);
        if let Some(byzantine) = &mut self.byzantine {
            self.sent.iter_mut().zip(&self.before).for_each(|(sent, before)| *sent -= before);
            byzantine.corrupt(step, 0, &mut self.sent);
            self.sent.iter_mut().zip(&self.before).for_each(|(sent, before)| *sent += before);
        }
        let received = mixer.exchange_with_neighbors(step, &self.sent)?;
        self.changes.resize_with(received.len() + 1, Vec::new);
        let mut shares = Vec::with_capacity(received.len() + 1);
        for (change, (theirs, share)) in self.changes.iter_mut().zip(&received) {
            change.clear();
            change.extend(theirs.iter().zip(&*weights).map(|(theirs, own)| theirs - own));
            shares.push(*share);
        }
        let own = self.changes.last_mut().expect("one entry for the rank itself");
        own.clear();
        own.resize(weights.len(), 0.0);
        // The rank's own weight is the rest.
        shares.push((1.0 - shares.iter().sum::<f64>()).max(0.0));
        let changes: Vec<&[f32]> = self.changes.iter().map(Vec::as_slice).collect();
        aggregate(self.rule, &changes, &shares, &mut self.sent);
        weights.iter_mut().zip(&self.sent).for_each(|(own, change)| *own += change);
        weights.clone_into(&mut self.before);
        Ok(())
    }

    /// Number of elements held.
    pub fn num_elements(&self) -> usize {
        self.before.len() + self.sent.len() + self.changes.iter().map(Vec::len).sum::<usize>()
    }
}
