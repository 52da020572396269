//! Link measurements of a group: raw times, their encoding, and the evaluation on rank 0.

use std::time::Duration;

use lockstep_config::units::{Bytes, BytesPerSecond, Seconds};
use lockstep_platform::World;
use lockstep_schedule::{CacheSpeedup, Link, Links, TuningTable};

/// Length of a nearly empty message, which measures latency.
pub(super) const SMALL_BYTES: usize = 64;

/// Length of a message or vector that fits a cache.
pub(super) const CACHED_BYTES: usize = 64 << 10;

/// Measured costs of a group, equal on all ranks.
#[derive(Debug, Clone, PartialEq)]
pub struct LinkMeasurements {
    /// Links between all ranks, by group rank.
    pub links: Links,
    /// Throughput of a rank, sent and received together, while all others communicate too.
    pub port: BytesPerSecond,
    /// Cost of every message of a round after the first.
    pub per_message: Seconds,
    /// Memory throughput of a reduction, while the others reduce too.
    pub local: BytesPerSecond,
    /// Speedup of messages and vectors that fit a cache.
    pub cache: CacheSpeedup,
    /// CPU time that every message of a rank takes from the others, where ranks share cores.
    pub core_contention: Option<Seconds>,
    /// How far prices by all that were from the truth, where algorithms were tried out.
    pub tuning: TuningTable,
}

/// Durations of exchanges, by length.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Times {
    /// Length and durations.
    by_bytes: Vec<(usize, Vec<Duration>)>,
}

impl Times {
    pub(super) fn add(&mut self, bytes: usize, took: Duration) {
        match self.by_bytes.iter_mut().find(|(known, _)| *known == bytes) {
            Some((_, times)) => times.push(took),
            None => self.by_bytes.push((bytes, vec![took])),
        }
    }

    /// Typical duration of a length, in seconds. The first exchange of a length is skipped if there
    /// are others, because it includes the wait for a late rank. The rank that is first in one
    /// exchange is last in the next, so consecutive pairs are averaged.
    fn typical(&self, bytes: usize) -> Option<f64> {
        let (_, times) = self.by_bytes.iter().find(|(known, _)| *known == bytes)?;
        let times = &times[usize::from(times.len() > 1)..];
        let mut twos: Vec<Duration> = times.windows(2).map(|two| (two[0] + two[1]) / 2).collect();
        if let [only] = times {
            twos.push(*only);
        }
        twos.sort_unstable();
        // Disturbances only add time. There are few long exchanges, so take their minimum.
        let index = if bytes > SMALL_BYTES { 0 } else { twos.len() / 4 };
        Some(twos[index].as_secs_f64())
    }

    /// Durations of a small and a cached message, and length and duration of the longest.
    fn ends(&self) -> Option<[f64; 4]> {
        let longest = self.by_bytes.iter().map(|(bytes, _)| *bytes).max()?;
        let [short, cache, long] =
            [SMALL_BYTES, CACHED_BYTES, longest].map(|bytes| self.typical(bytes));
        Some([short?, cache.unwrap_or(0.0), longest as f64, long?])
    }
}

/// Measurements of one rank.
pub(super) struct Row {
    pub(super) links: Vec<Times>,
    pub(super) all: Times,
    /// Throughput of a cached and an uncached reduction.
    pub(super) local: [f64; 2],
    /// Hash of the host name, and number of its cores.
    host: u64,
    num_cores: u64,
}

/// Numbers of a row per link, and other numbers.
const NUM_EACH: usize = 4;
const NUM_OTHERS: usize = NUM_EACH + 4;

impl Row {
    pub(super) fn new(group_size: usize, world: &World) -> Self {
        let host = crate::signature::hash(
            &world.host().name().bytes().map(usize::from).collect::<Vec<_>>(),
        );
        let num_cores = world.threads().available() as u64;
        Self {
            links: vec![Times::default(); group_size],
            all: Times::default(),
            local: [0.0; 2],
            host,
            num_cores,
        }
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let four = |times: &Times| times.ends().unwrap_or_default().map(f64::to_bits);
        let links = self.links.iter().flat_map(four);
        let [cached, uncached] = self.local.map(f64::to_bits);
        let bytes =
            links.chain(four(&self.all)).chain([cached, uncached, self.host, self.num_cores]);
        bytes.flat_map(u64::to_le_bytes).collect()
    }
}

/// Encoded row of a rank, as rank 0 reads it.
struct ReportedRow<'a> {
    bytes: &'a [u8],
    group_size: usize,
}

impl ReportedRow<'_> {
    fn word(&self, index: usize) -> u64 {
        let bytes = self.bytes[index * 8..].first_chunk().expect("a row has all its words");
        u64::from_le_bytes(*bytes)
    }

    fn number(&self, index: usize) -> f64 {
        let number = f64::from_bits(self.word(index));
        if number.is_finite() { number.max(0.0) } else { 0.0 }
    }

    /// Numbers of link `index`, or of the exchange of all with all after the last link: durations
    /// of a small and a cached message, and length and duration of a long one.
    fn ends(&self, index: usize) -> [f64; NUM_EACH] {
        [0, 1, 2, 3].map(|at| self.number(NUM_EACH * index + at))
    }

    fn local(&self) -> [f64; 2] {
        [0, 1].map(|at| self.number(NUM_EACH * (self.group_size + 1) + at))
    }

    fn host(&self) -> (u64, u64) {
        let at = NUM_EACH * (self.group_size + 1) + 2;
        (self.word(at), self.word(at + 1))
    }
}

impl LinkMeasurements {
    /// Evaluates the rows of all ranks.
    pub(super) fn of(rows: &[u8], group_size: usize) -> Self {
        let row_bytes = rows.len() / group_size;
        debug_assert_eq!(row_bytes, 8 * (NUM_EACH * group_size + NUM_OTHERS), "rows are alike");
        let reported: Vec<ReportedRow<'_>> =
            rows.chunks(row_bytes).map(|bytes| ReportedRow { bytes, group_size }).collect();
        let links = Links::new(group_size, |from, to| {
            // Both ranks measured the same exchanges: the wait of one is the delay of the other.
            let (one, other) = (reported[from].ends(to), reported[to].ends(from));
            let [short, cache, bytes, long] =
                [0, 1, 2, 3].map(|at| f64::midpoint(one[at], other[at]));
            let bandwidth = uncached_rate([short, cache, bytes, long]);
            Link { latency: Seconds(short), bandwidth: BytesPerSecond(bandwidth) }
        });
        let mean = |of: &dyn Fn(&ReportedRow<'_>) -> f64| {
            reported.iter().map(of).sum::<f64>() / group_size as f64
        };
        // Two ranks exchange two messages in each direction.
        let num_messages = (group_size - 1).max(2) as f64;
        let all = [0, 1, 2, 3].map(|at| mean(&|row| row.ends(group_size)[at]));
        let port = BytesPerSecond(2.0 * num_messages * uncached_rate(all));
        let all_short = all[0];
        let mut latencies: Vec<f64> = (0..group_size)
            .flat_map(|from| (0..from).map(move |to| (from, to)))
            .filter_map(|(from, to)| links.between(from, to).map(|link| link.latency.0))
            .collect();
        latencies.sort_by(f64::total_cmp);
        let typical = latencies.get(latencies.len() / 2).copied().unwrap_or(0.0);
        let per_message = Seconds(((all_short - typical) / (num_messages - 1.0)).max(0.0));
        let core_contention =
            reported.iter().map(|row| core_contention(row, &reported)).fold(1.0, f64::max);
        let [cached_sum, uncached_sum] = [0, 1].map(|at| {
            reported.iter().map(|row| row.local()[at]).fold(f64::INFINITY, f64::min).max(1e6)
        });
        let local = BytesPerSecond(uncached_sum / core_contention);
        let wire = cached_rate(all) / uncached_rate(all);
        let cache = CacheSpeedup {
            bytes: Bytes(CACHED_BYTES as u64),
            wire: wire.clamp(1.0, MAX_CACHE_SPEEDUP),
            local: (cached_sum / uncached_sum).clamp(1.0, MAX_CACHE_SPEEDUP_SUM),
        };
        let num_all = group_size as f64 * num_messages;
        let is_far = typical > FAR_LATENCY;
        let shared = Seconds(if is_far { 0.0 } else { all_short / num_all });
        let core_contention = (core_contention > 1.0).then_some(shared);
        let links =
            if core_contention.is_some() { equalize_latencies(&links, group_size) } else { links };
        let tuning = TuningTable::NONE;
        Self { links, port, per_message, local, cache, core_contention, tuning }
    }

    /// The slowest link for a message of some length, if there are links.
    pub fn slowest(&self, bytes: Bytes) -> Option<(usize, usize, Link)> {
        let ranks = 0..self.links.num_ranks();
        let pairs = ranks.flat_map(|from| (0..from).map(move |to| (to, from)));
        let linked =
            pairs.filter_map(|(from, to)| Some((from, to, *self.links.between(from, to)?)));
        linked.max_by(|a, b| a.2.seconds(bytes).0.total_cmp(&b.2.seconds(bytes).0))
    }

    pub(super) fn num_bytes(group_size: usize) -> usize {
        8 * (2 * group_size * group_size + 6)
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let group_size = self.links.num_ranks();
        let pairs = (0..group_size * group_size).map(|at| (at / group_size, at % group_size));
        let links = pairs.filter_map(|(from, to)| self.links.between(from, to));
        let numbers = links.flat_map(|link| [link.latency.0, link.bandwidth.0]);
        let CacheSpeedup { wire, local, .. } = self.cache;
        let core_contention = self.core_contention.map_or(-1.0, |each| each.0);
        let others = [self.port.0, self.per_message.0, self.local.0, wire, local, core_contention];
        numbers.chain(others).flat_map(|number| number.to_bits().to_le_bytes()).collect()
    }

    pub(super) fn decode(bytes: &[u8], group_size: usize) -> Self {
        let (bytes, _) = bytes.as_chunks::<8>();
        let number = |index: usize| f64::from_bits(u64::from_le_bytes(bytes[index]));
        let links = Links::new(group_size, |from, to| {
            let at = 2 * (from * group_size + to);
            Link { latency: Seconds(number(at)), bandwidth: BytesPerSecond(number(at + 1)) }
        });
        let last = 2 * group_size * group_size;
        let (port, local) = (BytesPerSecond(number(last)), BytesPerSecond(number(last + 2)));
        let (wire, cached_local) = (number(last + 3), number(last + 4));
        let cache = CacheSpeedup { bytes: Bytes(CACHED_BYTES as u64), wire, local: cached_local };
        let core_contention = Some(Seconds(number(last + 5))).filter(|each| each.0 >= 0.0);
        let (per_message, tuning) = (Seconds(number(last + 1)), TuningTable::NONE);
        Self { links, port, per_message, local, cache, core_contention, tuning }
    }
}

/// Latency beyond which a waiting rank has yielded its core before the answer arrives.
const FAR_LATENCY: f64 = 300e-6;

/// Largest delay of a latency by waiting for a core.
const CORE_WAIT: f64 = 100e-6;

/// Equalizes latencies that differ by little. Where ranks share cores, small differences between
/// links are scheduling noise.
fn equalize_latencies(links: &Links, group_size: usize) -> Links {
    let pairs = (0..group_size).flat_map(|from| (0..from).map(move |to| (from, to)));
    let latencies = pairs.filter_map(|(from, to)| Some(links.between(from, to)?.latency.0));
    let least = latencies.fold(f64::INFINITY, f64::min);
    Links::new(group_size, |from, to| {
        let link = *links.between(from, to).expect("there is one for every pair");
        let is_little = link.latency.0 < least + CORE_WAIT;
        Link { latency: Seconds(if is_little { least } else { link.latency.0 }), ..link }
    })
}

/// Largest plausible cache speedup of messages, and of reductions. More means that the long
/// messages were disturbed.
const MAX_CACHE_SPEEDUP: f64 = 1.25;
const MAX_CACHE_SPEEDUP_SUM: f64 = 8.0;

/// Bandwidth of a cached message.
fn cached_rate([short, cache, _, _]: [f64; NUM_EACH]) -> f64 {
    CACHED_BYTES as f64 / (cache - short).max(cache / 16.0).max(1e-9)
}

/// Bandwidth of the part of a message beyond the cache.
fn uncached_rate(times: [f64; NUM_EACH]) -> f64 {
    let [_, cache, bytes, long] = times;
    if bytes <= CACHED_BYTES as f64 {
        return cached_rate(times);
    }
    let speed = (bytes - CACHED_BYTES as f64) / (long - cache).max(long / 16.0).max(1e-9);
    speed.max(cached_rate(times) / MAX_CACHE_SPEEDUP)
}

/// Number of ranks per core of a rank's host.
fn core_contention(row: &ReportedRow<'_>, all: &[ReportedRow<'_>]) -> f64 {
    let (host, num_cores) = row.host();
    let num_ranks = all.iter().filter(|other| other.host().0 == host).count();
    num_ranks as f64 / num_cores.max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_evaluation_survives_encoding() {
        let world = lockstep_platform::real();
        let micros = Duration::from_micros;
        let row = |me: usize| {
            let mut row = Row::new(3, &world);
            row.local = [2e9, 1e9 * (me + 1) as f64];
            for other in (0..3).filter(|&other| other != me) {
                for took in [900, 10, 10] {
                    row.links[other].add(SMALL_BYTES, micros(took));
                }
                let slow = if me + other == 3 { 10 } else { 1 };
                row.links[other].add(CACHED_BYTES, micros(10 + 5 * slow));
                row.links[other].add(17 << 16, micros(10 + 105 * slow));
            }
            row.all.add(SMALL_BYTES, micros(16));
            row.all.add(CACHED_BYTES, micros(16 + 50));
            row.all.add(2 << 16, micros(16 + 150));
            row.encode()
        };
        let rows: Vec<u8> = (0..3).flat_map(row).collect();
        let measured = LinkMeasurements::of(&rows, 3);
        let link = measured.links.between(1, 2).unwrap();
        assert!((link.latency.0 - 10e-6).abs() < 1e-9, "the first exchange is skipped: {link:?}");
        assert!((link.bandwidth.0 - 1048.576e6).abs() < 1e3, "{link:?}");
        assert!((measured.per_message.0 - 6e-6).abs() < 1e-9, "{measured:?}");
        assert!((measured.port.0 - 4.0 * 65_536.0 / 62.5e-6).abs() < 1e3, "{measured:?}");
        assert!((measured.cache.wire - MAX_CACHE_SPEEDUP).abs() < 1e-6, "{measured:?}");
        let (from, to, _) = measured.slowest(Bytes(1 << 20)).unwrap();
        assert_eq!((from, to), (1, 2));
        let bytes = measured.encode();
        assert_eq!(bytes.len(), LinkMeasurements::num_bytes(3));
        assert_eq!(LinkMeasurements::decode(&bytes, 3), measured);
    }
}
