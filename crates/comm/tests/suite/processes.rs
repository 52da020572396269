//! Processes of one host as ranks.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::common::processes::{Ranks, own_comm};
use crate::common::run_checks;
use lockstep_comm::Reduction;
use lockstep_conformance::cases::some;
use lockstep_platform::{Deadline, real};

#[test]
fn one_to_five_processes_pass_every_check() {
    for num_ranks in some(1..=5, 3) {
        Ranks::start("processes::role_conformance", "shm", num_ranks).assert_success();
    }
}

#[test]
fn one_to_five_processes_over_tcp_pass_every_check() {
    for num_ranks in some(1..=5, 3) {
        Ranks::start("processes::role_conformance", "tcp", num_ranks).assert_success();
    }
}

#[test]
fn role_conformance() {
    if let Some(comm) = own_comm(0) {
        run_checks(&comm);
    }
}

#[test]
fn a_killed_process_is_named_by_the_survivors_before_the_deadline() {
    let mut ranks = Ranks::start("processes::role_endless", "shm", 3);
    // The victim reports when it makes calls.
    let stdout = ranks.children[1].stdout.take().expect("piped");
    let mut lines = BufReader::new(stdout).lines();
    let is_going = |line: std::io::Result<String>| line.expect("text").contains("making calls");
    assert!(lines.any(is_going), "the victim ended before");
    ranks.children[1].kill().expect("it can be killed");
    for (rank, child) in std::mem::take(&mut ranks.children).into_iter().enumerate() {
        let output = child.wait_with_output().expect("it ends");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        if rank != 1 {
            assert!(text.contains("rank 1 left during all-reduce of 1000 f32"), "{rank}: {text}");
        }
    }
}

#[test]
fn killing_all_processes_leaks_nothing() {
    let before = shared_memory();
    let mut ranks = Ranks::start("processes::role_endless", "shm", 2);
    for child in &mut ranks.children {
        let stdout = child.stdout.take().expect("piped");
        let mut lines = BufReader::new(stdout).lines();
        assert!(lines.any(|line| line.expect("text").contains("making calls")));
    }
    let job = ranks.job.clone();
    drop(ranks);
    // Segments are anonymous, and sockets are in the abstract namespace.
    let names = real().files().read_to_string(Path::new("/proc/net/unix"));
    assert!(!names.expect("a list of local sockets").contains(&job), "a socket is left");
    // Other programs may have left files with our name before.
    let mut left = shared_memory();
    left.retain(|path| !before.contains(path));
    // Other tests of the machine create files that they remove.
    let world = real();
    let deadline = Deadline::after(world.clock(), Duration::from_secs(30));
    while !left.is_empty() && !deadline.has_passed(world.clock()) {
        world.clock().sleep(Duration::from_millis(20));
        let still = shared_memory();
        left.retain(|path| still.contains(path));
    }
    assert_eq!(left, Vec::<PathBuf>::new());
}

/// Files with our name in shared memory.
fn shared_memory() -> Vec<PathBuf> {
    let names = real().files().list(Path::new("/dev/shm")).expect("it can be listed");
    names.into_iter().filter(|path| path.to_string_lossy().contains("lockstep")).collect()
}

#[test]
fn role_endless() {
    let Some(comm) = own_comm(0) else { return };
    let mut buffer = comm.allocate::<f32>(1000).expect("the arena has room");
    for call in 0_u64.. {
        if let Err(error) = comm.all_reduce(&mut buffer, Reduction::Max) {
            println!("{error}");
            return;
        }
        if call == 100 {
            println!("making calls");
        }
    }
}
