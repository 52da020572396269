//! Snapshot of the pieces of a rank, for background writes.
//!
//! The copy is made between two steps and written during the next ones. Its memory is reused for
//! the next checkpoint. Values are stored in file format, so that no conversion follows.

use std::sync::Arc;

use crate::weights::ElementType;

/// Copies of tensor pieces.
#[derive(Debug, Default)]
pub struct Snapshot {
    /// Little-endian `f32`, shared with the checksum thread during the write.
    values: Arc<Vec<u8>>,
    pieces: Vec<SnapshotPiece>,
    losses: Vec<f64>,
}

/// A piece of a tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SnapshotPiece {
    pub(super) name: String,
    pub(super) shape: Vec<usize>,
    pub(super) first: usize,
    pub(super) len: usize,
    pub(super) rows: usize,
    pub(super) stride: usize,
}

impl SnapshotPiece {
    /// Total number of elements.
    pub(super) fn num_elements(&self) -> usize {
        self.len * self.rows
    }

    /// Extends the piece by a range of the same tensor that is adjacent to it or continues its
    /// spacing. False if it does neither.
    fn extend(&mut self, first: usize, len: usize) -> bool {
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
    /// Clears the snapshot and keeps its memory.
    pub fn clear(&mut self) {
        self.bytes().clear();
        self.pieces.clear();
        self.losses.clear();
    }

    /// Copies elements of a tensor from index `first` on. Equally spaced ranges, such as the rows
    /// of a column shard, become one piece.
    ///
    /// # Panics
    /// If the tensor has fewer.
    pub fn add(&mut self, name: &str, shape: &[usize], first: usize, values: &[f32]) {
        let num_elements: usize = shape.iter().product();
        assert!(first + values.len() <= num_elements, "{name} has {num_elements} elements");
        if values.is_empty() {
            return;
        }
        ElementType::F32.narrow(values, self.bytes());
        let last = self.pieces.last_mut().filter(|last| last.name == name);
        if last.is_some_and(|last| last.extend(first, values.len())) {
            return;
        }
        let (name, shape, len) = (name.to_owned(), shape.to_vec(), values.len());
        self.pieces.push(SnapshotPiece { name, shape, first, len, rows: 1, stride: 0 });
    }

    /// Sets the losses of all steps so far; one rank stores them.
    pub fn set_losses(&mut self, losses: &[f64]) {
        self.losses.clear();
        self.losses.extend_from_slice(losses);
    }

    /// Size of the shard without its header.
    pub fn num_bytes(&self) -> u64 {
        (self.values.len() + size_of_val(self.losses.as_slice())) as u64
    }

    pub(super) fn losses(&self) -> &[f64] {
        &self.losses
    }

    /// Bytes of all pieces in order.
    pub(super) fn values(&self) -> Arc<Vec<u8>> {
        Arc::clone(&self.values)
    }

    /// The pieces in the order of insertion.
    pub(super) fn pieces(&self) -> &[SnapshotPiece] {
        &self.pieces
    }

    /// Tensor, element index and value at a position of the snapshot, counted in values.
    pub(super) fn value_at(&self, place: usize) -> (&str, usize, f32) {
        let mut before = 0;
        let is_behind = |piece: &&SnapshotPiece| {
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
        Arc::get_mut(&mut self.values)
            .expect("no checksum is in progress while a snapshot is taken")
    }
}
