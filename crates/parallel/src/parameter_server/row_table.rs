//! Embedding rows that are pulled and pushed one by one, and their assignment to servers.
//!
//! A step uses only the embedding rows of its tokens. With a large vocabulary a worker pulls these
//! rows and pushes their gradients, with their indices. All other parameters are pulled and pushed
//! whole.
//!
//! Rows are assigned to servers by index: in ranges, or by a hash. Frequent tokens often have low
//! numbers, so the first range would have most of the load; a hash balances it.
//!
//! On a server the rows are one more part behind the whole ones, and gradients of absent rows are
//! zero: the optimizer's treatment of a row does not depend on how it is sent. In synchronous mode
//! the bits equal those of whole tables with any optimizer. The cost is that a server processes all
//! its rows in every update.

use super::shard::Shard;
use super::{Parts, Tag};
use crate::buckets::Buckets;
use crate::from_recipe;
use lockstep_comm::{Comm, CommError};
use lockstep_config::{Recipe, RowSharding};
use lockstep_model::{BlockIo, Blueprint, Param};
use lockstep_optim::Slot;

/// Parameters of every server.
#[derive(Clone, Debug)]
pub struct ShardLayout {
    /// Whole parameters, cut into one shard per server.
    pub ranges: Buckets,
    /// Table whose rows are pulled one by one, if any.
    pub rows: Option<RowTable>,
}

/// A row-sharded embedding table.
#[derive(Clone, Debug)]
pub struct RowTable {
    /// Bucket that starts with the table.
    pub(super) bucket: usize,
    /// Elements of a row.
    pub(super) row_len: usize,
    /// Rows of every server, ascending.
    held: Vec<Vec<u32>>,
    /// Server of every row, and its place among that server's rows.
    places: Vec<(usize, u32)>,
    /// Optimizer slot of the table; slots of runs of rows differ in their ranges.
    slot: Slot,
}

impl ShardLayout {
    /// Divides a recipe's model among its servers.
    pub fn of(recipe: &Recipe, blueprint: &Blueprint) -> Self {
        let rows = recipe.sync.server.rows.sparse_sharding();
        Self::new(blueprint, from_recipe::bucket_len(recipe), recipe.num_servers(), rows)
    }

    /// Divides buckets of a model among servers, the embedding rows by `rows` if at all.
    fn new(
        blueprint: &Blueprint,
        bucket_len: usize,
        num_servers: usize,
        rows: Option<RowSharding>,
    ) -> Self {
        let mut ranges = Buckets::new(blueprint, bucket_len, num_servers);
        let rows = rows.map(|by| RowTable::find(blueprint, &ranges, num_servers, by));
        if let Some(table) = &rows {
            ranges.cut_behind(blueprint, table.bucket, table.len(), num_servers);
        }
        Self { ranges, rows }
    }

    /// Lengths of a server's parts.
    pub fn lens(&self, server: usize) -> Vec<usize> {
        let whole = self.ranges.list.iter().map(|bucket| bucket.part(server).len());
        whole.chain(self.rows.as_ref().map(|rows| rows.len_on(server))).collect()
    }

    /// Optimizer slots of a server.
    pub fn slots(&self, blueprint: &Blueprint, server: usize) -> Vec<Slot> {
        let mut slots = self.ranges.slots(blueprint, |bucket| bucket.part(server));
        if let Some(rows) = &self.rows {
            slots.extend(rows.slots(server, self.ranges.list.len()));
        }
        slots
    }
}

impl RowTable {
    /// The embedding table.
    fn find(blueprint: &Blueprint, ranges: &Buckets, num_servers: usize, by: RowSharding) -> Self {
        let first = &blueprint.blocks[0];
        let param = &first.params()[0];
        let is_table = matches!(first.io(), BlockIo::TokensToStream { .. });
        assert!(is_table && ranges.mirrors.is_empty(), "config has proven that there is a table");
        let (bucket, place) = ranges.place(0, param);
        assert_eq!(place.start, 0, "the table is the first of all parameters");
        let slots = ranges.slots(blueprint, |bucket| 0..bucket.len);
        let slot = slots.into_iter().find(|slot| slot.name == param.name).expect("it is trained");
        let row_len = param.shape[1];
        Self { bucket, row_len, ..Self::assign(param.len() / row_len, num_servers, by, slot) }
    }

    /// Assigns rows to servers.
    fn assign(num_rows: usize, num_servers: usize, by: RowSharding, slot: Slot) -> Self {
        let server_of = |row: usize| match by {
            RowSharding::Range => row * num_servers / num_rows,
            RowSharding::Hash => (hash(row as u64) % num_servers as u64) as usize,
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

    /// Number of rows.
    pub fn num_rows(&self) -> usize {
        self.places.len()
    }

    /// Elements of a row.
    pub fn row_len(&self) -> usize {
        self.row_len
    }

    /// Rows of a server, ascending.
    pub fn rows_on(&self, server: usize) -> &[u32] {
        &self.held[server]
    }

    /// Elements of a server's rows.
    pub fn len_on(&self, server: usize) -> usize {
        self.held[server].len() * self.row_len
    }

    /// Server of a row, and its place among that server's rows.
    pub fn place(&self, row: u32) -> (usize, u32) {
        self.places[row as usize]
    }

    /// Range of a row in the bucket.
    pub(super) fn range(&self, row: u32) -> std::ops::Range<usize> {
        let start = row as usize * self.row_len;
        start..start + self.row_len
    }

    /// Optimizer slots of a server's rows: one for every run of consecutive rows.
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

/// Hash of a row index (the finalizer of `SplitMix64`).
fn hash(row: u64) -> u64 {
    let mut z = row.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

/// Receives row places from a worker and returns the rows and their version.
pub(super) fn read_rows(
    comm: &Comm,
    worker: usize,
    num_rows: u64,
    shard: &Shard,
) -> Result<(u64, Vec<f32>), CommError> {
    let row_len = shard.row_len().expect("row requests require a row table");
    let (version, params) = shard.newest();
    let rows = params.last().expect("rows are the last part");
    let places = receive_places(comm, worker, num_rows, rows.len() / row_len)?;
    let row = |place: &u32| rows[*place as usize * row_len..][..row_len].iter().copied();
    Ok((version, places.iter().flat_map(row).collect()))
}

/// Receives a worker's gradients: whole parts, unless they were `staged` before, and rows, whose
/// absence means zeros.
pub(super) fn receive_grads(
    comm: &Comm,
    worker: usize,
    shard: &mut Shard,
    staged: Parts,
) -> Result<Parts, CommError> {
    let mut grads: Parts = shard.params_mut().iter().map(|part| vec![0.0; part.len()]).collect();
    let num_whole = grads.len() - usize::from(shard.row_len().is_some());
    let tag = Tag::Gradients as u64;
    if staged.is_empty() {
        for part in grads[..num_whole].iter_mut().filter(|part| !part.is_empty()) {
            match shard.compression() {
                Some(compression) => compression.receive(comm, worker, tag, part)?,
                None => comm.recv(part, worker, tag)?,
            }
        }
    } else {
        for (part, staged) in grads[..num_whole].iter_mut().zip(staged) {
            assert_eq!(staged.len(), part.len(), "worker {worker} has sent every part");
            *part = staged;
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

/// Checks a row count received from a worker.
pub(super) fn check_row_count(comm: &Comm, number: u64, most: usize) -> Result<usize, CommError> {
    let number = usize::try_from(number).ok().filter(|number| *number <= most);
    number.ok_or_else(|| invalid(comm, format!("a request is limited to {most} rows")))
}

/// Receives row places and checks them against the number held.
fn receive_places(
    comm: &Comm,
    worker: usize,
    number: u64,
    held: usize,
) -> Result<Vec<u32>, CommError> {
    let mut places = vec![0_u32; check_row_count(comm, number, held)?];
    comm.recv(&mut places, worker, Tag::Rows as u64)?;
    match places.iter().find(|place| **place as usize >= held) {
        Some(place) => {
            Err(invalid(comm, format!("place {place} is outside the {held} rows held here")))
        }
        None => Ok(places),
    }
}

fn invalid(comm: &Comm, rule: String) -> CommError {
    CommError::Invalid { call: "rows".to_owned(), group: comm.name().to_owned(), rule }
}

/// Length of a slot's whole tensor.
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

    fn layout(num_servers: usize, by: RowSharding) -> (Blueprint, ShardLayout) {
        let blueprint = describe(&Model { tied: false, vocab: 1000, ..MODEL });
        let layout = ShardLayout::new(&blueprint, usize::MAX, num_servers, Some(by));
        (blueprint, layout)
    }

    #[test]
    fn every_parameter_is_stepped_by_exactly_one_server() {
        for by in [RowSharding::Hash, RowSharding::Range] {
            for num_servers in 1..=5 {
                let (blueprint, layout) = layout(num_servers, by);
                let mut taken = std::collections::BTreeMap::new();
                for server in 0..num_servers {
                    let slots = layout.slots(&blueprint, server);
                    let lens = layout.lens(server);
                    for slot in &slots {
                        assert!(slot.range.end <= lens[slot.block], "{slot:?}");
                        let covered: &mut Vec<bool> = taken
                            .entry(slot.name.clone())
                            .or_insert_with(|| vec![false; tensor_len(&blueprint, slot)]);
                        for element in &mut covered[slot.first..slot.first + slot.range.len()] {
                            assert!(!std::mem::replace(element, true), "{slot:?} twice");
                        }
                    }
                    let stepped: usize = slots.iter().map(|slot| slot.range.len()).sum();
                    assert_eq!(stepped, lens.iter().sum::<usize>(), "all parts are stepped");
                }
                assert!(taken.values().flatten().all(|covered| *covered), "{by:?} {num_servers}");
            }
        }
    }

    #[test]
    fn a_hash_spreads_common_rows_and_ranges_do_not() {
        let share = |by| {
            let (_, layout) = layout(4, by);
            let table = layout.rows.expect("a row table");
            let mut load = [0.0_f64; 4];
            for row in 0..1000_u32 {
                load[table.place(row).0] += 1.0 / f64::from(row + 1);
            }
            let mean = load.iter().sum::<f64>() / 4.0;
            load.into_iter().fold(0.0, f64::max) / mean
        };
        let (range, hash) = (share(RowSharding::Range), share(RowSharding::Hash));
        // The first 250 of 1,000 rows have 6.1 of 7.49, the sums of 1/k.
        assert!((range - 4.0 * 6.1 / 7.485).abs() < 0.02, "{range}");
        assert!(hash < 2.0, "{hash}");
    }

    #[test]
    fn places_and_rows_are_inverse() {
        for by in [RowSharding::Hash, RowSharding::Range] {
            let (_, layout) = layout(3, by);
            let table = layout.rows.expect("a row table");
            for row in 0..table.num_rows() as u32 {
                let (server, place) = table.place(row);
                assert_eq!(table.rows_on(server)[place as usize], row);
            }
        }
    }
}
