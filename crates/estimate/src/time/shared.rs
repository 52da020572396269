//! Who shares which links in a collective's rounds.
//!
//! Groups of a kind exchange at the same time: every holder of slices its rows, every copy its
//! gradients. What a round takes is then up to the fullest of the links between consecutive devices
//! and all others (a node's cards, a rack's uplinks, a spine's): messages that leave there, over
//! what it carries. Rounds of a ring are all alike, so one of them is counted, and where sizes
//! divide each other even that is a formula. Tests hold the counts against the schedules that the
//! engine runs.

use super::collective::Group;
use crate::hardware::Unit;

/// Devices that are counted one by one, at most.
const MOST_COUNTED: u64 = 4096;

/// Messages that leave the fullest unit in one round of all rings of these groups.
pub(super) fn leaving_ring(group: Group, unit: &Unit, devices: u64) -> u64 {
    let (Group { ranks, stride }, size) = (group, unit.devices);
    let block = ranks * stride;
    if ranks <= 1 || size >= devices || size.is_multiple_of(block) {
        return 0;
    }
    if stride >= size {
        return size;
    }
    if block.is_multiple_of(size) && size.is_multiple_of(stride) {
        // The last of each ring's ranks here sends to the first ones elsewhere.
        return stride;
    }
    let next = |device: u64| {
        let (start, inside) = (device / block * block, device % block);
        start + (inside + stride) % block
    };
    let leaves = |device: u64| next(device) / size != device / size;
    // Where nothing divides, many units say as much as all of them.
    let whole = (devices / block * block).min(MOST_COUNTED.max(2 * size));
    let of = |first: u64| (first..(first + size).min(whole)).filter(|d| leaves(*d)).count() as u64;
    (0..whole).step_by(size as usize).map(of).max().unwrap_or(0)
}

/// Share of everybody's messages to everybody that leaves a unit.
pub(super) fn leaving_all_to_all(group: Group, unit: &Unit) -> f64 {
    let inside = (unit.devices / group.stride).clamp(1, group.ranks);
    1.0 - inside as f64 / group.ranks as f64
}

/// Messages that leave a full unit where everybody sends to the device `stride` behind.
pub(super) fn leaving_hop(stride: u64, unit: &Unit, devices: u64) -> u64 {
    if unit.devices >= devices { 0 } else { stride.min(unit.devices) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hardware::Shared;
    use lockstep_schedule::collective::{Team, build};
    use lockstep_schedule::{Algorithm, Op, Step};

    /// Messages of each round that leave the fullest unit, by the schedule of the engine.
    fn counted(group: Group, size: u64, devices: u64) -> u64 {
        let ranks = group.ranks as usize;
        let schedule = build(Op::AllReduce, Algorithm::Ring { channels: 1 }, &Team::new(ranks))
            .expect("a ring");
        let rounds = schedule.programs.iter().map(Vec::len).max().unwrap_or(0);
        let block = group.ranks * group.stride;
        let mut most = 0;
        for round in 0..rounds {
            let mut leaving = vec![0; devices.div_ceil(size) as usize];
            for first in (0..devices / block * block).filter(|d| d % block < group.stride) {
                let device = |rank: usize| first + rank as u64 * group.stride;
                for (rank, program) in schedule.programs.iter().enumerate() {
                    for step in program.get(round).into_iter().flatten() {
                        let Step::Send { peer, .. } = step else { continue };
                        let (from, to) = (device(rank) / size, device(*peer) / size);
                        leaving[from as usize] += u64::from(from != to);
                    }
                }
            }
            most = most.max(leaving.into_iter().max().unwrap_or(0));
        }
        most
    }

    #[test]
    fn what_leaves_a_unit_is_what_the_engines_rings_send() {
        let devices = 48;
        for size in [4, 8, 12, 16, 48] {
            let unit = Unit { shared: Shared::Cards, devices: size, gbps: 1.0 };
            for ranks in [1, 2, 3, 4, 6, 8, 12, 24, 48] {
                for stride in [1, 2, 3, 4, 6, 8, 16, 24] {
                    if ranks * stride <= devices {
                        let group = Group { ranks, stride };
                        let (said, is) =
                            (leaving_ring(group, &unit, devices), counted(group, size, devices));
                        assert_eq!(said, is, "{group:?} in units of {size}");
                    }
                }
            }
        }
    }

    #[test]
    fn everybodys_messages_leave_by_the_share_of_peers_elsewhere() {
        let unit = Unit { shared: Shared::Rack, devices: 16, gbps: 1.0 };
        // Sixteen ranks, one in each node of eight: two of them are in a rack.
        let group = Group { ranks: 16, stride: 8 };
        assert!((leaving_all_to_all(group, &unit) - 14.0 / 16.0).abs() < 1e-12);
        assert!(leaving_all_to_all(Group { ranks: 16, stride: 1 }, &unit).abs() < 1e-12);
        assert_eq!([1, 8, 64].map(|stride| leaving_hop(stride, &unit, 64)), [1, 8, 16]);
        assert_eq!(leaving_hop(1, &unit, 16), 0);
    }
}
