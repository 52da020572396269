//! Trace events of a rank: a track for each resource, a span for each task, an arrow for each
//! message between stages.

use super::clock_offset::ClockMap;
use super::{RecordedSpan, SpanKind, TraceRecorder};
use lockstep_schedule::step::{Message, MessageKind, Queue, TaskOp};
use lockstep_telemetry::trace::{FlowEnd, TraceSpan, TraceText, Track};
use std::time::Duration;

/// Resources, in the order in which they are drawn. They begin at 1: Perfetto takes thread 0 for
/// the thread that has the number of its process, which is another resource of that rank.
const STEP: u32 = 1;
const COMPUTE: u32 = 2;
const CONTROL: u32 = 3;
const HOST: u32 = 4;
const DISK: u32 = 5;
const BACKGROUND: u32 = 6;
/// First of the axes.
const LINKS: u32 = 7;

/// Renders the spans of a rank.
struct Renderer<'a> {
    recorder: &'a TraceRecorder,
    rank: usize,
    clock: ClockMap,
    /// Step from which on other ranks have no spans.
    end: u64,
    /// Spans of tasks, in the order of time.
    tasks: Vec<&'a RecordedSpan>,
    text: TraceText,
}

impl TraceRecorder {
    /// Events of the steps before `end`.
    pub(super) fn render(&self, rank: usize, host: &str, clock: ClockMap, end: u64) -> TraceText {
        let text = TraceText::default();
        let is_task = |span: &&RecordedSpan| matches!(span.kind, SpanKind::Task { .. });
        let mut tasks: Vec<_> = self.spans.iter().filter(is_task).collect();
        tasks.sort_by_key(|task| task.start);
        let mut renderer = Renderer { recorder: self, rank, clock, end, tasks, text };
        renderer.name_tracks(host);
        for span in &self.spans {
            renderer.span(span);
        }
        renderer.text
    }
}

impl Renderer<'_> {
    fn name_tracks(&mut self, host: &str) {
        self.text.name_rank(self.rank, &format!("rank {} on {host}", self.rank));
        let mut names = vec![
            (STEP, "step".to_owned()),
            (COMPUTE, "compute".to_owned()),
            (CONTROL, "control".to_owned()),
            (HOST, "host".to_owned()),
            (DISK, "disk".to_owned()),
            (BACKGROUND, "communication in the background".to_owned()),
        ];
        for span in &self.recorder.spans {
            if let SpanKind::Task { queue: queue @ Queue::Link(axis), .. } = span.kind {
                names.push((resource_of(queue), format!("{axis} axis")));
            }
        }
        names.sort();
        names.dedup();
        for (resource, name) in names {
            self.text.name_track(Track { rank: self.rank, resource }, &name);
        }
    }

    fn span(&mut self, span: &RecordedSpan) {
        if span.step >= self.end {
            return;
        }
        let (resource, name, category, task) = match span.kind {
            SpanKind::Step => (STEP, format!("step {}", span.step), "step", None),
            SpanKind::DataWait => (HOST, "wait for data".to_owned(), "data", None),
            SpanKind::StragglerWait => (CONTROL, "wait for ranks".to_owned(), "wait", None),
            SpanKind::Checkpoint => (DISK, "checkpoint".to_owned(), "checkpoint", None),
            SpanKind::Evaluation => (STEP, "evaluation".to_owned(), "evaluation", None),
            SpanKind::Task { id, op, queue } => {
                (resource_of(queue), op.to_string(), category_of(op), Some(id.0))
            }
            SpanKind::Call { bucket, issued } => return self.call(span, bucket, issued),
        };
        self.push(span, resource, &name, category, task);
        if let SpanKind::Task { op: TaskOp::Send(message) | TaskOp::Recv(message), .. } = span.kind
            && is_between_stages(&message)
        {
            self.arrow(span, resource, &message);
        }
    }

    /// A background call has the name of the task that issued it.
    fn call(&mut self, span: &RecordedSpan, bucket: u32, issued: Duration) {
        let before = self.tasks.partition_point(|task| task.start <= issued);
        let issuer = before.checked_sub(1).map(|last| self.tasks[last]);
        let Some(RecordedSpan { step, kind: SpanKind::Task { id, op, .. }, end, .. }) = issuer
        else {
            return;
        };
        if issued > *end || *step >= self.end {
            return;
        }
        let (step, id, op) = (*step, id.0, *op);
        let name = match op {
            TaskOp::Reduce { .. } | TaskOp::GatherParams { .. } | TaskOp::GatherUpdated { .. } => {
                op.to_string()
            }
            _ => format!("{op}: bucket {bucket}"),
        };
        let span = RecordedSpan { step, ..*span };
        self.push(&span, BACKGROUND, &name, category_of(op), Some(id));
    }

    fn push(
        &mut self,
        span: &RecordedSpan,
        resource: u32,
        name: &str,
        category: &str,
        task: Option<u32>,
    ) {
        let track = Track { rank: self.rank, resource };
        let [start, end] = [span.start, span.end].map(|time| self.clock.convert(time));
        let step = span.step;
        self.text.span(&TraceSpan { track, name, category, start, end, step, task });
    }

    /// An arrow from the start of a send to the end of its receive.
    fn arrow(&mut self, span: &RecordedSpan, resource: u32, message: &Message) {
        let SpanKind::Task { op, .. } = span.kind else { return };
        let peer = message.peer as usize;
        let (end, [from, to]) = match op {
            TaskOp::Send(_) => (FlowEnd::Start, [self.rank, peer]),
            _ => (FlowEnd::Finish, [peer, self.rank]),
        };
        let track = Track { rank: self.rank, resource };
        let at = match end {
            FlowEnd::Start => self.clock.convert(span.start),
            // A nanosecond before the end is inside the span, unless that is empty.
            FlowEnd::Finish => {
                let [start, end] = [span.start, span.end].map(|time| self.clock.convert(time));
                end.saturating_sub(Duration::from_nanos(1)).max(start)
            }
        };
        let id = message_id(span.step, from, to, message);
        self.text.flow(end, &message.to_string(), id, track, at);
    }
}

/// Whether both ranks of a message record its ends: ranks that do not train record no steps, and
/// those that average with neighbours receive outside the task.
fn is_between_stages(message: &Message) -> bool {
    matches!(
        message.kind,
        MessageKind::Activation { .. }
            | MessageKind::ActivationGrad { .. }
            | MessageKind::MirrorGrad { .. }
            | MessageKind::MirrorParams { .. }
    )
}

/// Number of a message that both its ranks compute: FNV-1a (Fowler, Noll, Vo 1991) of its step,
/// ranks and name.
fn message_id(step: u64, from: usize, to: usize, message: &Message) -> u64 {
    let text = format!("{step} {from} {to} {message}");
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

fn resource_of(queue: Queue) -> u32 {
    match queue {
        Queue::Compute => COMPUTE,
        Queue::Control => CONTROL,
        Queue::Host => HOST,
        Queue::Disk => DISK,
        Queue::Link(axis) => LINKS + axis as u32,
    }
}

/// Category of a task: what the time was spent on.
fn category_of(op: TaskOp) -> &'static str {
    match op {
        TaskOp::LoadBatch => "data",
        TaskOp::Forward(_) => "forward",
        TaskOp::Recompute(_) => "recompute",
        TaskOp::Backward(_) | TaskOp::InputGrad(_) | TaskOp::WeightGrad(_) => "backward",
        TaskOp::GatherParams { .. } | TaskOp::GatherUpdated { .. } => "gather",
        TaskOp::Encode { .. } | TaskOp::Reduce { .. } | TaskOp::Decode { .. } => "reduce",
        TaskOp::TensorCollective => "tensor",
        TaskOp::Send(_) => "send",
        // A rank that waits for an activation computes nothing.
        TaskOp::Recv(Message {
            kind: MessageKind::Activation { .. } | MessageKind::ActivationGrad { .. },
            ..
        }) => "bubble",
        TaskOp::Recv(_) => "receive",
        op if op.is_of_update() => "optimizer",
        op if op.is_of_strategy() => "strategy",
        _ => "control",
    }
}
