//! State of parameters by name, as checkpoints save and restore it.

use super::Optimizer;
use crate::eight_bit::CodedMoments;
use crate::factored::{FactoredMoments, moments_of};
use std::ops::Range;

impl Optimizer {
    pub(super) fn coded_of(&self, param: &str, piece: usize) -> Option<&CodedMoments> {
        self.coded.iter().find(|coded| coded.slot.name == param && coded.slot.piece == piece)
    }

    /// Visits consecutive parts of [`Self::state`] within a range, also of moments of eight bits:
    /// the index of the first element, and elements.
    pub fn read_state<E>(
        &self,
        (param, piece): (&str, usize),
        kind: usize,
        within: Range<usize>,
        mut visit: impl FnMut(usize, &[f32]) -> Result<(), E>,
    ) -> Result<(), E> {
        match (self.coded_of(param, piece), self.state(param, piece, kind)) {
            (Some(coded), _) => coded.read(kind, within, visit),
            // Frozen parameters have no state.
            (None, None) => Ok(()),
            (None, Some(state)) => visit(within.start, &state[within]),
        }
    }

    /// Overwrites the state of a slot, also moments of eight bits: `fill` gets consecutive parts,
    /// each with the index of its first element.
    pub fn write_state<E>(
        &mut self,
        (param, piece): (&str, usize),
        kind: usize,
        mut fill: impl FnMut(usize, &mut [f32]) -> Result<(), E>,
    ) -> Result<(), E> {
        let is_of =
            |coded: &&mut CodedMoments| coded.slot.name == param && coded.slot.piece == piece;
        match self.coded.iter_mut().find(is_of) {
            Some(coded) => coded.write(kind, fill),
            None => fill(0, self.state_mut(param, piece, kind).expect("state of this rank")),
        }
    }

    /// One state buffer of the part of a piece of a parameter that this optimizer updates, if it
    /// has one in `f32`. `kind` indexes [`Self::state_names`].
    pub fn state(&self, param: &str, piece: usize, kind: usize) -> Option<&[f32]> {
        let slot = self.slots.iter().find(|slot| slot.name == param && slot.piece == piece)?;
        if self.description().codes(slot) {
            return None;
        }
        let block = &self.blocks[slot.block];
        block.state.0[kind].whole().get(block.state_range(slot))
    }

    /// As [`Self::state`], to overwrite on restore.
    pub fn state_mut(&mut self, param: &str, piece: usize, kind: usize) -> Option<&mut [f32]> {
        let slot = self.slots.iter().find(|slot| slot.name == param && slot.piece == piece)?;
        if self.description().codes(slot) {
            return None;
        }
        let block = &mut self.blocks[slot.block];
        let range = block.state_range(slot);
        block.state.0[kind].whole_mut().get_mut(range)
    }

    /// Names of the state buffers of a hidden matrix of this shape, or of another parameter.
    pub fn state_names_of(&self, matrix: Option<[usize; 2]>) -> &'static [&'static str] {
        &self.state_names()[..self.description().num_buffers(matrix)]
    }

    /// Names and lengths of the state of a whole tensor with these rows and columns in files;
    /// `matrix` repeats them for a hidden matrix.
    pub fn saved_state_of(
        &self,
        shape: [usize; 2],
        matrix: Option<[usize; 2]>,
    ) -> Vec<(&'static str, usize)> {
        if self.factored.is_some() {
            return moments_of(shape);
        }
        let len = shape[0] * shape[1];
        self.state_names_of(matrix).iter().map(|name| (*name, len)).collect()
    }

    /// Factored second moments of a parameter, by kind; none where state has the length of the
    /// parameter.
    pub fn factored_state(&self, param: &str) -> impl Iterator<Item = (&'static str, &[f32])> {
        self.factored.iter().flat_map(move |moments| moments.of(param))
    }

    /// Factored second moments, each with the names of its parameter and its kind, to overwrite on
    /// restore.
    pub fn factored_state_mut(&mut self) -> impl Iterator<Item = (&str, &'static str, &mut [f32])> {
        self.factored.iter_mut().flat_map(FactoredMoments::iter_mut)
    }
}
