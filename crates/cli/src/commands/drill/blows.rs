//! Blows: workers of a run are killed at random moments, and what became of it is written down.

use lockstep_platform::{FileKind, World};
use lockstep_telemetry::{Event, Stamped, load_events};
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// One blow.
#[derive(Serialize)]
pub(super) struct Kill {
    pub(super) rank: usize,
    /// Steps that were done.
    pub(super) at_step: u64,
    /// Steps that had to be done again.
    pub(super) lost_steps: u64,
    /// From the blow to the next finished step.
    pub(super) recovery_seconds: f64,
}

/// Kills workers of a run at random moments.
pub(super) struct Blows<'a> {
    world: &'a World,
    dir: PathBuf,
    left: u64,
    num_steps: u64,
    random: u64,
    /// Steps of the run, counted with those that were done again, after which the next blow falls.
    next: u64,
    /// Between two blows, in steps.
    distance: u64,
    /// The last blow, until a step has followed it.
    open: Option<Open>,
    /// How long the journal of the run was when it was last read.
    seen: Option<FileKind>,
    pub(super) done: Vec<Kill>,
}

/// A blow that no step has followed.
#[derive(Clone, Copy)]
struct Open {
    rank: usize,
    at_step: u64,
    /// Lives that had begun.
    num_lives: usize,
    struck: Duration,
}

impl<'a> Blows<'a> {
    pub(super) fn new(world: &'a World, dir: &Path, num_steps: u64, kills: u64, seed: u64) -> Self {
        let distance = (num_steps / (kills + 1)).max(1);
        let mut blows = Self {
            world,
            dir: dir.to_owned(),
            left: kills,
            num_steps,
            random: seed,
            next: 0,
            distance,
            open: None,
            seen: None,
            done: Vec::new(),
        };
        blows.next = blows.below(distance) + 1;
        blows
    }

    /// A number below `bound` (SplitMix64).
    fn below(&mut self, bound: u64) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound.max(1)
    }

    /// Looks how far the run is, and strikes where it is time to.
    pub(super) fn look(&mut self, launcher: u32, say: &dyn Fn(&str)) {
        let path = self.dir.join("events.jsonl");
        // Reading it takes time that the workers could use, so only news is read.
        let there = self.world.files().metadata(&path);
        if there == std::mem::replace(&mut self.seen, there) {
            return;
        }
        // A line that is being written is read at the next look.
        let Ok(events) = load_events(self.world, &path) else { return };
        let last = events.iter().rev().find_map(step_of).unwrap_or(0);
        let num_lives = events.iter().filter(|stamped| is_start(&stamped.event)).count();
        if let Some(open) = self.open {
            // Steps that were finished between the look and the blow belong to the life before.
            let after = events.iter().rposition(|stamped| is_start(&stamped.event)).unwrap_or(0);
            let first = events[after..].iter().find_map(step_of);
            let Some(first) = first.filter(|_| num_lives > open.num_lives) else { return };
            let recovery_seconds = self.world.clock().since(open.struck).as_secs_f64();
            let lost_steps = (open.at_step + 1).saturating_sub(first);
            say(&format!("going on with step {first} after {recovery_seconds:.2} s"));
            let Open { rank, at_step, .. } = open;
            self.done.push(Kill { rank, at_step, lost_steps, recovery_seconds });
            self.open = None;
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
        let struck = self.world.clock().now();
        if self.world.processes().kill(children[rank]) {
            say(&format!("killed rank {rank} after step {last}"));
            self.left -= 1;
            self.open = Some(Open { rank, at_step: last, num_lives, struck });
        }
    }

    /// How many workers each life of the run had.
    pub(super) fn sizes(&self) -> Vec<usize> {
        let events = load_events(self.world, &self.dir.join("events.jsonl")).unwrap_or_default();
        let size = |stamped: &Stamped| match stamped.event {
            Event::RunStarted { workers, .. } => Some(workers),
            _ => None,
        };
        events.iter().filter_map(size).collect()
    }

    /// The workers that a launcher has started, which it does in the order of ranks.
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
