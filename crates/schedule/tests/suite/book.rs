//! The tables of the book's internals are computed from the schedules themselves.

use std::fmt::Write as _;

use lockstep_schedule::collective::{GroupSpec, algorithms, build};
use lockstep_schedule::pipeline::{self, Kind, Shape};
use lockstep_schedule::{Layout, Op, Topology, verify};

const COLLECTIVES: &str = include_str!("../../../../docs/book/internals/collectives.md");
const PIPELINES: &str = include_str!("../../../../docs/book/internals/pipelines.md");

/// A page is stale if it lacks the table; the failure prints the table to paste.
fn assert_has(page: &str, name: &str, table: &str) {
    assert!(
        page.contains(table),
        "docs/book/internals/{name} is stale; its table is now:\n\n{table}"
    );
}

#[test]
fn the_book_has_rounds_and_bytes_of_every_collective() {
    let mut table = String::from(
        "| operation | algorithm | rounds | sent by the busiest rank | canonical order |\n\
         |---|---|---|---|---|\n",
    );
    for op in Op::FROM_RANK_0 {
        for &algorithm in algorithms(op) {
            let mut group = GroupSpec::new(8);
            group.topology = Some(Topology::by_host(&[0, 0, 0, 0, 1, 1, 1, 1]));
            let Ok(schedule) = build(op, algorithm, &group) else { continue };
            let report = verify(&schedule).expect("every schedule is valid");
            let count = 8 * 840;
            let layout = Layout::even(&schedule, count);
            let sent = |rank: &lockstep_schedule::Traffic| {
                rank.sent_len(&layout) + rank.read_len(&layout) + rank.written_len(&layout)
            };
            let sent = report.ranks.iter().map(sent).max().unwrap_or(0);
            let share = sent as f64 / count as f64;
            let sums = matches!(op, Op::AllReduce | Op::ReduceScatter | Op::Reduce { .. });
            let canonical = match (sums, report.canonical) {
                (false, _) => "",
                (true, true) => "yes",
                (true, false) => "no",
            };
            let _ = writeln!(
                table,
                "| {op} | {algorithm} | {} | {share:.3} S | {canonical} |",
                report.num_rounds
            );
        }
    }
    assert_has(COLLECTIVES, "collectives.md", &table);
}

#[test]
fn the_book_has_bubble_and_live_activations_of_every_pipeline() {
    let mut table = String::from(
        "| schedule | stages per device | passes per device | live micro-batches, first and last \
         device |\n|---|---|---|---|\n",
    );
    for (kind, num_chunks) in [
        (Kind::GPipe, 1),
        (Kind::OneFOneB, 1),
        (Kind::Interleaved, 2),
        (Kind::ZeroBubble, 1),
        (Kind::ZeroBubbleTwice, 1),
    ] {
        let shape = Shape { num_devices: 4, num_chunks, num_microbatches: 8 };
        let pipeline = pipeline::build(kind, shape).expect("the shape fits");
        pipeline::verify(&pipeline).expect("every pipeline is valid");
        let live = |device: usize| {
            let (mut live, mut most) = (0_usize, 0);
            for task in &pipeline.programs[device] {
                match task.pass {
                    pipeline::Pass::Forward => live += 1,
                    pipeline::Pass::Backward | pipeline::Pass::WeightGrad => live -= 1,
                    pipeline::Pass::InputGrad => {}
                }
                most = most.max(live);
            }
            most
        };
        let _ = writeln!(
            table,
            "| {kind} | {num_chunks} | {} | {}, {} |",
            pipeline.programs[0].len(),
            live(0),
            live(3)
        );
    }
    assert_has(PIPELINES, "pipelines.md", &table);
}
