//! Request loop of a parameter server.
//!
//! Requests are handled one at a time, so a reader gets one version. A pull that may not read yet
//! waits here, and with it its worker; other requests are handled meanwhile.

use super::replicated_rows::RowReplicas;
use super::shard::{Push, Shard};
use super::{Parts, PushCounts, Reply, Request, RequestKind, Tag, row_table};
use lockstep_comm::{Comm, CommError};
use lockstep_platform::{Deadline, World};
use lockstep_tensor::Cpu;
use std::collections::VecDeque;
use std::time::Duration;

/// Role of a server in its replication pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// No replication.
    Sole,
    /// Primary: handles requests and forwards every change to its backup.
    Primary {
        /// Rank of the backup.
        backup: usize,
    },
    /// Backup: handles requests once its primary is lost.
    Backup {
        /// Rank of the primary.
        primary: usize,
    },
}

/// A running server.
pub(super) struct Server<'a> {
    pub(super) comm: &'a Comm,
    cpu: &'a Cpu,
    world: &'a World,
    shard: &'a mut Shard,
    num_workers: usize,
    /// Time that an update waits for more gradients after the first, and the resulting deadline.
    close_after: Option<Duration>,
    closes_at: Option<Deadline>,
    /// Workers that have not left.
    pub(super) active_workers: Vec<usize>,
    /// Pulls of workers that wait to read.
    waiting: VecDeque<Request>,
    /// Parts of each worker's gradient that its next push applies.
    staged: Vec<Parts>,
    /// Rank of the backup.
    pub(super) backup: Option<usize>,
    /// Whether the primary or backup is lost.
    pub(super) has_lost_peer: bool,
    /// Replicas of other servers' rows.
    row_replicas: RowReplicas,
}

/// Settings of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServeOptions {
    /// Number of workers, the first ranks of the group.
    pub num_workers: usize,
    /// Role in its replication pair.
    pub role: Role,
    /// Time that an update waits for more gradients after the first, in elastic mode.
    pub close_after: Option<Duration>,
    /// Number of row replicas of other servers that it stores.
    pub num_row_replicas: usize,
}

/// Serves workers until all of them have left.
pub fn serve(
    comm: &Comm,
    cpu: &Cpu,
    world: &World,
    shard: &mut Shard,
    options: ServeOptions,
) -> Result<(), CommError> {
    let ServeOptions { num_workers, role, close_after, num_row_replicas } = options;
    let mut server = Server {
        comm,
        cpu,
        world,
        shard,
        num_workers,
        close_after,
        closes_at: None,
        active_workers: (0..num_workers).collect(),
        waiting: VecDeque::new(),
        staged: vec![Parts::new(); num_workers],
        backup: if let Role::Primary { backup } = role { Some(backup) } else { None },
        has_lost_peer: false,
        row_replicas: RowReplicas::new(num_row_replicas),
    };
    if let Role::Backup { primary } = role {
        server.follow(primary)?;
    }
    server.serve_workers()
}

impl Server<'_> {
    /// Handles requests until all workers have left.
    fn serve_workers(&mut self) -> Result<(), CommError> {
        while !self.active_workers.is_empty() {
            match self.next_worker()? {
                Some(worker) => {
                    let request = self.recv_request(worker)?;
                    self.handle(request)?;
                }
                None => drop(self.change(Request::of(RequestKind::Close, 0), Parts::new())?),
            }
            while let Some(ready) = self.next_ready() {
                let pull = self.waiting.remove(ready).expect("found above");
                let Request { kind, worker, .. } = pull;
                let pull = Request { kind: RequestKind::Pull, ..pull };
                let version = self.change(pull, Parts::new())?;
                self.reply(worker, version)?;
                if kind == RequestKind::PullByParts {
                    self.shard.begin_parts(worker);
                    continue;
                }
                let num_whole = self.shard.num_whole();
                let whole = &self.shard.read_by(worker)[..num_whole];
                send(self.comm, worker, Tag::Weights, whole)?;
            }
        }
        Ok(())
    }

    /// Worker with the next request; `None` if the pending update's deadline comes first.
    fn next_worker(&mut self) -> Result<Option<usize>, CommError> {
        let (expected_senders, clock) = (self.expected_senders(), self.world.clock());
        self.closes_at = match self.close_after.filter(|_| self.shard.is_open()) {
            Some(after) => self.closes_at.or_else(|| Some(Deadline::after(clock, after))),
            None => None,
        };
        match self.closes_at {
            Some(closes_at) => {
                let remaining = closes_at.remaining(clock);
                self.comm.wait_any_within(&expected_senders, Tag::Request as u64, remaining)
            }
            None => self.comm.wait_any(&expected_senders, Tag::Request as u64).map(Some),
        }
    }

    /// First waiting worker that may read.
    fn next_ready(&self) -> Option<usize> {
        self.waiting.iter().position(|pull| self.shard.may_read(pull.step))
    }

    fn handle(&mut self, request: Request) -> Result<(), CommError> {
        let Request { kind, worker, number, .. } = request;
        match kind {
            RequestKind::Pull | RequestKind::PullByParts => {
                // A repeated pull: the reply to the first was lost.
                self.shard.forget_read(worker);
                self.waiting.push_back(request);
            }
            RequestKind::PullPart => {
                let part = self.shard.read_part(worker, number as usize);
                self.comm.send_each(&[(worker, part)], Tag::Weights as u64)?;
            }
            RequestKind::PushPart => self.stage_part(worker, number as usize)?,
            RequestKind::Read => {
                self.reply(worker, self.shard.version())?;
                send(self.comm, worker, Tag::Weights, self.shard.params_mut())?;
            }
            RequestKind::ReadState => {
                self.reply(worker, self.shard.num_updates())?;
                self.shard.visit_state(|state| self.comm.send(state, worker, Tag::State as u64))?;
            }
            RequestKind::Count => {
                let message = PushCounts::message(self.shard.push_counts());
                self.reply(worker, message.len() as u64)?;
                self.comm.send(&message, worker, Tag::Counts as u64)?;
            }
            RequestKind::Rows => {
                let (version, values) =
                    row_table::read_rows(self.comm, worker, number, self.shard)?;
                self.reply(worker, version)?;
                self.comm.send(&values, worker, Tag::Weights as u64)?;
            }
            RequestKind::RowReplicas => {
                let (versions, values) = self.row_replicas.look_up(self.comm, worker, number)?;
                self.reply(worker, self.shard.version())?;
                self.comm.send(&versions, worker, Tag::Counts as u64)?;
                send(self.comm, worker, Tag::Weights, &[values])?;
            }
            RequestKind::StoreRowReplicas => {
                let row_len = self.shard.row_len().expect("row requests require a row table");
                self.row_replicas.store(self.comm, worker, number, row_len)?;
                self.reply(worker, self.shard.version())?;
            }
            RequestKind::Push
            | RequestKind::Skip
            | RequestKind::Load
            | RequestKind::LoadState
            | RequestKind::Leave => {
                let payload = self.payload(kind, worker)?;
                self.staged.get_mut(worker).into_iter().for_each(Vec::clear);
                if !kind.is_push() || !self.shard.has_taken(worker, number) {
                    self.change(request, payload)?;
                }
                self.reply(worker, self.shard.version())?;
            }
            RequestKind::Close => unreachable!("only a primary sends it"),
        }
        Ok(())
    }

    /// Applies a change here and, if there is one, on the backup.
    fn change(&mut self, request: Request, payload: Parts) -> Result<u64, CommError> {
        self.forward_to_backup(&request, &payload)?;
        let found = self.apply(request, payload);
        self.wait_for_backup()?;
        Ok(found)
    }

    /// Applies a change; a primary and its backup apply the same changes in the same order.
    pub(super) fn apply(&mut self, request: Request, mut payload: Parts) -> u64 {
        let Request { kind, worker, step, number, is_alarm } = request;
        match kind {
            RequestKind::Pull => return self.shard.read(worker),
            RequestKind::Push | RequestKind::Skip => {
                let grads = (kind == RequestKind::Push).then_some(payload);
                self.shard.push(self.cpu, Push { worker, number, step }, grads);
                if is_alarm {
                    self.shard.switch_to_sync();
                }
            }
            RequestKind::Load => *self.shard.params_mut() = payload,
            RequestKind::LoadState => {
                let mut payload = payload.iter_mut();
                let take = |state: &mut [f32]| {
                    state.copy_from_slice(payload.next().expect("one piece for each state"));
                    Ok::<_, CommError>(())
                };
                self.shard.visit_state(take).expect("copying cannot fail");
                self.shard.resume(step, number);
            }
            RequestKind::Leave => self.active_workers.retain(|other| *other != worker),
            RequestKind::Close => {
                self.shard.close(self.cpu);
                self.closes_at = None;
            }
            RequestKind::Read
            | RequestKind::ReadState
            | RequestKind::Count
            | RequestKind::Rows
            | RequestKind::RowReplicas
            | RequestKind::StoreRowReplicas
            | RequestKind::PullByParts
            | RequestKind::PullPart
            | RequestKind::PushPart => {
                unreachable!("{kind:?} changes nothing")
            }
        }
        self.shard.version()
    }

    /// Receives a request.
    pub(super) fn recv_request(&self, from: usize) -> Result<Request, CommError> {
        let mut fields = [0; Request::NUM_FIELDS];
        self.comm.recv(&mut fields, from, Tag::Request as u64)?;
        Ok(Request::from_fields(fields))
    }

    /// Receives the payload of a request.
    pub(super) fn payload(&mut self, kind: RequestKind, from: usize) -> Result<Parts, CommError> {
        let Some(tag) = kind.payload() else { return Ok(Parts::new()) };
        // A primary forwards payloads decoded.
        if kind == RequestKind::Push && from < self.num_workers {
            let staged = std::mem::take(&mut self.staged[from]);
            return row_table::receive_grads(self.comm, from, self.shard, staged);
        }
        let lens = match kind {
            RequestKind::LoadState => self.shard.state_lens(),
            _ => self.shard.params_mut().iter().map(Vec::len).collect(),
        };
        let mut parts: Parts = lens.iter().map(|len| vec![0.0; *len]).collect();
        receive(self.comm, from, tag, &mut parts)?;
        Ok(parts)
    }

    /// Receives a part of a worker's gradient, for its next push.
    fn stage_part(&mut self, worker: usize, part: usize) -> Result<(), CommError> {
        let params = self.shard.params_mut();
        let staged = &mut self.staged[worker];
        staged.resize(params.len(), Vec::new());
        staged[part] = vec![0.0; params[part].len()];
        self.comm.recv_each(&mut [(worker, &mut staged[part])], Tag::Gradients as u64)
    }

    fn reply(&self, worker: usize, number: u64) -> Result<(), CommError> {
        let (switch, has_lost_peer) = (self.shard.switch(), self.has_lost_peer);
        let reply = Reply { number, switch, has_lost_peer };
        self.comm.send(&reply.fields(), worker, Tag::Reply as u64)
    }

    /// Workers that may send a request. The first is the one to blame on a timeout: it has read
    /// first and not pushed. One that has left may repeat that request if its acknowledgement was
    /// lost.
    fn expected_senders(&self) -> Vec<usize> {
        let mut expected_senders = self.shard.computing_workers();
        let others = self.active_workers.iter().copied().chain(0..self.num_workers);
        for worker in others {
            if !expected_senders.contains(&worker) {
                expected_senders.push(worker);
            }
        }
        expected_senders.retain(|worker| self.waiting.iter().all(|pull| pull.worker != *worker));
        assert!(!expected_senders.is_empty(), "some worker is not waiting");
        expected_senders
    }
}

impl RequestKind {
    fn is_push(self) -> bool {
        matches!(self, Self::Push | Self::Skip)
    }

    /// Tag of its payload.
    pub(super) fn payload(self) -> Option<Tag> {
        match self {
            Self::Push => Some(Tag::Gradients),
            Self::Load => Some(Tag::Weights),
            Self::LoadState => Some(Tag::State),
            _ => None,
        }
    }
}

/// Sends every part that is not empty.
pub(super) fn send(comm: &Comm, to: usize, tag: Tag, parts: &[Vec<f32>]) -> Result<(), CommError> {
    let mut parts = parts.iter().filter(|part| !part.is_empty());
    parts.try_for_each(|part| comm.send(part, to, tag as u64))
}

fn receive(comm: &Comm, from: usize, tag: Tag, parts: &mut Parts) -> Result<(), CommError> {
    let mut parts = parts.iter_mut().filter(|part| !part.is_empty());
    parts.try_for_each(|part| comm.recv(part, from, tag as u64))
}

#[cfg(test)]
mod tests;
