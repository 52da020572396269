//! Sparse pull: a worker pulls only the embedding rows of a step and pushes only their gradients.

use super::replicated_rows::{ReplicatedRows, RowRequest};
use super::row_cache::RowCache;
use super::row_table::ShardLayout;
use super::sparse_rows::{SparsePull, SparseRowCounts};
use super::{Client, Reply, Request, RequestKind, Tag};
use crate::replica::Replica;
use lockstep_comm::{Comm, CommError};
use lockstep_config::{Consistency, Recipe};

/// Bytes of a row count.
const NUMBER_BYTES: u64 = size_of::<u64>() as u64;

impl Replica {
    /// Enables sparse pulls, if the recipe asks for them; after [`Self::attach_to_servers`].
    pub fn enable_sparse_pull(&mut self, recipe: &Recipe) {
        self.step_context.pulls_rows = recipe.sync.server.rows.sparse;
        let Self { client: Some(client), blueprint, .. } = self else { return };
        let keys = &recipe.sync.server;
        let num_servers = client.num_servers();
        let layout = ShardLayout::of(recipe, blueprint);
        let Some(table) = layout.rows else { return };
        client.ranges = layout.ranges;
        let bound = (keys.consistency == Consistency::Bounded).then_some(keys.staleness);
        let row_cache =
            RowCache::new(table.num_rows(), keys.rows.cache, keys.rows.cache_every, bound);
        let age = match keys.consistency {
            Consistency::Sync => 0,
            Consistency::Bounded => keys.rows.replicated_age.min(keys.staleness),
            Consistency::Async | Consistency::Elastic => keys.rows.replicated_age,
        };
        let home = client.comm.group_rank() % num_servers;
        let replicated = ReplicatedRows::new(table.num_rows(), keys.rows.replicated, age, home);
        let [requests, bytes] = [(); 2].map(|()| vec![0; num_servers]);
        let counts = SparseRowCounts { requests, bytes, ..SparseRowCounts::default() };
        let (batch_rows, step) = (Vec::new(), 0);
        client.rows = Some(SparsePull { table, row_cache, replicated, batch_rows, step, counts });
    }

    /// Sets the tokens that the next step looks up, on this worker and the rest of its host group.
    pub(super) fn set_batch_rows(
        &mut self,
        step: u64,
        tokens: impl Iterator<Item = u32>,
    ) -> Result<(), CommError> {
        let mut batch_rows: Vec<u32> = tokens.collect();
        batch_rows.sort_unstable();
        batch_rows.dedup();
        let batch_rows = self.gather_batch_rows(batch_rows)?;
        let rows = self.client.as_mut().and_then(|client| client.rows.as_mut());
        let Some(rows) = rows else { return Ok(()) };
        rows.row_cache.touch(&batch_rows);
        rows.replicated.touch(&batch_rows);
        (rows.batch_rows, rows.step) = (batch_rows, step);
        Ok(())
    }

    /// Number of rows sent, with sparse pulls.
    pub fn row_counts(&self) -> Option<&SparseRowCounts> {
        Some(&self.client.as_ref()?.rows.as_ref()?.counts)
    }
}

impl SparsePull {
    /// Pulls rows from a server that has just sent its whole parts: those of the step, or all.
    pub(super) fn take(
        &mut self,
        client: &Client,
        (rank, server): (usize, usize),
        kind: RequestKind,
        version: u64,
        bucket: &mut [f32],
    ) -> Result<(), CommError> {
        if kind != RequestKind::Read {
            return self.pull(client, (rank, server), version, bucket);
        }
        let rows = self.table.rows_on(server);
        let mut values = vec![0.0; self.table.len_on(server)];
        if !values.is_empty() {
            client.comm.recv(&mut values, rank, Tag::Weights as u64)?;
        }
        for (row, values) in rows.iter().zip(values.chunks_exact(self.table.row_len)) {
            bucket[self.table.range(*row)].copy_from_slice(values);
        }
        // The next step is the first that may use them.
        self.row_cache.refresh(rows, self.step + 1, version);
        Ok(())
    }

    fn pull(
        &mut self,
        client: &Client,
        (rank, server): (usize, usize),
        version: u64,
        bucket: &mut [f32],
    ) -> Result<(), CommError> {
        let Self { table, row_cache, replicated, batch_rows, step, counts } = self;
        let in_lockstep = client.switch().is_some_and(|switch| *step >= switch);
        let here = batch_rows.iter().copied().filter(|row| table.place(*row).0 == server);
        let mut missing = Vec::new();
        for row in here {
            match row_cache.age(row, *step, version) {
                Some(age) => {
                    counts.kept += 1;
                    counts.age_max = counts.age_max.max(age);
                }
                None if replicated.defer(row, server, version, in_lockstep) => {}
                None => missing.push(row),
            }
        }
        if missing.is_empty() {
            return Ok(());
        }
        self.pull_rows(client, (rank, server), &missing, bucket).map(drop)
    }

    /// Pulls these rows from their owner; returns its reply and their version.
    pub(super) fn pull_rows(
        &mut self,
        client: &Client,
        (rank, server): (usize, usize),
        missing: &[u32],
        bucket: &mut [f32],
    ) -> Result<(Reply, u64), CommError> {
        let Self { table, row_cache, step, counts, .. } = self;
        let places: Vec<u32> = missing.iter().map(|row| table.place(*row).1).collect();
        let number = places.len() as u64;
        client.send_request(rank, Request { number, ..client.request(RequestKind::Rows) })?;
        client.comm.send(&places, rank, Tag::Rows as u64)?;
        let reply = client.recv_reply(rank)?;
        let mut values = vec![0.0; missing.len() * table.row_len];
        client.comm.recv(&mut values, rank, Tag::Weights as u64)?;
        for (row, values) in missing.iter().zip(values.chunks_exact(table.row_len)) {
            bucket[table.range(*row)].copy_from_slice(values);
            row_cache.insert(*row, *step, reply.number);
        }
        counts.sent.pulled += missing.len() as u64;
        self.record_request(server, bytes_of(&places) + bytes_of(&values));
        Ok((reply, reply.number))
    }

    /// Pushes the gradients of a server's rows that the step has used.
    pub(super) fn push(
        &mut self,
        client: &Client,
        (rank, server): (usize, usize),
        bucket: &[f32],
    ) -> Result<(), CommError> {
        let Self { table, batch_rows, counts, .. } = self;
        let here = |row: &&u32| table.place(**row).0 == server;
        let rows: Vec<u32> = batch_rows.iter().filter(here).copied().collect();
        client.send(&[rows.len() as u64], rank, Tag::Rows)?;
        counts.bytes[server] += NUMBER_BYTES;
        if rows.is_empty() {
            return Ok(());
        }
        let places: Vec<u32> = rows.iter().map(|row| table.place(*row).1).collect();
        let values: Vec<f32> =
            rows.iter().flat_map(|row| &bucket[table.range(*row)]).copied().collect();
        client.comm.send(&places, rank, Tag::Rows as u64)?;
        client.comm.send(&values, rank, Tag::Gradients as u64)?;
        counts.sent.pushed += rows.len() as u64;
        self.record_rows(server, bytes_of(&places) + bytes_of(&values));
        Ok(())
    }

    /// Sends a server all of its rows.
    pub(super) fn send_all_rows(
        &self,
        comm: &Comm,
        (rank, server): (usize, usize),
        bucket: &[f32],
    ) -> Result<(), CommError> {
        let rows = self.table.rows_on(server).iter();
        let values: Vec<f32> =
            rows.flat_map(|row| &bucket[self.table.range(*row)]).copied().collect();
        if values.is_empty() { Ok(()) } else { comm.send(&values, rank, Tag::Weights as u64) }
    }

    /// Pulls the deferred rows from replicas or, where those are missing, from their owners, and
    /// stores replicas of the latter.
    pub(super) fn pull_replicated(
        &mut self,
        client: &mut Client,
        bucket: &mut [f32],
    ) -> Result<(), CommError> {
        let requests = std::mem::take(&mut self.replicated.requests);
        if requests.is_empty() {
            return Ok(());
        }
        let found = self.pull_replicas(client, &requests, bucket)?;
        let missing: Vec<RowRequest> =
            requests.iter().zip(&found).filter(|(_, found)| !**found).map(|(w, _)| *w).collect();
        let mut versions = Vec::new();
        for owner in 0..client.num_servers() {
            let rows: Vec<u32> =
                missing.iter().filter(|w| w.owner == owner).map(|w| w.row).collect();
            if rows.is_empty() {
                continue;
            }
            let version = client.with_failover(owner, None, |client, rank| {
                self.pull_rows(client, (rank, owner), &rows, bucket)
            })?;
            versions.extend(rows.iter().map(|row| (*row, version)));
        }
        self.store_replicas(client, &versions, bucket)
    }

    /// Pulls the replicas that exist; returns which.
    fn pull_replicas(
        &mut self,
        client: &mut Client,
        requests: &[RowRequest],
        bucket: &mut [f32],
    ) -> Result<Vec<bool>, CommError> {
        let (home, row_len, number) =
            (self.replicated.home, self.table.row_len(), requests.len() as u64);
        let rows: Vec<u32> = requests.iter().map(|requests| requests.row).collect();
        let least: Vec<u64> = requests.iter().map(|requests| requests.least).collect();
        // Version plus one, or zero if there is no replica.
        let mut versions = vec![0_u64; requests.len()];
        let values = client.with_failover(home, None, |client, rank| {
            client.send_request(
                rank,
                Request { number, ..client.request(RequestKind::RowReplicas) },
            )?;
            client.comm.send(&rows, rank, Tag::Rows as u64)?;
            client.comm.send(&least, rank, Tag::Counts as u64)?;
            let reply = client.recv_reply(rank)?;
            client.comm.recv(&mut versions, rank, Tag::Counts as u64)?;
            let num_found = versions.iter().filter(|version| **version > 0).count();
            let mut values = vec![0.0; num_found * row_len];
            if num_found > 0 {
                client.comm.recv(&mut values, rank, Tag::Weights as u64)?;
            }
            Ok((reply, values))
        })?;
        let mut replicas = values.chunks_exact(row_len);
        for (requests, version) in requests.iter().zip(&versions) {
            let Some(version) = version.checked_sub(1) else { continue };
            let replica = replicas.next().expect("as many as were found");
            bucket[self.table.range(requests.row)].copy_from_slice(replica);
            self.record_replica(requests.row, version, requests.version.saturating_sub(version));
        }
        self.counts.sent.looked_up += number;
        let bytes = bytes_of(&rows) + 2 * bytes_of(&least) + bytes_of(&values);
        self.record_request(home, bytes);
        Ok(versions.iter().map(|version| *version > 0).collect())
    }

    /// Stores replicas of rows with these versions.
    fn store_replicas(
        &mut self,
        client: &mut Client,
        versions: &[(u32, u64)],
        bucket: &[f32],
    ) -> Result<(), CommError> {
        if versions.is_empty() {
            return Ok(());
        }
        let (home, number) = (self.replicated.home, versions.len() as u64);
        let (rows, versions): (Vec<u32>, Vec<u64>) = versions.iter().copied().unzip();
        let values: Vec<f32> =
            rows.iter().flat_map(|row| &bucket[self.table.range(*row)]).copied().collect();
        client.with_failover(home, None, |client, rank| {
            client.send_request(
                rank,
                Request { number, ..client.request(RequestKind::StoreRowReplicas) },
            )?;
            client.comm.send(&rows, rank, Tag::Rows as u64)?;
            client.comm.send(&versions, rank, Tag::Counts as u64)?;
            client.comm.send(&values, rank, Tag::Weights as u64)?;
            Ok((client.recv_reply(rank)?, ()))
        })?;
        let bytes = bytes_of(&rows) + bytes_of(&versions) + bytes_of(&values);
        self.record_request(home, bytes);
        Ok(())
    }
}

fn bytes_of<T>(values: &[T]) -> u64 {
    size_of_val(values) as u64
}
