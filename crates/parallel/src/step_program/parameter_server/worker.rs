//! Program of a worker: pull, passes, push.

use super::super::{Replay, pair_numbers};
use super::{
    LINK, NARROW, RankPlan, ServerPlan, ServerStep, group_len, recv, reply, request, row_messages,
    send, tokens_by_worker, values,
};
use crate::parameter_server::TransferOrder;
use lockstep_config::units::Bytes;
use lockstep_config::{Consistency, Recipe};
use lockstep_mesh::Axis;
use lockstep_schedule::step::{
    BufferId, Builder, Call, CommGroup, Contents, Lengths, Message, Program, Queue, ServerCall,
    TaskId, TaskOp, Use,
};
use lockstep_schedule::{Contributions, Op};
use std::collections::BTreeMap;
use std::ops::Range;

/// Program of a worker's step.
pub(crate) fn worker_program(at: &RankPlan<'_>, recipe: &Recipe, step: ServerStep) -> Program {
    let servers = ServerPlan::new(recipe, at.blueprint, step, &tokens_by_worker(at));
    let passes = if step.is_missed { Builder::new(at.rank).finish() } else { at.passes() };
    let mut worker = Worker::new(at, &servers, &passes);
    if step.loads {
        worker.load();
    }
    if step.is_missed {
        worker.pull();
    } else {
        worker.pull_and_push(&passes);
    }
    if step.saves {
        worker.save();
    }
    worker.replay.tasks.finish()
}

/// Program under construction.
struct Worker<'a> {
    at: &'a RankPlan<'a>,
    servers: &'a ServerPlan<'a>,
    replay: Replay<'a>,
    /// Group of all workers, and the host group where it has several.
    all: u32,
    host: Option<u32>,
    group: Range<usize>,
}

impl<'a> Worker<'a> {
    fn new(at: &'a RankPlan<'a>, servers: &'a ServerPlan<'a>, passes: &'a Program) -> Self {
        let mut replay = Replay::new(passes, at.rank);
        let tasks = &mut replay.tasks;
        let mut group_of = |ranks: Range<usize>| {
            let contributions = Contributions::one_each(ranks.len());
            let ranks = ranks.collect();
            tasks.group(CommGroup { axis: Axis::Data, ranks, contributions })
        };
        let len = group_len(servers.recipe);
        let first = at.rank / len * len;
        let all = group_of(0..servers.recipe.run.workers);
        let host = (len > 1).then(|| group_of(first..first + len));
        let num_buckets = (at.buckets.list.len(), servers.layout.ranges.list.len());
        assert_eq!(num_buckets.0, num_buckets.1, "servers use the worker's buckets");
        Self { at, servers, replay, all, host, group: first..first + len }
    }

    fn is_pusher(&self) -> bool {
        self.at.rank == self.group.start
    }

    /// Index among the workers that push.
    fn pusher(&self) -> usize {
        self.at.rank / self.group.len()
    }

    fn params(&mut self, buckets: &[usize]) -> Vec<BufferId> {
        buckets.iter().map(|bucket| self.replay.params(self.at, *bucket)).collect()
    }

    fn grads(&mut self, buckets: &[usize]) -> Vec<BufferId> {
        buckets.iter().filter_map(|bucket| self.replay.grads(self.at, *bucket)).collect()
    }

    fn link(&mut self, op: TaskOp, mode: Use, buffers: &[BufferId]) {
        self.guarded_link(op, mode, buffers, None);
    }

    /// Adds a message that a worker sends only if a norm allows it.
    fn guarded_link(&mut self, op: TaskOp, mode: Use, buffers: &[BufferId], norm: Option<TaskId>) {
        let mut task = self.replay.tasks.task(op, LINK);
        for &buffer in buffers {
            task = task.access(lockstep_schedule::step::Access { buffer, mode });
        }
        if let Some(norm) = norm {
            task.guarded_by(norm);
        }
    }

    fn collective(&mut self, op: TaskOp, queue: Queue, call: Call, updated: &[BufferId]) {
        let mut task = self.replay.tasks.task(op, queue).calls(call);
        for buffer in updated {
            task = task.updates(*buffer);
        }
    }

    fn barrier(&mut self) {
        let (op, lengths) = (Op::Barrier, Lengths::Even(0));
        let call = Call { group: self.all, op, lengths, element: Bytes(1) };
        self.collective(TaskOp::Barrier, Queue::Control, call, &[]);
    }

    /// Sends the initial weights to the servers, on the first worker.
    fn load(&mut self) {
        if self.at.rank == 0 {
            for server in 0..self.servers.num_servers() {
                let peer = self.servers.primary(server);
                self.link(send(request(ServerCall::Load, peer)), Use::Read, &[]);
                self.whole_shard(server, ServerCall::Load, send, Use::Read);
                self.link(recv(reply(ServerCall::Load, peer)), Use::Read, &[]);
            }
        }
        self.barrier();
    }

    /// Messages with all parameters of a shard.
    fn whole_shard(
        &mut self,
        server: usize,
        call: ServerCall,
        op: fn(Message) -> TaskOp,
        mode: Use,
    ) {
        self.parts_of_shard(server, call, op, mode);
        let len = self.servers.rows_len(server);
        if len > 0 {
            let table = self.params(&[self.at.buckets.of_block(0)]);
            let peer = self.servers.primary(server);
            self.link(op(values(call, self.servers.rows_part(), peer, len, NARROW)), mode, &table);
        }
    }

    fn parts_of_shard(
        &mut self,
        server: usize,
        call: ServerCall,
        op: fn(Message) -> TaskOp,
        mode: Use,
    ) {
        let peer = self.servers.primary(server);
        for part in self.servers.parts(server).collect::<Vec<_>>() {
            let params = self.params(&[part.0]);
            self.link(op(values(call, part.0, peer, part.1.len(), NARROW)), mode, &params);
        }
    }

    /// Pulls all shards, first layers first, and shares them within the host group.
    fn pull(&mut self) {
        self.gather_batch_rows();
        let rows = self.servers.rows(self.pusher());
        let mut marks = self.stale_copies();
        for server in self.pulled_shards() {
            let peer = self.servers.primary(server);
            self.link(send(request(ServerCall::Pull, peer)), Use::Read, &[]);
            let mut news = std::mem::take(&mut marks);
            if !self.servers.step.is_missed {
                news.push(self.replay.tasks.buffer(Contents::Version { shard: server as u32 }, 1));
            }
            self.link(recv(reply(ServerCall::Pull, peer)), Use::Write, &news);
            if !self.servers.order.pulls_parts {
                self.parts_of_shard(server, ServerCall::Pull, recv, Use::Update);
            }
            if let Some(rows) = &rows {
                self.row_request(ServerCall::Rows, server, rows.pulled[server]);
            }
        }
        if let Some(rows) = rows.filter(|_| self.is_pusher()) {
            self.pull_replicated(&rows.replicated);
        }
        if self.servers.order.pulls_parts && !self.servers.step.is_missed {
            (0..self.at.buckets.list.len()).for_each(|bucket| self.pull_bucket(bucket));
        }
        self.share_weights(&marks);
    }

    /// Pulls a bucket from all servers at once.
    fn pull_bucket(&mut self, bucket: usize) {
        let params = self.params(&[bucket]);
        let shards = self.servers.shards_of(bucket);
        for (server, _) in &shards {
            let call = ServerCall::PullPart(bucket as u32);
            let request = request(call, self.servers.primary(*server));
            self.link(send(request), Use::Read, &[]);
        }
        for (server, len) in shards {
            let peer = self.servers.primary(server);
            let op = recv(values(ServerCall::Pull, bucket, peer, len, NARROW));
            self.link(op, Use::Update, &params);
        }
    }

    /// Shards that this worker pulls and pushes itself.
    fn pulled_shards(&self) -> Range<usize> {
        0..if self.is_pusher() { self.servers.num_servers() } else { 0 }
    }

    /// Marks of tied copies that a pull makes stale.
    fn stale_copies(&mut self) -> Vec<BufferId> {
        let is_missed = self.servers.step.is_missed;
        let pairs = self.local_mirrors().into_iter().filter(|_| !is_missed);
        let mark = |(.., pair): (usize, usize, u32)| {
            self.replay.tasks.buffer(Contents::StaleCopy { pair }, 0)
        };
        pairs.map(mark).collect()
    }

    /// Looks up frequent rows in the replicas of the home server, pulls them from their owners and
    /// stores replicas.
    fn pull_replicated(&mut self, rows: &[usize]) {
        let (home, number) = (self.servers.home(self.pusher()), rows.iter().sum());
        self.row_request(ServerCall::RowReplicas, home, number);
        for (owner, &rows) in rows.iter().enumerate() {
            self.row_request(ServerCall::Rows, owner, rows);
        }
        self.row_request(ServerCall::StoreRowReplicas, home, number);
    }

    fn row_request(&mut self, call: ServerCall, server: usize, rows: usize) {
        if rows == 0 {
            return;
        }
        let peer = self.servers.primary(server);
        let table = self.params(&[self.at.buckets.of_block(0)]);
        self.link(send(request(call, peer)), Use::Read, &[]);
        let [sent, received] = row_messages(call, 0, (rows, self.servers.row_len()));
        for (part, len, element) in sent {
            self.link(send(values(call, part, peer, len, element)), Use::Read, &table);
        }
        self.link(recv(reply(call, peer)), Use::Read, &[]);
        for (part, len, element) in received {
            self.link(recv(values(call, part, peer, len, element)), Use::Update, &table);
        }
    }

    /// Gathers the rows that the workers of a host group look up.
    fn gather_batch_rows(&mut self) {
        let Some(group) = self.host.filter(|_| self.servers.layout.rows.is_some()) else { return };
        let lens = match self.at.rows_by_rank {
            Some(rows) => rows[self.group.clone()].to_vec(),
            None if self.servers.step.has_least_rows => vec![0; self.group.len()],
            None => tokens_by_worker(self.at)[self.group.clone()].to_vec(),
        };
        let numbers = (Lengths::Even(lens.len()), Bytes(8));
        for (part, (lengths, element)) in
            [numbers, (Lengths::Parts(lens.into()), Bytes(4))].into_iter().enumerate()
        {
            let call = Call { group, op: Op::AllGather, lengths, element };
            self.collective(TaskOp::Report { part: 1 + part as u32 }, LINK, call, &[]);
        }
    }

    /// Broadcasts pulled weights and their version within the host group; `marks` are those of tied
    /// copies that become stale by it.
    fn share_weights(&mut self, marks: &[BufferId]) {
        let Some(group) = self.host else { return };
        let op = Op::Broadcast { root: 0 };
        let call = Call { group, op, lengths: Lengths::Even(1), element: Bytes(8) };
        let mut task = self.replay.tasks.task(TaskOp::Broadcast { part: 0 }, LINK).calls(call);
        for mark in marks {
            task = task.writes(*mark);
        }
        for (bucket, len) in self.buckets_of_servers() {
            let params = self.params(&[bucket]);
            let call = Call { group, op, lengths: Lengths::Even(len), element: Bytes(4) };
            self.collective(TaskOp::Broadcast { part: 1 + bucket as u32 }, LINK, call, &params);
        }
    }

    /// Buckets of the servers with their lengths.
    fn buckets_of_servers(&self) -> Vec<(usize, usize)> {
        let list = self.servers.layout.ranges.list.iter().enumerate();
        list.map(|(index, bucket)| (index, bucket.len)).collect()
    }

    /// Adds the passes, with pulls in front of them and pushes as soon as gradients are complete.
    fn pull_and_push(&mut self, passes: &Program) {
        let mut last_add: BTreeMap<BufferId, TaskId> = BTreeMap::new();
        for (id, _) in passes.iter() {
            let adds = passes.accesses(id).iter().filter(|access| access.mode == Use::Add);
            last_add.extend(adds.map(|access| (access.buffer, id)));
        }
        let is_synchronous = self.servers.recipe.sync.server.consistency == Consistency::Sync;
        let first = passes.position(|op| matches!(op, TaskOp::Forward(_)));
        let mut stale = self.local_mirrors();
        for (id, task) in passes.iter() {
            if Some(id) == first {
                self.pull();
            }
            // A tied copy follows its owner just before its first use.
            let (now, later) = stale.into_iter().partition(|(_, mirror, _)| {
                let copy = Contents::Params { bucket: *mirror as u32 };
                passes.contents(id, &[Use::Read]).any(|contents| contents == copy)
            });
            stale = later;
            self.copy_mirrors(now);
            // Workers that do not wait for each other keep their losses.
            self.replay.repeat(id, is_synchronous);
            for access in passes.accesses(id) {
                let contents = passes.buffers[access.buffer.0 as usize].contents;
                if let Contents::Grads { bucket } = contents
                    && last_add.get(&access.buffer) == Some(&id)
                    && self.servers.order.pushes_early
                {
                    self.push_bucket(bucket as usize, None);
                }
            }
            if task.op == TaskOp::GatherLosses {
                self.report_losses();
            }
        }
        self.finish_gradients();
    }

    /// Sums the losses of the host group, where workers do not gather them.
    fn report_losses(&mut self) {
        let is_synchronous = self.servers.recipe.sync.server.consistency == Consistency::Sync;
        if let Some(group) = self.host.filter(|_| !is_synchronous) {
            let (op, lengths) = (Op::AllReduce, Lengths::Even(2));
            let call = Call { group, op, lengths, element: Bytes(8) };
            self.collective(TaskOp::Report { part: 0 }, LINK, call, &[]);
        }
    }

    /// Tied tensors: buckets of the owner and of the copy, and the number of the pair.
    fn local_mirrors(&self) -> Vec<(usize, usize, u32)> {
        let buckets = &self.at.buckets;
        let pairs = buckets.mirrors.iter().zip(pair_numbers(buckets));
        pairs.map(|(pair, number)| (pair.owner.0, pair.mirror.0, number)).collect()
    }

    fn copy_mirrors(&mut self, pairs: Vec<(usize, usize, u32)>) {
        for (owner, mirror, pair) in pairs {
            let params = self.params(&[owner, mirror]);
            let stale = self.replay.tasks.buffer(Contents::StaleCopy { pair }, 0);
            let copy =
                self.replay.tasks.task(TaskOp::CopyMirror { pair }, Queue::Compute).takes(stale);
            copy.reads(params[0]).updates(params[1]);
        }
    }

    /// Pushes a bucket to all servers at once, if a norm allows it.
    fn push_bucket(&mut self, bucket: usize, norm: Option<TaskId>) {
        let grads = self.grads(&[bucket]);
        let shards = self.servers.shards_of(bucket);
        for (server, _) in &shards {
            let call = ServerCall::PushPart(bucket as u32);
            let request = request(call, self.servers.primary(*server));
            self.guarded_link(send(request), Use::Read, &[], norm);
        }
        for (server, len) in shards {
            let peer = self.servers.primary(server);
            let op = send(values(ServerCall::Push, bucket, peer, len, NARROW));
            self.guarded_link(op, Use::Read, &grads, norm);
        }
    }

    /// From complete gradients to the last push.
    fn finish_gradients(&mut self) {
        let buckets: Vec<usize> = self.at.grad_buckets().collect();
        let grads = self.grads(&buckets);
        let mut left = grads.clone();
        left.extend(self.replay.add_mirrors(self.at));
        if let Some(group) = self.host {
            for (bucket, len) in self.buckets_of_servers() {
                let reduced = self.grads(&[bucket]);
                let (op, lengths) = (Op::AllReduce, Lengths::Even(len));
                let call = Call { group, op, lengths, element: Bytes(4) };
                let op = TaskOp::Reduce { bucket: bucket as u32 };
                self.collective(op, LINK, call, &reduced);
            }
        }
        // A worker pushes no gradient that is not finite.
        let norm = self.replay.tasks.buffer(Contents::Norm, 1);
        let mut measure = self.replay.tasks.task(TaskOp::GradNorm, Queue::Compute).writes(norm);
        for grads in &grads {
            measure = measure.reads(*grads);
        }
        let guard = measure.id();
        let clips = self.servers.recipe.optim.clip > 0.0;
        if clips {
            let mut clip = self.replay.tasks.task(TaskOp::Clip, Queue::Compute).takes(norm);
            for grads in &grads {
                clip = clip.updates(*grads);
            }
        }
        let norm = (!clips).then_some(norm);
        left.extend(norm);
        let TransferOrder { pushes_parts, pushes_early, .. } = self.servers.order;
        if self.is_pusher() && pushes_parts && !pushes_early {
            buckets.iter().rev().for_each(|bucket| self.push_bucket(*bucket, Some(guard)));
        }
        let is_at_once = self.servers.order.confirms_at_once;
        for server in self.pulled_shards() {
            self.push(server, norm, guard);
            if !is_at_once {
                self.finish_push(server);
            }
        }
        if is_at_once {
            self.pulled_shards().for_each(|server| self.finish_push(server));
        }
        let mut end = self.replay.tasks.task(TaskOp::ReleaseGrads, Queue::Compute);
        for buffer in left {
            end = end.takes(buffer);
        }
    }

    /// Receives the reply to a push.
    fn finish_push(&mut self, server: usize) {
        let peer = self.servers.primary(server);
        self.link(recv(reply(ServerCall::Push, peer)), Use::Read, &[]);
    }

    /// Pushes the gradients of a shard, or confirms the parts that were pushed. The request says
    /// whether `guard` allows gradients to follow.
    fn push(&mut self, server: usize, norm: Option<BufferId>, guard: TaskId) {
        let (servers, peer) = (self.servers, self.servers.primary(server));
        let call = ServerCall::Push;
        let are_whole = !servers.order.pushes_parts;
        let parts: Vec<_> = servers.parts(server).filter(|_| are_whole).collect();
        let encoded: Vec<Option<BufferId>> = parts
            .iter()
            .map(|part| {
                let number = (server * servers.layout.ranges.list.len() + part.0) as u32;
                let (len, _) = servers.pushed(part.1.len());
                let encoded = servers.is_compressed(part.1.len());
                let encoded =
                    encoded.then(|| self.replay.tasks.buffer(Contents::Encoded { number }, len))?;
                let grads = self.grads(&[part.0]);
                let encode = TaskOp::Encode { bucket: number };
                let mut task = self.replay.tasks.task(encode, Queue::Compute).writes(encoded);
                for grads in grads {
                    task = task.reads(grads);
                }
                task.guarded_by(guard);
                Some(encoded)
            })
            .collect();
        let version = self.replay.tasks.buffer(Contents::Version { shard: server as u32 }, 1);
        let task = self.replay.tasks.task(send(request(call, peer)), LINK).takes(version);
        if let Some(norm) = norm {
            task.reads(norm);
        }
        for (part, encoded) in parts.iter().zip(encoded) {
            let (len, element) = servers.pushed(part.1.len());
            let op = send(values(call, part.0, peer, len, element));
            if let Some(encoded) = encoded {
                self.guarded_link(op, Use::Take, &[encoded], Some(guard));
            } else {
                let grads = self.grads(&[part.0]);
                self.guarded_link(op, Use::Read, &grads, Some(guard));
            }
        }
        if let Some(rows) = servers.rows(self.pusher()) {
            let table = self.grads(&[self.at.buckets.of_block(0)]);
            let rows = (rows.pushed[server], servers.row_len());
            let [sent, _] = row_messages(call, servers.rows_part(), rows);
            for (part, len, element) in sent {
                let op = send(values(call, part, peer, len, element));
                self.guarded_link(op, Use::Read, &table, Some(guard));
            }
        }
    }

    /// Reads the weights for a checkpoint; the first worker also reads the optimizer state.
    fn save(&mut self) {
        self.barrier();
        let servers = self.servers;
        for server in self.pulled_shards() {
            let peer = servers.primary(server);
            self.link(send(request(ServerCall::Read, peer)), Use::Read, &[]);
            self.link(recv(reply(ServerCall::Read, peer)), Use::Read, &[]);
            self.whole_shard(server, ServerCall::Read, recv, Use::Update);
        }
        self.share_weights(&[]);
        let num_states = if self.at.rank == 0 { servers.num_servers() } else { 0 };
        for server in 0..num_states {
            let peer = servers.primary(server);
            self.link(send(request(ServerCall::State, peer)), Use::Read, &[]);
            self.link(recv(reply(ServerCall::State, peer)), Use::Read, &[]);
            let len = servers.state_lens[server];
            if len > 0 {
                let op = recv(values(ServerCall::State, 0, peer, len, NARROW));
                self.link(op, Use::Read, &[]);
            }
        }
    }
}
