//! Hierarchical schedules of many shapes: proven, canonical exactly when their groups are blocks,
//! and cheap between hosts.

use lockstep_schedule::collective::hierarchical::all_reduce;
use lockstep_schedule::{Layout, Medium, Report, Schedule, Topology, is_canonical_block, verify};

fn prove(topology: &Topology) -> (Schedule, Report) {
    let schedule = all_reduce(topology);
    let report = verify(&schedule);
    let report = report.unwrap_or_else(|error| panic!("{topology}: {error}\n{schedule}"));
    assert!(report.in_place, "{topology}");
    (schedule, report)
}

/// Hosts of these sizes, connected by messages.
fn hosts(sizes: &[usize], inside: Medium) -> Topology {
    let mut next = 0;
    let host = |&size: &usize| {
        let first = next;
        next += size;
        group(inside, (first..next).map(Topology::Rank).collect())
    };
    group(Medium::Messages, sizes.iter().map(host).collect())
}

fn group(medium: Medium, children: Vec<Topology>) -> Topology {
    Topology::Group { medium, children }
}

/// Compositions of `total` into host sizes.
fn compositions(total: usize) -> Vec<Vec<usize>> {
    if total == 0 {
        return vec![Vec::new()];
    }
    let begin_with = |first: usize| {
        compositions(total - first).into_iter().map(move |rest| [vec![first], rest].concat())
    };
    (1..=total).flat_map(begin_with).collect()
}

#[test]
fn canonical_exactly_if_every_host_is_a_block_of_the_canonical_tree() {
    for num_ranks in 1..=8 {
        for sizes in compositions(num_ranks) {
            let starts = sizes.iter().scan(0, |next, size| {
                *next += size;
                Some(*next - size)
            });
            let mut hosts_as_blocks = starts.zip(&sizes).map(|(start, size)| start..start + size);
            let expected = hosts_as_blocks.all(|block| is_canonical_block(num_ranks, &block));
            for inside in [Medium::Memory, Medium::Messages] {
                let (_, report) = prove(&hosts(&sizes, inside));
                assert_eq!(report.canonical, expected, "hosts {sizes:?}, {inside:?} inside");
            }
        }
    }
}

#[test]
fn equal_hosts_send_each_vector_once_between_hosts() {
    for (num_hosts, per_host) in [(2, 2), (2, 8), (4, 4), (3, 4), (4, 8)] {
        let (schedule, report) = prove(&hosts(&vec![per_host; num_hosts], Medium::Memory));
        let count = schedule.num_chunks * 2;
        let layout = Layout::even(&schedule, count);
        for (rank, traffic) in report.ranks.iter().enumerate() {
            let crossing = traffic.sent_len(&layout);
            assert_eq!(crossing, 2 * (num_hosts - 1) * count / num_hosts / per_host);
            let is_inside = |peer: usize| peer / per_host == rank / per_host;
            assert!(traffic.sent.iter().all(|transfer| !is_inside(transfer.peer)));
            assert!(traffic.read.iter().all(|transfer| is_inside(transfer.peer)));
        }
    }
}

#[test]
fn hosts_of_different_sizes_send_equal_bytes() {
    for sizes in [vec![3, 2], vec![1, 4, 2], vec![5, 7], vec![8, 7, 6, 5]] {
        let (schedule, report) = prove(&hosts(&sizes, Medium::Memory));
        let layout = Layout::even(&schedule, schedule.num_chunks);
        let mut ranks = report.ranks.iter();
        for &size in &sizes {
            let sent: usize = ranks.by_ref().take(size).map(|rank| rank.sent_len(&layout)).sum();
            let num_hosts = sizes.len();
            assert_eq!(sent, 2 * (num_hosts - 1) * layout.count() / num_hosts, "hosts {sizes:?}");
        }
    }
}

#[test]
fn levels_may_be_nested() {
    let rank = Topology::Rank;
    let numa = |first: usize| group(Medium::Memory, vec![rank(first), rank(first + 1)]);
    let host = |first: usize| group(Medium::Memory, vec![numa(first), numa(first + 2)]);
    let rack = |first: usize| group(Medium::Messages, vec![host(first), host(first + 4)]);
    let two_racks = group(Medium::Messages, vec![rack(0), rack(8)]);
    let (schedule, report) = prove(&two_racks);
    assert!(report.canonical);
    assert_eq!(schedule.num_chunks, 16);
    assert!(schedule.needs_messages() && schedule.needs_memory());

    // A rank beside a host, and groups of one.
    let lopsided = group(
        Medium::Messages,
        vec![
            rank(0),
            group(Medium::Messages, vec![group(Medium::Memory, vec![rank(1), rank(2), rank(3)])]),
            group(Medium::Memory, vec![rank(4)]),
        ],
    );
    assert!(!prove(&lopsided).1.canonical);
}

#[test]
fn ranks_may_lie_anywhere() {
    // Ranks alternate between hosts, so that no host is a block.
    let alternating = Topology::by_host(&["a", "b", "a", "b", "a", "b"]);
    assert!(!prove(&alternating).1.canonical);
    // The hosts are blocks, listed in another order: the order of the sum does not change.
    let host = |first: usize| {
        group(Medium::Memory, vec![Topology::Rank(first), Topology::Rank(first + 1)])
    };
    let reversed = group(Medium::Messages, vec![host(4), host(2), host(0)]);
    assert!(prove(&reversed).1.canonical);
}

#[test]
fn one_level_is_no_special_case() {
    for num_ranks in 1..=9 {
        for medium in [Medium::Memory, Medium::Messages] {
            let (_, report) = prove(&Topology::flat(num_ranks, medium));
            assert!(report.canonical);
        }
    }
    let (schedule, _) = prove(&Topology::Rank(0));
    assert_eq!(schedule.num_chunks, 1);
}
