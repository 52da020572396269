//! Link measurement: latency, bandwidth and contention, by which algorithms are selected.
//!
//! Three quantities determine the time of a round of messages: the latency of one message, the
//! bandwidth of a long one, and the throughput of a rank while all others communicate too. So the
//! ranks first exchange in pairs, all pairs at once, in a round-robin tournament; then all exchange
//! with all. Both are the exchanges that collectives consist of. Last, each rank reduces two
//! vectors. The measurements go to rank 0; rank 0 evaluates them and broadcasts the result, so that
//! all ranks select alike.
//!
//! - `pairs`: the tournament, and how often a pair exchanges how much
//! - `measurements`: the measurements and their encoding
//! - `autotune`: trial runs of algorithms with similar predicted times
//! - `slowdown`: detects when links have to be measured again

mod autotune;
mod measurements;
mod pairs;
mod slowdown;

use std::time::Duration;

use lockstep_platform::{Source, Target};
use lockstep_schedule::{Op, SumTree};

use crate::channel::Channel;
use crate::comm::Comm;
use crate::element::{Dtype, Element, Reduction};
use crate::endpoint::Endpoint;
use crate::error::{CommError, Interruption};
use crate::kernel::{Job, Order, reduce};
use crate::membership::Membership;
use crate::schedule_cache::{Forecast, ScheduleCache};
use crate::signature::Signature;
use crate::transport::{Envelope, PURPOSE_BIT, Round};
pub use measurements::LinkMeasurements;
use measurements::{CACHED_BYTES, Row, SMALL_BYTES};
use pairs::{Driver, partner_of};
pub(crate) use slowdown::SlowdownDetector;

/// Kind of traffic of a probe, beside point-to-point messages.
const PURPOSE: u64 = 3;

/// Longest duration of all pairwise exchanges together, where latencies allow it.
const PAIRS_TIME: Duration = Duration::from_millis(100);

/// Longest duration of the exchanges of all with all, where latencies allow it.
const ALL_TIME: Duration = Duration::from_millis(50);

/// Length of a vector that does not fit a cache.
const SUM_BYTES: usize = 2 << 20;

impl Comm {
    /// Measures the links between the ranks, and selects algorithms by the result from now on, also
    /// in groups that are made of this one later. All ranks call it together. It takes a fifth of a
    /// second at most, or about ten exchanges with every other rank where those take longer; trial
    /// runs of all-reduce algorithms take up to twice as long again. A group that shares memory has
    /// no links, and returns `None`.
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

    /// Predicted time of every algorithm for `op` on a vector of `count` elements, the selected one
    /// first.
    pub fn forecast<T: Element>(&self, op: Op, count: usize) -> Result<Vec<Forecast>, CommError> {
        let reduction = op.is_sum().then_some(Reduction::Sum);
        let key = self.schedule_key::<T>(op, reduction, count, &[]);
        let found = self.lock().schedules.forecasts(&key);
        found.map_err(|rule| self.invalid(&op.to_string(), &rule))
    }

    /// Votes with all ranks on whether the links have become slower, and measures them again if so.
    #[cold]
    pub(crate) fn vote_to_remeasure(&self, schedules: &mut ScheduleCache) -> Result<(), CommError> {
        let vote = schedules.slowdown.vote();
        if self.all_agree(vote)? {
            let mut measured = self.measure_links()?;
            // The corrections have hardly changed, and trial runs would take too long here.
            measured.tuning = schedules.costs().tuning.clone();
            schedules.reprice(&measured);
        }
        Ok(())
    }

    /// Measures the links without changing the selection.
    fn measure_links(&self) -> Result<LinkMeasurements, CommError> {
        let mut prober =
            Prober::new(&self.core.endpoint, &self.core.membership, self.channel, self.timeout);
        let result = prober.measure();
        result.map_err(|why| self.probe_failed(prober.number, why))
    }

    /// Whether every rank votes yes, by one exchange of all with all.
    fn all_agree(&self, vote: bool) -> Result<bool, CommError> {
        let mut prober =
            Prober::new(&self.core.endpoint, &self.core.membership, self.channel, self.timeout);
        let result = prober.all_agree(vote);
        result.map_err(|why| self.probe_failed(prober.number, why))
    }

    fn probe_failed(&self, number: u64, why: Interruption) -> CommError {
        let call = Signature::message(Dtype::U8, SMALL_BYTES);
        self.message_failed(self.channel, why, (call, number), (0, SMALL_BYTES as u64))
    }
}

/// Measurements of one rank.
struct Prober<'a> {
    endpoint: &'a Endpoint,
    membership: &'a Membership,
    channel: Channel,
    timeout: Duration,
    number: u64,
    outgoing: Vec<u8>,
    /// One piece for each rank.
    incoming: Vec<u8>,
}

impl<'a> Prober<'a> {
    fn new(
        endpoint: &'a Endpoint,
        membership: &'a Membership,
        channel: Channel,
        timeout: Duration,
    ) -> Self {
        let (outgoing, incoming) = (Vec::new(), Vec::new());
        Self { endpoint, membership, channel, timeout, number: 0, outgoing, incoming }
    }

    fn now(&self) -> Duration {
        self.endpoint.world().clock().now()
    }

    /// Sends `bytes` bytes to each of some ranks, of which the first byte is `word`, and receives
    /// as many from each; returns the duration. `received(i, bytes)` is the first byte from
    /// `with[i]`.
    fn exchange(
        &mut self,
        with: &[usize],
        bytes: usize,
        word: u8,
    ) -> Result<Duration, Interruption> {
        grow(&mut self.outgoing, bytes);
        grow(&mut self.incoming, bytes * with.len());
        self.outgoing[0] = word;
        let signature = Signature::message(Dtype::U8, bytes);
        let group = self.membership.id | PURPOSE << PURPOSE_BIT;
        let envelope = Envelope { group, number: self.number, signature };
        self.number += 1;
        let source = Source::of(&self.outgoing[..bytes]);
        let target = Target::of(&mut self.incoming);
        let rank_of = |rank: usize| self.membership.ranks[rank];
        let piece = |index: usize| target.part(index * bytes..(index + 1) * bytes);
        let sends: Vec<_> = with.iter().map(|&rank| (rank_of(rank), source)).collect();
        let recvs = with.iter().enumerate().map(|(index, &rank)| (rank_of(rank), piece(index)));
        let recvs: Vec<_> = recvs.collect();
        let mut round =
            Round { envelope, sends: &sends, recvs: &recvs, done_bytes: 0, arrived: &|_| {} };
        let start = self.endpoint.world().clock().now();
        self.endpoint.exchange(self.channel, &mut round, self.timeout)?;
        Ok(self.endpoint.world().clock().since(start))
    }

    fn received(&self, index: usize, bytes: usize) -> u8 {
        self.incoming[index * bytes]
    }

    fn measure(&mut self) -> Result<LinkMeasurements, Interruption> {
        let group_size = self.membership.ranks.len();
        let mut row = Row::new(group_size, self.endpoint.world());
        let num_rounds = group_size.next_multiple_of(2) - 1;
        // The first round runs twice, the first time as warm-up: the scheduler is still placing
        // ranks on cores.
        for round_index in 0..=num_rounds {
            self.number = (round_index as u64) << 32;
            if let Some(partner) = partner_of(group_size, round_index, self.membership.group_rank) {
                let time = PAIRS_TIME / (num_rounds + 1) as u32;
                let driver =
                    (self.membership.group_rank < partner).then(|| Driver::new(self.now(), time));
                row.links[partner] = self.run_exchanges(&[partner], driver)?;
            }
        }
        self.number = 1 << 48;
        let mut others = self.others();
        // The cost of an additional message needs a second message to show.
        if group_size == 2 {
            others.push(others[0]);
        }
        let driver = (self.membership.group_rank == 0).then(|| Driver::new(self.now(), ALL_TIME));
        row.all = self.run_exchanges(&others, driver)?;
        row.local = [CACHED_BYTES, SUM_BYTES].map(|bytes| self.measure_reduction(bytes));
        self.agree(&row)
    }

    /// All group ranks but this one.
    fn others(&self) -> Vec<usize> {
        let me = self.membership.group_rank;
        (0..self.membership.ranks.len()).filter(|&rank| rank != me).collect()
    }

    /// Exchanges with some ranks until the driving rank ends the series: this rank if it has a
    /// driver, else the first of them.
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

    /// Throughput of a reduction of two vectors of some length.
    fn measure_reduction(&mut self, bytes: usize) -> f64 {
        grow(&mut self.incoming, 2 * bytes);
        grow(&mut self.outgoing, bytes);
        let order = Order::new(SumTree::canonical(2));
        let mut best = Duration::MAX;
        for _ in 0..5 {
            let (one, other) = self.incoming[..2 * bytes].split_at(bytes);
            let sources = [Source::of(one), Source::of(other)];
            let targets = [Target::of(&mut self.outgoing[..bytes])];
            let (reduction, divide_by) = (Reduction::Sum, None);
            let job =
                Job { reduction, divide_by, order: &order, sources: &sources, targets: &targets };
            let start = self.endpoint.world().clock().now();
            reduce(self.endpoint.isa(), Dtype::F32, &job);
            best = best.min(self.endpoint.world().clock().since(start));
        }
        // As costs count it: one vector read, one written.
        2.0 * bytes as f64 / best.as_secs_f64().max(1e-9)
    }

    /// Gathers the measurements on rank 0, and receives its evaluation.
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

    /// Gathers the rows of all ranks on the first.
    fn gather(&mut self, row: &[u8], rows: &mut [u8]) -> Result<(), Interruption> {
        let (group_size, len) = (self.membership.ranks.len(), row.len());
        let all = Target::of(rows);
        let others = 1..group_size;
        let (mut sends, mut recvs) = (Vec::new(), Vec::new());
        if self.membership.group_rank == 0 {
            let piece = |rank: usize| all.part(rank * len..(rank + 1) * len);
            recvs.extend(others.map(|rank| (self.membership.ranks[rank], piece(rank))));
        } else {
            sends.push((self.membership.ranks[0], Source::of(row)));
        }
        self.deliver(&sends, &recvs, len)
    }

    /// Broadcasts the evaluation of the first rank.
    fn broadcast_table(&mut self, measurements: &mut [u8]) -> Result<(), Interruption> {
        let (group_size, len) = (self.membership.ranks.len(), measurements.len());
        let measurements = Target::of(measurements);
        let (mut sends, mut recvs) = (Vec::new(), Vec::new());
        if self.membership.group_rank == 0 {
            let to = |rank: usize| (self.membership.ranks[rank], measurements.as_source());
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
