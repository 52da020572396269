//! Inputs of measured calls and their expected results.
//!
//! Data repeats with a prime period, so that expected values are looked up and shifted data is
//! detected. Values are fractions whose sums round, so that another order of additions has other
//! bits. Algorithms without a guaranteed order get small integers, whose sums are equal in any
//! order.

use lockstep_comm::Element;
use lockstep_platform::{Source, Target};
use lockstep_schedule::SumTree;

/// Period of the data that is compared in full; a prime.
const PERIOD: usize = 4093;

/// Offset between the data of two ranks.
const SHIFT: usize = 1009;

/// Origin of a span of elements of a result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Origin {
    /// Data of a rank.
    Rank(usize),
    /// Sum over all ranks.
    Sum,
}

/// Span of elements of a result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Span {
    /// Origin of the elements.
    pub(super) origin: Origin,
    /// First element in the data of the origin.
    pub(super) start: usize,
    /// Number of elements.
    pub(super) len: usize,
}

/// One period of the data of each rank and of their sum.
pub(super) struct Data<T> {
    by_rank: Vec<Vec<T>>,
    sum: Vec<T>,
}

impl<T: Element> Data<T> {
    /// Values that differ between elements and ranks.
    pub(super) fn varied(num_ranks: usize, is_canonical: bool) -> Self {
        let value = |place: usize| {
            let mixed = (place * 7919 + place / 3 * 104_729) % 1_000_003;
            if is_canonical {
                // Quotients such as 1/3 fill every bit of a floating-point number.
                T::divide(T::from_small((mixed % 251) as u8), 3 + mixed % 29)
            } else {
                T::from_small((mixed % 3) as u8 + 1)
            }
        };
        let of_rank = |rank| (0..PERIOD).map(|i| value((i + rank * SHIFT) % PERIOD)).collect();
        Self::new((0..num_ranks).map(of_rank).collect())
    }

    /// One value per rank whose bytes are all equal, so that it is written at memory speed.
    pub(super) fn uniform(num_ranks: usize, byte: impl Fn(usize) -> u8) -> Self {
        let value = |rank| {
            let word = u64::from_ne_bytes([byte(rank); size_of::<u64>()]);
            vec![Source::of(&[word]).cast::<T>().get(0)]
        };
        Self::new((0..num_ranks).map(value).collect())
    }

    fn new(by_rank: Vec<Vec<T>>) -> Self {
        let tree = SumTree::canonical(by_rank.len());
        let sum = (0..by_rank[0].len()).map(|index| sum_at(&tree, &by_rank, index)).collect();
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

    /// Whether a result equals its expected spans.
    pub(super) fn is_correct(&self, result: &[T], spans: &[Span]) -> bool {
        let mut rest = result;
        for span in spans {
            let Some((found, after)) = rest.split_at_checked(span.len) else { return false };
            rest = after;
            let period = self.period(span.origin);
            let start = span.start % period.len();
            let (head, body) = found.split_at((period.len() - start).min(found.len()));
            let is_same = head == &period[start..start + head.len()]
                && body.chunks(period.len()).all(|piece| piece == &period[..piece.len()]);
            if !is_same {
                return false;
            }
        }
        rest.is_empty()
    }

    /// Whether the first and the last element of every span are correct.
    pub(super) fn ends_are_correct(&self, result: &[T], spans: &[Span]) -> bool {
        let mut end = 0;
        spans.iter().filter(|span| span.len > 0).all(|span| {
            let first = end;
            end += span.len;
            let period = self.period(span.origin);
            [first, end - 1].into_iter().all(|index| {
                let expected = period[(span.start + index - first) % period.len()];
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

fn sum_at<T: Element>(tree: &SumTree<usize>, by_rank: &[Vec<T>], index: usize) -> T {
    match tree {
        SumTree::Leaf(rank) => by_rank[*rank][index],
        SumTree::Sum(left, right) => {
            T::add(sum_at(left, by_rank, index), sum_at(right, by_rank, index))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_wrong_element_makes_a_result_incorrect() {
        let data = Data::<f32>::varied(3, true);
        let mut theirs = vec![0.0; 10_000];
        data.write(1, &mut theirs);
        let spans = [
            Span { origin: Origin::Rank(1), start: 5000, len: 5000 },
            Span { origin: Origin::Sum, start: 1, len: 7 },
        ];
        let mut result = theirs[5000..].to_vec();
        result.extend_from_slice(&data.sum[1..8]);
        assert!(data.is_correct(&result, &spans) && data.ends_are_correct(&result, &spans));
        for index in [0, 1, 2500, 4999, 5000, 5006] {
            let mut wrong = result.clone();
            wrong[index] += 1.0;
            assert!(!data.is_correct(&wrong, &spans), "element {index}");
        }
        assert!(!data.is_correct(&result[1..], &spans), "one element is missing");
        assert!(!data.is_correct(&theirs, &spans[..1]), "there are more elements than expected");
        result[4999] = 0.0;
        assert!(!data.ends_are_correct(&result, &spans), "the last element of a span is checked");
    }

    #[test]
    fn another_order_of_additions_has_other_bits() {
        let data = Data::<f32>::varied(4, true);
        let in_turn = |i: usize| data.by_rank.iter().map(|own| own[i]).sum::<f32>().to_bits();
        let differences = (0..PERIOD).filter(|&i| in_turn(i) != data.sum[i].to_bits());
        assert!(differences.count() > PERIOD / 10, "another order differs often");
        let whole = Data::<f32>::varied(4, false);
        let in_turn = |i: usize| whole.by_rank.iter().map(|own| own[i]).sum::<f32>().to_bits();
        assert!((0..PERIOD).all(|i| in_turn(i) == whole.sum[i].to_bits()));
    }
}
