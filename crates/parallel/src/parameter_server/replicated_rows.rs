//! Replicated rows: frequent embedding rows are replicated on other servers than their owner.
//!
//! By Zipf's law a few rows are pulled by nearly every worker in nearly every step, all from the
//! servers that own them. So each worker pulls its most used rows from a home server, which stores
//! replicas of other servers' rows. If a replica is missing or too stale, the worker pulls the row
//! from its owner and stores a replica. That balances the pull load; gradients go to the owner. In
//! synchronous mode a replica must be current, and results do not change.
//!
//! The worker computes a replica's staleness: every pull returns the version of its server.

use super::Tag;
use super::row_table::check_row_count;
use lockstep_comm::{Comm, CommError};
use std::collections::BTreeMap;

/// A worker's side: frequent rows, and the rows that the current step requests from replicas.
#[derive(Debug, Default)]
pub(super) struct ReplicatedRows {
    pub(super) capacity: usize,
    /// Largest number of updates that a replica may have missed.
    pub(super) age: u64,
    /// Server from which replicas are pulled.
    pub(super) home: usize,
    /// Number of steps in which each row was used, and the count from which on a row is frequent.
    pub(super) counts: Vec<u64>,
    pub(super) least: u64,
    /// Requests of the current step.
    pub(super) requests: Vec<RowRequest>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RowRequest {
    pub(super) row: u32,
    pub(super) owner: usize,
    /// The owner's version.
    pub(super) version: u64,
    /// The oldest acceptable version.
    pub(super) least: u64,
}

impl ReplicatedRows {
    /// Pulls at most `capacity` of `num_rows` rows from replicas on the server `home`, which may
    /// have missed `age` updates.
    pub(super) fn new(num_rows: usize, capacity: usize, age: u64, home: usize) -> Self {
        let counts = vec![0; if capacity > 0 { num_rows } else { 0 }];
        Self { capacity, age, home, counts, ..Self::default() }
    }

    /// Counts a use of these rows.
    pub(super) fn touch(&mut self, rows: &[u32]) {
        if self.capacity == 0 {
            return;
        }
        for row in rows {
            self.counts[*row as usize] += 1;
        }
        // A row used once is not frequent.
        let mut counts: Vec<u64> = self.counts.iter().copied().filter(|count| *count > 1).collect();
        self.least = match self.capacity.checked_sub(1).filter(|last| *last < counts.len()) {
            Some(last) => *counts.select_nth_unstable_by(last, |a, b| b.cmp(a)).1,
            None => 2,
        };
    }

    /// Whether a row is to be pulled from a replica; if so, records the request. In synchronous
    /// mode the replica must have the owner's version.
    pub(super) fn defer(
        &mut self,
        row: u32,
        owner: usize,
        version: u64,
        in_lockstep: bool,
    ) -> bool {
        let is_common = self.capacity > self.requests.len() && owner != self.home;
        if !is_common || self.counts[row as usize] < self.least {
            return false;
        }
        let least = version.saturating_sub(if in_lockstep { 0 } else { self.age });
        self.requests.push(RowRequest { row, owner, version, least });
        true
    }
}

/// A server's side: replicas of other servers' rows.
#[derive(Debug, Default)]
pub(super) struct RowReplicas {
    capacity: usize,
    kept: BTreeMap<u32, RowReplica>,
}

#[derive(Debug)]
struct RowReplica {
    version: u64,
    values: Vec<f32>,
}

impl RowReplicas {
    /// Stores at most `capacity` replicas.
    pub(super) fn new(capacity: usize) -> Self {
        Self { capacity, ..Self::default() }
    }

    /// A replica at least as new as `least`.
    fn find(&self, row: u32, least: u64) -> Option<&RowReplica> {
        self.kept.get(&row).filter(|replica| replica.version >= least)
    }

    /// Stores a replica in place of an older one of the row, or of the stalest one.
    fn keep(&mut self, row: u32, version: u64, values: &[f32]) {
        if self.kept.get(&row).is_some_and(|replica| replica.version >= version) {
            return;
        }
        if self.kept.len() >= self.capacity && !self.kept.contains_key(&row) {
            let oldest = self.kept.iter().min_by_key(|(_, replica)| replica.version);
            let Some(oldest) = oldest.map(|(row, _)| *row) else { return };
            self.kept.remove(&oldest);
        }
        self.kept.insert(row, RowReplica { version, values: values.to_vec() });
    }

    /// Handles a pull of replicas: versions plus one, or zeros, and the values of those found.
    pub(super) fn look_up(
        &self,
        comm: &Comm,
        worker: usize,
        number: u64,
    ) -> Result<(Vec<u64>, Vec<f32>), CommError> {
        let count = check_row_count(comm, number, self.capacity)?;
        let (mut rows, mut least) = (vec![0_u32; count], vec![0_u64; count]);
        comm.recv(&mut rows, worker, Tag::Rows as u64)?;
        comm.recv(&mut least, worker, Tag::Counts as u64)?;
        let found = rows.iter().zip(least).map(|(row, least)| self.find(*row, least));
        let found: Vec<Option<&RowReplica>> = found.collect();
        let versions =
            found.iter().map(|replica| replica.map_or(0, |replica| replica.version + 1)).collect();
        let values = found.iter().flatten().flat_map(|replica| &replica.values).copied().collect();
        Ok((versions, values))
    }

    /// Stores replicas sent by a worker, of rows of this length.
    pub(super) fn store(
        &mut self,
        comm: &Comm,
        worker: usize,
        number: u64,
        row_len: usize,
    ) -> Result<(), CommError> {
        let count = check_row_count(comm, number, self.capacity)?;
        let (mut rows, mut versions) = (vec![0_u32; count], vec![0_u64; count]);
        let mut values = vec![0.0_f32; count * row_len];
        comm.recv(&mut rows, worker, Tag::Rows as u64)?;
        comm.recv(&mut versions, worker, Tag::Counts as u64)?;
        comm.recv(&mut values, worker, Tag::Weights as u64)?;
        for ((row, version), values) in rows.iter().zip(versions).zip(values.chunks_exact(row_len))
        {
            self.keep(*row, version, values);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_most_used_rows_of_other_servers_are_replicated() {
        let mut replicated = ReplicatedRows::new(10, 2, 3, 1);
        replicated.touch(&[0, 1, 2]);
        assert!(!replicated.defer(0, 0, 9, false), "one use is not frequent");
        replicated.touch(&[0, 1, 2]);
        replicated.touch(&[0, 1]);
        replicated.touch(&[1]);
        let common: Vec<bool> = (0..3).map(|row| replicated.defer(row, 0, 9, row == 1)).collect();
        assert_eq!(common, [true, true, false]);
        assert_eq!(replicated.requests[1], RowRequest { row: 1, owner: 0, version: 9, least: 9 });
        assert_eq!(replicated.requests[0].least, 6, "three updates may be missing");
        replicated.requests.clear();
        assert!(!replicated.defer(1, 1, 9, false), "the home server owns it");
    }

    #[test]
    fn a_replica_is_replaced_by_newer_ones_and_found_while_fresh() {
        let mut replicas = RowReplicas::new(2);
        replicas.keep(7, 3, &[1.0]);
        replicas.keep(7, 2, &[9.0]);
        let found = |replicas: &RowReplicas, row, least| {
            replicas.find(row, least).map(|replica| replica.version)
        };
        assert_eq!((found(&replicas, 7, 3), found(&replicas, 7, 4)), (Some(3), None));
        replicas.keep(8, 5, &[2.0]);
        replicas.keep(9, 6, &[3.0]);
        assert_eq!([7, 8, 9].map(|row| found(&replicas, row, 0)), [None, Some(5), Some(6)]);
        let mut without_room = RowReplicas::new(0);
        without_room.keep(1, 1, &[1.0]);
        assert!(without_room.kept.is_empty());
    }
}
