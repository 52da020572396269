//! What the ranks bring to a measured call, and what must come out.
//!
//! All data repeats with a period that is no multiple of anything, so that what must come out at
//! any place is looked up and not computed, and data that ended up beside its place is noticed.
//! Numbers are fractions whose sums round, so that another order of additions has other bits;
//! algorithms that promise no order get small whole numbers, whose sums are the same in any order.

use lockstep_comm::Element;
use lockstep_platform::{Source, Target};
use lockstep_schedule::SumTree;

/// The period of the data that is checked in full: a prime.
const PERIOD: usize = 4093;

/// How far apart two ranks are in the table.
const SHIFT: usize = 1009;

/// Where a run of elements of a result comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Origin {
    /// The data of a rank.
    Rank(usize),
    /// The sum of all ranks' data.
    Sum,
}

/// A run of elements of a result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Run {
    /// Whose data it is.
    pub(super) origin: Origin,
    /// Its first element there.
    pub(super) start: usize,
    /// How many elements.
    pub(super) len: usize,
}

/// The data of all ranks and their sum, one period of each.
pub(super) struct Data<T> {
    by_rank: Vec<Vec<T>>,
    sum: Vec<T>,
}

impl<T: Element> Data<T> {
    /// Numbers that differ from place to place and from rank to rank.
    pub(super) fn varied(num_ranks: usize, is_canonical: bool) -> Self {
        let value = |place: usize| {
            let mixed = (place * 7919 + place / 3 * 104_729) % 1_000_003;
            if is_canonical {
                // A third, a seventh: in floating point these fill every bit.
                T::divide(T::from_small((mixed % 251) as u8), 3 + mixed % 29)
            } else {
                T::from_small((mixed % 3) as u8 + 1)
            }
        };
        let of_rank = |rank| (0..PERIOD).map(|i| value((i + rank * SHIFT) % PERIOD)).collect();
        Self::new((0..num_ranks).map(of_rank).collect())
    }

    /// One number a rank, whose bytes are all the same, so that it is written as quickly as
    /// memory can be.
    pub(super) fn uniform(num_ranks: usize, byte: impl Fn(usize) -> u8) -> Self {
        let value = |rank| {
            let word = u64::from_ne_bytes([byte(rank); size_of::<u64>()]);
            vec![Source::of(&[word]).cast::<T>().get(0)]
        };
        Self::new((0..num_ranks).map(value).collect())
    }

    fn new(by_rank: Vec<Vec<T>>) -> Self {
        let tree = SumTree::canonical(by_rank.len());
        let sum = (0..by_rank[0].len()).map(|index| add_up(&tree, &by_rank, index)).collect();
        Self { by_rank, sum }
    }

    /// Writes a rank's data.
    pub(super) fn write(&self, rank: usize, buffer: &mut [T]) {
        let period = &self.by_rank[rank];
        for piece in buffer.chunks_mut(period.len()) {
            let len = piece.len();
            Target::of(piece).copy_from_slice(&period[..len]);
        }
    }

    /// Whether a result is exactly what its runs say.
    pub(super) fn is_right(&self, result: &[T], runs: &[Run]) -> bool {
        let mut rest = result;
        for run in runs {
            let Some((found, after)) = rest.split_at_checked(run.len) else { return false };
            rest = after;
            let period = self.period(run.origin);
            let start = run.start % period.len();
            let (head, body) = found.split_at((period.len() - start).min(found.len()));
            let is_same = head == &period[start..start + head.len()]
                && body.chunks(period.len()).all(|piece| piece == &period[..piece.len()]);
            if !is_same {
                return false;
            }
        }
        rest.is_empty()
    }

    /// Whether the first and the last element of every run are what they should be.
    pub(super) fn looks_right(&self, result: &[T], runs: &[Run]) -> bool {
        let mut end = 0;
        runs.iter().filter(|run| run.len > 0).all(|run| {
            let first = end;
            end += run.len;
            let period = self.period(run.origin);
            [first, end - 1].into_iter().all(|index| {
                let expected = period[(run.start + index - first) % period.len()];
                result.get(index) == Some(&expected)
            })
        })
    }

    fn period(&self, origin: Origin) -> &[T] {
        match origin {
            Origin::Rank(rank) => &self.by_rank[rank],
            Origin::Sum => &self.sum,
        }
    }
}

fn add_up<T: Element>(tree: &SumTree<usize>, by_rank: &[Vec<T>], index: usize) -> T {
    match tree {
        SumTree::Leaf(rank) => by_rank[*rank][index],
        SumTree::Sum(left, right) => {
            T::add(add_up(left, by_rank, index), add_up(right, by_rank, index))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_right_result_is_right_and_one_wrong_element_is_not() {
        let data = Data::<f32>::varied(3, true);
        let mut theirs = vec![0.0; 10_000];
        data.write(1, &mut theirs);
        let runs = [
            Run { origin: Origin::Rank(1), start: 5000, len: 5000 },
            Run { origin: Origin::Sum, start: 1, len: 7 },
        ];
        let mut result = theirs[5000..].to_vec();
        result.extend_from_slice(&data.sum[1..8]);
        assert!(data.is_right(&result, &runs) && data.looks_right(&result, &runs));
        for index in [0, 1, 2500, 4999, 5000, 5006] {
            let mut wrong = result.clone();
            wrong[index] += 1.0;
            assert!(!data.is_right(&wrong, &runs), "element {index}");
        }
        assert!(!data.is_right(&result[1..], &runs), "one is missing");
        assert!(!data.is_right(&theirs, &runs[..1]), "there are more than asked for");
        result[4999] = 0.0;
        assert!(!data.looks_right(&result, &runs), "the last of a run is looked at");
    }

    #[test]
    fn another_order_of_additions_has_other_bits() {
        let data = Data::<f32>::varied(4, true);
        let in_turn = |i: usize| data.by_rank.iter().map(|own| own[i]).sum::<f32>().to_bits();
        let differences = (0..PERIOD).filter(|&i| in_turn(i) != data.sum[i].to_bits());
        assert!(differences.count() > PERIOD / 10, "often enough to be seen");
        let whole = Data::<f32>::varied(4, false);
        let in_turn = |i: usize| whole.by_rank.iter().map(|own| own[i]).sum::<f32>().to_bits();
        assert!((0..PERIOD).all(|i| in_turn(i) == whole.sum[i].to_bits()));
    }
}
