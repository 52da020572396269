//! Parameters and gradients of a worker whose weights arrive from servers while its passes run, and
//! whose gradients leave as soon as they are complete.

use super::part_transfer::PartTransfer;
use super::{Client, Request, RequestKind, Tag};
use crate::microbatch::Store;
use crate::param_store::ParamStore;
use lockstep_comm::CommError;
use lockstep_model::Grads;
use lockstep_schedule::step::{Program, TaskId};
use lockstep_tensor::Cpu;
use std::sync::{Arc, PoisonError};

/// Store of a worker of parameter servers.
pub(crate) struct ServedStore<'a> {
    pub(crate) store: &'a mut ParamStore,
    pub(crate) client: &'a mut Client,
}

impl Store for ServedStore<'_> {
    fn arrive(&mut self, block: usize) -> Result<(), CommError> {
        self.store.arrive(block)?;
        let bucket = self.store.buckets.of_block(block);
        if std::mem::take(&mut self.client.is_arriving[bucket]) {
            self.client.finish_pull(self.store, bucket)?;
        }
        Ok(())
    }

    fn params(&self, block: usize) -> &[f32] {
        self.store.params(block)
    }

    fn params_and_grads(
        &mut self,
        cpu: &Cpu,
        block: usize,
        leaf: Option<u32>,
    ) -> (&[f32], Grads<'_>) {
        self.store.params_and_grads(cpu, block, leaf)
    }

    fn first_trained(&self) -> usize {
        self.store.first_trained()
    }

    fn finish_grads(&mut self, cpu: &Cpu, block: usize) -> Result<(), CommError> {
        self.store.finish_grads(cpu, block)?;
        let bucket = self.store.buckets.of_block(block);
        let is_last = self.store.buckets.list[bucket].blocks.start == block;
        if is_last && self.client.order.pushes_early {
            self.client.push_bucket(self.store, bucket)?;
        }
        Ok(())
    }

    fn communicate(&mut self, cpu: &Cpu, program: &Program, task: TaskId) -> Result<(), CommError> {
        self.store.communicate(cpu, program, task)
    }
}

impl Client {
    /// Starts the pulls of all buckets, first layers first.
    pub(super) fn start_pulls(&mut self, store: &mut ParamStore) -> Result<(), CommError> {
        // Parts of gradients that a lost server did not receive went to its backup.
        self.lost_parts.lock().unwrap_or_else(PoisonError::into_inner).clear();
        for bucket in 0..self.ranges.list.len() {
            let transfer = self.transfer(bucket);
            if !transfer.parts.is_empty() {
                store.receive_params(bucket, &self.comm, move |comm, params| {
                    transfer.pull(comm, params)
                })?;
                self.is_arriving[bucket] = true;
            }
        }
        Ok(())
    }

    /// Completes the pull of a bucket: parts of lost servers come from their backups, and tied
    /// copies follow their owners.
    fn finish_pull(&mut self, store: &mut ParamStore, bucket: usize) -> Result<(), CommError> {
        let mut lost = self.lost_parts.lock().unwrap_or_else(PoisonError::into_inner);
        let servers: Vec<usize> =
            lost.extract_if(.., |(of, _)| *of == bucket).map(|(_, server)| server).collect();
        drop(lost);
        for server in servers {
            self.pull_from_backup(store, bucket, server)?;
        }
        let buckets = Arc::clone(&store.buckets);
        for pair in buckets.mirrors.iter().filter(|pair| pair.mirror.0 == bucket) {
            assert!(!self.is_arriving[pair.owner.0], "forward has passed the owner");
            store.copy_to_mirror(&buckets, pair);
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
        let granted = self.with_failover(server, |client, rank| {
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
