//! Sequences of commands: every command is queued once and in order, whole sequences at once.

use lockstep_tensor::internals::{End, MAX_SEQUENCES, MAX_UNUSED, Replay};

/// A device whose commands are numbers.
#[derive(Default)]
struct Machine {
    replay: Replay<u32, ()>,
    /// Commands that ran, and the number of whole sequences among them.
    queued: Vec<u32>,
    num_repeated: usize,
}

const KEY: u64 = 7;

impl Machine {
    fn queue(&mut self, command: u32) {
        let owner = std::thread::current().id();
        if !self.replay.holds_back(owner, &command) {
            let held = self.replay.take_held(owner);
            self.queued.extend(held);
            self.queued.push(command);
            self.replay.record(owner, command);
        }
    }

    fn interrupt(&mut self) {
        let held = self.replay.interrupt(std::thread::current().id());
        self.queued.extend(held);
    }

    fn section(&mut self, body: impl FnOnce(&mut Self)) {
        self.replay.begin(KEY, std::thread::current().id());
        body(self);
        match self.replay.end() {
            End::Queued => {}
            End::Held(held) => self.queued.extend(held),
            End::Repeats { commands, .. } => {
                self.queued.extend(commands.iter());
                self.num_repeated += 1;
            }
        }
    }

    /// Runs a section of these commands; returns whether it was repeated as a whole.
    fn run(&mut self, commands: &[u32]) -> bool {
        let (before, num_repeated) = (self.queued.len(), self.num_repeated);
        self.section(|machine| commands.iter().for_each(|&command| machine.queue(command)));
        assert_eq!(self.queued[before..], *commands, "every command runs once, in order");
        self.num_repeated > num_repeated
    }
}

#[test]
fn equal_commands_repeat_from_the_second_time_on() {
    let mut machine = Machine::default();
    assert_eq!([0; 3].map(|_| machine.run(&[1, 2, 3])), [false, true, true]);
    machine.replay.forget();
    assert!(!machine.run(&[1, 2, 3]));
    machine.replay.set(false);
    assert_eq!([0; 3].map(|_| machine.run(&[1, 2, 3])), [false; 3]);
}

#[test]
fn a_command_that_differs_anywhere_runs_after_those_held_back() {
    let mut machine = Machine::default();
    assert!(!machine.run(&[1, 2, 3, 4]));
    let others: [&[u32]; 6] =
        [&[9, 2, 3, 4], &[1, 2, 9, 4], &[1, 2, 3, 9], &[1, 2], &[1, 2, 3, 4, 5], &[]];
    for other in others {
        assert!(!machine.run(other), "{other:?} is new");
        assert!(machine.run(other), "{other:?} was recorded");
        assert!(machine.run(&[1, 2, 3, 4]));
    }
}

#[test]
fn microbatches_that_take_turns_all_repeat() {
    let mut machine = Machine::default();
    let step: Vec<[u32; 3]> = (0..24).map(|microbatch| [1, microbatch % 8, 3]).collect();
    for number in 0..3 {
        for (microbatch, commands) in step.iter().enumerate() {
            assert_eq!(machine.run(commands), number > 0 || microbatch >= 8);
        }
    }
}

#[test]
fn an_exchange_with_the_host_comes_after_what_was_held_back() {
    let mut machine = Machine::default();
    for _ in 0..3 {
        machine.run(&[1, 2, 3]);
        let before = machine.queued.len();
        machine.section(|machine| {
            machine.queue(1);
            machine.interrupt();
            assert_eq!(machine.queued[before..], [1]);
            machine.queue(2);
        });
        assert_eq!(machine.queued[before..], [1, 2]);
    }
    assert_eq!(machine.num_repeated, 2, "only whole sections repeat");
}

#[test]
fn commands_that_differ_each_time_are_soon_not_recorded() {
    let mut machine = Machine::default();
    for step in 0..2 * (MAX_SEQUENCES + MAX_UNUSED) {
        assert!(!machine.run(&[1, step as u32]));
    }
    assert!(!machine.replay.begin(KEY, std::thread::current().id()));
    assert!(machine.replay.begin(KEY + 1, std::thread::current().id()), "others are");
}

#[test]
fn other_threads_queue_their_commands_at_once() {
    let mut replay = Replay::<u32, ()>::default();
    let (owner, other) = (
        std::thread::current().id(),
        std::thread::scope(|scope| {
            scope.spawn(|| std::thread::current().id()).join().expect("it ends")
        }),
    );
    for _ in 0..2 {
        assert!(replay.begin(KEY, owner));
        let is_held = replay.holds_back(owner, &1);
        assert!(!replay.holds_back(other, &1));
        assert!(replay.interrupt(other).is_empty());
        if !is_held {
            replay.record(owner, 1);
        }
        replay.record(other, 2);
        let is_repeated = matches!(replay.end(), End::Repeats { .. });
        assert_eq!(is_repeated, is_held);
    }
}
