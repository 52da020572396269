//! Low-rank adapters of linear layers (LoRA, Hu et al. 2021): `y = W x + s B A dropout(x)`.
//!
//! A has a row per element of the hidden vector `h = s A dropout(x)`, which has as many elements as
//! the adapter's rank; B has a row per output. Nothing is saved between forward and backward: both
//! passes compute `h` from the input. Hidden vectors and their gradients are `f32` under every
//! number format, and the products of adapters are never quantised.
//!
//! Beside a column-parallel layer, A is replicated and B is sharded with the outputs: the gradient
//! of `h` is a sum over shards. Beside a row-parallel layer, A is sharded with the inputs and B is
//! replicated: `h` itself is a sum over shards. Both sums follow the tree, and all ranks get all of
//! their rows, so gradients of replicated matrices have equal bits on all ranks.

mod low_rank;

mod column;
mod row;

mod merge;
mod names;

pub(crate) use column::ColumnAdapters;
pub(crate) use low_rank::AdapterParams;
pub use merge::merge;
pub use names::{is_adapter, is_output, names_beside};
pub(crate) use row::RowAdapter;

#[cfg(test)]
mod tests;
