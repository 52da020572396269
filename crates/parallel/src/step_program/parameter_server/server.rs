//! Program of a parameter server: it answers pulls, receives pushes and steps its shard.
//!
//! A primary forwards every change to its backup and replies to the worker once the backup has
//! acknowledged it; both apply the same changes in the same order.

use super::{
    ACKNOWLEDGEMENT_LEN, LINK, NARROW, ServerPlan, WIDE, message, recv, reply, request,
    row_messages, send, values,
};
use lockstep_schedule::step::{
    Access, BufferId, Builder, Contents, MessageKind, Program, Queue, ServerCall, TaskOp, Use,
};

/// Program of the server with this number, primaries first, then backups.
pub(crate) fn server_program(plan: &ServerPlan<'_>, number: usize) -> Program {
    let num_servers = plan.num_servers();
    let shard = number % num_servers;
    let rank = plan.recipe.run.workers + number;
    let is_backup = number >= num_servers;
    let has_backup = plan.recipe.sync.server.replicas > 0 && !is_backup;
    let mut tasks = Builder::new(rank);
    let lens = plan.layout.lens(shard).into_iter().enumerate().filter(|(_, len)| *len > 0);
    let param = |(part, len): (usize, usize)| {
        (part, len, tasks.persistent(Contents::Params { bucket: part as u32 }, len))
    };
    let params: Vec<_> = lens.map(param).collect();
    let state = Contents::OptimizerState { bucket: 0 };
    let state = tasks.persistent(state, plan.state_lens[shard]);
    let peer = match (is_backup, has_backup) {
        (true, _) => Some((rank - num_servers) as u32),
        (false, true) => Some((rank + num_servers) as u32),
        (false, false) => None,
    };
    let mut server = Server { plan, shard, tasks, params, state, is_backup, peer };
    server.run();
    server.tasks.finish()
}

/// Program under construction.
struct Server<'a> {
    plan: &'a ServerPlan<'a>,
    shard: usize,
    tasks: Builder,
    /// Parts of the shard that are not empty: number, length and buffer.
    params: Vec<(usize, usize, BufferId)>,
    state: BufferId,
    is_backup: bool,
    /// Backup of a primary, primary of a backup.
    peer: Option<u32>,
}

impl Server<'_> {
    fn run(&mut self) {
        let plan = self.plan;
        let pushers: Vec<u32> = plan.pushers().map(|rank| rank as u32).collect();
        if plan.step.loads {
            self.load();
        }
        for (index, &worker) in pushers.iter().enumerate() {
            self.pull(index, worker);
        }
        for (index, &worker) in pushers.iter().enumerate() {
            self.pull_replicated(index, worker);
        }
        if plan.order.pulls_parts && !self.is_backup {
            self.answer_parts(&pushers);
        }
        let mut received = Vec::new();
        for (index, &worker) in pushers.iter().enumerate() {
            received.extend(self.receive_push(index, worker));
            let is_last = index + 1 == pushers.len();
            let is_due = is_last || !plan.step.is_joint;
            self.acknowledge_to_primary(ServerCall::Push);
            if is_due {
                self.update(std::mem::take(&mut received));
            }
            self.reply_to(ServerCall::Push, worker);
        }
        if plan.step.saves && !self.is_backup {
            self.answer_reads(&pushers);
        }
    }

    fn link(&mut self, op: TaskOp, mode: Use, buffers: &[BufferId]) {
        let mut task = self.tasks.task(op, LINK);
        for &buffer in buffers {
            task = task.access(Access { buffer, mode });
        }
    }

    /// Receives a request, from a worker or from the primary.
    fn receive_request(&mut self, call: ServerCall, worker: u32) {
        let from = self.peer.filter(|_| self.is_backup).unwrap_or(worker);
        self.link(recv(request(call, from)), Use::Read, &[]);
    }

    /// Forwards a change to the backup, with the values of these buffers.
    fn forward(&mut self, call: ServerCall, payload: &[(usize, usize, BufferId)]) {
        let Some(backup) = self.peer.filter(|_| !self.is_backup) else { return };
        self.link(send(request(call, backup)), Use::Read, &[]);
        for &(part, len, buffer) in payload {
            let op = send(values(call, part, backup, len, NARROW));
            self.link(op, Use::Read, &[buffer]);
        }
    }

    fn acknowledge_to_primary(&mut self, call: ServerCall) {
        if let Some(primary) = self.peer.filter(|_| self.is_backup) {
            let ack = message(MessageKind::Reply(call), primary, ACKNOWLEDGEMENT_LEN, WIDE);
            self.link(send(ack), Use::Read, &[]);
        }
    }

    /// Replies to the worker, once the backup has acknowledged the change.
    fn reply_to(&mut self, call: ServerCall, worker: u32) {
        if self.is_backup {
            return;
        }
        if let Some(backup) = self.peer {
            let ack = message(MessageKind::Reply(call), backup, ACKNOWLEDGEMENT_LEN, WIDE);
            self.link(recv(ack), Use::Read, &[]);
        }
        self.link(send(reply(call, worker)), Use::Read, &[]);
    }

    /// Receives the initial weights from the first worker.
    fn load(&mut self) {
        let call = ServerCall::Load;
        self.receive_request(call, 0);
        let from = self.peer.filter(|_| self.is_backup).unwrap_or(0);
        let params = self.params.clone();
        for &(part, len, buffer) in &params {
            self.link(recv(values(call, part, from, len, NARROW)), Use::Update, &[buffer]);
        }
        self.forward(call, &params);
        self.acknowledge_to_primary(call);
        self.reply_to(call, 0);
    }

    /// Answers a worker's pull, which its backup also records.
    fn pull(&mut self, index: usize, worker: u32) {
        let call = ServerCall::Pull;
        self.receive_request(call, worker);
        self.forward(call, &[]);
        self.acknowledge_to_primary(call);
        self.reply_to(call, worker);
        if self.is_backup {
            return;
        }
        let rows_part = self.plan.rows_part();
        for (part, len, buffer) in self.params.clone() {
            if part != rows_part && !self.plan.order.pulls_parts {
                self.link(send(values(call, part, worker, len, NARROW)), Use::Read, &[buffer]);
            }
        }
        if let Some(rows) = self.plan.rows(index) {
            self.answer_rows(ServerCall::Rows, worker, rows.pulled[self.shard]);
        }
    }

    /// Answers the pulls of parts, in the order of the workers' forward passes.
    fn answer_parts(&mut self, pushers: &[u32]) {
        let rows_part = self.plan.rows_part();
        for (part, len, buffer) in self.params.clone() {
            for &worker in pushers.iter().filter(|_| part != rows_part) {
                let pull = request(ServerCall::PullPart(part as u32), worker);
                self.link(recv(pull), Use::Read, &[]);
                let op = send(values(ServerCall::Pull, part, worker, len, NARROW));
                self.link(op, Use::Read, &[buffer]);
            }
        }
    }

    fn pull_replicated(&mut self, index: usize, worker: u32) {
        let Some(rows) = self.plan.rows(index).filter(|_| !self.is_backup) else { return };
        let is_home = self.plan.home(index) == self.shard;
        let here = |number: usize| if is_home { number } else { 0 };
        let number = rows.replicated.iter().sum();
        self.answer_rows(ServerCall::RowReplicas, worker, here(number));
        self.answer_rows(ServerCall::Rows, worker, rows.replicated[self.shard]);
        self.answer_rows(ServerCall::StoreRowReplicas, worker, here(number));
    }

    fn answer_rows(&mut self, call: ServerCall, worker: u32, rows: usize) {
        if rows == 0 {
            return;
        }
        self.link(recv(request(call, worker)), Use::Read, &[]);
        let [arriving, leaving] = row_messages(call, 0, (rows, self.plan.row_len()));
        for (part, len, element) in arriving {
            self.link(recv(values(call, part, worker, len, element)), Use::Read, &[]);
        }
        self.link(send(reply(call, worker)), Use::Read, &[]);
        for (part, len, element) in leaving {
            self.link(send(values(call, part, worker, len, element)), Use::Read, &[]);
        }
    }

    /// Receives a worker's gradients, or the decoded ones from the primary; returns their buffers.
    fn receive_push(&mut self, index: usize, worker: u32) -> Vec<BufferId> {
        let (call, plan) = (ServerCall::Push, self.plan);
        let from = self.peer.filter(|_| self.is_backup).unwrap_or(worker);
        let is_by_parts = plan.order.pushes_parts && !self.is_backup;
        let mut received = Vec::new();
        if is_by_parts {
            for (part, len, _) in self.params.clone().into_iter().rev() {
                if part != plan.rows_part() {
                    let contents = Contents::Received { peer: worker, bucket: part as u32 };
                    let grads = self.tasks.buffer(contents, len);
                    let push = request(ServerCall::PushPart(part as u32), worker);
                    self.link(recv(push), Use::Read, &[]);
                    self.link(recv(values(call, part, from, len, NARROW)), Use::Write, &[grads]);
                }
            }
        }
        self.receive_request(call, worker);
        let rows = plan.rows(index).filter(|_| !self.is_backup);
        for (part, len, _) in self.params.clone() {
            let contents = Contents::Received { peer: worker, bucket: part as u32 };
            let grads = self.tasks.buffer(contents, len);
            received.push((part, len, grads));
            if (part == plan.rows_part() && rows.is_some()) || is_by_parts {
                continue;
            }
            let (len, element) = if self.is_backup { (len, NARROW) } else { plan.pushed(len) };
            self.link(recv(values(call, part, from, len, element)), Use::Write, &[grads]);
        }
        if let Some(rows) = rows {
            let table = received.iter().find(|(part, ..)| *part == plan.rows_part());
            let table: Vec<_> = table.iter().map(|(.., grads)| *grads).collect();
            let rows = (rows.pushed[self.shard], plan.row_len());
            let [arriving, _] = row_messages(call, plan.rows_part(), rows);
            for (number, (part, len, element)) in arriving.into_iter().enumerate() {
                // Rows that are not sent are zero.
                let mode = if number == 0 { Use::Write } else { Use::Update };
                self.link(recv(values(call, part, worker, len, element)), mode, &table);
            }
        }
        self.forward(call, &received);
        received.into_iter().map(|(.., buffer)| buffer).collect()
    }

    fn update(&mut self, received: Vec<BufferId>) {
        let mut task = self.tasks.task(TaskOp::ServerUpdate, Queue::Compute).updates(self.state);
        for &(_, _, params) in &self.params {
            task = task.updates(params);
        }
        for grads in received {
            task = task.takes(grads);
        }
    }

    /// Answers the reads of a checkpoint.
    fn answer_reads(&mut self, pushers: &[u32]) {
        for &worker in pushers {
            self.link(recv(request(ServerCall::Read, worker)), Use::Read, &[]);
            self.link(send(reply(ServerCall::Read, worker)), Use::Read, &[]);
            for (part, len, buffer) in self.params.clone() {
                let op = send(values(ServerCall::Read, part, worker, len, NARROW));
                self.link(op, Use::Read, &[buffer]);
            }
        }
        self.link(recv(request(ServerCall::State, 0)), Use::Read, &[]);
        self.link(send(reply(ServerCall::State, 0)), Use::Read, &[]);
        let len = self.plan.state_lens[self.shard];
        if len > 0 {
            let op = send(values(ServerCall::State, 0, 0, len, NARROW));
            self.link(op, Use::Read, &[self.state]);
        }
    }
}
