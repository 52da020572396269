//! One direction of an emulated link: the arrival time of a piece that is sent now.
//!
//! A link serializes bytes at its bandwidth; the last byte of a piece is then in transit for the
//! latency and some jitter. Bytes travel in packets, and packets get lost. TCP detects a lost
//! packet by three later ones (fast retransmit), at the cost of a round trip; with fewer followers
//! it waits for the retransmission timeout. Until the lost packet arrives, nothing behind it on the
//! stream counts as arrived. Jitter and loss are functions of the seed, the ranks, the stream and
//! the packet number, so they are equal in every run.

use std::time::Duration;

use lockstep_config::{Emulate, LinkConditions};

/// Payload of a packet on an Ethernet.
const PACKET_BYTES: u64 = 1448;

/// Packets behind a lost one that trigger a fast retransmit.
const FAST_RETRANSMIT: u64 = 3;

/// Least retransmission timeout of TCP on Linux.
const TIMEOUT: Duration = Duration::from_millis(200);

/// How far the sender may run ahead of the link, as with a socket buffer.
const AHEAD: Duration = Duration::from_millis(2);

/// Longest piece: short on links with finite bandwidth or loss, for a finer arrival time.
const SHORT_PIECE: usize = 32 << 10;
const LONG_PIECE: usize = 256 << 10;

/// The emulated link from one rank to another, shared by all streams between them.
#[derive(Debug)]
pub(crate) struct LinkDirection {
    conditions: LinkConditions,
    /// Initial conditions, and how long they last.
    initial: (LinkConditions, Duration),
    began: Option<Duration>,
    seed: u64,
    /// Time at which the link has sent all accepted bytes.
    free_at: Duration,
}

/// Send state of one stream.
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

impl LinkDirection {
    /// The emulated link from rank `from` to rank `to`.
    pub(crate) fn new(emulate: &Emulate, from: usize, to: usize) -> Self {
        let seed = mix(mix(mix(emulate.seed) ^ from as u64) ^ to as u64);
        let onset = Duration::try_from_secs_f64(emulate.onset(from, to).0).unwrap_or_default();
        Self {
            conditions: emulate.between(from, to),
            initial: (emulate.default_link, onset),
            began: None,
            seed,
            free_at: Duration::ZERO,
        }
    }

    /// Current conditions.
    fn conditions(&mut self, now: Duration) -> LinkConditions {
        let (initial, onset) = self.initial;
        let began = *self.began.get_or_insert(now);
        if now < began + onset { initial } else { self.conditions }
    }

    /// Time until a new piece may be sent.
    pub(super) fn closed_for(&self, now: Duration) -> Duration {
        self.free_at.saturating_sub(now + AHEAD)
    }

    pub(super) fn max_piece_bytes(&self) -> usize {
        let is_simple = self.conditions.bandwidth.0 <= 0.0 && self.conditions.loss <= 0.0;
        if is_simple { LONG_PIECE } else { SHORT_PIECE }
    }

    /// Arrival time of a piece that is sent now.
    pub(super) fn send(&mut self, track: &mut Track, len: usize, now: Duration) -> Duration {
        let LinkConditions { bandwidth, latency, jitter, loss } = self.conditions(now);
        let takes = if bandwidth.0 > 0.0 { len as f64 / bandwidth.0 } else { 0.0 };
        self.free_at = self.free_at.max(now) + Duration::from_secs_f64(takes);
        let first = track.sent_bytes.div_ceil(PACKET_BYTES);
        track.sent_bytes += len as u64;
        let last = (track.sent_bytes - 1) / PACKET_BYTES;
        let delay = jitter.0 * self.chance(track.number, last, Purpose::Jitter);
        let mut due = self.free_at + Duration::from_secs_f64(latency.0 + delay);
        if loss > 0.0 {
            let is_lost = |packet: u64| self.chance(track.number, packet, Purpose::Loss) < loss;
            let round_trip = Duration::from_secs_f64(2.0 * latency.0);
            let retransmission = |packet| {
                if last - packet >= FAST_RETRANSMIT { round_trip } else { TIMEOUT + round_trip }
            };
            due += (first..=last)
                .filter(|&packet| is_lost(packet))
                .map(retransmission)
                .max()
                .unwrap_or_default();
        }
        track.last_due = track.last_due.max(due);
        track.last_due
    }

    /// Uniform number in [0, 1) that depends on the seed and the packet.
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

/// SplitMix64 (Steele, Lea and Flood, 2014): every bit of the result depends on every bit of the
/// argument.
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

    fn emulate(default_link: LinkConditions) -> Emulate {
        Emulate { default_link, seed: 7, ..Emulate::none() }
    }

    #[test]
    fn conditions_start_after_their_onset() {
        let after = Seconds(2.0);
        let link =
            EmulatedLink { latency: Some(Seconds(1.0)), after, ..EmulatedLink::between(0, 1) };
        let mut direction =
            LinkDirection::new(&Emulate { links: vec![link], ..Emulate::none() }, 0, 1);
        let mut track = Track::new(0);
        let mut delay = |seconds| {
            let now = NOW + Duration::from_secs(seconds);
            direction.send(&mut track, 1, now).saturating_sub(now).as_secs()
        };
        assert_eq!([delay(0), delay(1), delay(2), delay(5)], [0, 0, 1, 1]);
    }

    fn millis(conditions: LinkConditions, lens: &[usize]) -> Vec<f64> {
        let mut direction = LinkDirection::new(&emulate(conditions), 0, 1);
        let mut track = Track::new(0);
        let due = |&len: &usize| direction.send(&mut track, len, NOW).saturating_sub(NOW);
        lens.iter().map(due).map(|left| left.as_secs_f64() * 1e3).collect()
    }

    #[test]
    fn pieces_in_transit_share_latency_and_pay_bandwidth_each() {
        let far = LinkConditions { latency: Seconds(0.005), ..LinkConditions::NONE };
        assert_eq!(millis(far, &[1, 1000, 100_000]), [5.0, 5.0, 5.0]);
        let slow = LinkConditions { bandwidth: BytesPerSecond(1e6), ..far };
        assert_eq!(millis(slow, &[1000, 2000, 3000]), [6.0, 8.0, 11.0]);
    }

    #[test]
    fn a_full_link_blocks_until_it_has_sent_nearly_all() {
        let slow = LinkConditions { bandwidth: BytesPerSecond(1e6), ..LinkConditions::NONE };
        let mut direction = LinkDirection::new(&emulate(slow), 0, 1);
        let mut track = Track::new(0);
        direction.send(&mut track, 1500, NOW);
        assert_eq!(direction.closed_for(NOW), Duration::ZERO);
        direction.send(&mut track, 10_500, NOW);
        assert_eq!(direction.closed_for(NOW), Duration::from_millis(10));
        assert_eq!(direction.closed_for(NOW + Duration::from_millis(10)), Duration::ZERO);
    }

    #[test]
    fn arrival_keeps_order_and_jitter_stays_below_its_bound() {
        let unsteady = LinkConditions { jitter: Seconds(0.002), ..LinkConditions::NONE };
        let found = millis(unsteady, &[PACKET_BYTES as usize; 1000]);
        assert!(found.is_sorted() && found.iter().all(|&delay| delay < 2.0));
        assert!(found[0] < 1.99 && found[999] > 1.9, "{} {}", found[0], found[999]);
    }

    #[test]
    fn loss_has_its_rate_and_is_deterministic() {
        let lossy = LinkConditions { loss: 0.1, latency: Seconds(0.001), ..LinkConditions::NONE };
        let direction = LinkDirection::new(&emulate(lossy), 0, 1);
        let lost = |stream: u64| -> Vec<u64> {
            let is_lost = |&packet: &u64| direction.chance(stream, packet, Purpose::Loss) < 0.1;
            (0..10_000).filter(is_lost).collect()
        };
        assert!((900..1100).contains(&lost(0).len()), "{}", lost(0).len());
        assert_ne!(lost(0), lost(1));
        assert_eq!(millis(lossy, &[3000; 50]), millis(lossy, &[3000; 50]));
        // A lost packet costs a round trip, or the timeout near the end of the piece.
        let long = millis(lossy, &[30 * PACKET_BYTES as usize]);
        assert!(long[0] >= 3.0 && long[0] <= 203.0, "{long:?}");
    }
}
