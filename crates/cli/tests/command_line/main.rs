//! The real binary, as people and scripts meet it: what it prints, where, and with which exit code.
//!
//! # Layout
//! - `process`: a folder of its own and the binary in it.
//! - `commands`: every command does what its help says; the names that scripts rely on.
//! - `compare`: two runs, bit by bit.
//! - `convert`: models of other programs, read, trained on and written.
//! - `bench_comm`: collectives between real ranks.
//! - `data`: vocabularies and shards from corpora of every kind, and a large one.
//! - `lab`: experiments on this machine beside their simulation.
//! - `launch`: several workers behind one command.
//! - `failures`: workers that are killed or frozen, and what the records of the run tell.
//! - `restarts`: workers that are killed are started again, and the end is the same.
//! - `storage`: disks that are full or cannot be written.
//! - `guests`: workers of other hosts that come and go.
//! - `leftovers`: nothing of a run that was killed stays in the system.
//! - `layouts`: workers of every kind give the bits of one.
//! - `pipelines`: stages of a model on workers of every kind give the bits of one.
//! - `links`: bad links and slow workers, and algorithms that are chosen by what was measured.
//! - `places`: where saved runs lie, what stands for them, and how long they may become.
//! - `clusters`: plans for clusters that are not here.
//! - `plan`: forecasts, refusals and drawings.
//! - `problems`: small problems, and lints.
//! - `servers`: weights on processes of their own; `replicas`: each of them twice.
//! - `sweep`: many runs at a time, killed and gone on with.
//! - `methods`: ways to distribute learning, held against each other.
//! - `uneven`: slow workers, and how large steps may be.
//! - `feeding`: texts on every way, and models judged by any text.
//! - `bad_input`: whatever is wrong is said in one line, and nothing is overwritten.

mod bad_input;
mod bench_comm;
mod clusters;
mod commands;
mod compare;
mod convert;
mod data;
mod failures;
mod feeding;
mod guests;
mod lab;
mod launch;
mod layouts;
mod leftovers;
mod links;
mod methods;
mod pipelines;
mod places;
mod plan;
mod problems;
mod process;
mod rendezvous;
mod replicas;
mod restarts;
mod servers;
mod sizes;
mod storage;
mod sweep;
mod uneven;
