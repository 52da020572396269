//! Measures the links of a group, so that algorithms can be chosen by what they would take.
//!
//! Three things decide what a round of messages takes: how long one message is under way, how fast
//! a long one flows, and what a rank can send and receive in all while the others do so too. So the
//! ranks first meet in pairs, everybody with one partner at a time and all pairs at once, as in a
//! tournament; then all exchange with all. Both are the exchanges of which collectives are made.
//! Last, each adds up two vectors. What was measured goes to rank 0; what rank 0 makes of it goes
//! to all, so that all ranks choose alike.
//!
//! - `pairs`: who meets whom, and how often
//! - `table`: what is measured, and how ranks tell each other
//! - `rehearse`: algorithms whose prices are close are tried out
//! - `watch`: when it is time to measure again

mod pairs;
mod rehearse;
mod table;
mod watch;

use std::time::Duration;

use lockstep_platform::{Source, Target};
use lockstep_schedule::{Op, SumTree};

use crate::comm::Comm;
use crate::element::{Dtype, Element, Reduction};
use crate::engine::Team;
use crate::error::{CommError, Interruption};
use crate::kernel::{Job, Order, reduce};
use crate::node::{Lane, Node};
use crate::planner::{Forecast, Planner};
use crate::signature::Signature;
use crate::transport::{Envelope, PURPOSE_BIT, Round};
use pairs::{Driver, opponent};
pub use table::Measured;
use table::Row;
pub(crate) use watch::Watch;

/// What messages of a probe are for, beside those from one rank to another.
const PURPOSE: u64 = 3;

/// The time that all meetings in pairs take together, at most, where latencies allow it.
const PAIRS_TIME: Duration = Duration::from_millis(100);

/// The same for exchanges of all with all.
const ALL_TIME: Duration = Duration::from_millis(50);

/// What is short enough to lie in a cache.
const NEAR_BYTES: usize = 64 << 10;

/// What is not, and is added up.
const SUM_BYTES: usize = 2 << 20;

impl Comm {
    /// Measures the links between the members, and chooses algorithms by that from now on; so do
    /// groups that are made of this one later. All members call it together. The links take a fifth
    /// of a second at most, or about ten exchanges with every other rank where those take longer;
    /// trying out all-reduces by algorithms of like price takes up to twice as much again. Where
    /// all members see each other's memory there are no links, and nothing is done.
    pub fn probe(&self) -> Result<Option<Measured>, CommError> {
        if self.lane == Lane::Caller {
            self.core.calls_in_flight.drain();
        }
        let mut state = self.lock();
        if let Some(error) = &state.failed {
            return Err(error.clone());
        }
        if self.group_size() < 2 || !state.planner.has_links() {
            return Ok(None);
        }
        let mut measured = self.measure_links()?;
        state.planner.reprice(&measured);
        drop(state);
        measured.rehearsal = self.rehearse()?;
        if self.ranks().len() == self.core.node.num_ranks() {
            self.core.node.keep_measured(&measured);
        }
        Ok(Some(measured))
    }

    /// The algorithms that could carry out `op` on a vector of `count` elements, with what they
    /// would take; the one that is taken stands first.
    pub fn forecast<T: Element>(&self, op: Op, count: usize) -> Result<Vec<Forecast>, CommError> {
        let reduction = op.is_sum().then_some(Reduction::Sum);
        let wanted = self.wanted::<T>(op, reduction, count, &[]);
        let found = self.lock().planner.forecasts(&wanted);
        found.map_err(|rule| self.invalid(&op.to_string(), &rule))
    }

    /// Asks all members whether the links have become bad, and measures them again if so.
    #[cold]
    pub(crate) fn ask(&self, planner: &mut Planner) -> Result<(), CommError> {
        let wish = planner.watch.wishes();
        if self.all_wish(wish)? {
            let mut measured = self.measure_links()?;
            // What prices do not know has hardly changed, and there is no time to try again.
            measured.rehearsal = planner.costs().rehearsal.clone();
            planner.reprice(&measured);
        }
        Ok(())
    }

    /// Measures without a word to the planner.
    fn measure_links(&self) -> Result<Measured, CommError> {
        let mut prober = Prober::new(&self.core.node, &self.core.team, self.lane, self.timeout);
        let result = prober.measure();
        result.map_err(|why| self.probe_failed(prober.number, why))
    }

    /// Whether every member wishes for something, by one exchange of all with all.
    fn all_wish(&self, wish: bool) -> Result<bool, CommError> {
        let mut prober = Prober::new(&self.core.node, &self.core.team, self.lane, self.timeout);
        let result = prober.all_wish(wish);
        result.map_err(|why| self.probe_failed(prober.number, why))
    }

    fn probe_failed(&self, number: u64, why: Interruption) -> CommError {
        let call = Signature::message(Dtype::U8, SMALL_BYTES);
        self.message_failed(self.lane, why, (call, number), (0, SMALL_BYTES as u64))
    }
}

/// A message that is as good as empty.
const SMALL_BYTES: usize = 64;

/// One rank's end of the measurements.
struct Prober<'a> {
    node: &'a Node,
    team: &'a Team,
    lane: Lane,
    timeout: Duration,
    number: u64,
    leaving: Vec<u8>,
    /// One piece for each member.
    arriving: Vec<u8>,
}

impl<'a> Prober<'a> {
    fn new(node: &'a Node, team: &'a Team, lane: Lane, timeout: Duration) -> Self {
        let (leaving, arriving) = (Vec::new(), Vec::new());
        Self { node, team, lane, timeout, number: 0, leaving, arriving }
    }

    fn now(&self) -> Duration {
        self.node.world().clock().now()
    }

    /// Sends as many bytes to each of some members, the first of them being `word`, and receives
    /// as many from each; returns how long that took. What `with[i]` said is `heard(i, bytes)`.
    fn exchange(
        &mut self,
        with: &[usize],
        bytes: usize,
        word: u8,
    ) -> Result<Duration, Interruption> {
        grow(&mut self.leaving, bytes);
        grow(&mut self.arriving, bytes * with.len());
        self.leaving[0] = word;
        let signature = Signature::message(Dtype::U8, bytes);
        let group = self.team.id | PURPOSE << PURPOSE_BIT;
        let envelope = Envelope { group, number: self.number, signature };
        self.number += 1;
        let source = Source::of(&self.leaving[..bytes]);
        let target = Target::of(&mut self.arriving);
        let rank = |member: usize| self.team.members[member];
        let piece = |index: usize| target.part(index * bytes..(index + 1) * bytes);
        let sends: Vec<_> = with.iter().map(|&member| (rank(member), source)).collect();
        let recvs = with.iter().enumerate().map(|(index, &member)| (rank(member), piece(index)));
        let recvs: Vec<_> = recvs.collect();
        let mut round =
            Round { envelope, sends: &sends, recvs: &recvs, done_bytes: 0, arrived: &|_| {} };
        let start = self.node.world().clock().now();
        self.node.exchange(self.lane, &mut round, self.timeout)?;
        Ok(self.node.world().clock().since(start))
    }

    fn heard(&self, index: usize, bytes: usize) -> u8 {
        self.arriving[index * bytes]
    }

    fn measure(&mut self) -> Result<Measured, Interruption> {
        let group_size = self.team.members.len();
        let mut row = Row::new(group_size, self.node.world());
        let num_meetings = group_size.next_multiple_of(2) - 1;
        // The first meeting takes place twice, and the first time is practice: ranks that share
        // cores are still being dealt out to them.
        for meeting in 0..=num_meetings {
            self.number = (meeting as u64) << 32;
            if let Some(partner) = opponent(group_size, meeting, self.team.position) {
                let time = PAIRS_TIME / (num_meetings + 1) as u32;
                let driver = (self.team.position < partner).then(|| Driver::new(self.now(), time));
                row.links[partner] = self.meet(&[partner], driver)?;
            }
        }
        self.number = 1 << 48;
        let mut others = self.others();
        // What one message more costs shows only where there is one.
        if group_size == 2 {
            others.push(others[0]);
        }
        let driver = (self.team.position == 0).then(|| Driver::new(self.now(), ALL_TIME));
        row.all = self.meet(&others, driver)?;
        row.local = [NEAR_BYTES, SUM_BYTES].map(|bytes| self.add_up(bytes));
        self.agree(&row)
    }

    /// All members but this one.
    fn others(&self) -> Vec<usize> {
        let me = self.team.position;
        (0..self.team.members.len()).filter(|&member| member != me).collect()
    }

    /// Exchanges with some members until the one that drives says that it is enough; that is this
    /// one if it has a driver, and else the first of them.
    fn meet(
        &mut self,
        with: &[usize],
        mut driver: Option<Driver>,
    ) -> Result<table::Times, Interruption> {
        let mut times = table::Times::default();
        let mut bytes = SMALL_BYTES;
        loop {
            let word = driver.as_mut().map_or(0, Driver::next);
            let took = self.exchange(with, bytes, word)?;
            times.add(bytes, took);
            if let Some(driver) = &mut driver {
                driver.add(bytes, took, self.node.world().clock().now());
            }
            let word = if driver.is_some() { word } else { self.heard(0, bytes) };
            match word {
                0 => return Ok(times),
                exponent => bytes = 1 << exponent.clamp(6, 24),
            }
        }
    }

    /// How fast a rank adds up two vectors of some length.
    fn add_up(&mut self, bytes: usize) -> f64 {
        grow(&mut self.arriving, 2 * bytes);
        grow(&mut self.leaving, bytes);
        let order = Order::new(SumTree::canonical(2));
        let mut best = Duration::MAX;
        for _ in 0..5 {
            let (one, other) = self.arriving[..2 * bytes].split_at(bytes);
            let sources = [Source::of(one), Source::of(other)];
            let targets = [Target::of(&mut self.leaving[..bytes])];
            let (reduction, divide_by) = (Reduction::Sum, None);
            let job =
                Job { reduction, divide_by, order: &order, sources: &sources, targets: &targets };
            let start = self.node.world().clock().now();
            reduce(self.node.isa(), Dtype::F32, &job);
            best = best.min(self.node.world().clock().since(start));
        }
        // As a price counts: one vector read, one written.
        2.0 * bytes as f64 / best.as_secs_f64().max(1e-9)
    }

    /// Tells rank 0 what was measured, and takes from it what holds.
    fn agree(&mut self, row: &Row) -> Result<Measured, Interruption> {
        let (group_size, me) = (self.team.members.len(), self.team.position);
        let row_bytes = row.encode();
        let mut rows = vec![0; row_bytes.len() * group_size];
        rows[..row_bytes.len()].copy_from_slice(&row_bytes);
        self.gather(&row_bytes, &mut rows)?;
        let mut table =
            if me == 0 { Measured::of(&rows, group_size).encode() } else { Vec::new() };
        table.resize(Measured::num_bytes(group_size), 0);
        self.spread(&mut table)?;
        Ok(Measured::decode(&table, group_size))
    }

    /// Brings the rows of all members to the first.
    fn gather(&mut self, row: &[u8], rows: &mut [u8]) -> Result<(), Interruption> {
        let (group_size, len) = (self.team.members.len(), row.len());
        let all = Target::of(rows);
        let others = 1..group_size;
        let (mut sends, mut recvs) = (Vec::new(), Vec::new());
        if self.team.position == 0 {
            let piece = |member: usize| all.part(member * len..(member + 1) * len);
            recvs.extend(others.map(|member| (self.team.members[member], piece(member))));
        } else {
            sends.push((self.team.members[0], Source::of(row)));
        }
        self.deliver(&sends, &recvs, len)
    }

    /// Brings the table of the first member to all.
    fn spread(&mut self, table: &mut [u8]) -> Result<(), Interruption> {
        let (group_size, len) = (self.team.members.len(), table.len());
        let table = Target::of(table);
        let (mut sends, mut recvs) = (Vec::new(), Vec::new());
        if self.team.position == 0 {
            let to = |member: usize| (self.team.members[member], table.as_source());
            sends.extend((1..group_size).map(to));
        } else {
            recvs.push((self.team.members[0], table));
        }
        self.deliver(&sends, &recvs, len)
    }

    fn deliver(
        &mut self,
        sends: &[(lockstep_mesh::Rank, Source<'_, u8>)],
        recvs: &[(lockstep_mesh::Rank, Target<'_, u8>)],
        len: usize,
    ) -> Result<(), Interruption> {
        let signature = Signature::message(Dtype::U8, len);
        let group = self.team.id | PURPOSE << PURPOSE_BIT;
        self.number = self.number.max(1 << 52) + 1;
        let envelope = Envelope { group, number: self.number, signature };
        let mut round = Round { envelope, sends, recvs, done_bytes: 0, arrived: &|_| {} };
        self.node.exchange(self.lane, &mut round, self.timeout)
    }

    fn all_wish(&mut self, wish: bool) -> Result<bool, Interruption> {
        let others = self.others();
        self.number = 1 << 56;
        self.exchange(&others, SMALL_BYTES, u8::from(wish))?;
        Ok(wish && (0..others.len()).all(|index| self.heard(index, SMALL_BYTES) == 1))
    }
}

fn grow(bytes: &mut Vec<u8>, len: usize) {
    if bytes.len() < len {
        bytes.resize(len, 0);
    }
}

#[cfg(test)]
mod tests;
