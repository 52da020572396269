//! Processes that are killed or frozen in the middle of things: everybody who is left says the
//! same about it, and they can go on without.
//!
//! The test binary starts itself again for every rank; [`role_worker`] does nothing unless the
//! environment gives it a place.
#![expect(clippy::print_stdout, reason = "a rank tells the test that started it what it sees")]

mod common;

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdout, Command};
use std::time::Duration;

use common::processes::{Ranks, own_end};
use lockstep_comm::{Comm, CommError, Label, Reduction};
use lockstep_conformance::cases::{Random, chosen};
use lockstep_mesh::Rank;
use lockstep_platform::{Clock, real};

/// What the worker is told: the deadline in milliseconds, a seed, and whether it goes on after a
/// failure.
const TASK: &str = "LOCKSTEP_TEST_TASK";

/// Where the worker leaves its records, if anywhere.
const RECORDS: &str = "LOCKSTEP_TEST_RECORDS";

#[test]
fn role_worker() {
    let Some(comm) = own_end(0) else { return };
    let task = real().host().env(TASK).expect("the parent sets it");
    let words: Vec<u64> = task.split(' ').map(|word| word.parse().expect("a number")).collect();
    let comm = comm.within(Duration::from_millis(words[0]));
    if let Some(folder) = real().host().env(RECORDS) {
        comm.record_into(std::path::Path::new(&folder));
    }
    let mut random = Random(words[1]);
    comm.barrier().expect("all are there");
    println!("going");
    let error = (0..).find_map(|step| random_call(&comm, &mut random, step).err());
    let error = error.expect("the search ends with an error");
    println!("verdict {:?}", error.verdict().expect("the ranks settle on something"));
    println!("words {error}");
    if words[2] == 1 {
        let culprit = error.verdict().map(|verdict| verdict.culprit);
        go_on(&comm, culprit.expect("there is one"));
    }
}

/// Without the culprit, in the same processes.
fn go_on(comm: &Comm, culprit: Rank) {
    if culprit == comm.rank() {
        println!("it was this one");
        return;
    }
    let survivors: Vec<Rank> =
        comm.ranks().iter().copied().filter(|&rank| rank != culprit).collect();
    let comm = comm.within(Duration::from_secs(20)).reform(&survivors).expect("the others come");
    assert_eq!(comm.epoch(), 1);
    let mut buffer = comm.allocate::<f32>(70_000).expect("the arena has room");
    let expected: usize = survivors.iter().map(|rank| rank.0 + 1).sum();
    for call in 0..300 {
        buffer.fill((comm.rank().0 + 1) as f32);
        let count = if call % 10 == 0 { buffer.len() } else { 100 };
        comm.all_reduce(&mut buffer[..count], Reduction::Sum).expect("nobody else fails");
        let is_right = |&x: &f32| (x - expected as f32).abs() < 0.1;
        assert!(buffer[..count].iter().all(is_right), "call {call}: {}", buffer[0]);
        if call == 150 {
            println!("halfway");
            // Long enough for whoever was frozen to wake up and to do its worst.
            real().clock().sleep(Duration::from_millis(300));
        }
    }
    println!("sum {expected}");
}

/// One of the collectives, the same on all ranks.
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

/// What is done to a process.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Blow {
    Kill,
    Freeze,
}

/// A rank that was started, with what it has said.
struct Rankling {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl Rankling {
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

    fn signal(&self, name: &str) {
        let id = self.child.id().to_string();
        let status = Command::new("kill").args([name, &id]).status().expect("there is such a tool");
        assert!(status.success(), "{name}");
    }
}

impl Drop for Rankling {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Starts workers and waits until all of them are in the middle of things.
fn start(transport: &str, num_ranks: usize, task: (u64, u64, bool)) -> (String, Vec<Rankling>) {
    let (deadline_ms, seed, goes_on) = task;
    let task = format!("{deadline_ms} {seed} {}", u8::from(goes_on));
    let ranks = Ranks::start_with("role_worker", transport, num_ranks, &[(TASK, task)]);
    begun(ranks)
}

/// Waits until all workers are in the middle of things.
fn begun(mut ranks: Ranks) -> (String, Vec<Rankling>) {
    let children = std::mem::take(&mut ranks.children);
    let mut all: Vec<Rankling> = children
        .into_iter()
        .map(|mut child| {
            let lines = BufReader::new(child.stdout.take().expect("piped"));
            Rankling { child, lines }
        })
        .collect();
    for one in &mut all {
        one.after("going");
    }
    (ranks.job.clone(), all)
}

/// All verdicts are the same and name the victim.
fn assert_named(survivors: &mut [Rankling], victim: usize, case: &str) -> String {
    let verdicts: Vec<String> = survivors.iter_mut().map(|one| one.after("verdict ")).collect();
    for verdict in &verdicts {
        assert_eq!(verdict, &verdicts[0], "{case}");
        assert!(verdict.contains(&format!("culprit: Rank({victim})")), "{case}: {verdict}");
    }
    survivors[0].after("words ")
}

#[test]
fn a_killed_process_is_named_by_everybody_in_the_same_words() {
    for transport in ["shm", "tcp"] {
        for victim in [0, 2] {
            let (_, mut all) = start(transport, 4, (20_000, 7, false));
            let mut killed = all.remove(victim);
            let id = killed.child.id();
            let world = real();
            let begin = world.clock().now();
            killed.child.kill().expect("it runs");
            let words = assert_named(&mut all, victim, transport);
            let took = world.clock().since(begin);
            println!("{transport}: rank {victim} was named after {} ms", took.as_millis());
            assert!(took < Duration::from_secs(15), "long before the deadline: {took:?}");
            assert!(words.contains(&format!("process {id} on ")), "{words}");
            assert!(words.contains("bucket 3 of step "), "{words}");
        }
    }
}

#[test]
fn a_frozen_process_is_warned_of_and_named_at_the_deadline() {
    for transport in ["shm", "tcp"] {
        let (_, mut all) = start(transport, 3, (6500, 8, false));
        let frozen = all.remove(1);
        frozen.signal("-STOP");
        let words = assert_named(&mut all, 1, transport);
        assert!(words.contains("waited 6500 ms for rank 1"), "{words}");
        let mut warnings = String::new();
        for one in &mut all {
            let stderr = one.child.stderr.as_mut().expect("piped");
            stderr.read_to_string(&mut warnings).expect("text");
        }
        assert!(warnings.contains("waits for rank 1"), "{transport}: {warnings}");
    }
}

#[test]
fn the_last_calls_of_everybody_are_written_down_also_of_a_killed_neighbour() {
    let world = real();
    for (transport, num_files) in [("shm", 3), ("tcp", 2)] {
        let scratch = lockstep_platform::ScratchDir::new(&world, "flight").expect("a folder");
        let folder = scratch.path().display().to_string();
        let variables = [(TASK, "20000 11 0".to_owned()), (RECORDS, folder)];
        let (_, mut all) = begun(Ranks::start_with("role_worker", transport, 3, &variables));
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
fn threads_go_on_without_one_that_has_left() {
    common::run_threads(3, |comm| {
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
fn those_who_are_left_go_on_without_the_one_that_was_killed() {
    for transport in ["shm", "tcp"] {
        let (_, mut all) = start(transport, 4, (20_000, 9, true));
        let mut killed = all.remove(1);
        killed.child.kill().expect("it runs");
        assert_named(&mut all, 1, transport);
        for one in &mut all {
            assert_eq!(one.after("sum "), "8", "{transport}");
        }
    }
}

#[test]
fn one_that_was_frozen_and_wakes_up_cannot_disturb_the_others() {
    for transport in ["shm", "tcp"] {
        let (_, mut all) = start(transport, 4, (1500, 10, true));
        let mut frozen = all.remove(2);
        frozen.signal("-STOP");
        assert_named(&mut all, 2, transport);
        for one in &mut all {
            one.after("halfway");
        }
        frozen.signal("-CONT");
        frozen.after("it was this one");
        for one in &mut all {
            assert_eq!(one.after("sum "), "7", "{transport}");
        }
    }
}

#[test]
fn blows_at_random_moments_of_random_calls_end_with_the_same_verdict_and_leave_nothing() {
    let (world, mut slowest) = (real(), Duration::ZERO);
    for seed in chosen(&world, 200, 10) {
        let mut random = Random(seed);
        let transport = ["shm", "tcp"][random.below(2)];
        let num_ranks = 2 + random.below(3);
        let victim = random.below(num_ranks);
        let blow = [Blow::Kill, Blow::Kill, Blow::Freeze][random.below(3)];
        let case = format!("seed {seed}: {blow:?} rank {victim} of {num_ranks}, {transport}");
        // Frozen ones are waited for until the deadline, so it is short; on a machine that is
        // busy with something else it must not be too short for the others.
        let deadline_ms = if blow == Blow::Freeze { 2500 } else { 20_000 };
        let (job, mut all) = start(transport, num_ranks, (deadline_ms, seed, false));
        sleep(&*world, random.below(40_000));
        let mut hit = all.remove(victim);
        let begin = world.clock().now();
        match blow {
            Blow::Kill => hit.child.kill().expect("it runs"),
            Blow::Freeze => hit.signal("-STOP"),
        }
        assert_named(&mut all, victim, &case);
        if blow == Blow::Kill {
            slowest = slowest.max(world.clock().since(begin));
        }
        for mut one in all {
            assert!(one.child.wait().expect("it ends").success(), "{case}");
        }
        drop(hit);
        // Memory has no name, and nor have sockets but those of the kernel's making.
        let list = real().files().read_to_string(std::path::Path::new("/proc/net/unix"));
        assert!(!list.expect("a list of local sockets").contains(&job), "{case}");
    }
    println!("killed ones were named after {} ms at most", slowest.as_millis());
}

fn sleep(world: &dyn lockstep_platform::Platform, micros: usize) {
    let clock: &dyn Clock = world.clock();
    clock.sleep(Duration::from_micros(micros as u64));
}
