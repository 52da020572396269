//! Stragglers by what-if analysis: traces with a known answer, and published traces.

use lockstep_planner::stragglers::{Cause, TraceError, analyze, parse};
use serde_json::Value;
use std::fmt::Write;
use std::io::Read;
use std::path::Path;

const COLUMNS: &str = "step,rank,dp_rank,stage,optype,seq_id,start_ts,duration\n";

/// Trace of `steps` data-parallel steps without pipelining: a worker's forward and backward passes
/// of two micro-batches take the times that `pass` gives for its rank, step and micro-batch.
fn data_parallel(ranks: u32, steps: u32, pass: impl Fn(u32, u32, u32) -> (f64, f64)) -> String {
    let mut text = COLUMNS.to_owned();
    for step in 0..steps {
        let length = |rank: u32| -> f64 {
            (0..2).map(|microbatch| pass(rank, step, microbatch)).map(|both| both.0 + both.1).sum()
        };
        let last = (0..ranks).map(length).fold(0.0, f64::max);
        for rank in 0..ranks {
            let mut now = 0.0;
            let mut row = |kind: &str, number: u32, end: f64| {
                let duration = end - now;
                writeln!(text, "{step},{rank},{rank},0,{kind},{number},{now},{duration}")
                    .expect("a string");
                now = end;
            };
            let mut end = 0.0;
            for microbatch in 0..2 {
                let (forward, backward) = pass(rank, step, microbatch);
                row("forward-compute", microbatch, end + forward);
                end += forward + backward;
                row("backward-compute", microbatch, end);
            }
            // The reduction starts when the last rank arrives.
            row("grads-reduce-scatter", 0, last + 0.5);
            row("optimizer", 0, last + 0.75);
        }
    }
    text
}

#[test]
fn a_slow_worker_explains_its_slowdown() {
    // Rank 2 of 40 takes twice the time: steps of 12 + 0.75 s instead of 6 · 41/40 + 0.75 s.
    let text = data_parallel(40, 3, |rank, _, _| if rank == 2 { (2.0, 4.0) } else { (1.0, 2.0) });
    let report = analyze(&parse(&text).expect("a trace")).expect("an analysis");
    let ideal = 6.0 * 41.0 / 40.0 + 0.75;
    assert!((report.step_seconds - 12.75).abs() < 1e-9, "{report:?}");
    assert!((report.ideal_seconds - ideal).abs() < 1e-9, "{report:?}");
    assert!((report.slowdown - 12.75 / ideal).abs() < 1e-9, "{report:?}");
    assert!((report.gap_slowdown - 1.0).abs() < 1e-9, "{report:?}");
    assert!((report.by_dp_rank[&2] - 12.75 / ideal).abs() < 1e-9, "{report:?}");
    assert_eq!((report.cause, report.slowest_ranks[0]), (Cause::SlowWorkers, 2));
    assert!(report.share_of_slowest > 0.9, "{report:?}");
}

#[test]
fn micro_batches_of_different_lengths_are_no_slow_worker() {
    let pass = |rank: u32, step: u32, microbatch: u32| {
        let length = f64::from((7 * rank + 11 * step + 5 * microbatch) % 13) / 6.0 + 0.5;
        (length, 2.0 * length)
    };
    let report = analyze(&parse(&data_parallel(16, 8, pass)).expect("a trace")).expect("analysis");
    assert_eq!(report.cause, Cause::SequenceLengths, "{report:?}");
}

#[test]
fn equal_workers_have_no_straggler() {
    let report = analyze(&parse(&data_parallel(8, 2, |_, _, _| (1.0, 2.0))).expect("a trace"));
    let report = report.expect("an analysis");
    assert!((report.slowdown - 1.0).abs() < 1e-9, "{report:?}");
    assert_eq!(report.cause, Cause::None);
}

#[test]
fn broken_traces_are_refused_with_their_line() {
    let error = |text: &str| parse(text).expect_err("no trace");
    assert_eq!(error(""), TraceError::Column("step"));
    let row = |row: &str| error(&format!("{COLUMNS}{row}\n")).to_string();
    assert_eq!(
        row("0,0,0,0,forward-compute,0,-1,1"),
        "line 2: start_ts = -1 is not a time of at least 0 seconds"
    );
    assert_eq!(row("0,0,0,0,fly,0,0,1"), "line 2: optype = fly is not a known operation");
    assert_eq!(row("0,0,0"), "line 2: stage =  is not a whole number of at least 0");
    assert_eq!(error(COLUMNS), TraceError::Empty);
    let text = data_parallel(2, 2, |_, _, _| (1.0, 2.0));
    let without: Vec<&str> = text.lines().filter(|line| !line.starts_with("1,1,")).collect();
    let message = error(&without.join("\n")).to_string();
    assert_eq!(
        message,
        "step 1, dp_rank 1, stage 0: 0 operations where dp_rank 0 of the first step has 6"
    );
    let huge = text.replace("1,1,1,0,", "1,1,4294967295,4294967295,");
    assert!(matches!(error(&huge), TraceError::Unequal { .. }));
}

/// A published trace with its expected results, if it is present.
#[expect(clippy::print_stdout, reason = "a skipped test reports it")]
#[expect(clippy::disallowed_methods, reason = "traces outside the repository are read directly")]
fn published(name: &str) -> Option<(String, [Value; 3])> {
    let folder =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/ground-truth/straggler-traces");
    let trace = std::fs::read(folder.join(format!("trace-{name}.csv.gz")));
    let Ok(bytes) = trace.or_else(|_| std::fs::read(folder.join(format!("trace-{name}.csv"))))
    else {
        println!("skipped: there is no trace-{name}.csv beside the project");
        return None;
    };
    let mut text = String::new();
    let read = if bytes.starts_with(&[0x1f, 0x8b]) {
        flate2::read::GzDecoder::new(&bytes[..]).read_to_string(&mut text)
    } else {
        (&bytes[..]).read_to_string(&mut text)
    };
    read.expect("text");
    let expected = ["expected", "mw", "ms"].map(|kind| {
        let path = folder.join(format!("{kind}-{name}.json"));
        let text = std::fs::read_to_string(path).expect("expected results");
        serde_json::from_str(&text).expect("JSON")
    });
    Some((text, expected))
}

/// The slowdown within 3 % of the published analysis, the attributions and shares too.
fn compare(name: &str, cause: Cause) {
    let Some((text, [expected, slowest, last_stage])) = published(name) else { return };
    let report = analyze(&parse(&text).expect("a trace")).expect("an analysis");
    let close = |what: &str, value: f64, expected: &Value| {
        let expected = expected.as_f64().unwrap_or_else(|| panic!("{name}: no {what}"));
        assert!((value / expected - 1.0).abs() < 0.03, "{name}, {what}: {value} {expected}");
    };
    close("slowdown", report.slowdown, &expected["blocking_slowdown"]);
    for (stage, slowdown) in &report.by_stage {
        let of_stages = &expected["blocking_decompose_by_stage"];
        close("stage", *slowdown, &of_stages[stage.to_string()]);
    }
    for (rank, slowdown) in &report.by_dp_rank {
        let of_ranks = &expected["blocking_decompose_by_dp_rank"];
        close("data-parallel rank", *slowdown, &of_ranks[rank.to_string()]);
    }
    for (kind, slowdown) in &report.by_operation {
        close(kind, *slowdown, &expected["blocking_decompose_by_optype"][*kind]);
    }
    for (what, share, expected) in [
        ("slowest workers", report.share_of_slowest, &slowest["Mw"]),
        ("last stage", report.share_of_last_stage, &last_stage["Ms"]),
    ] {
        let expected = expected.as_f64().expect("a share");
        assert!((share - expected).abs() < 0.03, "{name}, share of {what}: {share} {expected}");
    }
    assert_eq!(report.cause, cause, "{name}: {report:?}");
}

#[test]
fn published_slow_worker_is_found() {
    compare("AR", Cause::SlowWorkers);
}

#[test]
fn published_heavy_last_stage_is_found() {
    compare("ST", Cause::LastStage);
}

#[test]
fn published_sequence_lengths_are_found() {
    compare("SE", Cause::SequenceLengths);
}
