//! A killed run leaves nothing in the system: no process, shared memory, descriptor or socket, and
//! no file outside of its run directory.

use crate::launch::Running;
use crate::process::{Folder, LONGER_THAN_A_TEST};
use lockstep_platform::{World, real};
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// Kernel resources of processes, by inode.
#[derive(Debug, Default, PartialEq, Eq)]
struct Resources {
    memory: BTreeSet<u64>,
    sockets: BTreeSet<u64>,
}

impl Resources {
    /// Resources that these processes have open or mapped.
    fn of(world: &World, processes: &[u32]) -> Self {
        let mut resources = Self::default();
        for process in processes {
            let folder = PathBuf::from(format!("/proc/{process}"));
            for descriptor in world.files().list(&folder.join("fd")).unwrap_or_default() {
                resources.add_descriptor(&descriptor);
            }
            let maps = world.files().read_to_string(&folder.join("maps")).unwrap_or_default();
            let memory = maps.lines().filter(|line| line.contains("/memfd:"));
            resources.memory.extend(memory.filter_map(|line| field(line, 4)));
        }
        resources
    }

    fn add_descriptor(&mut self, descriptor: &Path) {
        let Ok(target) = std::fs::read_link(descriptor) else { return };
        let target = target.to_string_lossy();
        if let Some(number) = target.strip_prefix("socket:[") {
            self.sockets.extend(number.trim_end_matches(']').parse::<u64>());
        } else if target.starts_with("/memfd:") {
            self.memory.extend(std::fs::metadata(descriptor).map(|found| found.ino()));
        }
    }

    /// The intersection.
    fn common(&self, other: &Self) -> Self {
        Self {
            memory: self.memory.intersection(&other.memory).copied().collect(),
            sockets: self.sockets.intersection(&other.sockets).copied().collect(),
        }
    }
}

/// A number in a line of columns.
fn field(line: &str, column: usize) -> Option<u64> {
    line.split_whitespace().nth(column)?.parse().ok()
}

/// All processes of the machine.
fn all_processes(world: &World) -> Vec<u32> {
    let all = world.files().list(Path::new("/proc")).expect("the kernel lists processes");
    all.iter().filter_map(|path| path.file_name()?.to_str()?.parse().ok()).collect()
}

/// All sockets of the machine.
fn known_sockets(world: &World) -> BTreeSet<u64> {
    let mut found = BTreeSet::new();
    for (list, column) in [("tcp", 9), ("tcp6", 9), ("unix", 6)] {
        let path = PathBuf::from(format!("/proc/net/{list}"));
        let text = world.files().read_to_string(&path).unwrap_or_default();
        found.extend(text.lines().filter_map(|line| field(line, column)));
    }
    found
}

/// Sockets of `held` that the kernel still lists. It releases the sockets of a killed process after
/// its descriptors, so they may take a moment to go.
fn sockets_left(world: &World, held: &BTreeSet<u64>) -> Vec<u64> {
    let deadline = world.clock().now() + Duration::from_secs(5);
    loop {
        let left: Vec<u64> = held.intersection(&known_sockets(world)).copied().collect();
        if left.is_empty() || world.clock().now() > deadline {
            return left;
        }
        world.clock().sleep(Duration::from_millis(10));
    }
}

#[test]
fn files_that_were_in_shared_memory_before_a_run_are_not_left_by_it() {
    let world = real();
    let name = |number| format!("/dev/shm/lockstep_test_{}_{number}", std::process::id());
    let [before, after] = [0, 1].map(|number| PathBuf::from(name(number)));
    world.files().write_atomic(&before, b"another program's").expect("shared memory");
    let folder = Folder::new();
    assert!(!folder.left_in_shared_memory(Duration::ZERO).contains(&before));
    world.files().write_atomic(&after, b"a run's").expect("shared memory");
    let left = folder.left_in_shared_memory(Duration::from_millis(100));
    for path in [&before, &after] {
        world.files().remove_file(path).expect("it is ours");
    }
    assert!(left.contains(&after) && !left.contains(&before), "{left:?}");
}

/// The script that compares collectives with other libraries, with a harness that has none of them.
const AGAINST_PEERS: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/bench/against_peers.py");

/// Path of the barrier of a process that runs the script.
fn barrier_of(process: u32) -> PathBuf {
    PathBuf::from(format!("/dev/shm/lockstep_bench_{process}"))
}

#[test]
fn a_comparison_with_peers_removes_its_barrier_and_those_of_dead_processes() {
    let (world, folder) = (real(), Folder::new());
    let exists = |path: &Path| world.files().metadata(path).is_some();
    let mut ended = Command::new("true").spawn().expect("it starts");
    ended.wait().expect("it ends");
    let [stale, alive] = [ended.id(), std::process::id()].map(barrier_of);
    for path in [&stale, &alive] {
        world.files().write_atomic(path, b"a barrier").expect("shared memory");
    }
    // A peer's measurement that does not end.
    let peer = "import time\ndef one(*arguments):\n    open(arguments[-1], 'w').close()\n    \
                print('measures', flush=True)\n    time.sleep(60)\n";
    folder.write("run.py", peer.as_bytes());
    let mut script = Command::new("python3");
    script.args([AGAINST_PEERS, "none", "--harness", ".", "--home", ".", "--libs", "peer"]);
    // Our own rows: none.
    script.args(["--prefix", "python3 -c print([])"]).current_dir(folder.path());
    let mut script = script.stdout(Stdio::piped()).spawn().expect("python3 starts");
    let mut line = String::new();
    let output = script.stdout.take().expect("it is piped");
    BufReader::new(output).read_line(&mut line).expect("text");
    let own = barrier_of(script.id());
    let found = [&own, &stale, &alive].map(|path| exists(path));
    let stopped = Command::new("kill").args(["-TERM", &script.id().to_string()]).status();
    let status = script.wait().expect("it ends");
    let own_is_left = exists(&own);
    world.files().remove_file(&alive).expect("it is ours");
    assert_eq!((line.as_str(), found), ("measures\n", [true, false, true]));
    assert!(stopped.expect("a kill command").success());
    assert_eq!((status.code(), own_is_left), (Some(128 + 15), false));
}

#[test]
fn a_killed_run_leaves_no_resources() {
    let world = real();
    for transport in ["shm", "tcp"] {
        let folder = Folder::new();
        let set = format!("run.transport={transport}");
        let run = Running::start(&folder, &["run.workers=3", "run.dir=run", &set]);
        let processes = run.processes();
        assert_eq!(processes.len(), 4, "a launcher and three workers");
        let held = Resources::of(&world, &processes);
        assert!(!held.sockets.is_empty(), "workers use sockets for rendezvous");
        assert_eq!(held.memory.is_empty(), transport == "tcp", "{held:?}");
        assert!(!held.sockets.is_disjoint(&known_sockets(&world)), "the kernel's lists are parsed");

        let numbers = processes.iter().map(u32::to_string);
        let killed = Command::new("kill").arg("-KILL").args(numbers).status();
        assert!(killed.expect("a kill command").success());
        let (status, _) = run.end();
        assert_eq!(status.signal(), Some(9));

        let left = held.common(&Resources::of(&world, &all_processes(&world)));
        assert_eq!(left, Resources::default(), "{transport}");
        let left = sockets_left(&world, &held.sockets);
        assert!(left.is_empty(), "{transport}: sockets {left:?}");
        assert_eq!(folder.left_in_shared_memory(LONGER_THAN_A_TEST), BTreeSet::new());
        // Reading fails for anything but files; all of them are in the run directory.
        for path in folder.content().keys() {
            assert!(path.starts_with(folder.path().join("run")), "{}", path.display());
        }
    }
}
