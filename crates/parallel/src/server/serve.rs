//! A server's life: answer whoever asks, until all workers have left.
//!
//! One request is taken at a time, so what a reader gets is one version. A pull whose turn has not
//! come waits here, and with it the worker; all others are heard meanwhile.

use super::shard::{Parts, Push, Shard, Taken};
use super::spread::Copies;
use super::{Answer, Ask, Request, Tag, rows};
use lockstep_comm::{Comm, CommError};
use lockstep_platform::{Deadline, World};
use lockstep_tensor::Cpu;
use std::collections::VecDeque;
use std::time::Duration;

/// Who holds the same as a server does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Nobody.
    Only,
    /// It is asked, and the member at this position gets a copy of all that changes anything.
    First {
        /// Who.
        copy: usize,
    },
    /// It is the copy of the member at this position, and is asked when that one is gone.
    Copy {
        /// Whose.
        of: usize,
    },
}

/// A server at work.
pub(super) struct Server<'a> {
    pub(super) comm: &'a Comm,
    cpu: &'a Cpu,
    world: &'a World,
    shard: &'a mut Shard,
    num_workers: usize,
    /// How long an update waits for more once one has come, and when it is closed then.
    close_after: Option<Duration>,
    closes_at: Option<Deadline>,
    /// Workers that have not left.
    pub(super) present: Vec<usize>,
    /// Those that wait for their turn, and for which step.
    waiting: VecDeque<(usize, u64)>,
    /// Who gets a copy.
    pub(super) copy: Option<usize>,
    /// Whether the one that held the same is gone.
    pub(super) is_alone: bool,
    /// Rows of other servers.
    copies: Copies,
}

/// How a server serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// How many workers it has, the first members of the group.
    pub num_workers: usize,
    /// Who holds the same.
    pub part: Part,
    /// How long an update waits for more once one has come, where it does not wait for all.
    pub close_after: Option<Duration>,
    /// Copies of other servers' rows that it keeps.
    pub num_copies: usize,
}

/// Serves workers until all of them have left.
pub fn serve(
    comm: &Comm,
    cpu: &Cpu,
    world: &World,
    shard: &mut Shard,
    terms: Terms,
) -> Result<(), CommError> {
    let Terms { num_workers, part, close_after, num_copies } = terms;
    let mut server = Server {
        comm,
        cpu,
        world,
        shard,
        num_workers,
        close_after,
        closes_at: None,
        present: (0..num_workers).collect(),
        waiting: VecDeque::new(),
        copy: if let Part::First { copy } = part { Some(copy) } else { None },
        is_alone: false,
        copies: Copies::new(num_copies),
    };
    if let Part::Copy { of } = part {
        server.follow(of)?;
    }
    server.lead()
}

impl Server<'_> {
    /// Answers workers until all have left.
    fn lead(&mut self) -> Result<(), CommError> {
        while !self.present.is_empty() {
            match self.next_worker()? {
                Some(worker) => {
                    let request = self.hear(worker)?;
                    self.answer_to(request)?;
                }
                None => drop(self.change(Request::of(Ask::Close, 0), Parts::new())?),
            }
            while let Some(turn) = self.next_turn() {
                let (worker, step) = self.waiting.remove(turn).expect("found above");
                let request = Request { step, ..Request::of(Ask::Pull, worker) };
                let version = self.change(request, Parts::new())?;
                self.answer(worker, version)?;
                let num_whole = self.shard.num_whole();
                let whole = &self.shard.read_by(worker)[..num_whole];
                send(self.comm, worker, Tag::Weights, whole)?;
            }
        }
        Ok(())
    }

    /// Who asks next; nobody if the time of an update is over before.
    fn next_worker(&mut self) -> Result<Option<usize>, CommError> {
        let (awaited, clock) = (self.awaited(), self.world.clock());
        self.closes_at = match self.close_after.filter(|_| self.shard.is_open()) {
            Some(after) => self.closes_at.or_else(|| Some(Deadline::after(clock, after))),
            None => None,
        };
        match self.closes_at {
            Some(closes_at) => {
                let patience = closes_at.remaining(clock);
                self.comm.wait_any_within(&awaited, Tag::Request as u64, patience)
            }
            None => self.comm.wait_any(&awaited, Tag::Request as u64).map(Some),
        }
    }

    /// The first of those that wait whose turn has come.
    fn next_turn(&self) -> Option<usize> {
        self.waiting.iter().position(|(_, step)| self.shard.may_read(*step))
    }

    fn answer_to(&mut self, request: Request) -> Result<(), CommError> {
        let Request { ask, worker, step, number, .. } = request;
        match ask {
            Ask::Pull => {
                // Asked once more, it has not got what it was given before.
                self.shard.forget_read(worker);
                self.waiting.push_back((worker, step));
            }
            Ask::Read => {
                self.answer(worker, self.shard.version())?;
                send(self.comm, worker, Tag::Weights, self.shard.params_mut())?;
            }
            Ask::ReadState => {
                self.answer(worker, self.shard.num_updates())?;
                self.shard.visit_state(|state| self.comm.send(state, worker, Tag::State as u64))?;
            }
            Ask::Count => {
                self.answer(worker, self.shard.version())?;
                self.comm.send(&self.shard.num_taken(), worker, Tag::Counts as u64)?;
            }
            Ask::Rows => {
                let (version, values) = rows::named(self.comm, worker, number, self.shard)?;
                self.answer(worker, version)?;
                self.comm.send(&values, worker, Tag::Weights as u64)?;
            }
            Ask::Copies => {
                let (versions, values) = self.copies.asked(self.comm, worker, number)?;
                self.answer(worker, self.shard.version())?;
                self.comm.send(&versions, worker, Tag::Counts as u64)?;
                send(self.comm, worker, Tag::Weights, &[values])?;
            }
            Ask::LeaveCopies => {
                let row_len = self.shard.row_len().expect("rows travel");
                self.copies.left(self.comm, worker, number, row_len)?;
                self.answer(worker, self.shard.version())?;
            }
            Ask::Push | Ask::Skip | Ask::Load | Ask::LoadState | Ask::Leave => {
                let content = self.content(ask, worker)?;
                let taken =
                    |shard: &Shard| ask.is_push().then(|| shard.taken(worker, number)).flatten();
                if taken(self.shard).is_none() {
                    self.change(request, content)?;
                }
                let Taken { staleness, is_discarded } = taken(self.shard).unwrap_or_default();
                let (switch, is_alone) = (self.shard.switch(), self.is_alone);
                self.tell(worker, Answer { number: staleness, is_discarded, switch, is_alone })?;
            }
            Ask::Close => unreachable!("no worker asks for it"),
        }
        Ok(())
    }

    /// Does what changes anything here, and where there is a copy, there.
    fn change(&mut self, request: Request, content: Parts) -> Result<u64, CommError> {
        self.pass_on(&request, &content)?;
        let found = self.apply(request, content);
        self.wait_for_copy()?;
        Ok(found)
    }

    /// Does what changes anything; a server and its copy do the same in the same order.
    pub(super) fn apply(&mut self, request: Request, mut content: Parts) -> u64 {
        let Request { ask, worker, step, number, is_alarm } = request;
        match ask {
            Ask::Pull => return self.shard.read(worker),
            Ask::Push | Ask::Skip => {
                let grads = (ask == Ask::Push).then_some(content);
                self.shard.push(self.cpu, Push { worker, number, step }, grads);
                if is_alarm {
                    self.shard.fall_back();
                }
            }
            Ask::Load => *self.shard.params_mut() = content,
            Ask::LoadState => {
                let mut content = content.iter_mut();
                let take = |state: &mut [f32]| {
                    state.copy_from_slice(content.next().expect("as many as were asked for"));
                    Ok::<_, CommError>(())
                };
                self.shard.visit_state(take).expect("nothing travels");
                self.shard.resume(step, number);
            }
            Ask::Leave => self.present.retain(|other| *other != worker),
            Ask::Close => {
                self.shard.close(self.cpu);
                self.closes_at = None;
            }
            Ask::Read
            | Ask::ReadState
            | Ask::Count
            | Ask::Rows
            | Ask::Copies
            | Ask::LeaveCopies => {
                unreachable!("{ask:?} changes nothing")
            }
        }
        self.shard.version()
    }

    /// Takes a request that has begun to come.
    pub(super) fn hear(&self, from: usize) -> Result<Request, CommError> {
        let mut words = [0; Request::NUM_WORDS];
        self.comm.recv(&mut words, from, Tag::Request as u64)?;
        Ok(Request::from_words(words))
    }

    /// Takes what comes with a request.
    pub(super) fn content(&mut self, ask: Ask, from: usize) -> Result<Parts, CommError> {
        let Some(tag) = ask.content() else { return Ok(Parts::new()) };
        // What a server passes on to its copy is whole.
        if ask == Ask::Push && from < self.num_workers {
            return rows::receive_grads(self.comm, from, self.shard);
        }
        let lens = match ask {
            Ask::LoadState => self.shard.state_lens(),
            _ => self.shard.params_mut().iter().map(Vec::len).collect(),
        };
        let mut parts: Parts = lens.iter().map(|len| vec![0.0; *len]).collect();
        receive(self.comm, from, tag, &mut parts)?;
        Ok(parts)
    }

    fn answer(&self, worker: usize, number: u64) -> Result<(), CommError> {
        let (switch, is_alone) = (self.shard.switch(), self.is_alone);
        self.tell(worker, Answer { number, is_discarded: false, switch, is_alone })
    }

    fn tell(&self, worker: usize, answer: Answer) -> Result<(), CommError> {
        self.comm.send(&answer.words(), worker, Tag::Answer as u64)
    }

    /// Those that may ask for something, the one in front that is to blame if nobody does: who has
    /// read first and not pushed. One that has left may say so twice, if the first time was not
    /// acknowledged.
    fn awaited(&self) -> Vec<usize> {
        let mut awaited = self.shard.at_work();
        let others = self.present.iter().copied().chain(0..self.num_workers);
        for worker in others {
            if !awaited.contains(&worker) {
                awaited.push(worker);
            }
        }
        awaited.retain(|worker| self.waiting.iter().all(|(other, _)| other != worker));
        assert!(!awaited.is_empty(), "whoever waits, waits for somebody who does not");
        awaited
    }
}

impl Ask {
    fn is_push(self) -> bool {
        matches!(self, Self::Push | Self::Skip)
    }

    /// What comes with it.
    pub(super) fn content(self) -> Option<Tag> {
        match self {
            Self::Push => Some(Tag::Gradients),
            Self::Load => Some(Tag::Weights),
            Self::LoadState => Some(Tag::State),
            _ => None,
        }
    }
}

/// Sends every part that has anything in it.
pub(super) fn send(comm: &Comm, to: usize, tag: Tag, parts: &[Vec<f32>]) -> Result<(), CommError> {
    let mut parts = parts.iter().filter(|part| !part.is_empty());
    parts.try_for_each(|part| comm.send(part, to, tag as u64))
}

fn receive(comm: &Comm, from: usize, tag: Tag, parts: &mut Parts) -> Result<(), CommError> {
    let mut parts = parts.iter_mut().filter(|part| !part.is_empty());
    parts.try_for_each(|part| comm.recv(part, from, tag as u64))
}
