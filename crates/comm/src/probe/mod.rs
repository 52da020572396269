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
//! - `measurements`: what is measured, and how ranks tell each other
//! - `autotune`: algorithms whose prices are close are tried out
//! - `slowdown`: when it is time to measure again

mod pairs;
mod autotune;
mod measurements;
mod slowdown;

use std::time::Duration;

use lockstep_platform::{Source, Target};
use lockstep_schedule::{Op, SumTree};

use crate::comm::Comm;
use crate::element::{Dtype, Element, Reduction};
use crate::error::{CommError, Interruption};
use crate::kernel::{Job, Order, reduce};
use crate::channel::Channel;
use crate::endpoint::Endpoint;
use crate::membership::Membership;
use crate::schedule_cache::{Forecast, ScheduleCache};
use crate::signature::Signature;
use crate::transport::{Envelope, PURPOSE_BIT, Round};
use pairs::{Driver, partner_of};
pub use measurements::LinkMeasurements;
use measurements::{CACHED_BYTES, Row, SMALL_BYTES};
pub(crate) use slowdown::SlowdownDetector;

/// What messages of a probe are for, beside those from one rank to another.
const PURPOSE: u64 = 3;

/// The time that all meetings in pairs take together, at most, where latencies allow it.
const PAIRS_TIME: Duration = Duration::from_millis(100);

/// The same for exchanges of all with all.
const ALL_TIME: Duration = Duration::from_millis(50);

/// What is not, and is added up.
const SUM_BYTES: usize = 2 << 20;

impl Comm {
    /// Measures the links between the members, and chooses algorithms by that from now on; so do
    /// groups that are made of this one later. All members call it together. The links take a fifth
    /// of a second at most, or about ten exchanges with every other rank where those take longer;
    /// trying out all-reduces by algorithms of like price takes up to twice as much again. Where
    /// all members see each other's memory there are no links, and nothing is done.
    pub fn probe(&self) -> Result<Option<LinkMeasurements>, CommError> {
        if self.channel == Channel::Caller {
            self.core.calls_in_flight.drain();
        }
        let mut state = self.lock();
        if let Some(error) = &state.failed {
            return Err(error.clone());
        }
        if self.group_size() < 2 || !state.schedules.has_links() {
            return Ok(None);
        }
        let mut measured = self.measure_links()?;
        state.schedules.reprice(&measured);
        drop(state);
        measured.tuning = self.autotune()?;
        if self.ranks().len() == self.core.endpoint.num_ranks() {
            self.core.endpoint.keep_measured(&measured);
        }
        Ok(Some(measured))
    }

    /// The algorithms that could carry out `op` on a vector of `count` elements, with what they
    /// would take; the one that is taken stands first.
    pub fn forecast<T: Element>(&self, op: Op, count: usize) -> Result<Vec<Forecast>, CommError> {
        let reduction = op.is_sum().then_some(Reduction::Sum);
        let key = self.schedule_key::<T>(op, reduction, count, &[]);
        let found = self.lock().schedules.forecasts(&key);
        found.map_err(|rule| self.invalid(&op.to_string(), &rule))
    }

    /// Asks all members whether the links have become bad, and measures them again if so.
    #[cold]
    pub(crate) fn vote_to_remeasure(&self, schedules: &mut ScheduleCache) -> Result<(), CommError> {
        let vote = schedules.slowdown.vote();
        if self.all_agree(vote)? {
            let mut measured = self.measure_links()?;
            // What prices do not know has hardly changed, and there is no time to try again.
            measured.tuning = schedules.costs().tuning.clone();
            schedules.reprice(&measured);
        }
        Ok(())
    }

    /// Measures without a word to the planner.
    fn measure_links(&self) -> Result<LinkMeasurements, CommError> {
        let mut prober = Prober::new(&self.core.endpoint, &self.core.membership, self.channel, self.timeout);
        let result = prober.measure();
        result.map_err(|why| self.probe_failed(prober.number, why))
    }

    /// Whether every member wishes for something, by one exchange of all with all.
    fn all_agree(&self, vote: bool) -> Result<bool, CommError> {
        let mut prober = Prober::new(&self.core.endpoint, &self.core.membership, self.channel, self.timeout);
        let result = prober.all_agree(vote);
        result.map_err(|why| self.probe_failed(prober.number, why))
    }

    fn probe_failed(&self, number: u64, why: Interruption) -> CommError {
        let call = Signature::message(Dtype::U8, SMALL_BYTES);
        self.message_failed(self.channel, why, (call, number), (0, SMALL_BYTES as u64))
    }
}

/// One rank's end of the measurements.
struct Prober<'a> {
    endpoint: &'a Endpoint,
    membership: &'a Membership,
    channel: Channel,
    timeout: Duration,
    number: u64,
    leaving: Vec<u8>,
    /// One piece for each member.
    arriving: Vec<u8>,
}

impl<'a> Prober<'a> {
    fn new(endpoint: &'a Endpoint, membership: &'a Membership, channel: Channel, timeout: Duration) -> Self {
        let (leaving, arriving) = (Vec::new(), Vec::new());
        Self { endpoint, membership, channel, timeout, number: 0, leaving, arriving }
    }

    fn now(&self) -> Duration {
        self.endpoint.world().clock().now()
    }

    /// Sends as many bytes to each of some members, the first of them being `word`, and receives
    /// as many from each; returns how long that took. What `with[i]` said is `received(i, bytes)`.
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
        let group = self.membership.id | PURPOSE << PURPOSE_BIT;
        let envelope = Envelope { group, number: self.number, signature };
        self.number += 1;
        let source = Source::of(&self.leaving[..bytes]);
        let target = Target::of(&mut self.arriving);
        let rank = |member: usize| self.membership.ranks[member];
        let piece = |index: usize| target.part(index * bytes..(index + 1) * bytes);
        let sends: Vec<_> = with.iter().map(|&member| (rank(member), source)).collect();
        let recvs = with.iter().enumerate().map(|(index, &member)| (rank(member), piece(index)));
        let recvs: Vec<_> = recvs.collect();
        let mut round =
            Round { envelope, sends: &sends, recvs: &recvs, done_bytes: 0, arrived: &|_| {} };
        let start = self.endpoint.world().clock().now();
        self.endpoint.exchange(self.channel, &mut round, self.timeout)?;
        Ok(self.endpoint.world().clock().since(start))
    }

    fn received(&self, index: usize, bytes: usize) -> u8 {
        self.arriving[index * bytes]
    }

    fn measure(&mut self) -> Result<LinkMeasurements, Interruption> {
        let group_size = self.membership.ranks.len();
        let mut row = Row::new(group_size, self.endpoint.world());
        let num_rounds = group_size.next_multiple_of(2) - 1;
        // The first meeting takes place twice, and the first time is practice: ranks that share
        // cores are still being dealt out to them.
        for round_index in 0..=num_rounds {
            self.number = (round_index as u64) << 32;
            if let Some(partner) = partner_of(group_size, round_index, self.membership.group_rank) {
                let time = PAIRS_TIME / (num_rounds + 1) as u32;
                let driver = (self.membership.group_rank < partner).then(|| Driver::new(self.now(), time));
                row.links[partner] = self.run_exchanges(&[partner], driver)?;
            }
        }
        self.number = 1 << 48;
        let mut others = self.others();
        // What one message more costs shows only where there is one.
        if group_size == 2 {
            others.push(others[0]);
        }
        let driver = (self.membership.group_rank == 0).then(|| Driver::new(self.now(), ALL_TIME));
        row.all = self.run_exchanges(&others, driver)?;
        row.local = [CACHED_BYTES, SUM_BYTES].map(|bytes| self.measure_reduction(bytes));
        self.agree(&row)
    }

    /// All members but this one.
    fn others(&self) -> Vec<usize> {
        let me = self.membership.group_rank;
        (0..self.membership.ranks.len()).filter(|&member| member != me).collect()
    }

    /// Exchanges with some members until the one that drives says that it is enough; that is this
    /// one if it has a driver, and else the first of them.
    fn run_exchanges(
        &mut self,
        with: &[usize],
        mut driver: Option<Driver>,
    ) -> Result<measurements::Times, Interruption> {
        let mut times = measurements::Times::default();
        let mut bytes = SMALL_BYTES;
        loop {
            let word = driver.as_mut().map_or(0, Driver::next);
            let took = self.exchange(with, bytes, word)?;
            times.add(bytes, took);
            if let Some(driver) = &mut driver {
                driver.add(bytes, took, self.endpoint.world().clock().now());
            }
            let word = if driver.is_some() { word } else { self.received(0, bytes) };
            match word {
                0 => return Ok(times),
                exponent => bytes = 1 << exponent.clamp(6, 24),
            }
        }
    }

    /// How fast a rank adds up two vectors of some length.
    fn measure_reduction(&mut self, bytes: usize) -> f64 {
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
            let start = self.endpoint.world().clock().now();
            reduce(self.endpoint.isa(), Dtype::F32, &job);
            best = best.min(self.endpoint.world().clock().since(start));
        }
        // As a price counts: one vector read, one written.
        2.0 * bytes as f64 / best.as_secs_f64().max(1e-9)
    }

    /// Tells rank 0 what was measured, and takes from it what holds.
    fn agree(&mut self, row: &Row) -> Result<LinkMeasurements, Interruption> {
        let (group_size, me) = (self.membership.ranks.len(), self.membership.group_rank);
        let row_bytes = row.encode();
        let mut rows = vec![0; row_bytes.len() * group_size];
        rows[..row_bytes.len()].copy_from_slice(&row_bytes);
        self.gather(&row_bytes, &mut rows)?;
        let mut measurements =
            if me == 0 { LinkMeasurements::of(&rows, group_size).encode() } else { Vec::new() };
        measurements.resize(LinkMeasurements::num_bytes(group_size), 0);
        self.broadcast_table(&mut measurements)?;
        Ok(LinkMeasurements::decode(&measurements, group_size))
    }

    /// Brings the rows of all members to the first.
    fn gather(&mut self, row: &[u8], rows: &mut [u8]) -> Result<(), Interruption> {
        let (group_size, len) = (self.membership.ranks.len(), row.len());
        let all = Target::of(rows);
        let others = 1..group_size;
        let (mut sends, mut recvs) = (Vec::new(), Vec::new());
        if self.membership.group_rank == 0 {
            let piece = |member: usize| all.part(member * len..(member + 1) * len);
            recvs.extend(others.map(|member| (self.membership.ranks[member], piece(member))));
        } else {
            sends.push((self.membership.ranks[0], Source::of(row)));
        }
        self.deliver(&sends, &recvs, len)
    }

    /// Brings the table of the first member to all.
    fn broadcast_table(&mut self, measurements: &mut [u8]) -> Result<(), Interruption> {
        let (group_size, len) = (self.membership.ranks.len(), measurements.len());
        let measurements = Target::of(measurements);
        let (mut sends, mut recvs) = (Vec::new(), Vec::new());
        if self.membership.group_rank == 0 {
            let to = |member: usize| (self.membership.ranks[member], measurements.as_source());
            sends.extend((1..group_size).map(to));
        } else {
            recvs.push((self.membership.ranks[0], measurements));
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
        let group = self.membership.id | PURPOSE << PURPOSE_BIT;
        self.number = self.number.max(1 << 52) + 1;
        let envelope = Envelope { group, number: self.number, signature };
        let mut round = Round { envelope, sends, recvs, done_bytes: 0, arrived: &|_| {} };
        self.endpoint.exchange(self.channel, &mut round, self.timeout)
    }

    fn all_agree(&mut self, vote: bool) -> Result<bool, Interruption> {
        let others = self.others();
        self.number = 1 << 56;
        self.exchange(&others, SMALL_BYTES, u8::from(vote))?;
        Ok(vote && (0..others.len()).all(|index| self.received(index, SMALL_BYTES) == 1))
    }
}

fn grow(bytes: &mut Vec<u8>, len: usize) {
    if bytes.len() < len {
        bytes.resize(len, 0);
    }
}

#[cfg(test)]
mod tests;
