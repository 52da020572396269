//! Requests of a worker to the parameter servers: pulls, pushes, and those outside a step.

use super::client::{Client, Latencies, SentPush};
use super::compressed_push::{PushCompression, PushCompressor};
use super::failover::{LostServer, ShardServers};
use super::loss_spike::LossSpike;
use super::part_transfer::LostParts;
use super::{PushCounts, Request, RequestKind, ShardLayout, Tag, TransferOrder};
use crate::buckets::Buckets;
use crate::byzantine::ByzantineWorker;
use crate::compress::CompressionStats;
use crate::distance::squared_distance;
use crate::replica::Replica;
use lockstep_comm::{Comm, CommError, Counters};
use lockstep_config::Recipe;
use lockstep_platform::World;
use lockstep_schedule::step::ServerCall;
use std::cell::Cell;
use std::time::Duration;

impl Replica {
    /// Attaches this worker to the parameter servers, the ranks of `comm` behind the workers, with
    /// the backups of each behind all primaries. Requires that each worker has the whole model.
    pub fn attach_to_servers(&mut self, comm: Comm, recipe: &Recipe, world: &World) {
        assert!(self.plan.is_replicated(), "a parameter-server worker requires a whole replica");
        let (num_servers, num_backups) = (recipe.num_servers(), recipe.sync.server.replicas);
        let ranges = ShardLayout::of(recipe, &self.blueprint).ranges;
        let lens = |buckets: &Buckets| buckets.list.iter().map(|b| b.len).collect::<Vec<_>>();
        assert_eq!(lens(&ranges), lens(&self.all), "servers use the replica's buckets");
        let num_workers = comm.group_size() - num_servers * (1 + num_backups);
        let shard_servers =
            |server| ShardServers::new(num_workers + server, num_backups, num_servers);
        self.client = Some(Client {
            order: TransferOrder::of(recipe, !self.all.mirrors.is_empty()),
            first_server: recipe.run.workers,
            has_backups: num_backups > 0,
            step: 0,
            is_alarm: false,
            loss_spike: LossSpike::new(recipe.sync.server.switch_on_loss_spike),
            has_gradient: false,
            sent: (0..num_servers).map(|_| None).collect(),
            granted: (0..num_servers).map(|server| num_workers + server).collect(),
            is_arriving: vec![false; ranges.list.len()],
            lost_parts: LostParts::default(),
            staged: vec![None; num_servers],
            comm,
            ranges,
            shard_servers: (0..num_servers).map(shard_servers).collect(),
            lost_servers: Vec::new(),
            repeats: Vec::new(),
            num_messages: Cell::new(0),
            num_pulls: 0,
            num_pushes: 0,
            acknowledged: vec![0; num_servers],
            switch: None,
            compressor: None,
            rows: None,
            byzantine: None,
            latencies: Latencies::default(),
            world: World::clone(world),
            exposed: Duration::ZERO,
        });
    }

    /// Makes this worker Byzantine, or honest with `None`.
    pub fn set_byzantine(&mut self, byzantine: Option<ByzantineWorker>) {
        if let Some(client) = &mut self.client {
            client.byzantine = byzantine;
        }
    }

    /// Reads the current weights without a push to follow.
    pub fn read(&mut self) -> Result<(), CommError> {
        let servers = 0..self.client.as_ref().map_or(0, Client::num_servers);
        for server in servers {
            self.pull_shard(RequestKind::Read, server, 0)?;
        }
        if self.host_group.is_some() {
            self.share_version()?;
            (0..self.store.buckets.list.len()).try_for_each(|bucket| self.share_bucket(bucket))?;
        }
        self.store.publish(&mut self.device.link)
    }

    /// Waits until this worker may read a shard and pulls it, without the parts that arrive while
    /// passes run; replicated rows follow the last shard.
    pub(super) fn pull_shard(
        &mut self,
        kind: RequestKind,
        server: usize,
        step: u64,
    ) -> Result<(), CommError> {
        let Self { client: Some(client), store, step_context, .. } = self else { return Ok(()) };
        let began = client.world.clock().now();
        // Taken out, because the client is borrowed meanwhile.
        let mut rows = client.rows.take();
        client.step = step;
        client.num_pulls += u64::from(server == 0 && kind != RequestKind::Read);
        let is_by_parts = kind == RequestKind::PullByParts;
        let call = if kind == RequestKind::Read { ServerCall::Read } else { ServerCall::Pull };
        let (version, rank, length) =
            client.with_failover(server, Some(call), |client, rank| {
                let sent_at = client.world.clock().now();
                client.send_request(rank, Request { step, ..client.request(kind) })?;
                let reply = client.recv_reply(rank)?;
                let cuts = client.ranges.list.iter().enumerate().filter(|_| !is_by_parts);
                for (bucket, cut) in cuts {
                    let part = &mut store.own_params_mut(bucket)[cut.part(server)];
                    if !part.is_empty() {
                        client.recv(part, rank, Tag::Weights)?;
                    }
                }
                if let Some(rows) = &mut rows {
                    let bucket = store.own_params_mut(rows.table.bucket);
                    rows.take(client, (rank, server), kind, reply.number, bucket)?;
                }
                Ok((reply, (reply.number, rank, client.world.clock().since(sent_at))))
            })?;
        client.latencies.pull.note(length);
        client.granted[server] = rank;
        step_context.version = step_context.version.min(version);
        if let Some(rows) = rows.as_mut().filter(|_| server + 1 == client.num_servers()) {
            let bucket = store.own_params_mut(rows.table.bucket);
            rows.pull_replicated(client, bucket)?;
        }
        client.rows = rows;
        client.exposed += client.world.clock().since(began);
        Ok(())
    }

    /// Sets the servers' weights to this worker's.
    pub fn load(&mut self) -> Result<(), CommError> {
        let Self { client: Some(client), store, .. } = self else { return Ok(()) };
        for server in 0..client.num_servers() {
            client.with_failover(server, Some(ServerCall::Load), |client, rank| {
                client.send_request(rank, client.request(RequestKind::Load))?;
                client.send_parts(server, rank, Tag::Weights, |bucket| store.own_params(bucket))?;
                if let Some(rows) = &client.rows {
                    let bucket = store.own_params(rows.table.bucket);
                    rows.send_all_rows(&client.comm, (rank, server), bucket)?;
                }
                Ok((client.recv_reply(rank)?, ()))
            })?;
        }
        Ok(())
    }

    /// Sends the push of a step to a server; without a gradient, notifies it that the step is
    /// skipped. A lost server is noticed here and replaced when its reply is awaited.
    pub(super) fn send_push(
        &mut self,
        server: usize,
        step: u64,
        has_gradient: bool,
    ) -> Result<(), CommError> {
        let Self { client: Some(client), store, .. } = self else { return Ok(()) };
        if server == 0 {
            assert!(!client.is_arriving.contains(&true), "passes have used all weights");
            client.num_pushes += 1;
            client.has_gradient = has_gradient;
        }
        let (began, mut rows) = (client.world.clock().now(), client.rows.take());
        let rank = client.shard_servers[server].primary();
        client.num_messages.set(0);
        let sent = client.send_push((server, rank), step, store, rows.as_mut());
        client.rows = rows;
        client.exposed += client.world.clock().since(began);
        if !matches!(sent, Ok(()) | Err(CommError::Gone { .. })) {
            return sent;
        }
        let num_messages = client.num_messages.get();
        client.sent[server] = Some(SentPush { began, sent, num_messages });
        Ok(())
    }

    /// Receives the reply to a push; pushes to the backup if the server is lost.
    pub(super) fn finish_push(&mut self, server: usize, step: u64) -> Result<(), CommError> {
        let Self { client: Some(client), store, .. } = self else { return Ok(()) };
        let began = client.world.clock().now();
        let mut rows = client.rows.take();
        let mut sent = client.sent[server].take();
        let length = client.with_failover(server, Some(ServerCall::Push), |client, rank| {
            let sent_at = if let Some(SentPush { began, sent, num_messages }) = sent.take() {
                client.num_messages.set(num_messages);
                sent.map(|()| began)?
            } else {
                let sent_at = client.world.clock().now();
                client.send_push((server, rank), step, store, rows.as_mut())?;
                sent_at
            };
            // Pushes to all servers have left before the first reply is awaited.
            let sent_at = if client.order.confirms_at_once { began } else { sent_at };
            let reply = client.recv_reply(rank)?;
            Ok((reply, client.world.clock().since(sent_at)))
        })?;
        client.latencies.push.note(length);
        client.acknowledged[server] += 1;
        client.staged[server] = None;
        client.rows = rows;
        client.exposed += client.world.clock().since(began);
        Ok(())
    }

    /// Leaves the servers.
    pub fn leave_servers(&mut self) -> Result<(), CommError> {
        let Self { client: Some(client), .. } = self else { return Ok(()) };
        for server in 0..client.num_servers() {
            let left = client.with_failover(server, None, |client, rank| {
                client.send_request(rank, client.request(RequestKind::Leave))?;
                Ok((client.recv_reply(rank)?, ()))
            });
            // A server that has exited on hearing it need not acknowledge.
            if !matches!(left, Err(CommError::Gone { .. })) {
                left?;
            }
        }
        Ok(())
    }

    /// Outcomes of all pushes so far, by server and worker.
    pub fn count_pushes(&mut self) -> Result<Vec<Vec<PushCounts>>, CommError> {
        let Self { client: Some(client), .. } = self else { return Ok(Vec::new()) };
        let num_servers = client.num_servers();
        let count = |server| {
            client.with_failover(server, None, |client, rank| {
                client.send_request(rank, client.request(RequestKind::Count))?;
                let reply = client.recv_reply(rank)?;
                let mut message = vec![0; reply.number as usize];
                client.comm.recv(&mut message, rank, Tag::Counts as u64)?;
                Ok((reply, PushCounts::from_message(&message)))
            })
        };
        (0..num_servers).map(count).collect()
    }

    /// This worker's client.
    pub fn client(&self) -> Option<&Client> {
        self.client.as_ref()
    }

    /// Servers lost since the last call, as far as this worker knows.
    pub fn take_lost_servers(&mut self) -> Vec<LostServer> {
        self.client
            .as_mut()
            .map_or_else(Vec::new, |client| std::mem::take(&mut client.lost_servers))
    }

    /// Pulls and pushes of this worker, with bytes in both directions: a server sends on behalf of
    /// a worker.
    pub(crate) fn client_counters(&self) -> Counters {
        let of_client = self.client.as_ref().map(|client| client.comm.counters());
        of_client.map_or_else(Counters::default, Counters::with_received_as_sent)
    }

    /// Enables compression of pushes.
    pub fn enable_push_compression(&mut self, compression: PushCompression) {
        let Self { client: Some(client), all, .. } = self else { return };
        let lens: Vec<usize> = all.list.iter().map(|bucket| bucket.len).collect();
        client.compressor = Some(PushCompressor::new(compression, client.num_servers(), &lens));
    }

    /// Visits the residuals by bucket, to save or to restore them.
    pub(crate) fn visit_push_residuals<E>(
        &mut self,
        mut visit: impl FnMut(&str, bool, &mut [f32]) -> Result<(), E>,
    ) -> Result<(), E> {
        let compressor = self.client.as_mut().and_then(|client| client.compressor.as_mut());
        let buckets =
            compressor.into_iter().flat_map(|compressor| &mut compressor.residual).enumerate();
        for (bucket, values) in buckets.filter(|(_, values)| !values.is_empty()) {
            visit(&format!("bucket.{bucket}.residual"), true, values)?;
        }
        Ok(())
    }

    /// Compression of this worker's gradients in the last step, if they were pushed compressed.
    pub(crate) fn push_compression(&self) -> Option<CompressionStats> {
        let client = self.client.as_ref().filter(|client| client.has_gradient)?;
        let compressor = client.compressor.as_ref()?;
        let squares = compressor.residual.iter().map(|values| squared_distance(values, &[]));
        let written: usize = compressor.messages.iter().flatten().flatten().map(Vec::len).sum();
        Some(CompressionStats {
            delta: if compressor.norm > 0.0 { compressor.error / compressor.norm } else { 0.0 },
            residual_norm: squares.sum::<f64>().sqrt(),
            message_bytes: written as u64,
            dense_bytes: (compressor.num_elements * size_of::<f32>()) as u64,
        })
    }
}
