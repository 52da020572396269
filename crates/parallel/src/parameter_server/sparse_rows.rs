//! State of sparse pulls: the row table, its cache and replicas, and the rows of the step.

use super::replicated_rows::ReplicatedRows;
use super::row_cache::RowCache;
use super::row_table::RowTable;
use super::{Reply, Request};
use lockstep_telemetry::RowRequests;

/// Bytes of a row request and its reply, without rows.
const REQUEST_BYTES: u64 = ((Request::NUM_FIELDS + Reply::NUM_FIELDS) * size_of::<u64>()) as u64;

/// Sparse pull state of a worker.
pub(super) struct SparsePull {
    pub(super) table: RowTable,
    pub(super) row_cache: RowCache,
    pub(super) replicated: ReplicatedRows,
    /// Rows that the step uses, ascending.
    pub(super) batch_rows: Vec<u32>,
    pub(super) step: u64,
    pub(super) counts: SparseRowCounts,
}

/// Number of rows sent for a worker.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SparseRowCounts {
    /// Requests and the rows in them.
    pub sent: RowRequests,
    /// Rows used from the cache.
    pub kept: u64,
    /// Largest number of updates that a cached or replicated row had missed when it was used.
    pub age_max: u64,
    /// Requests to each server about rows: pulls and pushes that include some.
    pub requests: Vec<u64>,
    /// Bytes of rows and their indices, to and from each server.
    pub bytes: Vec<u64>,
}

impl SparsePull {
    /// Records a row from a replica that had missed `age` updates.
    pub(super) fn record_replica(&mut self, row: u32, version: u64, age: u64) {
        self.row_cache.insert(row, self.step, version);
        self.counts.sent.replicated += 1;
        self.counts.age_max = self.counts.age_max.max(age);
    }

    /// Records a request about rows and its reply, with the bytes of the rows in them.
    pub(super) fn record_request(&mut self, server: usize, bytes: u64) {
        self.counts.sent.requests += 1;
        self.record_rows(server, REQUEST_BYTES + bytes);
    }

    /// Records rows that are sent with other values.
    pub(super) fn record_rows(&mut self, server: usize, bytes: u64) {
        self.counts.requests[server] += 1;
        self.counts.bytes[server] += bytes;
    }
}
