//! Processes that are killed or stopped during calls: all survivors agree on one verdict, and can
//! continue without the failed rank.
//!
//! The test binary starts itself again for every rank; [`role_worker`] does nothing unless the
//! environment gives it a place.
#![expect(clippy::print_stdout, reason = "a rank reports to the test that started it")]

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdout, Command};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::common::processes::{Ranks, own_comm};
use crate::common::run_threads;
use lockstep_comm::{Comm, CommError, Label, Reduction};
use lockstep_conformance::cases::{Random, select_cases};
use lockstep_mesh::Rank;
use lockstep_platform::real;

/// Task of the worker: deadline in milliseconds, seed, whether it continues after a failure, and
/// the number of calls after which it reports.
const TASK: &str = "LOCKSTEP_TEST_TASK";

/// Folder for flight recorder dumps, if any.
const RECORDS: &str = "LOCKSTEP_TEST_RECORDS";

#[test]
fn role_worker() {
    let Some(comm) = own_comm(0) else { return };
    let task = real().host().env(TASK).expect("the parent sets it");
    let fields: Vec<u64> = task.split(' ').map(|word| word.parse().expect("a number")).collect();
    let comm = comm.within(Duration::from_millis(fields[0]));
    if let Some(folder) = real().host().env(RECORDS) {
        comm.record_into(std::path::Path::new(&folder));
    }
    let mut random = Random(fields[1]);
    comm.barrier().expect("all are there");
    let error = (0..).find_map(|step| {
        if step == fields[3] {
            println!("going");
        }
        random_call(&comm, &mut random, step).err()
    });
    let error = error.expect("the search ends with an error");
    println!("verdict {:?}", error.verdict().expect("the ranks agree on a verdict"));
    println!("text {error}");
    if fields[2] == 1 {
        let culprit = error.verdict().map(|verdict| verdict.culprit);
        continue_without(&comm, culprit.expect("there is one"));
    }
}

/// Continues without the failed rank, in the same processes.
fn continue_without(comm: &Comm, culprit: Rank) {
    if culprit == comm.rank() {
        println!("this rank failed");
        return;
    }
    let survivors: Vec<Rank> =
        comm.ranks().iter().copied().filter(|&rank| rank != culprit).collect();
    let comm = comm.within(Duration::from_secs(20)).reform(&survivors).expect("the others come");
    assert_eq!(comm.epoch(), 1);
    let expected: usize = survivors.iter().map(|rank| rank.0 + 1).sum();
    // The test ends the calls once the failed rank has had its chance to disturb them.
    let is_over = Arc::new(AtomicU32::new(0));
    let listener = Arc::clone(&is_over);
    #[expect(clippy::disallowed_methods, reason = "it ends with the process")]
    let _waiting = std::thread::spawn(move || {
        std::io::stdin().read_line(&mut String::new()).expect("the test writes a line");
        listener.store(1, Ordering::Relaxed);
    });
    make_calls(&comm, expected, &is_over);
    println!("sum {expected}");
}

/// All-reduces until `is_over` on one rank, and at least 300 times.
fn make_calls(comm: &Comm, expected: usize, is_over: &AtomicU32) {
    let mut buffer = comm.allocate::<f32>(70_000).expect("the arena has room");
    for call in 0.. {
        buffer.fill((comm.rank().0 + 1) as f32);
        let count = if call % 10 == 0 { buffer.len() } else { 100 };
        comm.all_reduce(&mut buffer[..count], Reduction::Sum).expect("no other rank fails");
        let is_right = |&x: &f32| (x - expected as f32).abs() < 0.1;
        assert!(buffer[..count].iter().all(is_right), "call {call}: {}", buffer[0]);
        if call == 150 {
            println!("halfway");
        }
        let mut flag = [is_over.load(Ordering::Relaxed)];
        comm.all_reduce(&mut flag, Reduction::Max).expect("no other rank fails");
        if flag[0] == 1 && call >= 300 {
            return;
        }
    }
}

/// A random collective, equal on all ranks.
fn random_call(comm: &Comm, random: &mut Random, step: u64) -> Result<(), CommError> {
    let comm = comm.about(Label::bucket(3, step));
    let count = [1, 64, 1000, 20_000, 100_000][random.below(5)];
    let n = comm.group_size();
    let root = random.below(n);
    let mut data = vec![1.0_f32; count * n];
    match random.below(6) {
        0 => comm.all_reduce(&mut data, Reduction::Sum),
        1 => comm.broadcast(&mut data, root),
        2 => comm.all_gather(&vec![1.0; count], &mut data),
        3 => comm.reduce_scatter(&data, &mut vec![0.0; count], Reduction::Sum),
        4 => comm.all_to_all(&data.clone(), &mut data),
        _ => comm.barrier(),
    }
}

/// Fault injected into a process.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    Kill,
    Stop,
}

/// A started rank and its output.
struct RankProcess {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl RankProcess {
    /// Reads up to the line that holds `text`, and returns what follows it.
    fn after(&mut self, text: &str) -> String {
        let mut line = String::new();
        loop {
            line.clear();
            if self.lines.read_line(&mut line).expect("output is text") == 0 {
                let mut errors = String::new();
                let stderr = self.child.stderr.as_mut().expect("piped");
                stderr.read_to_string(&mut errors).expect("errors are text");
                panic!("a rank ended without saying `{text}`:\n{errors}");
            }
            if let Some(start) = line.find(text) {
                return line[start + text.len()..].trim_end().to_owned();
            }
        }
    }

    /// Tells a survivor that its calls may end.
    fn end_calls(&mut self) {
        let mut stdin = self.child.stdin.take().expect("piped");
        stdin.write_all(b"\n").expect("it reads");
    }

    fn signal(&self, name: &str) {
        let id = self.child.id().to_string();
        let status = Command::new("kill").args([name, &id]).status().expect("there is such a tool");
        assert!(status.success(), "{name}");
    }
}

impl Drop for RankProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Starts workers and waits until all of them make calls.
fn start(transport: &str, num_ranks: usize, task: (u64, u64, bool)) -> (String, Vec<RankProcess>) {
    start_to(transport, num_ranks, task, 0)
}

/// [`start`] that waits for a number of calls.
fn start_to(
    transport: &str,
    num_ranks: usize,
    (deadline_ms, seed, continues): (u64, u64, bool),
    num_calls: usize,
) -> (String, Vec<RankProcess>) {
    let task = format!("{deadline_ms} {seed} {} {num_calls}", u8::from(continues));
    let ranks = Ranks::start_with("failures::role_worker", transport, num_ranks, &[(TASK, task)]);
    wait_until_running(ranks)
}

/// Waits until all workers make calls.
fn wait_until_running(mut ranks: Ranks) -> (String, Vec<RankProcess>) {
    let children = std::mem::take(&mut ranks.children);
    let mut all: Vec<RankProcess> = children
        .into_iter()
        .map(|mut child| {
            let lines = BufReader::new(child.stdout.take().expect("piped"));
            RankProcess { child, lines }
        })
        .collect();
    for one in &mut all {
        one.after("going");
    }
    (ranks.job.clone(), all)
}

/// Asserts that all verdicts are equal and name the victim.
fn assert_named(survivors: &mut [RankProcess], victim: usize, case: &str) -> String {
    let verdicts: Vec<String> = survivors.iter_mut().map(|one| one.after("verdict ")).collect();
    for verdict in &verdicts {
        assert_eq!(verdict, &verdicts[0], "{case}");
        assert!(verdict.contains(&format!("culprit: Rank({victim})")), "{case}: {verdict}");
    }
    survivors[0].after("text ")
}

#[test]
fn all_survivors_report_a_killed_process_alike() {
    for transport in ["shm", "tcp"] {
        for victim in [0, 2] {
            let (_, mut all) = start(transport, 4, (20_000, 7, false));
            let mut killed = all.remove(victim);
            let id = killed.child.id();
            let world = real();
            let begin = world.clock().now();
            killed.child.kill().expect("it runs");
            let text = assert_named(&mut all, victim, transport);
            let took = world.clock().since(begin);
            println!("{transport}: rank {victim} was reported after {} ms", took.as_millis());
            assert!(took < Duration::from_secs(15), "long before the deadline: {took:?}");
            assert!(text.contains(&format!("process {id} on ")), "{text}");
            assert!(text.contains("bucket 3 of step "), "{text}");
        }
    }
}

#[test]
fn a_stopped_process_causes_a_warning_and_a_timeout() {
    for transport in ["shm", "tcp"] {
        let (_, mut all) = start(transport, 3, (6500, 8, false));
        let stopped = all.remove(1);
        stopped.signal("-STOP");
        let text = assert_named(&mut all, 1, transport);
        assert!(text.contains("waited 6500 ms for rank 1"), "{text}");
        let mut warnings = String::new();
        for one in &mut all {
            let stderr = one.child.stderr.as_mut().expect("piped");
            stderr.read_to_string(&mut warnings).expect("text");
        }
        assert!(warnings.contains("waits for rank 1"), "{transport}: {warnings}");
    }
}

#[test]
fn flight_recorders_are_dumped_also_of_a_killed_rank_of_the_host() {
    let world = real();
    for (transport, num_files) in [("shm", 3), ("tcp", 2)] {
        let scratch = lockstep_platform::ScratchDir::new(&world, "flight").expect("a folder");
        let folder = scratch.path().display().to_string();
        let variables = [(TASK, "20000 11 0 0".to_owned()), (RECORDS, folder)];
        let (_, mut all) = wait_until_running(Ranks::start_with(
            "failures::role_worker",
            transport,
            3,
            &variables,
        ));
        let mut killed = all.remove(1);
        killed.child.kill().expect("it runs");
        assert_named(&mut all, 1, transport);
        for one in &mut all {
            one.child.wait().expect("it ends");
        }
        let files = world.files().list(scratch.path()).expect("the folder is there");
        assert_eq!(files.len(), num_files, "{transport}: {files:?}");
        for file in files {
            let text = world.files().read_to_string(&file).expect("text");
            assert!(text.contains("\"culprit\": 1"), "{text}");
            assert!(text.contains("bucket 3 of step "), "{text}");
            assert!(text.contains("\"name\": \"world\""), "{text}");
        }
    }
}

#[test]
fn threads_continue_without_a_rank_that_left() {
    run_threads(3, |comm| {
        if comm.rank() == Rank(0) {
            return;
        }
        let error = comm.barrier().expect_err("rank 0 does not come");
        assert_eq!(error.verdict().expect("there is one").culprit, Rank(0));
        let wrong = comm.reform(&[Rank(2), Rank(1)]).err().expect("they are not in order");
        assert!(wrong.to_string().contains("in order"), "{wrong}");
        let comm = comm.reform(&[Rank(1), Rank(2)]).expect("both come");
        let mut data = [comm.rank().0 as u32];
        comm.all_reduce(&mut data, Reduction::Sum).expect("both are there");
        assert_eq!((data, comm.transport()), ([3], "threads"));
    });
}

#[test]
fn survivors_continue_without_a_killed_process() {
    for transport in ["shm", "tcp"] {
        let (_, mut all) = start(transport, 4, (20_000, 9, true));
        let mut killed = all.remove(1);
        killed.child.kill().expect("it runs");
        assert_named(&mut all, 1, transport);
        all.iter_mut().for_each(RankProcess::end_calls);
        for one in &mut all {
            assert_eq!(one.after("sum "), "8", "{transport}");
        }
    }
}

#[test]
fn a_stopped_process_that_resumes_cannot_disturb_the_survivors() {
    for transport in ["shm", "tcp"] {
        let (_, mut all) = start(transport, 4, (1500, 10, true));
        let mut stopped = all.remove(2);
        stopped.signal("-STOP");
        assert_named(&mut all, 2, transport);
        for one in &mut all {
            one.after("halfway");
        }
        stopped.signal("-CONT");
        stopped.after("this rank failed");
        all.iter_mut().for_each(RankProcess::end_calls);
        for one in &mut all {
            assert_eq!(one.after("sum "), "7", "{transport}");
        }
    }
}

#[test]
fn random_faults_end_with_one_verdict_and_leak_nothing() {
    let (world, mut slowest) = (real(), Duration::ZERO);
    for seed in select_cases(&world, 200, 6) {
        let mut random = Random(seed);
        let transport = ["shm", "tcp"][random.below(2)];
        let num_ranks = 2 + random.below(3);
        let victim = random.below(num_ranks);
        let fault = [Fault::Kill, Fault::Kill, Fault::Stop][random.below(3)];
        let case = format!("seed {seed}: {fault:?} rank {victim} of {num_ranks}, {transport}");
        // Survivors wait for a stopped process until the deadline, so it is short, but long enough
        // for the others on a loaded host.
        let deadline_ms = if fault == Fault::Stop { 2500 } else { 20_000 };
        // After a random number of calls, so that the fault falls anywhere in any of them.
        let task = (deadline_ms, seed, false);
        let (job, mut all) = start_to(transport, num_ranks, task, random.below(100));
        let mut hit = all.remove(victim);
        let begin = world.clock().now();
        match fault {
            Fault::Kill => hit.child.kill().expect("it runs"),
            Fault::Stop => hit.signal("-STOP"),
        }
        assert_named(&mut all, victim, &case);
        if fault == Fault::Kill {
            slowest = slowest.max(world.clock().since(begin));
        }
        for mut one in all {
            assert!(one.child.wait().expect("it ends").success(), "{case}");
        }
        drop(hit);
        // Segments are anonymous, and sockets are in the abstract namespace.
        let list = real().files().read_to_string(std::path::Path::new("/proc/net/unix"));
        assert!(!list.expect("a list of local sockets").contains(&job), "{case}");
    }
    println!("killed processes were reported after {} ms at most", slowest.as_millis());
}
