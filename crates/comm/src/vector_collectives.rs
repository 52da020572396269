//! In-place collectives with parts of given lengths (the "v" variants of MPI).
//!
//! The shards of a model have unequal lengths, because they end at tensor boundaries. So every rank
//! passes the lengths of all parts, equal on all ranks, and the operation works inside one buffer:
//! a reduce-scatter leaves this rank's part of the sum at its offset in the vector, and an
//! all-gather takes it from there.

use std::ops::Range;

use lockstep_platform::{Source, Target};
use lockstep_schedule::Op;

use crate::call_buffers::CallBuffers;
use crate::comm::Comm;
use crate::element::{Element, Reduction};
use crate::error::CommError;

impl Comm {
    /// Replaces this rank's part of the first vector in `data` by that part of the sum over all
    /// vectors of all ranks. `data` is one vector, or several if the rank contributes several
    /// ([`Comm::summing`]); the rest of it is unchanged.
    pub fn reduce_scatter_parts<T: Element>(
        &self,
        data: &mut [T],
        lens: &[usize],
        reduction: Reduction,
    ) -> Result<(), CommError> {
        let num_inputs = self.core.membership.num_inputs;
        let part = self.own_part(Op::ReduceScatter, lens, data.len() / num_inputs)?;
        let count = lens.iter().sum();
        let own = self.core.endpoint.shared().map(|shared| shared.own());
        let offset = own.and_then(|own| own.offset_of(data));
        let all = Target::of(data);
        let buffers = CallBuffers {
            input: all.as_source().cast(),
            output: all.part(part.clone()).cast(),
            input_offset: offset,
            output_offset: offset.map(|offset| offset + part.start * size_of::<T>()),
            in_place: false,
        };
        self.run::<T>(Op::ReduceScatter, Some(reduction), count, lens, buffers)
    }

    /// Fills `data` with the parts of all ranks; this rank's part is already at its offset.
    pub fn all_gather_parts<T: Element>(
        &self,
        data: &mut [T],
        lens: &[usize],
    ) -> Result<(), CommError> {
        let part = self.own_part(Op::AllGather, lens, data.len())?;
        let own = self.core.endpoint.shared().map(|shared| shared.own());
        let offset = own.and_then(|own| own.offset_of(data));
        let all = Target::of(data);
        let buffers = CallBuffers {
            input: all.part(part.clone()).as_source().cast(),
            output: all.cast(),
            input_offset: offset.map(|offset| offset + part.start * size_of::<T>()),
            output_offset: offset,
            in_place: false,
        };
        self.run::<T>(Op::AllGather, None, lens.iter().sum(), lens, buffers)
    }

    /// All-to-all in which rank s sends `lens[s * n + d]` elements to rank d; `lens` is equal on
    /// all n ranks. `output` receives the parts of all ranks, concatenated.
    pub fn all_to_all_parts<T: Element>(
        &self,
        input: &[T],
        lens: &[usize],
        output: &mut [T],
    ) -> Result<(), CommError> {
        let n = self.group_size();
        let total = lens.iter().try_fold(0_usize, |total, &len| total.checked_add(len));
        if lens.len() != n * n || total.is_none() {
            let rule = format!("{} lengths, one for every pair", n * n);
            return Err(self.invalid(&Op::AllToAll.to_string(), &rule));
        }
        let own = self.core.endpoint.shared().map(|shared| shared.own());
        let buffers = CallBuffers {
            input_offset: own.and_then(|own| own.offset_of(input)),
            output_offset: own.and_then(|own| own.offset_of(output)),
            input: Source::of(input).cast(),
            output: Target::of(output).cast(),
            in_place: false,
        };
        self.run::<T>(Op::AllToAll, None, lens.iter().sum(), lens, buffers)
    }

    fn own_part(&self, op: Op, lens: &[usize], count: usize) -> Result<Range<usize>, CommError> {
        let total = lens.iter().try_fold(0_usize, |total, &len| total.checked_add(len));
        if lens.len() != self.group_size() || total != Some(count) {
            let n = self.group_size();
            let rule = format!("{n} lengths that add up to {count}, one for every rank");
            return Err(self.invalid(&op.to_string(), &rule));
        }
        let start = lens[..self.group_rank()].iter().sum();
        Ok(start..start + lens[self.group_rank()])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Options;
    use lockstep_platform::real;

    const LEAVES: [Range<usize>; 3] = [0..3, 3..6, 6..8];

    fn value(leaf: usize, index: usize) -> f32 {
        ((leaf * 7919 + index * 104_729) % 1009) as f32 * 1e-3 - 0.3
    }

    /// ((0+1)+(2+3))+((4+5)+(6+7)), element by element.
    fn tree(leaves: Range<usize>, index: usize) -> f32 {
        if leaves.len() == 1 {
            return value(leaves.start, index);
        }
        let middle = leaves.start + leaves.len() / 2;
        tree(leaves.start..middle, index) + tree(middle..leaves.end, index)
    }

    /// Inputs of a rank: the sums of its maximal aligned blocks.
    fn inputs(rank: usize, count: usize) -> Vec<f32> {
        let blocks: &[Range<usize>] = [&[0..2, 2..3][..], &[3..4, 4..6], &[6..8; 1]][rank];
        let sums = blocks.iter().map(|block| (0..count).map(|i| tree(block.clone(), i)));
        sums.flatten().collect()
    }

    fn on_three_ranks(body: impl Fn(&Comm) + Sync) {
        let options = Options { arena_bytes: 1 << 20, ..Options::default() };
        let ends = Comm::threads(&real(), 3, &options).unwrap();
        std::thread::scope(|scope| {
            for comm in &ends {
                scope.spawn(|| body(&comm.summing(&LEAVES, "leaves").unwrap()));
            }
        });
    }

    #[test]
    fn three_ranks_add_eight_leaves_in_the_order_of_the_tree() {
        let lens = [100, 0, 157];
        on_three_ranks(|comm| {
            let rank = comm.group_rank();
            let mut data = inputs(rank, 257);
            comm.reduce_scatter_parts(&mut data, &lens, Reduction::Sum).unwrap();
            let part = [0..100, 100..100, 100..257][rank].clone();
            for i in part {
                assert_eq!(data[i].to_bits(), tree(0..8, i).to_bits(), "element {i}");
            }
            comm.all_gather_parts(&mut data[..257], &lens).unwrap();
            for (i, sum) in data[..257].iter().enumerate() {
                assert_eq!(sum.to_bits(), tree(0..8, i).to_bits(), "element {i}");
            }
        });
    }

    #[test]
    fn the_sum_of_several_inputs_replaces_the_first_of_them() {
        on_three_ranks(|comm| {
            let values = inputs(comm.group_rank(), 1000);
            let mut private = values.clone();
            comm.all_reduce(&mut private, Reduction::Sum).unwrap();
            let mut shared = comm.allocate::<f32>(values.len()).unwrap();
            shared.copy_from_slice(&values);
            comm.all_reduce(&mut shared, Reduction::Sum).unwrap();
            for i in 0..1000 {
                assert_eq!(private[i].to_bits(), tree(0..8, i).to_bits(), "element {i}");
                assert_eq!(shared[i].to_bits(), tree(0..8, i).to_bits(), "element {i}");
            }
        });
    }

    #[test]
    fn all_to_all_with_known_lengths_moves_them() {
        let lens = [1, 2, 0, 0, 3, 1, 2, 0, 0];
        on_three_ranks(|comm| {
            let rank = comm.group_rank();
            let sent: usize = lens[3 * rank..3 * rank + 3].iter().sum();
            let input: Vec<u32> = (0..sent).map(|i| (10 * rank + i) as u32).collect();
            let received = (0..3).map(|source| lens[3 * source + rank]).sum();
            let mut output = vec![0; received];
            comm.all_to_all_parts(&input, &lens, &mut output).unwrap();
            let expected: [&[u32]; 3] = [&[0, 20, 21], &[1, 2, 10, 11, 12], &[13]];
            assert_eq!(output, expected[rank]);
        });
    }
}
