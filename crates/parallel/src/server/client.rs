//! A worker's side of parameter servers: pull, compute, push.
//!
//! Parts lie in the order in which a forward pass needs them, so they are asked for in that order.
//! A request that a server dies over is made once more, to whoever holds the same.

use super::holders::{Holders, Loss};
use super::latency::Latency;
use super::squeeze::Writer;
use super::touched::TouchedRows;
use super::{Answer, Ask, Request, Tag, ranges};
use crate::buckets::Buckets;
use crate::liars::Liar;
use crate::replica::Replica;
use lockstep_comm::{Comm, CommError, Traffic};
use lockstep_optim::Clip;
use lockstep_platform::World;
use std::collections::BTreeMap;
use std::time::Duration;

/// What a worker keeps of its servers.
pub struct Client {
    pub(super) comm: Comm,
    /// The model cut into a part for every server.
    pub(super) ranges: Buckets,
    num_workers: usize,
    /// Whom to ask for each part.
    holders: Vec<Holders>,
    /// Servers that are gone and were not told of.
    losses: Vec<Loss>,
    /// How many times this worker has pushed.
    num_pushes: u64,
    /// How many of its pushes each server has acknowledged.
    acknowledged: Vec<u64>,
    /// How many of its gradients the first server has thrown away.
    num_discarded: u64,
    /// The step from which on all wait for all, once a server has said so, where they did not.
    switch: Option<u64>,
    /// How many of this worker's gradients missed how many updates, at the first server.
    staleness: BTreeMap<u64, u64>,
    /// How gradients are written in fewer bytes, if they are.
    pub(super) writer: Option<Writer>,
    /// What travels row by row, if anything does.
    pub(super) rows: Option<TouchedRows>,
    /// How it lies, where it does.
    pub(super) liar: Option<Liar>,
    /// How long requests to one server took.
    latencies: Latencies,
    world: World,
    exposed: Duration,
}

/// How long requests of a worker took, from the question to the end of the answer.
#[derive(Clone, Debug, Default)]
pub struct Latencies {
    /// Those for weights.
    pub pull: Latency,
    /// Those with gradients.
    pub push: Latency,
}

impl Replica {
    /// Gets ready to work for servers, which are the members of `comm` behind the workers, with so
    /// many copies of each behind all of them. Only where each worker has the whole model, in as
    /// few buckets as can be.
    pub fn work_for(&mut self, comm: Comm, num_servers: usize, copies: usize, world: &World) {
        assert!(self.plan.is_replicated(), "a worker of servers has all of the model");
        let ranges = ranges(&self.blueprint, num_servers);
        let lens = |buckets: &Buckets| buckets.list.iter().map(|b| b.len).collect::<Vec<_>>();
        assert_eq!(lens(&ranges), lens(&self.all), "the same buckets, cut otherwise");
        let num_workers = comm.group_size() - num_servers * (1 + copies);
        let holders = |server| Holders::new(num_workers + server, copies, num_servers);
        self.store.set_alone(true);
        self.client = Some(Client {
            comm,
            ranges,
            num_workers,
            holders: (0..num_servers).map(holders).collect(),
            losses: Vec::new(),
            num_pushes: 0,
            acknowledged: vec![0; num_servers],
            num_discarded: 0,
            switch: None,
            staleness: BTreeMap::new(),
            writer: None,
            rows: None,
            liar: None,
            latencies: Latencies::default(),
            world: World::clone(world),
            exposed: Duration::ZERO,
        });
    }

    /// From now on this worker lies to servers, where it is given how.
    pub fn lie_as(&mut self, liar: Option<Liar>) {
        if let Some(client) = &mut self.client {
            client.liar = liar;
        }
    }

    /// Says whether losses are those of this worker's micro-batches alone.
    pub fn tell_own_losses(&mut self, is_alone: bool) {
        self.losses.set_alone(is_alone);
    }

    /// Waits for its turn and takes the weights for a step from all servers; returns the oldest of
    /// their versions.
    pub fn pull(&mut self, step: u64) -> Result<u64, CommError> {
        let version = self.take_weights(Ask::Pull, step)?;
        self.share_weights(version)
    }

    /// Takes the weights as they are, and will not answer with a gradient.
    pub fn read(&mut self) -> Result<(), CommError> {
        let version = self.take_weights(Ask::Read, 0)?;
        self.share_weights(version).map(drop)
    }

    fn take_weights(&mut self, ask: Ask, step: u64) -> Result<u64, CommError> {
        let Self { client: Some(client), store, device, .. } = self else { return Ok(step) };
        let began = client.world.clock().now();
        // They are spoken of while the rest is only looked at.
        let mut rows = client.rows.take();
        let mut oldest = u64::MAX;
        for server in 0..client.num_servers() {
            let (version, length) = client.converse(server, |client, rank| {
                let asked = client.world.clock().now();
                client.ask(rank, Request { step, ..client.request(ask) })?;
                let answer = client.answer(rank)?;
                for (bucket, cut) in client.ranges.list.iter().enumerate() {
                    let part = &mut store.own_params_mut(bucket)[cut.part(server)];
                    if !part.is_empty() {
                        client.comm.recv(part, rank, Tag::Weights as u64)?;
                    }
                }
                if let Some(rows) = &mut rows {
                    let bucket = store.own_params_mut(rows.table.bucket);
                    rows.take(client, (rank, server), ask, answer.number, bucket)?;
                }
                Ok((answer, (answer.number, client.world.clock().since(asked))))
            })?;
            client.latencies.pull.note(length);
            oldest = oldest.min(version);
        }
        if let Some(rows) = &mut rows {
            let bucket = store.own_params_mut(rows.table.bucket);
            rows.take_spread(client, bucket)?;
        }
        client.rows = rows;
        client.exposed += client.world.clock().since(began);
        store.publish(&mut device.link)?;
        Ok(oldest)
    }

    /// Gives the servers this worker's weights for their own.
    pub fn load(&mut self) -> Result<(), CommError> {
        let Self { client: Some(client), store, .. } = self else { return Ok(()) };
        for server in 0..client.num_servers() {
            client.converse(server, |client, rank| {
                client.ask(rank, client.request(Ask::Load))?;
                client.give(server, rank, Tag::Weights, |bucket| store.own_params(bucket))?;
                if let Some(rows) = &client.rows {
                    let bucket = store.own_params(rows.table.bucket);
                    rows.give_all(&client.comm, (rank, server), bucket)?;
                }
                Ok((client.answer(rank)?, ()))
            })?;
        }
        Ok(())
    }

    /// Gives the servers the gradient of a step, shortened as `clip` says, or, without one, tells
    /// them that there is none. An alarm lets all workers wait for each other from the next step
    /// on.
    pub fn push(
        &mut self,
        step: u64,
        clip: Option<&Clip>,
        is_alarm: bool,
    ) -> Result<(), CommError> {
        let Self { client: Some(client), store, .. } = self else { return Ok(()) };
        if let Some(liar) = client.liar.as_mut().filter(|_| clip.is_some()) {
            for bucket in 0..client.ranges.list.len() {
                liar.pretend(step, bucket, store.own_grads_mut(bucket));
            }
        }
        if let Some(scale) = clip.map(|clip| clip.scale(0)).filter(|scale| *scale < 1.0) {
            for bucket in 0..client.ranges.list.len() {
                store.own_grads_mut(bucket).iter_mut().for_each(|grad| *grad *= scale);
            }
        }
        if let Some(writer) = client.writer.as_mut().filter(|_| clip.is_some()) {
            let worker = client.comm.group_rank();
            writer.begin();
            for server in 0..client.holders.len() {
                for (bucket, cut) in client.ranges.list.iter().enumerate() {
                    let range = cut.part(server);
                    let grads = &mut store.own_grads_mut(bucket)[range.clone()];
                    if !grads.is_empty() {
                        writer.write((server, bucket), range, grads, (step, worker));
                    }
                }
            }
        }
        client.num_pushes += 1;
        let ask = client.request(if clip.is_some() { Ask::Push } else { Ask::Skip });
        let request = Request { step, number: client.num_pushes, is_alarm, ..ask };
        let began = client.world.clock().now();
        let mut rows = client.rows.take();
        for server in 0..client.num_servers() {
            let (answer, length) = client.converse(server, |client, rank| {
                let asked = client.world.clock().now();
                client.ask(rank, request)?;
                if clip.is_some() {
                    client.give_grads(server, rank, |bucket| store.own_grads(bucket))?;
                    if let Some(rows) = &mut rows {
                        let bucket = store.own_grads(rows.table.bucket);
                        rows.push(&client.comm, (rank, server), bucket)?;
                    }
                }
                let answer = client.answer(rank)?;
                Ok((answer, (answer, client.world.clock().since(asked))))
            })?;
            client.latencies.push.note(length);
            client.acknowledged[server] += 1;
            if server == 0 && answer.is_discarded {
                client.num_discarded += 1;
            } else if server == 0 {
                *client.staleness.entry(answer.number).or_default() += 1;
            }
        }
        client.rows = rows;
        client.exposed += client.world.clock().since(began);
        Ok(())
    }

    /// Needs the servers no more.
    pub fn leave_servers(&mut self) -> Result<(), CommError> {
        let Self { client: Some(client), .. } = self else { return Ok(()) };
        for server in 0..client.num_servers() {
            let told = client.converse(server, |client, rank| {
                client.ask(rank, client.request(Ask::Leave))?;
                Ok((client.answer(rank)?, ()))
            });
            // One that has gone on hearing it needs not be told.
            if !matches!(told, Err(CommError::Gone { .. })) {
                told?;
            }
        }
        Ok(())
    }

    /// How many pushes of each worker each server has taken: by server and worker.
    pub fn count_taken(&mut self) -> Result<Vec<Vec<u64>>, CommError> {
        let Self { client: Some(client), .. } = self else { return Ok(Vec::new()) };
        let mut all = vec![vec![0; client.num_workers]; client.num_servers()];
        for (server, counts) in all.iter_mut().enumerate() {
            client.converse(server, |client, rank| {
                client.ask(rank, client.request(Ask::Count))?;
                let answer = client.answer(rank)?;
                client.comm.recv(counts, rank, Tag::Counts as u64)?;
                Ok((answer, ()))
            })?;
        }
        Ok(all)
    }

    /// How many of this worker's gradients missed how many updates.
    pub fn staleness(&self) -> Option<&BTreeMap<u64, u64>> {
        self.client.as_ref().map(|client| &client.staleness)
    }

    /// What this worker keeps of its servers.
    pub fn client(&self) -> Option<&Client> {
        self.client.as_ref()
    }

    /// Servers that are gone since this was asked last, as far as this worker knows.
    pub fn take_lost_servers(&mut self) -> Vec<Loss> {
        self.client.as_mut().map_or_else(Vec::new, |client| std::mem::take(&mut client.losses))
    }

    /// What pulls and pushes have weighed on this worker's wires, in both directions: what a server
    /// sends is sent for a worker.
    pub(crate) fn traffic_of_client(&self) -> Traffic {
        let Some(client) = &self.client else { return Traffic::default() };
        let traffic = client.comm.counters().total().traffic;
        Traffic { sent_bytes: traffic.sent_bytes + traffic.received_bytes, ..traffic }
    }
}

impl Client {
    /// How many of this worker's pushes each server has acknowledged.
    pub fn acknowledged(&self) -> &[u64] {
        &self.acknowledged
    }

    /// How many of this worker's gradients were thrown away.
    pub fn num_discarded(&self) -> u64 {
        self.num_discarded
    }

    /// The step from which on all wait for all, where they did not before.
    pub fn switch(&self) -> Option<u64> {
        self.switch
    }

    /// How long requests took.
    pub fn latencies(&self) -> &Latencies {
        &self.latencies
    }

    /// The time waited since this was asked last.
    pub(crate) fn take_exposed(&mut self) -> Duration {
        std::mem::take(&mut self.exposed)
    }

    pub(super) fn num_servers(&self) -> usize {
        self.holders.len()
    }

    /// Asks whoever holds a part, and where that one is gone, the next; `talk` gets its position,
    /// and may be called more than once.
    pub(super) fn converse<T>(
        &mut self,
        server: usize,
        mut talk: impl FnMut(&Self, usize) -> Result<(Answer, T), CommError>,
    ) -> Result<T, CommError> {
        loop {
            match talk(self, self.holders[server].head()) {
                Ok((answer, found)) => {
                    self.switch = self.switch.or(answer.switch);
                    if answer.is_alone {
                        self.losses.extend(self.holders[server].lose_copy());
                    }
                    return Ok(found);
                }
                Err(why @ CommError::Gone { .. }) => {
                    self.losses.push(self.holders[server].lose_head(why)?);
                }
                Err(error) => return Err(error),
            }
        }
    }

    pub(super) fn request(&self, ask: Ask) -> Request {
        Request::of(ask, self.comm.group_rank())
    }

    pub(super) fn ask(&self, rank: usize, request: Request) -> Result<(), CommError> {
        self.comm.send(&request.words(), rank, Tag::Request as u64)
    }

    pub(super) fn answer(&self, rank: usize) -> Result<Answer, CommError> {
        let mut words = [0; Answer::NUM_WORDS];
        self.comm.recv(&mut words, rank, Tag::Answer as u64)?;
        Ok(Answer::from_words(words))
    }

    /// Sends a server its part of the gradients, as they are or as they were written.
    fn give_grads<'a>(
        &self,
        server: usize,
        rank: usize,
        values: impl Fn(usize) -> &'a [f32],
    ) -> Result<(), CommError> {
        let Some(writer) = &self.writer else {
            return self.give(server, rank, Tag::Gradients, values);
        };
        let tag = Tag::Gradients as u64;
        for (bucket, cut) in self.ranges.list.iter().enumerate() {
            let part = &values(bucket)[cut.part(server)];
            if !part.is_empty() && !writer.send(&self.comm, (server, bucket), rank, tag)? {
                self.comm.send(part, rank, tag)?;
            }
        }
        Ok(())
    }

    fn give<'a>(
        &self,
        server: usize,
        rank: usize,
        tag: Tag,
        values: impl Fn(usize) -> &'a [f32],
    ) -> Result<(), CommError> {
        for (bucket, cut) in self.ranges.list.iter().enumerate() {
            let part = &values(bucket)[cut.part(server)];
            if !part.is_empty() {
                self.comm.send(part, rank, tag as u64)?;
            }
        }
        Ok(())
    }
}
