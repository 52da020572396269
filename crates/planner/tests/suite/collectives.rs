//! Closed forms of collectives against their schedules, and worked numbers.
//!
//! `Misprint:` gives a wrong value in circulation for the same inputs.

use crate::common::check;
use lockstep_config::units::{Bits, Bytes, BytesPerSecond, Seconds};
use lockstep_planner::collective::crossings::bytes_between_nodes;
use lockstep_planner::collective::forms::closed_form;
use lockstep_planner::collective::hierarchical::Nodes;
use lockstep_planner::collective::{
    ClosedForm, all_to_all, butterfly, parameter_server, rabenseifner, ring, tree,
};
use lockstep_schedule::collective::{GroupSpec, algorithms, build};
use lockstep_schedule::{Algorithm, Costs, Layout, Link, Links, Medium, Op, Topology, price};

const MB: u64 = 1_000_000;
const GB: u64 = 1_000_000_000;

fn link(microseconds: f64, gigabytes: f64) -> Link {
    Link { latency: Seconds(microseconds * 1e-6), bandwidth: BytesPerSecond(gigabytes * GB as f64) }
}

fn ms(seconds: Seconds) -> f64 {
    seconds.0 * 1e3
}

/// Powers of two, so that nothing is rounded and equality is exact.
const EXACT: Link =
    Link { latency: Seconds(1.0 / 1_048_576.0), bandwidth: BytesPerSecond(1_073_741_824.0) };

fn scheduled(op: Op, algorithm: Algorithm, num_ranks: usize, count: usize) -> Seconds {
    let costs = Costs::plain(EXACT, BytesPerSecond(f64::INFINITY));
    let schedule = build(op, algorithm, &GroupSpec::new(num_ranks)).expect("it is for this");
    price(&schedule, &Layout::even(&schedule, count), Bytes(4), &costs, None)
}

#[test]
fn closed_forms_equal_the_costs_of_the_schedules_exactly() {
    for n in 2..=16 {
        let count = 1024 * n;
        let vector = Bytes(4 * count as u64);
        let same = |form: ClosedForm, op, algorithm| {
            let (closed, priced) =
                (form.seconds(vector, EXACT), scheduled(op, algorithm, n, count));
            assert_eq!(closed.0.to_bits(), priced.0.to_bits(), "{op} by {algorithm}, {n} ranks");
        };
        same(ring::all_reduce(n), Op::AllReduce, Algorithm::RING);
        same(ring::half(n), Op::AllGather, Algorithm::RING);
        same(ring::half(n), Op::ReduceScatter, Algorithm::RING);
        same(tree::all_reduce(n), Op::AllReduce, Algorithm::Tree);
        same(tree::one_way(n), Op::Broadcast { root: 0 }, Algorithm::Tree);
        if n.is_power_of_two() {
            same(butterfly::all_reduce(n), Op::AllReduce, Algorithm::Butterfly);
            same(rabenseifner::all_reduce(n), Op::AllReduce, Algorithm::Rabenseifner);
        }
        // The vector of one rank, of which the schedule counts those of all ranks.
        let own = Bytes(4 * count as u64);
        let closed = all_to_all::even(n).seconds(own, EXACT);
        let priced = scheduled(Op::AllToAll, Algorithm::Pairwise, n, count * n);
        assert_eq!(closed.0.to_bits(), priced.0.to_bits(), "all-to-all, {n} ranks");
        // A server and n workers: each pushes its vector, then pulls one.
        let push = scheduled(Op::Gather { root: 0 }, Algorithm::Linear, n + 1, count * (n + 1));
        let pull = scheduled(Op::Broadcast { root: 0 }, Algorithm::Linear, n + 1, count);
        let closed = parameter_server::push_and_pull(n, 1).seconds(vector, EXACT);
        assert_eq!(closed.0.to_bits(), (push + pull).0.to_bits(), "a server and {n} workers");
    }
}

#[test]
fn parts_of_different_sizes_take_as_long_as_the_busiest_rank() {
    let even = vec![vec![Bytes(256); 4]; 4];
    let same = all_to_all::even(4).seconds(Bytes(1024), EXACT);
    assert_eq!(all_to_all::by_sizes(&even, EXACT), same);
    let mut hot = even;
    // Every rank sends ten times as much to rank 2.
    for to in &mut hot {
        to[2] = Bytes(2560);
    }
    let expected = EXACT.latency * 3.0 + Bytes(3 * 2560) / EXACT.bandwidth;
    assert_eq!(all_to_all::by_sizes(&hot, EXACT), expected);
}

#[test]
fn times_of_rings_and_trees() {
    let ring = |n, bytes, link| ring::all_reduce(n).seconds(Bytes(bytes), link);
    let tree = |n, bytes, link| tree::all_reduce(n).seconds(Bytes(bytes), link);
    // Misprint: 100 ms, 12 ms, and 200 ms for 700 "MB" that are GB.
    check!(ring(1024, 700 * GB, link(0.0, 100.0)).0, "13.99");
    check!(ring(1024, 700 * GB, link(0.0, 600.0)).0, "2.33");
    check!(ring(256, 700 * GB, link(0.0, 25.0)).0, "55.8");
    check!(ms(ring(8, 100 * MB, link(0.0, 100.0))), "1.75");
    // Misprint: 6 ms, with four times the bytes; the same slip makes the slow link's 150 ms 600.
    check!(ms(ring(4, 100 * MB, link(0.0, 100.0))), "1.5");
    check!(ms(ring(4, 100 * MB, link(0.0, 1.0))), "150");
    // Misprint: 5.1 ms, with chunks of 1 MB where an n-th is 0.39.
    check!(ms(ring(256, 100 * MB, link(0.0, 100.0))), "1.992");
    check!(ms(ring(256, 0, link(1.0, 100.0))), "0.510");
    let network = Link { latency: Seconds(0.0), bandwidth: BytesPerSecond::from_gigabits(400.0) };
    check!(ms(ring(64, 400 * MB, network)), "15.75");
    // Misprint: 16 s for 256 ranks, as if one of them gathered everything.
    check!(ms(ring(256, 100 * MB, link(0.0, 1.6))), "124.5");
    check!("8 ranks", ms(ring(8, 100 * MB, link(0.0, 25.0))), "7.0");
    check!("128 ranks", ms(ring(128, 100 * MB, link(0.0, 25.0))), "7.94");
    check!(ms(ring(1000, 0, link(10.0, 25.0))), "19.98");
    check!(125.0 + ms(ring(256, 700 * MB, link(1.0, 50.0))), "153.40");
    // Misprint: 28 ms, with the inputs of another row.
    check!(ms(ring(256, 700 * MB, link(10.0, 25.0))), "60.88");
    // Misprint: a tree of 22.1 ms.
    check!("ring", ms(ring(256, 700 * MB, link(10.0, 50.0))), "33.0");
    check!("tree", ms(tree(256, 700 * MB, link(10.0, 50.0))), "224.2");
    // Misprint: 2.8 ms.
    check!(ms(ring(64, 100 * MB, link(0.0, 50.0))), "3.94");
    check!("with latency", ms(ring(64, 100 * MB, link(10.0, 50.0))), "5.20");
    check!(ms(ring(256, 100 * MB, link(0.0, 12.5))), "15.94");
    check!(ms(ring(8, 6 * GB, link(0.0, 100.0))), "105");
    let halving = rabenseifner::all_reduce(256).seconds(Bytes(700 * MB), link(10.0, 50.0));
    check!(ms(halving), "28.05");
    // Misprint: ring 51 to 8201 ms and tree 126 to 160, and with them the winner, the wrong way
    // round.
    let sizes = [1, 10, 100, 500, 1000];
    for (megabytes, expected) in sizes.iter().zip(["5.14", "5.50", "9.08", "25.02", "44.94"]) {
        check!(ms(ring(256, megabytes * MB, link(10.0, 50.0))), expected);
    }
    for (megabytes, expected) in sizes.iter().zip(["0.48", "3.36", "32.16", "160.16", "320.16"]) {
        check!(ms(tree(256, megabytes * MB, link(10.0, 50.0))), expected);
    }
}

#[test]
fn bytes_of_rings() {
    let bytes = |n, megabytes| ring::all_reduce(n).bytes(Bytes(megabytes * MB)) / MB as f64;
    // Misprint: 25 MB, and for four ranks four and four steps of 25.
    check!(bytes(8, 100), "175");
    check!(bytes(4, 100), "150");
    check!(bytes(8, 800), "1400");
    assert_eq!(ring::all_reduce(4).rounds, 6);
    assert_eq!(ring::all_reduce(8).rounds, 14);
    // Bits are not bytes. Misprint: 1 GB for 1e9 bits.
    check!((Bits(1_000_000_000) / BytesPerSecond(1e6)).0, "125");
    // One transfer, not a ring.
    for (gigabytes, expected) in [(600.0, "16.7"), (25.0, "400.0"), (12.5, "800.0")] {
        check!(ms(Bytes(10 * GB) / BytesPerSecond(gigabytes * 1e9)), expected);
    }
    // Misprint: the factor 8 of bits where the bandwidth is in bytes.
    check!((Bytes(GB) / BytesPerSecond::from_gigabits(8.0)).0, "1.0");
}

#[test]
fn crossovers_of_rings_and_trees() {
    let megabytes = |one: ClosedForm, other: ClosedForm, link| {
        one.crossover(other, link).expect("they cross").0 as f64 / MB as f64
    };
    let cases = [(4, link(1.0, 100.0)), (64, link(10.0, 25.0)), (256, link(10.0, 25.0))];
    let cases = [&cases[..], &[(256, link(1.0, 100.0))]].concat();
    // Two trees: up only, and up and down.
    for (&(n, link), expected) in cases.iter().zip(["0.80", "7.44", "20.9", "8.36"]) {
        check!(megabytes(ring::all_reduce(n), tree::one_way(n), link), expected);
    }
    for (&(n, link), expected) in cases.iter().zip(["0.080", "2.84", "8.82", "3.53"]) {
        check!(megabytes(ring::all_reduce(n), tree::all_reduce(n), link), expected);
    }
    // Misprint: 125.4 MB.
    let fast = link(10.0, 50.0);
    check!(megabytes(ring::all_reduce(256), tree::all_reduce(256), fast), "17.63");
    check!("up only", megabytes(ring::all_reduce(256), tree::one_way(256), fast), "41.78");
    // Misprint: 10, 100 and 1 MB.
    let cases = [(8, link(1.0, 600.0)), (256, link(10.0, 25.0)), (1000, link(50.0, 1.25))];
    // With log2 of 1000 unrounded; a tree has whole levels.
    for (&(n, link), expected) in cases.iter().zip(["1.13", "8.82", "6.87"]) {
        check!(megabytes(ring::all_reduce(n), tree::all_reduce(n), link), expected);
    }
    // An algorithm that is better at both ends is never crossed.
    let (halving, ring) = (rabenseifner::all_reduce(8), ring::all_reduce(8));
    assert_eq!(halving.crossover(ring, fast), None);
}

#[test]
fn parameter_servers_against_rings() {
    let seconds = |workers, servers, bytes, link| {
        parameter_server::push_and_pull(workers, servers).seconds(Bytes(bytes), link).0
    };
    check!(seconds(1000, 1, 4 * GB, link(0.0, 100.0)), "80");
    check!(seconds(100, 1, 4 * GB, link(0.0, 500.0)) / 2.0, "0.8");
    check!(seconds(100, 1, 400 * MB, link(0.0, 10.0)) / 2.0, "4");
    check!(seconds(100, 1, 4 * GB, link(0.0, 100.0)), "8");
    for ((workers, servers), expected) in
        [((16, 1), "17.07"), ((64, 4), "16.25"), ((64, 16), "4.06"), ((256, 16), "16.06")]
    {
        check!(parameter_server::bytes_over_ring(workers, servers), expected);
    }
    // Misprint: 1.75 s, 0.00278 s and 629 times.
    check!("server", seconds(256, 16, 700 * MB, link(0.0, 200.0)), "0.112");
    let ring = ring::all_reduce(256).seconds(Bytes(700 * MB), link(0.0, 200.0));
    check!("ring", ring.0, "0.006973");
    check!(seconds(256, 16, GB, link(0.0, 12.5)), "2.56");
    let need = parameter_server::server_bandwidth(256, 1, Bytes(GB), Seconds(1.0));
    check!("all", need.0 / 1e9, "512");
}

#[test]
fn two_levels_against_a_flat_ring() {
    let vector = Bytes(700 * MB);
    let nodes = Nodes {
        num_nodes: 32,
        ranks_per_node: 8,
        nics_per_node: 8,
        inside: link(1.0, 600.0),
        between: link(10.0, 25.0),
    };
    // Misprint: 23.45 ms against 103.20, from a term that forgets to divide by the nodes.
    check!("inside", ms(nodes.inside(vector)), "2.056");
    check!("between", ms(nodes.between(vector)), "7.401");
    check!(ms(nodes.all_reduce(vector)), "9.457");
    check!("flat", ms(nodes.flat_ring(vector)), "60.88");
    let speed_up = nodes.flat_ring(vector) / nodes.all_reduce(vector);
    check!("gain", speed_up, "6.44");
    let one_nic = Nodes { nics_per_node: 1, ..nodes };
    check!("one NIC", ms(one_nic.all_reduce(vector)), "56.93");
    check!("its gain", nodes.flat_ring(vector) / one_nic.all_reduce(vector), "1.07");
    // Misprint: 0.5 ms between nodes, for 2d/nodes.
    let nodes = Nodes { between: link(0.0, 12.5), inside: link(0.0, 600.0), ..nodes };
    let hundred = Bytes(100 * MB);
    check!(ms(nodes.between(hundred)), "1.94");
    check!("all", ms(nodes.all_reduce(hundred)), "2.23");
    let one_nic = Nodes { nics_per_node: 1, ..nodes };
    check!("one NIC", ms(one_nic.between(hundred)), "15.5");
    // Misprint: 64 s and 256 ms.
    let eight = Nodes { num_nodes: 8, nics_per_node: 1, between: link(0.0, 25.0), ..nodes };
    check!(ms(eight.flat_ring(Bytes(800 * MB))), "63");
    check!(ms(eight.between(Bytes(800 * MB))), "56");
}

#[test]
fn two_levels_equal_the_cost_of_their_schedule_exactly() {
    let inside = Link { bandwidth: BytesPerSecond(8.0 * EXACT.bandwidth.0), ..EXACT };
    let between = Link { latency: Seconds(4.0 * EXACT.latency.0), ..EXACT };
    for (num_nodes, ranks_per_node) in [(2, 2), (2, 4), (4, 2), (4, 4), (8, 2), (2, 8), (3, 4)] {
        let num_ranks = num_nodes * ranks_per_node;
        let node = |node: usize| {
            let members = (0..ranks_per_node).map(|i| Topology::Rank(node * ranks_per_node + i));
            Topology::Group { medium: Medium::Messages, children: members.collect() }
        };
        let members = (0..num_nodes).map(node).collect();
        let topology = Topology::Group { medium: Medium::Messages, children: members };
        let team = GroupSpec { topology: Some(topology.clone()), ..GroupSpec::new(num_ranks) };
        let schedule =
            build(Op::AllReduce, Algorithm::Hierarchical, &team).expect("it is for this");
        let links = Links::new(num_ranks, |one, other| {
            if one / ranks_per_node == other / ranks_per_node { inside } else { between }
        });
        let costs = Costs { links, ..Costs::plain(EXACT, BytesPerSecond(f64::INFINITY)) };
        // Every level divides its share without remainder.
        let count = 3 * 1024 * num_ranks;
        let layout = Layout::even(&schedule, count);
        let priced = price(&schedule, &layout, Bytes(4), &costs, Some(&topology));
        let nics_per_node = ranks_per_node;
        let nodes = Nodes { num_nodes, ranks_per_node, nics_per_node, inside, between };
        let closed = nodes.all_reduce_as_scheduled(Bytes(4 * count as u64));
        assert_eq!(closed.0.to_bits(), priced.0.to_bits(), "{num_nodes} x {ranks_per_node}");
    }
}

#[test]
fn traffic_between_nodes_depends_on_the_rank_order() {
    let vectors = |num_ranks, node_of: fn(usize) -> usize| {
        let schedule =
            build(Op::AllReduce, Algorithm::RING, &GroupSpec::new(num_ranks)).expect("any");
        let layout = Layout::even(&schedule, 64 * 64);
        let crossing = bytes_between_nodes(&schedule, &layout, Bytes(4), node_of);
        crossing.0 as f64 / f64::from(4 * 64 * 64)
    };
    // Misprint: a factor of 8 in any order.
    check!("one node after the other", vectors(64, |rank| rank / 8), "15.75");
    check!("every hop to another node", vectors(64, |rank| rank % 8), "126");
    check!("leaders", vectors(8, |rank| rank), "14");
}

#[test]
fn every_closed_form_equals_the_cost_of_its_schedule() {
    let root = 0;
    let rooted = [Op::Broadcast { root }, Op::Reduce { root }, Op::Scatter { root }];
    let others = [Op::AllReduce, Op::ReduceScatter, Op::AllGather, Op::AllToAll, Op::Barrier];
    let mut num_forms = 0;
    for op in rooted.into_iter().chain([Op::Gather { root }]).chain(others) {
        for &algorithm in algorithms(op) {
            for n in 2..=9 {
                let Some(form) = closed_form(op, algorithm, n) else { continue };
                num_forms += 1;
                // Two channels of a ring halve a rank's share again.
                let own = 2 * 1024 * n;
                let count = if op == Op::AllToAll { own * n } else { own };
                let vector = if op == Op::Barrier { 0 } else { own };
                let closed = form.seconds(Bytes(4 * vector as u64), EXACT).0;
                let priced = scheduled(op, algorithm, n, if vector == 0 { 0 } else { count }).0;
                assert!((closed / priced - 1.0).abs() < 1e-12, "{op} by {algorithm}, {n} ranks");
            }
        }
    }
    assert!(num_forms > 120, "{num_forms}");
}
