//! Requests that a worker repeats at a backup, since their server was lost: decisions of a run that
//! timing makes. With them the programs of its steps give the bytes of every worker.

use super::client::Client;
use super::part_transfer::LostPart;
use crate::replica::Replica;
use lockstep_comm::{Comm, CommError};
use lockstep_schedule::step::{MessageKind, Program, ServerCall, TaskOp};
use lockstep_telemetry::RepeatedRequest;
use std::sync::PoisonError;

impl Client {
    /// Records that a server was lost after so many messages of a call, whose parts are sent again
    /// if it had some.
    pub(super) fn record_repeat(
        &mut self,
        server: usize,
        call: ServerCall,
        messages: u64,
        resends_parts: bool,
    ) {
        let (worker, call) = (self.comm.group_rank(), call.to_string());
        self.repeats.push(RepeatedRequest { worker, server, call, messages, resends_parts });
    }

    /// Forgets the parts that were lost in earlier steps: those of gradients went to the backup
    /// with the push.
    pub(super) fn forget_lost_parts(&mut self) {
        let lost =
            std::mem::take(&mut *self.lost_parts.lock().unwrap_or_else(PoisonError::into_inner));
        for LostPart { bucket, server, was_requested, .. } in lost {
            self.record_repeat(server, ServerCall::PushPart(bucket as u32), was_requested, false);
        }
    }
}

impl Replica {
    /// Requests that this worker has repeated so far.
    pub(super) fn repeats(&mut self) -> Vec<RepeatedRequest> {
        let Some(client) = &mut self.client else { return Vec::new() };
        client.forget_lost_parts();
        client.repeats.clone()
    }

    /// Forgets all but the first `num` requests that this worker has repeated.
    pub(super) fn forget_repeats(&mut self, num: usize) {
        if let Some(client) = &mut self.client {
            client.repeats.truncate(num);
        }
    }
}

/// Repeated requests of all workers.
pub(super) fn gather_repeats(
    pushers: &Comm,
    own: &[RepeatedRequest],
) -> Result<Vec<RepeatedRequest>, CommError> {
    let text = |it| serde_json::to_string(it).expect("text and numbers");
    let (own, mut all) = (own.iter().map(text).collect::<String>(), Vec::new());
    pushers.all_gather_v(own.as_bytes(), &mut all)?;
    let all = serde_json::Deserializer::from_slice(&all).into_iter().collect::<Result<_, _>>();
    Ok(all.expect("all ranks run one program"))
}

/// Bytes that a worker sends and receives because of a repeated request, beyond those of its
/// program, whose servers are the ranks from `first_server` on.
pub fn repeated_bytes(request: &RepeatedRequest, program: &Program, first_server: usize) -> i64 {
    let RepeatedRequest { server, call, messages, resends_parts, .. } = request;
    // Whether it is a request; its call, part and bytes.
    let with_server = program.tasks.iter().filter_map(|task| {
        let (TaskOp::Send(message) | TaskOp::Recv(message)) = task.op else { return None };
        let (is_request, call, part) = match message.kind {
            MessageKind::Request(call) => (true, call, None),
            MessageKind::Reply(call) => (false, call, None),
            MessageKind::Values { call, part } => (false, call, Some(part)),
            _ => return None,
        };
        let bytes = (message.len * u64::from(message.element)).cast_signed();
        let is_here = message.peer as usize == first_server + server;
        is_here.then(|| (is_request, call.to_string(), part, bytes))
    });
    let with_server: Vec<_> = with_server.collect();
    // A request and the messages of its call that follow it.
    let first = |call: &str, num: usize| -> i64 {
        let rest = with_server.iter().skip_while(|(is_request, of, ..)| !is_request || of != call);
        rest.filter(|(_, of, ..)| of == call).take(num).map(|(.., bytes)| bytes).sum()
    };
    // Parts of gradients precede the push.
    let parts = |is_one: &dyn Fn(u32) -> bool| -> i64 {
        let parts =
            with_server.iter().take_while(|(is_request, of, ..)| !is_request || of != "push");
        let is_part = |part: &Option<u32>| part.is_some_and(is_one);
        parts
            .filter(|(_, of, part, _)| of == "push" && is_part(part))
            .map(|(.., bytes)| bytes)
            .sum()
    };
    let exchanged = first(call, *messages as usize);
    if call.starts_with("pull part ") {
        // The backup first lets the worker read.
        exchanged + first("pull", 2)
    } else if let Some(part) = call.strip_prefix("push part ") {
        // The part went to the backup with the push, or not at all.
        exchanged - first(call, 1) - parts(&|number| number.to_string() == part)
    } else if *resends_parts {
        exchanged + parts(&|_| true)
    } else {
        exchanged
    }
}
