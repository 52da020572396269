//! Norms of gradients and parameters that are sharded over ranks.
//!
//! Each rank sums the squares of its own chunks; the sums are all-gathered, and every rank adds all
//! of them by (parameter name, chunk). Shards end at whole chunks, so the addends, their order and
//! hence the norm equal those of one rank, bit for bit.

use crate::loss_scaling::underflows_fp16;
use crate::overlap::Overlap;
use lockstep_comm::CommError;
use lockstep_optim::{CHUNK_LEN, Clip, ClipPlan, GlobalNorm, Slot};
use lockstep_tensor::device::{Device, Result as DeviceResult, View};

/// Norm over the gradients or parameters of all ranks.
#[derive(Debug)]
pub struct ShardedNorm {
    own: GlobalNorm,
    /// Number of values that each rank contributes, if sharded: its chunk sums and its underflow
    /// count.
    lens: Option<Vec<usize>>,
    /// Values of all ranks, concatenated.
    gathered: Vec<f64>,
    /// Index of each sum in (name, chunk) order, and its tensor.
    order: Vec<(usize, usize)>,
    /// `fp16` underflows of this rank, of all ranks, and the number of gradients.
    own_underflows: u64,
    num_underflows: u64,
    num_elements: usize,
}

impl ShardedNorm {
    /// For a rank that owns everything.
    pub fn whole(slots: &[Slot]) -> Self {
        let own = GlobalNorm::new(slots);
        let order: Vec<_> = own.by_tensor().map(|(tensor, _)| tensor).enumerate().collect();
        let gathered = vec![0.0; order.len()];
        let num_elements = slots.iter().map(|slot| slot.range.len()).sum();
        Self {
            own,
            lens: None,
            gathered,
            order,
            own_underflows: 0,
            num_underflows: 0,
            num_elements,
        }
    }

    /// For a rank that owns a shard of every bucket; `slots_of` lists the slots of each rank, every
    /// piece of a parameter once.
    pub fn sharded(slots_of: impl Fn(usize) -> Vec<Slot>, overlap: &Overlap) -> Self {
        let comm = overlap.control();
        let mut chunks = Vec::new();
        let mut lens = Vec::new();
        let (mut num_elements, mut end) = (0, 0);
        for worker in 0..comm.group_size() {
            let first = chunks.len();
            for slot in sorted(slots_of(worker)) {
                let offsets = (0..slot.range.len()).step_by(CHUNK_LEN);
                num_elements += slot.range.len();
                chunks.extend(offsets.map(|offset| (slot.tensor, slot.first + offset, worker)));
            }
            lens.push(chunks.len() - first + 1);
            end += lens[worker];
        }
        // Tensor numbers follow the order of names.
        let mut order: Vec<usize> = (0..chunks.len()).collect();
        order.sort_by_key(|&index| chunks[index]);
        // Each rank's count follows its chunks and shifts those of later ranks.
        let place = |index: usize| (index + chunks[index].2, chunks[index].0);
        let order: Vec<_> = order.into_iter().map(place).collect();
        let own = GlobalNorm::new(&slots_of(comm.group_rank()));
        let (lens, gathered) = (Some(lens), vec![0.0; end]);
        Self { own, lens, gathered, order, own_underflows: 0, num_underflows: 0, num_elements }
    }

    /// Measures the owned gradients; `grads` returns them by bucket.
    pub fn measure_grads<'a>(
        &mut self,
        device: &dyn Device,
        grads: impl Fn(usize) -> DeviceResult<View<'a>>,
    ) -> DeviceResult<()> {
        self.own.chunk_sums_on(device, |slot| Ok(grads(slot.block)?.range(slot.grads.clone())))
    }

    /// Counts owned gradients that `fp16` would round to zero; zero unless `is_fp16`. `grads`
    /// returns them by bucket.
    pub fn count_underflows<'a>(&mut self, is_fp16: bool, grads: impl Fn(usize) -> &'a [f32]) {
        let underflows_of = |slot: &Slot| {
            let values = &grads(slot.block)[slot.grads.clone()];
            values.iter().filter(|value| underflows_fp16(**value)).count() as u64
        };
        self.own_underflows =
            if is_fp16 { self.own.slots().iter().map(underflows_of).sum() } else { 0 };
    }

    /// Fraction of all gradients that underflowed when they were clipped last.
    pub fn underflow_fraction(&self) -> f64 {
        self.num_underflows as f64 / self.num_elements.max(1) as f64
    }

    /// Measures the owned parameters; `params` returns them by bucket.
    pub fn measure_params<'a>(
        &mut self,
        device: &dyn Device,
        params: impl Fn(usize) -> DeviceResult<View<'a>>,
    ) -> DeviceResult<()> {
        self.own.chunk_sums_on(device, |slot| Ok(params(slot.block)?.range(slot.range.clone())))
    }

    /// Whether ranks measure parts.
    pub fn is_sharded(&self) -> bool {
        self.lens.is_some()
    }

    /// Whether ranks contribute these numbers of values.
    pub fn has_lens(&self, lens: &[usize]) -> bool {
        self.lens.as_deref() == Some(lens)
    }

    /// Computes sums on an accelerator.
    pub fn allocate_on(&mut self, accelerator: &dyn Device) -> DeviceResult<()> {
        self.own.allocate_on(accelerator)
    }

    /// Norm over all ranks' gradients, and the clipping factors.
    pub fn clip(&mut self, plan: &ClipPlan, overlap: &mut Overlap) -> Result<Clip, CommError> {
        self.gather(overlap)?;
        Ok(Clip::new(plan, self.by_tensor()))
    }

    /// Norm of every tensor over all ranks, by tensor number; 0 where it was not measured.
    pub fn by_name(
        &mut self,
        norms: &mut Vec<f64>,
        num_tensors: usize,
        overlap: &mut Overlap,
    ) -> Result<(), CommError> {
        self.gather(overlap)?;
        norms.clear();
        norms.resize(num_tensors, 0.0);
        for (tensor, sum) in self.by_tensor() {
            norms[tensor] += sum;
        }
        for norm in norms {
            *norm = norm.sqrt();
        }
        Ok(())
    }

    /// All-gathers the sums.
    fn gather(&mut self, overlap: &mut Overlap) -> Result<(), CommError> {
        let (own, gathered) = (self.own.last_sums(), &mut self.gathered);
        let Some(lens) = &self.lens else {
            gathered.copy_from_slice(own);
            self.num_underflows = self.own_underflows;
            return Ok(());
        };
        let start: usize = lens[..overlap.control().group_rank()].iter().sum();
        gathered[start..start + own.len()].copy_from_slice(own);
        gathered[start + own.len()] = self.own_underflows as f64;
        overlap.call(|comm| comm.all_gather_parts(gathered, lens))?;
        let ends = lens.iter().scan(0, |end, len| {
            *end += len;
            Some(*end)
        });
        self.num_underflows = ends.map(|end| gathered[end - 1] as u64).sum();
        Ok(())
    }

    /// Sums in the order in which they are added, with their tensors.
    fn by_tensor(&self) -> impl Iterator<Item = (usize, f64)> {
        self.order.iter().map(|&(index, tensor)| (tensor, self.gathered[index]))
    }
}

/// Slots in the order in which [`GlobalNorm`] sums chunks.
fn sorted(mut slots: Vec<Slot>) -> Vec<Slot> {
    slots.sort_by(|a, b| (&a.name, a.first).cmp(&(&b.name, b.first)));
    slots
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buckets::{Bucket, Buckets};
    use crate::testing::{MODEL, on_workers};
    use lockstep_config::Model;
    use lockstep_model::describe;
    use lockstep_tensor::random::Key;
    use lockstep_tensor::{Cpu, Isa};

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
        let plan = ClipPlan::global(0.5);
        let blueprint = describe(&Model { tied: false, ..MODEL });
        for min_len in [0, 40_000, usize::MAX] {
            let whole = Buckets::new(&blueprint, min_len, 1);
            let grads = grads(&whole);
            let slots = whole.slots(&blueprint, |bucket| 0..bucket.len);
            let expected = GlobalNorm::new(&slots).clip(&cpu, |bucket| &grads[bucket], &plan);
            assert!(expected.scale(0) < 1.0, "there is something to clip");
            for num_workers in 1..=5 {
                let buckets = Buckets::new(&blueprint, min_len, num_workers);
                let clips = on_workers(num_workers, false, |mut overlap| {
                    let worker = overlap.comm().group_rank();
                    let slots_of = |w| buckets.slots(&blueprint, |b: &Bucket| b.part(w));
                    let mut norm = ShardedNorm::sharded(slots_of, &overlap);
                    let own = |bucket: usize| {
                        Ok(View::of(&grads[bucket][buckets.list[bucket].part(worker)]))
                    };
                    norm.measure_grads(&Cpu::single(Isa::detect()), own).unwrap();
                    norm.clip(&plan, &mut overlap).unwrap()
                });
                for clip in clips {
                    assert_eq!(clip.norm.to_bits(), expected.norm.to_bits(), "{num_workers}");
                    assert_eq!(clip, expected);
                }
            }
        }
    }
}
