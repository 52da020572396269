//! Sequences of commands that repeat, and the section of the program that follows one of them.
//!
//! A section is a part of the program that queues the same commands each time it runs. Its commands
//! are recorded the first time. From then on the section runs on the host as ever, but each command
//! that equals the recorded one is held back; when all were equal, the whole sequence is queued at
//! once. So the state of the host after a section never depends on whether it was repeated, and
//! a sequence is queued only where the section would have queued exactly its commands: with these
//! kernels, addresses, shapes and numbers. At the first command that differs, those held back are
//! queued one by one, and the rest of the section is recorded as a new sequence.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread::ThreadId;

/// Most sequences of a section: micro-batches add their gradients to different leaves.
pub const MAX_SEQUENCES: usize = 32;
/// Sequences that were never repeated after which a section is not recorded any more: its commands
/// differ each time, as with dropout.
pub const MAX_UNUSED: usize = 64;

/// Recorded sequences of commands `C`, each with a graph `G` that queues it at once.
pub struct Replay<C, G> {
    is_on: bool,
    recorded: BTreeMap<u64, Sequences<C, G>>,
    section: Option<Section<C>>,
}

/// Sequences of one section.
struct Sequences<C, G> {
    list: Vec<Sequence<C, G>>,
    /// The sequence that ran last, and the number of sections so far.
    last: usize,
    clock: u64,
    num_unused: usize,
}

struct Sequence<C, G> {
    commands: Arc<[C]>,
    graph: Option<Arc<G>>,
    /// The sequence that ran after this one last: micro-batches take turns.
    next: usize,
    last_used: u64,
    is_used: bool,
}

/// The section that runs, on the thread that has begun it.
struct Section<C> {
    owner: ThreadId,
    key: u64,
    state: State<C>,
}

enum State<C> {
    /// The first commands of a sequence were held back.
    Follow { sequence: usize, num_held: usize },
    /// All commands so far were queued.
    Record(Vec<C>),
    /// The section cannot be repeated this time.
    Queue,
}

/// End of a section.
pub enum End<C, G> {
    /// All commands were queued.
    Queued,
    /// These were held back, and are to be queued one by one.
    Held(Vec<C>),
    /// A whole sequence was held back.
    Repeats {
        /// The sequence.
        commands: Arc<[C]>,
        /// Its graph, if there is one.
        graph: Option<Arc<G>>,
        /// Its key and number.
        at: (u64, usize),
    },
}

impl<C, G> Default for Replay<C, G> {
    fn default() -> Self {
        Self { is_on: true, recorded: BTreeMap::new(), section: None }
    }
}

impl<C: Clone + PartialEq, G> Replay<C, G> {
    /// Turns replays on or off; forgets all sequences.
    pub fn set(&mut self, is_on: bool) {
        self.is_on = is_on;
        self.forget();
    }

    /// Forgets all sequences, because something has changed that commands do not name.
    pub fn forget(&mut self) {
        self.recorded.clear();
    }

    /// Begins a section; `false` if it is none that repeats.
    pub fn begin(&mut self, key: u64, owner: ThreadId) -> bool {
        if !self.is_on || self.section.is_some() {
            return false;
        }
        let sequences = self.recorded.entry(key).or_default();
        if sequences.num_unused > MAX_UNUSED {
            return false;
        }
        let next = sequences.list.get(sequences.last).map_or(0, |last| last.next);
        let state = if sequences.list.is_empty() {
            State::Record(Vec::new())
        } else {
            State::Follow { sequence: next, num_held: 0 }
        };
        self.section = Some(Section { owner, key, state });
        true
    }

    /// Holds a command back if it is the next of a sequence.
    pub fn holds_back(&mut self, owner: ThreadId, command: &C) -> bool {
        let Some(Section { key, state: State::Follow { sequence, num_held }, .. }) =
            self.section.as_mut().filter(|section| section.owner == owner)
        else {
            return false;
        };
        let list = &self.recorded[key].list;
        let is_next = |other: usize| list[other].commands.get(*num_held) == Some(command);
        if !is_next(*sequence) {
            let Some(other) = (0..list.len())
                .find(|&other| is_next(other) && starts_equal(list, *sequence, other, *num_held))
            else {
                return false;
            };
            *sequence = other;
        }
        *num_held += 1;
        true
    }

    /// Takes the commands that were held back, in order to queue them ahead of one that differs.
    pub fn take_held(&mut self, owner: ThreadId) -> Vec<C> {
        let Some(section) = self.section.as_mut().filter(|section| section.owner == owner) else {
            return Vec::new();
        };
        let State::Follow { sequence, num_held } = section.state else { return Vec::new() };
        let held = self.recorded[&section.key].list[sequence].commands[..num_held].to_vec();
        section.state = State::Record(held.clone());
        held
    }

    /// Records a command that was queued.
    pub fn record(&mut self, owner: ThreadId, command: C) {
        let section = self.section.as_mut().filter(|section| section.owner == owner);
        if let Some(Section { state: State::Record(commands), .. }) = section {
            commands.push(command);
        }
    }

    /// Gives up the repetition of a section that exchanges something with the host; takes the
    /// commands that were held back.
    pub fn interrupt(&mut self, owner: ThreadId) -> Vec<C> {
        let held = self.take_held(owner);
        if let Some(section) = self.section.as_mut().filter(|section| section.owner == owner) {
            section.state = State::Queue;
        }
        held
    }

    /// Ends the section.
    pub fn end(&mut self) -> End<C, G> {
        let Some(Section { key, state, .. }) = self.section.take() else { return End::Queued };
        let Some(sequences) = self.recorded.get_mut(&key) else { return End::Queued };
        match state {
            State::Queue => End::Queued,
            State::Record(commands) => {
                sequences.add(commands);
                End::Queued
            }
            State::Follow { sequence, num_held } => {
                let list = &sequences.list;
                let is_whole = |other: &usize| {
                    list[*other].commands.len() == num_held
                        && starts_equal(list, sequence, *other, num_held)
                };
                let whole =
                    std::iter::once(sequence).chain(0..list.len()).find(|other| is_whole(other));
                let Some(whole) = whole else {
                    let held = list[sequence].commands[..num_held].to_vec();
                    sequences.add(held.clone());
                    return End::Held(held);
                };
                let used = sequences.mark(whole);
                used.is_used = true;
                let (commands, graph) = (Arc::clone(&used.commands), used.graph.clone());
                End::Repeats { commands, graph, at: (key, whole) }
            }
        }
    }

    /// Keeps the graph of a sequence.
    pub fn keep_graph(&mut self, (key, sequence): (u64, usize), graph: &Arc<G>) {
        let sequences = self.recorded.get_mut(&key);
        if let Some(sequence) = sequences.and_then(|it| it.list.get_mut(sequence)) {
            sequence.graph = Some(Arc::clone(graph));
        }
    }
}

/// Whether two sequences have the same first commands.
fn starts_equal<C: PartialEq, G>(
    list: &[Sequence<C, G>],
    one: usize,
    other: usize,
    num: usize,
) -> bool {
    one == other || list[one].commands.get(..num) == list[other].commands.get(..num)
}

impl<C, G> Default for Sequences<C, G> {
    fn default() -> Self {
        Self { list: Vec::new(), last: 0, clock: 0, num_unused: 0 }
    }
}

impl<C, G> Sequences<C, G> {
    /// Adds a sequence, in place of the one that ran the longest ago if there are many.
    fn add(&mut self, commands: Vec<C>) {
        let (commands, graph) = (commands.into(), None);
        let added = Sequence { commands, graph, next: 0, last_used: 0, is_used: false };
        let mut at = self.list.len();
        if at < MAX_SEQUENCES {
            self.list.push(added);
        } else {
            let age = |at: &usize| self.list[*at].last_used;
            at = (0..at).min_by_key(age).expect("there are many");
            if !std::mem::replace(&mut self.list[at], added).is_used {
                self.num_unused += 1;
            }
        }
        self.mark(at);
        if self.num_unused > MAX_UNUSED {
            self.list.clear();
        }
    }

    /// Marks a sequence as the one that ran last.
    fn mark(&mut self, at: usize) -> &mut Sequence<C, G> {
        self.clock += 1;
        let last = self.last.min(self.list.len() - 1);
        self.list[last].next = at;
        self.last = at;
        self.list[at].last_used = self.clock;
        &mut self.list[at]
    }
}
