//! The exchange of a step: this worker's gradients in, the sum of what all have written out.

use super::power::{Thin, expand, orthonormalize, project, project_back};
use super::tiers::Tiers;
use super::{CompressionPlan, Method, Observed, Shape, dgc, halves, one_bit, random_k, sign};
use crate::replica::Replica;
use half::{bf16, f16};
use lockstep_comm::{CommError, Reduction, Traffic};
use lockstep_optim::Slot;
use lockstep_tensor::random::Key;
use std::ops::Range;

/// What a worker keeps to compress its gradients.
pub struct Compression {
    pub(super) plan: CompressionPlan,
    tiers: Tiers,
    pub(super) tensors: Vec<Tensor>,
    /// What was left out so far, tensor behind tensor.
    pub(super) residual: Vec<f32>,
    /// The momentum of 1-bit Adam, or this worker's own of DGC.
    pub(super) momentum: Vec<f32>,
    /// PowerSGD's thin matrices of the last step.
    pub(super) power: Vec<f32>,
    /// What this worker would send whole: its gradients and what it had left out.
    wanted: Vec<f32>,
    /// What it does send, as it arrives.
    sent: Vec<f32>,
    /// The sum over all workers.
    total: Vec<f32>,
    own: Vec<u8>,
    all: Vec<u8>,
    thin: Vec<f32>,
}

/// One tensor of gradients.
pub(super) struct Tensor {
    pub(super) slot: Slot,
    shape: Shape,
    /// Where it begins in flat buffers.
    start: usize,
    /// How it is written; nothing where it always travels as it is.
    pub(super) method: Option<Method>,
    /// The same in the step at work.
    now: Option<Method>,
    /// Its thin matrix.
    pub(super) power: Range<usize>,
}

impl Tensor {
    pub(super) fn flat(&self) -> Range<usize> {
        self.start..self.start + self.shape.len
    }

    /// Where the power method starts.
    fn first_key(&self, seed: u64) -> Key {
        Key::new(seed, "power-sgd").with(self.shape.number)
    }

    /// Its thin matrices, where it has some.
    fn thin(&self) -> Option<Thin> {
        match self.method {
            Some(Method::PowerSgd { rank }) => Some(self.shape.thin(rank)),
            _ => None,
        }
    }
}

impl Replica {
    /// Gets ready to compress gradients; all workers do so together. Only where each of them holds
    /// the whole model. `method_of` says how a tensor is written, by its name: as all, in a way of
    /// its own, or not at all.
    pub fn compress(
        &mut self,
        plan: CompressionPlan,
        method_of: impl Fn(&str) -> Option<Method>,
    ) -> Result<(), CommError> {
        assert!(self.plan.is_replicated(), "gradients are whole");
        let tiers = Tiers::new(self.groups.data(), plan.group)?;
        let num_workers = tiers.between.group_size();
        let (mut start, mut power) = (0, Vec::new());
        let mut tensors = Vec::new();
        for slot in self.slots() {
            let shape = Shape::of(&slot, &self.blueprint);
            let len = shape.len;
            let method = method_of(&slot.name);
            let method = method.filter(|_| tiers.writes());
            let method = method.filter(|method| !method.leaves_alone(&shape, num_workers));
            let first = power.len();
            let mut tensor =
                Tensor { slot, shape, start, method, now: method, power: first..first };
            if let Some(thin) = tensor.thin() {
                power.extend(thin.first_q(tensor.first_key(plan.seed)));
                tensor.power.end = power.len();
            }
            tensors.push(tensor);
            start += len;
        }
        let (zeros, writes) = (|| vec![0.0; start], tiers.writes());
        self.compression = Some(Compression {
            plan,
            tiers,
            tensors,
            residual: if plan.error_feedback && writes { zeros() } else { Vec::new() },
            momentum: if plan.method.has_momentum() { zeros() } else { Vec::new() },
            power,
            wanted: zeros(),
            sent: zeros(),
            total: zeros(),
            own: Vec::new(),
            all: Vec::new(),
            thin: Vec::new(),
        });
        Ok(())
    }

    /// Replaces this worker's gradients, which were not added up, by the sum of what all workers
    /// write of theirs. `step` decides what is drawn.
    pub fn exchange_compressed(&mut self, step: u64) -> Result<Observed, CommError> {
        let Some(mut compression) = self.compression.take() else { return Ok(Observed::default()) };
        let Compression { tensors, wanted, .. } = &mut compression;
        for tensor in &*tensors {
            let grads = &self.store.own_grads(tensor.slot.block)[tensor.slot.grads.clone()];
            wanted[tensor.flat()].copy_from_slice(grads);
        }
        compression.tiers.gather(&mut compression.wanted)?;
        if compression.tiers.writes() {
            compression.run(step)?;
        }
        compression.tiers.spread(&mut compression.total)?;
        for tensor in &compression.tensors {
            let total = &compression.total[tensor.flat()];
            let grads = self.store.own_grads_mut(tensor.slot.block);
            grads[tensor.slot.grads.clone()].copy_from_slice(total);
        }
        let own = compression.observe();
        self.compression = Some(compression);
        self.over_workers(own)
    }

    /// Takes note of a step whose gradients travelled as they are.
    pub fn follow_uncompressed(&mut self) {
        let Self { compression: Some(compression), store, .. } = self else { return };
        let Compression { plan, tensors, momentum, tiers, .. } = compression;
        let num_workers = tiers.between.group_size();
        if momentum.is_empty() {
            return;
        }
        for tensor in &*tensors {
            let (Slot { block, grads, .. }, flat) = (&tensor.slot, tensor.flat());
            match plan.method {
                Method::OneBitAdam { beta1 } => {
                    let grads = &store.own_grads(*block)[grads.clone()];
                    one_bit::follow(beta1, &mut momentum[flat], grads);
                }
                Method::Dgc { momentum: factor, .. } => {
                    let grads = &mut store.own_grads_mut(*block)[grads.clone()];
                    dgc::follow(factor, num_workers, &mut momentum[flat], grads);
                }
                _ => {}
            }
        }
    }

    fn over_workers(&mut self, own: [f64; 3]) -> Result<Observed, CommError> {
        let mut all = vec![0.0; 3 * self.groups.world().group_size()];
        self.store.overlap.call(|comm| comm.all_gather(&own, &mut all))?;
        let (all, _) = all.as_chunks::<3>();
        let sum = |index: usize| all.iter().fold(0.0, |sum, own| sum + own[index]);
        let compression = self.compression.as_ref().expect("it was put back");
        let num_writers = compression.tiers.between.group_size();
        Ok(Observed {
            delta: if sum(1) > 0.0 { sum(0) / sum(1) } else { 0.0 },
            residual_norm: all.iter().map(|own| own[2].sqrt()).sum::<f64>() / num_writers as f64,
            message_bytes: compression.message_bytes(),
            dense_bytes: (compression.total.len() * size_of::<f32>()) as u64,
        })
    }

    /// What compressed gradients have weighed on this worker's wires.
    pub(crate) fn traffic_compressed(&self) -> Traffic {
        let of = |compression: &Compression| compression.tiers.traffic();
        self.compression.as_ref().map_or(Traffic::default(), of)
    }
}

impl Compression {
    /// From `wanted` to `total`; what is left out is the new residual.
    fn run(&mut self, step: u64) -> Result<(), CommError> {
        let num_workers = self.tiers.between.group_size();
        let feedback = self.plan.error_feedback;
        for tensor in &mut self.tensors {
            let now = |method: Method| method.of_tensor_in(step, &tensor.shape, num_workers);
            tensor.now = tensor.method.and_then(now);
        }
        match self.plan.method {
            Method::OneBitAdam { beta1 } => {
                one_bit::share(beta1, num_workers, &self.momentum, &mut self.wanted);
            }
            Method::Dgc { momentum, .. } => {
                dgc::correct(momentum, &mut self.momentum, &mut self.wanted);
            }
            _ => {}
        }
        if feedback {
            self.wanted.iter_mut().zip(&self.residual).for_each(|(g, left)| *g += left);
        }
        self.total.fill(0.0);
        self.dense()?;
        match self.plan.method {
            Method::Bf16 => self.halves::<bf16>()?,
            Method::F16 => self.halves::<f16>()?,
            Method::RandomK { .. } => self.few(step)?,
            Method::PowerSgd { .. } => self.thin()?,
            _ => self.messages(step)?,
        }
        // A step that will be skipped must not spoil those after it.
        let is_finite = self.total.iter().all(|value| value.is_finite());
        if feedback && is_finite {
            let left = self.wanted.iter().zip(&self.sent).map(|(wanted, sent)| wanted - sent);
            self.residual.iter_mut().zip(left).for_each(|(kept, left)| *kept = left);
        }
        match self.plan.method {
            Method::OneBitAdam { beta1 } if is_finite => {
                one_bit::take(beta1, &mut self.momentum, &mut self.total);
            }
            Method::Dgc { .. } if is_finite => self.mask(),
            // What is no number would stay so.
            Method::Dgc { .. } => self.momentum.fill(0.0),
            Method::PowerSgd { .. } if !is_finite => self.begin_again(),
            _ => {}
        }
        Ok(())
    }

    /// Thin matrices that are no numbers would stay so.
    fn begin_again(&mut self) {
        for tensor in &self.tensors {
            let Some(thin) = tensor.thin() else { continue };
            let q = thin.first_q(tensor.first_key(self.plan.seed));
            self.power[tensor.power.clone()].copy_from_slice(&q);
        }
    }

    /// Ends the momentum of what was sent.
    fn mask(&mut self) {
        for tensor in self.tensors.iter().filter(|tensor| tensor.now.is_some()) {
            let sent = &self.sent[tensor.flat()];
            dgc::mask(self.momentum.get_mut(tensor.flat()).unwrap_or_default(), sent);
        }
    }

    /// Adds up the tensors that travel as they are, together.
    fn dense(&mut self) -> Result<(), CommError> {
        let Self { tensors, wanted, sent, total, thin, tiers, .. } = self;
        let all = || tensors.iter().filter(|tensor| tensor.now.is_none()).map(Tensor::flat);
        thin.clear();
        all().for_each(|flat| thin.extend(&wanted[flat]));
        if thin.is_empty() {
            return Ok(());
        }
        tiers.between.all_reduce(thin, Reduction::Sum)?;
        let mut rest = &thin[..];
        for flat in all() {
            let (own, behind) = rest.split_at(flat.len());
            total[flat.clone()].copy_from_slice(own);
            sent[flat.clone()].copy_from_slice(&wanted[flat]);
            rest = behind;
        }
        Ok(())
    }

    /// Methods whose messages go from everybody to everybody.
    fn messages(&mut self, step: u64) -> Result<(), CommError> {
        let Self { plan, tensors, wanted, sent, total, own, all, tiers, .. } = self;
        let key = Key::new(plan.seed, "compress").with(step).with(tiers.between.group_rank() as u64);
        own.clear();
        for tensor in &*tensors {
            let Some(method) = tensor.now else { continue };
            let (shape, flat, start) = (&tensor.shape, tensor.flat(), own.len());
            method.encode(shape, &wanted[flat.clone()], key.with(shape.number), own);
            sent[flat.clone()].fill(0.0);
            method.decode(shape, &own[start..], &mut sent[flat]);
        }
        if own.is_empty() {
            return Ok(());
        }
        all.resize(own.len() * tiers.between.group_size(), 0);
        tiers.between.all_gather(own, all)?;
        let is_vote = plan.method == Method::Sign && !plan.error_feedback;
        let mut start = 0;
        for tensor in &*tensors {
            let Some(method) = tensor.now else { continue };
            let shape = &tensor.shape;
            let end = start + method.message_len(shape);
            let messages = all.chunks_exact(own.len()).map(|message| &message[start..end]);
            let into = &mut total[tensor.flat()];
            if is_vote {
                sign::vote(&messages.collect::<Vec<_>>(), shape.row_len, into);
            } else {
                messages.for_each(|message| method.decode(shape, message, into));
            }
            start = end;
        }
        Ok(())
    }

    /// Two bytes an element: everybody's are added up.
    fn halves<T: halves::Half>(&mut self) -> Result<(), CommError> {
        let Self { tensors, wanted, sent, total, tiers, .. } = self;
        let all = || tensors.iter().filter(|tensor| tensor.now.is_some()).map(Tensor::flat);
        let mut room: Vec<T> = Vec::new();
        for flat in all() {
            halves::round(&wanted[flat.clone()], &mut sent[flat], &mut room);
        }
        if room.is_empty() {
            return Ok(());
        }
        tiers.between.all_reduce(&mut room, Reduction::Sum)?;
        let mut sums = room.as_slice();
        for flat in all() {
            let (own, rest) = sums.split_at(flat.len());
            T::widen(own, &mut total[flat]);
            sums = rest;
        }
        Ok(())
    }

    /// Random-k: everybody's values of the same places are added up.
    fn few(&mut self, step: u64) -> Result<(), CommError> {
        let Self { plan, tensors, wanted, sent, total, thin, tiers, .. } = self;
        let key = Key::new(plan.seed, "random-k").with(step);
        let some = || tensors.iter().filter(|tensor| tensor.now.is_some());
        let places = |tensor: &Tensor| {
            let Shape { len, number, .. } = tensor.shape;
            let start = tensor.start;
            let Some(Method::RandomK { ratio }) = tensor.now else { unreachable!("of one kind") };
            let scale = |len: usize| if plan.error_feedback { 1.0 } else { len as f32 };
            random_k::places(len, ratio, key.with(number))
                .map(move |(place, len)| (start + place, scale(len)))
        };
        thin.clear();
        for tensor in some() {
            sent[tensor.flat()].fill(0.0);
            for (place, scale) in places(tensor) {
                sent[place] = wanted[place] * scale;
                thin.push(sent[place]);
            }
        }
        if thin.is_empty() {
            return Ok(());
        }
        tiers.between.all_reduce(thin, Reduction::Sum)?;
        let places = some().flat_map(|tensor| places(tensor).map(|(place, _)| place));
        places.zip(&*thin).for_each(|(place, sum)| total[place] = *sum);
        Ok(())
    }

    /// PowerSGD: two thin matrices of every tensor are added up.
    fn thin(&mut self) -> Result<(), CommError> {
        let Self { tensors, wanted, sent, total, power, thin, tiers, .. } = self;
        let some = || tensors.iter().filter_map(|tensor| Some((tensor, tensor.thin()?)));
        thin.resize(some().map(|(_, shape)| shape.rows * shape.rank).sum(), 0.0);
        if thin.is_empty() {
            return Ok(());
        }
        let mut at = 0;
        for (tensor, shape) in some() {
            let p = &mut thin[at..at + shape.rows * shape.rank];
            project(shape, &wanted[tensor.flat()], &power[tensor.power.clone()], p);
            at += p.len();
        }
        tiers.between.all_reduce(thin, Reduction::Sum)?;
        at = 0;
        for (tensor, shape) in some() {
            let flat = tensor.flat();
            let p = &mut thin[at..at + shape.rows * shape.rank];
            let q = &mut power[tensor.power.clone()];
            orthonormalize(shape, p);
            project_back(shape, &wanted[flat.clone()], p, q);
            expand(shape, p, q, &mut sent[flat]);
            at += p.len();
        }
        tiers.between.all_reduce(power, Reduction::Sum)?;
        at = 0;
        for (tensor, shape) in some() {
            let p = &thin[at..at + shape.rows * shape.rank];
            expand(shape, p, &power[tensor.power.clone()], &mut total[tensor.flat()]);
            at += p.len();
        }
        Ok(())
    }

    /// The squares of the error, of what was to be sent, and of what is kept, on this worker.
    fn observe(&self) -> [f64; 3] {
        let square = |value: f32| f64::from(value) * f64::from(value);
        let pairs = self.wanted.iter().zip(&self.sent);
        let error = pairs.fold(0.0, |sum, (wanted, sent)| sum + square(wanted - sent));
        let norm = self.wanted.iter().fold(0.0, |sum, wanted| sum + square(*wanted));
        let left = self.residual.iter().fold(0.0, |sum, left| sum + square(*left));
        [error, norm, left]
    }

    /// Bytes that this worker writes in a step.
    fn message_bytes(&self) -> u64 {
        let of = |tensor: &Tensor| match tensor.now {
            None => tensor.shape.len * size_of::<f32>(),
            Some(method) => method.written_bytes(&tensor.shape),
        };
        self.tensors.iter().map(of).sum::<usize>() as u64
    }

    /// Number of elements held.
    pub(crate) fn num_elements(&self) -> usize {
        let flat = [&self.wanted, &self.sent, &self.total];
        let kept = [&self.residual, &self.momentum, &self.power, &self.thin];
        let messages = self.own.len() + self.all.len();
        let floats = flat.into_iter().chain(kept).map(Vec::len).sum::<usize>();
        floats + messages.div_ceil(size_of::<f32>())
    }
}
