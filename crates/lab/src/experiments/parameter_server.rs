//! Parameter servers (Li et al. 2014) against a ring all-reduce: equal bytes in total, different
//! load of the busiest link.

use super::common::{bandwidth, latency, link};
use super::prelude::*;
use lockstep_planner::collective::{parameter_server, ring};

experiment!(ParameterServer);

const DESCRIPTION: Description = Description {
    name: "parameter-server",
    title: "Parameter servers against a ring all-reduce, by workers and servers",
    question: "How many parameter servers match a ring all-reduce?",
    formula: "server 2a + 2nd/(sB), ring 2(n-1)(a + d/(nB)); bytes n^2/(s(n-1)) \
              times a ring's; efficiency \
              1/(1+(n-1)/s)",
    look: "server_seconds grows with workers, ring_seconds only by latency; seconds_ratio, which \
           is bytes_ratio without latency; server_bandwidth for one step per second",
    surprise: "both send 2nd bytes in total, but the busiest link differs; as many servers as \
               workers match a ring, and for sparse gradients servers are faster",
    params: &[
        Param::count("workers", 64.0, (2.0, 1e5), "workers"),
        Param::count("servers", 16.0, (1.0, 1e5), "parameter servers"),
        Param::number("bytes", Unit::Bytes, 700e6, (1.0, 1e13), "size of the vector"),
        Param::number("density", Unit::Share, 1.0, (1e-6, 1.0), "share of nonzero elements"),
        latency(10e-6),
        bandwidth(200e9),
    ],
    sweep: ("workers", &[2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0]),
    columns: &[
        Column::new("server_seconds", Unit::Seconds, "time of push and pull"),
        Column::new("ring_seconds", Unit::Seconds, "time of a ring all-reduce"),
        Column::new("seconds_ratio", Unit::Times, "server_seconds/ring_seconds"),
        Column::new("bytes_ratio", Unit::Times, "bytes of the busiest link/bytes of a ring link"),
        Column::new("efficiency", Unit::Share, "share of linear speed-up, limited by server links"),
        Column::new(
            "server_bandwidth",
            Unit::BytesPerSecond,
            "bandwidth per server for one step per second",
        ),
        Column::new("busiest_link_bytes", Unit::Bytes, "bytes through the busiest server link"),
    ],
    chart: ChartSpec::lines("workers", &["server_seconds", "ring_seconds"])
        .log(true, true)
        .named("time of an all-reduce"),
};

fn run(at: &Settings, _: &mut Random) -> Result<Vec<Row>, LabError> {
    let (n, s, bytes) = (at.count("workers"), at.count("servers"), at.bytes("bytes"));
    let nonzero =
        lockstep_config::units::Bytes((bytes.0 as f64 * at.number("density")).round() as u64);
    let servers = parameter_server::push_and_pull(n, s);
    let second = lockstep_config::units::Seconds(1.0);
    let server_seconds = servers.seconds(nonzero, link(at)).0;
    let ring_seconds = ring::all_reduce(n).seconds(bytes, link(at)).0;
    Ok(vec![row![
        server_seconds,
        ring_seconds,
        server_seconds / ring_seconds,
        parameter_server::bytes_over_ring(n, s) * at.number("density"),
        parameter_server::efficiency(n, s),
        parameter_server::server_bandwidth(n, s, nonzero, second).0,
        servers.bytes(nonzero),
    ]])
}

fn findings(table: &Table) -> Vec<String> {
    let end = last(table);
    vec![
        format!(
            "{}parameter servers take {}, {} the time of a ring ({})",
            at(table, end),
            cell(table, "server_seconds", end),
            cell(table, "seconds_ratio", end),
            cell(table, "ring_seconds", end)
        ),
        format!(
            "the busiest server link carries {} the bytes of a ring link",
            cell(table, "bytes_ratio", end)
        ),
    ]
}
