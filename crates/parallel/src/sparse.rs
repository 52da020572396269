//! Sparse gradients: of a large vocabulary only the rows of tokens that occurred travel.
//!
//! A token that is in none of a worker's micro-batches leaves its row of the embedding's gradient at zero.
//! Where a step has far fewer tokens than the vocabulary has rows, workers exchange the rows that
//! are not zero, with their numbers, and add them up; [`Comm::sparse_all_reduce`] still sends the
//! whole table where that turns out to be cheaper. A row that is not there counts as zeros, which
//! change no sum, so the bits are those of the dense way. Micro-batches are accumulated first: the rows are
//! those of all micro-batches of the worker.

use crate::leaves::Leaves;
use crate::shares::Shares;
use crate::trained::Trained;
use lockstep_comm::{Comm, CommError, Reduction, Rows, Table};
use lockstep_model::{BlockIo, Blueprint, MicrobatchShape, Param};

/// Rows of the vocabulary for every token of a worker's step that make the search for rows that
/// are not zero worth it.
const ROWS_PER_TOKEN: usize = 8;

/// The table at the start of a bucket of gradients whose rows travel one by one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SparseTable {
    /// The bucket.
    pub bucket: usize,
    table: Table,
}

impl SparseTable {
    /// The embedding's table, where its gradients are sparse. Workers must have equal, aligned
    /// shares, so that each brings one sum and the tree over workers is that over leaves.
    pub fn find(
        blueprint: &Blueprint,
        trained: &Trained,
        shares: &Shares,
        leaves: Leaves,
        microbatch: MicrobatchShape,
    ) -> Option<Self> {
        let Shares::Contiguous(runs) = shares else { return None };
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

    /// Its shape.
    pub const fn table(&self) -> Table {
        self.table
    }

    /// Adds up the bucket over all workers: the table by rows, what lies behind it as a whole.
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
            // All rows of this worker are among them, and the others are zeros already.
            Rows::Some { rows, values } => {
                for (row, values) in rows.iter().zip(values.chunks_exact(row_len)) {
                    table[*row as usize * row_len..][..row_len].copy_from_slice(values);
                }
            }
        }
        if rest.is_empty() { Ok(()) } else { comm.all_reduce(rest, Reduction::Sum) }
    }
}
