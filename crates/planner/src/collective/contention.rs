//! Link contention in the rounds of a collective.
//!
//! All groups of an axis communicate at the same time: every tensor-parallel group its activations,
//! every data-parallel group its gradients. The time of a round is set by the busiest links between
//! consecutive devices and the rest (NICs of a node, uplinks of a rack or spine): the messages that
//! leave the domain, over its bandwidth. All rounds of a ring are alike, so one is counted; where
//! sizes divide each other a formula replaces the count. Tests compare the counts with the
//! schedules that the engine runs.

use super::group::Group;
use crate::hardware::LinkDomain;

/// Most devices that are counted one by one.
const MAX_COUNTED: u64 = 4096;

/// Messages that leave the busiest domain in one round of all rings of these groups.
pub(super) fn leaving_ring(group: Group, domain: &LinkDomain, devices: u64) -> u64 {
    let (Group { ranks, stride }, size) = (group, domain.devices);
    let block = ranks * stride;
    if ranks <= 1 || size >= devices || size.is_multiple_of(block) {
        return 0;
    }
    if stride >= size {
        return size;
    }
    if block.is_multiple_of(size) && size.is_multiple_of(stride) {
        // The last rank of each ring inside sends to the first one outside.
        return stride;
    }
    let next = |device: u64| {
        let (start, inside) = (device / block * block, device % block);
        start + (inside + stride) % block
    };
    let leaves = |device: u64| next(device) / size != device / size;
    // Where nothing divides, many domains are as good a sample as all of them.
    let whole = (devices / block * block).min(MAX_COUNTED.max(2 * size));
    let of = |first: u64| (first..(first + size).min(whole)).filter(|d| leaves(*d)).count() as u64;
    (0..whole).step_by(size as usize).map(of).max().unwrap_or(0)
}

/// Share of an all-to-all's messages that leaves a domain.
pub(super) fn leaving_all_to_all(group: Group, domain: &LinkDomain) -> f64 {
    let inside = (domain.devices / group.stride).clamp(1, group.ranks);
    1.0 - inside as f64 / group.ranks as f64
}

/// Messages that leave a full domain when every device sends to the one `stride` away.
pub(super) fn leaving_hop(stride: u64, domain: &LinkDomain, devices: u64) -> u64 {
    if domain.devices >= devices { 0 } else { stride.min(domain.devices) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockstep_schedule::collective::{GroupSpec, build};
    use lockstep_schedule::{Algorithm, Op, Step};

    /// Messages that leave the busiest domain in any round of the engine's schedule.
    fn counted(group: Group, size: u64, devices: u64) -> u64 {
        let ranks = group.ranks as usize;
        let schedule =
            build(Op::AllReduce, Algorithm::Ring { channels: 1 }, &GroupSpec::new(ranks))
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
    fn messages_leaving_a_domain_match_the_engines_ring_schedule() {
        let devices = 48;
        for size in [4, 8, 12, 16, 48] {
            let domain = LinkDomain { devices: size, gbps: 1.0 };
            for ranks in [1, 2, 3, 4, 6, 8, 12, 24, 48] {
                for stride in [1, 2, 3, 4, 6, 8, 16, 24] {
                    if ranks * stride <= devices {
                        let group = Group { ranks, stride };
                        let (predicted, counted_messages) =
                            (leaving_ring(group, &domain, devices), counted(group, size, devices));
                        assert_eq!(predicted, counted_messages, "{group:?} in domains of {size}");
                    }
                }
            }
        }
    }

    #[test]
    fn all_to_all_messages_leave_by_the_share_of_peers_outside() {
        let domain = LinkDomain { devices: 16, gbps: 1.0 };
        // Sixteen ranks, one in each node of eight: two of them share a rack.
        let group = Group { ranks: 16, stride: 8 };
        assert!((leaving_all_to_all(group, &domain) - 14.0 / 16.0).abs() < 1e-12);
        assert!(leaving_all_to_all(Group { ranks: 16, stride: 1 }, &domain).abs() < 1e-12);
        assert_eq!([1, 8, 64].map(|stride| leaving_hop(stride, &domain, 64)), [1, 8, 16]);
        assert_eq!(leaving_hop(1, &domain, 16), 0);
    }
}
