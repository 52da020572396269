//! The exchange of a step: this worker's gradients in, the sum of what all have written out.

use super::power::{expand, orthonormalize, project, project_back};
use super::{CompressionPlan, Method, Observed, Shape, one_bit, random_k, sign};
use crate::replica::Replica;
use lockstep_comm::{Comm, CommError, Reduction, Traffic};
use lockstep_optim::Slot;
use lockstep_tensor::random::Key;
use std::ops::Range;

/// What a worker keeps to compress its gradients.
pub struct Compression {
    pub(super) plan: CompressionPlan,
    comm: Comm,
    pub(super) tensors: Vec<Tensor>,
    /// What was left out so far, tensor behind tensor.
    pub(super) residual: Vec<f32>,
    /// 1-bit Adam's momentum.
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
    /// Whether it travels as it is.
    pub(super) is_dense: bool,
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
}

impl Replica {
    /// Gets ready to compress gradients; all workers do so together. Only where each of them holds
    /// the whole model.
    pub fn compress(&mut self, plan: CompressionPlan) -> Result<(), CommError> {
        assert!(self.plan.is_replicated(), "gradients are whole");
        let data = self.groups.data();
        let num_workers = data.num_members();
        let each: Vec<_> = (0..num_workers).map(|worker| worker..worker + 1).collect();
        let comm = data.summing(&each, "compressed")?.canonical();
        let (mut start, mut power) = (0, Vec::new());
        let mut tensors = Vec::new();
        for slot in self.slots() {
            let (len, number) = (slot.grads.len(), slot.tensor as u64);
            let of_slot = |(_, param): &(usize, &lockstep_model::Param)| param.name == slot.name;
            let (_, param) = self.blueprint.params().find(of_slot).expect("a parameter");
            let row_len = if param.shape.len() == 2 { param.shape[1] } else { len };
            let shape = Shape { len, row_len, number };
            let is_dense = plan.method.leaves_alone(&shape, num_workers);
            let first = power.len();
            let mut tensor = Tensor { slot, shape, start, is_dense, power: first..first };
            if let Method::PowerSgd { rank } = plan.method
                && !is_dense
            {
                let key = tensor.first_key(plan.seed);
                power.extend(tensor.shape.thin(rank).first_q(key));
                tensor.power.end = power.len();
            }
            tensors.push(tensor);
            start += len;
        }
        let zeros = || vec![0.0; start];
        let is_adam = matches!(plan.method, Method::OneBitAdam { .. });
        self.compression = Some(Compression {
            plan,
            comm,
            tensors,
            residual: if plan.error_feedback { zeros() } else { Vec::new() },
            momentum: if is_adam { zeros() } else { Vec::new() },
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
        compression.run(step)?;
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
        let Compression { plan, tensors, momentum, .. } = compression;
        let Method::OneBitAdam { beta1 } = plan.method else { return };
        for tensor in tensors {
            let grads = &store.own_grads(tensor.slot.block)[tensor.slot.grads.clone()];
            one_bit::follow(beta1, &mut momentum[tensor.flat()], grads);
        }
    }

    fn over_workers(&mut self, own: [f64; 3]) -> Result<Observed, CommError> {
        let mut all = vec![0.0; 3 * self.groups.world().num_members()];
        self.store.overlap.call(|comm| comm.all_gather(&own, &mut all))?;
        let (all, _) = all.as_chunks::<3>();
        let sum = |index: usize| all.iter().fold(0.0, |sum, own| sum + own[index]);
        let compression = self.compression.as_ref().expect("it was put back");
        Ok(Observed {
            delta: if sum(1) > 0.0 { sum(0) / sum(1) } else { 0.0 },
            residual_norm: all.iter().map(|own| own[2].sqrt()).sum::<f64>() / all.len() as f64,
            message_bytes: compression.message_bytes(),
            dense_bytes: (compression.total.len() * size_of::<f32>()) as u64,
        })
    }

    /// What compressed gradients have weighed on this worker's wires.
    pub(crate) fn traffic_compressed(&self) -> Traffic {
        let of = |compression: &Compression| compression.comm.counters().total().traffic;
        self.compression.as_ref().map_or(Traffic::default(), of)
    }
}

impl Compression {
    /// From `wanted` to `total`; what is left out is the new residual.
    fn run(&mut self, step: u64) -> Result<(), CommError> {
        let (feedback, num_workers) = (self.plan.error_feedback, self.comm.num_members());
        if let Method::OneBitAdam { beta1 } = self.plan.method {
            one_bit::share(beta1, num_workers, &self.momentum, &mut self.wanted);
        }
        if feedback {
            self.wanted.iter_mut().zip(&self.residual).for_each(|(g, left)| *g += left);
        }
        self.total.fill(0.0);
        self.dense()?;
        match self.plan.method {
            Method::RandomK { ratio } => self.few(ratio, step)?,
            Method::PowerSgd { rank } => self.thin(rank)?,
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
            Method::PowerSgd { rank } if !is_finite => self.begin_again(rank),
            _ => {}
        }
        Ok(())
    }

    /// Thin matrices that are no numbers would stay so.
    fn begin_again(&mut self, rank: usize) {
        for tensor in self.tensors.iter().filter(|tensor| !tensor.is_dense) {
            let q = tensor.shape.thin(rank).first_q(tensor.first_key(self.plan.seed));
            self.power[tensor.power.clone()].copy_from_slice(&q);
        }
    }

    /// Adds up the tensors that travel as they are, together.
    fn dense(&mut self) -> Result<(), CommError> {
        let Self { tensors, wanted, sent, total, thin, comm, .. } = self;
        let all = || tensors.iter().filter(|tensor| tensor.is_dense).map(Tensor::flat);
        thin.clear();
        all().for_each(|flat| thin.extend(&wanted[flat]));
        if thin.is_empty() {
            return Ok(());
        }
        comm.all_reduce(thin, Reduction::Sum)?;
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
        let Self { plan, tensors, wanted, sent, total, own, all, comm, .. } = self;
        let method = plan.method;
        let key = Key::new(plan.seed, "compress").with(step).with(comm.position() as u64);
        own.clear();
        for tensor in tensors.iter().filter(|tensor| !tensor.is_dense) {
            let (shape, flat, start) = (&tensor.shape, tensor.flat(), own.len());
            method.encode(shape, &wanted[flat.clone()], key.with(shape.number), own);
            sent[flat.clone()].fill(0.0);
            method.decode(shape, &own[start..], &mut sent[flat]);
        }
        if own.is_empty() {
            return Ok(());
        }
        all.resize(own.len() * comm.num_members(), 0);
        comm.all_gather(own, all)?;
        let is_vote = method == Method::Sign && !plan.error_feedback;
        let mut start = 0;
        for tensor in tensors.iter().filter(|tensor| !tensor.is_dense) {
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

    /// Random-k: everybody's values of the same places are added up.
    fn few(&mut self, ratio: f64, step: u64) -> Result<(), CommError> {
        let Self { plan, tensors, wanted, sent, total, thin, comm, .. } = self;
        let key = Key::new(plan.seed, "random-k").with(step);
        let some = || tensors.iter().filter(|tensor| !tensor.is_dense);
        let places = |tensor: &Tensor| {
            let Shape { len, number, .. } = tensor.shape;
            let start = tensor.start;
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
        comm.all_reduce(thin, Reduction::Sum)?;
        let places = some().flat_map(|tensor| places(tensor).map(|(place, _)| place));
        places.zip(&*thin).for_each(|(place, sum)| total[place] = *sum);
        Ok(())
    }

    /// PowerSGD: two thin matrices of every tensor are added up.
    fn thin(&mut self, rank: usize) -> Result<(), CommError> {
        let Self { tensors, wanted, sent, total, power, thin, comm, .. } = self;
        let some = || tensors.iter().filter(|tensor| !tensor.is_dense);
        let rows = |tensor: &Tensor| tensor.shape.thin(rank).rows * rank;
        thin.resize(some().map(rows).sum(), 0.0);
        if thin.is_empty() {
            return Ok(());
        }
        let mut at = 0;
        for tensor in some() {
            let p = &mut thin[at..at + rows(tensor)];
            project(
                tensor.shape.thin(rank),
                &wanted[tensor.flat()],
                &power[tensor.power.clone()],
                p,
            );
            at += p.len();
        }
        comm.all_reduce(thin, Reduction::Sum)?;
        at = 0;
        for tensor in some() {
            let (shape, flat) = (tensor.shape.thin(rank), tensor.flat());
            let (p, q) = (&mut thin[at..at + rows(tensor)], &mut power[tensor.power.clone()]);
            orthonormalize(shape, p);
            project_back(shape, &wanted[flat.clone()], p, q);
            expand(shape, p, q, &mut sent[flat]);
            at += p.len();
        }
        comm.all_reduce(power, Reduction::Sum)?;
        at = 0;
        for tensor in some() {
            let p = &thin[at..at + rows(tensor)];
            expand(
                tensor.shape.thin(rank),
                p,
                &power[tensor.power.clone()],
                &mut total[tensor.flat()],
            );
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
        let of = |tensor: &Tensor| match self.plan.method {
            _ if tensor.is_dense => tensor.shape.len * size_of::<f32>(),
            Method::RandomK { ratio } => {
                super::top_k::num_sent(tensor.shape.len, ratio) * size_of::<f32>()
            }
            Method::PowerSgd { rank } => tensor.shape.thin(rank).sent() * size_of::<f32>(),
            method => method.message_len(&tensor.shape),
        };
        self.tensors.iter().map(of).sum::<usize>() as u64
    }

    /// Number of elements held.
    pub(crate) fn num_elements(&self) -> usize {
        let flat = [&self.wanted, &self.sent, &self.total];
        let kept = [&self.residual, &self.momentum, &self.power, &self.thin];
        flat.into_iter().chain(kept).map(Vec::len).sum()
    }
}
