//! Shared fixtures of unit tests: a model, and ranks as threads.

use crate::overlap::Overlap;
use lockstep_comm::{Comm, Options};
use lockstep_config::{Family, GptNeox, LlamaVariant, Lora, Model, Mup, Problem};
use lockstep_platform::real;
use std::thread::ScopedJoinHandle;

/// Tensors of less than one chunk, of exactly one, and of more than two; grouped queries.
pub(crate) const MODEL: Model = Model {
    family: Family::Llama,
    layers: 3,
    width: 32,
    heads: 4,
    kv_heads: 2,
    ffn: 128,
    vocab: 301,
    context: 16,
    tied: true,
    dropout: 0.0,
    norm_eps: 1e-5,
    rope_theta: 10000.0,
    variant: LlamaVariant::PLAIN,
    gpt_neox: GptNeox::PYTHIA,
    mup: Mup::OFF,
    lora: Lora::NONE,
    problem: Problem::NONE,
};

/// Runs `body` on every rank of a world of threads and returns the results.
pub(crate) fn on_workers<R: Send>(
    num_workers: usize,
    is_overlapped: bool,
    body: impl Fn(Overlap) -> R + Sync,
) -> Vec<R> {
    let world = real();
    let options = Options { arena_bytes: 32 << 20, ..Options::default() };
    let ends = Comm::threads(&world, num_workers, &options).unwrap();
    let addends: Vec<_> = (0..num_workers).map(|worker| worker..worker + 1).collect();
    let run = |comm: &Comm| {
        let data = comm.summing(&addends, "data").unwrap();
        body(Overlap::new(data, comm.clone(), world.clone(), is_overlapped))
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = ends.iter().map(|comm| scope.spawn(|| run(comm))).collect();
        let join = |thread: ScopedJoinHandle<'_, R>| {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        threads.into_iter().map(join).collect()
    })
}
