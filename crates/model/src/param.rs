//! Parameters as data: the layout of a block's flat buffer.
//!
//! All parameters of a block are in one flat buffer without gaps, and its gradients in another of
//! equal layout. Code that moves, shards, sums or saves parameters works on such buffers and this
//! description. Names are those of Hugging Face checkpoints.
//!
//! A tensor that several shards of the model share ([`crate::tensor_shards`]) is several parameters
//! of one name, each a *piece*: some rows and some columns, concatenated. Everything that
//! determines the bits of a run (initial values, hashes, files) uses an element's index in the
//! tensor, not in the piece.

use std::ops::Range;

/// One named tensor in a block's flat buffer, or a piece of one.
#[derive(Clone, Debug, PartialEq)]
pub struct Param {
    /// Name of the tensor, unique in the model, as in a Hugging Face checkpoint.
    pub name: String,
    /// Row-major dimensions of the whole tensor, as in a Hugging Face checkpoint.
    pub shape: Vec<usize>,
    /// Piece of the tensor.
    pub piece: Piece,
    /// First element in the block's flat buffer.
    pub offset: usize,
    /// Initial values.
    pub init: Init,
    /// Whether weight decay applies: to matrices, not to norms and biases.
    pub decay: bool,
    /// The parameter of another block that this one mirrors (tied embeddings). The mirror has its
    /// own gradient; the owner receives the sum of both, is updated, and is copied back.
    pub mirror_of: Option<String>,
}

/// Some rows and columns of a tensor: all of it, or the part of a shard of the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Index of the piece.
    pub index: usize,
    /// Number of pieces, all of equal length.
    pub num: usize,
    /// Rows, in the order of the piece.
    rows: Vec<Run>,
    /// Columns of a row, in the order of the piece.
    cols: Vec<Run>,
}

/// Contiguous rows or columns of a piece.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) range: Range<usize>,
    /// Distance to the corresponding range of the next piece.
    pub(crate) next: usize,
}

impl From<Range<usize>> for Run {
    /// The range of the next piece begins where this one ends.
    fn from(range: Range<usize>) -> Self {
        let next = range.len();
        Self { range, next }
    }
}

impl Piece {
    /// All of a tensor.
    pub fn whole(shape: &[usize]) -> Self {
        let (num_rows, num_cols) = rows_and_cols(shape);
        let whole = |len: usize| vec![Run::from(0..len)];
        Self { index: 0, num: 1, rows: whole(num_rows), cols: whole(num_cols) }
    }

    /// Piece `index` of `num`: these rows of a matrix.
    pub(crate) fn rows(shape: &[usize], index: usize, num: usize, rows: Range<usize>) -> Self {
        Self { index, num, rows: vec![rows.into()], ..Self::whole(shape) }
    }

    /// Piece `index` of `num`: these columns of a matrix or elements of a vector.
    pub(crate) fn cols(
        shape: &[usize],
        index: usize,
        num: usize,
        cols: Vec<impl Into<Run>>,
    ) -> Self {
        let cols = cols.into_iter().map(Into::into).collect();
        Self { index, num, cols, ..Self::whole(shape) }
    }

    /// Piece `index` of `num`: these rows of a matrix or elements of a vector, in this order.
    pub(crate) fn runs(shape: &[usize], index: usize, num: usize, runs: Vec<Run>) -> Self {
        let whole = Self { index, num, ..Self::whole(shape) };
        if shape.len() == 1 { Self { cols: runs, ..whole } } else { Self { rows: runs, ..whole } }
    }

    /// Whether the piece is all of its tensor in the tensor's order.
    fn is_in_order(&self) -> bool {
        let is_ascending = |runs: &[Run]| runs.is_sorted_by_key(|run| run.range.start);
        self.num == 1 && is_ascending(&self.rows) && is_ascending(&self.cols)
    }

    fn num_rows(&self) -> usize {
        self.rows.iter().map(|run| run.range.len()).sum()
    }

    fn num_cols(&self) -> usize {
        self.cols.iter().map(|run| run.range.len()).sum()
    }
}

/// The run that has element `at` of a list of runs, and its place in it.
fn find(runs: &[Run], mut at: usize) -> Option<(&Range<usize>, usize)> {
    runs.iter().find_map(|Run { range, .. }| {
        if at < range.len() {
            return Some((range, at));
        }
        at -= range.len();
        None
    })
}

/// A vector is one row.
pub(crate) fn rows_and_cols(shape: &[usize]) -> (usize, usize) {
    match shape {
        [] => (1, 1),
        [len] => (1, *len),
        [rows, cols @ ..] => (*rows, cols.iter().product()),
    }
}

/// Initial values of a parameter: a function of (seed, name, element), never of the layout.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Init {
    /// Normal with mean zero.
    Normal {
        /// Standard deviation.
        std: f32,
    },
    /// Uniform with mean zero.
    Uniform {
        /// Largest absolute value.
        bound: f32,
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
        self.piece.num_rows() * self.piece.num_cols()
    }

    /// Number of elements of the whole tensor.
    pub fn tensor_len(&self) -> usize {
        self.shape.iter().product()
    }

    /// Number of elements of all pieces before this one.
    pub fn first(&self) -> usize {
        self.piece.index * self.len()
    }

    /// Whether the elements are those of the whole tensor, in its order.
    pub fn is_in_order(&self) -> bool {
        self.piece.is_in_order()
    }

    /// Another piece of the tensor, possibly on another rank.
    pub fn sibling(&self, index: usize) -> Self {
        assert!(index < self.piece.num, "{} has {} pieces", self.name, self.piece.num);
        let (num_rows, num_cols) = rows_and_cols(&self.shape);
        let shift = |Run { range, next }: &Run| {
            let first = range.start - self.piece.index * next + index * next;
            Run { range: first..first + range.len(), next: *next }
        };
        let mut piece = Piece { index, ..self.piece.clone() };
        if piece.num_rows() < num_rows {
            piece.rows = piece.rows.iter().map(shift).collect();
        } else if piece.num_cols() < num_cols {
            piece.cols = piece.cols.iter().map(shift).collect();
        }
        Self { piece, ..self.clone() }
    }

    /// Maps elements of the piece to the tensor: runs of elements that are contiguous in both, each
    /// with its first index in the tensor.
    pub fn runs(&self, elements: Range<usize>) -> impl Iterator<Item = (Range<usize>, usize)> {
        assert!(elements.end <= self.len(), "{} is shorter", self.name);
        let Piece { rows, cols, .. } = &self.piece;
        let (num_cols, (_, tensor_cols)) = (self.piece.num_cols(), rows_and_cols(&self.shape));
        let has_whole_rows = cols.len() == 1 && num_cols == tensor_cols;
        let mut at = elements.start;
        std::iter::from_fn(move || {
            if at >= elements.end {
                return None;
            }
            let (own_rows, row) = find(rows, at / num_cols)?;
            let (own_cols, col) = find(cols, at % num_cols)?;
            // Contiguous whole rows are one run.
            let len = if has_whole_rows {
                (own_rows.len() - row) * num_cols - col
            } else {
                own_cols.len() - col
            };
            let len = len.min(elements.end - at);
            let run = (at..at + len, (own_rows.start + row) * tensor_cols + own_cols.start + col);
            at += len;
            Some(run)
        })
    }

    /// Copies elements of the piece, from `first` on, into the tensor.
    pub fn place(&self, first: usize, values: &[f32], tensor: &mut [f32]) {
        for (run, start) in self.runs(first..first + values.len()) {
            let values = &values[run.start - first..run.end - first];
            tensor[start..start + values.len()].copy_from_slice(values);
        }
    }

    /// Copies elements of the piece, from `first` on, out of the tensor.
    pub fn pick(&self, first: usize, tensor: &[f32], values: &mut [f32]) {
        for (run, start) in self.runs(first..first + values.len()) {
            let values = &mut values[run.start - first..run.end - first];
            values.copy_from_slice(&tensor[start..start + values.len()]);
        }
    }

    /// Elements in the block's flat buffer.
    pub fn range(&self) -> Range<usize> {
        self.offset..self.offset + self.len()
    }
}

/// Lays out the parameters of a block without gaps.
#[derive(Debug, Default)]
pub struct ParamList {
    params: Vec<Param>,
    len: usize,
}

impl ParamList {
    /// Appends a parameter and returns its range. Matrices decay, vectors do not.
    pub fn push(&mut self, name: String, shape: &[usize], init: Init) -> Range<usize> {
        self.push_piece(name, shape, Piece::whole(shape), init)
    }

    /// Elements so far.
    pub(crate) const fn end(&self) -> usize {
        self.len
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

    /// Appends a mirror of another block's parameter.
    pub fn push_mirror(&mut self, name: String, owner: &Param) -> Range<usize> {
        let range = self.push_piece(name, &owner.shape, owner.piece.clone(), owner.init);
        let mirror = self.params.last_mut().expect("just pushed");
        mirror.mirror_of = Some(owner.name.clone());
        range
    }

    /// The parameters, in order.
    pub fn finish(self) -> Vec<Param> {
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
        // Rows in another order than the tensor's: two of each piece, of a distance of three.
        let mixed = |i: usize| {
            let run = |start: usize| Run { range: start + 3 * i..start + 1 + 3 * i, next: 3 };
            Piece::runs(&matrix, i, 2, vec![run(2), run(0), run(1)])
        };
        vec![
            vec![param(&matrix, Piece::whole(&matrix))],
            (0..3).map(|i| param(&matrix, rows(i))).collect(),
            (0..2).map(|i| param(&matrix, cols(i))).collect(),
            (0..2).map(|i| param(&matrix, two(i))).collect(),
            (0..2).map(|i| param(&[8], vector(i))).collect(),
            (0..2).map(|i| param(&matrix, mixed(i))).collect(),
            vec![param(&matrix, Piece::runs(&matrix, 0, 1, vec![(3..6).into(), (0..3).into()]))],
        ]
    }

    #[test]
    fn pieces_cover_the_tensor_and_pick_inverts_place() {
        for params in pieces() {
            let len = params[0].tensor_len();
            let tensor: Vec<f32> = (0..len).map(|i| i as f32).collect();
            let mut restored = vec![f32::NAN; len];
            let mut first = 0;
            for param in &params {
                assert_eq!(param.first(), first);
                for other in &params {
                    assert_eq!(param.sibling(other.piece.index), *other);
                }
                first += param.len();
                let mut values = vec![f32::NAN; param.len()];
                param.pick(0, &tensor, &mut values);
                // In two parts, split in the middle of a run.
                let middle = param.len() / 2 + 1;
                param.place(0, &values[..middle], &mut restored);
                param.place(middle, &values[middle..], &mut restored);
            }
            let is_in_order = params[0].runs(0..len / params.len()).eq([(0..len, 0)]);
            assert_eq!(params[0].is_in_order(), is_in_order, "{:?}", params[0].piece);
            assert_eq!((first, restored), (len, tensor));
        }
    }
}
