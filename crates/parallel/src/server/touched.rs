//! A worker's side of rows that travel one by one: pull those that the step touches and push their
//! gradients.

use super::hot::HotRows;
use super::rows::{Holdings, RowTable};
use super::spread::SpreadRows;
use super::{Answer, Ask, Client, Request, Tag};
use crate::replica::Replica;
use lockstep_comm::{Comm, CommError};
use lockstep_config::{Consistency, Recipe};

/// What a worker knows of rows.
pub struct TouchedRows {
    pub(super) table: RowTable,
    hot: HotRows,
    pub(super) spread: SpreadRows,
    /// The rows that the step touches, ascending.
    touched: Vec<u32>,
    step: u64,
    counts: RowCounts,
}

/// How many rows have travelled for a worker, in steps.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RowCounts {
    /// Rows that were pulled.
    pub pulled: u64,
    /// Rows whose gradients were pushed.
    pub pushed: u64,
    /// Rows that were touched and not pulled, because they were kept.
    pub kept: u64,
    /// Rows that were taken from a copy, on another server than their own.
    pub copied: u64,
    /// The most updates that a row which was kept or copied had missed when it was used.
    pub age_max: u64,
    /// Requests to each server that are about rows: pulls that ask for some, pushes that have some.
    pub requests: Vec<u64>,
    /// What rows and their numbers have weighed, to and from each server.
    pub bytes: Vec<u64>,
}

/// What says how many rows there are.
const NUMBER_BYTES: u64 = size_of::<u64>() as u64;
/// What asking for rows and being answered takes besides.
pub(super) const ASKING_BYTES: u64 = (Request::NUM_WORDS + Answer::NUM_WORDS) as u64 * NUMBER_BYTES;

impl Replica {
    /// From now on only rows that are touched travel, where the recipe asks for it; after
    /// [`Self::work_for`].
    pub fn work_by_rows(&mut self, recipe: &Recipe) {
        let Self { client: Some(client), blueprint, .. } = self else { return };
        let keys = &recipe.sync.server;
        let num_servers = client.num_servers();
        let holdings = Holdings::new(blueprint, num_servers, keys.rows.dealt());
        let Some(table) = holdings.rows else { return };
        client.ranges = holdings.ranges;
        let bound = (keys.consistency == Consistency::Bounded).then_some(keys.staleness);
        let hot = HotRows::new(table.num_rows(), keys.rows.hot, keys.rows.hot_every, bound);
        let age = match keys.consistency {
            Consistency::Sync => 0,
            Consistency::Bounded => keys.rows.spread_age.min(keys.staleness),
            Consistency::Async | Consistency::Elastic => keys.rows.spread_age,
        };
        let home = client.comm.group_rank() % num_servers;
        let spread = SpreadRows::new(table.num_rows(), keys.rows.spread, age, home);
        let [requests, bytes] = [(); 2].map(|()| vec![0; num_servers]);
        let counts = RowCounts { requests, bytes, ..RowCounts::default() };
        let (touched, step) = (Vec::new(), 0);
        client.rows = Some(TouchedRows { table, hot, spread, touched, step, counts });
    }

    /// Says which tokens the next step looks up, here and, where workers meet servers together, by
    /// all of them.
    pub fn touch(&mut self, step: u64, tokens: impl Iterator<Item = u32>) -> Result<(), CommError> {
        let mut touched: Vec<u32> = tokens.collect();
        touched.sort_unstable();
        touched.dedup();
        let touched = self.touched_near(touched)?;
        let rows = self.client.as_mut().and_then(|client| client.rows.as_mut());
        let Some(rows) = rows else { return Ok(()) };
        rows.hot.touch(&touched);
        rows.spread.touch(&touched);
        (rows.touched, rows.step) = (touched, step);
        Ok(())
    }

    /// How many rows have travelled, where they travel one by one.
    pub fn row_counts(&self) -> Option<&RowCounts> {
        Some(&self.client.as_ref()?.rows.as_ref()?.counts)
    }
}

impl TouchedRows {
    /// Takes rows from a server that has just sent what travels whole: those of the step, or all.
    pub(super) fn take(
        &mut self,
        client: &Client,
        (rank, server): (usize, usize),
        ask: Ask,
        version: u64,
        bucket: &mut [f32],
    ) -> Result<(), CommError> {
        if ask == Ask::Pull {
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
        self.hot.renewed(rows, self.step + 1, version);
        Ok(())
    }

    fn pull(
        &mut self,
        client: &Client,
        (rank, server): (usize, usize),
        version: u64,
        bucket: &mut [f32],
    ) -> Result<(), CommError> {
        let Self { table, hot, spread, touched, step, counts } = self;
        let in_lockstep = client.switch().is_some_and(|switch| *step >= switch);
        let here = touched.iter().copied().filter(|row| table.place(*row).0 == server);
        let mut wanted = Vec::new();
        for row in here {
            match hot.age(row, *step, version) {
                Some(age) => {
                    counts.kept += 1;
                    counts.age_max = counts.age_max.max(age);
                }
                None if spread.sets_aside(row, server, version, in_lockstep) => {}
                None => wanted.push(row),
            }
        }
        if wanted.is_empty() {
            return Ok(());
        }
        self.pull_rows(client, (rank, server), &wanted, bucket).map(drop)
    }

    /// Takes these rows from the server that holds them; returns its answer, and their version.
    pub(super) fn pull_rows(
        &mut self,
        client: &Client,
        (rank, server): (usize, usize),
        wanted: &[u32],
        bucket: &mut [f32],
    ) -> Result<(Answer, u64), CommError> {
        let Self { table, hot, step, counts, .. } = self;
        let places: Vec<u32> = wanted.iter().map(|row| table.place(*row).1).collect();
        let number = places.len() as u64;
        client.ask(rank, Request { number, ..client.request(Ask::Rows) })?;
        client.comm.send(&places, rank, Tag::Rows as u64)?;
        let answer = client.answer(rank)?;
        let mut values = vec![0.0; wanted.len() * table.row_len];
        client.comm.recv(&mut values, rank, Tag::Weights as u64)?;
        for (row, values) in wanted.iter().zip(values.chunks_exact(table.row_len)) {
            bucket[table.range(*row)].copy_from_slice(values);
            hot.fetched(*row, *step, answer.number);
        }
        counts.pulled += wanted.len() as u64;
        let bytes = ASKING_BYTES + bytes_of(&places) + bytes_of(&values);
        self.note_request(server, bytes);
        Ok((answer, answer.number))
    }

    /// A row has come from a copy that had missed so many updates.
    pub(super) fn note_copy(&mut self, row: u32, version: u64, age: u64) {
        self.hot.fetched(row, self.step, version);
        self.counts.copied += 1;
        self.counts.age_max = self.counts.age_max.max(age);
    }

    /// A server was asked about rows once more.
    pub(super) fn note_request(&mut self, server: usize, bytes: u64) {
        self.counts.requests[server] += 1;
        self.counts.bytes[server] += bytes;
    }

    /// Gives a server the gradients of its rows that the step has touched.
    pub(super) fn push(
        &mut self,
        comm: &Comm,
        (rank, server): (usize, usize),
        bucket: &[f32],
    ) -> Result<(), CommError> {
        let Self { table, touched, counts, .. } = self;
        let here = |row: &&u32| table.place(**row).0 == server;
        let rows: Vec<u32> = touched.iter().filter(here).copied().collect();
        comm.send(&[rows.len() as u64], rank, Tag::Rows as u64)?;
        counts.bytes[server] += NUMBER_BYTES;
        if rows.is_empty() {
            return Ok(());
        }
        let places: Vec<u32> = rows.iter().map(|row| table.place(*row).1).collect();
        let values: Vec<f32> =
            rows.iter().flat_map(|row| &bucket[table.range(*row)]).copied().collect();
        comm.send(&places, rank, Tag::Rows as u64)?;
        comm.send(&values, rank, Tag::Gradients as u64)?;
        counts.pushed += rows.len() as u64;
        self.note_request(server, bytes_of(&places) + bytes_of(&values));
        Ok(())
    }

    /// Gives a server all of its rows.
    pub(super) fn give_all(
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
}

pub(super) fn bytes_of<T>(values: &[T]) -> u64 {
    size_of_val(values) as u64
}
