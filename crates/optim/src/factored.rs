//! Factored second moments of whole tensors, for Adafactor (Shazeer and Stern 2018).
//!
//! A matrix has a moment for each row and each column, a vector one for each element. Every rank
//! that steps a part of a tensor keeps all of its moments: they are small, and all of those ranks
//! compute them from the same gathered gradients in the same order.

use crate::Slot;
use crate::rule::GroupOptions;
use crate::update::Update;
use lockstep_tensor::Cpu;
use lockstep_tensor::adafactor::{AdafactorStep, direction};
use lockstep_tensor::math::scalar;
use std::collections::BTreeMap;

/// Exponent of the decay of the second moments: beta2 of step t is 1 − t^−0.8.
const DECAY_EXPONENT: f64 = -0.8;

/// Names and lengths of the moments of a tensor with these rows and columns; a vector is one row.
pub(crate) fn moments_of([rows, columns]: [usize; 2]) -> Vec<(&'static str, usize)> {
    if rows == 1 { vec![("v", columns)] } else { vec![("row", rows), ("col", columns)] }
}

/// Number of moments of the tensors of which `slots` are parts.
pub(crate) fn num_moments<'a>(slots: impl IntoIterator<Item = &'a Slot>) -> usize {
    let shapes: BTreeMap<_, _> = slots.into_iter().map(|slot| (slot.tensor, slot.shape)).collect();
    shapes.values().flat_map(|shape| moments_of(*shape)).map(|(_, len)| len).sum()
}

/// Moments of all tensors of which a rank steps a part, by tensor.
#[derive(Debug)]
pub(crate) struct FactoredMoments(Vec<TensorMoments>);

#[derive(Debug)]
struct TensorMoments {
    tensor: usize,
    name: String,
    options: GroupOptions,
    /// By name, as [`moments_of`] lists them.
    buffers: Vec<(&'static str, Vec<f32>)>,
}

impl FactoredMoments {
    /// Moments of zero for the tensors of these slots, each with its options.
    pub(crate) fn new<'a>(slots: impl Iterator<Item = (&'a Slot, GroupOptions)>) -> Self {
        let tensor = |(slot, options): (&Slot, GroupOptions)| {
            let buffers = moments_of(slot.shape).into_iter();
            let buffers = buffers.map(|(name, len)| (name, vec![0.0; len])).collect();
            let (tensor, name) = (slot.tensor, slot.name.clone());
            (tensor, TensorMoments { tensor, name, options, buffers })
        };
        let by_tensor: BTreeMap<_, _> = slots.map(tensor).collect();
        Self(by_tensor.into_values().collect())
    }

    /// Number of moments.
    pub(crate) fn len(&self) -> usize {
        self.iter().map(|(_, _, values)| values.len()).sum()
    }

    /// Every buffer, with the names of its parameter and its kind.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &'static str, &[f32])> {
        self.0.iter().flat_map(|of| {
            of.buffers.iter().map(|(kind, values)| (&*of.name, *kind, values.as_slice()))
        })
    }

    /// Every buffer, to overwrite on restore.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (&str, &'static str, &mut [f32])> {
        self.0.iter_mut().flat_map(|TensorMoments { name, buffers, .. }| {
            buffers.iter_mut().map(|(kind, values)| (&**name, *kind, values.as_mut_slice()))
        })
    }

    /// Buffers of a parameter, by kind.
    pub(crate) fn of(&self, param: &str) -> impl Iterator<Item = (&'static str, &[f32])> {
        self.iter().filter(move |(name, ..)| *name == param).map(|(_, kind, values)| (kind, values))
    }

    /// Copies the moments of every tensor that `other` has as well.
    pub(crate) fn copy_from(&mut self, other: &Self) {
        for own in &mut self.0 {
            if let Some(other) = other.0.iter().find(|other| other.name == own.name) {
                own.buffers.clone_from(&other.buffers);
            }
        }
    }

    /// Replaces the gradients of a whole tensor by the direction of its step.
    pub(crate) fn direction(
        &mut self,
        cpu: &Cpu,
        update: &Update,
        tensor: usize,
        grads: &mut [f32],
        sums: &mut [f64],
    ) {
        let at = self.0.binary_search_by_key(&tensor, |of| of.tensor).expect("a tensor of its own");
        let TensorMoments { options, buffers, .. } = &mut self.0[at];
        let count = (update.count - options.since) as f64;
        let beta2 = 1.0 - scalar::powf(count, DECAY_EXPONENT);
        let grad_scale = update.clip.scale(options.clip_class);
        let (none, mut rest) = (&mut [][..], buffers.iter_mut().map(|(_, values)| &mut values[..]));
        let moments = match (rest.next(), rest.next()) {
            (Some(rows), Some(columns)) => [rows, columns],
            (Some(vector), None) => [none, vector],
            (None, _) => unreachable!("every tensor has moments"),
        };
        direction(cpu, AdafactorStep { beta2, grad_scale }, grads, moments, sums);
    }
}

/// Memory to gather tensors and to sum over their rows and columns, without allocating in a step.
#[derive(Debug)]
pub struct FactoringMemory {
    /// A gathered tensor, its pieces one after the other.
    pub pieces: Vec<f32>,
    /// The tensor, row by row.
    pub whole: Vec<f32>,
    /// Sums over rows and columns.
    pub sums: Vec<f64>,
}

/// A tensor whose gradients ranks gather, or not, for its moments.
#[derive(Clone, Copy, Debug)]
pub struct GatheredTensor {
    /// Rows and columns.
    pub shape: [usize; 2],
    /// Whether a rank may own a part of it.
    pub is_shared: bool,
    /// Whether it has several pieces, which tensor-parallel ranks hold.
    pub has_pieces: bool,
}

impl FactoringMemory {
    /// Allocates memory for these tensors.
    pub fn new(tensors: impl Iterator<Item = GatheredTensor>) -> Self {
        let [pieces, whole, sums] = Self::lens(tensors);
        Self { pieces: vec![0.0; pieces], whole: vec![0.0; whole], sums: vec![0.0; sums] }
    }

    /// Number of `f32` that [`Self::new`] allocates; a sum counts as two.
    pub fn planned_len(tensors: impl Iterator<Item = GatheredTensor>) -> usize {
        let [pieces, whole, sums] = Self::lens(tensors);
        pieces + whole + 2 * sums
    }

    /// Number of `f32` allocated.
    pub const fn num_elements(&self) -> usize {
        self.pieces.len() + self.whole.len() + 2 * self.sums.len()
    }

    fn lens(tensors: impl Iterator<Item = GatheredTensor>) -> [usize; 3] {
        tensors.fold([0; 3], |[pieces, whole, sums], tensor| {
            let GatheredTensor { shape: [rows, columns], is_shared, has_pieces } = tensor;
            let len = rows * columns;
            [
                pieces.max(if is_shared || has_pieces { len } else { 0 }),
                whole.max(if has_pieces { len } else { 0 }),
                sums.max(rows + columns),
            ]
        })
    }
}
