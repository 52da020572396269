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
        self.values.clear();
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
        self.values.extend_from_slice(values);
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
        (size_of_val(self.values.as_slice()) + size_of_val(self.losses.as_slice())) as u64
    }

    pub(super) fn losses(&self) -> &[f64] {
        &self.losses
    }

    /// The pieces, each with its elements, in the order in which they were added.
    pub(super) fn pieces(&self) -> impl Iterator<Item = (&Taken, &[f32])> {
        let mut start = 0;
        self.pieces.iter().map(move |piece| {
            let values = &self.values[start..][..piece.num_elements()];
            start += piece.num_elements();
            (piece, values)
        })
    }
}
