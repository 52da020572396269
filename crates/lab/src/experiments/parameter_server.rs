//! A parameter server against a ring: the same bytes in all, but through how many links?

use super::common::{bandwidth, latency, link};
use super::prelude::*;
use lockstep_planner::collective::{parameter_server, ring};

experiment!(ParameterServer);

const CARD: Card = Card {
    name: "parameter-server",
    title: "A parameter server against a ring all-reduce, by workers and servers",
    question: "How many servers does it take to keep up with a ring?",
    formula: "server 2a + 2nd/(sB), ring 2(n-1)(a + d/(nB)); ratio n^2/(s(n-1)); efficiency \
              1/(1+(n-1)/s)",
    look: "server_seconds grows with workers, ring_seconds does not; ratio; server_bandwidth that \
           one step a second would need",
    surprise: "both move 2nd bytes in all: what differs is the busiest link; it takes as many \
               servers as workers to be level, and for sparse gradients servers win",
    params: &[
        Param::count("workers", 64.0, (2.0, 1e5), "workers"),
        Param::count("servers", 16.0, (1.0, 1e5), "servers that share the vector"),
        Param::number("bytes", Unit::Bytes, 700e6, (1.0, 1e13), "length of the vector"),
        Param::number("density", Unit::Share, 1.0, (1e-6, 1.0), "of the vector that is touched"),
        latency(10e-6),
        bandwidth(200e9),
    ],
    sweep: ("workers", &[2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0]),
    columns: &[
        Column::new("server_seconds", Unit::Seconds, "push and pull through servers"),
        Column::new("ring_seconds", Unit::Seconds, "all-reduce by ring"),
        Column::new("ratio", Unit::Times, "bytes of the busiest link, over the ring's"),
        Column::new("efficiency", Unit::Share, "of linear speed-up, if servers' links are all"),
        Column::new("server_bandwidth", Unit::BytesPerSecond, "a server's, for a step a second"),
        Column::new("hottest_bytes", Unit::Bytes, "through the busiest link of the servers"),
    ],
    picture: Picture::lines("workers", &["server_seconds", "ring_seconds"])
        .log(true, true)
        .named("time of a sum"),
};

fn run(at: &Settings, _: &mut Random) -> Result<Vec<Row>, LabError> {
    let (n, s, bytes) = (at.count("workers"), at.count("servers"), at.bytes("bytes"));
    let touched =
        lockstep_config::units::Bytes((bytes.0 as f64 * at.number("density")).round() as u64);
    let servers = parameter_server::push_and_pull(n, s);
    let second = lockstep_config::units::Seconds(1.0);
    Ok(vec![row![
        servers.seconds(touched, link(at)).0,
        ring::all_reduce(n).seconds(bytes, link(at)).0,
        parameter_server::bytes_over_ring(n, s) * at.number("density"),
        parameter_server::efficiency(n, s),
        parameter_server::server_bandwidth(n, s, touched, second).0,
        servers.bytes(touched),
    ]])
}

fn findings(table: &Table) -> Vec<String> {
    let end = last(table);
    vec![
        format!(
            "At {}, servers take {} and a ring {}",
            place(table, end),
            cell(table, "server_seconds", end),
            cell(table, "ring_seconds", end)
        ),
        format!(
            "the busiest server link carries {} what a ring's link does",
            cell(table, "ratio", end)
        ),
    ]
}
