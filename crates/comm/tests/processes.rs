//! Ranks that are processes of one host.
//!
//! The test runs its own binary once for every rank, with the rank and the name of the job in the
//! environment; in such a process only the test that plays a rank does anything.

mod common;

use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use common::{OPTIONS, run_checks};
use lockstep_comm::{Comm, Options, Reduction};
use lockstep_mesh::Rank;

/// Starts a process that runs the test `role` of this file as one rank.
fn start(role: &str, job: &str, rank: usize, num_ranks: usize) -> Child {
    let binary = std::env::current_exe().expect("a test has a binary");
    Command::new(binary)
        .args([role, "--exact", "--nocapture"])
        .env("COMM_TEST_PLACE", format!("{job} {rank} {num_ranks}"))
        .env("RUST_BACKTRACE", "0")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary can be run again")
}

/// This process's end, if it plays a rank.
fn own_end(options: &Options) -> Option<Comm> {
    let world = lockstep_platform::real();
    let place = world.host().env("COMM_TEST_PLACE")?;
    let words: Vec<&str> = place.split(' ').collect();
    let number = |index: usize| words[index].parse::<usize>().expect("a number");
    let comm = Comm::processes(&world, words[0], Rank(number(1)), number(2), options);
    Some(comm.expect("the processes meet"))
}

fn job(name: &str) -> String {
    format!("{name}-{}", std::process::id())
}

fn run_all(role: &str, num_ranks: usize) -> Vec<Output> {
    let job = job(&format!("{role}-{num_ranks}"));
    let ranks: Vec<Child> = (0..num_ranks).map(|rank| start(role, &job, rank, num_ranks)).collect();
    ranks.into_iter().map(|child| child.wait_with_output().expect("it ends")).collect()
}

fn assert_success(outputs: &[Output]) {
    for (rank, output) in outputs.iter().enumerate() {
        let text =
            String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "rank {rank}: {text}");
    }
}

#[test]
fn one_to_five_processes_pass_every_check() {
    for num_ranks in 1..=5 {
        assert_success(&run_all("role_conformance", num_ranks));
    }
}

#[test]
fn role_conformance() {
    if let Some(comm) = own_end(&OPTIONS) {
        run_checks(&comm);
    }
}

#[test]
fn a_killed_process_is_named_by_the_survivors_soon() {
    let job = job("killed");
    let mut ranks: Vec<Child> = (0..3).map(|rank| start("role_endless", &job, rank, 3)).collect();
    // The victim says when it is in the middle of things.
    let mut line = String::new();
    let stdout = ranks[1].stdout.take().expect("piped");
    let mut reader = std::io::BufReader::new(stdout);
    while !line.contains("in the middle") {
        line.clear();
        std::io::BufRead::read_line(&mut reader, &mut line).expect("it speaks");
    }
    let world = lockstep_platform::real();
    ranks[1].kill().expect("it can be killed");
    let start = world.clock().now();
    for (rank, child) in ranks.into_iter().enumerate() {
        let output = child.wait_with_output().expect("it ends");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        if rank != 1 {
            assert!(text.contains("rank 1 left during all-reduce of 1000 f32"), "{rank}: {text}");
        }
    }
    let waited = world.clock().since(start);
    assert!(waited < Duration::from_secs(5), "{waited:?}");
}

#[test]
fn role_endless() {
    let Some(comm) = own_end(&OPTIONS) else { return };
    let mut buffer = comm.allocate::<f32>(1000).expect("the arena has room");
    for call in 0_u64.. {
        if let Err(error) = comm.all_reduce(&mut buffer, Reduction::Max) {
            println!("{error}");
            return;
        }
        if call == 100 {
            println!("in the middle");
        }
    }
}
