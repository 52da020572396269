//! All-reduce algorithms by vector size and ranks: latency-optimal against bandwidth-optimal
//! (Thakur, Rabenseifner and Gropp 2005).

use super::common::{ELEMENT, all_reduce, bandwidth, compiled, latency, layout, link};
use crate::description::{ChartSpec, Column, Description, Param, Unit};
use crate::error::LabError;
use crate::random::Random;
use crate::row;
use crate::settings::Settings;
use crate::sim::{Fabric, simulate_collective};
use crate::study::Experiment;
use crate::table::{Row, Table};
use lockstep_config::units::{BytesPerSecond, Seconds};
use lockstep_planner::collective::{butterfly, rabenseifner, ring, tree};
use lockstep_schedule::{Algorithm, Costs, Link, price};

/// The experiment.
pub(super) struct AllReduce;

const DESCRIPTION: Description = Description {
    name: "all-reduce",
    title: "All-reduce: ring, tree, butterfly, recursive halving-doubling, by size and ranks",
    question: "Which all-reduce algorithm is fastest for a vector size and a number of ranks?",
    formula: "ring 2(n-1)(a + d/(nB)); tree 2 log2(n)(a + d/B); butterfly log2(n)(a + d/B); \
              rabenseifner 2 log2(n) a + 2(n-1)/n d/B",
    look: "where the lines cross: trees are faster below a size, rings above it; rabenseifner is \
           never far from the fastest",
    surprise: "trees are faster for SHORT vectors and rings for LONG ones (many tables claim the \
               opposite); a ring sends hardly more bytes per rank on 256 ranks than on 8",
    params: &[
        Param::count("ranks", 64.0, (2.0, 512.0), "ranks"),
        Param::number("bytes", Unit::Bytes, 1e6, (4.0, 1e12), "size of the vector"),
        latency(10e-6),
        bandwidth(50e9),
    ],
    sweep: ("bytes", &[1e3, 1e4, 1e5, 3e5, 1e6, 3e6, 1e7, 3e7, 1e8, 1e9]),
    columns: &[
        Column::new("algorithm", Unit::Text, "algorithm"),
        Column::new("seconds", Unit::Seconds, "simulated time"),
        Column::new("planned_seconds", Unit::Seconds, "planner's estimate of the schedule"),
        Column::new("closed_form_seconds", Unit::Seconds, "closed form"),
        Column::new("rounds", Unit::Count, "sequential messages"),
        Column::new("sent_bytes", Unit::Bytes, "bytes sent by the busiest rank"),
        Column::new("bus_bandwidth", Unit::BytesPerSecond, "bus bandwidth: 2(n-1)/n bytes/time"),
    ],
    chart: ChartSpec::lines("bytes", &["seconds"]).by("algorithm").log(true, true),
};

const ALGORITHMS: [Algorithm; 5] = [
    Algorithm::RING,
    Algorithm::Tree,
    Algorithm::DoubleTree { segments: 8 },
    Algorithm::Butterfly,
    Algorithm::Rabenseifner,
];

const HOP: Link = Link { latency: Seconds(1.0), bandwidth: BytesPerSecond(f64::INFINITY) };

impl Experiment for AllReduce {
    fn description(&self) -> &'static Description {
        &DESCRIPTION
    }

    fn run(&self, at: &Settings, _: &mut Random) -> Result<Vec<Row>, LabError> {
        let (n, bytes, link) = (at.count("ranks"), at.bytes("bytes"), link(at));
        let costs = Costs::plain(link, BytesPerSecond(f64::INFINITY));
        let minimum = ring::all_reduce(n).bytes(bytes);
        ALGORITHMS
            .into_iter()
            .map(|algorithm| {
                let schedule = all_reduce(algorithm, n, 1)?;
                let layout = layout(&schedule, bytes);
                let compiled = compiled(&schedule, bytes);
                let simulated =
                    simulate_collective(&compiled, Fabric::Uniform(link), &vec![0.0; n]);
                // With a latency of 1 s and infinite bandwidth, the time is the number of rounds.
                let hops = simulate_collective(&compiled, Fabric::Uniform(HOP), &vec![0.0; n]);
                let closed = match algorithm {
                    Algorithm::Ring { .. } => Some(ring::all_reduce(n)),
                    Algorithm::Tree => Some(tree::all_reduce(n)),
                    Algorithm::Butterfly if n.is_power_of_two() => Some(butterfly::all_reduce(n)),
                    Algorithm::Rabenseifner if n.is_power_of_two() => {
                        Some(rabenseifner::all_reduce(n))
                    }
                    _ => None,
                };
                let closed = closed.map_or(f64::NAN, |form| form.seconds(bytes, link).0);
                Ok(row![
                    algorithm.to_string(),
                    simulated.end,
                    price(&schedule, &layout, ELEMENT, &costs, None).0,
                    closed,
                    hops.end,
                    compiled.sent_bytes().into_iter().max().unwrap_or_default().0 as f64,
                    minimum / simulated.end,
                ])
            })
            .collect()
    }

    fn findings(&self, table: &Table) -> Vec<String> {
        let (algorithms, seconds) = (table.texts("algorithm"), table.numbers("seconds"));
        let points = table.rows.chunks(ALGORITHMS.len()).enumerate().map(|(point, _)| {
            let rows = point * ALGORITHMS.len()..(point + 1) * ALGORITHMS.len();
            rows.min_by(|a, b| seconds[*a].total_cmp(&seconds[*b])).unwrap_or(0)
        });
        let at = table.texts(table.columns[0].name);
        let winners: Vec<usize> = points.collect();
        let (Some(&first), Some(&last)) = (winners.first(), winners.last()) else {
            return Vec::new();
        };
        let of = |name: &str, row: usize| {
            let start = row - row % ALGORITHMS.len();
            let index = (start..start + ALGORITHMS.len()).find(|i| algorithms[*i] == name);
            index.map_or(f64::NAN, |index| seconds[index])
        };
        let crossing = winners.iter().find(|row| of("ring", **row) < of("tree", **row));
        let mut findings = vec![format!(
            "{} is fastest at {}, {} at {}",
            algorithms[first], at[first], algorithms[last], at[last]
        )];
        if let Some(row) = crossing {
            findings.push(format!("a ring is faster than a tree from {} on", at[*row]));
        }
        findings
    }
}
