//! Cuts several buffers at the same places, so that each task owns matching parts of all of them.
//!
//! A kernel such as AdamW writes three buffers at once. Halving them again and again, and letting
//! idle threads steal a half, hands every task its parts as plain mutable slices: no locks, no
//! allocation, no unsafe code.

use crate::Cpu;

impl Cpu {
    /// Runs `task(i, parts)` where part k is the i-th run of `part_lens[k]` elements of buffer k
    /// (the last run may be shorter), in any order on any thread.
    ///
    /// # Panics
    /// When the buffers do not have equally many parts.
    pub(crate) fn for_each_split<const K: usize>(
        &self,
        buffers: [&mut [f32]; K],
        part_lens: [usize; K],
        task: impl Fn(usize, [&mut [f32]; K]) + Sync + Send,
    ) {
        let num_parts = buffers[0].len().div_ceil(part_lens[0]);
        for (buffer, part_len) in buffers.iter().zip(part_lens) {
            assert_eq!(buffer.len().div_ceil(part_len), num_parts, "equally many parts");
        }
        if num_parts == 0 {
            return;
        }
        let run = Run { first: 0, num_parts, buffers };
        if self.num_threads() > 1 && num_parts > 1 {
            self.install(|| in_parallel(run, part_lens, &task));
        } else {
            one_by_one(run, part_lens, &task);
        }
    }
}

/// A run of parts, numbered from `first`.
struct Run<'a, const K: usize> {
    first: usize,
    num_parts: usize,
    buffers: [&'a mut [f32]; K],
}

impl<const K: usize> Run<'_, K> {
    /// The first `num_parts` of them, and the rest.
    fn split(self, num_parts: usize, part_lens: [usize; K]) -> (Self, Self) {
        let mut rest: [&mut [f32]; K] = std::array::from_fn(|_| Default::default());
        let mut k = 0;
        let buffers = self.buffers.map(|buffer| {
            let (left, right) = buffer.split_at_mut(num_parts * part_lens[k]);
            rest[k] = right;
            k += 1;
            left
        });
        let left = Self { first: self.first, num_parts, buffers };
        let right = Self {
            first: self.first + num_parts,
            num_parts: self.num_parts - num_parts,
            buffers: rest,
        };
        (left, right)
    }
}

fn in_parallel<const K: usize, T>(run: Run<'_, K>, part_lens: [usize; K], task: &T)
where
    T: Fn(usize, [&mut [f32]; K]) + Sync,
{
    if run.num_parts == 1 {
        return task(run.first, run.buffers);
    }
    let half = run.num_parts / 2;
    let (left, right) = run.split(half, part_lens);
    rayon::join(|| in_parallel(left, part_lens, task), || in_parallel(right, part_lens, task));
}

fn one_by_one<const K: usize, T>(run: Run<'_, K>, part_lens: [usize; K], task: &T)
where
    T: Fn(usize, [&mut [f32]; K]),
{
    let mut rest = run;
    while rest.num_parts > 1 {
        let (part, behind) = rest.split(1, part_lens);
        task(part.first, part.buffers);
        rest = behind;
    }
    task(rest.first, rest.buffers);
}
