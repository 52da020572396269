//! A worker's side of parameter servers: pull, compute, push.

use super::touched::TouchedRows;
use super::{Ask, Tag, ranges};
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
    pub(super) num_servers: usize,
    /// How many of this worker's gradients missed how many updates, at the first server.
    staleness: BTreeMap<u64, u64>,
    world: World,
    exposed: Duration,
    /// What travels row by row, if anything does.
    pub(super) rows: Option<TouchedRows>,
    /// What this worker pretends, where it lies.
    pub(super) liar: Option<Liar>,
}

impl Replica {
    /// Gets ready to work for servers, which are the members of `comm` behind the workers. Only
    /// where each worker has the whole model, in as few buckets as can be.
    pub fn work_for(&mut self, comm: Comm, num_servers: usize, world: &World) {
        assert!(self.plan.is_replicated(), "a worker of servers has all of the model");
        let ranges = ranges(&self.blueprint, num_servers);
        let lens = |buckets: &Buckets| buckets.list.iter().map(|b| b.len).collect::<Vec<_>>();
        assert_eq!(lens(&ranges), lens(&self.all), "the same buckets, cut otherwise");
        let num_workers = comm.num_members() - num_servers;
        let (staleness, exposed) = (BTreeMap::new(), Duration::ZERO);
        let world = World::clone(world);
        self.store.set_alone(true);
        let (rows, liar) = (None, None);
        self.client = Some(Client {
            comm,
            ranges,
            num_workers,
            num_servers,
            staleness,
            world,
            exposed,
            rows,
            liar,
        });
    }

    /// Says whether losses are those of this worker's lanes alone.
    pub fn tell_own_losses(&mut self, is_alone: bool) {
        self.losses.set_alone(is_alone);
    }

    /// Makes this worker lie about its gradients.
    pub fn lie_to_servers(&mut self, liar: Option<Liar>) {
        if let Some(client) = &mut self.client {
            client.liar = liar;
        }
    }

    /// Waits for its turn and takes the weights for a step from all servers.
    pub fn pull(&mut self, step: u64) -> Result<(), CommError> {
        self.take_weights(Ask::Pull, step)
    }

    /// Takes the weights as they are, and will not answer with a gradient.
    pub fn read(&mut self) -> Result<(), CommError> {
        self.take_weights(Ask::Read, 0)
    }

    fn take_weights(&mut self, ask: Ask, step: u64) -> Result<(), CommError> {
        let Self { client: Some(client), store, device, .. } = self else { return Ok(()) };
        let began = client.world.clock().now();
        for server in 0..client.num_servers {
            client.ask(server, ask, step)?;
            let version = client.answer(server)?;
            for (bucket, cut) in client.ranges.list.iter().enumerate() {
                let part = &mut store.own_params_mut(bucket)[cut.part(server)];
                if !part.is_empty() {
                    client.comm.recv(part, client.rank(server), Tag::Weights as u64)?;
                }
            }
            let at = (client.rank(server), server);
            if let Some(rows) = &mut client.rows {
                let bucket = store.own_params_mut(rows.table.bucket);
                rows.take(&client.comm, at, ask, version, bucket)?;
            }
        }
        client.exposed += client.world.clock().since(began);
        store.publish(&mut device.link)
    }

    /// Gives the servers this worker's weights for their own.
    pub fn load(&mut self) -> Result<(), CommError> {
        let Self { client: Some(client), store, .. } = self else { return Ok(()) };
        for server in 0..client.num_servers {
            client.ask(server, Ask::Load, 0)?;
            client.give(server, Tag::Weights, |bucket| store.own_params(bucket))?;
            if let Some(rows) = &client.rows {
                let bucket = store.own_params(rows.table.bucket);
                rows.give_all(&client.comm, (client.rank(server), server), bucket)?;
            }
            client.answer(server)?;
        }
        Ok(())
    }

    /// Gives the servers the gradient of a step, shortened as `clip` says, or, without one, tells
    /// them that there is none.
    pub fn push(&mut self, step: u64, clip: Option<&Clip>) -> Result<(), CommError> {
        let Self { client: Some(client), store, .. } = self else { return Ok(()) };
        if let Some(scale) = clip.map(|clip| clip.scale(0)).filter(|scale| *scale < 1.0) {
            for bucket in 0..client.ranges.list.len() {
                store.own_grads_mut(bucket).iter_mut().for_each(|grad| *grad *= scale);
            }
        }
        if let Some(liar) = &mut client.liar {
            for bucket in 0..client.ranges.list.len() {
                liar.pretend(step, bucket, store.own_grads_mut(bucket));
            }
        }
        let began = client.world.clock().now();
        for server in 0..client.num_servers {
            client.ask(server, if clip.is_some() { Ask::Push } else { Ask::Skip }, step)?;
            if clip.is_some() {
                client.give(server, Tag::Gradients, |bucket| store.own_grads(bucket))?;
                let at = (client.rank(server), server);
                if let Some(rows) = &mut client.rows {
                    let bucket = store.own_grads(rows.table.bucket);
                    rows.push(&client.comm, at, bucket)?;
                }
            }
            let staleness = client.answer(server)?;
            if server == 0 {
                *client.staleness.entry(staleness).or_default() += 1;
            }
        }
        client.exposed += client.world.clock().since(began);
        Ok(())
    }

    /// Needs the servers no more.
    pub fn leave_servers(&mut self) -> Result<(), CommError> {
        let Self { client: Some(client), .. } = self else { return Ok(()) };
        (0..client.num_servers).try_for_each(|server| client.ask(server, Ask::Leave, 0))
    }

    /// How many of this worker's gradients missed how many updates.
    pub fn staleness(&self) -> Option<&BTreeMap<u64, u64>> {
        self.client.as_ref().map(|client| &client.staleness)
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
    /// The time waited since this was asked last.
    pub(crate) fn take_exposed(&mut self) -> Duration {
        std::mem::take(&mut self.exposed)
    }

    pub(super) fn rank(&self, server: usize) -> usize {
        self.num_workers + server
    }

    pub(super) fn ask(&self, server: usize, ask: Ask, step: u64) -> Result<(), CommError> {
        self.comm.send(&[ask as u64, step], self.rank(server), Tag::Request as u64)
    }

    pub(super) fn answer(&self, server: usize) -> Result<u64, CommError> {
        let mut number = [0];
        self.comm.recv(&mut number, self.rank(server), Tag::Answer as u64)?;
        Ok(number[0])
    }

    fn give<'a>(
        &self,
        server: usize,
        tag: Tag,
        values: impl Fn(usize) -> &'a [f32],
    ) -> Result<(), CommError> {
        for (bucket, cut) in self.ranges.list.iter().enumerate() {
            let part = &values(bucket)[cut.part(server)];
            if !part.is_empty() {
                self.comm.send(part, self.rank(server), tag as u64)?;
            }
        }
        Ok(())
    }
}
