//! Fault injection: kills workers of a run at random steps and records the recovery.

use lockstep_platform::{FileKind, World};
use lockstep_telemetry::{Event, Stamped, load_events};
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// One injected fault.
#[derive(Serialize)]
pub(super) struct Kill {
    /// The killed rank.
    pub(super) rank: usize,
    /// Completed steps at the kill.
    pub(super) at_step: u64,
    /// Steps that the run repeated.
    pub(super) lost_steps: u64,
    /// Seconds from the kill to the next completed step.
    pub(super) recovery_seconds: f64,
}

/// Kills workers of a run at random steps.
pub(super) struct FaultInjector<'a> {
    world: &'a World,
    dir: PathBuf,
    left: u64,
    num_steps: u64,
    random: u64,
    /// Step of the next kill.
    next: u64,
    /// Mean distance of two kills in steps.
    distance: u64,
    /// The last kill, until the run has recovered.
    pending: Option<PendingKill>,
    /// Size of the event log at the last poll.
    last_log: Option<FileKind>,
    pub(super) kills: Vec<Kill>,
}

/// A kill from which the run has not recovered yet.
#[derive(Clone, Copy)]
struct PendingKill {
    rank: usize,
    at_step: u64,
    /// Attempts that had started.
    num_attempts: usize,
    killed_at: Duration,
}

impl<'a> FaultInjector<'a> {
    pub(super) fn new(world: &'a World, dir: &Path, num_steps: u64, kills: u64, seed: u64) -> Self {
        let distance = (num_steps / (kills + 1)).max(1);
        let mut faults = Self {
            world,
            dir: dir.to_owned(),
            left: kills,
            num_steps,
            random: seed,
            next: 0,
            distance,
            pending: None,
            last_log: None,
            kills: Vec::new(),
        };
        faults.next = faults.below(distance) + 1;
        faults
    }

    /// A random number below `bound` (SplitMix64).
    fn below(&mut self, bound: u64) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound.max(1)
    }

    /// Reads the progress of the run; kills a worker when it is due.
    pub(super) fn poll(&mut self, launcher: u32, print: &dyn Fn(&str)) {
        let path = self.dir.join("events.jsonl");
        // Reading takes CPU time from the workers, so an unchanged log is not read.
        let log = self.world.files().metadata(&path);
        if log == std::mem::replace(&mut self.last_log, log) {
            return;
        }
        // A line that is being written is read at the next poll.
        let Ok(events) = load_events(self.world, &path) else { return };
        let last = events.iter().rev().find_map(step_of).unwrap_or(0);
        let num_attempts = events.iter().filter(|stamped| is_start(&stamped.event)).count();
        if let Some(pending) = self.pending {
            // Steps completed between the poll and the kill belong to the attempt before.
            let after = events.iter().rposition(|stamped| is_start(&stamped.event)).unwrap_or(0);
            let first = events[after..].iter().find_map(step_of);
            let Some(first) = first.filter(|_| num_attempts > pending.num_attempts) else { return };
            let recovery_seconds = self.world.clock().since(pending.killed_at).as_secs_f64();
            let lost_steps = (pending.at_step + 1).saturating_sub(first);
            print(&format!("resumed at step {first} after {recovery_seconds:.2} s"));
            let PendingKill { rank, at_step, .. } = pending;
            self.kills.push(Kill { rank, at_step, lost_steps, recovery_seconds });
            self.pending = None;
            let random = self.below(self.distance);
            self.next = last + random + 1;
        }
        if self.left == 0 || last < self.next || last >= self.num_steps {
            return;
        }
        let children = self.children(launcher);
        if children.is_empty() {
            return;
        }
        let rank = self.below(children.len() as u64) as usize;
        let killed_at = self.world.clock().now();
        if self.world.processes().kill(children[rank]) {
            print(&format!("killed rank {rank} after step {last}"));
            self.left -= 1;
            self.pending = Some(PendingKill { rank, at_step: last, num_attempts, killed_at });
        }
    }

    /// Number of workers of each attempt.
    pub(super) fn workers_by_attempt(&self) -> Vec<usize> {
        let events = load_events(self.world, &self.dir.join("events.jsonl")).unwrap_or_default();
        let size = |stamped: &Stamped| match stamped.event {
            Event::RunStarted { workers, .. } => Some(workers),
            _ => None,
        };
        events.iter().filter_map(size).collect()
    }

    /// Process ids of a launcher's workers, in the order of ranks.
    fn children(&self, launcher: u32) -> Vec<u32> {
        let path = format!("/proc/{launcher}/task/{launcher}/children");
        let list = self.world.files().read_to_string(Path::new(&path)).unwrap_or_default();
        list.split_whitespace().filter_map(|number| number.parse().ok()).collect()
    }
}

fn step_of(stamped: &Stamped) -> Option<u64> {
    match stamped.event {
        Event::Step { step, .. } => Some(step),
        _ => None,
    }
}

fn is_start(event: &Event) -> bool {
    matches!(event, Event::RunStarted { .. })
}
