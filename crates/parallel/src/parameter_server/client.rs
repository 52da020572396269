//! A worker's client of the parameter servers: requests with failover.
//!
//! A request that fails because its server died is retried at the backup.

use super::compressed_push::PushCompressor;
use super::failover::{LostServer, ShardServers};
use super::latency::Latency;
use super::loss_spike::LossSpike;
use super::part_transfer::LostParts;
use super::sparse_rows::SparsePull;
use super::transfer_order::TransferOrder;
use super::{Reply, Request, RequestKind, Tag};
use crate::buckets::Buckets;
use crate::byzantine::ByzantineWorker;
use crate::param_store::ParamStore;
use lockstep_comm::{Comm, CommError, Element};
use lockstep_platform::World;
use lockstep_schedule::step::ServerCall;
use lockstep_telemetry::RepeatedRequest;
use std::cell::Cell;
use std::time::Duration;

/// Parameter-server state of a worker.
pub struct Client {
    pub(super) comm: Comm,
    /// Model cut into one shard per server.
    pub(super) ranges: Buckets,
    /// Servers of each shard, primary first.
    pub(super) shard_servers: Vec<ShardServers>,
    /// Lost servers that were not reported yet.
    pub(super) lost_servers: Vec<LostServer>,
    /// Requests that were repeated at a backup, and messages of the running one that are done.
    pub(super) repeats: Vec<RepeatedRequest>,
    pub(super) num_messages: Cell<u64>,
    /// Numbers of pulls for a step and of pushes of this worker.
    pub(super) num_pulls: u64,
    pub(super) num_pushes: u64,
    /// Number of its pushes that each server has acknowledged.
    pub(super) acknowledged: Vec<u64>,
    /// First synchronous step, once a server has announced the switch.
    pub(super) switch: Option<u64>,
    /// Push compression, if enabled.
    pub(super) compressor: Option<PushCompressor>,
    /// Sparse pulls, if enabled.
    pub(super) rows: Option<SparsePull>,
    /// This worker's attack, if it is Byzantine.
    pub(super) byzantine: Option<ByzantineWorker>,
    /// Which transfers overlap with passes.
    pub(super) order: TransferOrder,
    /// Rank of the first server in the run.
    pub(super) first_server: usize,
    /// Whether servers have backups.
    pub(super) has_backups: bool,
    /// Step of the last pull, and the rank that let this worker read each shard.
    pub(super) step: u64,
    pub(super) granted: Vec<usize>,
    /// Buckets whose pull was started and not completed.
    pub(super) is_arriving: Vec<bool>,
    pub(super) lost_parts: LostParts,
    /// Rank that has the parts of each shard's gradient.
    pub(super) staged: Vec<Option<usize>>,
    /// Whether the push has a gradient, and announces that the loss has jumped.
    pub(super) has_gradient: bool,
    pub(super) is_alarm: bool,
    pub(super) loss_spike: LossSpike,
    /// Pushes whose reply is awaited, by server.
    pub(super) sent: Vec<Option<SentPush>>,
    /// Latencies of requests to one server.
    pub(super) latencies: Latencies,
    pub(super) world: World,
    pub(super) exposed: Duration,
}

/// Push whose reply is awaited.
pub(super) struct SentPush {
    pub(super) began: Duration,
    pub(super) sent: Result<(), CommError>,
    pub(super) num_messages: u64,
}

/// Latencies of a worker's requests, from sending the request to the end of the reply.
#[derive(Clone, Debug, Default)]
pub struct Latencies {
    /// Pulls, without parts that arrive in the background.
    pub pull: Latency,
    /// Pushes, without parts that left in the background.
    pub push: Latency,
}

/// Host group of a worker.
pub struct HostGroup {
    pub(super) comm: Comm,
    pub(super) exposed: Duration,
}

impl Client {
    /// Number of this worker's pushes that each server has acknowledged.
    pub fn acknowledged(&self) -> &[u64] {
        &self.acknowledged
    }

    /// Number of this worker's pulls for a step; one that finds the run over has no push.
    pub fn num_pulls(&self) -> u64 {
        self.num_pulls
    }

    /// Number of this worker's pushes.
    pub fn num_pushes(&self) -> u64 {
        self.num_pushes
    }

    /// First synchronous step, where earlier ones were not.
    pub fn switch(&self) -> Option<u64> {
        self.switch
    }

    /// Latencies of requests.
    pub fn latencies(&self) -> &Latencies {
        &self.latencies
    }

    /// Exposed communication time since [`Self::take_exposed`].
    pub(crate) const fn exposed(&self) -> Duration {
        self.exposed
    }

    /// Exposed communication time since the last call.
    pub(crate) fn take_exposed(&mut self) -> Duration {
        std::mem::take(&mut self.exposed)
    }

    pub(super) fn num_servers(&self) -> usize {
        self.shard_servers.len()
    }

    /// Runs a request against a shard's primary, and after its failure against the backup;
    /// `request` gets the server's rank and may run more than once. If it is a call of a step, its
    /// repeats are recorded.
    pub(super) fn with_failover<T>(
        &mut self,
        server: usize,
        call: Option<ServerCall>,
        mut request: impl FnMut(&Self, usize) -> Result<(Reply, T), CommError>,
    ) -> Result<T, CommError> {
        loop {
            self.num_messages.set(0);
            let rank = self.shard_servers[server].primary();
            match request(self, rank) {
                Ok((reply, found)) => {
                    self.switch = self.switch.or(reply.switch);
                    if reply.has_lost_peer {
                        self.lost_servers.extend(self.shard_servers[server].drop_backup());
                    }
                    return Ok(found);
                }
                Err(why @ CommError::Gone { .. }) => {
                    if let Some(call) = call {
                        let is_push = call == ServerCall::Push && self.has_gradient;
                        let resends_parts = is_push && self.staged[server] == Some(rank);
                        self.record_repeat(server, call, self.num_messages.get(), resends_parts);
                    }
                    self.lost_servers.push(self.shard_servers[server].drop_primary(why)?);
                }
                Err(error) => return Err(error),
            }
        }
    }

    pub(super) fn request(&self, kind: RequestKind) -> Request {
        Request::of(kind, self.comm.group_rank())
    }

    pub(super) fn send_request(&self, rank: usize, request: Request) -> Result<(), CommError> {
        self.send(&request.fields(), rank, Tag::Request)
    }

    /// Sends a message of a request.
    pub(super) fn send<T: Element>(
        &self,
        values: &[T],
        rank: usize,
        tag: Tag,
    ) -> Result<(), CommError> {
        self.comm.send(values, rank, tag as u64)?;
        self.num_messages.set(self.num_messages.get() + 1);
        Ok(())
    }

    /// Receives a message of a request.
    pub(super) fn recv<T: Element>(
        &self,
        values: &mut [T],
        rank: usize,
        tag: Tag,
    ) -> Result<(), CommError> {
        self.comm.recv(values, rank, tag as u64)?;
        self.num_messages.set(self.num_messages.get() + 1);
        Ok(())
    }

    pub(super) fn recv_reply(&self, rank: usize) -> Result<Reply, CommError> {
        let mut fields = [0; Reply::NUM_FIELDS];
        self.recv(&mut fields, rank, Tag::Reply)?;
        Ok(Reply::from_fields(fields))
    }

    /// Sends a push to a server: the shard of the gradients, unless its parts were sent, and rows.
    pub(super) fn send_push(
        &self,
        (server, rank): (usize, usize),
        step: u64,
        store: &ParamStore,
        rows: Option<&mut SparsePull>,
    ) -> Result<(), CommError> {
        let kind = if self.has_gradient { RequestKind::Push } else { RequestKind::Skip };
        let (number, is_alarm) = (self.num_pushes, self.is_alarm);
        self.send_request(rank, Request { step, number, is_alarm, ..self.request(kind) })?;
        if !self.has_gradient {
            return Ok(());
        }
        // A backup that has taken over has no parts.
        if self.staged[server] != Some(rank) {
            self.send_grads(server, rank, |bucket| store.own_grads(bucket))?;
        }
        let Some(rows) = rows else { return Ok(()) };
        let bucket = store.own_grads(rows.table.bucket);
        rows.push(self, (rank, server), bucket)
    }

    /// Sends a server its shard of the gradients, compressed or not.
    pub(super) fn send_grads<'a>(
        &self,
        server: usize,
        rank: usize,
        values: impl Fn(usize) -> &'a [f32],
    ) -> Result<(), CommError> {
        let Some(compressor) = &self.compressor else {
            return self.send_parts(server, rank, Tag::Gradients, values);
        };
        let tag = Tag::Gradients as u64;
        for (bucket, cut) in self.ranges.list.iter().enumerate() {
            let part = &values(bucket)[cut.part(server)];
            if part.is_empty() {
                continue;
            }
            if compressor.send(&self.comm, (server, bucket), rank, tag)? {
                self.num_messages.set(self.num_messages.get() + 1);
            } else {
                self.send(part, rank, Tag::Gradients)?;
            }
        }
        Ok(())
    }

    pub(super) fn send_parts<'a>(
        &self,
        server: usize,
        rank: usize,
        tag: Tag,
        values: impl Fn(usize) -> &'a [f32],
    ) -> Result<(), CommError> {
        for (bucket, cut) in self.ranges.list.iter().enumerate() {
            let part = &values(bucket)[cut.part(server)];
            if !part.is_empty() {
                self.send(part, rank, tag)?;
            }
        }
        Ok(())
    }
}
