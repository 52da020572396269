//! Pipelines: devices follow the engine's programs, sleep for every pass and send what others need.

use super::{OPEN, Point, Real, cluster};
use crate::failure::Failure;
use lockstep_comm::{Comm, CommError, Handle};
use lockstep_schedule::pipeline::{Kind, Pass, Pipeline, Shape, Task, build, needs, settled};

pub(super) const REAL: Real = Real {
    name: "pipeline",
    column: "step_seconds",
    rows: Some("schedule"),
    params: &["devices=4", "forward=20ms", "backward=40ms", "transfer=0"],
    sweep: "microbatches=4,8",
    measure,
};

/// Numbers of an activation that is sent.
const LEN: usize = 64;

fn measure(point: &Point<'_>) -> Result<f64, Failure> {
    let at = point.at;
    let Some(kind) = Kind::ALL.into_iter().find(|kind| kind.to_string() == point.word) else {
        return Ok(f64::NAN);
    };
    if at.number("variation") > 0.0 {
        return Ok(f64::NAN);
    }
    let num_chunks = if kind == Kind::Interleaved { at.count("chunks") } else { 1 };
    let shape = Shape {
        num_devices: at.count("devices"),
        num_chunks,
        num_microbatches: at.count("microbatches"),
    };
    let Ok(pipeline) = build(kind, shape) else { return Ok(f64::NAN) };
    // A device's time is divided among the stages that it has.
    let stages = shape.num_stages() as f64 / shape.num_devices as f64;
    let seconds = |pass: Pass| {
        let whole = match pass {
            Pass::Forward => at.number("forward"),
            Pass::Backward => at.number("backward"),
            Pass::InputGrad | Pass::WeightGrad => at.number("backward") / 2.0,
        };
        whole / stages
    };
    let links = cluster::even(OPEN);
    cluster::seconds(point.world, (shape.num_devices, &links), 2, |rank| {
        let mut leaving = Vec::new();
        for &task in &pipeline.programs[rank.index()] {
            let stage = pipeline.stage(rank.index(), task.chunk);
            receive(&rank.comm, &pipeline, stage, task)?;
            rank.compute(seconds(task.pass));
            leaving.extend(send(&rank.comm, &pipeline, stage, task)?);
        }
        leaving.into_iter().try_for_each(|call| call.finish().map(drop))
    })
}

/// A name for what a pass of a stage gives.
fn tag(pipeline: &Pipeline, stage: usize, pass: Pass, microbatch: usize) -> u64 {
    let kind = u64::from(pass != Pass::Forward);
    let number = (stage * pipeline.shape.num_microbatches + microbatch) as u64;
    2 * number + kind
}

/// Waits for what a pass needs from other devices.
fn receive(comm: &Comm, pipeline: &Pipeline, stage: usize, task: Task) -> Result<(), CommError> {
    for (needed, pass) in needs(pipeline.shape, stage, task.pass).into_iter().flatten() {
        let device = pipeline.device(needed, task.microbatch);
        if device != comm.group_rank() {
            let tag = tag(pipeline, needed, pass, task.microbatch);
            comm.recv(&mut [0.0_f32; LEN], device, tag)?;
        }
    }
    Ok(())
}

/// Sends what a pass gives to whoever waits for it.
fn send(
    comm: &Comm,
    pipeline: &Pipeline,
    stage: usize,
    task: Task,
) -> Result<Option<Handle<Vec<f32>>>, CommError> {
    let pass = settled(task.pass);
    let neighbour = match pass {
        Pass::Forward if stage + 1 < pipeline.shape.num_stages() => stage + 1,
        Pass::InputGrad if stage > 0 => stage - 1,
        _ => return Ok(None),
    };
    let device = pipeline.device(neighbour, task.microbatch);
    if device == comm.group_rank() {
        return Ok(None);
    }
    let tag = tag(pipeline, stage, pass, task.microbatch);
    comm.start_send::<f32, _>(vec![0.0_f32; LEN], device, tag).map(Some)
}
