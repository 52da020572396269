//! Closed forms of collectives against their schedules, and against the rows of the references.
//!
//! Names are those of `formulas-a` (a) and `formulas-b` (b); values are the recomputed ones. Where
//! the source prints something else, a comment says what.

mod common;

use common::row;
use lockstep_config::units::{Bits, Bytes, BytesPerSecond, Seconds};
use lockstep_planner::collective::crossings::bytes_between_nodes;
use lockstep_planner::collective::hierarchical::Nodes;
use lockstep_planner::collective::{
    ClosedForm, all_to_all, butterfly, parameter_server, rabenseifner, ring, tree,
};
use lockstep_schedule::collective::{Team, build};
use lockstep_schedule::{Algorithm, Costs, Layout, Link, Links, Medium, Op, Topology, price};

const MB: u64 = 1_000_000;
const GB: u64 = 1_000_000_000;

fn link(microseconds: f64, gigabytes: f64) -> Link {
    Link { latency: Seconds(microseconds * 1e-6), bandwidth: BytesPerSecond(gigabytes * GB as f64) }
}

fn ms(seconds: Seconds) -> f64 {
    seconds.0 * 1e3
}

/// Powers of two, so that nothing is rounded and equal means equal.
const EXACT: Link =
    Link { latency: Seconds(1.0 / 1_048_576.0), bandwidth: BytesPerSecond(1_073_741_824.0) };

fn scheduled(op: Op, algorithm: Algorithm, num_ranks: usize, count: usize) -> Seconds {
    let costs = Costs::plain(EXACT, BytesPerSecond(f64::INFINITY));
    let schedule = build(op, algorithm, &Team::new(num_ranks)).expect("it is for this");
    price(&schedule, &Layout::even(&schedule, count), Bytes(4), &costs, None)
}

#[test]
fn closed_forms_are_the_prices_of_the_schedules_to_the_last_digit() {
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
        // A vector of one rank for all, of which the schedule counts those of all ranks.
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
fn uneven_parts_take_as_long_as_the_busiest_rank() {
    let even = vec![vec![Bytes(256); 4]; 4];
    let same = all_to_all::even(4).seconds(Bytes(1024), EXACT);
    assert_eq!(all_to_all::uneven(&even, EXACT), same);
    let mut hot = even;
    // Everybody has ten times as much for rank 2.
    for to in &mut hot {
        to[2] = Bytes(2560);
    }
    let expected = EXACT.latency * 3.0 + Bytes(3 * 2560) / EXACT.bandwidth;
    assert_eq!(all_to_all::uneven(&hot, EXACT), expected);
}

#[test]
fn times_of_rings_and_trees() {
    let ring = |n, bytes, link| ring::all_reduce(n).seconds(Bytes(bytes), link);
    let tree = |n, bytes, link| tree::all_reduce(n).seconds(Bytes(bytes), link);
    // Printed: 100 ms, 12 ms, and 200 ms for 700 "MB" that are GB.
    row("a O15", ring(1024, 700 * GB, link(0.0, 100.0)).0, "13.99");
    row("a O16", ring(1024, 700 * GB, link(0.0, 600.0)).0, "2.33");
    row("a O112", ring(256, 700 * GB, link(0.0, 25.0)).0, "55.8");
    row("a O38", ms(ring(8, 100 * MB, link(0.0, 100.0))), "1.75");
    // Printed: 6 ms, with four times the bytes; the same slip makes the slow link's 150 ms 600.
    row("a O62", ms(ring(4, 100 * MB, link(0.0, 100.0))), "1.5");
    row("a O63", ms(ring(4, 100 * MB, link(0.0, 1.0))), "150");
    // Printed: 5.1 ms, with chunks of 1 MB where an n-th is 0.39.
    row("a O64", ms(ring(256, 100 * MB, link(0.0, 100.0))), "1.992");
    row("a O65", ms(ring(256, 0, link(1.0, 100.0))), "0.510");
    let network = Link { latency: Seconds(0.0), bandwidth: BytesPerSecond::from_gigabits(400.0) };
    row("a O67", ms(ring(64, 400 * MB, network)), "15.75");
    // Printed: 16 s for 256 ranks, as if one of them gathered everything.
    row("a O80", ms(ring(256, 100 * MB, link(0.0, 1.6))), "124.5");
    row("a O136, 8 ranks", ms(ring(8, 100 * MB, link(0.0, 25.0))), "7.0");
    row("a O136, 128 ranks", ms(ring(128, 100 * MB, link(0.0, 25.0))), "7.94");
    row("a O146", ms(ring(1000, 0, link(10.0, 25.0))), "19.98");
    row("b O1", 125.0 + ms(ring(256, 700 * MB, link(1.0, 50.0))), "153.40");
    // Printed: 28 ms, with the inputs of another row.
    row("b O1b", ms(ring(256, 700 * MB, link(10.0, 25.0))), "60.88");
    // Printed: a tree of 22.1 ms.
    row("b O4, ring", ms(ring(256, 700 * MB, link(10.0, 50.0))), "33.0");
    row("b O4, tree", ms(tree(256, 700 * MB, link(10.0, 50.0))), "224.2");
    // Printed: 2.8 ms.
    row("b O5", ms(ring(64, 100 * MB, link(0.0, 50.0))), "3.94");
    row("b O5, with latency", ms(ring(64, 100 * MB, link(10.0, 50.0))), "5.20");
    row("b O56", ms(ring(256, 100 * MB, link(0.0, 12.5))), "15.94");
    row("b O211", ms(ring(8, 6 * GB, link(0.0, 100.0))), "105");
    let halving = rabenseifner::all_reduce(256).seconds(Bytes(700 * MB), link(10.0, 50.0));
    row("b E6", ms(halving), "28.05");
    // Printed: ring 51 to 8201 ms and tree 126 to 160, and with them the winner, the wrong way
    // round.
    let sizes = [1, 10, 100, 500, 1000];
    for (megabytes, expected) in sizes.iter().zip(["5.14", "5.50", "9.08", "25.02", "44.94"]) {
        row("b O14", ms(ring(256, megabytes * MB, link(10.0, 50.0))), expected);
    }
    for (megabytes, expected) in sizes.iter().zip(["0.48", "3.36", "32.16", "160.16", "320.16"]) {
        row("b O15", ms(tree(256, megabytes * MB, link(10.0, 50.0))), expected);
    }
}

#[test]
fn bytes_of_rings() {
    let bytes = |n, megabytes| ring::all_reduce(n).bytes(Bytes(megabytes * MB)) / MB as f64;
    // Printed: 25 MB, and for four ranks four and four steps of 25.
    row("a O37", bytes(8, 100), "175");
    row("a O61, a X8", bytes(4, 100), "150");
    row("a X8", bytes(8, 800), "1400");
    assert_eq!(ring::all_reduce(4).rounds, 6, "row a O61");
    assert_eq!(ring::all_reduce(8).rounds, 14, "row a X8");
    // Bits are not bytes: printed 1 GB for 1e9 bits.
    row("a O32", (Bits(1_000_000_000) / BytesPerSecond(1e6)).0, "125");
    // One way, not a ring.
    for (gigabytes, expected) in [(600.0, "16.7"), (25.0, "400.0"), (12.5, "800.0")] {
        row("a O23", ms(Bytes(10 * GB) / BytesPerSecond(gigabytes * 1e9)), expected);
    }
    // Printed: the factor 8 of bits where the bandwidth is in bytes.
    row("a O22", (Bytes(GB) / BytesPerSecond::from_gigabits(8.0)).0, "1.0");
}

#[test]
fn crossovers_of_rings_and_trees() {
    let megabytes = |one: ClosedForm, other: ClosedForm, link| {
        one.crossover(other, link).expect("they cross").0 as f64 / MB as f64
    };
    let cases = [(4, link(1.0, 100.0)), (64, link(10.0, 25.0)), (256, link(10.0, 25.0))];
    let cases = [&cases[..], &[(256, link(1.0, 100.0))]].concat();
    // The reference's two trees: up only, and up and down.
    for (&(n, link), expected) in cases.iter().zip(["0.80", "7.44", "20.9", "8.36"]) {
        row("a O115", megabytes(ring::all_reduce(n), tree::one_way(n), link), expected);
    }
    for (&(n, link), expected) in cases.iter().zip(["0.080", "2.84", "8.82", "3.53"]) {
        row("a O116", megabytes(ring::all_reduce(n), tree::all_reduce(n), link), expected);
    }
    // Printed: 125.4 MB.
    let fast = link(10.0, 50.0);
    row("b O13", megabytes(ring::all_reduce(256), tree::all_reduce(256), fast), "17.63");
    row("b O13, up only", megabytes(ring::all_reduce(256), tree::one_way(256), fast), "41.78");
    // Printed: 10, 100 and 1 MB.
    let cases = [(8, link(1.0, 600.0)), (256, link(10.0, 25.0)), (1000, link(50.0, 1.25))];
    // The reference takes log2 of 1000 as it is; a tree has whole levels.
    for (&(n, link), expected) in cases.iter().zip(["1.13", "8.82", "6.87"]) {
        row("b O16", megabytes(ring::all_reduce(n), tree::all_reduce(n), link), expected);
    }
    // One that is better at both ends is never crossed.
    let (halving, ring) = (rabenseifner::all_reduce(8), ring::all_reduce(8));
    assert_eq!(halving.crossover(ring, fast), None);
}

#[test]
fn parameter_servers_against_rings() {
    let seconds = |workers, servers, bytes, link| {
        parameter_server::push_and_pull(workers, servers).seconds(Bytes(bytes), link).0
    };
    row("a O17", seconds(1000, 1, 4 * GB, link(0.0, 100.0)), "80");
    row("a O69", seconds(100, 1, 4 * GB, link(0.0, 500.0)) / 2.0, "0.8");
    row("a O184", seconds(100, 1, 400 * MB, link(0.0, 10.0)) / 2.0, "4");
    row("b O210", seconds(100, 1, 4 * GB, link(0.0, 100.0)), "8");
    for ((workers, servers), expected) in
        [((16, 1), "17.07"), ((64, 4), "16.25"), ((64, 16), "4.06"), ((256, 16), "16.06")]
    {
        row("a O123", parameter_server::bytes_over_ring(workers, servers), expected);
    }
    // Printed: 1.75 s, 0.00278 s and 629 times.
    row("b O27, server", seconds(256, 16, 700 * MB, link(0.0, 200.0)), "0.112");
    let ring = ring::all_reduce(256).seconds(Bytes(700 * MB), link(0.0, 200.0));
    row("b O27, ring", ring.0, "0.006973");
    row("b O198", seconds(256, 16, GB, link(0.0, 12.5)), "2.56");
    let need = parameter_server::server_bandwidth(256, 1, Bytes(GB), Seconds(1.0));
    row("b O198, all", need.0 / 1e9, "512");
}

#[test]
fn two_levels_against_a_flat_ring() {
    let vector = Bytes(700 * MB);
    let nodes = Nodes {
        num_nodes: 32,
        ranks_per_node: 8,
        cards_per_node: 8,
        inside: link(1.0, 600.0),
        between: link(10.0, 25.0),
    };
    // Printed: 23.45 ms against 103.20, from a term that forgets to divide by the nodes.
    row("b O38b, inside", ms(nodes.inside(vector)), "2.056");
    row("b O38b, between", ms(nodes.between(vector)), "7.401");
    row("b O38b", ms(nodes.all_reduce(vector)), "9.457");
    row("b O38, flat", ms(nodes.flat_ring(vector)), "60.88");
    let speed_up = nodes.flat_ring(vector) / nodes.all_reduce(vector);
    row("b O38b, gain", speed_up, "6.44");
    let one_card = Nodes { cards_per_node: 1, ..nodes };
    row("b O38b, one card", ms(one_card.all_reduce(vector)), "56.93");
    row("b O38b, its gain", nodes.flat_ring(vector) / one_card.all_reduce(vector), "1.07");
    // Printed: 0.5 ms between nodes, for 2d/nodes.
    let nodes = Nodes { between: link(0.0, 12.5), inside: link(0.0, 600.0), ..nodes };
    let hundred = Bytes(100 * MB);
    row("b O96", ms(nodes.between(hundred)), "1.94");
    row("b O96, all", ms(nodes.all_reduce(hundred)), "2.23");
    let one_card = Nodes { cards_per_node: 1, ..nodes };
    row("b O96, one card", ms(one_card.between(hundred)), "15.5");
    // Printed: 64 s and 256 ms.
    let eight = Nodes { num_nodes: 8, cards_per_node: 1, between: link(0.0, 25.0), ..nodes };
    row("a O209", ms(eight.flat_ring(Bytes(800 * MB))), "63");
    row("a O210", ms(eight.between(Bytes(800 * MB))), "56");
}

#[test]
fn two_levels_are_the_price_of_their_schedule_to_the_last_digit() {
    let inside = Link { bandwidth: BytesPerSecond(8.0 * EXACT.bandwidth.0), ..EXACT };
    let between = Link { latency: Seconds(4.0 * EXACT.latency.0), ..EXACT };
    for (num_nodes, ranks_per_node) in [(2, 2), (2, 4), (4, 2), (4, 4), (8, 2), (2, 8), (3, 4)] {
        let num_ranks = num_nodes * ranks_per_node;
        let node = |node: usize| {
            let members = (0..ranks_per_node).map(|i| Topology::Rank(node * ranks_per_node + i));
            Topology::Group { medium: Medium::Messages, members: members.collect() }
        };
        let members = (0..num_nodes).map(node).collect();
        let topology = Topology::Group { medium: Medium::Messages, members };
        let team = Team { topology: Some(topology.clone()), ..Team::new(num_ranks) };
        let schedule =
            build(Op::AllReduce, Algorithm::Hierarchical, &team).expect("it is for this");
        let links = Links::new(num_ranks, |one, other| {
            if one / ranks_per_node == other / ranks_per_node { inside } else { between }
        });
        let costs = Costs { links, ..Costs::plain(EXACT, BytesPerSecond(f64::INFINITY)) };
        // Every level divides what it gets without a rest.
        let count = 3 * 1024 * num_ranks;
        let layout = Layout::even(&schedule, count);
        let priced = price(&schedule, &layout, Bytes(4), &costs, Some(&topology));
        let cards_per_node = ranks_per_node;
        let nodes = Nodes { num_nodes, ranks_per_node, cards_per_node, inside, between };
        let closed = nodes.all_reduce_as_scheduled(Bytes(4 * count as u64));
        assert_eq!(closed.0.to_bits(), priced.0.to_bits(), "{num_nodes} x {ranks_per_node}");
    }
}

#[test]
fn what_crosses_the_network_depends_on_the_order_of_ranks() {
    let vectors = |num_ranks, node_of: fn(usize) -> usize| {
        let schedule = build(Op::AllReduce, Algorithm::RING, &Team::new(num_ranks)).expect("any");
        let layout = Layout::even(&schedule, 64 * 64);
        let crossing = bytes_between_nodes(&schedule, &layout, Bytes(4), node_of);
        crossing.0 as f64 / f64::from(4 * 64 * 64)
    };
    // Printed: a factor of 8 in any order.
    row("a O216, one node after the other", vectors(64, |rank| rank / 8), "15.75");
    row("a O216, every hop to another node", vectors(64, |rank| rank % 8), "126");
    row("a O216, leaders", vectors(8, |rank| rank), "14");
}
