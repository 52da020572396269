//! The norm of gradients that lie in parts on several workers.
//!
//! Each worker sums the squares of its own chunks; the sums are gathered, and every worker adds all
//! of them by (parameter name, chunk). Shards end at whole chunks, so the numbers and their order
//! are those of one worker, and so is the norm, to the bit.

use crate::buckets::{Bucket, Buckets};
use crate::overlap::Overlap;
use lockstep_comm::CommError;
use lockstep_model::Blueprint;
use lockstep_optim::{CHUNK_LEN, Clip, GlobalNorm, Slot};
use lockstep_tensor::Cpu;

/// Measures the gradients of all workers.
#[derive(Debug)]
pub struct PartedNorm {
    own: GlobalNorm,
    /// How the chunks of the workers fit together, where they have parts.
    parts: Option<Parts>,
}

#[derive(Debug)]
struct Parts {
    /// How many chunks each worker has.
    lens: Vec<usize>,
    /// All workers' sums, one worker behind the other.
    gathered: Vec<f64>,
    /// Where the sums lie by name and chunk.
    order: Vec<usize>,
}

impl PartedNorm {
    /// For a worker that owns everything.
    pub fn whole(slots: &[Slot]) -> Self {
        Self { own: GlobalNorm::new(slots), parts: None }
    }

    /// For a worker that owns its part of every bucket.
    pub fn parted(blueprint: &Blueprint, buckets: &Buckets, overlap: &Overlap) -> Self {
        let comm = overlap.comm();
        let slots_of = |w: usize| buckets.slots(blueprint, |bucket: &Bucket| bucket.part(w));
        let mut chunks = Vec::new();
        let mut lens = Vec::new();
        for worker in 0..comm.num_members() {
            let first = chunks.len();
            for slot in sorted(slots_of(worker)) {
                let offsets = (0..slot.range.len()).step_by(CHUNK_LEN);
                chunks.extend(offsets.map(|offset| (slot.name.clone(), slot.first + offset)));
            }
            lens.push(chunks.len() - first);
        }
        let mut order: Vec<usize> = (0..chunks.len()).collect();
        order.sort_by(|&a, &b| chunks[a].cmp(&chunks[b]));
        let gathered = vec![0.0; chunks.len()];
        let own = GlobalNorm::new(&slots_of(comm.position()));
        Self { own, parts: Some(Parts { lens, gathered, order }) }
    }

    /// Measures what this worker owns; `grads` gives it by bucket.
    pub fn measure<'a>(&mut self, cpu: &Cpu, grads: impl Fn(usize) -> &'a [f32]) {
        self.own.chunk_sums(cpu, grads);
    }

    /// The norm over all workers' gradients and the scale that brings it within `limit`.
    pub fn clip(&mut self, limit: f64, overlap: &mut Overlap) -> Result<Clip, CommError> {
        let own = self.own.last_sums();
        let Some(Parts { lens, gathered, order }) = &mut self.parts else {
            return Ok(Clip::new(own.iter().sum(), limit));
        };
        let start: usize = lens[..overlap.comm().position()].iter().sum();
        gathered[start..start + own.len()].copy_from_slice(own);
        overlap.call(|comm| comm.all_gather_parts(gathered, lens))?;
        Ok(Clip::new(order.iter().map(|&index| gathered[index]).sum(), limit))
    }
}

/// In the order in which [`GlobalNorm`] sums chunks.
fn sorted(mut slots: Vec<Slot>) -> Vec<Slot> {
    slots.sort_by(|a, b| (&a.name, a.first).cmp(&(&b.name, b.first)));
    slots
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{MODEL, on_workers};
    use lockstep_config::Model;
    use lockstep_model::describe;
    use lockstep_tensor::Isa;
    use lockstep_tensor::random::Key;

    /// Gradients of all buckets whose squares differ so much that their order matters.
    fn grads(buckets: &Buckets) -> Vec<Vec<f32>> {
        let grad = |(index, bucket): (usize, &Bucket)| {
            let key = Key::new(9, "gradient").with(index as u64);
            let value = move |i| key.normal(i) * 2.0_f32.powi((i / 1000 % 9) as i32);
            (0..bucket.len as u64).map(value)
        };
        buckets.list.iter().enumerate().map(grad).map(Iterator::collect).collect()
    }

    #[test]
    fn any_number_of_workers_measures_the_norm_of_one() {
        let cpu = Cpu::single(Isa::detect());
        let blueprint = describe(&Model { tied: false, ..MODEL });
        for min_len in [0, 40_000, usize::MAX] {
            let whole = Buckets::new(&blueprint, min_len, 1);
            let grads = grads(&whole);
            let slots = whole.slots(&blueprint, |bucket| 0..bucket.len);
            let expected = GlobalNorm::new(&slots).clip(&cpu, |bucket| &grads[bucket], 0.5);
            assert!(expected.scale < 1.0, "there is something to clip");
            for num_workers in 1..=5 {
                let buckets = Buckets::new(&blueprint, min_len, num_workers);
                let clips = on_workers(num_workers, false, |mut overlap| {
                    let worker = overlap.comm().position();
                    let mut norm = PartedNorm::parted(&blueprint, &buckets, &overlap);
                    norm.measure(&Cpu::single(Isa::detect()), |bucket| {
                        &grads[bucket][buckets.list[bucket].part(worker)]
                    });
                    norm.clip(0.5, &mut overlap).unwrap()
                });
                for clip in clips {
                    assert_eq!(clip.norm.to_bits(), expected.norm.to_bits(), "{num_workers}");
                    assert_eq!(clip, expected);
                }
            }
        }
    }
}
