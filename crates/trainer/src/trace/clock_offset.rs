//! Offset of a rank's clock from that of rank 0, by an exchange of messages (NTP; Mills 1991).
//!
//! A rank notes when it sends a request and when the answer arrives, and rank 0 answers with the
//! times of arrival and departure on its own clock. If both directions take equally long, the
//! offset is the mean of the two differences; in any case its error is at most half the round trip.
//! Of several exchanges the one with the shortest round trip counts. Every clock starts with its
//! process, so that ranks of one host exchange messages as well.
//!
//! Two offsets, at the start and at the end of the run, also give the drift of the clock.

use lockstep_comm::{Comm, CommError};
use lockstep_platform::World;
use std::time::Duration;

/// Exchanges of each rank.
const NUM_EXCHANGES: usize = 16;

/// Tag of requests; answers have the next one.
const TAG: u64 = 0x636c_6f63;

/// Nanoseconds by which rank 0's clock is ahead, at a time of the own clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ClockOffset {
    at: Duration,
    ahead_ns: i64,
    /// Bound of the error.
    error_ns: u64,
}

impl ClockOffset {
    /// Measures the offset of every rank's monotonic clock, one after the other. Collective.
    pub(super) fn measure(comm: &Comm, world: &World) -> Result<Self, CommError> {
        Self::measure_by(comm, world, || world.clock().now().as_nanos() as u64)
    }

    /// Measures the offset of any clock of every rank, in nanoseconds. Collective.
    pub(crate) fn measure_by(
        comm: &Comm,
        world: &World,
        now: impl Fn() -> u64,
    ) -> Result<Self, CommError> {
        let mut best: Option<Self> = None;
        match comm.group_rank() {
            0 => {
                for rank in 1..comm.group_size() {
                    for _ in 0..NUM_EXCHANGES {
                        comm.recv(&mut [0_u64], rank, TAG)?;
                        let arrived = now();
                        comm.send(&[arrived, now()], rank, TAG + 1)?;
                    }
                }
            }
            _ => {
                for _ in 0..NUM_EXCHANGES {
                    let (sent, mut answer) = (now(), [0_u64; 2]);
                    comm.send(&[sent], 0, TAG)?;
                    comm.recv(&mut answer, 0, TAG + 1)?;
                    let found = Self::of_exchange([sent, answer[0], answer[1], now()]);
                    if best.is_none_or(|best| found.error_ns < best.error_ns) {
                        best = Some(found);
                    }
                }
            }
        }
        let at = world.clock().now();
        Ok(best.unwrap_or(Self { at, ..Self::default() }))
    }

    /// Seconds by which rank 0's clock is behind, and the bound of their error.
    pub(crate) fn behind_seconds(&self) -> [f64; 2] {
        [-1e-9 * self.ahead_ns as f64, 1e-9 * self.error_ns as f64]
    }

    /// Offset by the times of request and answer: sent and received on the own clock, with arrival
    /// and departure at rank 0 in between.
    fn of_exchange([sent, arrived, departed, received]: [u64; 4]) -> Self {
        let difference = |one: u64, other: u64| i128::from(one) - i128::from(other);
        let ahead = i128::midpoint(difference(arrived, sent), difference(departed, received));
        let round_trip = difference(received, sent) - difference(departed, arrived);
        Self {
            at: Duration::from_nanos(u64::midpoint(sent, received)),
            ahead_ns: i64::try_from(ahead).unwrap_or(0),
            // One more for the division.
            error_ns: u64::try_from(round_trip).unwrap_or(0).div_ceil(2) + 1,
        }
    }
}

/// Conversion of a rank's times to the clock of rank 0.
#[derive(Clone, Copy, Debug)]
pub(super) struct ClockMap {
    pub(super) first: ClockOffset,
    pub(super) last: ClockOffset,
}

impl ClockMap {
    /// The time on the clock of rank 0, with an offset between those of the two measurements.
    pub(super) fn convert(&self, time: Duration) -> Duration {
        let Self { first, last } = self;
        let span = last.at.saturating_sub(first.at).as_secs_f64();
        let share = if span > 0.0 {
            (time.saturating_sub(first.at).as_secs_f64() / span).min(1.0)
        } else {
            0.0
        };
        let drift = ((last.ahead_ns - first.ahead_ns) as f64 * share) as i64;
        let nanos = i128::try_from(time.as_nanos()).expect("a duration has 94 bits");
        let nanos = nanos + i128::from(first.ahead_ns + drift);
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(0))
    }

    /// Bound of the error of a conversion, in nanoseconds.
    pub(super) fn error_ns(&self) -> u64 {
        self.first.error_ns.max(self.last.error_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offset(at: u64, ahead_ns: i64) -> ClockOffset {
        ClockOffset { at: Duration::from_nanos(at), ahead_ns, error_ns: 5 }
    }

    #[test]
    fn an_exchange_bounds_its_error_whatever_the_two_delays_are() {
        for ahead in [-70_i64, 0, 1_000_000] {
            for (there, back) in [(10, 10), (0, 30), (25, 1)] {
                let sent = 1000_u64;
                let arrived = (sent + there).saturating_add_signed(ahead);
                let departed = arrived + 7;
                let received = sent + there + 7 + back;
                let found = ClockOffset::of_exchange([sent, arrived, departed, received]);
                let error = found.ahead_ns.abs_diff(ahead);
                assert!(error <= found.error_ns, "{found:?}: {ahead}, {there}, {back}");
                assert_eq!(found.error_ns, (there + back).div_ceil(2) + 1);
                assert!(there != back || error == 0, "equal delays give the offset");
            }
        }
    }

    #[test]
    fn a_clock_that_drifts_is_interpolated_and_stays_in_order() {
        let map = ClockMap { first: offset(1_000, 500), last: offset(11_000, 400) };
        let convert = |time| map.convert(Duration::from_nanos(time)).as_nanos();
        assert_eq!([convert(1_000), convert(6_000), convert(11_000)], [1_500, 6_450, 11_400]);
        assert_eq!([convert(0), convert(20_000)], [500, 20_400], "no extrapolation");
        assert!((0..20_000).map(convert).is_sorted());
        let still = ClockMap { first: offset(5, -3), last: offset(5, -3) };
        assert_eq!(still.convert(Duration::from_nanos(2)), Duration::ZERO, "no time is negative");
    }
}
