//! When a piece that leaves now arrives.
//!
//! A link sends one byte after the other at its bandwidth; the last byte of a piece is then under
//! way for the latency and some jitter. Bytes travel in packets, and packets get lost. TCP notices
//! a lost packet when three later ones arrived, and sends it again, which costs a round trip; where
//! too few follow it notices after a timeout. Until the lost packet has come nothing behind it on
//! the same stream counts as arrived. Which packets are late or lost is a function of the seed, the
//! ranks, the stream and the number of the packet, so it is the same in every run.

use std::time::Duration;

use lockstep_config::{Conditions, Emulate};

/// Payload of a packet on an Ethernet.
const PACKET_BYTES: u64 = 1448;

/// Packets behind a lost one from which on TCP notices at once.
const MANY: u64 = 3;

/// The least time after which TCP takes the last packets of a message for lost, on Linux.
const TIMEOUT: Duration = Duration::from_millis(200);

/// How far the sender may be ahead of the link: what a socket holds.
const AHEAD: Duration = Duration::from_millis(2);

/// The longest piece: on a slow or lossy link arrival is worked out for shorter ones.
const SHORT_PIECE: usize = 32 << 10;
const LONG_PIECE: usize = 256 << 10;

/// The way from one rank to another, shared by all streams between them.
#[derive(Debug)]
pub(in super::super) struct Way {
    conditions: Conditions,
    /// What it is like at first, and for how long.
    at_first: (Conditions, Duration),
    began: Option<Duration>,
    seed: u64,
    /// When the last byte so far has left.
    free_at: Duration,
}

/// How far one stream is.
#[derive(Debug, Default)]
pub(super) struct Track {
    number: u64,
    sent_bytes: u64,
    last_due: Duration,
}

impl Track {
    pub(super) fn new(number: u64) -> Self {
        Self { number, ..Self::default() }
    }
}

impl Way {
    /// The way from rank `from` to rank `to`.
    pub(in super::super) fn new(emulate: &Emulate, from: usize, to: usize) -> Self {
        let seed = mix(mix(mix(emulate.seed) ^ from as u64) ^ to as u64);
        let onset = Duration::try_from_secs_f64(emulate.onset(from, to).0).unwrap_or_default();
        Self {
            conditions: emulate.between(from, to),
            at_first: (emulate.usual, onset),
            began: None,
            seed,
            free_at: Duration::ZERO,
        }
    }

    /// What it is like now.
    fn conditions(&mut self, now: Duration) -> Conditions {
        let (at_first, onset) = self.at_first;
        let began = *self.began.get_or_insert(now);
        if now < began + onset { at_first } else { self.conditions }
    }

    /// How long no new piece may leave.
    pub(super) fn closed_for(&self, now: Duration) -> Duration {
        self.free_at.saturating_sub(now + AHEAD)
    }

    pub(super) fn max_piece_bytes(&self) -> usize {
        let is_simple = self.conditions.bandwidth.0 <= 0.0 && self.conditions.loss <= 0.0;
        if is_simple { LONG_PIECE } else { SHORT_PIECE }
    }

    /// The date at which a piece arrives that leaves now.
    pub(super) fn send(&mut self, track: &mut Track, len: usize, now: Duration) -> Duration {
        let Conditions { bandwidth, latency, jitter, loss } = self.conditions(now);
        let takes = if bandwidth.0 > 0.0 { len as f64 / bandwidth.0 } else { 0.0 };
        self.free_at = self.free_at.max(now) + Duration::from_secs_f64(takes);
        let first = track.sent_bytes.div_ceil(PACKET_BYTES);
        track.sent_bytes += len as u64;
        let last = (track.sent_bytes - 1) / PACKET_BYTES;
        let late = jitter.0 * self.chance(track.number, last, Purpose::Jitter);
        let mut due = self.free_at + Duration::from_secs_f64(latency.0 + late);
        if loss > 0.0 {
            let is_lost = |packet: u64| self.chance(track.number, packet, Purpose::Loss) < loss;
            let round_trip = Duration::from_secs_f64(2.0 * latency.0);
            let again = |packet| {
                if last - packet >= MANY { round_trip } else { TIMEOUT + round_trip }
            };
            due += (first..=last)
                .filter(|&packet| is_lost(packet))
                .map(again)
                .max()
                .unwrap_or_default();
        }
        track.last_due = track.last_due.max(due);
        track.last_due
    }

    /// A number from 0 to 1 that is the packet's.
    fn chance(&self, stream: u64, packet: u64, purpose: Purpose) -> f64 {
        let bits = mix(mix(mix(self.seed ^ stream) ^ packet) ^ purpose as u64);
        (bits >> 11) as f64 / (1_u64 << 53) as f64
    }
}

#[derive(Clone, Copy)]
enum Purpose {
    Jitter = 1,
    Loss = 2,
}

/// Steele, Lea and Flood's mixer: every bit of the result depends on every bit of the argument.
fn mix(bits: u64) -> u64 {
    let bits = bits.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

#[cfg(test)]
mod tests {
    use lockstep_config::EmulatedLink;
    use lockstep_config::units::{BytesPerSecond, Seconds};

    use super::*;

    const NOW: Duration = Duration::from_secs(10);

    fn emulate(usual: Conditions) -> Emulate {
        Emulate { usual, seed: 7, ..Emulate::none() }
    }

    #[test]
    fn a_link_may_become_bad_later() {
        let after = Seconds(2.0);
        let link =
            EmulatedLink { latency: Some(Seconds(1.0)), after, ..EmulatedLink::between(0, 1) };
        let mut way = Way::new(&Emulate { links: vec![link], ..Emulate::none() }, 0, 1);
        let mut track = Track::new(0);
        let mut late = |seconds| {
            let now = NOW + Duration::from_secs(seconds);
            way.send(&mut track, 1, now).saturating_sub(now).as_secs()
        };
        assert_eq!([late(0), late(1), late(2), late(5)], [0, 0, 1, 1]);
    }

    fn millis(conditions: Conditions, lens: &[usize]) -> Vec<f64> {
        let mut way = Way::new(&emulate(conditions), 0, 1);
        let mut track = Track::new(0);
        let due = |&len: &usize| way.send(&mut track, len, NOW).saturating_sub(NOW);
        lens.iter().map(due).map(|left| left.as_secs_f64() * 1e3).collect()
    }

    #[test]
    fn latency_is_paid_once_by_all_that_is_under_way_and_bandwidth_by_each() {
        let far = Conditions { latency: Seconds(0.005), ..Conditions::NONE };
        assert_eq!(millis(far, &[1, 1000, 100_000]), [5.0, 5.0, 5.0]);
        let slow = Conditions { bandwidth: BytesPerSecond(1e6), ..far };
        assert_eq!(millis(slow, &[1000, 2000, 3000]), [6.0, 8.0, 11.0]);
    }

    #[test]
    fn a_full_link_is_closed_until_it_has_sent_nearly_all() {
        let slow = Conditions { bandwidth: BytesPerSecond(1e6), ..Conditions::NONE };
        let mut way = Way::new(&emulate(slow), 0, 1);
        let mut track = Track::new(0);
        way.send(&mut track, 1500, NOW);
        assert_eq!(way.closed_for(NOW), Duration::ZERO);
        way.send(&mut track, 10_500, NOW);
        assert_eq!(way.closed_for(NOW), Duration::from_millis(10));
        assert_eq!(way.closed_for(NOW + Duration::from_millis(10)), Duration::ZERO);
    }

    #[test]
    fn nothing_overtakes_and_jitter_stays_below_its_bound() {
        let unsteady = Conditions { jitter: Seconds(0.002), ..Conditions::NONE };
        let found = millis(unsteady, &[PACKET_BYTES as usize; 1000]);
        assert!(found.is_sorted() && found.iter().all(|&late| late < 2.0));
        assert!(found[0] < 1.99 && found[999] > 1.9, "{} {}", found[0], found[999]);
    }

    #[test]
    fn the_share_of_packets_that_was_asked_for_is_lost_the_same_ones_every_time() {
        let lossy = Conditions { loss: 0.1, latency: Seconds(0.001), ..Conditions::NONE };
        let way = Way::new(&emulate(lossy), 0, 1);
        let lost = |stream: u64| -> Vec<u64> {
            let is_lost = |&packet: &u64| way.chance(stream, packet, Purpose::Loss) < 0.1;
            (0..10_000).filter(is_lost).collect()
        };
        assert!((900..1100).contains(&lost(0).len()), "{}", lost(0).len());
        assert_ne!(lost(0), lost(1));
        assert_eq!(millis(lossy, &[3000; 50]), millis(lossy, &[3000; 50]));
        // Long pieces are repaired in a round trip, or at their very end by the timeout.
        let long = millis(lossy, &[30 * PACKET_BYTES as usize]);
        assert!(long[0] >= 3.0 && long[0] <= 203.0, "{long:?}");
    }
}
