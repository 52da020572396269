//! What a worker will write, copied out of the way of training.
//!
//! The copy is made between two steps; the disk then takes its time beside the next ones. The room
//! is kept from one checkpoint to the next. Numbers lie in it as they will lie in the file, so that
//! nobody has to touch them again.

use std::sync::Arc;

use crate::weights::ElementType;

/// Pieces of tensors in memory of their own.
#[derive(Debug, Default)]
pub struct Snapshot {
    /// Little-endian `f32`; shared with those who look at them while they are written.
    values: Arc<Vec<u8>>,
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
    pub(super) rows: usize,
    pub(super) stride: usize,
}

impl Taken {
    /// How many elements it has in all.
    pub(super) fn num_elements(&self) -> usize {
        self.len * self.rows
    }

    /// Takes in a stretch of the same tensor that follows it, or lies as far from its last stretch
    /// as those lie from each other. False if it is neither.
    fn take_in(&mut self, first: usize, len: usize) -> bool {
        if self.rows == 1 && first == self.first + self.len {
            self.len += len;
            return true;
        }
        let last = self.first + (self.rows - 1) * self.stride;
        let is_next = match self.rows {
            1 => first > last + self.len,
            _ => first == last + self.stride,
        };
        if len != self.len || !is_next {
            return false;
        }
        self.stride = first - last;
        self.rows += 1;
        true
    }
}

impl Snapshot {
    /// Forgets everything but the room for it.
    pub fn clear(&mut self) {
        self.bytes().clear();
        self.pieces.clear();
        self.losses.clear();
    }

    /// Copies the elements of a tensor from number `first` on. Stretches at equal distances, as
    /// the rows of a slice of columns are, become one piece.
    ///
    /// # Panics
    /// When the tensor has fewer.
    pub fn add(&mut self, name: &str, shape: &[usize], first: usize, values: &[f32]) {
        let num_elements: usize = shape.iter().product();
        assert!(first + values.len() <= num_elements, "{name} has {num_elements} elements");
        if values.is_empty() {
            return;
        }
        ElementType::F32.narrow(values, self.bytes());
        let last = self.pieces.last_mut().filter(|last| last.name == name);
        if last.is_some_and(|last| last.take_in(first, values.len())) {
            return;
        }
        let (name, shape, len) = (name.to_owned(), shape.to_vec(), values.len());
        self.pieces.push(Taken { name, shape, first, len, rows: 1, stride: 0 });
    }

    /// The loss of every step so far; one worker keeps them for all.
    pub fn set_losses(&mut self, losses: &[f64]) {
        self.losses.clear();
        self.losses.extend_from_slice(losses);
    }

    /// The bytes that a file of it has, without its header.
    pub fn num_bytes(&self) -> u64 {
        (self.values.len() + size_of_val(self.losses.as_slice())) as u64
    }

    pub(super) fn losses(&self) -> &[f64] {
        &self.losses
    }

    /// The bytes of all pieces, one after the other.
    pub(super) fn values(&self) -> Arc<Vec<u8>> {
        Arc::clone(&self.values)
    }

    /// The pieces, in the order in which they were added.
    pub(super) fn pieces(&self) -> &[Taken] {
        &self.pieces
    }

    /// The tensor, element and value that stand at a place, counted in values.
    pub(super) fn value_at(&self, place: usize) -> (&str, usize, f32) {
        let mut before = 0;
        let is_behind = |piece: &&Taken| {
            before += piece.num_elements();
            place < before
        };
        let piece = self.pieces.iter().find(is_behind).expect("a place of the snapshot");
        let inside = place + piece.num_elements() - before;
        let element = piece.first + inside / piece.len * piece.stride + inside % piece.len;
        let value = f32::from_le_bytes(self.values.as_chunks().0[place]);
        (&piece.name, element, value)
    }

    fn bytes(&mut self) -> &mut Vec<u8> {
        Arc::get_mut(&mut self.values).expect("nobody looks at a snapshot that is being taken")
    }
}
