//! Steps with parameter servers (Li et al. 2014): workers pull shards of the weights and push
//! gradients; servers step their shards.
//!
//! A worker's forward pass of a block waits only for the parts of its bucket, and the parts of a
//! bucket of gradients leave once backward has filled it, unless the norm of all gradients is
//! needed first: the first layers are pulled first, and the last ones are pushed first. In
//! asynchronous modes nothing joins workers: a server's program lists one order of arrival, and any
//! other order has the same tasks.
//!
//! - `worker`: pull, passes, push, and host groups in front of the servers
//! - `server`: primaries and backups

mod server;
mod worker;

pub(crate) use server::server_program;
pub(crate) use worker::worker_program;

use super::RankPlan;
use crate::parameter_server::row_table::RowTable;
use crate::parameter_server::{
    ACKNOWLEDGEMENT_LEN, PushCompression, REPLY_LEN, REQUEST_LEN, RowRequests, ShardLayout,
    TransferOrder,
};
use lockstep_config::units::Bytes;
use lockstep_config::{Consistency, Recipe};
use lockstep_mesh::Axis;
use lockstep_model::Blueprint;
use lockstep_optim::Optimizer;
use lockstep_schedule::step::{Message, MessageKind, Queue, ServerCall, TaskOp};
use std::collections::BTreeMap;
use std::ops::Range;

const LINK: Queue = Queue::Link(Axis::Data);

/// Bytes of elements: counts and versions, weights and rows' indices, compressed messages.
const WIDE: u32 = 8;
const NARROW: u32 = 4;
const BYTE: u32 = 1;

/// Step of a run with parameter servers.
#[expect(clippy::struct_excessive_bools, reason = "independent properties of a step")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct ServerStep {
    /// The first worker sends the initial weights before the step.
    pub loads: bool,
    /// Workers read the weights after the step for a checkpoint, the first one also the optimizer
    /// state.
    pub saves: bool,
    /// An update has the gradients of all workers.
    pub is_joint: bool,
    /// The step was over when this worker had pulled, so that it pushes nothing.
    pub is_missed: bool,
    /// As few embedding rows as possible are sent, instead of as many as possible.
    pub has_least_rows: bool,
}

impl ServerStep {
    /// Step of a recipe.
    pub(crate) fn at(recipe: &Recipe, step: u64) -> Self {
        let (keys, steps) = (&recipe.sync.server, recipe.train.steps);
        let is_joint = matches!(keys.consistency, Consistency::Sync | Consistency::Elastic);
        Self {
            loads: step == 0,
            saves: step + 1 < steps && recipe.is_due_every(recipe.checkpoint.every, step + 1),
            is_joint: is_joint || step >= switch_at(recipe),
            ..Self::default()
        }
    }

    /// Steps of a run with their numbers.
    pub(crate) fn of_run(recipe: &Recipe) -> BTreeMap<Self, u64> {
        let (steps, every) = (recipe.train.steps.max(1), recipe.checkpoint.every);
        let mut counts = BTreeMap::new();
        let mut add = |step: Self, count: u64| {
            if count > 0 {
                *counts.entry(step).or_insert(0) += count;
            }
        };
        add(Self::at(recipe, 0), 1);
        let middle = switch_at(recipe).clamp(1, steps);
        for Range { start, end } in [1..middle, middle..steps] {
            if start == end {
                continue;
            }
            // The last step of a run is not saved.
            let due = |num_steps: u64| num_steps.min(steps - 1).checked_div(every).unwrap_or(0);
            let num_saves = due(end) - due(start);
            let plain = Self { saves: false, ..Self::at(recipe, start) };
            add(Self { saves: true, ..plain }, num_saves);
            add(plain, end - start - num_saves);
        }
        counts
    }
}

/// First step whose update has the gradients of all workers, where earlier ones have not.
fn switch_at(recipe: &Recipe) -> u64 {
    (recipe.sync.server.switch_to_sync_after * recipe.train.steps as f64).round() as u64
}

/// Division of a model among parameter servers.
pub(crate) struct ServerPlan<'a> {
    recipe: &'a Recipe,
    layout: ShardLayout,
    step: ServerStep,
    /// Which transfers overlap with passes.
    order: TransferOrder,
    compression: Option<PushCompression>,
    /// Elements of optimizer state of each shard.
    state_lens: Vec<usize>,
    /// Tokens that each pushing worker's host group may look up in a step.
    tokens: Vec<usize>,
}

/// Embedding rows of a worker's step, by server.
struct RowCounts {
    /// Pulled from their owner.
    pulled: Vec<usize>,
    /// Looked up in the replicas of the home server, and pulled from their owner since none was
    /// fresh.
    replicated: Vec<usize>,
    /// Pushed.
    pushed: Vec<usize>,
}

impl<'a> ServerPlan<'a> {
    /// Plan of a step; `tokens` are those of each worker's micro-batches.
    pub(crate) fn new(
        recipe: &'a Recipe,
        blueprint: &Blueprint,
        step: ServerStep,
        tokens: &[usize],
    ) -> Self {
        let (layout, num_servers) = (ShardLayout::of(recipe, blueprint), recipe.num_servers());
        let state_len = |server: usize| {
            let slots = layout.slots(blueprint, server);
            let stepped: usize = slots.iter().map(|slot| slot.range.len()).sum();
            stepped * Optimizer::num_states(recipe.optim.name)
        };
        Self {
            state_lens: (0..num_servers).map(state_len).collect(),
            tokens: tokens.chunks(group_len(recipe)).map(|group| group.iter().sum()).collect(),
            order: TransferOrder::of(recipe, !layout.ranges.mirrors.is_empty()),
            compression: PushCompression::of(recipe),
            recipe,
            layout,
            step,
        }
    }

    fn num_servers(&self) -> usize {
        self.recipe.num_servers()
    }

    /// Rank of the primary of a shard.
    fn primary(&self, server: usize) -> u32 {
        (self.recipe.run.workers + server) as u32
    }

    /// Ranks of the workers that pull and push.
    fn pushers(&self) -> impl Iterator<Item = usize> + use<> {
        (0..self.recipe.run.workers).step_by(group_len(self.recipe))
    }

    /// Parts of a shard that are sent whole: bucket and range.
    fn parts(&self, server: usize) -> impl Iterator<Item = (usize, Range<usize>)> + '_ {
        let parts = self.layout.ranges.list.iter().map(move |bucket| bucket.part(server));
        parts.enumerate().filter(|(_, range)| !range.is_empty())
    }

    /// Shards with a part of a bucket, and its length.
    fn shards_of(&self, bucket: usize) -> Vec<(usize, usize)> {
        let len = |server: usize| (server, self.layout.ranges.list[bucket].part(server).len());
        (0..self.num_servers()).map(len).filter(|(_, len)| *len > 0).collect()
    }

    /// Elements of a shard's embedding rows, which are its last part.
    fn rows_len(&self, server: usize) -> usize {
        self.layout.rows.as_ref().map_or(0, |rows| rows.len_on(server))
    }

    /// Number of the part of embedding rows.
    fn rows_part(&self) -> usize {
        self.layout.ranges.list.len()
    }

    /// Elements of an embedding row.
    fn row_len(&self) -> usize {
        self.layout.rows.as_ref().map_or(0, RowTable::row_len)
    }

    /// Length and bytes of an element of a pushed part: compressed where that is shorter.
    fn pushed(&self, len: usize) -> (usize, u32) {
        let bytes = self.compression.and_then(|compression| compression.message_len(len));
        bytes.map_or((len, NARROW), |bytes| (bytes, BYTE))
    }

    fn is_compressed(&self, len: usize) -> bool {
        self.pushed(len).1 == BYTE
    }

    /// Embedding rows of a pushing worker's step, as few or as many as its tokens and caches allow.
    /// The number of requests is largest where the rows are spread over all servers.
    fn rows(&self, pusher: usize) -> Option<RowCounts> {
        let table = self.layout.rows.as_ref()?;
        let held: Vec<usize> = (0..self.num_servers()).map(|s| table.rows_on(s).len()).collect();
        if self.step.has_least_rows {
            let none = vec![0; held.len()];
            return Some(RowCounts {
                pulled: none.clone(),
                replicated: none.clone(),
                pushed: none,
            });
        }
        let pushed = spread(self.tokens[pusher], &held);
        let capacity = self.recipe.sync.server.rows.replicated.min(self.tokens[pusher]);
        let mut elsewhere = held.clone();
        elsewhere[self.home(pusher)] = 0;
        let replicated = spread(capacity, &elsewhere);
        let num_at_once = pushed.iter().sum::<usize>() - replicated.iter().sum::<usize>();
        let at_once = spread(num_at_once, &held);
        let pulled = at_once.iter().zip(&pushed).map(|(rows, all)| (*rows).max((*all).min(1)));
        Some(RowCounts { pulled: pulled.collect(), replicated, pushed })
    }

    /// Server whose replicas of rows a worker pulls.
    fn home(&self, pusher: usize) -> usize {
        pusher % self.num_servers()
    }
}

/// Spreads a number evenly over places of limited capacity, as much of it as fits.
fn spread(number: usize, capacities: &[usize]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..capacities.len()).collect();
    order.sort_by_key(|place| capacities[*place]);
    let (mut left, mut parts) = (number, vec![0; capacities.len()]);
    for (done, place) in order.into_iter().enumerate() {
        parts[place] = left.div_ceil(capacities.len() - done).min(capacities[place]);
        left -= parts[place];
    }
    parts
}

/// Workers of a host group.
fn group_len(recipe: &Recipe) -> usize {
    recipe.run.workers / recipe.num_pushers()
}

/// Tokens of each worker's micro-batches.
pub(crate) fn tokens_by_worker(at: &RankPlan<'_>) -> Vec<usize> {
    let assignment = at.plan.leaf_assignment();
    let num = |worker| assignment.microbatches_of(worker, at.plan.leaves).len();
    (0..at.plan.shares.len()).map(|worker| num(worker) * at.plan.microbatch.rows()).collect()
}

fn message(kind: MessageKind, peer: u32, len: usize, element: u32) -> Message {
    Message { kind, peer, len: len as u64, element }
}

fn request(call: ServerCall, peer: u32) -> Message {
    message(MessageKind::Request(call), peer, REQUEST_LEN, WIDE)
}

fn reply(call: ServerCall, peer: u32) -> Message {
    message(MessageKind::Reply(call), peer, REPLY_LEN, WIDE)
}

fn values(call: ServerCall, part: usize, peer: u32, len: usize, element: u32) -> Message {
    message(MessageKind::Values { call, part: part as u32 }, peer, len, element)
}

/// Messages about embedding rows, from the worker's side: those that follow the request, and those
/// that follow the reply.
fn row_messages(
    call: ServerCall,
    first_part: usize,
    (rows, row_len): (usize, usize),
) -> [Vec<(usize, usize, u32)>; 2] {
    let part = |number: usize| first_part + number;
    match call {
        ServerCall::Rows => {
            [vec![(part(0), rows, NARROW)], vec![(part(1), rows * row_len, NARROW)]]
        }
        ServerCall::RowReplicas => {
            [vec![(part(0), rows, NARROW), (part(1), rows, WIDE)], vec![(part(2), rows, WIDE)]]
        }
        ServerCall::StoreRowReplicas => {
            let values = (part(2), rows * row_len, NARROW);
            [vec![(part(0), rows, NARROW), (part(1), rows, WIDE), values], vec![]]
        }
        // The number of rows, and where there are any their places and values.
        _ => {
            let number = (part(0), 1, WIDE);
            let rows = [(part(1), rows, NARROW), (part(2), rows * row_len, NARROW)];
            let rows = rows.into_iter().filter(|(_, len, _)| *len > 0);
            [[number].into_iter().chain(rows).collect(), vec![]]
        }
    }
}

/// Bytes of the messages about rows of a worker, beyond those of steps with the least rows.
pub fn row_request_bytes(requests: RowRequests, recipe: &Recipe, blueprint: &Blueprint) -> Bytes {
    let rows = ShardLayout::of(recipe, blueprint).rows;
    let row_len = rows.as_ref().map_or(0, RowTable::row_len);
    let messages = |call, rows: u64| -> u64 {
        let both = row_messages(call, 0, (rows as usize, row_len)).concat();
        both.iter().map(|(_, len, element)| *len as u64 * u64::from(*element)).sum()
    };
    let RowRequests { requests, pulled, looked_up, replicated, pushed } = requests;
    let empty = requests * u64::from(WIDE) * (REQUEST_LEN + REPLY_LEN) as u64;
    let pulls = messages(ServerCall::Rows, pulled)
        + messages(ServerCall::RowReplicas, looked_up)
        + replicated * row_len as u64 * u64::from(NARROW)
        + messages(ServerCall::StoreRowReplicas, looked_up - replicated);
    // A push says how many rows it has also if there are none.
    let pushes = messages(ServerCall::Push, pushed) - messages(ServerCall::Push, 0);
    Bytes(empty + pulls + pushes)
}

fn send(message: Message) -> TaskOp {
    TaskOp::Send(message)
}

fn recv(message: Message) -> TaskOp {
    TaskOp::Recv(message)
}
