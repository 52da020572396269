//! A worker's client of the parameter servers: requests with failover.
//!
//! A request that fails because its server died is retried at the backup.

use super::compressed_push::PushCompressor;
use super::failover::{LostServer, ShardServers};
use super::latency::Latency;
use super::part_transfer::LostParts;
use super::sparse_rows::SparsePull;
use super::transfer_order::TransferOrder;
use super::{Reply, Request, RequestKind, Tag};
use crate::buckets::Buckets;
use crate::byzantine::ByzantineWorker;
use lockstep_comm::{Comm, CommError};
use lockstep_platform::World;
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
    /// Number of pushes of this worker.
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
    /// Latencies of requests to one server.
    pub(super) latencies: Latencies,
    pub(super) world: World,
    pub(super) exposed: Duration,
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

    /// First synchronous step, where earlier ones were not.
    pub fn switch(&self) -> Option<u64> {
        self.switch
    }

    /// Latencies of requests.
    pub fn latencies(&self) -> &Latencies {
        &self.latencies
    }

    /// Exposed communication time since the last call.
    pub(crate) fn take_exposed(&mut self) -> Duration {
        std::mem::take(&mut self.exposed)
    }

    pub(super) fn num_servers(&self) -> usize {
        self.shard_servers.len()
    }

    /// Runs a request against a shard's primary, and after its failure against the backup;
    /// `request` gets the server's rank and may run more than once.
    pub(super) fn with_failover<T>(
        &mut self,
        server: usize,
        mut request: impl FnMut(&Self, usize) -> Result<(Reply, T), CommError>,
    ) -> Result<T, CommError> {
        loop {
            match request(self, self.shard_servers[server].primary()) {
                Ok((reply, found)) => {
                    self.switch = self.switch.or(reply.switch);
                    if reply.has_lost_peer {
                        self.lost_servers.extend(self.shard_servers[server].drop_backup());
                    }
                    return Ok(found);
                }
                Err(why @ CommError::Gone { .. }) => {
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
        self.comm.send(&request.fields(), rank, Tag::Request as u64)
    }

    pub(super) fn recv_reply(&self, rank: usize) -> Result<Reply, CommError> {
        let mut fields = [0; Reply::NUM_FIELDS];
        self.comm.recv(&mut fields, rank, Tag::Reply as u64)?;
        Ok(Reply::from_fields(fields))
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
            if !part.is_empty() && !compressor.send(&self.comm, (server, bucket), rank, tag)? {
                self.comm.send(part, rank, tag)?;
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
                self.comm.send(part, rank, tag as u64)?;
            }
        }
        Ok(())
    }
}
