//! The compressed exchange of a step: local gradients in, the sum of all ranks' compressed
//! gradients out, bucket by bucket.

use super::bucket_exchange::{BucketExchange, ExchangeStep};
use super::hierarchy::Hierarchy;
use super::{CompressionPlan, CompressionStats};
use crate::param_store::ParamStore;
use lockstep_comm::CommError;
use lockstep_tensor::Cpu;

/// Compression state of a rank.
pub(super) struct Compression {
    pub(super) plan: CompressionPlan,
    /// Step at which the second moments of 1-bit Adam freeze.
    pub(super) freezes_at: Option<u64>,
    pub(super) hierarchy: Hierarchy,
    /// Buckets with trained tensors, ascending.
    pub(super) buckets: Vec<BucketExchange>,
    /// Current step.
    pub(super) step: u64,
    /// Number of buckets decoded in the current step.
    pub(super) num_decoded: usize,
    /// Statistics of the last step.
    pub(super) stats: Option<CompressionStats>,
}

impl Compression {
    fn at(&self) -> ExchangeStep {
        let leaders = &self.hierarchy.leaders;
        let (rank, num_workers) = (leaders.group_rank(), leaders.group_size());
        ExchangeStep { plan: self.plan, step: self.step, rank, num_workers }
    }

    /// Begins the exchanges of a step.
    pub(super) fn begin(&mut self, step: u64) {
        (self.step, self.num_decoded) = (step, 0);
        let at = self.at();
        self.buckets.iter_mut().for_each(|own| own.begin(&at));
    }

    /// Sums a bucket within this rank's group, in the background.
    pub(super) fn reduce_in_group(
        &mut self,
        bucket: usize,
        store: &mut ParamStore,
    ) -> Result<(), CommError> {
        let group = self.hierarchy.group.as_ref().expect("there are groups");
        let own = find(&mut self.buckets, bucket);
        own.load(store.complete_grads(bucket));
        own.start_in_group(group, &mut store.overlap)
    }

    /// Compresses a bucket.
    pub(super) fn encode(
        &mut self,
        cpu: &Cpu,
        bucket: usize,
        store: &mut ParamStore,
    ) -> Result<(), CommError> {
        let at = self.at();
        let own = find(&mut self.buckets, bucket);
        if self.hierarchy.group.is_some() {
            own.finish_in_group(&mut store.overlap)?;
        } else {
            own.load(store.complete_grads(bucket));
        }
        own.encode(cpu, &at);
        Ok(())
    }

    /// Starts a call of a bucket's exchange.
    pub(super) fn exchange(
        &mut self,
        cpu: &Cpu,
        (bucket, part): (usize, usize),
        store: &mut ParamStore,
    ) -> Result<(), CommError> {
        let own = find(&mut self.buckets, bucket);
        own.start(cpu, own.stages[part], &self.hierarchy.leaders, &mut store.overlap)
    }

    /// Waits for a bucket and decodes it. The last one ends the exchange of the step: whether a
    /// step counts depends on all buckets.
    pub(super) fn decode(
        &mut self,
        cpu: &Cpu,
        bucket: usize,
        store: &mut ParamStore,
    ) -> Result<(), CommError> {
        let at = self.at();
        find(&mut self.buckets, bucket).decode(cpu, &at, &mut store.overlap)?;
        self.num_decoded += 1;
        if self.num_decoded < self.buckets.len() {
            return Ok(());
        }
        let is_finite =
            self.buckets.iter().flat_map(|own| &own.total).all(|value| value.is_finite());
        for own in &mut self.buckets {
            own.end(cpu, &self.plan, is_finite);
            if self.hierarchy.group.is_none() {
                own.unload(store.own_grads_mut(own.bucket));
            }
        }
        Ok(())
    }

    /// Broadcasts the sum of a bucket within this rank's group.
    pub(super) fn broadcast_in_group(
        &mut self,
        bucket: usize,
        store: &mut ParamStore,
    ) -> Result<(), CommError> {
        let group = self.hierarchy.group.as_ref().expect("there are groups");
        let own = find(&mut self.buckets, bucket);
        own.finish_in_group(&mut store.overlap)?;
        store.overlap.call_on(group, |comm| comm.broadcast(&mut own.total, 0))?;
        own.unload(store.own_grads_mut(bucket));
        Ok(())
    }

    /// Squared norms of the compression error, the uncompressed gradients and the residual, on this
    /// rank.
    pub(super) fn observe(&self) -> [f64; 3] {
        let square = |value: f32| f64::from(value) * f64::from(value);
        let (mut error, mut norm, mut left) = (0.0, 0.0, 0.0);
        for own in &self.buckets {
            let pairs = own.uncompressed.iter().zip(&own.sent);
            error =
                pairs.fold(error, |sum, (uncompressed, sent)| sum + square(uncompressed - sent));
            norm = own.uncompressed.iter().fold(norm, |sum, grad| sum + square(*grad));
            left = own.residual.iter().fold(left, |sum, left| sum + square(*left));
        }
        [error, norm, left]
    }

    /// Bytes that this rank sends in a step.
    pub(super) fn message_bytes(&self) -> u64 {
        self.buckets.iter().map(BucketExchange::message_bytes).sum::<usize>() as u64
    }

    /// Number of elements of all gradients.
    pub(super) fn num_params(&self) -> usize {
        self.buckets.iter().map(|own| own.total.len()).sum()
    }

    /// Number of elements held.
    pub(super) fn elements_held(&self) -> usize {
        let elements = self.buckets.iter().map(BucketExchange::elements_held).sum::<usize>();
        let bytes = self.buckets.iter().map(BucketExchange::wire_bytes).sum::<usize>();
        elements + bytes.div_ceil(size_of::<f32>())
    }
}

fn find(buckets: &mut [BucketExchange], bucket: usize) -> &mut BucketExchange {
    let found = buckets.binary_search_by_key(&bucket, |own| own.bucket);
    &mut buckets[found.expect("the program exchanges buckets with tensors")]
}

#[cfg(test)]
mod tests {
    use super::super::bucket_exchange::Tensor;
    use super::super::{Method, Shape, random_k};
    use super::*;
    use crate::overlap::Overlap;
    use crate::testing::on_workers;
    use lockstep_optim::Slot;
    use lockstep_tensor::Isa;
    use lockstep_tensor::random::Key;

    const LEN: usize = 64;

    fn bucket(plan: &CompressionPlan) -> BucketExchange {
        let slot = Slot {
            block: 0,
            name: "weight".to_owned(),
            tensor: 0,
            piece: 0,
            range: 0..LEN,
            grads: 0..LEN,
            first: 0,
            shape: [1, LEN],
            decay: false,
            matrix: None,
        };
        let shape = Shape { len: LEN, row_len: 8, number: 0 };
        let method = Some(plan.method);
        let tensor = Tensor { slot, shape, start: 0, method, now: None, power: 0..0 };
        BucketExchange::new(0, vec![tensor], plan, true)
    }

    /// One exchange of gradients of ones, one of which is replaced by `other` on rank 1.
    fn exchange(
        own: &mut BucketExchange,
        plan: CompressionPlan,
        step: u64,
        (place, other): (usize, f32),
        overlap: &mut Overlap,
    ) {
        let leaders = overlap.comm().clone();
        let (rank, num_workers) = (leaders.group_rank(), leaders.group_size());
        let (cpu, at) =
            (Cpu::single(Isa::detect()), ExchangeStep { plan, step, rank, num_workers });
        own.uncompressed.fill(1.0);
        if rank == 1 {
            own.uncompressed[place] = other;
        }
        own.begin(&at);
        own.encode(&cpu, &at);
        for stage in own.stages.clone() {
            own.start(&cpu, stage, &leaders, overlap).unwrap();
        }
        own.decode(&cpu, &at, overlap).unwrap();
        let is_finite = own.total.iter().all(|value| value.is_finite());
        own.end(&cpu, &plan, is_finite);
    }

    #[test]
    fn a_value_that_random_k_does_not_draw_is_reported_and_not_kept() {
        let method = Method::RandomK { ratio: 1.0 / 16.0 };
        let plan = CompressionPlan { method, error_feedback: true, seed: 7, group: 0 };
        on_workers(2, false, |mut overlap| {
            let mut own = bucket(&plan);
            let mut exchange = |own: &mut BucketExchange, step, other| {
                exchange(own, plan, step, other, &mut overlap);
            };
            exchange(&mut own, 0, (0, 1.0));
            let (sent, kept) = (own.sent.clone(), own.residual.clone());
            assert!(own.total.iter().all(|value| value.is_finite()));
            assert!(kept.iter().any(|value| *value > 0.0), "the rest is kept");
            let drawn = |step: u64| {
                let key = Key::new(7, "random-k").with(step).with(0);
                random_k::places(LEN, 1.0 / 16.0, key).map(|(place, _)| place).collect::<Vec<_>>()
            };
            let places = drawn(1);
            assert_eq!(sent.iter().filter(|value| **value != 0.0).count(), places.len());
            let elsewhere = (0..LEN).find(|place| !places.contains(place)).unwrap();
            for other in [f32::NAN, f32::INFINITY] {
                exchange(&mut own, 1, (elsewhere, other));
                assert!(own.total.iter().any(|value| !value.is_finite()), "all ranks skip");
                assert_eq!(own.residual, kept, "a skipped step leaves the residual as it is");
            }
            exchange(&mut own, 1, (elsewhere, 1.0));
            assert!(own.total.iter().chain(&own.residual).all(|value| value.is_finite()));
        });
    }

    #[test]
    fn a_call_in_the_background_gives_the_bits_of_a_direct_one() {
        let methods = [
            Method::Bf16,
            Method::Int8,
            Method::TopK { ratio: 0.1 },
            Method::RandomK { ratio: 0.1 },
            Method::Sign,
            Method::PowerSgd { rank: 1 },
        ];
        for method in methods {
            let plan = CompressionPlan { method, error_feedback: true, seed: 3, group: 0 };
            let run = |is_overlapped| {
                on_workers(2, is_overlapped, |mut overlap| {
                    let mut own = bucket(&plan);
                    (0..3).for_each(|step| {
                        exchange(&mut own, plan, step, (5, 0.3), &mut overlap);
                    });
                    (own.total, own.residual)
                })
            };
            assert_eq!(run(true), run(false), "{method:?}");
        }
    }
}
