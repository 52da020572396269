//! The loops over memory.
//!
//! Two sources, the case of two ranks and of every received message, have their own loop, which
//! keeps everything in registers. With more sources the sweep proceeds block by block: it executes
//! the steps of the order on a block of each source, and stores the result to all targets.

use std::marker::PhantomData;

use lockstep_platform::{Source, Target};
use lockstep_schedule::SumTree;
use lockstep_tensor::simd::{Kernel, Simd, VECTOR_LEN};

use super::Job;
use super::order::{MAX_LEVELS, OrderStep};
use super::vector::Vector;
use crate::element::{Element, Reduction};

/// Prefetch distance of writes, in groups.
const AHEAD: usize = 16;

/// Groups in a block.
const BLOCK: usize = 8;

/// A reduction of elements of one type.
pub(super) struct Sweep<'a, T> {
    job: &'a Job<'a>,
    kind: PhantomData<T>,
}

impl<'a, T: Element> Sweep<'a, T> {
    pub(super) fn new(job: &'a Job<'a>) -> Self {
        let len = job.targets.first().map_or(0, Target::len);
        assert!(job.targets.iter().all(|target| target.len() == len), "targets of one length");
        assert!(job.sources.iter().all(|source| source.len() == len), "sources of one length");
        Self { job, kind: PhantomData }
    }
}

macro_rules! sweep_kernel {
    ($($t:ty),*) => { $(
        impl Kernel for Sweep<'_, $t> {
            type Out = ();
            #[inline(always)]
            fn run<S: Simd>(self, s: S) {
                run::<S, $t>(s, self.job);
            }
        }
        impl Kernel for Divide<'_, $t> {
            type Out = ();
            #[inline(always)]
            fn run<S: Simd>(self, s: S) {
                divide::<S, $t>(s, self.window.cast(), self.by);
            }
        }
    )* };
}
sweep_kernel!(f32, f64, half::bf16, half::f16);

/// Runs without a choice of instruction set, for types that gain little from it: one copy of each
/// loop instead of three keeps the build short.
impl<T: Vector<()>> Sweep<'_, T> {
    pub(super) fn run_portable(self) {
        run::<(), T>((), self.job);
    }
}

impl<T: Vector<()>> Divide<'_, T> {
    pub(super) fn run_portable(self) {
        divide::<(), T>((), self.window.cast(), self.by);
    }
}

#[inline(always)]
fn run<S: Copy, T: Vector<S>>(s: S, job: &Job<'_>) {
    match job.reduction {
        Reduction::Sum | Reduction::Mean => run_as::<S, T, Add>(s, Add, job),
        // Maxima and minima are of few elements: one loop for any number of ranks will do.
        other => blockwise::<S, T, Selected>(s, Selected(other), job),
    }
}

/// Reduction of a loop: sums have their own loops, the other reductions share one.
trait ReductionKind: Copy {
    fn kind(self) -> Reduction;
}

#[derive(Clone, Copy)]
struct Add;

#[derive(Clone, Copy)]
struct Selected(Reduction);

impl ReductionKind for Add {
    #[inline(always)]
    fn kind(self) -> Reduction {
        Reduction::Sum
    }
}

impl ReductionKind for Selected {
    #[inline(always)]
    fn kind(self) -> Reduction {
        self.0
    }
}

#[inline(always)]
fn run_as<S: Copy, T: Vector<S>, R: ReductionKind>(s: S, r: R, job: &Job<'_>) {
    use SumTree::{Leaf, Sum};
    if let (Sum(left, right), None) = (&job.order.tree, job.divide_by)
        && let (Leaf(left), Leaf(right)) = (&**left, &**right)
    {
        let (a, b) = (job.sources[*left].cast(), job.sources[*right].cast());
        match job.targets {
            [only] => two_to_one::<S, T, R>(s, r, a, b, only.cast()),
            [first, second] => two_to_two::<S, T, R>(s, r, a, b, first.cast(), second.cast()),
            _ => blockwise::<S, T, R>(s, r, job),
        }
    } else {
        blockwise::<S, T, R>(s, r, job);
    }
}

#[inline(always)]
fn two_to_one<S: Copy, T: Vector<S>, R: ReductionKind>(
    s: S,
    r: R,
    a: Source<'_, T>,
    b: Source<'_, T>,
    target: Target<'_, T>,
) {
    let (a, a_tail) = a.as_chunks::<VECTOR_LEN>();
    let (b, b_tail) = b.as_chunks::<VECTOR_LEN>();
    let (target, tail) = target.as_chunks::<VECTOR_LEN>();
    for i in 0..target.len() {
        let sum = T::combine(s, r.kind(), T::load(s, a.get(i)), T::load(s, b.get(i)));
        target.set(i, T::store(s, sum));
    }
    for i in 0..tail.len() {
        tail.set(i, one::<T, R>(r, a_tail.get(i), b_tail.get(i)));
    }
}

#[inline(always)]
fn two_to_two<S: Copy, T: Vector<S>, R: ReductionKind>(
    s: S,
    r: R,
    a: Source<'_, T>,
    b: Source<'_, T>,
    first: Target<'_, T>,
    second: Target<'_, T>,
) {
    let (a, a_tail) = a.as_chunks::<VECTOR_LEN>();
    let (b, b_tail) = b.as_chunks::<VECTOR_LEN>();
    let (first, first_tail) = first.as_chunks::<VECTOR_LEN>();
    let (second, second_tail) = second.as_chunks::<VECTOR_LEN>();
    for i in 0..AHEAD.min(first.len()) {
        first.fetch_for_writing(i);
        second.fetch_for_writing(i);
    }
    for i in 0..first.len() {
        first.fetch_for_writing(i + AHEAD);
        second.fetch_for_writing(i + AHEAD);
        let sum = T::combine(s, r.kind(), T::load(s, a.get(i)), T::load(s, b.get(i)));
        first.set(i, T::store(s, sum));
        second.set(i, T::store(s, sum));
    }
    for i in 0..first_tail.len() {
        let sum = one::<T, R>(r, a_tail.get(i), b_tail.get(i));
        first_tail.set(i, sum);
        second_tail.set(i, sum);
    }
}

#[inline(always)]
fn one<T: Element, R: ReductionKind>(r: R, a: T, b: T) -> T {
    match r.kind() {
        Reduction::Sum | Reduction::Mean => T::add(a, b),
        Reduction::Max => T::max(a, b),
        Reduction::Min => T::min(a, b),
    }
}

/// Any tree, any number of targets.
#[inline(always)]
fn blockwise<S: Copy, T: Vector<S>, R: ReductionKind>(s: S, r: R, job: &Job<'_>) {
    let count = job.targets.first().map_or(0, |target| target.len() / size_of::<T>());
    let (blocks, groups) = (count / (BLOCK * VECTOR_LEN), count / VECTOR_LEN);
    by_groups::<S, T, R, BLOCK>(s, r, job, 0, blocks);
    by_groups::<S, T, R, 1>(s, r, job, blocks * BLOCK * VECTOR_LEN, groups - blocks * BLOCK);
    for index in groups * VECTOR_LEN..count {
        let sum = reduce_element::<T, R>(r, job, &job.order.tree, index);
        let sum = job.divide_by.map_or(sum, |by| T::divide(sum, by));
        for target in job.targets {
            target.cast::<T>().set(index, sum);
        }
    }
}

/// `num_blocks` blocks of `B` groups each, from element `start` on.
#[inline(always)]
fn by_groups<S: Copy, T: Vector<S>, R: ReductionKind, const B: usize>(
    s: S,
    r: R,
    job: &Job<'_>,
    start: usize,
    num_blocks: usize,
) {
    let zero = T::load(s, [T::from_small(0); VECTOR_LEN]);
    let mut levels = [[zero; B]; MAX_LEVELS];
    for block in 0..num_blocks {
        let range = start + block * B * VECTOR_LEN..start + (block + 1) * B * VECTOR_LEN;
        for step in &job.order.steps {
            match *step {
                OrderStep::Load(level, source) => {
                    let (source, _) = job.sources[source].cast().part(range.clone()).as_chunks();
                    for (group, sum) in levels[level].iter_mut().enumerate() {
                        *sum = T::load(s, source.get(group));
                    }
                }
                OrderStep::AddSource(level, source) => {
                    let (source, _) = job.sources[source].cast().part(range.clone()).as_chunks();
                    for (group, sum) in levels[level].iter_mut().enumerate() {
                        *sum = T::combine(s, r.kind(), *sum, T::load(s, source.get(group)));
                    }
                }
                OrderStep::AddAbove(level) => {
                    let above = levels[level + 1];
                    for (sum, above) in levels[level].iter_mut().zip(above) {
                        *sum = T::combine(s, r.kind(), *sum, above);
                    }
                }
            }
        }
        if let Some(by) = job.divide_by {
            for sum in &mut levels[0] {
                *sum = T::divide_all(s, *sum, by);
            }
        }
        for target in job.targets {
            let (target, _) = target.cast().part(range.clone()).as_chunks();
            for (group, sum) in levels[0].iter().enumerate() {
                target.set(group, T::store(s, *sum));
            }
        }
    }
}

/// The sum of one element of the sources below `node`.
fn reduce_element<T: Element, R: ReductionKind>(
    r: R,
    job: &Job<'_>,
    node: &SumTree<usize>,
    index: usize,
) -> T {
    match node {
        SumTree::Leaf(source) => job.sources[*source].cast().get(index),
        SumTree::Sum(left, right) => one::<T, R>(
            r,
            reduce_element::<T, R>(r, job, left, index),
            reduce_element::<T, R>(r, job, right, index),
        ),
    }
}

/// A division of every element of a window.
pub(super) struct Divide<'a, T> {
    window: Target<'a, u8>,
    by: usize,
    kind: PhantomData<T>,
}

impl<'a, T: Element> Divide<'a, T> {
    pub(super) fn new(window: Target<'a, u8>, by: usize) -> Self {
        Self { window, by, kind: PhantomData }
    }
}

#[inline(always)]
fn divide<S: Copy, T: Vector<S>>(s: S, window: Target<'_, T>, by: usize) {
    let (body, tail) = window.as_chunks::<VECTOR_LEN>();
    let source = body.as_source();
    for i in 0..body.len() {
        body.set(i, T::store(s, T::divide_all(s, T::load(s, source.get(i)), by)));
    }
    let source = tail.as_source();
    for i in 0..tail.len() {
        tail.set(i, T::divide(source.get(i), by));
    }
}
