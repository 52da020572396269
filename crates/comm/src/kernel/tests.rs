//! Every type, order and length against an element-wise reference.

use super::*;
use crate::element::Element;
use lockstep_schedule::SumTree;

/// Small numbers whose sums round, wrap or saturate differently in different orders.
fn sample<T: Element>(source: usize, index: usize) -> T {
    let small = T::from_small(((source * 37 + index * 101 + index / 7) % 251) as u8);
    T::divide(small, 1 + (source + index) % 3)
}

fn expected<T: Element>(order: &SumTree<usize>, reduction: Reduction, index: usize) -> T {
    match order {
        SumTree::Leaf(source) => sample(*source, index),
        SumTree::Sum(left, right) => {
            let (a, b) = (expected(left, reduction, index), expected(right, reduction, index));
            match reduction {
                Reduction::Sum | Reduction::Mean => T::add(a, b),
                Reduction::Max => T::max(a, b),
                Reduction::Min => T::min(a, b),
            }
        }
    }
}

fn check<T: Element>() {
    for num_sources in [2_usize, 3, 5, 8] {
        for count in [0_usize, 1, 15, 16, 17, 100, 513, 1030] {
            for (num_targets, reduction) in [
                (1, Reduction::Sum),
                (2, Reduction::Max),
                (3, Reduction::Min),
                (2, Reduction::Mean),
            ] {
                for isa in Isa::available() {
                    check_one::<T>(isa, num_sources, num_targets, count, reduction);
                }
            }
        }
    }
}

fn check_one<T: Element>(
    isa: Isa,
    num_sources: usize,
    num_targets: usize,
    count: usize,
    reduction: Reduction,
) {
    let order = Order::new(SumTree::canonical(num_sources));
    let data: Vec<Vec<T>> =
        (0..num_sources).map(|k| (0..count).map(|i| sample(k, i)).collect()).collect();
    let mut results = vec![vec![T::from_small(7); count]; num_targets];
    let sources: Vec<_> = data.iter().map(|data| Source::of(data).cast()).collect();
    let targets: Vec<_> = results.iter_mut().map(|result| Target::of(result).cast()).collect();
    let divide_by = (reduction == Reduction::Mean).then_some(num_sources);
    reduce(
        isa,
        T::DTYPE,
        &Job { reduction, divide_by, order: &order, sources: &sources, targets: &targets },
    );
    for result in &results {
        for (index, &found) in result.iter().enumerate() {
            let sum = expected::<T>(&SumTree::canonical(num_sources), reduction, index);
            let expected_value = divide_by.map_or(sum, |by| T::divide(sum, by));
            assert!(
                found == expected_value,
                "{isa} {} {reduction} of {num_sources}: element {index} of {count} is {found:?}, \
                 not {expected_value:?}",
                T::DTYPE
            );
        }
    }
}

#[test]
fn every_type_reduces_in_the_stated_order() {
    check::<f32>();
    check::<f64>();
    check::<bf16>();
    check::<f16>();
    check::<i8>();
    check::<i16>();
    check::<i32>();
    check::<i64>();
    check::<u8>();
    check::<u16>();
    check::<u32>();
    check::<u64>();
}

#[test]
fn targets_may_be_sources() {
    for isa in Isa::available() {
        let (mut a, mut b) = ([1.0_f32; 77], [2.0_f32; 77]);
        let (a_window, b_window) = (Target::of(&mut a).cast(), Target::of(&mut b).cast());
        let order = Order::new(SumTree::canonical(2));
        let job = Job {
            reduction: Reduction::Sum,
            divide_by: None,
            order: &order,
            sources: &[a_window.as_source(), b_window.as_source()],
            targets: &[a_window, b_window],
        };
        reduce(isa, Dtype::F32, &job);
        assert_eq!(a.map(f32::to_bits), [3.0_f32.to_bits(); 77]);
        assert_eq!(a.map(f32::to_bits), b.map(f32::to_bits));
    }
}
