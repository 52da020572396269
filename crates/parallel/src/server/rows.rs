//! A table whose rows travel one by one, and which server holds which.
//!
//! A step touches the rows of the embedding that its tokens name and no others. Where a vocabulary
//! is large, a worker pulls these rows only, and pushes gradients of these rows only; the numbers
//! of rows travel along. Everything else travels whole, as ever.
//!
//! Rows are dealt to servers by their number: in ranges, or by a hash of it. Common tokens often
//! have low numbers, so the first of the ranges has most of the work; a hash spreads it.
//!
//! On a server the rows are one more part behind those that travel whole, and gradients that have
//! not come are zeros: how a row is stepped, and with what memory, is not affected by how it
//! travels. In lockstep the bits are those of tables that travel whole, whatever the optimizer.
//! The price is that a server goes over all its rows for every update.

use super::shard::{Parts, Shard};
use super::{Tag, ranges};
use crate::buckets::Buckets;
use lockstep_comm::{Comm, CommError};
use lockstep_config::RowsBy;
use lockstep_model::{BlockIo, Blueprint, Param};
use lockstep_optim::Slot;

/// What every server holds.
#[derive(Clone, Debug)]
pub struct Holdings {
    /// What travels whole, cut into a part for every server.
    pub ranges: Buckets,
    /// The table whose rows travel one by one, if any does.
    pub rows: Option<RowTable>,
}

/// See the module's text.
#[derive(Clone, Debug)]
pub struct RowTable {
    /// Where the table lies: at the start of this bucket.
    pub(super) bucket: usize,
    /// Elements of a row.
    pub(super) row_len: usize,
    /// The rows of every server, ascending.
    held: Vec<Vec<u32>>,
    /// The server of every row, and which one of its rows it is.
    places: Vec<(usize, u32)>,
    /// One piece of the table for the optimizer; others differ in where they lie.
    slot: Slot,
}

impl Holdings {
    /// Divides a model among servers, the rows of its embedding as `rows` says, if at all.
    pub fn new(blueprint: &Blueprint, num_servers: usize, rows: Option<RowsBy>) -> Self {
        let mut ranges = ranges(blueprint, num_servers);
        let rows = rows.map(|by| RowTable::find(blueprint, &ranges, num_servers, by));
        if let Some(table) = &rows {
            ranges.cut_behind(blueprint, table.bucket, table.len(), num_servers);
        }
        Self { ranges, rows }
    }

    /// The lengths of a server's parts.
    pub fn lens(&self, server: usize) -> Vec<usize> {
        let whole = self.ranges.list.iter().map(|bucket| bucket.part(server).len());
        whole.chain(self.rows.as_ref().map(|rows| rows.len_on(server))).collect()
    }

    /// What the optimizer of a server steps.
    pub fn slots(&self, blueprint: &Blueprint, server: usize) -> Vec<Slot> {
        let mut slots = self.ranges.slots(blueprint, |bucket| bucket.part(server));
        if let Some(rows) = &self.rows {
            slots.extend(rows.slots(server, self.ranges.list.len()));
        }
        slots
    }
}

impl RowTable {
    /// The table that tokens are looked up in.
    fn find(blueprint: &Blueprint, ranges: &Buckets, num_servers: usize, by: RowsBy) -> Self {
        let first = &blueprint.blocks[0];
        let param = &first.params()[0];
        let is_table = matches!(first.io(), BlockIo::TokensToStream { .. });
        assert!(is_table && ranges.mirrors.is_empty(), "config has proven that there is a table");
        let (bucket, place) = ranges.place(0, param);
        assert_eq!(place.start, 0, "the table is the first of all parameters");
        let slots = ranges.slots(blueprint, |bucket| 0..bucket.len);
        let slot = slots.into_iter().find(|slot| slot.name == param.name).expect("it is trained");
        let row_len = param.shape[1];
        Self { bucket, row_len, ..Self::deal(param.len() / row_len, num_servers, by, slot) }
    }

    /// Deals rows to servers.
    fn deal(num_rows: usize, num_servers: usize, by: RowsBy, slot: Slot) -> Self {
        let server_of = |row: usize| match by {
            RowsBy::Range => row * num_servers / num_rows,
            RowsBy::Hash => (hash(row as u64) % num_servers as u64) as usize,
        };
        let mut held = vec![Vec::new(); num_servers];
        let mut place = |row: usize| {
            let own: &mut Vec<u32> = &mut held[server_of(row)];
            own.push(row as u32);
            (server_of(row), own.len() as u32 - 1)
        };
        let places = (0..num_rows).map(&mut place).collect();
        Self { bucket: 0, row_len: 1, held, places, slot }
    }

    /// Elements of the table.
    pub(super) fn len(&self) -> usize {
        self.places.len() * self.row_len
    }

    /// How many rows there are.
    pub fn num_rows(&self) -> usize {
        self.places.len()
    }

    /// Elements of a row.
    pub fn row_len(&self) -> usize {
        self.row_len
    }

    /// The rows of a server, ascending.
    pub fn rows_on(&self, server: usize) -> &[u32] {
        &self.held[server]
    }

    /// Elements that a server holds.
    pub fn len_on(&self, server: usize) -> usize {
        self.held[server].len() * self.row_len
    }

    /// The server of a row, and which one of its rows it is.
    pub fn place(&self, row: u32) -> (usize, u32) {
        self.places[row as usize]
    }

    /// Where a row lies in the bucket.
    pub(super) fn range(&self, row: u32) -> std::ops::Range<usize> {
        let start = row as usize * self.row_len;
        start..start + self.row_len
    }

    /// What the optimizer of a server steps of the table: a slot for every run of rows.
    fn slots(&self, server: usize, block: usize) -> Vec<Slot> {
        let runs = self.held[server].chunk_by(|row, next| row + 1 == *next);
        let mut start = 0;
        let slot = |(piece, run): (usize, &[u32])| {
            let range = start..start + run.len() * self.row_len;
            start = range.end;
            let first = run[0] as usize * self.row_len;
            Slot { block, piece, range: range.clone(), grads: range, first, ..self.slot.clone() }
        };
        runs.enumerate().map(slot).collect()
    }
}

/// Spreads numbers that follow each other (the finalizer of `SplitMix64`).
fn hash(row: u64) -> u64 {
    let mut z = row.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

/// The rows that a worker names, by their places here, and their version.
pub(super) fn named(
    comm: &Comm,
    worker: usize,
    num_rows: u64,
    shard: &Shard,
) -> Result<(u64, Vec<f32>), CommError> {
    let row_len = shard.row_len().expect("rows are asked for where they travel");
    let (version, params) = shard.newest();
    let rows = params.last().expect("rows are the last part");
    let places = receive_places(comm, worker, num_rows, rows.len() / row_len)?;
    let row = |place: &u32| rows[*place as usize * row_len..][..row_len].iter().copied();
    Ok((version, places.iter().flat_map(row).collect()))
}

/// A worker's gradients: of what travels whole, and of rows, whose absence is zeros.
pub(super) fn receive_grads(
    comm: &Comm,
    worker: usize,
    shard: &mut Shard,
) -> Result<Parts, CommError> {
    let mut grads: Parts = shard.params_mut().iter().map(|part| vec![0.0; part.len()]).collect();
    let num_whole = grads.len() - usize::from(shard.row_len().is_some());
    let tag = Tag::Gradients as u64;
    for part in grads[..num_whole].iter_mut().filter(|part| !part.is_empty()) {
        match shard.squeeze() {
            Some(squeeze) => squeeze.receive(comm, worker, tag, part)?,
            None => comm.recv(part, worker, tag)?,
        }
    }
    let Some(row_len) = shard.row_len() else { return Ok(grads) };
    let mut num_rows = [0_u64];
    comm.recv(&mut num_rows, worker, Tag::Rows as u64)?;
    if num_rows[0] == 0 {
        return Ok(grads);
    }
    let held = grads[num_whole].len() / row_len;
    let places = receive_places(comm, worker, num_rows[0], held)?;
    let mut values = vec![0.0; places.len() * row_len];
    comm.recv(&mut values, worker, Tag::Gradients as u64)?;
    let rows = &mut grads[num_whole];
    for (place, values) in places.iter().zip(values.chunks_exact(row_len)) {
        rows[*place as usize * row_len..][..row_len].copy_from_slice(values);
    }
    Ok(grads)
}

/// A number of rows that a worker tells, where there are so many at most.
pub(super) fn checked(comm: &Comm, number: u64, most: usize) -> Result<usize, CommError> {
    let number = usize::try_from(number).ok().filter(|number| *number <= most);
    number.ok_or_else(|| invalid(comm, format!("at most {most} can be asked for")))
}

/// As many places as a worker tells, of so many.
fn receive_places(
    comm: &Comm,
    worker: usize,
    number: u64,
    held: usize,
) -> Result<Vec<u32>, CommError> {
    let mut places = vec![0_u32; checked(comm, number, held)?];
    comm.recv(&mut places, worker, Tag::Rows as u64)?;
    match places.iter().find(|place| **place as usize >= held) {
        Some(place) => Err(invalid(comm, format!("place {place} is none of the {held} here"))),
        None => Ok(places),
    }
}

fn invalid(comm: &Comm, rule: String) -> CommError {
    CommError::Invalid { call: "rows".to_owned(), group: comm.name().to_owned(), rule }
}

/// The length of a parameter's tensor, for those who save some of it.
pub(super) fn tensor_len(blueprint: &Blueprint, slot: &Slot) -> usize {
    let mut params = blueprint.owned_params();
    params.find(|(_, param)| param.name == slot.name).map_or(0, |(_, p)| Param::tensor_len(p))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::MODEL;
    use lockstep_config::Model;
    use lockstep_model::describe;

    fn holdings(num_servers: usize, by: RowsBy) -> (Blueprint, Holdings) {
        let blueprint = describe(&Model { tied: false, vocab: 1000, ..MODEL });
        let holdings = Holdings::new(&blueprint, num_servers, Some(by));
        (blueprint, holdings)
    }

    #[test]
    fn every_parameter_is_stepped_by_one_server_whoever_holds_rows() {
        for by in [RowsBy::Hash, RowsBy::Range] {
            for num_servers in 1..=5 {
                let (blueprint, holdings) = holdings(num_servers, by);
                let mut taken = std::collections::BTreeMap::new();
                for server in 0..num_servers {
                    let slots = holdings.slots(&blueprint, server);
                    let lens = holdings.lens(server);
                    for slot in &slots {
                        assert!(slot.range.end <= lens[slot.block], "{slot:?}");
                        let seen: &mut Vec<bool> = taken
                            .entry(slot.name.clone())
                            .or_insert_with(|| vec![false; tensor_len(&blueprint, slot)]);
                        for element in &mut seen[slot.first..slot.first + slot.range.len()] {
                            assert!(!std::mem::replace(element, true), "{slot:?} twice");
                        }
                    }
                    let stepped: usize = slots.iter().map(|slot| slot.range.len()).sum();
                    assert_eq!(stepped, lens.iter().sum::<usize>(), "nothing else is held");
                }
                assert!(taken.values().flatten().all(|seen| *seen), "{by:?} {num_servers}");
            }
        }
    }

    #[test]
    fn a_hash_spreads_common_rows_and_ranges_do_not() {
        let share = |by| {
            let (_, holdings) = holdings(4, by);
            let table = holdings.rows.expect("asked for");
            let mut load = [0.0_f64; 4];
            for row in 0..1000_u32 {
                load[table.place(row).0] += 1.0 / f64::from(row + 1);
            }
            let mean = load.iter().sum::<f64>() / 4.0;
            load.into_iter().fold(0.0, f64::max) / mean
        };
        let (range, hash) = (share(RowsBy::Range), share(RowsBy::Hash));
        // The first 250 of 1,000 rows have 6.1 of 7.49, the sums of 1/k.
        assert!((range - 4.0 * 6.1 / 7.485).abs() < 0.02, "{range}");
        assert!(hash < 2.0, "{hash}");
    }

    #[test]
    fn places_and_rows_are_inverse() {
        for by in [RowsBy::Hash, RowsBy::Range] {
            let (_, holdings) = holdings(3, by);
            let table = holdings.rows.expect("asked for");
            for row in 0..table.num_rows() as u32 {
                let (server, place) = table.place(row);
                assert_eq!(table.rows_on(server)[place as usize], row);
            }
        }
    }
}
