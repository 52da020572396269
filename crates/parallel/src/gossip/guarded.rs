//! Averaging with neighbours of whom some may lie.
//!
//! A worker trusts itself. What it hears counts by how it differs from what it has: the difference
//! of every neighbour, and its own, which is zero, are combined by one of the rules of
//! [`crate::robust`], and the outcome is added to its own weights. With norm clipping that is
//! clipped gossip (He, Karimireddy and Jaggi 2022); with a trimmed mean or a median of every
//! element it is BRIDGE (Fang, Yang and Bajwa 2022). A rule sees one neighbourhood and nothing
//! else, so the honest must be a majority in each, and in one piece without the others.
//!
//! Of rules that look at whole vectors there is no half, so all buckets are heard before any is
//! changed: room for as many models as there are neighbours.

use super::mixer::Mixer;
use crate::liars::Liar;
use crate::robust::{Combine, combine};
use lockstep_comm::CommError;

/// What a worker does about lies, and its own.
pub struct Guard {
    rule: Combine,
    liar: Option<Liar>,
    /// All weights as they were after the last exchange, and as they are told.
    before: Vec<f32>,
    told: Vec<f32>,
    changes: Vec<Vec<f32>>,
}

impl Guard {
    /// Combines by `rule`, and lies as `liar` does.
    pub fn new(rule: Combine, liar: Option<Liar>) -> Self {
        Self { rule, liar, before: Vec::new(), told: Vec::new(), changes: Vec::new() }
    }

    /// Notes the weights that the first step begins with.
    pub fn begin(&mut self, weights: &[f32]) {
        weights.clone_into(&mut self.before);
    }

    /// Tells neighbours all weights of a worker, or a lie about them, and takes in theirs.
    pub fn mix(
        &mut self,
        mixer: &mut Mixer,
        step: u64,
        weights: &mut [f32],
    ) -> Result<(), CommError> {
        weights.clone_into(&mut self.told);
        if let Some(liar) = &mut self.liar {
            self.told.iter_mut().zip(&self.before).for_each(|(told, before)| *told -= before);
            liar.pretend(step, 0, &mut self.told);
            self.told.iter_mut().zip(&self.before).for_each(|(told, before)| *told += before);
        }
        let heard = mixer.hear(step, &self.told)?;
        self.changes.resize_with(heard.len() + 1, Vec::new);
        let mut shares = Vec::with_capacity(heard.len() + 1);
        for (change, (theirs, share)) in self.changes.iter_mut().zip(&heard) {
            change.clear();
            change.extend(theirs.iter().zip(&*weights).map(|(theirs, own)| theirs - own));
            shares.push(*share);
        }
        let own = self.changes.last_mut().expect("there is room for it");
        own.clear();
        own.resize(weights.len(), 0.0);
        // What is left after the others is its own.
        shares.push((1.0 - shares.iter().sum::<f64>()).max(0.0));
        let changes: Vec<&[f32]> = self.changes.iter().map(Vec::as_slice).collect();
        combine(self.rule, &changes, &shares, &mut self.told);
        weights.iter_mut().zip(&self.told).for_each(|(own, change)| *own += change);
        weights.clone_into(&mut self.before);
        Ok(())
    }

    /// Elements that are held.
    pub fn num_elements(&self) -> usize {
        self.before.len() + self.told.len() + self.changes.iter().map(Vec::len).sum::<usize>()
    }
}
