//! What a worker will write, copied out of the way of training.
//!
//! The copy is made between two steps; the disk then takes its time beside the next ones. The room
//! is kept from one checkpoint to the next.

/// Pieces of tensors in memory of their own.
#[derive(Debug, Default)]
pub struct Snapshot {
    values: Vec<f32>,
    pieces: Vec<Taken>,
    losses: Vec<f64>,
}

/// One piece and the tensor it belongs to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Taken {
    pub(super) name: String,
    pub(super) shape: Vec<usize>,
    pub(super) first: usize,
    pub(super) len: usize,
}

impl Snapshot {
    /// Forgets everything but the room for it.
    pub fn clear(&mut self) {
        self.values.clear();
        self.pieces.clear();
        self.losses.clear();
    }

    /// Copies the elements of a tensor from number `first` on.
    ///
    /// # Panics
    /// When the tensor has fewer.
    pub fn add(&mut self, name: &str, shape: &[usize], first: usize, values: &[f32]) {
        let num_elements: usize = shape.iter().product();
        assert!(first + values.len() <= num_elements, "{name} has {num_elements} elements");
        if values.is_empty() {
            return;
        }
        self.values.extend_from_slice(values);
        let (name, shape) = (name.to_owned(), shape.to_vec());
        self.pieces.push(Taken { name, shape, first, len: values.len() });
    }

    /// The loss of every step so far; one worker keeps them for all.
    pub fn set_losses(&mut self, losses: &[f64]) {
        self.losses.clear();
        self.losses.extend_from_slice(losses);
    }

    /// The bytes that a file of it has, without its header.
    pub fn num_bytes(&self) -> u64 {
        (size_of_val(self.values.as_slice()) + size_of_val(self.losses.as_slice())) as u64
    }

    pub(super) fn losses(&self) -> &[f64] {
        &self.losses
    }

    /// The pieces, each with its elements, in the order in which they were added.
    pub(super) fn pieces(&self) -> impl Iterator<Item = (&Taken, &[f32])> {
        let mut start = 0;
        self.pieces.iter().map(move |piece| {
            let values = &self.values[start..][..piece.len];
            start += piece.len;
            (piece, values)
        })
    }
}
