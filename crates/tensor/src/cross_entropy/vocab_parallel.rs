//! Vocab-parallel cross-entropy, as in Megatron-LM: the loss over a vocabulary in shards.
//!
//! No rank needs a whole row of logits: three numbers per token are enough, the largest logit, the
//! sum of exponentials and the logit of the target. The maximum over all shards is exact in any
//! order; the sums of exponentials of the shards are added by the reduction tree over shards; the
//! shard that holds the target supplies its logit. Each shard then turns its exponentials into
//! gradients. One shard gives the bits of [`super::forward_backward`].

use super::{IGNORE, load, row_max, rows_per_task, token_loss};
use crate::Cpu;
use crate::math::exp;
use crate::reduce::groups::{num_groups, store};
use crate::simd::{Kernel, Simd};
use std::ops::Range;

/// Raises each number of `max_t` to the largest logit of its row, if that is larger.
pub fn raise_maxima(cpu: &Cpu, logits_tv: &[f32], max_t: &mut [f32]) {
    let vocab = width(logits_tv, max_t.len());
    let rows = rows_per_task(vocab);
    cpu.for_each_part(max_t, rows, |i, max_t| {
        let logits_tv = &logits_tv[i * rows * vocab..][..max_t.len() * vocab];
        cpu.run(Maxima { logits_tv, vocab, max_t });
    });
}

/// Turns logits into exponentials of their distance from the row's maximum, and sets `sums_t` to
/// their sums. Ignored rows are unchanged; their sums are 0.
pub fn exponentials(
    cpu: &Cpu,
    logits_tv: &mut [f32],
    targets: &[u32],
    max_t: &[f32],
    sums_t: &mut [f32],
) {
    let vocab = width(logits_tv, targets.len());
    let rows = rows_per_task(vocab);
    cpu.for_each_split([logits_tv, sums_t], [rows * vocab, rows], |i, [logits_tv, sums_t]| {
        let (targets, max_t) = (&targets[i * rows..], &max_t[i * rows..]);
        cpu.run(Exponentials { logits_tv, vocab, targets, max_t, sums_t });
    });
}

/// As [`exponentials`], with the same sums, without changing the logits.
pub fn exponential_sums(
    cpu: &Cpu,
    logits_tv: &[f32],
    targets: &[u32],
    max_t: &[f32],
    sums_t: &mut [f32],
) {
    let vocab = width(logits_tv, targets.len());
    let rows = rows_per_task(vocab);
    cpu.for_each_part(sums_t, rows, |i, sums_t| {
        let logits_tv = &logits_tv[i * rows * vocab..][..sums_t.len() * vocab];
        let (targets, max_t) = (&targets[i * rows..], &max_t[i * rows..]);
        cpu.run(SumOfExponentials { logits_tv, vocab, targets, max_t, sums_t });
    });
}

/// Sets the logits of the targets in `columns`, the shard's part of the vocabulary.
pub fn target_logits(
    logits_tv: &[f32],
    columns: Range<usize>,
    targets: &[u32],
    target_logits_t: &mut [f32],
) {
    let rows = logits_tv.chunks_exact(columns.len()).zip(targets);
    for ((logits, &target), target_logit) in rows.zip(target_logits_t) {
        if columns.contains(&(target as usize)) {
            *target_logit = logits[target as usize - columns.start];
        }
    }
}

/// Sets the loss of each token from the reduced values of all shards.
pub fn losses(
    targets: &[u32],
    max_t: &[f32],
    sums_t: &[f32],
    target_logits_t: &[f32],
    losses_t: &mut [f32],
) {
    for (token, loss) in losses_t.iter_mut().enumerate() {
        let of_token = || token_loss(max_t[token], sums_t[token], target_logits_t[token]);
        *loss = if targets[token] == IGNORE { 0.0 } else { of_token() };
    }
}

/// Turns the exponentials of a shard, which are `columns` of the vocabulary, into the gradients of
/// its logits; `sums_t` are the sums over all shards.
pub fn gradients(
    cpu: &Cpu,
    exponentials_tv: &mut [f32],
    columns: Range<usize>,
    targets: &[u32],
    num_targets: u64,
    sums_t: &[f32],
) {
    let vocab = width(exponentials_tv, targets.len());
    assert_eq!(vocab, columns.len(), "a column for each token of the shard");
    let rows = rows_per_task(vocab);
    cpu.for_each_part(exponentials_tv, rows * vocab, |i, exponentials_tv| {
        let (targets, sums_t) = (&targets[i * rows..], &sums_t[i * rows..]);
        let columns = columns.clone();
        cpu.run(Gradients { exponentials_tv, columns, targets, num_targets, sums_t });
    });
}

/// Number of columns of a shard.
fn width(logits_tv: &[f32], num_rows: usize) -> usize {
    assert!(num_rows > 0 && logits_tv.len().is_multiple_of(num_rows), "{num_rows} rows");
    assert!(!logits_tv.is_empty(), "a row has at least one column");
    logits_tv.len() / num_rows
}

struct Maxima<'a> {
    logits_tv: &'a [f32],
    vocab: usize,
    max_t: &'a mut [f32],
}

impl Kernel for Maxima<'_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for (logits, max) in self.logits_tv.chunks_exact(self.vocab).zip(self.max_t) {
            *max = max.max(row_max(s, logits));
        }
    }
}

struct Exponentials<'a> {
    logits_tv: &'a mut [f32],
    vocab: usize,
    targets: &'a [u32],
    max_t: &'a [f32],
    sums_t: &'a mut [f32],
}

impl Kernel for Exponentials<'_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let rows = self.logits_tv.chunks_exact_mut(self.vocab).zip(self.targets);
        for (((logits, &target), &max), sum) in rows.zip(self.max_t).zip(self.sums_t) {
            let mut total = s.zero();
            if target != IGNORE {
                for i in 0..num_groups(logits) {
                    let e = exp(s, s.sub(load(s, logits, i), s.splat(max)));
                    total = s.add(total, e);
                    store(s, e, logits, i);
                }
            }
            *sum = s.reduce_add(total);
        }
    }
}

struct SumOfExponentials<'a> {
    logits_tv: &'a [f32],
    vocab: usize,
    targets: &'a [u32],
    max_t: &'a [f32],
    sums_t: &'a mut [f32],
}

impl Kernel for SumOfExponentials<'_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let rows = self.logits_tv.chunks_exact(self.vocab).zip(self.targets);
        for (((logits, &target), &max), sum) in rows.zip(self.max_t).zip(self.sums_t) {
            let mut total = s.zero();
            if target != IGNORE {
                for i in 0..num_groups(logits) {
                    total = s.add(total, exp(s, s.sub(load(s, logits, i), s.splat(max))));
                }
            }
            *sum = s.reduce_add(total);
        }
    }
}

struct Gradients<'a> {
    exponentials_tv: &'a mut [f32],
    columns: Range<usize>,
    targets: &'a [u32],
    num_targets: u64,
    sums_t: &'a [f32],
}

impl Kernel for Gradients<'_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let rows = self.exponentials_tv.chunks_exact_mut(self.columns.len()).zip(self.targets);
        for ((row, &target), &sum) in rows.zip(self.sums_t) {
            if target == IGNORE {
                row.fill(0.0);
                continue;
            }
            // In f64, as for an unsharded row.
            let (sum, num_targets) = (f64::from(sum), self.num_targets as f64);
            let target = target as usize;
            let own = self.columns.contains(&target).then(|| target - self.columns.start);
            let at_target = own.map(|at| (f64::from(row[at]) / sum - 1.0) / num_targets);
            let scale = s.splat((1.0 / (sum * num_targets)) as f32);
            for i in 0..num_groups(row) {
                store(s, s.mul(load(s, row, i), scale), row, i);
            }
            if let (Some(at), Some(at_target)) = (own, at_target) {
                row[at] = at_target as f32;
            }
        }
    }
}
