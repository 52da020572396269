//! State and event loop of a simulated collective: current rounds, messages in flight, failures.

use super::compiled::{CompiledSchedule, Message};
use super::queue::Queue;

/// A collective under simulation.
pub(super) struct Simulation<'a> {
    pub(super) compiled: &'a CompiledSchedule,
    pub(super) queue: Queue,
    /// Current round of each rank.
    round: Vec<usize>,
    /// Incomplete messages of that round.
    num_open: Vec<u32>,
    /// Messages with one end posted.
    is_posted: Vec<bool>,
    /// Completion time of each rank.
    pub(super) ends: Vec<f64>,
    /// Failure time of each rank; a missing entry means never.
    failures: Vec<f64>,
}

impl<'a> Simulation<'a> {
    pub(super) fn new(compiled: &'a CompiledSchedule, failures: Vec<f64>) -> Self {
        let (num_ranks, num_messages) = (compiled.num_ranks(), compiled.messages.len());
        Self {
            compiled,
            queue: Queue::default(),
            round: vec![0; num_ranks],
            num_open: vec![0; num_ranks],
            is_posted: vec![false; num_messages],
            ends: vec![f64::INFINITY; num_ranks],
            failures,
        }
    }

    /// Schedules a rank's entry into the collective.
    pub(super) fn enter(&mut self, rank: usize, time: f64) {
        self.queue.push(time, (self.compiled.messages.len() + rank) as u32);
    }

    /// Whether a rank has failed.
    fn has_failed(&self, rank: usize, now: f64) -> bool {
        self.failures.get(rank).is_some_and(|failure| now > *failure)
    }

    /// Runs to the end over links on which messages do not affect each other; returns the number
    /// of events.
    pub(super) fn run(&mut self, seconds: impl Fn(&Message) -> f64) -> u64 {
        let compiled = self.compiled;
        let mut num_events = 0;
        let mut started = Vec::new();
        while let Some((now, event)) = self.queue.pop() {
            num_events += 1;
            match compiled.messages.get(event as usize) {
                Some(message) => self.arrive(message, now, &mut started),
                None => self.post(event as usize - compiled.messages.len(), now, &mut started),
            }
            for number in started.drain(..) {
                self.queue.push(now + seconds(&compiled.messages[number as usize]), number);
            }
        }
        num_events
    }

    /// Completes a message at both ends.
    pub(super) fn arrive(&mut self, message: &Message, now: f64, started: &mut Vec<u32>) {
        let ends = [message.source as usize, message.target as usize];
        if ends.iter().any(|rank| self.has_failed(*rank, now)) {
            return;
        }
        for rank in ends {
            self.num_open[rank] -= 1;
            if self.num_open[rank] == 0 {
                self.round[rank] += 1;
                self.post(rank, now, started);
            }
        }
    }

    /// Posts a rank's next round; messages whose other end was already posted start now.
    pub(super) fn post(&mut self, rank: usize, now: f64, started: &mut Vec<u32>) {
        let compiled = self.compiled;
        if self.has_failed(rank, now) {
            return;
        }
        loop {
            let Some(&(start, end)) = compiled.rounds[rank].get(self.round[rank]) else {
                self.ends[rank] = now;
                return;
            };
            if start == end {
                self.round[rank] += 1;
                continue;
            }
            self.num_open[rank] = end - start;
            for &number in &compiled.message_indices[start as usize..end as usize] {
                if std::mem::replace(&mut self.is_posted[number as usize], true) {
                    started.push(number);
                }
            }
            return;
        }
    }
}
