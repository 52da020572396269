//! `lockstep bench comm`: verified collectives and stable JSON names.

use crate::process::{Folder, assert_keys};
use serde_json::Value;

const KEYS: &str = "op ranks bytes dtype transport algorithm buffers median_us p95_us
    bus_bytes_per_second limit_share verified";

const OPS: [&str; 10] = [
    "all_reduce",
    "reduce_scatter",
    "all_gather",
    "broadcast",
    "reduce",
    "scatter",
    "gather",
    "all_to_all",
    "all_to_all_v",
    "barrier",
];

/// Rows of the shortest measurement.
#[track_caller]
fn rows(folder: &Folder, more: &str) -> Vec<Value> {
    let mut arguments = vec!["bench", "comm", "--json", "--seconds", "0.0001"];
    arguments.extend(more.split_whitespace());
    let Value::Array(rows) = folder.json(&arguments) else { panic!("{more}: not a list") };
    rows
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is not a number"))
}

#[test]
fn every_row_has_the_figures_that_scripts_rely_on() {
    let folder = Folder::new();
    let rows = rows(&folder, "--op all_reduce --ranks 2 --bytes 1KiB,1MiB --transport shm");
    assert_eq!(rows.len(), 2);
    for (row, bytes) in rows.iter().zip([1 << 10, 1 << 20]) {
        assert_keys(row, KEYS);
        assert_eq!(row["op"], "all_reduce");
        assert_eq!(row["ranks"], 2);
        assert_eq!(row["bytes"], bytes);
        assert_eq!(row["dtype"], "f32");
        assert_eq!(row["transport"], "shm");
        assert_eq!(row["algorithm"], "direct", "the selected algorithm is named");
        assert_eq!(row["buffers"], "arena");
        assert_eq!(row["verified"], true);
        for key in ["median_us", "p95_us", "bus_bytes_per_second", "limit_share"] {
            assert!(number(&row[key]) > 0.0, "{key}");
        }
        assert!(number(&row["median_us"]) <= number(&row["p95_us"]));
        // For two ranks the bus carries the vector once.
        let seconds = number(&row["median_us"]) * 1e-6;
        let bus = number(&row["bus_bytes_per_second"]) * seconds / f64::from(bytes);
        assert!((bus - 1.0).abs() < 1e-6, "{bus}");
        let limit = number(&row["limit_us"]) / number(&row["median_us"]);
        assert!((limit - number(&row["limit_share"])).abs() < 1e-6);
    }
    assert!(folder.content().is_empty(), "a benchmark leaves nothing behind");
}

/// Verifies every operation at odd sizes.
fn every_operation(more: &str) {
    let folder = Folder::new();
    let rows = rows(&folder, &format!("--op all --bytes 0,40,4024 {more}"));
    assert_eq!(rows.len(), 3 * (OPS.len() - 1) + 1, "a barrier has no size");
    for op in OPS {
        let of_op: Vec<&Value> = rows.iter().filter(|row| row["op"] == op).collect();
        assert!(!of_op.is_empty(), "{more}: no {op}");
        for row in of_op {
            assert_eq!(row["verified"], true, "{more}: {row}");
        }
    }
}

#[test]
fn every_operation_is_right_between_threads() {
    every_operation("--transport threads --ranks 3 --dtype f32");
    every_operation("--transport threads --ranks 2 --dtype bf16 --buffers private");
    every_operation("--transport threads --ranks 1 --dtype i16");
}

#[test]
fn every_operation_is_right_between_processes_that_share_memory() {
    every_operation("--transport shm --ranks 2 --dtype f64");
    every_operation("--transport shm --ranks 3 --dtype f32 --buffers private");
}

#[test]
fn every_operation_is_right_between_processes_over_tcp() {
    every_operation("--transport tcp --ranks 2 --dtype f32");
    every_operation("--transport tcp --ranks 3 --dtype u8");
}

#[test]
fn each_algorithm_has_its_own_row() {
    let folder = Folder::new();
    let more = "--transport threads --ranks 4 --bytes 40KiB --algorithm ring,rabenseifner,direct";
    let rows = rows(&folder, more);
    let facts = |row: &Value| (row["algorithm"].clone(), row["canonical"].clone());
    let found: Vec<(Value, Value)> = rows.iter().map(facts).collect();
    let expected = [("ring", false), ("rabenseifner", true), ("direct", true)];
    assert_eq!(found, expected.map(|(name, order)| (Value::from(name), Value::from(order))));
    assert!(rows.iter().all(|row| row["verified"] == true), "{rows:?}");
}

#[test]
fn text_output_has_a_table_progress_and_a_plot() {
    let folder = Folder::new();
    let arguments = "bench comm --seconds 0.0001 --transport threads --bytes 4KiB,1MiB,4MiB \
                     --op all_reduce,barrier --svg plot.svg";
    let arguments: Vec<&str> = arguments.split_whitespace().collect();
    let finished = folder.succeed(&arguments);
    for word in ["2 ranks over threads", "of limit", "1 MiB", "direct", "barrier", "yes"] {
        assert!(finished.stdout.contains(word), "{word} in {}", finished.stdout);
    }
    assert!(finished.stderr.contains("measuring 4 of 4: barrier"), "{}", finished.stderr);
    assert!(!finished.stderr.contains('\u{1b}'), "no control sequences into a pipe");

    let picture = String::from_utf8(folder.read("plot.svg")).expect("an SVG is text");
    assert!(picture.starts_with("<svg ") && picture.ends_with("</svg>\n"), "{picture}");
    for word in ["bus bandwidth", "message size", ">1 MiB<", "B/s<", ">direct<", "limit"] {
        assert!(picture.contains(word), "{word} in {picture}");
    }
    let num_markers = picture.matches("<circle").count();
    assert_eq!(num_markers, 4, "one for every size and one in the legend, none for the barrier");
    assert_eq!(picture.matches("<text").count(), picture.matches("</text>").count());
}

#[test]
fn invalid_arguments_are_refused_in_one_line() {
    let folder = Folder::new();
    let cases = [
        ("--op all_reduc", "`all_reduc` is not a collective; try all_reduce, reduce_scatter"),
        ("--op all_reduce,", "`` is not a collective"),
        ("--ranks two", "--ranks two is not a number from 1 to"),
        ("--ranks 0", "--ranks 0 is not a number from 1 to"),
        ("--ranks 1000", "--ranks 1000 is not a number from 1 to"),
        ("--bytes 1XB", "\"1XB\" is not a number of bytes; try 4096, 4KiB"),
        ("--bytes -1", "\"-1\" is not a number of bytes"),
        ("--bytes 1KiB,,4MiB", "\"\" is not a number of bytes"),
        ("--bytes 6", "--bytes 6 is not a whole number of f32 of 4 bytes; try 8"),
        ("--bytes 100TiB", "needs up to"),
        ("--dtype f8", "`f8` is not an element type; try f32, f64, bf16"),
        ("--transport udp", "`udp` is not a transport; try threads, shm or tcp"),
        ("--algorithm rings", "`rings` is no algorithm; try ring"),
        ("--algorithm halving", "halving is no algorithm for all-reduce; try"),
        ("--algorithm direct --transport tcp", "direct needs shared memory"),
        ("--buffers heap", "`heap` is neither; try arena or private"),
        ("--buffers arena --transport tcp", "try private"),
        ("--seconds never", "--seconds never is not between"),
        ("--seconds -1", "--seconds -1 is not between"),
        ("--svg nowhere/plot.svg", "--svg nowhere/plot.svg is not a file in an existing folder"),
        ("--as-rank 5", "--as-rank needs NAME/RANK"),
    ];
    for (more, expected) in cases {
        let mut arguments = vec!["bench", "comm"];
        arguments.extend(more.split_whitespace());
        let finished = folder.run(&arguments);
        assert_eq!((finished.code, finished.stdout.as_str()), (Some(2), ""), "{more}");
        let lines: Vec<&str> = finished.stderr.lines().collect();
        assert!(matches!(lines[..], [line] if line.starts_with("error: ")), "{more}: {lines:?}");
        assert!(lines[0].contains(expected), "{more}: {}", lines[0]);
    }
    assert!(folder.content().is_empty(), "nothing was written");
}

#[test]
fn a_killed_rank_ends_the_measurement_with_its_number() {
    let folder = Folder::new();
    // Long enough to be killed during the measurement.
    let mut command = folder.command(&["bench", "comm", "--seconds", "60", "--bytes", "16MiB"]);
    command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
    let child = command.spawn().expect("it starts");
    let victim = rank_of(child.id(), 1);
    let killed = std::process::Command::new("kill").args(["-9", &victim]).status();
    assert!(killed.expect("a kill command").success());
    let finished = crate::process::Finished::new(child.wait_with_output().expect("it ends"));
    assert_eq!((finished.code, finished.stdout.as_str()), (Some(3), ""), "{}", finished.stderr);
    let error = finished.stderr.lines().find(|line| line.starts_with("error: "));
    assert!(error.is_some_and(|line| line.contains("rank 1")), "{}", finished.stderr);
}

/// Process id of `rank` among the children of `parent`.
fn rank_of(parent: u32, rank: usize) -> String {
    let world = lockstep_platform::real();
    let mark = format!("/{rank}");
    for _ in 0..2000 {
        let list = std::process::Command::new("ps")
            .args(["-o", "pid=,args=", "--ppid", &parent.to_string()])
            .output()
            .expect("a ps command");
        let list = String::from_utf8(list.stdout).expect("text");
        let mut found = list.lines().filter(|line| line.trim_end().ends_with(&mark));
        if let Some(pid) = found.find_map(|line| line.split_whitespace().next()) {
            return pid.to_owned();
        }
        world.clock().sleep(std::time::Duration::from_millis(5));
    }
    panic!("no process has rank {rank}");
}
