//! Common rows of which other servers than their holder keep copies.
//!
//! By Zipf's law a few rows are pulled by nearly every worker in nearly every step, all from the
//! servers that hold them. So each worker asks a server of its own for the rows that it touches
//! most, which keeps copies of others' rows for whoever comes. Where there is none, or one that has
//! missed too many updates, the worker pulls the row from its holder and leaves a copy. Servers
//! share the work of answering then; gradients go to the holder as ever. In lockstep a copy must
//! have missed nothing, and no bit changes.
//!
//! What a copy has missed is the worker's to know: every pull tells it the version of every server.

use super::rows::checked;
use super::touched::{ASKING_BYTES, TouchedRows, bytes_of};
use super::{Ask, Client, Request, Tag};
use lockstep_comm::{Comm, CommError};
use std::collections::BTreeMap;

/// A worker's side: which rows are common, and which of them a step wants.
#[derive(Debug, Default)]
pub(super) struct SpreadRows {
    capacity: usize,
    /// The most updates that a copy may have missed.
    age: u64,
    /// The server that is asked for copies.
    home: usize,
    /// In how many steps each row was touched, and from how many on a row is common.
    counts: Vec<u64>,
    least: u64,
    /// What this step wants.
    wanted: Vec<Wanted>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Wanted {
    row: u32,
    holder: usize,
    /// The holder's version.
    version: u64,
    /// The oldest that will do.
    least: u64,
}

impl SpreadRows {
    /// Takes at most `capacity` of so many rows from copies on the server `home`, which may have
    /// missed `age` updates.
    pub(super) fn new(num_rows: usize, capacity: usize, age: u64, home: usize) -> Self {
        let counts = vec![0; if capacity > 0 { num_rows } else { 0 }];
        Self { capacity, age, home, counts, ..Self::default() }
    }

    /// Some rows are touched once more.
    pub(super) fn touch(&mut self, rows: &[u32]) {
        if self.capacity == 0 {
            return;
        }
        for row in rows {
            self.counts[*row as usize] += 1;
        }
        // Who comes once is not common.
        let mut counts: Vec<u64> = self.counts.iter().copied().filter(|count| *count > 1).collect();
        self.least = match self.capacity.checked_sub(1).filter(|last| *last < counts.len()) {
            Some(last) => *counts.select_nth_unstable_by(last, |a, b| b.cmp(a)).1,
            None => 2,
        };
    }

    /// Whether a row of a server with this version is to come from a copy; it is noted then. In
    /// lockstep the copy must be of that version.
    pub(super) fn sets_aside(
        &mut self,
        row: u32,
        holder: usize,
        version: u64,
        in_lockstep: bool,
    ) -> bool {
        let is_common = self.capacity > self.wanted.len() && holder != self.home;
        if !is_common || self.counts[row as usize] < self.least {
            return false;
        }
        let least = version.saturating_sub(if in_lockstep { 0 } else { self.age });
        self.wanted.push(Wanted { row, holder, version, least });
        true
    }
}

impl TouchedRows {
    /// Takes the rows that were set aside, from copies or, where those are none, from their
    /// holders, and leaves copies of these.
    pub(super) fn take_spread(
        &mut self,
        client: &mut Client,
        bucket: &mut [f32],
    ) -> Result<(), CommError> {
        let wanted = std::mem::take(&mut self.spread.wanted);
        if wanted.is_empty() {
            return Ok(());
        }
        let found = self.ask_for_copies(client, &wanted, bucket)?;
        let missing: Vec<Wanted> =
            wanted.iter().zip(&found).filter(|(_, found)| !**found).map(|(w, _)| *w).collect();
        let mut versions = Vec::new();
        for holder in 0..client.num_servers() {
            let rows: Vec<u32> =
                missing.iter().filter(|w| w.holder == holder).map(|w| w.row).collect();
            if rows.is_empty() {
                continue;
            }
            let version = client.converse(holder, |client, rank| {
                self.pull_rows(client, (rank, holder), &rows, bucket)
            })?;
            versions.extend(rows.iter().map(|row| (*row, version)));
        }
        self.leave_copies(client, &versions, bucket)
    }

    /// Takes what copies there are; says which.
    fn ask_for_copies(
        &mut self,
        client: &mut Client,
        wanted: &[Wanted],
        bucket: &mut [f32],
    ) -> Result<Vec<bool>, CommError> {
        let (home, row_len, number) = (self.spread.home, self.table.row_len(), wanted.len() as u64);
        let rows: Vec<u32> = wanted.iter().map(|wanted| wanted.row).collect();
        let least: Vec<u64> = wanted.iter().map(|wanted| wanted.least).collect();
        // A version and one, or nothing.
        let mut versions = vec![0_u64; wanted.len()];
        let values = client.converse(home, |client, rank| {
            client.ask(rank, Request { number, ..client.request(Ask::Copies) })?;
            client.comm.send(&rows, rank, Tag::Rows as u64)?;
            client.comm.send(&least, rank, Tag::Counts as u64)?;
            let answer = client.answer(rank)?;
            client.comm.recv(&mut versions, rank, Tag::Counts as u64)?;
            let num_found = versions.iter().filter(|version| **version > 0).count();
            let mut values = vec![0.0; num_found * row_len];
            if num_found > 0 {
                client.comm.recv(&mut values, rank, Tag::Weights as u64)?;
            }
            Ok((answer, values))
        })?;
        let mut copies = values.chunks_exact(row_len);
        for (wanted, version) in wanted.iter().zip(&versions) {
            let Some(version) = version.checked_sub(1) else { continue };
            let copy = copies.next().expect("as many as were found");
            bucket[self.table.range(wanted.row)].copy_from_slice(copy);
            self.note_copy(wanted.row, version, wanted.version.saturating_sub(version));
        }
        let bytes = ASKING_BYTES + bytes_of(&rows) + 2 * bytes_of(&least) + bytes_of(&values);
        self.note_request(home, bytes);
        Ok(versions.iter().map(|version| *version > 0).collect())
    }

    /// Leaves copies of rows with these versions.
    fn leave_copies(
        &mut self,
        client: &mut Client,
        versions: &[(u32, u64)],
        bucket: &[f32],
    ) -> Result<(), CommError> {
        if versions.is_empty() {
            return Ok(());
        }
        let (home, number) = (self.spread.home, versions.len() as u64);
        let (rows, versions): (Vec<u32>, Vec<u64>) = versions.iter().copied().unzip();
        let values: Vec<f32> =
            rows.iter().flat_map(|row| &bucket[self.table.range(*row)]).copied().collect();
        client.converse(home, |client, rank| {
            client.ask(rank, Request { number, ..client.request(Ask::LeaveCopies) })?;
            client.comm.send(&rows, rank, Tag::Rows as u64)?;
            client.comm.send(&versions, rank, Tag::Counts as u64)?;
            client.comm.send(&values, rank, Tag::Weights as u64)?;
            Ok((client.answer(rank)?, ()))
        })?;
        let bytes = ASKING_BYTES + bytes_of(&rows) + bytes_of(&versions) + bytes_of(&values);
        self.note_request(home, bytes);
        Ok(())
    }
}

/// A server's side: copies of others' rows.
#[derive(Debug, Default)]
pub(super) struct Copies {
    capacity: usize,
    kept: BTreeMap<u32, Copy>,
}

#[derive(Debug)]
struct Copy {
    version: u64,
    values: Vec<f32>,
}

impl Copies {
    /// Keeps at most so many.
    pub(super) fn new(capacity: usize) -> Self {
        Self { capacity, ..Self::default() }
    }

    /// A copy that is not older than that.
    fn find(&self, row: u32, least: u64) -> Option<&Copy> {
        self.kept.get(&row).filter(|copy| copy.version >= least)
    }

    /// Keeps a copy in the place of an older one, or of the one that has missed the most.
    fn keep(&mut self, row: u32, version: u64, values: &[f32]) {
        if self.kept.get(&row).is_some_and(|copy| copy.version >= version) {
            return;
        }
        if self.kept.len() >= self.capacity && !self.kept.contains_key(&row) {
            let oldest = self.kept.iter().min_by_key(|(_, copy)| copy.version);
            let Some(oldest) = oldest.map(|(row, _)| *row) else { return };
            self.kept.remove(&oldest);
        }
        self.kept.insert(row, Copy { version, values: values.to_vec() });
    }

    /// What a worker asks for: versions and one, or zeros, and the values of those that there are.
    pub(super) fn asked(
        &self,
        comm: &Comm,
        worker: usize,
        number: u64,
    ) -> Result<(Vec<u64>, Vec<f32>), CommError> {
        let count = checked(comm, number, self.capacity)?;
        let (mut rows, mut least) = (vec![0_u32; count], vec![0_u64; count]);
        comm.recv(&mut rows, worker, Tag::Rows as u64)?;
        comm.recv(&mut least, worker, Tag::Counts as u64)?;
        let found = rows.iter().zip(least).map(|(row, least)| self.find(*row, least));
        let found: Vec<Option<&Copy>> = found.collect();
        let versions = found.iter().map(|copy| copy.map_or(0, |copy| copy.version + 1)).collect();
        let values = found.iter().flatten().flat_map(|copy| &copy.values).copied().collect();
        Ok((versions, values))
    }

    /// Takes copies that a worker leaves, of rows of this length.
    pub(super) fn left(
        &mut self,
        comm: &Comm,
        worker: usize,
        number: u64,
        row_len: usize,
    ) -> Result<(), CommError> {
        let count = checked(comm, number, self.capacity)?;
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
    fn only_the_most_touched_rows_of_others_are_set_aside() {
        let mut spread = SpreadRows::new(10, 2, 3, 1);
        spread.touch(&[0, 1, 2]);
        assert!(!spread.sets_aside(0, 0, 9, false), "it came once");
        spread.touch(&[0, 1, 2]);
        spread.touch(&[0, 1]);
        spread.touch(&[1]);
        let common: Vec<bool> = (0..3).map(|row| spread.sets_aside(row, 0, 9, row == 1)).collect();
        assert_eq!(common, [true, true, false]);
        assert_eq!(spread.wanted[1], Wanted { row: 1, holder: 0, version: 9, least: 9 });
        assert_eq!(spread.wanted[0].least, 6, "three updates may be missing");
        spread.wanted.clear();
        assert!(!spread.sets_aside(1, 1, 9, false), "its holder is asked anyway");
    }

    #[test]
    fn a_copy_gives_way_to_newer_ones_and_is_found_while_it_is_new_enough() {
        let mut copies = Copies::new(2);
        copies.keep(7, 3, &[1.0]);
        copies.keep(7, 2, &[9.0]);
        let found = |copies: &Copies, row, least| copies.find(row, least).map(|copy| copy.version);
        assert_eq!((found(&copies, 7, 3), found(&copies, 7, 4)), (Some(3), None));
        copies.keep(8, 5, &[2.0]);
        copies.keep(9, 6, &[3.0]);
        assert_eq!([7, 8, 9].map(|row| found(&copies, row, 0)), [None, Some(5), Some(6)]);
        let mut without_room = Copies::new(0);
        without_room.keep(1, 1, &[1.0]);
        assert!(without_room.kept.is_empty());
    }
}
