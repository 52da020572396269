//! Sparse embedding gradients: only the rows of tokens that occurred are exchanged.
//!
//! A token that is in none of a rank's micro-batches has a zero row in the embedding gradient.
//! Where a step has far fewer tokens than the vocabulary has rows, ranks exchange the nonzero rows
//! with their indices and add them; [`Comm::sparse_all_reduce`] still sends the whole table where
//! that is cheaper. A missing row counts as zeros, which change no sum, so the bits equal those of
//! the dense all-reduce. Micro-batches are accumulated first: the rows are those of all
//! micro-batches of the rank.

use crate::leaf_assignment::LeafAssignment;
use crate::leaves::Leaves;
use crate::trainable_params::TrainableParams;
use lockstep_comm::{Comm, CommError, Reduction, Rows, Table};
use lockstep_model::{BlockIo, Blueprint, MicrobatchShape, Param};

/// Vocabulary rows per token of a rank's step from which on the search for nonzero rows pays off.
const ROWS_PER_TOKEN: usize = 8;

/// Embedding table at the start of a gradient bucket whose rows are exchanged sparsely.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SparseEmbedding {
    /// Bucket.
    pub bucket: usize,
    table: Table,
}

impl SparseEmbedding {
    /// The embedding table, where its gradients are sparse. Ranks must have equal, aligned leaf
    /// ranges, so that each contributes one sum and the tree over ranks is the tree over leaves.
    pub fn find(
        blueprint: &Blueprint,
        trained: &TrainableParams,
        shares: &LeafAssignment,
        leaves: Leaves,
        microbatch: MicrobatchShape,
    ) -> Option<Self> {
        let LeafAssignment::Contiguous(runs) = shares else { return None };
        let first = blueprint.blocks.first()?;
        let (param, bucket) = (first.params().first()?, trained.grads.of_block(0));
        let is_alone = trained.grads.list[bucket].blocks == (0..1);
        let is_trained = trained.of_block[0].first().is_some_and(|run| run.start == 0);
        let is_table = matches!(first.io(), BlockIo::TokensToStream { .. }) && is_trained;
        let is_aligned =
            runs.len().is_power_of_two() && runs.iter().all(|r| r.len() == runs[0].len());
        let num_tokens = runs[0].len() * leaves.microbatches_per_leaf * microbatch.rows();
        let row_len = *param.shape.get(1)?;
        let held = blueprint.pieces(0, param).map(Param::len).sum::<usize>();
        let table = Table { num_rows: held / row_len, row_len };
        let is_sparse = runs.len() > 1 && ROWS_PER_TOKEN * num_tokens <= table.num_rows;
        (is_alone && is_table && is_aligned && is_sparse).then_some(Self { bucket, table })
    }

    /// Shape of the table.
    pub const fn table(&self) -> Table {
        self.table
    }

    /// All-reduces a bucket: the table by rows, the rest dense.
    pub fn all_reduce(&self, comm: &Comm, bucket: &mut [f32]) -> Result<(), CommError> {
        let Table { num_rows, row_len } = self.table;
        let (table, rest) = bucket.split_at_mut(num_rows * row_len);
        let is_there = |row: &usize| {
            table[row * row_len..][..row_len].iter().any(|value| value.to_bits() != 0)
        };
        let rows: Vec<usize> = (0..num_rows).filter(is_there).collect();
        let values: Vec<f32> =
            rows.iter().flat_map(|row| &table[row * row_len..][..row_len]).copied().collect();
        let rows: Vec<u64> = rows.iter().map(|&row| row as u64).collect();
        match comm.sparse_all_reduce(self.table, &rows, &values, Reduction::Sum)? {
            Rows::All(values) => table.copy_from_slice(&values),
            // These include all rows of this rank; the others are zero already.
            Rows::Some { rows, values } => {
                for (row, values) in rows.iter().zip(values.chunks_exact(row_len)) {
                    table[*row as usize * row_len..][..row_len].copy_from_slice(values);
                }
            }
        }
        if rest.is_empty() { Ok(()) } else { comm.all_reduce(rest, Reduction::Sum) }
    }
}
