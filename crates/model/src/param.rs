//! Parameters as data: what a block's flat buffer holds, and where.
//!
//! All parameters of a block lie in one flat buffer, one after the other without gaps, and its
//! gradients in another of the same layout. Whoever moves, shards, sums or saves parameters works
//! on such buffers and reads this description; nobody but the block knows what they mean.
//! Names are those of Hugging Face checkpoints.
//!
//! A tensor that belongs to several slices of the model ([`crate::slices`]) is several parameters
//! of one name, each a *piece*: some rows and some columns of it, one behind the other. What the
//! bits of a run depend on (initial values, hashes, files) goes by an element's place in the
//! tensor, not in the piece.

use std::ops::Range;

/// One named tensor in a block's flat buffer, or a piece of one.
#[derive(Clone, Debug, PartialEq)]
pub struct Param {
    /// Of the tensor: unique in the model, as in a Hugging Face checkpoint.
    pub name: String,
    /// Row-major dimensions of the whole tensor, as in a Hugging Face checkpoint.
    pub shape: Vec<usize>,
    /// What this is of the tensor.
    pub piece: Piece,
    /// First element in the block's flat buffer.
    pub offset: usize,
    /// How it starts.
    pub init: Init,
    /// Whether weight decay pulls on it: matrices yes, norms and biases no.
    pub decay: bool,
    /// The parameter of another block that this one is a copy of (tied embeddings). The copy has
    /// its own gradient; the owner receives the sum of both, is stepped, and is copied again.
    pub mirror_of: Option<String>,
}

/// Some rows and columns of a tensor: all of it, or what a slice of the model has of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Which of the pieces.
    pub index: usize,
    /// How many there are, all of one length.
    pub num: usize,
    rows: Range<usize>,
    /// Columns that follow each other in a row of the piece.
    cols: Vec<Range<usize>>,
}

impl Piece {
    /// All of a tensor.
    pub fn whole(shape: &[usize]) -> Self {
        let (num_rows, num_cols) = rows_and_cols(shape);
        let cols = std::iter::once(0..num_cols).collect();
        Self { index: 0, num: 1, rows: 0..num_rows, cols }
    }

    /// Piece `index` of `num`: these rows of a matrix.
    pub(crate) fn rows(shape: &[usize], index: usize, num: usize, rows: Range<usize>) -> Self {
        Self { index, num, rows, ..Self::whole(shape) }
    }

    /// Piece `index` of `num`: these columns of a matrix or elements of a vector.
    pub(crate) fn cols(shape: &[usize], index: usize, num: usize, cols: Vec<Range<usize>>) -> Self {
        Self { index, num, cols, ..Self::whole(shape) }
    }
}

/// A vector is one row.
fn rows_and_cols(shape: &[usize]) -> (usize, usize) {
    match shape {
        [] => (1, 1),
        [len] => (1, *len),
        [rows, cols @ ..] => (*rows, cols.iter().product()),
    }
}

/// How a parameter starts: a function of (seed, name, element), never of the layout.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Init {
    /// Normal with mean zero.
    Normal {
        /// Standard deviation.
        std: f32,
    },
    /// All one.
    Ones,
    /// All zero.
    Zeros,
}

impl Param {
    /// Number of elements.
    #[expect(clippy::len_without_is_empty, reason = "a parameter has at least one element")]
    pub fn len(&self) -> usize {
        self.piece.rows.len() * self.num_cols()
    }

    /// Number of elements of the whole tensor.
    pub fn tensor_len(&self) -> usize {
        self.shape.iter().product()
    }

    /// How many elements all pieces before this one have.
    pub fn first(&self) -> usize {
        self.piece.index * self.len()
    }

    /// Another piece of the same tensor, which may be held elsewhere. Pieces are equal runs of
    /// rows, or of columns, in their order.
    pub fn sibling(&self, index: usize) -> Self {
        assert!(index < self.piece.num, "{} has {} pieces", self.name, self.piece.num);
        let (num_rows, _) = rows_and_cols(&self.shape);
        let move_over = |range: &Range<usize>| {
            let first = range.start - self.piece.index * range.len();
            first + index * range.len()..first + (index + 1) * range.len()
        };
        let Piece { num, rows, cols, .. } = &self.piece;
        let piece = if rows.len() < num_rows {
            Piece { index, num: *num, rows: move_over(rows), cols: cols.clone() }
        } else {
            let cols = if *num == 1 { cols.clone() } else { cols.iter().map(move_over).collect() };
            Piece { index, num: *num, rows: rows.clone(), cols }
        };
        Self { piece, ..self.clone() }
    }

    fn num_cols(&self) -> usize {
        self.piece.cols.iter().map(Range::len).sum()
    }

    /// Where elements of the piece lie in the tensor: runs of elements that follow each other in
    /// both, each with its first element's place in the tensor.
    pub fn runs(&self, elements: Range<usize>) -> impl Iterator<Item = (Range<usize>, usize)> {
        assert!(elements.end <= self.len(), "{} is shorter", self.name);
        let Piece { rows, cols, .. } = &self.piece;
        let (num_cols, (_, tensor_cols)) = (self.num_cols(), rows_and_cols(&self.shape));
        let mut at = elements.start;
        std::iter::from_fn(move || {
            if at >= elements.end {
                return None;
            }
            // Whole rows are one run.
            if num_cols == tensor_cols {
                let run = (at..elements.end, rows.start * tensor_cols + at);
                at = elements.end;
                return Some(run);
            }
            let row = (rows.start + at / num_cols) * tensor_cols;
            let mut col = at % num_cols;
            let mut ranges = cols.iter();
            let mut range = ranges.next()?;
            while col >= range.len() {
                col -= range.len();
                range = ranges.next()?;
            }
            let len = (range.len() - col).min(elements.end - at);
            let run = (at..at + len, row + range.start + col);
            at += len;
            Some(run)
        })
    }

    /// Puts elements of the piece, from `first` on, into the places they have in the tensor.
    pub fn place(&self, first: usize, values: &[f32], tensor: &mut [f32]) {
        for (run, start) in self.runs(first..first + values.len()) {
            let values = &values[run.start - first..run.end - first];
            tensor[start..start + values.len()].copy_from_slice(values);
        }
    }

    /// Takes elements of the piece, from `first` on, out of the tensor.
    pub fn pick(&self, first: usize, tensor: &[f32], values: &mut [f32]) {
        for (run, start) in self.runs(first..first + values.len()) {
            let values = &mut values[run.start - first..run.end - first];
            values.copy_from_slice(&tensor[start..start + values.len()]);
        }
    }

    /// Its elements in the block's flat buffer.
    pub fn range(&self) -> Range<usize> {
        self.offset..self.offset + self.len()
    }
}

/// Lays parameters one after the other while a block is described.
#[derive(Debug, Default)]
pub(crate) struct ParamList {
    params: Vec<Param>,
    len: usize,
}

impl ParamList {
    /// Appends a parameter and says where it lies. Matrices decay, vectors do not.
    pub(crate) fn push(&mut self, name: String, shape: &[usize], init: Init) -> Range<usize> {
        self.push_piece(name, shape, Piece::whole(shape), init)
    }

    /// Appends a piece of a tensor.
    pub(crate) fn push_piece(
        &mut self,
        name: String,
        shape: &[usize],
        piece: Piece,
        init: Init,
    ) -> Range<usize> {
        let param = Param {
            name,
            shape: shape.to_vec(),
            piece,
            offset: self.len,
            init,
            decay: shape.len() > 1,
            mirror_of: None,
        };
        self.len += param.len();
        let range = param.range();
        self.params.push(param);
        range
    }

    /// Appends a copy of another block's parameter.
    pub(crate) fn push_mirror(&mut self, name: String, owner: &Param) -> Range<usize> {
        let range = self.push_piece(name, &owner.shape, owner.piece.clone(), owner.init);
        let mirror = self.params.last_mut().expect("just pushed");
        mirror.mirror_of = Some(owner.name.clone());
        range
    }

    pub(crate) fn finish(self) -> Vec<Param> {
        self.params
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The pieces of a 6 x 8 matrix: by rows, by columns, by columns of two runs; and of a vector.
    fn pieces() -> Vec<Vec<Param>> {
        let param = |shape: &[usize], piece| Param {
            name: "w".to_owned(),
            shape: shape.to_vec(),
            piece,
            offset: 0,
            init: Init::Ones,
            decay: true,
            mirror_of: None,
        };
        let matrix = [6, 8];
        let rows = |i: usize| Piece::rows(&matrix, i, 3, 2 * i..2 * i + 2);
        let cols =
            |i: usize| Piece::cols(&matrix, i, 2, std::iter::once(4 * i..4 * i + 4).collect());
        let two = |i: usize| Piece::cols(&matrix, i, 2, vec![3 * i..3 * i + 3, 6 + i..7 + i]);
        let vector =
            |i: usize| Piece::cols(&[8], i, 2, vec![2 * i..2 * i + 2, 4 + 2 * i..6 + 2 * i]);
        vec![
            vec![param(&matrix, Piece::whole(&matrix))],
            (0..3).map(|i| param(&matrix, rows(i))).collect(),
            (0..2).map(|i| param(&matrix, cols(i))).collect(),
            (0..2).map(|i| param(&matrix, two(i))).collect(),
            (0..2).map(|i| param(&[8], vector(i))).collect(),
        ]
    }

    #[test]
    fn pieces_cover_the_tensor_and_taking_them_out_inverts_placing_them() {
        for params in pieces() {
            let len = params[0].tensor_len();
            let tensor: Vec<f32> = (0..len).map(|i| i as f32).collect();
            let mut again = vec![f32::NAN; len];
            let mut first = 0;
            for param in &params {
                assert_eq!(param.first(), first);
                for other in &params {
                    assert_eq!(param.sibling(other.piece.index), *other);
                }
                first += param.len();
                let mut values = vec![f32::NAN; param.len()];
                param.pick(0, &tensor, &mut values);
                // In two parts, cut in the middle of a run.
                let middle = param.len() / 2 + 1;
                param.place(0, &values[..middle], &mut again);
                param.place(middle, &values[middle..], &mut again);
            }
            assert_eq!((first, again), (len, tensor));
        }
    }
}
