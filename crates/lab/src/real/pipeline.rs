//! Pipeline schedules: ranks run the engine's programs, sleep for every pass and send activations
//! and gradients.

use super::cluster;
use super::measurement::{Measurement, Point, UNLIMITED};
use crate::error::LabError;
use lockstep_comm::{Comm, CommError, Handle};
use lockstep_schedule::pipeline::{Kind, Pass, Pipeline, Shape, Task, build, needs, settled};

pub(super) const MEASUREMENT: Measurement = Measurement {
    name: "pipeline",
    column: "step_seconds",
    row_column: Some("schedule"),
    params: &["devices=4", "forward=20ms", "backward=40ms", "transfer=0"],
    sweep: "microbatches=4,8",
    measure,
};

/// Elements of a message.
const LEN: usize = 64;

fn measure(point: &Point<'_>) -> Result<f64, LabError> {
    let at = point.at;
    let Some(kind) = Kind::ALL.into_iter().find(|kind| kind.to_string() == point.row) else {
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
    // A device's compute time is divided among its stages.
    let stages = shape.num_stages() as f64 / shape.num_devices as f64;
    let seconds = |pass: Pass| {
        let device_seconds = match pass {
            Pass::Forward => at.number("forward"),
            Pass::Backward => at.number("backward"),
            Pass::InputGrad | Pass::WeightGrad => at.number("backward") / 2.0,
        };
        device_seconds / stages
    };
    let links = cluster::uniform_links(UNLIMITED);
    cluster::shortest_seconds(point.world, (shape.num_devices, &links), 2, |rank| {
        let mut in_flight = Vec::new();
        for &task in &pipeline.programs[rank.index()] {
            let stage = pipeline.stage(rank.index(), task.chunk);
            receive(&rank.comm, &pipeline, stage, task)?;
            rank.compute(seconds(task.pass));
            in_flight.extend(send(&rank.comm, &pipeline, stage, task)?);
        }
        in_flight.into_iter().try_for_each(|call| call.finish().map(drop))
    })
}

/// Tag of the output of a pass.
fn tag(pipeline: &Pipeline, stage: usize, pass: Pass, microbatch: usize) -> u64 {
    let kind = u64::from(pass != Pass::Forward);
    let number = (stage * pipeline.shape.num_microbatches + microbatch) as u64;
    2 * number + kind
}

/// Receives the inputs of a pass from other devices.
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

/// Sends the output of a pass to the next stage.
fn send(
    comm: &Comm,
    pipeline: &Pipeline,
    stage: usize,
    task: Task,
) -> Result<Option<Handle<Vec<f32>>>, CommError> {
    let pass = settled(task.pass);
    let neighbor = match pass {
        Pass::Forward if stage + 1 < pipeline.shape.num_stages() => stage + 1,
        Pass::InputGrad if stage > 0 => stage - 1,
        _ => return Ok(None),
    };
    let device = pipeline.device(neighbor, task.microbatch);
    if device == comm.group_rank() {
        return Ok(None);
    }
    let tag = tag(pipeline, stage, pass, task.microbatch);
    comm.start_send::<f32, _>(vec![0.0_f32; LEN], device, tag).map(Some)
}
