//! A worker's step with parameter servers: pull, compute, push.

use super::client::{Client, Latencies};
use super::compressed_push::{PushCompression, PushCompressor};
use super::failover::{LostServer, ShardServers};
use super::part_transfer::LostParts;
use super::{PushCounts, Request, RequestKind, ShardLayout, Tag, TransferOrder};
use crate::buckets::Buckets;
use crate::byzantine::ByzantineWorker;
use crate::compress::CompressionStats;
use crate::distance::squared_distance;
use crate::replica::Replica;
use crate::strategy::KeepGradients;
use lockstep_comm::{Comm, CommError, Traffic};
use lockstep_config::Recipe;
use lockstep_optim::Clip;
use lockstep_platform::World;
use lockstep_tensor::Cpu;
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
        self.programs.adopt(Box::new(KeepGradients));
        self.client = Some(Client {
            order: TransferOrder::of(recipe, !self.all.mirrors.is_empty()),
            has_backups: num_backups > 0,
            step: 0,
            granted: (0..num_servers).map(|server| num_workers + server).collect(),
            is_arriving: vec![false; ranges.list.len()],
            lost_parts: LostParts::default(),
            staged: vec![None; num_servers],
            comm,
            ranges,
            shard_servers: (0..num_servers).map(shard_servers).collect(),
            lost_servers: Vec::new(),
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

    /// Sets whether losses cover this worker's micro-batches only.
    pub fn report_local_loss(&mut self, is_alone: bool) {
        self.losses.set_alone(is_alone);
    }

    /// Waits until this worker may read and pulls the weights for a step from all servers; returns
    /// the oldest of their versions. Weights arrive while passes run, where the recipe overlaps
    /// transfers, and not at all for a version from `end` on.
    pub fn pull(&mut self, step: u64, end: u64) -> Result<u64, CommError> {
        if !self.client.as_ref().is_some_and(|client| client.order.pulls_parts) {
            let version = self.take_weights(RequestKind::Pull, step)?;
            return self.share_weights(version);
        }
        let version = self.take_weights(RequestKind::PullByParts, step)?;
        let Self { client: Some(client), store, .. } = self else { return Ok(version) };
        if version < end {
            client.start_pulls(store)?;
        }
        Ok(version)
    }

    /// Reads the current weights without a push to follow.
    pub fn read(&mut self) -> Result<(), CommError> {
        let version = self.take_weights(RequestKind::Read, 0)?;
        self.share_weights(version).map(drop)
    }

    fn take_weights(&mut self, kind: RequestKind, step: u64) -> Result<u64, CommError> {
        let Self { client: Some(client), store, device, .. } = self else { return Ok(step) };
        let began = client.world.clock().now();
        // Taken out, because the client is borrowed meanwhile.
        let mut rows = client.rows.take();
        let mut oldest = u64::MAX;
        client.step = step;
        let is_by_parts = kind == RequestKind::PullByParts;
        for server in 0..client.num_servers() {
            let (version, rank, length) = client.with_failover(server, |client, rank| {
                let sent_at = client.world.clock().now();
                client.send_request(rank, Request { step, ..client.request(kind) })?;
                let reply = client.recv_reply(rank)?;
                let cuts = client.ranges.list.iter().enumerate().filter(|_| !is_by_parts);
                for (bucket, cut) in cuts {
                    let part = &mut store.own_params_mut(bucket)[cut.part(server)];
                    if !part.is_empty() {
                        client.comm.recv(part, rank, Tag::Weights as u64)?;
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
            oldest = oldest.min(version);
        }
        if let Some(rows) = &mut rows {
            let bucket = store.own_params_mut(rows.table.bucket);
            rows.pull_replicated(client, bucket)?;
        }
        client.rows = rows;
        client.exposed += client.world.clock().since(began);
        if !is_by_parts {
            store.publish(&mut device.link)?;
        }
        Ok(oldest)
    }

    /// Sets the servers' weights to this worker's.
    pub fn load(&mut self) -> Result<(), CommError> {
        let Self { client: Some(client), store, .. } = self else { return Ok(()) };
        for server in 0..client.num_servers() {
            client.with_failover(server, |client, rank| {
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

    /// Pushes the gradient of a step, clipped by `clip`, or without one notifies the servers that
    /// the step is skipped. An alarm switches all workers to synchronous steps from the next step
    /// on.
    pub fn push(
        &mut self,
        cpu: &Cpu,
        step: u64,
        clip: Option<&Clip>,
        is_alarm: bool,
    ) -> Result<(), CommError> {
        let Self { client: Some(client), store, .. } = self else { return Ok(()) };
        if let Some(byzantine) = client.byzantine.as_mut().filter(|_| clip.is_some()) {
            for bucket in 0..client.ranges.list.len() {
                byzantine.corrupt(step, bucket, store.own_grads_mut(bucket));
            }
        }
        if let Some(scale) = clip.map(|clip| clip.scale(0)).filter(|scale| *scale < 1.0) {
            for bucket in 0..client.ranges.list.len() {
                store.own_grads_mut(bucket).iter_mut().for_each(|grad| *grad *= scale);
            }
        }
        if let Some(compressor) = client.compressor.as_mut().filter(|_| clip.is_some()) {
            let worker = client.comm.group_rank();
            compressor.begin();
            for (bucket, ranges) in client.ranges.list.iter().enumerate() {
                let cuts = (0..client.shard_servers.len()).map(|server| ranges.part(server));
                let (cuts, grads) = (cuts.collect::<Vec<_>>(), store.own_grads_mut(bucket));
                compressor.compress(cpu, bucket, &cuts, grads, (step, worker));
            }
        }
        assert!(!client.is_arriving.contains(&true), "passes have used all weights");
        let TransferOrder { pushes_parts, pushes_early, .. } = client.order;
        if clip.is_some() && pushes_parts && !pushes_early {
            store.mark_pending();
            for bucket in (0..client.ranges.list.len()).rev() {
                client.push_bucket(store, bucket)?;
            }
            store.wait_for_grads(cpu)?;
        }
        client.num_pushes += 1;
        let kind =
            client.request(if clip.is_some() { RequestKind::Push } else { RequestKind::Skip });
        let request = Request { step, number: client.num_pushes, is_alarm, ..kind };
        let began = client.world.clock().now();
        let mut rows = client.rows.take();
        let num_servers = client.num_servers();
        let staged = std::mem::replace(&mut client.staged, vec![None; num_servers]);
        let mut send = |client: &Client, server: usize, rank: usize| {
            client.send_request(rank, request)?;
            if clip.is_none() {
                return Ok(());
            }
            // A backup that has taken over has no parts.
            if staged[server] != Some(rank) {
                client.send_grads(server, rank, |bucket| store.own_grads(bucket))?;
            }
            rows.as_mut().map_or(Ok(()), |rows| {
                let bucket = store.own_grads(rows.table.bucket);
                rows.push(&client.comm, (rank, server), bucket)
            })
        };
        // All servers update at once.
        let at_once = pushes_parts && !client.has_backups;
        for server in (0..num_servers).filter(|_| at_once) {
            send(client, server, client.shard_servers[server].primary())?;
        }
        for server in 0..num_servers {
            let length = client.with_failover(server, |client, rank| {
                let sent_at = client.world.clock().now();
                if !at_once {
                    send(client, server, rank)?;
                }
                let reply = client.recv_reply(rank)?;
                Ok((reply, client.world.clock().since(sent_at)))
            })?;
            client.latencies.push.note(length);
            client.acknowledged[server] += 1;
        }
        client.rows = rows;
        client.exposed += client.world.clock().since(began);
        Ok(())
    }

    /// Leaves the servers.
    pub fn leave_servers(&mut self) -> Result<(), CommError> {
        let Self { client: Some(client), .. } = self else { return Ok(()) };
        for server in 0..client.num_servers() {
            let left = client.with_failover(server, |client, rank| {
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
            client.with_failover(server, |client, rank| {
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

    /// Bytes of pulls and pushes of this worker, in both directions: a server sends on behalf of a
    /// worker.
    pub(crate) fn client_traffic(&self) -> Traffic {
        let Some(client) = &self.client else { return Traffic::default() };
        let traffic = client.comm.counters().total().traffic;
        Traffic { sent_bytes: traffic.sent_bytes + traffic.received_bytes, ..traffic }
    }

    /// Enables compression of pushes.
    pub fn enable_push_compression(&mut self, compression: PushCompression) {
        let Self { client: Some(client), all, .. } = self else { return };
        let lens: Vec<usize> = all.list.iter().map(|bucket| bucket.len).collect();
        client.compressor = Some(PushCompressor::new(compression, client.num_servers(), &lens));
    }

    /// Visits the residuals by bucket, to save or to restore them.
    pub fn visit_push_residuals<E>(
        &mut self,
        mut visit: impl FnMut(&str, &mut [f32]) -> Result<(), E>,
    ) -> Result<(), E> {
        let compressor = self.client.as_mut().and_then(|client| client.compressor.as_mut());
        let buckets =
            compressor.into_iter().flat_map(|compressor| &mut compressor.residual).enumerate();
        for (bucket, values) in buckets.filter(|(_, values)| !values.is_empty()) {
            visit(&format!("bucket.{bucket}"), values)?;
        }
        Ok(())
    }

    /// Compression statistics of this worker's gradients in the current step, if compressed.
    pub fn push_compression_stats(&self) -> Option<CompressionStats> {
        let compressor = self.client.as_ref()?.compressor.as_ref()?;
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
