//! A server's life: answer whoever asks, until all workers have left.
//!
//! One request is taken at a time, so what a reader gets is one version. A pull whose turn has not
//! come waits here, and with it the worker; all others are heard meanwhile.

use super::shard::{Parts, Shard};
use super::{Ask, Tag, rows};
use lockstep_comm::{Comm, CommError};
use lockstep_tensor::Cpu;
use std::collections::VecDeque;

/// Serves the first `num_workers` members of `comm` until all of them have left.
pub fn serve(
    comm: &Comm,
    cpu: &Cpu,
    shard: &mut Shard,
    num_workers: usize,
) -> Result<(), CommError> {
    let mut present: Vec<usize> = (0..num_workers).collect();
    let mut waiting: VecDeque<(usize, u64)> = VecDeque::new();
    while !present.is_empty() {
        let worker = comm.wait_any(&awaited(&present, &waiting, shard), Tag::Request as u64)?;
        let mut request = [0_u64; 2];
        comm.recv(&mut request, worker, Tag::Request as u64)?;
        let [number, step] = request;
        match Ask::from_number(number) {
            Some(Ask::Pull) => waiting.push_back((worker, step)),
            Some(Ask::Push) => {
                let grads = rows::receive_grads(comm, worker, shard)?;
                answer(comm, worker, shard.push(cpu, worker, Some(grads)))?;
            }
            Some(Ask::Skip) => answer(comm, worker, shard.push(cpu, worker, None))?,
            Some(Ask::Read) => {
                answer(comm, worker, shard.version())?;
                send(comm, worker, Tag::Weights, shard.params_mut())?;
            }
            Some(Ask::Load) => {
                receive(comm, worker, Tag::Weights, shard.params_mut())?;
                answer(comm, worker, shard.version())?;
            }
            Some(Ask::ReadState) => {
                answer(comm, worker, shard.num_updates())?;
                shard.visit_state(|state| comm.send(state, worker, Tag::State as u64))?;
            }
            Some(Ask::LoadState) => {
                let mut num_updates = [0];
                comm.recv(&mut num_updates, worker, Tag::Answer as u64)?;
                shard.visit_state(|state| comm.recv(state, worker, Tag::State as u64))?;
                shard.resume(step, num_updates[0]);
                answer(comm, worker, shard.version())?;
            }
            Some(Ask::Rows) => rows::answer(comm, worker, step, shard)?,
            Some(Ask::Leave) => present.retain(|other| *other != worker),
            None => panic!("worker {worker} asked for {number}, which is nothing"),
        }
        while let Some(turn) = waiting.iter().position(|(_, step)| shard.may_read(*step)) {
            let (worker, _) = waiting.remove(turn).expect("found above");
            let num_whole = shard.num_whole();
            let (version, params) = shard.read(worker);
            answer(comm, worker, version)?;
            send(comm, worker, Tag::Weights, &params[..num_whole])?;
        }
    }
    Ok(())
}

/// Those that may ask for something, the one in front that is to blame if nobody does: who has read
/// first and not pushed.
fn awaited(present: &[usize], waiting: &VecDeque<(usize, u64)>, shard: &Shard) -> Vec<usize> {
    let is_free = |worker: &usize| waiting.iter().all(|(other, _)| other != worker);
    let mut awaited = shard.at_work();
    awaited.extend(present.iter().filter(|worker| !shard.at_work().contains(*worker)));
    awaited.retain(is_free);
    assert!(!awaited.is_empty(), "whoever waits, waits for somebody who does not");
    awaited
}

fn answer(comm: &Comm, worker: usize, number: u64) -> Result<(), CommError> {
    comm.send(&[number], worker, Tag::Answer as u64)
}

/// Sends every part that has anything in it.
pub(super) fn send(comm: &Comm, to: usize, tag: Tag, parts: &[Vec<f32>]) -> Result<(), CommError> {
    let mut parts = parts.iter().filter(|part| !part.is_empty());
    parts.try_for_each(|part| comm.send(part, to, tag as u64))
}

fn receive(comm: &Comm, from: usize, tag: Tag, parts: &mut Parts) -> Result<(), CommError> {
    let mut parts = parts.iter_mut().filter(|part| !part.is_empty());
    parts.try_for_each(|part| comm.recv(part, from, tag as u64))
}
