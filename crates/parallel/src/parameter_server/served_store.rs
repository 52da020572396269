//! Parameters and gradients of a worker whose weights arrive from servers while its passes run, and
//! whose gradients leave as soon as they are complete.

use super::part_transfer::{LostPart, PartTransfer};
use super::{Client, Request, RequestKind, Tag};
use crate::microbatch::Store;
use crate::param_store::ParamStore;
use lockstep_comm::CommError;
use lockstep_model::Grads;
use lockstep_schedule::step::{
    Contents, Message, MessageKind, Program, ServerCall, TaskId, TaskOp, Use,
};
use lockstep_tensor::Cpu;
use lockstep_tensor::device::{Result as DeviceResult, View};
use std::sync::{Arc, PoisonError};

/// Store of a worker of parameter servers.
pub(crate) struct ServedStore<'a> {
    pub(crate) store: &'a mut ParamStore,
    pub(crate) client: &'a mut Client,
}

impl Store for ServedStore<'_> {
    fn arrive(&mut self, block: usize) -> Result<(), CommError> {
        self.store.arrive(block)?;
        self.complete(self.store.buckets.of_block(block))
    }

    fn params(&self, block: usize) -> DeviceResult<View<'_>> {
        self.store.params(block)
    }

    fn params_and_grads(
        &mut self,
        cpu: &Cpu,
        block: usize,
        leaf: Option<u32>,
    ) -> DeviceResult<(View<'_>, Grads<'_>)> {
        self.store.params_and_grads(cpu, block, leaf)
    }

    fn first_trained(&self) -> usize {
        self.store.first_trained()
    }

    fn finish_grads(&mut self, cpu: &Cpu, block: usize) -> Result<(), CommError> {
        self.store.finish_grads(cpu, block)
    }

    fn communicate(&mut self, cpu: &Cpu, program: &Program, task: TaskId) -> Result<(), CommError> {
        match program.tasks[task.0 as usize].op {
            TaskOp::Send(Message {
                kind: MessageKind::Request(ServerCall::PushPart(bucket)),
                peer,
                ..
            }) if self.client.is_first_of(bucket as usize, peer) => {
                self.client.push_bucket(self.store, bucket as usize)
            }
            // They belong to the transfer of the bucket.
            TaskOp::Send(_) => Ok(()),
            // Both tensors of a tied pair have arrived before one is copied over the other.
            TaskOp::CopyMirror { .. } => {
                let changed = program.contents(task, &[Use::Read, Use::Update]);
                for contents in changed {
                    if let Contents::Params { bucket } = contents {
                        self.store.arrive_bucket(bucket as usize)?;
                        self.complete(bucket as usize)?;
                    }
                }
                self.store.communicate(cpu, program, task)
            }
            _ => self.store.communicate(cpu, program, task),
        }
    }
}

impl ServedStore<'_> {
    /// Completes the pull of a bucket that has arrived: parts of lost servers come from their
    /// backups.
    fn complete(&mut self, bucket: usize) -> Result<(), CommError> {
        if std::mem::take(&mut self.client.is_arriving[bucket]) {
            return self.client.finish_pull(self.store, bucket);
        }
        Ok(())
    }
}

impl Client {
    /// Whether a rank of the run is the first of the servers with a part of a bucket.
    pub(super) fn is_first_of(&self, bucket: usize, rank: u32) -> bool {
        let has_part = |server: &usize| !self.ranges.list[bucket].part(*server).is_empty();
        let first = (0..self.num_servers()).find(has_part);
        first.is_some_and(|first| self.first_server + first == rank as usize)
    }

    /// Starts the pull of a bucket from all servers.
    pub(super) fn start_pull(
        &mut self,
        store: &mut ParamStore,
        bucket: usize,
    ) -> Result<(), CommError> {
        let transfer = self.transfer(bucket);
        self.is_arriving[bucket] = true;
        store.receive_params(bucket, &self.comm, move |comm, params| transfer.pull(comm, params))
    }

    /// Completes the pull of a bucket: parts of lost servers come from their backups.
    fn finish_pull(&mut self, store: &mut ParamStore, bucket: usize) -> Result<(), CommError> {
        let mut lost = self.lost_parts.lock().unwrap_or_else(PoisonError::into_inner);
        let is_here =
            |part: &mut LostPart| part.bucket == bucket && part.kind == RequestKind::PullPart;
        let found: Vec<LostPart> = lost.extract_if(.., is_here).collect();
        drop(lost);
        for LostPart { server, rank, why, was_requested, .. } in found {
            // Another request to the lost server might be sent, and counted, before it fails.
            if self.shard_servers[server].primary() == rank {
                self.lost_servers.push(self.shard_servers[server].drop_primary(why)?);
            }
            self.record_repeat(server, ServerCall::PullPart(bucket as u32), was_requested, false);
            self.pull_from_backup(store, bucket, server)?;
        }
        Ok(())
    }

    /// Pulls a part whose server was lost, after the backup lets this worker read.
    fn pull_from_backup(
        &mut self,
        store: &mut ParamStore,
        bucket: usize,
        server: usize,
    ) -> Result<(), CommError> {
        let (range, step) = (self.ranges.list[bucket].part(server), self.step);
        let granted = self.with_failover(server, None, |client, rank| {
            // It repeats the pull, since the backup may not have seen it.
            let pull = Request { step, ..client.request(RequestKind::PullByParts) };
            client.send_request(rank, pull)?;
            let reply = client.recv_reply(rank)?;
            let number = bucket as u64;
            client
                .send_request(rank, Request { number, ..client.request(RequestKind::PullPart) })?;
            let part = &mut store.own_params_mut(bucket)[range.clone()];
            client.comm.recv_each(&mut [(rank, part)], Tag::Weights as u64)?;
            Ok((reply, rank))
        })?;
        self.granted[server] = granted;
        Ok(())
    }

    /// Starts to push the gradients of a bucket, if they are complete.
    pub(super) fn push_bucket(
        &mut self,
        store: &mut ParamStore,
        bucket: usize,
    ) -> Result<(), CommError> {
        let transfer = self.transfer(bucket);
        let ranks: Vec<_> =
            transfer.parts.iter().map(|(server, rank, _)| (*server, *rank)).collect();
        let is_started =
            store.send_grads(bucket, &self.comm, move |comm, grads| transfer.push(comm, grads))?;
        for (server, rank) in ranks.into_iter().filter(|_| is_started) {
            self.staged[server] = Some(rank);
        }
        Ok(())
    }

    /// Transfer of a bucket from or to the servers that let this worker read.
    fn transfer(&self, bucket: usize) -> PartTransfer {
        let cut = &self.ranges.list[bucket];
        let part = |(server, rank): (usize, &usize)| (server, *rank, cut.part(server));
        let parts = self.granted.iter().enumerate().map(part);
        PartTransfer {
            bucket,
            parts: parts.filter(|(_, _, range)| !range.is_empty()).collect(),
            request: Request { step: self.step, ..self.request(RequestKind::PullPart) },
            has_backups: self.has_backups,
            lost: Arc::clone(&self.lost_parts),
        }
    }
}
