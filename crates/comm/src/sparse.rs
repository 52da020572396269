//! Sparse all-reduce: sums of tables of which every rank has a few rows, such as embedding
//! gradients.
//!
//! The ranks first exchange their numbers of rows. Then the
//! [plan](lockstep_schedule::collective::sparse) of the schedule crate decides what is cheaper: to
//! gather all rows and merge them, or to all-reduce the whole table. Both add in canonical order.

use lockstep_config::units::Bytes;
use lockstep_platform::{Source, Target};
use lockstep_schedule::Op;
use lockstep_schedule::collective::sparse::{self, MergedRow, Plan};

use crate::background::Handle;
use crate::comm::Comm;
use crate::element::{Element, Reduction};
use crate::error::CommError;
use crate::kernel::{self, Job, Order};

/// Shape of a table; equal on all ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Table {
    /// Number of rows.
    pub num_rows: usize,
    /// Number of elements of a row.
    pub row_len: usize,
}

/// A table, or its nonzero rows.
#[derive(Debug, Clone, PartialEq)]
pub enum Rows<T> {
    /// Some rows.
    Some {
        /// Row indices, ascending.
        rows: Vec<u64>,
        /// Their elements, row by row.
        values: Vec<T>,
    },
    /// All rows, row by row.
    All(Vec<T>),
}

impl<T: Element> Rows<T> {
    /// The whole table, with zeros for missing rows.
    pub fn into_table(self, table: Table) -> Vec<T> {
        match self {
            Self::All(values) => values,
            Self::Some { rows, values } => scatter_rows(table, &rows, &values),
        }
    }
}

impl Comm {
    /// All-reduces a table of which every rank has some rows: `rows` are their indices, ascending,
    /// and `values` their elements. Returns the union of the rows, or the whole table where that is
    /// cheaper. A rank may have no rows. Supports sums and means.
    pub fn sparse_all_reduce<T: Element>(
        &self,
        table: Table,
        rows: &[u64],
        values: &[T],
        reduction: Reduction,
    ) -> Result<Rows<T>, CommError> {
        self.check_rows(table, rows, values.len(), reduction)?;
        let comm = Self { algorithm: None, ..self.clone() };
        let num_rows = comm.exchange_shapes::<T>(table, rows.len(), reduction)?;
        let lengths: Vec<usize> = num_rows.iter().map(|num| num * table.row_len).collect();
        let gather = comm.schedule_key::<T>(Op::AllGather, None, lengths.iter().sum(), &lengths);
        let row_bytes = Bytes((table.row_len * size_of::<T>()) as u64);
        let shape = sparse::Table { num_rows: table.num_rows, row_bytes, row_len: table.row_len };
        let plan = comm.lock().schedules.sparse(shape, &num_rows, &gather);
        match plan.map_err(|rule| self.invalid("sparse all-reduce", &rule))? {
            Plan::Dense => {
                let mut whole = scatter_rows(table, rows, values);
                comm.canonical().all_reduce(&mut whole, reduction)?;
                Ok(Rows::All(whole))
            }
            Plan::Sparse { .. } => {
                let mut all_rows = Vec::new();
                comm.gather_parts(rows, &num_rows, &mut all_rows)?;
                let mut all_values = Vec::new();
                comm.gather_parts(values, &lengths, &mut all_values)?;
                let lists = comm.lists(table, &all_rows, &num_rows)?;
                Ok(comm.reduce_rows(
                    table,
                    &sparse::merge(&lists),
                    &num_rows,
                    &all_values,
                    reduction,
                ))
            }
        }
    }

    /// Starts a [sparse all-reduce](Comm::sparse_all_reduce).
    pub fn start_sparse_all_reduce<T: Element>(
        &self,
        table: Table,
        rows: Vec<u64>,
        values: Vec<T>,
        reduction: Reduction,
    ) -> Result<Handle<Rows<T>>, CommError> {
        self.start(Rows::Some { rows, values }, move |comm, own| {
            if let Rows::Some { rows, values } = own {
                *own = comm.sparse_all_reduce(table, rows, values, reduction)?;
            }
            Ok(())
        })
    }

    fn check_rows(
        &self,
        table: Table,
        rows: &[u64],
        num_values: usize,
        reduction: Reduction,
    ) -> Result<(), CommError> {
        let refuse = |rule: &str| Err(self.invalid("sparse all-reduce", rule));
        if !matches!(reduction, Reduction::Sum | Reduction::Mean) {
            return refuse("missing rows count as zeros: only sums and means are supported");
        }
        let elements = table.num_rows.checked_mul(table.row_len);
        let bytes = elements.and_then(|elements| elements.checked_mul(2 * size_of::<u64>()));
        if bytes.is_none_or(|bytes| isize::try_from(bytes).is_err()) {
            return refuse("the table does not fit into memory");
        }
        if !are_row_indices(table, rows) {
            return refuse("row indices are ascending, distinct, and below the number of rows");
        }
        if rows.len().checked_mul(table.row_len) != Some(num_values) {
            let (num_rows, row_len) = (rows.len(), table.row_len);
            return refuse(&format!("{num_rows} rows of {row_len} elements, not {num_values}"));
        }
        Ok(())
    }

    /// Number of rows of each rank, after checking that all ranks agree on the call.
    fn exchange_shapes<T: Element>(
        &self,
        table: Table,
        num_rows: usize,
        reduction: Reduction,
    ) -> Result<Vec<usize>, CommError> {
        let call = [table.num_rows, table.row_len, T::DTYPE as usize, reduction as usize];
        let own = [call[0], call[1], call[2], call[3], num_rows].map(|number| number as u64);
        let mut all = vec![0; own.len() * self.group_size()];
        self.all_gather(&own, &mut all)?;
        let (shapes, _) = all.as_chunks::<5>();
        for (group_rank, theirs) in shapes.iter().enumerate() {
            let rank = self.ranks()[group_rank];
            if theirs[..4] != own[..4] {
                let rule = format!(
                    "rank {} adds {}, rank {rank} adds {}",
                    self.rank(),
                    describe(&own),
                    describe(theirs)
                );
                return Err(self.invalid("sparse all-reduce", &rule));
            }
            if theirs[4] > own[0] {
                let rule = format!("rank {rank} has {} of {} rows", theirs[4], own[0]);
                return Err(self.invalid("sparse all-reduce", &rule));
            }
        }
        let named: Vec<u64> = shapes.iter().map(|shape| shape[4]).collect();
        let elements: Vec<u64> =
            named.iter().map(|num| num.saturating_mul(own[1].max(1))).collect();
        self.trusted_lengths::<T>(&elements)?;
        self.trusted_lengths::<u64>(&named)
    }

    /// Validated row indices of each rank.
    fn lists<'a>(
        &self,
        table: Table,
        all_rows: &'a [u64],
        num_rows: &[usize],
    ) -> Result<Vec<&'a [u64]>, CommError> {
        let mut rest = all_rows;
        let mut lists = Vec::with_capacity(num_rows.len());
        for (group_rank, &num) in num_rows.iter().enumerate() {
            let (list, others) = rest.split_at(num);
            if !are_row_indices(table, list) {
                let rank = self.ranks()[group_rank];
                let rule = format!("rank {rank} sent invalid row indices");
                return Err(self.invalid("sparse all-reduce", &rule));
            }
            lists.push(list);
            rest = others;
        }
        Ok(lists)
    }

    fn reduce_rows<T: Element>(
        &self,
        table: Table,
        merged: &[MergedRow],
        num_rows: &[usize],
        all_values: &[T],
        reduction: Reduction,
    ) -> Rows<T> {
        let starts: Vec<usize> = num_rows
            .iter()
            .scan(0, |next, num| Some(std::mem::replace(next, *next + num)))
            .collect();
        let row_len = table.row_len;
        let zero = vec![T::from_small(0); row_len];
        let mut values = vec![T::from_small(0); merged.len() * row_len];
        for (index, row) in merged.iter().enumerate() {
            // A zero for the ranks without the row comes last; it determines the sign of a zero.
            let leaves = row.sum.leaves();
            let mut sources: Vec<Source<'_, u8>> = leaves
                .iter()
                .map(|leaf| {
                    let start = (starts[leaf.rank] + leaf.position) * row_len;
                    Source::of(&all_values[start..start + row_len]).cast()
                })
                .collect();
            let mut number = 0..;
            let mut order = row.sum.map(&mut |_| number.next().expect("numbers do not end"));
            if !row.is_everywhere {
                order = lockstep_schedule::SumTree::sum(
                    order,
                    lockstep_schedule::SumTree::Leaf(sources.len()),
                );
                sources.push(Source::of(&zero).cast());
            }
            let target = Target::of(&mut values[index * row_len..(index + 1) * row_len]).cast();
            let job = Job {
                reduction,
                divide_by: (reduction == Reduction::Mean).then_some(self.group_size()),
                order: &Order::new(order),
                sources: &sources,
                targets: &[target],
            };
            kernel::reduce(self.core.endpoint.isa(), T::DTYPE, &job);
        }
        Rows::Some { rows: merged.iter().map(|row| row.row).collect(), values }
    }
}

/// Whether these are valid row indices, ascending.
fn are_row_indices(table: Table, rows: &[u64]) -> bool {
    let num_rows = table.num_rows as u64;
    rows.is_sorted_by(|a, b| a < b) && rows.last().is_none_or(|&last| last < num_rows)
}

fn describe([num_rows, row_len, dtype, reduction, _]: &[u64; 5]) -> String {
    let dtype = usize::try_from(*dtype).ok().and_then(|code| crate::Dtype::ALL.get(code));
    let dtype = dtype.map_or("something", |dtype| dtype.name());
    let reduction = usize::try_from(*reduction).ok().and_then(|code| Reduction::ALL.get(code));
    let reduction = reduction.map_or_else(|| "unknown".to_owned(), Reduction::to_string);
    format!("a table of {num_rows} rows of {row_len} {dtype}, {reduction}")
}

/// Scatters rows into a table of zeros.
fn scatter_rows<T: Element>(table: Table, rows: &[u64], values: &[T]) -> Vec<T> {
    let mut whole = vec![T::from_small(0); table.num_rows * table.row_len];
    for (&row, value) in rows.iter().zip(values.chunks(table.row_len.max(1))) {
        let start = row as usize * table.row_len;
        whole[start..start + table.row_len].copy_from_slice(value);
    }
    whole
}
