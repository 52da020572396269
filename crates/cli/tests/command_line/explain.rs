//! `lockstep explain`: figures and verdict of a trace, and its errors.

use crate::process::Folder;
use std::fmt::Write;

/// A step of four data-parallel workers, the third of which takes twice the others' time.
fn trace() -> String {
    let mut text = "step,rank,dp_rank,stage,optype,seq_id,start_ts,duration\n".to_owned();
    for rank in 0..4 {
        let pass = if rank == 2 { 2.0 } else { 1.0 };
        let mut row = |kind: &str, start: f64, end: f64| {
            let duration = end - start;
            writeln!(text, "7,{rank},{rank},0,{kind},0,{start},{duration}").expect("a string");
        };
        row("forward-compute", 0.0, pass);
        row("backward-compute", pass, 3.0 * pass);
        // The reduction waits for the third worker.
        row("grads-reduce-scatter", 3.0 * pass, 6.5);
        row("optimizer", 6.5, 7.0);
    }
    text
}

#[test]
fn a_slow_worker_is_named_with_what_to_try() {
    let folder = Folder::new();
    folder.write("trace.csv", trace().as_bytes());
    let report = folder.json(&["explain", "trace.csv", "--json"]);
    assert_eq!((&report["num_replicas"], &report["num_stages"]), (&4.into(), &1.into()));
    assert_eq!(report["cause"], "slow-workers");
    // Passes of 3.75 s on average, and 1 s for all.
    assert_eq!(report["ideal_seconds"], 4.75);
    let text = folder.succeed(&["explain", "trace.csv"]).stdout;
    assert!(text.contains("1 step of 4 workers, DP4 PP1"), "{text}");
    assert!(text.contains("7.00 s, 4.75 s without stragglers: a slowdown of 1.47"), "{text}");
    assert!(text.contains("rank 2 explains 100 % of the slowdown"), "{text}");
}

#[test]
fn a_file_that_is_no_trace_is_refused_in_one_line() {
    let folder = Folder::new();
    folder.write("trace.csv", b"step,loss\n1,2\n");
    let refused = folder.run(&["explain", "trace.csv"]);
    assert_eq!(refused.code, Some(2), "{refused:?}");
    assert!(refused.stderr.contains("error: trace.csv: no column rank"), "{refused:?}");
    assert_eq!(folder.run(&["explain", "nowhere.csv"]).code, Some(2));
}
