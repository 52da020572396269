//! Text of a step program, a task a line.

use super::{
    Averaged, BlockPass, Contents, Message, MessageKind, Normed, Program, Queue, ServerCall,
    TaskOp, Use,
};
use std::fmt;

impl fmt::Display for Program {
    /// Every task with its queue, the tasks it waits for and the buffers it uses.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "step of rank {}, {} tasks", self.rank, self.tasks.len())?;
        for (id, task) in self.iter() {
            write!(f, "{:>4}  {:<12} {}", id.0, task.queue.to_string(), task.op)?;
            for access in self.accesses(id) {
                let buffer = self.buffers[access.buffer.0 as usize].contents;
                let mark = match access.mode {
                    Use::Read => "",
                    Use::Update => "~",
                    Use::Write => ">",
                    Use::Add => "+",
                    Use::Take => "<",
                };
                write!(f, "  {mark}{buffer}")?;
            }
            if let Some((call, group)) = self.call(task) {
                write!(f, "  {} of {} by {}", call.op, call.lengths.count(), group.ranks.len())?;
            }
            let after = self.after(id).iter().map(|before| before.0.to_string());
            let after: Vec<_> = after.collect();
            if !after.is_empty() {
                write!(f, "  after {}", after.join(" "))?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

impl fmt::Display for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Compute => f.write_str("compute"),
            Self::Link(axis) => write!(f, "{axis}"),
            Self::Control => f.write_str("control"),
            Self::Host => f.write_str("host"),
            Self::Disk => f.write_str("disk"),
        }
    }
}

impl fmt::Display for BlockPass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "block {} microbatch {}", self.block, self.microbatch)?;
        if self.part > 0 { write!(f, " part {}", self.part) } else { Ok(()) }
    }
}

impl fmt::Display for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            MessageKind::Activation { boundary, microbatch } => {
                write!(f, "activation {boundary} microbatch {microbatch}")
            }
            MessageKind::ActivationGrad { boundary, microbatch } => {
                write!(f, "activation gradient {boundary} microbatch {microbatch}")
            }
            MessageKind::MirrorGrad { pair } => write!(f, "mirror gradient {pair}"),
            MessageKind::MirrorParams { pair } => write!(f, "mirror parameters {pair}"),
            MessageKind::Weights { bucket } => write!(f, "weights {bucket}"),
            MessageKind::PushSumWeight => f.write_str("push-sum weight"),
            MessageKind::Request(call) => write!(f, "request {call}"),
            MessageKind::Reply(call) => write!(f, "reply {call}"),
            MessageKind::Values { call, part } => write!(f, "values {call} {part}"),
            MessageKind::ClientUpdate { client, part } => {
                write!(f, "client update {client} part {part}")
            }
            MessageKind::Custom { number } => write!(f, "custom {number}"),
        }
    }
}

impl fmt::Display for ServerCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self {
            Self::Load => "load",
            Self::Pull => "pull",
            Self::PullPart(part) => return write!(f, "pull part {part}"),
            Self::Rows => "rows",
            Self::RowReplicas => "row replicas",
            Self::StoreRowReplicas => "store row replicas",
            Self::Push => "push",
            Self::PushPart(part) => return write!(f, "push part {part}"),
            Self::Read => "read",
            Self::State => "state",
        };
        f.write_str(name)
    }
}

impl fmt::Display for Normed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Params => "parameters",
            Self::Steps => "steps",
        })
    }
}

impl fmt::Display for TaskOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::LoadBatch => f.write_str("load batch"),
            Self::Forward(pass) => write!(f, "forward {pass}"),
            Self::Recompute(pass) => write!(f, "recompute {pass}"),
            Self::Backward(pass) => write!(f, "backward {pass}"),
            Self::InputGrad(pass) => write!(f, "input gradient {pass}"),
            Self::WeightGrad(pass) => write!(f, "weight gradient {pass}"),
            Self::TensorCollective => f.write_str("tensor collective"),
            Self::CopyActivation { chunk, microbatch } => {
                write!(f, "copy activation to chunk {chunk} microbatch {microbatch}")
            }
            Self::ReleaseActivations { block, microbatch } => {
                write!(f, "release activations block {block} microbatch {microbatch}")
            }
            Self::Send(message) => write!(f, "send {message} to {}", message.peer),
            Self::Recv(message) => write!(f, "receive {message} from {}", message.peer),
            Self::GatherParams { bucket } => write!(f, "gather parameters {bucket}"),
            Self::ReleaseParams { bucket } => write!(f, "release parameters {bucket}"),
            Self::Encode { bucket } => write!(f, "encode {bucket}"),
            Self::Reduce { bucket } => write!(f, "reduce {bucket}"),
            Self::Decode { bucket } => write!(f, "decode {bucket}"),
            Self::AddMirror { pair } => write!(f, "add mirror {pair}"),
            Self::CopyMirror { pair } => write!(f, "copy mirror {pair}"),
            Self::GatherLosses => f.write_str("gather losses"),
            Self::Unscale => f.write_str("unscale"),
            Self::GradNorm => f.write_str("gradient norm"),
            Self::Agree => f.write_str("agree"),
            Self::Direction { bucket } => write!(f, "direction {bucket}"),
            Self::TensorNorms(of) => write!(f, "tensor norms of {of}"),
            Self::GatherNorms(of) => write!(f, "gather norms of {of}"),
            Self::GatherMatrix { matrix, piece } => {
                write!(f, "gather matrix {matrix} piece {piece}")
            }
            Self::GatherPieces { matrix } => write!(f, "gather pieces of matrix {matrix}"),
            Self::Orthogonalize { matrix } => write!(f, "orthogonalize matrix {matrix}"),
            Self::FactorMoments { matrix } => write!(f, "factor moments of tensor {matrix}"),
            Self::Update { bucket } => write!(f, "update {bucket}"),
            Self::GatherUpdated { bucket } => write!(f, "gather updated {bucket}"),
            Self::Average(averaged) => match averaged {
                Averaged::Bucket(bucket) => write!(f, "average {bucket}"),
                Averaged::BucketInGroup(bucket) => write!(f, "average in group {bucket}"),
                Averaged::Fragment(fragment) => write!(f, "average fragment {fragment}"),
                Averaged::State(number) => write!(f, "average state {number}"),
                Averaged::StateInGroup(number) => write!(f, "average state in group {number}"),
            },
            Self::OuterUpdate { bucket } => write!(f, "outer update {bucket}"),
            Self::TrackMomentum => f.write_str("track momentum"),
            Self::ReduceInGroup { bucket } => write!(f, "reduce in group {bucket}"),
            Self::BroadcastInGroup { bucket } => write!(f, "broadcast in group {bucket}"),
            Self::Debias => f.write_str("debias"),
            Self::Statistics => f.write_str("statistics"),
            Self::Exchange { bucket, part } => write!(f, "exchange {bucket} part {part}"),
            Self::Mix { bucket } => write!(f, "mix {bucket}"),
            Self::Barrier => f.write_str("barrier"),
            Self::Clip => f.write_str("clip"),
            Self::ReleaseGrads => f.write_str("release gradients"),
            Self::Broadcast { part } => write!(f, "broadcast {part}"),
            Self::Report { part } => write!(f, "report {part}"),
            Self::ServerUpdate => f.write_str("server update"),
            Self::Cutoff => f.write_str("cutoff"),
            Self::LoadClient { client } => write!(f, "load client {client}"),
            Self::ClientStep { client } => write!(f, "step client {client}"),
            Self::Aggregate { part } => write!(f, "aggregate {part}"),
            Self::ReadShared => f.write_str("read shared weights"),
            Self::AddToShared => f.write_str("add to shared weights"),
            Self::Custom { number } => write!(f, "custom {number}"),
        }
    }
}

impl fmt::Display for Contents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The derived text names the fields: `Saved { block: 3, slot: 0 }` becomes `saved(3,0)`.
        let text = format!("{self:?}");
        let (name, fields) = text.split_once(" {").unwrap_or((&text, ""));
        f.write_str(&name.to_lowercase())?;
        let numbers = fields.trim_end_matches('}').split(',').filter_map(|field| {
            let (_, number) = field.split_once(':')?;
            Some(number.trim().to_lowercase())
        });
        let numbers: Vec<_> = numbers.collect();
        if numbers.is_empty() { Ok(()) } else { write!(f, "({})", numbers.join(",")) }
    }
}
