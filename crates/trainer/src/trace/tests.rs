//! Traces of ranks that record spans by themselves: what one rank lacks the file lacks for all.

use super::*;
use lockstep_comm::Options;
use lockstep_platform::ScratchDir;
use serde_json::Value;
use std::path::Path;

const NUM_RANKS: usize = 3;

/// Writes the trace of ranks that record with `record`; returns the warning of rank 0.
fn write(
    world: &World,
    path: &Path,
    record: impl Fn(usize, &mut TraceRecorder) + Sync,
) -> Option<String> {
    let ends = Comm::threads(world, NUM_RANKS, &Options::default()).expect("threads");
    let run = |comm: &Comm| {
        let mut recorder = TraceRecorder::start(comm, world).expect("all ranks begin");
        record(comm.group_rank(), &mut recorder);
        let path = (comm.group_rank() == 0).then_some(path);
        recorder.write(comm, path).expect("all ranks end")
    };
    let warnings: Vec<_> = std::thread::scope(|scope| {
        let run = &run;
        let threads: Vec<_> = ends.iter().map(|comm| scope.spawn(move || run(comm))).collect();
        threads.into_iter().map(|thread| thread.join().expect("no rank panics")).collect()
    });
    assert!(warnings[1..].iter().all(Option::is_none), "only rank 0 has a file");
    warnings.into_iter().next().flatten()
}

fn checkpoint(recorder: &mut TraceRecorder, step: u64) {
    let start = recorder.world.clock().now();
    recorder.record_checkpoint(step, start);
}

/// Pairs of rank and step of the spans of a file, and the file.
fn read(world: &World, path: &Path) -> (Vec<(u64, u64)>, Value) {
    let text = world.files().read_to_string(path).expect("a file");
    let file: Value = serde_json::from_str(&text).expect("JSON");
    let events = file["traceEvents"].as_array().expect("a list").iter();
    let span = |event: &Value| Some((event["pid"].as_u64()?, event["args"]["step"].as_u64()?));
    (events.filter_map(span).collect(), file)
}

#[test]
fn the_trace_ends_where_the_first_rank_has_no_room() {
    let world = lockstep_platform::real();
    let scratch = ScratchDir::new(&world, "trace").expect("a folder");
    let path = scratch.path().join("trace.json");
    let warning = write(&world, &path, |rank, recorder| {
        for step in 1..=4 {
            if rank == 1 && step == 3 {
                assert!(!recorder.has_room(step, MAX_SPANS), "a step beyond the memory");
            }
            checkpoint(recorder, step);
        }
    });
    assert_eq!(warning, None);
    let (spans, file) = read(&world, &path);
    assert_eq!(spans, [(0, 1), (0, 2), (1, 1), (1, 2), (2, 1), (2, 2)]);
    assert_eq!(file["otherData"]["truncated"], "the memory of a rank was full at step 3");
    assert_eq!(file["otherData"]["clock_error_ns_of_rank_0"], "0");
}

#[test]
fn a_recorder_never_holds_more_than_its_memory() {
    let world = lockstep_platform::real();
    let ends = Comm::threads(&world, 1, &Options::default()).expect("a thread");
    let mut recorder = TraceRecorder::start(&ends[0], &world).expect("one rank");
    let capacity = recorder.spans.capacity();
    for step in 0..MAX_SPANS as u64 + 10 {
        checkpoint(&mut recorder, step);
    }
    assert_eq!((recorder.spans.len(), recorder.full_at), (MAX_SPANS, Some(MAX_SPANS as u64)));
    assert_eq!(recorder.spans.capacity(), capacity, "nothing is allocated");
}

#[test]
fn a_file_that_cannot_be_written_is_a_warning_and_no_rank_waits() {
    let world = lockstep_platform::real();
    let scratch = ScratchDir::new(&world, "trace").expect("a folder");
    let path = scratch.path().join("missing").join("trace.json");
    let warning = write(&world, &path, |_, recorder| checkpoint(recorder, 1));
    let warning = warning.expect("there is no folder");
    assert!(warning.contains("missing"), "{warning}");
}

#[test]
fn texts_of_several_blocks_arrive_whole() {
    let world = lockstep_platform::real();
    let scratch = ScratchDir::new(&world, "trace").expect("a folder");
    let path = scratch.path().join("trace.json");
    let num_spans = 20_000;
    write(&world, &path, |_, recorder| (1..=num_spans).for_each(|step| checkpoint(recorder, step)));
    let (spans, _) = read(&world, &path);
    assert_eq!(spans.len() as u64, NUM_RANKS as u64 * num_spans);
}
